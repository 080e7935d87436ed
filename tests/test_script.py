"""The scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from weft import Agent, Message, ModelError, ModelFailed, ModelRequest, Settings, Usage, tool
from weft.model import Finish, ModelEvent, Position, TextChunk, WholeCall
from weft.testing.clock import settle
from weft.testing.script import Script, call, calls, fail, hold, say
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


def test_a_script_says_who_it_is() -> None:
    info = Script().info()
    assert (info.provider, info.model) == ("script", "script")


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
    with pytest.raises(ModelError, match=r"has 1 replies and was asked for one more.*where is it\?") as past:
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
        await Agent(Script(say("a"))).run("")
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


async def test_past_a_last_failure_is_past_the_end() -> None:
    script = Script(say("a"), fail(OSError("x")))
    await drain(script.stream(request()))
    with pytest.raises(OSError, match="x"):
        await drain(script.stream(request()))
    with pytest.raises(ModelError, match="has 1 replies"):
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
