"""What a store promises of deleting, and of being left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from weft.errors import Closed, Locked, NotFound, Stale
from weft.testing.clock import ManualClock, settle
from weft.testing.contract._kit import (
    LEASE,
    LIVE,
    STATES,
    NewStore,
    Open,
    World,
    after,
    change,
    create,
    header,
    index,
    lease_of,
    names,
    outcomes,
    plain,
)
from weft.thread.store import Appended, Claim, Head, Lease, Query, Store

WRITES: dict[str, Callable[[Store, Head], Awaitable[Any]]] = {
    "create": lambda store, head: store.create("t", header("t"), index()),
    "append": lambda store, head: change(store, head, None, "late"),
    "delete": lambda store, head: store.delete("t", head),
}
READS: dict[str, Callable[[Store, Head], Awaitable[Any]]] = {
    "load": lambda store, head: store.load("t"),
    "scan": lambda store, head: store.scan("t"),
    "list": lambda store, head: store.list(Query()),
    "renew": lambda store, head: store.renew([("t", 1)]),
}


@plain
class EndPromises:
    """Deleting, and leaving."""

    # -- deleting

    async def test_delete_takes_everything(self, a: Store, b: Store) -> None:
        await create(a, "other")
        head = (await change(a, await create(a), Claim(ttl=LEASE, once=True), "one", "two")).head
        await b.delete("t", head)
        with pytest.raises(NotFound):
            await a.load("t")
        with pytest.raises(NotFound):
            await change(a, head, None, "three")
        with pytest.raises(NotFound):
            await a.delete("t", head)
        assert await names(a) == ["other"]

    async def test_what_is_created_again_begins_anew(self, a: Store) -> None:
        first = await create(a, of=index(meta={"life": "first"}))
        head = (await change(a, first, Claim(ttl=LEASE, once=True), "one", "two")).head
        await a.delete("t", head)
        assert await create(a) == first
        assert await a.load("t") == ([header("t")], first, Lease(owner=None, generation=0, live=False))
        assert await names(a, Query(meta={"life": "first"})) == []

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
        await a.append("t", lines, head, Claim(ttl=LEASE, once=True), index(meta={"state": "done"}))
        await a.stop()
        later = await opened("later")
        assert await later.load("t") == ([header("t"), *lines], then, Lease(owner=None, generation=1, live=False))
        assert await names(later, Query(meta={"state": "done"})) == ["t"]

    async def test_the_leases_of_a_store_that_was_left_are_expired_at_once(self, a: Store, opened: Open) -> None:
        gone = await opened("gone")
        heads = {name: await create(a, name) for name in "xyz"}
        for name in "xy":
            await change(gone, heads[name], Claim(ttl=LEASE), thread=name)
        await change(a, heads["z"], Claim(ttl=LEASE), thread="z")
        await gone.stop()
        assert [(await lease_of(a, name)).live for name in "xyz"] == [False, False, True]
        assert (await change(a, heads["x"], Claim(ttl=LEASE), thread="x")).generation == 2
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
