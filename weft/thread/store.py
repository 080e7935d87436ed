"""The store port: threads of lines, with a head, a lease and an index. A store never reads a body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from weft.thread.entries import Head, Index

__all__ = [
    "Appended",
    "Claim",
    "Head",
    "Hold",
    "Index",
    "Lease",
    "LeaseChange",
    "Listed",
    "Loaded",
    "Query",
    "Release",
    "RenewsAlone",
    "Seize",
    "Store",
    "Told",
]

BEHIND = 2**40
"""A position that no thread has: to load nothing but where it ends. A cursor that no list gives, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Take a lease that is free or expired; never a live one, one's own included."""

    ttl: float
    """Seconds."""
    once: bool = False
    """Checked, and free afterwards: for what is one append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seize:
    """Take the lease whoever has it: for cancelling."""

    ttl: float
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Go on under one's own lease of this generation, even an expired one. Does not extend it."""

    generation: int
    hand_off: bool = False
    """Expire it now, so that anyone may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give one's own lease of this generation back, even an expired one."""

    generation: int


LeaseChange: TypeAlias = Claim | Seize | Hold | Release | None
"""None is mail: the lease is neither checked nor changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who holds a thread."""

    owner: str | None
    generation: int
    live: bool
    """False where it has expired, or its owner has been proved dead."""


class Appended(NamedTuple):
    """An append that was accepted and is durable."""

    head: Head
    generation: int


class Loaded(NamedTuple):
    """Lines from a position on, with the head and the lease of the same moment."""

    lines: list[bytes]
    head: Head
    lease: Lease


class Listed(NamedTuple):
    """One row of a listing."""

    thread: str
    line: bytes
    """Its header."""
    cursor: int
    """Where the next page goes on, also when this thread was deleted meanwhile."""
    state: Index | None
    """What its view says; None where the store cannot read what it keeps of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which threads to list, newest first."""

    kind: str | None = None
    name: str | None = None
    """The agent's or the definition's."""
    parent: str | None = None
    roots: bool = False
    """Only threads without a parent."""
    meta: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None
    """Part of the title, in any case of letters (`str.casefold`)."""
    pending: bool | None = None
    """Whether something waits for a decision; None for both."""
    after: int | None = None
    """The cursor of the last row of the page before."""
    limit: int = 100


class Store(Protocol):
    """Where threads are kept.

    An append is all or nothing, and durable when its awaitable is done. It is checked in this order:
    the thread exists (`NotFound`), the head is the expected one (`Stale`), the lease allows it (`Locked`).
    Time is the store's: leases are judged by `now()`, never by a line's time.
    """

    owner: str
    """The token under which this store object claims leases."""
    ttl: float
    """Seconds that a lease lasts."""
    survives: bool
    """Whether the data outlives this object, so that somebody else may go on."""

    async def start(self) -> None:
        """Open, migrate, begin to prove that this owner lives."""
        ...

    async def stop(self) -> None:
        """Write what is queued, end the writer, give the proof of life up."""
        ...

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        """Insert a thread with its header line, or get the header of the one that is there. Queued at once.

        Args:
            thread: The thread's id.
            line: The header's.
            index: What the thread's view says after all these lines.
            more: What follows the header, for a thread that is made as a copy: inserted with it, or not at all.
        """
        ...

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        """Add lines after the head that is expected, and change the lease. Queued at once, in call order.

        Cancelling whoever waits for the future cancels nothing.

        Args:
            thread: The thread's id.
            lines: May be empty.
            expect: The head that the lines were chained to.
            lease: The change of the lease.
            index: What the thread's view says after these lines; None where that is as before.
        """
        ...

    async def load(self, thread: str, after: int = 0) -> Loaded:
        """The lines from position `after` on.

        Raises:
            NotFound: No thread has this id.
        """
        ...

    async def scan(self, thread: str) -> dict[int, bytes]:
        """What there is of a thread's lines, by position, whatever is missing or cannot be read; for mending.

        Raises:
            NotFound: Nothing of it is there.
        """
        ...

    async def list(self, query: Query) -> list[Listed]:
        """Header lines, newest first, at most `query.limit`."""
        ...

    async def delete(self, thread: str, expect: Head) -> None:
        """Delete an idle thread.

        Raises:
            NotFound: No thread has this id.
            Stale: It has moved on.
            Locked: Somebody holds it.
        """
        ...

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Extend one's own live leases of these generations.

        Returns:
            The threads that are still held, and how many lines each has: more than their owner knows of where
            somebody has sent mail.
        """
        ...

    async def now(self) -> float:
        """The store's time, in seconds since the epoch. It may step back."""
        ...


Told: TypeAlias = Callable[[Sequence[tuple[str, int]], float, dict[str, int]], object]
"""Takes what was to be renewed, the clock's monotonic time before that was sent, and what `renew` would return."""


@runtime_checkable
class RenewsAlone(Protocol):
    """A store that goes on renewing, by itself, what it knows to be held, while the event loop is blocked."""

    def on_renewal(self, told: Told) -> None:
        """Call `told`, on the loop, with what each renewal came to that nobody has asked for."""
        ...
