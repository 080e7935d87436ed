"""What the adapters over OpenAI's SDK share: the client, its errors, and what a reply leaves open."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI, OpenAIError

from weft.model import ModelError, Settings
from weft.models._client import Clients, other_errors
from weft.models._errors import (
    Asked,
    connection_failed,
    hint,
    retry_after,
    shown,
    status_code,
    timed_out,
    told,
)
from weft.models._wire import extra_of

__all__ = ["KEY", "Json", "Reason", "arguments_text", "client_here", "count_of", "extra_body", "failed", "model_errors"]

Json: TypeAlias = dict[str, Any]
Reason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "filter", "other"]


KEY = "OPENAI_API_KEY"
_STATUS = re.compile(r"[45]\d\d")


async def client_here(clients: Clients[AsyncOpenAI]) -> AsyncOpenAI:
    """The client of the running loop.

    Raises:
        ModelError: There is no API key.
    """
    try:
        return await clients.here()
    except OpenAIError as error:
        text = f"no API key: set {KEY}, or give the model a client"
        raise ModelError(text, code="MODEL_AUTH") from error


def extra_body(settings: Settings) -> Json:
    """The argument by which the SDK puts `settings.extra` into the body, over what is there."""
    return {"extra_body": extra_of(settings)} if settings.extra else {}


def arguments_text(arguments: object) -> str | None:
    """A call's arguments as text; some servers send the object itself."""
    return arguments if arguments is None or isinstance(arguments, str) else json.dumps(arguments)


def count_of(counted: object, name: str) -> int:
    """A count as the server gave it; 0 where it gave none, or what is no count."""
    given = getattr(counted, name, None)
    return int(given) if isinstance(given, int | float) and 0 < given < 2**63 else 0


@contextmanager
def model_errors(asked: Asked) -> Iterator[None]:
    """Turn the SDK's errors into ones that are safe to store."""
    try:
        with other_errors(asked):
            yield
    except OpenAIError as error:
        raise _model_error(error, asked) from shown(error)


def _model_error(error: OpenAIError, asked: Asked) -> ModelError:
    """The status and the vendor's words for it; never a header, a key, or a text that might quote one."""
    match error:
        case APITimeoutError():
            return timed_out(asked)
        case APIConnectionError():
            return connection_failed(asked, error.__cause__)
        case APIStatusError():
            return _refused(error, asked)
        case APIError():  # in the middle of a stream
            return failed(error.message, error.type, error.code)
        case _:
            return ModelError(f"the SDK refused the call ({type(error).__name__})", code="MODEL_REQUEST")


def _refused(error: APIStatusError, asked: Asked) -> ModelError:
    status = error.status_code
    return told(
        f"the server answered {status}",
        status_code(status),
        (error.type, error.code),
        too_long=_too_long(error.message),
        wait=retry_after(error.response.headers),
        hint=hint(status, asked),
    )


def failed(message: object, *words: object) -> ModelError:
    """An error that stands in a reply, by the vendor's message and its words for it; some give a status as one."""
    said = [str(word) if isinstance(word, int) else word for word in words]
    status = next((int(word) for word in said if isinstance(word, str) and _STATUS.fullmatch(word)), 500)
    invalid = any(str(word).startswith("invalid_") for word in said)
    code = "MODEL_REQUEST" if invalid else status_code(status)
    return told("the server reported an error", code, said, too_long=_too_long(message))


def _too_long(message: object) -> bool:
    return "maximum context length" in str(message)
