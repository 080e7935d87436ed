"""From a server's failure to a `ModelError` that is safe to store: codes, words, and how long to wait. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from weft.model import ModelError

__all__ = ["UNREADABLE", "Asked", "connection_failed", "retry_after", "status_code", "timed_out", "told", "unreadable"]

_SAFE_WORD = re.compile(r"[A-Za-z_]{1,64}|\d{1,5}")
"""What an error's type or code looks like, and a key does not."""
_CONTEXT_WORDS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_QUOTA_WORDS = frozenset({"insufficient_quota", "billing_error"})
UNREADABLE = "the server's reply could not be read"


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked, for the words of an error.

    Attributes:
        server: The host, and the port unless it is the usual one; nothing else of the address.
        key: What to look at when the key is refused: the name of a variable, or that it is the client's own.
    """

    server: str
    key: str


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
    asked: Asked | None = None,
) -> ModelError:
    """A failure that the server reported.

    Args:
        text: Our own words.
        code: What it is by its status.
        words: The vendor's words for it; those that could quote something secret are left out.
        too_long: Whether the vendor's message says that the request does not fit the context window.
        wait: Seconds that the server asks to wait.
        asked: Who refused the key, if that is what happened.
    """
    safe = [word for word in words if isinstance(word, str) and _SAFE_WORD.fullmatch(word)]
    if too_long or not _CONTEXT_WORDS.isdisjoint(safe):
        code = "MODEL_CONTEXT"
    elif not _QUOTA_WORDS.isdisjoint(safe):
        code = "MODEL_QUOTA"
    elif any(word.startswith("rate_limit") for word in safe):
        code = "MODEL_RATE_LIMIT"
    shown = f"{text} ({', '.join(safe)})" if safe else text
    hint = "" if asked is None else f"; check {asked.key}, and that it is a key of {asked.server}"
    return ModelError(shown + hint, code=code, retry_after=wait)


def timed_out(asked: Asked) -> ModelError:
    """The SDK's own timeout."""
    return ModelError(f"{asked.server} did not answer in time", code="MODEL_TIMEOUT")


def connection_failed(asked: Asked) -> ModelError:
    """No connection, or it was lost."""
    return ModelError(f"the connection to {asked.server} failed", code="MODEL_CONNECTION")


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
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
