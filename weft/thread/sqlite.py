"""The embedded store: one SQLite file, several processes, grouped commits.

One writer thread drains a queue: one transaction carries what many sessions wait for. Leases are renewed by a thread
of their own. Reading goes through aiosqlite on a connection of its own. Files are readable by their owner only.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from weft._contain import Contained, contain, contain_call
from weft._ports import Clock, Expects, SystemClock, forget
from weft.errors import Closed, Locked, NotFound, Stale, StoreFailed, WrongCall
from weft.thread import _schema_sql as sql
from weft.thread._alive import ProofOfLife, file_of, forget_dead, left_behind, proved_dead
from weft.thread._codec import digest_line
from weft.thread._renewals import Renewals
from weft.thread._sqlite_errors import FORKED, busy, failed
from weft.thread._sqlite_jobs import Append, Job, Outcome, index_values
from weft.thread._sqlite_reader import Reader
from weft.thread.store import (
    Appended,
    Head,
    Index,
    LeaseChange,
    Listed,
    Loaded,
    Query,
    Told,
)

__all__ = ["SQLiteStore"]

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
_BATCH = 256
"""Jobs of one transaction: enough to share its cost, few enough that the loop goes on with those before meanwhile."""
_RETRY = 0.0005
"""Seconds between tries while another process writes; SQLite's own busy handler starves a lone session."""


class SQLiteStore:
    """Threads in a SQLite file.

    Args:
        path: The database file; made if it is not there.
        owner: The token for leases.
        ttl: Seconds that a lease lasts.
        clock: The time by which leases are judged. Where it is a `SystemClock`, what is held is renewed also while
            the event loop is blocked.
        synchronous: `FULL` survives power loss; `NORMAL` may lose the last commits then, never on a crash of
            the process, and never leaves a journal torn.
        locked: Seconds that a write, or opening, waits for another program to give the file's lock up.
    """

    survives = True
    patience = 1.25 / 3
    """The part of a lease after which the loop, which renews every third of it, is taken to be blocked."""

    def __init__(
        self,
        path: Path,
        *,
        owner: str,
        ttl: float,
        clock: Clock,
        synchronous: Synchronous = "FULL",
        locked: float = 30.0,
    ) -> None:
        self.owner = owner
        self.ttl = ttl
        self._path = path
        self.clock = clock
        self._synchronous = synchronous
        self._locked = locked
        self._locked_out = False
        """Whether the last wait for the lock was in vain: until somebody has it again, nobody waits for it."""
        self._alive = ProofOfLife(path, owner)
        self._jobs: queue.SimpleQueue[list[Job | Append] | None] = queue.SimpleQueue()
        self._gathered: list[Job | Append] = []
        self._reader = Reader(path, owner, clock, locked)
        self._writer: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._buried: list[Path] = []
        """The files of owners whose leases the present transaction expires; they go after its commit."""
        self._freed: asyncio.Future[int] | None = None
        """Done when the leases have been given back at the end."""
        self._ended: asyncio.Future[None] | None = None
        self._renewals: Renewals | None = None
        self._renewed: asyncio.Future[None] | None = None
        """Done when the thread that renews has ended."""
        self._told: Told | None = None
        self._expect = clock.expect if isinstance(clock, Expects) else None

    # -- opening and closing

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._make_file()
        try:
            await self._reader.open()
            self._begin_writing()
            await contain("store", self._clean_up())  # another time, where the disk refuses it now
        except BaseException:
            await self._abandon()
            raise

    def _begin_writing(self) -> None:
        assert self._loop is not None
        try:
            self._alive.begin()
        except BlockingIOError as error:
            raise WrongCall(
                f"another store that is open has the token {self.owner!r}; give each ids of its own"
            ) from error
        except OSError as error:
            raise StoreFailed(f"cannot lock a file beside {self._path.name!r}: {error.strerror}") from error
        connection = self._connect()
        self._ended, self._renewed = self._loop.create_future(), self._loop.create_future()
        self._begin_renewing()
        self._writer = threading.Thread(target=self._write, args=(connection,), name="weft-writer", daemon=True)
        self._writer.start()

    def _begin_renewing(self) -> None:
        assert self._renewed is not None
        alone = isinstance(self.clock, SystemClock)  # a thread can wait for no other
        self._renewals = Renewals(
            self._connect,
            self._begin,
            owner=self.owner,
            ttl=self.ttl,
            clock=self.clock,
            patience=self.patience * self.ttl if alone else None,
        )
        self._renewals.told = self._told
        self._renewals.start(self._call_back, partial(_finished, self._renewed))

    def on_renewal(self, told: Told) -> None:
        self._told = told
        if self._renewals is not None:
            self._renewals.told = told

    async def _abandon(self) -> None:
        """A start that did not come through leaves nothing open."""
        if self._writer is not None:
            await self.stop()
            return
        await self._let_go()

    async def _clean_up(self) -> None:
        """Expire the leases of owners that have died, and remove their files."""

        def work(connection: sqlite3.Connection) -> Outcome:
            litter = left_behind(self._path)
            if litter:
                for (owner,) in connection.execute(sql.OWNERS).fetchall():
                    if file_of(self._path, owner) in litter:
                        connection.execute(sql.EXPIRE_OWNER, (owner,))
                self._buried += litter
            return None

        await self._run(work)

    def _run(self, work: Callable[[sqlite3.Connection], Outcome]) -> asyncio.Future[Any]:
        """Something that may be done again, in the writer's next transaction."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._enqueue(future, work, lambda _: None)
        return future

    async def stop(self) -> None:
        if self._ended is None or self._renewed is None or os.getpid() != self._process:
            return
        if self._writer is not None:
            self._freed = self._run(lambda connection: connection.execute(sql.EXPIRE_OWNER, (self.owner,)).rowcount)
            self._freed.add_done_callback(forget)
            self._writer = None
            self._hand_over()
            self._jobs.put(None)
        if self._renewals is not None:
            self._renewals.end()
            self._renewals = self._told = None
        try:
            await asyncio.wait([self._ended, self._renewed])
        finally:  # whoever waits may be cancelled
            await self._let_go()

    async def _let_go(self) -> None:
        """End the reader's thread, and the proof of life; the threads that write end by themselves."""
        try:
            await self._reader.close()
        finally:
            self._alive.end(keep=self._freed is not None and not _succeeded(self._freed))

    def _make_file(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            folder = self._path.parent
            why = error.strerror if folder.is_dir() else f"there is no folder {str(folder)!r}; make it first"
            raise WrongCall(f"cannot open {self._path.name!r}: {why}") from error
        os.close(descriptor)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=0, check_same_thread=False)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    # -- writing

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        lines = (line, *more)
        values = {"id": thread, "count": len(lines), "digest": digest_line(lines[-1]), **index_values(index)}
        values |= {"kind": index.kind, "name": index.name, "parent": index.parent, "root": index.root}

        def stored(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute(sql.ONE_LINE, (thread, 0)).fetchone()
            return None if row is None else str(row[0]).encode("ascii")

        def work(connection: sqlite3.Connection) -> Outcome:
            row = connection.execute(sql.CREATE, values).fetchone()
            if row is None:
                return stored(connection)
            rows = [(row[0], place, text.decode("ascii")) for place, text in enumerate(lines)]
            connection.executemany(sql.INSERT_LINE, rows)
            return line

        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._enqueue(future, work, stored)
        return future

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._put(Append(future, self, thread, tuple(lines), expect, lease, index))
        return future

    def bury(self, connection: sqlite3.Connection, owner: str | None) -> bool:
        """Expire all leases of an owner that is proved dead."""
        if owner is None or owner == self.owner or not proved_dead(self._path, owner):
            return False
        connection.execute(sql.EXPIRE_OWNER, (owner,))
        self._buried.append(file_of(self._path, owner))
        return True

    async def delete(self, thread: str, expect: Head) -> None:
        def work(connection: sqlite3.Connection) -> Outcome:
            row = connection.execute(sql.STATE, (thread,)).fetchone()
            if row is None:
                return NotFound(thread)
            if Head(row[1], row[2]) != expect:
                return Stale(thread, Head(row[1], row[2]))
            if row[3] is not None and row[5] > self.clock.now() and not self.bury(connection, row[3]):
                return Locked(thread, row[3])
            connection.execute(sql.DELETE_LINES, (row[0],))
            connection.execute(sql.DELETE_THREAD, (row[0],))
            return True

        def written(connection: sqlite3.Connection) -> Outcome | None:
            return True if connection.execute(sql.STATE, (thread,)).fetchone() is None else None

        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._enqueue(future, work, written)
        await future

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        renewals, closed = self._renewals, self._closed()
        if renewals is None or closed is not None:
            raise closed or Closed()
        asked = renewals.ask(held)
        if self._expect is not None:
            self._expect(asked)
        kept = await asked
        if isinstance(kept, Contained):
            raise failed(kept.cause)
        return kept

    def _enqueue(
        self,
        future: asyncio.Future[Any],
        work: Callable[[sqlite3.Connection], Outcome],
        written: Callable[[sqlite3.Connection], Outcome | None],
    ) -> None:
        self._put(Job(future, work, written))

    def _put(self, job: Job | Append) -> None:
        """Enqueue at once; the writer is woken at the end of this turn of the loop, or for a full batch."""
        closed = self._closed()
        if closed is not None:
            job.future.set_exception(closed)
        else:
            if self._expect is not None:
                self._expect(job.future)
            if not self._gathered:
                asyncio.get_running_loop().call_soon(self._hand_over)
            self._gathered.append(job)
            if len(self._gathered) >= _BATCH:
                self._hand_over()

    def _closed(self) -> Closed | None:
        """Why nothing can be written."""
        if self._writer is None:
            return Closed()
        return None if os.getpid() == self._process else Closed(FORKED)

    def _hand_over(self) -> None:
        """Wake the writer once for all that was enqueued in one turn of the loop."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._jobs.put(gathered)

    # -- the writer thread

    def _write(self, connection: sqlite3.Connection) -> None:
        try:
            while True:
                first = self._jobs.get()
                if first is None:
                    return
                batch, last = self._drain(first)
                self._deliver(batch, self._commit(connection, batch))
                if last:
                    return
        finally:
            connection.close()
            self._call_back(_finished, self._ended)

    def _drain(self, first: list[Job | Append]) -> tuple[list[Job | Append], bool]:
        batch = list(first)
        while len(batch) < _BATCH:
            try:
                more = self._jobs.get_nowait()
            except queue.Empty:
                return batch, False
            if more is None:
                return batch, True
            batch += more
        return batch, False

    def _commit(self, connection: sqlite3.Connection, batch: list[Job | Append]) -> list[Outcome]:
        """One transaction for all; the outcome of each, as a value or an exception."""
        self._buried.clear()
        outcomes = contain_call("store", lambda: self._work_off(connection, batch))
        written = outcomes if isinstance(outcomes, Contained) else contain_call("store", _commit(connection))
        if not isinstance(outcomes, Contained) and not isinstance(written, Contained):
            for path in self._buried:
                forget_dead(path)
            return outcomes
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        cause = written.cause if isinstance(written, Contained) else RuntimeError("no transaction")
        if isinstance(outcomes, Contained):
            return [failed(cause)] if len(batch) == 1 else self._one_by_one(connection, batch)
        return [self._what_became(connection, job, failed(cause)) for job in batch]

    def _work_off(self, connection: sqlite3.Connection, batch: list[Job | Append]) -> list[Outcome]:
        self._begin(connection)
        return [job.work(connection) for job in batch]

    def _one_by_one(self, connection: sqlite3.Connection, batch: list[Job | Append]) -> list[Outcome]:
        """What one append of a batch cannot have must not fail the others."""
        return [outcome for job in batch for outcome in self._commit(connection, [job])]

    def _what_became(self, connection: sqlite3.Connection, job: Job | Append, failure: StoreFailed) -> Outcome:
        try:
            found = job.written(connection)
        except sqlite3.Error:
            return failure
        return failure if found is None else found

    def _begin(self, connection: sqlite3.Connection) -> None:
        pause = threading.Event()
        left = 0.0 if self._locked_out else self._locked
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                left -= _RETRY
                if not busy(error) or left <= 0:  # set only now: another thread's wait may be over meanwhile
                    self._locked_out = busy(error)
                    raise
                pause.wait(_RETRY)
            else:
                self._locked_out = False
                return

    def _deliver(self, batch: list[Job | Append], outcomes: list[Outcome]) -> None:
        renewals = self._renewals
        if renewals is not None:
            for job, outcome in zip(batch, outcomes, strict=True):
                if isinstance(job, Append) and isinstance(outcome, Appended):
                    renewals.note(job.thread, job.lease, outcome.generation)
        self._call_back(_wake, batch, outcomes)

    def _call_back(self, function: Callable[..., None], *values: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # closed in between
                loop.call_soon_threadsafe(function, *values)

    # -- reading

    async def load(self, thread: str, after: int = 0) -> Loaded:
        return await self._reader.load(thread, after)

    async def scan(self, thread: str) -> dict[int, bytes]:
        return await self._reader.scan(thread)

    async def list(self, query: Query) -> list[Listed]:
        return await self._reader.list(query)

    async def now(self) -> float:
        return self.clock.now()


def _finished(ended: asyncio.Future[None] | None) -> None:
    if ended is not None and not ended.done():
        ended.set_result(None)


def _succeeded(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _commit(connection: sqlite3.Connection) -> Callable[[], object]:
    return lambda: connection.execute("COMMIT")


def _wake(batch: list[Job | Append], outcomes: list[Outcome]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.future.done():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
