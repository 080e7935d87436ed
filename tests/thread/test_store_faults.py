"""What befalls a SQLite file, seen from sessions: a full disk, a torn file, changed lines, a newer weft, a fork.

Each is a typed error that names what it is about, or is got over. Nothing is lost in silence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.thread.test_sqlite import Child, content_of, database, files_beside, overwrite, unix
from weft import Agent, tool
from weft._ports import Clock
from weft.errors import Conflict, Corrupt, NewerFormat, NotFound, StoreFailed, WeftError, WrongCall
from weft.testing import CountingIds, ManualClock, Script, call, hold, say
from weft.testing.clock import settle
from weft.testing.contract._kit import after, change, create, outcomes
from weft.thread import Memory, OpenStore, Session, approve, deny, open_store
from weft.thread._schema_sql import SCHEMA
from weft.thread.memory import MemoryStore
from weft.thread.sqlite import SQLiteStore
from weft.thread.store import Appended, Head, Index, LeaseChange, Loaded, Query

LEASE = 30.0
LONG = "long " * 4_000
"""More than fits into what is left of any page."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weft.db"


class SmallDisk(SQLiteStore):
    """A store whose file can be kept from growing, and that says when that has failed an append."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, owner="a", ttl=LEASE, clock=clock)
        self.refused = asyncio.Queue[StoreFailed]()

    async def full(self) -> None:
        await self._run(lambda connection: connection.execute("PRAGMA max_page_count = 1"))  # as many as there are

    async def room(self) -> None:
        await self._run(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        future = super().append(thread, lines, expect, lease, index)
        future.add_done_callback(self._landed)
        return future

    def _landed(self, future: asyncio.Future[Appended]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreFailed):
            self.refused.put_nowait(error)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(path: Path, clock: ManualClock) -> SmallDisk:
    return SmallDisk(path, clock)


@pytest.fixture
async def store(disk: SmallDisk, clock: ManualClock) -> AsyncIterator[OpenStore]:
    async with OpenStore(disk, clock=clock, ids=CountingIds(), grace=0.0) as store:
        yield store


def talker() -> Agent:
    """Answers everything."""
    return Agent(Script(*(say(f"answer {n}") for n in range(20))), name="talker")


def writer(disk: SmallDisk) -> Agent:
    """Has a tool during which the disk becomes full, the first time, and whose result is long."""
    filled: list[bool] = []

    @tool(effect="none")
    async def fill() -> str:
        """Fill the disk."""
        if not filled:
            filled.append(True)
            await disk.full()
        return LONG

    return Agent(Script(call("fill"), say("done")), name="writer", tools=[fill])


# A full disk.


async def test_a_file_that_cannot_grow_is_a_typed_error_for_each_waiter_until_it_can(
    disk: SmallDisk,
) -> None:
    await disk.start()
    heads = {f"t{n}": await create(disk, f"t{n}") for n in range(10)}

    def appends(text: str) -> list[Awaitable[Appended]]:
        return [change(disk, head, None, text, thread=name) for name, head in heads.items()]

    await disk.full()
    found = await outcomes(*appends(LONG))
    assert [type(outcome) for outcome in found] == [StoreFailed] * 10
    assert all("full" in str(outcome) for outcome in found)
    assert [(await disk.load(name)).head for name in heads] == [*heads.values()]
    await disk.room()
    assert [outcome.head.count for outcome in await asyncio.gather(*appends(LONG))] == [2] * 10
    await disk.stop()


async def test_a_thread_that_does_not_fit_is_not_made_in_part(disk: SmallDisk) -> None:
    await disk.start()
    head = await create(disk, "other")
    await disk.full()
    more, then = after(head, "one", "two", LONG)
    line = (await disk.load("other")).lines[0]
    (index,) = [row.state for row in await disk.list(Query())]
    with pytest.raises(StoreFailed):
        await disk.create("t", line, index, more)
    with pytest.raises(NotFound):
        await disk.load("t")
    assert [row.thread for row in await disk.list(Query())] == ["other"]
    await disk.room()
    await disk.create("t", line, index, more)
    assert (await disk.load("t")).head == then
    await disk.stop()


async def test_what_is_sent_to_a_full_disk_is_refused_and_can_be_sent_again(store: OpenStore, disk: SmallDisk) -> None:
    session = await store.create(talker())
    await disk.full()
    with pytest.raises(StoreFailed):
        await session.send(LONG, key="1")
    assert session.messages == ()
    await disk.room()
    assert (await session.ask(LONG, key="1")).text == "answer 0"
    assert [message.role for message in session.messages] == ["user", "assistant"]


async def test_a_turn_whose_record_a_full_disk_refuses_goes_on_when_there_is_room(
    store: OpenStore, disk: SmallDisk, clock: ManualClock
) -> None:
    session = await store.create(writer(disk))
    turn = await session.send("go")
    await disk.refused.get()
    await disk.room()
    await clock.advance(1.0)
    assert (await turn.wait()).text == "done"
    assert session.messages[2].results[0].content == LONG


class Unreadable(MemoryStore):
    """What is new in a thread cannot be read, so many times."""

    times = 0

    async def load(self, thread: str, after: int = 0) -> Loaded:
        if after and self.times:
            self.times -= 1
            raise StoreFailed("the disk gives an error")
        return await super().load(thread, after)


async def test_news_that_cannot_be_read_once_end_no_handle(clock: ManualClock) -> None:
    data = Memory()
    broken = Unreadable(data, owner="a", ttl=LEASE, clock=clock, survives=True)
    async with OpenStore(broken, clock=clock, ids=CountingIds(), grace=0.0) as store:
        session = await store.create(talker())
        async with open_store(data, clock=clock) as elsewhere:
            for verb in (session.refresh, lambda: session.note("n", "t"), lambda: session.ask("hi")):
                await (await elsewhere.open(session.id)).note("news", "from elsewhere")
                broken.times = 1
                with pytest.raises(StoreFailed):
                    await verb()
        assert (await session.ask("hi")).text == "answer 0"
        assert len(session.notes) == 3


@pytest.mark.parametrize("times", [1, 3])
async def test_a_turn_whose_news_cannot_be_read_for_a_while_goes_on(clock: ManualClock, times: int) -> None:
    data = Memory()
    release = asyncio.Event()
    broken = Unreadable(data, owner="a", ttl=LEASE, clock=clock, survives=True)
    async with OpenStore(broken, clock=clock, ids=CountingIds(), grace=0.0) as store:
        session = await store.create(Agent(Script(hold(release, say("done")))))
        turn = await session.send("go")
        async with open_store(data, clock=clock) as elsewhere:
            await (await elsewhere.open(session.id)).note("news", "from elsewhere")
        broken.times = times
        release.set()
        waiter = asyncio.ensure_future(turn.wait())
        while not waiter.done():
            await clock.advance(0.1)
        assert waiter.result().text == "done"


async def test_a_turn_whose_news_cannot_be_read_is_given_up_and_gone_on_with(clock: ManualClock) -> None:
    data = Memory()
    release = asyncio.Event()
    broken = Unreadable(data, owner="a", ttl=LEASE, clock=clock, survives=True)
    async with OpenStore(broken, clock=clock, ids=CountingIds(), grace=0.0) as store:
        session = await store.create(Agent(Script(hold(release, say("done")))))
        turn = await session.send("go")
        async with open_store(data, clock=clock) as elsewhere:
            await (await elsewhere.open(session.id)).note("news", "from elsewhere")
        broken.times = 4
        release.set()
        waiter = asyncio.ensure_future(turn.wait())
        while not waiter.done():
            await clock.advance(0.1)
        assert isinstance(waiter.exception(), StoreFailed)
        await clock.advance(LEASE)
        going_on = await session.resume()
        assert going_on is not None
        assert (await going_on.wait()).text == "done"


async def test_who_follows_a_turn_elsewhere_is_told_that_it_cannot_be_read_and_may_follow_on(
    clock: ManualClock,
) -> None:
    data = Memory()
    release = asyncio.Event()
    broken = Unreadable(data, owner="a", ttl=LEASE, clock=clock, survives=True)
    async with (
        OpenStore(broken, clock=clock, ids=CountingIds(), grace=0.0) as store,
        open_store(data, clock=clock) as elsewhere,
    ):
        theirs = await elsewhere.create(Agent(Script(hold(release, say("done")))))
        await theirs.send("go")
        session = await store.open(theirs.id)
        waiter = asyncio.ensure_future(session.settled_or_waiting())
        await settle()
        broken.times = 1
        await clock.advance(0.2)
        with pytest.raises(StoreFailed):
            await waiter
        release.set()
        waiter = asyncio.ensure_future(session.settled_or_waiting())
        while not waiter.done():
            await clock.advance(0.2)
        assert [message.text for message in session.messages] == ["go", "done"]


async def test_a_turn_that_was_given_up_on_a_full_disk_is_gone_on_with_when_there_is_room(
    store: OpenStore, disk: SmallDisk, clock: ManualClock
) -> None:
    session = await store.create(writer(disk))
    turn = await session.send("go")
    for _ in range(4):
        assert "full" in str(await disk.refused.get())
        await clock.advance(0.6)
    await clock.advance(LEASE)
    await disk.room()
    again = await session.resume()
    assert again is not None
    assert (await again.wait()).text == "done"
    waiting = asyncio.ensure_future(turn.wait())
    await clock.advance(0.0)
    await clock.advance(1.0)
    assert (await waiting).text == "done"


# A torn file.


async def fill(path: Path) -> dict[str, tuple[str, ...]]:
    """A file with some sessions; what was said in each."""
    said: dict[str, tuple[str, ...]] = {}
    async with open_store(f"sqlite:///{path}", ids=CountingIds()) as store:
        for n in range(4):
            session = await store.create(talker(), meta={"customer": f"c{n}"})
            for length in (1, 1_000, 10):
                await session.ask("ask " * length)
            said[session.id] = texts(session)
    return said


def texts(session: Session[Any]) -> tuple[str, ...]:
    return tuple(message.text for message in session.messages)


async def looked_at(store: OpenStore, said: dict[str, tuple[str, ...]]) -> list[object]:
    """What a list and each session come to: what they were, or an error."""

    async def listed() -> set[str]:
        return {info.thread async for info in store.list()}

    async def read(name: str) -> tuple[str, ...]:
        return texts(await store.open(name))

    return [(await outcomes(work))[0] for work in (listed(), *(read(name) for name in said))]


async def read_all(path: Path, said: dict[str, tuple[str, ...]]) -> list[WeftError]:
    """Read everything: what can be read is as it was, and what cannot is an error that says what it is about.

    A list may lack a thread of whose row nothing is left.
    """
    store = open_store(f"sqlite:///{path}")
    (entered,) = await outcomes(store.__aenter__())
    if isinstance(entered, WeftError):
        assert path.name in str(entered)
        return [entered]
    assert entered is store
    try:
        listed, *read = await looked_at(store, said)
    finally:
        await store.__aexit__(None, None, None)
    errors = [outcome for outcome in (listed, *read) if isinstance(outcome, WeftError)]
    assert listed in errors or (isinstance(listed, set) and listed <= said.keys())
    assert [
        outcome for outcome, wanted in zip(read, said.values(), strict=True) if outcome not in (wanted, *errors)
    ] == []
    for error, name in zip(read, said, strict=True):
        assert error not in errors or name in str(error)
    assert [error for error in errors if "ask ask" in str(error)] == []
    return errors


PAGE = 4096


@pytest.mark.parametrize(
    ("size", "filling"),
    [(PAGE, b"\xff"), (PAGE, b"\0"), (512, b"\xff"), (512, b"\0")],
    ids=["page of ones", "page of zeros", "sector of ones", "sector of zeros"],
)
async def test_garbage_anywhere_in_the_file_is_an_error_or_is_not_read(
    path: Path, tmp_path: Path, size: int, filling: bytes
) -> None:
    said = await fill(path)
    content = content_of(path)
    step = max(size, len(content) // 40 // size * size)
    seen = 0
    for place in range(0, len(content), step):
        torn = tmp_path / f"torn{place}.db"
        overwrite(torn, content[:place] + filling * size + content[place + size :])
        seen += bool(await read_all(torn, said))
    assert seen > 5


async def test_a_file_that_was_cut_short_is_an_error(path: Path, tmp_path: Path) -> None:
    said = await fill(path)
    content = content_of(path)
    for pages in range(1, len(content) // PAGE):
        for extra in (0, 512):
            torn = tmp_path / f"torn{pages}-{extra}.db"
            overwrite(torn, content[: pages * PAGE + extra])
            assert await read_all(torn, said), torn.name


async def test_a_damaged_file_is_not_taken_for_another_programs_and_names_the_way_out(path: Path) -> None:
    await fill(path)
    overwrite(path, content_of(path)[:PAGE])
    with pytest.raises(WrongCall, match="malformed") as caught:
        async with open_store(f"sqlite:///{path}"):
            pass
    assert "backup" in str(caught.value)
    assert "another program" not in str(caught.value)
    overwrite(path, b"no database at all" * 1_000)
    with pytest.raises(WrongCall, match="another program"):
        async with open_store(f"sqlite:///{path}"):
            pass


async def test_a_file_that_is_torn_while_it_is_open_is_an_error_for_those_who_read_and_write(path: Path) -> None:
    async with open_store(f"sqlite:///{path}", ids=CountingIds()) as store:
        session = await store.create(talker())
        for _ in range(3):
            await session.ask("ask " * 3_000)
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.open(session.id, talker())
        content = content_of(path)
        overwrite(path, content[: 2 * PAGE] + b"\xff" * (len(content) - 2 * PAGE))
        with pytest.raises(WeftError):
            await session.ask("again")


# Changed lines.

LINES: dict[str, tuple[str, int]] = {
    "cut short": ("UPDATE lines SET line = substr(line, 1, length(line) - 9) WHERE n = 3", 3),
    "empty": ("UPDATE lines SET line = '' WHERE n = 3", 3),
    "another text": ("UPDATE lines SET line = 'garbage' WHERE n = 3", 3),
    "not ASCII": ("UPDATE lines SET line = replace(line, 'role', 'röle') WHERE n = 3", 3),
    "no UTF-8": ("UPDATE lines SET line = CAST(x'ff' AS TEXT) || line WHERE n = 3", 3),
    "another place": ("UPDATE lines SET line = (SELECT line FROM lines AS l WHERE l.n = 2) WHERE n = 3", 3),
    "another body": ("""UPDATE lines SET line = substr(line, 1, instr(line, '"body":') + 6) || '[]}' WHERE n = 3""", 3),
    "gone": ("DELETE FROM lines WHERE n = 3", 3),
    "the header gone": ("DELETE FROM lines WHERE n = 0", 0),
    "the last gone": ("DELETE FROM lines WHERE n = 8", 8),
    "one too many": ("""INSERT INTO lines SELECT tid, 9, replace(line, '"n":8', '"n":9') FROM lines WHERE n = 8""", 9),
}


@pytest.mark.parametrize("change", LINES)
async def test_a_changed_line_is_named(path: Path, change: str) -> None:
    statement, position = LINES[change]
    async with open_store(f"sqlite:///{path}", ids=CountingIds()) as store:
        session = await store.create(talker())
        await session.ask("one")
        await session.ask("two")
        assert session.head.count == 9
        with database(path) as connection:
            connection.execute(statement)
        other = await store.create(talker())
        assert (await other.ask("still here")).text == "answer 0"
    async with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(Corrupt) as caught:
            await store.open(session.id)
        assert (caught.value.thread, caught.value.position) == (session.id, position)
        assert texts(await store.open(other.id)) == ("still here", "answer 0")


# A newer weft.


def newer_kind(session: Session[Any], n: int) -> tuple[bytes, str]:
    line = (
        f'{{"prev":"{session.head.digest}","n":{n},"id":"x","parent":null,"at":1.0,"kind":"dream","v":1,"body":{{}}}}'
    )
    return line.encode(), "dream"


def newer_version(session: Session[Any], n: int) -> tuple[bytes, str]:
    line = f'{{"prev":"{session.head.digest}","n":{n},"id":"x","parent":null,"at":1.0,"kind":"note","v":9,"body":{{}}}}'
    return line.encode(), "version 9"


@pytest.mark.parametrize("newer", [newer_kind, newer_version])
async def test_an_entry_of_a_newer_weft_is_named_when_it_is_opened_and_when_it_comes(
    store: OpenStore, disk: SmallDisk, path: Path, newer: Callable[[Session[Any], int], tuple[bytes, str]]
) -> None:
    session = await store.create(talker())
    await session.ask("hi")
    line, what = newer(session, session.head.count)
    head = (await disk.append(session.id, [line], session.head, None, None)).head
    with pytest.raises(NewerFormat, match=what):
        await session.refresh()
    async with open_store(f"sqlite:///{path}") as another:
        with pytest.raises(NewerFormat, match=rf"{session.id}.*line 5.*{what}"):
            await another.open(session.id)
        assert [info.thread async for info in another.list()] == [session.id]
    assert (await disk.load(session.id)).head == head


async def test_a_file_with_a_newer_schema_is_left_as_it_is(path: Path) -> None:
    await fill(path)
    with database(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = content_of(path)
    with pytest.raises(NewerFormat, match=r"weft\.db.*newer"):
        async with open_store(f"sqlite:///{path}"):
            pass
    assert content_of(path) == content
    assert files_beside(path) == [path.name]


# Whoever does not wait.


@asynccontextmanager
async def cancelled(path: Path, work: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Begin it while the file is held by another, so that nothing is committed, and cancel it then."""
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        task = asyncio.ensure_future(work())
        await settle()
        task.cancel()
        (outcome,) = await outcomes(task)
        assert isinstance(outcome, asyncio.CancelledError)
        connection.execute("COMMIT")
    yield


async def test_what_was_sent_by_who_did_not_wait_is_queued_and_answered(path: Path) -> None:
    release = asyncio.Event()
    agent = Agent(Script(hold(release, then=say("one")), say("two")), name="desk")
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create(agent)
        first = await session.send("first")
        async with cancelled(path, lambda: session.send("second", key="2")):
            again = await session.send("second", key="2")
        release.set()
        assert (await first.wait()).text == "one"
        assert (await again.wait()).text == "two"
        assert texts(session) == ("first", "one", "second", "two")


async def test_a_decision_by_who_did_not_wait_stands(path: Path) -> None:
    @tool(approval=True)
    async def refund() -> str:
        """Refund."""
        return "refunded"

    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create(Agent(Script(call("refund"), say("done")), tools=[refund]))
        assert (await session.ask("go")).parked
        (request,) = session.pending
        async with cancelled(path, lambda: session.decide(approve(request))):
            await session.refresh()
            assert session.pending == ()
            with pytest.raises(Conflict):
                await session.decide(deny(request))
        await session.resume()
        await session.settled_or_waiting()
        assert texts(session)[-1] == "done"


async def test_a_turn_that_was_begun_by_who_did_not_wait_runs(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create(talker())
        async with cancelled(path, lambda: session.send("one", key="1")):
            turn = await session.send("one", key="1")
            await session.resume()
            for _ in range(100):
                await session.refresh()
            assert turn.outcome == "answered"


# After a fork.

FORKER = """
from weft import Agent
from weft.testing import Script, say
from weft.thread import open_store

agent = Agent(Script(say("one"), say("two"), say("three")), name="desk")
loop = asyncio.new_event_loop()
opened = open_store(f"sqlite:///{path}")
loop.run_until_complete(opened.__aenter__())
session = loop.run_until_complete(opened.create(agent))
loop.run_until_complete(session.ask("hi"))
uses = {
    "create": lambda: opened.create(agent),
    "ask": lambda: session.ask("in the child"),
    "open": lambda: opened.open("nowhere"),
    "refresh": lambda: session.refresh(),
}

async def use(make):
    task = asyncio.ensure_future(make())
    for _ in range(100):
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
found["parent"] = loop.run_until_complete(session.ask("still here")).text
loop.run_until_complete(opened.__aexit__(None, None, None))
say(json.dumps(found))
"""


@unix
def test_a_session_that_is_used_after_a_fork_says_so_and_its_parent_goes_on(path: Path) -> None:
    with Child(
        FORKER.replace("say(json", "print(json").replace("dumps(found))", "dumps(found), flush=True)"), path, "forker"
    ) as child:
        found = json.loads(child.hear())
    assert found == {"create": "Closed", "ask": "Closed", "open": "Closed", "refresh": "Closed", "parent": "two"}
