"""The clients of the running loops."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from weft.models._client import Clients


class Client:
    """Is entered, and left with its loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


async def test_a_closed_loop_may_be_forgotten_by_two_threads_at_once() -> None:
    clients: Clients[Client] = Clients(Client, None, variable="KEY")

    class Gone:
        """A loop that is closed."""

        def is_closed(self) -> bool:
            owned.pop(self, None)  # as another thread does that looks at the same moment
            return True

    owned: dict[Any, Any] = clients._owned
    owned[Gone()] = None
    assert isinstance(await clients.here(), Client)
    assert list(owned) == [asyncio.get_running_loop()]
