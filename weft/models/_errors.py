"""From a server's failure to a `ModelError` that is safe to store: codes, words, and how long to wait. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from weft.model import Finish, ModelError, ModelEvent, ReasoningChunk, TextChunk, ToolCallChunk, WholeCall

__all__ = [
    "UNREADABLE",
    "Asked",
    "check_page",
    "connection_failed",
    "events_of",
    "hint",
    "not_made",
    "not_set_up",
    "retry_after",
    "shown",
    "status_code",
    "timed_out",
    "told",
    "unknown_call",
    "unreadable",
]

_SAFE_WORD = re.compile(r"[A-Za-z_]{1,64}|\d{1,5}")
"""What an error's type or code looks like, and a key does not."""
_CONTEXT_WORDS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_QUOTA_WORDS = frozenset({"insufficient_quota", "billing_error"})
_NOT_SENT = frozenset({"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"})
"""What the HTTP library raises before it connects."""
_QUOTING = frozenset({"InvalidURL", "LocalProtocolError"})
"""Of these, those whose text has the whole header, so a key, or the whole address."""
UNREADABLE = "the server's reply could not be read"


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked, for the words of an error.

    Attributes:
        server: The host, and the port unless it is the usual one; nothing else of the address.
        key: What to look at when the key is refused: the name of a variable, or that it is the client's own.
        model: The model's name.
    """

    server: str
    key: str
    model: str


def status_code(status: int) -> str:
    """The code for an HTTP status."""
    match status:
        case 401 | 403:
            return "MODEL_AUTH"
        case 402:
            return "MODEL_QUOTA"
        case 408:
            return "MODEL_TIMEOUT"
        case 429:
            return "MODEL_RATE_LIMIT"
        case _:
            return "MODEL_SERVER" if status >= 500 else "MODEL_REQUEST"


def told(
    text: str,
    code: str,
    words: Iterable[object],
    *,
    too_long: bool = False,
    wait: float | None = None,
    hint: str = "",
) -> ModelError:
    """A failure that the server reported.

    Args:
        text: Our own words.
        code: What it is by its status.
        words: The vendor's words for it; those that could quote something secret are left out.
        too_long: Whether the vendor's message says that the request does not fit the context window.
        wait: Seconds that the server asks to wait.
        hint: What to look at.
    """
    safe = [word for word in words if isinstance(word, str) and _SAFE_WORD.fullmatch(word)]
    if too_long or not _CONTEXT_WORDS.isdisjoint(safe):
        code = "MODEL_CONTEXT"
    elif not _QUOTA_WORDS.isdisjoint(safe):
        code = "MODEL_QUOTA"
    elif any(word.startswith("rate_limit") for word in safe):
        code = "MODEL_RATE_LIMIT"
    shown = f"{text} ({', '.join(safe)})" if safe else text
    return ModelError(shown + hint, code=code, retry_after=wait)


def hint(status: int, asked: Asked) -> str:
    """What to look at after this status."""
    match status:
        case 401:
            return f"; check {asked.key}, and that it is a key of {asked.server}"
        case 404:
            return f"; check that {asked.server} has the model {asked.model!r}, and the base URL's path"
        case _:
            return ""


def timed_out(asked: Asked) -> ModelError:
    """The SDK's own timeout."""
    return ModelError(f"{asked.server} did not answer in time", code="MODEL_TIMEOUT")


def connection_failed(asked: Asked, cause: BaseException | None = None) -> ModelError:
    """No connection, or it was lost; or `cause` says that none was tried."""
    if cause is not None and type(cause).__name__ in _NOT_SENT:
        return not_made(cause, asked)
    return ModelError(f"the connection to {asked.server} failed", code="MODEL_CONNECTION")


def not_made(error: BaseException, asked: Asked) -> ModelError:
    """No request could be made of what was given: an address without a scheme, a key that no header can hold."""
    text = f"no request could be made ({type(error).__name__}): check the base URL, {asked.key}, and Settings(extra=…)"
    return ModelError(text, code="MODEL_REQUEST")


def not_set_up(error: Exception) -> ModelError:
    """No client could be made of what the environment says: an address, a proxy, a certificate."""
    what = f"no client could be made ({type(error).__name__})"
    return ModelError(
        f"{what}: check the base URL, and the proxies and certificates that are set", code="MODEL_REQUEST"
    )


def shown(error: Exception) -> Exception | None:
    """The error as the cause of ours, which tracebacks show; None where it quotes what it could not send."""
    return None if type(error.__cause__ or error).__name__ in _QUOTING else error


def check_page(headers: Mapping[str, str], asked: Asked) -> None:
    """Refuse a page in place of a stream: that of a proxy, or one JSON text, as of a server that does not stream.

    Raises:
        ModelError: It is one.
    """
    kind = headers.get("content-type", "").lower()
    if kind.startswith("text/html"):
        raise ModelError(f"{asked.server} answered with a web page: check the base URL", code="MODEL_SERVER")
    if kind.startswith("application/json") and "content-length" in headers:  # a stream's length is not known before
        way = "check the base URL, or use Settings(stream=False)"
        raise ModelError(f"{asked.server} answered whole where a stream was asked for: {way}", code="MODEL_SERVER")


def unreadable() -> ModelError:
    """The server's reply is not what its protocol says."""
    return ModelError(UNREADABLE, code="MODEL_SERVER")


def unknown_call(kind: object) -> ModelError:
    """The reply has a call of a kind that no tool of weft's answers."""
    shown = kind if isinstance(kind, str) and _SAFE_WORD.fullmatch(kind) else "unknown"
    text = f"the reply has a call of the type {shown}, which nobody here answers; take it from Settings(extra=…)"
    return ModelError(text, code="MODEL_REQUEST")


def events_of(said: Iterable[ModelEvent]) -> list[ModelEvent]:
    """The events that are made of one thing that the server gave.

    Raises:
        ModelError: It is not what the protocol says: the SDKs check little of what they parse.
    """
    try:
        events = list(said)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise unreadable() from error
    if not all(map(_is_sound, events)):
        raise unreadable()
    return events


def _is_sound(event: object) -> bool:
    """Whether the fields that were taken over from the server are of their types."""
    match event:
        case (
            TextChunk(text=str())
            | ReasoningChunk(text=str())
            | ToolCallChunk(index=int(), name=str() | None, arguments=str())
            | WholeCall(name=str(), arguments=str())
            | Finish(provider_reason=str() | None)
        ):
            return True
    return False


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, or `retry-after` as seconds or an HTTP date.

    A date counts from the reply's own `date`, so that no clock is needed here. See RFC 9110, 10.2.3.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after")
    seconds = _number(given)
    if seconds is not None or given is None:
        return seconds
    until, since = _date(given), _date(headers.get("date"))
    return None if until is None or since is None else max((until - since).total_seconds(), 0.0)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
