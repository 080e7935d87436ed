"""Time and identities that tests control."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["CountingIds", "ManualClock"]


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock that stands still until a test moves it.

    Args:
        start: Seconds since the epoch at the beginning.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._monotonic = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = count()
        self._expected: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"ManualClock({self._now!r})"

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that were advanced so far."""
        return self._monotonic

    def step_back(self, seconds: float) -> None:
        """Set the time of day back; deadlines do not care."""
        self._now -= seconds

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced so far; 0 only lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fire() -> None:
            if not done.done():
                done.set_result(None)

        timer = self.deadline(seconds, fire)
        try:
            await done
        finally:
            timer.cancel()

    def deadline(self, seconds: float, callback: Callable[[], object]) -> _Timer:
        """Call back when the clock was advanced so far."""
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._monotonic + seconds, next(self._order), timer))
        return timer

    def expect(self, work: asyncio.Future[Any]) -> None:
        """A store's thread is at work on this: `advance` waits for it."""
        self._expected.add(work)
        work.add_done_callback(self._expected.discard)

    async def advance(self, seconds: float) -> None:
        """Move the clock, firing what is due in order, and let the loop come to rest before, and after each.

        It rests when nothing is ready to run, and SQLite's threads have done what they were asked. A synchronous body
        is not waited for.
        """
        await self._rest()
        target = self._monotonic + seconds
        while self._timers and self._timers[0][0] <= target:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._move(due)
            callback, timer.callback = timer.callback, None
            callback()
            await self._rest()
        self._move(target)
        await self._rest()

    async def _rest(self) -> None:
        await settle()
        loop = asyncio.get_running_loop()
        while at_work := [work for work in self._expected if work.get_loop() is loop]:
            await asyncio.wait(at_work)
            await settle()

    def _move(self, to: float) -> None:
        self._now += to - self._monotonic
        self._monotonic = to


async def settle(rounds: int = 50) -> None:
    """Let everything that is ready run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class CountingIds:
    """Ids that count: `a-1`, `a-2`, … Objects made after a cut, and each process, take another prefix."""

    def __init__(self, prefix: str = "a") -> None:
        self._prefix = prefix
        self._count = count(1)

    def __repr__(self) -> str:
        return f"CountingIds({self._prefix!r})"

    def new(self) -> str:
        """The next id."""
        return f"{self._prefix}-{next(self._count)}"
