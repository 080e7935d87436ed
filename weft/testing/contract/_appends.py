"""What a store promises of creating and appending."""

from __future__ import annotations

import asyncio

import pytest

from weft.errors import Locked, NotFound, Stale
from weft.testing.clock import ManualClock, settle
from weft.testing.contract._kit import (
    LEASE,
    STATES,
    World,
    after,
    change,
    create,
    differing,
    header,
    index,
    names,
    outcomes,
    plain,
)
from weft.thread._codec import digest_line
from weft.thread.store import Appended, Claim, Head, Hold, Lease, Loaded, Query, Release, Seize, Store


@plain
class AppendPromises:
    """Creating and appending."""

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
        added = await change(a, head, Claim(ttl=LEASE), "one")
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

    async def test_a_thread_is_made_with_its_lines_at_once(self, a: Store, b: Store) -> None:
        more, then = after(Head(1, digest_line(header("t"))), "one", "two")
        state = index(title="copied", pending=1)
        future = a.create("t", header("t"), state, more)
        wanted = [header("t"), *more]
        more.append(b"late")
        assert await future == header("t")
        assert await b.load("t") == (wanted, then, Lease(owner=None, generation=0, live=False))
        assert [row.state for row in await b.list(Query())] == [state]
        assert (await change(b, then, Claim(ttl=LEASE), "three")).head.count == 4

    async def test_a_thread_that_is_there_takes_no_lines_of_another_create(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(title="mine"))
        more, _ = after(head, "one", "two")
        assert await b.create("t", header("t", "another"), index(title="theirs"), more) == header("t")
        loaded = await a.load("t")
        assert loaded.lines == [header("t")]
        assert loaded.head == head
        assert [row.state and row.state.title for row in await a.list(Query())] == ["mine"]

    async def test_of_concurrent_creates_one_is_there_with_all_its_lines(self, a: Store, b: Store) -> None:
        first = [header("t", f"{n}") for n in range(8)]
        more = [after(Head(1, digest_line(line)), f"{n} one", f"{n} two")[0] for n, line in enumerate(first)]
        given = await asyncio.gather(
            *((a, b)[n % 2].create("t", first[n], index(title=f"{n}"), more[n]) for n in range(8))
        )
        assert len(set(given)) == 1
        winner = first.index(given[0])
        assert (await a.load("t")).lines == [first[winner], *more[winner]]
        assert [row.state and row.state.title for row in await a.list(Query())] == [f"{winner}"]

    async def test_what_follows_may_be_appended_before_the_thread_is_made(self, a: Store, b: Store) -> None:
        made = a.create("t", header("t"), index())
        head = Head(1, digest_line(header("t")))
        added = await change(a, head, Claim(ttl=LEASE), "one")
        assert made.done()
        assert added.head.count == 2
        assert (await b.load("t")).head == added.head

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
        assert not differing((await a.load("t")).lines, [header("t"), *lines])

    async def test_load_after_a_position(self, a: Store) -> None:
        head = await create(a)
        lines, then = after(head, "one", "two", "three")
        await a.append("t", lines, head, None, None)
        everything = [header("t"), *lines]
        for position in range(6):
            loaded = await a.load("t", position)
            assert loaded.lines == everything[position:]
            assert loaded.head == then

    async def test_what_is_loaded_is_of_one_moment(self, a: Store, b: Store) -> None:
        head = await create(a)
        moments = {1: (head, Lease(owner=None, generation=0, live=False))}
        loads: list[asyncio.Future[Loaded]] = []
        for n in range(10):
            loads += [asyncio.ensure_future(store.load("t")) for store in (a, b)]
            writing = asyncio.ensure_future(change(a, head, Claim(ttl=LEASE, once=True), "one", "two", "three"))
            for _ in range(5):
                loads += [asyncio.ensure_future(store.load("t")) for store in (a, b)]
                await settle(1)
            head = (await writing).head
            moments[head.count] = (head, Lease(owner=None, generation=n + 1, live=False))
        for loaded in await asyncio.gather(*loads):
            assert (loaded.head, loaded.lease) == moments.get(len(loaded.lines))

    async def test_what_others_write_is_seen_by_a_store_that_has_read_before(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(title="0"))
        for n in range(1, 3):
            assert await b.load("t") == await a.load("t")
            assert [row.state and row.state.title for row in await b.list(Query())] == [f"{n - 1}"]
            lines, then = after(head, f"{n}")
            await a.append("t", lines, head, Seize(ttl=LEASE), index(title=f"{n}"))
            assert await b.load("t", head.count) == (lines, then, Lease(owner="a", generation=n, live=True))
            assert len(await b.scan("t")) == then.count
            head = then

    async def test_a_scan_gives_every_line_by_its_position(self, a: Store, b: Store) -> None:
        head = await create(a)
        lines, _ = after(head, *(f"{n}" for n in range(600)))
        await a.append("t", lines, head, None, None)
        found = await b.scan("t")
        assert not differing([found.get(n, b"") for n in range(601)], [header("t"), *lines])
        assert len(found) == 601
        found.clear()
        assert len(await b.scan("t")) == 601
        with pytest.raises(NotFound):
            await a.scan("nowhere")

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
        for lease in (None, Claim(ttl=LEASE), Seize(ttl=LEASE), Hold(generation=0), Release(generation=0)):
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
        await change(b, head, Claim(ttl=LEASE))
        for lease in (None, Claim(ttl=LEASE), Seize(ttl=LEASE), Hold(generation=1), Release(generation=7)):
            for texts in ((), ("two",)):
                with pytest.raises(Stale) as caught:
                    await change(a, wrong, lease, *texts)
                assert caught.value.thread == "t"
                assert caught.value.head == head
        loaded = await a.load("t")
        assert loaded.head == head
        assert loaded.lease == Lease(owner="b", generation=1, live=True)

    async def test_a_head_is_both_its_count_and_its_digest(self, a: Store) -> None:
        first = await create(a)
        head = (await change(a, first, None, "one")).head
        for wrong in (Head(1, head.digest), Head(3, head.digest), Head(2, first.digest)):
            with pytest.raises(Stale):
                await change(a, wrong, None, "two")
        assert (await a.load("t")).head == head

    @pytest.mark.parametrize("state", STATES)
    async def test_a_stale_append_leaves_the_lease_as_it_was(
        self, a: Store, b: Store, clock: ManualClock, state: str
    ) -> None:
        head = await create(a)
        await STATES[state](World(a, b, clock), head)
        before = await a.load("t")
        now = before.lease.generation
        takes = [take(ttl=LEASE, once=once) for take in (Claim, Seize) for once in (False, True)]
        for lease in (*takes, Hold(generation=now), Hold(generation=now, hand_off=True), Release(generation=now)):
            with pytest.raises(Stale):
                await change(a, Head(1, "0" * 32), lease, "one")
            assert await b.load("t") == before

    async def test_a_right_head_under_anothers_lease_is_locked(self, a: Store, b: Store) -> None:
        head = await create(a)
        await change(b, head, Claim(ttl=LEASE))
        with pytest.raises(Locked) as caught:
            await change(a, head, Claim(ttl=LEASE), "one")
        assert caught.value.thread == "t"
        assert caught.value.holder == "b"

    async def test_a_refused_append_leaves_nothing(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(meta={"state": "old"}))
        await change(b, head, Claim(ttl=LEASE))
        lines, _ = after(head, "one", "two", "three")
        before = await a.load("t")
        new = index(meta={"state": "new"})
        with pytest.raises(Locked):
            await a.append("t", lines, head, Hold(generation=1), new)
        with pytest.raises(Stale):
            await a.append("t", lines, Head(1, "0" * 32), Seize(ttl=LEASE), new)
        assert await a.load("t") == before
        assert await a.list(Query(meta={"state": "new"})) == []
        assert await names(a, Query(meta={"state": "old"})) == ["t"]

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
            waits.append(a.append("t", lines, head, Claim(ttl=LEASE) if n == 0 else Hold(generation=1), None))
            wanted.append(Appended(then, 1))
            head = then
        assert await asyncio.gather(*waits) == wanted
        loaded = await a.load("t")
        assert loaded.lines[1:] == after(first, *(text for n in range(20) for text in (f"{n}", f"{n} again")))[0]
        assert loaded.head == head

    @pytest.mark.parametrize("refused", [0, 1, 3])
    async def test_after_a_refused_append_those_that_follow_it_are_refused(self, a: Store, refused: int) -> None:
        head = await create(a)
        await change(a, head, Claim(ttl=LEASE))
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
