"""The watchdog of a run's model calls: one timer for all of them, moved only when it is stale."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from weft._ports import Clock, Timer
from weft.model import ModelError, ModelEvent


def silent(seconds: float | None) -> ModelError:
    """What a model call fails with that was silent for too long."""
    return ModelError(f"the model said nothing for {seconds or 0.0:g} seconds", code="MODEL_TIMEOUT")


class Idle:
    """Cancels the task that waits for a model, once nothing has come for too long.

    It cancels again after each such time in which nothing has come of that either. A timer that a model call has left
    armed is taken over by the next one; one that fires early arms itself again.
    """

    __slots__ = ("_cancelling", "_fired", "_seconds", "_task", "_timer", "clock", "last")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._seconds: float | None = None
        self._task: asyncio.Task[Any] | None = None
        """Who waits; None while nobody does."""
        self._cancelling = 0
        """How often the task was cancelled before."""
        self._fired = 0
        """How often it was cancelled from here."""
        self.last = 0.0
        """When something has come last, by the clock."""
        self._timer: Timer | None = None

    def start(self, seconds: float | None, task: asyncio.Task[Any] | None) -> None:
        """The task, the present one, waits for a model from now on; None is without limit."""
        self._seconds = seconds
        if seconds is None or task is None:
            return
        self._task = task
        self._cancelling = task.cancelling()
        self.last = self.clock.monotonic()
        if self._timer is None:
            self._timer = self.clock.deadline(seconds, self._check)

    def stop(self) -> bool:
        """The task does not wait any more: take back what was cancelled from here, whatever has come of it.

        Returns:
            Whether it was cancelled from here, and by nobody else.
        """
        task, fired = self._task, self._fired
        self._task, self._fired = None, 0
        if task is None or not fired:
            return False
        for _ in range(fired):
            task.uncancel()
        return task.cancelling() <= self._cancelling

    def close(self) -> None:
        """No more calls."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._task is None or self._seconds is None:
            return
        left = self.last + self._seconds - self.clock.monotonic()
        if left <= 0:
            self._fired += 1
            self._task.cancel()
            left = self._seconds
        self._timer = self.clock.deadline(left, self._check)


async def listen(
    stream: AsyncIterator[ModelEvent],
    take: Callable[[ModelEvent], None],
    idle: Idle,
    seconds: float | None,
    task: asyncio.Task[Any] | None,
) -> None:
    """Take the stream's events, under the idle limit. Closed in this task; what cannot be closed is left alone.

    Args:
        stream: What a model says.
        take: Called with each event.
        idle: The watchdog.
        seconds: The limit; None is none.
        task: The present one.

    Raises:
        ModelError: Nothing has come for too long.
    """
    clock = idle.clock
    was_silent = False
    idle.start(seconds, task)
    try:
        try:
            async for event in stream:
                take(event)
                idle.last = clock.monotonic()
        finally:
            was_silent = idle.stop()  # also where the stream has swallowed it, or has made an error of it
    except asyncio.CancelledError:
        if not was_silent:
            raise
        raise silent(seconds) from None
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
