"""A store is entered once, and used in the event loop in which it was: what else is tried is refused, and waits not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.thread.places import payer
from weft.errors import Closed, WrongCall
from weft.thread import OpenStore, Session, Turn, approve, open_store

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


async def test_a_store_that_is_entered_is_not_entered_again_and_goes_on(address: str) -> None:
    async with open_store(address) as store:
        with pytest.raises(WrongCall, match="entered already: enter it once, where the application starts"):
            await store.__aenter__()
        session = await store.create(payer())
        assert (await session.ask("go")).parked


async def test_a_store_that_was_left_can_be_entered_again(address: str) -> None:
    store = open_store(address)
    async with store:
        pass
    async with store:
        assert (await (await store.create(payer())).ask("go")).parked


async def test_a_store_that_could_not_be_entered_can_be_when_the_cause_is_gone(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'later' / 'weft.db'}")
    with pytest.raises(WrongCall, match="make it first"):
        await store.__aenter__()
    (tmp_path / "later").mkdir()
    async with store:
        await store.create(payer())


async def listed(store: OpenStore) -> None:
    async for _ in store.list():
        pass


async def watched(store: OpenStore, thread: str) -> None:
    async for _ in store.watch(thread):
        pass


Use = Callable[[OpenStore, "Session[str]", "Turn[str]"], Awaitable[Any]]
USES: dict[str, Use] = {
    "create": lambda store, session, turn: store.create(payer()),
    "open": lambda store, session, turn: store.open(session.id),
    "list": lambda store, session, turn: listed(store),
    "watch": lambda store, session, turn: watched(store, session.id),
    "delete": lambda store, session, turn: store.delete(session.id),
    "store.decide": lambda store, session, turn: store.decide(approve(session.pending[0])),
    "ask": lambda store, session, turn: session.ask("hi"),
    "decide": lambda store, session, turn: session.decide(approve(session.pending[0])),
    "resume": lambda store, session, turn: session.resume(),
    "refresh": lambda store, session, turn: session.refresh(),
    "wait for a queued turn": lambda store, session, turn: turn.wait(),
    "cancel a queued turn": lambda store, session, turn: turn.cancel(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_a_store_is_not_used_in_another_event_loop_and_goes_on_in_its_own(use: Use) -> None:
    async with open_store("memory:") as store:
        session = await store.create(payer())
        await session.ask("go")
        queued = await session.send("and then?")
        head = session.head

        async def elsewhere() -> None:
            async with asyncio.timeout(5):
                await use(store, session, queued)

        with pytest.raises(Closed, match=r"another event loop.*run_coroutine_threadsafe"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        await session.refresh()
        assert session.head == head
        turn = await session.decide(approve(session.pending[0]))
        assert (await turn.wait()).text == "done"
        assert (await queued.wait()).text == "more"
