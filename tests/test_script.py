"""The scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from weft import Agent, Message, ModelError, ModelFailed, ModelInfo, ModelRequest, Reasoning, Settings, Usage, tool
from weft.model import Finish, ModelEvent, Position, ReasoningChunk, TextChunk, ToolCallChunk, WholeCall
from weft.testing.clock import settle
from weft.testing.script import (
    Reply,
    Script,
    Step,
    call,
    calls,
    cut,
    fail,
    hold,
    raw,
    refuse,
    reply,
    say,
    stream,
    think,
)
from weft.testing.wire import WireError


def request(index: int = 0, *, thread: str | None = None, text: str = "hi") -> ModelRequest:
    return ModelRequest(
        instructions=None,
        messages=(Message.user(text),),
        tools=(),
        settings=Settings(),
        run_id="r",
        position=Position(thread=thread, index=index),
    )


async def drain(stream: AsyncIterator[ModelEvent]) -> list[ModelEvent]:
    return [event async for event in stream]


async def read_into(given: list[ModelEvent], script: Script) -> None:
    async for event in script.stream(request()):
        given.append(event)


async def text_of(script: Script, asked: ModelRequest) -> str:
    return "".join(event.text for event in await drain(script.stream(asked)) if isinstance(event, TextChunk))


# What a reply is.


async def test_a_text_is_streamed_and_finished() -> None:
    events = await drain(Script(say("hello")).stream(request()))
    spent = Usage(input_tokens=10, output_tokens=5)
    assert events == [TextChunk(text="hello"), Finish(reason="stop", usage=spent)]


async def test_usage_may_be_told_or_missing() -> None:
    told = Usage(output_tokens=1)
    script = Script(say("a", usage=told), say("b", usage=None), calls(call("t"), usage=told))
    finishes = [(await drain(script.stream(request())))[-1] for _ in range(3)]
    assert [finish.usage for finish in finishes if isinstance(finish, Finish)] == [told, None, told]


async def test_an_empty_text_is_an_empty_reply() -> None:
    assert [type(event) for event in await drain(Script(say("")).stream(request()))] == [Finish]


async def test_a_call_alone_is_a_reply() -> None:
    whole, finish = await drain(Script(call("look", order=42)).stream(request()))
    assert whole == WholeCall(name="look", arguments='{"order": 42}', provider_id="call_1")
    assert isinstance(finish, Finish)
    assert finish.reason == "tool_calls"


async def test_calls_come_in_order_after_the_text() -> None:
    script = Script(calls(call("a", {"x": 1}, y=2), call("b", "not json"), call("c", call_id="mine"), text="look"))
    text, *wanted, _ = await drain(script.stream(request()))
    assert text == TextChunk(text="look")
    assert wanted == [
        WholeCall(name="a", arguments='{"x": 1, "y": 2}', provider_id="call_1"),
        WholeCall(name="b", arguments="not json", provider_id="call_2"),
        WholeCall(name="c", arguments="{}", provider_id="mine"),
    ]


async def test_provider_ids_are_unique_over_the_script() -> None:
    script = Script(call("a"), calls(call("a"), call("a")))
    events = [event for _ in range(2) for event in await drain(script.stream(request()))]
    ids = [event.provider_id for event in events if isinstance(event, WholeCall)]
    assert len(set(ids)) == 3


BLOCK = '{ "signature":"s1"}'
SPENT = Usage(input_tokens=10, output_tokens=5)
STOP = Finish(reason="stop", usage=SPENT)
TOLD = Usage(output_tokens=1)
LOOK = WholeCall(name="look", arguments="{}", provider_id="call_1")


@pytest.mark.parametrize(
    ("said", "events"),
    [
        pytest.param(
            think("hm", then=say("ok"), block=BLOCK),
            [ReasoningChunk(text="hm", block=BLOCK), TextChunk(text="ok"), STOP],
            id="think, then say",
        ),
        pytest.param(
            think("hm", call("look")),
            [ReasoningChunk(text="hm"), LOOK, Finish(reason="tool_calls", usage=SPENT)],
            id="think, then a call",
        ),
        pytest.param(
            think("a", think("", calls(call("look"), call("see"), text="so", usage=TOLD), block=BLOCK)),
            [
                ReasoningChunk(text="a"),
                ReasoningChunk(block=BLOCK),
                TextChunk(text="so"),
                LOOK,
                WholeCall(name="see", arguments="{}", provider_id="call_2"),
                Finish(reason="tool_calls", usage=TOLD),
            ],
            id="think twice, then calls",
        ),
        pytest.param(cut("half"), [TextChunk(text="half"), Finish(reason="length", usage=SPENT)], id="cut"),
        pytest.param(cut("", call("look"), usage=None), [LOOK, Finish(reason="length")], id="cut at a call"),
        pytest.param(
            refuse("I will not.", usage=TOLD),
            [TextChunk(text="I will not."), Finish(reason="refusal", usage=TOLD)],
            id="refuse",
        ),
        pytest.param(
            stream("a", "", ReasoningChunk(text="hm"), TextChunk(text="b")),
            [TextChunk(text="a"), TextChunk(text=""), ReasoningChunk(text="hm"), TextChunk(text="b"), STOP],
            id="stream",
        ),
        pytest.param(stream("a", usage=TOLD), [TextChunk(text="a"), Finish(reason="stop", usage=TOLD)], id="usage"),
        pytest.param(
            raw(STOP, ToolCallChunk(index=0), STOP), [STOP, ToolCallChunk(index=0), STOP], id="raw, wrong on purpose"
        ),
        pytest.param(raw(), [], id="raw, nothing"),
        pytest.param(think("hm", raw()), [ReasoningChunk(text="hm")], id="think, then nothing"),
    ],
)
async def test_each_kind_of_reply_gives_its_events(said: Reply, events: list[ModelEvent]) -> None:
    script = Script(said)
    assert await drain(script.stream(request())) == events
    script.assert_done()


def test_a_thought_has_a_text_or_a_block_of_json() -> None:
    with pytest.raises(ValueError, match="a text, or a block"):
        think("", then=say("ok"))
    with pytest.raises(ValueError, match="Expecting"):
        think("hm", then=say("ok"), block="no JSON")


@pytest.mark.parametrize("step", ["hello", None, 42])
def test_what_is_no_step_is_refused(step: Any) -> None:
    with pytest.raises(TypeError, match="made by say"):
        Script(step)
    with pytest.raises(TypeError, match="made by say"):
        hold(asyncio.Event(), then=step)


def test_a_script_says_who_it_is() -> None:
    assert Script().info() == ModelInfo(provider="script", model="script", context_window=None, output="schema")
    told = {"provider": "p", "model": "m", "context_window": 1000, "output": "tool"}
    assert Script(**told).info() == ModelInfo(**told)  # type: ignore[arg-type]  # one dict for both


# Replies by a function of the request.


def shout(asked: ModelRequest) -> str:
    return asked.messages[-1].text.upper()


async def shout_later(asked: ModelRequest) -> str:
    await asyncio.sleep(0)
    return shout(asked)


@pytest.mark.parametrize("function", [shout, shout_later])
async def test_a_function_answers_from_the_request(function: Any) -> None:
    script = Script(reply(function), say("b"))
    events = await drain(script.stream(request(text="hi")))
    assert events == [TextChunk(text="HI"), STOP]
    assert await text_of(script, request(text="hi")) == "b"
    script.assert_done()


async def test_a_function_may_answer_with_a_call_or_a_reply() -> None:
    script = Script(
        reply(lambda _: call("look")),
        reply(lambda _: refuse("no", usage=TOLD)),
        reply(lambda _: reply(shout)),
        think("hm", reply(shout), block=BLOCK),
    )
    given = [await drain(script.stream(request())) for _ in range(4)]
    assert given == [
        [LOOK, Finish(reason="tool_calls", usage=SPENT)],
        [TextChunk(text="no"), Finish(reason="refusal", usage=TOLD)],
        [TextChunk(text="HI"), STOP],
        [ReasoningChunk(text="hm", block=BLOCK), TextChunk(text="HI"), STOP],
    ]


async def test_a_function_is_asked_again_when_its_position_is() -> None:
    script = Script(reply(shout))
    for text in ("one", "two"):
        assert await text_of(script, request(thread="t", text=text)) == text.upper()


async def test_what_a_function_raises_fails_the_call_and_its_position_stays() -> None:
    def broken(asked: ModelRequest) -> str:
        raise OSError(asked.messages[-1].text)

    script = Script(reply(broken), say("never"))
    for _ in range(2):
        with pytest.raises(OSError, match="hi"):
            await drain(script.stream(request()))


async def test_what_a_function_returns_must_be_a_reply() -> None:
    with pytest.raises(TypeError, match="made by say"):
        await drain(Script(reply(lambda _: None)).stream(request()))  # type: ignore[arg-type,return-value]  # on purpose


# A summary.


async def test_a_request_without_a_position_is_answered_with_the_summary() -> None:
    nowhere = replace(request(), position=None)
    script = Script(say("a"), summary=say("short", usage=TOLD))
    for _ in range(2):
        assert await drain(script.stream(nowhere)) == [TextChunk(text="short"), Finish(reason="stop", usage=TOLD)]
    assert await text_of(script, request()) == "a"
    script.assert_done()


async def test_a_summary_has_a_text_unless_told_and_need_not_be_asked_for() -> None:
    script = Script()
    script.assert_done()
    assert "summary" in await text_of(script, replace(request(), position=None))


# Which reply is given.


async def test_requests_without_a_thread_are_answered_in_order() -> None:
    script = Script(say("a"), say("b"))
    assert [await text_of(script, request(index=7)) for _ in range(2)] == ["a", "b"]


async def test_a_thread_is_answered_by_position() -> None:
    script = Script(say("a"), say("b"), say("c"))
    asked = [(2, "t"), (0, "t"), (0, "t"), (0, "u"), (1, "u")]
    assert [await text_of(script, request(index, thread=thread)) for index, thread in asked] == list("caaab")


async def test_a_thread_takes_nothing_from_the_requests_without_one() -> None:
    script = Script(say("a"), say("b"))
    assert await text_of(script, request(1, thread="t")) == "b"
    assert await text_of(script, request()) == "a"


@pytest.mark.parametrize("thread", [None, "t"])
async def test_a_request_past_the_end_fails_and_shows_what_was_asked(thread: str | None) -> None:
    script = Script(say("a"))
    await drain(script.stream(request(0, thread=thread)))
    with pytest.raises(ModelError, match=r"has 1 reply and was asked for one more.*where is it\?") as past:
        await drain(script.stream(request(1, thread=thread, text="where is it?")))
    assert past.value.code == "MODEL_SCRIPT"


async def test_every_request_is_recorded() -> None:
    script = Script(say("a"))
    first, second = request(text="one"), request(text="two")
    await drain(script.stream(first))
    with pytest.raises(ModelError):
        await drain(script.stream(second))
    assert script.requests == [first, second]


async def test_every_request_is_checked_as_on_the_wire() -> None:
    with pytest.raises(WireError):
        await drain(Script(say("a")).stream(request(text="")))


async def test_a_request_that_breaks_the_wire_fails_the_run() -> None:
    with pytest.raises(ModelFailed) as failed:
        await Agent(Script(say("a"))).run("Hi.", history=[Message(role="user", parts=())])
    assert isinstance(failed.value.__cause__, WireError)


# Failing.


@pytest.mark.parametrize("thread", [None, "t"])
async def test_a_failure_takes_no_position(thread: str | None) -> None:
    broken = OSError("cut")
    script = Script(say("a"), fail(broken), say("b"))
    assert await text_of(script, request(0, thread=thread)) == "a"
    with pytest.raises(OSError, match="cut") as raised:
        await text_of(script, request(1, thread=thread))
    assert raised.value is broken
    assert await text_of(script, request(1, thread=thread)) == "b"


async def test_a_failure_comes_as_often_as_told() -> None:
    script = Script(fail(OSError("x"), times=2), fail(KeyError("y")), fail(ValueError("never"), times=0), say("a"))
    for kind in (OSError, OSError, KeyError):
        with pytest.raises(kind):
            await text_of(script, request())
    assert await text_of(script, request()) == "a"


async def test_a_failure_may_be_for_ever() -> None:
    script = Script(fail(OSError("x"), times=None), say("never"))
    for _ in range(5):
        with pytest.raises(OSError, match="x"):
            await text_of(script, request())


async def test_a_reply_may_break_off_after_its_text_and_take_no_position() -> None:
    script = Script(say("half").then_fail(OSError("cut"), times=2), say("whole"))
    for _ in range(2):
        stream = script.stream(request())
        assert await anext(stream) == TextChunk(text="half")
        with pytest.raises(OSError, match="cut"):
            await anext(stream)
    assert await text_of(script, request()) == "whole"


@pytest.mark.parametrize(
    ("broken", "events"),
    [
        pytest.param(call("look").then_fail(OSError("x")), [LOOK], id="call"),
        pytest.param(calls(call("look"), text="a").then_fail(OSError("x")), [TextChunk(text="a"), LOOK], id="calls"),
        pytest.param(think("hm", say("")).then_fail(OSError("x")), [ReasoningChunk(text="hm")], id="think"),
        pytest.param(cut("a").then_fail(OSError("x")), [TextChunk(text="a")], id="cut"),
        pytest.param(refuse("a").then_fail(OSError("x")), [TextChunk(text="a")], id="refuse"),
        pytest.param(stream("a", "b").then_fail(OSError("x")), [TextChunk(text=text) for text in "ab"], id="stream"),
        pytest.param(reply(shout).then_fail(OSError("x")), [TextChunk(text="HI")], id="reply"),
        pytest.param(raw(STOP, TextChunk(text="a")).then_fail(OSError("x")), [TextChunk(text="a")], id="raw"),
    ],
)
async def test_each_kind_of_reply_may_fail_before_its_finish(broken: Step, events: list[ModelEvent]) -> None:
    script = Script(broken, say("whole"))
    given: list[ModelEvent] = []
    with pytest.raises(OSError, match="x"):
        await read_into(given, script)
    assert given == events
    with pytest.raises(AssertionError):
        script.assert_done()
    assert await text_of(script, request()) == "whole"
    script.assert_done()


async def test_past_a_last_failure_is_past_the_end() -> None:
    script = Script(say("a"), fail(OSError("x")))
    await drain(script.stream(request()))
    with pytest.raises(OSError, match="x"):
        await drain(script.stream(request()))
    with pytest.raises(ModelError, match="has 1 reply"):
        await drain(script.stream(request()))


# Holding.


async def test_a_held_reply_waits_for_its_event() -> None:
    event = asyncio.Event()
    script = Script(hold(event, then=say("late")))
    asked = asyncio.ensure_future(text_of(script, request()))
    await settle()
    assert not asked.done()
    event.set()
    assert await asked == "late"


async def test_holds_nest_and_a_call_may_be_held() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    script = Script(hold(first, then=hold(second, then=say("x"))), hold(first, then=call("t")))
    asked = asyncio.ensure_future(text_of(script, request()))
    first.set()
    await settle()
    assert not asked.done()
    second.set()
    assert await asked == "x"
    assert [type(event) for event in await drain(script.stream(request()))] == [WholeCall, Finish]


async def test_a_thought_comes_before_what_is_held_after_it() -> None:
    event = asyncio.Event()
    script = Script(
        think("hm", hold(event, then=say("late"))).then_fail(OSError("x")), hold(event, think("a", say("b")))
    )
    given: list[ModelEvent] = []
    asked = asyncio.ensure_future(read_into(given, script))
    await settle()
    assert given == [ReasoningChunk(text="hm")]
    event.set()
    with pytest.raises(OSError, match="x"):
        await asked
    assert await drain(script.stream(request())) == [ReasoningChunk(text="a"), TextChunk(text="b"), STOP]


async def test_a_thread_gets_a_cancelled_reply_again() -> None:
    event = asyncio.Event()
    script = Script(hold(event, then=say("late")))
    asked = asyncio.ensure_future(text_of(script, request(thread="t")))
    await settle()
    asked.cancel()
    await asyncio.wait([asked])
    event.set()
    assert await text_of(script, request(thread="t")) == "late"


# Done.


async def test_assert_done_wants_every_reply_given() -> None:
    script = Script(say("a"), say("b"), say("c"))
    await text_of(script, request(0, thread="t"))
    with pytest.raises(AssertionError, match="2 of the script's replies were not asked for, first that at 1"):
        script.assert_done()
    await text_of(script, request(2, thread="t"))
    with pytest.raises(AssertionError, match="1 of the script's replies"):
        script.assert_done()
    await text_of(script, request(1, thread="t"))
    script.assert_done()


def test_an_empty_script_is_done() -> None:
    Script().assert_done()


async def test_a_failure_alone_leaves_its_reply_to_be_given() -> None:
    script = Script(fail(OSError("x")), say("a"))
    with pytest.raises(OSError, match="x"):
        await text_of(script, request())
    with pytest.raises(AssertionError):
        script.assert_done()


async def test_a_reply_that_was_cancelled_while_held_was_not_given() -> None:
    script = Script(hold(asyncio.Event(), then=say("never")))
    asked = asyncio.ensure_future(text_of(script, request()))
    await settle()
    asked.cancel()
    await asyncio.wait([asked])
    with pytest.raises(AssertionError):
        script.assert_done()


async def test_a_request_without_a_thread_gets_a_cancelled_reply_again() -> None:
    event = asyncio.Event()
    script = Script(hold(event, then=say("late")))
    asked = asyncio.ensure_future(text_of(script, request()))
    await settle()
    asked.cancel()
    await asyncio.wait([asked])
    event.set()
    assert await text_of(script, request()) == "late"


async def test_an_agent_runs_on_a_script() -> None:
    @tool(effect="none")
    async def look_up(order: int) -> str:
        return f"{order} has shipped"

    script = Script(calls(call("look_up", order=42), call("look_up", order=43)), say("Both have shipped."))
    result = await Agent(script, tools=[look_up]).run("Where are 42 and 43?")
    script.assert_done()
    assert result.text == "Both have shipped."
    assert [part.content for part in script.requests[1].messages[2].results] == ["42 has shipped", "43 has shipped"]


# What a run makes of them.


@tool(effect="none")
async def look(order: int = 0) -> str:
    return "shipped"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        pytest.param(raw(TextChunk(text="a")), "MODEL_CUT", id="no finish"),
        pytest.param(raw(), "MODEL_CUT", id="nothing"),
        pytest.param(raw(STOP, STOP), "MODEL_CONTRACT", id="two finishes"),
        pytest.param(raw(STOP, TextChunk(text="a")), "MODEL_CONTRACT", id="something after the finish"),
        pytest.param(raw(WholeCall(name="", arguments="{}"), STOP), "MODEL_CONTRACT", id="a call without a name"),
    ],
)
async def test_a_wrong_reply_fails_the_run_was_given_and_comes_again(wrong: Reply, code: str) -> None:
    script = Script(wrong)
    for _ in range(2):
        with pytest.raises(ModelFailed) as failed:
            await Agent(script, tools=[look]).run("hi")
        assert failed.value.code == code
    script.assert_done()


async def test_a_raw_reply_that_is_right_is_taken_once() -> None:
    script = Script(raw(TextChunk(text="a"), STOP), say("b"))
    assert [(await Agent(script).run("hi")).text for _ in range(2)] == ["a", "b"]


async def test_thoughts_and_their_blocks_come_back_with_the_calls_after_them() -> None:
    script = Script(
        think("two", calls(call("look", order=1), call("look", order=2)), block=BLOCK),
        think("", call("look"), block="{}"),
        say("done"),
    )
    assert (await Agent(script, tools=[look]).run("hi")).text == "done"
    messages = script.requests[-1].messages
    thoughts = [part for message in messages for part in message.parts if isinstance(part, Reasoning)]
    assert thoughts == [
        Reasoning(text="two", block=BLOCK, provider="script", model="script"),
        Reasoning(text="", block="{}", provider="script", model="script"),
    ]


async def test_a_block_that_does_not_come_back_as_it_was_given_is_refused() -> None:
    script = Script(think("hm", call("look"), block=BLOCK), say("never"))

    class Reformats:
        """Stands between the run and the script, and writes the block anew."""

        def info(self) -> ModelInfo:
            return script.info()

        async def stream(self, asked: ModelRequest) -> AsyncIterator[ModelEvent]:
            async for event in script.stream(asked):
                again = isinstance(event, ReasoningChunk) and event.block is not None
                yield replace(event, block='{"signature": "s1"}') if again else event

    with pytest.raises(ModelFailed) as failed:
        await Agent(Reformats(), tools=[look]).run("hi")
    assert isinstance(failed.value.__cause__, WireError)
    assert "message 1: a provider's block did not come back" in str(failed.value.__cause__)


async def test_nothing_of_a_cut_reply_is_run() -> None:
    script = Script(cut("I will", call("look")), say("I could not."))
    assert (await Agent(script, tools=[look]).run("hi")).text == "I could not."
    assert [result.code for result in script.requests[1].messages[-1].results] == ["NOT_RUN"]


async def test_a_refusal_is_how_a_run_ends() -> None:
    result = await Agent(Script(refuse("I will not."))).run("hi")
    assert (result.text, result.finish) == ("I will not.", "refusal")


# What went wrong where nobody was told.


def test_what_a_childs_script_has_refused_fails_its_test_although_the_parent_goes_on() -> None:
    short = Script()
    child = Agent(short, name="child", description="Helps.")
    parent = Agent(Script(call("child", prompt="help"), say("done")), tools=[child])
    assert parent.run_sync("hi").text == "done"
    with pytest.raises(AssertionError, match="asked for one more"):
        short.assert_done()


async def test_a_request_that_broke_the_wire_is_not_done() -> None:
    script = Script(say("a"), say("b"))
    await drain(script.stream(request()))
    with pytest.raises(WireError):
        await drain(script.stream(request(text="")))
    await drain(script.stream(request()))
    with pytest.raises(WireError, match="empty user message"):
        script.assert_done()


async def test_a_failure_after_the_last_reply_that_never_came_is_not_done() -> None:
    script = Script(say("a"), fail(OSError("x")))
    await drain(script.stream(request()))
    with pytest.raises(AssertionError, match="first that at 1"):
        script.assert_done()
    with pytest.raises(OSError, match="x"):
        await drain(script.stream(request()))
    script.assert_done()


# Steps of a wrong kind.


def lookup(order: str) -> str:
    return order


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(lambda: say(3), "say", id="say"),
        pytest.param(lambda: fail("boom"), "fail", id="fail"),
        pytest.param(lambda: say("a").then_fail("boom"), "fail", id="then_fail"),
        pytest.param(lambda: reply("hi"), "reply", id="reply"),
        pytest.param(lambda: hold(object(), then=say("a")), "asyncio.Event", id="hold"),
        pytest.param(lambda: raw(say("a")), "raw", id="raw"),
        pytest.param(lambda: stream("a", 3), "stream", id="stream"),
        pytest.param(lambda: call("look", "not JSON", order="1"), "call", id="call, text and names"),
        pytest.param(lambda: call(tool(lookup), order="1"), r"call\(…\) takes a tool's name", id="call, a tool"),
        pytest.param(lambda: calls("look"), r"calls\(…\) takes calls", id="calls, a text"),
        pytest.param(lambda: calls([call("look")]), r"calls\(…\) takes calls", id="calls, a list"),
        pytest.param(lambda: cut("a", say("b")), r"cut\(…\) takes calls", id="cut, a reply"),
        pytest.param(lambda: cut(3), r"cut\(…\) takes a text", id="cut"),
        pytest.param(lambda: refuse(3), r"refuse\(…\) takes a text", id="refuse"),
    ],
)
def test_what_no_reply_can_be_made_of_is_refused_where_it_is_written(make: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        make()


def test_arguments_are_a_dict_or_names_and_one_may_be_called_args() -> None:
    assert call("run", args={"x": 1}, y=2).arguments == '{"x": 1, "y": 2}'
    assert call("run", {"args": ["-l"]}).arguments == '{"args": ["-l"]}'
    wrong: Any = ["-l"]
    with pytest.raises(TypeError, match="a dict of arguments, or a raw text"):
        call("run", args=wrong)
