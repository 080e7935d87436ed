"""Cancelling a session's turn: by mail, from this store and from another, at any of its moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from weft import Agent, ToolResult, Usage, tool
from weft._toolcall import GRACE
from weft.errors import TurnCancelled
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, calls, hold, say
from weft.testing.clock import settle
from weft.thread import Memory, Session, Turn, open_store
from weft.thread._turns import Plan
from weft.thread.entries import Cancel
from weft.thread.memory import MemoryStore
from weft.thread.openstore import OpenStore
from weft.thread.store import Appended, Head, Index, LeaseChange

SPENT = Usage(input_tokens=10, output_tokens=5)
MAYBE = "may have happened"


@pytest.fixture(autouse=True)
async def nothing_is_reported() -> AsyncIterator[None]:
    """The loop has nothing to report: no exception that nobody retrieved."""
    loop = asyncio.get_running_loop()
    reports: list[dict[str, Any]] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, report: reports.append(report))
    MADE.clear()
    yield
    await let_go()
    loop.set_exception_handler(handler)
    assert reports == []


MADE: list[Body] = []


async def let_go() -> None:
    """What was left behind ends with the test, which else would wait for it."""
    for body in MADE:
        body.release.set()
    await settle()


class Body:
    """A tool whose body waits, and takes a cancellation in its own way."""

    def __init__(self, way: str = "hangs", **options: Any) -> None:
        MADE.append(self)
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.runs = 0
        self.cancelled = 0

        @tool(**options)
        async def act() -> str:
            self.runs += 1
            self.started.set()
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    if way == "hangs":
                        raise
                    if way == "swallows once":
                        return "as if nothing had happened"
                    if way == "breaks":
                        raise KeyError("secret") from None
            return "acted"

        self.tool = act


class Held(MemoryStore):
    """A store whose appends of a turn wait at a gate, once it is closed."""

    shut = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waiting: list[tuple[asyncio.Future[Appended], tuple[Any, ...]]] = []

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if not self.shut:
            return super().append(thread, lines, expect, lease, index)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.waiting.append((future, (thread, lines, expect, lease, index)))
        return future

    async def open_up(self) -> None:
        self.shut = False
        while self.waiting:
            future, given = self.waiting.pop(0)
            done = super().append(*given)
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)
            await settle()


class Place:
    """Two stores on one data, as of two processes, with one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        data = Memory()
        self.disk = Held(data, owner="one", ttl=30.0, clock=self.clock, survives=True)
        other = MemoryStore(data, owner="two", ttl=30.0, clock=self.clock, survives=True)
        self.one = OpenStore(self.disk, clock=self.clock, ids=CountingIds("a"), grace=0.0)
        self.two = OpenStore(other, clock=self.clock, ids=CountingIds("b"), grace=0.0)

    async def cancel(self, session: Session, where: str) -> asyncio.Future[Any]:
        """Append the mail, from this store or from another."""
        store = self.one if where == "here" else self.two
        live = await store._node.live(session.id).open()
        sent = asyncio.ensure_future(live.command(lambda _: Plan(bodies=(Cancel(),), lease="mail")))
        await settle()
        return sent


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    async with made.one, made.two:
        yield made
        await let_go()


def results(session: Session) -> list[ToolResult]:
    """All results, of the calls that have them: each call exactly one."""
    made = [part.id for message in session.messages for part in message.calls]
    given = [result for message in session.messages for result in message.results]
    assert [result.call for result in given] == made
    return given


async def is_cancelled(turn: Turn[Any], *, within: float = 0.0, clock: ManualClock) -> None:
    waits = asyncio.ensure_future(turn.wait())
    await settle()
    if within:
        assert not waits.done()
        await clock.advance(within)
    assert waits.done()
    assert isinstance(waits.exception(), TurnCancelled)
    assert turn.outcome == "cancelled"
    kinds = [event.kind async for event in turn.events()]
    assert kinds[-1] == "turn_ended"
    assert "run_finished" not in kinds


async def is_usable(session: Session, text: str = "we go on") -> None:
    assert (await session.ask("go on")).text == text


@pytest.mark.parametrize("effect", ["once", "repeatable", "none"])
@pytest.mark.parametrize("way", ["hangs", "swallows once", "breaks", "swallows for ever"])
async def test_a_cancel_during_a_body_ends_the_turn_and_the_next_one_works(place: Place, way: str, effect: str) -> None:
    body, script = Body(way, effect=effect), Script(call("act"), say("we go on"))
    session = await place.one.create(Agent(script, tools=[body.tool]))
    turn = await session.send("go")
    await body.started.wait()
    await (await place.cancel(session, "here"))
    await is_cancelled(turn, within=GRACE if way == "swallows for ever" else 0.0, clock=place.clock)
    (result,) = results(session)
    assert (result.code, MAYBE in result.content) == ("CANCELLED", True)
    assert session.usage.total == SPENT
    await is_usable(session)
    assert script.requests[-1].messages[2].results[0].code == "CANCELLED"
    body.release.set()
    await settle()
    assert (body.runs, len(results(session))) == (1, 1)


async def test_a_cancel_from_another_store_is_seen_at_the_next_append(place: Place) -> None:
    body, quick = Body(), Body(name="quick")
    tools = [tool(name="quick")(quick.tool.function), body.tool]
    script = Script(calls(call("quick"), call("act")), say("we go on"))
    session = await place.one.create(Agent(script, tools=tools))
    turn = await session.send("go")
    await body.started.wait()
    await (await place.cancel(session, "elsewhere"))
    assert turn.outcome is None
    quick.release.set()
    await settle()
    await is_cancelled(turn, clock=place.clock)
    assert [result.code for result in results(session)] == [None, "CANCELLED"]
    await is_usable(session)


async def test_a_cancel_during_a_model_call_counts_it_as_unknown(place: Place) -> None:
    never = asyncio.Event()
    session = await place.one.create(Agent(Script(hold(never, then=say("we go on")))))
    turn = await session.send("go")
    await settle()
    await (await place.cancel(session, "here"))
    await is_cancelled(turn, clock=place.clock)
    assert [message.role for message in session.messages] == ["user"]
    assert session.usage.total == Usage(unknown=1)
    never.set()
    await is_usable(session)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_cancel_while_the_start_of_a_body_is_written_never_starts_it_twice(place: Place, where: str) -> None:
    body, gate = Body(), asyncio.Event()
    script = Script(hold(gate, then=call("act")), say("we go on"), say("we go on"))
    session = await place.one.create(Agent(script, tools=[body.tool]))
    turn = await session.send("go")
    await settle()
    place.disk.shut = True
    gate.set()
    await settle()
    assert place.disk.waiting
    assert body.runs == 0
    sent = await place.cancel(session, where)
    await place.disk.open_up()
    await sent
    await settle()
    await is_cancelled(turn, clock=place.clock)
    given = results(session)
    assert [(result.code, MAYBE in result.content) for result in given] == [("CANCELLED", body.runs == 1)] * len(given)
    if where == "elsewhere":
        assert body.runs == 0
        assert session.usage.total == Usage(unknown=1)
    else:
        assert session.usage.total == SPENT
    body.release.set()  # a reply that was dropped is given again
    await is_usable(session)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_cancel_while_a_result_is_written_keeps_it(place: Place, where: str) -> None:
    body, script = Body(), Script(call("act"), say("we go on"), say("we go on"))
    session = await place.one.create(Agent(script, tools=[body.tool]))
    turn = await session.send("go")
    await body.started.wait()
    place.disk.shut = True
    body.release.set()
    await settle()
    assert place.disk.waiting
    sent = await place.cancel(session, where)
    await place.disk.open_up()
    await sent
    await settle()
    assert [result.content for result in results(session)] == ["acted"]
    await is_cancelled(turn, clock=place.clock)
    await is_usable(session)


async def test_a_cancel_while_the_end_is_written_comes_too_late(place: Place) -> None:
    gate = asyncio.Event()
    session = await place.one.create(Agent(Script(hold(gate, then=say("an answer")), say("we go on"))))
    turn = await session.send("go")
    await settle()
    place.disk.shut = True
    gate.set()
    await settle()
    sent = await place.cancel(session, "here")
    await place.disk.open_up()
    await sent
    assert (await turn.wait()).text == "an answer"
    await is_usable(session)


async def test_a_turn_that_is_cancelled_twice_ends_once(place: Place) -> None:
    body = Body("swallows for ever")
    session = await place.one.create(Agent(Script(call("act"), say("we go on")), tools=[body.tool]))
    turn = await session.send("go")
    await body.started.wait()
    for _ in range(2):
        await (await place.cancel(session, "here"))
    await place.clock.advance(GRACE)
    await is_cancelled(turn, clock=place.clock)
    assert len(results(session)) == 1
    assert body.cancelled == 1
    ends = [entry async for entry in place.one.watch(session.id, until=session.head) if entry.kind == "turn_ended"]
    assert len(ends) == 1
    await is_usable(session)
    body.release.set()
    await settle()


async def test_a_cancel_does_not_reach_the_turn_after_it(place: Place) -> None:
    body, script = Body(), Script(call("act"), say("we go on"), say("and on"))
    session = await place.one.create(Agent(script, tools=[body.tool]))
    turn = await session.send("go")
    await body.started.wait()
    queued = await session.send("and then")
    await (await place.cancel(session, "here"))
    await is_cancelled(turn, clock=place.clock)
    assert (await queued.wait()).text == "we go on"
    await (await place.cancel(session, "here"))  # nothing runs
    await is_usable(session, "and on")


@pytest.mark.parametrize("agent_in", ["tools", "pool"])
async def test_a_cancel_while_a_child_runs_answers_its_call_and_ends_the_turn(place: Place, agent_in: str) -> None:
    body = Body()
    child = Agent(Script(call("act"), say("never")), name="child", tools=[body.tool])
    asked: Any = child if agent_in == "tools" else Pool(1).wrap("child", child, description="Asks.")
    script = Script(calls(call("child", prompt="x")), say("we go on"), say("we go on"))
    session = await place.one.create(Agent(script, tools=[asked]))
    turn = await session.send("go")
    await body.started.wait()
    await (await place.cancel(session, "here"))
    await settle()
    await is_cancelled(turn, clock=place.clock)
    assert [result.code for result in results(session)] == ["CANCELLED"]
    if agent_in == "tools":
        assert body.cancelled == 1
        assert session.usage.total == SPENT + SPENT
    await is_usable(session)
    body.release.set()
    await settle()


@pytest.mark.parametrize("verb", ["wait", "ask"])
async def test_cancelling_who_waits_cancels_no_turn_and_no_body(place: Place, verb: str) -> None:
    body = Body()
    session = await place.one.create(Agent(Script(call("act"), say("done")), tools=[body.tool]))
    waits = asyncio.ensure_future((await session.send("go")).wait() if verb == "wait" else session.ask("go"))
    await body.started.wait()
    waits.cancel()
    await asyncio.wait([waits])
    assert waits.cancelled()
    turn = await session.resume()
    assert turn is not None
    body.release.set()
    assert (await turn.wait()).text == "done"
    assert (body.cancelled, body.runs) == (0, 1)


@pytest.mark.parametrize("way", ["hangs", "swallows once", "swallows for ever"])
async def test_leaving_a_place_that_nobody_can_take_over_cancels_and_records_it(way: str) -> None:
    body, clock = Body(way), ManualClock()

    async def host() -> Turn[Any]:
        async with open_store("memory:", clock=clock, grace=0) as store:
            session = await store.create(Agent(Script(call("act"), say("never")), tools=[body.tool]))
            turn = await session.send("go")
            await body.started.wait()
        return turn

    leaves = asyncio.ensure_future(host())
    await body.started.wait()
    for _ in range(10):
        await clock.advance(GRACE / 2)
    assert leaves.done()
    assert leaves.result().outcome == "cancelled"
    body.release.set()
    await settle()
