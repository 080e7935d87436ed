"""Anthropic's Messages API through its SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    BaseModel,
)
from anthropic.types import (
    InputJSONDelta,
    MessageDeltaUsage,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from anthropic.types import Message as AnthropicMessage
from anthropic.types import Usage as AnthropicUsage
from anthropic.types.raw_message_delta_event import Delta

from weft.messages import Usage
from weft.model import (
    Finish,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
    WholeCall,
)
from weft.models._anthropic_body import PROVIDER, body_of
from weft.models._client import Clients, check_allowed, other_errors
from weft.models._errors import (
    Asked,
    check_page,
    connection_failed,
    events_of,
    hint,
    retry_after,
    shown,
    status_code,
    timed_out,
    told,
    unreadable,
)
from weft.models._windows import ANTHROPIC, window_of

__all__ = ["AnthropicMessages"]

_KEY = "ANTHROPIC_API_KEY"
_Json: TypeAlias = dict[str, Any]
_Reason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "filter", "other"]


class AnthropicMessages:
    """A model behind Anthropic's Messages API.

    Its client is made at the first call, one for each running loop, and is closed with its loop. It reads
    `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` then.

    With an `effort` the model thinks. Then a call cannot be forced (the tool choice is `auto`), and no temperature is
    sent: the API refuses both. What it thought goes back to the same model unchanged.

    Args:
        model: The model's name, as the server knows it.
        client: Used as it is, and never closed.
        output: How structured output is asked for: `schema` is the server's JSON-schema mode; `tool`, a submission
            tool, works with every model.
        context_window: Tokens that the model reads at most; absent: what is known of a model of this name, if it is.
    """

    def __init__(
        self,
        model: str,
        *,
        client: AsyncAnthropic | None = None,
        output: Literal["schema", "tool"] = "tool",
        context_window: int | None = None,
    ) -> None:
        self._model = model
        self._window = window_of(model, context_window, ANTHROPIC)
        self._output = output
        self._clients = Clients(_ClientOfTheEnvironment, client, variable=_KEY)

    def __repr__(self) -> str:
        return f"AnthropicMessages({self._model!r})"

    def info(self) -> ModelInfo:
        """Who answers, and how much fits, where that is known."""
        return ModelInfo(provider=PROVIDER, model=self._model, context_window=self._window, output=self._output)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply, streamed by the server or asked for whole, as the same events.

        Raises:
            ModelError: The call failed; the SDK's own error is the cause.
        """
        check_allowed()
        body = _arguments(body_of(self._model, request))
        client = await self._client()
        reply = _Reply()
        asked = self._clients.asked(client.base_url.netloc, self._model)
        with _model_errors(asked):
            if request.settings.stream:
                async with await client.messages.create(**body, stream=True) as events:
                    check_page(events.response.headers, asked)
                    async for event in events:
                        for told_event in events_of(reply.take_event(event)):
                            yield told_event
            else:
                # with a timeout of its own the SDK does not refuse a long reply that is not streamed
                message = await client.messages.create(**body, timeout=client.timeout)
                for told_event in events_of(reply.take_whole(message)):
                    yield told_event
        for told_event in events_of(reply.end()):
            yield told_event

    async def _client(self) -> AsyncAnthropic:
        return await self._clients.here()


class _ClientOfTheEnvironment:
    """A client with a key, for `async with`. The SDK itself misses one only when it sends.

    No async generator: a loop that shuts down closes all that are suspended at once, also one inside another.
    """

    async def __aenter__(self) -> AsyncAnthropic:
        text = f"no API key: set {_KEY}, or give the model a client"
        try:
            self._made = AsyncAnthropic()
        except AnthropicError as error:
            raise ModelError(text, code="MODEL_AUTH") from error
        if self._made.api_key is None and self._made.auth_token is None and self._made.credentials is None:
            await self._made.close()
            raise ModelError(text, code="MODEL_AUTH")
        return self._made

    async def __aexit__(self, *_: object) -> None:
        await self._made.close()


def _arguments(body: _Json) -> _Json:
    """A body as the SDK's arguments: it wants some fields by name, and knows fewer than the API."""
    named = {name: body.pop(name) for name in ("model", "max_tokens", "messages")}
    return {**named, "extra_body": body}


# -- what is answered


class _Block:
    """A content block, as its start says and its deltas go on."""

    __slots__ = ("call", "pieces", "said", "signature")

    def __init__(self, said: _Json, call: int) -> None:
        self.said = said
        self.call = call
        """How many calls came before it."""
        self.pieces: list[str] = []
        """What its deltas added: thinking, or the input of a call."""
        self.signature: str | None = None

    @property
    def kind(self) -> object:
        return self.said.get("type")

    def begin(self) -> Iterator[ModelEvent]:
        """What the start says already."""
        match self.said:
            case {"type": "text", "text": text} if text:
                yield TextChunk(text=text)
            case {"type": "thinking", "thinking": str(text)} if text:
                yield ReasoningChunk(text=text)
            case {"type": "tool_use"}:
                yield ToolCallChunk(index=self.call, name=self._name() or None, arguments=self._input())

    def end(self) -> Iterator[ModelEvent]:
        """A call, or a block of reasoning, now that it is whole."""
        match self.kind:
            case "tool_use":
                arguments = "".join(self.pieces) or self._input() or "{}"
                yield WholeCall(name=self._name(), arguments=arguments, provider_id=self._id())
            case "thinking":
                thinking = "".join((self.said.get("thinking") or "", *self.pieces))
                signature = self.signature or self.said.get("signature") or ""
                if thinking or signature:
                    yield _reasoning({**self.said, "thinking": thinking, "signature": signature})
            case "redacted_thinking":
                yield _reasoning(self.said)

    def _name(self) -> str:
        name = self.said.get("name")
        return name if isinstance(name, str) else ""

    def _id(self) -> str | None:
        given = self.said.get("id")
        return given if isinstance(given, str) and given else None

    def _input(self) -> str:
        """The input that the block itself holds; empty if it is to come, or is none."""
        given = self.said.get("input")
        if isinstance(given, str):
            return given
        return json.dumps(given, ensure_ascii=False, separators=(",", ":")) if given else ""


def _reasoning(block: _Json) -> ReasoningChunk:
    return ReasoningChunk(block=json.dumps(block))


class _Reply:
    """A reply in events or whole.

    The SDK does not validate what it reads: a field may be None, or of another type, against its annotation, and a
    type that it does not know is read as another one.
    """

    __slots__ = ("_blocks", "_calls", "_reason", "_spent", "_stopped")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        """Those that have begun and not ended, by the server's index."""
        self._calls = 0
        self._reason: str | None = None
        self._stopped = False
        self._spent: dict[str, int] = {}

    def take_event(self, event: object) -> Iterator[ModelEvent]:
        """The events of one of the stream's."""
        match event:
            case RawContentBlockDeltaEvent(type="content_block_delta", index=index, delta=delta):
                yield from self._take_delta(index, delta)
            case RawContentBlockStartEvent(type="content_block_start", index=index, content_block=block):
                yield from self._begin(index, block)
            case RawContentBlockStopEvent(type="content_block_stop", index=index):
                yield from self._end(index)
            case RawMessageStartEvent(type="message_start", message=AnthropicMessage(usage=usage)):
                self._take_usage(usage)
            case RawMessageDeltaEvent(type="message_delta", delta=delta, usage=usage):
                self._take_usage(usage)
                self._reason = _word(delta) or self._reason
            case RawMessageStopEvent(type="message_stop"):
                self._stopped = True

    def take_whole(self, message: object) -> Iterator[ModelEvent]:
        """The events of a whole reply, but for its end."""
        if isinstance(message, AnthropicMessage):
            _check_error(message)
        if not isinstance(message, AnthropicMessage) or not isinstance(message.content, list):
            raise unreadable()
        self._take_usage(message.usage)
        self._reason = message.stop_reason
        self._stopped = True
        for index, block in enumerate(message.content):
            yield from self._begin(index, block)
            yield from self._end(index)

    def end(self) -> Iterator[ModelEvent]:
        """The finish, after blocks that the server did not end."""
        if not self._reason or not self._stopped:
            raise ModelError("the reply was cut before its end", code="MODEL_CUT")
        for index in list(self._blocks):
            yield from self._end(index)
        reason = _finish_reason(self._reason, calls=bool(self._calls))
        yield Finish(reason=reason, usage=_usage(self._spent), provider_reason=self._reason)

    def _begin(self, index: int, block: object) -> Iterator[ModelEvent]:
        if not isinstance(block, BaseModel):
            raise unreadable()
        yield from self._end(index)
        begun = _Block(block.to_dict(mode="json", warnings=False), self._calls)
        self._blocks[index] = begun
        self._calls += begun.kind == "tool_use"
        yield from begun.begin()

    def _end(self, index: int) -> Iterator[ModelEvent]:
        block = self._blocks.pop(index, None)
        if block is not None:
            yield from block.end()

    def _take_delta(self, index: int, delta: object) -> Iterator[ModelEvent]:
        if isinstance(delta, TextDelta) and delta.type == "text_delta":
            if delta.text:
                yield TextChunk(text=delta.text)
            return
        block = self._blocks.get(index)
        if block is None:
            raise unreadable()
        match delta:
            case InputJSONDelta(partial_json=text) if text:
                block.pieces.append(text)
                if block.kind == "tool_use":
                    yield ToolCallChunk(index=block.call, arguments=text)
            case ThinkingDelta(thinking=text) if text:
                block.pieces.append(text)
                yield ReasoningChunk(text=text)
            case SignatureDelta(signature=str(signature)):
                block.signature = signature

    def _take_usage(self, usage: object) -> None:
        """Counts are totals so far, so the highest stands; some servers end with a zero."""
        if not isinstance(usage, AnthropicUsage | MessageDeltaUsage):
            return
        details = usage.output_tokens_details
        counts: dict[str, object] = {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "read": usage.cache_read_input_tokens,
            "written": usage.cache_creation_input_tokens,
            "thought": getattr(details, "thinking_tokens", None),
        }
        for name, count in counts.items():
            if isinstance(count, int) and 0 < count < 2**63:
                self._spent[name] = max(count, self._spent.get(name, 0))


def _word(delta: Delta | None) -> str | None:
    return None if delta is None else delta.stop_reason


def _finish_reason(word: str, *, calls: bool) -> _Reason:
    """The reason in weft's words."""
    match word:
        case "refusal":
            return "refusal"
        case "max_tokens" | "model_context_window_exceeded":
            return "length"
        case _ if calls:
            return "tool_calls"
        case "end_turn" | "stop_sequence":
            return "stop"
        case _:
            return "other"


def _usage(spent: dict[str, int]) -> Usage | None:
    """What was reported; None if nothing was. The API does not count the cache's part to the input."""
    if not any(spent.values()):
        return None
    read, written = spent.get("read", 0), spent.get("written", 0)
    return Usage(
        input_tokens=spent.get("input", 0) + read + written,
        output_tokens=spent.get("output", 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=spent.get("thought", 0),
    )


# -- what goes wrong


@contextmanager
def _model_errors(asked: Asked) -> Iterator[None]:
    """Turn the SDK's errors into ones that are safe to store."""
    try:
        with other_errors(asked):
            yield
    except AnthropicError as error:
        raise _model_error(error, asked) from shown(error)


def _model_error(error: AnthropicError, asked: Asked) -> ModelError:
    """The status and the vendor's words for it; never a header, a key, or a text that might quote one."""
    match error:
        case APITimeoutError():
            return timed_out(asked)
        case APIConnectionError():
            return connection_failed(asked, error.__cause__)
        case APIStatusError(status_code=status) if status >= 400:
            return _told(f"the server answered {status}", error, status_code(status), hint(status, asked))
        case APIStatusError():  # in the middle of a stream
            return _told("the server reported an error", error, _code_of(error.type), "")
        case _:
            return ModelError(f"the SDK refused the call ({type(error).__name__})", code="MODEL_REQUEST")


def _told(text: str, error: APIStatusError, code: str, hint: str) -> ModelError:
    wait = retry_after(error.response.headers)
    return _failed(text, code, error.message, (error.type, error.error_code), wait=wait, hint=hint)


def _failed(
    text: str, code: str, message: str, words: Iterable[object], *, wait: float | None = None, hint: str = ""
) -> ModelError:
    """As `told`, with what only the vendor's message says."""
    too_long = "prompt is too long" in message or "exceed context limit" in message
    if "credit balance is too low" in message:  # an invalid_request_error, by its type
        code = "MODEL_QUOTA"
    return told(text, code, words, too_long=too_long, wait=wait, hint=hint)


def _check_error(message: AnthropicMessage) -> None:
    """Raise the error that stands in place of a reply, with a status of 200."""
    kind: object = message.type
    if kind == "error":
        error = (message.model_extra or {}).get("error")
        said = error if isinstance(error, Mapping) else {}
        word = said.get("type")
        raise _failed("the server reported an error", _code_of(word), str(said.get("message")), (word,))


def _code_of(word: object) -> str:
    """The code for an error without a status, by the vendor's word for it."""
    match word:
        case "authentication_error" | "permission_error":
            return "MODEL_AUTH"
        case "invalid_request_error" | "not_found_error":
            return "MODEL_REQUEST"
        case "timeout_error":
            return "MODEL_TIMEOUT"
        case _:
            return "MODEL_SERVER"
