"""The adapter against a server that nobody here wrote."""

from dataclasses import replace

import pytest
from openai import AsyncOpenAI

import weft
from tests.aimock import Aimock, calls, fail, say, when
from weft.errors import ModelFailed
from weft.events import TextDelta
from weft.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage
from weft.model import ModelError, Settings
from weft.models.openai import OpenAIChat

LONG = "This sentence is longer than one chunk, and it is cut before its end."
RULES = (
    when("hello", say("Hello, and welcome to the desk.")),
    when("weather", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})), result=False),
    when("weather", say("Oslo is wet, Rome is sunny."), result="Rome: sunny"),
    when("time", calls(("clock", {}), text="Let me look."), result=False),
    when("time", say("It is noon."), result="noon"),
    when("cut", say(LONG), truncateAfterChunks=3, latency=5),
    when("gone", say(LONG), chaos={"disconnectRate": 1}),
    when("garbled", say(LONG), chaos={"malformedRate": 1}),
    when("think", say("It is four.", reasoning="Two and two.")),
    when("busy", {**fail(429, "rate_limit_error", "rate_limit_exceeded"), "retryAfter": 3}),
    when("broken", fail(500, "server_error")),
    when("long", fail(400, "invalid_request_error", "context_length_exceeded")),
    when("enough", say("This is all that fit", finishReason="length")),
)
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def weather(city: str) -> str:
    """Look out of the window."""
    return f"{city}: {'sunny' if city == 'Rome' else 'wet'}"


def clock() -> str:
    """Look at the clock."""
    return "noon"


def agent(client: AsyncOpenAI, stream: bool) -> weft.Agent[None]:
    model = OpenAIChat("gpt-5", client=client)
    return weft.Agent(model, instructions="Be kind.", tools=[weather, clock], settings=Settings(stream=stream))


def plain(messages: tuple[Message, ...]) -> list[Message]:
    """The messages with call ids, which no two runs share, replaced by the calls' names."""
    names = {call.id: call.name for message in messages for call in message.calls}

    def named(part: Part) -> Part:
        match part:
            case ToolCall():
                return replace(part, id=part.name, provider_id=None)
            case ToolResult():
                return replace(part, call=names[part.call])
        return part

    return [Message(role=message.role, parts=tuple(map(named, message.parts))) for message in messages]


@BOTH
async def test_a_text_comes_back(client: AsyncOpenAI, stream: bool) -> None:
    result = await agent(client, stream).run("hello")
    assert result.text == "Hello, and welcome to the desk."
    assert result.finish == "stop"
    assert result.usage.input_tokens > 0
    assert result.usage.output_tokens > 0
    assert result.usage.unknown == 0


@BOTH
async def test_parallel_calls_are_run_and_answered(client: AsyncOpenAI, server: Aimock, stream: bool) -> None:
    result = await agent(client, stream).run("How is the weather?")
    assert result.text == "Oslo is wet, Rome is sunny."
    asked, answered = result.messages[1:3]
    assert [call.arguments for call in asked.calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    assert all(call.provider_id and call.provider_id != call.id for call in asked.calls)
    assert [result.content for result in answered.results] == ["Oslo: wet", "Rome: sunny"]
    sent = server.requests()[-1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert [message["tool_call_id"] for message in sent[3:]] == [call.id for call in asked.calls]


@BOTH
async def test_a_call_without_arguments_after_a_text(client: AsyncOpenAI, stream: bool) -> None:
    result = await agent(client, stream).run("What time is it?")
    assert result.text == "It is noon."
    said, asked = result.messages[1].parts
    assert said == Text(text="Let me look.")
    assert isinstance(asked, ToolCall)
    assert asked.arguments == "{}"


@pytest.mark.parametrize("prompt", ["hello", "think", "How is the weather?", "What time is it?", "enough"])
async def test_streamed_or_whole_leaves_the_same_messages(client: AsyncOpenAI, prompt: str) -> None:
    streamed = await agent(client, True).run(prompt)
    whole = await agent(client, False).run(prompt)
    assert plain(streamed.messages) == plain(whole.messages)
    assert (streamed.text, streamed.finish, streamed.usage) == (whole.text, whole.finish, whole.usage)


@pytest.mark.parametrize(
    ("prompt", "stream", "code"),
    [
        ("cut", True, "MODEL_CONNECTION"),
        ("gone", True, "MODEL_CONNECTION"),
        ("gone", False, "MODEL_CONNECTION"),
        ("garbled", True, "MODEL_CUT"),
        ("garbled", False, "MODEL_SERVER"),
        ("busy", True, "MODEL_RATE_LIMIT"),
        ("busy", False, "MODEL_RATE_LIMIT"),
        ("broken", True, "MODEL_SERVER"),
        ("broken", False, "MODEL_SERVER"),
        ("long", True, "MODEL_CONTEXT"),
        ("nobody knows this", True, "MODEL_SERVER"),
    ],
)
async def test_a_failed_call_ends_in_a_typed_error_and_the_agent_goes_on(
    client: AsyncOpenAI, prompt: str, stream: bool, code: str
) -> None:
    desk = agent(client, stream)
    with pytest.raises(ModelFailed) as caught:
        await desk.run(prompt)
    assert caught.value.code == code
    assert caught.value.result is not None
    assert caught.value.result.messages == (Message.user(prompt),)
    assert caught.value.result.usage == Usage(unknown=1)
    assert (await desk.run("hello")).text == "Hello, and welcome to the desk."


@BOTH
async def test_how_long_to_wait_is_told(client: AsyncOpenAI, stream: bool) -> None:
    with pytest.raises(ModelFailed) as caught:
        await agent(client, stream).run("busy")
    assert isinstance(caught.value.__cause__, ModelError)
    assert caught.value.__cause__.retry_after == 3.0


@BOTH
async def test_reasoning_of_a_compatible_server_is_kept_as_text(client: AsyncOpenAI, stream: bool) -> None:
    result = await agent(client, stream).run("think")
    assert result.messages[1].parts == (
        Reasoning(text="Two and two.", provider="openai", model="gpt-5"),
        Text(text="It is four."),
    )


async def _texts_of(run: weft.RunStream, seen: list[str]) -> None:
    async for event in run:
        if isinstance(event, TextDelta):
            seen.append(event.text)


async def test_what_came_before_a_cut_is_seen_but_not_kept(client: AsyncOpenAI) -> None:
    async with agent(client, True).stream("cut") as run:
        seen: list[str] = []
        with pytest.raises(ModelFailed) as caught:
            await _texts_of(run, seen)
    text = "".join(seen)
    assert text
    assert LONG.startswith(text)
    assert caught.value.result is not None
    assert caught.value.result.text == ""


def test_a_name_and_the_environment_are_enough(server: Aimock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    desk = weft.Agent("openai:gpt-5", tools=[clock])
    assert desk.run_sync("What time is it?").text == "It is noon."
    assert desk.run_sync("hello").text == "Hello, and welcome to the desk."
