"""A store in memory: a data object that outlives the stores opened on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from weft._ports import Clock
from weft.errors import Closed, Locked, NotFound, Stale
from weft.thread._codec import digest_line
from weft.thread.store import (
    Appended,
    Claim,
    Head,
    Hold,
    Index,
    Lease,
    LeaseChange,
    Listed,
    Loaded,
    Query,
    Release,
    Seize,
)

__all__ = ["Memory"]


@dataclass(slots=True)
class _Thread:
    lines: list[bytes]
    head: Head
    index: Index
    order: int
    owner: str | None = None
    generation: int = 0
    expires: float = 0.0


@dataclass(slots=True)
class Memory:
    """Threads in memory. Give it to `open_store` more than once to play a restart."""

    _threads: dict[str, _Thread] = field(default_factory=dict)
    _created: int = 0
    _dead: set[str] = field(default_factory=set)
    """The tokens of stores that were left: proof of death."""


class MemoryStore:
    """A store on a `Memory`. Leases run on the given clock."""

    def __init__(self, data: Memory, *, owner: str, ttl: float, clock: Clock, survives: bool) -> None:
        self.owner = owner
        self.ttl = ttl
        self.survives = survives
        self._data = data
        self._clock = clock
        self._open = False

    async def start(self) -> None:
        self._open = True
        self._data._dead.discard(self.owner)

    async def stop(self) -> None:
        self._open = False
        self._data._dead.add(self.owner)

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            future.set_result(self._create(thread, line, index, more))
        except Closed as error:
            future.set_exception(error)
        return future

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            future.set_result(self._append(thread, lines, expect, lease, index))
        except (Closed, NotFound, Stale, Locked) as error:
            future.set_exception(error)
        return future

    async def load(self, thread: str, after: int = 0) -> Loaded:
        self._check_open()
        found = self._find(thread)
        return Loaded(found.lines[after:], found.head, self._lease(found))

    async def scan(self, thread: str) -> dict[int, bytes]:
        self._check_open()
        return dict(enumerate(self._find(thread).lines))

    async def list(self, query: Query) -> list[Listed]:
        self._check_open()
        threads, after = self._data._threads, query.after
        rows = sorted(threads.items(), key=lambda item: item[1].order, reverse=True)
        chosen = [
            Listed(name, found.lines[0], found.order, found.index)
            for name, found in rows
            if _matches(found.index, query) and (after is None or found.order < after)
        ]
        return chosen[: query.limit]

    async def delete(self, thread: str, expect: Head) -> None:
        self._check_open()
        self._delete(thread, expect)

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        self._check_open()
        kept: dict[str, int] = {}
        for thread, generation in held:
            found = self._data._threads.get(thread)
            if found is None or (found.owner, found.generation) != (self.owner, generation):
                continue
            if found.expires > self._clock.now():
                found.expires = self._clock.now() + self.ttl
                kept[thread] = found.head.count
        return kept

    async def now(self) -> float:
        return self._clock.now()

    def _check_open(self) -> None:
        if not self._open:
            raise Closed()

    def _find(self, thread: str) -> _Thread:
        found = self._data._threads.get(thread)
        if found is None:
            raise NotFound(thread)
        return found

    def _live(self, found: _Thread) -> bool:
        return found.owner is not None and found.expires > self._clock.now() and found.owner not in self._data._dead

    def _lease(self, found: _Thread) -> Lease:
        return Lease(owner=found.owner, generation=found.generation, live=self._live(found))

    def _create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes]) -> bytes:
        threads = self._data._threads
        if thread not in threads:
            lines = [line, *more]
            head = Head(len(lines), digest_line(lines[-1]))
            threads[thread] = _Thread(lines=lines, head=head, index=index, order=self._data._created)
            self._data._created += 1
        return threads[thread].lines[0]

    def _delete(self, thread: str, expect: Head) -> None:
        found = self._find(thread)
        if found.head != expect:
            raise Stale(thread, found.head)
        if self._live(found):
            raise Locked(thread, found.owner)
        del self._data._threads[thread]

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        found = self._find(thread)
        if found.head != expect:
            raise Stale(thread, found.head)
        if lease is not None:
            self._change(thread, found, lease)
        if lines:
            found.lines.extend(lines)
            found.head = Head(expect.count + len(lines), digest_line(lines[-1]))
        if index is not None:
            found.index = index
        return Appended(found.head, found.generation)

    def _change(self, thread: str, found: _Thread, lease: Claim | Seize | Hold | Release) -> None:
        match lease:
            case Claim() | Seize():
                if isinstance(lease, Claim) and self._live(found):
                    raise Locked(thread, found.owner)
                found.expires = self._clock.now() + lease.ttl
                found.generation += 1
                found.owner = None if lease.once else self.owner
            case Hold() | Release():
                if (found.owner, found.generation) != (self.owner, lease.generation):
                    raise Locked(thread, found.owner)
                if isinstance(lease, Release):
                    found.owner = None
                elif lease.hand_off:
                    found.expires = 0.0


def _matches(index: Index, query: Query) -> bool:
    if query.kind is not None and index.kind != query.kind:
        return False
    if query.name is not None and index.name != query.name:
        return False
    if query.parent is not None and index.parent != query.parent:
        return False
    if query.roots and index.parent is not None:
        return False
    if query.pending is not None and bool(index.pending) != query.pending:
        return False
    if query.title is not None and query.title.casefold() not in (index.title or "").casefold():
        return False
    return all(index.meta.get(key) == value for key, value in query.meta.items())
