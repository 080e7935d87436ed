"""A server in the test's process for the adapters of OpenAI's SDK, and what their tests share."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import httpx2
import pytest
from openai import AsyncOpenAI

from weft.messages import Message
from weft.model import (
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Position,
    ReasoningChunk,
    Settings,
    TextChunk,
    ToolCallChunk,
    ToolDefinition,
)

Json = dict[str, Any]
Answer = Callable[[], httpx2.Response]

KEY = "sk-Secret-0123456789"
REFUSED_KEY = "; check the key of the client, and that it is a key of model.test"
"""The end of the error for a 401, from a model with a client of its own."""
WHOLE = Settings(stream=False)
BOTH = pytest.mark.parametrize("settings", [Settings(), WHOLE], ids=["streamed", "whole"])
ADD = ToolDefinition(
    name="add",
    description="Add two numbers.",
    schema={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
)


class Cut(httpx2.AsyncByteStream):
    """A body that is given piece by piece, and then breaks off with an error if there is one."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self.pieces = pieces
        self.error = error
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        self.closed = True


def sse(*chunks: object) -> bytes:
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def streamed(*chunks: object, done: bool = True) -> Answer:
    body = sse(*chunks, "[DONE]") if done else sse(*chunks)
    return lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)


def whole(body: object) -> Answer:
    return lambda: httpx2.Response(200, json=body)


def refused(status: int, error: object, headers: dict[str, str] | None = None) -> Answer:
    return lambda: httpx2.Response(status, json={"error": error}, headers=headers)


def raises(error: Exception) -> Answer:
    def answer() -> httpx2.Response:
        raise error

    return answer


class Server:
    """Gives its answers in order, and keeps what it was asked."""

    path: ClassVar[str]
    adapter: ClassVar[Callable[..., Model]]

    def __init__(self, *answers: Answer, retries: int = 0, model: str = "gpt-5") -> None:
        self.bodies: list[Json] = []
        self._answers = list(answers)
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))
        self.client = AsyncOpenAI(api_key=KEY, base_url="http://model.test/v1", http_client=http, max_retries=retries)
        self.model: Model = type(self).adapter(model, client=self.client)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url == f"http://model.test/v1/{self.path}"
        self.bodies.append(json.loads(request.content))
        return self._answers.pop(0)()

    async def ask(self, *messages: Message, **more: Any) -> list[ModelEvent]:
        return [event async for event in self.model.stream(asked(*messages, **more))]

    async def failure(self, *messages: Message, **more: Any) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(*messages, **more)
        return caught.value


def asked(*messages: Message, **more: Any) -> ModelRequest:
    standard: Json = {
        "instructions": None,
        "messages": messages or (Message.user("Hi"),),
        "tools": (),
        "settings": Settings(),
        "run_id": "run",
        "position": Position(thread=None, index=0),
    }
    return ModelRequest(**{**standard, **more})


def joined(events: list[ModelEvent]) -> list[ModelEvent]:
    """The events as a run keeps them: pieces of one text or thought in one, no fragments of calls."""
    kept: list[ModelEvent] = []
    for event in events:
        match event, kept[-1] if kept else None:
            case ToolCallChunk(), _:
                pass
            case TextChunk(text=more), TextChunk(text=text):
                kept[-1] = TextChunk(text=text + more)
            case ReasoningChunk(text=more, block=block), ReasoningChunk(text=text, block=None):
                kept[-1] = ReasoningChunk(text=text + more, block=block)
            case _:
                kept.append(event)
    return kept
