"""What ends a run before its answer: stop conditions, and each limit, live and from a journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.children import STALLED
from weft import Agent, LimitReached, Limits, Retry, RunFailed, StepInfo, Usage, tool
from weft.errors import WrongCall
from weft.events import Event, Parked, RunFinished, StepStarted
from weft.model import ModelEvent, ModelRequest
from weft.testing import Kit, ManualClock, Script, call, calls, crash_points, hold, say
from weft.thread import Memory, OpenStore, Session, approve, open_store
from weft.thread.entries import TurnStarted

Where: TypeAlias = Memory | str
SPENT = Usage(input_tokens=10, output_tokens=5)


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


@tool(effect="none")
async def look(item: int) -> str:
    """Look something up."""
    return f"found {item}"


@tool(effect="none")
async def picky(item: int) -> str:
    """Turn down whatever comes."""
    raise Retry("not that one")


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def looks(*items: int) -> list[Any]:
    return [call("look", item=item) for item in items]


class Asked:
    """A condition that notes what it is asked, and says stop at a step."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.seen: list[StepInfo] = []

    def __call__(self, step: StepInfo) -> bool:
        self.seen.append(step)
        return step.step == self.at

    @property
    def steps(self) -> list[int]:
        return [step.step for step in self.seen]


# A condition, and what it sees.


async def test_a_condition_ends_the_run_as_stopped() -> None:
    model = Script(*looks(1, 2, 3))
    condition = Asked(at=2)
    result = await Agent(model, tools=[look], stop_when=condition).run("go")
    assert (result.stop, result.text, result.usage) == ("stopped", "", SPENT + SPENT)
    assert [r.content for message in result.messages for r in message.results] == ["found 1", "found 2"]
    assert (condition.steps, len(model.requests)) == ([1, 2], 2)


async def test_a_condition_sees_the_step() -> None:
    condition = Asked()
    both = calls(call("look", item=1), call("nothing"), text="let me see")
    await Agent(Script(both, *looks(3), say("done")), tools=[look], stop_when=condition).run("go")
    first, second = condition.seen
    assert (first.step, first.message.text, [c.name for c in first.message.calls]) == (
        1,
        "let me see",
        ["look", "nothing"],
    )
    assert first.results[0].content == "found 1"
    assert [r.code for r in first.results] == [None, "NO_SUCH_TOOL"]
    assert [r.call for r in first.results] == [c.id for c in first.message.calls]
    assert (first.usage, second.usage) == (SPENT, SPENT + SPENT)
    assert (second.step, [r.content for r in second.results]) == (2, ["found 3"])


async def test_the_usage_that_a_condition_sees_has_the_sub_agents_too() -> None:
    condition = Asked()
    child = Agent(Script(say("42")), name="child")
    await Agent(Script(call("child", prompt="x"), say("done")), tools=[child], stop_when=condition).run("go")
    assert condition.seen[0].usage == SPENT + SPENT


async def test_an_async_condition_is_awaited() -> None:
    async def condition(step: StepInfo) -> bool:
        await asyncio.sleep(0)
        return step.step == 1

    result = await Agent(Script(*looks(1)), tools=[look], stop_when=condition).run("go")
    assert result.stop == "stopped"


@pytest.mark.parametrize(("first", "second"), [(1, None), (None, 1), (1, 1)])
async def test_any_of_several_conditions_stops(first: int | None, second: int | None) -> None:
    conditions = (Asked(at=first), Asked(at=second))
    result = await Agent(Script(*looks(1)), tools=[look], stop_when=conditions).run("go")
    assert (result.stop, conditions[0].steps) == ("stopped", [1])


async def test_none_of_several_conditions_lets_the_run_go_on() -> None:
    conditions = [Asked(), Asked()]
    result = await Agent(Script(*looks(1, 2), say("done")), tools=[look], stop_when=conditions).run("go")
    assert (result.stop, conditions[0].steps, conditions[1].steps) == ("answered", [1, 2], [1, 2])


async def test_a_plain_condition_does_not_run_on_the_loop_s_thread() -> None:
    threads: list[threading.Thread] = []

    def condition(step: StepInfo) -> bool:
        threads.append(threading.current_thread())
        return True

    await Agent(Script(*looks(1)), tools=[look], stop_when=condition).run("go")
    assert threads
    assert threading.current_thread() not in threads


async def test_a_plain_condition_that_waits_does_not_hold_up_the_loop() -> None:
    go = threading.Event()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def condition(step: StepInfo) -> bool:
        loop.call_soon_threadsafe(asked.set)
        return go.wait(STALLED)

    task = asyncio.ensure_future(Agent(Script(*looks(1)), tools=[look], stop_when=condition).run("go"))
    await asked.wait()
    go.set()
    assert (await task).stop == "stopped"


async def test_a_stopped_run_tells_that_it_finished() -> None:
    async with Agent(Script(*looks(1)), tools=[look], stop_when=Asked(at=1)).stream("go") as run:
        events: list[Event] = [event async for event in run]
        result = await run.result()
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert (last.stop, last.usage, result.stop) == ("stopped", SPENT, "stopped")
    assert [event.step for event in events if isinstance(event, StepStarted)] == [1]


async def test_a_stopped_run_may_be_gone_on_with() -> None:
    agent = Agent(Script(*looks(1), say("done")), tools=[look], stop_when=Asked(at=1))
    stopped = await agent.run("go")
    assert (await agent.run("and now?", history=stopped.messages)).text == "done"


async def test_replace_keeps_and_changes_the_conditions() -> None:
    agent = Agent(Script(*looks(1, 2), say("done")), tools=[look], stop_when=Asked(at=1))
    assert (await agent.replace(name="other").run("go")).stop == "stopped"
    assert (await agent.replace(stop_when=()).run("go")).stop == "answered"


# What comes first.


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(tokens=1), Limits(tool_calls=1)], ids=repr)
async def test_a_condition_wins_over_a_limit(limits: Limits) -> None:
    model = Script(calls(*looks(1, 1)))
    result = await Agent(model, tools=[look], limits=limits, stop_when=Asked(at=1)).run("go")
    assert result.stop == "stopped"


async def test_a_park_wins_over_a_condition() -> None:
    condition = Asked(at=1)
    model = Script(calls(call("look", item=1), call("refund", order="1")))
    result = await Agent(model, tools=[look, refund], stop_when=condition).run("go")
    assert (result.stop, condition.seen) == ("parked", [])


async def test_a_condition_is_not_asked_about_an_answer() -> None:
    condition = Asked(at=1)
    result = await Agent(Script(say("done")), stop_when=condition).run("go")
    assert (result.stop, condition.seen) == ("answered", [])


async def test_a_condition_is_asked_about_calls_that_were_refused() -> None:
    condition = Asked(at=1)
    result = await Agent(Script(call("nothing")), stop_when=condition).run("go")
    assert (result.stop, condition.steps) == ("stopped", [1])


def boom(step: StepInfo) -> bool:
    raise OSError("secret")


async def async_boom(step: StepInfo) -> bool:
    raise OSError("secret")


@pytest.mark.parametrize("condition", [boom, async_boom])
async def test_a_condition_that_breaks_fails_the_run_without_internals(condition: Any) -> None:
    model = Script(*looks(1))
    with pytest.raises(RunFailed) as caught:
        await Agent(model, tools=[look], stop_when=condition).run("go")
    error = caught.value
    assert (error.code, len(model.requests)) == ("INTERNAL", 1)
    assert "secret" not in str(error)
    assert "OSError" in str(error)
    assert isinstance(error.__cause__, OSError)
    assert error.result is not None
    assert error.result.usage == SPENT
    assert [r.content for message in error.result.messages for r in message.results] == ["found 1"]


async def test_cancelling_reaches_a_condition() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def condition(step: StepInfo) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return False

    task = asyncio.ensure_future(Agent(Script(*looks(1)), tools=[look], stop_when=condition).run("go"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()


# Conditions in a session.


async def test_a_stopped_turn_stays_stopped_and_the_session_goes_on(where: Where) -> None:
    agent = Agent(Script(*looks(1), say("done")), tools=[look], stop_when=Asked(at=1))
    async with open_store(where) as store:
        session = await store.create(agent)
        turn = await session.send("go", key="k")
        result = await turn.wait()
        assert (result.stop, turn.outcome, result.usage) == ("stopped", "stopped", SPENT)
        finished = [event async for event in turn.events() if isinstance(event, RunFinished)]
        assert [event.stop for event in finished] == ["stopped"]
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        assert (await (await session.send("go", key="k")).wait()).stop == "stopped"
        assert (await session.ask("and now?")).text == "done"


async def test_a_condition_is_asked_once_a_parked_step_is_decided(where: Where) -> None:
    condition = Asked(at=1)
    model = Script(calls(call("look", item=1), call("refund", order="1")), say("done"))
    agent = Agent(model, tools=[look, refund], stop_when=condition)
    async with open_store(where) as store:
        session = await store.create(agent)
        turn = await session.send("go")
        assert (await turn.wait()).parked
        assert any([isinstance(event, Parked) async for event in turn.events()])
        assert condition.seen == []
        result = await (await session.decide(approve(session.pending[0]))).wait()
        assert (result.stop, len(model.requests)) == ("stopped", 1)
        assert [r.content for r in condition.seen[0].results] == ["found 1", "refunded 1"]
        assert (condition.seen[0].usage, condition.steps) == (SPENT, [1])


async def test_a_condition_that_breaks_fails_the_turn_without_internals(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(*looks(1)), tools=[look], stop_when=boom))
        with pytest.raises(RunFailed) as caught:
            await session.ask("go")
        assert caught.value.code == "INTERNAL"
        entries = [entry async for entry in store.watch(session.id, until=session.head)]
    assert "secret" not in repr(entries)


async def test_a_condition_that_was_not_answered_is_asked_again_by_the_next_process(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'weft.db'}"
    asked = asyncio.Event()

    async def hangs(step: StepInfo) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return False

    agent = Agent(Script(*looks(1)), tools=[look], stop_when=hangs)
    async with open_store(address, grace=0.0) as store:
        session = await store.create(agent)
        await session.send("go")
        await asked.wait()
    condition = Asked(at=1)
    async with open_store(address) as store:
        session = await store.open(session.id, agent.replace(stop_when=condition))
        turn = await session.resume()
        assert turn is not None
        assert (await turn.wait()).stop == "stopped"
    [step] = condition.seen
    assert (step.step, [r.content for r in step.results]) == (1, ["found 1"])


async def session_of(store: OpenStore, agent: Agent[Any, Any]) -> Session[Any]:
    """The one session of the scenario: found, or made."""
    async for header in store.list(meta={"scenario": "crash"}):
        return await store.open(header.thread, agent)
    return await store.create(agent, meta={"scenario": "crash"})


async def stopped(kit: Kit) -> None:
    """It stops at the third step, whose approval was given."""
    seen = Asked(at=3)
    script = Script(*looks(1), calls(*looks(2, 3)), calls(call("refund", order="1"), *looks(4)), say("never"))
    agent = kit.watch(Agent(script, tools=[look, refund], stop_when=[Asked(), seen]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("go", key="go")
        await session.settled_or_waiting()
        while session.pending:
            await session.decide(approve(session.pending[0]))
            await session.settled_or_waiting()
        assert sum(message.role == "assistant" for message in session.messages) == 3
        for step in seen.seen:
            assert len(step.results) == len(step.message.calls) == [1, 2, 2][step.step - 1]


async def test_every_crash_point_of_a_stopped_run_holds(capsys: pytest.CaptureFixture[str]) -> None:
    def check(kit: Kit) -> None:
        root = next(iter(kit.views().values()))
        assert list(root.ended.values())[-1].outcome == "stopped"

    report = await crash_points(stopped, check)
    with capsys.disabled():
        print(f"\nstopped: {report}")
    assert str(report).endswith("all held")
    assert len(report.points) > 10


# Limits.

LIMITS: list[tuple[str, Limits, list[Any], int]] = [
    ("tool_calls", Limits(tool_calls=3), [calls(*looks(1, 2)), calls(*looks(3, 4)), say("done")], 2),
    ("repeats", Limits(repeats=2), [*looks(1, 2, 2), say("done")], 3),
    ("retries", Limits(retries=1), [*[call("picky", item=n) for n in range(2)], say("done")], 2),
    ("retries", Limits(retries=0), [call("look", "{"), say("done")], 1),
    ("steps", Limits(steps=2), [*looks(1, 2), say("done")], 2),
    ("tokens", Limits(tokens=30), [*looks(1, 2), say("done")], 2),
]


@pytest.mark.parametrize(("name", "limits", "steps", "made"), LIMITS)
async def test_a_limit_ends_the_run_with_what_was_done(name: str, limits: Limits, steps: list[Any], made: int) -> None:
    model = Script(*steps)
    with pytest.raises(LimitReached) as caught:
        await Agent(model, tools=[look, picky], limits=limits).run("go")
    error = caught.value
    assert (error.limit, error.code, len(model.requests)) == (name, "LIMIT", made)
    assert error.result is not None
    assert error.result.usage.input_tokens == 10 * made
    assert error.result.messages[-1].role == "tool"


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        (Limits(tool_calls=3), [calls(*looks(1, 2)), *looks(3), say("done")]),
        (Limits(repeats=2), [*looks(1, 2, 1, 2), say("done")]),
        (Limits(repeats=2), [calls(*looks(1, 2)), calls(*looks(2, 1)), say("done")]),
        (Limits(retries=1), [call("picky", item=1), *looks(1), say("done")]),
        (Limits(retries=1), [call("look", "{"), *looks(1), call("look", "{"), *looks(1), say("done")]),
        (Limits(retries=1), [calls(call("picky", item=1), call("picky", item=2), call("look", "{")), say("done")]),
        (Limits(steps=3), [*looks(1, 2), say("done")]),
    ],
    ids=lambda value: repr(value) if isinstance(value, Limits) else "",
)
async def test_what_is_within_its_limit_is_answered(limits: Limits, steps: list[Any]) -> None:
    assert (await Agent(Script(*steps), tools=[look, picky], limits=limits).run("go")).text == "done"


@pytest.mark.parametrize(("name", "limits", "steps", "made"), LIMITS)
async def test_a_limit_ends_a_turn_with_what_was_done(
    where: Where, name: str, limits: Limits, steps: list[Any], made: int
) -> None:
    agent = Agent(Script(*steps), tools=[look, picky], limits=limits)
    async with open_store(where) as store:
        session = await store.create(agent)
        with pytest.raises(LimitReached) as caught:
            await (await session.send("go", key="k")).wait()
        assert caught.value.limit == name
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        with pytest.raises(LimitReached) as caught:
            await (await session.send("go", key="k")).wait()
        assert caught.value.limit == name
        assert caught.value.result is not None
        assert caught.value.result.usage.input_tokens == 10 * made


PARKED: list[tuple[str, Limits, list[Any]]] = [
    ("tool_calls", Limits(tool_calls=2), [calls(*looks(1), call("refund", order="1")), *looks(2), say("done")]),
    ("repeats", Limits(repeats=2), [call("refund", order="1"), call("refund", order="1"), say("done")]),
    (
        "retries",
        Limits(retries=1),
        [
            calls(call("picky", item=1), call("refund", order="1")),
            calls(call("picky", item=2), call("refund", order="2")),
            say("done"),
        ],
    ),
    ("steps", Limits(steps=2), [call("refund", order="1"), *looks(1), say("done")]),
    ("tokens", Limits(tokens=30), [call("refund", order="1"), *looks(1), say("done")]),
]


@pytest.mark.parametrize("laxer", [False, True], ids=["the same agent", "a laxer agent"])
@pytest.mark.parametrize(("name", "limits", "steps"), PARKED)
async def test_a_limit_holds_across_parks_and_processes(
    where: Where, name: str, limits: Limits, steps: list[Any], laxer: bool
) -> None:
    model = Script(*steps)
    agent = Agent(model, tools=[look, picky, refund], limits=limits)
    async with open_store(where) as store:
        session = await store.create(agent)
        assert (await session.ask("go")).parked
    later = agent.replace(limits=Limits(steps=50, retries=50)) if laxer else agent
    if name in ("repeats", "retries"):  # the second step parks as well
        async with open_store(where) as store:
            session = await store.open(session.id, later)
            assert (await (await session.decide(approve(session.pending[0]))).wait()).parked
    async with open_store(where) as store:
        session = await store.open(session.id, later)
        turn = await session.decide(approve(session.pending[0]))
        with pytest.raises(LimitReached) as caught:
            await turn.wait()
    assert (caught.value.limit, len(model.requests)) == (name, 2)
    assert caught.value.result is not None
    assert caught.value.result.usage == SPENT + SPENT


async def test_limits_are_stored_where_the_turn_starts(where: Where) -> None:
    limits = Limits(steps=7, tokens=1_000, tool_calls=9, seconds=60.0, retries=2, repeats=4)
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("done")), limits=limits))
        await session.ask("go")
        started = [e.body async for e in store.watch(session.id, until=session.head) if isinstance(e.body, TurnStarted)]
    assert [body.limits for body in started] == [limits]


class Hanging(Script):
    """Hangs in the call after its last reply, and says that it does."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps, hold(asyncio.Event(), then=say("never")))
        self.hangs = asyncio.Event()
        self.before = len(steps)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if len(self.requests) == self.before:
            self.hangs.set()
        async for event in super().stream(request):
            yield event


@pytest.mark.parametrize(
    ("name", "limits", "step"),
    [
        ("tool_calls", Limits(tool_calls=1), call("look", item=1)),
        ("repeats", Limits(repeats=2), call("look", item=1)),
        ("retries", Limits(retries=1), call("picky", item=1)),
        ("steps", Limits(steps=2), call("look", item=1)),
        ("tokens", Limits(tokens=20), call("look", item=1)),
    ],
)
@pytest.mark.parametrize("laxer", [False, True], ids=["the same agent", "a laxer agent"])
async def test_a_limit_holds_across_a_recovery(
    tmp_path: Path, name: str, limits: Limits, step: Any, laxer: bool
) -> None:
    """One step is in the journal; the process ends in the second model call; the next one makes it again."""
    address = f"sqlite:///{tmp_path / 'weft.db'}"
    first, second = Hanging(step), Script(step, step, say("done"))
    agent = Agent(first, tools=[look, picky], limits=limits)
    async with open_store(address, grace=0.0) as store:
        session = await store.create(agent)
        await session.send("go")
        await first.hangs.wait()
    later = agent.replace(model=second, limits=Limits(steps=50, retries=50) if laxer else limits)
    async with open_store(address) as store:
        session = await store.open(session.id, later)
        turn = await session.resume()
        assert turn is not None
        with pytest.raises(LimitReached) as caught:
            await turn.wait()
        assert (caught.value.limit, len(second.requests)) == (name, 1)


# Seconds, by the store's clock.


class Slow:
    """A tool that takes as long as its test says."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

        @tool(effect="none")
        async def slow(seconds: float) -> str:
            await clock.advance(seconds)
            return f"took {seconds:g}"

        self.tool = slow


async def test_a_run_that_has_been_at_work_too_long_is_not_asked_again(where: Where) -> None:
    clock = ManualClock()
    slow = Slow(clock)
    model = Script(call("slow", seconds=5), call("slow", seconds=6), say("done"))
    async with open_store(where, clock=clock) as store:
        session = await store.create(Agent(model, tools=[slow.tool], limits=Limits(seconds=10.0)))
        with pytest.raises(LimitReached) as caught:
            await session.ask("go")
    assert (caught.value.limit, len(model.requests)) == ("seconds", 2)
    assert caught.value.result is not None
    contents = [r.content for message in caught.value.result.messages for r in message.results]
    assert contents == ["took 5", "took 6"], "what runs when the time is over is not cut short"


async def test_an_answer_that_comes_late_is_still_an_answer(where: Where) -> None:
    clock = ManualClock()
    ready = asyncio.Event()
    async with open_store(where, clock=clock) as store:
        agent = Agent(Script(hold(ready, then=say("late"))), limits=Limits(seconds=10.0))
        session = await store.create(agent)
        turn = await session.send("go")
        await clock.advance(11.0)
        ready.set()
        assert (await turn.wait()).text == "late"


@pytest.mark.parametrize("laxer", [False, True], ids=["the same agent", "a laxer agent"])
async def test_time_at_work_is_summed_and_waiting_for_a_person_does_not_count(where: Where, laxer: bool) -> None:
    clock = ManualClock()
    slow = Slow(clock)
    both = calls(call("slow", seconds=6), call("refund", order="1"))
    steps = [both, both, call("slow", seconds=1), say("done")]
    model = Script(*steps)
    agent = Agent(model, tools=[slow.tool, refund], limits=Limits(seconds=10.0))
    async with open_store(where, clock=clock) as store:
        session = await store.create(agent)
        assert (await session.ask("go")).parked
        await clock.advance(500.0)
        turn = await session.decide(approve(session.pending[0]))
        assert (await turn.wait()).parked, "six of ten seconds"
        await clock.advance(500.0)
    later = agent.replace(limits=Limits(seconds=99.0)) if laxer else agent
    async with open_store(where, clock=clock) as store:
        session = await store.open(session.id, later)
        turn = await session.decide(approve(session.pending[0]))
        with pytest.raises(LimitReached) as caught:
            await turn.wait()
    assert (caught.value.limit, len(model.requests)) == ("seconds", 2)


async def limited(kit: Kit) -> None:
    """It reaches its limit of calls at the third step, in whatever process."""
    script = Script(*looks(1), calls(call("refund", order="1"), *looks(2)), *looks(3), say("never"))
    agent = kit.watch(Agent(script, tools=[look, refund], limits=Limits(tool_calls=3)))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("go", key="go")
        await session.settled_or_waiting()
        while session.pending:
            await session.decide(approve(session.pending[0]))
            await session.settled_or_waiting()


async def test_every_crash_point_of_a_limited_run_holds(capsys: pytest.CaptureFixture[str]) -> None:
    def check(kit: Kit) -> None:
        end = list(next(iter(kit.views().values())).ended.values())[-1]
        assert end.error is not None
        assert (end.outcome, end.error.details) == ("failed", {"limit": "tool_calls"})

    report = await crash_points(limited, check)
    with capsys.disabled():
        print(f"\nlimited: {report}")
    assert str(report).endswith("all held")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Limits(steps=0),
        lambda: Limits(tokens=0),
        lambda: Limits(tool_calls=0),
        lambda: Limits(seconds=0.0),
        lambda: Limits(seconds=float("inf")),
        lambda: Limits(retries=-1),
        lambda: Limits(repeats=0),
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: Callable[[], Limits]) -> None:
    with pytest.raises(WrongCall, match="Limits"):
        wrong()


class Undecided:
    """Has no truth, as an array of several numbers."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


async def test_an_answer_without_a_truth_fails_the_run() -> None:
    unsure: Any = lambda step: Undecided()  # noqa: E731
    with pytest.raises(RunFailed) as failed:
        await Agent(Script(call("look", item=1), say("never")), tools=[look], stop_when=unsure).run("go")
    assert str(failed.value) == "the stop condition failed (ValueError)"


async def test_a_predicate_without_a_truth_fails_its_call() -> None:
    unsure: Any = Undecided
    gated = tool(name="gated", approval=unsure)(lambda: None)
    result = await Agent(Script(call("gated"), say("I see.")), tools=[gated]).run("go")
    assert result.messages[2].results[0].code == "INTERNAL"
