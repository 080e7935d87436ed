"""Chat Completions through OpenAI's SDK, for OpenAI itself and for every server that speaks the same."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Literal

from openai import AsyncOpenAI, BaseModel
from openai.types import CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageToolCallUnion,
)
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

from weft.messages import File, Message, Text, ToolCall, Usage
from weft.model import (
    TOOL_CHOICES,
    Finish,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    ReasoningChunk,
    Settings,
    TextChunk,
    ToolDefinition,
)
from weft.models._client import Clients, check_allowed
from weft.models._errors import check_page, events_of, unknown_call, unreadable
from weft.models._openai_sdk import (
    KEY,
    Json,
    Reason,
    arguments_text,
    client_here,
    count_of,
    extra_body,
    failed,
    model_errors,
)
from weft.models._stream import Calls, Fragment
from weft.models._strict import openai_strict
from weft.models._windows import OPENAI, window_of
from weft.models._wire import arguments_of, data_url, name_of

__all__ = ["OpenAIChat"]

_BROKEN_OFF = ("abort", "error", "insufficient_system_resource")
"""With what compatible servers end a reply that they could not finish."""


class OpenAIChat:
    """A model behind Chat Completions.

    Its client is made at the first call, one for each running loop, and is closed with its loop. It reads
    `OPENAI_API_KEY` and `OPENAI_BASE_URL` then.

    Args:
        model: The model's name, as the server knows it.
        client: Used as it is, and never closed.
        output: How structured output is asked for: `schema` is the server's JSON-schema mode; `tool`, a submission
            tool, is for compatible servers without it.
        context_window: Tokens that the model reads at most; absent: what is known of a model of this name, if it is.
    """

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        output: Literal["schema", "tool"] = "schema",
        context_window: int | None = None,
    ) -> None:
        self._model = model
        self._window = window_of(model, context_window, OPENAI)
        self._output = output
        self._clients = Clients(AsyncOpenAI, client, variable=KEY)

    def __repr__(self) -> str:
        return f"OpenAIChat({self._model!r})"

    def info(self) -> ModelInfo:
        """Who answers, and how much fits, where that is known."""
        return ModelInfo(provider="openai", model=self._model, context_window=self._window, output=self._output)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply, streamed by the server or asked for whole, as the same events.

        Raises:
            ModelError: The call failed; the SDK's own error is the cause.
        """
        check_allowed()
        body = _body(self._model, request)
        client = await client_here(self._clients)
        completions = client.chat.completions
        reply = _Reply()
        asked = self._clients.asked(client.base_url.netloc, self._model)
        with model_errors(asked):
            if request.settings.stream:
                answer = completions.create(**body, stream=True, stream_options={"include_usage": True})
                async with await answer as chunks:
                    check_page(chunks.response.headers, asked)
                    async for chunk in chunks:
                        for event in events_of(reply.take_chunk(chunk)):
                            yield event
            else:
                for event in events_of(reply.take_whole(await completions.create(**body))):
                    yield event
        for event in events_of(reply.end()):
            yield event


# -- what is asked


def _body(model: str, request: ModelRequest) -> Json:
    messages: list[Json] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    for message in request.messages:
        messages.extend(_wire(message))
    body: Json = {"model": model, "messages": messages, **_settings(request.settings)}
    if request.tools:
        body["tools"] = [_function(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = _tool_choice(request.tool_choice)
        if request.settings.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.settings.parallel_tool_calls
    if request.output_schema is not None:
        strict = openai_strict(request.output_schema)
        schema = {"name": "output", "schema": request.output_schema, "strict": strict}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {**body, **extra_body(request.settings)}


def _settings(settings: Settings) -> Json:
    given = {
        "temperature": settings.temperature,
        "max_completion_tokens": settings.max_tokens,
        "reasoning_effort": settings.effort,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tool_choice(choice: str) -> str | Json:
    return choice if choice in TOOL_CHOICES else {"type": "function", "function": {"name": choice}}


def _function(tool: ToolDefinition) -> Json:
    """A tool; strict, so that its arguments surely fit, only if its schema can bear it."""
    told = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": {**told, "strict": openai_strict(tool.schema)}}


def _wire(message: Message) -> Iterator[Json]:
    """A message as the server wants it. Reasoning is left out, and so is a message that has nothing else."""
    match message.role:
        case "user":
            content = _content(message)
            if content:
                yield {"role": "user", "content": content}
        case "assistant":
            said: Json = {"content": message.text} if message.text else {}
            if message.calls:
                said["tool_calls"] = [_call(call) for call in message.calls]
            if said:
                yield {"role": "assistant", **said}
        case "tool":
            for result in message.results:
                yield {"role": "tool", "tool_call_id": result.call, "content": result.content}


def _content(message: Message) -> str | list[Json]:
    match message.parts:
        case (Text(text=text),):
            return text
    parts: list[Json] = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, File):
            parts.append(_file(part))
    return parts


def _file(file: File) -> Json:
    url = data_url(file)
    if url is not None and file.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if file.data is None:
        text = f"Chat Completions takes a file of type {file.media_type} by its bytes only"
        raise ModelError(text, code="MODEL_REQUEST")
    name = f"file{mimetypes.guess_extension(file.media_type) or ''}"
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def _call(call: ToolCall) -> Json:
    """A call under weft's id."""
    function = {"name": name_of(call), "arguments": arguments_of(call)}
    return {"id": call.id, "type": "function", "function": function}


# -- what is answered


class _Reply:
    """A reply in chunks or whole.

    The SDK does not validate what it reads: a field may be None, or of another type, against its annotation.
    """

    __slots__ = ("_calls", "_choice", "_reason", "_refused", "_usage")

    def __init__(self) -> None:
        self._calls = Calls()
        self._choice: int | None = None
        """The index of the choice that is read; there are others where `extra` asks for several."""
        self._reason: str | None = None
        self._refused = False
        self._usage: Usage | None = None

    def take_chunk(self, chunk: ChatCompletionChunk) -> Iterator[ModelEvent]:
        """The events of a chunk."""
        self._usage = _usage(chunk.usage) or self._usage
        choices = chunk.choices or ()
        if self._choice is None and choices:
            self._choice = choices[0].index
        for choice in [choice for choice in choices if choice.index in (None, self._choice)][:1]:
            self._reason = choice.finish_reason or self._reason
            yield from self._take_delta(choice.delta)

    def take_whole(self, completion: object) -> Iterator[ModelEvent]:
        """The events of a whole reply, but for its end."""
        if not isinstance(completion, ChatCompletion):
            raise unreadable()
        _check_error(completion)
        if not completion.choices:
            raise unreadable()
        choice = completion.choices[0]
        self._usage = _usage(completion.usage)
        self._reason = choice.finish_reason
        yield from _thought(choice.message)
        yield from self._take_text(choice.message.content, choice.message.refusal)
        yield from self._take_calls(_whole_calls(choice.message.tool_calls))

    def end(self) -> Iterator[ModelEvent]:
        """The whole calls, and the finish."""
        if not self._reason:
            raise ModelError("the reply was cut before its end", code="MODEL_CUT")
        if self._reason in _BROKEN_OFF:
            raise ModelError(f"the server broke the reply off ({self._reason})", code="MODEL_CUT")
        yield from self._calls.whole()
        reason = _finish_reason(self._reason, calls=bool(self._calls), refused=self._refused)
        yield Finish(reason=reason, usage=self._usage, provider_reason=self._reason)

    def _take_delta(self, delta: ChoiceDelta | None) -> Iterator[ModelEvent]:
        if delta is not None:
            yield from _thought(delta)
            yield from self._take_text(delta.content, delta.refusal)
            yield from self._take_calls(_fragment(call) for call in delta.tool_calls or ())

    def _take_text(self, content: str | None, refusal: str | None) -> Iterator[ModelEvent]:
        if content:
            if not isinstance(content, str):  # a list of parts, as some servers give one, is not of this protocol
                raise unreadable()
            yield TextChunk(text=content)
        if refusal:
            self._refused = True
            yield TextChunk(text=refusal)

    def _take_calls(self, fragments: Iterable[Fragment]) -> Iterator[ModelEvent]:
        for fragment in fragments:
            chunk = self._calls.add(fragment)
            if chunk is not None:
                yield chunk


def _check_error(completion: ChatCompletion) -> None:
    """Raise the error that compatible servers give in place of a reply, or beside one, with a status of 200."""
    error = (completion.model_extra or {}).get("error")
    if error and isinstance(error, Mapping):
        raise failed(error.get("message"), error.get("type"), error.get("code"))
    if error:
        raise failed(error)


def _thought(said: BaseModel) -> Iterator[ModelEvent]:
    """Reasoning as compatible servers give it, in one of two fields that the SDK has no names for."""
    more = said.model_extra or {}
    thought = more.get("reasoning_content") or more.get("reasoning")
    if thought and isinstance(thought, str):
        yield ReasoningChunk(text=thought)


def _fragment(call: ChoiceDeltaToolCall) -> Fragment:
    kind: object = call.type
    if kind == "custom":
        raise unknown_call(kind)
    given: object = call.index
    function, index = call.function, given if isinstance(given, int) else None
    if function is None:
        return Fragment(index=index, id=call.id)
    return Fragment(index=index, id=call.id, name=function.name, arguments=arguments_text(function.arguments))


def _whole_calls(calls: Iterable[ChatCompletionMessageToolCallUnion] | None) -> Iterator[Fragment]:
    for index, call in enumerate(calls or ()):
        if not isinstance(call, ChatCompletionMessageFunctionToolCall):
            raise unknown_call(call.type)
        function = call.function
        yield Fragment(index=index, id=call.id, name=function.name, arguments=arguments_text(function.arguments))


def _finish_reason(word: str, *, calls: bool, refused: bool) -> Reason:
    """The reason in weft's words. Some servers say `stop` although there are calls."""
    if refused:
        return "refusal"
    match word:
        case "length" | "model_length":
            return "length"
        case "content_filter":
            return "filter"
        case _ if calls:
            return "tool_calls"
        case "stop":
            return "stop"
        case _:
            return "other"


def _usage(usage: CompletionUsage | None) -> Usage | None:
    """What was reported; None if nothing was."""
    read = getattr(usage, "prompt_tokens_details", None)
    spent = Usage(
        input_tokens=count_of(usage, "prompt_tokens"),
        output_tokens=count_of(usage, "completion_tokens"),
        cache_read_tokens=count_of(read, "cached_tokens"),
        cache_write_tokens=count_of(read, "cache_write_tokens"),
        reasoning_tokens=count_of(getattr(usage, "completion_tokens_details", None), "reasoning_tokens"),
    )
    return spent if spent.tokens else None
