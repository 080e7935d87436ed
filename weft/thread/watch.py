"""Following a thread's entries, in this process and across processes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

from weft.thread._codec import decode_lines
from weft.thread._live import Live
from weft.thread.entries import Entry
from weft.thread.store import Head

__all__ = ["Watch"]


class Watch:
    """Every entry after a position exactly once, in order, then live. Owns nothing that needs closing."""

    def __init__(self, live: Live, *, after: int = 0, until: Head | None = None) -> None:
        self.live = live
        self._next = after
        self._until = until
        self._ready: deque[Entry] = deque()

    def __repr__(self) -> str:
        return f"Watch({self.live.id!r}, after={self._next})"

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        """The next entry; waits for one, unless `until` was reached.

        Raises:
            NotFound: The thread was deleted.
            Closed: The store was left.
        """
        if self._until is not None and self._next >= self._until.count:
            raise StopAsyncIteration
        while not self._ready:
            await self._read()
        self._next += 1
        return self._ready.popleft()

    async def _read(self) -> None:
        await self.live.open()
        while self.live.head.count <= self._next:
            await self.live.changed()
        lines = await self.live.lines(self._next)
        known = self.live.head.count - self._next  # others may have written more, of which the view says nothing yet
        self._ready.extend(decode_lines(lines[:known], self.live.id, self._next))
