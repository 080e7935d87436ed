"""Branching and forking: what the model reads next, what is asked again, and what stays behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thread.talk import Tools, journal, lines_of, place, request_of, talker, told, with_bodies
from tests.thread.test_view import shown, valid_for_a_provider
from weft import Agent, Busy, Conflict, Context, Limits, ModelError, Usage, tool
from weft._repair import repair
from weft.errors import NotFound, RunFailed, WrongCall
from weft.events import Parked
from weft.model import ModelRequest
from weft.pool import Pool
from weft.testing import ManualClock, Script, call, calls, hold, reply, say
from weft.testing.script import Answer
from weft.thread import Memory, OpenStore, Session, approve, deny, open_store, resolve
from weft.thread._codec import decode_lines
from weft.thread._turns import Plan
from weft.thread._view import View, evolve, fold
from weft.thread.entries import Compaction, Header

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


async def stored_view(store: OpenStore, session: Session) -> View:
    """The fold of what is stored, and of any split of it."""
    loaded = await store._node.store.load(session.id)
    header, *entries = decode_lines(loaded.lines, session.id, 0)
    assert isinstance(header.body, Header)
    whole = fold(header.body, entries)
    for cut in range(len(entries)):
        view = fold(header.body, entries[:cut])
        for entry in entries[cut:]:
            evolve(view, entry)
        assert shown(view) == shown(whole)
    return whole


async def same_after_reopening(where: Where, store: OpenStore, session: Session) -> None:
    """The live view, the fold of any split of the journal, what another store reads, and the index all agree."""
    await session.refresh()
    live = session._live.view
    assert shown(live) == shown(await stored_view(store, session))
    async with open_store(where) as other:
        again = await other.open(session.id)
        assert told(again.messages) == told(session.messages)
        assert again.pending == session.pending
        assert again.path == session.path
        assert (await other.verify(session.id)).sound
    rows = {info.thread: info async for info in store.list()}
    assert rows[session.id].pending == len(live.undecided)
    assert rows[session.id].meta == session.meta
    assert rows[session.id].title == session.title
    valid_for_a_provider(repair(session.messages))


# Where a branch goes, and what the model reads then.


@pytest.mark.parametrize(
    ("entry", "reads"),
    [
        (None, ["> next"]),
        (0, ["> one", "> next"]),
        (1, ["> one", "re one", "> next"]),
        (2, ["> one", "re one", "> do look 1, look 2", "> next"]),
        (3, ["> one", "re one", "> do look 1, look 2", "look+look", "[interrupted|interrupted]", "> next"]),
        (4, ["> one", "re one", "> do look 1, look 2", "look+look", "[look 1|interrupted]", "> next"]),
        (5, ["> one", "re one", "> do look 1, look 2", "look+look", "[look 1|look 2]", "> next"]),
        (6, ["> one", "re one", "> do look 1, look 2", "look+look", "[look 1|look 2]", "read look 1|look 2", "> next"]),
    ],
)
async def test_the_next_turn_reads_the_path_to_the_entry_and_no_more(
    where: Where, tools: Tools, entry: int | None, reads: list[str]
) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("one")
        await session.ask("do look 1, look 2")
        before = session.path
        await session.branch(None if entry is None else before[entry].id)
        assert session.path == (() if entry is None else before[: entry + 1])
        assert session.pending == ()
        assert (await session.ask("next")).text == "re next"
        assert request_of(script) == reads
        assert tools.ran == ["look 1", "look 2"]
        await same_after_reopening(where, store, session)


async def test_the_other_sibling_alone_keeps_its_place(where: Where) -> None:
    """The results stand in call order, also where only the second one is on the path."""
    go = asyncio.Event()

    @tool(effect="none")
    async def slow(item: int) -> str:
        await go.wait()
        return f"slow {item}"

    tools, script = Tools(), talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script, tools=[slow, tools.look]))
        turn = await session.send("do slow 1, look 2")
        async for entry in store.watch(session.id):
            if entry.kind == "tool_result":
                break
        go.set()
        await turn.wait()
        await session.branch(place(session, 2))
        await session.ask("next")
        assert request_of(script) == ["> do slow 1, look 2", "slow+look", "[interrupted|look 2]", "> next"]
        await same_after_reopening(where, store, session)


async def test_a_branch_to_where_it_stands_changes_nothing_that_is_read(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("one")
        messages = session.messages
        await session.branch(place(session, -1))
        assert session.messages == messages
        await session.ask("two")
        assert request_of(script) == ["> one", "re one", "> two"]


async def test_an_empty_session_branches_to_its_beginning(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.branch(None)
        assert (await session.ask("one")).text == "re one"
        await same_after_reopening(where, store, session)


async def test_what_was_left_aside_can_be_branched_back_to_and_is_as_it_was(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("one")
        first = session.path
        await session.ask("left")
        left = session.path
        await session.branch(first[-1].id)
        await session.ask("right")
        right = session.path
        for _ in range(2):
            await session.branch(left[-1].id)
            assert session.path == left
            await session.branch(right[-1].id)
            assert session.path == right
        await session.branch(left[-1].id)
        await session.ask("on")
        assert request_of(script) == ["> one", "re one", "> left", "re left", "> on"]
        await same_after_reopening(where, store, session)


async def test_only_messages_and_results_are_branched_to_and_a_refusal_writes_nothing(
    where: Where, tools: Tools
) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        other = await store.create(tools.agent())
        await other.ask("elsewhere")
        await session.ask("do pay 1")
        await session.decide(approve(session.pending[0]))
        await session.settled_or_waiting()
        await session.note("n", "t")
        await session.branch(place(session, 1))
        await session.cancel()
        wrong = [e.id for e in await journal(store, session) if e.kind not in ("message", "tool_result")]
        head = session.head
        for entry in (*wrong, "", "nothing", place(other, 0), session._live.view.header.thread):
            with pytest.raises(WrongCall):
                await session.branch(entry)
            with pytest.raises(WrongCall):
                await session.fork(entry)
        assert session.head == head
        assert len([info async for info in store.list()]) == 2


async def test_what_a_run_said_before_a_branch_is_not_what_a_run_after_it_says(where: Where, tools: Tools) -> None:
    """A turn that fails before its first answer has no text, also where it begins at open calls."""

    def answer(request: ModelRequest) -> Answer:
        if request.messages[-1].text == "again":
            raise ModelError("down")
        return "done" if request.messages[-1].role == "tool" else calls(call("look", item=1), text="I shall look")

    async with open_store(where) as store:
        session = await store.create(tools.agent(Script(*[reply(answer)] * 2)))
        await session.ask("go")
        await session.branch(place(session, 1))
        turn = await session.send("again")
        with pytest.raises(RunFailed) as caught:
            await turn.wait()
        assert caught.value.result is not None
        assert caught.value.result.text == ""
        assert session._live.view.ended[turn.id or ""].text == ""


# What waits for a person at a boundary.


async def test_a_decided_call_is_asked_again_and_its_old_decision_does_not_apply(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("do pay 1")
        old = session.pending[0]
        await session.decide(approve(old, by="ann"))
        await session.settled_or_waiting()
        assert tools.ran == ["pay 1"]
        await session.branch(place(session, 1))
        assert tools.ran == ["pay 1"]
        fresh = session.pending[0]
        assert fresh.id != old.id
        assert (fresh.call, fresh.tool, fresh.args, fresh.digest, fresh.kind, fresh.path) == (
            old.call,
            old.tool,
            old.args,
            old.digest,
            old.kind,
            old.path,
        )
        assert await session.resume() is None  # it waits: the old approval starts nothing
        await session.decide(approve(old, by="ann"))  # the same decision again is without effect
        await settle()
        assert tools.ran == ["pay 1"]
        assert [request.id for request in session.pending] == [fresh.id]
        with pytest.raises(Conflict):
            await session.decide(deny(old))
        turn = await session.decide(approve(fresh))
        assert (await turn.wait()).text == "read pay 1"
        assert request_of(script) == ["> do pay 1", "pay", "[pay 1]"]
        assert tools.ran == ["pay 1", "pay 1"]
        assert len(set(tools.keys)) == 2
        await same_after_reopening(where, store, session)


async def test_a_boundary_that_was_denied_can_be_approved_and_the_other_way_round(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1")
        await (await session.decide(deny(session.pending[0], "no"))).wait()
        await session.branch(place(session, 1))
        await (await session.decide(resolve(session.pending[0], "paid by hand"))).wait()
        assert told(session.messages)[2] == "[paid by hand]"
        await session.branch(place(session, 1))
        await (await session.decide(approve(session.pending[0]))).wait()
        assert told(session.messages)[2] == "[pay 1]"
        assert tools.ran == ["pay 1"]
        await same_after_reopening(where, store, session)


async def test_no_request_id_ever_comes_back(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1, pay 2")
        boundary = place(session, 1)
        seen: list[str] = []
        for round_ in range(4):
            asked = session.pending
            assert [request.args for request in asked] == ['{"item": 1}', '{"item": 2}']
            seen += [request.id for request in asked]
            if round_ % 2:
                await session.cancel()
            else:
                await (await session.decide(deny(asked[1]), approve(asked[0]))).wait()
            await session.branch(boundary)
        assert len(set(seen)) == len(seen) == 8
        assert tools.ran == ["pay 1", "pay 1"]
        assert len(set(tools.keys)) == 2
        await same_after_reopening(where, store, session)


async def test_of_two_gated_calls_only_those_without_a_result_on_the_path_are_asked(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("do pay 1, pay 2, look 3")
        await (await session.decide(*(approve(request) for request in session.pending))).wait()
        results = [entry for entry in session.path if entry.result is not None]
        assert results[0].result is not None
        assert results[0].result.content == "look 3"
        await session.branch(results[1].id)
        left = session.pending
        assert len(left) == 1
        assert results[2].result is not None
        assert left[0].call == results[2].result.call
        await (await session.decide(deny(left[0], "no"))).wait()
        contents = request_of(script)[-1]
        assert contents.count("look 3") == 1
        assert "no" in contents
        assert tools.ran == ["look 3", "pay 1", "pay 2"]
        await same_after_reopening(where, store, session)


async def test_a_free_sibling_of_a_gated_call_reads_as_interrupted_and_does_not_run_again(
    where: Where, tools: Tools
) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("do look 1, pay 2")
        await (await session.decide(approve(session.pending[0]))).wait()
        await session.branch(place(session, 1))
        assert [request.tool for request in session.pending] == ["pay"]
        await (await session.decide(approve(session.pending[0]))).wait()
        assert request_of(script) == ["> do look 1, pay 2", "look+pay", "[interrupted|pay 2]"]
        assert tools.ran == ["look 1", "pay 2", "pay 2"]
        await same_after_reopening(where, store, session)


async def test_a_boundary_before_the_gated_call_asks_nothing(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1")
        await (await session.decide(approve(session.pending[0]))).wait()
        for entry in (None, place(session, 0), place(session, 2), place(session, 3)):
            await session.branch(entry)
            assert session.pending == ()
            assert session._live.view.phase == "idle"


async def test_what_is_asked_again_gets_its_whole_time_again(where: Where) -> None:
    @tool(approval=True, expires=60)
    async def pay(item: int) -> str:
        return "paid"

    clock = ManualClock()
    async with open_store(where, clock=clock) as store:
        session = await store.create(Tools().agent(tools=[pay]))
        await session.ask("do pay 1")
        assert session.pending[0].expires == clock.now() + 60
        await clock.advance(70)
        await session.resume()  # expired
        await session.settled_or_waiting()
        assert session.pending == ()
        await session.branch(place(session, 1))
        fresh = session.pending[0]
        assert fresh.created == clock.now()
        assert fresh.expires == clock.now() + 60
        await (await session.decide(approve(fresh))).wait()
        assert told(session.messages)[2] == "[paid]"


async def test_a_session_that_parks_by_a_branch_queues_and_is_cancelled_like_any(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("do pay 1")
        await (await session.decide(approve(session.pending[0]))).wait()
        await session.branch(place(session, 1))
        with pytest.raises(Busy):
            await session.send("no", policy="reject")
        queued = await session.send("queued")
        assert queued.outcome is None
        assert await session.cancel()
        await session.resume()
        assert (await queued.wait()).text == "re queued"
        assert told(session.messages)[:2] == ["> do pay 1", "pay"]
        assert told(session.messages)[3:] == ["> queued", "re queued"]
        await session.branch(place(session, 1))
        hurried = await session.send("hurried", policy="interrupt")
        assert (await hurried.wait()).text == "re hurried"
        assert session.pending == ()
        assert tools.ran == ["pay 1"]
        await same_after_reopening(where, store, session)


async def test_a_parked_branch_is_gone_on_with_by_the_next_process(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1")
        await (await session.decide(approve(session.pending[0]))).wait()
        await session.branch(place(session, 1))
        asked = session.pending
    async with open_store(where) as store:
        again = await store.open(session.id, tools.agent(script))
        assert again.pending == asked
        await (await again.decide(approve(asked[0]))).wait()
        assert request_of(script) == ["> do pay 1", "pay", "[pay 1]"]
        await same_after_reopening(where, store, again)


async def test_a_turn_that_parks_by_a_branch_tells_its_events_whom_it_waits_for(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1, pay 2")
        await (await session.decide(*(approve(request) for request in session.pending))).wait()
        await session.branch(place(session, 1))
        turn = await session.decide(approve(session.pending[0]))  # the parked one: the other call is open
        assert turn.outcome == "parked"
        result = await turn.wait()
        assert (result.parked, told(result.messages)) == (True, ["> do pay 1, pay 2", "pay+pay"])
        parked = [event async for event in turn.events() if isinstance(event, Parked)]
        assert [[given.arguments for given in event.calls] for event in parked] == [['{"item": 1}', '{"item": 2}']]
        going_on = await session.decide(approve(session.pending[0]))
        assert (await turn.next()).id == going_on.id
        assert (await going_on.wait()).text == "read pay 1|pay 2"


async def test_an_uncertain_call_is_asked_again_and_never_run_by_a_branch(where: Where) -> None:
    never, go, started = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ran, keys = list[int](), list[str]()

    @tool
    async def charge(ctx: Context, item: int) -> str:
        ran.append(item)
        keys.append(ctx.call.idempotency_key)
        started.set()
        if not go.is_set():
            await never.wait()
        return f"charge {item}"

    agent = Tools().agent(tools=[charge])
    async with open_store(where, grace=0) as store:
        session = await store.create(agent)
        await session.send("do charge 1")
        await started.wait()
    go.set()
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        await session.resume()
        await session.settled_or_waiting()
        old = session.pending[0]
        assert old.kind == "uncertain"
        await (await session.decide(resolve(old, "it was charged"))).wait()
        await session.branch(place(session, 1))
        fresh = session.pending[0]
        assert (fresh.kind, fresh.call, fresh.id != old.id) == ("uncertain", old.call, True)
        assert await session.resume() is None
        assert ran == [1]
        await (await session.decide(approve(fresh))).wait()
        assert ran == [1, 1]
        assert keys[0] == keys[1]  # it is the same across attempts, where no approval was asked
        assert told(session.messages)[2] == "[charge 1]"
        await same_after_reopening(where, store, session)


async def test_an_approved_call_that_became_uncertain_is_asked_about_as_uncertain_under_its_key(where: Where) -> None:
    """Whoever runs it again knowingly gives the key under which it may have been done already."""
    never, go, started = asyncio.Event(), asyncio.Event(), asyncio.Event()
    keys: list[str] = []

    @tool(approval=True)
    async def charge(ctx: Context, item: int) -> str:
        keys.append(ctx.call.idempotency_key)
        started.set()
        if not go.is_set():
            await never.wait()
        return f"charge {item}"

    agent = Tools().agent(tools=[charge])
    async with open_store(where, grace=0) as store:
        session = await store.create(agent)
        await session.ask("do charge 1")
        await session.decide(approve(session.pending[0]))
        await started.wait()
    go.set()
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        await session.resume()
        await session.settled_or_waiting()
        await (await session.decide(resolve(session.pending[0], "it was charged"))).wait()
        await session.branch(place(session, 1))
        assert [request.kind for request in session.pending] == ["uncertain"]
        await (await session.decide(approve(session.pending[0]))).wait()
        assert len(keys) == 2
        assert keys[0] == keys[1]
        await same_after_reopening(where, store, session)


# Delegations.


def delegating(tools: Tools, pool: Pool, script: Script | None = None, **options: Any) -> Agent[Any, Any]:
    helper = Agent(talker(), name="helper", tools=[tools.look, tools.pay])
    wrapped = pool.wrap("help", helper, description="Helps.")
    return tools.agent(script, tools=[tools.look, tools.pay, wrapped], **options)


async def test_a_delegating_call_at_a_boundary_reads_as_interrupted_and_gets_no_second_child(
    where: Where, tools: Tools
) -> None:
    script = talker()
    async with open_store(where) as store, Pool(2) as pool:
        session = await store.create(delegating(tools, pool, script))
        await session.ask("do help look")
        receipts, spent = session.receipts, session.usage
        await session.branch(place(session, 1))
        assert session.pending == ()
        await session.ask("next")
        assert request_of(script) == ["> do help look", "help", "[interrupted]", "> next"]
        assert session.receipts == receipts
        assert session.usage.delegated == spent.delegated
        assert tools.ran == ["look 7"]
        assert len([info async for info in store.list(children=True)]) == 2
        await same_after_reopening(where, store, session)


async def test_a_delegating_sibling_of_a_gated_call_is_not_asked_for_its_child(where: Where, tools: Tools) -> None:
    """The child's own requests are mirrors here: they are never asked again at the parent's boundary."""
    script = talker()
    async with open_store(where) as store, Pool(2) as pool:
        session = await store.create(delegating(tools, pool, script))
        await session.send("do help pay, pay 2")
        await session.settled_or_waiting()
        while session.pending:
            await session.decide(approve(session.pending[0]))
            await session.settled_or_waiting()
        assert sorted(tools.ran) == ["pay 2", "pay 7"]
        await session.branch(place(session, 1))
        assert [(request.tool, request.path) for request in session.pending] == [("pay", ("desk",))]
        await (await session.decide(approve(session.pending[0]))).wait()
        assert request_of(script) == ["> do help pay, pay 2", "help+pay", "[interrupted|pay 2]"]
        assert sorted(tools.ran) == ["pay 2", "pay 2", "pay 7"]
        await same_after_reopening(where, store, session)


# When it may, and who does it.


async def test_a_session_at_work_or_parked_does_not_branch(where: Where, tools: Tools) -> None:
    go = asyncio.Event()
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(tools.agent(Script(hold(go, say("1")), *[reply(lambda _: call("pay", item=1))] * 3)))
        there = await two.open(session.id)
        turn = await session.send("one")
        for handle in (session, there):
            with pytest.raises(Busy):
                await handle.branch(None)
        go.set()
        await turn.wait()
        await session.ask("two")
        assert session.pending
        head = session.head
        for handle in (session, there):
            with pytest.raises(Busy):
                await handle.branch(None)
        assert session.head == head


async def test_a_session_whose_process_died_in_a_turn_does_not_branch_until_it_is_recovered(
    where: Where, tools: Tools
) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(tools.agent(Script(hold(never, say("1")))))
        await session.send("one")
    async with open_store(where) as store:
        again = await store.open(session.id, tools.agent())
        with pytest.raises(Busy):
            await again.branch(None)
        turn = await again.resume()
        assert turn is not None
        await turn.wait()
        await again.branch(None)
        assert again.messages == ()


async def test_what_is_queued_runs_where_the_session_was_branched_to(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        await session.ask("one")
        await session.ask("two")
    async with open_store(where) as store:
        bare = await store.open(session.id)
        queued = await bare.send("queued")
        await bare.branch(place(bare, 1))
        assert queued.outcome is None
        again = await store.open(session.id, tools.agent(script))
        await again.resume()
        assert (await queued.wait()).text == "re queued"
        assert request_of(script) == ["> one", "re one", "> queued"]
        await same_after_reopening(where, store, again)


async def test_what_another_store_branched_is_seen_by_the_next_send_here(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as one, open_store(where) as two:
        here = await one.create(tools.agent(script))
        await here.ask("one")
        await here.ask("two")
        there = await two.open(here.id)
        await there.branch(place(there, 1))
        await here.ask("three")  # its view is old; nothing of "two" is read
        assert request_of(script) == ["> one", "re one", "> three"]
        assert told(here.messages) == ["> one", "re one", "> three", "re three"]
        await here.branch(None)
        await there.branch(place(here, -1) if here.path else None)
        await same_after_reopening(where, one, here)


async def test_a_branch_that_meets_a_parked_one_of_another_store_is_busy(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        here = await one.create(tools.agent())
        await here.ask("do pay 1")
        await (await here.decide(approve(here.pending[0]))).wait()
        there = await two.open(here.id)
        boundary = place(here, 1)
        outcomes = await asyncio.gather(here.branch(boundary), there.branch(boundary), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Busy", "NoneType"]
        await here.refresh()
        assert len(here.pending) == 1
        await same_after_reopening(where, one, here)


async def test_of_a_send_and_a_branch_at_once_each_is_whole(where: Where, tools: Tools) -> None:
    """Whatever goes first, no message of a turn ends up on a line that the model never saw."""
    script = talker()
    async with open_store(where) as one, open_store(where) as two:
        here = await one.create(tools.agent(script))
        await here.ask("one")
        there = await two.open(here.id)
        turn, branched = await asyncio.gather(here.send("two"), there.branch(None), return_exceptions=True)
        assert not isinstance(turn, BaseException)
        result = await turn.wait()
        await there.refresh()
        assert branched is None or isinstance(branched, Busy)
        read = request_of(script)
        assert read in (["> one", "re one", "> two"], ["> two"])
        assert told(result.messages) == [*read, "re two"]
        await same_after_reopening(where, one, here)


async def test_without_an_agent_a_session_branches_and_parks(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1")
        await (await session.decide(approve(session.pending[0]))).wait()
    async with open_store(where) as store:
        bare = await store.open(session.id)
        await bare.branch(place(bare, 1))
        assert len(bare.pending) == 1
        await store.decide(deny(bare.pending[0], "no"))
        again = await store.open(session.id, tools.agent())
        turn = await again.resume()
        assert turn is not None
        assert "no" in (await turn.wait()).text


# What a branch leaves as it was.


async def test_usage_goes_on_counting_what_was_left_aside(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        for n in range(1, 4):
            await session.ask("one")
            await session.branch(None)
            assert session.usage.turns == Usage(input_tokens=10 * n, output_tokens=5 * n)
        assert session.messages == ()
        await same_after_reopening(where, store, session)
    async with open_store(where) as store:
        assert (await store.open(session.id)).usage.turns == Usage(input_tokens=30, output_tokens=15)


async def test_a_key_keeps_its_turn_over_a_branch(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        turn = await session.send("one", key="k")
        await turn.wait()
        await session.branch(None)
        head = session.head
        again = await session.send("one", key="k")
        assert again.id == turn.id
        assert session.head == head
        with pytest.raises(Conflict):
            await session.send("two", key="k")
        assert told((await again.wait()).messages) == ["> one", "re one"]


async def test_old_turns_keep_their_results_their_messages_and_their_events(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        turns = []
        for text in ("one", "do look 1, look 2", "do pay 1"):
            turns.append(await session.send(text, key=text))
            await session.settled_or_waiting()
        parked = turns[-1]
        turns.append(await session.decide(approve(session.pending[0])))
        await turns[-1].wait()
        before = [(await turn.wait()) for turn in turns]
        read = [(told(result.messages), result.text, result.usage, result.stop) for result in before]
        events = [[event async for event in turn.events()] for turn in turns]
        for entry in (place(session, 5), None):
            await session.branch(entry)
            await session.ask(f"after {entry is None}")
            after = [(await turn.wait()) for turn in turns]
            assert [(told(result.messages), result.text, result.usage, result.stop) for result in after] == read
            assert [[event async for event in turn.events()] for turn in turns] == events
            assert (await parked.next()).id == turns[-1].id
    async with open_store(where) as store:
        again = await store.open(session.id, tools.agent())
        for text, (messages, answer, usage, stop) in zip(("one", "do look 1, look 2", "do pay 1"), read, strict=False):
            result = await (await again.send(text, key=text)).wait()
            assert (told(result.messages), result.text, result.usage, result.stop) == (messages, answer, usage, stop)


async def test_limits_are_of_each_run_and_begin_anew_at_a_branch(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent(limits=Limits(steps=2)))
        await session.ask("do pay 1")
        await (await session.decide(approve(session.pending[0]))).wait()
        for _ in range(3):
            await session.branch(place(session, 1))
            await (await session.decide(approve(session.pending[0]))).wait()
        assert told(session.messages) == ["> do pay 1", "pay", "[pay 1]", "read pay 1"]


# Forks.


@pytest.mark.parametrize(
    ("entry", "reads"),
    [
        (0, ["> one", "> next"]),
        (1, ["> one", "re one", "> next"]),
        (2, ["> one", "re one", "> do look 1, look 2", "> next"]),
        (3, ["> one", "re one", "> do look 1, look 2", "look+look", "[interrupted|interrupted]", "> next"]),
        (4, ["> one", "re one", "> do look 1, look 2", "look+look", "[look 1|interrupted]", "> next"]),
        (5, ["> one", "re one", "> do look 1, look 2", "look+look", "[look 1|look 2]", "> next"]),
        (
            None,
            ["> one", "re one", "> do look 1, look 2", "look+look", "[look 1|look 2]", "read look 1|look 2", "> next"],
        ),
    ],
)
async def test_a_fork_reads_the_path_to_the_entry_and_leaves_its_origin_alone(
    where: Where, tools: Tools, entry: int | None, reads: list[str]
) -> None:
    script = talker()
    async with open_store(where) as store:
        origin = await store.create(tools.agent(script))
        await origin.ask("one")
        await origin.ask("do look 1, look 2")
        head, path, spent = origin.head, origin.path, origin.usage
        fork = await origin.fork(None if entry is None else path[entry].id)
        assert fork.id != origin.id
        assert fork.agent is origin.agent
        assert fork.path == (path if entry is None else path[: entry + 1])
        assert fork.usage.total == Usage()
        assert fork.header.origin is not None
        assert (fork.header.origin.thread, fork.header.origin.how) == (origin.id, "fork")
        assert fork.header.origin.digest == head.digest
        assert fork.header.origin.copied == len(fork.path)
        assert (await journal(store, origin))[fork.header.origin.position].id == fork.path[-1].id
        assert (await fork.ask("next")).text == "re next"
        assert request_of(script) == reads
        await origin.refresh()
        assert (origin.head, origin.path, origin.usage) == (head, path, spent)
        assert fork.usage.total == Usage(input_tokens=10, output_tokens=5)
        assert tools.ran == ["look 1", "look 2"]
        for session in (origin, fork):
            await same_after_reopening(where, store, session)


async def test_an_empty_session_forks_to_an_empty_one(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        fork = await origin.fork()
        assert fork.path == ()
        assert (await fork.ask("one")).text == "re one"
        assert origin.path == ()
        await same_after_reopening(where, store, fork)


async def test_a_fork_is_made_of_a_branch_that_was_left_aside_too(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        await origin.ask("left")
        left = origin.path
        await origin.branch(None)
        await origin.ask("right")
        fork = await origin.fork(left[-1].id)
        assert told(fork.messages) == ["> left", "re left"]
        assert told((await origin.fork()).messages) == ["> right", "re right"]
        assert fork.usage.total == Usage()
        await same_after_reopening(where, store, fork)


async def test_a_fork_of_a_fork_keeps_what_it_has_and_has_spent_nothing(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script), meta={"a": "1"})
        await session.describe(title="t")
        for n in range(3):
            await session.ask(f"q{n}", key="k")
            origin, session = session, await session.fork()
            assert session.usage.total == Usage()
            assert session.header.origin is not None
            assert session.header.origin.thread == origin.id
            assert session.header.origin.copied == 2 * (n + 1)
            assert (session.title, session.meta) == ("t", {"a": "1"})
        assert told(session.messages) == ["> q0", "re q0", "> q1", "re q1", "> q2", "re q2"]
        await session.ask("on")
        assert session.usage.total == Usage(input_tokens=10, output_tokens=5)
        await same_after_reopening(where, store, session)


async def test_a_fork_of_a_running_session_reads_its_open_calls_as_interrupted(where: Where, tools: Tools) -> None:
    go, started, ran = asyncio.Event(), asyncio.Event(), list[int]()

    @tool
    async def slow(item: int) -> str:
        ran.append(item)
        started.set()
        await go.wait()
        return f"slow {item}"

    script = talker()
    async with open_store(where) as store:
        origin = await store.create(tools.agent(script, tools=[slow, tools.look]))
        turn = await origin.send("do slow 1, look 2")
        await started.wait()
        async for entry in store.watch(origin.id):
            if entry.kind == "tool_result":
                break
        fork = await origin.fork()
        assert fork._live.view.phase == "idle"
        assert fork.pending == ()
        await fork.ask("next")
        assert request_of(script) == ["> do slow 1, look 2", "slow+look", "[interrupted|look 2]", "> next"]
        assert turn.outcome is None
        go.set()
        assert (await turn.wait()).text == "read slow 1|look 2"
        assert ran == [1]
        for session in (origin, fork):
            await same_after_reopening(where, store, session)


async def test_a_fork_in_the_middle_of_a_model_call_has_what_was_said_until_then(where: Where, tools: Tools) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        origin = await store.create(tools.agent(Script(hold(go, say("late")), say("second"))))
        turn = await origin.send("one")
        fork = await origin.fork()
        assert told(fork.messages) == ["> one"]
        assert fork._live.view.phase == "idle"
        go.set()
        assert (await turn.wait()).text == "late"
        assert (await fork.ask("two")).text == "late"  # the script answers by position
        assert told(fork.messages) == ["> one", "> two", "late"]


async def test_a_fork_of_a_parked_session_asks_afresh_and_is_decided_on_its_own(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        await origin.ask("do look 1, pay 2")
        fork = await origin.fork()
        old, fresh = origin.pending[0], fork.pending[0]
        assert fresh.id.startswith(f"{fork.id}.")
        assert old.id.startswith(f"{origin.id}.")
        assert (fresh.call, fresh.args, fresh.digest, fresh.path) == (old.call, old.args, old.digest, old.path)
        await (await fork.decide(approve(fresh))).wait()
        assert [request.id for request in origin.pending] == [old.id]
        assert told(fork.messages)[2] == "[look 1|pay 2]"
        await (await origin.decide(deny(old, "no"))).wait()
        assert told(fork.messages)[2] == "[look 1|pay 2]"
        assert tools.ran == ["look 1", "pay 2"]
        for session in (origin, fork):
            await same_after_reopening(where, store, session)


async def test_the_same_call_has_another_idempotency_key_in_each_fork(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        await origin.ask("do pay 1")
        sessions = [origin, await origin.fork(), await origin.fork()]
        sessions.append(await sessions[1].fork())
        for session in sessions:
            await (await session.decide(approve(session.pending[0]))).wait()
        assert tools.ran == ["pay 1"] * 4
        assert len(set(tools.keys)) == 4


async def test_an_approval_of_the_origin_does_not_let_the_fork_run(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        await origin.ask("do pay 1")
        old = origin.pending[0]
        bare = await store.open(origin.id)
        await store.decide(approve(old))  # decided, not yet gone on with
        fork = await origin.fork()
        assert len(fork.pending) == 1
        assert await fork.resume() is None
        await settle()
        assert tools.ran == []
        await (await fork.decide(deny(fork.pending[0], "no"))).wait()
        turn = await origin.resume()
        assert turn is not None
        await turn.wait()
        assert tools.ran == ["pay 1"]
        assert bare.pending == ()


async def test_every_interrupted_result_of_a_fork_is_on_its_path(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        origin = await store.create(tools.agent(script))
        await origin.ask("do look 1, look 2, pay 3")
        fork = await origin.fork(place(origin, 1))
        assert len(fork.path) == 4  # what was asked, the calls, and two results
        turn = await fork.decide(approve(fork.pending[0]))
        await turn.wait()
        assert request_of(script)[-1] == "[interrupted|interrupted|pay 3]"
        assert [len(message.results) for message in fork.messages if message.role == "tool"] == [3]
        await same_after_reopening(where, store, fork)


async def test_a_fork_before_a_decided_boundary_asks_nothing_and_at_it_asks_again(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        await origin.ask("do pay 1, pay 2")
        await (await origin.decide(*(approve(request) for request in origin.pending))).wait()
        asked = [len((await origin.fork(entry.id)).pending) for entry in origin.path]
        assert asked == [0, 2, 1, 0, 0]


async def test_a_fork_of_an_uncertain_call_asks_whether_it_is_done(where: Where, tools: Tools) -> None:
    never, started = asyncio.Event(), asyncio.Event()

    @tool
    async def charge(item: int) -> str:
        tools.ran.append(f"charge {item}")
        started.set()
        await never.wait()
        return "charged"

    agent = tools.agent(tools=[charge])
    async with open_store(where, grace=0) as store:
        session = await store.create(agent)
        await session.send("do charge 1")
        await started.wait()
    async with open_store(where) as store:
        origin = await store.open(session.id, agent)
        await origin.resume()
        await origin.settled_or_waiting()
        fork = await origin.fork()
        assert [request.kind for request in fork.pending] == ["uncertain"]
        assert await fork.resume() is None
        await (await fork.decide(resolve(fork.pending[0], "done by hand"))).wait()
        assert told(fork.messages)[2] == "[done by hand]"
        assert len(origin.pending) == 1
        assert tools.ran == ["charge 1"]
        await same_after_reopening(where, store, fork)


async def test_a_fork_of_a_session_with_a_parked_child_takes_neither_the_child_nor_its_requests(
    where: Where, tools: Tools
) -> None:
    script = talker()
    async with open_store(where) as store, Pool(2) as pool:
        origin = await store.create(delegating(tools, pool, script))
        await origin.send("do help pay, look 2")
        await origin.settled_or_waiting()
        assert len(origin.pending) == 1
        fork = await origin.fork()
        assert (fork.pending, fork.receipts, fork._live.view.phase) == ((), (), "idle")
        await fork.ask("next")
        assert request_of(script) == ["> do help pay, look 2", "help+look", "[interrupted|look 2]", "> next"]
        await origin.decide(approve(origin.pending[0]))
        await origin.settled_or_waiting()
        assert told(origin.messages)[2] == "[read pay 7|look 2]"
        assert fork.usage.delegated == Usage()
        assert sorted(tools.ran) == ["look 2", "pay 7"]
        for session in (origin, fork):
            await same_after_reopening(where, store, session)


async def test_a_child_forks_into_a_session_of_its_own(where: Where, tools: Tools) -> None:
    async with open_store(where) as store, Pool(2) as pool:
        parent = await store.create(delegating(tools, pool), meta={"of": "parent"})
        await parent.send("do help pay")
        await parent.settled_or_waiting()
        child = await store.open(parent.receipts[0].child, Agent(talker(), name="helper", tools=[tools.pay]))
        fork = await child.fork()
        header = fork.header
        assert (header.parent, header.call, header.root, header.depth) == (None, None, fork.id, 0)
        assert header.path == ("helper",)
        assert [request.path for request in fork.pending] == [("helper",)]
        assert [info.thread async for info in store.list()] == [fork.id, parent.id]
        await (await fork.decide(approve(fork.pending[0]))).wait()  # a child would refuse it
        assert told(fork.messages) == ["> do pay 7", "pay", "[pay 7]", "read pay 7"]
        assert len(parent.pending) == 1
        await parent.decide(deny(parent.pending[0], "no"))
        await parent.settled_or_waiting()
        assert tools.ran == ["pay 7"]
        await same_after_reopening(where, store, fork)


async def test_a_fork_keeps_title_metadata_permissions_and_expiry(where: Where) -> None:
    @tool(needs={"read"})
    async def read(item: int) -> str:
        return "read"

    @tool(approval=True)
    async def pay(item: int) -> str:
        return "paid"

    clock = ManualClock()
    agent = Tools().agent(tools=[read, pay])
    async with open_store(where, clock=clock) as store:
        origin = await store.create(agent, meta={"a": "1", "b": "2", "c": "3"}, allow=["read"], expires=60.0)
        await origin.describe(title="The title", meta={"b": None, "c": "4", "d": "5"})
        await origin.ask("do pay 1")
        await clock.advance(30)
        fork = await origin.fork(meta={"d": "6", "e": "7"})
        assert fork.title == "The title"
        assert fork.meta == fork.header.meta == {"a": "1", "c": "4", "d": "6", "e": "7"}
        assert (fork.header.allow, fork.header.expires) == (("read",), 60.0)
        assert fork.header.created == clock.now()
        assert fork.pending[0].expires == clock.now() + 60
        assert origin.meta == {"a": "1", "c": "4", "d": "5"}
        assert [info.title async for info in store.list(meta={"e": "7"})] == ["The title"]
        await clock.advance(40)
        await origin.resume()
        assert (len(origin.pending), len(fork.pending)) == (0, 1)
        await same_after_reopening(where, store, fork)
        with pytest.raises(WrongCall):
            await origin.fork(meta={"n": 1})  # type: ignore[dict-item]


async def test_a_fork_has_no_queue_no_notes_and_no_keys_of_its_origin(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        origin = await store.create(tools.agent(script))
        first = await origin.send("one", key="k")
        await first.wait()
        await origin.note("n", "t")
        bare = await store.open(origin.id)
        async with open_store(where) as other:
            await (await other.open(origin.id)).send("queued", key="q")
        fork = await bare.fork()
        assert fork.agent is None
        assert fork.notes == ()
        fork = await store.open(fork.id, tools.agent(script))
        assert await fork.resume() is None
        assert told(fork.messages) == ["> one", "re one"]
        again = await fork.send("other text", key="k")  # the origin's key: nothing is known of it here
        assert again.id != first.id
        assert (await again.wait()).text == "re other text"
        queued = await fork.send("queued", key="q")
        assert (await queued.wait()).text == "re queued"
        await origin.resume()
        await origin.settled_or_waiting()
        assert told(origin.messages) == ["> one", "re one", "> queued", "re queued"]
        await same_after_reopening(where, store, fork)


async def test_a_fork_keeps_the_text_of_bodies_byte_for_byte_and_what_it_does_not_know(tools: Tools) -> None:
    data = Memory()
    async with open_store(data) as store:
        origin = await store.create(tools.agent())
        await origin.ask("do look 1, pay 2")
    with_bodies(data, origin.id, {n: {"from_the_future": {"deep": [1.0, 2**70, "\u00fc"]}} for n in range(1, 8)})
    async with open_store(data) as store:
        origin = await store.open(origin.id)
        fork = await origin.fork()
        copied = len(fork.path)
        assert copied == 3
        bodies = {
            decoded.id: line
            for decoded, line in zip(await journal(store, origin), lines_of(data, origin.id), strict=True)
        }
        for line, entry in zip(lines_of(data, fork.id)[1 : copied + 1], fork.path, strict=True):
            assert line.partition(b',"body":')[2] == bodies[entry.id].partition(b',"body":')[2]
            assert b"from_the_future" in line
        assert (await store.verify(fork.id)).sound
        second = await fork.fork()
        assert b"from_the_future" in lines_of(data, second.id)[1]
        again = await store.open(second.id, tools.agent())
        await (await again.decide(approve(again.pending[0]))).wait()


async def test_a_fork_without_an_agent_is_decided_and_gone_on_with_by_whoever_has_it(
    where: Where, tools: Tools
) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1")
    async with open_store(where) as store:
        fork = await (await store.open(session.id)).fork()
        assert fork.agent is None
        with pytest.raises(WrongCall):
            await fork.resume()
        await fork.decide(approve(fork.pending[0]))
        assert tools.ran == []
    async with open_store(where) as store:
        again = await store.open(fork.id, tools.agent())
        turn = await again.resume()
        assert turn is not None
        assert (await turn.wait()).text == "read pay 1"


async def test_many_forks_at_once_are_as_many_sessions(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        origin = await one.create(tools.agent())
        await origin.ask("do pay 1")
        there = await two.open(origin.id, tools.agent())
        forks = await asyncio.gather(*(handle.fork() for handle in (origin, there) * 4))
        assert len({fork.id for fork in forks}) == 8
        assert len({fork.pending[0].id for fork in forks}) == 8
        await asyncio.gather(*(fork.decide(approve(fork.pending[0])) for fork in forks))
        await asyncio.gather(*(fork.settled_or_waiting() for fork in forks))
        assert {tuple(told(fork.messages)) for fork in forks} == {("> do pay 1", "pay", "[pay 1]", "read pay 1")}
        assert len(set(tools.keys)) == len(tools.keys) == 8
        assert len(origin.pending) == 1


async def test_a_fork_while_its_origin_grows_is_a_prefix_of_it(where: Where, tools: Tools) -> None:
    async with open_store(where) as one, open_store(where) as two:
        origin = await one.create(tools.agent())
        await origin.ask("one")
        there = await two.open(origin.id)
        turn, *forks = await asyncio.gather(origin.send("do look 1, look 2"), *(there.fork() for _ in range(5)))
        await turn.wait()
        for fork in forks:
            assert fork.path == origin.path[: len(fork.path)]
            assert (await two.verify(fork.id)).sound


async def test_a_deleted_session_does_not_fork_or_branch(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("one")
        await store.delete(session.id)
        for verb in (session.fork(), session.branch(None), session.note("a", "b"), session.describe(title="t")):
            with pytest.raises(NotFound):
                await verb
        assert [info async for info in store.list()] == []


async def test_a_fork_outlives_its_origin(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        origin = await store.create(tools.agent())
        await origin.ask("do pay 1")
        fork = await origin.fork()
        await store.delete(origin.id)
        await (await fork.decide(approve(fork.pending[0]))).wait()
        await same_after_reopening(where, store, fork)


async def test_a_compaction_is_read_on_its_path_and_on_no_other(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where) as store:
        session = await store.create(tools.agent(script))
        for text in ("one", "two", "three"):
            await session.ask(text)
        kept, before = place(session, 4), place(session, -1)
        body = Compaction(keep=kept, summary="They talked.", usage=Usage(input_tokens=7), before=90, after=20)
        await session._live.command(lambda _: Plan(bodies=(body,), lease="claim_once"))
        at = place(session, -1)
        assert session.path[-1].summary == "They talked."
        fork = await session.fork()
        assert (fork.usage.total, session.usage.summaries) == (Usage(), Usage(input_tokens=7))
        for each in (session, fork):
            await each.ask("on")
            assert request_of(script) == ["> They talked.", "> three", "re three", "> on"]
            await each.branch(before)
            await each.ask("on")
            assert request_of(script)[0] == "> one"
            assert request_of(script)[-3:] == ["> three", "re three", "> on"]
            await each.branch(at)
            await each.ask("on")
            assert request_of(script) == ["> They talked.", "> three", "re three", "> on"]
            await same_after_reopening(where, store, each)
        assert session.usage.summaries == Usage(input_tokens=7)


# Notes, titles, metadata.


async def test_notes_are_kept_in_order_and_no_model_sees_them(where: Where, tools: Tools) -> None:
    script = talker()
    async with open_store(where, clock=ManualClock()) as store:
        session = await store.create(tools.agent(script))
        first = await session.note("a", "x\x00y\ud800")
        await session.ask("one")
        second = await session.note("", "")
        assert [(note.id, note.name, note.text) for note in session.notes] == [
            (first, "a", "x\ufffdy\ufffd"),
            (second, "", ""),
        ]
        assert session.notes[0].time == 1_800_000_000.0
        await session.branch(None)
        await session.ask("two")
        assert request_of(script) == ["> two"]
        assert len(session.notes) == 2  # they are the journal's, not the path's
        async with open_store(where) as other:
            assert (await other.open(session.id)).notes == session.notes


async def test_a_session_at_work_or_parked_is_noted_and_described(where: Where, tools: Tools) -> None:
    go = asyncio.Event()
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(tools.agent(Script(hold(go, call("pay", item=1)), say("done"))))
        there = await two.open(session.id)
        turn = await session.send("one")
        await there.note("while", "it runs")
        await there.describe(title="running")
        await session.note("here", "too")
        go.set()
        assert (await turn.wait()).parked
        await there.describe(title="parked", meta={"k": "v"})
        going_on = await session.decide(approve(session.pending[0]))
        assert (await going_on.wait()).text == "done"
        await session.refresh()
        assert [note.name for note in session.notes] == ["while", "here"]
        assert (session.title, session.meta) == ("parked", {"k": "v"})
        await same_after_reopening(where, one, session)


async def test_what_is_described_is_set_removed_and_else_stays(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent(), meta={"a": "1", "b": "2"})
        assert session.title is None
        await session.describe(title="one\x00")
        assert (session.title, session.meta) == ("one\ufffd", {"a": "1", "b": "2"})
        await session.describe(meta={"a": None, "c": "3", "never there": None})
        assert (session.title, session.meta) == ("one\ufffd", {"b": "2", "c": "3"})
        await session.describe(title="two", meta={"a": "back"})
        assert (session.title, session.meta) == ("two", {"a": "back", "b": "2", "c": "3"})
        await session.describe()
        assert session.header.meta == {"a": "1", "b": "2"}
        for wrong in ({"a": 1}, {1: "a"}, {1: None}):
            with pytest.raises(WrongCall):
                await session.describe(meta=wrong)  # type: ignore[arg-type]
        await session.describe(title="")
        assert session.title is None
        await same_after_reopening(where, store, session)


async def test_a_session_some_of_whose_calls_are_decided_waits_for_the_others(where: Where, tools: Tools) -> None:
    async with open_store(where) as store:
        session = await store.create(tools.agent())
        await session.ask("do pay 1, pay 2")
        await session.decide(approve(session.pending[1]))
        await session.settled_or_waiting()
        assert [request.args for request in session.pending] == ['{"item": 1}']
        assert tools.ran == []
        await session.decide(approve(session.pending[0]))
        await session.settled_or_waiting()
        assert told(session.messages)[-1] == "read pay 1|pay 2"


# Anything in any order.

PROMPTS = ("one", "do look 1", "do pay 1", "do pay 1, look 2, pay 3", "do help look", "do help pay, pay 4")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, len(PROMPTS) - 1)),
        st.tuples(st.sampled_from(["approve", "deny", "resolve", "cancel", "branch", "fork"]), st.integers(0, 40)),
    ),
    min_size=2,
    max_size=12,
)


async def step(session: Session, verb: str, n: int) -> Session:
    """One step, where it can be taken; the session to go on with."""
    tree = list(session._live.view.tree)
    if verb == "send":
        await session.send(PROMPTS[n])
    elif verb == "cancel":
        await session.cancel()
        await session.resume()
    elif verb in ("approve", "deny", "resolve") and session.pending:
        request = session.pending[n % len(session.pending)]
        made = {"approve": approve(request), "deny": deny(request, "no"), "resolve": resolve(request, "so")}
        await session.decide(made[verb])
    elif verb == "branch" and session._live.view.phase == "idle":
        await session.branch((None, *tree)[n % (len(tree) + 1)])
    elif verb == "fork" and tree:
        session = await session.fork(tree[n % len(tree)])
    for _ in range(20):
        if session._live.view.at_rest():
            return session
        await settle()
    raise AssertionError(f"after {verb} {n} the session comes to no rest")


@settings(max_examples=40)
@given(STEPS)
async def test_whatever_is_done_the_history_is_valid_and_the_same_after_reopening(steps: list[tuple[str, int]]) -> None:
    data, tools = Memory(), Tools()
    asked: set[str] = set()
    decided: set[str] = set()
    async with open_store(data) as store, Pool(3) as pool:
        session = await store.create(delegating(tools, pool))
        for verb, n in steps:
            before = {request.id for request in session.pending}
            after = await step(session, verb, n)
            fresh = {request.id for request in after.pending} - before
            assert not fresh & asked  # an id that was given once is never given again
            asked |= fresh
            decided |= before - {request.id for request in session.pending}
            assert not decided & {request.id for request in session.pending}
            session = after
            await same_after_reopening(data, store, session)
        ended = session._live.view.ended.values()
        assert all(end.outcome in ("answered", "parked", "cancelled") for end in ended)  # no request was refused
        assert len(set(tools.keys)) == len(tools.keys)
