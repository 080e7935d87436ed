"""SQLite itself: the file, several processes, a disk that refuses, forks, and proof of death."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pytest
from anyio import CancelScope

from weft import Agent
from weft._ports import Clock, SystemClock
from weft.errors import Closed, Corrupt, Locked, NewerFormat, NotFound, Stale, StoreFailed, WeftError, WrongCall
from weft.testing import Script, say
from weft.testing.clock import ManualClock, settle
from weft.testing.contract._kit import after, change, create, header, index, lease_of, outcomes
from weft.thread import open_store
from weft.thread._alive import ProofOfLife, file_of, forget_dead, left_behind
from weft.thread._codec import digest_line
from weft.thread._schema_sql import SCHEMA, list_statement
from weft.thread.sqlite import SQLiteStore
from weft.thread.store import Appended, Claim, Head, Hold, Lease, Query, Release, Seize

DAY = 86_400.0
"""A lease that no test outlasts: what is taken all the same was proved dead."""

PAGE = 4096
"""Bytes; the first page has the file's header and its version."""

Make = Callable[..., SQLiteStore]
Open = Callable[..., Awaitable[SQLiteStore]]
unix = pytest.mark.skipif(sys.platform == "win32", reason="needs flock, fork and signals")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weft.db"


@pytest.fixture
async def made(path: Path) -> AsyncIterator[Make]:
    """Makes a store on this test's file; it is stopped in the end."""
    stores: list[SQLiteStore] = []

    def make(owner: str = "a", *, at: Path = path, clock: Clock | None = None, **options: Any) -> SQLiteStore:
        stores.append(SQLiteStore(at, owner=owner, ttl=DAY, clock=clock or SystemClock(), **options))
        return stores[-1]

    yield make
    for store in stores:
        await store.stop()


@pytest.fixture
def opened(made: Make) -> Open:
    """Makes and starts one."""

    async def start(owner: str = "a", **options: Any) -> SQLiteStore:
        store = made(owner, **options)
        await store.start()
        return store

    return start


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, past the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def files_beside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def proofs(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.alive"))


# Other processes.

CHILD = """
import asyncio, json, os, sys
from pathlib import Path
from weft.testing.contract._kit import after, change, create, index, outcomes
from weft._ports import SystemClock
from weft.thread.sqlite import SQLiteStore
from weft.thread.store import Claim, Head, Query

path = Path(sys.argv[1])
owner = sys.argv[2]
store = SQLiteStore(path, owner=owner, ttl=86_400.0, clock=SystemClock())

def say(word):
    print(word, flush=True)

def hear():
    return sys.stdin.readline()
"""

OPENER = """
async def main():
    say("ready")
    hear()
    await store.start()
    head = await create(store, owner)
    for n in range(5):
        head = (await change(store, head, None, str(n), thread=owner)).head
    await store.stop()
    say("done")

asyncio.run(main())
"""

HOLDER = """
async def main():
    await store.start()
    head = await create(store)
    await create(store, "other")
    await change(store, head, Claim(ttl=86_400.0))
    await change(store, (await store.load("other")).head, Claim(ttl=86_400.0), thread="other")
    say("claimed")
    hear()
    await store.stop()
    say("done")

asyncio.run(main())
"""

WRITER = """
import sqlite3

with sqlite3.connect(path, isolation_level=None) as connection:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE threads SET title = 'busy'")
    say("busy")
    hear()
    connection.execute("COMMIT")
say("done")
"""

FORKER = """
loop = asyncio.new_event_loop()
loop.run_until_complete(store.start())
head = loop.run_until_complete(create(store))
line = after(head, "late")[0]
uses = {
    "create": lambda: store.create("t", b"{}", index()),
    "append": lambda: store.append("t", line, head, None, None),
    "delete": lambda: store.delete("t", head),
    "renew": lambda: store.renew([("t", 1)]),
    "load": lambda: store.load("t"),
    "list": lambda: store.list(Query()),
    "stop": store.stop,
}

async def use(make):
    task = asyncio.ensure_future(make())
    for _ in range(10):
        await asyncio.sleep(0)
    if not task.done():
        return "hangs"
    (outcome,) = await outcomes(task)
    return type(outcome).__name__

read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, json.dumps({name: asyncio.run(use(make)) for name, make in uses.items()}).encode())
    os._exit(0)
os.waitpid(child, 0)
found = json.loads(os.read(read, 65_536))
found["proofs"] = len(list(path.parent.glob("*.alive")))
found["parent"] = loop.run_until_complete(change(store, head, None, "still here")).head.count
loop.run_until_complete(store.stop())
say(json.dumps(found))
"""


class Child:
    """Another process, on the same file. It ends with the block."""

    def __init__(self, program: str, path: Path, owner: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD + program, str(path), owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._pipe(self._process.stdin).close()
        self._pipe(self._process.stdout).close()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def hear(self) -> str:
        return self._pipe(self._process.stdout).readline().strip()

    def tell(self) -> None:
        pipe = self._pipe(self._process.stdin)
        pipe.write("go\n")
        pipe.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


# The file.


@unix
async def test_every_file_is_its_owners_alone(path: Path, opened: Open) -> None:
    store = await opened()
    await create(store)
    files = [path, path.with_name("weft.db-wal"), path.with_name("weft.db-shm"), *proofs(path)]
    assert len(files) == 4
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


async def test_a_newer_schema_is_refused_and_left_alone(path: Path, opened: Open) -> None:
    with database(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    content = content_of(path)
    with pytest.raises(NewerFormat, match=r"weft\.db"):
        await opened()
    assert content_of(path) == content
    assert files_beside(path) == [path.name]


@pytest.mark.parametrize("version", [0, SCHEMA, SCHEMA + 1])
async def test_another_programs_database_is_refused_and_left_alone(path: Path, opened: Open, version: int) -> None:
    with database(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("PRAGMA application_id = 1")
    content = content_of(path)
    with pytest.raises(WeftError):
        await opened()
    assert content_of(path) == content


async def test_a_store_that_could_not_start_starts_when_it_can(path: Path, made: Make) -> None:
    with database(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    store = made()
    with pytest.raises(NewerFormat):
        await store.start()
    with pytest.raises(Closed):
        await store.create("t", header("t"), index())
    with database(path) as connection:
        connection.execute("PRAGMA user_version = 0")
    await store.start()
    await create(store)


async def test_a_missing_folder_is_told_with_the_files_name(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(WrongCall, match=r"weft\.db"):
        await opened(at=tmp_path / "nowhere" / "weft.db")


async def test_a_folder_is_no_database(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(WrongCall, match=tmp_path.name):
        await opened(at=tmp_path)


@pytest.mark.parametrize("content", [b"hello\n" * 1000, b"SQLite format 3\x00" + b"\xff" * 4080])
async def test_a_file_that_is_no_database_is_told_and_left_alone(path: Path, opened: Open, content: bytes) -> None:
    overwrite(path, content)
    with pytest.raises(WrongCall, match=r"weft\.db"):
        await opened()
    assert content_of(path) == content
    assert files_beside(path) == [path.name]


@pytest.mark.parametrize(
    ("read", "expected"),
    [(lambda store: store.load("t"), Corrupt), (lambda store: store.list(Query()), StoreFailed)],
    ids=["load", "list"],
)
async def test_a_damaged_file_is_a_typed_error_for_readers(
    path: Path, opened: Open, read: Callable[[SQLiteStore], Awaitable[Any]], expected: type[WeftError]
) -> None:
    store = await opened()
    await create(store)
    await store.stop()
    content = content_of(path)
    overwrite(path, content[:PAGE] + b"\xff" * (len(content) - PAGE))
    damaged = await opened()
    with pytest.raises(expected, match="go back to a backup"):
        await read(damaged)


async def test_a_file_that_was_there_is_opened_again_and_keeps_everything(opened: Open) -> None:
    head = None
    for life in range(3):
        store = await opened(f"life {life}")
        head = head or await create(store)
        head = (await change(store, head, None, f"{life}")).head
        await store.stop()
    assert (await (await opened("last")).load("t")).head == head


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_either_durability_writes_and_keeps(path: Path, opened: Open, synchronous: str) -> None:
    store = await opened(synchronous=synchronous)
    wanted = (await change(store, await create(store), None, "one", "two")).head
    await store.stop()
    assert (await (await opened("later")).load("t")).head == wanted


async def test_index_values_are_stored(path: Path, opened: Open) -> None:
    store = await opened()
    head = await create(store, of=index("work", parent="p", meta={"a.b": "ü"}, title="first", pending=1, due=1.5))
    columns = "kind, name, parent, root, meta, title, pending, unsettled, due"

    def row() -> tuple[Any, ...]:
        with database(path) as connection:
            found: tuple[Any, ...] = connection.execute(f"SELECT {columns} FROM threads").fetchone()
        return (*found[:4], json.loads(found[4]), *found[5:])

    assert row() == ("work", "desk", "p", "root", {"a.b": "ü"}, "first", 1, 0, 1.5)
    changed = index("work", parent="p", meta={"x": "y"}, title=None, pending=0, unsettled=2, due=None)
    lines, then = after(head, "one")
    await store.append("t", lines, head, None, changed)
    assert row() == ("work", "desk", "p", "root", {"x": "y"}, None, 0, 2, None)
    await change(store, then, Claim(ttl=DAY), "two")
    assert row() == ("work", "desk", "p", "root", {"x": "y"}, None, 0, 2, None)


async def test_a_threads_children_are_found_without_looking_at_all_threads(path: Path, opened: Open) -> None:
    await opened()
    values = {"parent": "p", "kind": None, "name": None, "roots": False, "pending": None, "title": None, "after": None}
    with database(path) as connection:
        connection.create_function("casefold", 1, str)
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {list_statement(parent=True)}", values | {"meta": "{}", "limit": 9}
        )
        steps = [row[3] for row in plan]
    assert any("threads_parent" in step for step in steps)
    assert not any("TEMP B-TREE" in step for step in steps)


async def test_a_deleted_thread_leaves_no_lines(path: Path, opened: Open) -> None:
    store = await opened()
    await create(store, "other")
    await store.delete("t", (await change(store, await create(store), None, "one", "two")).head)
    with database(path) as connection:
        assert connection.execute("SELECT line FROM lines").fetchall() == [(header("other").decode("ascii"),)]


# Several processes.


def test_eight_processes_open_a_fresh_file_at_once(path: Path) -> None:
    owners = [f"p{n}" for n in range(8)]
    children = [Child(OPENER, path, owner) for owner in owners]
    try:
        assert [child.hear() for child in children] == ["ready"] * 8
        for child in children:
            child.tell()
        assert [child.hear() for child in children] == ["done"] * 8
    finally:
        for child in children:
            child.__exit__(None, None, None)
    with database(path) as connection:
        assert sorted(connection.execute("SELECT id, count FROM threads")) == [(owner, 6) for owner in owners]
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    assert proofs(path) == []


async def test_while_another_process_writes_appends_wait_and_reads_do_not(path: Path, opened: Open) -> None:
    store = await opened()
    heads = {name: await create(store, name) for name in "xyz"}
    with Child(WRITER, path, "writer") as child:
        assert child.hear() == "busy"
        waits = [store.append(name, after(head, "one")[0], head, None, None) for name, head in heads.items()]
        assert [(await store.load(name)).head for name in heads] == [*heads.values()]
        assert not any(wait.done() for wait in waits)
        child.tell()
        assert child.hear() == "done"
    assert [outcome.head.count for outcome in await asyncio.gather(*waits)] == [2, 2, 2]
    with database(path) as connection:
        assert connection.execute("SELECT DISTINCT title FROM threads").fetchall() == [("busy",)]


class AskedClock(ManualClock):
    """Says when it was asked to wait, and waits until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.told = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asked.set()
        await self.told.wait()


async def test_a_start_waits_for_whoever_migrates(path: Path, made: Make) -> None:
    clock = AskedClock()
    store = made(clock=clock)
    with database(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        starting = asyncio.create_task(store.start())
        await clock.asked.wait()
        assert not starting.done()
        connection.execute("COMMIT")
    clock.told.set()
    await starting
    await create(store)


async def test_a_lock_that_is_not_given_up_fails_what_waits_for_it_and_the_store_can_be_left(
    path: Path, opened: Open
) -> None:
    store = await opened(locked=0.01)
    heads = {name: await create(store, name) for name in "xyz"}
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        waits = [store.append(name, after(head, "one")[0], head, None, None) for name, head in heads.items()]
        for wait in waits:
            with pytest.raises(StoreFailed, match="another program keeps it locked"):
                await wait
        with pytest.raises(StoreFailed, match="another program keeps it locked"):
            await store.renew([("x", 1)])
        connection.execute("COMMIT")
    assert (await store.append("x", after(heads["x"], "one")[0], heads["x"], None, None)).head.count == 2
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await store.stop()
    await (await opened()).stop()
    assert proofs(path) == []


class Watched(sqlite3.Connection):
    """Says how often it was asked to begin, and does something in between."""

    tries = 0
    between: Callable[[int], None] | None = None

    def execute(self, *given: Any) -> sqlite3.Cursor:
        self.tries += 1
        if self.between is not None:
            self.between(self.tries)
        return super().execute(*given)


async def test_who_has_waited_for_a_lock_in_vain_does_not_wait_again_while_another_thread_still_does(
    path: Path, opened: Open
) -> None:
    store = await opened(locked=0.01)
    writes, renews = (sqlite3.connect(path, timeout=0, isolation_level=None, factory=Watched) for _ in range(2))
    tried: list[int] = []

    def write(tries: int) -> None:
        if tries in (2, 4):
            writes.tries = 0
            with pytest.raises(sqlite3.OperationalError):
                store._begin(writes)
            tried.append(writes.tries)

    renews.between = write
    with database(path) as connection, closing(writes), closing(renews):
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError):
            store._begin(renews)
    assert tried[0] > 1
    assert tried[1] == 1


async def test_a_lock_that_is_not_given_up_fails_a_start(path: Path, made: Make) -> None:
    with database(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFailed, match="another program keeps it locked"):
            await made(locked=0.01).start()


@pytest.mark.parametrize("scoped", [False, True])
async def test_a_stop_that_is_cancelled_leaves_no_thread_behind(path: Path, made: Make, scoped: bool) -> None:
    others = set(threading.enumerate())
    store = made()
    await store.start()
    begun = set(threading.enumerate()) - others
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if scoped:
            with CancelScope() as scope:
                scope.cancel()
                await store.stop()
        else:
            stopping = asyncio.ensure_future(store.stop())
            await settle()
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
        connection.execute("COMMIT")
    for thread in begun:
        thread.join(5.0)
    assert [thread.name for thread in begun if thread.is_alive()] == []
    assert left_behind(path) == proofs(path)


# A disk that refuses.


@contextmanager
def refusing_inserts(path: Path) -> Iterator[None]:
    """Every insert of a line fails, as on a full disk."""
    with database(path) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON lines BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
        yield
        connection.execute("DROP TRIGGER full")


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """The write-ahead log cannot grow, so that every commit fails: a real I/O error, of the system's making."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("weft.db-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


REFUSING = {"inserts": refusing_inserts, "commits": full_disk}


@pytest.mark.parametrize("refusing", REFUSING)
async def test_a_full_disk_is_a_typed_error_for_each_waiter_and_the_writer_lives_on(
    path: Path, opened: Open, refusing: str
) -> None:
    store = await opened()
    heads = {f"t{n}": await create(store, f"t{n}") for n in range(10)}

    def appends() -> list[Awaitable[Appended]]:
        return [change(store, head, Claim(ttl=DAY), "one", "two", thread=name) for name, head in heads.items()]

    before = [await store.load(name) for name in heads]
    for _ in range(2):
        with REFUSING[refusing](path):
            found = await outcomes(*appends())
        assert [type(outcome) for outcome in found] == [StoreFailed] * 10
        assert all(isinstance(outcome.__cause__, sqlite3.Error) for outcome in found)
        assert [await store.load(name) for name in heads] == before
    assert [outcome.head.count for outcome in await asyncio.gather(*appends())] == [3] * 10


@pytest.mark.parametrize("refusing", REFUSING)
async def test_a_create_that_the_disk_refuses_leaves_nothing(path: Path, opened: Open, refusing: str) -> None:
    store = await opened()
    await create(store, "other")
    with REFUSING[refusing](path), pytest.raises(StoreFailed):
        await create(store)
    with pytest.raises(NotFound):
        await store.load("t")
    assert [row.thread for row in await store.list(Query())] == ["other"]
    await create(store)


async def test_a_delete_that_the_disk_refuses_deletes_nothing(path: Path, opened: Open) -> None:
    store = await opened()
    head = await create(store)
    with full_disk(path), pytest.raises(StoreFailed):
        await store.delete("t", head)
    assert (await store.load("t")).head == head
    await store.delete("t", head)


async def test_a_renewal_that_the_disk_refuses_fails_and_takes_nothing(path: Path, opened: Open) -> None:
    store = await opened()
    await change(store, await create(store), Claim(ttl=DAY))
    with full_disk(path), pytest.raises(StoreFailed):
        await store.renew([("t", 1)])
    assert set(await store.renew([("t", 1)])) == {"t"}


@pytest.mark.parametrize(
    "lease",
    [Claim(ttl=DAY), Seize(ttl=DAY), Release(generation=1), Hold(generation=1, hand_off=True)],
    ids=lambda lease: type(lease).__name__,
)
async def test_a_lease_change_without_lines_that_the_disk_refuses_is_not_reported_as_done(
    path: Path, opened: Open, lease: Claim | Seize | Release | Hold
) -> None:
    store = await opened()
    head = await create(store)
    if not isinstance(lease, Claim):
        await change(store, head, Claim(ttl=DAY))
    before = await store.load("t")
    with full_disk(path):
        (outcome,) = await outcomes(change(store, head, lease))
    assert await store.load("t") == before
    assert isinstance(outcome, StoreFailed)


async def test_what_is_refused_for_another_reason_stays_so_beside_a_full_disk(path: Path, opened: Open) -> None:
    store = await opened()
    head = await create(store)
    with full_disk(path), pytest.raises(Stale):
        await change(store, Head(1, "0" * 32), None, "one")
    assert (await store.load("t")).head == head


@pytest.mark.parametrize("bad", [{"title": "\ud800"}, {"pending": 2**63}], ids=["title", "pending"])
async def test_what_sqlite_cannot_store_fails_alone(path: Path, opened: Open, bad: dict[str, Any]) -> None:
    store = await opened()
    heads = {f"t{n}": await create(store, f"t{n}") for n in range(20)}
    with database(path) as connection:  # so that several are queued before any is written
        connection.execute("BEGIN IMMEDIATE")
        waits = {
            name: store.append(name, after(head, "one")[0], head, None, index(**bad) if name == "t10" else None)
            for name, head in heads.items()
        }
        connection.execute("COMMIT")
    await store.stop()
    assert all(wait.done() for wait in waits.values())
    assert isinstance(waits.pop("t10").exception(), StoreFailed)
    assert [wait.result().head.count for wait in waits.values()] == [2] * 19


# Reading while others write.


async def test_a_load_is_one_statement_and_so_one_snapshot(opened: Open) -> None:
    store = await opened()
    await create(store)
    reader = store._reader._connection
    assert reader is not None
    statements: list[str] = []
    await reader.set_trace_callback(statements.append)
    await store.load("t")
    assert len(statements) == 1


# Fork.


@pytest.fixture(scope="module")
def after_fork(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each use came to in a process that was forked from the one that opened the store."""
    with Child(FORKER, tmp_path_factory.mktemp("fork") / "weft.db", "forker") as child:
        found: dict[str, Any] = json.loads(child.hear())
    return found


@unix
@pytest.mark.parametrize("use", ["create", "append", "delete", "renew"])
def test_writing_after_a_fork_is_closed(after_fork: dict[str, Any], use: str) -> None:
    assert after_fork[use] == "Closed"


@unix
@pytest.mark.parametrize("use", ["load", "list"])
def test_reading_after_a_fork_is_closed(after_fork: dict[str, Any], use: str) -> None:
    assert after_fork[use] == "Closed"


@unix
def test_stopping_after_a_fork_does_nothing(after_fork: dict[str, Any]) -> None:
    assert after_fork["stop"] in ("Closed", "NoneType")


@unix
def test_a_fork_leaves_its_parents_store_alone(after_fork: dict[str, Any]) -> None:
    assert after_fork["parent"] == 2
    assert after_fork["proofs"] == 1


# Stopping.


async def test_stopping_removes_the_proof_of_life(path: Path, opened: Open) -> None:
    stores = [await opened(f"s{n}") for n in range(3)]
    assert len(proofs(path)) == (0 if sys.platform == "win32" else 3)
    for store in stores:
        await store.stop()
    assert proofs(path) == []


async def test_stopping_drains_what_is_queued_although_another_writes(path: Path, opened: Open) -> None:
    store = await opened()
    heads = {name: await create(store, name) for name in "xyz"}
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        waits = [store.append(name, after(head, "one")[0], head, None, None) for name, head in heads.items()]
        stopping = asyncio.create_task(store.stop())
        await settle(1)
        assert not any(wait.done() for wait in waits)
        connection.execute("COMMIT")
    await stopping
    assert [wait.result().head.count for wait in waits] == [2, 2, 2]
    assert proofs(path) == []


async def test_a_stop_that_was_cancelled_can_be_repeated(path: Path) -> None:
    store = SQLiteStore(path, owner="a", ttl=DAY, clock=SystemClock())  # no fixture could stop it
    await store.start()
    stopping = asyncio.create_task(store.stop())
    await settle(1)
    stopping.cancel()
    await outcomes(stopping)
    (outcome,) = await outcomes(store.stop())
    left = proofs(path)
    await store._reader.close()
    assert outcome is None
    assert left == []


async def test_a_stop_that_was_cancelled_while_the_file_was_locked_can_be_repeated(path: Path) -> None:
    store = SQLiteStore(path, owner="a", ttl=DAY, clock=SystemClock())  # no fixture could stop it
    await store.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        stopping = asyncio.create_task(store.stop())
        await settle(1)
        stopping.cancel()
        await outcomes(stopping)
        kept = proofs(path)
        other.execute("ROLLBACK")
    await store.stop()
    assert len(kept) == 1
    assert proofs(path) == []


async def test_two_may_stop_at_once(opened: Open) -> None:
    store = await opened()
    assert await outcomes(store.stop(), store.stop()) == [None, None]


# Proof of death.


@unix
async def test_a_killed_process_loses_its_leases_at_once_and_a_live_one_does_not(path: Path, opened: Open) -> None:
    store = await opened()
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
        head = (await store.load("t")).head
        assert await lease_of(store) == Lease(owner="holder", generation=1, live=True)
        with pytest.raises(Locked) as caught:
            await change(store, head, Claim(ttl=DAY))
        assert caught.value.holder == "holder"
        with pytest.raises(Locked):
            await store.delete("t", head)
        child.kill()
        assert await lease_of(store) == Lease(owner="holder", generation=1, live=False)
        assert await change(store, head, Claim(ttl=DAY), "mine") == Appended(after(head, "mine")[1], 2)
    assert await lease_of(store) == Lease(owner="a", generation=2, live=True)


@unix
async def test_all_leases_of_the_dead_are_free_and_its_file_is_gone(path: Path, opened: Open) -> None:
    store, another = await opened(), await opened("another")
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
        assert len(proofs(path)) == 3
    head = (await store.load("t")).head
    await change(store, head, Claim(ttl=DAY))
    assert len(proofs(path)) == 2
    assert not (await lease_of(another, "other")).live
    await another.delete("other", (await another.load("other")).head)


@unix
async def test_one_of_many_takes_what_the_dead_held(path: Path, opened: Open) -> None:
    stores = [await opened(f"s{n}") for n in range(8)]
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
    head = (await stores[0].load("t")).head
    found = await outcomes(*(change(store, head, Claim(ttl=DAY)) for store in stores))
    (winner,) = [store.owner for store, outcome in zip(stores, found, strict=True) if isinstance(outcome, Appended)]
    assert {type(outcome) for outcome in found} == {Appended, Locked}
    assert await lease_of(stores[0]) == Lease(owner=winner, generation=2, live=True)


@unix
async def test_the_dead_is_deleted_without_a_claim(path: Path, opened: Open) -> None:
    store = await opened()
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
    await store.delete("t", (await store.load("t")).head)
    with pytest.raises(NotFound):
        await store.load("t")


@unix
async def test_death_stays_proved_when_the_disk_refuses_the_burial(path: Path, opened: Open) -> None:
    store = await opened()
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
    head = (await store.load("t")).head
    with full_disk(path), pytest.raises(StoreFailed):
        await change(store, head, Claim(ttl=DAY), "mine")
    assert (await change(store, head, Claim(ttl=DAY), "mine")).generation == 2


@unix
async def test_what_is_held_is_free_at_once_also_where_its_owner_was_stopped_while_the_file_was_locked(
    path: Path, opened: Open
) -> None:
    other, store = await opened("other"), await opened("store", locked=0.01)
    head = await create(store, "t")
    await change(store, head, Claim(ttl=DAY))
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await store.stop()
    assert not (await lease_of(other)).live
    assert (await change(other, head, Claim(ttl=DAY))).generation == 2


@unix
async def test_two_stores_of_one_token_are_refused(path: Path, made: Make) -> None:
    await made("twin").start()
    with pytest.raises(WrongCall, match="'twin'"):
        await made("twin").start()


@unix
async def test_whoever_starts_cleans_up_after_those_who_died(path: Path, opened: Open) -> None:
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
    (dead,) = proofs(path)
    store = await opened()
    assert len(proofs(path)) == 1
    assert dead not in proofs(path)
    assert not (await lease_of(store)).live
    assert (await change(store, (await store.load("t")).head, Claim(ttl=DAY))).generation == 2


@unix
@pytest.mark.parametrize(
    "name",
    [
        "another.db",
        "weft.db2",
        pytest.param("weft.db-old"),
    ],
)
async def test_the_dead_of_another_file_stay_proved_dead(path: Path, opened: Open, name: str) -> None:
    beside = path.with_name(name)
    with Child(HOLDER, beside, "holder") as child:
        assert child.hear() == "claimed"
    (dead,) = proofs(path)
    await opened()
    assert dead in proofs(path)
    assert not (await lease_of(await opened("beside", at=beside))).live


@unix
async def test_whoever_starts_leaves_the_living_alone(opened: Open) -> None:
    store = await opened()
    head = await create(store)
    await change(store, head, Claim(ttl=DAY))
    another = await opened("another")
    assert (await lease_of(another)).live
    with pytest.raises(Locked):
        await change(another, head, Claim(ttl=DAY))


@unix
async def test_a_start_that_cannot_bury_the_dead_leaves_nothing_open(path: Path, opened: Open) -> None:
    keeper = await opened("keeper")
    with Child(HOLDER, path, "holder") as child:
        assert child.hear() == "claimed"
    before = proofs(path)
    with full_disk(path):
        (outcome,) = await outcomes(opened())
    if isinstance(outcome, SQLiteStore):
        await outcome.load("t")
    else:
        assert isinstance(outcome, StoreFailed)
        assert proofs(path) == before
    assert not (await lease_of(keeper)).live
    assert (await change(keeper, (await keeper.load("t")).head, Claim(ttl=DAY))).generation == 2


@unix
def test_the_proof_of_who_began_meanwhile_is_not_removed(path: Path) -> None:
    proof = ProofOfLife(path, "a")
    file_of(path, "a").touch()  # as between the open and the flock of a start
    (dead,) = left_behind(path)
    proof.begin()
    forget_dead(dead)
    try:
        assert proofs(path) == [dead]
    finally:
        proof.end()


async def test_a_store_does_not_prove_its_own_death(opened: Open) -> None:
    store, another = await opened(), await opened("another")
    head = await create(store)
    await change(store, head, Claim(ttl=DAY))
    for claimer in (store, another):
        with pytest.raises(Locked):
            await change(claimer, head, Claim(ttl=DAY))
        assert (await lease_of(claimer)).live


async def test_the_stored_digest_is_that_of_the_last_line(path: Path, opened: Open) -> None:
    store = await opened()
    await change(store, await create(store), None, "one", "two")
    with database(path) as connection:
        (digest,) = connection.execute("SELECT digest FROM threads").fetchone()
        (line,) = connection.execute("SELECT line FROM lines ORDER BY n DESC LIMIT 1").fetchone()
    assert digest == digest_line(line.encode("ascii"))


OPEN_FILES = Path("/proc/self/fd")


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="says which files a process has open")
async def test_a_store_has_no_more_files_open_for_more_sessions(tmp_path: Path) -> None:
    def names() -> list[str]:
        links = [link for link in OPEN_FILES.iterdir() if link.is_symlink()]
        return sorted(name for name in (str(link.readlink()) for link in links) if str(tmp_path) in name)

    agent = Agent(Script(say("one"), say("two")))
    async with open_store(f"sqlite:///{tmp_path / 'weft.db'}") as store:
        first = await store.create(agent)
        await first.ask("hi")
        before = names()
        sessions = [await store.create(agent) for _ in range(20)]
        for session in sessions:
            await session.ask("hi")
        assert names() == before
        async with open_store(f"sqlite:///{tmp_path / 'weft.db'}") as other:  # an idle one is anybody's to write
            for session in sessions:
                assert (await (await other.open(session.id, agent)).ask("again")).text == "two"


async def test_what_is_stored_stays_out_of_an_error_of_a_write(path: Path, opened: Open) -> None:
    store = await opened()
    await create(store)
    with database(path) as connection:
        connection.execute("UPDATE lines SET line = CAST(x'736563726574ff' AS TEXT)")
    with pytest.raises(StoreFailed, match="could not write") as failed:
        await create(store)
    assert "secret" not in str(failed.value)


async def test_a_file_that_is_not_writable_is_told_from_what_may_pass(tmp_path: Path) -> None:
    path = tmp_path / "weft.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript("CREATE TABLE something (is_there); DROP TABLE something")
    data = bytearray(path.read_bytes())
    data[18] = 3  # a write version of the format that SQLite does not know: to it the file is read-only, also for root
    path.write_bytes(data)
    with pytest.raises(WrongCall, match=r"'weft.db': .*writable, and so must its folder"):
        await open_store(f"sqlite:///{path}").__aenter__()
