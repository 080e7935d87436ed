"""From a server's failure to a `ModelError` that is safe to store: codes, words, and how long to wait. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from weft.model import ModelError

__all__ = ["UNREADABLE", "connection_failed", "retry_after", "status_code", "timed_out", "told", "unreadable"]

_SAFE_WORD = re.compile(r"[A-Za-z_]{1,64}|\d{1,5}")
"""What an error's type or code looks like, and a key does not."""
_CONTEXT_WORDS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
UNREADABLE = "the server's reply could not be read"


def status_code(status: int) -> str:
    """The code for an HTTP status."""
    match status:
        case 401 | 403:
            return "MODEL_AUTH"
        case 408:
            return "MODEL_TIMEOUT"
        case 429:
            return "MODEL_RATE_LIMIT"
        case _:
            return "MODEL_SERVER" if status >= 500 else "MODEL_REQUEST"


def told(
    text: str, code: str, words: Iterable[object], *, too_long: bool = False, wait: float | None = None
) -> ModelError:
    """A failure that the server reported.

    Args:
        text: Our own words.
        code: What it is by its status.
        words: The vendor's words for it; those that could quote something secret are left out.
        too_long: Whether the vendor's message says that the request does not fit the context window.
        wait: Seconds that the server asks to wait.
    """
    safe = [word for word in words if isinstance(word, str) and _SAFE_WORD.fullmatch(word)]
    if too_long or not _CONTEXT_WORDS.isdisjoint(safe):
        code = "MODEL_CONTEXT"
    elif any(word.startswith("rate_limit") for word in safe):
        code = "MODEL_RATE_LIMIT"
    return ModelError(f"{text} ({', '.join(safe)})" if safe else text, code=code, retry_after=wait)


def timed_out() -> ModelError:
    """The SDK's own timeout."""
    return ModelError("the server did not answer in time", code="MODEL_TIMEOUT")


def connection_failed() -> ModelError:
    """No connection, or it was lost."""
    return ModelError("the connection to the server failed", code="MODEL_CONNECTION")


def unreadable() -> ModelError:
    """The server's reply is not what its protocol says."""
    return ModelError(UNREADABLE, code="MODEL_SERVER")


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
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
