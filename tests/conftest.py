"""Settings shared by every test."""

import pytest
from hypothesis import settings

# A slow machine is not a failed property; pytest-timeout bounds the whole test.
settings.register_profile("weft", deadline=None)
settings.load_profile("weft")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every async test on asyncio, the only event loop weft promises."""
    return "asyncio"
