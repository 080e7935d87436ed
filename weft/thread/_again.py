"""What is done in the background, and again where the disk refuses it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from weft._contain import Boundary, Contained, contain
from weft._ports import Clock
from weft.errors import StoreFailed

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds until what is done in the background is tried again, where the disk or another owner stands in the way."""


async def persisting(clock: Clock, boundary: Boundary, work: Callable[[], Coroutine[Any, Any, T]]) -> T | Contained:
    """What the work gives, or fails with; again, after a while, where it was only that the disk refused."""
    pause = FIRST_PAUSE
    outcome = await contain(boundary, work())
    while isinstance(outcome, Contained) and isinstance(outcome.cause, StoreFailed):
        await clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        outcome = await contain(boundary, work())
    return outcome
