"""A run's events as a list that consumers follow by index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

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
        waiter: asyncio.Future[None] = asyncio.Future()
        self._waiters.append(waiter)
        try:
            await waiter
        except (asyncio.CancelledError, GeneratorExit):  # a consumer that left: nothing of it stays
            self._waiters = [other for other in self._waiters if other is not waiter]
            raise


class EventStream:
    """Iterates an `EventLog` from its start, live or late. Owns nothing.

    Args:
        log: The events.
        end: Awaited at the end of them; what it raises ends the iteration instead.
    """

    def __init__(self, log: EventLog, end: Callable[[], Awaitable[object]] | None = None) -> None:
        self._log = log
        self._end = end
        self._next = 0

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        log, events = self._log, self._log.events
        while self._next >= len(events):
            if log.closed:
                if self._end is not None:
                    await self._end()
                raise StopAsyncIteration
            await log.grown()
        place = self._next
        self._next = place + 1
        return events[place]
