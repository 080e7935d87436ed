"""Leases on SQLite while the event loop is blocked: a thread renews them, as long as they are held.

Time is what a test adds to it, so nothing here waits for a lease, and no lease runs out while the machine stands still.
Where a body blocks the loop it waits, blocking, until the file says what it is to say.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from weft import Agent, tool
from weft._ports import Clock, SystemClock, SystemIds
from weft.errors import Locked, StoreFailed
from weft.testing import ManualClock, Script, call, say
from weft.testing.clock import settle
from weft.testing.contract._kit import change, create, lease_of, outcomes
from weft.thread import OpenStore
from weft.thread.sqlite import SQLiteStore
from weft.thread.store import Appended, Claim, Head, Hold, Index, Lease, LeaseChange, Release

TTL = 30.0


class Skewed(SystemClock):
    """The system's clock to who asks what it is; it stands still, and a test sets it forward."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._began = super().now(), super().monotonic()

    def now(self) -> float:
        return self._began[0] + self.ahead

    def monotonic(self) -> float:
        return self._began[1] + self.ahead


class Impatient(SQLiteStore):
    """Takes the loop to be blocked at once."""

    patience = 1e-6

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, owner="a", ttl=TTL, clock=clock)
        self.appending = asyncio.Event()

    def append(
        self, thread: str, lines: Any, expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        self.appending.set()
        return super().append(thread, lines, expect, lease, index)


class File:
    """The store's file, past the store."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.clock = clock

    def left(self, thread: str) -> float:
        """Seconds that a lease still has; less than none where nobody holds it."""
        with closing(sqlite3.connect(self.path)) as connection:
            row = connection.execute("SELECT expires, owner FROM threads WHERE id = ?", (thread,)).fetchone()
        return -1.0 if row is None or row[1] is None else float(row[0]) - self.clock.now()

    def until_renewed(self, *threads: str) -> None:
        """Block the loop until these leases have been renewed."""
        for thread in threads:
            while self.left(thread) < TTL - 5:
                pass

    @contextmanager
    def refusing_renewals(self) -> Iterator[None]:
        """Every change of when a lease ends fails, as on a full disk."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE UPDATE OF expires ON threads "
                "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
            )
            yield
            connection.execute("DROP TRIGGER full")

    def claims(self, thread: str) -> object:
        """What a claim by another process comes to, while this one's loop is blocked."""

        async def claim() -> object:
            store = SQLiteStore(self.path, owner="another", ttl=TTL, clock=self.clock)
            await store.start()
            try:
                head = (await store.load(thread)).head
                return (await outcomes(change(store, head, Claim(ttl=TTL), thread=thread)))[0]
            finally:
                await store.stop()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, claim()).result()


@pytest.fixture
def clock() -> Skewed:
    return Skewed()


@pytest.fixture
def file(tmp_path: Path, clock: Skewed) -> File:
    return File(tmp_path / "weft.db", clock)


@pytest.fixture
async def store(file: File, clock: Skewed) -> AsyncIterator[Impatient]:
    """Not started, and stopped in the end."""
    store = Impatient(file.path, clock)
    yield store
    await store.stop()


def worker(block: Callable[[], Awaitable[None]], ran: list[str]) -> Agent:
    """An agent with a tool that blocks the loop, and one that runs after it."""

    @tool(effect="none")
    async def work() -> str:
        """Block the loop."""
        await block()
        return "worked"

    @tool(effect="none")
    async def then() -> str:
        """Run."""
        ran.append("then")
        return "ran"

    return Agent(Script(call("work"), call("then"), say("done")), tools=[work, then])


def opening(file: File, store: SQLiteStore) -> OpenStore:
    return OpenStore(store, clock=file.clock, ids=SystemIds(), grace=0.0)


async def test_a_loop_that_is_blocked_for_longer_than_a_lease_does_not_lose_it(
    store: Impatient, file: File, clock: Skewed
) -> None:
    ran: list[str] = []
    claimed: list[object] = []
    async with opening(file, store) as opened:

        async def block() -> None:
            for _ in range(6):
                clock.ahead += TTL / 3
                file.until_renewed(session.id)
            claimed.append(file.claims(session.id))

        session = await opened.create(worker(block, ran))
        assert (await session.ask("go")).text == "done"
        started = [
            entry async for entry in opened.watch(session.id, until=session.head) if entry.kind == "turn_started"
        ]
    assert [type(outcome) for outcome in claimed] == [Locked]
    assert ran == ["then"]
    assert len(started) == 1


async def test_a_turn_whose_claim_was_written_while_the_loop_was_blocked_goes_on(
    store: Impatient, file: File, clock: Skewed
) -> None:
    ran: list[str] = []
    async with opening(file, store) as opened:

        async def nothing() -> None: ...

        async def block() -> None:
            store.appending.clear()
            sending.append(asyncio.ensure_future(other.ask("go")))
            await store.appending.wait()
            await asyncio.sleep(0)  # now the writer has it
            for _ in range(6):
                clock.ahead += TTL / 3
                file.until_renewed(session.id, other.id)
            assert store._renewals is not None
            store._renewals._patience = None  # from here on it tells nothing: what it has told must do
            store._renewals.ask(())
            while not store._renewals._asked.empty():
                pass

        sending: list[asyncio.Future[Any]] = []
        session = await opened.create(worker(block, []))
        other = await opened.create(worker(nothing, ran))
        assert (await session.ask("go")).text == "done"
        assert (await sending[0]).text == "done"
    assert ran == ["then"]


async def test_a_lease_that_ran_out_while_the_loop_was_blocked_stays_lost(
    store: Impatient, file: File, clock: Skewed
) -> None:
    ran: list[str] = []
    claimed: list[object] = []
    async with opening(file, store) as opened:

        async def block() -> None:
            if over.is_set():  # the other one is gone again, so the turn was taken up anew
                await asyncio.Event().wait()
            file.until_renewed(session.id)
            clock.ahead += TTL + 1
            claimed.append(file.claims(session.id))
            over.set()

        over = asyncio.Event()
        session = await opened.create(worker(block, ran))
        turn = await session.send("go")
        await over.wait()
        await settle()
    assert [type(outcome) for outcome in claimed] == [Appended]
    assert ran == []
    assert turn.outcome is None


async def test_a_renewal_that_fails_kills_nothing_and_is_tried_again(
    store: Impatient, file: File, clock: Skewed
) -> None:
    await store.start()
    await change(store, await create(store), Claim(ttl=TTL))
    assert store._renewals is not None
    with file.refusing_renewals():
        clock.ahead += TTL / 3
        while not store._renewals._failed:
            pass
        assert file.left("t") < TTL - 5
        with pytest.raises(StoreFailed):
            await store.renew([("t", 1)])
    file.until_renewed("t")
    assert await lease_of(store) == Lease(owner="a", generation=1, live=True)
    assert await store.renew([("t", 1)]) == {"t": 1}


async def test_what_was_claimed_before_the_loop_has_heard_of_it_is_renewed(
    store: Impatient, file: File, clock: Skewed
) -> None:
    await store.start()
    head = await create(store)
    claiming = asyncio.ensure_future(change(store, head, Claim(ttl=TTL)))
    await settle(2)  # now the writer has it
    while file.left("t") < 0:
        pass
    clock.ahead += TTL / 3
    file.until_renewed("t")
    assert store._renewals is not None
    asked = store._renewals.ask(())  # as the loop does, which names what it has heard of
    for _ in range(6):
        clock.ahead += TTL / 3
        file.until_renewed("t")
    assert (await claiming).generation == 1
    assert await asked == {}


async def test_what_is_held_no_more_is_not_renewed(store: Impatient, file: File, clock: Skewed) -> None:
    await store.start()
    heads = {name: await create(store, name) for name in ("given back", "handed off", "given up", "held")}
    for name, head in heads.items():
        await change(store, head, Claim(ttl=TTL), thread=name)
    await change(store, heads["given back"], Release(generation=1), thread="given back")
    await change(store, heads["handed off"], Hold(generation=1, hand_off=True), thread="handed off")
    for _ in range(2):  # the first may not have heard of all claims
        assert await store.renew([("held", 1)]) == {"held": 1}
    for _ in range(6):
        clock.ahead += TTL / 3
        file.until_renewed("held")
    assert [name for name in heads if file.left(name) > 0] == ["held"]


async def test_what_the_store_renews_alone_is_told_on_the_loop(file: File, clock: Skewed, store: Impatient) -> None:
    told: asyncio.Queue[tuple[Sequence[tuple[str, int]], float, dict[str, int]]] = asyncio.Queue()
    store.on_renewal(lambda *what: told.put_nowait(what))
    await store.start()
    clock.ahead += 1
    await change(store, await create(store), Claim(ttl=TTL), "one")
    held, sent, kept = await told.get()
    assert sent == clock.monotonic()
    assert [*held] == [("t", 1)]
    assert kept == {"t": 2}


async def test_by_a_clock_that_is_moved_by_hand_nothing_is_renewed_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    file = File(tmp_path / "weft.db", clock)
    store = Impatient(file.path, clock)
    await store.start()
    head = (await change(store, await create(store), Claim(ttl=TTL))).head
    await clock.advance(TTL / 3)
    for n in range(20):
        head = (await change(store, head, Hold(generation=1), f"{n}")).head
    assert file.left("t") == TTL * 2 / 3
    assert await store.renew([("t", 1)]) == {"t": 21}
    assert file.left("t") == TTL
    await store.stop()
