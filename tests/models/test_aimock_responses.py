"""The Responses adapter against a server that nobody here wrote."""

import json
from dataclasses import replace

import pytest
from openai import AsyncOpenAI

import weft
from tests.aimock import Aimock, calls, fail, say, when
from tests.models import test_aimock
from tests.models.test_aimock import BOTH, LONG, clock, weather
from weft.errors import ModelFailed
from weft.messages import Message, Reasoning, Text, ToolCall, Usage
from weft.model import ModelError, Settings
from weft.models.openai_responses import OpenAIResponses

BOTH_TOWNS = (("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}))
RULES = (
    when("hello", say("Hello, and welcome to the desk.")),
    when("think", say("It is four.", reasoning="Two and two.")),
    when("weather", calls(*BOTH_TOWNS, reasoning="Two towns."), result=False),
    when("weather", say("Oslo is wet, Rome is sunny.", reasoning="Both are in."), result="Rome: sunny"),
    when("time", calls(("clock", {}), text="Let me look."), result=False),
    when("time", say("It is noon."), result="noon"),
    when("search", say("Found.", webSearches=["weft"])),
    when("cut", say(LONG), truncateAfterChunks=6, latency=5),
    when("gone", say(LONG), chaos={"disconnectRate": 1}),
    when("garbled", say(LONG), chaos={"malformedRate": 1}),
    when("busy", {**fail(429, "rate_limit_error", "rate_limit_exceeded"), "retryAfter": 3}),
    when("broken", fail(500, "server_error")),
    when("long", fail(400, "invalid_request_error", "context_length_exceeded")),
    when("enough", say("This is all that fit", finishReason="length")),
    when("filter", say("This is", finishReason="content_filter")),
)


def agent(client: AsyncOpenAI, stream: bool, model: str = "gpt-5") -> weft.Agent[None]:
    answering = OpenAIResponses(model, client=client)
    return weft.Agent(answering, instructions="Be kind.", tools=[weather, clock], settings=Settings(stream=stream))


def plain(messages: tuple[Message, ...]) -> list[Message]:
    """The messages without the ids of calls and of reasoning, which no two runs share."""

    def bare(message: Message) -> Message:
        parts = (replace(part, block=None) if isinstance(part, Reasoning) else part for part in message.parts)
        return replace(message, parts=tuple(parts))

    return test_aimock.plain(tuple(bare(message) for message in messages))


@BOTH
async def test_a_text_comes_back(client: AsyncOpenAI, stream: bool) -> None:
    result = await agent(client, stream).run("hello")
    assert result.text == "Hello, and welcome to the desk."
    assert result.finish == "stop"


@BOTH
async def test_usage_that_is_all_zero_was_not_reported(client: AsyncOpenAI, stream: bool) -> None:
    assert (await agent(client, stream).run("hello")).usage == Usage(unknown=1)


@BOTH
async def test_parallel_calls_are_run_and_answered(client: AsyncOpenAI, server: Aimock, stream: bool) -> None:
    result = await agent(client, stream).run("How is the weather?")
    assert result.text == "Oslo is wet, Rome is sunny."
    asked, answered = result.messages[1:3]
    assert [call.arguments for call in asked.calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    assert all(call.provider_id and call.provider_id != call.id for call in asked.calls)
    assert [result.content for result in answered.results] == ["Oslo: wet", "Rome: sunny"]
    sent = server.requests()[-1]["messages"]  # as the server reads them: one message for each item
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "assistant", "tool", "tool"]
    assert [message["tool_calls"][0]["id"] for message in sent[2:4]] == [call.id for call in asked.calls]
    assert [message["tool_call_id"] for message in sent[4:]] == [call.id for call in asked.calls]


@BOTH
async def test_reasoning_is_kept_before_what_it_led_to(client: AsyncOpenAI, stream: bool) -> None:
    result = await agent(client, stream).run("How is the weather?")
    thought, *rest = result.messages[1].parts
    assert isinstance(thought, Reasoning)
    assert (thought.text, thought.provider, thought.model) == ("Two towns.", "openai-responses", "gpt-5")
    item = json.loads(thought.block or "")
    assert item.pop("id").startswith("rs")
    assert item.pop("encrypted_content")
    assert item == {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Two towns."}]}
    assert all(isinstance(part, ToolCall) for part in rest)


@BOTH
async def test_a_call_without_arguments_after_a_text(client: AsyncOpenAI, stream: bool) -> None:
    result = await agent(client, stream, "gpt-4o").run("What time is it?")
    assert result.text == "It is noon."
    said, asked = result.messages[1].parts
    assert said == Text(text="Let me look.")
    assert isinstance(asked, ToolCall)
    assert asked.arguments == "{}"


@pytest.mark.parametrize("prompt", ["hello", "think", "How is the weather?", "What time is it?", "search", "enough"])
async def test_streamed_or_whole_leaves_the_same_messages(client: AsyncOpenAI, prompt: str) -> None:
    streamed = await agent(client, True).run(prompt)
    whole = await agent(client, False).run(prompt)
    assert plain(streamed.messages) == plain(whole.messages)
    assert (streamed.text, streamed.finish, streamed.usage) == (whole.text, whole.finish, whole.usage)


@BOTH
async def test_a_reply_that_was_cut_says_so(client: AsyncOpenAI, stream: bool) -> None:
    assert (await agent(client, stream).run("enough")).finish == "length"


FAULTS = [
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
    ("filter", True, "MODEL_SERVER"),
    ("filter", False, "MODEL_SERVER"),
    ("nobody knows this", True, "MODEL_SERVER"),
]


@pytest.mark.parametrize(("prompt", "stream", "code"), FAULTS)
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


def test_a_name_and_the_environment_are_enough(server: Aimock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    desk = weft.Agent("openai-responses:gpt-5", tools=[clock])
    assert desk.run_sync("What time is it?").text == "It is noon."
    assert desk.run_sync("hello").text == "Hello, and welcome to the desk."
