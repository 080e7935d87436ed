"""A tool that has its own session at hand: what it may do with it, and what would never end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.thread.places import Place, a_place, at_rest, results, users
from weft import Agent, tool
from weft.errors import WrongCall
from weft.pool import Pool
from weft.testing import Script, call, say
from weft.thread import Session

Use = Callable[[Session], Awaitable[Any]]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Two stores on one data."""
    async with a_place() as made:
        yield made
        at_rest(made)


def user_of(sessions: list[Session], use: Use) -> Any:
    """A tool that does this with the session."""

    @tool(effect="none")
    async def act() -> str:
        try:
            await use(sessions[0])
        except WrongCall as error:
            return f"refused: {error}"
        return "used"

    return act


async def sent_and_waited_for(session: Session) -> None:
    await (await session.send("later")).wait()


async def the_running_turn(session: Session) -> None:
    assert session.turn is not None
    await session.turn.wait()


async def what_comes_after_it(session: Session) -> None:
    assert session.turn is not None
    await session.turn.next()


WAITS: dict[str, Use] = {
    "ask": lambda session: session.ask("later"),
    "send and wait": sent_and_waited_for,
    "wait": the_running_turn,
    "next": what_comes_after_it,
    "settled_or_waiting": lambda session: session.settled_or_waiting(),
}


@pytest.mark.parametrize("way", WAITS)
async def test_a_tool_that_waits_for_its_own_session_is_refused(place: Place, way: str) -> None:
    sessions: list[Session] = []
    agent = Agent(Script(call("act"), say("done"), say("and later")), tools=[user_of(sessions, WAITS[way])])
    sessions.append(await place.one.create(agent))
    result = await place.outcome(sessions[0].ask("go"))
    assert result.text == "done"
    [(_, told)] = results(sessions[0])
    assert told.startswith(f"refused: session {sessions[0].id!r} waits for this tool")
    await place.rests(sessions[0])


async def test_what_such_a_tool_has_asked_is_not_sent(place: Place) -> None:
    sessions: list[Session] = []
    agent = Agent(Script(call("act"), say("done")), tools=[user_of(sessions, WAITS["ask"])])
    sessions.append(await place.one.create(agent))
    await place.outcome(sessions[0].ask("go"))
    await place.rests(sessions[0])
    assert users(sessions[0]) == ["go"]


@pytest.mark.parametrize("level", [0, 1])
async def test_a_tool_of_a_child_that_waits_for_a_session_above_is_refused(place: Place, level: int) -> None:
    above: list[Session] = []
    told: list[str] = []

    @tool(effect="none")
    async def act() -> str:
        session = above[0]
        for _ in range(level):
            session = await place.one.open(session.receipts[0].child)
        with pytest.raises(WrongCall, match=f"session '{session.id}' waits for this tool"):
            await session.settled_or_waiting()
        told.append(session.id)
        return "acted"

    child: Agent[Any] = Agent(Script(call("act"), say("done")), name="child", tools=[act])
    for name in ("middle", "root"):
        wrapped = Pool(1).wrap("below", child, description="Does it.")
        child = Agent(Script(call("below", prompt="go"), say(name)), name=name, tools=[wrapped])
    above.append(await place.one.create(child))
    assert (await place.outcome(above[0].ask("go"))).text == "root"
    assert len(told) == 1
    await place.rests(above[0])


async def test_a_tool_may_send_to_its_own_session(place: Place) -> None:
    sessions: list[Session] = []
    agent = Agent(
        Script(call("act"), say("done"), say("and later")),
        tools=[user_of(sessions, lambda session: session.send("later"))],
    )
    sessions.append(await place.one.create(agent))
    assert (await place.outcome(sessions[0].ask("go"))).text == "done"
    await place.rests(sessions[0])
    assert [message.text for message in sessions[0].messages][-2:] == ["later", "and later"]


async def test_a_task_that_a_tool_has_started_may_wait_for_the_session(place: Place) -> None:
    sessions: list[Session] = []
    started: list[asyncio.Task[Any]] = []

    async def start(session: Session) -> None:
        started.append(asyncio.ensure_future(session.ask("later")))
        await place.clock.sleep(1)

    agent = Agent(Script(call("act"), say("done"), say("and later")), tools=[user_of(sessions, start)])
    sessions.append(await place.one.create(agent))
    assert (await place.outcome(sessions[0].ask("go"))).text == "done"
    assert (await place.outcome(started[0])).text == "and later"


async def test_a_tool_may_ask_another_session(place: Place) -> None:
    other = await place.one.create(Agent(Script(say("hello"))))
    sessions: list[Session] = [other]
    agent = Agent(Script(call("act"), say("done")), tools=[user_of(sessions, WAITS["ask"])])
    session = await place.one.create(agent)
    assert (await place.outcome(session.ask("go"))).text == "done"
    assert results(session) == [(None, "used")]
