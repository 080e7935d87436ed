"""What the writer of a SQLite file is given to do."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from weft._ports import Clock
from weft.errors import Locked, NotFound, Stale
from weft.thread import _schema_sql as sql
from weft.thread._codec import digest_line
from weft.thread.store import Appended, Claim, Head, Hold, Index, LeaseChange, Release, Seize

Outcome: TypeAlias = object


class Owner(Protocol):
    """In whose name a lease is changed."""

    owner: str
    clock: Clock

    def bury(self, connection: sqlite3.Connection, owner: str | None) -> bool:
        """Expire all leases of an owner that is proved dead; whether it was."""
        ...


@dataclass(slots=True)
class Job:
    """One thing for the writer to do, and who waits for it."""

    future: asyncio.Future[Any]
    work: Callable[[sqlite3.Connection], Outcome]
    written: Callable[[sqlite3.Connection], Outcome | None]
    """Reads back whether it was written, when a commit's outcome is not known; None where it was not."""


@dataclass(slots=True)
class Append:
    """The most frequent job, with nothing made before the writer needs it."""

    future: asyncio.Future[Any]
    store: Owner
    thread: str
    lines: tuple[bytes, ...]
    expect: Head
    lease: LeaseChange
    index: Index | None

    def work(self, connection: sqlite3.Connection) -> Outcome:
        """Check and move head and lease by one statement, then add the lines."""
        head = self.head()
        statement, values = self._statement(head)
        row = connection.execute(statement, values).fetchone()
        if row is None:
            refusal = self._refusal(connection)
            if not isinstance(refusal, Locked) or not self.store.bury(connection, refusal.holder):
                return refusal
            row = connection.execute(statement, values).fetchone()
            if row is None:
                return self._refusal(connection)
        tid, generation = row
        rows = [(tid, place, line.decode("ascii")) for place, line in enumerate(self.lines, self.expect.count)]
        connection.executemany(sql.INSERT_LINE, rows)
        return Appended(head, generation)

    def written(self, connection: sqlite3.Connection) -> Outcome | None:
        """Read back by digest. A change of the lease alone leaves no trace that tells it from another's."""
        row = connection.execute(sql.STATE, (self.thread,)).fetchone()
        head = self.head()
        if row is None or not self.lines:
            return None
        line = connection.execute(sql.ONE_LINE, (self.thread, head.count - 1)).fetchone()
        if line is None or digest_line(str(line[0]).encode("ascii")) != head.digest:
            return None
        return Appended(head, row[4])

    def head(self) -> Head:
        """The head after it."""
        if not self.lines:
            return self.expect
        return Head(self.expect.count + len(self.lines), digest_line(self.lines[-1]))

    def _statement(self, head: Head) -> tuple[str, dict[str, object]]:
        lease, store = self.lease, self.store
        now = store.clock.now()
        values: dict[str, object] = {
            "id": self.thread,
            "count": head.count,
            "digest": head.digest,
            "old_count": self.expect.count,
            "old_digest": self.expect.digest,
            "me": store.owner,
            "now": now,
        }
        match lease:
            case Claim() | Seize():
                values["owner"] = None if lease.once else store.owner
                values["expires"] = now + lease.ttl
            case Hold() | Release():
                values["generation"] = lease.generation
            case None:
                pass
        if self.index is not None:
            values |= index_values(self.index)
        return sql.append_statement(_kind(lease), index=self.index is not None), values

    def _refusal(self, connection: sqlite3.Connection) -> Outcome:
        """Why no row was moved: it is not there, it has another head, or somebody holds it."""
        row = connection.execute(sql.STATE, (self.thread,)).fetchone()
        if row is None:
            return NotFound(self.thread)
        head = Head(row[1], row[2])
        if head != self.expect:
            return Stale(self.thread, head)
        return Locked(self.thread, row[3])


def _kind(lease: LeaseChange) -> str:
    match lease:
        case None:
            return "mail"
        case Claim():
            return "claim"
        case Seize():
            return "seize"
        case Hold():
            return "hand_off" if lease.hand_off else "hold"
        case Release():
            return "release"


def index_values(index: Index) -> dict[str, object]:
    """The columns of what a list shows and asks for."""
    return {
        "meta": json.dumps(dict(index.meta)),
        "title": index.title,
        "pending": index.pending,
        "unsettled": index.unsettled,
        "due": index.due,
    }
