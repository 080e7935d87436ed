"""Settings shared by every test."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

# A slow machine is not a failed property; pytest-timeout bounds the whole test.
settings.register_profile("weft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weft")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every async test on asyncio, the only event loop weft promises."""
    return "asyncio"


@pytest.fixture
def lone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs pytest with the plugins that are named, and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("WEFT_MODEL_REQUESTS", raising=False)
    return pytester


def pytest_collection_finish() -> None:
    """What is there before the first test stays: the collector, which some tests call, need not look at it again."""
    gc.collect()
    gc.freeze()
