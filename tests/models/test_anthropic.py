"""What the adapter sends, what it makes of what comes back, and how it fails."""

import asyncio
import json
import sys
import traceback
from copy import deepcopy
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
import respx
from anthropic import AsyncAnthropic

from tests.models.respx_bridge import respx_client
from tests.models.served import ADD, BOTH, KEY, REFUSED_KEY, WHOLE, Answer, Json, asked, whole
from weft._ports import SystemIds
from weft._repair import repair
from weft._reply import Reply
from weft.messages import File, Message, Reasoning, Text, ToolCall, ToolResult, Usage
from weft.model import (
    Finish,
    ModelError,
    ModelEvent,
    ModelInfo,
    ReasoningChunk,
    Settings,
    TextChunk,
    ToolCallChunk,
    WholeCall,
)
from weft.models.anthropic import AnthropicMessages
from weft.models.resolve import resolve

URL = "http://model.test/v1/messages"
MODEL = "claude-opus-5"
OLD = "claude-haiku-4-5"
EMPTY: Json = {"type": "object", "properties": {}, "additionalProperties": False}
ADD_SENT = {"name": "add", "description": "Add two numbers.", "input_schema": ADD.schema, "strict": False}
HI = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
PLAIN = {"model": MODEL, "max_tokens": 16384, "messages": HI}
MARK = {"cache_control": {"type": "ephemeral"}}


# -- a server in this process


def sse(*events: Json) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def streamed(*events: Json) -> Answer:
    return lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=sse(*events))


def refused(status: int, error: object, headers: dict[str, str] | None = None) -> Answer:
    return lambda: httpx2.Response(status, json={"type": "error", "error": error}, headers=headers)


def message(*blocks: object, word: str | None = None, usage: object = None) -> Json:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{MODEL}-20260101",
        "content": list(blocks),
        "stop_reason": word,
        "stop_sequence": None,
        "usage": usage,
    }


def start(usage: object = None) -> Json:
    return {"type": "message_start", "message": message(usage=usage)}


def begin(index: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **said: object) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **said}}


def stop(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


def end(word: str | None = "end_turn", usage: object = None) -> tuple[Json, Json]:
    last = {"type": "message_delta", "delta": {"stop_reason": word, "stop_sequence": None}, "usage": usage}
    return last, {"type": "message_stop"}


def pieces(index: int, block: Json) -> list[Json]:
    """A whole block, as it is streamed."""
    match block["type"]:
        case "text":
            deltas = [delta(index, "text_delta", text=letter) for letter in block["text"]]
            return [begin(index, {**block, "text": ""}), *deltas, stop(index)]
        case "thinking":
            deltas = [delta(index, "thinking_delta", thinking=letter) for letter in block["thinking"]]
            deltas.append(delta(index, "signature_delta", signature=block["signature"]))
            return [begin(index, {**block, "thinking": "", "signature": ""}), *deltas, stop(index)]
        case "tool_use":
            text = json.dumps(block["input"], separators=(",", ":"))
            deltas = [delta(index, "input_json_delta", partial_json=piece) for piece in ("", text[:3], text[3:])]
            return [begin(index, {**block, "input": {}}), *deltas, stop(index)]
        case _:
            return [begin(index, block), stop(index)]


def streamed_message(*blocks: Json, word: str = "end_turn", first: object = None, last: object = None) -> Answer:
    events = [event for index, block in enumerate(blocks) for event in pieces(index, block)]
    return streamed(start(first), {"type": "ping"}, *events, *end(word, last))


def text(said: str) -> Json:
    return {"type": "text", "text": said}


HELLO = (start(), begin(0, text("")), delta(0, "text_delta", text="Hel"), delta(0, "text_delta", text="lo"), stop(0))
ANSWER = streamed(*HELLO, *end())
THOUGHT = {"signature": "c2lnbmVk", "thinking": "Hm. I add.", "type": "thinking"}
HIDDEN = {"data": "aGlkZGVu", "type": "redacted_thinking"}
SILENT = {"signature": "c2lsZW50", "thinking": "", "type": "thinking"}
CALL_A = {"type": "tool_use", "id": "toolu_a", "name": "add", "input": {"x": 1}}
CALL_B = {"type": "tool_use", "id": "toolu_b", "name": "add", "input": {}}
SPENT = {
    "input_tokens": 8,
    "cache_read_input_tokens": 7,
    "cache_creation_input_tokens": 5,
    "output_tokens": 9,
    "output_tokens_details": {"thinking_tokens": 3},
}
USAGE = Usage(input_tokens=20, output_tokens=9, cache_read_tokens=7, cache_write_tokens=5, reasoning_tokens=3)


class Server:
    """Gives its answers in order, and keeps what it was asked."""

    def __init__(self, *answers: Answer, retries: int = 0, model: str = MODEL) -> None:
        self.bodies: list[Json] = []
        self._answers = list(answers)
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))
        self.client = AsyncAnthropic(api_key=KEY, base_url="http://model.test", http_client=http, max_retries=retries)
        self.model = AnthropicMessages(model, client=self.client)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url == URL
        self.bodies.append(json.loads(request.content))
        return self._answers.pop(0)()

    async def ask(self, *messages: Message, **more: Any) -> list[ModelEvent]:
        return [event async for event in self.model.stream(asked(*messages, **more))]

    async def failure(self, *messages: Message, **more: Any) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(*messages, **more)
        return caught.value


async def sent(*messages: Message, model: str = MODEL, **more: Any) -> Json:
    """The body that a request becomes, without what only says that it is streamed."""
    server = Server(ANSWER, model=model)
    await server.ask(*messages, **more)
    (body,) = server.bodies
    assert body.pop("stream") is True
    return body


def joined(events: list[ModelEvent]) -> list[ModelEvent]:
    """The events as a run keeps them: texts and thoughts in one piece, no fragments."""
    kept: list[ModelEvent] = []
    for event in events:
        match kept, event:
            case [*_, TextChunk(text=before)], TextChunk(text=after):
                kept[-1] = TextChunk(text=before + after)
            case [*_, ReasoningChunk(text=before, block=None)], ReasoningChunk(text=after, block=None):
                kept[-1] = ReasoningChunk(text=before + after)
            case _, ToolCallChunk():
                pass
            case _:
                kept.append(event)
    return kept


def received(events: list[ModelEvent], by: AnthropicMessages) -> Message:
    """The message that a run makes of the events."""
    reply = Reply("run", SystemIds(), None)
    for event in events:
        reply.take(event)
    return reply.whole(by.info())[0]


def calling(*parts: Any, results: tuple[ToolResult, ...] = ()) -> list[Message]:
    """A transcript up to the results of its calls."""
    said = Message(role="assistant", parts=parts)
    given = results or tuple(ToolResult(call=call.id, content="3") for call in said.calls)
    return [Message.user("Add."), said, Message(role="tool", parts=given)]


# -- what is sent


async def test_a_streamed_request_is_exactly_this() -> None:
    server = Server(ANSWER)
    await server.ask()
    assert server.bodies == [{**PLAIN, "stream": True}]


async def test_a_request_for_a_whole_reply_is_exactly_this() -> None:
    server = Server(whole(message(text("Hello"), word="end_turn")))
    await server.ask(settings=WHOLE)
    assert server.bodies == [PLAIN]


async def test_a_transcript_keeps_its_order_and_carries_wefts_own_ids() -> None:
    first = ToolCall(id="weft1", name="add", arguments='{"x": 1}', provider_id="toolu_a")
    second = ToolCall(id="weft2", name="add", arguments='{"x": 2}', provider_id="toolu_a")
    results = (
        ToolResult(call="weft1", content="3"),
        ToolResult(call="weft2", content="no", is_error=True, code="RETRY"),
    )
    body = await sent(
        *calling(Reasoning(text="Hm.", block="{}"), Text(text="I "), first, Text(text="add."), second, results=results),
        Message(role="assistant", parts=(Text(text="Done."),)),
        Message.user("Thanks."),
        instructions="Be exact.",
    )
    assert body["system"] == [{"type": "text", "text": "Be exact."}]
    assert body["messages"] == [
        {"role": "user", "content": [text("Add.")]},
        {
            "role": "assistant",
            "content": [
                text("I "),
                {"type": "tool_use", "id": "weft1", "name": "add", "input": {"x": 1}},
                text("add."),
                {"type": "tool_use", "id": "weft2", "name": "add", "input": {"x": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "weft1", "content": "3"},
                {"type": "tool_result", "tool_use_id": "weft2", "content": "no", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [text("Done.")]},
        {"role": "user", "content": [text("Thanks.")]},
    ]


async def test_tool_results_come_first_in_the_user_turn_that_follows() -> None:
    call = ToolCall(id="weft1", name="add", arguments="{}")
    silent = Message(role="assistant", parts=(Reasoning(text="Hm."), Text(text=" ")))
    body = await sent(*calling(call), silent, Message.user("And now?"))
    assert body["messages"][2:] == [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "weft1", "content": "3"}, text("And now?")],
        }
    ]


async def test_nothing_empty_is_sent() -> None:
    call = ToolCall(id="weft1", name="add", arguments="")
    failed = ToolCall(id="weft2", name="add", arguments="{}")
    results = (
        ToolResult(call="weft1", content=""),
        ToolResult(call="weft2", content=" ", is_error=True, code="INTERNAL"),
    )
    body = await sent(
        Message(role="user", parts=(Text(text=""),)),
        Message(role="assistant", parts=()),
        Message(role="assistant", parts=(Reasoning(text="Hm."), Text(text="\n\n"))),
        Message(role="user", parts=(Text(text=""), Text(text="Hi"))),
        *calling(Text(text=""), call, failed, results=results)[1:],
        instructions=" ",
    )
    assert body == {
        **PLAIN,
        "messages": [
            {"role": "user", "content": [text("Hi")]},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "weft1", "name": "add", "input": {}},
                    {"type": "tool_use", "id": "weft2", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "weft1"},
                    {"type": "tool_result", "tool_use_id": "weft2", "content": "INTERNAL", "is_error": True},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"x": ', {}),
        ("[1]", {}),
        ("", {}),
        (' {"x":1.5, "y": "ä"} ', {"x": 1.5, "y": "ä"}),
        ('{"x": NaN}', {}),
        ('{"x": 1e999}', {}),
        ('{"x": "\\ud800"}', {}),
        ('{"x": "\\ud83d\\ude00"}', {"x": "😀"}),
        ('{"x": ' + "[" * 5000, {}),
    ],
)
async def test_an_input_is_always_an_object_that_can_be_sent(arguments: str, expected: Json) -> None:
    body = await sent(*calling(ToolCall(id="weft1", name="add", arguments=arguments)))
    assert body["messages"][1]["content"][0]["input"] == expected


@pytest.mark.parametrize("depth", range(500, 1000, 20))
async def test_an_input_of_any_depth_is_sent_or_left_out(depth: int) -> None:
    arguments = '{"x":' + "[" * depth + "]" * depth + "}"
    server = Server(ANSWER)
    await server.ask(*calling(ToolCall(id="weft1", name="add", arguments=arguments)))
    assert len(server.bodies) == 1


async def test_a_name_that_a_model_made_up_is_mended_on_the_wire() -> None:
    body = await sent(*calling(ToolCall(id="weft1", name="functions.add it", arguments="{}")))
    assert body["messages"][1]["content"][0]["name"] == "functions_add_it"


async def test_a_name_that_is_longer_than_any_provider_takes_is_cut_on_the_wire() -> None:
    body = await sent(*calling(ToolCall(id="weft1", name="n" * 300, arguments="{}")))
    assert body["messages"][1]["content"][0]["name"] == "n" * 64


async def test_ids_that_were_made_unique_stay_so_and_fit_the_wire() -> None:
    call = ToolCall(id="call.1", name="add", arguments="{}")
    transcript = repair([*calling(call), *calling(call)[1:]])
    body = await sent(*transcript)
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert calls == results == ["call_2e_1", "call_2e_1_7e_2"]


async def test_files_go_with_their_text() -> None:
    parts = (
        Text(text="Compare."),
        File(media_type="image/png", data=b"\x01\x02"),
        File(media_type="image/gif", data=b"\x01\x02"),
        File(media_type="image/webp", data=b"\x01\x02"),
        File(media_type="image/jpeg", url="https://pictures.test/a.jpg"),
        File(media_type="application/pdf", data=b"%PDF"),
        File(media_type="application/pdf", url="https://papers.test/a.pdf"),
        File(media_type="text/csv", data="a,ä\n".encode()),
    )
    body = await sent(Message(role="user", parts=parts))
    assert body["messages"][0]["content"] == [
        text("Compare."),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQI="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "AQI="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "AQI="}},
        {"type": "image", "source": {"type": "url", "url": "https://pictures.test/a.jpg"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}},
        {"type": "document", "source": {"type": "url", "url": "https://papers.test/a.pdf"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,ä\n"}},
    ]


@pytest.mark.parametrize(
    "file",
    [
        File(media_type="audio/wav", data=b"RIFF"),
        File(media_type="image/tiff", data=b"II"),
        File(media_type="text/plain", url="https://a.test"),
        File(media_type="text/plain", data=b"\xff"),
        File(media_type="image/png"),
    ],
)
async def test_a_file_that_cannot_be_sent_is_refused_before_the_request(file: File) -> None:
    server = Server()
    error = await server.failure(Message(role="user", parts=(file,)))
    assert error.code == "MODEL_REQUEST"
    assert file.media_type in str(error)
    assert server.bodies == []


async def test_tools_and_settings_are_exactly_this() -> None:
    body = await sent(
        tools=(ADD,),
        tool_choice="required",
        settings=Settings(temperature=0.0, max_tokens=50, parallel_tool_calls=False),
        output_schema=EMPTY,
    )
    assert body == {
        **PLAIN,
        "max_tokens": 50,
        "temperature": 0.0,
        "tools": [ADD_SENT],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": EMPTY}},
    }


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", None, None),
        ("auto", True, None),
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", None, {"type": "any"}),
        ("add", None, {"type": "tool", "name": "add"}),
        ("add", False, {"type": "tool", "name": "add", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
    ],
)
async def test_a_tool_choice_is_said_where_it_is_not_the_apis_own(
    choice: str, parallel: bool | None, expected: Json | None
) -> None:
    body = await sent(tools=(ADD,), tool_choice=choice, settings=Settings(parallel_tool_calls=parallel))
    assert body.get("tool_choice") == expected


async def test_without_tools_nothing_is_said_about_tools() -> None:
    assert await sent(tool_choice="none", settings=Settings(parallel_tool_calls=False)) == PLAIN


@pytest.mark.parametrize(
    ("effort", "level"), [("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high")]
)
async def test_an_effort_lets_the_model_decide_how_much_to_think(effort: Any, level: str) -> None:
    body = await sent(settings=Settings(effort=effort), output_schema=EMPTY)
    assert body == {
        **PLAIN,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": level, "format": {"type": "json_schema", "schema": EMPTY}},
    }


@pytest.mark.parametrize(
    "model",
    [OLD, "claude-haiku-4-5-20251001", "claude-opus-4-1", "claude-sonnet-4-20250514", "claude-3-7-sonnet-latest"],
)
@pytest.mark.parametrize(
    ("effort", "max_tokens", "budget"),
    [("minimal", None, 1024), ("low", None, 2048), ("medium", None, 6144), ("high", None, 12288), ("high", 2000, 1999)],
)
async def test_older_models_are_given_a_budget_below_the_most_tokens(
    model: str, effort: Any, max_tokens: int | None, budget: int
) -> None:
    body = await sent(model=model, settings=Settings(effort=effort, max_tokens=max_tokens))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert "output_config" not in body


async def test_an_older_model_does_not_think_where_it_has_no_room() -> None:
    body = await sent(model=OLD, settings=Settings(effort="high", max_tokens=1024, temperature=0.5))
    assert body == {**PLAIN, "model": OLD, "max_tokens": 1024, "temperature": 0.5}


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-sonnet-4-8", "claude-haiku-5-5", "kimi-k3"])
async def test_any_later_model_thinks_adaptively(model: str) -> None:
    assert (await sent(model=model, settings=Settings(effort="low")))["thinking"] == {"type": "adaptive"}


async def test_a_budget_is_left_out_where_the_thoughts_before_the_calls_are_missing() -> None:
    own = Reasoning(text="Hm.", block=json.dumps(THOUGHT), provider="anthropic", model=OLD)
    call = ToolCall(id="weft1", name="add", arguments="{}")
    effort = Settings(effort="low")
    assert "thinking" not in await sent(*calling(call), model=OLD, settings=effort)
    assert "thinking" in await sent(*calling(own, call), model=OLD, settings=effort)
    assert "thinking" in await sent(*calling(call), model=MODEL, settings=effort)


@pytest.mark.parametrize("choice", ["required", "add"])
@pytest.mark.parametrize(
    "settings", [Settings(effort="low"), Settings(extra={"thinking": {"type": "enabled", "budget_tokens": 2000}})]
)
async def test_a_model_that_thinks_is_not_forced_to_call(choice: str, settings: Settings) -> None:
    body = await sent(tools=(ADD,), tool_choice=choice, settings=replace(settings, temperature=0.2))
    assert "thinking" in body
    assert "tool_choice" not in body
    assert "temperature" not in body


async def test_extra_fields_come_last_and_as_they_are() -> None:
    extra = {"top_k": 5, "max_tokens": 7, "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}}
    body = await sent(tools=(ADD,), tool_choice="add", settings=Settings(effort="low", extra=extra))
    assert body == {
        **PLAIN,
        **extra,
        "output_config": {"effort": "low"},
        "tools": [ADD_SENT],
        "tool_choice": {"type": "tool", "name": "add"},
    }


async def test_a_long_whole_reply_may_be_asked_for() -> None:
    server = Server(whole(message(text("Hello"), word="end_turn")))
    await server.ask(settings=Settings(stream=False, max_tokens=100_000))
    assert server.bodies[0]["max_tokens"] == 100_000


# -- the cache


CONVERSATION = (
    Message.user("One"),
    *calling(ToolCall(id="weft1", name="add", arguments="{}"))[1:],
    Message(role="assistant", parts=(Text(text="Three."),)),
    Message(role="user", parts=(Text(text="Two"), Text(text="more"))),
)


def marked(value: object) -> int:
    """How many breakpoints there are in a body."""
    return json.dumps(value).count('"cache_control"')


async def test_breakpoints_are_set_where_they_are_asked_for() -> None:
    more: Json = {"tools": (replace(ADD, name="sub"), ADD), "instructions": "Be exact."}
    plain = await sent(*CONVERSATION, **more)
    body = await sent(*CONVERSATION, **more, settings=Settings(cache=True))
    assert marked(plain) == 0
    assert marked(body) == 4
    assert body["system"] == [{"type": "text", "text": "Be exact.", **MARK}]
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, MARK["cache_control"]]
    assert body["messages"][0]["content"] == [text("One")]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "weft1", "content": "3", **MARK},
    ]
    assert body["messages"][4]["content"] == [text("Two"), {**text("more"), **MARK}]


async def test_breakpoints_are_set_only_where_there_is_something() -> None:
    body = await sent(settings=Settings(cache=True))
    assert body == {**PLAIN, "messages": [{"role": "user", "content": [{**text("Hi"), **MARK}]}]}


async def test_an_output_type_that_its_schema_mode_cannot_bear_is_refused_before_any_request() -> None:
    server = Server(ANSWER)
    error = await server.failure(output_schema={"type": "object", "additionalProperties": True})
    assert (error.code, "output='tool'" in str(error), server.bodies) == ("MODEL_REQUEST", True, [])


async def test_what_is_shared_is_not_changed() -> None:
    block = json.dumps(THOUGHT)
    reasoning = Reasoning(text="", block=block, provider="anthropic", model=MODEL)
    extra = {"output_config": {"effort": "max"}}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    request = asked(
        *calling(reasoning, ToolCall(id="weft1", name="add", arguments='{"x": 1}')),
        tools=(ADD,),
        instructions="Be exact.",
        settings=Settings(cache=True, effort="low", extra=extra),
        output_schema=schema,
    )
    before = deepcopy((ADD.schema, extra, schema))
    server = Server(ANSWER, ANSWER)
    for _ in range(2):
        assert [event async for event in server.model.stream(request)]
    assert (ADD.schema, extra, schema) == before
    assert server.bodies[0] == server.bodies[1]


# -- what comes back


async def test_a_streamed_text_gives_exactly_these_events() -> None:
    assert await Server(streamed(start(SPENT), *HELLO[1:], *end())).ask() == [
        TextChunk(text="Hel"),
        TextChunk(text="lo"),
        Finish(reason="stop", usage=USAGE, provider_reason="end_turn"),
    ]


async def test_streamed_calls_give_exactly_these_events() -> None:
    events = [
        start(),
        begin(0, text("Ad")),
        delta(0, "text_delta", text="ding."),
        stop(0),
        begin(1, {**CALL_A, "input": {}}),
        delta(1, "input_json_delta", partial_json=""),
        delta(1, "input_json_delta", partial_json='{"x"'),
        delta(1, "input_json_delta", partial_json=": 1}"),
        stop(1),
        begin(2, CALL_B),
        stop(2),
    ]
    assert await Server(streamed(*events, *end("tool_use"))).ask() == [
        TextChunk(text="Ad"),
        TextChunk(text="ding."),
        ToolCallChunk(index=0, name="add"),
        ToolCallChunk(index=0, arguments='{"x"'),
        ToolCallChunk(index=0, arguments=": 1}"),
        WholeCall(name="add", arguments='{"x": 1}', provider_id="toolu_a"),
        ToolCallChunk(index=1, name="add"),
        WholeCall(name="add", arguments="{}", provider_id="toolu_b"),
        Finish(reason="tool_calls", provider_reason="tool_use"),
    ]


async def test_streamed_thoughts_give_exactly_these_events() -> None:
    events = [
        start(),
        begin(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, "thinking_delta", thinking="Hm. "),
        delta(0, "thinking_delta", thinking="I add."),
        delta(0, "signature_delta", signature="c2lnbmVk"),
        stop(0),
        *pieces(1, HIDDEN),
    ]
    assert await Server(streamed(*events, *end())).ask() == [
        ReasoningChunk(text="Hm. "),
        ReasoningChunk(text="I add."),
        ReasoningChunk(block=json.dumps(THOUGHT)),
        ReasoningChunk(block=json.dumps(HIDDEN)),
        Finish(reason="stop", provider_reason="end_turn"),
    ]


WORDS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "other",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "other",
    "tired": "other",
}
REPLIES: dict[str, tuple[list[Json], str, str]] = {
    "nothing": ([], "end_turn", "stop"),
    "an empty text": ([text("")], "end_turn", "stop"),
    "two texts": ([text("Hel"), text("lo")], "end_turn", "stop"),
    "one call": ([CALL_A], "tool_use", "tool_calls"),
    "calls without the word": ([CALL_A], "end_turn", "tool_calls"),
    "cut in a call": ([text("Hm"), CALL_A], "max_tokens", "length"),
    "refused after a call": ([CALL_A], "refusal", "refusal"),
    "thoughts": ([THOUGHT, text("Hello")], "end_turn", "stop"),
    "thoughts without a text": ([SILENT, text("Hello")], "end_turn", "stop"),
    "hidden thoughts": ([HIDDEN, THOUGHT, HIDDEN, text("Hello")], "end_turn", "stop"),
    "everything, interleaved": (
        [THOUGHT, text("I add."), CALL_A, SILENT, HIDDEN, CALL_B, text("So."), CALL_A],
        "tool_use",
        "tool_calls",
    ),
    "a block that nobody knows": ([{"type": "dream", "text": "x"}, text("Hello")], "end_turn", "stop"),
    **{f"the word {word}": ([text("Hm")], word, reason) for word, reason in WORDS.items()},
}


@pytest.mark.parametrize("name", REPLIES)
async def test_streamed_and_whole_are_the_same_reply(name: str) -> None:
    blocks, word, reason = REPLIES[name]
    one = await Server(streamed_message(*blocks, word=word, first=SPENT)).ask()
    other = await Server(whole(message(*blocks, word=word, usage=SPENT))).ask(settings=WHOLE)
    assert joined(one) == joined(other)
    assert one[-1] == Finish(reason=reason, usage=USAGE, provider_reason=word)  # type: ignore[arg-type]  # a table
    known = [block for block in blocks if block["type"] != "dream" and block != text("")]
    assert len([event for event in other if not isinstance(event, ToolCallChunk | Finish)]) == len(known) + sum(
        bool(block.get("thinking")) for block in known
    )


@pytest.mark.parametrize("given", [None, "", {}, "{}"])
@BOTH
async def test_no_input_is_an_empty_object(given: object, settings: Settings) -> None:
    block = {**CALL_A, "input": given}
    answer = streamed(start(), begin(0, block), stop(0), *end("tool_use"))
    if not settings.stream:
        answer = whole(message(block, word="tool_use"))
    assert joined(await Server(answer).ask(settings=settings))[0] == WholeCall(
        name="add", arguments="{}", provider_id="toolu_a"
    )


@pytest.mark.parametrize("block", [{"type": "thinking"}, {"type": "thinking", "thinking": None, "signature": None}])
async def test_a_thought_may_begin_with_nothing(block: Json) -> None:
    events = [begin(0, block), *pieces(0, THOUGHT)[1:]]
    server = Server(streamed(start(), *events, *end()))
    (kept,) = received(await server.ask(), server.model).parts
    assert isinstance(kept, Reasoning)
    assert (kept.text, json.loads(kept.block or "")) == ("Hm. I add.", THOUGHT)


async def test_a_block_that_the_server_does_not_end_is_kept() -> None:
    events = (start(), begin(0, {**CALL_A, "input": {}}), delta(0, "input_json_delta", partial_json='{"x":1}'))
    assert joined(await Server(streamed(*events, begin(0, CALL_B), *end("tool_use"))).ask()) == [
        WholeCall(name="add", arguments='{"x":1}', provider_id="toolu_a"),
        WholeCall(name="add", arguments="{}", provider_id="toolu_b"),
        Finish(reason="tool_calls", provider_reason="tool_use"),
    ]


async def test_events_that_nobody_knows_are_passed_over() -> None:
    odd = (
        {"type": "dream", "message": message(usage=SPENT)},
        delta(0, "dream_delta", text="x"),
        delta(0, "citations_delta", citation={}),
    )
    events = await Server(streamed(HELLO[0], HELLO[1], *odd, *HELLO[2:], *end())).ask()
    assert joined(events) == [TextChunk(text="Hello"), Finish(reason="stop", provider_reason="end_turn")]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, None),
        ({}, {}, None),
        ({"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}, None),
        ({"input_tokens": 2, "output_tokens": 1}, {"output_tokens": 5}, Usage(input_tokens=2, output_tokens=5)),
        ({"input_tokens": 2, "output_tokens": 1}, None, Usage(input_tokens=2, output_tokens=1)),
        ({"input_tokens": 2}, {"input_tokens": 3, "output_tokens": 5}, Usage(input_tokens=3, output_tokens=5)),
        (None, {"output_tokens": 5}, Usage(output_tokens=5)),
        (SPENT, {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}, USAGE),
        ({"input_tokens": "many", "output_tokens": 1}, {"output_tokens": "more"}, Usage(output_tokens=1)),
        ({"input_tokens": 10**30, "output_tokens": 1}, {"output_tokens": 10**30}, Usage(output_tokens=1)),
        ({"input_tokens": -2, "output_tokens": 1}, None, Usage(output_tokens=1)),
        (
            {"input_tokens": 2, "output_tokens_details": [1]},
            {"output_tokens": 5},
            Usage(input_tokens=2, output_tokens=5),
        ),
        ({**SPENT, "output_tokens": 1}, {"output_tokens": 9}, USAGE),
        ({"input_tokens": 1, "output_tokens": 1}, SPENT, USAGE),
    ],
)
async def test_the_last_counts_of_a_stream_stand(first: object, last: object, expected: Usage | None) -> None:
    finish = (await Server(streamed(start(first), *HELLO[1:], *end(usage=last))).ask())[-1]
    assert isinstance(finish, Finish)
    assert finish.usage == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({"input_tokens": None, "output_tokens": None}, None),
        ({"input_tokens": 0, "cache_read_input_tokens": 4}, Usage(input_tokens=4, cache_read_tokens=4)),
        (SPENT, USAGE),
    ],
)
async def test_the_counts_of_a_whole_reply(usage: object, expected: Usage | None) -> None:
    finish = (await Server(whole(message(text("Hi"), word="end_turn", usage=usage))).ask(settings=WHOLE))[-1]
    assert isinstance(finish, Finish)
    assert finish.usage == expected


# -- there and back


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "blocks",
    [
        [THOUGHT, text("Hello")],
        [THOUGHT, text("I add."), CALL_A, SILENT, HIDDEN, CALL_B, text("So."), HIDDEN, HIDDEN],
        [{**THOUGHT, "thinking": "é 😀 \u2028 \x00 \\", "signature": "+/=\\u0041"}, CALL_A],
        [{**THOUGHT, "kept": {"b": [1, None], "a": 2.5}}, text("Hello")],
    ],
)
async def test_what_was_said_goes_back_unchanged_and_in_its_place(blocks: list[Json], stream: bool) -> None:
    answer = streamed_message(*blocks) if stream else whole(message(*blocks, word="end_turn"))
    server = Server(answer, ANSWER)
    reply = received(await server.ask(settings=Settings(stream=stream)), server.model)
    stored = json.dumps([part.block for part in reply.parts if isinstance(part, Reasoning)])
    assert stored.isascii()
    results = Message(role="tool", parts=tuple(ToolResult(call=call.id, content="3") for call in reply.calls))
    await server.ask(Message.user("Hi"), reply, results, Message.user("Go on."))
    sent_back = server.bodies[1]["messages"][1]
    names = {call.id: call.provider_id for call in reply.calls}
    for block in sent_back["content"]:
        if block["type"] == "tool_use":
            block["id"] = names[block["id"]]
    assert sent_back == {"role": "assistant", "content": blocks}


async def test_thoughts_of_any_other_model_stay_here() -> None:
    blocks = json.dumps(THOUGHT), json.dumps(HIDDEN)
    for provider, model in (("anthropic", "claude-opus-4-8"), ("openai", MODEL), (None, None)):
        parts = [Reasoning(text="Hm.", block=block, provider=provider, model=model) for block in blocks]
        body = await sent(*calling(*parts, Text(text="I add."), ToolCall(id="weft1", name="add", arguments="{}")))
        assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize("block", ["{no json", "[1]", '{"type": "thinking", "thinking": "\\ud800"}', None])
async def test_a_block_that_cannot_be_sent_stays_here(block: str | None) -> None:
    own = Reasoning(text="Hm.", block=block, provider="anthropic", model=MODEL)
    body = await sent(Message.user("Hi"), Message(role="assistant", parts=(own,)), Message.user("You?"))
    assert body["messages"] == [{"role": "user", "content": [text("Hi"), text("You?")]}]


async def test_a_character_that_was_streamed_in_halves_goes_back_whole() -> None:
    half = [delta(0, "thinking_delta", thinking=piece) for piece in ("\ud83d", "\ude00")]
    signed = delta(0, "signature_delta", signature="s")
    server = Server(streamed(start(), begin(0, {**SILENT, "signature": ""}), *half, signed, stop(0), *end()), ANSWER)
    reply = received(await server.ask(), server.model)
    await server.ask(Message.user("Hi"), reply, Message.user("Go on."))
    assert server.bodies[1]["messages"][1]["content"][0]["thinking"] == "😀"


# -- how it fails


@pytest.mark.parametrize(
    "events",
    [
        (),
        HELLO[:1],
        HELLO[:3],
        HELLO,
        (*HELLO, end()[0]),
        (*HELLO, end()[1]),
        (*HELLO, *end(None)),
        (start(), begin(0, {**CALL_A, "input": {}}), delta(0, "input_json_delta", partial_json='{"x"')),
    ],
)
async def test_a_stream_without_its_end_is_cut(events: tuple[Json, ...]) -> None:
    assert (await Server(streamed(*events)).failure()).code == "MODEL_CUT"


async def test_a_whole_reply_without_a_stop_reason_is_cut() -> None:
    assert (await Server(whole(message(text("Hel")))).failure(settings=WHOLE)).code == "MODEL_CUT"


STATUSES = [
    (
        400,
        {"type": "invalid_request_error", "message": "max_tokens: too large"},
        "MODEL_REQUEST",
        "the server answered 400 (invalid_request_error)",
    ),
    (
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 200001 tokens > 200000 maximum"},
        "MODEL_CONTEXT",
        "the server answered 400 (invalid_request_error)",
    ),
    (
        400,
        {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 1 + 2 > 2"},
        "MODEL_CONTEXT",
        "the server answered 400 (invalid_request_error)",
    ),
    (
        401,
        {"type": "authentication_error"},
        "MODEL_AUTH",
        f"the server answered 401 (authentication_error){REFUSED_KEY}",
    ),
    (402, {"type": "billing_error"}, "MODEL_QUOTA", "the server answered 402 (billing_error)"),
    (
        400,
        {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API"},
        "MODEL_QUOTA",
        "the server answered 400 (invalid_request_error)",
    ),
    (403, {"type": "permission_error"}, "MODEL_AUTH", "the server answered 403 (permission_error)"),
    (
        404,
        {"type": "not_found_error", "details": {"error_code": "model_not_found"}},
        "MODEL_REQUEST",
        "the server answered 404 (not_found_error, model_not_found); check that model.test has the model "
        f"{MODEL!r}, and the base URL's path",
    ),
    (408, {}, "MODEL_TIMEOUT", "the server answered 408"),
    (413, {"type": "request_too_large"}, "MODEL_REQUEST", "the server answered 413 (request_too_large)"),
    (422, {"type": ["odd"]}, "MODEL_REQUEST", "the server answered 422"),
    (429, {"type": "rate_limit_error"}, "MODEL_RATE_LIMIT", "the server answered 429 (rate_limit_error)"),
    (500, {"type": "api_error"}, "MODEL_SERVER", "the server answered 500 (api_error)"),
    (529, {"type": "overloaded_error"}, "MODEL_SERVER", "the server answered 529 (overloaded_error)"),
    (503, f"{KEY} is not known", "MODEL_SERVER", "the server answered 503"),
]


@pytest.mark.parametrize(("status", "error", "code", "words"), STATUSES)
@BOTH
async def test_a_refusal_by_the_server_is_a_typed_error(
    status: int, error: Any, code: str, words: str, settings: Settings
) -> None:
    failure = await Server(refused(status, error)).failure(settings=settings)
    assert (failure.code, str(failure), failure.retry_after) == (code, words, None)
    assert isinstance(failure.__cause__, anthropic.APIStatusError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": f"{KEY} failed", "type": "api_error"}, "MODEL_SERVER"),
        ({"message": "Overloaded", "type": "overloaded_error"}, "MODEL_SERVER"),
        ({"message": "slow down", "type": "rate_limit_error"}, "MODEL_RATE_LIMIT"),
        ({"message": "prompt is too long: 9 > 8", "type": "invalid_request_error"}, "MODEL_CONTEXT"),
        ({"message": "no", "type": "invalid_request_error"}, "MODEL_REQUEST"),
        ({"message": "no", "type": "authentication_error"}, "MODEL_AUTH"),
        ({"message": "no", "type": "timeout_error"}, "MODEL_TIMEOUT"),
        ("it broke", "MODEL_SERVER"),
        (None, "MODEL_SERVER"),
    ],
)
@BOTH
async def test_an_error_in_a_reply_is_typed(error: object, code: str, settings: Settings) -> None:
    said = {"type": "error", "error": error}
    answer = streamed(*HELLO, said, *end()) if settings.stream else whole(said)
    failure = await Server(answer).failure(settings=settings)
    assert failure.code == code
    assert str(failure).startswith("the server reported an error")
    assert KEY not in str(failure)
    assert isinstance(failure.__cause__, anthropic.APIError) or not settings.stream


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(delta(9, "input_json_delta", partial_json="{")).encode(),
        json.dumps(delta(9, "thinking_delta", thinking="Hm")).encode(),
    ],
)
async def test_an_event_that_cannot_be_read_is_a_typed_error(data: bytes) -> None:
    line = b"event: content_block_delta\ndata: " + data + b"\n\n"
    server = Server(lambda: httpx2.Response(200, content=sse(*HELLO) + line + sse(*end())))
    assert (await server.failure()).code == "MODEL_SERVER"


@pytest.mark.parametrize(
    "block",
    [{**text(""), "text": 5}, {**text(""), "text": ["x"]}, {**CALL_A, "name": None}, {**THOUGHT, "thinking": 5}],
    ids=["a number", "a list", "no name", "a thought"],
)
@BOTH
async def test_a_field_of_another_type_is_a_typed_error(block: Json, settings: Settings) -> None:
    answer = streamed(start(), begin(0, block), stop(0), *end())
    if not settings.stream:
        answer = whole(message(block, word="end_turn"))
    server = Server(answer)
    with pytest.raises(ModelError):
        received(await server.ask(settings=settings), server.model)


async def test_a_delta_that_is_no_text_is_a_typed_error() -> None:
    odd = delta(0, "text_delta", text={"x": 1})
    assert (await Server(streamed(*HELLO[:2], odd, *end())).failure()).code == "MODEL_SERVER"


async def test_a_reply_is_no_answer_without_the_arguments_that_the_server_wrote_in_another_way() -> None:
    begun = begin(0, {**CALL_A, "input": {}})
    odd = delta(0, "input_json_delta", partial_json={"x": 1})
    assert (await Server(streamed(start(), begun, odd, stop(0), *end("tool_use"))).failure()).code == "MODEL_SERVER"


async def test_a_stream_whose_blocks_have_no_index_is_the_same_reply() -> None:
    events = [*pieces(0, THOUGHT), *pieces(0, text("Hello")), *pieces(0, CALL_A)]
    for event in events:
        del event["index"]
    one = await Server(streamed(start(), *events, *end("tool_use"))).ask()
    other = await Server(whole(message(THOUGHT, text("Hello"), CALL_A, word="tool_use"))).ask(settings=WHOLE)
    assert joined(one) == joined(other)


async def test_a_block_without_a_place_is_a_typed_error() -> None:
    failure = await Server(streamed(*HELLO[:2], {**begin(0, CALL_A), "index": [0]}, *end())).failure()
    assert failure.code == "MODEL_SERVER"


@BOTH
async def test_a_stop_reason_that_is_no_word_is_a_typed_error(settings: Settings) -> None:
    word: Any = ["end_turn"]
    answer = streamed(*HELLO, *end(word)) if settings.stream else whole(message(text("Hello"), word=word))
    assert (await Server(answer).failure(settings=settings)).code == "MODEL_SERVER"


async def test_a_block_that_is_none_is_a_typed_error() -> None:
    broken = {"type": "content_block_start", "index": 0}
    assert (await Server(streamed(start(), broken | {"content_block": 5}, *end())).failure()).code == "MODEL_SERVER"


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx2.Response(200, headers={"content-type": "application/json"}, content=b"{no json"),
        lambda: httpx2.Response(200, html="<p>Log in</p>"),
        whole({"error": {"message": "no credit"}}),
        whole({"content": None}),
        whole([]),
        whole(message(5, word="end_turn")),
    ],
)
async def test_a_whole_reply_that_cannot_be_read_is_a_typed_error(answer: Answer) -> None:
    assert (await Server(answer).failure(settings=WHOLE)).code == "MODEL_SERVER"


async def test_a_key_that_no_header_can_hold_is_in_no_traceback() -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client = anthropic.AsyncAnthropic(api_key=f"{KEY}\n", base_url=f"http://{host}:{port}", max_retries=0)
        with pytest.raises(ModelError, match="no request could be made") as caught:
            await anext(AnthropicMessages("claude-opus-5", client=client).stream(asked()))
        await client.close()
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_a_server_that_does_not_stream_is_told_from_a_reply_that_was_cut() -> None:
    failure = await Server(lambda: httpx2.Response(200, json={"choices": []})).failure()
    text = "model.test answered whole where a stream was asked for: check the base URL, or use Settings(stream=False)"
    assert (failure.code, str(failure)) == ("MODEL_SERVER", text)


# -- through respx, a double that nobody here wrote


@pytest.fixture
def router() -> respx.MockRouter:
    return respx.MockRouter(assert_all_called=True)


def routed(router: respx.MockRouter) -> AnthropicMessages:
    client = AsyncAnthropic(api_key=KEY, base_url="http://model.test", http_client=respx_client(router), max_retries=0)
    return AnthropicMessages(MODEL, client=client)


@BOTH
async def test_respx_a_reply_comes_back(router: respx.MockRouter, settings: Settings) -> None:
    route = router.post(URL)
    if settings.stream:
        route.respond(content=sse(*HELLO, *end()), content_type="text/event-stream")
    else:
        route.respond(json=message(text("Hello"), word="end_turn"))
    events = [event async for event in routed(router).stream(asked(settings=settings))]
    assert joined(events) == [TextChunk(text="Hello"), Finish(reason="stop", provider_reason="end_turn")]
    assert route.call_count == 1


async def test_respx_the_request_has_the_key_and_a_version(router: respx.MockRouter) -> None:
    router.post(URL).respond(content=sse(*HELLO, *end()), content_type="text/event-stream")
    assert [event async for event in routed(router).stream(asked())]
    request = router.calls.last.request
    assert KEY in (request.headers.get("x-api-key") or request.headers["authorization"])
    assert request.headers["anthropic-version"]
    assert json.loads(request.content) == {**PLAIN, "stream": True}


@pytest.mark.parametrize(("status", "code"), [(401, "MODEL_AUTH"), (429, "MODEL_RATE_LIMIT"), (529, "MODEL_SERVER")])
@BOTH
async def test_respx_a_refusal_is_typed(router: respx.MockRouter, status: int, code: str, settings: Settings) -> None:
    router.post(URL).respond(status, headers={"retry-after": "3"}, json={"type": "error", "error": {"type": "x"}})
    with pytest.raises(ModelError) as caught:
        await anext(routed(router).stream(asked(settings=settings)))
    assert (caught.value.code, caught.value.retry_after) == (code, 3.0)


async def test_respx_a_stream_that_is_cut_is_no_answer(router: respx.MockRouter) -> None:
    router.post(URL).respond(content=sse(*HELLO), content_type="text/event-stream")
    with pytest.raises(ModelError) as caught:
        assert [event async for event in routed(router).stream(asked())]
    assert caught.value.code == "MODEL_CUT"


# -- when it asks nothing


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No key, and none of the other places where the SDK looks for one."""
    for name in ("API_KEY", "AUTH_TOKEN", "PROFILE", "BASE_URL", "IDENTITY_TOKEN", "IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))


@pytest.mark.parametrize("key", [None, ""])
@pytest.mark.usefixtures("nothing_set")
async def test_a_missing_key_names_the_variable(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if key is not None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY") as caught:
        await anext(AnthropicMessages(MODEL).stream(asked()))
    assert caught.value.code == "MODEL_AUTH"


@pytest.mark.usefixtures("nothing_set")
async def test_credentials_that_cannot_be_read_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_PROFILE", "missing")
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY") as caught:
        await anext(AnthropicMessages(MODEL).stream(asked()))
    assert caught.value.code == "MODEL_AUTH"
    assert isinstance(caught.value.__cause__, anthropic.AnthropicError)


# -- its clients


def test_it_says_who_answers() -> None:
    model = resolve(f"anthropic:{MODEL}")
    assert isinstance(model, AnthropicMessages)
    assert model.info() == ModelInfo(provider="anthropic", model=MODEL, context_window=1_000_000, output="tool")
    assert repr(model) == f"AnthropicMessages({MODEL!r})"


@pytest.mark.usefixtures("nothing_set")
def test_each_loop_has_a_client_of_its_own_which_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = AnthropicMessages(MODEL)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://model.test")

    async def two() -> tuple[AsyncAnthropic, AsyncAnthropic]:
        return await model._client(), await model._client()

    first, again = asyncio.run(two())
    second, _ = asyncio.run(two())
    assert first is again
    assert second is not first
    assert first.is_closed()
    assert second.is_closed()
    assert str(first.base_url).startswith("http://model.test")
    assert len(model._clients._owned) == 1


@pytest.mark.usefixtures("nothing_set")
async def test_one_generator_holds_a_client_since_a_loop_cannot_close_one_inside_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    hooks, held = sys.get_asyncgen_hooks(), list[object]()
    sys.set_asyncgen_hooks(firstiter=held.append)
    try:
        client = await AnthropicMessages(MODEL)._client()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert len(held) == 1
    await client.close()
