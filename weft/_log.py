"""A run's events as a list that consumers follow by index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from weft.events import Event


class EventLog:
    """A list of events that consumers follow by index. Whoever pushes never waits."""

    __slots__ = ("_waiters", "closed", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False
        self._waiters: list[asyncio.Future[None]] = []

    def push(self, event: Event) -> None:
        """Add an event, and wake who waits."""
        self.events.append(event)
        if self._waiters:
            self._wake()

    def close(self) -> None:
        """Nothing more comes."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def grown(self) -> None:
        """Return at the next push or close."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done() or waiter.cancelled():  # a consumer that left: nothing of it stays
                self._waiters = [other for other in self._waiters if other is not waiter]


class EventStream:
    """Iterates an `EventLog` from its start, live or late. Owns nothing."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._next = 0

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        log = self._log
        while self._next >= len(log.events):
            if log.closed:
                raise StopAsyncIteration
            await log.grown()
        self._next += 1
        return log.events[self._next - 1]
