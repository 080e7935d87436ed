"""Where two go on with a parent, each of its children is made once, and when it can and may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from tests.thread.places import SlowStore
from weft import Agent, tool
from weft.errors import NotFound, StoreFailed
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, hold, say
from weft.testing.clock import settle
from weft.thread import Memory, Session, approve, open_store
from weft.thread._codec import decode_line, header_line
from weft.thread.entries import Header
from weft.thread.memory import MemoryStore
from weft.thread.openstore import OpenStore
from weft.thread.store import Appended, Head, Index, LeaseChange

T = TypeVar("T")


class Full(MemoryStore):
    """A disk that takes its time to refuse a child, and its first entries."""

    waiting: list[asyncio.Future[Any]] | None = None

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        if self.waiting is None:
            return super().create(thread, line, index, more)
        return self._later()

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if self.waiting:
            return self._later()
        return super().append(thread, lines, expect, lease, index)

    def _later(self) -> asyncio.Future[Any]:
        assert self.waiting is not None
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    def refuse(self) -> None:
        waiting, self.waiting = self.waiting or [], None
        for future in waiting:
            future.set_exception(StoreFailed("the disk is full"))


async def test_a_child_whose_making_is_refused_is_made_later_also_where_two_drive_it() -> None:
    pool = Pool(1)
    helper = Agent(Script(say("helped")), name="helper")
    parent = Agent(Script(call("help", prompt="x"), say("done")), tools=[pool.wrap("help", helper, description="x")])
    clock = ManualClock()
    disk = Full(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)
    async with OpenStore(disk, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(parent)
        disk.waiting = []
        turn = await session.send("go")
        await settle()
        assert len(disk.waiting) == 2
        await (await store.open(session.id, parent)).resume()
        await settle()
        disk.refuse()
        await clock.advance(1.0)
        waits = asyncio.ensure_future(turn.wait())
        await clock.advance(60.0)
        assert waits.done()
        assert waits.result().text == "done"
        assert [receipt.state for receipt in session.receipts] == ["done"]
    assert store.reports == []


async def test_a_child_that_two_were_to_make_is_made_by_one_of_them() -> None:
    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    pool, clock, free, asks = Pool(1), ManualClock(), asyncio.Event(), asyncio.Event()
    slow = pool.wrap("slow", Agent(Script(hold(free, say("at last"))), name="slow"), description="x")
    payer = Agent(Script(hold(asks, call("pay")), say("paid")), name="payer", tools=[pay])
    parent = Agent(Script(call("payer", prompt="x"), say("done")), tools=[pool.wrap("payer", payer, description="x")])
    async with open_store(Memory(), clock=clock, grace=0.0) as store:
        other = await store.create(Agent(Script(call("slow", prompt="x"), say("done")), tools=[slow]))
        await other.send("take the slot")
        await settle()
        session = await store.create(parent)
        await session.send("go")
        await settle()
        await (await store.open(session.id, parent)).resume()  # so that two wait for the slot
        await settle()
        free.set()
        await clock.advance(1.0)
        child = await store.open(session.receipts[0].child)
        asks.set()
        await clock.advance(1.0)  # it waits for a person, and the slot is free
        await child.note("n", "of who has it open")
        await session.decide(*map(approve, session.pending))
        await clock.advance(1.0)
        assert [message.text for message in session.messages][-1] == "done"
        assert store.reports == []


async def test_who_comes_too_late_to_begin_a_child_keeps_no_slot() -> None:
    pool, clock = Pool(1), ManualClock()
    helper = Agent(Script(say("helped")), name="helper")
    parent = Agent(
        Script(call("help", prompt="x"), call("help", prompt="y"), say("done")),
        tools=[pool.wrap("help", helper, description="x")],
    )
    disk = SlowStore(Memory(), "one", clock)
    async with OpenStore(disk, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(parent)
        disk.hold(3)  # the child's first append
        turn = await session.send("go")
        await settle()
        await (await store.open(session.id, parent)).resume()
        await settle()
        await disk.open_up()
        await clock.advance(1.0)
        assert turn.outcome == "answered"


class Deaf(MemoryStore):
    """A store whose renewals never arrive."""

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        raise StoreFailed("no answer")


async def test_a_child_that_was_cancelled_before_it_began_is_not_begun_by_who_is_late() -> None:
    pool, data, clock, free = Pool(1), Memory(), ManualClock(), asyncio.Event()
    slow = pool.wrap("slow", Agent(Script(hold(free, say("at last"))), name="slow"), description="x")
    late = pool.wrap("late", Agent(Script(say("never")), name="late"), description="x")
    deaf = Deaf(data, owner="deaf", ttl=30.0, clock=clock, survives=True)
    async with (
        OpenStore(deaf, clock=clock, ids=CountingIds("a"), grace=0.0) as one,
        open_store(data, clock=clock, ids=CountingIds("b")) as two,
    ):
        await (await one.create(Agent(Script(call("slow", prompt="x")), tools=[slow]))).send("take the slot")
        await settle()
        session = await one.create(Agent(Script(call("late", prompt="x")), tools=[late]))
        await session.send("go")
        await clock.advance(31.0)
        theirs = await two.open(session.id)
        assert await theirs.cancel()
        await clock.advance(11.0)
        assert [receipt.state for receipt in theirs.receipts] == ["cancelled"]
        free.set()
        await clock.advance(1.0)
        with pytest.raises(NotFound):
            await two.open(theirs.receipts[0].child)


class Raced(MemoryStore):
    """Another process makes each child just before; who makes it here hears of that when `tell` is called."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)
        self._children: set[str] = set()
        self._untold: list[Callable[[], None]] = []

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        header = decode_line(line, thread, 0).body
        assert isinstance(header, Header)
        if header.parent is None:
            return super().create(thread, line, index, more)
        self._children.add(thread)
        super().create(thread, header_line(replace(header, created=header.created + 1.0)), index)
        return self._later(super().create(thread, line, index, more))

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        done = super().append(thread, lines, expect, lease, index)
        return self._later(done) if thread in self._children else done

    def _later(self, done: asyncio.Future[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._untold.append(partial(_tell, future, done))
        return future

    def tell(self) -> None:
        self._children.clear()
        for untold in self._untold:
            untold()


def _tell(future: asyncio.Future[T], done: asyncio.Future[T]) -> None:
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)


@asynccontextmanager
async def a_raced_child(script: Script) -> AsyncIterator[tuple[Raced, ManualClock, OpenStore, Session[Any]]]:
    """A session that makes a child which was just made elsewhere, and has not heard of that."""
    pool, clock = Pool(2), ManualClock()
    wrapped = pool.wrap("help", Agent(script, name="helper"), description="x")
    parent = Agent(Script(call("help", prompt="x"), say("done")), tools=[wrapped])
    disk = Raced(clock)
    async with OpenStore(disk, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(parent)
        await session.send("go")
        await settle()
        yield disk, clock, store, session
        assert store.reports == []
    assert pool._slots.used == 0


async def test_a_child_that_was_just_made_elsewhere_is_gone_on_with_also_where_two_drive_it() -> None:
    async with a_raced_child(Script(say("helped"))) as (disk, clock, store, session):
        assert session.agent is not None
        await (await store.open(session.id, session.agent)).resume()
        await settle()
        disk.tell()
        await clock.advance(1.0)
        assert [receipt.state for receipt in session.receipts] == ["done"]
        assert session.messages[-1].text == "done"


async def test_a_child_that_was_just_made_elsewhere_is_ended_where_its_parent_is_cancelled_meanwhile() -> None:
    never = Script(say("never"))
    async with a_raced_child(never) as (disk, clock, store, session):
        assert await session.cancel()
        await settle()
        disk.tell()
        await clock.advance(5.0)
        assert [receipt.state for receipt in session.receipts] == ["cancelled"]
        assert (await store.open(session.receipts[0].child)).messages == ()
    assert not never.requests
