"""A child whose beginning was refused, and whose parent's run is cancelled meanwhile, does not begin any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.thread.places import refused
from weft import Agent
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, calls, hold, say
from weft.thread import Memory, Session
from weft.thread.memory import MemoryStore
from weft.thread.openstore import OpenStore
from weft.thread.store import Appended, Head, Index, LeaseChange


class Full(MemoryStore):
    """The disk is full for the first turn of a child that is asked this, as often as it says."""

    def __init__(self, clock: ManualClock, prompt: str, refusals: int) -> None:
        super().__init__(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)
        self._prompt = prompt.encode()
        self.refusals = refusals

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if self.refusals and expect.count == 1 and any(self._prompt in line for line in lines):
            self.refusals -= 1
            return refused()
        return super().append(thread, lines, expect, lease, index)


@dataclass
class Desk:
    """A session that has delegated to `first` and `second` just now; the first turn of `first` was refused once."""

    clock: ManualClock
    session: Session[Any]
    scripts: dict[str, Script]
    pool: Pool
    second: asyncio.Event

    def asked(self) -> list[str]:
        return [name for name, script in self.scripts.items() if script.requests]


@asynccontextmanager
async def a_desk() -> AsyncIterator[Desk]:
    pool, clock, gate = Pool(1), ManualClock(), asyncio.Event()
    scripts = {"first": Script(say("it began")), "second": Script(hold(gate, then=say("late")))}
    tools = [pool.wrap(name, Agent(script, name=name), description="x") for name, script in scripts.items()]
    wanted = calls(call("first", prompt="to the first"), call("second", prompt="to the second"))
    disk = Full(clock, "to the first", 1)
    async with OpenStore(disk, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(Script(wanted, say("done")), tools=tools))
        await session.send("go")
        while disk.refusals:
            await clock.advance(0.0)
        yield Desk(clock, session, scripts, pool, gate)
        assert store.reports == []
    assert pool._slots.used == 0


async def test_one_that_would_begin_again_after_the_cancel_does_not() -> None:
    async with a_desk() as desk:
        await desk.session.cancel()
        await desk.clock.advance(5.0)
        assert [receipt.state for receipt in desk.session.receipts] == ["cancelled", "cancelled"]
        assert "first" not in desk.asked()


async def test_one_that_waits_for_a_slot_again_when_the_cancel_comes_does_not_begin() -> None:
    async with a_desk() as desk:
        await desk.clock.advance(1.0)  # it is tried again, and waits for the slot that the second has
        assert desk.asked() == ["second"]
        await desk.session.cancel()
        await desk.clock.advance(5.0)
        assert [receipt.state for receipt in desk.session.receipts] == ["cancelled", "cancelled"]
        assert desk.asked() == ["second"]
