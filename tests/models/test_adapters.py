"""What each adapter promises, whatever its server sends."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.models import test_anthropic, test_openai
from tests.models import test_openai_responses as responses
from tests.models.served import (
    BOTH,
    KEY,
    REFUSED_KEY,
    WHOLE,
    Answer,
    Cut,
    Json,
    asked,
    joined,
    raises,
    refused,
    sse,
    whole,
)
from weft._reply import Reply
from weft.messages import Message, message_adapter
from weft.model import ModelError, ModelEvent, ModelInfo, Settings, TextChunk, WholeCall
from weft.models import retry
from weft.models._errors import UNREADABLE
from weft.testing import CountingIds, ManualClock
from weft.thread import Memory, open_store


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """How to play one adapter's server."""

    server: Callable[..., Any]
    hello: bytes
    """A streamed reply, but for its end."""
    end: bytes
    whole: Json
    """The same reply, whole."""
    sdk_error: Exception
    line: bytes = b"data: "
    """What stands before the data of a streamed event."""

    def answer(self, settings: Settings) -> Answer:
        """A good one."""
        return streaming(self.hello + self.end) if settings.stream else whole(self.whole)

    async def ask(self, answer: Answer, settings: Settings) -> list[ModelEvent]:
        events: list[ModelEvent] = await self.server(answer).ask(settings=settings)
        return events

    async def failure(self, answer: Answer, settings: Settings) -> ModelError:
        failure: ModelError = await self.server(answer).failure(settings=settings)
        return failure


def streaming(content: bytes) -> Answer:
    return lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)


async def gather(events: AsyncIterator[ModelEvent], seen: list[ModelEvent]) -> None:
    async for event in events:
        seen.append(event)


RESPONSES = responses.events(responses.text("Hello"))
ADAPTERS = {
    "chat": Adapter(
        server=test_openai.Server,
        hello=sse(*test_openai.HELLO),
        end=sse(test_openai.chunk(finish="stop"), "[DONE]"),
        whole=test_openai.completion({"content": "Hello"}),
        sdk_error=openai.OpenAIError(KEY),
    ),
    "responses": Adapter(
        server=responses.Server,
        hello=sse(*RESPONSES[:-1]),
        end=sse(RESPONSES[-1]),
        whole=responses.response(responses.text("Hello")),
        sdk_error=openai.OpenAIError(KEY),
    ),
    "anthropic": Adapter(
        server=test_anthropic.Server,
        hello=test_anthropic.sse(*test_anthropic.HELLO),
        end=test_anthropic.sse(*test_anthropic.end()),
        whole=test_anthropic.message(test_anthropic.text("Hello"), word="end_turn"),
        sdk_error=anthropic.AnthropicError(KEY),
        line=b"event: content_block_delta\ndata: ",
    ),
}
ITEMS = (
    responses.thought("A", "B"),
    responses.text("Hello", "there"),
    responses.refusal("No."),
    responses.call(),
    responses.SEARCH,
)
BLOCKS = (
    test_anthropic.THOUGHT,
    test_anthropic.text("Hello"),
    test_anthropic.CALL_A,
    test_anthropic.HIDDEN,
    test_anthropic.CALL_B,
)
EACH = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)


# -- how it fails


@EACH
@BOTH
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (httpx2.ReadTimeout("slow"), "MODEL_TIMEOUT", "model.test did not answer in time"),
        (httpx2.ConnectError(f"no route for {KEY}"), "MODEL_CONNECTION", "the connection to model.test failed"),
    ],
)
async def test_a_broken_connection_is_a_typed_error_that_names_the_server(
    adapter: Adapter, settings: Settings, error: Exception, code: str, text: str
) -> None:
    failure = await adapter.failure(raises(error), settings)
    assert (failure.code, str(failure)) == (code, text)
    assert type(failure.__cause__).__module__.partition(".")[0] in ("openai", "anthropic")


@EACH
@pytest.mark.parametrize(
    ("error", "code"),
    [(httpx2.ReadTimeout("slow"), "MODEL_TIMEOUT"), (httpx2.RemoteProtocolError("gone"), "MODEL_CONNECTION")],
)
async def test_a_connection_that_breaks_in_a_stream_is_a_typed_error(
    adapter: Adapter, error: Exception, code: str
) -> None:
    body = Cut(adapter.hello, error=error)
    seen: list[ModelEvent] = []
    with pytest.raises(ModelError) as caught:
        await gather(adapter.server(lambda: httpx2.Response(200, stream=body)).model.stream(asked()), seen)
    assert joined(seen) == [TextChunk(text="Hello")]
    assert caught.value.code == code
    assert error in (caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None))
    assert body.closed


@EACH
@BOTH
async def test_a_key_that_the_server_repeats_is_not_in_the_error(adapter: Adapter, settings: Settings) -> None:
    odd = f"invalid_{KEY}"
    error = {"message": f"no such key: {KEY}", "type": KEY, "code": odd, "details": {"error_code": odd}}
    server = adapter.server(refused(401, error, {"x-key": KEY}))
    failure = await server.failure(Message.user(KEY), settings=settings)
    assert str(failure) == f"the server answered 401{REFUSED_KEY}"


@EACH
@BOTH
async def test_any_other_error_of_the_sdk_is_named_by_its_type(adapter: Adapter, settings: Settings) -> None:
    failure = await adapter.failure(raises(adapter.sdk_error), settings)
    name = type(adapter.sdk_error).__name__
    assert (failure.code, str(failure)) == ("MODEL_REQUEST", f"the SDK refused the call ({name})")
    assert failure.__cause__ is adapter.sdk_error


@EACH
@BOTH
@pytest.mark.parametrize("kind", ["text/html", "Text/HTML; charset=utf-8"])
async def test_a_web_page_is_no_answer(adapter: Adapter, settings: Settings, kind: str) -> None:
    page = httpx2.Response(200, headers={"content-type": kind}, content=b"<p>Log in</p>")
    failure = await adapter.failure(lambda: page, settings)
    text = "model.test answered with a web page: check the base URL" if settings.stream else UNREADABLE
    assert (failure.code, str(failure)) == ("MODEL_SERVER", text)


@EACH
@BOTH
@pytest.mark.parametrize(
    "data",
    [b"{no json", b"\xff", b"[" * 100_000, b'{"type": ' + b"1" * 5000 + b"}"],
    ids=["no JSON", "no UTF-8", "nested too deep", "a number too long"],
)
async def test_what_cannot_be_read_is_a_typed_error(adapter: Adapter, settings: Settings, data: bytes) -> None:
    content = adapter.hello + adapter.line + data + b"\n\n" if settings.stream else data
    kind = "text/event-stream" if settings.stream else "application/json"
    failure = await adapter.failure(
        lambda: httpx2.Response(200, headers={"content-type": kind}, content=content), settings
    )
    assert (failure.code, str(failure)) == ("MODEL_SERVER", UNREADABLE)
    assert failure.__cause__ is not None


@EACH
@BOTH
async def test_a_reply_that_is_not_packed_as_it_says_is_a_typed_error(adapter: Adapter, settings: Settings) -> None:
    headers = {"content-encoding": "gzip"}
    failure = await adapter.failure(lambda: httpx2.Response(200, headers=headers, stream=Cut(adapter.hello)), settings)
    assert failure.code in ("MODEL_SERVER", "MODEL_CONNECTION")


@EACH
@BOTH
@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (httpx2.ReadError("gone"), {"MODEL_CONNECTION"}),
        (httpx2.ReadTimeout("slow"), {"MODEL_TIMEOUT"}),
        (httpx2.DecodingError("no gzip"), {"MODEL_CONNECTION", "MODEL_SERVER"}),
    ],
)
async def test_a_refusal_that_breaks_off_is_a_typed_error(
    adapter: Adapter, settings: Settings, error: Exception, codes: set[str]
) -> None:
    failure = await adapter.failure(lambda: httpx2.Response(500, stream=Cut(b"{", error=error)), settings)
    assert failure.code in codes


WAITS = [
    ({}, None),
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": "-7"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "1e999"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "99999999"}, 99999999.0),
    ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
    ({"retry-after-ms": "-1", "retry-after": "7"}, 7.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, None),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "now"}, None),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 -0000", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 09:28:30 +0200", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ({"retry-after": "Fri, 31 Dec 99999999999999 23:59:59 GMT"}, None),
    ({"retry-after": "Wed, 01 Jan 2025 00:00:00 +99999999999999"}, None),
]


@EACH
@BOTH
@pytest.mark.parametrize(("headers", "wait"), WAITS)
async def test_how_long_the_server_asks_to_wait_is_told(
    adapter: Adapter, settings: Settings, headers: dict[str, str], wait: float | None
) -> None:
    failure = await adapter.failure(lambda: httpx2.Response(429, headers=headers, json={}), settings)
    assert (failure.code, failure.retry_after) == ("MODEL_RATE_LIMIT", wait)


ROUND: list[object] = []
ROUND.append(ROUND)
DEEP: list[object] = []
for _ in range(100_000):
    DEEP = [DEEP]


@EACH
@pytest.mark.parametrize(
    "value", [float("nan"), ROUND, DEEP, object()], ids=["no number", "round", "deep", "an object"]
)
async def test_extra_fields_that_cannot_be_written_are_named_before_the_request(
    adapter: Adapter, value: object
) -> None:
    server = adapter.server()
    failure = await server.failure(settings=Settings(extra={"seed": value}))
    assert (failure.code, "Settings(extra=…)" in str(failure)) == ("MODEL_REQUEST", True)
    assert server.bodies == []


@EACH
@BOTH
async def test_the_sdk_retries(adapter: Adapter, settings: Settings) -> None:
    again = refused(500, {"type": "server_error"}, {"retry-after-ms": "1"})
    server = adapter.server(again, adapter.answer(settings), retries=2)
    assert joined(await server.ask(settings=settings))[0] == TextChunk(text="Hello")
    assert len(server.bodies) == 2


@EACH
@BOTH
async def test_deny_refuses_before_any_request(
    adapter: Adapter, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_MODEL_REQUESTS", "deny")
    server = adapter.server()
    failure = await server.failure(settings=settings)
    assert failure.code == "MODEL_DENIED"
    assert "WEFT_MODEL_REQUESTS" in str(failure)
    assert server.bodies == []


# -- what becomes of a run

FAULTS: dict[str, tuple[Callable[[Adapter], Answer], str]] = {
    "429": (lambda _: refused(429, {}, {"retry-after": "2"}), "MODEL_RATE_LIMIT"),
    "500": (lambda _: refused(500, {"type": "server_error"}), "MODEL_SERVER"),
    "malformed": (lambda adapter: garbled(adapter.line), "MODEL_SERVER"),
    "cut": (lambda adapter: broken_off(adapter.hello), "MODEL_CONNECTION"),
}


def garbled(line: bytes) -> Answer:
    headers = {"content-type": "application/json"}
    return lambda: httpx2.Response(200, headers=headers, content=line + b"{no json\n\n")


def broken_off(beginning: bytes) -> Answer:
    headers = {"content-type": "application/json"}
    gone = httpx2.RemoteProtocolError("gone")
    return lambda: httpx2.Response(200, headers=headers, stream=Cut(beginning, error=gone))


@EACH
@BOTH
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_session_stays_usable_after_a_fault(adapter: Adapter, settings: Settings, fault: str) -> None:
    make, code = FAULTS[fault]
    server = adapter.server(make(adapter), adapter.answer(settings), adapter.answer(settings))
    agent, data = weft.Agent(server.model, settings=settings), Memory()
    async with open_store(data) as store:
        session = await store.create(agent)
        with pytest.raises(weft.ModelFailed) as caught:
            await session.ask("First")
        assert caught.value.code == code
        assert [message.role for message in session.messages] == ["user"]
        assert (await session.ask("Second")).text == "Hello"
    async with open_store(data) as store:
        session = await store.open(session.id, agent=agent)
        assert (await session.ask("Third")).text == "Hello"
        assert [message.role for message in session.messages] == ["user", "user", "assistant", "user", "assistant"]
    last = json.dumps(server.bodies[-1])
    assert [last.count(said) for said in ("First", "Second", "Hello", "Third")] == [1, 1, 1, 1]


@EACH
@BOTH
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_tried_again_until_something_was_said(
    adapter: Adapter, settings: Settings, fault: str
) -> None:
    make, code = FAULTS[fault]
    server, clock = adapter.server(make(adapter), adapter.answer(settings)), ManualClock()
    agent = weft.Agent(retry(server.model, first=0.0, longest=2.0, clock=clock), settings=settings)
    run = asyncio.ensure_future(agent.run("Hi"))
    await clock.advance(1.75)
    assert run.done() is (fault != "429")
    await clock.advance(0.25)
    if fault == "cut" and settings.stream:
        with pytest.raises(weft.ModelFailed) as caught:
            await run
        assert caught.value.code == code
        assert caught.value.result is not None
        assert caught.value.result.text == ""
    else:
        assert [message.text for message in (await run).messages] == ["Hi", "Hello"]
    assert len(server.bodies) == 1 + (fault != "cut" or not settings.stream)


# -- its client, and its SDK


@EACH
@BOTH
async def test_a_client_handed_in_is_never_closed(adapter: Adapter, settings: Settings) -> None:
    server = adapter.server(adapter.answer(settings))
    await server.ask(settings=settings)
    assert not server.client.is_closed()


@EACH
async def test_a_stream_left_early_is_closed(adapter: Adapter) -> None:
    body = Cut(adapter.hello, adapter.end)
    server = adapter.server(lambda: httpx2.Response(200, stream=body))
    async with aclosing(server.model.stream(asked())) as events:
        assert isinstance(await anext(events), TextChunk)
        assert not body.closed
    assert body.closed


def test_importing_weft_does_not_load_an_sdk() -> None:
    program = "import sys, weft; sys.exit(bool({'openai', 'anthropic', 'httpx2'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# -- whatever it sends

REPLIES: dict[str, tuple[Adapter, Settings, Any]] = {
    "chat, streamed": (
        ADAPTERS["chat"],
        Settings(),
        [
            *(test_openai.chunk({"reasoning": "Hm."}), *test_openai.HELLO, test_openai.chunk({"refusal": "No."})),
            test_openai.chunk({"tool_calls": [{"index": 0, "id": "a", "function": test_openai.FUNCTION}]}),
            test_openai.chunk({"tool_calls": [{"index": 1, "id": "b", "function": test_openai.FUNCTION}]}),
            test_openai.chunk(finish="tool_calls", usage=test_openai.SPENT),
        ],
    ),
    "chat, whole": (
        ADAPTERS["chat"],
        WHOLE,
        test_openai.completion(
            {"reasoning": "Hm.", "content": "Hello", "tool_calls": [{"id": "a", "function": test_openai.FUNCTION}]},
            usage=test_openai.SPENT,
        ),
    ),
    "responses, streamed": (ADAPTERS["responses"], Settings(), responses.events(*ITEMS, usage=responses.SPENT)),
    "responses, whole": (ADAPTERS["responses"], WHOLE, responses.response(*ITEMS, usage=responses.SPENT)),
    "anthropic, streamed": (
        ADAPTERS["anthropic"],
        Settings(),
        [
            test_anthropic.start(test_anthropic.SPENT),
            *(event for place, block in enumerate(BLOCKS) for event in test_anthropic.pieces(place, block)),
            *test_anthropic.end("tool_use", test_anthropic.SPENT),
        ],
    ),
    "anthropic, whole": (
        ADAPTERS["anthropic"],
        WHOLE,
        test_anthropic.message(*BLOCKS, word="tool_use", usage=test_anthropic.SPENT),
    ),
}
ODD = (None, "", KEY, "\ud800", 0, -1, 1.5, 10**30, True, [], {}, [None], {"type": "x"}, [KEY], float("inf"))


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and under which key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [spot for key in keys for spot in ((value, key), *spots(value[key]))]


def spoilt(data: st.DataObject, reply: Any) -> Any:
    """The reply with something left out, said twice, or of another type, at one place or at two."""
    reply = deepcopy(reply)
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(spots(reply)))
        how = data.draw(st.sampled_from(["gone", "twice", "odd"]))
        if how == "gone":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.insert(key, deepcopy(holder[key]))
        else:
            holder[key] = deepcopy(data.draw(st.sampled_from(ODD)))
    return reply


def framed(adapter: Adapter, settings: Settings, reply: Any) -> Answer:
    if not settings.stream:
        return lambda: httpx2.Response(
            200, headers={"content-type": "application/json"}, content=json.dumps(reply).encode()
        )
    return lambda: httpx2.Response(
        200,
        headers={"content-type": "text/event-stream"},
        content=b"".join(adapter.line + json.dumps(event).encode() + b"\n\n" for event in reply),
    )


@pytest.mark.parametrize("name", REPLIES)
@given(st.data())
@settings(max_examples=40)
def test_whatever_a_server_sends_is_a_message_that_can_be_stored_or_a_typed_error(
    name: str, data: st.DataObject
) -> None:
    adapter, how, reply = REPLIES[name]
    answer = framed(adapter, how, spoilt(data, reply))
    events: list[ModelEvent] = []
    try:
        events = asyncio.run(adapter.ask(answer, how))
    except ModelError as error:
        failure = f"{error}{error!r}"
    if not events:
        assert KEY not in failure
        return
    nameless = [event for event in events if isinstance(event, WholeCall) and not event.name]
    if nameless:  # which is for the run to refuse
        return
    assembled = Reply("run", CountingIds(), None)
    for event in events:
        assembled.take(event)
    message, finish = assembled.whole(ModelInfo(provider="p", model="m"))
    assert finish.provider_reason
    assert finish.usage is None or finish.usage.tokens < 2**64
    assert message_adapter().validate_json(message_adapter().dump_json(message)) == message
