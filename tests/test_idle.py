"""Silence and time: the idle limit of a model call, and the seconds that a run may be at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from weft import Agent, LimitReached, Limits, ModelFailed, ModelInfo, ModelRequest, Settings, Usage, tool
from weft._agent import _finish
from weft._run import RunLoop
from weft.model import Finish, ModelEvent, TextChunk
from weft.testing import CountingIds, ManualClock, Script, call, say
from weft.testing.clock import settle
from weft.thread import Memory, approve
from weft.thread.memory import MemoryStore
from weft.thread.openstore import OpenStore

SPENT = Usage(input_tokens=10, output_tokens=5)
IDLE = Settings(idle=10.0)


class Slow:
    """A model that says a chunk for each that it is given, and ends when it is told; it may not want to stop."""

    def __init__(self, *, swallows: int = 0, turns: bool = False) -> None:
        self.chunks: asyncio.Queue[ModelEvent | None] = asyncio.Queue()
        self.swallows = swallows
        self.turns = turns
        self.cancelled = 0
        self.closed = 0

    def info(self) -> ModelInfo:
        return ModelInfo(provider="slow", model="m1")

    def say(self, text: str) -> None:
        self.chunks.put_nowait(TextChunk(text=text))

    def end(self) -> None:
        self.chunks.put_nowait(Finish(reason="stop", usage=SPENT))
        self.chunks.put_nowait(None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            self.closed += 1

    async def _next(self) -> ModelEvent | None:
        while True:
            try:
                return await self.chunks.get()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.turns:
                    raise OSError("the connection was closed") from None
                if self.cancelled > self.swallows:
                    raise


def started(model: Slow, settings: Settings = IDLE) -> tuple[RunLoop, ManualClock, asyncio.Task[Any]]:
    clock = ManualClock()
    loop = Agent(model, settings=settings)._loop("hi", clock=clock)
    return loop, clock, asyncio.ensure_future(_finish(loop))


def timers(clock: ManualClock) -> int:
    """How many deadlines are still to come."""
    return sum(timer.callback is not None for _, _, timer in clock._timers)


def failure(task: asyncio.Task[Any]) -> ModelFailed:
    assert not task.cancelled()
    error = task.exception()
    assert isinstance(error, ModelFailed)
    assert task.cancelling() == 0
    return error


@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_a_model_that_is_silent_for_too_long_fails_the_run(chunks: int) -> None:
    model = Slow()
    loop, clock, task = started(model)
    await clock.advance(0)
    for _ in range(chunks):
        await clock.advance(9.5)
        model.say("x")
        await settle()
    await clock.advance(9.5)
    assert not task.done()
    await clock.advance(0.5)
    assert failure(task).code == "MODEL_TIMEOUT"
    assert "10 seconds" in str(failure(task))
    assert loop.state.usage == Usage(unknown=1)
    assert [message.role for message in loop.history()] == ["user"]
    assert (model.closed, timers(clock)) == (1, 0)


async def test_chunks_that_come_just_in_time_never_fire() -> None:
    model = Slow()
    _, clock, task = started(model)
    await settle()
    for _ in range(20):
        await clock.advance(9.9)
        model.say("x")
        await settle()
    model.end()
    await settle()
    assert task.result().text == 20 * "x"
    assert (model.cancelled, timers(clock)) == (0, 0)


async def test_the_limit_does_not_count_while_the_calls_of_a_reply_run() -> None:
    release, at_work = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        at_work.set()
        await release.wait()
        return "worked"

    clock = ManualClock()
    loop = Agent(Script(call("work"), say("end")), tools=[work], settings=IDLE)._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await at_work.wait()
    await clock.advance(3600)
    release.set()
    assert (await task).text == "end"
    assert timers(clock) == 0


@pytest.mark.parametrize("settings", [Settings(idle=10.0, stream=False), Settings(idle=None)], ids=["whole", "none"])
async def test_a_reply_that_is_not_streamed_or_has_no_limit_may_take_its_time(settings: Settings) -> None:
    model = Slow()
    _, clock, task = started(model, settings)
    await settle()
    await clock.advance(86400)
    assert not task.done()
    model.end()
    await settle()
    assert task.result().stop == "answered"


async def test_a_run_without_settings_has_a_limit_of_a_minute() -> None:
    model = Slow()
    _, clock, task = started(model, Settings())
    await settle()
    await clock.advance(59.5)
    assert not task.done()
    await clock.advance(0.5)
    assert failure(task).code == "MODEL_TIMEOUT"


@pytest.mark.parametrize("first", ["clock", "outside"])
async def test_a_cancellation_at_the_moment_of_the_limit_leaves_as_a_cancellation(first: str) -> None:
    model = Slow()
    loop, clock, task = started(model)
    await settle()
    ((_, _, limit),) = clock._timers
    assert limit.callback is not None
    clock._move(10.0)
    for fire in (limit.callback, task.cancel) if first == "clock" else (task.cancel, limit.callback):
        fire()  # both in one turn of the loop
    await settle()
    assert task.cancelled()
    assert task.cancelling() == 1, "the outside's alone"
    assert loop.ended is not None
    assert (loop.ended.outcome, model.closed) == ("cancelled", 1)


async def test_an_interrupt_at_the_moment_of_the_limit_is_a_cancelled_turn() -> None:
    model = Slow()
    loop, clock, task = started(model)
    await settle()
    clock.deadline(10.0, lambda: loop.interrupt("cancel"))
    await clock.advance(10)
    assert task.done()
    assert not task.cancelled()
    assert task.exception() is not None
    assert task.cancelling() == 0


async def test_a_stream_that_swallows_the_limit_and_then_answers_is_taken_as_it_is() -> None:
    model = Slow(swallows=1)
    _, clock, task = started(model)
    await settle()
    await clock.advance(10)
    assert (model.cancelled, task.done()) == (1, False)
    model.say("late")
    model.end()
    await settle()
    assert task.result().text == "late"
    assert (task.cancelling(), timers(clock)) == (0, 0)


async def test_a_stream_that_swallows_the_limit_and_stays_silent_is_cancelled_again() -> None:
    model = Slow(swallows=2)
    _, clock, task = started(model)
    await settle()
    await clock.advance(20)
    assert (model.cancelled, task.done()) == (2, False)
    await clock.advance(10)
    assert failure(task).code == "MODEL_TIMEOUT"
    assert (model.closed, timers(clock)) == (1, 0)


async def test_a_stream_that_makes_an_error_of_the_limit_is_a_failed_model_call() -> None:
    model = Slow(turns=True)
    _, clock, task = started(model)
    await settle()
    await clock.advance(10)
    assert isinstance(failure(task).__cause__, OSError)


async def test_a_stream_that_breaks_its_contract_after_it_swallowed_the_limit_is_a_failed_model_call() -> None:
    model = Slow(swallows=1)
    _, clock, task = started(model)
    await settle()
    await clock.advance(10)
    model.chunks.put_nowait(Finish(reason="stop"))
    model.say("after the end")
    await settle()
    failure(task)


async def test_a_session_s_turn_fails_by_the_limit_and_the_next_one_works() -> None:
    model = Slow()
    clock = ManualClock()
    store = MemoryStore(Memory(), owner="one", ttl=30.0, clock=clock, survives=True)
    async with OpenStore(store, clock=clock, ids=CountingIds("a"), grace=0.0) as opened:
        session = await opened.create(Agent(model, settings=IDLE))
        turn = await session.send("hi")
        await settle()
        await clock.advance(10)
        with pytest.raises(ModelFailed) as failed:
            await turn.wait()
        assert failed.value.code == "MODEL_TIMEOUT"
        again = await session.send("again")
        await settle()
        model.say("here I am")
        model.end()
        assert (await again.wait()).text == "here I am"
        assert session.usage.total == SPENT + Usage(unknown=1)


# Seconds at work.


class Working:
    """A tool that works until the test says so."""

    def __init__(self, **options: Any) -> None:
        self.at_work = asyncio.Event()
        self.release = asyncio.Event()

        @tool(effect="none", **options)
        async def work() -> str:
            self.at_work.set()
            await self.release.wait()
            return "worked"

        self.tool = work


@pytest.mark.parametrize(("seconds", "over"), [(29.5, False), (30.0, True)])
async def test_a_run_that_has_been_at_work_for_too_long_calls_no_model_again(seconds: float, *, over: bool) -> None:
    working, clock, script = Working(), ManualClock(), Script(call("work"), say("end"))
    loop = Agent(script, tools=[working.tool], limits=Limits(seconds=30.0))._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await working.at_work.wait()
    await clock.advance(seconds)
    assert not task.done(), "what runs is not cut short"
    working.release.set()
    await settle()
    if over:
        error = task.exception()
        assert isinstance(error, LimitReached)
        assert error.result is not None
        assert error.result.messages[2].results[0].content == "worked"
    else:
        assert task.result().text == "end"
    assert len(script.requests) == (1 if over else 2)
    assert timers(clock) == 0


async def test_an_answer_that_comes_when_the_time_is_over_is_an_answer() -> None:
    model, clock = Slow(), ManualClock()
    loop = Agent(model, limits=Limits(seconds=5.0), settings=IDLE)._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await settle()
    await clock.advance(9)
    model.end()
    await settle()
    assert task.result().stop == "answered"


@pytest.mark.parametrize(("before", "after", "over"), [(10.0, 10.0, False), (10.0, 20.0, True), (29.0, 1.0, True)])
@pytest.mark.parametrize("restart", [False, True], ids=["here", "after a restart"])
async def test_time_parked_does_not_count_and_time_at_work_does(
    before: float, after: float, *, over: bool, restart: bool
) -> None:
    data, clock = Memory(), ManualClock()
    first, second = Working(), Working(name="second")

    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    script = Script(call("work"), call("pay"), call("second"), say("end"))
    agent = Agent(script, tools=[first.tool, pay, second.tool], limits=Limits(seconds=30.0))

    def opened(owner: str) -> OpenStore:
        store = MemoryStore(data, owner=owner, ttl=30.0, clock=clock, survives=True)
        return OpenStore(store, clock=clock, ids=CountingIds(owner), grace=0.0)

    async with opened("a") as store:
        session = await store.create(agent)
        turn = await session.send("hi")
        await first.at_work.wait()
        await clock.advance(before)
        first.release.set()
        assert (await turn.wait()).parked
        await clock.advance(300)
        if not restart:
            turn = await session.decide(approve(session.pending[0].id, by="ann"))
            await goes_on(clock, second, after, turn, over=over)
    if restart:
        async with opened("b") as store:
            session = await store.open(session.id, agent)
            turn = await session.decide(approve(session.pending[0].id, by="ann"))
            await goes_on(clock, second, after, turn, over=over)


async def goes_on(clock: ManualClock, working: Working, seconds: float, turn: Any, *, over: bool) -> None:
    await working.at_work.wait()
    await clock.advance(seconds)
    working.release.set()
    await settle()
    waits = asyncio.ensure_future(turn.wait())
    await settle()
    assert waits.done()
    if over:
        assert isinstance(waits.exception(), LimitReached)
    else:
        assert waits.result().text == "end"
