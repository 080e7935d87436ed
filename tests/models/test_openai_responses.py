"""What the Responses adapter sends, what it makes of what comes back, and how it fails."""

import asyncio
import json
from collections.abc import Iterable, Iterator
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
    WHOLE,
    Answer,
    Json,
    asked,
    joined,
    refused,
    streamed,
    whole,
)
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
from weft.models._openai_sdk import client_here
from weft.models.openai_responses import OpenAIResponses
from weft.models.resolve import resolve
from weft.testing import CountingIds

# -- what a server says


class Server(served.Server):
    path = "responses"
    adapter = OpenAIResponses


SPENT = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 29,
}
USAGE = Usage(input_tokens=20, output_tokens=9, cache_read_tokens=8, cache_write_tokens=4, reasoning_tokens=3)


def response(*items: Json, status: str | None = "completed", **more: Any) -> Json:
    return {"id": "resp", "object": "response", "model": "m", "status": status, "output": list(items), **more}


def text(*texts: str, **more: object) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": parts, **more}


def refusal(said: str) -> Json:
    return text(content=[{"type": "refusal", "refusal": said}])


def call(arguments: object = '{"x": 1}', id: str = "call_1", name: str = "add", **more: object) -> Json:
    return {"type": "function_call", "id": "fc", "call_id": id, "name": name, "arguments": arguments, **more}


def thought(*summary: str, **more: object) -> Json:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": "rs_1", "summary": parts, "encrypted_content": "gAAA=", **more}


SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}


DELTAS = {
    "output_text": ("response.output_text.delta", "content_index", "text"),
    "refusal": ("response.refusal.delta", "content_index", "refusal"),
    "summary_text": ("response.reasoning_summary_text.delta", "summary_index", "text"),
    "reasoning_text": ("response.reasoning_text.delta", "content_index", "text"),
}


def written(item: Json, index: int) -> Iterator[Json]:
    """The events of an item that is streamed letter by letter."""
    empty = {"arguments": ""} if item["type"] == "function_call" else {"content": [], "encrypted_content": "in"}
    yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **empty}}
    if item["type"] == "function_call":
        for letter in item["arguments"] or "":
            yield {"type": "response.function_call_arguments.delta", "output_index": index, "delta": letter}
    for field in ("content", "summary"):
        for place, part in enumerate((item["type"] != "brand_new" and item.get(field)) or ()):
            event, where, key = DELTAS[part["type"]]
            for letter in part[key]:
                yield {"type": event, "output_index": index, where: place, "delta": letter}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def events(*items: Json, status: str = "completed", **more: object) -> list[Json]:
    """A whole streamed reply."""
    begun = {"type": "response.created", "response": response(status="in_progress")}
    said = [event for index, item in enumerate(items) for event in written(item, index)]
    return [begun, *said, {"type": f"response.{status}", "response": response(*items, status=status, **more)}]


async def sent(*messages: Message, **more: Any) -> Json:
    """The body that a request becomes, without what every body has."""
    server = Server(streamed(*events(text("Hello"))), model=more.pop("model", "gpt-5"))
    await server.ask(*messages, **more)
    (body,) = server.bodies
    for name, value in ALWAYS.items():
        assert body.pop(name) == value
    assert body.pop("stream") is True
    return body


ALWAYS = {"model": "gpt-5", "store": False, "include": ["reasoning.encrypted_content"]}


# -- what is sent


@BOTH
async def test_a_request_is_exactly_this(settings: Settings) -> None:
    server = Server(streamed(*events(text("Hello"))) if settings.stream else whole(response(text("Hello"))))
    await server.ask(settings=settings)
    assert server.bodies == [{**ALWAYS, "input": [{"role": "user", "content": "Hi"}], "stream": settings.stream}]


def own(item: Json, provider: str = "openai-responses", model: str = "gpt-5") -> Reasoning:
    return Reasoning(text="Hm.", block=json.dumps(item), provider=provider, model=model)


def said(*texts: str) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "status": "completed", "content": parts}


async def test_a_transcript_keeps_its_order_and_carries_wefts_own_ids() -> None:
    first = ToolCall(id="weft1", name="add", arguments='{"x": 1}', provider_id="call_1")
    second = ToolCall(id="weft2", name="add", arguments='{"x": 2}', provider_id="call_1")
    other = thought(id="rs_2")
    body = await sent(
        Message.user("Add."),
        Message(
            role="assistant",
            parts=(own(thought("Hm.")), Text(text="I "), Text(text="add."), first, own(other), own(SEARCH), second),
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
    assert body == {
        "instructions": "Be exact.",
        "input": [
            {"role": "user", "content": "Add."},
            thought("Hm."),
            said("I ", "add."),
            {"type": "function_call", "call_id": "weft1", "name": "add", "arguments": '{"x": 1}'},
            other,
            SEARCH,
            {"type": "function_call", "call_id": "weft2", "name": "add", "arguments": '{"x": 2}'},
            {"type": "function_call_output", "call_id": "weft1", "output": "3"},
            {"type": "function_call_output", "call_id": "weft2", "output": "no"},
            said("Done."),
            {"role": "user", "content": "Thanks."},
        ],
    }


async def test_nothing_empty_is_sent() -> None:
    body = await sent(
        Message(role="user", parts=(Text(text=""),)),
        Message(role="assistant", parts=()),
        Message(role="assistant", parts=(Reasoning(text="Hm."), Text(text=""))),
        Message(role="user", parts=(Text(text=""), Text(text="Hi"))),
        instructions="",
    )
    assert body == {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}


@pytest.mark.parametrize(
    "part",
    [
        own(thought(), model="gpt-5-mini"),
        own(thought(), provider="openai"),
        Reasoning(text="Hm.", block=json.dumps(thought())),
        Reasoning(text="Hm.", provider="openai-responses", model="gpt-5"),
        own(thought(encrypted_content=None)),
        own(thought("Hm.", encrypted_content="")),
    ],
    ids=["another model", "another provider", "nobody's", "text only", "nothing in it", "a summary only"],
)
async def test_reasoning_that_the_server_could_not_use_is_left_out(part: Reasoning) -> None:
    body = await sent(Message(role="assistant", parts=(part, Text(text="Hello"))), Message.user("Hi"))
    assert body["input"] == [said("Hello"), {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("block", ["{no json", "[1]", "{}", '{"type": "reasoning", "encrypted_content": "\\ud800"}'])
async def test_a_block_that_cannot_be_sent_stays_here(block: str) -> None:
    part = Reasoning(text="Hm.", block=block, provider="openai-responses", model="gpt-5")
    body = await sent(Message(role="assistant", parts=(part, Text(text="Hello"))), Message.user("Hi"))
    assert body["input"] == [said("Hello"), {"role": "user", "content": "Hi"}]


async def test_reasoning_that_nothing_follows_is_left_out() -> None:
    body = await sent(
        Message(role="assistant", parts=(own(thought()),)),
        Message(role="assistant", parts=(Text(text="Hello"), own(thought()), own(thought(id="rs_2")))),
        Message.user("Hi"),
    )
    assert body["input"] == [said("Hello"), {"role": "user", "content": "Hi"}]


async def test_reasoning_in_the_open_is_sent_back_as_well() -> None:
    item = thought(encrypted_content=None, content=[{"type": "reasoning_text", "text": "Hm."}])
    body = await sent(Message(role="assistant", parts=(own(item), Text(text="Hello"))), Message.user("Hi"))
    del item["encrypted_content"]
    assert body["input"][0] == item


async def test_a_field_that_is_null_is_not_sent_back() -> None:
    item = thought(status=None, content=None)
    body = await sent(Message(role="assistant", parts=(own(item), Text(text="Hello"))), Message.user("Hi"))
    assert body["input"][0] == thought()


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
    made_up = ToolCall(id="weft1", name=name, arguments=arguments)
    result = Message(role="tool", parts=(ToolResult(call="weft1", content="no", is_error=True),))
    body = await sent(Message.user("Hi"), Message(role="assistant", parts=(made_up,)), result)
    assert body["input"][1] == {"type": "function_call", "call_id": "weft1", **expected}


async def test_files_go_with_their_text() -> None:
    parts = (
        Text(text="Compare."),
        File(media_type="image/png", data=b"\x01\x02"),
        File(media_type="image/jpeg", url="https://pictures.test/a.jpg"),
        File(media_type="application/pdf", data=b"%PDF"),
        File(media_type="application/pdf", url="https://papers.test/a.pdf"),
    )
    body = await sent(Message(role="user", parts=parts))
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "Compare."},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AQI="},
        {"type": "input_image", "detail": "auto", "image_url": "https://pictures.test/a.jpg"},
        {"type": "input_file", "filename": "file.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        {"type": "input_file", "file_url": "https://papers.test/a.pdf"},
    ]


async def test_a_file_that_cannot_be_sent_is_refused_before_the_request() -> None:
    server = Server()
    error = await server.failure(Message(role="user", parts=(File(media_type="image/png"),)))
    assert error.code == "MODEL_REQUEST"
    assert "image/png" in str(error)
    assert server.bodies == []


async def test_tools_and_settings_are_exactly_this() -> None:
    body = await sent(
        tools=(ADD,),
        tool_choice="required",
        settings=Settings(temperature=0.0, max_tokens=50, parallel_tool_calls=False, effort="low"),
        output_schema={"type": "object"},
    )
    assert body == {
        "input": [{"role": "user", "content": "Hi"}],
        "temperature": 0.0,
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Add two numbers.",
                "parameters": ADD.schema,
                "strict": False,
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "output", "schema": {"type": "object"}, "strict": False}},
    }


async def test_without_tools_nothing_is_said_about_tools() -> None:
    body = await sent(tool_choice="none", settings=Settings(parallel_tool_calls=True))
    assert body == {"input": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("auto", None), ("none", "none"), ("required", "required"), ("add", {"type": "function", "name": "add"})],
)
async def test_a_tool_choice_is_a_word_or_a_tool(choice: str, expected: object) -> None:
    assert (await sent(tools=(ADD,), tool_choice=choice)).get("tool_choice") == expected


async def test_extra_fields_go_in_last_and_as_they_are() -> None:
    extra = {"reasoning": {"effort": "high", "summary": "auto"}, "top_logprobs": 2, "new": {"deep": None}}
    body = await sent(settings=Settings(effort="low", extra=extra))
    assert body == {"input": [{"role": "user", "content": "Hi"}], **extra}


async def test_what_is_shared_is_not_changed() -> None:
    extra = {"reasoning": {"summary": "auto"}, "metadata": {"a": "b"}}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    more: Json = {"tools": (ADD,), "settings": Settings(effort="low", extra=extra), "output_schema": schema}
    before = deepcopy((ADD.schema, extra, schema))
    server = Server(*[streamed(*events(text("Hello")))] * 2)
    for _ in range(2):
        assert await server.ask(**more)
    assert (ADD.schema, extra, schema) == before
    assert server.bodies[0] == server.bodies[1]


async def test_a_model_without_encrypted_reasoning_is_asked_without_it_from_then_on() -> None:
    server = Server(
        refused(400, {"message": "not supported", "type": "invalid_request_error", "param": "include", "code": None}),
        streamed(*events(text("Hello"))),
        whole(response(text("Hello"))),
    )
    assert joined(await server.ask())[0] == TextChunk(text="Hello")
    assert joined(await server.ask(settings=WHOLE))[0] == TextChunk(text="Hello")
    assert [body.get("include") for body in server.bodies] == [ALWAYS["include"], None, None]


async def test_a_request_that_is_refused_for_anything_else_is_not_asked_again() -> None:
    server = Server(refused(400, {"message": "no", "type": "invalid_request_error", "param": "tools", "code": None}))
    assert (await server.failure()).code == "MODEL_REQUEST"
    assert len(server.bodies) == 1


# -- what comes back


BLOCK = (
    '{"id": "rs_1", "summary": [{"text": "A", "type": "summary_text"}, {"text": "B", "type": "summary_text"}],'
    ' "type": "reasoning", "encrypted_content": "gAAA="}'
)


async def test_a_streamed_reply_gives_exactly_these_events() -> None:
    given = events(thought("A", "B"), text("Hi"), call(), usage=SPENT)
    assert await Server(streamed(*given, done=False)).ask() == [
        ReasoningChunk(text="A"),
        ReasoningChunk(text="\n\nB"),
        ReasoningChunk(block=BLOCK),
        TextChunk(text="H"),
        TextChunk(text="i"),
        ToolCallChunk(index=2, name="add"),
        *(ToolCallChunk(index=2, arguments=letter) for letter in '{"x": 1}'),
        WholeCall(name="add", arguments='{"x": 1}', provider_id="call_1"),
        Finish(reason="tool_calls", usage=USAGE, provider_reason="completed"),
    ]


async def test_a_whole_reply_gives_exactly_these_events() -> None:
    server = Server(whole(response(thought("A", "B"), text("Hi"), call(), usage=SPENT)))
    assert await server.ask(settings=WHOLE) == [
        ReasoningChunk(text="A\n\nB", block=BLOCK),
        TextChunk(text="Hi"),
        ToolCallChunk(index=2, name="add", arguments='{"x": 1}'),
        WholeCall(name="add", arguments='{"x": 1}', provider_id="call_1"),
        Finish(reason="tool_calls", usage=USAGE, provider_reason="completed"),
    ]


OPEN = thought(content=[{"type": "reasoning_text", "text": "Hm."}], encrypted_content=None)
CUT: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED: Json = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
REPLIES: dict[str, tuple[list[Json], Json, str, str]] = {
    "text": ([text("Hello")], {}, "stop", "completed"),
    "text in parts": ([text("Hel", "lo")], {}, "stop", "completed"),
    "texts in turn": ([text("Hello", phase="commentary"), text("there")], {}, "stop", "completed"),
    "nothing": ([], {}, "stop", "completed"),
    "an empty text": ([text("")], {}, "stop", "completed"),
    "one call": ([call()], {}, "tool_calls", "completed"),
    "calls after a text": ([text("Adding."), call(), call("", "call_1", "sub")], {}, "tool_calls", "completed"),
    "a call before a text": ([call(), text("Added.")], {}, "tool_calls", "completed"),
    "reasoning": ([thought("Hm."), text("Hello")], {}, "stop", "completed"),
    "reasoning in paragraphs": ([thought("Hm.", "", "Well.", "No."), text("Hello")], {}, "stop", "completed"),
    "reasoning in paragraphs, twice": (
        [thought("A", "B"), thought("C", id="rs_2"), text("Hello")],
        {},
        "stop",
        "completed",
    ),
    "reasoning unseen": ([thought(), text("Hello")], {}, "stop", "completed"),
    "reasoning in the open": ([OPEN, call()], {}, "tool_calls", "completed"),
    "reasoning in turn": (
        [thought("A"), thought("B", id="rs_2"), call(), thought("C", id="rs_3"), call(id="call_2")],
        {},
        "tool_calls",
        "completed",
    ),
    "a search": ([thought(), SEARCH, thought(id="rs_2"), text("Found.")], {}, "stop", "completed"),
    "something new": ([text("Not this.", type="brand_new"), text("Hello")], {}, "stop", "completed"),
    "cut": ([text("Hel")], CUT, "length", "max_output_tokens"),
    "cut in a call": ([call('{"x"', status="incomplete")], CUT, "length", "max_output_tokens"),
    "cut while thinking": ([thought("Hm")], CUT, "length", "max_output_tokens"),
    "cut for no reason": ([text("Hel")], {"status": "incomplete"}, "length", "incomplete"),
    "cut by something new": (
        [text("Hel")],
        {"status": "incomplete", "incomplete_details": {"reason": "steered"}},
        "length",
        "steered",
    ),
    "filtered": ([text("Hel")], FILTERED, "filter", "content_filter"),
    "refused": ([refusal("I will not.")], {}, "refusal", "completed"),
    "refused after a text": ([text("Hm."), refusal("I will not.")], {}, "refusal", "completed"),
}


def kept(given: Iterable[ModelEvent]) -> tuple[Message, Finish]:
    """The message that a run makes of the events."""
    reply = Reply("run", CountingIds(), None)
    for event in given:
        reply.take(event)
    return reply.whole(ModelInfo(provider="openai-responses", model="gpt-5"))


@pytest.mark.parametrize("name", REPLIES)
async def test_streamed_and_whole_are_the_same_reply(name: str) -> None:
    items, more, reason, word = REPLIES[name]
    one = await Server(streamed(*events(*items, usage=SPENT, **more))).ask()
    other = await Server(whole(response(*items, usage=SPENT, **more))).ask(settings=WHOLE)
    assert joined(one) == joined(other)
    assert kept(one) == kept(other)
    assert one[-1] == Finish(reason=reason, usage=USAGE, provider_reason=word)  # type: ignore[arg-type]  # a table


@pytest.mark.parametrize("name", REPLIES)
async def test_a_stream_that_leaves_the_items_to_its_last_event_is_the_same_reply(name: str) -> None:
    items, more, _, _ = REPLIES[name]
    given = [event for event in events(*items, **more) if "output_item" not in event["type"]]
    for event in given:
        event.pop("delta", None)
    one = await Server(streamed(*given)).ask()
    other = await Server(whole(response(*items, **more))).ask(settings=WHOLE)
    assert joined(one) == joined(other)


@pytest.mark.parametrize("index", [None, 0, 7])
@pytest.mark.parametrize("name", REPLIES)
async def test_a_stream_whose_indexes_say_nothing_is_the_same_reply(name: str, index: int | None) -> None:
    items, more, _, _ = REPLIES[name]
    given = events(*items, **more)
    for event in given:
        if "output_index" in event:
            event["output_index"] = index
    one = await Server(streamed(*given)).ask()
    other = await Server(whole(response(*items, **more))).ask(settings=WHOLE)
    assert joined(one) == joined(other)


async def test_a_stream_that_is_cut_in_a_call_keeps_the_call_of_its_last_event() -> None:
    given = events(text("Hi"), call('{"x"'), **CUT)
    assert given.pop(-2)["type"] == "response.output_item.done"
    assert joined(await Server(streamed(*given)).ask()) == [
        TextChunk(text="Hi"),
        WholeCall(name="add", arguments='{"x"', provider_id="call_1"),
        Finish(reason="length", provider_reason="max_output_tokens"),
    ]


async def test_reasoning_in_the_open_is_seen_as_it_comes() -> None:
    thoughts = [event for event in await Server(streamed(*events(OPEN))).ask() if isinstance(event, ReasoningChunk)]
    assert [thought.text for thought in thoughts] == ["H", "m", ".", ""]


async def test_a_refusal_that_only_the_fragments_hold_is_one() -> None:
    given = [event for event in events(refusal("No.")) if "output_item" not in event["type"]]
    given[-1]["response"] = response()
    assert joined(await Server(streamed(*given)).ask()) == [
        TextChunk(text="No."),
        Finish(reason="refusal", provider_reason="completed"),
    ]


async def test_items_at_one_index_take_nothing_from_each_other() -> None:
    items = [text("A"), call(id="a"), text("B"), call("", id="b")]
    given = [*written(items[0], 0), *written(items[1], 0)]
    given += [{"type": "response.output_item.done", "output_index": 0, "item": item} for item in items[2:]]
    end = {"type": "response.completed", "response": response(*items)}
    assert joined(await Server(streamed(*given, end)).ask()) == [
        TextChunk(text="A"),
        WholeCall(name="add", arguments='{"x": 1}', provider_id="a"),
        TextChunk(text="B"),
        WholeCall(name="add", arguments="{}", provider_id="b"),
        Finish(reason="tool_calls", provider_reason="completed"),
    ]


async def test_items_that_are_written_at_once_are_told_apart() -> None:
    one, other = list(written(call(id="a"), 0)), list(written(call('{"x": 2}', id="b"), 1))
    mixed = [event for pair in zip(one, other, strict=True) for event in pair]
    end = {"type": "response.completed", "response": response(call(id="a"), call('{"x": 2}', id="b"))}
    assert joined(await Server(streamed(*mixed, end)).ask()) == [
        WholeCall(name="add", arguments='{"x": 1}', provider_id="a"),
        WholeCall(name="add", arguments='{"x": 2}', provider_id="b"),
        Finish(reason="tool_calls", provider_reason="completed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(None, "{}"), ("", "{}"), (" \n", "{}"), ({"x": 1}, '{"x": 1}'), ('{"x"', '{"x"'), ("[1]", "[1]")],
)
@BOTH
async def test_odd_arguments_come_through_the_sdk(arguments: object, expected: str, settings: Settings) -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": call(arguments)}
    end = {"type": "response.completed", "response": response(call(arguments))}
    answer = streamed(done, end) if settings.stream else whole(end["response"])
    assert joined(await Server(answer).ask(settings=settings))[0] == WholeCall(
        name="add", arguments=expected, provider_id="call_1"
    )


async def test_arguments_that_only_the_fragments_hold_are_not_lost() -> None:
    given = events(call())
    given[-2]["item"] = call("")
    given[-1]["response"] = response(call(""))
    assert joined(await Server(streamed(*given)).ask())[0] == WholeCall(
        name="add", arguments='{"x": 1}', provider_id="call_1"
    )


@BOTH
async def test_reasoning_goes_back_as_it_came(settings: Settings) -> None:
    items = [
        thought("Hm.", " é "),
        text("Adding."),
        thought(id="rs_2", encrypted_content="x" * 5000, new={"deep": [1.5, None, "é"]}),
        SEARCH,
        call(),
    ]
    answer = streamed(*events(*items)) if settings.stream else whole(response(*items))
    server = Server(answer, streamed(*events(text("Done."))))
    message, _ = kept(await server.ask(settings=settings))
    (made,) = message.calls
    results = Message(role="tool", parts=(ToolResult(call=made.id, content="3"),))
    await server.ask(Message.user("Hi"), message, results)
    assert server.bodies[1]["input"] == [
        {"role": "user", "content": "Hi"},
        items[0],
        said("Adding."),
        items[2],
        SEARCH,
        {"type": "function_call", "call_id": made.id, "name": "add", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": made.id, "output": "3"},
    ]
    blocks = [part.block for part in message.parts if isinstance(part, Reasoning)]
    assert [json.loads(block or "") for block in blocks] == [items[0], items[2], SEARCH]
    other = Server(streamed(*events(text("Done."))), model="gpt-5-mini")
    await other.ask(Message.user("Hi"), message, results)
    assert [item.get("type") for item in other.bodies[0]["input"]] == [
        None,
        "message",
        "function_call",
        "function_call_output",
    ]


@pytest.mark.parametrize("left_out", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("twice", [True, False])
async def test_each_item_is_taken_once_whatever_of_it_the_stream_completes(
    left_out: tuple[int, ...], *, twice: bool
) -> None:
    items = (thought(), call(id="call_1"), call('{"x": 2}', id="call_2"))
    given: list[Json] = []
    for event in events(*items):
        done = event["type"] == "response.output_item.done"
        if not (done and event["output_index"] in left_out):
            given += [event] * (2 if done and twice else 1)
    taken = await Server(streamed(*given)).ask()
    assert sum(isinstance(event, ReasoningChunk) for event in taken) == 1
    made = [event for event in taken if isinstance(event, WholeCall)]
    assert sorted((one.arguments, one.provider_id) for one in made) == [('{"x": 1}', "call_1"), ('{"x": 2}', "call_2")]


@pytest.mark.parametrize("index", [0, None])
async def test_items_that_the_server_does_not_number_are_taken_once(index: int | None) -> None:
    items = (thought(), call(id="call_1"), call('{"x": 2}', id="call_2"))
    given = [{**event, "output_index": index} if "item" in event else event for event in events(*items)]
    given = [event for event in given if "delta" not in event]
    taken = await Server(streamed(*given)).ask()
    assert [event.provider_id for event in taken if isinstance(event, WholeCall)] == ["call_1", "call_2"]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, None),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"usage": {"input_tokens": 0, "output_tokens": 0}}, None),
        ({"usage": {"input_tokens": 2, "output_tokens": 1}}, Usage(input_tokens=2, output_tokens=1)),
        ({"usage": {"input_tokens": 2, "input_tokens_details": None}}, Usage(input_tokens=2)),
        ({"usage": {"output_tokens": 1, "output_tokens_details": {}}}, Usage(output_tokens=1)),
        ({"usage": {"input_tokens": "2", "output_tokens": 1}}, Usage(output_tokens=1)),
        ({"usage": {"input_tokens": 2.0, "output_tokens": 1.5}}, Usage(input_tokens=2, output_tokens=1)),
        ({"usage": {"input_tokens": -2, "output_tokens": 1}}, Usage(output_tokens=1)),
        ({"usage": {"input_tokens": 2, "input_tokens_details": {"cached_tokens": "many"}}}, Usage(input_tokens=2)),
        ({"usage": {"input_tokens": 2, "input_tokens_details": [2]}}, Usage(input_tokens=2)),
        ({"usage": [2, 1]}, None),
        ({"usage": SPENT}, USAGE),
    ],
)
@BOTH
async def test_usage_is_what_was_reported(usage: Json, expected: Usage | None, settings: Settings) -> None:
    answer = streamed(*events(text("Hello"), **usage)) if settings.stream else whole(response(text("Hello"), **usage))
    finish = (await Server(answer).ask(settings=settings))[-1]
    assert isinstance(finish, Finish)
    assert finish.usage == expected


async def test_events_that_mean_nothing_here_are_passed_over() -> None:
    odd: list[Json] = [
        {"type": "response.brand_new", "delta": "x"},
        {"delta": "x"},
        {"type": "response.output_text.delta", "output_index": 0, "delta": None},
        {"type": "response.output_item.added", "output_index": 0, "item": None},
        {"type": "response.audio.delta", "delta": "x"},
        {"type": "response.output_item.done", "output_index": 0, "item": text("Not this.", type="brand_new")},
    ]
    given = events(text("Hello"))
    given[-1]["response"] = response()
    assert joined(await Server(streamed(*odd, *given)).ask()) == [
        TextChunk(text="Hello"),
        Finish(reason="stop", provider_reason="completed"),
    ]


# -- how it fails


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_without_its_last_event_is_cut(done: bool) -> None:
    server = Server(streamed(*events(text("Hello"), call())[:-1], done=done))
    assert (await server.failure()).code == "MODEL_CUT"


@pytest.mark.parametrize("status", ["in_progress", "queued", "cancelled"])
async def test_a_whole_reply_that_is_not_at_its_end_is_cut(status: str) -> None:
    server = Server(whole(response(text("Hel"), status=status)))
    assert (await server.failure(settings=WHOLE)).code == "MODEL_CUT"


FAILURES = [
    ({"code": "server_error", "message": f"{KEY} failed"}, "MODEL_SERVER", " (server_error)"),
    ({"code": "rate_limit_exceeded", "message": "slow down"}, "MODEL_RATE_LIMIT", " (rate_limit_exceeded)"),
    ({"code": "context_length_exceeded", "message": "long"}, "MODEL_CONTEXT", " (context_length_exceeded)"),
    ({"code": None, "message": "maximum context length is 5"}, "MODEL_CONTEXT", ""),
    ({"code": "invalid_prompt", "message": "no"}, "MODEL_REQUEST", " (invalid_prompt)"),
    ({"code": KEY, "message": None}, "MODEL_SERVER", ""),
]


@pytest.mark.parametrize(("error", "code", "tail"), FAILURES)
@pytest.mark.parametrize("how", ["whole", "failed", "completed as failed", "error", "wrapped"])
async def test_a_reply_that_failed_is_a_typed_error(error: Json, code: str, tail: str, how: str) -> None:
    last: Json = response(text("Hel"), status="failed", error=error)
    begun = events(text("Hello"))[:-1]
    answers = {
        "whole": whole(last),
        "failed": streamed(*begun, {"type": "response.failed", "response": last}),
        "completed as failed": streamed(*begun, {"type": "response.completed", "response": last}),
        "error": streamed(*begun, {"type": "error", **error}),
        "wrapped": streamed(*begun, {"type": "error", "error": error}),
    }
    failure = await Server(answers[how]).failure(settings=WHOLE if how == "whole" else Settings())
    assert (failure.code, str(failure)) == (code, f"the server reported an error{tail}")


@BOTH
async def test_an_error_beside_a_reply_without_a_status_is_told(settings: Settings) -> None:
    last = response(status=None, error={"code": "rate_limit_exceeded", "message": "slow down"})
    answer = streamed({"type": "response.completed", "response": last}) if settings.stream else whole(last)
    failure = await Server(answer).failure(settings=settings)
    assert (failure.code, str(failure)) == ("MODEL_RATE_LIMIT", "the server reported an error (rate_limit_exceeded)")


@pytest.mark.parametrize(
    "kind",
    ["apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_approval_request"],
)
@BOTH
async def test_a_call_of_a_kind_that_nobody_here_answers_is_an_error(kind: str, settings: Settings) -> None:
    item = {"type": kind, "id": "c", "call_id": "a", "name": "shell", "input": "ls", "arguments": "{}"}
    answer = streamed(*events(text("Hm"), item)) if settings.stream else whole(response(text("Hm"), item))
    failure = await Server(answer).failure(settings=settings)
    assert failure.code == "MODEL_REQUEST"
    assert kind in str(failure)


async def test_a_reply_whose_call_never_comes_whole_is_no_answer() -> None:
    given = [event for event in events(call()) if event["type"] != "response.output_item.done"]
    given[-1]["response"] = response()
    assert (await Server(streamed(*given)).failure()).code == "MODEL_SERVER"


async def test_a_call_that_its_last_event_alone_completes_may_have_been_written_elsewhere() -> None:
    given = [event for event in events(call()) if event["type"] != "response.output_item.done"]
    given = [{**event, "output_index": 7} if "output_index" in event else event for event in given]
    assert joined(await Server(streamed(*given)).ask()) == [
        WholeCall(name="add", arguments='{"x": 1}', provider_id="call_1"),
        Finish(reason="tool_calls", provider_reason="completed"),
    ]


async def test_a_call_that_the_limit_has_cut_need_not_come_whole() -> None:
    given = [event for event in events(call(), **CUT) if event["type"] != "response.output_item.done"]
    given[-1]["response"] = response(**CUT)
    assert (await Server(streamed(*given)).ask())[-1] == Finish(reason="length", provider_reason="max_output_tokens")


@pytest.mark.parametrize(
    "broken",
    [call(name=5), call(name=None), text(content=[{"type": "output_text", "text": 5}])],  # type: ignore[arg-type]
)
@BOTH
async def test_a_field_of_another_type_is_a_typed_error(broken: Json, settings: Settings) -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": broken}
    end = {"type": "response.completed", "response": response(broken)}
    answer = streamed(done, end) if settings.stream else whole(end["response"])
    with pytest.raises(ModelError):
        kept(await Server(answer).ask(settings=settings))


@BOTH
async def test_a_reason_that_is_no_word_is_a_typed_error(settings: Settings) -> None:
    more: Json = {"status": "incomplete", "incomplete_details": {"reason": ["odd"]}}
    answer = streamed(*events(text("Hel"), **more)) if settings.stream else whole(response(text("Hel"), **more))
    assert (await Server(answer).failure(settings=settings)).code == "MODEL_SERVER"


@pytest.mark.parametrize("index", ["0", {"x": 1}, 0.5])
async def test_an_index_that_is_no_number_says_nothing(index: object) -> None:
    given = [{**event, "output_index": index} if "output_index" in event else event for event in events(call())]
    taken = await Server(streamed(*given)).ask()
    assert {event.index for event in taken if isinstance(event, ToolCallChunk)} == {0}
    assert joined(taken) == [
        WholeCall(name="add", arguments='{"x": 1}', provider_id="call_1"),
        Finish(reason="tool_calls", provider_reason="completed"),
    ]


@pytest.mark.parametrize("status", [None, "in_progress"])
async def test_a_last_event_that_does_not_repeat_the_status_ends_the_reply(status: str | None) -> None:
    given = events(text("Hello"))
    given[-1]["response"]["status"] = status
    assert (await Server(streamed(*given)).ask())[-1] == Finish(reason="stop", provider_reason="completed")


async def test_a_failure_without_a_reason_is_a_typed_error() -> None:
    last = {"type": "response.failed", "response": response(status="failed", error=None)}
    assert (await Server(streamed(last)).failure()).code == "MODEL_SERVER"


@pytest.mark.parametrize("last", [None, "text"])
async def test_a_last_event_without_a_reply_is_a_typed_error(last: object) -> None:
    failure = await Server(streamed({"type": "response.completed", "response": last})).failure()
    assert failure.code == "MODEL_SERVER"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"type": "invalid_request_error"}, "MODEL_REQUEST"),
        (400, {"code": "context_length_exceeded"}, "MODEL_CONTEXT"),
        (401, {"code": "invalid_api_key"}, "MODEL_AUTH"),
        (404, {"code": "model_not_found"}, "MODEL_REQUEST"),
        (429, {"type": "requests"}, "MODEL_RATE_LIMIT"),
        (429, {"code": "insufficient_quota"}, "MODEL_QUOTA"),
        (503, f"{KEY} is not known", "MODEL_SERVER"),
    ],
)
@BOTH
async def test_a_refusal_by_the_server_is_a_typed_error(
    status: int, error: object, code: str, settings: Settings
) -> None:
    failure = await Server(refused(status, error, {"retry-after": "7"})).failure(settings=settings)
    assert (failure.code, failure.retry_after) == (code, 7.0)
    assert str(failure).startswith(f"the server answered {status}")
    assert isinstance(failure.__cause__, openai.APIStatusError)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx2.Response(200, headers={"content-type": "application/json"}, content=b"{no json"),
        lambda: httpx2.Response(200, html="<p>Log in</p>"),
        whole({"error": {"message": "no credit"}}),
        whole(response(text("Hello"), status=None)),
    ],
)
async def test_a_whole_reply_that_cannot_be_read_is_a_typed_error(answer: Answer) -> None:
    assert (await Server(answer).failure(settings=WHOLE)).code == "MODEL_SERVER"


# -- when it asks nothing


async def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        await anext(OpenAIResponses("gpt-5").stream(asked()))
    assert caught.value.code == "MODEL_AUTH"


# -- its clients


def test_it_says_who_answers() -> None:
    model = resolve("openai-responses:gpt-5")
    assert isinstance(model, OpenAIResponses)
    assert model.info() == ModelInfo(
        provider="openai-responses", model="gpt-5", context_window=272_000, output="schema"
    )
    assert repr(model) == "OpenAIResponses('gpt-5')"


def test_each_loop_has_a_client_of_its_own_which_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OpenAIResponses("gpt-5")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def here() -> AsyncOpenAI:
        return await client_here(model._clients)

    first, second = asyncio.run(here()), asyncio.run(here())
    assert second is not first
    assert first.is_closed()
    assert second.is_closed()
