"""Pools: children with receipts, slots, and approvals that go up the tree and come down again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.children import STALLED
from weft import Agent, Busy, Conflict, Context, Limits, ToolResult, Usage, tool
from weft.errors import DecideAtRoot, Expired, InvalidTool, NoNext, NotAllowed, NotPending, WrongCall
from weft.model import ModelError, ModelEvent, ModelInfo, ModelRequest
from weft.pool import Pool, Receipt
from weft.pool._slots import Slots
from weft.testing import ManualClock, Script, call, calls, fail, hold, override, say
from weft.thread import Entry, Memory, OpenStore, Root, Session, Turn, approve, deny, open_store, resolve

Where: TypeAlias = Memory | str
SPENT = Usage(input_tokens=10, output_tokens=5)


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


class Work:
    """A tool that remembers every start of its body, and ends when it is told."""

    def __init__(self, name: str = "look", *, hangs: bool = False, **options: Any) -> None:
        self.runs: list[int] = []
        self.keys: list[str] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        if not hangs:
            self.release.set()

        @tool(name=name, **options)
        async def body(ctx: Context, item: int) -> str:
            self.runs.append(item)
            self.keys.append(ctx.call.idempotency_key)
            self.started.set()
            await self.release.wait()
            return f"{name} {item}"

        self.tool = body


class Counted:
    """A script that counts how many requests are being answered at once."""

    def __init__(self, script: Script, at_work: AtWork) -> None:
        self._script = script
        self._at_work = at_work

    def info(self) -> ModelInfo:
        return self._script.info()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        with self._at_work:
            await settle(3)
            async for event in self._script.stream(request):
                yield event


class AtWork:
    """How many are at work at once, and how many ever were."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


def gate(name: str = "pay", **options: Any) -> Work:
    """A tool that needs approval."""
    return Work(name, approval=True, **options)


def results(session: Session) -> list[ToolResult]:
    return [result for message in session.messages for result in message.results]


def contents(session: Session) -> list[str]:
    return [result.content for result in results(session)]


async def journal(store: OpenStore, session: Session) -> list[Entry]:
    return [entry async for entry in store.watch(session.id, until=session.head)]


async def threads(store: OpenStore) -> dict[str, str | None]:
    """Every session's parent, by id."""
    return {header.thread: header.parent async for header in store.list(children=True)}


def states(session: Session) -> list[str]:
    return [receipt.state for receipt in session.receipts]


def stops(session: Session) -> list[str | None]:
    return [receipt.stop for receipt in session.receipts]


async def settle(rounds: int = 100) -> None:
    """Let every task do what it can do now."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def delegating(pool: Pool, child: Agent[Any], *steps: Any, tools: tuple[Any, ...] = (), **options: Any) -> Agent[Any]:
    """A parent with one delegating tool, `ask`."""
    return Agent(Script(*steps), tools=[pool.wrap("ask", child, description="Asks."), *tools], **options)


async def parked(store: OpenStore, agent: Agent[Any], **options: Any) -> tuple[Session, Turn]:
    """A session of this agent whose first turn has parked."""
    session = await store.create(agent, **options)
    turn = await session.send("go")
    assert (await turn.wait()).parked
    return session, turn


# Delegating.


async def test_a_delegation_is_a_session_of_its_own_with_a_receipt(where: Where) -> None:
    look = Work(effect="none")
    child = Agent(Script(call("look", item=1), say("42")), name="researcher", tools=[look.tool])
    pool = Pool(2)  # foreground wraps work without entering the pool
    async with open_store(where, clock=ManualClock(500.0)) as store:
        session = await store.create(delegating(pool, child, call("ask", prompt="find it"), say("done"), name="desk"))
        result = await session.ask("go")
        assert result.text == "done"
        assert contents(session) == ["42"]
        [receipt] = pool.receipts(session)
        assert isinstance(receipt, Receipt)
        assert session.receipts == (receipt,)
        assert receipt.id.startswith(f"{session.id}.")
        assert (receipt.state, receipt.stop, receipt.agent, receipt.prompt) == ("done", "42", "researcher", "find it")
        assert receipt.call == session.messages[1].calls[0].id
        assert receipt.usage == SPENT + SPENT
        assert (receipt.accepted, receipt.settled) == (500.0, 500.0)
        assert session.usage.delegated == SPENT + SPENT
        assert session.usage.turns == SPENT + SPENT
        assert session.usage.total.input_tokens == 40
        inner = await store.open(receipt.child)
        header = inner.header
        assert (header.parent, header.root, header.depth, header.call) == (session.id, session.id, 1, receipt.call)
        assert tuple(header.path) == ("desk", "ask")
        assert [message.text for message in inner.messages] == ["find it", "", "", "42"]
        assert inner.usage.total == receipt.usage
    async with open_store(where) as store:
        again = await store.open(session.id)
        assert again.receipts == (receipt,)
        assert again.usage == session.usage


async def test_a_settlement_and_its_result_are_one_append(where: Where) -> None:
    child = Agent(Script(say("42")))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(1), child, call("ask", prompt="x"), say("done")))
        await session.ask("go")
        entries = await journal(store, session)
        kinds = [entry.kind for entry in entries]
        assert kinds == [
            "header",
            "turn_started",
            "message",
            "message",
            "tools_started",
            "receipt",
            "receipt",
            "tool_result",
            "message",
            "turn_ended",
        ]


async def test_the_intent_is_written_before_the_child(where: Where) -> None:
    never = asyncio.Event()
    child = Agent(Script(hold(never, say("42"))))
    async with open_store(where, grace=0) as store:
        made: list[str] = []
        store.observe(lambda thread, entry: made.append(f"{entry.kind} {thread}"))
        session = await store.create(delegating(Pool(1), child, call("ask", prompt="x"), say("done")))
        await session.send("go")
        async for entry in store.watch(session.id):
            if entry.kind == "receipt":
                break
        assert states(session) == ["accepted"]
        assert session.receipts[0].child != session.id
        assert session.receipts[0].settled is None
        assert session.usage.delegated == Usage()


async def test_parallel_delegations_to_one_agent_share_nothing(where: Where) -> None:
    look = Work(effect="none")
    script = Script(call("look", item=1, call_id="call_1"), say("same"))
    child = Agent(script, tools=[look.tool])
    wanted = [call("ask", prompt=text, call_id="call_1") for text in ("a", "b", "a")]
    pool = Pool(3)
    async with open_store(where) as store:
        session = await store.create(delegating(pool, child, calls(*wanted), say("done")))
        assert (await session.ask("go")).text == "done"
        assert [receipt.prompt for receipt in session.receipts] == ["a", "b", "a"]
        assert len({receipt.child for receipt in session.receipts}) == 3
        assert len({receipt.call for receipt in session.receipts}) == 3
        assert [receipt.call for receipt in session.receipts] == [c.id for c in session.messages[1].calls]
        for receipt in session.receipts:
            inner = await store.open(receipt.child)
            assert inner.messages[0].text == receipt.prompt
            assert len(inner.messages) == 4
        assert session.usage.delegated.input_tokens == 60
        assert len(set(look.keys)) == 3
        assert len(await threads(store)) == 4
    assert len(script.requests) == 6


async def test_answers_are_in_call_order_whoever_ends_first(where: Where) -> None:
    last = asyncio.Event()
    slow = Agent(Script(hold(last, say("slow"))), name="slow")
    quick = Agent(Script(say("quick")), name="quick")
    pool = Pool(2)
    tools = [pool.wrap("slow", slow, description="x"), pool.wrap("quick", quick, description="x")]
    async with open_store(where) as store:
        script = Script(calls(call("slow", prompt="a"), call("quick", prompt="b")), say("done"))
        session = await store.create(Agent(script, tools=tools))
        turn = await session.send("go")
        async for entry in store.watch(session.id):
            if entry.kind == "tool_result":
                break
        assert states(session) == ["accepted", "done"]
        last.set()
        await turn.wait()
        assert contents(session) == ["slow", "quick"]
        assert stops(session) == ["slow", "quick"]


@pytest.mark.parametrize("usage", [True, False])
async def test_a_child_that_fails_is_that_calls_result_and_siblings_go_on(where: Where, usage: bool) -> None:
    look = Work(effect="none")
    steps = (call("look", item=1), fail(RuntimeError("hunter2"), times=None))
    broken = Agent(Script(*(steps if usage else steps[1:])), name="broken", tools=[look.tool])
    fine = Agent(Script(say("fine")), name="fine")
    pool = Pool(1)
    tools = [pool.wrap("broken", broken, description="x"), pool.wrap("fine", fine, description="x"), look.tool]
    wanted = calls(call("broken", prompt="a"), call("fine", prompt="b"), call("look", item=7))
    async with open_store(where) as store:
        session = await store.create(Agent(Script(wanted, say("done")), tools=tools))
        assert (await session.ask("go")).text == "done"
        first, second, third = results(session)
        assert (first.is_error, first.code) == (True, "SUBAGENT_FAILED")
        assert (second.content, third.content) == ("fine", "look 7")
        assert states(session) == ["failed", "done"]
        assert session.receipts[0].stop
        assert session.receipts[0].usage is not None
        assert session.receipts[0].usage.input_tokens == (10 if usage else 0)
        assert session.usage.delegated.input_tokens == (20 if usage else 10)


async def test_a_child_that_reaches_a_limit_is_capped(where: Where) -> None:
    look = Work(effect="none")
    child = Agent(Script(call("look", item=1), say("?")), tools=[look.tool], limits=Limits(steps=1))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(1), child, call("ask", prompt="x"), say("done")))
        assert (await session.ask("go")).text == "done"
        assert states(session) == ["capped"]
        assert session.usage.delegated == SPENT
        assert results(session)[0].is_error


async def test_a_childs_instructions_that_raise_fail_the_child_alone(where: Where) -> None:
    def instructions(ctx: Context[None]) -> str:
        raise RuntimeError("hunter2")

    child = Agent(Script(say("never")), instructions=instructions)
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(1), child, call("ask", prompt="x"), say("done")))
        assert (await session.ask("go")).text == "done"
        assert states(session) == ["failed"]
        assert results(session)[0].code == "SUBAGENT_FAILED"
        assert "hunter2" not in results(session)[0].content


@pytest.mark.parametrize("arguments", [{}, {"prompt": ""}, {"prompt": 7}, "not json"])
async def test_a_delegation_without_a_prompt_creates_nothing(where: Where, arguments: Any) -> None:
    child = Agent(Script(say("never")))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(1), child, call("ask", arguments), say("done")))
        assert (await session.ask("go")).text == "done"
        assert [result.code for result in results(session)] == ["INVALID_INPUT"]
        assert session.receipts == ()
        assert await threads(store) == {session.id: None}


async def test_a_childs_long_answer_is_capped_for_its_parent(where: Where) -> None:
    child = Agent(Script(say("x" * 300_000)))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(1), child, call("ask", prompt="x"), say("done")))
        assert (await session.ask("go")).text == "done"
        [result] = results(session)
        assert len(result.content) < 70_000
        assert "bytes are missing" in result.content


async def test_a_failing_childs_long_reason_is_capped_for_its_parent(where: Where) -> None:
    child = Agent(Script(fail(ModelError("x" * 300_000), times=None)))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(1), child, call("ask", prompt="x"), say("done")))
        assert (await session.ask("go")).text == "done"
        [result] = results(session)
        assert len(result.content) < 70_000
        assert "bytes are missing" in result.content


async def test_a_whole_ledger_counts_once_at_each_level(where: Where) -> None:
    pool = Pool(2)
    leaf = Agent(Script(say("leaf")), name="leaf")
    middle = delegating(pool, leaf, calls(call("ask", prompt="1"), call("ask", prompt="2")), say("middle"), name="mid")
    root = delegating(pool, middle, call("ask", prompt="x"), say("done"), name="root")
    async with open_store(where) as store:
        session = await store.create(root)
        await session.ask("go")
        [receipt] = session.receipts
        assert receipt.usage is not None
        assert receipt.usage.input_tokens == 40
        inner = await store.open(receipt.child)
        assert (inner.usage.turns.input_tokens, inner.usage.delegated.input_tokens) == (20, 20)
        assert session.usage.total.input_tokens == 60
        deepest = await store.open(inner.receipts[0].child)
        assert tuple(deepest.header.path) == ("root", "ask", "ask")
        assert (deepest.header.depth, deepest.header.root, deepest.header.parent) == (2, session.id, inner.id)


async def test_a_child_keeps_nothing_of_an_earlier_delegation(where: Where) -> None:
    script = Script(say("a child's"))
    child = Agent(script)
    async with open_store(where) as store:
        session = await store.create(
            delegating(Pool(1), child, call("ask", prompt="1"), say("x"), call("ask", prompt="2"), say("y"))
        )
        await session.ask("a")
        await session.ask("b")
        assert states(session) == ["done", "done"]
        assert [len(request.messages) for request in script.requests] == [1, 1]


async def test_a_child_is_replaced_by_its_name(where: Where) -> None:
    pool = Pool(1)
    child = Agent("openai:nothing-that-is-there", name="researcher")
    async with open_store(where) as store:
        session = await store.create(delegating(pool, child, call("ask", prompt="x"), say("done")))
        with override({"researcher": Script(say("scripted"))}):
            await session.ask("go")
        assert contents(session) == ["scripted"]


WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_a_child_runs_in_the_context_of_its_parents_send(where: Where) -> None:
    @tool(approval=True)
    async def who() -> str:
        return WHO.get()

    @tool(effect="none")
    async def who_now() -> str:
        return WHO.get()

    pool = Pool(1)
    child = Agent(Script(call("who_now"), call("who"), say("x")), tools=[who, who_now])
    async with open_store(where) as store:
        session = await store.create(delegating(pool, child, call("ask", prompt="x"), say("done")))
        token = WHO.set("ann")
        turn = await session.send("go")
        WHO.reset(token)
        await turn.wait()
        token = WHO.set("the boss")
        await pool.decide(session, approve(session.pending[0]))
        WHO.reset(token)
        await (await turn.next()).wait()
        assert contents(await store.open(session.receipts[0].child)) == ["ann", "ann"]


async def test_a_child_is_never_allowed_more_than_its_parent(where: Where) -> None:
    sell = Work("sell", needs={"stock:write"})
    child = Agent(Script(call("sell", item=1), say("x")), tools=[sell.tool])
    pool = Pool(1)
    parent = delegating(pool, child, call("ask", prompt="x"), say("done"))
    async with open_store(where) as store:
        session = await store.create(parent, allow={"stock:read"})
        assert (await session.ask("go")).text == "done"
        assert sell.runs == []
        if session.receipts:
            assert [r.code for r in results(await store.open(session.receipts[0].child))] == ["NOT_ALLOWED"]
        session = await store.create(parent, allow={"stock:write"})
        await session.ask("go")
        assert sell.runs == [1]


@pytest.mark.parametrize("stored", [True, False], ids=["session", "bare run"])
async def test_a_pool_narrows_what_its_children_are_allowed(where: Where, *, stored: bool) -> None:
    sell, look = Work("sell", needs={"stock:write"}), Work("look", needs={"stock:read"}, effect="none")
    script = Script(calls(call("sell", item=1), call("look", item=2)), say("x"))
    leaf = Agent(script, name="leaf", tools=[sell.tool, look.tool])
    child = delegating(Pool(1), leaf, call("ask", prompt="x"), say("x"), name="child")
    pool = Pool(1, allow={"stock:read"})
    parent = delegating(pool, child, call("ask", prompt="x"), say("done"), allow={"stock:read", "stock:write"})
    async with open_store(where) as store:
        result = await (await store.create(parent)).ask("go") if stored else await parent.run("go")
    assert result.text == "done"
    told = [(part.content, part.code) for message in script.requests[-1].messages for part in message.results]
    assert told == [("Not permitted; missing: stock:write.", "NOT_ALLOWED"), ("look 2", None)]
    assert (sell.runs, look.runs) == ([], [2])


def test_what_a_pool_does_not_allow_is_refused_when_it_is_wrapped() -> None:
    sell = Work("sell", needs={"stock:write"})
    child = Agent(Script(), tools=[sell.tool])
    with pytest.raises(NotAllowed, match="stock:write"):
        Pool(1, allow={"stock:read"}).wrap("ask", child, description="x")
    with pytest.raises(WrongCall, match="a set of permissions"):
        Pool(1, allow="stock:read")


# Deps.


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name


@tool(effect="none")
async def whose(ctx: Context[Shop]) -> str:
    """Whose shop it is."""
    return ctx.deps.name


async def _renamed(shop: Shop) -> Shop:
    return Shop(f"{shop.name}, async")


@pytest.mark.parametrize(
    ("deps", "name"),
    [
        ({}, "ann's"),
        ({"deps": Shop("bob's")}, "bob's"),
        ({"deps": lambda shop: Shop(f"{shop.name} annex")}, "ann's annex"),
        ({"deps": _renamed}, "ann's, async"),
    ],
)
async def test_a_childs_deps_are_the_parents_unless_said_otherwise(
    where: Where, deps: dict[str, Any], name: str
) -> None:
    pool = Pool(1)
    child = Agent(Script(call("whose"), say("x")), deps=Shop, tools=[whose])
    wrapped = pool.wrap("ask", child, description="x", **deps)
    parent = Agent(Script(call("ask", prompt="x"), say("done")), deps=Shop, tools=[wrapped])
    async with open_store(where) as store:
        session = await store.create(parent, deps=Shop("ann's"))
        await session.ask("go")
        assert contents(await store.open(session.receipts[0].child)) == [name]


async def test_deps_are_mapped_at_each_wrap_also_after_a_restart(where: Where) -> None:
    pool = Pool(1)

    @tool(approval=True, effect="none")
    async def gated(ctx: Context[Shop]) -> str:
        return ctx.deps.name

    def further(shop: Shop) -> Shop:
        return Shop(f"{shop.name}+")

    def tree() -> Agent[Shop]:
        leaf = Agent(Script(call("gated"), say("x")), deps=Shop, tools=[gated])
        middle = Agent(
            Script(call("b", prompt="x"), say("x")),
            deps=Shop,
            tools=[pool.wrap("b", leaf, description="x", deps=further)],
        )
        return Agent(
            Script(call("a", prompt="x"), say("done")),
            deps=Shop,
            tools=[pool.wrap("a", middle, description="x", deps=further)],
        )

    async with open_store(where) as store:
        session, _ = await parked(store, tree(), deps=Shop("old"))
    async with open_store(where) as store:
        again = await store.open(session.id, tree(), deps=Shop("new"))
        turn = await pool.decide(again, approve(again.pending[0]))
        await turn.wait()
        middle = await store.open(again.receipts[0].child)
        assert contents(await store.open(middle.receipts[0].child)) == ["new++"]


async def test_a_plain_function_of_the_deps_does_not_run_on_the_loops_thread(where: Where) -> None:
    ran: list[int] = []

    def further(shop: Shop) -> Shop:
        ran.append(threading.get_ident())
        return shop

    child = Agent(Script(call("whose"), say("x")), deps=Shop, tools=[whose])
    wrapped = Pool(1).wrap("ask", child, description="x", deps=further)
    desk = Agent(Script(call("ask", prompt="x"), say("done")), deps=Shop, tools=[wrapped])
    async with open_store(where) as store:
        session = await store.create(desk, deps=Shop("ann's"))
        assert (await session.ask("go")).text == "done"
    assert ran
    assert threading.get_ident() not in ran


@pytest.mark.parametrize("wrong", [lambda shop: 1 / 0, lambda shop: "no shop", "no shop"])
async def test_deps_that_can_not_be_made_fail_that_delegation(where: Where, wrong: Any) -> None:
    pool = Pool(1)
    child = Agent(Script(call("whose"), say("x")), deps=Shop, tools=[whose])
    tools = [pool.wrap("ask", child, description="x", deps=wrong), pool.wrap("fine", child, description="x")]
    script = Script(calls(call("ask", prompt="x"), call("fine", prompt="x")), say("done"))
    async with open_store(where) as store:
        session = await store.create(Agent(script, deps=Shop, tools=tools), deps=Shop("ann's"))
        assert (await session.ask("go")).text == "done"
        assert [result.code for result in results(session)] == ["SUBAGENT_FAILED", None]
        assert states(session) == ["failed", "done"]


# Slots.


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("limit", [1, 3])
async def test_any_fan_out_and_depth_drains_within_the_limit(where: Where, limit: int, depth: int) -> None:
    at_work = AtWork()

    @tool(effect="none")
    async def dig() -> str:
        with at_work:
            await settle(3)
        return "dug"

    pool = Pool(limit)

    def level(n: int) -> Agent[Any]:
        if n == depth:
            return Agent(Script(call("dig"), say("leaf")), name=f"level {n}", tools=[dig])
        wanted = [call("ask", prompt=str(i)) for i in range(3)]
        script = Script(call("dig"), calls(*wanted, call("dig")), call("dig"), say(f"level {n}"))
        return Agent(script, name=f"level {n}", tools=[dig, pool.wrap("ask", level(n + 1), description="x")])

    first = calls(*(call("ask", prompt=str(i)) for i in range(3)))
    async with open_store(where) as store:
        root = Agent(Script(first, say("done")), tools=[pool.wrap("ask", level(1), description="x")])
        session = await store.create(root)
        assert (await session.ask("go")).text == "done"
        assert states(session) == ["done"] * 3
        assert len(await threads(store)) == 1 + sum(3**n for n in range(1, depth + 1))
        leaves, inner = 3**depth, sum(3**n for n in range(1, depth))
        assert session.usage.delegated.input_tokens == 10 * (2 * leaves + 4 * inner)
    assert 1 <= at_work.most <= limit
    assert at_work.now == 0


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_child_holds_a_slot_also_while_its_model_is_asked(where: Where, limit: int) -> None:
    at_work = AtWork()

    @tool(effect="none")
    async def dig() -> str:
        with at_work:
            await settle(3)
        return "dug"

    pool = Pool(limit)
    child = Agent(Counted(Script(call("dig"), call("dig"), say("x")), at_work), tools=[dig])
    wanted = calls(*(call("ask", prompt=str(i)) for i in range(5)))
    async with open_store(where) as store:
        session = await store.create(delegating(pool, child, wanted, say("done")))
        await session.ask("go")
        assert states(session) == ["done"] * 5
    assert 1 <= at_work.most <= limit


async def test_as_many_children_as_the_limit_work_at_once(where: Where) -> None:
    everybody = asyncio.Event()
    here: list[str] = []

    @tool(effect="none")
    async def meet(ctx: Context) -> str:
        assert ctx.call.thread is not None
        here.append(ctx.call.thread)
        if len(here) == 3:
            everybody.set()
        await everybody.wait()
        return "met"

    child = Agent(Script(call("meet"), say("x")), tools=[meet])
    wanted = calls(*(call("ask", prompt=str(i)) for i in range(3)))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(3), child, wanted, say("done")))
        assert (await session.ask("go")).text == "done"
    assert len(set(here)) == 3


async def test_more_delegations_than_plain_calls_may_run_at_once(where: Where) -> None:
    everybody = asyncio.Event()
    here: list[str] = []

    @tool(effect="none")
    async def meet(ctx: Context) -> str:
        here.append(ctx.call.id)
        if len(here) == 8:
            everybody.set()
        await everybody.wait()
        return "met"

    child = Agent(Script(call("meet"), say("x")), tools=[meet])
    wanted = calls(*(call("ask", prompt=str(i)) for i in range(8)))
    async with open_store(where) as store:
        session = await store.create(delegating(Pool(8), child, wanted, say("done")))
        assert (await session.ask("go")).text == "done"


async def test_one_pool_bounds_all_sessions_together(where: Where) -> None:
    at_work = AtWork()

    @tool(effect="none")
    async def dig() -> str:
        with at_work:
            await settle(3)
        return "dug"

    pool = Pool(2)
    child = Agent(Script(call("dig"), say("x")), tools=[dig])
    parent = delegating(pool, child, calls(*(call("ask", prompt=str(i)) for i in range(3))), say("done"))
    async with open_store(where) as store:
        sessions = [await store.create(parent) for _ in range(3)]
        assert [(await s).text for s in [asyncio.ensure_future(s.ask("go")) for s in sessions]] == ["done"] * 3
    assert 1 <= at_work.most <= 2


async def test_a_parked_child_and_a_failed_one_hold_no_slot(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    parks = Agent(Script(call("pay", item=1), say("paid")), name="parks", tools=[pay.tool])
    fails = Agent(Script(fail(RuntimeError("no"), times=None)), name="fails")
    fine = Agent(Script(say("fine")), name="fine")
    tools = [pool.wrap(agent.name, agent, description="x") for agent in (parks, fails, fine)]
    wanted = calls(*(call(agent.name, prompt="x") for agent in (parks, fails, fine)))
    async with open_store(where) as store:
        session, turn = await parked(store, Agent(Script(wanted, say("done")), tools=tools))
        assert states(session) == ["parked", "failed", "done"]
        await pool.decide(session, approve(session.pending[0]))
        assert (await (await turn.next()).wait()).text == "done"
        assert [result.code for result in results(session)] == [None, "SUBAGENT_FAILED", None]


async def test_a_slot_is_not_lost_with_the_store_that_its_child_was_left_in(where: Where) -> None:
    pool = Pool(1)
    look = Work(hangs=True, effect="none")
    child = Agent(Script(call("look", item=1), say("x")), tools=[look.tool])
    wanted = calls(call("ask", prompt="1"), call("ask", prompt="2"))
    parent = delegating(pool, child, wanted, say("done"))
    async with open_store(where, grace=0) as store:
        session = await store.create(parent)
        await session.send("go")
        await look.started.wait()
    look.release.set()
    async with open_store(where) as store:
        turn = await store.recover(session.id, parent)
        assert turn is not None
        assert (await turn.wait()).text == "done"
        assert states(await store.open(session.id)) == ["done", "done"]


@pytest.mark.parametrize("returning", [False, True])
async def test_a_wait_that_is_cancelled_while_slots_are_given_back_is_cancelled_and_leaks_none(returning: bool) -> None:
    slots = Slots(1)
    await slots.enter(returning=False)
    waits = [asyncio.create_task(slots.enter(returning=returning)) for _ in range(3)]
    await settle(3)
    waits[0].cancel()
    waits[1].cancel()
    slots.leave()  # in the same moment, as when a store is left
    await asyncio.wait(waits)
    assert [wait.cancelled() for wait in waits] == [True, True, False]
    slots.leave()
    await slots.enter(returning=False)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_pool_of_nothing_is_refused(wrong: int) -> None:
    with pytest.raises(WrongCall):
        Pool(wrong)
    with pytest.raises(WrongCall):
        Pool(1, depth=wrong)


# Depth, cycles, names.


async def test_an_agent_that_is_at_work_above_is_a_cycle(where: Where) -> None:
    pool = Pool(3)
    one = Agent(Script())
    two = Agent(
        Script(call("one", prompt="back to you"), say("so I did it myself")),
        name="two",
        tools=[pool.wrap("one", one, description="x")],
    )
    Agent.__init__(  # agents are values, so a circle has to be forced
        one, Script(call("two", prompt="x"), say("done")), name="one", tools=[pool.wrap("two", two, description="x")]
    )
    async with open_store(where) as store:
        session = await store.create(one)
        assert (await session.ask("go")).text == "done"
        assert contents(session) == ["so I did it myself"]
        inner = await store.open(session.receipts[0].child)
        assert [result.code for result in results(inner)] == ["SUBAGENT_CYCLE"]
        assert inner.receipts == ()
        assert len(await threads(store)) == 2


async def test_a_chain_may_be_as_deep_as_the_pool_allows_and_no_deeper(where: Where) -> None:
    pool = Pool(1, depth=2)
    agent = Agent(Script(say("the deepest")), name="level 3")
    for n in (2, 1, 0):
        agent = delegating(pool, agent, call("ask", prompt="x"), say(f"level {n}"), name=f"level {n}")
    async with open_store(where) as store:
        session = await store.create(agent)
        assert (await session.ask("go")).text == "level 0"
        one = await store.open(session.receipts[0].child)
        two = await store.open(one.receipts[0].child)
        assert contents(one) == ["level 2"]
        assert [result.code for result in results(two)] == ["SUBAGENT_DEPTH"]
        assert two.receipts == ()
        assert len(await threads(store)) == 3


def test_two_tools_of_one_name_are_refused() -> None:
    pool = Pool(1)
    child = Agent(Script())
    with pytest.raises(InvalidTool, match="ask"):
        Agent(
            Script(),
            tools=[pool.wrap("ask", child, description="x"), pool.wrap("ask", Agent(Script()), description="y")],
        )
    with pytest.raises(InvalidTool, match="look"):
        Agent(Script(), tools=[pool.wrap("look", child, description="x"), Work().tool])


# Without a session.


async def test_in_a_bare_run_a_child_is_a_sub_agent_whose_usage_counts() -> None:
    pool = Pool(1)
    look = Work(effect="none")
    child = Agent(Script(call("look", item=1), say("42")), tools=[look.tool])
    result = await delegating(pool, child, call("ask", prompt="x"), say("done")).run("go")
    assert result.text == "done"
    assert result.messages[2].results[0].content == "42"
    assert result.usage.input_tokens == 40


async def test_in_a_bare_run_a_failing_child_is_a_result() -> None:
    child = Agent(Script(fail(RuntimeError("hunter2"), times=None)))
    result = await delegating(Pool(1), child, call("ask", prompt="x"), say("done")).run("go")
    assert result.text == "done"
    assert result.messages[2].results[0].code == "SUBAGENT_FAILED"


async def test_in_a_bare_run_a_child_that_parks_has_failed_and_sessions_are_named() -> None:
    pay = gate()
    child = Agent(Script(call("pay", item=1), say("x")), tools=[pay.tool])
    result = await delegating(Pool(1), child, call("ask", prompt="x"), say("done")).run("go")
    assert result.text == "done"
    [told] = result.messages[2].results
    assert told.code == "SUBAGENT_FAILED"
    assert "session" in told.content
    assert pay.runs == []


@pytest.mark.parametrize("limit", [1, 3])
async def test_in_a_bare_run_children_are_under_the_limit_too(limit: int) -> None:
    at_work = AtWork()

    @tool(effect="none")
    async def dig() -> str:
        with at_work:
            await settle(3)
        return "dug"

    pool = Pool(limit)
    leaf = Agent(Script(*([call("dig"), say("x")] * 9)), tools=[dig], name="leaf")
    wanted = calls(*(call("ask", prompt=str(i)) for i in range(3)))
    leaves = [Agent(Script(*([call("dig"), say("x")] * 3)), tools=[dig], name=f"leaf {n}") for n in range(3)]
    middles = [delegating(pool, leaf, wanted, call("dig"), say("m"), name="m", tools=(dig,)) for leaf in leaves]
    tools = [pool.wrap(f"ask{n}", middle, description="x") for n, middle in enumerate(middles)]
    root = Agent(Script(calls(*(call(f"ask{n}", prompt="x") for n in range(3))), say("done")), tools=tools)
    assert leaf.name == "leaf"
    assert (await root.run("go")).text == "done"
    assert 1 <= at_work.most <= limit


async def test_in_a_bare_run_cycles_and_depth_are_refused_too() -> None:
    pool = Pool(1, depth=1)
    leaf = Agent(Script(say("never")), name="leaf")
    middle_script = Script(call("ask", prompt="x"), say("myself"))
    middle = Agent(middle_script, name="middle", tools=[pool.wrap("ask", leaf, description="x")])
    result = await delegating(pool, middle, call("ask", prompt="x"), say("done")).run("go")
    assert result.text == "done"
    told = middle_script.requests[1].messages[-1].results
    assert [item.code for item in told] == ["SUBAGENT_DEPTH"]


# A child that parks.


def payer(pay: Work, *more: Any, name: str = "payer") -> Agent[Any]:
    """A child that pays once, then says so."""
    return Agent(Script(*(more or (call("pay", item=1, call_id="call_1"), say("paid")))), name=name, tools=[pay.tool])


ASK = (call("ask", prompt="pay", call_id="call_1"), say("handled"))


async def test_a_childs_request_is_asked_at_the_root_under_its_path(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    parent = delegating(pool, payer(pay), *ASK, name="desk")
    async with open_store(where) as store:
        session, turn = await parked(store, parent)
        assert turn.outcome == "parked"
        [request] = session.pending
        [receipt] = pool.receipts(session)
        assert (request.tool, request.kind, tuple(request.path)) == ("pay", "approval", ("desk", "ask"))
        assert json.loads(request.args) == {"item": 1}
        assert request.id.startswith(f"{receipt.child}.")
        inner = await store.open(receipt.child)
        assert inner.pending == (request,)
        assert (receipt.state, receipt.stop, receipt.settled) == ("parked", None, None)
        assert (await turn.wait()).pending == (request,)
        assert session.usage.delegated == Usage()
        assert pay.runs == []
        assert await session.resume() is None
    async with open_store(where) as store:
        again = await store.open(session.id)
        assert again.pending == (request,)
        assert states(again) == ["parked"]


@pytest.mark.parametrize("how", ["pool", "session", "store"])
async def test_a_childs_approval_is_answered_at_the_root(where: Where, how: str) -> None:
    pay = gate()
    pool = Pool(1)
    parent = delegating(pool, payer(pay), *ASK)
    async with open_store(where) as store:
        session, turn = await parked(store, parent)
        first = session.receipts[0]
        if how == "pool":
            child_turn = await pool.decide(session, approve(session.pending[0]))
            assert session.pending == ()
            result = await child_turn.wait()
            assert result.text == "paid"
            assert child_turn.id != turn.id
            assert child_turn.outcome == "answered"
        elif how == "session":
            own = await session.decide(approve(session.pending[0]))
            assert (await own.wait()).text == "handled"
            assert (await turn.next()).id == own.id
        else:
            await store.decide(approve(session.pending[0]))
            await settle()
            assert session.pending == ()
            assert states(session) == ["accepted"]
            assert pay.runs == []
            await session.resume()
        following = await turn.next()
        assert (await following.wait()).text == "handled"
        assert (await turn.wait()).parked
        with pytest.raises(NoNext):
            await following.next()
        [receipt] = session.receipts
        assert (receipt.state, receipt.stop, receipt.id) == ("done", "paid", first.id)
        assert session.usage.delegated == SPENT + SPENT
        assert contents(session) == ["paid"]
        assert await session.resume() is None
    assert pay.runs == [1]


async def test_pool_decide_does_not_wait_for_the_child(where: Where) -> None:
    pay = gate(hangs=True)
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, payer(pay), *ASK))
        child_turn = await pool.decide(session, approve(session.pending[0]))
        await pay.started.wait()
        assert states(session) == ["accepted"]
        assert session.pending == ()
        assert child_turn.outcome is None
        pay.release.set()
        assert (await child_turn.wait()).text == "paid"
        assert (await (await turn.next()).wait()).text == "handled"


async def test_a_denied_child_is_told_why_and_its_parent_goes_on(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, payer(pay), *ASK))
        await (await pool.decide(session, deny(session.pending[0], "too dear"))).wait()
        assert (await (await turn.next()).wait()).text == "handled"
        [result] = results(await store.open(session.receipts[0].child))
        assert result.code == "DENIED"
        assert "too dear" in result.content
        assert states(session) == ["done"]
    assert pay.runs == []


async def test_nobody_is_asked_to_plan_again(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    scripts = [Script(call("pay", item=1), say("paid")), Script(*ASK)]
    child = Agent(scripts[0], tools=[pay.tool])
    async with open_store(where) as store:
        session, turn = await parked(store, Agent(scripts[1], tools=[pool.wrap("ask", child, description="x")]))
        assert [len(script.requests) for script in scripts] == [1, 1]
        await pool.decide(session, approve(session.pending[0]))
        await (await turn.next()).wait()
    assert [len(script.requests) for script in scripts] == [2, 2]
    assert [[request.position.index for request in script.requests] for script in scripts] == [[0, 1], [0, 1]]


async def test_a_child_may_park_again_and_again(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    steps = [call("pay", item=n, call_id="call_1") for n in (1, 2, 3)]
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, payer(pay, *steps, say("paid")), *ASK))
        child_turn: Turn | None = None
        seen: list[str] = []
        for n in (1, 2, 3):
            assert states(session) == ["parked"]
            [request] = session.pending
            seen.append(request.id)
            assert json.loads(request.args) == {"item": n}
            following = await pool.decide(session, approve(request))
            if child_turn is not None:
                assert (await child_turn.next()).id == following.id
            child_turn = following
            result = await child_turn.wait()
            assert result.parked == (n < 3)
            while n < 3 and states(session) != ["parked"]:
                await session.refresh()
        assert len(set(seen)) == 3
        assert (await (await turn.next()).wait()).text == "handled"
        assert stops(session) == ["paid"]
        assert [entry.kind for entry in await journal(store, session)].count("turn_started") == 2
    assert pay.runs == [1, 2, 3]


async def _until_pending(session: Session, count: int = 1) -> None:
    """Return when so many requests have reached this session."""
    while len(session.pending) < count:  # each look lets the tasks that carry them up go on
        await session.refresh()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("batch", [False, True])
async def test_two_children_parked_at_once_are_decided_in_any_order(
    where: Where, order: tuple[int, int], batch: bool
) -> None:
    pay, look = gate(), Work(effect="none")
    pool = Pool(2)
    child_script = Script(call("pay", item=1, call_id="call_1"), say("paid"))
    child = Agent(child_script, name="payer", tools=[pay.tool])
    script = Script(calls(call("ask", prompt="a"), call("look", item=7), call("ask", prompt="b")), say("handled"))
    async with open_store(where) as store:
        parent = Agent(script, tools=[pool.wrap("ask", child, description="x"), look.tool])
        session, turn = await parked(store, parent)
        await _until_pending(session, 2)
        requests = {request.id.partition(".")[0]: request for request in session.pending}
        receipts = session.receipts
        asked = [requests[receipts[n].child] for n in order]
        if batch:
            child_turn = await pool.decide(session, *(approve(request) for request in asked))
            assert (await child_turn.wait()).text == "paid"
            first = await store.open(receipts[order[0]].child)
            assert child_turn.id in {entry.id for entry in await journal(store, first)}
        else:
            child_turn = await pool.decide(session, approve(asked[0]))
            assert (await child_turn.wait()).text == "paid"
            while session.receipts[order[0]].state != "done":
                await session.refresh()
            assert session.receipts[order[1]].state == "parked"
            assert session.pending == (asked[1],)
            assert turn.outcome == "parked"
            assert len(script.requests) == 1
            await (await pool.decide(session, approve(asked[1]))).wait()
        assert (await (await turn.next()).wait()).text == "handled"
        assert contents(session) == ["paid", "look 7", "paid"]
        assert states(session) == ["done", "done"]
        assert session.usage.delegated.input_tokens == 40
    assert (pay.runs, look.runs) == ([1, 1], [7])
    assert (len(script.requests), len(child_script.requests)) == (2, 4)


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_the_parents_own_request_and_its_childrens_are_decided_in_any_order(
    where: Where, order: tuple[int, ...]
) -> None:
    pay, own = gate(), gate("own")
    pool = Pool(2)
    script = Script(calls(call("own", item=1), call("ask", prompt="a"), call("ask", prompt="b")), say("handled"))
    child = payer(pay)
    async with open_store(where) as store:
        parent = Agent(script, tools=[pool.wrap("ask", child, description="x"), own.tool])
        session, turn = await parked(store, parent)
        await _until_pending(session, 3)
        by_thread = {request.id.partition(".")[0]: request for request in session.pending}
        asked = [by_thread[session.id], *(by_thread[receipt.child] for receipt in session.receipts)]
        for n in order:
            assert len(script.requests) == 1
            await pool.decide(session, approve(asked[n]))
        following = await turn.next()
        assert (await following.wait()).text == "handled"
        assert contents(session) == ["own 1", "paid", "paid"]
        assert [entry.kind for entry in await journal(store, session)].count("turn_started") == 2
    assert (own.runs, pay.runs, len(script.requests)) == ([1], [1, 1], 2)


async def test_a_childs_request_can_be_decided_while_its_parent_is_in_mid_turn(where: Where) -> None:
    pay, slow = gate(), Work("slow", hangs=True, effect="none")
    pool = Pool(1)
    script = Script(calls(call("ask", prompt="a"), call("slow", item=1)), say("handled"))
    async with open_store(where) as store:
        parent = Agent(script, tools=[pool.wrap("ask", payer(pay), description="x"), slow.tool])
        session = await store.create(parent)
        turn = await session.send("go")
        await slow.started.wait()
        await _until_pending(session)
        assert turn.outcome is None
        child_turn = await pool.decide(session, approve(session.pending[0]))
        assert (await child_turn.wait()).text == "paid"
        while states(session) != ["done"]:
            await session.refresh()
        assert turn.outcome is None
        slow.release.set()
        result = await turn.wait()
        assert (result.text, result.parked) == ("handled", False)
        assert contents(session) == ["paid", "slow 1"]
        with pytest.raises(NoNext):
            await turn.next()
    assert (pay.runs, slow.runs, len(script.requests)) == ([1], [1], 2)


@pytest.mark.parametrize("resume", [False, True])
async def test_another_store_decides_while_the_parent_is_in_mid_turn(where: Where, resume: bool) -> None:
    pay, slow = gate(), Work("slow", hangs=True, effect="none")
    pool = Pool(1)
    script = Script(calls(call("ask", prompt="a"), call("slow", item=1)), say("handled"))
    async with open_store(where) as one, open_store(where) as two:
        parent = Agent(script, tools=[pool.wrap("ask", payer(pay), description="x"), slow.tool])
        session = await one.create(parent)
        turn = await session.send("go")
        await slow.started.wait()
        await _until_pending(session)
        while states(session) != ["parked"]:
            await session.refresh()
        await two.decide(approve(session.pending[0]))
        if resume:
            await session.resume()
            await session.refresh()
            assert session.pending == ()
        slow.release.set()
        async with asyncio.timeout(STALLED):  # nobody else can go on with the child; without this a fault is a hang
            result = await turn.wait()
            if result.parked:
                result = await (await turn.next()).wait()
        assert result.text == "handled"
        assert contents(session) == ["paid", "slow 1"]
    assert (pay.runs, len(script.requests)) == ([1], 2)


async def test_a_child_decided_just_before_its_parent_parks_is_not_lost(where: Where) -> None:
    pay, slow = gate(hangs=True), Work("slow", hangs=True, effect="none")
    pool = Pool(1)
    script = Script(calls(call("ask", prompt="a"), call("slow", item=1)), say("handled"))
    async with open_store(where) as store:
        parent = Agent(script, tools=[pool.wrap("ask", payer(pay), description="x"), slow.tool])
        session = await store.create(parent)
        turn = await session.send("go")
        await slow.started.wait()
        await _until_pending(session)
        await pool.decide(session, approve(session.pending[0]))
        slow.release.set()
        await pay.started.wait()
        await settle()
        pay.release.set()
        result = await turn.wait()
        if result.parked:
            result = await (await turn.next()).wait()
        assert result.text == "handled"
        assert contents(session) == ["paid", "slow 1"]
    assert (pay.runs, len(script.requests)) == ([1], 2)


async def test_what_is_sent_to_a_parent_whose_child_is_parked_runs_after_it(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, payer(pay), *ASK, say("later")))
        queued = await session.send("and then?")
        with pytest.raises(Busy):
            await session.send("now!", policy="reject")
        await settle()
        assert queued.id is None
        await pool.decide(session, approve(session.pending[0]))
        assert (await (await turn.next()).wait()).text == "handled"
        assert (await queued.wait()).text == "later"


async def test_a_session_with_an_unsettled_child_is_not_deleted(where: Where) -> None:
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, payer(gate()), *ASK))
        with pytest.raises(Busy):
            await store.delete(session.id)
        await pool.decide(session, deny(session.pending[0]))
        await (await turn.next()).wait()
        await settle()
        await store.delete(session.id)


# Deciding wrongly, again, too late.


async def test_a_childs_request_is_decided_under_the_same_rules(where: Where) -> None:
    pay, own = gate(), gate("own")
    pool = Pool(1)
    script = Script(calls(call("ask", prompt="a"), call("own", item=1)), say("handled"))
    async with open_store(where) as store:
        parent = Agent(script, tools=[pool.wrap("ask", payer(pay), description="x"), own.tool])
        session, turn = await parked(store, parent)
        await _until_pending(session, 2)
        theirs = next(request for request in session.pending if request.tool == "pay")
        mine = next(request for request in session.pending if request.tool == "own")
        head = session.head
        with pytest.raises(NotPending):
            await pool.decide(session, approve(theirs), approve("no.such"))
        with pytest.raises(WrongCall):
            await pool.decide(session, approve(theirs), deny(theirs))
        assert session.head == head
        assert len(session.pending) == 2
        child_turn = await pool.decide(session, approve(theirs))
        assert (await child_turn.wait()).text == "paid"
        with pytest.raises(Conflict):
            await pool.decide(session, deny(theirs))
        await session.decide(approve(theirs))
        await store.decide(approve(theirs))
        await pool.decide(session, deny(mine, "no"))
        assert (await (await turn.next()).wait()).text == "handled"
        await store.decide(approve(theirs), deny(mine, "no"))
        await settle()
    assert (pay.runs, own.runs, len(script.requests)) == ([1], [], 2)


async def test_a_child_itself_does_not_decide(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    child = payer(pay)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, child, *ASK))
        inner = await store.open(session.receipts[0].child, child)
        with pytest.raises(DecideAtRoot) as caught:
            await inner.decide(approve(inner.pending[0]))
        assert caught.value.root == session.id
        with pytest.raises(DecideAtRoot):
            await pool.decide(inner, approve(inner.pending[0]))
        assert pay.runs == []
        await pool.decide(session, approve(session.pending[0]))
        assert (await (await turn.next()).wait()).text == "handled"
    assert pay.runs == [1]


async def test_pool_decide_of_the_parents_own_request_is_session_decide(where: Where) -> None:
    own = gate("own")
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, Agent(Script(call("own", item=1), say("done")), tools=[own.tool]))
        following = await pool.decide(session, approve(session.pending[0]))
        assert (await following.wait()).text == "done"
        assert (await turn.next()).id == following.id


async def test_pool_decide_without_decisions_is_a_pump(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, payer(pay), *ASK))
        await store.decide(approve(session.pending[0]))
        child_turn = await pool.decide(session)
        assert child_turn is not None
        assert (await child_turn.wait()).text == "paid"
        assert (await (await turn.next()).wait()).text == "handled"


async def test_a_pump_that_finds_nothing_to_do_is_none(where: Where) -> None:
    pay = gate()
    pool = Pool(1)
    async with open_store(where) as store:
        session, _ = await parked(store, delegating(pool, payer(pay), *ASK))
        assert await pool.decide(session) is None
        await settle()
        assert len(session.pending) == 1
        idle = await store.create(Agent(Script()))
        assert await pool.decide(idle) is None
    assert pay.runs == []


async def test_a_childs_request_expires_as_any_other(where: Where) -> None:
    clock = ManualClock()
    pay = gate()
    pool = Pool(1)
    child = payer(pay)
    async with open_store(where, clock=clock) as store:
        session, turn = await parked(store, delegating(pool, child, *ASK), expires=60.0)
        [request] = session.pending
        assert request.expires == request.created + 60.0
        await clock.advance(61.0)
        with pytest.raises(Expired):
            await pool.decide(session, approve(request))
        with pytest.raises(Expired):
            await store.decide(approve(request))
        await session.resume()
        assert (await (await turn.next()).wait()).text == "handled"
        inner = await store.open(session.receipts[0].child)
        assert [result.code for result in results(inner)] == ["EXPIRED"]
        assert inner.pending == session.pending == ()
    assert pay.runs == []


# Restarts.


def tree(pool: Pool, tools: list[Any], *, child: Script, parent: Script, name: str = "desk") -> Agent[Any]:
    """A parent and a child, both new."""
    inner = Agent(child, name="payer", tools=tools)
    return Agent(parent, name=name, tools=[pool.wrap("ask", inner, description="x")])


PAYS = (call("pay", item=1, call_id="call_1"), say("paid"))


@pytest.mark.parametrize("how", ["pool", "session", "store"])
async def test_a_child_that_is_parked_outlives_the_store(where: Where, how: str) -> None:
    pay = gate()
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, turn = await parked(store, agent)
        request = session.pending[0]
    pool, child, parent = Pool(1), Script(*PAYS), Script(*ASK)
    async with open_store(where) as store:
        agent = tree(pool, [pay.tool], child=child, parent=parent)
        again = await store.open(session.id, agent)
        assert again.pending == (request,)
        if how == "pool":
            child_turn = await pool.decide(again, approve(request))
            assert (await child_turn.wait()).text == "paid"
            while again.messages[-1].text != "handled":
                await again.refresh()
        elif how == "session":
            own = await again.decide(approve(request))
            result = await own.wait()
            assert (result.text, result.run) == ("handled", turn.id)
        else:
            await store.decide(approve(request))
            resumed = await store.recover(session.id, agent)
            assert resumed is not None
            assert (await resumed.wait()).text == "handled"
            await again.refresh()
        assert (states(again), stops(again)) == (["done"], ["paid"])
        assert contents(again) == ["paid"]
        assert len(await threads(store)) == 2
    assert pay.runs == [1]
    assert [[request.position.index for request in script.requests] for script in (child, parent)] == [[1], [1]]


@pytest.mark.parametrize("cut", ["model", "none", "once"])
async def test_a_child_that_was_cut_is_recovered_and_there_is_no_second(where: Where, cut: str) -> None:
    never = asyncio.Event()
    look = Work(hangs=True, effect="once" if cut == "once" else "none")
    steps = (call("look", item=1), say("found"))
    first = (hold(never, steps[0]), steps[1]) if cut == "model" else steps
    async with open_store(where, grace=0) as store:
        agent = tree(Pool(1), [look.tool], child=Script(*first), parent=Script(*ASK))
        session = await store.create(agent)
        prompted = asyncio.Event()

        def watch(thread: str, entry: Entry) -> None:
            if thread != session.id and entry.kind == "message":
                prompted.set()

        store.observe(watch)
        await session.send("go")
        await (prompted if cut == "model" else look.started).wait()
        name = session.receipts[0].child
    look.release.set()
    pool, child, parent = Pool(1), Script(*steps), Script(*ASK)
    async with open_store(where) as store:
        agent = tree(pool, [look.tool], child=child, parent=parent)
        again = await store.open(session.id, agent)
        turn = await again.resume()
        assert turn is not None
        result = await turn.wait()
        if cut == "once":
            assert result.parked
            [request] = again.pending
            assert (request.kind, tuple(request.path)) == ("uncertain", ("desk", "ask"))
            assert look.runs == [1]
            child_turn = await pool.decide(again, resolve(request, "it was found"))
            assert (await child_turn.wait()).text == "found"
            result = await (await turn.next()).wait()
        assert result.text == "handled"
        assert [receipt.child for receipt in again.receipts] == [name]
        assert states(again) == ["done"]
        assert await threads(store) == {session.id: None, name: session.id}
        assert (again.usage.delegated.input_tokens, again.usage.delegated.unknown) == (20, 1 if cut == "model" else 0)
    assert look.runs == {"model": [1], "none": [1, 1], "once": [1]}[cut]
    assert [request.position.index for request in parent.requests] == [1]
    assert [request.position.index for request in child.requests] == ([0, 1] if cut == "model" else [1])


async def test_children_that_waited_for_a_slot_are_created_by_the_next_store(where: Where) -> None:
    look = Work(hangs=True, effect="none")
    wanted = calls(*(call("ask", prompt=str(n)) for n in range(3)))
    steps = (call("look", item=1), say("found"))
    async with open_store(where, grace=0) as store:
        agent = tree(Pool(1), [look.tool], child=Script(*steps), parent=Script(wanted, say("handled")))
        session = await store.create(agent)
        await session.send("go")
        await look.started.wait()
        names = [receipt.child for receipt in session.receipts]
        assert states(session) == ["accepted"] * 3
        assert len(await threads(store)) == 2
    look.release.set()
    parent = Script(wanted, say("handled"))
    async with open_store(where) as store:
        agent = tree(Pool(1), [look.tool], child=Script(*steps), parent=parent)
        turn = await store.recover(session.id, agent)
        assert turn is not None
        assert (await turn.wait()).text == "handled"
        again = await store.open(session.id)
        assert [receipt.child for receipt in again.receipts] == names
        assert states(again) == ["done"] * 3
        assert await threads(store) == {session.id: None, **dict.fromkeys(names, session.id)}
        for n, name in enumerate(names):
            inner = await store.open(name)
            assert [message.text for message in inner.messages if message.role == "user"] == [str(n)]
    assert look.runs == [1] * 4
    assert [request.position.index for request in parent.requests] == [1]


async def test_children_that_were_done_before_the_crash_are_not_run_again(where: Where) -> None:
    look = Work(hangs=True, effect="none")
    pool = Pool(2)
    quick = Script(say("quick"))

    def agents(quick: Script, parent: Script) -> Agent[Any]:
        slow = Agent(Script(call("look", item=1), say("slow")), name="slow", tools=[look.tool])
        tools = [
            pool.wrap("slow", slow, description="x"),
            pool.wrap("quick", Agent(quick, name="quick"), description="x"),
        ]
        return Agent(parent, tools=tools)

    wanted = calls(call("slow", prompt="a"), call("quick", prompt="b"))
    async with open_store(where, grace=0) as store:
        session = await store.create(agents(quick, Script(wanted, say("handled"))))
        await session.send("go")
        await look.started.wait()
        async for entry in store.watch(session.id):
            if entry.kind == "tool_result":
                break
    look.release.set()
    again, parent = Script(say("quick")), Script(wanted, say("handled"))
    async with open_store(where) as store:
        turn = await store.recover(session.id, agents(again, parent))
        assert turn is not None
        assert (await turn.wait()).text == "handled"
        assert contents(await store.open(session.id)) == ["slow", "quick"]
    assert again.requests == []
    assert [request.position.index for request in parent.requests] == [1]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_store_decides_and_the_next_recovers_the_root(where: Where, at_once: bool) -> None:
    pay = gate()
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, _ = await parked(store, agent)
        request = session.pending[0]
        if at_once:
            await store.decide(approve(request))
    if not at_once:
        async with open_store(where) as store:
            await store.decide(approve(request.id))
            reader = await store.open(session.id)
            assert reader.pending == ()
            assert states(reader) == ["accepted"]
            inner = await store.open(reader.receipts[0].child)
            assert inner.pending == ()
    assert pay.runs == []
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        turn = await store.recover(session.id, Root(agent=agent))
        assert turn is not None
        assert (await turn.wait()).text == "handled"
        assert await store.recover(session.id, agent) is None
    assert pay.runs == [1]


async def test_recover_takes_a_childs_own_id_and_the_roots_agent(where: Where) -> None:
    pay = gate()
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, _ = await parked(store, agent)
        await store.decide(approve(session.pending[0]))
        name = session.receipts[0].child
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        turn = await store.recover(name, Root(agent=agent))
        assert turn is not None
        assert (await turn.wait()).text == "paid"
        root = await store.open(session.id, agent)
        while root.messages[-1].text != "handled":
            await root.refresh()
        assert states(root) == ["done"]
    assert pay.runs == [1]


async def test_recover_of_a_child_that_was_cut_gives_the_childs_turn(where: Where) -> None:
    look = Work(hangs=True, effect="none")
    steps = (call("look", item=1), say("found"))
    async with open_store(where, grace=0) as store:
        agent = tree(Pool(1), [look.tool], child=Script(*steps), parent=Script(*ASK))
        session = await store.create(agent)
        await session.send("go")
        await look.started.wait()
        name = session.receipts[0].child
    look.release.set()
    async with open_store(where) as store:
        agent = tree(Pool(1), [look.tool], child=Script(*steps), parent=Script(*ASK))
        turn = await store.recover(name, agent)
        assert turn is not None
        assert (await turn.wait()).text == "found"
        root = await store.open(session.id, agent)
        while root.messages[-1].text != "handled":
            await root.refresh()
        assert [receipt.child for receipt in root.receipts] == [name]
    assert look.runs == [1, 1]


async def test_recover_of_a_child_that_waits_for_a_person_is_none(where: Where) -> None:
    pay = gate()
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, _ = await parked(store, agent)
        name = session.receipts[0].child
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        assert await store.recover(session.id, agent) is None
        assert await store.recover(name, agent) is None


async def test_recover_of_a_child_that_has_ended_is_none(where: Where) -> None:
    child = Agent(Script(say("42")))
    async with open_store(where) as store:
        agent = delegating(Pool(1), child, call("ask", prompt="x"), say("done"))
        session = await store.create(agent)
        await session.ask("go")
        assert await store.recover(session.receipts[0].child, agent) is None
        assert await store.recover(session.id, agent) is None


async def test_a_wrap_that_is_gone_leaves_the_child_and_says_so(where: Where) -> None:
    pay = gate()
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, _ = await parked(store, agent)
        await store.decide(approve(session.pending[0]))
    async with open_store(where) as store:
        bare = await store.open(session.id, Agent(Script(*ASK), name="desk"))
        assert bare.agent is not None
        try:
            await bare.resume()
            await settle()
            reported = bool(store.reports)
        except Exception as error:  # noqa: BLE001  # which one is not settled; a hang or silence would be the fault
            reported = "ask" in str(error)
        assert reported
        assert states(await store.open(session.id)) == ["accepted"]
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        turn = await store.recover(session.id, agent)
        assert turn is not None
        assert (await turn.wait()).text == "handled"
    assert pay.runs == [1]


@pytest.mark.parametrize("how", ["pool", "store"])
async def test_what_was_decided_just_before_leaving_is_done_or_untouched_and_never_uncertain(
    where: Where, how: str
) -> None:
    pay = gate()
    async with open_store(where) as store:
        pool = Pool(1)
        agent = tree(pool, [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, _ = await parked(store, agent)
        request = session.pending[0]
    async with open_store(where) as store:
        pool = Pool(1)
        agent = tree(pool, [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        if how == "pool":
            await pool.decide(await store.open(session.id, agent), approve(request))
        else:
            assert await store.recover(session.id, agent) is None
            await store.decide(approve(request))
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        again = await store.open(session.id, agent)
        await again.resume()
        while not again.pending and again.messages[-1].text != "handled":
            await again.refresh()
        assert again.pending == ()
    assert pay.runs == [1]


async def test_another_store_decides_while_the_first_is_open(where: Where) -> None:
    here, there = gate(), gate()
    async with open_store(where) as one, open_store(where) as two:
        agent = tree(Pool(1), [here.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, turn = await parked(one, agent)
        pool = Pool(1)
        agent = tree(pool, [there.tool], child=Script(*PAYS), parent=Script(*ASK))
        other = await two.open(session.id, agent)
        child_turn = await pool.decide(other, approve(other.pending[0]))
        assert (await child_turn.wait()).text == "paid"
        assert (await (await turn.next()).wait()).text == "handled"
        await session.refresh()
        assert states(session) == ["done"]
        assert contents(session) == ["paid"]
    assert (here.runs, there.runs) == ([], [1])


@pytest.mark.parametrize("which", ["root", "child"])
async def test_recover_leaves_a_tree_alone_that_is_at_work_elsewhere(where: Where, which: str) -> None:
    look, there = Work(hangs=True, effect="none"), Work(effect="none")
    steps = (call("look", item=1), say("found"))
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(tree(Pool(1), [look.tool], child=Script(*steps), parent=Script(*ASK)))
        turn = await session.send("go")
        await look.started.wait()
        child, parent = Script(*steps), Script(*ASK)
        agent = tree(Pool(1), [there.tool], child=child, parent=parent)
        name = session.id if which == "root" else session.receipts[0].child
        assert await two.recover(name, agent) is None
        look.release.set()
        assert (await turn.wait()).text == "handled"
    assert (look.runs, there.runs) == ([1], [])
    assert child.requests == parent.requests == []


async def test_a_child_at_work_elsewhere_under_a_parked_parent_is_not_run_twice(where: Where) -> None:
    here, there = gate(hangs=True), gate()
    async with open_store(where) as one, open_store(where) as two:
        pool = Pool(1)
        session, turn = await parked(one, tree(pool, [here.tool], child=Script(*PAYS), parent=Script(*ASK)))
        await pool.decide(session, approve(session.pending[0]))
        await here.started.wait()
        other = await two.open(session.id, tree(Pool(1), [there.tool], child=Script(*PAYS), parent=Script(*ASK)))
        await other.resume()
        await settle()
        here.release.set()
        assert (await (await turn.next()).wait()).text == "handled"
        await session.refresh()
        assert contents(session) == ["paid"]
        assert session.usage.delegated == SPENT + SPENT
        assert [entry.kind for entry in await journal(one, session)].count("turn_started") == 2
    assert (here.runs, there.runs) == ([1], [])


async def test_two_handles_that_go_on_at_once_run_a_child_once(where: Where) -> None:
    pay = gate()
    pool = Pool(2)
    async with open_store(where) as store:
        agent = tree(pool, [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        session, turn = await parked(store, agent)
        other = await store.open(session.id, agent)
        request = session.pending[0]
        await asyncio.gather(
            pool.decide(session, approve(request)),
            other.decide(approve(request)),
            session.resume(),
            other.resume(),
            store.recover(session.id, agent),
        )
        assert (await (await turn.next()).wait()).text == "handled"
        await settle()
        entries = await journal(store, session)
        assert [entry.kind for entry in entries].count("turn_started") == 2
        assert [entry.kind for entry in entries].count("decision") == 1
        inner = await store.open(session.receipts[0].child)
        assert [entry.kind for entry in await journal(store, inner)].count("turn_started") == 2
        assert session.usage.delegated == SPENT + SPENT
    assert pay.runs == [1]


# Deeper.


class Deep:
    """R delegates to A, A to B; B asks for two approvals beside a plain call. Every level has siblings."""

    def __init__(self) -> None:
        self.plain = {name: Work(f"plain_{name}", approval=False) for name in "rab"}
        self.pay = gate()
        self.sell = gate("sell")
        self.scripts: list[dict[str, Script]] = []

    def agent(self, pool: Pool) -> Agent[Any]:
        """The root, with new agents and scripts all the way down."""
        one = "call_1"
        scripts = {
            "side": Script(say("side")),
            "b": Script(
                calls(
                    call("pay", item=1, call_id=one),
                    call("plain_b", item=2, call_id=one),
                    call("sell", item=3, call_id=one),
                ),
                say("b's"),
            ),
            "a": Script(calls(call("plain_a", item=4, call_id=one), call("b", prompt="x", call_id=one)), say("a's")),
            "r": Script(
                calls(
                    call("a", prompt="x", call_id=one),
                    call("plain_r", item=5, call_id=one),
                    call("side", prompt="x", call_id=one),
                ),
                say("r's"),
            ),
        }
        self.scripts.append(scripts)
        side = Agent(scripts["side"], name="side")
        b = Agent(scripts["b"], name="agent b", tools=[self.pay.tool, self.plain["b"].tool, self.sell.tool])
        a = Agent(scripts["a"], name="agent a", tools=[self.plain["a"].tool, pool.wrap("b", b, description="x")])
        return Agent(
            scripts["r"],
            name="agent r",
            tools=[
                pool.wrap("a", a, description="x"),
                self.plain["r"].tool,
                pool.wrap("side", side, description="x"),
            ],
        )

    def asked(self) -> dict[str, list[int]]:
        """The positions asked for, over all processes."""
        return {
            name: [request.position.index for scripts in self.scripts for request in scripts[name].requests]
            for name in "rab"
        }

    def check(self, pay: list[int], sell: list[int]) -> None:
        assert self.asked() == {"r": [0, 1], "a": [0, 1], "b": [0, 1]}
        assert [self.plain[name].runs for name in "rab"] == [[5], [4], [2]]
        assert (self.pay.runs, self.sell.runs) == (pay, sell)

    async def check_stored(self, where: Where, root: str) -> None:
        async with open_store(where) as store:
            session = await store.open(root)
            assert contents(session) == ["a's", "plain_r 5", "side"]
            middle = await store.open(session.receipts[0].child)
            assert contents(middle) == ["plain_a 4", "b's"]
            assert contents(await store.open(middle.receipts[0].child)) == ["pay 1", "plain_b 2", "sell 3"]
            assert states(session) == ["done", "done"]
            assert len(await threads(store)) == 4
            assert session.usage.delegated.input_tokens == 50
            assert session.usage.total.input_tokens == 70


async def reached(store: OpenStore, root: str, text: str) -> Session:
    """The root's session, once it has said this."""
    session = await store.open(root)
    async for entry in store.watch(root):
        if entry.kind == "turn_ended":
            await session.refresh()
            if session.messages[-1].text == text:
                return session
    raise AssertionError("unreachable")


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("place", ["here", "another store", "next store"])
@pytest.mark.parametrize("order", [("pay", "sell"), ("sell", "pay")])
async def test_an_approval_three_levels_down(where: Where, limit: int, place: str, order: tuple[str, str]) -> None:
    deep = Deep()
    pool = Pool(limit)
    async with open_store(where) as store:
        session = await store.create(deep.agent(pool))
        turn = await session.send("go")
        assert (await turn.wait()).parked
        await _until_pending(session, 2)
        assert [tuple(request.path) for request in session.pending] == [("agent r", "a", "b")] * 2
        assert [request.tool for request in session.pending] == ["pay", "sell"]
        asked = {request.tool: request for request in session.pending}
        assert states(session) == ["parked", "done"]
        if place == "here":
            parked_turn = await pool.decide(session, approve(asked[order[0]]))
            assert deep.pay.runs == deep.sell.runs == []
            assert [request.tool for request in session.pending] == [order[1]]
            assert parked_turn.outcome is None
            child_turn = await pool.decide(session, approve(asked[order[1]]))
            assert (await child_turn.wait()).text == "b's"
            assert (await (await turn.next()).wait()).text == "r's"
        elif place == "another store":
            async with open_store(where) as other:
                for name in order:
                    await other.decide(approve(asked[name].id))
            assert deep.pay.runs == deep.sell.runs == []
            await session.resume()
            assert (await (await turn.next()).wait()).text == "r's"
    if place == "next store":
        async with open_store(where) as store:
            await store.decide(approve(asked[order[0]]))
        async with open_store(where) as store:
            assert await store.recover(session.id, deep.agent(Pool(limit))) is None
        async with open_store(where) as store:
            await store.decide(approve(asked[order[1]]))
        async with open_store(where) as store:
            turn2 = await store.recover(session.id, Root(agent=deep.agent(Pool(limit))))
            assert turn2 is not None
            assert (await turn2.wait()).text == "r's"
    deep.check([1], [3])
    await deep.check_stored(where, session.id)


async def test_a_request_passes_every_level(where: Where) -> None:
    deep = Deep()
    async with open_store(where) as store:
        session = await store.create(deep.agent(Pool(1)))
        await session.ask("go")
        middle = await store.open(session.receipts[0].child)
        deepest = await store.open(middle.receipts[0].child)
        assert deepest.pending == middle.pending == session.pending
        assert len(session.pending) == 2
        assert states(session) == ["parked", "done"]
        assert states(middle) == ["parked"]
        await store.decide(approve(session.pending[0]))
        assert deepest.pending == middle.pending == session.pending
        assert len(session.pending) == 1
        assert states(session) == ["parked", "done"]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_denial_three_levels_down(where: Where, restart: bool) -> None:
    deep = Deep()
    pool = Pool(1)
    async with open_store(where) as store:
        session = await store.create(deep.agent(pool))
        turn = await session.send("go")
        await turn.wait()
        await _until_pending(session, 2)
        asked = {request.tool: request for request in session.pending}
        if not restart:
            await pool.decide(session, approve(asked["sell"]), deny(asked["pay"], "too dear"))
            assert (await (await turn.next()).wait()).text == "r's"
    if restart:
        pool = Pool(1)
        async with open_store(where) as store:
            session = await store.open(session.id, deep.agent(pool))
            await pool.decide(session, approve(asked["sell"]), deny(asked["pay"], "too dear"))
            await reached(store, session.id, "r's")
    deep.check([], [3])
    async with open_store(where) as store:
        session = await store.open(session.id)
        middle = await store.open(session.receipts[0].child)
        deepest = await store.open(middle.receipts[0].child)
        assert [result.code for result in results(deepest)] == ["DENIED", None, None]
        assert "too dear" in contents(deepest)[0]


@pytest.mark.parametrize("level", ["root", "middle", "leaf"])
async def test_recover_of_any_thread_of_a_tree_that_was_cut(where: Where, level: str) -> None:
    look = Work(hangs=True, effect="none")

    def agent(pool: Pool) -> Agent[Any]:
        leaf = Agent(Script(call("look", item=1), say("leaf")), name="leaf", tools=[look.tool])
        middle = delegating(pool, leaf, call("ask", prompt="x"), say("middle"), name="middle")
        return delegating(pool, middle, call("ask", prompt="x"), say("root"), name="root")

    async with open_store(where, grace=0) as store:
        session = await store.create(agent(Pool(1)))
        await session.send("go")
        await look.started.wait()
        middle = await store.open(session.receipts[0].child)
        names = {"root": session.id, "middle": middle.id, "leaf": middle.receipts[0].child}
        assert set(await threads(store)) == set(names.values())
    look.release.set()
    async with open_store(where) as store:
        turn = await store.recover(names[level], agent(Pool(1)))
        assert turn is not None
        assert (await turn.wait()).text == level
        await reached(store, session.id, "root")
        assert set(await threads(store)) == set(names.values())
    assert look.runs == [1, 1]


async def test_a_grandchild_expires_at_the_root_and_downwards(where: Where) -> None:
    clock = ManualClock()
    deep = Deep()
    async with open_store(where, clock=clock) as store:
        session = await store.create(deep.agent(Pool(1)), expires=60.0)
        turn = await session.send("go")
        await turn.wait()
        await _until_pending(session, 2)
        pay = next(request for request in session.pending if request.tool == "pay")
        await session.decide(approve(pay))
        await clock.advance(61.0)
    async with open_store(where, clock=clock) as store:
        turn2 = await store.recover(session.id, deep.agent(Pool(1)))
        assert turn2 is not None
        assert (await turn2.wait()).text == "r's"
        session = await store.open(session.id)
        middle = await store.open(session.receipts[0].child)
        deepest = await store.open(middle.receipts[0].child)
        assert [result.code for result in results(deepest)] == [None, None, "EXPIRED"]
    deep.check([1], [])


WRONG: list[Callable[[str], str]] = [lambda child: child, lambda child: f"{child}.nobody"]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_request_that_no_child_has_is_not_pending(where: Where, wrong: Callable[[str], str]) -> None:
    pool = Pool(1)
    async with open_store(where) as store:
        session, _ = await parked(store, delegating(pool, payer(gate()), *ASK))
        name = wrong(session.receipts[0].child)
        with pytest.raises(NotPending):
            await pool.decide(session, approve(name))
        with pytest.raises(NotPending):
            await store.decide(approve(name))
        assert len(session.pending) == 1


# Trees that are cut, and parked at more than one level.


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("cut", [1, 2, 3, 4])
async def test_a_tree_that_was_cut_anywhere_goes_on_where_it_was(where: Where, cut: int, limit: int) -> None:
    reached_cut = asyncio.Event()
    never = asyncio.Event()
    runs: list[str] = []
    dead = False

    @tool(effect="none")
    async def dig(ctx: Context) -> str:
        runs.append(ctx.call.id)
        if not dead and len(runs) >= cut:
            reached_cut.set()
            await never.wait()
        return "dug"

    scripts: list[Script] = []

    def agent() -> Agent[Any]:
        pool = Pool(limit)
        both = calls(call("ask", prompt="1"), call("ask", prompt="2"))
        leaf, middle, root = Script(call("dig"), say("leaf")), Script(both, say("middle")), Script(both, say("root"))
        scripts.append(root)
        inner = Agent(leaf, name="leaf", tools=[dig])
        inner = Agent(middle, name="middle", tools=[pool.wrap("ask", inner, description="x")])
        return Agent(root, name="root", tools=[pool.wrap("ask", inner, description="x")])

    async with open_store(where, grace=0) as store:
        session = await store.create(agent())
        await session.send("go")
        await reached_cut.wait()
        await settle()
    dead = True
    async with open_store(where) as store:
        turn = await store.recover(session.id, agent())
        assert turn is not None
        assert (await turn.wait()).text == "root"
        again = await store.open(session.id)
        assert contents(again) == ["middle", "middle"]
        assert len(await threads(store)) == 7
        assert again.usage.delegated.input_tokens == 10 * (4 * 2 + 2 * 2)
        for receipt in again.receipts:
            inner = await store.open(receipt.child)
            assert contents(inner) == ["leaf", "leaf"]
    assert len(set(runs)) == 4
    assert [request.position.index for script in scripts for request in script.requests] == [0, 1]


async def test_parked_children_outlive_the_cut_of_their_sibling(where: Where) -> None:
    pay, look = gate(), Work(hangs=True, effect="none")
    wanted = calls(call("pays", prompt="a"), call("looks", prompt="b"), call("pays", prompt="c"))
    scripts: list[Script] = []

    def agent(pool: Pool) -> Agent[Any]:
        scripts.append(Script(wanted, say("handled")))
        looks = Agent(Script(call("look", item=1), say("seen")), name="looks", tools=[look.tool])
        tools = [pool.wrap("pays", payer(pay), description="x"), pool.wrap("looks", looks, description="x")]
        return Agent(scripts[-1], tools=tools)

    async with open_store(where, grace=0) as store:
        session = await store.create(agent(Pool(3)))
        await session.send("go")
        await look.started.wait()
        await _until_pending(session, 2)
        asked = session.pending
    look.release.set()
    pool = Pool(1)
    async with open_store(where) as store:
        again = await store.open(session.id, agent(pool))
        assert {request.id for request in again.pending} == {request.id for request in asked}
        turn = await again.resume()
        assert turn is not None
        assert (await turn.wait()).parked
        assert [receipt.state for receipt in again.receipts] == ["parked", "done", "parked"]
        for request in asked:
            await pool.decide(again, approve(request))
        assert (await (await turn.next()).wait()).text == "handled"
        assert contents(again) == ["paid", "seen", "paid"]
    assert (pay.runs, look.runs) == ([1, 1], [1, 1])
    assert [request.position.index for script in scripts for request in script.requests] == [0, 1]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_requests_of_every_level_at_once_are_decided_in_any_order(
    where: Where, order: tuple[int, ...], restart: bool
) -> None:
    works = [gate("top"), gate("mid"), gate("low")]
    scripts: list[Script] = []

    def agent(pool: Pool) -> Agent[Any]:
        low = Agent(Script(call("low", item=3), say("low's")), name="l", tools=[works[2].tool])
        mid = Script(calls(call("mid", item=2), call("ask", prompt="x")), say("mid's"))
        top = Script(calls(call("ask", prompt="x"), call("top", item=1)), say("top's"))
        scripts.extend((mid, top))
        middle = Agent(mid, name="m", tools=[works[1].tool, pool.wrap("ask", low, description="x")])
        return Agent(top, name="t", tools=[works[0].tool, pool.wrap("ask", middle, description="x")])

    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, agent(pool))
        await _until_pending(session, 3)
        asked = {request.tool: request for request in session.pending}
        assert {request.tool: len(request.path) for request in session.pending} == {"top": 1, "mid": 2, "low": 3}
        if not restart:
            for n in order:
                await pool.decide(session, approve(asked[("top", "mid", "low")[n]]))
            assert (await (await turn.next()).wait()).text == "top's"
    if restart:
        for n in order:
            async with open_store(where) as store:
                await store.decide(approve(asked[("top", "mid", "low")[n]]))
        async with open_store(where) as store:
            resumed = await store.recover(session.id, agent(Pool(1)))
            assert resumed is not None
            assert (await resumed.wait()).text == "top's"
    assert [work.runs for work in works] == [[1], [2], [3]]
    async with open_store(where) as store:
        session = await store.open(session.id)
        assert contents(session) == ["mid's", "top 1"]
        middle = await store.open(session.receipts[0].child)
        assert contents(middle) == ["mid 2", "low's"]
    assert sorted(request.position.index for script in scripts for request in script.requests) == [0, 0, 1, 1]


@pytest.mark.parametrize("gated", [False, True])
async def test_a_childs_uncertain_call_runs_again_only_knowingly_and_under_the_same_key(
    where: Where, gated: bool
) -> None:
    pay = Work("pay", hangs=True, approval=gated)
    async with open_store(where, grace=0) as store:
        pool = Pool(1)
        session = await store.create(tree(pool, [pay.tool], child=Script(*PAYS), parent=Script(*ASK)))
        turn = await session.send("go")
        if gated:
            await turn.wait()
            await pool.decide(session, approve(session.pending[0]))
        await pay.started.wait()
    pay.release.set()
    pool, parent = Pool(1), Script(*ASK)
    async with open_store(where) as store:
        again = await store.open(session.id, tree(pool, [pay.tool], child=Script(*PAYS), parent=parent))
        await again.resume()
        await _until_pending(again)
        [request] = again.pending
        assert request.kind == "uncertain"
        assert pay.runs == [1]
        child_turn = await pool.decide(again, approve(request))
        assert (await child_turn.wait()).text == "paid"
        await reached(store, session.id, "handled")
    assert pay.runs == [1, 1]
    assert len(set(pay.keys)) == 1
    assert [request.position.index for request in parent.requests] == [1]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_child_that_fails_after_its_approval_is_that_calls_result(where: Where, restart: bool) -> None:
    pay = gate()

    def steps() -> Script:
        return Script(call("pay", item=1), fail(RuntimeError("hunter2"), times=None))

    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, tree(pool, [pay.tool], child=steps(), parent=Script(*ASK)))
        if not restart:
            await pool.decide(session, approve(session.pending[0]))
            assert (await (await turn.next()).wait()).text == "handled"
    if restart:
        async with open_store(where) as store:
            session = await store.open(session.id, tree(pool, [pay.tool], child=steps(), parent=Script(*ASK)))
            await pool.decide(session, approve(session.pending[0]))
            await reached(store, session.id, "handled")
    assert [result.code for result in results(session)] == ["SUBAGENT_FAILED"]
    assert states(session) == ["failed"]
    assert session.usage.delegated.input_tokens == 10
    assert pay.runs == [1]


async def test_a_childs_limit_holds_across_its_park(where: Where) -> None:
    pay = gate()
    child = Agent(Script(call("pay", item=1), say("never")), tools=[pay.tool], limits=Limits(steps=1))
    pool = Pool(1)
    async with open_store(where) as store:
        session, turn = await parked(store, delegating(pool, child, *ASK))
        await pool.decide(session, approve(session.pending[0]))
        assert (await (await turn.next()).wait()).text == "handled"
        assert states(session) == ["capped"]
    assert pay.runs == [1]


async def test_leaving_waits_for_a_child_that_works_under_a_parked_parent(where: Where) -> None:
    pay = gate(hangs=True)
    pool = Pool(1)
    left = asyncio.Event()
    handles: list[Session] = []

    async def live() -> None:
        async with open_store(where) as store:
            session, _ = await parked(store, tree(pool, [pay.tool], child=Script(*PAYS), parent=Script(*ASK)))
            handles.append(session)
            await pool.decide(session, approve(session.pending[0]))
            await pay.started.wait()
            left.set()

    task = asyncio.create_task(live())
    await left.wait()
    await settle()
    assert not task.done()
    pay.release.set()
    await task
    async with open_store(where) as store:
        agent = tree(Pool(1), [pay.tool], child=Script(*PAYS), parent=Script(*ASK))
        await store.recover(handles[0].id, agent)
        session = await reached(store, handles[0].id, "handled")
        assert session.pending == ()
        assert contents(session) == ["paid"]
    assert pay.runs == [1]


async def test_a_child_whose_model_nobody_knows_fails_its_delegation_only(where: Where) -> None:
    pool = Pool(1)
    wanted = calls(call("lost", prompt="x"), call("found", prompt="x"))
    parent = Agent(
        Script(wanted, say("done")),
        tools=[
            pool.wrap("lost", Agent("nobody:model", name="lost"), description="x"),
            pool.wrap("found", Agent(Script(say("found")), name="found"), description="x"),
        ],
    )
    async with open_store(where) as store:
        session = await store.create(parent)
        assert (await session.ask("go")).text == "done"
        assert states(session) == ["failed", "done"]
        assert [result.code for result in results(session)] == ["SUBAGENT_FAILED", None]


async def test_a_coroutine_function_that_gives_a_child_s_deps_is_called_on_the_loop() -> None:
    begun: list[set[threading.Thread]] = []

    async def deps(_: object) -> None:
        begun.append(set(threading.enumerate()) - before)

    child = Agent(Script(say("helped")), name="child")
    pool = Pool(1)
    helper = pool.wrap("help", child, description="Helps.", deps=deps)
    before = set(threading.enumerate())
    assert (await Agent(Script(call("help", prompt="x"), say("done")), tools=[helper]).run("go")).text == "done"
    assert begun == [set()]
