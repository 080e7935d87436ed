"""A child's settlement whose append is refused, because a decision came first, is written all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.thread.places import refused
from weft import Agent, tool
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, calls, hold, say
from weft.thread import Memory, Session, approve
from weft.thread._codec import chain, decode_lines, encode_body
from weft.thread.entries import Decision, Entry, Head, Index, Receipt
from weft.thread.memory import MemoryStore
from weft.thread.openstore import OpenStore
from weft.thread.store import Appended, LeaseChange


class Crossing(MemoryStore):
    """Another process's decision arrives just before the first settlement of a receipt."""

    request: str | None = None

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if self.request is not None and any(b'"state":"done"' in line for line in lines):
            body = Decision(id="theirs", request=self.request, outcome="deny", at=0.0)
            self.request = None
            entry = Entry(position=expect.count, id="theirs", parent=None, time=0.0, body=body)
            self._append(thread, chain([entry], [encode_body(body)], expect)[0], expect, None, None)
        return super().append(thread, lines, expect, lease, index)


async def test_a_settlement_that_was_refused_is_written_with_its_result() -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    gate = asyncio.Event()
    pool = Pool(2)
    payer = Agent(Script(call("pay"), say("it was denied")), name="payer", tools=[pay])
    quick = Agent(Script(hold(gate, then=say("quick"))), name="quick")
    parent = Agent(
        Script(calls(call("payer", prompt="x"), call("quick", prompt="y")), say("done")),
        tools=[pool.wrap("payer", payer, description="x"), pool.wrap("quick", quick, description="y")],
    )
    clock = ManualClock()
    store = Crossing(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)
    async with OpenStore(store, clock=clock, ids=CountingIds("a"), grace=0.0) as opened:
        session = await opened.create(parent)
        turn = await session.send("go")
        while not session.pending or session.receipts[0].state != "parked":
            await clock.advance(0.0)
        store.request = session.pending[0].id
        gate.set()
        await clock.advance(1.0)
        waited = asyncio.ensure_future(turn.wait())
        await clock.advance(1.0)
        assert (await waited).text == "done"
        assert [receipt.state for receipt in session.receipts] == ["done", "done"]
        entries = decode_lines((await store.load(session.id)).lines, session.id, 0)
    settled = [
        entry.body.receipt for entry in entries if isinstance(entry.body, Receipt) and entry.body.state == "done"
    ]
    assert len(settled) == len(set(settled)) == 2


class Full(MemoryStore):
    """The disk is full for the first settlements as failed."""

    refuses = 2

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if self.refuses and any(b'"state":"failed"' in line for line in lines):
            self.refuses -= 1
            return refused()
        return super().append(thread, lines, expect, lease, index)


class Stopped(MemoryStore):
    """Does not know the time, once."""

    broken: Exception | None = None

    async def now(self) -> float:
        broken, self.broken = self.broken, None
        if broken is not None:
            raise broken
        return await super().now()


@asynccontextmanager
async def approved(
    store: MemoryStore, clock: ManualClock, fails: Callable[[], None]
) -> AsyncIterator[tuple[OpenStore, Session]]:
    """A session whose parked child was approved just now; the child's deps fail from then on, as `fails` does."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def deps(_: object) -> None:
        if broken:
            fails()

    broken: list[str] = []
    payer = Agent(Script(call("pay"), say("paid")), name="payer", tools=[pay])
    delegates = Pool(2).wrap("payer", payer, description="x", deps=deps)
    parent = Agent(Script(calls(call("pay"), call("payer", prompt="x")), say("done")), tools=[pay, delegates])
    async with OpenStore(store, clock=clock, ids=CountingIds("a"), grace=0.0) as opened:
        session = await opened.create(parent)
        await session.send("go")
        while session.receipts == () or session.receipts[0].state != "parked":
            await clock.advance(0.0)
        await session.settled_or_waiting()
        broken.append("from now on")
        (of_child,) = (request for request in session.pending if request.path[-1] == "payer")
        await session.decide(approve(of_child))
        yield opened, session


async def test_why_the_failure_of_a_child_cannot_be_settled_is_reported() -> None:
    no_deps, no_time = ValueError("no deps any more"), KeyError("no time")
    clock = ManualClock()
    store = Stopped(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)

    def fails() -> None:
        store.broken = no_time
        raise no_deps

    async with approved(store, clock, fails) as (opened, session):
        for _ in range(50):
            await clock.advance(0.1)
        assert opened.reports == [(session.id, no_deps), (session.id, no_time)]


async def test_a_child_that_fails_while_the_disk_is_full_is_settled_when_there_is_room() -> None:
    no_deps = ValueError("no deps any more")
    clock = ManualClock()
    store = Full(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)

    def fails() -> None:
        raise no_deps

    async with approved(store, clock, fails) as (opened, session):
        while session.receipts[0].state != "failed":
            await clock.advance(0.1)
        assert store.refuses == 0
        assert opened.reports == [(session.id, no_deps)]
