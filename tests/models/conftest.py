"""What the adapters' tests share."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI

from tests.aimock import Aimock, aimock


def pytest_itemcollected(item: pytest.Item) -> None:
    """The adapters' requests go to doubles; our own plugin would refuse them."""
    item.add_marker(pytest.mark.weft_live)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Aimock]:
    """Aimock with the `RULES` of the test's module."""
    with aimock(*request.module.RULES) as running:
        yield running


@pytest.fixture
async def client(server: Aimock) -> AsyncIterator[AsyncOpenAI]:
    """A client of aimock that does not retry, so that no test waits."""
    async with AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0) as made:
        yield made
