"""A clock, or ids, that fail once at any instant: whoever waits is told, and the session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.thread.places import refused
from weft import Agent, tool
from weft._ports import Timer
from weft.errors import WeftError
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, calls, say
from weft.thread import Memory, OpenStore, approve, open_store
from weft.thread.entries import Head, Index
from weft.thread.memory import MemoryStore
from weft.thread.store import Appended, LeaseChange

pytestmark = pytest.mark.anyio


class Broken(Exception):
    pass


class Fault:
    """Raises at its n-th use."""

    def __init__(self, at: int) -> None:
        self.left = at

    def use(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Broken


class Ids(CountingIds):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def new(self) -> str:
        self.fault.use()
        return super().new()


class Clock(ManualClock):
    fault = Fault(0)

    def now(self) -> float:
        self.fault.use()
        return super().now()

    def monotonic(self) -> float:
        self.fault.use()
        return super().monotonic()


@tool(approval=True, effect="none", expires=60_000.0)
def pay() -> str:
    return "paid"


@tool(effect="none")
def look() -> str:
    return "shipped"


def desk() -> Agent:
    helper = Pool(1).wrap("help", Agent(Script(say("helped")), name="helper"), description="Helps.")
    step = calls(call("pay"), call("look"), call("help", prompt="please"))
    return Agent(Script(step, say("one"), say("two"), say("three")), tools=[pay, look, helper])


async def use(store: OpenStore, agent: Agent) -> str:
    session = await store.create(agent, key="ann")
    await session.resume()
    await session.send("hi", key="hi")
    await session.settled_or_waiting()
    while session.pending:
        await session.decide(*[approve(request) for request in session.pending])
        await session.settled_or_waiting()
    return (await session.ask("again")).text


async def outcome(work: Coroutine[Any, Any, str], clock: ManualClock) -> str | None:
    """What it gives, or None where it is told of the fault; it never waits for ever."""
    task = asyncio.ensure_future(work)
    for _ in range(200):
        await clock.advance(1.0)
        if task.done():
            break
    else:
        task.cancel()
        pytest.fail("it waits for ever")
    try:
        return task.result()
    except (Broken, WeftError):
        return None


@pytest.mark.parametrize("place", ["memory", "sqlite"])
@pytest.mark.parametrize("port", ["ids", "clock"])
async def test_a_clock_or_ids_that_fail_at_any_instant_wedge_no_session(port: str, place: str, tmp_path: Path) -> None:
    for n in range(1, 100):
        clock, fault = Clock(), Fault(0)
        ids = Ids(fault)
        where = Memory() if place == "memory" else f"sqlite:///{tmp_path / f'{n}.db'}"
        async with open_store(where, clock=clock, ids=ids, grace=0) as store:
            agent = desk()
            fault.left = n
            if port == "clock":
                clock.fault, ids.fault = fault, Fault(0)
            await outcome(use(store, agent), clock)
            clock.fault = Fault(0)
            if fault.left > 0:
                return
            assert await outcome(use(store, agent), clock) is not None, f"use {n} of the {port}"
    pytest.fail("it is used too often for this test")


class NoTimer(ManualClock):
    """Sets no timer, once it is told so."""

    broken = False

    def deadline(self, seconds: float, callback: Callable[[], object]) -> Timer:
        if self.broken:
            self.broken = False
            raise Broken
        return super().deadline(seconds, callback)


class Full(MemoryStore):
    """The disk is full for the first end of a turn, and the clock then fails."""

    def __init__(self, clock: NoTimer) -> None:
        super().__init__(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)
        self.timers = clock
        self.full = True

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if not self.full or not any(b'"turn_ended"' in line for line in lines):
            return super().append(thread, lines, expect, lease, index)
        self.full, self.timers.broken = False, True
        return refused()


async def test_a_turn_that_the_disk_refuses_is_given_up_where_the_clock_cannot_try_it_again() -> None:
    clock = NoTimer()
    async with OpenStore(Full(clock), clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(Script(say("one"), say("two"), say("three"))))

        async def ask(text: str) -> str:
            return (await session.ask(text)).text

        assert await outcome(ask("hi"), clock) is None
        assert await outcome(ask("again"), clock) is not None
