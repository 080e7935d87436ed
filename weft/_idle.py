"""The watchdog of a model call: one for each call, moved only when it is stale."""

from __future__ import annotations

import asyncio
from typing import Any

from weft._ports import Clock, Timer


class Idle:
    """Cancels the task that waits for a model, once nothing has come for too long.

    Args:
        clock: Owns the time.
        seconds: The most between two chunks; None is without limit.
        task: Who waits.
    """

    __slots__ = ("_clock", "_last", "_seconds", "_task", "_timer", "fired")

    def __init__(self, clock: Clock, seconds: float | None, task: asyncio.Task[Any] | None) -> None:
        self.fired = 0
        """How often it has cancelled: again after each such time in which nothing has come of that either."""
        self._clock = clock
        self._seconds = seconds
        self._task = task
        self._last = 0.0
        self._timer: Timer | None = None
        if seconds is not None:
            self.heard()
            self._timer = clock.deadline(seconds, self._check)

    def heard(self) -> None:
        """Something has come."""
        self._last = self._clock.monotonic()

    def stop(self) -> None:
        """The call is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._timer is None or self._seconds is None or self._task is None:
            return
        left = self._last + self._seconds - self._clock.monotonic()
        if left <= 0:
            self.fired += 1
            self._task.cancel()
            left = self._seconds
        self._timer = self._clock.deadline(left, self._check)
