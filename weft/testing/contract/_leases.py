"""What a store promises of leases and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from weft.errors import Locked, Stale
from weft.testing.clock import ManualClock
from weft.testing.contract._kit import (
    LEASE,
    LIVE,
    STATES,
    Open,
    World,
    after,
    change,
    create,
    index,
    lease_of,
    outcomes,
    plain,
)
from weft.thread.store import Appended, Claim, Hold, Lease, LeaseChange, Query, Release, Seize, Store

LONG_AGO = 1_000.0
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
    "claim": Case(lambda _: Claim(ttl=LEASE), ALL - LIVE, _taken),
    "claim once": Case(lambda _: Claim(ttl=LEASE, once=True), ALL - LIVE, _left_free),
    "seize": Case(lambda _: Seize(ttl=LEASE), ALL, _taken),
    "seize once": Case(lambda _: Seize(ttl=LEASE, once=True), ALL, _left_free),
    "hold": Case(lambda generation: Hold(generation=generation), OWN),
    "hand-off": Case(lambda generation: Hold(generation=generation, hand_off=True), OWN, _expired),
    "release": Case(lambda generation: Release(generation=generation), OWN, _given_back),
    "hold of an old generation": Case(lambda generation: Hold(generation=generation - 1), frozenset()),
    "hand-off of an old generation": Case(lambda g: Hold(generation=g - 1, hand_off=True), frozenset()),
    "release of an old generation": Case(lambda generation: Release(generation=generation - 1), frozenset()),
}


@plain
class LeasePromises:
    """Leases and time."""

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
        wait = a.append("t", lines, head, case.make(before.generation), index(title="new"))
        if state in case.accepted:
            wanted = case.then(before)
            assert await wait == Appended(then, wanted.generation)
            assert (await b.load("t"))[1:] == (then, wanted)
        else:
            with pytest.raises(Locked) as caught:
                await wait
            assert caught.value.holder == before.owner
            assert (await b.load("t"))[1:] == (head, before)
        assert [row.state and row.state.title for row in await b.list(Query())] == [
            "new" if state in case.accepted else None
        ]

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
        await change(a, head, Claim(ttl=LEASE))
        for _ in range(3):
            await clock.advance(LEASE - 1)
            assert set(await a.renew([("t", 1)])) == {"t"}
        await clock.advance(LEASE - 1)
        assert (await lease_of(b)).live
        await clock.advance(1)
        assert not (await lease_of(b)).live
        assert (await change(b, head, Claim(ttl=LEASE))).generation == 2

    async def test_a_renewal_is_for_each_thread_and_generation(self, a: Store, b: Store) -> None:
        for name in "wxyz":
            head = await create(a, name)
            await change(b if name == "y" else a, head, Claim(ttl=LEASE), thread=name)
        held = [("w", 1), ("x", 0), ("y", 1), ("z", 2), ("nowhere", 1)]
        assert set(await a.renew(held)) == {"w"}
        assert await a.renew([]) == {}

    async def test_a_renewal_does_not_revive_what_has_expired(self, a: Store, b: Store, clock: ManualClock) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        await clock.advance(LEASE)
        assert await a.renew([("t", 1)]) == {}
        assert not (await lease_of(b)).live
        assert (await change(b, head, Claim(ttl=LEASE))).generation == 2

    async def test_a_renewal_after_a_hand_off_does_nothing(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        await change(a, head, Hold(generation=1, hand_off=True))
        assert await a.renew([("t", 1)]) == {}
        assert (await change(b, head, Claim(ttl=LEASE))).generation == 2

    async def test_a_renewal_that_races_a_hand_off_does_not_bring_the_lease_back(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        renewed, handed_off = await outcomes(a.renew([("t", 1)]), change(a, head, Hold(generation=1, hand_off=True)))
        assert handed_off == Appended(head, 1)
        assert renewed in ({"t": 1}, {})
        assert await lease_of(b) == Lease(owner="a", generation=1, live=False)

    async def test_a_renewal_tells_how_many_lines_each_thread_has(self, a: Store, b: Store) -> None:
        heads = {name: await create(a, name) for name in "xyz"}
        for name, head in heads.items():
            await change(a, head, Claim(ttl=LEASE), thread=name)
        assert await a.renew([(name, 1) for name in heads]) == {"x": 1, "y": 1, "z": 1}
        await change(b, heads["y"], None, "mail", "more mail", thread="y")
        await change(a, heads["z"], Hold(generation=1), "turn", thread="z")
        assert await a.renew([(name, 1) for name in heads]) == {"x": 1, "y": 3, "z": 2}

    async def test_a_hold_does_not_extend(self, a: Store, b: Store, clock: ManualClock) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        await clock.advance(LEASE - 1)
        await change(a, head, Hold(generation=1))
        await clock.advance(1)
        assert (await change(b, head, Claim(ttl=LEASE))).generation == 2

    @pytest.mark.parametrize("ttl", [1.0, LEASE * 10])
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
        seen = [(await change(a, head, Claim(ttl=LEASE))).generation]
        seen.append((await change(b, head, Seize(ttl=LEASE))).generation)
        seen.append((await change(a, head, Seize(ttl=LEASE, once=True))).generation)
        seen.append((await change(b, head, Claim(ttl=LEASE, once=True))).generation)
        seen.append((await change(a, head, Claim(ttl=LEASE))).generation)
        await clock.advance(LEASE)
        seen.append((await change(a, head, Claim(ttl=LEASE))).generation)
        assert seen == [1, 2, 3, 4, 5, 6]
        for lease in (None, Hold(generation=6), Hold(generation=6, hand_off=True), Release(generation=6), None):
            assert (await change(a, head, lease)).generation == 6

    async def test_nothing_by_an_old_generation_although_the_owner_is_the_same(
        self, a: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        await clock.advance(LEASE)
        await change(a, head, Claim(ttl=LEASE))
        for lease in (Hold(generation=1), Hold(generation=1, hand_off=True), Release(generation=1)):
            with pytest.raises(Locked):
                await change(a, head, lease, "one")
        assert await a.renew([("t", 1)]) == {}
        assert await lease_of(a) == Lease(owner="a", generation=2, live=True)

    async def test_mail_goes_under_anothers_live_lease_and_moves_the_head(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
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
            await change(a, head, Claim(ttl=LEASE), thread=name)
        await clock.advance(LEASE)
        claimers = [await opened(f"claimer {n}") for n in range(8)]

        async def claim_all(store: Store, first: int) -> list[str]:
            names = [*heads][first:] + [*heads][:first]
            found = await outcomes(*(change(store, heads[name], Claim(ttl=LEASE), thread=name) for name in names))
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
        await change(a, head, Claim(ttl=LEASE))
        await clock.advance(LEASE)
        held, claimed = await outcomes(change(a, head, Hold(generation=1)), change(b, head, Claim(ttl=LEASE)))
        assert claimed == Appended(head, 2)
        assert held == Appended(head, 1) or isinstance(held, Locked)
        with pytest.raises(Locked):
            await change(a, head, Hold(generation=1))
        assert await lease_of(a) == Lease(owner="b", generation=2, live=True)

    async def test_a_release_that_races_a_seizure_does_not_free_what_was_seized(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        released, seized = await outcomes(change(a, head, Release(generation=1)), change(b, head, Seize(ttl=LEASE)))
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
        await change(a, head, Claim(ttl=LEASE))
        clock.step_back(LONG_AGO)
        with pytest.raises(Locked):
            await change(b, head, Claim(ttl=LEASE))
        await change(a, head, Hold(generation=1))
        assert await lease_of(b) == Lease(owner="a", generation=1, live=True)

    async def test_a_renewal_after_a_step_back_counts_from_the_new_time(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        clock.step_back(LONG_AGO)
        assert set(await a.renew([("t", 1)])) == {"t"}
        await clock.advance(LEASE - 1)
        assert (await lease_of(b)).live
        await clock.advance(1)
        assert (await change(b, head, Claim(ttl=LEASE))).generation == 2

    async def test_a_step_back_does_not_revive_a_lease_that_was_taken(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        await clock.advance(LEASE)
        await change(b, head, Claim(ttl=LEASE))
        clock.step_back(LONG_AGO)
        with pytest.raises(Locked):
            await change(a, head, Hold(generation=1))
        assert await a.renew([("t", 1)]) == {}
        assert await lease_of(a) == Lease(owner="b", generation=2, live=True)

    async def test_a_step_back_does_not_revive_what_was_handed_off(
        self, a: Store, b: Store, clock: ManualClock
    ) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
        await change(a, head, Hold(generation=1, hand_off=True))
        clock.step_back(LONG_AGO)
        assert not (await lease_of(b)).live
        assert (await change(b, head, Claim(ttl=LEASE))).generation == 2
