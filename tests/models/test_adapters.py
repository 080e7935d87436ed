"""What each adapter promises, whatever its server sends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.models import test_anthropic, test_openai, test_openai_responses
from tests.models.served import BOTH, Answer, Cut, sse
from weft.model import ModelError, ModelEvent, Settings


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """How to play one adapter's server."""

    server: Callable[..., Any]
    hello: bytes
    """The beginning of a streamed reply."""
    line: bytes
    """What stands before the data of a streamed event."""

    async def ask(self, answer: Answer, settings: Settings) -> list[ModelEvent]:
        events: list[ModelEvent] = await self.server(answer).ask(settings=settings)
        return events

    async def failure(self, answer: Answer, settings: Settings) -> ModelError:
        failure: ModelError = await self.server(answer).failure(settings=settings)
        return failure


ADAPTERS = {
    "chat": Adapter(server=test_openai.Server, hello=sse(*test_openai.HELLO), line=b"data: "),
    "responses": Adapter(
        server=test_openai_responses.Server,
        hello=sse(*test_openai_responses.events(test_openai_responses.text("Hello"))[:-1]),
        line=b"data: ",
    ),
    "anthropic": Adapter(
        server=test_anthropic.Server,
        hello=test_anthropic.sse(*test_anthropic.HELLO),
        line=b"event: content_block_delta\ndata: ",
    ),
}
EACH = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)


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
    assert (failure.code, str(failure)) == ("MODEL_SERVER", "the server's reply could not be read")
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


ROUND: list[object] = []
ROUND.append(ROUND)


@EACH
@pytest.mark.parametrize("value", [float("nan"), ROUND, object()], ids=["no number", "round", "an object"])
async def test_extra_fields_that_cannot_be_written_are_named_before_the_request(
    adapter: Adapter, value: object
) -> None:
    server = adapter.server()
    failure = await server.failure(settings=Settings(extra={"seed": value}))
    assert (failure.code, "Settings(extra=…)" in str(failure)) == ("MODEL_REQUEST", True)
    assert server.bodies == []
