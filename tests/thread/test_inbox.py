"""What becomes of a message, whenever it is sent: delivered once, in order, or dropped; never both, never neither."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest

from tests.thread.places import Body, Place, Seen, a_place, at_rest, results, ticks, users
from weft import Agent, Busy, Conflict, LimitReached, Limits, ModelRequest, tool
from weft.errors import Changed, Dropped, TurnCancelled
from weft.testing import CountingIds, ManualClock, call, calls, hold, reply
from weft.testing.clock import settle
from weft.thread import Memory, OpenStore, Session, Turn, approve, resolve
from weft.thread.entries import Inbox, Said, TurnStarted
from weft.thread.memory import MemoryStore

Policy: TypeAlias = Literal["queue", "reject", "steer", "interrupt"]
POLICIES: tuple[Policy, ...] = ("queue", "steer", "interrupt")
WHERE = ["here", "elsewhere", "without an agent"]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with a_place() as made:
        yield made


def echo(request: ModelRequest) -> str:
    """A reply that says which messages it has read."""
    return "read " + ", ".join(message.text for message in request.messages if message.role == "user")


def echoes(count: int = 5) -> list[Any]:
    return [reply(echo) for _ in range(count)]


def nothing_is_unread(session: Session) -> None:
    """Each answer is to all that stands before it: no message joined behind the model's back."""
    for number, message in enumerate(session.messages):
        if message.role == "assistant" and message.text:
            said = [earlier.text for earlier in session.messages[:number] if earlier.role == "user"]
            assert message.text == "read " + ", ".join(said)


async def as_of(place: Place, session: Session, agent: Agent[Any, Any], where: str) -> Session:
    """The session as it is held here, in the other store, or there without an agent."""
    if where == "here":
        return session
    return await place.two.open(session.id, agent if where == "elsewhere" else None)


async def come_to_rest(place: Place, session: Session) -> None:
    """Until all is done; who has the agent goes on with what others have left."""
    for _ in range(3):
        await place.outcome(session.resume())
    await place.rests(session)
    at_rest(place)


# Every instant of a turn.


@dataclass(frozen=True)
class Shape:
    """A kind of turn."""

    name: str
    agent: Callable[[Seen], Agent[Any, Any]]
    script: Callable[[], Seen]

    def __str__(self) -> str:
        return self.name


def free(name: str) -> Any:
    return Body(name, free=True).tool


def two_calls() -> Seen:
    return Seen(calls(call("act"), call("other")), *echoes())


SHAPES = [
    Shape("an answer", Agent, lambda: Seen(*echoes())),
    Shape("a step of two calls", lambda script: Agent(script, tools=[free("act"), free("other")]), two_calls),
    Shape(
        "stop conditions",
        lambda script: Agent(script, tools=[free("act"), free("other")], stop_when=[lambda step: False]),
        two_calls,
    ),
    Shape(
        "the last step that is allowed",
        lambda script: Agent(script, tools=[free("act"), free("other")], limits=Limits(steps=2)),
        two_calls,
    ),
]


def how(turn: Turn[Any], sent: Turn[Any]) -> str:
    """What the message has become of, beside the turn that it was sent to."""
    return "joined" if sent.id == turn.id else "a turn of its own"


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_a_message_of_any_instant_is_delivered_once_and_read(shape: Shape, policy: Policy, where: str) -> None:
    became: set[str] = set()
    instant, over = 0, False
    while not over:
        async with a_place() as place:
            script = shape.script()
            agent = shape.agent(script)
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, where)
            turn = await session.send("go")
            await ticks(instant)
            over = turn.outcome is not None
            sent = await theirs.send("more", policy=policy)
            assert accepted(place, session, "more")
            await come_to_rest(place, session)
            assert users(session) == ["go", "more"]
            nothing_is_unread(session)
            await theirs.refresh()
            await follows(turn, sent, session, script)
            became.add(how(turn, sent))
        instant += 1
    assert instant > 4
    both = {"a turn of its own", "joined"}
    if policy == "steer" and where == "here":
        assert became == both
    else:  # another store's message may be too late for a turn of few instants
        assert became <= (both if policy == "steer" else {"a turn of its own"})


async def follows(turn: Turn[Any], sent: Turn[Any], session: Session, script: Seen) -> None:
    """Events, requests and usage say the same as the history."""
    kinds = [event.kind async for event in turn.events()]
    assert kinds.count("steered") == (1 if sent.id == turn.id else 0)
    if turn.outcome == "answered":
        assert kinds.count("step_started") == kinds.count("step_finished")
        assert turn.outcome == sent.outcome == "answered"
    else:
        assert (turn.outcome, sent.outcome) == ("cancelled", "answered")
    replies = sum(message.role == "assistant" for message in session.messages)
    assert len(script.read) == replies + session.usage.total.unknown
    assert session.usage.total.input_tokens == 10 * replies


def accepted(place: Place, session: Session, text: str) -> bool:
    """Whether it is in the store: as input that waits, or as what a turn began with."""
    for entry in place.entries(session.id):
        body = entry.body
        if isinstance(body, Inbox | Said) and body.message is not None and body.message.text == text:
            return True
    return False


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_message_during_any_append_is_delivered_once_and_read(policy: Policy, where: str) -> None:
    """Each append of a turn is held until the machine can go no further, and the message is sent meanwhile."""
    nth, sent_at = 0, 99
    while nth <= sent_at:
        nth += 1
        async with a_place() as place:
            script = two_calls()
            agent = Agent(script, tools=[free("act"), free("other")])
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, where)
            turn = await session.send("go")
            place.disk.hold(nth)
            await settle()
            sent_at, shut = place.disk.sent, place.disk.shut
            if not shut:
                place.disk.hold(0)
            sending = asyncio.ensure_future(theirs.send("more", policy=policy))
            await settle()
            assert sending.done() == (where != "here" or not shut)
            await place.disk.open_up()
            sent = await sending
            await come_to_rest(place, session)
            assert users(session) == ["go", "more"]
            nothing_is_unread(session)
            await theirs.refresh()
            await follows(turn, sent, session, script)
    assert nth >= 4


@pytest.mark.parametrize("where", WHERE)
async def test_three_messages_of_any_instant_keep_their_order(where: str) -> None:
    instant, over = 0, False
    while not over:
        async with a_place() as place:
            agent = Agent(two_calls(), tools=[free("act"), free("other")])
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, where)
            turn = await session.send("go")
            await ticks(instant)
            over = turn.outcome is not None
            sends = [theirs.send(text, policy=policy) for text, policy in THREE]
            await asyncio.gather(*sends)
            await come_to_rest(place, session)
            said = users(session)
            assert sorted(said) == ["go", "now", "queued", "steered"]
            assert said[0] == "go"
            assert said.index("now") < said.index("queued") or over or turn.outcome == "answered"
            nothing_is_unread(session)
        instant += 1


THREE: list[tuple[str, Policy]] = [("queued", "queue"), ("now", "interrupt"), ("steered", "steer")]


@pytest.mark.parametrize("clears", ["here", "elsewhere"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_queue_that_is_cleared_at_any_instant_drops_or_has_been_delivered(policy: Policy, clears: str) -> None:
    fates: set[bool] = set()
    for instant in range(24):
        async with a_place() as place:
            script = two_calls()
            agent = Agent(script, tools=[free("act"), free("other")])
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, clears)
            await session.send("go")
            sent = await session.send("more", policy=policy)
            await ticks(instant)
            dropped = await theirs.clear_queue()
            await come_to_rest(place, session)
            assert users(session) == ["go", "more"][: 2 - dropped]
            assert isinstance(await place.outcome(sent.wait()), Dropped) == bool(dropped)
            assert await theirs.clear_queue() == 0
            nothing_is_unread(session)
            fates.add(bool(dropped))
    assert fates == {True, False}


async def test_a_steer_that_is_dropped_while_it_is_delivered_is_as_if_it_had_never_been(place: Place) -> None:
    """Its delivery is on its way, and the model, which has it, has even replied."""
    body = Body()
    script = Seen(call("act"), *echoes())
    agent = Agent(script, tools=[body.tool])
    session = await place.one.create(agent)
    theirs = await place.two.open(session.id, agent)
    turn = await session.send("go")
    await body.started.wait()
    sent = await session.send("more", policy="steer")
    place.disk.hold(1)
    body.release.set()
    await settle()
    assert [message.text for message in script.read[-1] if message.role == "user"] == ["go", "more"]
    assert await theirs.clear_queue() == 1
    await place.disk.open_up()
    await come_to_rest(place, session)
    assert (await turn.wait()).text == "read go"
    assert isinstance(await place.outcome(sent.wait()), Dropped)
    assert users(session) == ["go"]
    assert session.usage.total.tokens == 15 * 3  # also the reply that was not taken
    assert session.usage.total.unknown == 0


async def test_a_steer_that_is_dropped_while_the_model_reads_it_is_asked_for_again(place: Place) -> None:
    body, gate = Body(), asyncio.Event()
    script = Seen(call("act"), hold(gate, then=reply(echo)))
    agent = Agent(script, tools=[body.tool])
    session = await place.one.create(agent)
    theirs = await place.two.open(session.id, agent)
    turn = await session.send("go")
    await body.started.wait()
    sent = await session.send("more", policy="steer")
    place.disk.hold(1)
    body.release.set()
    await settle()
    assert await theirs.clear_queue() == 1
    await place.disk.open_up()
    gate.set()
    await come_to_rest(place, session)
    assert (await turn.wait()).text == "read go"
    assert isinstance(await place.outcome(sent.wait()), Dropped)
    assert session.usage.total.tokens == 15 * 3


# Refusing.


@pytest.mark.parametrize("where", WHERE)
async def test_reject_runs_the_message_at_once_or_writes_nothing(where: str) -> None:
    instant, over, refused = 0, False, 0
    while not over:
        async with a_place() as place:
            agent = Agent(two_calls(), tools=[free("act"), free("other")])
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, where)
            turn = await session.send("go")
            await ticks(instant)
            over = turn.outcome is not None
            try:
                await theirs.send("more", policy="reject")
            except Busy:
                refused += 1
                assert not over
                assert not accepted(place, session, "more")
                await come_to_rest(place, session)
                assert users(session) == ["go"]
            else:
                await come_to_rest(place, session)
                assert users(session) == ["go", "more"]
            nothing_is_unread(session)
        instant += 1
    assert refused > 3


@pytest.mark.parametrize("where", WHERE)
async def test_reject_refuses_where_a_turn_is_parked_or_input_waits(place: Place, where: str) -> None:
    gated = Body(free=True, approval=True)
    agent = Agent(Seen(call("act"), *echoes()), tools=[gated.tool])
    session = await place.one.create(agent)
    theirs = await as_of(place, session, agent, where)
    await (await session.send("go")).wait()
    await theirs.refresh()
    lines = len(place.entries(session.id))
    with pytest.raises(Busy, match="parked"):
        await theirs.send("more", policy="reject")
    assert len(place.entries(session.id)) == lines


async def test_reject_without_an_agent_looks_at_what_has_happened_meanwhile(place: Place) -> None:
    body = Body()
    agent = Agent(Seen(call("act"), *echoes()), tools=[body.tool])
    session = await place.one.create(agent)
    turn = await session.send("go")
    await body.started.wait()
    theirs = await place.two.open(session.id)
    body.release.set()
    await turn.wait()
    await theirs.send("more", policy="reject")
    await come_to_rest(place, session)
    assert users(session) == ["go", "more"]


# Parked, and waiting.


async def parked(place: Place) -> tuple[Session, Turn[Any], Agent[Any, Any]]:
    gated = Body(free=True, approval=True)
    script = Seen(call("act"), *echoes())
    agent = Agent(script, tools=[gated.tool])
    session = await place.one.create(agent)
    turn = await session.send("go")
    assert (await turn.wait()).parked
    return session, turn, agent


@pytest.mark.parametrize("where", WHERE)
async def test_a_steer_into_a_parked_turn_joins_it_when_it_goes_on(place: Place, where: str) -> None:
    session, turn, agent = await parked(place)
    theirs = await as_of(place, session, agent, where)
    queued = await theirs.send("later", policy="queue")
    sent = await theirs.send("more", policy="steer")
    await settle()
    await session.refresh()
    assert (sent.id, queued.id, len(session.pending)) == (None, None, 1)
    resumed = await session.decide(approve(session.pending[0]))
    assert (await place.outcome(resumed.wait())).text == "read go, more"
    assert (await place.outcome(sent.wait())).text == "read go, more"
    await come_to_rest(place, session)
    assert users(session) == ["go", "more", "later"]
    await theirs.refresh()
    assert sent.id == resumed.id == (await turn.next()).id
    assert results(session) == [(None, "acted")]
    nothing_is_unread(session)


@pytest.mark.parametrize("where", WHERE)
async def test_an_interrupt_closes_a_parked_turn_and_runs_before_what_is_queued(place: Place, where: str) -> None:
    session, turn, agent = await parked(place)
    theirs = await as_of(place, session, agent, where)
    queued = await theirs.send("later", policy="queue")
    sent = await theirs.send("now", policy="interrupt")
    await come_to_rest(place, session)
    assert users(session) == ["go", "now", "later"]
    assert (await place.outcome(sent.wait())).text == "read go, now"
    assert (await place.outcome(queued.wait())).text == "read go, now, later"
    following = await turn.next()
    assert isinstance(await place.outcome(following.wait()), TurnCancelled)
    ((code, text),) = results(session)
    assert code == "INTERRUPTED"
    assert "nothing was done" in text
    assert session.pending == ()


@pytest.mark.parametrize("where", WHERE)
async def test_what_interrupts_goes_first_then_the_oldest(place: Place, where: str) -> None:
    """Where nothing runs, and input waits that was sent without an agent."""
    agent = Agent(Seen(*echoes()))
    session = await place.one.create(agent)
    theirs = await as_of(place, session, agent, where)
    without = await place.two.open(session.id)
    for text in ("first", "second"):
        await without.send(text)
    sent = await theirs.send("third", policy="queue")
    await theirs.send("now", policy="interrupt")
    await come_to_rest(place, session)
    said = users(session)
    assert [text for text in said if text != "now"] == ["first", "second", "third"]
    assert said.index("now") <= 1  # the first may have begun when it came
    assert (await place.outcome(sent.wait())).text == "read " + ", ".join(said[: said.index("third") + 1])


async def test_several_steers_join_in_order_and_before_what_was_queued_later(place: Place) -> None:
    body = Body()
    agent = Agent(Seen(call("act"), *echoes()), tools=[body.tool])
    session = await place.one.create(agent)
    turn = await session.send("go")
    await body.started.wait()
    theirs = await place.two.open(session.id, agent)
    for number, who in enumerate((session, theirs, session, theirs)):
        await who.send(f"steer {number}", policy="steer")
    await session.send("queued")
    body.release.set()
    await come_to_rest(place, session)
    assert users(session) == ["go", "steer 0", "steer 1", "steer 2", "steer 3", "queued"]
    assert (await turn.wait()).text == "read go, steer 0, steer 1, steer 2, steer 3"
    nothing_is_unread(session)


@pytest.mark.parametrize("where", WHERE)
async def test_what_is_under_way_can_be_had_by_who_has_not_sent_it(place: Place, where: str) -> None:
    body = Body()
    agent = Agent(Seen(call("act"), *echoes()), tools=[body.tool])
    session = await place.one.create(agent)
    assert (session.turn, session.queued) == (None, ())
    sent = await session.send("go")
    await body.started.wait()
    await session.send("one")
    await session.send("two")
    theirs = await as_of(place, session, agent, where)
    await theirs.refresh()
    assert [message.text for message in theirs.queued] == ["one", "two"]
    turn = theirs.turn
    assert turn is not None
    assert turn.id == sent.id
    body.release.set()
    assert (await place.outcome(turn.wait())).text == "read go"
    await come_to_rest(place, session)
    await theirs.refresh()
    assert (theirs.turn, theirs.queued) == (None, ())


async def test_what_is_sent_without_an_agent_runs_where_somebody_else_here_has_one(place: Place) -> None:
    session = await place.one.create(Agent(Seen(*echoes())))
    turn = await (await place.one.open(session.id)).send("hello")
    assert (await place.outcome(turn.wait())).text == "read hello"
    at_rest(place)


async def test_a_steer_that_was_sent_before_an_interrupt_does_not_join_its_turn(place: Place) -> None:
    """It was meant for the run that was interrupted, and would have the last word in the one that overrules it."""
    body, later = Body(effect="none"), Body("later", effect="none")
    agent = Agent(Seen(call("act"), call("later"), *echoes()), tools=[body.tool, later.tool])
    session = await place.one.create(agent)
    await session.send("go")
    await body.started.wait()
    await session.send("make it blue", policy="steer")
    interrupts = await session.send("stop: make it red", policy="interrupt")
    await later.started.wait()
    await session.send("and round", policy="steer")
    runs, again = session._live.view.run, place.view(session.id).run
    assert runs is not None
    assert again is not None
    assert len(again.overruled) == 1
    assert again.overruled == runs.overruled
    later.release.set()
    body.release.set()
    await come_to_rest(place, session)
    assert users(session) == ["go", "stop: make it red", "and round", "make it blue"]
    assert (await place.outcome(interrupts.wait())).text == "read go, stop: make it red, and round"
    nothing_is_unread(session)


# Runs that are about to end.


async def test_a_steer_that_no_step_is_left_for_becomes_the_next_turn_with_limits_of_its_own(place: Place) -> None:
    body = Body()
    agent = Agent(Seen(call("act"), *echoes()), tools=[body.tool], limits=Limits(steps=1))
    session = await place.one.create(agent)
    turn = await session.send("go")
    await body.started.wait()
    sent = await session.send("more", policy="steer")
    body.release.set()
    assert isinstance(await place.outcome(turn.wait()), LimitReached)
    assert (await place.outcome(sent.wait())).text == "read go, more"
    assert [entry.body.cause for entry in place.entries(session.id) if isinstance(entry.body, TurnStarted)] == [
        "prompt",
        "steer",
    ]
    await come_to_rest(place, session)


async def test_a_steer_into_a_run_that_a_condition_stops_becomes_the_next_turn(place: Place) -> None:
    body = Body()
    agent = Agent(Seen(call("act"), *echoes()), tools=[body.tool], stop_when=[lambda step: step.step == 1])
    session = await place.one.create(agent)
    turn = await session.send("go")
    await body.started.wait()
    sent = await session.send("more", policy="steer")
    body.release.set()
    assert (await turn.wait()).stop == "stopped"
    assert (await place.outcome(sent.wait())).text == "read go, more"
    await come_to_rest(place, session)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("mode", ["schema", "tool"])
async def test_a_steer_into_a_run_with_structured_output_is_answered_with_one(mode: Any, where: str) -> None:
    instant, over, became = 0, False, set[str]()
    while not over:
        async with a_place() as place:
            script = Seen(*[reply(lambda request: structured(request, mode)) for _ in range(4)], output=mode)
            agent = Agent(script, output=City)
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, where)
            turn = await session.send("go")
            await ticks(instant)
            over = turn.outcome is not None
            sent = await theirs.send("more", policy="steer")
            await come_to_rest(place, session)
            assert (await place.outcome(sent.wait())).output == City(names=["go", "more"])
            first = (await turn.wait()).output
            assert first == City(names=["go", "more"] if sent.id == turn.id else ["go"])
            assert users(session) == ["go", "more"]
            became.add(how(turn, sent))
        instant += 1
    assert became == {"joined", "a turn of its own"} or (where == "elsewhere" and became == {"a turn of its own"})


@dataclass
class City:
    names: list[str]


def structured(request: ModelRequest, mode: str) -> Any:
    names = [message.text for message in request.messages if message.role == "user"]
    return call("submit_output", {"names": names}) if mode == "tool" else json.dumps({"names": names})


# Keys.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("where", WHERE)
async def test_a_key_that_comes_again_at_any_instant_is_the_same_turn(policy: Policy, where: str) -> None:
    for instant in range(20):
        async with a_place() as place:
            agent = Agent(two_calls(), tools=[free("act"), free("other")])
            session = await place.one.create(agent)
            theirs = await as_of(place, session, agent, where)
            await session.send("go", key="g")
            sends = await asyncio.gather(
                session.send("more", policy=policy, key="k"), theirs.send("more", policy=policy, key="k")
            )
            await ticks(instant)
            sends.append(await theirs.send("more", policy="queue", key="k"))
            with pytest.raises(Conflict):
                await theirs.send("other", policy=policy, key="k")
            with pytest.raises(Conflict):
                await theirs.send("other", policy=policy, key="g")
            await come_to_rest(place, session)
            await theirs.refresh()
            assert users(session) == ["go", "more"]
            assert len({turn.id for turn in sends}) == 1
            for turn in sends:
                assert (await place.outcome(turn.wait())).text == "read go, more"


@pytest.mark.parametrize("fate", ["delivered", "waits", "dropped"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_key_holds_through_a_restart(policy: Policy, fate: str) -> None:
    clock, data = ManualClock(), Memory()
    gate = asyncio.Event()
    async with opened(data, clock, "one") as store:
        agent = Agent(Seen(hold(gate, then=reply(echo)), *echoes()))
        session = await store.create(agent)
        name = session.id
        await session.send("go")
        await settle()
        sent = await session.send("more", policy=policy, key="k")
        if fate == "delivered":
            gate.set()
            await sent.wait()
            await session.settled_or_waiting()
        elif fate == "dropped":
            await session.clear_queue()
    gate.set()
    async with opened(data, clock, "two") as store:
        session = await store.open(name, agent)
        again = await session.send("more", policy="queue", key="k")
        with pytest.raises(Conflict):
            await session.send("else", key="k")
        await session.resume()
        await session.settled_or_waiting()
        if fate == "dropped":
            with pytest.raises(Dropped):
                await again.wait()
            assert users(session) == ["go"]
        else:
            assert (await again.wait()).text == "read go, more"
            assert users(session) == ["go", "more"]


def opened(data: Memory, clock: ManualClock, owner: str) -> OpenStore:
    store = MemoryStore(data, owner=owner, ttl=30.0, clock=clock, survives=True)
    return OpenStore(store, clock=clock, ids=CountingIds(owner), grace=0.0)


# Context variables.

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_turn_runs_in_a_copy_of_the_context_of_the_send_that_began_it(place: Place, policy: Policy) -> None:
    seen: list[str] = []
    body = Body()

    @tool
    async def note() -> str:
        seen.append(WHO.get())
        return "noted"

    script = Seen(call("act"), call("note"), call("note"), *echoes())
    agent = Agent(script, tools=[body.tool, note])
    session = await place.one.create(agent)
    WHO.set("first")
    turn = await session.send("go")
    await body.started.wait()
    WHO.set("second")
    sent = await session.send("more", policy=policy)
    WHO.set("third")
    body.release.set()
    await come_to_rest(place, session)
    joined = sent.id == turn.id
    assert joined == (policy == "steer")
    match policy:
        case "steer":
            assert seen == ["first", "first"]
        case "queue":
            assert seen == ["first", "first"]  # the first turn's steps take all calls of the script
        case _:
            assert seen == ["second", "second"]
    assert session._live.contexts == {}


@pytest.mark.parametrize("way", ["cleared", "cancelled", "elsewhere"])
async def test_nothing_of_the_context_of_a_message_stays_behind(place: Place, way: str) -> None:
    gate = asyncio.Event()
    agent = Agent(Seen(hold(gate, then=reply(echo)), *echoes()))
    session = await place.one.create(agent)
    theirs = await place.two.open(session.id, agent)
    await session.send("go")
    sent = await session.send("more")
    match way:
        case "cleared":
            await session.clear_queue()
        case "cancelled":
            assert await sent.cancel()
        case _:
            await theirs.clear_queue()
    gate.set()
    await come_to_rest(place, session)
    assert session._live.contexts == {}


# Dropping one.


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("policy", ["queue", "steer"])
async def test_cancelling_the_handle_of_a_message_that_waits_drops_it_alone(
    place: Place, policy: Policy, where: str
) -> None:
    body = Body()
    agent = Agent(Seen(call("act"), *echoes()), tools=[body.tool])
    session = await place.one.create(agent)
    theirs = await as_of(place, session, agent, where)
    turn = await session.send("go")
    await body.started.wait()
    one, two = await theirs.send("one", policy=policy), await theirs.send("two", policy=policy)
    assert await one.cancel()
    assert not await one.cancel()
    body.release.set()
    await come_to_rest(place, session)
    assert isinstance(await place.outcome(one.wait()), Dropped)
    assert (await place.outcome(two.wait())).text == "read go, two"
    assert turn.outcome == "answered"
    assert one.id is None
    assert one.outcome is None


async def test_what_waits_is_seen_to_by_one_task_however_much_it_is(place: Place) -> None:
    body = Body()
    session = await place.one.create(Agent(Seen(call("act"), *echoes(30)), tools=[body.tool]))
    await session.send("go")
    await body.started.wait()
    before = len(asyncio.all_tasks())
    turns = [await session.send(f"message {n}") for n in range(20)]
    await settle()
    assert len(asyncio.all_tasks()) == before + 1
    body.release.set()
    await place.outcome(turns[-1].wait())
    await place.rests(session)
    assert users(session) == ["go", *(f"message {n}" for n in range(20))]
    at_rest(place)


async def test_who_has_ceased_to_wait_is_forgotten(place: Place) -> None:
    body = Body()
    session = await place.one.create(Agent(Seen(call("act"), *echoes(30)), tools=[body.tool]))
    turn = await session.send("go")
    await body.started.wait()
    for _ in range(20):
        waits = asyncio.ensure_future(turn.wait())
        await ticks(2)
        waits.cancel()
    await settle()
    assert session._live._waiters == []
    body.release.set()
    await place.outcome(turn.wait())


async def test_an_agent_that_cannot_go_on_says_so_once_and_one_that_can_goes_on(place: Place) -> None:
    body = Body()
    dead = place.another("dead", "d")
    async with dead:
        session = await dead.create(Agent(Seen(call("act"), *echoes()), tools=[body.tool]))
        await session.send("go")
        await body.started.wait()
    mine = await place.two.open(session.id, Agent(Seen(*echoes())))
    turn = await mine.send("and then")
    await place.clock.advance(60.0)
    ((thread, why),) = place.two.reports
    place.two.reports.clear()
    assert (thread, type(why)) == (session.id, Changed)
    theirs = await place.one.open(session.id, Agent(Seen(call("act"), *echoes()), tools=[body.tool]))
    await theirs.resume()
    await place.rests(theirs)
    await theirs.decide(resolve(theirs.pending[0], "acted"))
    assert (await place.outcome(turn.wait())).text == "read go, and then"


async def test_busy_says_what_is_in_the_way_and_what_leads_out(place: Place) -> None:
    body = Body()
    session = await place.one.create(Agent(Seen(call("act"), *echoes()), tools=[body.tool]))
    await (await place.two.open(session.id)).send("waits")
    with pytest.raises(Busy, match=r"has messages that wait; .* session\.resume"):
        await session.send("x", policy="reject")
    turn = await session.resume()
    await body.started.wait()
    with pytest.raises(Busy, match=r"runs a turn; .* cancel"):
        await session.send("x", policy="reject")
    with pytest.raises(Busy, match=r"runs a turn; .* cancel"):
        await session.branch(None)
    body.release.set()
    assert turn is not None
    await place.outcome(turn.wait())
    gated = await place.one.create(Agent(Seen(call("act")), tools=[Body(approval=True).tool]))
    await place.outcome(gated.ask("go"))
    with pytest.raises(Busy, match=r"is parked; .* session\.pending"):
        await gated.send("x", policy="reject")


async def test_a_handle_that_was_dropped_takes_nothing_from_the_one_that_is_left(place: Place) -> None:
    gated = Body(approval=True)
    agent = Agent(Seen(call("act"), *echoes()), tools=[gated.tool])
    session = await place.one.create(agent)
    await place.outcome(session.ask("go"))
    second = await place.one.open(session.id, agent)
    del second
    gc.collect()
    turn = await (await place.one.open(session.id)).send("instead", policy="interrupt")
    assert (await place.outcome(turn.wait())).text == "read go, instead"
    at_rest(place)
