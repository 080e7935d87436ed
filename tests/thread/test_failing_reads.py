"""A read that the disk refuses costs a typed error or a pause: never the handle, the turn, or the thread's lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.thread.places import LEASE, Body, at_rest, ticks, users
from tests.thread.places import Place as TwoStores
from weft import Agent, Result
from weft.errors import Closed, StoreFailed
from weft.testing import CountingIds, Script, call, calls, say
from weft.testing.clock import settle
from weft.thread import OpenStore, Session
from weft.thread.memory import MemoryStore
from weft.thread.store import Appended, Head, Index, LeaseChange, Loaded

pytestmark = pytest.mark.anyio


class Unreadable(MemoryStore):
    """The next `failures` loads are refused."""

    failures = 0

    async def load(self, thread: str, after: int = 0) -> Loaded:
        if self.failures:
            self.failures -= 1
            raise StoreFailed("the store could not read: disk I/O error")
        return await super().load(thread, after)


@dataclass
class Place(TwoStores):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.reads = Unreadable(self.data, owner="one", ttl=LEASE, clock=self.clock, survives=True)
        self.one = OpenStore(self.reads, clock=self.clock, ids=CountingIds("a"), grace=0.0)


@asynccontextmanager
async def entered(place: Place) -> AsyncIterator[Place]:
    async with place.one, place.two:
        yield place
    assert place.one.reports == []


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with entered(Place()) as place:
        yield place


def agent(body: Body) -> Agent[None]:
    return Agent(Script(call("act"), say("done"), say("next")), tools=[body.tool])


async def test_a_handle_whose_read_was_refused_reads_when_it_can(place: Place) -> None:
    session = await place.one.create(Agent(Script(say("hello"))))
    place.reads.failures = 1
    with pytest.raises(StoreFailed):
        await session.refresh()
    await session.refresh()
    assert (await session.ask("hi")).text == "hello"
    at_rest(place)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_turn_that_cannot_read_what_others_wrote_reads_it_a_little_later(place: Place, failures: int) -> None:
    body = Body()
    session = await place.one.create(agent(body))
    turn = await session.send("go")
    await body.started.wait()
    await (await place.two.open(session.id)).send("and then")
    place.reads.failures = failures
    body.release.set()
    assert (await place.outcome(turn.wait())).text == "done"
    await place.rests(session)
    assert users(session) == ["go", "and then"]
    at_rest(place)


async def test_a_command_that_cannot_read_what_others_wrote_is_refused_and_can_be_given_again(place: Place) -> None:
    session = await place.one.create(Agent(Script(say("hello"))))
    await (await place.two.open(session.id)).note("n", "of two")
    place.reads.failures = 1
    with pytest.raises(StoreFailed):
        await session.note("n", "of one")
    await session.note("n", "again")
    assert [note.text for note in session.notes] == ["of two", "again"]


async def test_a_turn_that_can_read_no_more_leaves_its_lease_to_run_out(place: Place) -> None:
    body = Body(effect="none")
    session = await place.one.create(agent(body))
    turn = await session.send("go")
    await body.started.wait()
    theirs = await place.two.open(session.id, agent(Body(effect="none", free=True)))
    await theirs.send("and then")
    place.reads.failures = 1_000_000
    body.release.set()
    assert isinstance(await place.outcome(turn.wait()), StoreFailed)
    await place.clock.advance(LEASE)
    await place.rests(theirs)
    assert users(theirs) == ["go", "and then"]
    at_rest(place)


async def test_who_waits_for_another_process_is_told_and_may_wait_again(place: Place) -> None:
    body = Body()
    theirs = await place.two.create(agent(body))
    running = await theirs.send("go")
    mine = await place.one.open(theirs.id, agent(body))
    queued = await mine.send("and then")
    await settle()
    place.reads.failures = 1
    assert isinstance(await place.outcome(queued.wait()), StoreFailed)
    waits = asyncio.ensure_future(queued.wait())
    await settle()
    body.release.set()
    assert (await place.outcome(waits)).text == "next"
    assert running.outcome == "answered"
    at_rest(place)


async def test_what_was_sent_is_still_seen_to_after_a_read_was_refused(place: Place) -> None:
    body = Body(effect="none")
    theirs = await place.two.create(agent(body))
    await theirs.send("go")
    mine = await place.one.open(theirs.id, agent(Body(effect="none", free=True)))
    await mine.send("and then")
    place.reads.failures = 2
    await place.until(lambda: not place.reads.failures)
    place.data._dead.add("two")  # its process has died
    place.two._node.store._open = False  # type: ignore[attr-defined]
    await place.rests(mine)
    assert users(mine) == ["go", "and then"]


async def test_a_thread_that_was_closed_here_is_not_held_for_ever(place: Place) -> None:
    body = Body()
    session = await place.one.create(agent(body))
    await session.send("go")
    await body.started.wait()
    session._live.close(StoreFailed("nothing more is read here"))
    held = place.data._threads[session.id]
    await place.clock.advance(2 * LEASE)
    assert held.expires <= place.clock.now()


class Faulty(MemoryStore):
    """A store that breaks its contract once: it raises at its n-th append, or what is no error of weft's on a read."""

    raises_at = 0
    read: Exception | None = None
    appends = 0

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        self.appends += 1
        if self.appends == self.raises_at:
            raise OSError("no space left")
        return super().append(thread, lines, expect, lease, index)

    async def load(self, thread: str, after: int = 0) -> Loaded:
        if self.read is not None:
            error, self.read = self.read, None
            raise error
        return await super().load(thread, after)


@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_store_that_raises_in_append_fails_who_waits_and_the_session_can_be_opened_again(nth: int) -> None:
    place = Place()
    disk = Faulty(place.data, owner="one", ttl=LEASE, clock=place.clock, survives=True)
    disk.raises_at = nth
    async with OpenStore(disk, clock=place.clock, ids=CountingIds("a"), grace=0.0) as store:
        worker = agent(Body(effect="none", free=True))
        session = await store.create(worker)
        assert isinstance(await place.outcome(session.ask("go")), OSError)
        await place.clock.advance(LEASE)
        again = await store.open(session.id, worker)
        await again.resume()
        await place.rests(again)
        assert isinstance(await place.outcome(again.ask("go on")), Result)
        at_rest(place)


async def test_a_store_that_raises_its_own_error_on_a_read_fails_who_waits() -> None:
    place = Place()
    disk = Faulty(place.data, owner="one", ttl=LEASE, clock=place.clock, survives=True)
    async with OpenStore(disk, clock=place.clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(Script(say("hello"))))
        disk.read = OSError("no such host")
        assert isinstance(await place.outcome(session.refresh()), OSError)
        again = await store.open(session.id, Agent(Script(say("hello"))))
        assert (await place.outcome(again.ask("hi"))).text == "hello"
        assert store.reports == []


class Unsure(MemoryStore):
    """A store whose answers take their time, and that has written its n-th append although it says that it failed."""

    fails_at = 0
    appends = 0

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        self.appends += 1
        failed = self.appends == self.fails_at
        written = super().append(thread, lines, expect, lease, index)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._clock.deadline(1.0, lambda: _answer(answer, written, failed=failed))
        return answer


def _answer(answer: asyncio.Future[Appended], written: asyncio.Future[Appended], *, failed: bool) -> None:
    error = StoreFailed("the connection was lost") if failed else written.exception()
    if error is None:
        answer.set_result(written.result())
    else:
        answer.set_exception(error)


@pytest.mark.parametrize("nth", range(2, 8))
async def test_what_was_written_although_it_failed_is_found_also_where_what_follows_it_succeeded(nth: int) -> None:
    place = Place()
    disk = Unsure(place.data, owner="one", ttl=LEASE, clock=place.clock, survives=True)
    disk.fails_at = nth
    bodies = [Body(name, effect="none") for name in ("one", "two", "three")]
    script = Script(calls(*(call(body.tool.name) for body in bodies)), say("done"))
    async with OpenStore(disk, clock=place.clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(script, tools=[body.tool for body in bodies]))
        turn = await place.outcome(session.send("go"))
        await place.until(lambda: all(body.started.is_set() for body in bodies))
        for body in bodies:
            body.release.set()
            await settle()
        assert (await place.outcome(turn.wait())).text == "done"
        await place.rests(session)
        assert session.messages == tuple(place.view(session.id).messages)
        assert [result.content for result in session.messages[2].results] == ["acted"] * 3
        at_rest(place)


class Slow(MemoryStore):
    """A store whose reads take until it is told."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.data, owner="one", ttl=LEASE, clock=place.clock, survives=True)
        self.release = asyncio.Event()
        self.release.set()

    async def load(self, thread: str, after: int = 0) -> Loaded:
        await self.release.wait()
        return await super().load(thread, after)

    async def stop(self) -> None:
        await super().stop()
        self.release.set()


VERBS: dict[str, Callable[[Session], Awaitable[Any]]] = {
    "refresh": Session.refresh,
    "resume": Session.resume,
    "cancel": Session.cancel,
    "clear_queue": Session.clear_queue,
    "send": lambda session: session.send("hi", policy="reject"),
}


@pytest.mark.parametrize("ticks_before", [0, 1, 2, 5])
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_what_reads_while_the_store_is_left_is_told_so(
    verb: Callable[[Session], Awaitable[Any]], ticks_before: int
) -> None:
    place = Place()
    disk = Slow(place)
    async with OpenStore(disk, clock=place.clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(Script(say("hello"))))
        disk.release.clear()
        asks = asyncio.ensure_future(verb(session))
        await ticks(ticks_before)
    await settle()
    assert asks.done()
    assert isinstance(asks.exception(), Closed)
