"""What the adapters share when they write a request. Pure, and free of any vendor's types."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from weft.messages import File, Reasoning, ToolCall
from weft.model import ModelError, Settings
from weft.models._stream import is_object

__all__ = ["arguments_of", "base64_of", "data_url", "extra_of", "id_of", "is_own", "name_of", "object_of"]

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
"""What OpenAI takes; others take more. A tool of weft's has no longer one."""
_MARGIN = 100
"""Levels of nesting that the rest of a body, and the calls that write it, may need."""


def name_of(call: ToolCall) -> str:
    """The call's name as the wire allows it: what a model made up must not get the request refused."""
    return _NOT_IN_A_NAME.sub("_", call.name)[:_LONGEST_NAME]


def arguments_of(call: ToolCall) -> str:
    """The call's argument text if it is one JSON object, else `{}`."""
    return call.arguments if is_object(call.arguments) else "{}"


def id_of(call: str) -> str:
    """A call's id as the wire allows it, the same for the call and its result; weft's own are as they were."""
    return _NOT_IN_A_NAME.sub(lambda found: f"_{ord(found[0]):x}_", call)


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is; None if it is none, or holds what the wire cannot carry.

    That is a number without a value in JSON, half a character, and more levels than can be written.
    """
    try:
        value = json.loads(text)
        nested = value
        for _ in range(_MARGIN):
            nested = [nested]
        json.dumps(nested, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def extra_of(settings: Settings) -> dict[str, Any]:
    """The fields that go in as they are.

    Raises:
        ModelError: One of them holds a number without a value in JSON, or holds itself.
    """
    extra = dict(settings.extra)
    try:
        json.dumps(extra, allow_nan=False, default=repr)  # the SDKs can write more than JSON's own types
    except (ValueError, RecursionError) as error:
        raise ModelError("Settings(extra=…) holds what JSON cannot say", code="MODEL_REQUEST") from error
    return extra


def base64_of(file: File) -> str | None:
    """The file's bytes as base64; None where it is given by its URL."""
    return None if file.data is None else base64.b64encode(file.data).decode("ascii")


def data_url(file: File) -> str | None:
    """The file's URL, or its bytes as one; None where it has neither."""
    data = base64_of(file)
    return file.url if data is None else f"data:{file.media_type};base64,{data}"


def is_own(reasoning: Reasoning, provider: str, model: str) -> bool:
    """Whether a reasoning part has a block, and it is of this provider and model, so that it is sent back to it."""
    return reasoning.block is not None and reasoning.provider == provider and reasoning.model == model
