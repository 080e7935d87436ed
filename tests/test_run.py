"""A run of an agent, from its prompt to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pytest
from typing_extensions import TypedDict

from tests.children import STALLED
from weft import (
    Agent,
    Context,
    File,
    LimitReached,
    Limits,
    Message,
    ModelError,
    ModelFailed,
    ModelInfo,
    ModelRequest,
    Reasoning,
    RunFailed,
    RunStream,
    Settings,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    tool,
)
from weft._log import EventLog
from weft._machine import State
from weft._moves import (
    Begin,
    CallFinished,
    CallParked,
    CallResumed,
    Ended,
    Finished,
    OpenCall,
    Ready,
    Record,
    Recorded,
    Started,
)
from weft._ports import SystemClock, SystemIds
from weft._repair import Transcript
from weft._result import child_result, raise_for
from weft._run import RunLoop, StepInfo
from weft._setup import Slot
from weft._threads import workers
from weft._toolcall import judge
from weft.errors import InsideLoop, TurnCancelled, WeftError, WrongCall
from weft.events import RunFinished, RunStarted, TextDelta, ToolFinished, ToolStarted, event_adapter
from weft.messages import NO_USAGE, UNKNOWN_CALL
from weft.model import Finish, ModelEvent, ReasoningChunk, TextChunk, ToolCallChunk, WholeCall
from weft.testing.clock import settle
from weft.testing.override import override
from weft.testing.script import Script, call, calls, fail, hold, say

SPENT = Usage(input_tokens=10, output_tokens=5)
STOP = Finish(reason="stop", usage=SPENT)
GOOD_INFO = ModelInfo(provider="raw", model="m1", output="schema")
ODD_INFO = replace(GOOD_INFO, provider=7)  # type: ignore[arg-type]


def told(*, kind: Any = TextChunk, **fields: Any) -> Any:
    """An event whose fields may be of any type."""
    return kind(**fields)


def spent(**counts: Any) -> Any:
    """A finish whose counts may be of any type."""
    return told(kind=Finish, reason="stop", usage=Usage(**counts))


class Raw:
    """A model that streams what it is told, contract or no contract."""

    def __init__(self, *replies: Sequence[ModelEvent | BaseException]) -> None:
        self.replies = list(replies)
        self.requests: list[ModelRequest] = []
        self.closed = 0

    def info(self) -> ModelInfo:
        return ModelInfo(provider="raw", model="m1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        try:
            for event in self.replies.pop(0):
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.closed += 1


class Hanging:
    """A model, or a body, that never comes back, and tells how it was left."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cleaned = 0

    def info(self) -> ModelInfo:
        return ModelInfo(provider="hanging", model="m1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextChunk(text="so far")
        await self.wait()

    async def wait(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned += 1

    def tool(self) -> Tool[Any]:
        @tool
        async def hang(x: int = 0) -> None:
            await self.wait()

        return hang


@tool(effect="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# A run.


async def test_a_run_gives_a_result() -> None:
    result = await Agent(Script(say("hello"))).run("hi")
    assert (result.text, result.stop, result.finish, result.usage) == ("hello", "answered", "stop", SPENT)
    assert (result.pending, result.parked) == ((), False)
    assert result.messages == (Message.user("hi"), Message(role="assistant", parts=(Text(text="hello"),)))
    assert result.run


async def test_a_run_goes_on_until_there_are_no_calls() -> None:
    script = Script(call("add", a=1, b=2), calls(call("add", a=3, b=4), call("add", a=5, b=6)), say("21"))
    result = await Agent(script, tools=[add]).run("sum it up")
    assert [message.role for message in result.messages] == ["user", *2 * ["assistant", "tool"], "assistant"]
    assert [part.content for message in result.messages for part in message.results] == ["3", "7", "11"]
    assert result.usage == Usage(input_tokens=30, output_tokens=15)
    script.assert_done()


async def test_a_run_of_many_is_a_run_of_its_own() -> None:
    agent = Agent(Script(*(say(text) for text in "abc")))
    results = await asyncio.gather(*(agent.run(text) for text in "abc"))
    assert len({result.run for result in results}) == 3
    assert [result.messages[0].text for result in results] == list("abc")


async def test_a_plain_function_is_a_tool() -> None:
    def double(x: int) -> int:
        return 2 * x

    result = await Agent(Script(call("double", x=21), say("42")), tools=[double]).run("double it")
    assert result.messages[2].results[0].content == "42"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("hi", Message.user("hi")),
        (Message.user("hi"), Message.user("hi")),
        (
            [Text(text="what is it?\x00"), File(media_type="image/png", data=b"x")],
            Message(role="user", parts=(Text(text="what is it?\ufffd"), File(media_type="image/png", data=b"x"))),
        ),
    ],
    ids=["text", "message", "parts"],
)
async def test_a_prompt_is_text_parts_or_a_message(prompt: Any, message: Message) -> None:
    result = await Agent(Script(say("x"))).run(prompt)
    assert result.messages[0] == message


async def test_a_model_is_asked_with_what_the_agent_has() -> None:
    script = Script(call("add", a=1, b=2), say("3"))
    settings = Settings(temperature=0.0, max_tokens=100)
    agent = Agent(script, instructions="Be brief.", tools=[add], settings=settings)
    result = await agent.run("1 + 2?")
    for index, request in enumerate(script.requests):
        assert (request.instructions, request.settings, request.run_id) == ("Be brief.", settings, result.run)
        assert request.tools == (add.definition,)
        assert (request.position.thread, request.position.index) == (None, index)


async def test_the_messages_of_a_request_keep_their_length() -> None:
    script = Script(call("add", a=1, b=2), say("3"))
    await Agent(script, tools=[add]).run("1 + 2?")
    assert [len(request.messages) for request in script.requests] == [1, 3]
    assert list(script.requests[0].messages) == [Message.user("1 + 2?")]


async def test_a_run_may_have_another_model_and_other_settings() -> None:
    own, other = Script(say("own")), Script(say("other"))
    agent = Agent(own, settings=Settings(max_tokens=1))
    result = await agent.run("hi", model=other, settings=Settings(max_tokens=2))
    assert result.text == "other"
    assert other.requests[0].settings.max_tokens == 2
    assert (await agent.run("hi")).text == "own"


@pytest.mark.parametrize("waits", [True, False])
async def test_instructions_may_be_a_function_that_is_asked_once(*, waits: bool) -> None:
    asked: list[Context[str]] = []
    threads: set[int] = set()

    def instructions(ctx: Context[str]) -> str:
        asked.append(ctx)
        threads.add(threading.get_ident())
        return f"Work for {ctx.deps}.\x00"

    async def instructions_later(ctx: Context[str]) -> str:
        return instructions(ctx)

    script = Script(call("add", a=1, b=2), say("3"))
    agent = Agent(script, deps=str, tools=[add], instructions=instructions_later if waits else instructions)
    result = await agent.run("hi", deps="ann")
    assert [request.instructions for request in script.requests] == ["Work for ann.\ufffd"] * 2
    assert [ctx.run for ctx in asked] == [result.run]
    assert (threading.get_ident() in threads) is waits


@pytest.mark.parametrize("waits", [True, False])
async def test_instructions_may_be_a_function_that_gives_none(*, waits: bool) -> None:
    async def nothing_later(ctx: Context) -> None: ...

    script = Script(say("x"))
    await Agent(script, instructions=nothing_later if waits else lambda ctx: None).run("hi")
    assert script.requests[0].instructions is None


@pytest.mark.parametrize("waits", [True, False])
async def test_instructions_that_break_fail_the_run(*, waits: bool) -> None:
    def broken(ctx: Context) -> str:
        raise KeyError("secret")

    async def broken_later(ctx: Context) -> str:
        raise KeyError("secret")

    script = Script(say("x"))
    with pytest.raises(RunFailed) as failed:
        await Agent(script, instructions=broken_later if waits else broken).run("hi")
    assert type(failed.value) is RunFailed
    assert "secret" not in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    assert failed.value.result is not None
    assert failed.value.result.usage == Usage()
    assert script.requests == []


async def test_instructions_without_a_text_fail_the_run() -> None:
    class Broken:
        def __str__(self) -> str:
            raise KeyError("secret")

    script = Script(say("x"))
    with pytest.raises(RunFailed, match=r"the instructions failed \(KeyError\)"):
        await Agent(script, instructions=lambda ctx: Broken()).run("hi")
    assert script.requests == []


# History.


async def test_history_comes_before_the_prompt() -> None:
    script = Script(call("add", a=1, b=2), say("3"), say("4"))
    agent = Agent(script, tools=[add])
    first = await agent.run("1 + 2?")
    second = await agent.run("and one more?", history=first.messages)
    assert list(script.requests[2].messages) == [*first.messages, Message.user("and one more?")]
    assert script.requests[2].position.index == 2
    assert second.messages[:-1] == (*first.messages, Message.user("and one more?"))
    assert second.usage == SPENT


async def test_a_broken_history_is_made_valid() -> None:
    asked = Message(role="assistant", parts=(ToolCall(id="a", name="add", arguments="{}"),))
    history = [Message.user("hi"), asked]
    script = Script(say("x"))
    await Agent(script).run("go on", history=history)
    assert script.requests[0].messages[2].results[0].code == "INTERRUPTED"
    assert script.requests[0].position.index == 1
    assert history == [Message.user("hi"), asked]


async def parked_history() -> tuple[Message, ...]:
    @tool(approval=True)
    async def act() -> str:
        return "done"

    result = await Agent(Script(calls(call("act"), call("add", a=1, b=2))), tools=[act, add]).run("act")
    assert result.parked
    return result.messages


async def test_the_result_of_a_parked_run_may_be_gone_on_with() -> None:
    script = Script(say("x"))
    await Agent(script).run("never mind", history=await parked_history())
    assert script.requests[0].messages[2].results[0].code == "INTERRUPTED"


async def test_the_result_of_a_parked_run_keeps_the_results_of_siblings() -> None:
    script = Script(say("x"))
    await Agent(script).run("never mind", history=await parked_history())
    assert script.requests[0].messages[2].results[1].content == "3"


# The reply.


async def test_a_reply_is_put_together_in_its_order() -> None:
    model = Raw(
        [
            ReasoningChunk(text="let me "),
            ReasoningChunk(text="see", block='{"sig":1}'),
            ReasoningChunk(block='{"redacted":2}'),
            ReasoningChunk(text="hm"),
            TextChunk(text=""),
            TextChunk(text="I "),
            TextChunk(text="look"),
            ReasoningChunk(text="wait"),
            ToolCallChunk(index=0, name="add", arguments='{"a":'),
            WholeCall(name="add", arguments='{"a":1,"b":2}', provider_id="call_1"),
            TextChunk(text="and"),
            WholeCall(name="add", arguments='{"a":3,"b":4}', provider_id="call_2"),
            TextChunk(text="done"),
            ReasoningChunk(text="really"),
            STOP,
        ],
        [TextChunk(text="3"), STOP],
    )
    result = await Agent(model, tools=[add]).run("1 + 2?")
    parts = result.messages[1].parts
    made = {"provider": "raw", "model": "m1"}
    assert parts[:6] == (
        Reasoning(text="let me see", block='{"sig":1}', **made),
        Reasoning(text="", block='{"redacted":2}', **made),
        Reasoning(text="hm", **made),
        Text(text="I look"),
        Reasoning(text="wait", **made),
        replace(parts[5], name="add", arguments='{"a":1,"b":2}', provider_id="call_1"),
    )
    assert parts[6:] == (
        Text(text="and"),
        replace(parts[7], name="add", arguments='{"a":3,"b":4}', provider_id="call_2"),
        Text(text="done"),
        Reasoning(text="really", **made),
    )


async def test_calls_have_ids_of_weft_s_own_whatever_the_provider_gives() -> None:
    step = [WholeCall(name="add", arguments='{"a":1,"b":2}', provider_id=given) for given in ("call_1", "call_1", "")]
    model = Raw([*step, STOP], [*step, STOP], [TextChunk(text="x"), STOP])
    result = await Agent(model, tools=[add]).run("hi")
    made = [part for message in result.messages for part in message.calls]
    assert len({part.id for part in made}) == 6
    assert [part.provider_id for part in made] == ["call_1", "call_1", ""] * 2
    assert [part.call for message in result.messages for part in message.results] == [part.id for part in made]


@pytest.mark.parametrize(("given", "kept"), [(7, "7"), ("a\ud800\x00", "a\ufffd\ufffd"), (None, None)])
async def test_the_provider_s_id_is_kept_as_text_whatever_it_is(given: Any, kept: str | None) -> None:
    model = Raw([WholeCall(name="add", arguments='{"a":1,"b":2}', provider_id=given), STOP], [STOP])
    (made,) = (await Agent(model, tools=[add]).run("hi")).messages[1].calls
    assert made.provider_id == kept


async def test_what_is_no_text_is_replaced_in_a_reply() -> None:
    model = Raw(
        [
            TextChunk(text="a\x00"),
            ReasoningChunk(text="\ud800", block="b"),
            WholeCall(name="\x00", arguments="\x00"),
            STOP,
        ],
        [TextChunk(text="x"), STOP],
    )
    text, thought, wanted = (await Agent(model).run("hi")).messages[1].parts
    assert isinstance(text, Text)
    assert isinstance(thought, Reasoning)
    assert isinstance(wanted, ToolCall)
    assert (text.text, thought.text, thought.block) == ("a\ufffd", "\ufffd", "b")
    assert (wanted.name, wanted.arguments) == ("\ufffd", "\ufffd")


@pytest.mark.parametrize("reason", ["length", "refusal", "filter", "other"])
async def test_a_result_says_why_the_reply_ended(reason: str) -> None:
    result = await Agent(Raw([TextChunk(text="x"), Finish(reason=reason)])).run("hi")
    assert (result.stop, result.finish) == ("answered", reason)


async def test_a_cut_reply_runs_none_of_its_calls() -> None:
    model = Raw(
        [WholeCall(name="add", arguments='{"a":1,"b":2}'), Finish(reason="length", usage=SPENT)],
        [TextChunk(text="x"), STOP],
    )
    result = await Agent(model, tools=[add]).run("hi")
    assert [part.code for part in result.messages[2].results] == ["NOT_RUN"]
    assert result.text == "x"


async def test_a_model_need_not_be_a_generator() -> None:
    class Plain(Raw):
        def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            events = iter([TextChunk(text="plain"), STOP])

            class Events:
                def __aiter__(self) -> Events:
                    return self

                async def __anext__(self) -> ModelEvent:
                    try:
                        return next(events)
                    except StopIteration:
                        raise StopAsyncIteration from None

            return Events()

    assert (await Agent(Plain()).run("hi")).text == "plain"


# Usage and limits.


async def test_usage_that_is_not_reported_is_counted_as_unknown() -> None:
    result = await Agent(Script(call("add", a=1, b=2), say("3", usage=None)), tools=[add]).run("hi")
    assert result.usage == Usage(input_tokens=10, output_tokens=5, unknown=1)


async def test_all_kinds_of_usage_are_summed() -> None:
    used = Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, reasoning_tokens=5)
    script = Script(calls(call("add", a=1, b=2), usage=used), say("3", usage=used))
    assert (await Agent(script, tools=[add]).run("hi")).usage == used + used


@pytest.mark.parametrize(("limits", "name"), [(Limits(steps=2), "steps"), (Limits(tokens=30), "tokens")])
async def test_a_limit_fails_the_run_with_what_was_done(limits: Limits, name: str) -> None:
    script = Script(*(call("add", a=1, b=step) for step in range(3)))
    with pytest.raises(LimitReached) as reached:
        await Agent(script, tools=[add], limits=limits).run("hi")
    error = reached.value
    assert (error.limit, error.code) == (name, "LIMIT")
    assert error.result is not None
    assert error.result.usage == Usage(input_tokens=20, output_tokens=10)
    assert [message.role for message in error.result.messages] == ["user", *2 * ["assistant", "tool"]]
    assert len(script.requests) == 2


@pytest.mark.parametrize("limits", [Limits(steps=2), Limits(tokens=16)])
async def test_a_step_that_ends_the_run_may_overshoot(limits: Limits) -> None:
    script = Script(call("add", a=1, b=2), say("3"))
    assert (await Agent(script, tools=[add], limits=limits).run("hi")).text == "3"


async def test_a_failed_run_may_be_gone_on_with() -> None:
    script = Script(call("add", a=1, b=2), say("3"))
    agent = Agent(script, tools=[add], limits=Limits(steps=1))
    with pytest.raises(LimitReached) as reached:
        await agent.run("hi")
    assert reached.value.result is not None
    assert (await agent.run("go on", history=reached.value.result.messages)).text == "3"


# A model that fails.


async def test_a_failed_model_call_keeps_the_provider_s_error_as_its_cause() -> None:
    broken = OSError("secret host")
    script = Script(call("add", a=1, b=2), say("half a sen").then_fail(broken), say("never"))
    with pytest.raises(ModelFailed) as failed:
        await Agent(script, tools=[add]).run("hi")
    error = failed.value
    assert error.__cause__ is broken
    assert (error.code, str(error)) == ("MODEL", "the model call failed (OSError)")
    assert error.result is not None
    assert [message.role for message in error.result.messages] == ["user", "assistant", "tool"]
    assert error.result.usage == SPENT + Usage(unknown=1)


async def test_a_model_error_tells_its_code_and_text() -> None:
    broken = ModelError("too many requests\x00", code="MODEL_RATE")
    with pytest.raises(ModelFailed) as failed:
        await Agent(Script(fail(broken))).run("hi")
    assert (failed.value.code, str(failed.value)) == ("MODEL_RATE", "too many requests\ufffd")
    assert failed.value.__cause__ is broken


@pytest.mark.parametrize("code", ["RATE", "LIMIT", "CHANGED"])
async def test_a_model_error_of_any_code_is_a_failed_model_call(code: str) -> None:
    broken = ModelError("too many requests", code=code)
    with pytest.raises(WeftError) as failed:
        await Agent(Script(fail(broken))).run("hi")
    assert type(failed.value) is ModelFailed
    assert failed.value.__cause__ is broken


@pytest.mark.parametrize(
    ("events", "code"),
    [
        pytest.param([TextChunk(text="half")], "MODEL_CUT", id="no finish"),
        pytest.param([], "MODEL_CUT", id="nothing"),
        pytest.param([TextChunk(text="x"), STOP, STOP], "MODEL_CONTRACT", id="two finishes"),
        pytest.param([STOP, TextChunk(text="more")], "MODEL_CONTRACT", id="a text after the finish"),
        pytest.param([STOP, WholeCall(name="add", arguments="{}")], "MODEL_CONTRACT", id="a call after the finish"),
        pytest.param([WholeCall(name="", arguments="{}"), STOP], "MODEL_CONTRACT", id="a call without a name"),
        pytest.param(["hello", STOP], "MODEL_CONTRACT", id="what is no event"),
        pytest.param([told(text=7), STOP], "MODEL_CONTRACT", id="a text that is none"),
        pytest.param([told(text=7, kind=ReasoningChunk), STOP], "MODEL_CONTRACT", id="a thought that is none"),
        pytest.param([told(block={}, kind=ReasoningChunk), STOP], "MODEL_CONTRACT", id="a block that is no text"),
        pytest.param(
            [told(name="add", arguments={}, kind=WholeCall), STOP], "MODEL_CONTRACT", id="arguments as a dict"
        ),
        pytest.param([told(index="0", kind=ToolCallChunk), STOP], "MODEL_CONTRACT", id="an index that is no number"),
        pytest.param([told(reason=None, kind=Finish)], "MODEL_CONTRACT", id="a finish without a reason"),
        pytest.param([told(reason="\ud800", kind=Finish)], "MODEL_CONTRACT", id="a reason that is half a character"),
        pytest.param([told(reason="stop", usage={}, kind=Finish)], "MODEL_CONTRACT", id="usage as a dict"),
        pytest.param([told(reason="stop", by="me", kind=Finish)], "MODEL_CONTRACT", id="a finish by nobody"),
        pytest.param([told(reason="stop", by=ODD_INFO, kind=Finish)], "MODEL_CONTRACT", id="a finish by a number"),
        pytest.param([told(block="\ud800", kind=ReasoningChunk), STOP], "MODEL_CONTRACT", id="half a character"),
        pytest.param([told(block="\x00", kind=ReasoningChunk), STOP], "MODEL_CONTRACT", id="a block with U+0000"),
        pytest.param([spent(input_tokens="10")], "MODEL_CONTRACT", id="usage as texts"),
        pytest.param([spent(output_tokens=1.5)], "MODEL_CONTRACT", id="usage in parts"),
        pytest.param([spent(cache_read_tokens=None)], "MODEL_CONTRACT", id="usage that is not said"),
        pytest.param([spent(reasoning_tokens=-1)], "MODEL_CONTRACT", id="usage below zero"),
    ],
)
async def test_a_stream_that_breaks_its_contract_is_a_failed_model_call(events: list[ModelEvent], code: str) -> None:
    model = Raw(events)
    with pytest.raises(ModelFailed) as failed:
        await Agent(model, tools=[add]).run("hi")
    assert failed.value.code == code
    assert failed.value.result is not None
    assert failed.value.result.messages == (Message.user("hi"),)
    assert model.closed == 1


async def test_events_and_texts_of_classes_of_the_model_s_own_are_taken() -> None:
    class Piece(str):
        __slots__ = ()

    class Chunk(TextChunk):
        __slots__ = ()

    model = Raw([Chunk(text="I "), TextChunk(text=Piece("look")), STOP])
    assert (await Agent(model).run("hi")).text == "I look"


@pytest.mark.parametrize("place", ["info", "stream"])
async def test_a_model_that_breaks_at_once_is_a_failed_model_call(place: str) -> None:
    class Broken(Raw):
        def info(self) -> ModelInfo:
            if place == "info":
                raise OSError("no")
            return super().info()

        def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            raise OSError("no")

    with pytest.raises(ModelFailed) as failed:
        await Agent(Broken()).run("hi")
    assert isinstance(failed.value.__cause__, OSError)


class Unknown(Raw):
    """A model whose `info` gives this, or fails with it."""

    def __init__(self, *given: Any, replies: Sequence[Sequence[ModelEvent]] = ()) -> None:
        super().__init__(*replies)
        self.given = list(given)

    def info(self) -> ModelInfo:
        given = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(given, Exception):
            raise given
        told: ModelInfo = given
        return told


ODD_INFOS = [
    None,
    "raw:m1",
    ODD_INFO,
    replace(GOOD_INFO, output="xml"),  # type: ignore[arg-type]
    replace(GOOD_INFO, model="\ud800"),
    replace(GOOD_INFO, context_window="200k"),  # type: ignore[arg-type]
    replace(GOOD_INFO, context_window=0),
]


@pytest.mark.parametrize("kind", [None, int])
@pytest.mark.parametrize("given", [*ODD_INFOS, OSError("no")])
async def test_a_model_that_cannot_say_who_it_is_is_a_failed_model_call(given: object, kind: Any) -> None:
    model = Unknown(given)
    with pytest.raises(ModelFailed) as failed:
        await Agent(model, output=kind).run("hi")
    assert failed.value.code == ("MODEL" if isinstance(given, OSError) else "MODEL_CONTRACT")
    assert failed.value.result is not None
    assert failed.value.result.messages == (Message.user("hi"),)
    assert model.requests == []
    async with Agent(model, output=kind).stream("hi") as run:
        with pytest.raises(ModelFailed):
            await run.result()


async def test_a_model_that_can_say_who_it_is_too_late_is_asked_nothing() -> None:
    broken = OSError("no")
    model = Unknown(broken, replace(GOOD_INFO, output="tool"))
    with pytest.raises(ModelFailed) as failed:
        await Agent(model, output=int).run("hi")
    assert failed.value.__cause__ is broken
    assert model.requests == []


# Watching.


async def test_events_come_in_order() -> None:
    model = Raw(
        [
            ReasoningChunk(text="hm"),
            ReasoningChunk(),
            TextChunk(text=""),
            TextChunk(text="I look"),
            ToolCallChunk(index=0, name="add", arguments="{}"),
            WholeCall(name="add", arguments='{"a":1,"b":2}'),
            WholeCall(name="nope", arguments="{}"),
            STOP,
        ],
        [TextChunk(text="it is "), TextChunk(text="3"), STOP],
    )
    async with Agent(model, tools=[add]).stream("1 + 2?") as run:
        events = [event async for event in run]
        result = await run.result()
    assert [event.kind for event in events] == [
        "run_started",
        "step_started",
        "reasoning_delta",
        "text_delta",
        "arguments_delta",
        "step_finished",
        "tool_finished",
        "tool_started",
        "tool_finished",
        "step_started",
        "text_delta",
        "text_delta",
        "step_finished",
        "run_finished",
    ]
    assert {event.run for event in events} == {result.run}
    tools = [event for event in events if isinstance(event, ToolStarted | ToolFinished)]
    assert [event.seq for event in tools] == [0, 1, 2]
    assert events[-1] == RunFinished(run=result.run, stop="answered", text="it is 3", usage=result.usage)
    assert events[5].message == result.messages[1]


async def test_an_event_is_there_as_soon_as_it_happens() -> None:
    release = asyncio.Event()
    model = Raw([])
    model.stream = _in_two_halves(release)  # type: ignore[method-assign]  # a stream that waits in its middle
    async with Agent(model).stream("hi") as run:
        live = aiter(run)
        seen = [(await anext(live)).kind for _ in range(3)]
        assert seen == ["run_started", "step_started", "text_delta"]
        release.set()
        assert [event.kind async for event in live][-1] == "run_finished"


def _in_two_halves(release: asyncio.Event) -> Callable[[ModelRequest], AsyncIterator[ModelEvent]]:
    async def stream(request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextChunk(text="one")
        await release.wait()
        yield TextChunk(text="two")
        yield STOP

    return stream


async def test_an_iterator_goes_on_where_it_was() -> None:
    async with Agent(Script(say("x"))).stream("hi") as run:
        live = aiter(run)
        first = await anext(live)
        assert first not in [event async for event in live]


async def test_several_consumers_see_the_same_events_live_or_late() -> None:
    gate = asyncio.Event()
    script = Script(call("add", a=1, b=2), hold(gate, then=say("3")))
    async with Agent(script, tools=[add]).stream("hi") as run:
        live = [asyncio.ensure_future(_collect(run)) for _ in range(2)]
        await settle()
        late = asyncio.ensure_future(_collect(run))
        gate.set()
        seen = [await task for task in (*live, late)]
        await run.result()
        seen.append([event async for event in run])
    seen.append([event async for event in run])
    assert seen[0]
    assert seen == [seen[0]] * 5


async def _collect(run: Any) -> list[Any]:
    return [event async for event in run]


async def test_a_consumer_that_lags_does_not_hold_up_the_run() -> None:
    async with Agent(Script(call("add", a=1, b=2), say("3")), tools=[add]).stream("hi") as run:
        slow = aiter(run)
        assert (await anext(slow)).kind == "run_started"
        result = await run.result()
        assert result.text == "3"
        assert [event.kind async for event in slow][-1] == "run_finished"


async def test_a_consumer_that_is_cancelled_leaves_the_others() -> None:
    gate = asyncio.Event()
    async with Agent(Script(hold(gate, then=say("x")))).stream("hi") as run:
        one, two = (asyncio.ensure_future(_collect(run)) for _ in range(2))
        await settle()
        one.cancel()
        await asyncio.wait([one])
        gate.set()
        assert (await two)[-1].kind == "run_finished"


async def test_leaving_early_cancels_the_run_and_waits_for_its_cleanup() -> None:
    body = Hanging()
    async with Agent(Script(call("hang"), say("never")), tools=[body.tool()]).stream("hi") as run:
        async for event in run:
            if isinstance(event, ToolStarted):
                break
        await body.started.wait()
    assert body.cleaned == 1
    with pytest.raises(TurnCancelled):
        await _collect(run)


async def test_an_error_of_the_consumer_cancels_the_run_and_leaves_as_itself() -> None:
    body = Hanging()

    async def consume() -> None:
        async with Agent(Script(call("hang")), tools=[body.tool()]).stream("hi"):
            await body.started.wait()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await consume()
    assert body.cleaned == 1


async def test_leaving_at_once_does_nothing() -> None:
    script = Script(say("x"))
    async with Agent(script).stream("hi"):
        pass
    assert script.requests == []


async def test_the_result_of_a_stream_that_was_left_is_a_cancelled_turn() -> None:
    async with Agent(Hanging()).stream("hi") as run:
        await settle()
    task = asyncio.ensure_future(run.result())
    await asyncio.wait([task])
    assert not task.cancelled()
    assert isinstance(task.exception(), TurnCancelled)


async def test_a_failure_is_raised_by_the_result() -> None:
    broken = OSError("no")
    async with Agent(Script(fail(broken))).stream("hi") as run:
        with pytest.raises(ModelFailed) as failed:
            await run.result()
        with pytest.raises(ModelFailed):
            await run.result()
    assert failed.value.__cause__ is broken


async def test_a_failure_tells_no_run_finished() -> None:
    kinds = []
    async with Agent(Script(fail(OSError("no")))).stream("hi") as run:
        with pytest.raises(ModelFailed):
            await run.result()
    stream = aiter(run)
    for _ in range(2):
        kinds.append((await anext(stream)).kind)
    assert kinds == ["run_started", "step_started"]


async def test_iterating_a_failed_run_ends_by_raising() -> None:
    async with Agent(Script(fail(OSError("no")))).stream("hi") as run:
        with pytest.raises(ModelFailed):
            await _collect(run)


async def test_a_stream_must_be_entered() -> None:
    run = Agent(Script(say("x"))).stream("hi")
    with pytest.raises(WrongCall, match="async with"):
        await run.result()


async def test_a_stream_is_entered_once() -> None:
    script = Script(say("a"))
    stream = Agent(script).stream("hi")
    async with stream as run:
        assert (await run.result()).text == "a"
        with pytest.raises(WrongCall, match="entered once"):
            await stream.__aenter__()
    with pytest.raises(WrongCall, match="entered once"):
        await stream.__aenter__()
    assert len(script.requests) == 1


async def test_a_stream_that_was_never_entered_may_be_left() -> None:
    run = Agent(Script(say("x"))).stream("hi")
    await run.__aexit__(None, None, None)


async def test_who_waits_for_a_result_may_be_cancelled_and_the_run_goes_on() -> None:
    gate = asyncio.Event()
    async with Agent(Script(hold(gate, then=say("x")))).stream("hi") as run:
        waits = asyncio.ensure_future(run.result())
        await settle()
        waits.cancel()
        await asyncio.wait([waits])
        assert waits.cancelled()
        gate.set()
        assert (await run.result()).text == "x"


async def test_events_are_json() -> None:
    @tool(approval=True)
    async def act(x: int) -> str:
        return "done"

    script = Script(calls(call("add", a=1, b=2), call("nope"), text="look"), call("act", x=1))
    async with Agent(script, tools=[add, act]).stream("hi") as run:
        events = await _collect(run)
    assert events[-1].kind == "parked"
    assert [event_adapter().validate_json(event_adapter().dump_json(event)) for event in events] == events


async def test_deltas_are_json_whatever_the_model_writes() -> None:
    model = Raw([TextChunk(text="\ud800"), ReasoningChunk(text="\ud800"), ToolCallChunk(index=0, arguments="\ud800")])
    model.replies[0] = [*model.replies[0], STOP]
    async with Agent(model).stream("hi") as run:
        events = await _collect(run)
    assert len([event_adapter().dump_json(event) for event in events]) == len(events)


# Without a loop.


def test_run_sync_gives_the_same_result() -> None:
    result = Agent(Script(call("add", a=1, b=2), say("3")), tools=[add]).run_sync("1 + 2?")
    assert (result.text, result.stop) == ("3", "answered")


def test_run_sync_may_be_called_again_and_again_with_one_agent_and_its_plain_tools() -> None:
    threads: list[int] = []

    @tool(effect="none")
    def double(x: int) -> int:
        threads.append(threading.get_ident())
        return 2 * x

    agent = Agent(Script(*(step for x in range(3) for step in (call("double", x=x), say(f"{2 * x}")))), tools=[double])
    results = [agent.run_sync("double it") for _ in range(3)]
    assert [result.text for result in results] == ["0", "2", "4"]
    assert [result.messages[2].results[0].content for result in results] == ["0", "2", "4"]
    assert len({result.run for result in results}) == 3
    assert threading.get_ident() not in threads


def test_run_sync_raises_as_run_does() -> None:
    with pytest.raises(LimitReached):
        Agent(Script(call("add", a=1, b=2)), tools=[add], limits=Limits(steps=1)).run_sync("1 + 2?")


@pytest.mark.parametrize("model", [None, 3, Script, object()], ids=str)
def test_what_is_no_model_is_refused_when_the_agent_is_made(model: Any) -> None:
    with pytest.raises(WrongCall, match=r"agent 'desk': .* is no model"):
        Agent(model, name="desk")


def test_one_string_is_no_set_of_permissions() -> None:
    with pytest.raises(WrongCall, match=r"\{'payments'\}"):
        Agent(Script(), allow="payments")


def test_a_failure_of_run_sync_has_no_other_failure_behind_it() -> None:
    with pytest.raises(ModelFailed) as failed:
        Agent(Script(fail(ModelError("no")))).run_sync("hi")
    cause = failed.value.__cause__
    assert isinstance(cause, ModelError)
    assert cause.__context__ is None


async def test_run_sync_refuses_inside_a_loop_before_any_work() -> None:
    script = Script(say("x"))
    with pytest.raises(InsideLoop, match=r"await agent\.run"):
        Agent(script).run_sync("hi")
    assert script.requests == []


# Cancelling from outside.


async def cancelled(task: asyncio.Task[Any], started: asyncio.Event) -> None:
    """Cancel it once it has started; it ends as cancelled, and not before it has cleaned up."""
    await started.wait()
    task.cancel("by the test")
    await asyncio.wait([task])
    assert task.cancelled()


async def test_cancelling_during_a_model_call_closes_its_stream() -> None:
    model = Hanging()
    await cancelled(asyncio.ensure_future(Agent(model).run("hi")), model.started)
    assert model.cleaned == 1


async def test_cancelling_during_a_tool_lets_it_clean_up() -> None:
    body = Hanging()
    agent = Agent(Script(call("hang"), say("never")), tools=[body.tool()])
    await cancelled(asyncio.ensure_future(agent.run("hi")), body.started)
    assert body.cleaned == 1


async def test_cancelling_during_several_tools_lets_each_clean_up() -> None:
    body = Hanging()
    agent = Agent(Script(calls(*(call("hang", x=x) for x in range(6))), say("never")), tools=[body.tool()])
    await cancelled(asyncio.ensure_future(agent.run("hi")), body.started)
    assert body.cleaned == 4


async def test_cancelling_leaves_a_plain_body_behind() -> None:
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def block() -> str:
        loop.call_soon_threadsafe(started.set)
        assert release.wait(STALLED)
        return "late"

    script = Script(call("block"), say("never"))
    await cancelled(asyncio.ensure_future(Agent(script, tools=[block]).run("hi")), started)
    release.set()
    while any(worker.abandoned for worker in workers()):
        await settle()
    assert len(script.requests) == 1


@pytest.mark.parametrize("place", ["instructions", "approval"])
async def test_cancelling_reaches_every_function_of_the_application(place: str) -> None:
    body = Hanging()

    async def instructions(ctx: Context) -> str:
        await body.wait()
        return ""

    async def approval(a: int, b: int) -> bool:
        await body.wait()
        return True

    asks = tool(name="add", approval=approval)(add.function)
    agent = Agent(
        Script(call("add", a=1, b=2)),
        tools=[asks if place == "approval" else add],
        instructions=instructions if place == "instructions" else None,
    )
    await cancelled(asyncio.ensure_future(agent.run("hi")), body.started)
    assert body.cleaned == 1


async def test_a_task_that_was_cancelled_before_may_still_run_an_agent() -> None:
    async def host() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            script = Script(calls(call("add", a=1, b=2), call("add", a=3, b=4)), say("cleaned up"))
            return (await Agent(script, tools=[add]).run("clean up")).text
        raise AssertionError("not reached")

    task = asyncio.ensure_future(host())
    await settle()
    task.cancel()
    assert await task == "cleaned up"


async def test_a_task_that_was_cancelled_before_may_be_cancelled_again() -> None:
    body = Hanging()

    async def host() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await Agent(Script(call("hang")), tools=[body.tool()]).run("clean up")

    task = asyncio.ensure_future(host())
    await settle()
    task.cancel()
    await cancelled(task, body.started)
    assert body.cleaned == 1


def swallower(started: asyncio.Event) -> Tool[Any]:
    @tool
    async def swallow(x: int = 0) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "as if nothing had happened"
        return "never"

    return swallow


async def test_bodies_that_swallow_a_cancellation_do_not_save_the_run() -> None:
    started = asyncio.Event()
    script = Script(calls(call("swallow"), call("swallow")), say("never"))
    agent = Agent(script, tools=[swallower(started)])
    await cancelled(asyncio.ensure_future(agent.run("hi")), started)
    assert len(script.requests) == 1


async def test_a_body_alone_that_swallows_a_cancellation_does_not_save_the_run() -> None:
    started = asyncio.Event()
    script = Script(call("swallow"), say("never"))
    agent = Agent(script, tools=[swallower(started)])
    await cancelled(asyncio.ensure_future(agent.run("hi")), started)
    assert len(script.requests) == 1


async def test_a_model_that_turns_a_cancellation_into_an_error_does_not_change_it() -> None:
    class Turning(Hanging):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            try:
                await self.wait()
            except asyncio.CancelledError:
                raise OSError("the connection was closed") from None
            yield STOP

    model = Turning()
    await cancelled(asyncio.ensure_future(Agent(model).run("hi")), model.started)


async def test_what_a_body_among_others_must_not_contain_leaves_as_itself() -> None:
    class Severed(BaseException):
        pass

    @tool
    async def sever(x: int) -> None:
        raise Severed

    agent = Agent(Script(calls(call("sever", x=1), call("sever", x=2))), tools=[sever])
    with pytest.raises(BaseException) as raised:  # noqa: PT011  # which one it is is the promise
        await agent.run("hi")
    assert isinstance(raised.value, Severed)


# Interrupting from inside, as a session does.


@pytest.mark.parametrize("ended", [None, Ended(outcome="cancelled")])
async def test_a_run_that_was_stopped_from_inside_is_a_cancelled_turn(ended: Ended | None) -> None:
    result = await Agent(Script(say("x"))).run("hi")
    with pytest.raises(TurnCancelled):
        raise_for(ended, result)


def driven(loop: RunLoop) -> asyncio.Task[Ended | None]:
    return asyncio.ensure_future(loop.drive(Begin()))


async def test_an_interrupted_tool_cleans_up_and_its_call_gets_a_result() -> None:
    body = Hanging()
    loop = Agent(Script(call("hang"), say("never")), tools=[body.tool()])._loop("hi")
    task = driven(loop)
    await body.started.wait()
    loop.interrupt("cancel")
    ended = await task
    assert ended == Ended(outcome="cancelled")
    assert body.cleaned == 1
    assert [part.code for part in loop.history()[2].results] == ["CANCELLED"]
    assert "may have happened" in loop.history()[2].results[0].content
    assert loop.state.usage == SPENT


@pytest.mark.parametrize("alone", [True, False])
async def test_a_body_that_swallows_an_interrupt_does_not_make_a_success(*, alone: bool) -> None:
    started = asyncio.Event()
    wanted = [call("swallow")] if alone else [call("swallow"), call("swallow")]
    script = Script(calls(*wanted), say("never"))
    loop = Agent(script, tools=[swallower(started)])._loop("hi")
    task = driven(loop)
    await started.wait()
    loop.interrupt("cancel")
    ended = await task
    assert ended is not None
    assert ended.outcome == "cancelled"
    assert len(script.requests) == 1


async def test_an_interrupted_model_call_counts_as_unknown_usage() -> None:
    model = Hanging()
    loop = Agent(model)._loop("hi")
    task = driven(loop)
    await model.started.wait()
    loop.interrupt("cancel")
    assert await task == Ended(outcome="cancelled", usage=Usage(unknown=1))
    assert model.cleaned == 1
    assert list(loop.history()) == [Message.user("hi")]


@pytest.mark.parametrize("stop", ["revoke", "leave"])
async def test_a_run_that_is_taken_away_stops_without_an_end(stop: Any) -> None:
    body = Hanging()
    loop = Agent(Script(call("hang"), say("never")), tools=[body.tool()])._loop("hi")
    task = driven(loop)
    await body.started.wait()
    loop.interrupt(stop)
    assert await task is None
    assert body.cleaned == 1
    assert len(loop.history()) == 2


async def test_the_first_interrupt_counts_and_a_late_one_changes_nothing() -> None:
    body = Hanging()
    loop = Agent(Script(call("hang")), tools=[body.tool()])._loop("hi")
    task = driven(loop)
    await body.started.wait()
    loop.interrupt("cancel")
    loop.interrupt("revoke")
    ended = await task
    loop.interrupt("leave")
    await settle()
    assert ended is not None
    assert ended.outcome == "cancelled"


async def test_an_interrupt_and_a_cancellation_leave_as_a_cancellation() -> None:
    body = Hanging()
    loop = Agent(Script(call("hang")), tools=[body.tool()])._loop("hi")
    task = driven(loop)
    await body.started.wait()
    loop.interrupt("cancel")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_an_interrupt_before_the_start_does_not_reach_the_caller() -> None:
    loop = Agent(Script(say("never")))._loop("hi")

    async def host() -> Ended | None:
        loop.interrupt("cancel")
        ended = await loop.drive(Begin())
        await asyncio.sleep(0)
        return ended

    task = asyncio.ensure_future(host())
    await asyncio.wait([task])
    assert not task.cancelled()


async def test_a_model_call_that_was_never_made_is_not_counted() -> None:
    script = Script(say("never"))
    loop = Agent(script)._loop("hi")
    loop.interrupt("cancel")
    task = driven(loop)
    await asyncio.wait([task])
    assert script.requests == []
    assert loop.state.usage == Usage()


# Records that take their time, as a session's do.


class Journal:
    """Keeps what is recorded until it is acknowledged, or refused."""

    thread: str | None = "t"
    durable = True
    held = ("t",)

    def __init__(self) -> None:
        self.loop: RunLoop
        self.on_the_way: list[Record] = []
        self.delegated: list[str] = []
        self.acts = True

    def record(self, record: Record) -> None:
        self.on_the_way.append(record)

    def delegate(self, plan: Ready) -> None:
        self.delegated.append(plan.call.id)

    def late(self, call: ToolCall, result: object) -> None:
        raise AssertionError("nothing comes too late here")

    def may_act(self) -> bool:
        return self.acts

    def idempotency_key(self, call: str) -> str:
        return f"key of {call}"

    async def acknowledge(self) -> Record:
        await settle()
        record = self.on_the_way.pop(0)
        self.loop.feed(Recorded())
        await settle()
        return record

    async def refuse(self, *news: Any, cancel: bool = False) -> list[Record]:
        """All records on their way are void; gives those that take their place."""
        await settle()
        self.on_the_way.clear()
        self.loop.back(*news, cancel="cancel" if cancel else None)
        await settle()
        return self.on_the_way


def journaled(
    agent: Agent[None], *said: Message, replies: int = 0, events: EventLog | None = None
) -> tuple[RunLoop, Journal]:
    """A run that has got this far, and its journal."""
    journal = Journal()
    setup = agent._setup(deps=None)
    transcript = Transcript([Message.user("hi")])
    for message in said:
        transcript.say(message)
    loop = RunLoop(
        setup,
        State(run="r", limits=agent.limits, rules=setup.rules),
        transcript,
        base=(),
        base_length=0,
        replies=replies,
        recorder=journal,
        clock=SystemClock(),
        ids=SystemIds(),
        events=events,
        slot=Slot(),
    )
    journal.loop = loop
    return loop, journal


async def test_no_body_starts_before_its_start_is_recorded() -> None:
    entered: list[int] = []

    @tool
    async def act(x: int) -> int:
        entered.append(x)
        return x

    script = Script(calls(call("act", x=1), call("act", x=2)), say("end"))
    loop, journal = journaled(Agent(script, tools=[act]))
    task = driven(loop)
    await settle()
    assert entered == []
    assert [type(fact).__name__ for fact in (await journal.acknowledge()).facts] == ["Said", "Started"]
    assert entered == [1, 2]
    assert len(script.requests) == 2, "the model is called while the results are on their way"
    assert len(loop.history()) == 3, "its reply is not acted on before they are recorded"
    for _ in range(2):
        await journal.acknowledge()
    assert not task.done()
    await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "answered"


async def test_a_body_does_not_start_once_the_right_to_act_is_gone() -> None:
    entered: list[int] = []

    @tool
    async def act(x: int) -> None:
        entered.append(x)

    loop, journal = journaled(Agent(Script(call("act", x=1)), tools=[act]))
    task = driven(loop)
    journal.acts = False
    await journal.acknowledge()
    assert entered == []
    loop.interrupt("revoke")
    assert await task is None


async def test_a_refused_reply_is_decided_again_as_if_for_the_first_time() -> None:
    script = Script(call("add", a=1, b=2), say("3"))
    loop, journal = journaled(Agent(script, tools=[add]))
    task = driven(loop)
    await settle()
    (first,) = journal.on_the_way
    assert await journal.refuse() == [first]
    for _ in range(3):
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "answered"
    assert [request.position.index for request in script.requests] == [0, 1]
    assert [message.role for message in loop.history()] == ["user", "assistant", "tool", "assistant"]
    assert loop.state.usage == SPENT + SPENT


async def test_a_refused_result_is_recorded_again_and_its_body_not_run_again() -> None:
    entered: list[int] = []

    @tool
    async def act(x: int) -> int:
        entered.append(x)
        return x

    loop, journal = journaled(Agent(Script(calls(call("act", x=1), call("act", x=2)), say("end")), tools=[act]))
    task = driven(loop)
    await journal.acknowledge()
    before = list(journal.on_the_way)
    assert await journal.refuse() == before
    for _ in range(3):
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "answered"
    assert entered == [1, 2]


async def test_records_may_be_refused_again_and_again() -> None:
    loop, journal = journaled(Agent(Script(calls(*(call("add", a=1, b=b) for b in range(3))), say("end")), tools=[add]))
    task = driven(loop)
    await journal.acknowledge()
    await journal.acknowledge()
    expected = list(journal.on_the_way)
    assert len(expected) == 2
    for _ in range(3):
        assert await journal.refuse() == expected
    task.cancel()
    await asyncio.wait([task])


async def test_a_reply_is_dropped_where_its_record_was_refused_and_the_run_is_cancelled() -> None:
    loop, journal = journaled(Agent(Script(call("add", a=1, b=2)), tools=[add]))
    task = driven(loop)
    (record,) = await journal.refuse(cancel=True)
    assert record.facts == (Ended(outcome="cancelled", usage=Usage(unknown=1)),)
    await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "cancelled"
    assert list(loop.history()) == [Message.user("hi")]


async def test_a_reply_that_was_held_is_dropped_as_well() -> None:
    loop, journal = journaled(Agent(Script(call("add", a=1, b=2), say("late")), tools=[add]))
    task = driven(loop)
    await journal.acknowledge()
    await journal.acknowledge()
    assert [type(fact).__name__ for fact in journal.on_the_way[0].facts] == ["Said", "Ended"]
    records = await journal.refuse(cancel=True)
    task.cancel()
    await asyncio.wait([task])
    facts = [fact for record in records for fact in record.facts]
    assert facts == [Ended(outcome="cancelled", usage=Usage(unknown=1))]


async def test_a_park_stays_where_another_child_goes_on() -> None:
    ask = Delegation(Agent(Script())).tool("ask")
    script = Script(calls(call("ask", prompt="x"), call("ask", prompt="y")), say("end"))
    loop, journal = journaled(Agent(script, tools=[ask]))
    task = driven(loop)
    await journal.acknowledge()
    one, other = journal.delegated
    loop.feed(CallParked(call=one))
    loop.feed(CallParked(call=other))
    finished = CallFinished(result=ToolResult(call=one, content="42"), source="receipt")
    records = await journal.refuse(finished)
    parked = Ended(outcome="parked", open=(other,))
    facts = [fact for record in records for fact in record.facts]
    assert facts == [Finished(result=finished.result, source="receipt", attempt=1), parked]
    while journal.on_the_way:
        await journal.acknowledge()
    assert (await task) == parked


async def test_news_of_a_parked_child_are_not_lost_where_a_sibling_s_result_was_refused() -> None:
    gate = asyncio.Event()

    @tool(effect="none")
    async def work() -> str:
        await gate.wait()
        return "done"

    ask = Delegation(Agent(Script())).tool("ask")
    script = Script(calls(call("ask", prompt="x"), call("work")), say("end"))
    loop, journal = journaled(Agent(script, tools=[ask, work]))
    task = driven(loop)
    await journal.acknowledge()
    (asked,) = journal.delegated
    loop.feed(CallParked(call=asked))
    gate.set()
    records = await journal.refuse(CallFinished(result=ToolResult(call=asked, content="42"), source="receipt"))
    kinds = [type(fact).__name__ for record in records for fact in record.facts]
    task.cancel()
    await asyncio.wait([task])
    assert kinds == ["Finished", "Finished"]


@pytest.mark.parametrize("news", ["finished", "resumed, then finished"])
async def test_a_park_is_dropped_where_its_record_was_refused_and_the_child_goes_on(news: str) -> None:
    ask = Delegation(Agent(Script())).tool("ask")
    loop, journal = journaled(Agent(Script(call("ask", prompt="x"), say("end")), tools=[ask]))
    task = driven(loop)
    await journal.acknowledge()
    (delegated,) = journal.delegated
    assert loop.expects(delegated)
    assert loop.call(delegated).name == "ask"
    loop.feed(CallParked(call=delegated))
    assert not loop.expects(delegated)
    finished = CallFinished(result=ToolResult(call=delegated, content="42"), source="receipt")
    if news == "finished":
        await journal.refuse(finished)
    else:
        assert await journal.refuse(CallResumed(call=delegated)) == []
        loop.feed(finished)
    for _ in range(2):
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "answered"
    assert loop.history()[2].results == (finished.result,)


async def test_a_park_is_dropped_where_its_record_was_refused_and_the_run_is_cancelled() -> None:
    ask = Delegation(Agent(Script())).tool("ask")
    loop, journal = journaled(Agent(Script(call("ask", prompt="x")), tools=[ask]))
    task = driven(loop)
    await journal.acknowledge()
    loop.feed(CallParked(call=journal.delegated[0]))
    (record,) = await journal.refuse(cancel=True)
    assert [type(fact).__name__ for fact in record.facts] == ["Finished", "Ended"]
    assert record.facts[1] == Ended(outcome="cancelled")
    await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "cancelled"


async def test_news_without_a_refused_record_are_just_fed() -> None:
    ask = Delegation(Agent(Script())).tool("ask")
    loop, journal = journaled(Agent(Script(call("ask", prompt="x"), say("end")), tools=[ask]))
    task = driven(loop)
    await journal.acknowledge()
    finished = CallFinished(result=ToolResult(call=journal.delegated[0], content="42"), source="receipt")
    (record,) = await journal.refuse(finished)
    assert record.facts == (Finished(result=finished.result, source="receipt", attempt=1),)
    for _ in range(2):
        await journal.acknowledge()
    assert await task is not None


async def test_events_are_not_told_again_when_it_is_decided_again() -> None:
    agent = Agent(Script(call("add", a=1, b=2), say("3")), tools=[add])
    log = EventLog()
    loop, journal = journaled(agent, events=log)
    async with RunStream(loop, log) as run:
        await journal.refuse()
        for _ in range(3):
            await journal.acknowledge()
        events = await _collect(run)
    kinds = [event.kind for event in events]
    assert kinds.count("step_finished") == 2
    assert kinds.count("run_finished") == 1


async def test_an_open_call_goes_on_where_it_was() -> None:
    wanted = ToolCall(id="a", name="add", arguments='{"a":1,"b":2}')
    said = Message(role="assistant", parts=(wanted,))
    loop, journal = journaled(Agent(Script(say("never"), say("3")), tools=[add]), said, replies=1)
    plan = await judge(wanted, {"add": add}, None)
    task = asyncio.ensure_future(loop.drive(Begin(open=(OpenCall(plan=plan, started=1),))))
    (started,) = (await journal.acknowledge()).facts
    assert isinstance(started, Started)
    assert started.starts[0].attempt == 2
    await journal.acknowledge()
    await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "answered"
    assert loop.history()[2].results == (ToolResult(call="a", content="3"),)


# The agent, a value.


async def test_replace_gives_a_changed_copy() -> None:
    agent = Agent(Script(say("a")), name="one", instructions="Be brief.", tools=[add], limits=Limits(steps=3))
    other = agent.replace(name="two", tools=[], model=Script(say("b")))
    assert (other.name, other.tools, other.instructions, other.limits) == ("two", (), "Be brief.", Limits(steps=3))
    assert (agent.name, agent.tools) == ("one", (add,))
    assert [(await kind.run("hi")).text for kind in (agent, other)] == ["a", "b"]


def test_replace_keeps_what_it_is_not_told_to_change() -> None:
    def instructions(ctx: Context[Shop]) -> str:
        return ""

    agent = Agent(
        Script(),
        name="one",
        instructions=instructions,
        deps=Shop,
        tools=[add],
        limits=Limits(tokens=9),
        settings=Settings(max_tokens=3),
        allow={"x"},
    )
    copy = agent.replace()
    assert copy is not agent
    for name in ("model", "name", "instructions", "deps", "tools", "limits", "settings", "allow"):
        assert getattr(copy, name) == getattr(agent, name)


def test_replace_refuses_what_an_agent_does_not_have() -> None:
    with pytest.raises(TypeError, match="colour"):
        Agent(Script()).replace(colour="red")


def test_an_agent_shows_its_name() -> None:
    assert repr(Agent(Script(), name="desk")) == "Agent('desk')"


async def test_a_model_may_be_put_in_an_agent_s_place_by_its_name() -> None:
    other = Script(say("other"), say("again"))
    desk, clerk = Agent(Script(say("desk")), name="desk"), Agent(Script(say("own")), name="clerk")
    with override({"desk": other}):
        assert (await desk.run("hi")).text == "other"
        assert (await clerk.run("hi")).text == "own"
        assert (await desk.run("hi", model=Script())).text == "again"
    assert (await desk.run("hi")).text == "desk"


class Shop:
    pass


class Branch(Shop):
    pass


class Sells(Protocol):
    def sell(self) -> None: ...


class Config(TypedDict):
    a: int


@pytest.mark.parametrize("deps", [None, "text", Shop])
async def test_deps_of_another_type_are_refused_before_any_work(deps: Any) -> None:
    script = Script(say("x"))
    agent = Agent(script, name="desk", deps=Shop)
    with pytest.raises(WrongCall, match=r"agent 'desk' needs deps=Shop"):
        await agent.run("hi", deps=deps)
    with pytest.raises(WrongCall):
        agent.stream("hi", deps=deps)
    assert script.requests == []


@pytest.mark.parametrize(
    ("kind", "deps"),
    [
        (Shop, Shop()),
        (Shop, Branch()),
        (None, "anything"),
        (dict[str, int], {"a": 1}),
        (Sells, object()),
        (Config, {"a": 1}),
    ],
)
async def test_deps_that_fit_or_cannot_be_checked_are_taken(kind: Any, deps: Any) -> None:
    assert (await Agent(Script(say("x")), deps=kind).run("hi", deps=deps)).text == "x"


@pytest.mark.parametrize("name", ["nobody:gpt", "gpt-5", "openai:", "", ":gpt"])
async def test_a_model_that_no_adapter_fits_is_refused_when_it_is_used(name: str) -> None:
    agent = Agent(name)
    with pytest.raises(WrongCall, match=r"openai:"):
        await agent.run("hi")
    with pytest.raises(WrongCall):
        agent.stream("hi")
    with pytest.raises(WrongCall):
        await Agent(Script(say("x"))).run("hi", model=name)


def test_a_model_named_by_a_string_is_looked_up_once() -> None:
    pytest.importorskip("openai")
    agent = Agent("openai:gpt-5")
    assert agent._resolved() is agent._resolved()
    assert agent._resolved("openai:gpt-5-mini") is not agent._resolved()
    assert agent._resolved().info().model == "gpt-5"


def test_a_run_s_own_model_named_by_a_string_keeps_its_clients() -> None:
    pytest.importorskip("openai")
    agent = Agent("openai:gpt-5")
    assert agent._resolved("openai:gpt-5-mini") is agent._resolved("openai:gpt-5-mini")
    copy = agent.replace(instructions="Be brief.")
    assert copy._resolved() is agent._resolved()
    assert copy._resolved("openai:gpt-5-mini") is agent._resolved("openai:gpt-5-mini")


# A sub-agent without a session.


class Delegation:
    """What a delegating tool carries."""

    sessions = True
    allow = None

    def __init__(self, agent: Agent[Any], *, depth: int = 8) -> None:
        self.agent = agent
        self.depth = depth
        self.at_work = 0

    async def child_deps(self, deps: object) -> object:
        return None

    async def enter(self, *, returning: bool) -> None:
        self.at_work += 1

    def leave(self) -> None:
        self.at_work -= 1

    def tool(self, name: str) -> Tool[Any]:
        @tool(name=name)
        async def delegate(prompt: str) -> str:
            raise AssertionError("a delegating tool has no body")

        return replace(delegate, _delegate=self)


async def test_a_sub_agent_answers_and_its_usage_counts_to_the_run() -> None:
    delegation = Delegation(Agent(Script(say("42")), name="child"))
    script = Script(call("ask", prompt="what is it?"), say("it is 42"))
    result = await Agent(script, tools=[delegation.tool("ask")]).run("hi")
    assert result.messages[2].results[0].content == "42"
    assert result.usage == Usage(input_tokens=30, output_tokens=15)
    assert delegation.at_work == 0


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (None, "it was interrupted"),
        (Ended(outcome="cancelled"), "it was cancelled"),
        (Ended(outcome="failed"), "unknown"),
    ],
)
def test_a_child_that_gave_no_answer_says_why(ended: Ended | None, says: str) -> None:
    told = child_result("a", ended, "half a sentence", 100)
    assert (told.is_error, told.code) == (True, "SUBAGENT_FAILED")
    assert told.content.endswith(says)


@pytest.mark.parametrize("outcome", ["answered", "stopped"])
def test_a_child_s_answer_is_capped(outcome: Any) -> None:
    told = child_result("a", Ended(outcome=outcome), "answer", 3)
    assert (told.is_error, told.content) == (False, "ans\n[cut: 3 bytes are missing]")


@tool(approval=True)
async def refund() -> None: ...


@pytest.mark.parametrize(
    ("child", "code", "says", "spent"),
    [
        pytest.param(
            lambda: Agent(Script(fail(OSError("secret")))), "SUBAGENT_FAILED", "OSError", Usage(unknown=1), id="fails"
        ),
        pytest.param(
            lambda: Agent(Script(call("add", a=1, b=2)), tools=[add], limits=Limits(steps=1)),
            "SUBAGENT_FAILED",
            "may make 1",
            SPENT,
            id="reaches a limit",
        ),
        pytest.param(
            lambda: Agent(Script(call("refund")), tools=[refund]), "SUBAGENT_FAILED", "approval", SPENT, id="parks"
        ),
    ],
)
async def test_a_sub_agent_that_does_not_answer_is_told_and_its_usage_counts(
    child: Callable[[], Agent[None]], code: str, says: str, spent: Usage
) -> None:
    ask = Delegation(child()).tool("ask")
    result = await Agent(Script(call("ask", prompt="x"), say("end")), tools=[ask]).run("hi")
    told = result.messages[2].results[0]
    assert (told.is_error, told.code) == (True, code)
    assert says in told.content
    assert "secret" not in told.content
    assert result.usage == SPENT + SPENT + spent


async def test_a_delegation_back_to_who_is_at_work_is_refused() -> None:
    desk = Agent(Script(call("ask", prompt="x"), say("end")), name="desk")
    delegation = Delegation(desk)
    agent = desk.replace(tools=[delegation.tool("ask")])
    delegation.agent = agent
    result = await agent.run("hi")
    assert result.messages[2].results[0].code == "SUBAGENT_CYCLE"


@pytest.mark.parametrize(("depth", "code"), [(0, "SUBAGENT_DEPTH"), (1, None), (2, None)])
async def test_a_delegation_deeper_than_allowed_is_refused(depth: int, code: str | None) -> None:
    ask = Delegation(Agent(Script(say("42"))), depth=depth).tool("ask")
    result = await Agent(Script(call("ask", prompt="x"), say("end")), tools=[ask]).run("hi")
    assert result.messages[2].results[0].code == code


async def test_a_child_that_waits_for_its_own_child_takes_no_slot() -> None:
    one_slot = asyncio.Semaphore(1)
    seen: list[str] = []

    class Slots(Delegation):
        async def enter(self, *, returning: bool) -> None:
            await one_slot.acquire()
            seen.append(f"{self.agent.name} {'comes back' if returning else 'starts'}")

        def leave(self) -> None:
            seen.append(f"{self.agent.name} leaves")
            one_slot.release()

    grandchild = Slots(Agent(Script(say("42")), name="grandchild"))
    asks = Script(call("ask", prompt="x"), say("it says 42"))
    child = Slots(Agent(asks, name="child", tools=[grandchild.tool("ask")]))
    result = await Agent(Script(call("ask", prompt="x"), say("end")), tools=[child.tool("ask")]).run("hi")
    assert result.messages[2].results[0].content == "it says 42"
    assert seen == [
        "child starts",
        "child leaves",
        "grandchild starts",
        "grandchild leaves",
        "child comes back",
        "child leaves",
    ]


async def test_delegations_take_no_place_of_the_four() -> None:
    gate = asyncio.Event()
    started: list[int] = []

    @tool(effect="none")
    async def work(x: int) -> None:
        started.append(x)
        await gate.wait()

    delegation = Delegation(Agent(Script(*(hold(gate, then=say("42")) for _ in range(3)))))
    wanted = [call("ask", prompt="x") for _ in range(3)] + [call("work", x=x) for x in range(5)]
    agent = Agent(Script(calls(*wanted), say("end")), tools=[delegation.tool("ask"), work])
    task = asyncio.ensure_future(agent.run("hi"))
    await settle()
    assert (delegation.at_work, started) == (3, [0, 1, 2, 3])
    gate.set()
    assert (await task).text == "end"


@pytest.mark.parametrize("first", ["ask", "work"])
async def test_the_places_of_delegations_are_not_taken_by_other_bodies(first: str) -> None:
    gate = asyncio.Event()
    started: list[int] = []

    @tool(effect="none")
    async def work(x: int) -> None:
        started.append(x)
        await gate.wait()

    child = Script(*[say("42")] * 3)
    delegation = Delegation(Agent(child))
    asks, works = [call("ask", prompt="x") for _ in range(3)], [call("work", x=x) for x in range(8)]
    wanted = [*asks, *works] if first == "ask" else [*works, *asks]
    agent = Agent(Script(calls(*wanted), say("end")), tools=[delegation.tool("ask"), work])
    task = asyncio.ensure_future(agent.run("hi"))
    await settle()
    assert (len(child.requests), delegation.at_work, started) == (3, 0, [0, 1, 2, 3])
    gate.set()
    assert (await task).text == "end"
    assert started == list(range(8))


def test_what_is_told_of_a_run_is_frozen() -> None:
    with pytest.raises(AttributeError):
        RunStarted(run="r").run = "s"  # type: ignore[misc]  # that it cannot be set is the promise
    with pytest.raises(AttributeError):
        TextDelta(run="r", text="x").text = "y"  # type: ignore[misc]  # same


async def test_a_stop_condition_is_asked_once_of_a_step_whose_results_are_recorded_again() -> None:
    asked: list[tuple[int, int]] = []

    async def never(step: StepInfo) -> bool:
        asked.append((step.step, len(step.results)))
        return False

    gate = asyncio.Event()
    script = Script(call("add", a=1, b=2), hold(gate, call("add", a=2, b=2)), say("end"))
    loop, journal = journaled(Agent(script, tools=[add], stop_when=never))
    task = driven(loop)
    await journal.acknowledge()
    await journal.refuse()
    gate.set()
    while not task.done():
        await journal.acknowledge()
    assert asked == [(1, 1), (2, 1)]


async def test_a_stop_condition_that_is_being_asked_is_not_asked_again_where_results_are_refused() -> None:
    asked: list[int] = []
    gate = asyncio.Event()

    async def always(step: StepInfo) -> bool:
        asked.append(step.step)
        await gate.wait()
        return True

    loop, journal = journaled(Agent(Script(call("add", a=1, b=2)), tools=[add], stop_when=always))
    task = driven(loop)
    await journal.acknowledge()
    await journal.refuse()
    gate.set()
    while not task.done():
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert (ended.outcome, asked) == ("stopped", [1])


async def test_a_stop_is_dropped_where_its_record_was_refused_and_the_run_is_cancelled() -> None:
    async def always(step: StepInfo) -> bool:
        return True

    loop, journal = journaled(Agent(Script(call("add", a=1, b=2)), tools=[add], stop_when=always))
    task = driven(loop)
    await journal.acknowledge()
    await journal.refuse(cancel=True)
    while not task.done():
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "cancelled"


def no_instructions(_: Context[None]) -> str:
    raise OSError("no")


@pytest.mark.parametrize(
    ("instructions", "unknown"), [(None, 1), (no_instructions, 0)], ids=["by its model", "by its instructions"]
)
async def test_a_run_that_is_cancelled_does_not_fail_where_its_failure_was_refused(
    instructions: Callable[[Context[None]], str] | None, unknown: int
) -> None:
    loop, journal = journaled(Agent(Script(fail(ModelError("no"))), instructions=instructions))
    task = driven(loop)
    await journal.refuse(cancel=True)
    while not task.done():
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert (ended.outcome, ended.usage.unknown) == ("cancelled", unknown)


@pytest.mark.parametrize("what", ["reply", "failure", "stop condition", "instructions"])
async def test_what_comes_after_a_cancel_and_before_it_is_heard_of_does_not_end_the_run(what: str) -> None:
    gate = asyncio.Event()

    async def always(step: StepInfo) -> bool:
        await gate.wait()
        return True

    async def broken(_: Context[None]) -> str:
        await gate.wait()
        raise OSError("no")

    agents = {
        "reply": Agent(Script(hold(gate, say("end")))),
        "failure": Agent(Script(hold(gate, say("end")).then_fail(ModelError("no")))),
        "stop condition": Agent(Script(call("add", a=1, b=2)), tools=[add], stop_when=always),
        "instructions": Agent(Script(), instructions=broken),
    }
    loop, journal = journaled(agents[what])
    task = driven(loop)
    await settle()
    while journal.on_the_way:
        await journal.acknowledge()
    gate.set()
    loop.interrupt("cancel")
    while not task.done():
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    spent = {"reply": SPENT, "failure": UNKNOWN_CALL}
    assert (ended.outcome, ended.usage) == ("cancelled", spent.get(what, NO_USAGE))


async def test_a_run_that_is_cancelled_does_not_park_where_its_park_was_refused() -> None:
    @tool(approval=True)
    async def gated() -> str:
        return "never"

    loop, journal = journaled(Agent(Script(calls(call("add", a=1, b=2), call("gated"))), tools=[add, gated]))
    task = driven(loop)
    await journal.acknowledge()
    assert [type(fact).__name__ for fact in journal.on_the_way[0].facts] == ["Finished", "Asked", "Ended"]
    await journal.refuse(cancel=True)
    while not task.done():
        await journal.acknowledge()
    ended = await task
    assert ended is not None
    assert ended.outcome == "cancelled"
    assert [(result.content, result.code) for result in list(loop.history())[-1].results] == [
        ("3", None),
        ("The call was cancelled. It had not started, so nothing was done.", "CANCELLED"),
    ]
