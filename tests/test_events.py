"""Events: what each says, their order and pairing, and those who follow them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from weft import Agent, Limits, Message, ModelFailed, ModelInfo, ModelRequest, Text, ToolCall, ToolResult, Usage, tool
from weft._agent import _finish
from weft._log import EventLog
from weft._moves import Begin, Ended, Steer
from weft._run import RunLoop
from weft.errors import LimitReached
from weft.events import (
    ArgumentsDelta,
    Compacted,
    Event,
    Parked,
    ReasoningDelta,
    RunFinished,
    RunStarted,
    Steered,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    event_adapter,
)
from weft.messages import File, Reasoning
from weft.model import Finish, ModelEvent, ReasoningChunk, TextChunk, ToolCallChunk, WholeCall
from weft.testing import Script, call, calls, fail, hold, say
from weft.testing.clock import settle

SPENT = Usage(input_tokens=10, output_tokens=5)
CALL = ToolCall(id="a", name="add", arguments='{"a":1}', provider_id="call_1")
MESSAGE = Message(
    role="assistant",
    parts=(
        Reasoning(text="hm", block='{"sig":"é"}', provider="p", model="m"),
        Text(text="zero\u2028width \U0001f642"),
        CALL,
        File(media_type="image/png", data=b"\x00\xff"),
        File(media_type="image/png", url="https://example.org/x.png"),
    ),
)
EVERY: list[Event] = [
    RunStarted(run="r"),
    StepStarted(run="r", step=1),
    TextDelta(run="r", text="x"),
    ReasoningDelta(run="r", text="x"),
    ArgumentsDelta(run="r", index=0, text="{"),
    ArgumentsDelta(run="r", index=1, text="", name="add"),
    ToolStarted(run="r", seq=0, call=CALL),
    ToolFinished(run="r", seq=1, result=ToolResult(call="a", content="no", is_error=True, code="DENIED")),
    StepFinished(run="r", step=1, message=MESSAGE, usage=SPENT),
    StepFinished(run="r", step=1, message=MESSAGE, usage=None),
    Steered(run="r", message=Message.user("and this")),
    Compacted(run="r", before=9_000, after=2_000),
    Parked(run="r", calls=(CALL,)),
    RunFinished(run="r", stop="answered", text="x", usage=Usage(unknown=1)),
    TurnStarted(turn="t", run="r", cause="prompt"),
    TurnEnded(turn="t", run="r", outcome="lost"),
]


@tool(effect="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def kinds() -> set[str]:
    """Every kind that there is."""
    union = get_args(get_args(Event)[0])
    return {member.__dataclass_fields__["kind"].default for member in union}


async def collected(run: Any) -> list[Any]:
    return [event async for event in run]


async def observed(agent: Agent[Any, Any], prompt: str = "hi") -> list[Any]:
    async with agent.stream(prompt) as run:
        return await collected(run)


# As values.


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.kind)
def test_an_event_is_json_and_is_read_back_as_it_was(event: Event) -> None:
    text = event_adapter().dump_json(event)
    assert json.loads(text)["kind"] == event.kind
    assert event_adapter().validate_json(text) == event
    assert event_adapter().validate_python(event_adapter().dump_python(event, mode="json")) == event


def test_every_kind_is_tried_and_each_is_another() -> None:
    assert {event.kind for event in EVERY} == kinds()
    assert len(kinds()) == 14


@pytest.mark.parametrize(
    "text", ['{"kind":"of_the_future","run":"r"}', '{"run":"r"}', '{"kind":"text_delta","run":"r"}']
)
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        event_adapter().validate_json(text)


# Order.


def check(events: list[Any], *, finished: bool) -> None:
    """What holds of the events of any run."""
    assert events[0].kind == "run_started"
    assert len({event.run for event in events}) == 1
    tools = [event for event in events if isinstance(event, ToolStarted | ToolFinished)]
    assert [event.seq for event in tools] == list(range(len(tools)))
    started: list[str] = []
    ended: list[str] = []
    said: set[str] = set()
    for event in events:
        if isinstance(event, StepFinished):
            said |= {part.id for part in event.message.calls}
        if isinstance(event, ToolStarted):
            started.append(event.call.id)
        if isinstance(event, ToolFinished):
            ended.append(event.result.call)
            assert event.result.call in started or event.result.is_error
            assert event.result.call in said
    assert len(set(started)) == len(started)
    assert len(set(ended)) == len(ended)
    steps = [event for event in events if isinstance(event, StepStarted | StepFinished)]
    assert all(first.step <= second.step for first, second in pairwise(steps))
    for event in steps:
        if isinstance(event, StepFinished):
            assert StepStarted(run=event.run, step=event.step) in events[: events.index(event)]
    assert sum(isinstance(event, RunFinished) for event in events) == finished
    assert isinstance(events[-1], RunFinished) is finished


async def test_a_run_s_events_are_in_order_and_paired() -> None:
    step = calls(call("add", a=1, b=2), call("nope"), call("add", a="x"), call("add", a=3, b=4), text="look")
    events = await observed(Agent(Script(step, call("add", a=5, b=6), say("end")), tools=[add]))
    check(events, finished=True)
    assert [event.step for event in events if isinstance(event, StepStarted)] == [1, 2, 3]
    assert len([event for event in events if isinstance(event, ToolStarted)]) == 3
    assert len([event for event in events if isinstance(event, ToolFinished)]) == 5
    assert events[-1].usage == SPENT + SPENT + SPENT


async def test_calls_finish_as_they_come_and_start_in_call_order() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    @tool(effect="none")
    async def wait(x: int) -> int:
        await gates[x].wait()
        return x

    agent = Agent(Script(calls(*(call("wait", x=x) for x in range(3))), say("end")), tools=[wait])
    async with agent.stream("hi") as run:
        await settle()
        for gate in reversed(gates):
            gate.set()
            await settle()
        events = await collected(run)
        result = await run.result()
    check(events, finished=True)
    assert [event.call.arguments for event in events if isinstance(event, ToolStarted)] == [
        f'{{"x": {x}}}' for x in range(3)
    ]
    assert [event.result.content for event in events if isinstance(event, ToolFinished)] == ["2", "1", "0"]
    assert [part.content for part in result.messages[2].results] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        pytest.param(lambda: Agent(Script(fail(OSError("no")))), ModelFailed, id="model"),
        pytest.param(
            lambda: Agent(Script(call("add", a=1, b=2)), tools=[add], limits=Limits(steps=1)), LimitReached, id="limit"
        ),
    ],
)
async def test_the_events_of_a_run_that_failed_end_by_raising_its_error(agent: Any, error: type[Exception]) -> None:
    seen: list[Any] = []
    errors: list[Exception] = []

    async def follow(run: Any) -> None:
        try:
            async for event in run:
                seen.append(event)  # those before the error count
        except error as raised:
            errors.append(raised)

    async with agent().stream("hi") as run:
        await follow(run)
        with pytest.raises(error) as told:
            await run.result()
    check(seen, finished=False)
    assert [type(raised) for raised in errors] == [error]
    assert errors == [told.value]


async def test_a_run_that_parks_tells_it_and_is_not_finished() -> None:
    @tool(approval=True)
    async def act(x: int) -> None: ...

    events = await observed(Agent(Script(calls(call("act", x=1), call("add", a=1, b=2))), tools=[act, add]))
    check(events, finished=False)
    assert [(event.kind, [part.name for part in event.calls]) for event in events[-1:]] == [("parked", ["act"])]
    assert len([event for event in events if isinstance(event, ToolStarted)]) == 1


async def test_a_cancelled_run_tells_a_finish_for_every_call_and_no_end() -> None:
    started, log = asyncio.Event(), EventLog()

    @tool
    async def hang(x: int) -> None:
        started.set()
        await asyncio.Event().wait()

    agent = Agent(Script(calls(call("add", a=1, b=2), call("hang", x=1), call("hang", x=2))), tools=[add, hang])
    task = asyncio.ensure_future(_finish(agent._loop("hi", events=log)))
    await started.wait()
    await settle()
    task.cancel()
    await asyncio.wait([task])
    check(log.events, finished=False)
    codes = [event.result.code for event in log.events if isinstance(event, ToolFinished)]
    assert codes == [None, "CANCELLED", "CANCELLED"]


class Fragments:
    """A model that streams each piece when it is let."""

    def __init__(self, *events: ModelEvent) -> None:
        self.replies = [list(events), [TextChunk(text="3"), Finish(reason="stop", usage=SPENT)]]

    def info(self) -> ModelInfo:
        return ModelInfo(provider="fragments", model="m1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.replies.pop(0):
            yield event


async def test_deltas_are_told_in_the_order_in_which_they_came() -> None:
    model = Fragments(
        ReasoningChunk(text="let "),
        ReasoningChunk(text="me", block='{"sig":1}'),
        TextChunk(text="I "),
        ToolCallChunk(index=0, name="add", arguments='{"a":1,'),
        TextChunk(text="look"),
        ToolCallChunk(index=1, name="add", arguments="{"),
        ToolCallChunk(index=0, arguments='"b":2}'),
        WholeCall(name="add", arguments='{"a":1,"b":2}'),
        Finish(reason="tool_calls", usage=SPENT),
    )
    events = await observed(Agent(model, tools=[add]))
    run = events[0].run
    deltas = [event for event in events if event.kind.endswith("_delta")]
    assert deltas == [
        ReasoningDelta(run=run, text="let "),
        ReasoningDelta(run=run, text="me"),
        TextDelta(run=run, text="I "),
        ArgumentsDelta(run=run, index=0, text='{"a":1,', name="add"),
        TextDelta(run=run, text="look"),
        ArgumentsDelta(run=run, index=1, text="{", name="add"),
        ArgumentsDelta(run=run, index=0, text='"b":2}'),
        TextDelta(run=run, text="3"),
    ]
    finished = [event for event in events if isinstance(event, StepFinished)]
    assert [event.message.text for event in finished] == ["I look", "3"]


async def test_deltas_of_a_reply_that_failed_are_told_and_are_in_no_message() -> None:
    agent = Agent(Script(say("half").then_fail(OSError("cut")), say("never")))
    log = EventLog()
    loop = agent._loop("hi", events=log)
    with pytest.raises(ModelFailed):
        await _finish(loop)
    assert [event.kind for event in log.events] == ["run_started", "step_started", "text_delta"]
    assert [message.role for message in loop.history()] == ["user"]


# Who follows.


def busy(gate: asyncio.Event | None = None) -> Agent[None]:
    last = say("end") if gate is None else hold(gate, then=say("end"))
    return Agent(Script(calls(call("add", a=1, b=2), call("nope")), last), tools=[add])


@pytest.mark.parametrize("pace", ["late", "slow", "at once"])
async def test_whoever_follows_sees_the_same_list_whatever_its_pace(pace: str) -> None:
    gate = asyncio.Event()

    async def follow(run: Any) -> list[Any]:
        seen = []
        async for event in run:
            seen.append(event)
            await settle({"slow": 7}.get(pace, 0))
        return seen

    async with busy(gate).stream("hi") as run:
        if pace == "late":
            await settle()
        one, two = (asyncio.ensure_future(follow(run)) for _ in range(2))
        await settle()
        gate.set()
        await run.result()
        late = await collected(run)
        seen = [await one, await two]
    check(late, finished=True)
    assert seen == [late, late]


async def test_who_never_goes_on_blocks_neither_the_run_nor_the_others() -> None:
    async with busy().stream("hi") as run:
        stuck = aiter(run)
        await anext(stuck)
        others = await collected(run)
        assert (await run.result()).text == "end"
    check(others, finished=True)


async def test_who_raises_or_leaves_changes_nothing_for_the_run_and_the_others() -> None:
    gate = asyncio.Event()

    async def break_down(run: Any) -> None:
        async for _ in run:
            raise KeyError("mine")

    async def leave(run: Any) -> None:
        async for _ in run:
            break

    async with busy(gate).stream("hi") as run:
        breaks, leaves, follows = (
            asyncio.ensure_future(work) for work in (break_down(run), leave(run), collected(run))
        )
        await settle()
        gate.set()
        assert (await run.result()).text == "end"
        with pytest.raises(KeyError):
            await breaks
        await leaves
        check(await follows, finished=True)


async def test_what_a_consumer_gets_can_not_be_changed() -> None:
    async with busy().stream("hi") as run:
        events = await collected(run)
        finished = next(event for event in events if isinstance(event, StepFinished))
        assert isinstance(finished.message.parts, tuple)
        with pytest.raises(AttributeError):
            finished.message.calls[0].arguments = "{}"
        result = await run.result()
    assert finished.message is result.messages[1] or finished.message == result.messages[1]


async def test_an_iterator_that_has_ended_stays_ended() -> None:
    async with Agent(Script(say("x"))).stream("hi") as run:
        ended = aiter(run)
        assert len([event async for event in ended]) == 5
        assert [event async for event in ended] == []


# Steering.


def steered(agent: Agent[Any]) -> tuple[RunLoop, EventLog, asyncio.Task[Ended | None]]:
    log = EventLog()
    loop = agent._loop("hi", events=log)
    return loop, log, asyncio.ensure_future(loop.drive(Begin()))


class Working:
    """A tool that is at work until the test ends it."""

    def __init__(self) -> None:
        self.at_work, self.release = asyncio.Event(), asyncio.Event()

        @tool(effect="none")
        async def work() -> str:
            self.at_work.set()
            await self.release.wait()
            return "worked"

        self.tool = work


async def test_a_steer_joins_after_a_step_s_results_and_the_next_model_call_sees_it() -> None:
    working, script = Working(), Script(call("work"), say("end"))
    loop, log, task = steered(Agent(script, tools=[working.tool]))
    await working.at_work.wait()
    for text in ("one", "two"):
        loop.feed(Steer(message=Message.user(text)))
    await settle()
    assert not [event for event in log.events if isinstance(event, Steered)], "not between a call and its result"
    working.release.set()
    assert await task == Ended(outcome="answered", stop="stop")
    check(log.events, finished=True)
    assert [message.role for message in script.requests[1].messages] == ["user", "assistant", "tool", "user", "user"]
    assert [message.text for message in script.requests[1].messages][3:] == ["one", "two"]
    assert [event.message.text for event in log.events if isinstance(event, Steered)] == ["one", "two"]
    told = [event.kind for event in log.events]
    assert told.index("tool_finished") < told.index("steered") < len(told) - told[::-1].index("step_started")
    assert [message.text for message in loop.history()][3:] == ["one", "two", "end"]


async def test_a_steer_that_comes_during_the_answer_causes_another_step() -> None:
    gate = asyncio.Event()
    script = Script(hold(gate, then=say("an answer")), say("another"))
    loop, log, task = steered(Agent(script))
    await settle()
    loop.feed(Steer(message=Message.user("wait")))
    gate.set()
    assert await task == Ended(outcome="answered", stop="stop")
    check(log.events, finished=True)
    assert [message.text for message in script.requests[1].messages] == ["hi", "an answer", "wait"]
    assert [event.step for event in log.events if isinstance(event, StepStarted)] == [1, 2]
    assert [event.message for event in log.events if isinstance(event, Steered)] == [Message.user("wait")]
    assert log.events[-1].kind == "run_finished"
    assert loop.state.text == "another"


async def test_a_steer_before_the_first_model_call_is_seen_by_it() -> None:
    script = Script(say("end"))
    log = EventLog()
    loop = Agent(script)._loop("hi", events=log)
    loop.feed(Steer(message=Message.user("also")))
    await loop.drive(Begin())
    assert [message.text for message in script.requests[0].messages] == ["hi", "also"]
    assert [event.kind for event in log.events][:3] == ["run_started", "steered", "step_started"]


@pytest.mark.parametrize("ending", ["limit", "cancel", "park", "over"])
async def test_a_steer_to_a_run_that_ends_before_is_not_told_as_delivered(ending: str) -> None:
    working = Working()

    @tool(approval=True)
    async def act() -> None: ...

    wanted = [call("work"), call("act")] if ending == "park" else [call("work")]
    limits = Limits(steps=1) if ending == "limit" else Limits()
    loop, log, task = steered(Agent(Script(calls(*wanted), say("end")), tools=[working.tool, act], limits=limits))
    await working.at_work.wait()
    steer = Steer(message=Message.user("wait"))
    if ending != "over":
        loop.feed(steer)
    if ending == "cancel":
        loop.interrupt("cancel")
    working.release.set()
    await task
    loop.feed(steer)
    await settle()
    check(log.events, finished=ending == "over")
    assert not [event for event in log.events if isinstance(event, Steered)]
    assert Message.user("wait") not in list(loop.history())
