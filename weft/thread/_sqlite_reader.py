"""How a SQLite file is opened, migrated and read: through aiosqlite, on a connection of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft._ports import Clock, Expects
from weft.errors import Closed, Corrupt, NewerFormat, NotFound, StoreFailed, WrongCall
from weft.thread import _schema_sql as sql
from weft.thread._alive import proved_dead
from weft.thread._sqlite_errors import FORKED, busy, is_damaged, is_read_only, unreadable, way_out, whose
from weft.thread.store import Head, Index, Lease, Listed, Loaded, Query

if TYPE_CHECKING:
    import aiosqlite

_SCANNED = 256
"""Lines that are read at once to look for what is broken."""
_READ_TIMEOUT = 5_000
"""Milliseconds that a reader waits, where the file is being recovered."""
_PAUSE = 0.005
"""Seconds between tries to open, while another process migrates or keeps the file locked."""


class Reader:
    """Reads a file that any number of processes write.

    Args:
        path: The database file.
        owner: The token of the store that reads: its own leases live.
        clock: The time by which leases are judged.
        locked: Seconds that opening waits for another program to give the file's lock up.
    """

    def __init__(self, path: Path, owner: str, clock: Clock, locked: float) -> None:
        self._path = path
        self._owner = owner
        self._clock = clock
        self._locked = locked
        self._expect = clock.expect if isinstance(clock, Expects) else None
        self._connection: aiosqlite.Connection | None = None
        self._process = 0

    async def open(self) -> None:
        """Connect, and make or migrate the schema.

        Raises:
            StoreFailed: Another program keeps the file locked.
            WrongCall: It is no file of weft's.
            NewerFormat: A newer weft has written it.
        """
        import aiosqlite  # noqa: PLC0415  # whoever opens no SQLite file need not wait for it

        self._process = os.getpid()
        self._connection = await aiosqlite.connect(self._path, isolation_level=None, timeout=0)
        await self._patiently()
        await self._connection.execute(f"PRAGMA busy_timeout = {_READ_TIMEOUT}")
        await self._connection.create_function("casefold", 1, _folded, deterministic=True)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _patiently(self) -> None:
        """Migrate, again and again while another process is at it."""
        left = self._locked
        while True:
            try:
                await self._migrate()
            except sqlite3.OperationalError as error:
                left -= _PAUSE
                if is_read_only(error):
                    raise WrongCall(f"cannot open {self._path.name!r}: {error}; {way_out(error)}") from error
                if not busy(error) or left <= 0:
                    raise StoreFailed(f"cannot open {self._path.name!r}: {error}{whose(error)}") from error
                await self._clock.sleep(_PAUSE)
            except sqlite3.DatabaseError as error:
                raise WrongCall(f"cannot open {self._path.name!r}: {error}; {way_out(error)}") from error
            else:
                return

    async def _migrate(self) -> None:
        connection = self._connected()
        async with self._transaction("BEGIN"):
            version = await self._version()
        await connection.execute("PRAGMA journal_mode = WAL")
        if version == sql.SCHEMA:
            return
        async with self._transaction("BEGIN IMMEDIATE"):
            version = await self._version()
            for step in sql.MIGRATIONS[version:]:
                for statement in step:
                    await connection.execute(statement)
            await connection.execute(f"PRAGMA user_version = {sql.SCHEMA}")
            await connection.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")

    @asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[None]:
        connection = self._connected()
        await connection.execute(begin)
        try:
            yield
            await connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                await connection.execute("ROLLBACK")
            raise

    async def _version(self) -> int:
        """The schema's version; asked inside a transaction, since another process may be making the schema."""
        connection = self._connected()
        ((tables,),) = await connection.execute_fetchall("SELECT count(*) FROM sqlite_master")
        ((version,),) = await connection.execute_fetchall("PRAGMA user_version")
        ((application,),) = await connection.execute_fetchall("PRAGMA application_id")
        if application != sql.APPLICATION_ID and (application or tables):
            raise WrongCall(f"{self._path.name!r} is another program's database; give weft a file of its own")
        if version > sql.SCHEMA:
            raise NewerFormat(f"{self._path.name!r} has schema {version}, written by a newer weft; upgrade")
        return int(version)

    def _connected(self) -> aiosqlite.Connection:
        if self._connection is None:
            raise Closed()
        if os.getpid() != self._process:
            raise Closed(FORKED)
        return self._connection

    async def load(self, thread: str, after: int = 0) -> Loaded:
        values = {"id": thread, "after": after, "now": self._clock.now()}
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
        if live and owner != self._owner:
            live = not proved_dead(self._path, owner)
        return Loaded(lines, Head(count, digest), Lease(owner=owner, generation=generation, live=live))

    async def scan(self, thread: str) -> dict[int, bytes]:
        try:
            rows = await self._fetch(sql.STATE, (thread,))
        except sqlite3.Error as error:
            raise unreadable(self._path, f"thread {thread!r}", error) from error
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
        connection = self._connected()
        try:
            rows = await connection.execute_fetchall(sql.SCAN, (tid, start, _SCANNED))
        except sqlite3.Error:
            rows = []
            for position in range(start, start + _SCANNED):
                with suppress(sqlite3.Error):
                    rows += await connection.execute_fetchall(sql.SCAN, (tid, position, 1))
        return {int(n): bytes(line) for n, line in rows if start <= n < start + _SCANNED}

    async def _damage(self, thread: str, after: int, error: Exception) -> Corrupt | StoreFailed:
        """Which line it is that cannot be read, where the file can still tell."""
        place = after
        try:
            for n, line in await self._connected().execute_fetchall(sql.SUSPECTS, (thread, after)):
                if n != place:
                    return Corrupt(thread, place, "the line is missing")
                if not bytes(line).isascii():
                    return Corrupt(thread, place, "the line is no ASCII text")
                place += 1
        except sqlite3.Error as found:
            error = found
        if is_damaged(error):
            return Corrupt(thread, place, "its page of the database cannot be read; go back to a backup, or salvage it")
        return error if isinstance(error, Corrupt) else unreadable(self._path, f"thread {thread!r}", error)

    async def _fetch(self, statement: str, values: Any) -> list[Any]:
        reading = self._connected().execute_fetchall(statement, values)
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
            raise unreadable(self._path, "its list", error) from error
        return [self._row(row) for row in rows]


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
