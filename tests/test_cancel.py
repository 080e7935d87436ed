"""Cancelling: a run that is stopped from outside, or from inside as a session does, at any of its moments."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator

from tests.children import STALLED
from weft import Agent, Context, Limits, ModelInfo, ModelRequest, StepInfo, Tool, ToolResult, Usage, tool
from weft._agent import _finish
from weft._moves import Ended
from weft._run import RunLoop
from weft._threads import workers
from weft._toolcall import GRACE
from weft.errors import LimitReached, TurnCancelled, WrongCall
from weft.model import Finish, ModelEvent, TextChunk, WholeCall
from weft.pool import Pool
from weft.testing import ManualClock, Script, call, calls, hold, say
from weft.testing.clock import settle

SPENT = Usage(input_tokens=10, output_tokens=5)
MAYBE = "may have happened"


@pytest.fixture(autouse=True)
async def nothing_is_left_over() -> AsyncIterator[None]:
    """No task outlives its test, and the loop has nothing to report: no exception that nobody retrieved."""
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    reports: list[dict[str, Any]] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, report: reports.append(report))
    yield
    await settle()
    gc.collect()
    left = {task for task in asyncio.all_tasks() - before if not task.get_coro().__qualname__.startswith("TestRunner.")}
    loop.set_exception_handler(handler)
    assert left == set()
    assert reports == []


class Body:
    """Tools that wait, each with its own way to take a cancellation."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        """Set when as many bodies as `wanted` are at work."""
        self.wanted = 1
        self.entered: list[int] = []
        self.cancelled: list[int] = []
        self.over: list[int] = []
        """Those whose clean-up is done."""
        self.release = asyncio.Event()
        self.thread = threading.Event()
        self._loop = asyncio.get_running_loop()

    def tool(self, kind: str, name: str | None = None, **options: Any) -> Tool[Any]:
        return tool(name=name or kind.replace(" ", "_"), **options)(getattr(self, f"_{kind.replace(' ', '_')}")())

    def _enter(self, x: int) -> None:
        self.entered.append(x)
        if len(self.entered) >= self.wanted:
            self.started.set()

    async def wait(self, x: int = 0) -> None:
        self._enter(x)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(x)
            raise
        finally:
            await asyncio.sleep(0)
            self.over.append(x)

    def _hangs(self) -> Callable[..., Awaitable[str]]:
        async def hangs(x: int = 0) -> str:
            self._enter(x)
            try:
                for _ in iter(int, 1):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.cancelled.append(x)
                self.over.append(x)
                raise

        return hangs

    def _swallows_once(self) -> Callable[..., Awaitable[str]]:
        async def swallows(x: int = 0) -> str:
            self._enter(x)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(x)
            self.over.append(x)
            return "as if nothing had happened"

        return swallows

    def _swallows_for_ever(self) -> Callable[..., Awaitable[str]]:
        async def stubborn(x: int = 0) -> str:
            self._enter(x)
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled.append(x)
            self.over.append(x)
            return "late"

        return stubborn

    def _swallows_in_a_wrapper(self) -> Callable[..., Awaitable[str]]:
        stubborn = self._swallows_for_ever()

        @wraps(stubborn)
        def wrapped(x: int = 0) -> Awaitable[str]:
            return stubborn(x)

        return wrapped

    def _cleans_up(self) -> Callable[..., Awaitable[str]]:
        async def cleans(x: int = 0) -> str:
            await self.wait(x)
            return "never"

        return cleans

    def _breaks(self) -> Callable[..., Awaitable[str]]:
        async def breaks(x: int = 0) -> str:
            try:
                await self.wait(x)
            finally:
                raise KeyError("secret of the clean-up")
            return "never"

        return breaks

    def _blocks(self) -> Callable[..., str]:
        def blocks(x: int = 0) -> str:
            self._loop.call_soon_threadsafe(self._enter, x)
            assert self.thread.wait(STALLED)
            return "late"

        return blocks

    async def let_go(self) -> None:
        """End what was left behind."""
        self.release.set()
        self.thread.set()
        while any(worker.abandoned for worker in workers()):
            await settle()
        await settle()


@pytest.fixture
async def body() -> AsyncIterator[Body]:
    """What was left behind ends with the test, which else would wait for it."""
    body = Body()
    yield body
    await body.let_go()


KINDS = ["hangs", "swallows once", "swallows for ever", "swallows in a wrapper", "cleans up", "breaks", "blocks"]
LEFT = ("swallows for ever", "swallows in a wrapper", "blocks")
"""Those that are left behind."""
ON_THREADS = ("swallows in a wrapper", "blocks")
WAYS = ["task", "timeout", "scope", "stream", "interrupt"]


def results(loop: RunLoop) -> list[ToolResult]:
    """All results, of the calls that have them: each call exactly one."""
    history = loop.history()
    made = [part.id for message in history for part in message.calls]
    given = [result for message in history for result in message.results]
    assert [result.call for result in given] == made
    return given


async def within(work: Awaitable[object], stop: list[Callable[[], object]]) -> None:
    """Under a time limit whose end the test brings."""
    async with asyncio.timeout(None) as limit:
        stop.append(lambda: limit.reschedule(asyncio.get_running_loop().time()))
        await work


async def stopped(way: str, loop: RunLoop, started: asyncio.Event, clock: ManualClock) -> None:
    """Drive the run, stop it in this way once it has started, and see it leave as it should."""
    stop: list[Callable[[], object]] = []

    async def task() -> None:
        host = asyncio.current_task()
        assert host is not None
        stop.append(host.cancel)
        with pytest.raises(asyncio.CancelledError) as left:
            await _finish(loop)
        assert type(left.value) is asyncio.CancelledError
        assert host.cancelling() == 1
        host.uncancel()

    async def timeout() -> None:
        with pytest.raises(TimeoutError):
            await within(_finish(loop), stop)

    async def scope() -> None:
        with anyio.CancelScope() as scope:
            stop.append(scope.cancel)
            await _finish(loop)
        assert scope.cancelled_caught

    async def interrupt() -> None:
        stop.append(lambda: loop.interrupt("cancel"))
        with pytest.raises(TurnCancelled):
            await _finish(loop)
        assert loop.ended is not None

    async def host() -> None:
        await {"task": task, "timeout": timeout, "scope": scope, "interrupt": interrupt}[way]()
        present = asyncio.current_task()
        assert present is not None
        assert present.cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left to come

    hosted = asyncio.ensure_future(host())
    await started.wait()
    stop[0]()
    await settle(10)
    await clock.advance(GRACE)
    assert hosted.done(), "it has left within the grace"
    await hosted


def ways(*left_out: str) -> Any:
    return pytest.mark.parametrize("way", [way for way in WAYS if way not in ("stream", *left_out)])


# A body at work.


@ways()
@pytest.mark.parametrize("options", [{}, {"timeout": 3600.0}, {"sequential": True}], ids=["plain", "deadline", "alone"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_body_s_call_gets_one_result_and_the_run_leaves_as_it_was_stopped(
    body: Body, kind: str, options: dict[str, Any], way: str
) -> None:
    clock, script = ManualClock(), Script(call("act", x=1), say("never"))
    loop = Agent(script, tools=[body.tool(kind, "act", **options)])._loop("hi", clock=clock)
    await stopped(way, loop, body.started, clock)
    (result,) = results(loop)
    assert (result.code, result.is_error) == ("CANCELLED", True)
    assert MAYBE in result.content
    assert "secret" not in result.content
    assert loop.ended == Ended(outcome="cancelled")
    assert loop.state.usage == SPENT
    assert len(script.requests) == 1
    assert (body.entered, body.over) == ([1], [] if kind in LEFT else [1])


@ways()
@pytest.mark.parametrize("kind", KINDS)
async def test_of_two_bodies_each_gets_one_result_and_what_waits_behind_never_starts(
    body: Body, kind: str, way: str
) -> None:
    clock = ManualClock()
    body.wanted = 2
    wanted = [call("act", x=1), call("cleans_up", x=2), call("last", x=3), call("last", x=4)]
    tools = [body.tool(kind, "act"), body.tool("cleans up"), body.tool("hangs", "last", sequential=True)]
    loop = Agent(Script(calls(*wanted), say("never")), tools=tools)._loop("hi", clock=clock)
    await stopped(way, loop, body.started, clock)
    given = results(loop)
    assert [result.code for result in given] == ["CANCELLED"] * 4
    assert [MAYBE in result.content for result in given] == [True, True, False, False]
    # A thread and a task are started in call order; which of them comes to its first line first is open.
    assert (sorted(body.entered) if kind in ON_THREADS else body.entered) == [1, 2]
    assert loop.state.usage == SPENT


async def test_what_was_done_before_the_cancellation_stays(body: Body) -> None:
    clock = ManualClock()

    @tool
    async def quick() -> str:
        return "quick"

    script = Script(calls(call("quick"), call("hangs")))
    loop = Agent(script, tools=[quick, body.tool("hangs")])._loop("hi", clock=clock)
    await stopped("task", loop, body.started, clock)
    assert [result.code for result in results(loop)] == [None, "CANCELLED"]
    assert results(loop)[0].content == "quick"


@pytest.mark.parametrize("effect", ["none", "repeatable", "once"])
async def test_only_a_body_that_has_started_may_have_happened(body: Body, effect: str) -> None:
    clock = ManualClock()
    first = body.tool("hangs", "first", effect=effect, sequential=True)
    second = body.tool("hangs", "second", effect=effect, sequential=True)
    script = Script(calls(call("first"), call("second")))
    loop = Agent(script, tools=[first, second])._loop("hi", clock=clock)
    await stopped("task", loop, body.started, clock)
    assert [MAYBE in result.content for result in results(loop)] == [True, False]


async def test_the_history_of_a_cancelled_run_may_be_gone_on_with(body: Body) -> None:
    clock = ManualClock()
    script = Script(call("hangs"), say("we go on"))
    agent = Agent(script, tools=[body.tool("hangs")])
    loop = agent._loop("hi", clock=clock)
    await stopped("task", loop, body.started, clock)
    result = await agent.run("go on", history=tuple(loop.history()))
    assert result.text == "we go on"
    assert script.requests[1].messages[2].results[0].code == "CANCELLED"


@pytest.mark.parametrize("wanted", [1, 2], ids=["alone", "two"])
async def test_a_body_s_clean_up_is_awaited_within_the_grace(body: Body, wanted: int) -> None:
    clock = ManualClock()
    body.wanted = wanted
    agent = Agent(
        Script(calls(*(call("act", x=x) for x in range(wanted)))), tools=[body.tool("swallows for ever", "act")]
    )
    loop = agent._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await body.started.wait()
    task.cancel()
    await clock.advance(GRACE - 0.5)
    assert not task.done()
    body.release.set()
    await settle()
    assert task.cancelled()
    assert len(body.over) == wanted


@pytest.mark.parametrize("wanted", [1, 2], ids=["alone", "two"])
async def test_a_second_cancellation_during_the_grace_leaves_at_once(body: Body, wanted: int) -> None:
    clock = ManualClock()
    body.wanted = wanted
    agent = Agent(
        Script(calls(*(call("act", x=x) for x in range(wanted)))), tools=[body.tool("swallows for ever", "act")]
    )
    loop = agent._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await body.started.wait()
    task.cancel()
    await settle()
    assert not task.done()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert [result.code for result in results(loop)] == ["CANCELLED"] * wanted


@pytest.mark.parametrize("wanted", [1, 2], ids=["alone", "two"])
async def test_a_scope_that_cancels_at_every_await_leaves_a_body_its_grace(body: Body, wanted: int) -> None:
    clock = ManualClock()
    body.wanted = wanted
    agent = Agent(
        Script(calls(*(call("act", x=x) for x in range(wanted)))), tools=[body.tool("swallows for ever", "act")]
    )
    loop = agent._loop("hi", clock=clock)
    scope = anyio.CancelScope()

    async def host() -> None:
        with scope:
            await _finish(loop)

    task = asyncio.ensure_future(host())
    await body.started.wait()
    scope.cancel()
    await clock.advance(GRACE - 0.5)
    assert not task.done()
    body.release.set()
    await settle()
    assert task.done()
    assert len(body.over) == wanted
    await task


@pytest.mark.parametrize("kind", ["swallows once", "cleans up", "swallows for ever"])
async def test_a_body_that_was_cut_by_its_own_deadline_and_then_cancelled_has_one_result(body: Body, kind: str) -> None:
    clock = ManualClock()
    tools = [body.tool(kind, "act", timeout=30.0, effect="none"), body.tool("hangs", "other")]
    body.wanted = 2
    loop = Agent(Script(calls(call("act", x=1), call("other", x=2))), tools=tools)._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await body.started.wait()
    await clock.advance(30)
    task.cancel()
    await clock.advance(GRACE)
    assert task.cancelled()
    assert [result.code for result in results(loop)][1] == "CANCELLED"


async def test_a_plain_body_is_left_at_once_without_a_grace(body: Body) -> None:
    clock = ManualClock()
    loop = Agent(Script(call("blocks")), tools=[body.tool("blocks")])._loop("hi", clock=clock)
    task = asyncio.ensure_future(_finish(loop))
    await body.started.wait()
    task.cancel()
    await settle()
    assert task.cancelled()


# Between the bodies.


class Streaming:
    """A model that streams what it is told; an event in the list is waited for. Tells in which task it was closed."""

    def __init__(self, *events: ModelEvent | asyncio.Event | type[BaseException]) -> None:
        self.events = events
        self.started = asyncio.Event()
        self.opened_in: list[object] = []
        self.closed_in: list[object] = []

    def info(self) -> ModelInfo:
        return ModelInfo(provider="streaming", model="m1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.opened_in.append(asyncio.current_task())
        try:
            for event in self.events:
                if isinstance(event, asyncio.Event):
                    self.started.set()
                    await event.wait()
                elif isinstance(event, type):
                    raise event
                else:
                    yield event
        finally:
            self.closed_in.append(asyncio.current_task())
            await asyncio.sleep(0)


@ways()
@pytest.mark.parametrize("chunks", [0, 2], ids=["before the first chunk", "in mid-stream"])
async def test_a_cancelled_model_call_is_closed_in_its_task_and_counts_as_unknown(chunks: int, way: str) -> None:
    clock = ManualClock()
    model = Streaming(*chunks * [TextChunk(text="so far")], asyncio.Event())
    loop = Agent(model)._loop("hi", clock=clock)
    await stopped(way, loop, model.started, clock)
    assert model.closed_in == model.opened_in
    assert len(model.closed_in) == 1
    assert [message.role for message in loop.history()] == ["user"]
    assert loop.ended == Ended(outcome="cancelled", usage=Usage(unknown=1))
    assert loop.state.usage == Usage(unknown=1)


@ways()
async def test_a_later_model_call_that_is_cancelled_keeps_the_usage_so_far(way: str) -> None:
    clock, never, started = ManualClock(), asyncio.Event(), asyncio.Event()

    @tool
    async def quick() -> str:
        started.set()
        return "quick"

    loop = Agent(Script(call("quick"), hold(never, then=say("x"))), tools=[quick])._loop("hi", clock=clock)

    async def at_the_model() -> None:
        await started.wait()
        await settle()
        asked.set()

    asked = asyncio.Event()
    waits = asyncio.ensure_future(at_the_model())
    await stopped(way, loop, asked, clock)
    await waits
    assert loop.state.usage == SPENT + Usage(unknown=1)
    assert [result.content for result in results(loop)] == ["quick"]


async def test_a_cancellation_between_the_reply_and_the_first_tool_starts_none() -> None:
    entered: list[int] = []
    task: asyncio.Task[Any]

    class Last(Streaming):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield WholeCall(name="act", arguments='{"x":1}')
            yield WholeCall(name="act", arguments='{"x":2}')
            yield Finish(reason="tool_calls", usage=SPENT)
            task.cancel()  # is delivered at the next await

    @tool
    async def act(x: int) -> None:
        entered.append(x)

    loop = Agent(Last(), tools=[act])._loop("hi")
    task = asyncio.ensure_future(_finish(loop))
    await asyncio.wait([task])
    assert task.cancelled()
    assert entered == []
    assert {result.code for result in results(loop)} <= {"CANCELLED"}
    assert not any(MAYBE in result.content for result in results(loop))


PLACES = ["instructions", "predicate", "argument validator", "stop condition", "result"]


@ways()
@pytest.mark.parametrize("place", PLACES)
async def test_every_function_of_the_application_is_left_when_the_run_is_cancelled(
    body: Body, place: str, way: str
) -> None:
    clock = ManualClock()
    loop = placed(place, body)._loop("hi", clock=clock)
    await stopped(way, loop, body.started, clock)
    assert loop.ended is not None
    assert loop.ended.outcome == "cancelled"
    given = results(loop)
    assert [result.code for result in given] == {"stop condition": [None], "result": ["CANCELLED"]}.get(place, [])
    assert loop.state.usage.unknown == 0, "a reply whose usage was reported is counted as it was"
    assert loop.state.usage == (Usage() if place == "instructions" else SPENT)


def placed(place: str, body: Body) -> Agent[Any]:
    """An agent that waits in a function of the application, on the loop or on a thread."""

    async def instructions(ctx: Context) -> str:
        await body.wait()
        return ""

    async def predicate(x: str) -> bool:
        await body.wait()
        return False

    def validator(value: str) -> str:
        body._blocks()()
        return value

    async def stop(step: StepInfo) -> bool:
        await body.wait()
        return False

    async def act(x: str) -> str:
        return x

    async def checked(x: Annotated[str, AfterValidator(validator)]) -> str:
        return x

    async def gives(x: str) -> Annotated[str, AfterValidator(validator)]:
        return x

    function: Callable[..., Awaitable[str]] = {"argument validator": checked, "result": gives}.get(place, act)
    made = tool(name="act", approval=predicate if place == "predicate" else False)(function)
    return Agent(
        Script(call("act", x="x"), say("never")),
        tools=[made],
        instructions=instructions if place == "instructions" else None,
        stop_when=[stop] if place == "stop condition" else (),
    )


async def test_a_predicate_that_swallows_the_cancellation_does_not_save_the_run() -> None:
    started, entered = asyncio.Event(), []

    async def predicate(x: int) -> bool:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return False
        return False

    @tool(approval=predicate)
    async def act(x: int) -> None:
        entered.append(x)

    loop = Agent(Script(call("act", x=1), say("never")), tools=[act])._loop("hi")
    await stopped("task", loop, started, ManualClock())
    assert entered == []
    assert [result.code for result in results(loop)] == ["CANCELLED"]
    assert MAYBE not in results(loop)[0].content


# Sub-agents.


def family(body: Body, how: str) -> tuple[Agent[Any], Agent[Any], Agent[Any]]:
    """A root, its child and its grandchild, whose body waits; the child has a body of its own at work as well."""

    def asked(name: str, agent: Agent[Any]) -> Any:
        return agent if how == "in tools" else Pool(4).wrap(name, agent, description="Asks.")

    act, side = body.tool("cleans up", "act"), body.tool("swallows once", "side")
    grandchild = Agent(Script(call("act", x=1), say("never")), name="grandchild", tools=[act])
    wanted = calls(call("grandchild", prompt="x"), call("side", x=2))
    child = Agent(Script(wanted, say("never")), name="child", tools=[asked("grandchild", grandchild), side])
    root = Agent(
        Script(calls(call("child", prompt="x"), call("side", x=3)), say("never")), tools=[asked("child", child), side]
    )
    return root, child, grandchild


@ways()
@pytest.mark.parametrize("how", ["in tools", "pool"])
async def test_cancelling_reaches_every_body_of_a_family_and_counts_what_each_has_spent(
    body: Body, how: str, way: str
) -> None:
    clock = ManualClock()
    body.wanted = 3
    root, _, _ = family(body, how)
    loop = root._loop("hi", clock=clock)
    await stopped(way, loop, body.started, clock)
    assert sorted(body.entered) == sorted(body.cancelled) == sorted(body.over) == [1, 2, 3]
    assert [result.code for result in results(loop)] == ["CANCELLED"] * 2
    assert loop.state.usage == SPENT + SPENT + SPENT


@pytest.mark.parametrize("how", ["in tools", "pool"])
async def test_a_sub_agent_whose_model_call_is_cancelled_counts_it_as_unknown(how: str) -> None:
    clock, model = ManualClock(), Streaming(TextChunk(text="so far"), asyncio.Event())
    child = Agent(model, name="child")
    tools: list[Any] = [child if how == "in tools" else Pool(1).wrap("child", child, description="Asks.")]
    loop = Agent(Script(call("child", prompt="x")), tools=tools)._loop("hi", clock=clock)
    await stopped("task", loop, model.started, clock)
    assert loop.state.usage == SPENT + Usage(unknown=1)
    assert model.closed_in == model.opened_in


@pytest.mark.parametrize("how", ["in tools", "pool"])
async def test_a_sub_agent_s_body_that_swallows_is_left_behind_by_the_same_clock(body: Body, how: str) -> None:
    clock = ManualClock()
    child = Agent(Script(call("act", x=1)), name="child", tools=[body.tool("swallows for ever", "act")])
    tools: list[Any] = [child if how == "in tools" else Pool(1).wrap("child", child, description="Asks.")]
    loop = Agent(Script(call("child", prompt="x")), tools=tools)._loop("hi", clock=clock)
    await stopped("task", loop, body.started, clock)
    assert [result.code for result in results(loop)] == ["CANCELLED"]
    assert loop.state.usage == SPENT + SPENT


async def test_a_pool_s_slot_is_free_again_after_a_cancellation(body: Body) -> None:
    clock, pool = ManualClock(), Pool(1)
    child = Agent(
        Script(call("act", x=1), say("again"), say("again")), name="child", tools=[body.tool("cleans up", "act")]
    )
    ask = pool.wrap("child", child, description="Asks.")
    wanted = calls(call("child", prompt="x"), call("child", prompt="y"))
    loop = Agent(Script(wanted), tools=[ask])._loop("hi", clock=clock)
    await stopped("task", loop, body.started, clock)
    again = await Agent(Script(call("child", prompt="x"), say("end")), tools=[ask]).run("hi")
    assert again.messages[2].results[0].content == "again"


# Leaving a stream.


@pytest.mark.parametrize("kind", ["hangs", "swallows once", "cleans up", "breaks", "blocks"])
async def test_leaving_a_stream_cancels_its_run_and_who_iterates_is_told(body: Body, kind: str) -> None:
    agent = Agent(Script(call("act", x=1), say("never")), tools=[body.tool(kind, "act")])
    async with agent.stream("hi") as run:
        follows = asyncio.ensure_future(drained(run))
        await body.started.wait()
    await settle()
    assert isinstance(follows.exception(), TurnCancelled)
    with pytest.raises(TurnCancelled):
        await run.result()


async def drained(run: Any) -> list[Any]:
    return [event async for event in run]


async def test_who_iterates_a_stream_that_was_left_at_once_is_told() -> None:
    async with Agent(Script(say("x"))).stream("hi") as run:
        pass
    follows = asyncio.ensure_future(drained(run))
    await settle()
    assert follows.done()
    assert isinstance(follows.exception(), TurnCancelled)


async def test_iterating_a_stream_that_was_not_entered_is_a_wrong_call() -> None:
    run = Agent(Script(say("x"))).stream("hi")
    follows = asyncio.ensure_future(drained(run))
    await settle()
    assert follows.done()
    assert isinstance(follows.exception(), WrongCall)


@ways("interrupt")
async def test_cancelling_who_has_entered_a_stream_leaves_as_it_was_cancelled(body: Body, way: str) -> None:
    agent = Agent(Script(call("act", x=1), say("never")), tools=[body.tool("cleans up", "act")])

    async def host() -> None:
        async with agent.stream("hi") as run:
            await drained(run)

    async def in_scope() -> None:
        with anyio.CancelScope() as scope:
            stop.append(scope.cancel)
            await host()
        assert scope.cancelled_caught

    async def in_timeout() -> None:
        with pytest.raises(TimeoutError):
            await within(host(), stop)

    stop: list[Callable[[], object]] = []
    task = asyncio.ensure_future({"task": host, "scope": in_scope, "timeout": in_timeout}[way]())
    await body.started.wait()
    (stop or [task.cancel])[0]()
    await settle()
    assert task.done()
    assert task.cancelled() is (way == "task")
    assert body.over == [1]


async def test_a_second_cancellation_while_a_stream_is_left_ends_its_grace(body: Body) -> None:
    agent = Agent(Script(call("act", x=1), say("never")), tools=[body.tool("swallows for ever", "act")])

    async def host() -> None:
        async with agent.stream("hi"):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(host())
    await body.started.wait()
    task.cancel()
    await settle()
    assert not task.done()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert not [left for left in asyncio.all_tasks() if left.get_name() == "weft stream"]


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize("wanted", [1, 3])
async def test_a_run_raises_its_own_error_and_never_a_group(way: str, wanted: int) -> None:
    @tool
    async def act(x: int) -> str:
        raise KeyError("secret")

    agent = Agent(Script(calls(*(call("act", x=x) for x in range(wanted)))), tools=[act], limits=Limits(steps=1))

    async def streamed() -> None:
        async with agent.stream("hi") as run:
            await drained(run)

    with pytest.raises(LimitReached) as raised:
        await (agent.run("hi") if way == "run" else streamed())
    assert type(raised.value) is LimitReached
