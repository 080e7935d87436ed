"""The watchdog of a run's model calls: one timer for all of them, moved only when it is stale."""

from __future__ import annotations

import asyncio
from typing import Any

from weft._ports import Clock, Timer


class Idle:
    """Cancels the task that waits for a model, once nothing has come for too long.

    A timer that a model call has left armed is taken over by the next one; one that fires early arms itself again.
    """

    __slots__ = ("_clock", "_last", "_seconds", "_task", "_timer", "fired")

    def __init__(self, clock: Clock) -> None:
        self.fired = False
        """Whether it has cancelled the present call."""
        self._clock = clock
        self._seconds: float | None = None
        self._task: asyncio.Task[Any] | None = None
        self._last = 0.0
        self._timer: Timer | None = None

    def start(self, seconds: float | None) -> None:
        """A model call begins in the present task; None is without limit."""
        self.fired = False
        self._seconds = seconds
        if seconds is None:
            return
        self._task = asyncio.current_task()
        self.heard()
        if self._timer is None:
            self._timer = self._clock.deadline(seconds, self._check)

    def heard(self) -> None:
        """Something has come."""
        self._last = self._clock.monotonic()

    def stop(self) -> None:
        """The model call is over."""
        self._task = None

    def close(self) -> None:
        """No more calls."""
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._task is None or self._seconds is None:
            return
        left = self._last + self._seconds - self._clock.monotonic()
        if left > 0:
            self._timer = self._clock.deadline(left, self._check)
        else:
            self.fired = True
            self._task.cancel()
