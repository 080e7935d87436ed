"""Following a thread's entries, in this process and across processes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from itertools import islice

from weft.thread._codec import decode_lines
from weft.thread._live import SLICE, Live
from weft.thread.entries import Entry
from weft.thread.store import Head

__all__ = ["Watch"]


class Watch:
    """Every entry after a position exactly once, in order, then live. Owns nothing that needs closing."""

    def __init__(self, live: Live, *, after: int = 0, until: Head | None = None) -> None:
        self.live = live
        self._next = after
        self._until = until
        self._lines: Iterator[bytes] = iter(())
        """Read, and not decoded yet."""
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
        """Decode some more, not so much at once that nobody else gets a turn."""
        await self.live.world.clock.sleep(0)
        lines = list(islice(self._lines, SLICE)) or await self._load()
        rest, self._lines = self._lines, iter(())  # what does not decode is read anew
        self._ready.extend(decode_lines(lines, self.live.id, self._next))
        self._lines = rest

    async def _load(self) -> list[bytes]:
        await self.live.open()
        while self.live.head.count <= self._next:
            await self.live.changed()
        lines = await self.live.lines(self._next)
        known = self.live.head.count - self._next  # others may have written more, of which the view says nothing yet
        self._lines = iter(lines[:known])
        return list(islice(self._lines, SLICE))
