"""The embedded store: one SQLite file, several processes, grouped commits.

One writer thread drains a queue: one transaction carries what many sessions wait for. Leases are renewed by a thread
of their own. Reading goes through aiosqlite on a connection of its own. Files are readable by their owner only.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weft._contain import Contained, contain, contain_call
from weft._ports import Clock, Expects, SystemClock
from weft.errors import Closed, Corrupt, Locked, NewerFormat, NotFound, Stale, StoreFailed, WrongCall
from weft.thread import _schema_sql as sql
from weft.thread._alive import ProofOfLife, file_of, forget_dead, left_behind, proved_dead
from weft.thread._codec import digest_line
from weft.thread._renewals import Renewals
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
    Told,
)

if TYPE_CHECKING:
    import aiosqlite

__all__ = ["SQLiteStore"]

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
Outcome: TypeAlias = object
_BATCH = 256
"""Jobs of one transaction: enough to share its cost, few enough that the loop goes on with those before meanwhile."""
_SCANNED = 256
"""Lines that are read at once to look for what is broken."""
_FORKED = "the store was opened before a fork; open it in this process"
_READ_TIMEOUT = 5_000
"""Milliseconds that a reader waits, where the file is being recovered."""
_RETRY = 0.0005
"""Seconds between tries while another process writes; SQLite's own busy handler starves a lone session."""
_PAUSE = 0.005
"""The same, to open."""


@dataclass(slots=True)
class _Job:
    """One thing for the writer to do, and who waits for it."""

    future: asyncio.Future[Any]
    work: Callable[[sqlite3.Connection], Outcome]
    written: Callable[[sqlite3.Connection], Outcome | None]
    """Reads back whether it was written, when a commit's outcome is not known; None where it was not."""


@dataclass(slots=True)
class _Append:
    """The most frequent job, with nothing made before the writer needs it."""

    future: asyncio.Future[Any]
    store: SQLiteStore
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
            values |= _index_values(self.index)
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
        self._jobs: queue.SimpleQueue[list[_Job | _Append] | None] = queue.SimpleQueue()
        self._gathered: list[_Job | _Append] = []
        self._reader: aiosqlite.Connection | None = None
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
        import aiosqlite  # noqa: PLC0415  # whoever opens no SQLite file need not wait for it

        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._make_file()
        self._reader = await aiosqlite.connect(self._path, isolation_level=None, timeout=0)
        try:
            await self._patiently()
            await self._reader.execute(f"PRAGMA busy_timeout = {_READ_TIMEOUT}")
            await self._reader.create_function("casefold", 1, _folded, deterministic=True)
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
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        self._alive.end()

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
            self._freed.add_done_callback(_read)
            self._writer = None
            self._hand_over()
            self._jobs.put(None)
        if self._renewals is not None:
            self._renewals.end()
            self._renewals = self._told = None
        await asyncio.wait([self._ended, self._renewed])
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        self._alive.end(keep=self._freed is not None and not _succeeded(self._freed))

    def _make_file(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            folder = self._path.parent
            why = error.strerror if folder.is_dir() else f"there is no folder {str(folder)!r}; make it first"
            raise WrongCall(f"cannot open {self._path.name!r}: {why}") from error
        os.close(descriptor)

    async def _patiently(self) -> None:
        """Migrate, again and again while another process is at it."""
        left = self._locked
        while True:
            try:
                await self._migrate()
            except sqlite3.OperationalError as error:
                left -= _PAUSE
                if not _busy(error) or left <= 0:
                    raise StoreFailed(f"cannot open {self._path.name!r}: {error}{_whose(error)}") from error
                await self.clock.sleep(_PAUSE)
            except sqlite3.DatabaseError as error:
                raise WrongCall(f"cannot open {self._path.name!r}: {error}; {_way_out(error)}") from error
            else:
                return

    async def _migrate(self) -> None:
        reader = self._require_reader()
        async with self._transaction("BEGIN"):
            version = await self._version()
        await reader.execute("PRAGMA journal_mode = WAL")
        if version == sql.SCHEMA:
            return
        async with self._transaction("BEGIN IMMEDIATE"):
            version = await self._version()
            for step in sql.MIGRATIONS[version:]:
                for statement in step:
                    await reader.execute(statement)
            await reader.execute(f"PRAGMA user_version = {sql.SCHEMA}")
            await reader.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")

    @asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[None]:
        reader = self._require_reader()
        await reader.execute(begin)
        try:
            yield
            await reader.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                await reader.execute("ROLLBACK")
            raise

    async def _version(self) -> int:
        """The schema's version; asked inside a transaction, since another process may be making the schema."""
        reader = self._require_reader()
        ((tables,),) = await reader.execute_fetchall("SELECT count(*) FROM sqlite_master")
        ((version,),) = await reader.execute_fetchall("PRAGMA user_version")
        ((application,),) = await reader.execute_fetchall("PRAGMA application_id")
        if application != sql.APPLICATION_ID and (application or tables):
            raise WrongCall(f"{self._path.name!r} is another program's database; give weft a file of its own")
        if version > sql.SCHEMA:
            raise NewerFormat(f"{self._path.name!r} has schema {version}, written by a newer weft; upgrade")
        return int(version)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=0, check_same_thread=False)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    def _require_reader(self) -> aiosqlite.Connection:
        if self._reader is None:
            raise Closed()
        if os.getpid() != self._process:
            raise Closed(_FORKED)
        return self._reader

    # -- writing

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        lines = (line, *more)
        values = {"id": thread, "count": len(lines), "digest": digest_line(lines[-1]), **_index_values(index)}
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
        self._put(_Append(future, self, thread, tuple(lines), expect, lease, index))
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
            raise _failed(kept.cause)
        return kept

    def _enqueue(
        self,
        future: asyncio.Future[Any],
        work: Callable[[sqlite3.Connection], Outcome],
        written: Callable[[sqlite3.Connection], Outcome | None],
    ) -> None:
        self._put(_Job(future, work, written))

    def _put(self, job: _Job | _Append) -> None:
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
        return None if os.getpid() == self._process else Closed(_FORKED)

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

    def _drain(self, first: list[_Job | _Append]) -> tuple[list[_Job | _Append], bool]:
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

    def _commit(self, connection: sqlite3.Connection, batch: list[_Job | _Append]) -> list[Outcome]:
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
            return [_failed(cause)] if len(batch) == 1 else self._one_by_one(connection, batch)
        return [self._what_became(connection, job, _failed(cause)) for job in batch]

    def _work_off(self, connection: sqlite3.Connection, batch: list[_Job | _Append]) -> list[Outcome]:
        self._begin(connection)
        return [job.work(connection) for job in batch]

    def _one_by_one(self, connection: sqlite3.Connection, batch: list[_Job | _Append]) -> list[Outcome]:
        """What one append of a batch cannot have must not fail the others."""
        return [outcome for job in batch for outcome in self._commit(connection, [job])]

    def _what_became(self, connection: sqlite3.Connection, job: _Job | _Append, failure: StoreFailed) -> Outcome:
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
                if not _busy(error) or left <= 0:  # set only now: another thread's wait may be over meanwhile
                    self._locked_out = _busy(error)
                    raise
                pause.wait(_RETRY)
            else:
                self._locked_out = False
                return

    def _deliver(self, batch: list[_Job | _Append], outcomes: list[Outcome]) -> None:
        renewals = self._renewals
        if renewals is not None:
            for job, outcome in zip(batch, outcomes, strict=True):
                if isinstance(job, _Append) and isinstance(outcome, Appended):
                    renewals.note(job.thread, job.lease, outcome.generation)
        self._call_back(_wake, batch, outcomes)

    def _call_back(self, function: Callable[..., None], *values: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # closed in between
                loop.call_soon_threadsafe(function, *values)

    # -- reading

    async def load(self, thread: str, after: int = 0) -> Loaded:
        values = {"id": thread, "after": after, "now": self.clock.now()}
        try:
            rows = await self._fetch(sql.LOAD, values)
        except sqlite3.Error as error:
            raise await self._damage(thread, after, error) from error
        except UnicodeEncodeError:  # an id that is no text is that of no thread
            rows = []
        if not rows:
            raise NotFound(thread)
        state, first = rows[0]
        if state is None:
            raise await self._damage(thread, after, Corrupt(thread, after, "the line is missing"))
        count, digest, owner, generation, live = json.loads(state)
        lines: list[bytes] = [] if first is None else [line for _, line in rows]
        if len(lines) < count - after or not all(map(bytes.isascii, lines)):
            raise await self._damage(thread, after, Corrupt(thread, after + len(lines), "the line is missing"))
        if len(lines) > max(count - after, 0):
            raise Corrupt(thread, count, "the line does not belong to the thread")
        live = owner is not None and bool(live)
        if live and owner != self.owner:
            live = not proved_dead(self._path, owner)
        return Loaded(lines, Head(count, digest), Lease(owner=owner, generation=generation, live=live))

    async def scan(self, thread: str) -> dict[int, bytes]:
        try:
            rows = await self._fetch(sql.STATE, (thread,))
        except sqlite3.Error as error:
            raise StoreFailed(f"the store could not read: {error}") from error
        except UnicodeEncodeError:
            rows = []
        if not rows:
            raise NotFound(thread)
        tid, count = rows[0][0], rows[0][1]
        found: dict[int, bytes] = {}
        for start in range(0, count + 1, _SCANNED):  # also what stands right behind the head
            found |= await self._scan_part(tid, start)
        return found

    async def _scan_part(self, tid: int, start: int) -> dict[int, bytes]:
        """The lines of one part; where it cannot be read as a whole, those that can be read singly."""
        reader = self._require_reader()
        try:
            rows = await reader.execute_fetchall(sql.SCAN, (tid, start, _SCANNED))
        except sqlite3.Error:
            rows = []
            for position in range(start, start + _SCANNED):
                with suppress(sqlite3.Error):
                    rows += await reader.execute_fetchall(sql.SCAN, (tid, position, 1))
        return {int(n): bytes(line) for n, line in rows if start <= n < start + _SCANNED}

    async def _damage(self, thread: str, after: int, error: Exception) -> Corrupt | StoreFailed:
        """Which line it is that cannot be read, where the file can still tell."""
        place = after
        try:
            for n, line in await self._require_reader().execute_fetchall(sql.SUSPECTS, (thread, after)):
                if n != place:
                    return Corrupt(thread, place, "the line is missing")
                if not bytes(line).isascii():
                    return Corrupt(thread, place, "the line is no ASCII text")
                place += 1
        except sqlite3.Error as found:
            error = found
        if _is_damaged(error):
            return Corrupt(thread, place, "its page of the database cannot be read; go back to a backup, or salvage it")
        return error if isinstance(error, Corrupt) else self._unreadable(f"thread {thread!r}", error)

    def _unreadable(self, what: str, error: Exception) -> StoreFailed:
        why = str(error).partition(" with text ")[0]  # what is stored stays out of errors
        why += "; go back to a backup" if _is_damaged(error) else ""
        return StoreFailed(f"the store could not read {what} in {self._path.name!r}: {why}")

    async def _fetch(self, statement: str, values: Any) -> list[Any]:
        reading = self._require_reader().execute_fetchall(statement, values)
        if self._expect is None:
            return list(await reading)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._expect(done)
        try:
            return list(await reading)
        finally:
            done.cancel()

    def _row(self, row: Sequence[Any]) -> Listed:
        try:
            state = _index(row)
        except (ValueError, TypeError, AttributeError):
            state = None
        return Listed(row[0], bytes(row[1] or b""), row[2], state)

    async def list(self, query: Query) -> list[Listed]:
        values = {
            "kind": query.kind,
            "name": query.name,
            "parent": query.parent,
            "roots": query.roots,
            "title": None if query.title is None else query.title.casefold(),
            "pending": query.pending,
            "after": query.after,
            "meta": json.dumps(dict(query.meta)),
            "limit": query.limit,
        }
        try:
            rows = await self._fetch(sql.list_statement(parent=query.parent is not None), values)
        except sqlite3.Error as error:
            raise self._unreadable("its list", error) from error
        return [self._row(row) for row in rows]

    async def now(self) -> float:
        return self.clock.now()


def _failed(cause: Exception) -> StoreFailed:
    failure = StoreFailed(f"the store could not write: {cause}{_whose(cause)}")
    failure.__cause__ = cause
    return failure


def _finished(ended: asyncio.Future[None] | None) -> None:
    if ended is not None and not ended.done():
        ended.set_result(None)


def _succeeded(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _read(future: asyncio.Future[Any]) -> None:
    """Nobody waits for it."""
    if not future.cancelled():
        future.exception()


def _commit(connection: sqlite3.Connection) -> Callable[[], object]:
    return lambda: connection.execute("COMMIT")


def _wake(batch: list[_Job | _Append], outcomes: list[Outcome]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.future.done():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)


def _index_values(index: Index) -> dict[str, object]:
    return {
        "meta": json.dumps(dict(index.meta)),
        "title": index.title,
        "pending": index.pending,
        "unsettled": index.unsettled,
        "due": index.due,
    }


def _index(row: Sequence[Any]) -> Index:
    """What a list shows, from a row of it; raises what decoding raises."""
    kind, name, parent, root, meta, title = (None if value is None else bytes(value).decode() for value in row[3:9])
    return Index(
        kind=str(kind),
        name=str(name),
        parent=parent,
        root=str(root),
        meta=dict(json.loads(meta or "").items()),
        title=title,
        pending=row[9],
        unsettled=row[10],
        due=row[11],
    )


def _folded(title: bytes) -> str:
    return title.decode(errors="replace").casefold()


def _is_damaged(error: Exception) -> bool:
    return isinstance(error, sqlite3.DatabaseError) and _code(error) == sqlite3.SQLITE_CORRUPT


def _way_out(error: sqlite3.DatabaseError) -> str:
    if _is_damaged(error):
        return "go back to a backup, or try `.recover` of SQLite's shell"
    return "is it another program's file?"


def _whose(error: Exception) -> str:
    return "; another program keeps it locked" if isinstance(error, sqlite3.OperationalError) and _busy(error) else ""


def _busy(error: sqlite3.OperationalError) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.Error) -> int:
    """SQLite's own code; 0 for what Python's module raises by itself, as for text that does not decode."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
