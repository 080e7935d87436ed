"""What every store promises, as tests: subclass `StoreContract` as `Test…` and give it a fixture `new_store`.

`new_store(owner)` returns a store that is not started, on the data of this test, with leases of `TTL`
seconds on the fixture `clock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from weft.errors import Closed, Locked, NotFound, Stale
from weft.testing.clock import ManualClock, settle
from weft.thread._codec import digest_line
from weft.thread.store import (
    Appended,
    Claim,
    Head,
    Hold,
    Index,
    Lease,
    LeaseChange,
    Query,
    Release,
    Seize,
    Store,
)

TTL = 30.0
LONG_AGO = 1_000.0

NewStore = Callable[[str], Store]
Open = Callable[[str], Awaitable[Store]]


def header(thread: str, note: str = "") -> bytes:
    """A header line; a store never reads it."""
    return f'{{"prev":"","n":0,"thread":"{thread}","note":"{note}"}}'.encode("ascii")


def index(
    kind: str = "session", *, parent: str | None = None, meta: Mapping[str, str] | None = None, **rest: Any
) -> Index:
    return Index(kind=kind, name="desk", parent=parent, root="root", meta=meta or {}, **rest)


def after(head: Head, *texts: str) -> tuple[list[bytes], Head]:
    """Lines that follow a head, and the head after them."""
    lines: list[bytes] = []
    for text in texts:
        lines.append(f'{{"prev":"{head.digest}","n":{head.count},"body":"{text}"}}'.encode("ascii"))
        head = Head(head.count + 1, digest_line(lines[-1]))
    return lines, head


async def create(store: Store, thread: str = "t", of: Index | None = None) -> Head:
    line = header(thread)
    assert await store.create(thread, line, of or index()) == line
    return Head(1, digest_line(line))


async def change(store: Store, head: Head, lease: LeaseChange, *texts: str, thread: str = "t") -> Appended:
    """An append of these lines, or of none."""
    return await store.append(thread, after(head, *texts)[0], head, lease, None)


async def outcomes(*waits: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*waits, return_exceptions=True)


async def lease_of(store: Store, thread: str = "t") -> Lease:
    return (await store.load(thread)).lease


# How a lease can stand when `a` wants to change it.


@dataclass(frozen=True)
class World:
    a: Store
    b: Store
    clock: ManualClock


async def _free(world: World, head: Head) -> None: ...


async def _released(world: World, head: Head) -> None:
    claimed = await change(world.a, head, Claim(ttl=TTL))
    await change(world.a, head, Release(generation=claimed.generation))


async def _own(world: World, head: Head) -> None:
    await change(world.a, head, Claim(ttl=TTL))


async def _own_expired(world: World, head: Head) -> None:
    await _own(world, head)
    await world.clock.advance(TTL)


async def _own_handed_off(world: World, head: Head) -> None:
    claimed = await change(world.a, head, Claim(ttl=TTL))
    await change(world.a, head, Hold(generation=claimed.generation, hand_off=True))


async def _foreign(world: World, head: Head) -> None:
    await change(world.b, head, Claim(ttl=TTL))


async def _foreign_expired(world: World, head: Head) -> None:
    await _foreign(world, head)
    await world.clock.advance(TTL)


async def _foreign_handed_off(world: World, head: Head) -> None:
    claimed = await change(world.b, head, Claim(ttl=TTL))
    await change(world.b, head, Hold(generation=claimed.generation, hand_off=True))


async def _taken_over(world: World, head: Head) -> None:
    await _own(world, head)
    await change(world.b, head, Seize(ttl=TTL))


STATES: dict[str, Callable[[World, Head], Awaitable[None]]] = {
    "free": _free,
    "released": _released,
    "own": _own,
    "own expired": _own_expired,
    "own handed off": _own_handed_off,
    "foreign": _foreign,
    "foreign expired": _foreign_expired,
    "foreign handed off": _foreign_handed_off,
    "taken over": _taken_over,
}
LIVE = frozenset({"own", "foreign", "taken over"})
OWN = frozenset({"own", "own expired", "own handed off"})
ALL = frozenset(STATES)


@dataclass(frozen=True)
class Case:
    """A lease change: where it is accepted, and how the lease stands then."""

    make: Callable[[int], LeaseChange]
    """From the present generation."""
    accepted: frozenset[str]
    then: Callable[[Lease], Lease] = field(default=lambda lease: lease)
    """From the lease before."""


def _taken(lease: Lease) -> Lease:
    return Lease(owner="a", generation=lease.generation + 1, live=True)


def _left_free(lease: Lease) -> Lease:
    return Lease(owner=None, generation=lease.generation + 1, live=False)


def _given_back(lease: Lease) -> Lease:
    return Lease(owner=None, generation=lease.generation, live=False)


def _expired(lease: Lease) -> Lease:
    return Lease(owner="a", generation=lease.generation, live=False)


CASES: dict[str, Case] = {
    "mail": Case(lambda _: None, ALL),
    "claim": Case(lambda _: Claim(ttl=TTL), ALL - LIVE, _taken),
    "claim once": Case(lambda _: Claim(ttl=TTL, once=True), ALL - LIVE, _left_free),
    "seize": Case(lambda _: Seize(ttl=TTL), ALL, _taken),
    "seize once": Case(lambda _: Seize(ttl=TTL, once=True), ALL, _left_free),
    "hold": Case(lambda generation: Hold(generation=generation), OWN),
    "hand-off": Case(lambda generation: Hold(generation=generation, hand_off=True), OWN, _expired),
    "release": Case(lambda generation: Release(generation=generation), OWN, _given_back),
    "hold of an old generation": Case(lambda generation: Hold(generation=generation - 1), frozenset()),
    "hand-off of an old generation": Case(lambda g: Hold(generation=g - 1, hand_off=True), frozenset()),
    "release of an old generation": Case(lambda generation: Release(generation=generation - 1), frozenset()),
}

ODD_KEYS = ["a.b", "$", "$.a", "a[0]", 'say "hi"', "it's", "back\\slash", "", " ", "ключ", "\U0001f9f5", "a%", "a_"]


WRITES: dict[str, Callable[[Store, Head], Awaitable[Any]]] = {
    "create": lambda store, head: store.create("t", header("t"), index()),
    "append": lambda store, head: change(store, head, None, "late"),
    "delete": lambda store, head: store.delete("t", head),
}
READS: dict[str, Callable[[Store, Head], Awaitable[Any]]] = {
    "load": lambda store, head: store.load("t"),
    "list": lambda store, head: store.list(Query()),
    "renew": lambda store, head: store.renew([("t", 1)]),
}


class StoreContract:
    """The promises. Every test gets two stores, `a` and `b`, on the same data."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def opened(self, new_store: NewStore) -> AsyncIterator[Open]:
        """Starts a store on this test's data; it is stopped in the end."""
        stores: list[Store] = []

        async def start(owner: str) -> Store:
            stores.append(store := new_store(owner))
            await store.start()
            return store

        yield start
        for store in reversed(stores):
            await store.stop()

    @pytest.fixture
    async def a(self, opened: Open) -> Store:
        return await opened("a")

    @pytest.fixture
    async def b(self, opened: Open) -> Store:
        return await opened("b")

    # -- creating

    async def test_create_inserts(self, a: Store, b: Store) -> None:
        head = await create(a)
        for store in (a, b):
            loaded = await store.load("t")
            assert loaded.lines == [header("t")]
            assert loaded.head == head
            assert loaded.lease == Lease(owner=None, generation=0, live=False)

    async def test_create_gets_what_is_there(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(meta={"by": "a"}))
        added = await change(a, head, Claim(ttl=TTL), "one")
        assert await b.create("t", header("t", "another"), index(meta={"by": "b"})) == header("t")
        loaded = await b.load("t")
        assert loaded.head == added.head
        assert loaded.lease == Lease(owner="a", generation=1, live=True)
        assert await b.list(Query(meta={"by": "b"})) == []

    async def test_concurrent_creates_keep_one_header(self, a: Store, b: Store) -> None:
        given = await asyncio.gather(
            *(store.create("t", header("t", f"{n}"), index()) for n in range(8) for store in (a, b))
        )
        assert len(set(given)) == 1
        assert (await a.load("t")).lines == given[:1]

    # -- appending

    async def test_an_append_is_there_for_everybody_when_it_returns(self, a: Store, b: Store) -> None:
        head = await create(a)
        lines, then = after(head, "one", "two", "three")
        assert await a.append("t", lines, head, None, None) == Appended(then, 0)
        loaded = await b.load("t")
        assert loaded.lines == [header("t"), *lines]
        assert loaded.head == then

    async def test_lines_come_back_byte_for_byte(self, a: Store) -> None:
        head = await create(a)
        text = "\\u0000 \\ud83e\\uddf5 \\\\ 9007199254740993 1e400 " + "long " * 20_000
        lines = after(head, text, "")[0]
        await a.append("t", lines, head, None, None)
        assert (await a.load("t")).lines[1:] == lines

    async def test_load_after_a_position(self, a: Store) -> None:
        head = await create(a)
        lines, then = after(head, "one", "two", "three")
        await a.append("t", lines, head, None, None)
        everything = [header("t"), *lines]
        for position in range(6):
            loaded = await a.load("t", position)
            assert loaded.lines == everything[position:]
            assert loaded.head == then

    async def test_what_was_loaded_is_the_callers(self, a: Store) -> None:
        await create(a)
        (await a.load("t")).lines.clear()
        assert (await a.load("t")).lines == [header("t")]

    async def test_what_was_appended_is_the_stores(self, a: Store) -> None:
        head = await create(a)
        lines, then = after(head, "one")
        wanted = list(lines)
        future = a.append("t", lines, head, None, None)
        lines.append(b"late")
        assert await future == Appended(then, 0)
        assert (await a.load("t", 1)).lines == wanted

    async def test_an_append_without_lines_keeps_the_head(self, a: Store) -> None:
        head = await create(a)
        assert await a.append("t", (), head, None, None) == Appended(head, 0)
        assert (await a.load("t")).lines == [header("t")]

    async def test_no_thread_is_not_found(self, a: Store) -> None:
        await create(a, "other")
        nowhere = Head(1, digest_line(header("t")))
        for lease in (None, Claim(ttl=TTL), Seize(ttl=TTL), Hold(generation=0), Release(generation=0)):
            with pytest.raises(NotFound) as caught:
                await change(a, nowhere, lease, "one")
            assert caught.value.thread == "t"
        with pytest.raises(NotFound):
            await a.load("t")
        with pytest.raises(NotFound):
            await a.delete("t", nowhere)

    @pytest.mark.parametrize(
        "wrong",
        [Head(0, ""), Head(1, "0" * 32), Head(2, "0" * 32), Head(3, "0" * 32)],
        ids=lambda head: str(head.count),
    )
    async def test_another_head_is_stale_whatever_the_lease(self, a: Store, b: Store, wrong: Head) -> None:
        head = (await change(a, await create(a), None, "one")).head
        await change(b, head, Claim(ttl=TTL))
        for lease in (None, Claim(ttl=TTL), Seize(ttl=TTL), Hold(generation=1), Release(generation=7)):
            with pytest.raises(Stale) as caught:
                await change(a, wrong, lease, "two")
            assert caught.value.thread == "t"
            assert caught.value.head == head
        loaded = await a.load("t")
        assert loaded.head == head
        assert loaded.lease == Lease(owner="b", generation=1, live=True)

    async def test_a_right_head_under_anothers_lease_is_locked(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(b, head, Claim(ttl=TTL))
        with pytest.raises(Locked) as caught:
            await change(a, head, Claim(ttl=TTL), "one")
        assert caught.value.thread == "t"
        assert caught.value.holder == "b"

    async def test_a_refused_append_leaves_nothing(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(meta={"state": "old"}))
        await change(b, head, Claim(ttl=TTL))
        lines, _ = after(head, "one", "two", "three")
        before = await a.load("t")
        new = index(meta={"state": "new"})
        with pytest.raises(Locked):
            await a.append("t", lines, head, Hold(generation=1), new)
        with pytest.raises(Stale):
            await a.append("t", lines, Head(1, "0" * 32), Seize(ttl=TTL), new)
        assert await a.load("t") == before
        assert await a.list(Query(meta={"state": "new"})) == []
        assert await self.names(a, meta={"state": "old"}) == ["t"]

    async def test_a_refused_append_fails_alone(self, a: Store) -> None:
        heads = {name: await create(a, name) for name in "xyz"}
        heads["y"] = Head(1, "0" * 32)
        x, y, z = await outcomes(*(change(a, head, None, "one", thread=name) for name, head in heads.items()))
        assert isinstance(y, Stale)
        assert [found.head.count for found in (x, z)] == [2, 2]

    async def test_sixteen_appends_on_one_head_have_one_winner(self, a: Store, b: Store) -> None:
        head = await create(a)
        found = await outcomes(*(change(store, head, None, f"{n} {store.owner}") for n in range(8) for store in (a, b)))
        (winner,) = [outcome for outcome in found if isinstance(outcome, Appended)]
        refused = [outcome for outcome in found if isinstance(outcome, Stale)]
        assert len(refused) == 15
        assert {error.head for error in refused} == {winner.head}
        loaded = await a.load("t")
        assert loaded.head == winner.head
        assert len(loaded.lines) == 2

    async def test_pipelined_appends_are_accepted_in_order(self, a: Store) -> None:
        first = head = await create(a)
        waits, wanted = [], []
        for n in range(20):
            lines, then = after(head, f"{n}", f"{n} again")
            waits.append(a.append("t", lines, head, Claim(ttl=TTL) if n == 0 else Hold(generation=1), None))
            wanted.append(Appended(then, 1))
            head = then
        assert await asyncio.gather(*waits) == wanted
        loaded = await a.load("t")
        assert loaded.lines[1:] == after(first, *(text for n in range(20) for text in (f"{n}", f"{n} again")))[0]
        assert loaded.head == head

    @pytest.mark.parametrize("refused", [0, 1, 3])
    async def test_after_a_refused_append_those_that_follow_it_are_refused(self, a: Store, refused: int) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        waits, heads = [], [head]
        for n in range(5):
            lines, then = after(heads[-1], f"{n}")
            waits.append(a.append("t", lines, heads[-1], Hold(generation=99 if n == refused else 1), None))
            heads.append(then)
        found = await outcomes(*waits)
        assert [type(outcome) for outcome in found] == [Appended] * refused + [Locked] + [Stale] * (4 - refused)
        assert {error.head for error in found[refused + 1 :]} == {heads[refused]}
        assert (await a.load("t")).head == heads[refused]

    async def test_cancelling_whoever_waits_cancels_nothing(self, a: Store) -> None:
        head = await create(a)
        lines, then = after(head, "one")

        async def wait() -> None:
            await a.append("t", lines, head, None, None)

        task = asyncio.create_task(wait())
        await settle(1)
        task.cancel()
        await outcomes(task)
        assert (await change(a, then, None)).head == then
        assert (await a.load("t", 1)).lines == lines

    async def test_cancelling_the_future_cancels_nothing_and_nothing_behind_it(self, a: Store) -> None:
        head = await create(a)
        lines, then = after(head, "one")
        a.append("t", lines, head, None, None).cancel()
        behind = await change(a, then, None, "two")
        assert behind.head.count == 3
        assert (await a.load("t", 1)).lines[:1] == lines

    # -- leases

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("name", CASES)
    async def test_lease_changes(self, a: Store, b: Store, clock: ManualClock, name: str, state: str) -> None:
        head = await create(a)
        await STATES[state](World(a, b, clock), head)
        before = await lease_of(a)
        assert before.live == (state in LIVE)
        case = CASES[name]
        lines, then = after(head, "one", "two")
        wait = a.append("t", lines, head, case.make(before.generation), None)
        if state in case.accepted:
            wanted = case.then(before)
            assert await wait == Appended(then, wanted.generation)
            assert (await b.load("t"))[1:] == (then, wanted)
        else:
            with pytest.raises(Locked) as caught:
                await wait
            assert caught.value.holder == before.owner
            assert (await b.load("t"))[1:] == (head, before)

    @pytest.mark.parametrize("state", STATES)
    async def test_renewals(self, a: Store, b: Store, clock: ManualClock, state: str) -> None:
        head = await create(a)
        await STATES[state](World(a, b, clock), head)
        before = await lease_of(a)
        kept = await a.renew([("t", before.generation)])
        assert kept == ({"t": 1} if state == "own" else {})
        assert await lease_of(a) == before

    async def test_a_renewal_extends_from_now_on(self, a: Store, b: Store, clock: ManualClock) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        for _ in range(3):
            await clock.advance(TTL - 1)
            assert set(await a.renew([("t", 1)])) == {"t"}
        await clock.advance(TTL - 1)
        assert (await lease_of(b)).live
        await clock.advance(1)
        assert not (await lease_of(b)).live
        assert (await change(b, head, Claim(ttl=TTL))).generation == 2

    async def test_a_renewal_is_for_each_thread_and_generation(self, a: Store, b: Store) -> None:
        for name in "wxyz":
            head = await create(a, name)
            await change(b if name == "y" else a, head, Claim(ttl=TTL), thread=name)
        held = [("w", 1), ("x", 0), ("y", 1), ("z", 2), ("nowhere", 1)]
        assert set(await a.renew(held)) == {"w"}
        assert await a.renew([]) == {}

    async def test_a_renewal_does_not_revive_what_has_expired(self, a: Store, b: Store, clock: ManualClock) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await clock.advance(TTL)
        assert await a.renew([("t", 1)]) == {}
        assert not (await lease_of(b)).live
        assert (await change(b, head, Claim(ttl=TTL))).generation == 2

    async def test_a_renewal_after_a_hand_off_does_nothing(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await change(a, head, Hold(generation=1, hand_off=True))
        assert await a.renew([("t", 1)]) == {}
        assert (await change(b, head, Claim(ttl=TTL))).generation == 2

    async def test_a_hold_does_not_extend(self, a: Store, b: Store, clock: ManualClock) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await clock.advance(TTL - 1)
        await change(a, head, Hold(generation=1))
        await clock.advance(1)
        assert (await change(b, head, Claim(ttl=TTL))).generation == 2

    @pytest.mark.parametrize("ttl", [1.0, TTL * 10])
    @pytest.mark.parametrize("take", [Claim, Seize])
    async def test_a_lease_lasts_as_long_as_was_asked(
        self, a: Store, b: Store, clock: ManualClock, take: type[Claim] | type[Seize], ttl: float
    ) -> None:
        head = await create(a)
        await change(a, head, take(ttl=ttl))
        await clock.advance(ttl - 0.5)
        assert (await lease_of(b)).live
        await clock.advance(0.5)
        assert not (await lease_of(b)).live

    async def test_every_claim_and_seizure_raises_the_generation(self, a: Store, b: Store, clock: ManualClock) -> None:
        head = await create(a)
        seen = [(await change(a, head, Claim(ttl=TTL))).generation]
        seen.append((await change(b, head, Seize(ttl=TTL))).generation)
        seen.append((await change(a, head, Seize(ttl=TTL, once=True))).generation)
        seen.append((await change(b, head, Claim(ttl=TTL, once=True))).generation)
        seen.append((await change(a, head, Claim(ttl=TTL))).generation)
        await clock.advance(TTL)
        seen.append((await change(a, head, Claim(ttl=TTL))).generation)
        assert seen == [1, 2, 3, 4, 5, 6]
        for lease in (None, Hold(generation=6), Hold(generation=6, hand_off=True), Release(generation=6), None):
            assert (await change(a, head, lease)).generation == 6

    async def test_nothing_by_an_old_generation_although_the_owner_is_the_same(
        self, a: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await clock.advance(TTL)
        await change(a, head, Claim(ttl=TTL))
        for lease in (Hold(generation=1), Hold(generation=1, hand_off=True), Release(generation=1)):
            with pytest.raises(Locked):
                await change(a, head, lease, "one")
        assert await a.renew([("t", 1)]) == {}
        assert await lease_of(a) == Lease(owner="a", generation=2, live=True)

    async def test_mail_goes_under_anothers_live_lease_and_moves_the_head(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        mailed = await change(b, head, None, "mail")
        assert mailed.generation == 1
        with pytest.raises(Stale) as caught:
            await change(a, head, Hold(generation=1), "turn")
        assert caught.value.head == mailed.head
        assert (await change(a, mailed.head, Hold(generation=1), "turn")).head.count == 3

    async def test_twenty_expired_threads_and_eight_claimers_lose_none_and_share_none(
        self, a: Store, opened: Open, clock: ManualClock
    ) -> None:
        heads = {f"t{n}": await create(a, f"t{n}") for n in range(20)}
        for name, head in heads.items():
            await change(a, head, Claim(ttl=TTL), thread=name)
        await clock.advance(TTL)
        claimers = [await opened(f"claimer {n}") for n in range(8)]

        async def claim_all(store: Store, first: int) -> list[str]:
            names = [*heads][first:] + [*heads][:first]
            found = await outcomes(*(change(store, heads[name], Claim(ttl=TTL), thread=name) for name in names))
            assert {type(outcome) for outcome in found} <= {Appended, Locked}
            return [name for name, outcome in zip(names, found, strict=True) if isinstance(outcome, Appended)]

        won = await asyncio.gather(*(claim_all(store, n * 2) for n, store in enumerate(claimers)))
        assert sorted(name for names in won for name in names) == sorted(heads)
        for store, names in zip(claimers, won, strict=True):
            for name in names:
                assert await lease_of(a, name) == Lease(owner=store.owner, generation=2, live=True)

    async def test_a_hold_that_races_a_claim_ends_in_one_of_two_ways(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await clock.advance(TTL)
        held, claimed = await outcomes(change(a, head, Hold(generation=1)), change(b, head, Claim(ttl=TTL)))
        assert claimed == Appended(head, 2)
        assert held == Appended(head, 1) or isinstance(held, Locked)
        with pytest.raises(Locked):
            await change(a, head, Hold(generation=1))
        assert await lease_of(a) == Lease(owner="b", generation=2, live=True)

    async def test_a_release_that_races_a_seizure_does_not_free_what_was_seized(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        released, seized = await outcomes(change(a, head, Release(generation=1)), change(b, head, Seize(ttl=TTL)))
        assert seized == Appended(head, 2)
        assert released == Appended(head, 1) or isinstance(released, Locked)
        assert await lease_of(a) == Lease(owner="b", generation=2, live=True)

    # -- time

    async def test_now_is_the_given_clocks(self, a: Store, clock: ManualClock) -> None:
        await clock.advance(5)
        assert await a.now() == clock.now()
        clock.step_back(LONG_AGO)
        assert await a.now() == clock.now()

    async def test_a_clock_that_steps_back_gives_nobodys_lease_away(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        clock.step_back(LONG_AGO)
        with pytest.raises(Locked):
            await change(b, head, Claim(ttl=TTL))
        await change(a, head, Hold(generation=1))
        assert await lease_of(b) == Lease(owner="a", generation=1, live=True)

    async def test_a_renewal_after_a_step_back_counts_from_the_new_time(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        clock.step_back(LONG_AGO)
        assert set(await a.renew([("t", 1)])) == {"t"}
        await clock.advance(TTL - 1)
        assert (await lease_of(b)).live
        await clock.advance(1)
        assert (await change(b, head, Claim(ttl=TTL))).generation == 2

    async def test_a_step_back_does_not_revive_a_lease_that_was_taken(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await clock.advance(TTL)
        await change(b, head, Claim(ttl=TTL))
        clock.step_back(LONG_AGO)
        with pytest.raises(Locked):
            await change(a, head, Hold(generation=1))
        assert await a.renew([("t", 1)]) == {}
        assert await lease_of(a) == Lease(owner="b", generation=2, live=True)

    async def test_a_step_back_does_not_revive_what_was_handed_off(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=TTL))
        await change(a, head, Hold(generation=1, hand_off=True))
        clock.step_back(LONG_AGO)
        assert not (await lease_of(b)).live
        assert (await change(b, head, Claim(ttl=TTL))).generation == 2

    # -- listing

    async def names(self, store: Store, **query: Any) -> list[str]:
        found = await store.list(Query(**query))
        assert [row.line for row in found] == [header(row.thread) for row in found]
        return [row.thread for row in found]

    async def cursor(self, store: Store, thread: str) -> int:
        """Where the page goes on that follows this thread."""
        return next(row.cursor for row in await store.list(Query()) if row.thread == thread)

    async def test_a_list_is_newest_first_whatever_was_appended(self, a: Store, b: Store) -> None:
        heads = [await create(store, f"t{n}") for n, store in enumerate((a, b, a, b))]
        await change(a, heads[0], None, "one", thread="t0")
        for store in (a, b):
            assert await self.names(store) == ["t3", "t2", "t1", "t0"]

    async def test_pages_follow_one_another(self, a: Store) -> None:
        for n in range(7):
            await create(a, f"t{n}", index("work" if n == 3 else "session"))
        pages = [await a.list(Query(kind="session", limit=2))]
        while pages[-1]:
            pages.append(await a.list(Query(kind="session", limit=2, after=pages[-1][-1].cursor)))
        assert [[row.thread for row in page] for page in pages] == [["t6", "t5"], ["t4", "t2"], ["t1", "t0"], []]

    async def test_what_is_created_meanwhile_does_not_move_pages(self, a: Store) -> None:
        for n in range(4):
            await create(a, f"t{n}")
        cursor = await self.cursor(a, "t2")
        await create(a, "t4")
        assert await self.names(a, limit=2, after=cursor) == ["t1", "t0"]

    async def test_a_list_stays_newest_first_when_threads_are_deleted(self, a: Store) -> None:
        heads = {f"t{n}": await create(a, f"t{n}") for n in range(3)}
        await a.delete("t0", heads["t0"])
        await create(a, "t3")
        assert await self.names(a) == ["t3", "t2", "t1"]
        assert await self.names(a, after=await self.cursor(a, "t3")) == ["t2", "t1"]
        await create(a, "t0")
        assert await self.names(a, limit=2) == ["t0", "t3"]

    async def test_a_page_goes_on_after_a_thread_that_was_deleted(self, a: Store) -> None:
        heads = {f"t{n}": await create(a, f"t{n}") for n in range(4)}
        cursor = await self.cursor(a, "t2")
        await a.delete("t2", heads["t2"])
        assert await self.names(a, after=cursor) == ["t1", "t0"]
        await create(a, "t2")
        assert await self.names(a, after=cursor) == ["t1", "t0"]

    async def test_lists_are_filtered(self, a: Store) -> None:
        await create(a, "t0", index(meta={"user": "ann", "team": "x"}))
        await create(a, "t1", index(meta={"user": "ann", "team": "y"}))
        await create(a, "t2", index("work", parent="t0", meta={"user": "bob"}))
        await create(a, "t3", index(parent="t0"))
        assert await self.names(a, meta={"user": "ann"}) == ["t1", "t0"]
        assert await self.names(a, meta={"user": "ann", "team": "y"}) == ["t1"]
        assert await self.names(a, meta={"user": "an"}) == []
        assert await self.names(a, meta={"user": ""}) == []
        assert await self.names(a, meta={"color": "red"}) == []
        assert await self.names(a, kind="work") == ["t2"]
        assert await self.names(a, parent="t0") == ["t3", "t2"]
        assert await self.names(a, parent="t0", kind="session") == ["t3"]
        assert await self.names(a, parent="t0", meta={"user": "bob"}) == ["t2"]
        assert await self.names(a, parent="t1") == []

    @pytest.mark.parametrize("key", ODD_KEYS)
    async def test_metadata_may_have_any_key_and_value(self, a: Store, key: str) -> None:
        others = {other: "1" for other in ODD_KEYS if other != key}
        await create(a, "other", index(meta=others))
        await create(a, "value", index(meta={**others, key: "2"}))
        await create(a, "found", index(meta={key: "1"}))
        assert await self.names(a, meta={key: "1"}) == ["found"]
        await create(a, "odd", index(meta={"key": key}))
        assert await self.names(a, meta={"key": key}) == ["odd"]

    async def test_values_are_text_and_nothing_else(self, a: Store) -> None:
        for value in ("1", "1.0", "true", "null", '"1"', "{}"):
            await create(a, value, index(meta={"v": value}))
        for value in ("1", "1.0", "true", "null", '"1"', "{}"):
            assert [row.thread for row in await a.list(Query(meta={"v": value}))] == [value]

    async def test_an_append_stores_the_index_it_brings(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(meta={"state": "new"}))
        lines, then = after(head, "one")
        await a.append("t", lines, head, None, index(meta={"state": "done", "more": "yes"}))
        assert await self.names(b, meta={"state": "new"}) == []
        assert await self.names(b, meta={"state": "done", "more": "yes"}) == ["t"]
        await change(a, then, None, "two")
        assert await self.names(b, meta={"state": "done"}) == ["t"]
        await a.append("t", (), (await a.load("t")).head, None, index())
        assert await self.names(b, meta={"state": "done"}) == []

    # -- deleting

    async def test_delete_takes_everything(self, a: Store, b: Store) -> None:
        await create(a, "other")
        head = (await change(a, await create(a), Claim(ttl=TTL, once=True), "one", "two")).head
        await b.delete("t", head)
        with pytest.raises(NotFound):
            await a.load("t")
        with pytest.raises(NotFound):
            await change(a, head, None, "three")
        with pytest.raises(NotFound):
            await a.delete("t", head)
        assert await self.names(a) == ["other"]

    async def test_what_is_created_again_begins_anew(self, a: Store) -> None:
        first = await create(a, of=index(meta={"life": "first"}))
        head = (await change(a, first, Claim(ttl=TTL, once=True), "one", "two")).head
        await a.delete("t", head)
        assert await create(a) == first
        assert await a.load("t") == ([header("t")], first, Lease(owner=None, generation=0, live=False))
        assert await self.names(a, meta={"life": "first"}) == []

    async def test_delete_refuses_another_head(self, a: Store) -> None:
        head = await create(a)
        moved = await change(a, head, None, "one")
        with pytest.raises(Stale) as caught:
            await a.delete("t", head)
        assert caught.value.head == moved.head
        assert (await a.load("t")).head == moved.head

    @pytest.mark.parametrize("state", STATES)
    async def test_delete_refuses_a_live_lease(self, a: Store, b: Store, clock: ManualClock, state: str) -> None:
        head = await create(a)
        await STATES[state](World(a, b, clock), head)
        before = await a.load("t")
        if state in LIVE:
            with pytest.raises(Stale):
                await a.delete("t", Head(1, "0" * 32))
            with pytest.raises(Locked) as caught:
                await a.delete("t", head)
            assert caught.value.holder == before.lease.owner
            assert await a.load("t") == before
        else:
            await a.delete("t", head)
            with pytest.raises(NotFound):
                await a.load("t")

    # -- leaving

    async def test_what_was_written_outlives_the_store(self, a: Store, opened: Open) -> None:
        head = await create(a, of=index(meta={"state": "new"}))
        lines, then = after(head, "one")
        await a.append("t", lines, head, Claim(ttl=TTL, once=True), index(meta={"state": "done"}))
        await a.stop()
        later = await opened("later")
        assert await later.load("t") == ([header("t"), *lines], then, Lease(owner=None, generation=1, live=False))
        assert await self.names(later, meta={"state": "done"}) == ["t"]

    async def test_the_leases_of_a_store_that_was_left_are_expired_at_once(self, a: Store, opened: Open) -> None:
        gone = await opened("gone")
        heads = {name: await create(a, name) for name in "xyz"}
        for name in "xy":
            await change(gone, heads[name], Claim(ttl=TTL), thread=name)
        await change(a, heads["z"], Claim(ttl=TTL), thread="z")
        await gone.stop()
        assert [(await lease_of(a, name)).live for name in "xyz"] == [False, False, True]
        assert (await change(a, heads["x"], Claim(ttl=TTL), thread="x")).generation == 2
        await a.delete("y", heads["y"])

    async def test_stopping_writes_what_is_queued(self, a: Store, b: Store) -> None:
        head = await create(a)
        waits = []
        for n in range(50):
            lines, then = after(head, f"{n}")
            waits.append(a.append("t", lines, head, None, None))
            head = then
        await a.stop()
        assert all(wait.done() for wait in waits)
        assert [wait.result().head.count for wait in waits] == [*range(2, 52)]
        assert (await b.load("t")).head == head

    async def test_what_comes_while_the_store_stops_is_answered(self, a: Store, b: Store) -> None:
        head = await create(a)
        stopping = asyncio.create_task(a.stop())
        await settle(1)
        late = asyncio.ensure_future(a.append("t", after(head, "late")[0], head, None, None))
        await stopping
        assert late.done()
        (outcome,) = await outcomes(late)
        assert isinstance(outcome, Appended | Closed)
        assert (await b.load("t")).head.count == (2 if isinstance(outcome, Appended) else 1)

    async def test_stopping_twice_is_stopping(self, a: Store) -> None:
        await a.stop()
        await a.stop()

    @pytest.mark.parametrize("name", WRITES)
    async def test_a_store_that_was_left_is_closed_to_writers(self, a: Store, b: Store, name: str) -> None:
        head = await create(a)
        await a.stop()
        with pytest.raises(Closed):
            await WRITES[name](a, head)
        assert (await b.load("t")).head == head

    @pytest.mark.parametrize("name", READS)
    async def test_a_store_that_was_left_is_closed_to_readers(self, a: Store, name: str) -> None:
        head = await create(a)
        await a.stop()
        with pytest.raises(Closed):
            await READS[name](a, head)

    async def test_a_store_that_was_not_started_is_closed(self, new_store: NewStore) -> None:
        with pytest.raises(Closed):
            await new_store("early").create("t", header("t"), index())
