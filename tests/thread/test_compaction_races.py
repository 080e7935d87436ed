"""What comes while a summary is asked for, and while its record is on its way: nothing is lost, nothing is twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from tests.thread.places import refused
from tests.thread.test_cancelling import Place, is_cancelled, let_go
from tests.thread.test_compaction import (
    KEEP,
    SHORT,
    SPENT,
    TOO_LONG,
    append,
    asked,
    compactions,
    failing,
    honest,
    journal,
    read,
    steps,
    summary,
    text,
)
from weft import Agent, Busy, Usage
from weft.errors import StoreFailed, TurnCancelled
from weft.model import ModelError
from weft.models import retry
from weft.testing import Script, fail, hold, say
from weft.testing.clock import settle
from weft.testing.script import Reply
from weft.thread import Session, Turn
from weft.thread.entries import Receipt
from weft.thread.store import Appended

HEAD = ("user", "Summary of the conversation so far:\nsummary 1")


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    async with made.one, made.two:
        yield made
        await let_go()


class Long:
    """A session whose second turn begins with a summary: held while it is asked for, or while it is written."""

    def __init__(self, place: Place, where: str, *more: Reply, **options: Any) -> None:
        self.place = place
        self.where = where
        self.gate = asyncio.Event()
        self.script = Script(
            honest(text(300, "a1")),
            *(more or (honest("a2"), honest("a3"))),
            summary=hold(self.gate, then=summary("summary")),
        )
        self.agent: Agent = Agent(self.script, compaction=SHORT, **options)

    async def begin(self) -> tuple[Session, Turn[Any]]:
        session = await self.place.one.create(self.agent)
        await session.ask(text(500, "u1"))
        turn = await session.send(text(200, "u2"))
        await settle()
        assert len(asked(self.script)) == 1
        if self.where == "written":
            self.place.disk.shut = True
            self.gate.set()
            await settle()
            assert len(self.place.disk.waiting) == 1
        return session, turn

    async def go_on(self) -> None:
        self.gate.set()
        await settle()
        await self.place.disk.open_up()
        await settle()


MOMENTS = pytest.mark.parametrize("moment", ["asked for", "written"])
STORES = pytest.mark.parametrize("sender", ["here", "elsewhere"])


async def other(place: Place, session: Session, sender: str) -> Session:
    return session if sender == "here" else await place.two.open(session.id)


async def sent(session: Session, prompt: str, policy: Any) -> asyncio.Future[Turn[Any]]:
    """A send that may have to wait for what is on its way."""
    future = asyncio.ensure_future(session.send(prompt, policy=policy))
    await settle()
    return future


@MOMENTS
@STORES
async def test_a_steer_waits_for_the_summary_and_joins(place: Place, moment: str, sender: str) -> None:
    long = Long(place, moment)
    session, turn = await long.begin()
    steer = await sent(await other(place, session, sender), "and this", "steer")
    await long.go_on()
    if sender == "elsewhere":
        await place.clock.advance(1.0)
    assert (await turn.wait()).text == "a3"
    await steer
    assert len(await compactions(place.one, session)) == 1
    assert len(asked(long.script)) == 1
    assert read(long.script.requests[-1]) == [HEAD, ("user", "u2"), ("assistant", "a2"), ("user", "and this")]
    assert session.usage.summaries == SPENT
    assert session.usage.turns.unknown == 0


@MOMENTS
@STORES
async def test_a_queued_send_waits_for_its_turn(place: Place, moment: str, sender: str) -> None:
    long = Long(place, moment)
    session, turn = await long.begin()
    queued = await sent(await other(place, session, sender), "u3", "queue")
    await long.go_on()
    assert (await turn.wait()).text == "a2"
    await queued
    await place.clock.advance(1.0)
    assert (await place.one.open(session.id, long.agent)).messages[-1].text in ("a2", "a3")
    await session.resume()
    await session.settled_or_waiting()
    assert session.messages[-1].text == "a3"
    assert len(await compactions(place.one, session)) == 1


@MOMENTS
@STORES
async def test_a_cancel_ends_the_turn_and_what_the_summary_has_cost_is_counted(
    place: Place, moment: str, sender: str
) -> None:
    long = Long(place, moment)
    session, turn = await long.begin()
    cancel = await place.cancel(session, sender)
    if moment == "written":
        await place.disk.open_up()
        await settle()
    await cancel
    if sender == "elsewhere":
        await place.clock.advance(31.0)  # the owner sees it when it renews
    await is_cancelled(turn, clock=place.clock)
    made = await compactions(place.one, session)
    usage = session.usage
    assert len(made) == (1 if moment == "written" else 0)
    assert usage.summaries == (SPENT if made else Usage())
    known = 1 + len(made)  # of the calls that were made
    assert usage.turns.unknown == len(long.script.requests) - known
    assert len(long.script.requests) == (3 if (moment, sender) == ("written", "here") else 2)
    long.gate.set()
    assert (await session.ask("u3")).text == "a2"
    assert read(long.script.requests[-1])[0] == HEAD or not made
    assert (await place.one.verify(session.id)).sound


@MOMENTS
@STORES
async def test_an_interrupt_ends_the_turn_and_its_message_runs(place: Place, moment: str, sender: str) -> None:
    long = Long(place, moment)
    session, turn = await long.begin()
    interrupt = await sent(await other(place, session, sender), "instead", "interrupt")
    long.gate.set()
    if moment == "written":
        await place.disk.open_up()
    await settle()
    await interrupt
    await place.clock.advance(31.0)
    await session.resume()
    await session.settled_or_waiting()
    with pytest.raises(TurnCancelled):
        await turn.wait()
    assert [message.text[:7] for message in session.messages[-2:]] == ["instead", "a2"]
    assert len(await compactions(place.one, session)) == 1
    assert session.usage.summaries == SPENT


@MOMENTS
async def test_a_settlement_does_not_disturb_it(place: Place, moment: str) -> None:
    long = Long(place, moment)
    session = await place.one.create(long.agent)
    await session.ask(text(500, "u1"))
    accepted = Receipt(state="accepted", child="c1", agent="helper", prompt="count", background=True)
    (name,) = await append(place.one, session, accepted)
    turn = await session.send(text(200, "u2"))
    await settle()
    if moment == "written":
        place.disk.shut = True
        long.gate.set()
        await settle()
    settled = Receipt(receipt=f"{session.id}.{name}", state="done", stop="12")
    await append(place.two, session, settled)
    await long.go_on()
    assert (await turn.wait()).text == "a2"
    assert len(await compactions(place.one, session)) == 1
    assert session.receipts[0].state == "done"
    assert (await place.one.verify(session.id)).sound


@MOMENTS
async def test_who_takes_a_turn_over_makes_it_shorter_itself(place: Place, moment: str) -> None:
    long = Long(place, moment)
    session, turn = await long.begin()
    dead = place.disk

    async def deaf(held: Any) -> dict[str, int]:
        raise StoreFailed("no answer")

    dead.renew = deaf  # type: ignore[method-assign]  # a store that is cut off from its data
    dead.shut = True
    await place.clock.advance(31.0)
    taker = Script(say("never"), honest("a2"), summary=summary("taken"))
    second = await place.two.open(session.id, Agent(taker, compaction=SHORT))
    taken = await second.resume()
    assert taken is not None
    assert (await taken.wait()).text == "a2"
    await long.go_on()
    await place.clock.advance(1.0)
    assert (await turn.wait()).text == "a2"
    await session.refresh()
    made = await compactions(place.two, second)
    assert ["taken 1" in body.summary for body in made] == [True]
    assert second.usage.summaries == SPENT
    assert second.usage.turns.unknown == 1
    assert (session.messages, session.usage) == (second.messages, second.usage)
    assert len(steps(long.script)) == 1  # who lost it asks nothing more


class Refuses:
    """In place of a store's append: refuses so many, then takes them."""

    def __init__(self, place: Place, times: int) -> None:
        self.disk = place.disk
        self.times = times
        self.append = place.disk.append
        place.disk.append = self  # type: ignore[method-assign,assignment]  # the disk is full

    def __call__(self, *given: Any) -> asyncio.Future[Appended]:
        if self.times <= 0:
            return self.append(*given)
        self.times -= 1
        return refused()


async def test_a_record_that_the_disk_refuses_is_written_a_little_later(place: Place) -> None:
    long = Long(place, "asked for")
    session, turn = await long.begin()
    Refuses(place, 2)
    long.gate.set()
    await settle()
    await place.clock.advance(1.0)
    assert (await turn.wait()).text == "a2"
    assert len(await compactions(place.one, session)) == 1
    assert len(asked(long.script)) == 1


async def test_where_the_disk_stays_full_the_turn_is_given_up_and_can_be_gone_on_with(place: Place) -> None:
    long = Long(place, "asked for")
    session, turn = await long.begin()
    disk = Refuses(place, 10**6)
    long.gate.set()
    await settle()
    await place.clock.advance(5.0)
    with pytest.raises(StoreFailed):
        await turn.wait()
    disk.times = 0
    await place.clock.advance(60.0)
    again = await session.resume()
    assert again is not None
    assert (await again.wait()).text == "a2"
    assert len(await compactions(place.one, session)) == 1
    assert session.usage.summaries == SPENT
    assert session.usage.turns.unknown == 1


@MOMENTS
async def test_leaving_the_store_hands_the_turn_on(place: Place, moment: str) -> None:
    long = Long(place, moment)
    session, _ = await long.begin()
    await place.disk.open_up()
    leaving = asyncio.ensure_future(place.one.__aexit__(None, None, None))
    await settle()
    await place.clock.advance(30.0)
    await leaving
    taker = Script(say("never"), honest("a2"), summary=summary("taken"))
    second = await place.two.open(session.id, Agent(taker, compaction=SHORT))
    taken = await second.resume()
    if taken is not None:
        assert (await taken.wait()).text == "a2"
    assert second.messages[-1].text == "a2"
    assert len(await compactions(place.two, second)) == 1
    assert second.usage.turns.unknown <= 1
    await place.one.__aenter__()


# By hand.


async def test_by_hand_a_busy_session_is_refused_at_once(place: Place) -> None:
    gate = asyncio.Event()
    script = Script(hold(gate, then=say("a1")), summary=summary("summary"))
    session = await place.one.create(Agent(script, compaction=SHORT))
    turn = await session.send(text(500, "u1"))
    await settle()
    with pytest.raises(Busy):
        await session.compact()
    elsewhere = await place.two.open(session.id, Agent(script, compaction=SHORT))
    with pytest.raises(Busy):
        await elsewhere.compact()
    gate.set()
    await turn.wait()
    assert asked(script) == []


@STORES
@pytest.mark.parametrize("ends", [True, False])
async def test_by_hand_a_send_that_comes_first_wins(place: Place, sender: str, ends: bool) -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    a2 = honest("a2") if ends else hold(never, then=honest("a2"))
    script = Script(honest(text(300, "a1")), a2, summary=hold(gate, then=summary("summary")))
    agent = Agent(script, compaction=SHORT)
    session = await place.one.create(agent)
    await session.ask(text(300, "u1"))
    compacting = asyncio.ensure_future(session.compact())
    await settle()
    sending = session if sender == "here" else await place.two.open(session.id, agent)
    turn = await sending.send("u2")
    await settle()
    assert (turn.outcome == "answered") is ends
    gate.set()
    await settle()
    with pytest.raises(Busy):
        await compacting
    never.set()
    assert (await turn.wait()).text == "a2"
    assert await compactions(place.one, session) == []


async def test_by_hand_two_at_once_write_one(place: Place) -> None:
    gate = asyncio.Event()
    script = Script(honest(text(300, "a1")), summary=hold(gate, then=summary("summary")))
    agent = Agent(script, compaction=SHORT)
    session = await place.one.create(agent)
    await session.ask(text(300, "u1"))
    second = await place.two.open(session.id, agent)
    both = [asyncio.ensure_future(one.compact()) for one in (session, second)]
    await settle()
    gate.set()
    await settle()
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["Busy", "bool"]
    assert len(await compactions(place.two, second)) == 1


async def test_by_hand_cancelling_it_leaves_everything_as_it_was(place: Place) -> None:
    gate = asyncio.Event()
    script = Script(honest(text(300, "a1")), honest("a2"), summary=hold(gate, then=summary("summary")))
    session = await place.one.create(Agent(script, compaction=SHORT))
    await session.ask(text(300, "u1"))
    head = session.head
    compacting = asyncio.ensure_future(session.compact())
    await settle()
    compacting.cancel()
    await settle()
    assert compacting.cancelled()
    assert session.head == head
    assert (await session.ask("u2")).text == "a2"


async def test_by_hand_it_leaves_no_lease(place: Place) -> None:
    script = Script(honest(text(300, "a1")), honest("a2"), summary=summary("summary"))
    agent = Agent(script, compaction=SHORT)
    session = await place.one.create(agent)
    await session.ask(text(300, "u1"))
    assert await session.compact() is True
    second = await place.two.open(session.id, agent)
    assert (await second.ask("u2")).text == "a2"
    assert [entry.kind for entry in await journal(place.two, second)].count("compaction") == 1


# What is counted.


async def test_a_long_steer_that_joins_an_answer_is_counted(place: Place) -> None:
    gate = asyncio.Event()
    script = Script(hold(gate, then=honest(text(200, "a1"))), honest("a2"), summary=summary("summary"))
    session = await place.one.create(Agent(script, compaction=SHORT))
    turn = await session.send(text(100, "u1"))
    await settle()
    await session.send(text(700, "steer"), policy="steer")
    gate.set()
    assert (await turn.wait()).text == "a2"
    assert len(asked(script)) == 1


async def test_a_cancel_while_an_overflow_is_summarized_counts_both_calls(place: Place) -> None:
    never = asyncio.Event()
    script = Script(honest(text(200, "a1")), fail(TOO_LONG), honest("a2"), summary=hold(never, then=summary("summary")))
    session = await place.one.create(Agent(script, compaction=KEEP))
    await session.ask(text(100, "u1"))
    turn = await session.send("u2")
    await settle()
    assert len(asked(script)) == 1
    await (await place.cancel(session, "here"))
    await is_cancelled(turn, clock=place.clock)
    assert session.usage.turns.unknown == 2


# Silence.


async def test_a_summarizer_that_says_nothing_for_too_long_is_given_up(place: Place) -> None:
    never = asyncio.Event()
    script = Script(honest(text(300, "a1")), honest("a2"), summary=hold(never, then=say("late")))
    session = await place.one.create(Agent(script, compaction=SHORT))
    await session.ask(text(500, "u1"))
    turn = await session.send(text(200, "u2"))
    await settle()
    await place.clock.advance(61.0)
    assert (await turn.wait()).text == "a2"
    ((_, error),) = place.one.reports
    assert isinstance(error, ModelError)
    assert error.code == "MODEL_TIMEOUT"
    assert session.usage.turns.unknown == 1


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_summarizer_that_keeps_its_own_idle_limit_is_left_to_it(place: Place, by_hand: bool) -> None:
    down = ModelError("down", code="MODEL_SERVER")
    count = 0

    class Slow(Script):
        """Down for the first time; it is asked again after a pause that is longer than a silence may be."""

        def stream(self, request: Any) -> Any:
            nonlocal count
            count += 1
            return Script(summary=failing(down) if count == 1 else say("at last")).stream(request)

    patient = retry(Slow(), first=100.0, longest=100.0, jitter=lambda: 1.0, clock=place.clock)
    script = Script(honest(text(300, "a1")), honest("a2"))
    compaction = KEEP if by_hand else SHORT
    agent = Agent(script, compaction=type(compaction)(window=1_000, reserve=100, keep=100, summarizer=patient))
    session = await place.one.create(agent)
    await session.ask(text(500, "u1"))
    work: Coroutine[Any, Any, object] = session.compact() if by_hand else session.ask(text(200, "u2"))
    waits = asyncio.ensure_future(work)
    await settle()
    await place.clock.advance(70.0)
    await place.clock.advance(40.0)
    await settle()
    assert waits.done()
    assert waits.exception() is None
    (body,) = await compactions(place.one, session)
    assert "at last" in body.summary
