"""A request as Anthropic's Messages API wants it. Pure, and free of the SDK's types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from weft.messages import File, Message, Reasoning, Text, ToolCall, ToolResult
from weft.model import ModelError, ModelRequest, Settings, ToolDefinition
from weft.models._strict import anthropic_strict, anthropic_strict_tools
from weft.models._wire import base64_of, extra_of, id_of, is_own, name_of, object_of

__all__ = ["MAX_TOKENS", "PROVIDER", "body_of"]

_Json: TypeAlias = dict[str, Any]

PROVIDER = "anthropic"
MAX_TOKENS = 16_384
"""The most output tokens of one reply, thinking included, where the settings do not say: the API wants a number."""
_LEAST_BUDGET = 1024
"""The smallest thinking budget that the API takes."""
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 6144, "high": 12_288}
"""Tokens to think with, for the models that want a number."""
_WANTS_BUDGET = re.compile(r"claude-(?:[23]|(?:opus|sonnet|haiku)-4(?:-[015])?(?:-20\d{6})?$)")
"""The models up to 4.5, which do not decide by themselves how much to think. Later ones refuse a budget."""
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_CACHED = {"cache_control": {"type": "ephemeral"}}


def body_of(model: str, request: ModelRequest) -> _Json:
    """The whole body, but for `stream`.

    Raises:
        ModelError: A file is of a kind, or the output schema of a form, that the API does not take.
    """
    settings = request.settings
    max_tokens = settings.max_tokens or MAX_TOKENS
    messages = _conversation(model, request.messages)
    body: _Json = {"model": model, "max_tokens": max_tokens, "messages": messages}
    if request.instructions and request.instructions.strip():
        body["system"] = [{"type": "text", "text": request.instructions}]
    if settings.effort is not None:
        body |= _effort(model, settings.effort, max_tokens, messages)
    if request.output_schema is not None:
        if not anthropic_strict(request.output_schema):
            text = "Anthropic's JSON-schema mode does not take this output type; make the model with output='tool'"
            raise ModelError(text, code="MODEL_REQUEST")
        body.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": request.output_schema}
    thinks = _thinks(settings.extra.get("thinking", body.get("thinking")))
    if settings.temperature is not None and not thinks:
        body["temperature"] = settings.temperature
    if request.tools:
        strict = anthropic_strict_tools([tool.schema for tool in request.tools])
        body["tools"] = [_tool(tool, flag) for tool, flag in zip(request.tools, strict, strict=True)]
        body |= _choice(request.tool_choice, settings, thinks)
    if settings.cache:
        _set_breakpoints(body)
    return {**body, **extra_of(settings)}


# -- settings


def _effort(model: str, effort: str, max_tokens: int, messages: Sequence[_Json]) -> _Json:
    """How the model is told how much to think."""
    if _WANTS_BUDGET.match(model) is None:
        level = "low" if effort == "minimal" else effort
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}
    budget = min(_BUDGETS[effort], max_tokens - 1)
    if budget < _LEAST_BUDGET or not _may_think(messages):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _may_think(messages: Sequence[_Json]) -> bool:
    """With a budget, a message whose calls are being answered must begin with the thoughts that led to them."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in ("thinking", "redacted_thinking")


def _thinks(thinking: object) -> bool:
    return isinstance(thinking, Mapping) and thinking.get("type") != "disabled"


def _tool(definition: ToolDefinition, strict: bool) -> _Json:
    """A tool; strict, so that its arguments surely fit, only if its schema and the request's other tools allow it."""
    told = {"name": definition.name, "description": definition.description, "input_schema": definition.schema}
    return {**told, "strict": strict}


def _choice(choice: str, settings: Settings, thinks: bool) -> _Json:
    """The tool choice, where it is another than the API's own. A call cannot be forced from a model that thinks."""
    wanted: _Json
    match choice:
        case "none":
            return {"tool_choice": {"type": "none"}}
        case "auto":
            wanted = {"type": "auto"}
        case _ if thinks:
            wanted = {"type": "auto"}
        case "required":
            wanted = {"type": "any"}
        case name:
            wanted = {"type": "tool", "name": name}
    if settings.parallel_tool_calls is False:
        wanted["disable_parallel_tool_use"] = True
    return {} if wanted == {"type": "auto"} else {"tool_choice": wanted}


def _set_breakpoints(body: _Json) -> None:
    """Mark the ends of what will be sent again: instructions, tools, and the last two user turns."""
    users = [message["content"] for message in body["messages"] if message["role"] == "user"]
    for items in (body.get("system"), body.get("tools"), *users[-2:]):
        if items:
            items[-1] = {**items[-1], **_CACHED}


# -- messages


def _conversation(model: str, messages: Sequence[Message]) -> list[_Json]:
    """The messages, in turns: what follows another of its role joins it, so that tool results come first."""
    turns: list[_Json] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts for block in _blocks(model, part)]
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(model: str, part: Text | ToolCall | ToolResult | Reasoning | File) -> Iterator[_Json]:
    """A part as its block; none for a blank text, which the API refuses, and for what another model thought."""
    match part:
        case Text(text=text):
            if text.strip():
                yield {"type": "text", "text": text}
        case ToolCall():
            arguments = object_of(part.arguments) or {}
            yield {"type": "tool_use", "id": id_of(part.id), "name": name_of(part), "input": arguments}
        case ToolResult():
            yield _result(part)
        case Reasoning(block=str(text)) if is_own(part, PROVIDER, model):
            block = object_of(text)
            if block is not None:
                yield block
        case File():
            yield _file(part)


def _result(result: ToolResult) -> _Json:
    """A result. Without a content the API takes a good one only."""
    block: _Json = {"type": "tool_result", "tool_use_id": id_of(result.call)}
    if result.content.strip():
        block["content"] = result.content
    elif result.is_error:
        block["content"] = result.code or "error"
    if result.is_error:
        block["is_error"] = True
    return block


def _file(file: File) -> _Json:
    source = _source(file)
    if source is None:
        how = "" if file.data is not None else " without its bytes"
        raise ModelError(f"Anthropic takes no file of type {file.media_type}{how}", code="MODEL_REQUEST")
    return {"type": "image" if file.media_type in _IMAGES else "document", "source": source}


def _source(file: File) -> _Json | None:
    """Where a file's content is; None if the API does not take it so."""
    if file.data is not None and file.media_type.startswith("text/"):
        return _text_source(file.data)
    if file.media_type not in _IMAGES and file.media_type != "application/pdf":
        return None
    data = base64_of(file)
    if data is not None:
        return {"type": "base64", "media_type": file.media_type, "data": data}
    return None if file.url is None else {"type": "url", "url": file.url}


def _text_source(data: bytes) -> _Json | None:
    try:
        return {"type": "text", "media_type": "text/plain", "data": data.decode()}
    except UnicodeDecodeError:
        return None
