"""The adapter to Anthropic against a server that nobody here wrote."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import weft
from tests.aimock import Aimock, calls, fail, say, when
from weft.errors import ModelFailed
from weft.events import TextDelta
from weft.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage
from weft.model import Settings
from weft.models.anthropic import AnthropicMessages

LONG = "This sentence is longer than one chunk, and it is cut before its end."
SPENT: dict[str, Any] = {"usage": {"input_tokens": 12, "output_tokens": 7}}
THOUGHT: dict[str, Any] = {"reasoning": "I look twice.", "reasoningSignature": "c2lnbmVk", "redactedThinking": ["aGlk"]}
RULES = (
    when("hello", say("Hello, and welcome to the desk.", **SPENT)),
    when("weather", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}), **SPENT), result=False),
    when("weather", say("Oslo is wet, Rome is sunny.", **SPENT), result="Rome: sunny"),
    when("time", calls(("clock", {}), text="Let me look.", **SPENT), result=False),
    when("time", say("It is noon.", **SPENT), result="noon"),
    when("think", calls(("clock", {}), text="Let me look.", **THOUGHT), result=False),
    when("think", say("It is noon, I think.", **THOUGHT), result="noon"),
    when("cut", say(LONG), truncateAfterChunks=4, latency=5),
    when("gone", say(LONG), chaos={"disconnectRate": 1}),
    when("garbled", say(LONG), chaos={"malformedRate": 1}),
    when("busy", {**fail(429, "rate_limit_error"), "retryAfter": 7}),
    when("overloaded", fail(529, "overloaded_error")),
    when("broken", fail(500, "api_error")),
    when("enough", say("This is all that fit", finishReason="length", **SPENT)),
)
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture
async def client(server: Aimock) -> AsyncIterator[AsyncAnthropic]:
    """A client of aimock that does not retry, so that no test waits."""
    async with AsyncAnthropic(base_url=server.origin, api_key="test", max_retries=0) as made:
        yield made


def weather(city: str) -> str:
    """Look out of the window."""
    return f"{city}: {'sunny' if city == 'Rome' else 'wet'}"


def clock() -> str:
    """Look at the clock."""
    return "noon"


def agent(client: AsyncAnthropic, stream: bool, **more: Any) -> weft.Agent[None]:
    model = AnthropicMessages("claude-haiku-4-5", client=client)
    settings = Settings(stream=stream, **more)
    return weft.Agent(model, instructions="Be kind.", tools=[weather, clock], settings=settings)


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
async def test_a_text_comes_back(client: AsyncAnthropic, stream: bool) -> None:
    result = await agent(client, stream).run("hello")
    assert result.text == "Hello, and welcome to the desk."
    assert result.finish == "stop"
    assert result.usage == Usage(input_tokens=12, output_tokens=7)


@BOTH
async def test_parallel_calls_are_run_and_answered(client: AsyncAnthropic, server: Aimock, stream: bool) -> None:
    result = await agent(client, stream).run("How is the weather?")
    assert result.text == "Oslo is wet, Rome is sunny."
    assert result.usage == Usage(input_tokens=24, output_tokens=14)
    asked, answered = result.messages[1:3]
    assert [call.arguments for call in asked.calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    assert all(call.provider_id and call.provider_id != call.id for call in asked.calls)
    assert [result.content for result in answered.results] == ["Oslo: wet", "Rome: sunny"]
    sent = server.requests()[-1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert [message["tool_call_id"] for message in sent[3:]] == [call.id for call in asked.calls]


@BOTH
async def test_a_call_without_arguments_after_a_text(client: AsyncAnthropic, stream: bool) -> None:
    result = await agent(client, stream).run("What time is it?")
    assert result.text == "It is noon."
    said, asked = result.messages[1].parts
    assert said == Text(text="Let me look.")
    assert isinstance(asked, ToolCall)
    assert asked.arguments == "{}"


@BOTH
async def test_thoughts_are_kept_and_the_server_takes_them_back(client: AsyncAnthropic, stream: bool) -> None:
    """It is strict: where thinking is on, calls need the thoughts before them, with their signature."""
    result = await agent(client, stream, effort="low").run("think")
    assert result.text == "It is noon, I think."
    hidden, thought, said, asked = result.messages[1].parts
    mine = {"provider": "anthropic", "model": "claude-haiku-4-5"}
    assert hidden == Reasoning(text="", block='{"data": "aGlk", "type": "redacted_thinking"}', **mine)
    signed = '{"signature": "c2lnbmVk", "thinking": "I look twice.", "type": "thinking"}'
    assert thought == Reasoning(text="I look twice.", block=signed, **mine)
    assert said == Text(text="Let me look.")
    assert isinstance(asked, ToolCall)


@pytest.mark.parametrize("prompt", ["hello", "How is the weather?", "What time is it?", "think", "enough"])
async def test_streamed_or_whole_leaves_the_same_messages(client: AsyncAnthropic, prompt: str) -> None:
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
        ("overloaded", True, "MODEL_SERVER"),
        ("broken", True, "MODEL_SERVER"),
        ("broken", False, "MODEL_SERVER"),
        ("nobody knows this", True, "MODEL_SERVER"),
    ],
)
async def test_a_failed_call_ends_in_a_typed_error_and_the_agent_goes_on(
    client: AsyncAnthropic, prompt: str, stream: bool, code: str
) -> None:
    desk = agent(client, stream)
    with pytest.raises(ModelFailed) as caught:
        await desk.run(prompt)
    assert caught.value.code == code
    assert caught.value.result is not None
    assert caught.value.result.messages == (Message.user(prompt),)
    assert caught.value.result.usage == Usage(unknown=1)
    assert (await desk.run("hello")).text == "Hello, and welcome to the desk."


async def test_how_long_to_wait_is_told(client: AsyncAnthropic) -> None:
    with pytest.raises(ModelFailed) as caught:
        await agent(client, True).run("busy")
    cause = caught.value.__cause__
    assert isinstance(cause, weft.ModelError)
    assert cause.retry_after == 7


async def _texts_of(run: weft.RunStream, seen: list[str]) -> None:
    async for event in run:
        if isinstance(event, TextDelta):
            seen.append(event.text)


async def test_what_came_before_a_cut_is_seen_but_not_kept(client: AsyncAnthropic) -> None:
    async with agent(client, True).stream("cut") as run:
        seen: list[str] = []
        with pytest.raises(ModelFailed) as caught:
            await _texts_of(run, seen)
    said = "".join(seen)
    assert said
    assert LONG.startswith(said)
    assert caught.value.result is not None
    assert caught.value.result.text == ""


def test_a_name_and_the_environment_are_enough(server: Aimock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.origin)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    desk = weft.Agent("anthropic:claude-haiku-4-5", tools=[clock])
    assert desk.run_sync("What time is it?").text == "It is noon."
    assert desk.run_sync("hello").text == "Hello, and welcome to the desk."
