"""What the adapter sends, what it makes of what comes back, and how it fails."""

import asyncio
import traceback
from copy import deepcopy
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from tests.models import served
from tests.models.served import (
    ADD,
    BOTH,
    KEY,
    REFUSED_KEY,
    WHOLE,
    Answer,
    Json,
    asked,
    joined,
    refused,
    sse,
    streamed,
    whole,
)
from weft.messages import File, Message, Reasoning, Text, ToolCall, ToolResult, Usage
from weft.model import (
    Finish,
    ModelError,
    ModelInfo,
    ReasoningChunk,
    Settings,
    TextChunk,
    ToolCallChunk,
    WholeCall,
)
from weft.models._openai_sdk import client_here
from weft.models.openai import OpenAIChat

STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


# -- what a server says


def chunk(delta: object = None, finish: str | None = None, **more: object) -> Json:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def completion(message: object, finish: str | None = "stop", **more: object) -> Json:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}


HELLO = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}), chunk({"content": "lo"}))
SPENT = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
USAGE = Usage(input_tokens=20, output_tokens=9, cache_read_tokens=8, cache_write_tokens=4, reasoning_tokens=3)


class Server(served.Server):
    path = "chat/completions"
    adapter = OpenAIChat


async def sent(*messages: Message, **more: Any) -> Json:
    """The body that a request becomes, without what only says that it is streamed."""
    server = Server(streamed(*HELLO, chunk(finish="stop")))
    await server.ask(*messages, **more)
    (body,) = server.bodies
    return {name: value for name, value in body.items() if name not in STREAMED}


# -- what is sent


async def test_a_streamed_request_is_exactly_this() -> None:
    server = Server(streamed(*HELLO, chunk(finish="stop")))
    await server.ask()
    assert server.bodies == [{"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], **STREAMED}]


async def test_a_request_for_a_whole_reply_is_exactly_this() -> None:
    server = Server(whole(completion({"role": "assistant", "content": "Hello"})))
    await server.ask(settings=WHOLE)
    assert server.bodies == [{"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]}]


async def test_a_transcript_keeps_its_order_and_carries_wefts_own_ids() -> None:
    first = ToolCall(id="weft1", name="add", arguments='{"x": 1}', provider_id="call_1")
    second = ToolCall(id="weft2", name="add", arguments='{"x": 2}', provider_id="call_1")
    body = await sent(
        Message.user("Add."),
        Message(
            role="assistant",
            parts=(Reasoning(text="Hm.", block="{}"), Text(text="I "), Text(text="add."), first, second),
        ),
        Message(
            role="tool",
            parts=(
                ToolResult(call="weft1", content="3"),
                ToolResult(call="weft2", content="no", is_error=True, code="RETRY"),
            ),
        ),
        Message(role="assistant", parts=(Text(text="Done."),)),
        Message.user("Thanks."),
        instructions="Be exact.",
    )
    function = {"type": "function"}
    assert body["messages"] == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [
                {"id": "weft1", **function, "function": {"name": "add", "arguments": '{"x": 1}'}},
                {"id": "weft2", **function, "function": {"name": "add", "arguments": '{"x": 2}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "weft1", "content": "3"},
        {"role": "tool", "tool_call_id": "weft2", "content": "no"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ]


async def test_nothing_empty_is_sent() -> None:
    call = ToolCall(id="weft1", name="add", arguments="{}")
    body = await sent(
        Message(role="user", parts=(Text(text=""),)),
        Message(role="assistant", parts=()),
        Message(role="assistant", parts=(Reasoning(text="Hm."),)),
        Message(role="user", parts=(Text(text=""), Text(text="Hi"))),
        Message(role="assistant", parts=(call,)),
        Message(role="tool", parts=(ToolResult(call="weft1", content="3"),)),
        instructions="",
    )
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "weft1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "weft1", "content": "3"},
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("add", '{"x": ', {"name": "add", "arguments": "{}"}),
        ("add", "[1]", {"name": "add", "arguments": "{}"}),
        ("add", "", {"name": "add", "arguments": "{}"}),
        ("add", ' {"x":1} ', {"name": "add", "arguments": ' {"x":1} '}),
        ("functions.add it", "{}", {"name": "functions_add_it", "arguments": "{}"}),
    ],
)
async def test_what_a_model_made_up_is_mended_on_the_wire(name: str, arguments: str, expected: Json) -> None:
    call = ToolCall(id="weft1", name=name, arguments=arguments)
    result = Message(role="tool", parts=(ToolResult(call="weft1", content="no", is_error=True),))
    body = await sent(Message.user("Hi"), Message(role="assistant", parts=(call,)), result)
    assert body["messages"][1]["tool_calls"][0]["function"] == expected


async def test_files_go_with_their_text() -> None:
    parts = (
        Text(text="Compare."),
        File(media_type="image/png", data=b"\x01\x02"),
        File(media_type="image/jpeg", url="https://pictures.test/a.jpg"),
        File(media_type="application/pdf", data=b"%PDF"),
    )
    body = await sent(Message(role="user", parts=parts))
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Compare."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQI="}},
        {"type": "image_url", "image_url": {"url": "https://pictures.test/a.jpg"}},
        {"type": "file", "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
    ]


@pytest.mark.parametrize(
    "file", [File(media_type="application/pdf", url="https://a.test"), File(media_type="image/png")]
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
        settings=Settings(temperature=0.0, max_tokens=50, parallel_tool_calls=False, effort="minimal"),
        output_schema={"type": "object"},
    )
    assert body == {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.0,
        "max_completion_tokens": 50,
        "reasoning_effort": "minimal",
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Add two numbers.",
                    "parameters": ADD.schema,
                    "strict": False,
                },
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": False},
        },
    }


async def test_without_tools_nothing_is_said_about_tools() -> None:
    body = await sent(tool_choice="none", settings=Settings(parallel_tool_calls=True))
    assert body == {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", None),
        ("none", "none"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
async def test_a_tool_choice_is_a_word_or_a_tool(choice: str, expected: object) -> None:
    assert (await sent(tools=(ADD,), tool_choice=choice)).get("tool_choice") == expected


async def test_extra_fields_go_in_last_and_as_they_are() -> None:
    extra = {"reasoning_effort": "none", "top_k": 3, "chat_template_kwargs": {"thinking": None}}
    body = await sent(settings=Settings(effort="low", extra=extra))
    assert body == {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], **extra}


async def test_what_is_shared_is_not_changed() -> None:
    extra = {"reasoning": {"summary": "auto"}, "metadata": {"a": "b"}}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    more: Json = {"tools": (ADD,), "settings": Settings(effort="low", extra=extra), "output_schema": schema}
    before = deepcopy((ADD.schema, extra, schema))
    server = Server(*[streamed(*HELLO, chunk(finish="stop"))] * 2)
    for _ in range(2):
        assert await server.ask(**more)
    assert (ADD.schema, extra, schema) == before
    assert server.bodies[0] == server.bodies[1]


async def test_reasoning_is_never_sent_back() -> None:
    parts = (Reasoning(text="Hm.", block="{}", provider="openai", model="gpt-5"), Text(text="Hello"))
    body = await sent(Message.user("Hi"), Message(role="assistant", parts=parts), Message.user("And?"))
    assert body["messages"][1] == {"role": "assistant", "content": "Hello"}


# -- what comes back


async def test_a_streamed_text_gives_exactly_these_events() -> None:
    server = Server(streamed(*HELLO, chunk(finish="stop"), chunk() | {"choices": [], "usage": SPENT}))
    assert await server.ask() == [
        TextChunk(text="Hel"),
        TextChunk(text="lo"),
        Finish(reason="stop", usage=USAGE, provider_reason="stop"),
    ]


async def test_streamed_calls_give_exactly_these_events() -> None:
    pieces = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    chunks = [chunk({"tool_calls": [piece]}) for piece in pieces]
    assert await Server(streamed(*chunks, chunk(finish="tool_calls"))).ask() == [
        ToolCallChunk(index=0, name="add"),
        ToolCallChunk(index=0, arguments='{"x"'),
        ToolCallChunk(index=0, arguments=": 1}"),
        WholeCall(name="add", arguments='{"x": 1}', provider_id="call_1"),
        Finish(reason="tool_calls", provider_reason="tool_calls"),
    ]


FUNCTION: Json = {"name": "add", "arguments": '{"x": 1}'}
CALL = WholeCall(name="add", arguments='{"x": 1}', provider_id="a")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([{"id": "a", "function": {"name": "add", "arguments": '{"x"'}}, {"function": {"arguments": ": 1}"}}], CALL),
        ([{"index": None, "id": "a", "function": FUNCTION}], CALL),
        ([{"index": 0, "function": FUNCTION}, {"index": 0, "id": "a"}], CALL),
        ([{"index": 0, "id": "a", "function": FUNCTION}, {"index": 0, "function": None}], CALL),
        ([{"index": 0, "id": "a", "function": {"name": "add", "arguments": {"x": 1}}}], CALL),
        (
            [{"index": 0, "id": "a", "function": {"name": "add", "arguments": None}}],
            WholeCall(name="add", arguments="{}", provider_id="a"),
        ),
        (
            [{"index": 0, "id": "a", "function": {"name": "add"}}],
            WholeCall(name="add", arguments="{}", provider_id="a"),
        ),
    ],
)
async def test_odd_fragments_come_through_the_sdk(pieces: list[Json], expected: WholeCall) -> None:
    chunks = [chunk({"tool_calls": [piece]}) for piece in pieces]
    events = await Server(streamed(*chunks, chunk(finish="stop"))).ask()
    assert joined(events) == [expected, Finish(reason="tool_calls", provider_reason="stop")]


@pytest.mark.parametrize(
    "call",
    [
        {"id": "a", "type": "function", "function": FUNCTION},
        {"id": "a", "function": FUNCTION},
        {"id": "a", "type": None, "function": {"name": "add", "arguments": {"x": 1}}},
    ],
)
async def test_odd_whole_calls_come_through_the_sdk(call: Json) -> None:
    server = Server(whole(completion({"role": "assistant", "content": None, "tool_calls": [call]}, "stop")))
    assert joined(await server.ask(settings=WHOLE)) == [CALL, Finish(reason="tool_calls", provider_reason="stop")]


REPLIES: dict[str, tuple[Json, str, str]] = {
    "text": ({"content": "Hello"}, "stop", "stop"),
    "nothing": ({"content": None}, "stop", "stop"),
    "reasoning": ({"reasoning_content": "Hm. Well.", "content": "Hello"}, "stop", "stop"),
    "reasoning by its other name": ({"reasoning": "Hm.", "content": "Hello"}, "stop", "stop"),
    "reasoning by both names": ({"reasoning": "Hm.", "reasoning_content": "Hm.", "content": "Hello"}, "stop", "stop"),
    "reasoning only": ({"reasoning_content": "Hm.", "content": None}, "length", "length"),
    "reasoning before a call": (
        {"reasoning": "Hm.", "content": "", "tool_calls": [{"id": "a", "function": FUNCTION}]},
        "tool_calls",
        "tool_calls",
    ),
    "one call": ({"content": None, "tool_calls": [{"id": "a", "function": FUNCTION}]}, "tool_calls", "tool_calls"),
    "calls after a text": (
        {
            "content": "Adding.",
            "tool_calls": [
                {"id": "a", "function": FUNCTION},
                {"id": "a", "function": {"name": "add", "arguments": ""}},
            ],
        },
        "stop",
        "tool_calls",
    ),
    "cut in a call": ({"content": "", "tool_calls": [{"id": "a", "function": FUNCTION}]}, "length", "length"),
    "cut": ({"content": "Hel"}, "length", "length"),
    "filtered": ({"content": "Hel"}, "content_filter", "filter"),
    "refused": ({"content": None, "refusal": "I will not."}, "stop", "refusal"),
    "calls without any": ({"content": "Hm"}, "tool_calls", "other"),
    "a new word": ({"content": "Hm"}, "tired", "other"),
}


@pytest.mark.parametrize("name", REPLIES)
async def test_streamed_and_whole_are_the_same_reply(name: str) -> None:
    message, word, reason = REPLIES[name]
    calls = message.get("tool_calls", [])
    chunks = [chunk({"role": "assistant", "content": None})]
    names = [name for name in ("reasoning_content", "reasoning") if name in message]
    chunks += [chunk(dict.fromkeys(names, letter)) for name in names[:1] for letter in message[name]]
    chunks += [chunk({key: letter}) for key in ("content", "refusal") for letter in message.get(key) or ""]
    chunks += [chunk({"tool_calls": [{"index": index, **call}]}) for index, call in enumerate(calls)]
    chunks += [chunk(finish=word), chunk() | {"choices": [], "usage": SPENT}]
    one = await Server(streamed(*chunks)).ask()
    other = await Server(whole(completion(message, word, usage=SPENT))).ask(settings=WHOLE)
    assert joined(one) == joined(other)
    assert one[-1] == Finish(reason=reason, usage=USAGE, provider_reason=word)  # type: ignore[arg-type]  # a table


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@BOTH
async def test_reasoning_of_compatible_servers_is_seen_but_has_no_block(name: str, settings: Settings) -> None:
    pieces = [chunk({name: "Hm."}), chunk({name: " Well.", "content": ""}), chunk({name: None, "content": "Hello"})]
    message = {"content": "Hello", name: "Hm. Well."}
    answer = streamed(*pieces, chunk(finish="stop")) if settings.stream else whole(completion(message))
    assert joined(await Server(answer).ask(settings=settings)) == [
        ReasoningChunk(text="Hm. Well."),
        TextChunk(text="Hello"),
        Finish(reason="stop", provider_reason="stop"),
    ]


@pytest.mark.parametrize("odd", [None, "", [], {"summary": "Hm."}, 3])
@BOTH
async def test_reasoning_that_is_no_text_is_passed_over(odd: object, settings: Settings) -> None:
    said = {"content": "Hello", "reasoning": odd}
    answer = streamed(chunk(said), chunk(finish="stop")) if settings.stream else whole(completion(said))
    assert joined(await Server(answer).ask(settings=settings)) == [
        TextChunk(text="Hello"),
        Finish(reason="stop", provider_reason="stop"),
    ]


async def test_a_refusal_is_its_text() -> None:
    events = await Server(
        streamed(chunk({"refusal": "I "}), chunk({"refusal": "will not."}), chunk(finish="stop"))
    ).ask()
    assert joined(events) == [TextChunk(text="I will not."), Finish(reason="refusal", provider_reason="stop")]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({}, None),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"usage": {"prompt_tokens": 2, "completion_tokens": 1}}, Usage(input_tokens=2, output_tokens=1)),
        ({"usage": {"prompt_tokens": 2, "prompt_tokens_details": None}}, Usage(input_tokens=2)),
        ({"usage": {"completion_tokens": 1, "completion_tokens_details": {}}}, Usage(output_tokens=1)),
        ({"usage": {"prompt_tokens": "2", "completion_tokens": 1}}, Usage(output_tokens=1)),
        ({"usage": {"prompt_tokens": 2.0, "completion_tokens": 1.5}}, Usage(input_tokens=2, output_tokens=1)),
        ({"usage": {"prompt_tokens": -2, "completion_tokens": 1}}, Usage(output_tokens=1)),
        ({"usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": "many"}}}, Usage(input_tokens=2)),
        ({"usage": {"prompt_tokens": 2, "prompt_tokens_details": [2]}}, Usage(input_tokens=2)),
        ({"usage": [2, 1]}, None),
        ({"usage": SPENT}, USAGE),
    ],
)
@BOTH
async def test_usage_is_what_was_reported(last: Json, expected: Usage | None, settings: Settings) -> None:
    if settings.stream:
        answer = streamed(*HELLO, chunk(finish="stop"), {**chunk(), "choices": None, **last})
    else:
        answer = whole(completion({"role": "assistant", "content": "Hello"}, **last))
    finish = (await Server(answer).ask(settings=settings))[-1]
    assert isinstance(finish, Finish)
    assert finish.usage == expected


async def test_usage_in_every_chunk_counts_once() -> None:
    growing = [
        chunk({"content": letter}, usage={"prompt_tokens": 2, "completion_tokens": number})
        for number, letter in enumerate("abc", start=1)
    ]
    finish = (await Server(streamed(*growing, chunk(None, "stop") | {"usage": None})).ask())[-1]
    assert finish == Finish(reason="stop", usage=Usage(input_tokens=2, output_tokens=3), provider_reason="stop")


async def test_a_last_chunk_without_a_delta_is_no_error() -> None:
    last = chunk(finish="stop")
    last["choices"][0]["delta"] = None
    assert joined(await Server(streamed(*HELLO, last, done=False)).ask()) == [
        TextChunk(text="Hello"),
        Finish(reason="stop", provider_reason="stop"),
    ]


# -- how it fails


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_without_a_finish_reason_is_cut(done: bool) -> None:
    server = Server(streamed(*HELLO, done=done))
    assert (await server.failure()).code == "MODEL_CUT"


async def test_a_whole_reply_without_a_finish_reason_is_cut() -> None:
    server = Server(whole(completion({"role": "assistant", "content": "Hel"}, None)))
    assert (await server.failure(settings=WHOLE)).code == "MODEL_CUT"


STATUSES = [
    (400, {"type": "invalid_request_error"}, "MODEL_REQUEST", "the server answered 400 (invalid_request_error)"),
    (
        400,
        {"type": "invalid_request_error", "code": "context_length_exceeded"},
        "MODEL_CONTEXT",
        "the server answered 400 (invalid_request_error, context_length_exceeded)",
    ),
    (
        400,
        {"message": "This model's maximum context length is 5 tokens", "type": "BadRequestError", "code": 400},
        "MODEL_CONTEXT",
        "the server answered 400 (BadRequestError, 400)",
    ),
    (
        401,
        {"type": "invalid_request_error", "code": "invalid_api_key"},
        "MODEL_AUTH",
        f"the server answered 401 (invalid_request_error, invalid_api_key){REFUSED_KEY}",
    ),
    (403, {}, "MODEL_AUTH", "the server answered 403"),
    (
        404,
        {"code": "model_not_found"},
        "MODEL_REQUEST",
        "the server answered 404 (model_not_found); check that model.test has the model 'gpt-5', "
        "and the base URL's path",
    ),
    (408, {}, "MODEL_TIMEOUT", "the server answered 408"),
    (422, {"type": ["odd"]}, "MODEL_REQUEST", "the server answered 422"),
    (402, {}, "MODEL_QUOTA", "the server answered 402"),
    (429, {"type": "requests"}, "MODEL_RATE_LIMIT", "the server answered 429 (requests)"),
    (
        429,
        {"type": "insufficient_quota", "code": "insufficient_quota"},
        "MODEL_QUOTA",
        "the server answered 429 (insufficient_quota, insufficient_quota)",
    ),
    (500, {"type": "server_error"}, "MODEL_SERVER", "the server answered 500 (server_error)"),
    (503, f"{KEY} is not known", "MODEL_SERVER", "the server answered 503"),
]


@pytest.mark.parametrize(("status", "error", "code", "text"), STATUSES)
@BOTH
async def test_a_refusal_by_the_server_is_a_typed_error(
    status: int, error: Any, code: str, text: str, settings: Settings
) -> None:
    failure = await Server(refused(status, error)).failure(settings=settings)
    assert (failure.code, str(failure)) == (code, text)
    assert isinstance(failure.__cause__, openai.APIStatusError)


REPORTED = [
    ({"message": f"{KEY} failed", "type": "server_error"}, "MODEL_SERVER"),
    ({"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}, "MODEL_RATE_LIMIT"),
    ({"message": "slow down", "code": "rate_limit_exceeded"}, "MODEL_RATE_LIMIT"),
    ({"message": "too long", "code": "context_length_exceeded"}, "MODEL_CONTEXT"),
    ({"message": "pay", "type": "insufficient_quota"}, "MODEL_QUOTA"),
    ({"message": "no", "code": "invalid_prompt"}, "MODEL_REQUEST"),
    ({"message": "no", "type": "BadRequestError", "code": 400}, "MODEL_REQUEST"),
    ({"message": "pay", "code": 402}, "MODEL_QUOTA"),
    ({"message": "slow down", "code": "429"}, "MODEL_RATE_LIMIT"),
    ({"message": "maximum context length is 5", "code": 400}, "MODEL_CONTEXT"),
    ({"message": "it broke", "code": 502}, "MODEL_SERVER"),
    ({"message": "it broke", "code": 1301}, "MODEL_SERVER"),
    ("it broke", "MODEL_SERVER"),
]


@pytest.mark.parametrize(("error", "code"), REPORTED)
async def test_an_error_in_the_middle_of_a_stream_is_typed(error: object, code: str) -> None:
    failure = await Server(streamed(*HELLO, {"error": error})).failure()
    assert failure.code == code
    assert str(failure).startswith("the server reported an error")
    assert KEY not in str(failure)
    assert isinstance(failure.__cause__, openai.APIError)


@pytest.mark.parametrize(
    "data",
    [
        b"5",
        b'{"choices": [{"delta": {"content": ["x"]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [null]}}]}',
        b'{"choices": 5}',
    ],
)
async def test_a_chunk_that_cannot_be_read_is_a_typed_error(data: bytes) -> None:
    server = Server(lambda: httpx2.Response(200, content=sse(*HELLO) + b"data: " + data + b"\n\n"))
    assert (await server.failure()).code == "MODEL_SERVER"


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx2.Response(200, headers={"content-type": "application/json"}, content=b"{no json"),
        lambda: httpx2.Response(200, html="<p>Log in</p>"),
        whole({"error": {"message": "no credit"}}),
        whole({"choices": []}),
    ],
)
async def test_a_whole_reply_that_cannot_be_read_is_a_typed_error(answer: Answer) -> None:
    assert (await Server(answer).failure(settings=WHOLE)).code == "MODEL_SERVER"


@pytest.mark.parametrize(
    "broken",
    [
        {"content": {"x": 1}},
        {"refusal": ["no"]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": 5, "arguments": "{}"}}]},
    ],
)
@BOTH
async def test_a_field_of_another_type_is_a_typed_error(broken: Json, settings: Settings) -> None:
    answer = streamed(chunk(broken), chunk(finish="stop")) if settings.stream else whole(completion(broken))
    failure = await Server(answer).failure(settings=settings)
    assert (failure.code, str(failure)) == ("MODEL_SERVER", "the server's reply could not be read")


@pytest.mark.parametrize("word", [5, {"x": 1}, ["stop"]])
@BOTH
async def test_a_finish_reason_that_is_no_word_is_a_typed_error(word: Any, settings: Settings) -> None:
    answer = streamed(*HELLO, chunk(finish=word)) if settings.stream else whole(completion({"content": "Hello"}, word))
    assert (await Server(answer).failure(settings=settings)).code == "MODEL_SERVER"


@pytest.mark.parametrize("index", ["0", {"x": 1}, 0.5])
async def test_an_index_that_is_no_number_says_nothing(index: object) -> None:
    other = {"index": index, "id": "b", "function": {"name": "sub", "arguments": "{}"}}
    first = {"index": 0, "id": "a", "function": FUNCTION}
    events = await Server(
        streamed(chunk({"tool_calls": [first]}), chunk({"tool_calls": [other]}), chunk(finish="tool_calls"))
    ).ask()
    assert joined(events)[:2] == [CALL, WholeCall(name="sub", arguments="{}", provider_id="b")]


async def test_of_several_choices_only_the_first_is_read() -> None:
    def both(delta: Json, finish: str | None = None) -> Json:
        one = chunk(delta, finish)
        other = {"index": 1, "delta": {"content": "Other"}, "finish_reason": "length"}
        return {**one, "choices": [*one["choices"], other]}

    def second(delta: Json, finish: str | None = None) -> Json:
        made = chunk(delta, finish)
        made["choices"][0]["index"] = 1
        return made

    message = completion({"content": "Hello"})
    message["choices"].append({"index": 1, "message": {"content": "Other"}, "finish_reason": "length"})
    answer = streamed(
        chunk({"content": "Hel"}),
        second({"content": "Oth"}),
        both({"content": "lo"}),
        chunk(finish="stop"),
        second({}, "length"),
    )
    one, other = await Server(answer).ask(), await Server(whole(message)).ask(settings=WHOLE)
    assert joined(one) == joined(other) == [TextChunk(text="Hello"), Finish(reason="stop", provider_reason="stop")]


@pytest.mark.parametrize("nothing", [None, {}, ""])
@BOTH
async def test_an_error_that_says_nothing_is_none(nothing: object, settings: Settings) -> None:
    answer = streamed(*HELLO, chunk(finish="stop", error=nothing))
    if not settings.stream:
        answer = whole(completion({"content": "Hello"}, error=nothing))
    assert joined(await Server(answer).ask(settings=settings))[0] == TextChunk(text="Hello")


@pytest.mark.parametrize("word", ["error", "abort", "insufficient_system_resource"])
@BOTH
async def test_a_reply_that_the_server_broke_off_is_no_answer(word: str, settings: Settings) -> None:
    said = {"content": "Hel", "tool_calls": [{"index": 0, "id": "a", "function": FUNCTION}]}
    answer = streamed(chunk(said), chunk(finish=word)) if settings.stream else whole(completion(said, word))
    failure = await Server(answer).failure(settings=settings)
    assert (failure.code, str(failure)) == ("MODEL_CUT", f"the server broke the reply off ({word})")


@BOTH
async def test_a_reply_that_was_cut_by_another_word_is_cut(settings: Settings) -> None:
    said = {"content": "", "tool_calls": [{"index": 0, "id": "a", "function": FUNCTION}]}
    answer = streamed(chunk(said), chunk(finish="model_length"))
    if not settings.stream:
        answer = whole(completion(said, "model_length"))
    assert (await Server(answer).ask(settings=settings))[-1] == Finish(reason="length", provider_reason="model_length")


@BOTH
async def test_a_call_of_a_kind_that_nobody_here_answers_is_an_error(settings: Settings) -> None:
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    said = {"content": "Hm", "tool_calls": [custom]}
    answer = streamed(chunk(said), chunk(finish="tool_calls"))
    if not settings.stream:
        answer = whole(completion(said, "tool_calls"))
    failure = await Server(answer).failure(settings=settings)
    assert failure.code == "MODEL_REQUEST"
    assert "custom" in str(failure)


@pytest.mark.parametrize(("error", "code"), REPORTED)
@pytest.mark.parametrize("said", [{}, completion({"content": "Hel"})], ids=["alone", "beside a reply"])
async def test_an_error_in_place_of_a_whole_reply_is_typed_as_in_a_stream(error: object, code: str, said: Json) -> None:
    failure = await Server(whole({**said, "error": error})).failure(settings=WHOLE)
    assert failure.code == code
    assert str(failure).startswith("the server reported an error")
    assert KEY not in str(failure)


# -- when it asks nothing


@pytest.mark.parametrize("key", [None, ""])
async def test_a_missing_key_names_the_variable(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        await anext(OpenAIChat("gpt-5").stream(asked()))
    assert caught.value.code == "MODEL_AUTH"
    assert isinstance(caught.value.__cause__, openai.OpenAIError)


async def test_a_server_that_does_not_stream_is_told_from_a_reply_that_was_cut() -> None:
    failure = await Server(lambda: httpx2.Response(200, json={"choices": []})).failure()
    text = "model.test answered whole where a stream was asked for: check the base URL, or use Settings(stream=False)"
    assert (failure.code, str(failure)) == ("MODEL_SERVER", text)


@pytest.mark.parametrize(
    ("key", "scheme", "why"),
    [
        (KEY, "", "UnsupportedProtocol"),
        (f"{KEY}\n", "http://", "LocalProtocolError"),
        (f"{KEY}é", "http://", "UnicodeEncodeError"),
    ],
)
async def test_an_address_or_key_of_which_no_request_can_be_made_is_not_tried_again(
    key: str, scheme: str, why: str
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client = AsyncOpenAI(api_key=key, base_url=f"{scheme}{host}:{port}/v1", max_retries=0)
        with pytest.raises(ModelError) as caught:
            await anext(OpenAIChat("gpt-5", client=client).stream(asked()))
        await client.close()
    text = f"no request could be made ({why}): check the base URL, the key of the client, and Settings(extra=…)"
    assert (caught.value.code, str(caught.value)) == ("MODEL_REQUEST", text)
    assert KEY not in "".join(traceback.format_exception(caught.value))  # the HTTP library quotes the whole header


async def test_a_refused_key_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://user:{KEY}@{host}:{port}/v1")
        with pytest.raises(ModelError) as caught:
            await anext(OpenAIChat("gpt-5").stream(asked()))
    told = f"the server answered 401; check OPENAI_API_KEY, and that it is a key of {host}:{port}"
    assert str(caught.value) == told


async def test_a_client_that_could_not_be_made_is_made_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = OpenAIChat("gpt-5")
    with pytest.raises(ModelError):
        await anext(model.stream(asked()))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert (await client_here(model._clients)).api_key == KEY


# -- its clients


def test_it_says_who_answers() -> None:
    model = OpenAIChat("gpt-5")
    assert model.info() == ModelInfo(provider="openai", model="gpt-5", context_window=272_000, output="schema")
    assert repr(model) == "OpenAIChat('gpt-5')"


def test_each_loop_has_a_client_of_its_own_which_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OpenAIChat("gpt-5")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def two() -> tuple[AsyncOpenAI, AsyncOpenAI]:
        return await client_here(model._clients), await client_here(model._clients)

    first, again = asyncio.run(two())
    second, _ = asyncio.run(two())
    assert first is again
    assert second is not first
    assert first.is_closed()
    assert second.is_closed()
    assert len(model._clients._owned) == 1
