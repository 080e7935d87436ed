"""Listing threads, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from weft.errors import Corrupt, NewerFormat, NotFound
from weft.messages import clean_text
from weft.thread._codec import decode_line
from weft.thread._node import Node
from weft.thread.entries import Header, Index
from weft.thread.store import Listed, Query

__all__ = ["ThreadInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """A thread as a list shows it."""

    header: Header
    title: str | None
    meta: Mapping[str, str]
    """As it is now; the header's is that of its creation."""
    pending: int
    """Requests that wait for a decision."""
    unsettled: int
    """Delegations that are not settled."""
    cursor: int
    """Give it as `after=` to go on from here, also when this thread is deleted meanwhile."""

    @property
    def thread(self) -> str:
        """Its id."""
        return self.header.thread

    @property
    def kind(self) -> str:
        """What kind of thread it is, as `session`."""
        return self.header.kind

    @property
    def name(self) -> str:
        """The agent's or the definition's."""
        return self.header.name

    @property
    def parent(self) -> str | None:
        """The thread that has delegated to it."""
        return self.header.parent

    @property
    def created(self) -> float:
        """Seconds since the epoch, by its writer's clock."""
        return self.header.created


class Listing:
    """Threads, newest first; pages are read as they are needed. Owns nothing that needs closing."""

    def __init__(self, node: Node, query: Query, most: int | None = None) -> None:
        self._node = node
        self._query = query
        self._left = most
        self._rows: list[Listed] = []
        self._more = True

    def __aiter__(self) -> AsyncIterator[ThreadInfo]:
        return self

    async def __anext__(self) -> ThreadInfo:
        """The next thread. One that cannot be read is reported, and passed over.

        What the store keeps of it beside its journal is made from that again where it cannot be read.

        Raises:
            Closed: The store was left.
        """
        self._node.check_open()
        while self._left != 0:
            if not self._rows and self._more:
                await self._page()
            if not self._rows:
                break
            row = self._rows.pop(0)
            try:
                found = _info(row, row.state or await self._index_of(row.thread))
            except (Corrupt, NewerFormat, NotFound) as error:
                self._node.report(row.thread, error)
                continue
            if self._left is not None:
                self._left -= 1
            return found
        raise StopAsyncIteration

    async def _index_of(self, thread: str) -> Index:
        return (await self._node.live(thread).open()).view.index

    async def _page(self) -> None:
        limit = self._query.limit if self._left is None else min(self._query.limit, self._left)
        self._rows = await self._node.store.list(replace(self._query, limit=limit))
        self._more = len(self._rows) == limit
        if self._rows:
            self._query = replace(self._query, after=self._rows[-1].cursor)


def children_of(node: Node, thread: str) -> Listing:
    """What this thread has delegated to."""
    return Listing(node, Query(parent=clean_text(thread)))


def _info(row: Listed, state: Index) -> ThreadInfo:
    header = decode_line(row.line, row.thread, 0).body
    if not isinstance(header, Header):
        raise Corrupt(row.thread, 0, "the first line is no header")
    return ThreadInfo(
        header=header,
        title=state.title,
        meta=state.meta,
        pending=state.pending,
        unsettled=state.unsettled,
        cursor=row.cursor,
    )
