"""Listing, deleting, creating under a key, and observing: what is there, and who is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.thread.talk import Tools, damaged, lines_of, place, talker, told
from weft import Agent, Busy, Closed
from weft.errors import Corrupt, NotFound, NotPending, WrongCall
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, hold, say
from weft.thread import Entry, Memory, OpenStore, ThreadInfo, approve, deny, open_store
from weft.thread.entries import Note
from weft.thread.memory import MemoryStore
from weft.thread.store import Head, Loaded

Where: TypeAlias = Memory | str


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


@pytest.fixture
def tools() -> Tools:
    return Tools()


async def settle() -> None:
    """Let every task do what it can do now."""
    for _ in range(100):
        await asyncio.sleep(0)


async def listed(store: OpenStore, **query: Any) -> list[str]:
    return [info.thread async for info in store.list(**query)]


async def everything(store: OpenStore) -> list[ThreadInfo]:
    return [info async for info in store.list(kind=None, children=True)]


def desk(tools: Tools, pool: Pool, **options: Any) -> Agent[Any, Any]:
    """An agent whose helper may ask a helper of its own."""
    inner = Agent(talker(), name="inner", tools=[tools.look, tools.pay])
    helper = Agent(
        talker(), name="helper", tools=[pool.wrap("help", inner, description="Helps."), tools.look, tools.pay]
    )
    return tools.agent(tools=[pool.wrap("help", helper, description="Helps."), tools.look, tools.pay], **options)


# Filters.


async def some_threads(store: OpenStore, tools: Tools, pool: Pool) -> None:
    """Sessions of two agents, described or not, parked or not, with children and theirs."""
    other = Agent(talker(), name="other", tools=[tools.look, tools.pay])
    one = await store.create(other, meta={"a": "1", "b": "2"})
    await one.describe(title="A Title", meta={"b": "3"})
    two = await store.create(tools.agent(), meta={"a": "1"})
    await two.describe(title="another one")
    await two.ask("do pay 1")
    three = await store.create(desk(tools, pool), meta={"a": "2"})
    await three.send("do help pay, help look, look 1")
    await three.settled_or_waiting()
    await three.describe(title="ÜBER die STRASSE 100%")
    four = await store.create(other, meta={"a": "1"})
    await four.describe(title="x", meta={"a": None, "b": "3"})
    await store.create(tools.agent())


def fits(info: ThreadInfo, query: dict[str, Any]) -> bool:
    """What the docstring of `list` says, in other words."""
    if query.get("parent") is not None:
        if info.parent != query["parent"]:
            return False
    elif not query.get("children") and info.parent is not None:
        return False
    wanted = query.get("meta") or {}
    return (
        all(info.meta.get(key) == value for key, value in wanted.items())
        and (query.get("title") is None or query["title"].casefold() in (info.title or "").casefold())
        and (query.get("pending") is None or query["pending"] == (info.pending > 0))
        and (query.get("name") is None or info.name == query["name"])
        and (query.get("kind", "session") is None or info.kind == query.get("kind", "session"))
    )


async def test_filters_alone_and_together_give_what_they_say(where: Where, tools: Tools) -> None:
    async with open_store(where) as store, Pool(3) as pool:
        await some_threads(store, tools, pool)
        threads = await everything(store)
        assert len(threads) == 7
        parent = next(info.parent for info in threads if info.parent is not None)
        choices: list[list[dict[str, Any]]] = [
            [{}, {"meta": {"a": "1"}}, {"meta": {"b": "3"}}, {"meta": {"a": "1", "b": "3"}}, {"meta": {"c": "1"}}],
            [{}, {"title": "TITLE"}, {"title": "straße 100%"}, {"title": "%"}, {"title": "_"}, {"title": ""}],
            [{}, {"pending": True}, {"pending": False}],
            [{}, {"name": "desk"}, {"name": "helper"}, {"name": "des"}],
            [{}, {"children": True}, {"parent": parent}, {"parent": parent, "children": True}, {"parent": "nobody"}],
            [{}, {"kind": None}, {"kind": "saga"}],
        ]
        hits = 0
        for parts in product(*choices):
            query = {key: value for part in parts for key, value in part.items()}
            wanted = [info.thread for info in threads if fits(info, query)]
            assert await listed(store, **query) == wanted, query
            hits += bool(wanted)
        assert hits > 100


@pytest.mark.parametrize(
    ("title", "part"),
    [
        ("ÜBER", "über"),
        ("über", "ÜB"),
        ("Straße", "STRASSE"),
        ("STRASSE", "straße"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("ﬁn", "FIN"),
        ("100% _sure_", "% _S"),
        ('it\'s "q" \\ ]', '"Q" \\'),
        ("日本語", "本"),
        ("a\u0000b", "\ufffd"),
        ("emoji 🙂", "🙂"),
    ],
)
async def test_a_title_is_found_by_a_part_in_any_case_of_letters(
    where: Where, tools: Tools, title: str, part: str
) -> None:
    async with open_store(where) as store:
        await (await store.create(tools.agent())).describe(title="something else")
        wanted = await store.create(tools.agent())
        await wanted.describe(title=title)
        assert await listed(store, title=part) == [wanted.id]
        assert await listed(store, title=f"{part}-") == []


async def test_what_is_looked_for_is_made_text_as_what_is_stored_is(where: Where, tools: Tools) -> None:
    """As a client may send it: it is escaped in JSON."""
    async with open_store(where) as store:
        session = await store.create(tools.agent(), meta={"k\ud800": "v\x00"})
        await session.describe(title="t\x00t")
        for query in ({"title": "\ud800"}, {"title": "t\x00"}, {"meta": {"k\ud800": "v\x00"}}):
            assert await listed(store, **query) == [session.id], query
        for query in ({"kind": "\ud800"}, {"parent": "\ud800"}, {"name": "\ud800"}):
            assert await listed(store, **query) == []
        assert await listed(store, after=2**70) == [session.id]
        for verb in (store.open, store.verify, store.export, store.salvage, store.cancel, store.delete):
            with pytest.raises(NotFound):
                await verb("\ud800")
        with pytest.raises(NotPending):
            await store.decide(approve("\ud800.\x00"))


async def test_a_position_below_zero_is_a_wrong_call_and_no_damage(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        with pytest.raises(WrongCall, match="after"):
            store.watch(session.id, after=-1)


async def test_who_has_no_title_any_more_is_not_found_by_it(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.describe(title="first")
        await session.describe(title="second")
        assert await listed(store, title="first") == []
        assert await listed(store, title="second") == [session.id]
        await session.describe(title="")
        assert await listed(store, title="second") == []
        (info,) = await everything(store)
        assert info.title is None


async def test_a_row_says_what_the_session_says(where: Where, tools: Tools) -> None:
    clock = ManualClock()
    async with open_store(where, clock=clock) as store, Pool(3) as pool:
        session = await store.create(desk(tools, pool), meta={"a": "1", "b": "2"})
        await session.describe(title="t", meta={"a": "3", "b": None, "c": "4"})
        await session.send("do help pay, pay 2")
        await session.settled_or_waiting()
        (info,) = [info async for info in store.list()]
        assert (info.thread, info.kind, info.name, info.parent) == (session.id, "session", "desk", None)
        assert info.header == session.header
        assert info.created == clock.now()
        assert (info.title, info.meta) == ("t", {"a": "3", "c": "4"})
        assert info.header.meta == {"a": "1", "b": "2"}
        assert (info.pending, info.unsettled) == (2, 1)
        (child,) = [info async for info in store.list(parent=session.id)]
        assert (child.parent, child.name, child.pending, child.unsettled) == (session.id, "helper", 1, 0)
        await session.decide(*(deny(request) for request in session.pending))
        await session.settled_or_waiting()
        assert [(info.pending, info.unsettled) async for info in store.list(children=True)] == [(0, 0), (0, 0)]
        assert await listed(store, pending=True, children=True) == []


async def test_children_are_listed_by_their_parent_and_never_among_the_roots(where: Where, tools: Tools) -> None:
    async with open_store(where) as store, Pool(3) as pool:
        session = await store.create(desk(tools, pool))
        await session.ask("do help help, help look")
        children = await listed(store, parent=session.id)
        assert set(children) == {receipt.child for receipt in session.receipts}
        grandchildren = [name for child in children for name in await listed(store, parent=child)]
        assert len(grandchildren) == 1
        assert await listed(store) == [session.id]
        assert set(await listed(store, children=True)) == {session.id, *children, *grandchildren}
        assert await listed(store, parent=grandchildren[0]) == []
        fork = await (await store.open(children[0])).fork()
        assert await listed(store) == [fork.id, session.id]


# Pages.


async def test_pages_by_cursor_give_each_thread_once(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        ids = [(await store.create(tools.agent(), meta={"odd": str(n % 2)})).id for n in range(11)]
        for limit in (1, 2, 3, 5, 11, 12, 200):
            for query, wanted in (({}, ids[::-1]), ({"meta": {"odd": "0"}}, ids[::2][::-1])):
                seen: list[str] = []
                after = None
                while page := [info async for info in store.list(after=after, limit=limit, **query)]:
                    assert len(page) <= limit
                    seen += [info.thread for info in page]
                    after = page[-1].cursor
                assert seen == wanted
        assert await listed(store, limit=0) == []
        with pytest.raises(WrongCall):
            await listed(store, limit=-1)


async def test_pages_go_on_while_threads_come_and_go(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        ids = [(await one.create(tools.agent())).id for _ in range(9)]
        page = [info async for info in one.list(limit=3)]
        assert [info.thread for info in page] == ids[:5:-1]
        await two.delete(page[-1].thread)  # what the cursor came from
        await two.delete(ids[4])  # what would be on the next page
        await two.create(tools.agent())  # newer than all: on no later page
        rest = [info async for info in one.list(after=page[-1].cursor)]
        assert [info.thread for info in rest] == [ids[5], ids[3], ids[2], ids[1], ids[0]]


async def test_more_than_a_page_is_read_with_a_limit_too(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        ids = [(await store.create(tools.agent())).id for _ in range(205)]
        for limit in (99, 100, 101, 200, 205, 300):
            assert await listed(store, limit=limit) == ids[::-1][:limit]


async def test_what_changes_while_it_is_listed_is_shown_as_of_its_page(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        sessions = [await store.create(tools.agent()) for _ in range(3)]
        seen: list[str] = []
        async for info in store.list(limit=3):
            seen.append(info.thread)
            for session in sessions:
                await session.describe(title=str(len(seen)))
        assert seen == [session.id for session in sessions[::-1]]


async def test_a_listing_ends_with_its_store(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        for _ in range(2):
            await store.create(tools.agent())
        listing = store.list()
        await anext(listing)
    with pytest.raises(Closed):
        await anext(listing)


async def test_a_damaged_header_does_not_hide_the_other_threads(tools: Tools) -> None:
    data = Memory()
    async with open_store(data) as store:
        ids = [(await store.create(tools.agent())).id for _ in range(3)]
        damaged(data, ids[1], [b"nonsense"])
        assert await listed(store) == [ids[2], ids[0]]
        assert [thread for thread, _ in store.reports] == [ids[1]]


# Deleting.


async def test_children_stay_unless_they_are_to_go(where: Where, tools: Tools) -> None:
    async with open_store(where) as store, Pool(3) as pool:
        for children in (False, True):
            session = await store.create(desk(tools, pool))
            other = await store.create(desk(tools, pool))
            for each in (session, other):
                await each.ask("do help help, help look")
            await store.delete(session.id, children=children)
            left = [info async for info in store.list(children=True) if info.header.root == session.id]
            assert len(left) == (0 if children else 3)
            assert len([info for info in await everything(store) if info.header.root == other.id]) == 4
            await store.delete(other.id, children=True)
            for info in left:
                await store.delete(info.thread)
        assert await everything(store) == []


async def test_a_thread_with_open_delegations_goes_only_with_its_children(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two, Pool(3) as pool:
        session = await one.create(desk(tools, pool))
        await session.send("do help help, help pay")
        await session.settled_or_waiting()
        child = session.receipts[1].child
        for store in (one, two):
            with pytest.raises(Busy):
                await store.delete(session.id)
        assert len(await everything(one)) == 4
        await two.delete(session.id, children=True)
        assert await everything(one) == []
        for thread in (session.id, child):
            with pytest.raises(NotFound):
                await one.open(thread)
        with pytest.raises(NotFound):
            await session.refresh()


async def test_a_tree_at_work_is_not_deleted(where: Where, tools: Tools) -> None:
    go = asyncio.Event()
    async with open_store(where) as one, open_store(where) as two, Pool(3) as pool:
        helper = Agent(Script(hold(go, say("helped"))), name="helper")
        session = await one.create(tools.agent(tools=[pool.wrap("help", helper, description="Helps.")]))
        turn = await session.send("do help look")
        async for entry in one.watch(session.id):
            if entry.kind == "receipt":
                break
        while not await listed(one, parent=session.id):
            await settle()
        for store in (one, two):
            for children in (False, True):
                with pytest.raises(Busy):
                    await store.delete(session.id, children=children)
        go.set()
        assert (await turn.wait()).text == "read helped"
        await two.delete(session.id, children=True)
        assert await everything(one) == []


async def test_everybody_who_holds_what_was_deleted_is_told(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(tools.agent())
        turn = await session.send("do pay 1")
        await turn.wait()
        there = await two.open(session.id, tools.agent())
        request = session.pending[0]
        waits = [asyncio.ensure_future(work) for work in (turn.next(), anext(one.watch(session.id, after=99)))]
        far = asyncio.ensure_future(anext(two.watch(session.id, after=99)))
        await settle()
        await one.delete(session.id)
        for wait in (*waits, far):
            with pytest.raises(NotFound):
                await wait
        for handle in (session, there):
            verbs: list[Callable[[], Awaitable[object]]] = [
                handle.refresh,
                handle.resume,
                handle.cancel,
                handle.clear_queue,
                handle.fork,
                lambda handle=handle: handle.send("x"),  # type: ignore[misc]
                lambda handle=handle: handle.send("x", policy="reject"),  # type: ignore[misc]
                lambda handle=handle: handle.decide(approve(request)),  # type: ignore[misc]
                lambda handle=handle: handle.branch(None),  # type: ignore[misc]
                lambda handle=handle: handle.note("n", "t"),  # type: ignore[misc]
                lambda handle=handle: handle.describe(title="t"),  # type: ignore[misc]
            ]
            for verb in verbs:
                with pytest.raises(NotFound):
                    await verb()
        for store in (one, two):
            for work in (store.verify(session.id), store.export(session.id), store.salvage(session.id)):
                with pytest.raises(NotFound):
                    await work
            with pytest.raises(NotFound):
                await store.cancel(session.id)
        assert await everything(two) == []
        assert tools.ran == []


async def test_a_thread_that_was_deleted_and_made_again_is_a_new_one_to_everybody(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        old = await one.create(tools.agent(), key="k", meta={"n": "1"})
        await old.ask("one")
        there = await two.open(old.id, tools.agent())
        await one.delete(old.id)
        new = await one.create(tools.agent(), key="k", meta={"n": "2"})
        assert (new.id, new.meta, new.messages) == (old.id, {"n": "2"}, ())
        await new.ask("two")
        fresh = await two.open(new.id, tools.agent())  # the old handle is still held
        assert told(fresh.messages) == ["> two", "re two"]
        assert (await fresh.ask("three")).text == "re three"
        for handle in (old, there):
            with pytest.raises(NotFound):
                await handle.send("x")
        await new.refresh()
        assert told(new.messages)[-1] == "re three"


async def test_a_key_makes_a_session_again_after_another_store_has_deleted_it(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        old = await one.create(tools.agent(), key="k")
        await old.ask("one")
        await two.delete(old.id)
        new = await one.create(tools.agent(), key="k")  # nobody has told this store of it, and `old` is held
        assert new.messages == ()
        assert (await new.ask("two")).text == "re two"
        assert [info.thread for info in await everything(two)] == [old.id]
        with pytest.raises(NotFound):
            await old.send("x")


async def test_what_another_store_writes_just_before_a_delete_is_seen_first(tools: Tools) -> None:
    """A delete names the head that it knows; where that has moved, it looks again."""
    data, clock = Memory(), ManualClock()

    class Late(MemoryStore):
        """Somebody writes right before the first delete."""

        before: Callable[[], Awaitable[object]] | None = None

        async def delete(self, thread: str, expect: Head) -> None:
            before, self.before = self.before, None
            if before is not None:
                await before()
            await super().delete(thread, expect)

    late = Late(data, owner="late", ttl=30.0, clock=clock, survives=True)
    one = OpenStore(late, clock=clock, ids=CountingIds("a"))
    async with one, open_store(data, clock=clock, ids=CountingIds("b")) as two:
        session = await two.create(tools.agent())
        late.before = lambda: session.note("n", "t")
        await one.delete(session.id)
        assert await everything(two) == []
        go = asyncio.Event()
        busy = await two.create(tools.agent(Script(hold(go, say("done")))))
        late.before = lambda: busy.send("one")
        with pytest.raises(Busy):
            await one.delete(busy.id)
        go.set()
        await busy.settled_or_waiting()


# Creating under a key.


async def test_a_key_makes_one_session_however_many_ask_at_once(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        stores = (one, one, two, two) * 3
        sessions = await asyncio.gather(
            *(store.create(tools.agent(), key="k", meta={"n": str(n)}) for n, store in enumerate(stores))
        )
        assert len({session.id for session in sessions}) == 1
        assert len({session.meta["n"] for session in sessions}) == 1
        assert len(await everything(one)) == 1
        await asyncio.gather(*(session.send("one", key="m") for session in sessions))
        for session in sessions:
            await session.refresh()
            await session.settled_or_waiting()
        assert {tuple(told(session.messages)) for session in sessions} == {("> one", "re one")}
        other = await one.create(tools.agent(), key="k2")
        assert other.id != sessions[0].id


async def test_a_key_finds_its_session_as_it_is_after_a_restart_and_with_another_agent(
    where: Where, tools: Tools
) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent(), key="k \x00 ü", meta={"a": "1"}, expires=60.0)
        await session.ask("do look 1")
        await session.describe(meta={"a": "2"})
    other = Agent(talker(), name="other", instructions="Be brief.")
    async with open_store(where) as store:
        again = await store.create(other, key="k \x00 ü", meta={"b": "1"}, expires=None)
        assert again.id == session.id
        assert (again.header.name, again.header.expires, again.meta) == ("desk", 60.0, {"a": "2"})
        assert again.agent is other
        assert (await again.ask("two")).text == "re two"
        assert (await store.create(other, key="k \ufffd ü")).id == session.id  # as text is kept


async def test_a_key_that_finds_its_session_writes_nothing(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent(), key="k")
        await session.ask("do pay 1")
        head = session.head
        for _ in range(3):
            again = await store.create(tools.agent(), key="k")
            assert (again.head, again.pending) == (head, session.pending)


async def test_a_keyed_session_that_others_have_written_is_up_to_date_when_it_is_found(
    where: Where, tools: Tools
) -> None:
    async with open_store(where) as one, open_store(where) as two:
        here = await one.create(tools.agent(), key="k")
        there = await two.create(tools.agent(), key="k")
        await there.ask("one")
        again = await one.create(tools.agent(), key="k")
        assert told(again.messages) == ["> one", "re one"]
        assert here.messages == again.messages


async def test_a_key_does_not_meet_the_id_of_an_unkeyed_session(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        keyed = await store.create(tools.agent(), key=session.id)
        assert keyed.id != session.id
        assert len(await everything(store)) == 2


# Observing.


class Seen:
    """What an observer was told."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Entry]] = []

    def __call__(self, thread: str, entry: Entry) -> None:
        self.entries.append((thread, entry))

    def of(self, thread: str) -> list[Entry]:
        return [entry for name, entry in self.entries if name == thread]


async def stored(store: OpenStore, thread: str) -> list[Entry]:
    head = (await store.open(thread)).head
    return [entry async for entry in store.watch(thread, until=head)]


async def test_an_observer_sees_each_entry_of_every_thread_once(where: Where, tools: Tools) -> None:
    seen, elsewhere = Seen(), Seen()
    async with open_store(where) as store, open_store(where) as other, Pool(3) as pool:
        store.observe(seen)
        other.observe(elsewhere)
        session = await store.create(desk(tools, pool), key="k")
        await store.create(desk(tools, pool), key="k")
        await session.send("do help pay, pay 1")
        await session.settled_or_waiting()
        while session.pending:
            await session.decide(approve(session.pending[0]))
            await session.settled_or_waiting()
        await session.branch(place(session, 1))
        fork = await session.fork()
        await fork.describe(title="t")
        await session.cancel()
        saved = await store.salvage(session.id)
        text = await store.export(fork.id)
        await store.delete(fork.id)
        before = len(seen.of(fork.id))
        assert before == len(text.splitlines())
        for _ in range(2):
            await store.restore(text)
        assert len(seen.of(fork.id)) == 2 * before
        for info in await everything(store):
            told_ = seen.of(info.thread)[-before:] if info.thread == fork.id else seen.of(info.thread)
            assert told_ == await stored(store, info.thread), info.header
        assert {thread for thread, _ in seen.entries} == {info.thread for info in await everything(store)}
        assert saved.thread in {thread for thread, _ in seen.entries}
        assert elsewhere.entries == []


async def test_two_stores_each_observe_what_they_have_committed(where: Where, tools: Tools) -> None:
    mine, theirs = Seen(), Seen()
    async with open_store(where) as one, open_store(where) as two:
        one.observe(mine)
        two.observe(theirs)
        session = await one.create(tools.agent())
        there = await two.open(session.id, tools.agent())
        await session.ask("one")
        await there.note("n", "t")
        await there.ask("two")
        await session.note("n", "t")
        await there.refresh()
        both = sorted((entry.position, entry.id) for _, entry in (*mine.entries, *theirs.entries))
        assert both == [(entry.position, entry.id) for entry in await stored(one, session.id)]
        assert mine.entries
        assert theirs.entries


async def test_an_observer_that_writes_is_told_of_that_too(where: Where, tools: Tools) -> None:
    seen = Seen()
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        work: list[asyncio.Task[str]] = []

        def write(thread: str, entry: Entry) -> None:
            if not isinstance(entry.body, Note):
                work.append(asyncio.ensure_future(session.note("of", entry.id)))

        store.observe(seen)
        store.observe(write)
        await session.ask("one")
        await asyncio.gather(*work)
        assert len(work) == 4
        assert seen.of(session.id) == (await stored(store, session.id))[1:]
        assert told(session.messages) == ["> one", "re one"]


async def test_the_events_of_a_turn_elsewhere_end_as_it_does_whenever_they_are_read(tools: Tools) -> None:
    """Also where the store has more than this process has folded: nothing is told of what it does not know yet."""
    data, clock = Memory(), ManualClock()

    class Behind(MemoryStore):
        """More is written right before the first load."""

        before: Callable[[], Awaitable[object]] | None = None

        async def load(self, thread: str, after: int = 0) -> Loaded:
            before, self.before = self.before, None
            if before is not None:
                await before()
            return await super().load(thread, after)

    behind = Behind(data, owner="behind", ttl=30.0, clock=clock, survives=True)
    one = OpenStore(behind, clock=clock, ids=CountingIds("a"))
    async with one, open_store(data, clock=clock, ids=CountingIds("b")) as two:
        go = asyncio.Event()
        session = await two.create(tools.agent(Script(hold(go, say("done")))))
        turn = await session.send("one", key="k")
        there = await one.open(session.id)
        followed = await there.send("one", key="k")

        async def ends() -> None:
            go.set()
            await turn.wait()

        behind.before = ends
        reading = asyncio.ensure_future(_last_kinds(followed.events()))
        while not reading.done():
            await clock.advance(0.3)
        assert reading.result() == ["run_finished", "turn_ended"]


async def _last_kinds(events: Any) -> list[str]:
    return [event.kind async for event in events][-2:]


async def test_a_child_that_is_waited_for_goes_only_with_its_parent(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two, Pool(3) as pool:
        session = await one.create(desk(tools, pool))
        await session.send("do help pay")
        await session.settled_or_waiting()
        (receipt,) = session.receipts
        for store in (one, two):
            with pytest.raises(Busy, match="its parent waits for"):
                await store.delete(receipt.child, children=True)
        with pytest.raises(WrongCall, match="fork it"):
            await (await two.open(receipt.child)).branch(None)
        await session.cancel()
        await session.settled_or_waiting()
        await two.delete(receipt.child, children=True)
        assert [info.thread for info in await everything(one)] == [session.id]


async def test_a_thread_that_cannot_be_read_can_be_deleted(tools: Tools) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(tools.agent())
        await session.ask("hello")
        lines = list(lines_of(data, session.id))
        damaged(data, session.id, [*lines[:2], b"nonsense", *lines[3:]])
    async with open_store(data) as store:
        with pytest.raises(Corrupt):
            await store.open(session.id)
        await store.delete(session.id)
        with pytest.raises(NotFound):
            await store.open(session.id)
        assert await everything(store) == []


def test_a_durability_that_there_is_none_of_is_refused_and_not_taken_for_a_lesser_one() -> None:
    for wrong in ("OFF", "EXTRA", "full", "FULL; PRAGMA synchronous = OFF", 2, None):
        with pytest.raises(WrongCall, match="synchronous"):
            open_store("sqlite:///never.db", synchronous=wrong)  # type: ignore[arg-type]


async def test_a_store_that_was_left_and_entered_again_is_not_taken_for_dead(where: Where, tools: Tools) -> None:
    release = asyncio.Event()
    agent = Agent(Script(hold(release, say("done"))))
    again = open_store(where)
    async with again:
        pass
    async with again as store, open_store(where) as other:
        turn = await (await store.create(agent)).send("go")
        (running,) = await listed(store)
        assert await (await other.open(running, agent)).resume() is None
        release.set()
        assert (await turn.wait()).usage.unknown == 0
