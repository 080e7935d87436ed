"""The Responses API through OpenAI's SDK; nothing is stored by the server, and reasoning goes back as it came."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Literal

from openai import AsyncOpenAI, AsyncStream, BadRequestError, BaseModel
from openai.resources.responses import AsyncResponses
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseReasoningItem,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseRefusalDeltaEvent,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from weft.messages import File, Message, Reasoning, Text, ToolCall, Usage
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
    ToolCallChunk,
    ToolDefinition,
    WholeCall,
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
from weft.models._strict import openai_strict
from weft.models._windows import OPENAI, window_of
from weft.models._wire import arguments_of, data_url, is_own, name_of, object_of

__all__ = ["OpenAIResponses"]

_PROVIDER = "openai-responses"
_CARRIED = frozenset({"reasoning", "compaction", "web_search_call", "file_search_call", "code_interpreter_call"})
"""Items that are kept as they are, to be sent back in their place: what a reasoning item stands before must stay."""
_ASKING = frozenset(
    {"apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_approval_request"}
)
"""Items that ask for something as a function call does, and that no tool of weft's answers."""
_ENDS = frozenset({"incomplete", "failed", "cancelled"})


class OpenAIResponses:
    """A model behind the Responses API.

    Its client is made at the first call, one for each running loop, and is closed with its loop. It reads
    `OPENAI_API_KEY` and `OPENAI_BASE_URL` then. It asks for encrypted reasoning, and no more once the server says
    that this model has none.

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
        self._encrypted = True

    def __repr__(self) -> str:
        return f"OpenAIResponses({self._model!r})"

    def info(self) -> ModelInfo:
        """Who answers, and how much fits, where that is known."""
        return ModelInfo(provider=_PROVIDER, model=self._model, context_window=self._window, output=self._output)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply, streamed by the server or asked for whole, as the same events.

        Raises:
            ModelError: The call failed; the SDK's own error is the cause, where there is one.
        """
        check_allowed()
        body = _body(self._model, request)
        client = await client_here(self._clients)
        reply = _Reply()
        asked = self._clients.asked(client.base_url.netloc, self._model)
        with model_errors(asked):
            answer = await self._ask(client.responses, body, request.settings.stream)
            if isinstance(answer, AsyncStream):
                async with answer as events:
                    check_page(answer.response.headers, asked)
                    async for event in events:
                        for given in events_of(reply.take_event(event)):
                            yield given
            else:
                for given in events_of(reply.take_whole(answer)):
                    yield given
        for given in events_of([reply.finish()]):
            yield given

    async def _ask(
        self, responses: AsyncResponses, body: Json, stream: bool
    ) -> Response | AsyncStream[ResponseStreamEvent]:
        if self._encrypted:
            try:
                return await responses.create(**body, include=["reasoning.encrypted_content"], stream=stream)
            except BadRequestError as error:
                if error.param != "include":
                    raise
                self._encrypted = False
        return await responses.create(**body, stream=stream)


# -- what is asked


def _body(model: str, request: ModelRequest) -> Json:
    items = [item for message in request.messages for item in _items(message, model)]
    body: Json = {"model": model, "input": items, "store": False, **_settings(request.settings)}
    if request.instructions:
        body["instructions"] = request.instructions
    if request.tools:
        body["tools"] = [_function(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = _tool_choice(request.tool_choice)
        if request.settings.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.settings.parallel_tool_calls
    if request.output_schema is not None:
        strict = openai_strict(request.output_schema)
        schema = {"type": "json_schema", "name": "output", "schema": request.output_schema, "strict": strict}
        body["text"] = {"format": schema}
    return {**body, **extra_body(request.settings)}


def _settings(settings: Settings) -> Json:
    given = {
        "temperature": settings.temperature,
        "max_output_tokens": settings.max_tokens,
        "reasoning": settings.effort and {"effort": settings.effort},
    }
    return {name: value for name, value in given.items() if value is not None}


def _tool_choice(choice: str) -> str | Json:
    return choice if choice in TOOL_CHOICES else {"type": "function", "name": choice}


def _function(tool: ToolDefinition) -> Json:
    """A tool; strict, so that its arguments surely fit, only if its schema can bear it."""
    told = {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {**told, "strict": openai_strict(tool.schema)}


def _items(message: Message, model: str) -> list[Json]:
    """A message as input items; nothing for one that says nothing."""
    match message.role:
        case "user":
            content = _content(message)
            return [{"role": "user", "content": content}] if content else []
        case "assistant":
            return _said(message, model)
        case "tool":
            return [
                {"type": "function_call_output", "call_id": result.call, "output": result.content}
                for result in message.results
            ]


def _content(message: Message) -> str | list[Json]:
    match message.parts:
        case (Text(text=text),):
            return text
    parts: list[Json] = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            parts.append({"type": "input_text", "text": part.text})
        elif isinstance(part, File):
            parts.append(_file(part))
    return parts


def _file(file: File) -> Json:
    url = data_url(file)
    if url is None:
        raise ModelError(f"a file of type {file.media_type} has neither bytes nor a URL", code="MODEL_REQUEST")
    if file.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if file.data is None:
        return {"type": "input_file", "file_url": url}
    name = f"file{mimetypes.guess_extension(file.media_type) or ''}"
    return {"type": "input_file", "filename": name, "file_data": url}


def _said(message: Message, model: str) -> list[Json]:
    """The parts in their order. The server refuses reasoning that nothing follows, so it is left out."""
    items: list[Json] = []
    for part in message.parts:
        match part:
            case Text(text=text) if text:
                _add_text(items, text)
            case ToolCall():
                items.append(_call(part))
            case Reasoning(block=str(block)) if is_own(part, _PROVIDER, model):
                items.extend(_carried(block))
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _add_text(items: list[Json], text: str) -> None:
    said = {"type": "output_text", "text": text, "annotations": []}
    if items and items[-1]["type"] == "message":
        items[-1]["content"].append(said)
    else:
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": [said]})


def _call(call: ToolCall) -> Json:
    """A call under weft's id."""
    return {"type": "function_call", "call_id": call.id, "name": name_of(call), "arguments": arguments_of(call)}


def _carried(block: str) -> Iterator[Json]:
    """The server's own item, but for fields that are null, which it does not take back.

    Reasoning that holds nothing is left out: the server would look for it in its store, where nothing is. So is what
    is no item, or cannot be sent.
    """
    item = object_of(block) or {}
    kept = item.get("type") in _CARRIED
    if kept and (item["type"] != "reasoning" or item.get("encrypted_content") or item.get("content")):
        yield {name: value for name, value in item.items() if value is not None}


# -- what is answered


class _Reply:
    """A reply in events or whole.

    The SDK does not validate what it reads: a field may be None, or of another type, against its annotation, and
    an item or event of an unknown type is read as one of another class. Items are told by their `type`.
    """

    __slots__ = ("_called", "_finish", "_paragraph", "_refused", "_shown", "_taken", "_written")

    def __init__(self) -> None:
        self._shown: set[int | None] = set()
        """Items that are under way, by the server's index, of which some text was streamed."""
        self._written: dict[int | None, list[str]] = {}
        """Arguments of the calls that are under way."""
        self._paragraph: tuple[str, int] | None = None
        self._taken: list[tuple[int | None, BaseModel | None]] = []
        """The items that are complete, by the server's index."""
        self._called = False
        self._refused = False
        self._finish: Finish | None = None

    def take_event(self, event: ResponseStreamEvent) -> Iterator[ModelEvent]:
        """What an event of the stream says."""
        index = _index(event)
        match event:
            case ResponseTextDeltaEvent() | ResponseRefusalDeltaEvent():
                yield from self._take_text(event, index)
            case ResponseReasoningSummaryTextDeltaEvent():
                yield from self._take_thought(event, index, event.summary_index)
            case ResponseReasoningTextDeltaEvent():
                yield from self._take_thought(event, index, event.content_index)
            case ResponseOutputItemAddedEvent(item=ResponseFunctionToolCall() as call):
                self._written[index] = []
                yield ToolCallChunk(index=index or 0, name=call.name)
            case ResponseFunctionCallArgumentsDeltaEvent() if event.delta:
                self._written.setdefault(index, []).append(event.delta)
                yield ToolCallChunk(index=index or 0, arguments=event.delta)
            case ResponseOutputItemDoneEvent():
                yield from self._take_item(event.item, index)
            case ResponseCompletedEvent() | ResponseIncompleteEvent() | ResponseFailedEvent():
                yield from self._take_end(event.response, event.type.removeprefix("response."))
            case ResponseErrorEvent():
                raise failed(event.message, event.code)

    def take_whole(self, response: object) -> Iterator[ModelEvent]:
        """What a whole reply says, but for its end."""
        yield from self._take_end(response, None)

    def finish(self) -> Finish:
        """The end.

        Raises:
            ModelError: The server did not say that the reply has ended.
        """
        if self._finish is None:
            raise ModelError("the reply was cut before its end", code="MODEL_CUT")
        return self._finish

    def _take_text(
        self, event: ResponseTextDeltaEvent | ResponseRefusalDeltaEvent, index: int | None
    ) -> Iterator[ModelEvent]:
        if event.delta:
            self._shown.add(index)
            self._refused |= isinstance(event, ResponseRefusalDeltaEvent)
            yield TextChunk(text=event.delta)

    def _take_thought(
        self,
        event: ResponseReasoningSummaryTextDeltaEvent | ResponseReasoningTextDeltaEvent,
        index: int | None,
        part: int,
    ) -> Iterator[ModelEvent]:
        if event.delta:
            self._shown.add(index)
            before, self._paragraph = self._paragraph, (event.type, part)
            gap = "\n\n" if before not in (None, self._paragraph) else ""
            yield ReasoningChunk(text=gap + event.delta)

    def _take_item(self, item: BaseModel | None, index: int | None) -> Iterator[ModelEvent]:
        """An item that is complete: what of it was not streamed, then the call or the block."""
        if (index, item) in self._taken:  # told twice
            return
        self._taken.append((index, item))
        shown = index in self._shown
        self._shown.discard(index)
        self._paragraph = None
        match item:
            case ResponseOutputMessage(type="message"):
                for text in self._texts(item):
                    if not shown:
                        yield TextChunk(text=text)
            case ResponseFunctionToolCall():
                yield from self._take_call(item, index)
            case BaseModel() if getattr(item, "type", None) in _CARRIED:
                text = _thought(item) if isinstance(item, ResponseReasoningItem) and not shown else ""
                yield ReasoningChunk(text=text, block=json.dumps(item.to_dict(warnings=False)))
            case BaseModel() if getattr(item, "type", None) in _ASKING:
                raise unknown_call(getattr(item, "type", None))

    def _texts(self, message: ResponseOutputMessage) -> Iterator[str]:
        for part in message.content or ():
            refusal = isinstance(part, ResponseOutputRefusal)
            self._refused |= refusal
            text = part.refusal if isinstance(part, ResponseOutputRefusal) else part.text
            if text:
                yield text

    def _take_call(self, call: ResponseFunctionToolCall, index: int | None) -> Iterator[ModelEvent]:
        self._called = True
        written = self._written.pop(index, None)
        arguments = arguments_text(call.arguments) or "".join(written or ())
        if written is None:
            yield ToolCallChunk(index=index or 0, name=call.name, arguments=arguments)
        yield WholeCall(
            name=call.name or "", arguments=arguments if arguments.strip() else "{}", provider_id=call.call_id or None
        )

    def _take_end(self, response: object, word: str | None) -> Iterator[ModelEvent]:
        """The whole reply, which also ends a stream: items that the stream did not complete, and the finish."""
        if not isinstance(response, Response):
            raise unreadable()
        status: str | None = response.status
        if word is not None and status not in _ENDS:
            status = word
        error = response.error
        if error is not None and (error.message or error.code):
            raise failed(error.message, error.code)
        if status == "failed":
            raise failed(None)
        if status is None:
            raise unreadable()
        for index, item in self._left(response.output or ()):
            yield from self._take_item(item, index)
        if status == "completed" and self._written and not self._called:  # a call that never came whole
            raise unreadable()
        if status in ("completed", "incomplete"):
            said = (response.incomplete_details and response.incomplete_details.reason) or status
            usage = _usage(response.usage)
            self._finish = Finish(reason=self._reason(status, said), usage=usage, provider_reason=said)

    def _left(self, output: Sequence[BaseModel]) -> list[tuple[int, BaseModel]]:
        """The items that the stream did not complete; where the server does not number them, those after as many."""
        places: list[object] = [index for index, _ in self._taken]
        numbers = set(places)
        if len(numbers) < len(places) or not numbers.issubset(range(len(output))):
            numbers = set(range(len(places)))
        return [(index, item) for index, item in enumerate(output) if index not in numbers]

    def _reason(self, status: str, said: str) -> Reason:
        """The reason in weft's words. Whatever cut the reply, its calls may be incomplete."""
        if self._refused:
            return "refusal"
        if status == "incomplete":
            return "filter" if said == "content_filter" else "length"
        return "tool_calls" if self._called else "stop"


def _index(event: ResponseStreamEvent) -> int | None:
    """The place of the event's item; None if the server did not say."""
    given: object = getattr(event, "output_index", None)
    return given if isinstance(given, int) else None


def _thought(item: ResponseReasoningItem) -> str:
    return "\n\n".join(part.text for part in (*(item.content or ()), *(item.summary or ())) if part.text)


def _usage(usage: ResponseUsage | None) -> Usage | None:
    """What was reported; None if nothing was."""
    read = getattr(usage, "input_tokens_details", None)
    spent = Usage(
        input_tokens=count_of(usage, "input_tokens"),
        output_tokens=count_of(usage, "output_tokens"),
        cache_read_tokens=count_of(read, "cached_tokens"),
        cache_write_tokens=count_of(read, "cache_write_tokens"),
        reasoning_tokens=count_of(getattr(usage, "output_tokens_details", None), "reasoning_tokens"),
    )
    return spent if spent.tokens else None
