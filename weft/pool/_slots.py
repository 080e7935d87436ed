"""At most so many children at work at once; who had a slot before comes back first."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A counting semaphore with two queues: children that come back, then new ones; first come first served in each."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._returning: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()

    async def enter(self, *, returning: bool) -> None:
        """Wait for a slot. A cancelled wait leaks none."""
        if self.used < self.limit and not self._returning and (returning or not self._new):
            self.used += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._returning if returning else self._new
        queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            elif waiter in queue:  # or a `leave` in between has passed it over
                queue.remove(waiter)
            raise

    def leave(self) -> None:
        """Give a slot back; the next in line has it at once."""
        self.used -= 1
        while self.used < self.limit:
            waiter = self._next()
            if waiter is None:
                return
            self.used += 1
            waiter.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        for queue in (self._returning, self._new):
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    return waiter
        return None
