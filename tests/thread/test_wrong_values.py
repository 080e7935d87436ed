"""A value of a type that cannot be stored is refused when it is given; what is written can be read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.thread.places import LEASE, Body, Place, SlowStore, a_place, at_rest, payer, refused
from weft import Agent, File, Message
from weft._moves import Joined, Record
from weft.errors import RunFailed, StoreFailed, TurnCancelled, WrongCall
from weft.testing import CountingIds, ManualClock, Script, call, say
from weft.testing.clock import settle
from weft.thread import Memory, OpenStore, Session, approve, open_store, resolve
from weft.thread._runner import TurnRunner
from weft.thread.memory import MemoryStore
from weft.thread.store import Appended, Head, Index, LeaseChange

pytestmark = pytest.mark.anyio

Act = Callable[[Session], Awaitable[Any]]
ACTS: dict[str, Act] = {
    "an input": lambda session: session.send(["hi"]),  # type: ignore[list-item]
    "a file's bytes": lambda session: session.send([File(media_type="image/png", data="aGk=")]),  # type: ignore[arg-type]
    "a file's type": lambda session: session.send([File(media_type=5, data=b"hi")]),  # type: ignore[arg-type]
    "who decides": lambda session: session.decide(approve(session.pending[0], by=5)),  # type: ignore[arg-type]
    "who decides, and is no JSON": lambda session: session.decide(approve(session.pending[0], by=object())),  # type: ignore[arg-type]
    "an answer's kind": lambda session: session.decide(resolve(session.pending[0], "hi", error="yes")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_value_that_cannot_be_stored_is_refused_and_the_session_goes_on(act: Act) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(payer())
        await session.ask("hello")
        before = session.head
        with pytest.raises(WrongCall):
            await act(session)
        assert session.head == before
    async with open_store(data) as store:
        session = await store.open(session.id, payer())
        turn = await session.decide(approve(session.pending[0]))
        assert (await turn.wait()).text == "done"


async def test_the_refusal_names_the_field_and_shows_no_value() -> None:
    async with open_store("memory:") as store:
        session = await store.create(payer())
        await session.ask("hello")
        with pytest.raises(WrongCall, match="'by'") as refused:
            await session.decide(approve(session.pending[0], by=4711))  # type: ignore[arg-type]
        assert "4711" not in str(refused.value)


async def test_an_expiry_that_is_no_number_makes_no_session() -> None:
    async with open_store("memory:") as store:
        with pytest.raises(WrongCall, match="expires is a positive number"):
            await store.create(payer(), expires="a week")  # type: ignore[arg-type]
        assert [info async for info in store.list()] == []


async def test_a_value_that_cannot_be_stored_is_refused_also_where_it_waits_for_another_write() -> None:
    clock = ManualClock()
    disk = SlowStore(Memory(), "one", clock)
    async with OpenStore(disk, clock=clock, ids=CountingIds(), grace=0.0) as store:
        session = await store.create(payer())
        await session.ask("hello")
        request = session.pending[0]
        first = asyncio.ensure_future(session.note("n", "on its way"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(session.decide(approve(request, by=object())))  # type: ignore[arg-type]
        await clock.advance(1.0)
        assert first.done()
        assert second.done()
        with pytest.raises(WrongCall):
            await second


@pytest.mark.parametrize("slow", [False, True])
async def test_a_fact_that_cannot_be_stored_fails_its_turn(slow: bool) -> None:
    """None is known; whatever makes one, nobody waits for ever."""
    body = Body(effect="none")
    async with a_place() as place:
        place.disk.slow = slow
        session = await place.one.create(Agent(Script(call("act"), say("never")), tools=[body.tool]))
        turn = await session.send("hello")
        await body.started.wait()
        await settle()
        runner = session._live.runner
        assert isinstance(runner, TurnRunner)
        broken: Any = object()
        runner.record(Record(facts=(Joined(message=Message.user("more"), source="steer", item=broken),), gate="bodies"))
        failure = await place.outcome(turn.wait())
        assert isinstance(failure, RunFailed)
        assert isinstance(failure.__cause__, WrongCall)
        at_rest(place)


async def test_a_turn_that_was_cancelled_before_it_fails_ends_as_cancelled() -> None:
    body = Body(effect="none")
    async with a_place() as place:
        session = await place.one.create(Agent(Script(call("act"), say("never")), tools=[body.tool]))
        turn = await session.send("hello")
        await body.started.wait()
        await settle()
        assert await place.two.cancel(session.id)
        runner = session._live.runner
        assert isinstance(runner, TurnRunner)
        broken: Any = object()
        runner.record(Record(facts=(Joined(message=Message.user("more"), source="steer", item=broken),), gate="bodies"))
        assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
        at_rest(place)


class FullDisk(MemoryStore):
    """A store that can be kept from writing."""

    full = False

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        return refused() if self.full else super().append(thread, lines, expect, lease, index)


async def test_a_turn_that_can_not_even_be_failed_is_given_up_and_its_lease_runs_out() -> None:
    place = Place()
    disk = FullDisk(place.data, owner="one", ttl=LEASE, clock=place.clock, survives=True)
    body = Body(effect="none")
    agent = Agent[None](Script(call("act"), say("done")), tools=[body.tool])
    async with OpenStore(disk, clock=place.clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(agent)
        turn = await session.send("hello")
        await body.started.wait()
        runner = session._live.runner
        assert isinstance(runner, TurnRunner)
        disk.full = True
        broken: Any = object()
        runner.record(Record(facts=(Joined(message=Message.user("more"), source="steer", item=broken),), gate="bodies"))
        assert isinstance(await place.outcome(turn.wait()), StoreFailed)
        disk.full = False
        body.release.set()
        await place.clock.advance(LEASE)
        await session.resume()
        await place.rests(session)
        assert session.messages[-1].text == "done"
        at_rest(place)
