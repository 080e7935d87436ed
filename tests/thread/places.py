"""Two stores on one data, as of two processes; appends that take their time; and what holds of any journal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from weft import Agent, ModelRequest, tool
from weft.errors import StoreFailed
from weft.messages import NO_USAGE, Message, Usage
from weft.model import ModelEvent
from weft.testing import CountingIds, ManualClock, Script, call, say
from weft.testing.clock import settle
from weft.thread import Memory, OpenStore, Session
from weft.thread._codec import decode_lines
from weft.thread._view import View, evolve
from weft.thread.entries import (
    SETTLED,
    TREE,
    CallResult,
    Cancel,
    Decision,
    Entry,
    Header,
    Inbox,
    Leaf,
    Receipt,
    Said,
    TurnEnded,
    TurnStarted,
)
from weft.thread.memory import MemoryStore
from weft.thread.store import Appended, Head, Index, LeaseChange

LEASE = 30.0


class Body:
    """A tool whose body says that it has started, and ends when it is told."""

    def __init__(self, name: str = "act", *, free: bool = False, **options: Any) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.runs = 0
        self.keys: Counter[str] = Counter()
        if free:
            self.release.set()

        @tool(name=name, **options)
        async def act() -> str:
            self.runs += 1
            self.started.set()
            await self.release.wait()
            return "acted"

        self.tool = act


class Seen(Script):
    """A script that keeps what it was asked, as it was then."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        super().__init__(*steps, **options)
        self.read: list[tuple[Message, ...]] = []

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.read.append(tuple(request.messages))
        return super().stream(request)


@dataclass(slots=True)
class _Held:
    future: asyncio.Future[Appended]
    given: tuple[Any, ...]


class SlowStore(MemoryStore):
    """Appends are written a turn of the loop later, and answered one later still; or, while `shut`, not at all."""

    shut = False
    slow = True

    def __init__(self, data: Memory, owner: str, clock: ManualClock) -> None:
        super().__init__(data, owner=owner, ttl=LEASE, clock=clock, survives=True)
        self.held: list[_Held] = []
        self.sent = 0
        """Appends since `hold`."""
        self._first = 0

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        self.sent += 1
        self.shut = self.shut or self.sent == self._first
        held = _Held(asyncio.get_running_loop().create_future(), (thread, lines, expect, lease, index))
        if self.shut or self.held:
            self.held.append(held)
        elif self.slow:
            asyncio.get_running_loop().call_soon(self._write, held)
        else:
            self._write(held)
        return held.future

    def _write(self, held: _Held) -> None:
        done = super().append(*held.given)
        asyncio.get_running_loop().call_soon(_tell, held.future, done)

    def hold(self, nth: int) -> None:
        """Write nothing from the n-th append from now on."""
        self.sent, self._first = 0, nth

    async def open_up(self) -> None:
        """Write what was held, and hold nothing more."""
        self.shut, self._first = False, 0
        while self.held:
            self._write(self.held.pop(0))
            await settle()


def refused() -> asyncio.Future[Any]:
    """What a full disk gives for an append."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(StoreFailed("the disk is full"))
    return future


def _tell(future: asyncio.Future[Appended], done: asyncio.Future[Appended]) -> None:
    error = done.exception()
    if future.done():
        return
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)


@dataclass
class Place:
    """Two stores on one data, with one clock. `one` runs the turns."""

    clock: ManualClock = field(default_factory=ManualClock)
    data: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.disk = SlowStore(self.data, "one", self.clock)
        self.one = OpenStore(self.disk, clock=self.clock, ids=CountingIds("a"), grace=0.0)
        self.two = self.another("two", "b")

    def another(self, owner: str, prefix: str) -> OpenStore:
        """One more store, not entered."""
        store = MemoryStore(self.data, owner=owner, ttl=LEASE, clock=self.clock, survives=True)
        return OpenStore(store, clock=self.clock, ids=CountingIds(prefix), grace=0.0)

    def store(self, where: str) -> OpenStore:
        return self.one if where == "here" else self.two

    async def until(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let time go by until it is done."""
        await settle()
        over = self.clock.monotonic() + seconds
        while not done():
            assert self.clock.monotonic() < over, "it does not come to an end"
            await self.clock.advance(0.25)

    async def outcome(self, work: Awaitable[Any], seconds: float = 60.0) -> Any:
        """What it gives, or the exception that it ends with, while time goes by."""
        waits = asyncio.ensure_future(work)
        try:
            await self.until(waits.done, seconds)
        finally:
            waits.cancel()
        return waits.exception() or waits.result()

    async def rests(self, session: Session, seconds: float = 60.0) -> None:
        """All is done, or waits for a person."""
        await session.refresh()
        assert await self.outcome(session.settled_or_waiting(), seconds) is None

    def entries(self, thread: str) -> list[Entry]:
        return decode_lines(self.data._threads[thread].lines, thread, 0)

    def view(self, thread: str) -> View:
        """The thread, folded afresh."""
        return _replayed(self.entries(thread))

    def kinds(self, thread: str) -> list[str]:
        return [entry.kind for entry in self.entries(thread)]


@asynccontextmanager
async def a_place() -> AsyncIterator[Place]:
    """A place with both stores entered; what is left behind ends with it, and no task has failed."""
    loop = asyncio.get_running_loop()
    reports: list[dict[str, Any]] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, report: reports.append(report))
    place = Place()
    try:
        async with place.one, place.two:
            try:
                yield place
            finally:
                await place.disk.open_up()
        await settle()
    finally:
        loop.set_exception_handler(handler)
    assert reports == []
    for store in (place.one, place.two):
        assert store.reports == []


async def ticks(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


# What holds of any journal.


def sound(place: Place, *, moving: bool = False) -> None:
    """The rules of one journal, for each thread that there is; while something moves, those that hold at any moment."""
    for name, thread in place.data._threads.items():
        entries = decode_lines(thread.lines, name, 0)
        view = _replayed(entries)
        _input_ends_once(entries, view)
        _decided_and_spent_once(entries)
        _settled_once(entries)
        assert view.turns == _reported(entries), "the ledger is not the sum of its entries"
        if view.run is None and not moving:
            assert not view.transcript.open or _moved(entries), f"{name}: an ended run has open calls"
            assert not view.undecided, f"{name}: an ended run has requests"
            assert thread.owner is None, f"{name}: leased though nothing runs"


def _replayed(entries: list[Entry]) -> View:
    """Fold, and look at each step that it is one that may be."""
    header = entries[0].body
    assert isinstance(header, Header)
    view = View(header)
    results: Counter[str] = Counter()
    for entry in entries[1:]:
        body, run = entry.body, view.run
        if type(body) in TREE and not isinstance(body, Leaf):
            assert entry.parent == view.leaf, f"{entry} has an old parent"
        if isinstance(body, TurnStarted):
            may = {"recover": "open", "resume": "parked", "cancel": "parked"}.get(body.cause, "idle")
            if body.cause == "cancel" and header.parent is not None and not view.started_at:
                may = "idle"  # a child that is not to begin
            assert view.phase == may, f"{entry} in {view.phase}"
            assert body.cause != "resume" or (run is not None and run.cancelled is None), "a cancelled run resumed"
        elif isinstance(body, Said | CallResult | TurnEnded):
            assert view.phase == "open", f"{entry} outside a turn"
        if isinstance(body, CallResult):
            results[body.call] += 1
            assert results[body.call] == 1, f"two results: {entry}"
        if isinstance(body, TurnEnded) and run is not None:
            assert body.turn == run.turn
            assert run.cancelled is None or body.outcome == "cancelled", f"a cancel was ignored: {entry}"
        evolve(view, entry)
        if isinstance(body, Leaf):  # a call has one result on each path
            path = (found.body for found in view.path(view.leaf))
            results = Counter(found.call for found in path if isinstance(found, CallResult))
    return view


def _moved(entries: list[Entry]) -> bool:
    """Whether the leaf was moved since the last turn."""
    last = max((entry.position for entry in entries if isinstance(entry.body, TurnEnded)), default=0)
    return any(isinstance(entry.body, Leaf) for entry in entries[last:])


def _input_ends_once(entries: list[Entry], view: View) -> None:
    accepted = [e.id for e in entries if isinstance(e.body, Inbox) and e.body.state == "accepted"]
    delivered = [e.body.item for e in entries if isinstance(e.body, Said) and e.body.item is not None]
    dropped = [e.body.item for e in entries if isinstance(e.body, Inbox) and e.body.state == "dropped"]
    assert Counter([*delivered, *dropped, *view.queue]) == Counter(accepted)


def _decided_and_spent_once(entries: list[Entry]) -> None:
    decided = Counter(e.body.request for e in entries if isinstance(e.body, Decision))
    spent = Counter(name for e in entries if isinstance(e.body, TurnStarted) for name in e.body.spends)
    assert all(times == 1 for times in (*decided.values(), *spent.values()))


def _settled_once(entries: list[Entry]) -> None:
    settled = Counter(e.body.receipt for e in entries if isinstance(e.body, Receipt) and e.body.state in SETTLED)
    assert all(times == 1 for times in settled.values())


def _reported(entries: list[Entry]) -> Usage:
    total = NO_USAGE
    for entry in entries:
        body = entry.body
        if isinstance(body, Said) and body.message.role == "assistant":
            total += body.usage or Usage(unknown=1)
        elif isinstance(body, CallResult | TurnEnded) and body.usage is not None:
            total += body.usage
        elif isinstance(body, TurnStarted) and body.cause == "recover":
            total += Usage(unknown=_replayed(entries[: entry.position + 1]).turns.unknown - total.unknown)
    return total


def at_rest(place: Place) -> None:
    """Nothing is left to do anywhere: no run, no receipt, no queue."""
    sound(place)
    for name in place.data._threads:
        view = place.view(name)
        assert view.run is None, f"{name} is {view.phase}"
        assert not view.unsettled
        assert not view.queue


def answers_what_was_read(session: Session, *scripts: Seen) -> None:
    """Each reply was given to a request that had all that stands before it: nothing said went unread."""
    read = [messages for script in scripts for messages in script.read]
    for number, message in enumerate(session.messages):
        if message.role == "assistant":
            assert session.messages[:number] in read, f"{message.text!r} has not read what is before it"


@tool(approval=True)
async def pay() -> str:
    return "paid"


def payer() -> Agent[None]:
    """An agent that asks whether it may pay, once."""
    return Agent(Script(call("pay"), say("done"), say("more")), tools=[pay])


def users(session: Session) -> list[str]:
    return [message.text for message in session.messages if message.role == "user"]


def results(session: Session) -> list[tuple[str | None, str]]:
    """Code and text of each call's one result, in order."""
    made = [part.id for message in session.messages for part in message.calls]
    given = [result for message in session.messages for result in message.results]
    assert [result.call for result in given] == made
    return [(result.code, result.content) for result in given]


def cancels(entries: list[Entry]) -> int:
    return sum(isinstance(entry.body, Cancel) for entry in entries)
