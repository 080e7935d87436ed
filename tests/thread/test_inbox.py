"""What becomes of a message, whenever it is sent: delivered once, in order, or dropped; never both, never neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest

from tests.thread.places import Body, Place, Seen, a_place, at_rest, ticks, users
from weft import Agent, Limits, ModelRequest
from weft.errors import Dropped
from weft.testing import call, calls, hold, reply
from weft.testing.clock import settle
from weft.thread import Session, Turn
from weft.thread.entries import Inbox, Said

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
    assert became == ({"a turn of its own", "joined"} if policy == "steer" else {"a turn of its own"})


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
