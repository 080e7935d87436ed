"""Verify, export, restore and salvage: what is damaged is found and named, and what is not damaged is kept."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from tests.crash.test_crash_points import SCENARIOS
from tests.thread.talk import Tools, damaged, journal, lines_of, place, talker, told
from tests.thread.test_view import shown, valid_for_a_provider
from weft import Agent, tool
from weft._repair import repair
from weft.errors import Conflict, Corrupt, NewerFormat, NotFound, StoreFailed, WeftError
from weft.pool import Pool
from weft.testing import ManualClock, Script, call, hold, say
from weft.testing.clock import settle
from weft.testing.crash import Kit
from weft.thread import Entry, Memory, OpenStore, Session, approve, deny, open_store
from weft.thread._codec import chain, decode_lines, digest_line, encode_body
from weft.thread._live import SLICE
from weft.thread._turns import Plan
from weft.thread.entries import Compaction, Note
from weft.thread.memory import MemoryStore
from weft.thread.store import Head


@pytest.fixture
def tools() -> Tools:
    return Tools()


class Data(Protocol):
    """Where threads are kept, and how their lines are damaged while no store is open."""

    @property
    def where(self) -> Memory | str: ...

    def lines(self, thread: str) -> list[bytes]: ...

    def put(self, thread: str, lines: Sequence[bytes]) -> None:
        """These lines, with the head as it is."""
        ...

    def head(self, thread: str, head: Head) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.where = Memory()

    def lines(self, thread: str) -> list[bytes]:
        return list(lines_of(self.where, thread))

    def put(self, thread: str, lines: Sequence[bytes]) -> None:
        damaged(self.where, thread, lines)

    def head(self, thread: str, head: Head) -> None:
        self.where._threads[thread].head = head


class InFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = f"sqlite:///{path}"

    def do(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def lines(self, thread: str) -> list[bytes]:
        rows = self.do("SELECT CAST(line AS BLOB) FROM lines JOIN threads USING (tid) WHERE id = ? ORDER BY n", thread)
        return [bytes(row[0]) for row in rows]

    def put(self, thread: str, lines: Sequence[bytes]) -> None:
        tid = self.do("SELECT tid FROM threads WHERE id = ?", thread)[0][0]
        self.do("DELETE FROM lines WHERE tid = ?", tid)
        for n, line in enumerate(lines):
            self.do("INSERT INTO lines VALUES (?, ?, CAST(? AS TEXT))", tid, n, line)

    def head(self, thread: str, head: Head) -> None:
        self.do("UPDATE threads SET count = ?, digest = ? WHERE id = ?", head.count, head.digest, thread)


@pytest.fixture(params=["memory", "sqlite"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    return InMemory() if request.param == "memory" else InFile(tmp_path / "weft.db")


async def small(data: Data, tools: Tools) -> str:
    """A session of one turn and a note: six lines."""
    async with open_store(data.where) as store:
        session = await store.create(tools.agent(), meta={"of": "small"})
        await session.ask("one")
        await session.note("n", "t")
        return session.id


async def found(data: Data, thread: str) -> list[int]:
    """The positions of the faults that there are."""
    async with open_store(data.where) as store:
        verified = await store.verify(thread)
        assert verified.thread == thread
        assert verified.sound is (not verified.faults)
        assert all(fault.why for fault in verified.faults)
        return [fault.position for fault in verified.faults]


def changed(line: bytes, place: int, mask: int) -> bytes:
    return line[:place] + bytes([line[place] ^ mask]) + line[place + 1 :]


# Verify.


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_journals_of_every_scenario_are_sound(scenario: Callable[[Kit], Awaitable[None]]) -> None:
    kit = Kit()
    await kit.run(scenario)
    async with open_store(kit.data) as store:
        for thread in kit.views():
            verified = await store.verify(thread)
            assert verified.sound, verified
            assert verified.count == len(lines_of(kit.data, thread))


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
async def test_a_changed_byte_is_found_wherever_it_is(tools: Tools, mask: int) -> None:
    data = InMemory()
    thread = await small(data, tools)
    lines = data.lines(thread)
    async with open_store(data.where) as store:
        for position, line in enumerate(lines):
            for place_ in range(len(line)):
                data.put(thread, [*lines[:position], changed(line, place_, mask), *lines[position + 1 :]])
                faults = (await store.verify(thread)).faults
                assert faults, (position, place_)
                assert {fault.position for fault in faults} <= {position, position + 1}, (position, place_)
        data.put(thread, lines)
        assert (await store.verify(thread)).sound


async def test_damage_of_every_kind_is_found_and_its_position_named(data: Data, tools: Tools) -> None:
    thread = await small(data, tools)
    lines = data.lines(thread)
    assert len(lines) == 6
    assert await found(data, thread) == []
    head = Head(len(lines), digest_line(lines[-1]))
    for n in range(len(lines)):
        data.put(thread, [*lines[:n], lines[n].replace(b'"at":1', b'"at":2'), *lines[n + 1 :]])
        assert await found(data, thread) == [min(n + 1, 5)]
        for nonsense in (b"", b"nonsense", b"\xff\xfe", lines[n][:-1], b"{}", b"[1]", b"null"):
            data.put(thread, [*lines[:n], nonsense, *lines[n + 1 :]])
            assert n in await found(data, thread)
        data.put(thread, [*lines[:n], *lines[n + 1 :]])
        assert min(await found(data, thread)) == n
    for n in range(len(lines) - 1):
        data.put(thread, [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]])
        assert {n, n + 1} <= set(await found(data, thread)) <= {n, n + 1, n + 2}
    data.put(thread, lines)
    for wrong in (Head(6, "0" * 32), Head(5, digest_line(lines[4])), Head(7, digest_line(lines[-1]))):
        data.head(thread, wrong)
        assert await found(data, thread), wrong
    data.head(thread, head)
    assert await found(data, thread) == []


async def test_a_line_too_many_is_found(data: Data, tools: Tools) -> None:
    """Also one that follows from the last as it should: nobody has acknowledged it."""
    thread = await small(data, tools)
    lines = data.lines(thread)
    entry = decode_lines(lines, thread, 0)[-1]
    more = Entry(position=6, id="more", parent=None, time=entry.time, body=Note(name="n", text="more"))
    fitting = chain([more], [encode_body(more.body)], Head(6, digest_line(lines[-1])))[0][0]
    for extra in (fitting, lines[-1], b"nonsense"):
        data.put(thread, [*lines, extra])
        assert await found(data, thread) == [6]
    data.put(thread, [*lines, fitting, fitting])
    assert await found(data, thread) == [6, 7]


async def test_a_line_is_missing_wherever_it_was(tmp_path: Path, tools: Tools) -> None:
    data = InFile(tmp_path / "weft.db")
    thread = await small(data, tools)
    lines = data.lines(thread)
    for n in range(len(lines)):
        data.do("DELETE FROM lines WHERE n = ?", n)
        assert await found(data, thread) == [n]
        async with open_store(data.where) as store:
            with pytest.raises(Corrupt):
                await store.open(thread)
            with pytest.raises(Corrupt):
                await store.export(thread)
        data.put(thread, lines)


async def test_a_long_thread_with_one_line_too_many_is_found_wherever_it_ends(tmp_path: Path, tools: Tools) -> None:
    """A store may read a thread in parts; what stands right behind the last part is seen too."""
    data = InFile(tmp_path / "weft.db")
    async with open_store(data.where) as store:
        session = await store.create(tools.agent())
        await asyncio.gather(*(session.note("n", str(n)) for n in range(255)))
        assert session.head.count == 256
    data.do("INSERT INTO lines SELECT tid, 256, line FROM lines WHERE n = 255")
    assert await found(data, session.id) == [256]


async def test_another_threads_journal_under_its_id_is_found(data: Data, tools: Tools) -> None:
    thread, other = await small(data, tools), await small(data, tools)
    lines = data.lines(other)
    data.put(thread, lines)
    data.head(thread, Head(len(lines), digest_line(lines[-1])))
    assert await found(data, thread) == [0]


async def test_a_line_of_a_newer_weft_is_named(data: Data, tools: Tools) -> None:
    thread = await small(data, tools)
    lines = data.lines(thread)
    lines[-1] = lines[-1].replace(b'"v":1', b'"v":99')
    data.put(thread, lines)
    data.head(thread, Head(len(lines), digest_line(lines[-1])))
    assert await found(data, thread) == [5]
    async with open_store(data.where) as store:
        with pytest.raises(NewerFormat):
            await store.open(thread)


class Growing(MemoryStore):
    """A line is written by somebody else right after each scan, and right before it."""

    async def scan(self, thread: str) -> dict[int, bytes]:
        await self._grow(thread)
        found = await super().scan(thread)
        await self._grow(thread)
        return found

    async def _grow(self, thread: str) -> None:
        head = self._find(thread).head
        entry = Entry(position=head.count, id=f"n{head.count}", parent=None, time=0.0, body=Note(name="n", text="t"))
        lines, _ = chain([entry], [encode_body(entry.body)], head)
        await self.append(thread, lines, head, None, None)


async def test_what_is_written_meanwhile_is_no_fault_and_not_lost(tools: Tools) -> None:
    data = InMemory()
    thread = await small(data, tools)
    async with open_store(Growing(data.where, owner="me", ttl=30.0, clock=ManualClock(), survives=True)) as store:
        verified = await store.verify(thread)
        assert verified.sound
        assert verified.count == 6
        assert (await store.salvage(thread)).lost == ()
        data.put(thread, [*data.lines(thread)[:4], b"nonsense", *data.lines(thread)[5:]])
        assert [fault.position for fault in (await store.verify(thread)).faults] == [4, 5]
        assert (await store.salvage(thread)).lost == (4,)


async def test_what_is_not_there_is_not_found(data: Data) -> None:
    async with open_store(data.where) as store:
        for verb in (store.verify("no"), store.export("no"), store.export("no", children=True), store.salvage("no")):
            with pytest.raises(NotFound):
                await verb


async def test_whatever_byte_is_changed_what_reads_it_says_so_in_a_typed_error(tools: Tools) -> None:
    data = InMemory()
    thread = await small(data, tools)
    lines = data.lines(thread)
    for position, line in enumerate(lines):
        for place_ in range(0, len(line), 7):
            data.put(thread, [*lines[:position], changed(line, place_, 0x80), *lines[position + 1 :]])
            async with open_store(data.where) as store:
                for verb in (store.open(thread), store.export(thread)):
                    with pytest.raises(Corrupt) as caught:
                        await verb
                    assert caught.value.position == position


async def test_a_byte_that_is_no_text_in_a_file_is_a_typed_error(tmp_path: Path, tools: Tools) -> None:
    data = InFile(tmp_path / "weft.db")
    thread = await small(data, tools)
    lines = data.lines(thread)
    for position in range(len(lines)):
        for bad in (b"\xff", "ü".encode()):
            data.put(thread, [*lines[:position], lines[position][:-1] + bad + b"}", *lines[position + 1 :]])
            async with open_store(data.where) as store:
                with pytest.raises((Corrupt, StoreFailed)):
                    await store.open(thread)
                with pytest.raises((Corrupt, StoreFailed)):
                    await store.export(thread)
                assert position in [fault.position for fault in (await store.verify(thread)).faults]


async def test_a_line_that_follows_nothing_that_is_there_cuts_no_conversation_in_silence(
    data: Data, tools: Tools
) -> None:
    async with open_store(data.where) as store:
        session = await store.create(tools.agent())
        for prompt in ("one", "two"):
            await session.ask(prompt)
        await session.branch(session.path[1].id)
        path = [entry.id.encode() for entry in session.path]
    lines = data.lines(session.id)
    follows = [
        n for n, line in enumerate(lines) if b'"parent":"%s"' % path[1] in line or b'"to":"%s"' % path[1] in line
    ]
    assert len(follows) == 2
    for position in follows:
        head, _, tail = lines[position].rpartition(path[1])
        data.put(session.id, [*lines[:position], head + changed(path[1], 3, 0x01) + tail, *lines[position + 1 :]])
        async with open_store(data.where) as store:
            with pytest.raises(Corrupt) as caught:
                await store.open(session.id)
            assert caught.value.position == position
            assert (await store.salvage(session.id)).lost == (position,)


@pytest.mark.parametrize("bad", [b"", b"nonsense", b"\xff\xfe", b"changed", None])
async def test_a_damaged_header_hides_no_other_thread(data: Data, tools: Tools, bad: bytes | None) -> None:
    threads = [await small(data, tools) for _ in range(3)]
    header, *lines = data.lines(threads[1])
    bad = changed(header, 60, 0x80) if bad == b"changed" else bad
    data.put(threads[1], lines if bad is None else [bad, *lines])
    async with open_store(data.where) as store:
        assert [info.thread async for info in store.list()] == [threads[2], threads[0]]
        ((thread, error),) = store.reports
        assert thread == threads[1]
        assert isinstance(error, Corrupt)
        assert error.position == 0


async def test_who_watches_on_behind_damage_is_told_of_the_same_line_again(tools: Tools) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(tools.agent())
        for _ in range(SLICE):
            await session.note("n", "t")
        lines = list(lines_of(data, session.id))
        damaged(data, session.id, [*lines[:3], b"nonsense", *lines[4:]])
        watch = store.watch(session.id)
        for _ in range(2):
            with pytest.raises(Corrupt) as found:
                await anext(watch)
            assert found.value.position == 3


@pytest.mark.parametrize("damage", ["meta = '{bad'", "meta = '5'", "title = CAST(x'ff' AS TEXT)"])
async def test_what_a_list_shows_is_made_of_the_journal_where_it_is_damaged(tmp_path: Path, damage: str) -> None:
    where = tmp_path / "weft.db"
    async with open_store(f"sqlite:///{where}") as store:
        for name in ("before", "damaged", "after"):
            session = await store.create(Agent(Script(), name=name), meta={"who": name})
            await session.describe(title=f"Title of {name}")
    with closing(sqlite3.connect(where)) as database, database:
        database.execute(f"UPDATE threads SET {damage} WHERE name = 'damaged'")
    async with open_store(f"sqlite:///{where}") as store:
        names = ["after", "damaged", "before"]
        found = [(info.name, info.title, info.meta) async for info in store.list()]
        assert found == [(name, f"Title of {name}", {"who": name}) for name in names]
        assert [info.name async for info in store.list(meta={"who": "after"})] == ["after"]
        assert [info.name async for info in store.list(title="TITLE OF AFTER")] == ["after"]
        session = await store.open([info.thread async for info in store.list()][1])
        await session.describe(title="Mended")
        assert [info.name async for info in store.list(title="mended")] == ["damaged"]
    assert store.reports == []


# Export and restore.


async def restored(text: str, where: Memory | str) -> tuple[str, ...]:
    async with open_store(where) as store:
        return await store.restore(text)


async def everything(store: OpenStore) -> list[str]:
    return [info.thread async for info in store.list(kind=None, children=True)]


async def test_what_is_exported_are_the_lines_as_they_are_stored(data: Data, tools: Tools) -> None:
    thread = await small(data, tools)
    async with open_store(data.where) as store:
        text = await store.export(thread)
    assert text.encode("ascii") == b"".join(line + b"\n" for line in data.lines(thread))
    assert from_json(text.splitlines()[0])["kind"] == "header"


async def test_a_thread_comes_back_as_it_was_under_its_id(data: Data, tools: Tools) -> None:
    async with open_store(Memory()) as store:
        session = await store.create(tools.agent(), meta={"a": "1"}, key="k")
        await session.describe(title="The title ü", meta={"b": "2"})
        await session.ask("do look 1, look 2", key="q")
        await session.branch(place(session, 0))
        await session.ask("on ü \ud800 \x1e \u2028 \x85")
        text = await store.export(session.id)
        view, usage, messages = shown(session._live.view), session.usage, session.messages
    assert await restored(text, data.where) == (session.id,)
    async with open_store(data.where) as store:
        again = await store.open(session.id, tools.agent())
        assert shown(again._live.view) == view
        assert (again.usage, again.messages) == (usage, messages)
        assert await store.export(session.id) == text
        assert (await store.verify(session.id)).sound
        (row,) = [info async for info in store.list(meta={"a": "1", "b": "2"}, title="TITLE Ü")]
        assert (row.thread, row.pending, row.unsettled) == (session.id, 0, 0)
        assert (await store.create(tools.agent(), key="k")).id == session.id
        known = await again.send("do look 1, look 2", key="q")
        assert (await known.wait()).text == "read look 1|look 2"
        await again.ask("and on")


async def test_what_is_restored_twice_is_there_once(data: Data, tools: Tools) -> None:
    async with open_store(Memory()) as store:
        session = await store.create(tools.agent())
        await session.ask("one")
        shorter = await store.export(session.id)
        await session.ask("two")
        text = await store.export(session.id)
    for _ in range(2):
        assert await restored(text, data.where) == (session.id,)
    async with open_store(data.where) as store:
        assert await everything(store) == [session.id]
        with pytest.raises(Conflict):
            await store.restore(shorter)
        again = await store.open(session.id, tools.agent())
        assert await store.restore(text) == (session.id,)  # also while a handle is on it
        await again.ask("three")
        with pytest.raises(Conflict):
            await store.restore(text)
        assert told(again.messages)[-1] == "re three"
        await store.delete(session.id)
        assert await store.restore(text) == (session.id,)
        assert told((await store.open(session.id)).messages) == ["> one", "re one", "> two", "re two"]


async def test_an_export_that_was_printed_is_restored_with_its_empty_lines(data: Data, tools: Tools) -> None:
    threads = [await small(data, tools) for _ in range(2)]
    async with open_store(data.where) as store:
        text = "\n".join([await store.export(thread) for thread in threads]) + "\r\n \n"
    assert await restored(text, Memory()) == tuple(threads)
    assert await restored("\n", Memory()) == ()


async def test_two_stores_that_restore_at_once_make_it_once(data: Data, tools: Tools) -> None:
    async with open_store(Memory()) as store:
        session = await store.create(tools.agent())
        await session.ask("one")
        text = await store.export(session.id)
    async with open_store(data.where) as one, open_store(data.where) as two:
        made = await asyncio.gather(one.restore(text), two.restore(text), one.restore(text))
        assert made == [(session.id,)] * 3
        assert await everything(one) == [session.id]
        assert (await one.verify(session.id)).sound


async def test_a_parked_session_is_decided_where_it_was_restored(data: Data, tools: Tools) -> None:
    async with open_store(Memory()) as store:
        session = await store.create(tools.agent())
        await session.ask("do look 1, pay 2")
        asked = session.pending
        text = await store.export(session.id)
    await restored(text, data.where)
    async with open_store(data.where) as store:
        again = await store.open(session.id, tools.agent())
        assert again.pending == asked
        assert [info.thread async for info in store.list(pending=True)] == [session.id]
        assert (await (await again.decide(approve(asked[0]))).wait()).text == "read look 1|pay 2"
        assert tools.ran == ["look 1", "pay 2"]
        assert await store.export(session.id) != text
        assert (await store.export(session.id)).startswith(text)


async def test_a_turn_under_way_is_recovered_where_it_was_restored(data: Data, tools: Tools) -> None:
    never = asyncio.Event()
    async with open_store(Memory(), grace=0) as store:
        session = await store.create(tools.agent(Script(hold(never, say("late")))))
        await session.send("one")
        text = await store.export(session.id)
    await restored(text, data.where)
    async with open_store(data.where) as store:
        turn = await store.recover(session.id, tools.agent())
        assert turn is not None
        assert (await turn.wait()).text == "re one"
        assert (await store.open(session.id)).usage.turns.unknown == 1


async def test_a_tree_is_exported_and_restored_with_its_children(data: Data, tools: Tools) -> None:
    def desk(pool: Pool) -> Agent[Any, Any]:
        helper = Agent(talker(), name="helper", tools=[tools.pay, tools.look])
        return tools.agent(tools=[pool.wrap("help", helper, description="Helps."), tools.look])

    async with open_store(Memory()) as store, Pool(3) as pool:
        session = await store.create(desk(pool))
        await session.send("do help pay, help look, look 1")
        await session.settled_or_waiting()
        asked = session.pending
        alone = await store.export(session.id)
        text = await store.export(session.id, children=True)
        threads = await everything(store)
    assert text.startswith(alone)
    made = await restored(text, data.where)
    assert made[0] == session.id
    assert sorted(made) == sorted(threads)
    async with open_store(data.where) as store, Pool(3) as pool:
        again = await store.open(session.id, desk(pool))
        assert again.pending == asked
        await again.decide(approve(asked[0]))
        await again.settled_or_waiting()
        assert told(again.messages)[-1] == "read read pay 7|read look 7|look 1"
        assert sorted(tools.ran) == ["look 1", "look 7", "pay 7"]
        assert len(await everything(store)) == 3


@pytest.mark.parametrize("act", ["approve", "resume"])
async def test_a_child_that_was_left_out_is_not_begun_again(act: str) -> None:
    """What it has done is not known here: its calls ran once already."""
    charged = 0

    @tool
    async def charge() -> str:
        nonlocal charged
        charged += 1
        return "charged"

    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    def agent(pool: Pool) -> Agent[None]:
        child = Agent(Script(call("charge"), call("pay"), say("child is done")), name="child", tools=[charge, pay])
        wrapped = pool.wrap("shop", child, description="Shop.")
        return Agent(Script(call("shop", prompt="buy"), say("so it was")), tools=[wrapped])

    async with open_store(Memory()) as store, Pool(2) as pool:
        session = await store.create(agent(pool))
        await session.ask("go")
        text = await store.export(session.id)
    elsewhere = Memory()
    await restored(text, elsewhere)
    async with open_store(elsewhere) as store, Pool(2) as pool:
        session = await store.open(session.id, agent(pool))
        if act == "approve":
            await session.decide(approve(session.pending[0]))
        else:
            await session.resume()
        await settle()
        await session.settled_or_waiting()
        assert charged == 1
        assert [receipt.state for receipt in session.receipts] == ["failed"]
        assert session.pending == ()
        (result,) = session.messages[-2].results
        assert (result.code, "is gone" in result.content) == ("SUBAGENT_FAILED", True)
        assert session.messages[-1].text == "so it was"
        assert isinstance(store.reports[0][1], NotFound)


async def test_a_changed_text_is_refused_and_nothing_of_its_thread_is_written(tools: Tools) -> None:
    """But for the last line, which no other one vouches for: of that, what does not decode."""
    data = InMemory()
    thread = await small(data, tools)
    text = (await _exported(data, thread)).encode()
    last = text.rstrip(b"\n").rfind(b"\n") + 1
    target = Memory()
    async with open_store(target) as store:
        for place_ in range(last):
            for mask in (0x01, 0x20):
                wrong = changed(text, place_, mask).decode("ascii")
                if wrong.splitlines() == text.decode().splitlines():
                    continue  # another kind of line end
                with pytest.raises((Corrupt, NewerFormat)):
                    await store.restore(wrong)
                assert not target._threads, place_
        for wrong in (
            "nonsense",
            "{}\n",
            text.decode().replace("one", "o\ud800e"),
            text.decode() + "nonsense\n",
            text.decode()[:-3],
            "\n".join(text.decode().splitlines()[1:]),
            "\n".join(text.decode().splitlines()[:2] + text.decode().splitlines()[3:]),
        ):
            with pytest.raises(Corrupt):
                await store.restore(wrong)
            assert not target._threads, wrong
        assert await store.restore("") == ()
        assert await store.restore(text.decode().replace("\n", "\r\n")) == (thread,)
        assert await store.export(thread) == text.decode()


async def _exported(data: Data, thread: str) -> str:
    async with open_store(data.where) as store:
        return await store.export(thread)


async def test_a_text_of_two_threads_whose_second_is_damaged_makes_the_first(data: Data, tools: Tools) -> None:
    source = InMemory()
    first, second = await small(source, tools), await small(source, tools)
    one, two = await _exported(source, first), await _exported(source, second)
    async with open_store(data.where) as store:
        with pytest.raises(Corrupt) as caught:
            await store.restore(one + two.replace('"one"', '"two"'))
        assert caught.value.thread == second
        assert await everything(store) == [first]
        with pytest.raises(Corrupt):
            await store.restore(one + "\n".join(two.splitlines()[1:]))  # the second's header is lost
        assert await store.restore(one + two) == (first, second)


async def test_a_text_of_a_newer_weft_is_refused_and_not_written(data: Data, tools: Tools) -> None:
    source = InMemory()
    thread = await small(source, tools)
    lines = source.lines(thread)
    for n in range(len(lines)):
        made: list[bytes] = []
        for position, line in enumerate(lines):
            value = from_json(line)
            value["prev"] = digest_line(made[-1]) if made else ""
            if position == n:
                value["v"] = 2
            made.append(to_json(value))
        async with open_store(data.where) as store:
            with pytest.raises(NewerFormat):
                await store.restore(b"\n".join(made).decode())
            assert await everything(store) == []


# Salvage.


async def rich(store: OpenStore, tools: Tools, *, end: str) -> Session:
    """A conversation with all that one may have: a title, parallel calls, an approval, a branch."""
    session = await store.create(tools.agent(), meta={"a": "1"})
    await session.describe(title="title")
    await session.ask("one")
    await session.ask("do look 1, look 2, pay 3")
    await (await session.decide(approve(session.pending[0]))).wait()
    if end == "branched":
        await session.ask("left")
        await session.branch(place(session, 1))
        await session.ask("right")
        return session
    await session.ask("two")
    if end == "compacted":
        await compact(session, keep=place(session, 2), stub="(left out)", before=90, after=80)
        await session.ask("three")
        await compact(session, keep=place(session, -2), summary="They talked.", before=90, after=20)
        await session.ask("four")
    if end == "emptied":
        await session.branch(None)
    if end == "parked":
        await session.ask("do pay 4, look 5, pay 6, look 7")
    return session


async def compact(session: Session, **what: Any) -> None:
    """What a compaction writes."""
    body = Compaction(**what)
    await session._live.command(lambda _: Plan(bodies=(body,), lease="claim_once"))


async def salvaged_whole(store: OpenStore, tools: Tools, session: Session, lost: Sequence[int]) -> Session:
    """Salvage it, see that what is promised of the new session holds, and go on with it."""
    before = lines_of(store._node.store._data, session.id).copy()  # type: ignore[attr-defined]
    saved = await store.salvage(session.id)
    assert saved.lost == tuple(lost)
    assert lines_of(store._node.store._data, session.id) == before  # type: ignore[attr-defined]
    assert (await store.verify(saved.thread)).sound
    new = await store.open(saved.thread, tools.agent())
    assert new.header.origin is not None
    assert (new.header.origin.thread, new.header.origin.how) == (session.id, "salvage")
    assert saved.kept == new.header.origin.copied
    valid_for_a_provider(repair(new.messages))
    async with open_store(store._node.store._data) as other:  # type: ignore[attr-defined]
        assert shown((await other.open(saved.thread))._live.view) == shown(new._live.view)
    return new


async def goes_on(session: Session) -> None:
    """Decide what waits, then say something: the script's wire check sees every request."""
    while session.pending:
        await session.decide(*(deny(request) for request in session.pending))
        await session.settled_or_waiting()
    assert (await session.ask("and on")).text == "re and on"


def expected(entries: Sequence[Entry], session: Session, lost: int) -> list[str]:
    """The entries of the path that are left: all but the lost one, and what is nothing without it.

    That is the result of a lost call, and a compaction that keeps what comes after a lost message.
    """
    known = {entry.id: entry.position for entry in entries}
    left: list[str] = []
    asked: set[str] = set()
    for entry in session.path:
        if known[entry.id] == lost:
            continue
        body = entries[known[entry.id]].body
        if entry.result is not None and entry.result.call not in asked:
            continue
        if isinstance(body, Compaction) and known[body.keep] == lost:
            continue
        if entry.message is not None:
            asked = {call.id for call in entry.message.calls}
        left.append(entry.id)
    return left


@pytest.mark.parametrize("end", ["idle", "parked", "branched", "compacted"])
async def test_of_a_journal_with_any_one_line_lost_the_rest_is_saved(tools: Tools, end: str) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await rich(store, tools, end=end)
        entries = await journal(store, session)
        lines = lines_of(data, session.id).copy()
        pending = [request.args for request in session.pending]
        for n in range(1, len(lines)):
            damaged(data, session.id, [*lines[:n], b"nonsense", *lines[n + 1 :]])
            new = await salvaged_whole(store, tools, session, [n])
            assert new.header.origin is not None
            body = entries[n].kind
            copied = [entry.id for entry in new.path[: new.header.origin.copied]]
            assert copied == expected(entries, session, n), (n, body)
            assert new.meta == {"a": "1"}
            assert new.title == (None if body == "info" else "title")
            if body not in ("request", "message"):
                assert [request.args for request in new.pending] == pending, (n, body)
            await goes_on(new)


@pytest.mark.parametrize("end", ["idle", "parked", "branched", "emptied", "compacted"])
async def test_of_a_sound_journal_all_is_saved(tools: Tools, end: str) -> None:
    async with open_store(Memory()) as store:
        session = await rich(store, tools, end=end)
        new = await salvaged_whole(store, tools, session, [])
        assert new.path == session.path
        assert new.messages == session.messages
        assert [(request.call, request.args) for request in new.pending] == [
            (request.call, request.args) for request in session.pending
        ]
        assert {request.id for request in new.pending}.isdisjoint(request.id for request in session.pending)
        await goes_on(new)


async def test_a_changed_line_that_still_decodes_is_not_taken_for_what_was_said(tools: Tools) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await rich(store, tools, end="idle")
        lines = lines_of(data, session.id).copy()
        for n in range(1, len(lines)):
            other = lines[n].replace(b'"at":1', b'"at":2')
            damaged(data, session.id, [*lines[:n], other, *lines[n + 1 :]])
            await goes_on(await salvaged_whole(store, tools, session, [n]))


async def test_what_a_newer_weft_has_written_is_not_lost_and_not_left_out_of_a_copy(data: Data, tools: Tools) -> None:
    thread = await small(data, tools)
    lines = data.lines(thread)
    lines[-1] = lines[-1].replace(b'"v":1', b'"v":99')
    data.put(thread, lines)
    async with open_store(data.where) as store:
        assert (await store.salvage(thread)).lost == (5,)  # its head does not know it: it was changed
    data.head(thread, Head(len(lines), digest_line(lines[-1])))
    async with open_store(data.where) as store:
        with pytest.raises(NewerFormat):
            await store.salvage(thread)


async def test_a_lost_header_is_past_saving(data: Data, tools: Tools) -> None:
    thread = await small(data, tools)
    lines = data.lines(thread)
    data.put(thread, [b"nonsense", *lines[1:]])
    async with open_store(data.where) as store:
        with pytest.raises(Corrupt) as caught:
            await store.salvage(thread)
        assert caught.value.position == 0


async def test_a_wrong_head_costs_the_last_line_at_most(data: Data, tools: Tools) -> None:
    thread = await small(data, tools)
    data.head(thread, Head(6, "0" * 32))
    async with open_store(data.where) as store:
        saved = await store.salvage(thread)
        assert saved.lost == (5,)
        assert told((await store.open(saved.thread)).messages) == ["> one", "re one"]


async def test_lines_that_are_missing_from_a_file_are_lost_and_the_rest_is_saved(tmp_path: Path, tools: Tools) -> None:
    data = InFile(tmp_path / "weft.db")
    async with open_store(data.where) as store:
        session = await store.create(tools.agent(), meta={"a": "1"})
        for text in ("one", "two", "three"):
            await session.ask(text)
    lines = data.lines(session.id)
    for n in range(1, len(lines)):
        data.do("DELETE FROM lines WHERE n = ? AND tid = (SELECT tid FROM threads WHERE id = ?)", n, session.id)
        async with open_store(data.where) as store:
            saved = await store.salvage(session.id)
            assert saved.lost == (n,)
            new = await store.open(saved.thread, tools.agent())
            await goes_on(new)
            assert (await store.verify(saved.thread)).sound
        data.put(session.id, lines)


@settings(max_examples=60)
@given(
    st.sampled_from(["idle", "parked", "branched", "emptied", "compacted"]), st.sets(st.integers(1, 60), max_size=12)
)
async def test_whatever_is_lost_what_is_saved_is_valid_and_goes_on(end: str, places: set[int]) -> None:
    tools = Tools()
    data = Memory()
    async with open_store(data) as store:
        session = await rich(store, tools, end=end)
        lines = lines_of(data, session.id).copy()
        lost = {1 + n % (len(lines) - 1) for n in places}
        damaged(data, session.id, [b"nonsense" if n in lost else line for n, line in enumerate(lines)])
        assert {fault.position for fault in (await store.verify(session.id)).faults} >= lost
        await goes_on(await salvaged_whole(store, tools, session, sorted(lost)))


async def test_a_child_is_saved_as_a_session_of_its_own(tools: Tools) -> None:
    data = Memory()
    async with open_store(data) as store, Pool(2) as pool:
        helper = Agent(talker(), name="helper", tools=[tools.pay])
        session = await store.create(tools.agent(tools=[pool.wrap("help", helper, description="Helps.")]))
        await session.send("do help pay")
        await session.settled_or_waiting()
        saved = await store.salvage(session.receipts[0].child)
        new = await store.open(saved.thread, helper)
        assert (new.header.parent, new.header.root, new.header.path) == (None, new.id, ("helper",))
        assert [request.path for request in new.pending] == [("helper",)]
        await (await new.decide(approve(new.pending[0]))).wait()
        assert tools.ran == ["pay 7"]
        parent = await store.open((await store.salvage(session.id)).thread)
        assert (parent.pending, parent.receipts) == ((), ())


async def test_a_salvage_can_be_salvaged_and_forked(tools: Tools) -> None:
    async with open_store(Memory()) as store:
        session = await rich(store, tools, end="parked")
        new = await salvaged_whole(store, tools, session, [])
        await goes_on(await salvaged_whole(store, tools, new, []))
        fork = await new.fork()
        assert len(fork.pending) == len(session.pending)
        await goes_on(fork)


# A file with a damaged page.


async def test_a_page_that_was_overwritten_costs_its_lines_and_no_more(tmp_path: Path, tools: Tools) -> None:
    data = InFile(tmp_path / "weft.db")
    async with open_store(data.where) as store:
        session = await store.create(tools.agent())
        for n in range(12):
            await session.ask(f"{n} {'x' * 700}")
    data.do("PRAGMA wal_checkpoint(TRUNCATE)")
    (size,), *_ = data.do("PRAGMA page_size")
    whole = data.path.read_bytes()
    saved_some = 0
    for page in range(1, len(whole) // size):
        _fresh(data.path, whole[: page * size] + b"\xa5" * size + whole[(page + 1) * size :])
        try:
            async with open_store(data.where) as store:
                faults = (await store.verify(session.id)).faults
                if not faults:
                    continue
                saved = await store.salvage(session.id)
                found_at = {fault.position for fault in faults}
                assert all(found_at & {position, position + 1} for position in saved.lost)
                new = await store.open(saved.thread, tools.agent())
                await goes_on(new)
                saved_some += saved.kept > 4
        except WeftError:
            continue  # the page of the schema, of an index, of the table of threads, of the header
    assert saved_some


def _fresh(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for beside in (f"{path}-wal", f"{path}-shm"):
        Path(beside).unlink(missing_ok=True)
