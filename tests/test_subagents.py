"""An agent among another's tools: it answers as a part of the run, in a bare run and in a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pydantic import BaseModel

from tests.structured import MODES, Mode, Structured, answer
from weft import Agent, Context, LimitReached, Limits, ModelFailed, Usage, tool
from weft._moves import Begin
from weft.errors import InvalidTool, NotAllowed, TurnCancelled, WrongCall
from weft.model import ModelError, ModelEvent, ModelRequest
from weft.pool import Pool
from weft.testing import Kit, ManualClock, Script, call, calls, crash_points, fail, hold, say
from weft.testing.clock import settle
from weft.thread import Memory, OpenStore, Session, approve, open_store, resolve

Where: TypeAlias = Memory | str
SPENT = Usage(input_tokens=10, output_tokens=5)


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


@tool(effect="none")
async def look(item: int) -> str:
    """Look something up."""
    return f"found {item}"


@tool
async def charge(order: str) -> str:
    """Charge for an order."""
    return f"charged {order}"


@tool(effect="repeatable")
async def notify(order: str) -> str:
    """Tell the customer."""
    return f"told {order}"


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    raise AssertionError("nobody has approved this")


@tool(effect="none", needs={"stock:write"})
async def restock(item: int) -> str:
    """Order more."""
    return f"restocked {item}"


@tool(effect="none", needs={"stock:read"})
async def count(item: int) -> str:
    """Count what is there."""
    return f"{item} are there"


def results(found: Any) -> list[tuple[str, str | None]]:
    return [(result.content, result.code) for message in found.messages for result in message.results]


def asks(name: str = "child", prompt: str = "x") -> Script:
    return Script(call(name, prompt=prompt), say("done"))


def told(script: Script, index: int = -1) -> list[tuple[str, str | None]]:
    """The results that the model was shown by this request."""
    return [(result.content, result.code) for result in script.requests[index].messages[-1].results]


# What it is to its parent's model.


async def test_an_agent_among_tools_answers_and_its_usage_counts_to_the_run() -> None:
    inner, outer = Script(call("look", item=1), say("42")), asks(prompt="what is it?")
    child = Agent(inner, name="child", instructions="Be brief.", tools=[look])
    result = await Agent(outer, tools=[child]).run("go")
    assert (result.text, results(result)) == ("done", [("42", None)])
    assert result.usage == Usage(input_tokens=40, output_tokens=20)
    first = inner.requests[0]
    assert first.instructions == "Be brief."
    assert [(message.role, message.text) for message in first.messages] == [("user", "what is it?")]
    assert first.run_id != outer.requests[0].run_id


async def test_the_definition_has_the_agent_s_name_and_description() -> None:
    script = Script(say("done"))
    told_of = Agent(Script(), name="researcher", description="Finds things out.")
    await Agent(script, tools=[told_of, Agent(Script(), name="other"), look]).run("go")
    first, second, third = script.requests[0].tools
    assert (first.name, first.description) == ("researcher", "Finds things out.")
    assert second.name == "other"
    assert second.description
    assert third.name == "look"
    assert set(first.schema["properties"]) == {"prompt"}
    assert first.schema["required"] == ["prompt"]


@pytest.mark.parametrize("name", ["my agent", "a.b", "x" * 65, "é", "auto"])
def test_a_name_that_no_provider_takes_is_refused_with_the_way_out(name: str) -> None:
    child = Agent(Script(), name=name)
    with pytest.raises(InvalidTool) as caught:
        Agent(Script(), tools=[child])
    assert repr(name) in str(caught.value)
    assert "name=" in str(caught.value)
    Agent(Script(), tools=[child.replace(name="child")])


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidTool, match="two tools are named 'child'"):
        Agent(Script(), tools=[Agent(Script(), name="child"), Agent(Script(), name="child")])


@pytest.mark.parametrize("given", ["{}", '{"prompt": ""}', '{"prompt": 1}', '{"prompt": "x"', '{"question": "x"}'])
async def test_a_prompt_that_is_none_does_not_start_the_agent(given: str) -> None:
    inner, outer = Script(), Script(call("child", given), say("done"))
    result = await Agent(outer, tools=[Agent(inner, name="child")]).run("go")
    assert results(result)[0][1] == "INVALID_INPUT"
    assert inner.requests == []


@pytest.mark.parametrize(
    ("tools", "effect"),
    [
        ([], "none"),
        ([look], "none"),
        ([look, notify], "repeatable"),
        ([notify, charge, look], "once"),
        ([Agent(Script(), name="inner", tools=[charge])], "once"),
        ([Agent(Script(), name="inner", tools=[notify]), look], "repeatable"),
        ([Pool(1).wrap("inner", Agent(Script(), tools=[charge]), description="Charges.")], "once"),
    ],
    ids=["no tools", "none", "repeatable", "once", "once within", "repeatable within", "once behind a pool"],
)
def test_its_effect_is_the_strictest_of_its_tools(tools: list[Any], effect: str) -> None:
    parent = Agent(Script(), tools=[Agent(Script(), name="child", tools=tools)])
    assert parent.tools[0].effect == effect


# How it fails.


@pytest.mark.parametrize(
    ("child", "says", "spent"),
    [
        pytest.param(lambda: Agent(Script(fail(OSError("secret")))), "OSError", Usage(unknown=1), id="its model fails"),
        pytest.param(
            lambda: Agent(Script(call("look", item=1)), tools=[look], limits=Limits(steps=1)),
            "may make 1",
            SPENT,
            id="it reaches a limit",
        ),
        pytest.param(
            lambda: Agent(Script(call("look", item=1), fail(OSError("secret"))), tools=[look]),
            "OSError",
            SPENT + Usage(unknown=1),
            id="its second call fails",
        ),
        pytest.param(lambda: Agent(Script(), instructions=broken), "instructions", Usage(), id="its instructions fail"),
        pytest.param(
            lambda: Agent(Structured("schema", say("no")), output=int, limits=Limits(retries=0)),
            "did not fit",
            SPENT,
            id="it gives no output",
        ),
    ],
)
async def test_one_that_fails_is_told_and_its_usage_counts(
    child: Callable[[], Agent[None, Any]], says: str, spent: Usage
) -> None:
    inner = child().replace(name="child")
    result = await Agent(asks(), tools=[inner]).run("go")
    ((content, code),) = results(result)
    assert code == "SUBAGENT_FAILED"
    assert says in content
    assert "secret" not in content
    assert result.usage == SPENT + SPENT + spent


def broken(ctx: Context[None]) -> str:
    raise OSError("secret")


async def test_its_usage_counts_where_the_run_s_own_limit_is_reached() -> None:
    child = Agent(Script(say("42", usage=Usage(input_tokens=900, output_tokens=100))), name="child")
    with pytest.raises(LimitReached) as caught:
        await Agent(asks(), tools=[child], limits=Limits(tokens=1_000)).run("go")
    assert caught.value.limit == "tokens"
    assert caught.value.result is not None
    assert caught.value.result.usage.tokens == 1_015
    assert results(caught.value.result) == [("42", None)]


async def test_one_that_asks_for_an_approval_says_the_way_out() -> None:
    child = Agent(Script(call("refund", order="1")), name="child", tools=[refund])
    result = await Agent(asks(), tools=[child]).run("go")
    ((content, code),) = results(result)
    assert code == "SUBAGENT_FAILED"
    assert "approval" in content
    assert "session" in content
    assert result.usage == SPENT + SPENT + SPENT


async def test_in_a_session_one_that_asks_for_an_approval_says_the_way_out(where: Where) -> None:
    child = Agent(Script(call("refund", order="1")), name="child", tools=[refund])
    async with open_store(where) as store:
        session = await store.create(Agent(asks(), tools=[child]))
        result = await session.ask("go")
        ((content, code),) = results(result)
        assert code == "SUBAGENT_FAILED"
        assert "Pool.wrap" in content
        assert session.pending == ()


async def test_a_cancelled_run_cancels_it_and_its_usage_counts() -> None:
    cleaned: list[int] = []
    at_work = asyncio.Event()

    @tool(effect="none")
    async def work() -> None:
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(1)

    child = Agent(Script(call("look", item=1), call("work")), name="child", tools=[look, work])
    async with open_store("memory:", grace=0) as store:
        session = await store.create(Agent(asks(), tools=[child]))
        turn = await session.send("go")
        await at_work.wait()
    with pytest.raises(TurnCancelled):
        await turn.wait()
    assert session.usage.turns == SPENT + SPENT + SPENT
    assert (results(session)[0][1], cleaned) == ("CANCELLED", [1])


async def test_a_cancelled_model_call_of_it_counts_as_unknown() -> None:
    called = asyncio.Event()

    class Hanging(Script):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            if len(self.requests) == 1:
                called.set()
            async for event in super().stream(request):
                yield event

    inner = Hanging(call("look", item=1), hold(asyncio.Event(), then=say("never")))
    child = Agent(inner, name="child", tools=[look])
    async with open_store("memory:", grace=0) as store:
        session = await store.create(Agent(asks(), tools=[child]))
        await session.send("go")
        await called.wait()
    assert session.usage.turns == SPENT + SPENT + Usage(unknown=1)


# Deps.


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name


@tool(effect="none")
async def where_am_i(ctx: Context[Shop]) -> str:
    """Say the shop's name."""
    return ctx.deps.name


async def test_it_gets_the_same_deps() -> None:
    inner = Script(call("where_am_i"), say("told"))
    child = Agent(inner, name="child", deps=Shop, tools=[where_am_i])
    await Agent(asks(), deps=Shop, tools=[child]).run("go", deps=Shop("corner"))
    assert told(inner) == [("corner", None)]


async def test_one_without_deps_gets_none() -> None:
    seen: list[object] = []

    def instructions(ctx: Context[Any]) -> str:
        seen.append(ctx.deps)
        return "x"

    child = Agent(Script(say("42")), name="child", instructions=instructions)
    await Agent(asks(), deps=Shop, tools=[child]).run("go", deps=Shop("corner"))
    assert seen == [None]


async def test_deps_of_another_type_are_an_error_that_the_model_reads() -> None:
    inner = Script()
    child = Agent(inner, name="child", deps=Shop, tools=[where_am_i])
    result = await Agent(asks(), deps=int, tools=[child]).run("go", deps=3)
    ((content, code),) = results(result)
    assert code == "SUBAGENT_FAILED"
    assert "deps=Shop" in content
    assert (inner.requests, result.text, result.usage) == ([], "done", SPENT + SPENT)


# Cycles, depth, permissions.


async def test_an_agent_that_is_inside_itself_is_refused() -> None:
    script = Script(call("desk", prompt="again"), say("done"))
    agent = Agent(script, name="desk", tools=[Agent(Script(), name="desk")])
    agent.tools[0]._delegate.agent = agent  # type: ignore[union-attr,misc]  # no other way makes a circle of values
    result = await agent.run("go")
    assert results(result)[0][1] == "SUBAGENT_CYCLE"
    assert (result.text, len(script.requests)) == ("done", 2)


async def test_a_copy_of_an_agent_inside_its_original_ends_where_the_original_had_no_tools() -> None:
    script = Script(call("desk", prompt="again"), say("inner"), say("outer"))
    desk = Agent(script, name="desk")
    result = await desk.replace(tools=[desk]).run("go")
    assert (result.text, results(result)) == ("outer", [("inner", None)])


@pytest.mark.parametrize(("levels", "code"), [(8, None), (9, "SUBAGENT_DEPTH")])
async def test_a_chain_that_is_too_deep_is_refused_at_its_end(levels: int, code: str | None) -> None:
    agent = last = Agent(Script(say("bottom")), name="agent0")
    for level in range(levels):
        last, agent = agent, Agent(asks(f"agent{level}"), name=f"agent{level + 1}", tools=[agent])
    result = await agent.run("go")
    assert (result.text, results(result)) == ("done", [("done", None)])
    bottom_s_parent = agent
    for _ in range(levels - 1):
        bottom_s_parent = bottom_s_parent.tools[0]._delegate.agent  # type: ignore[union-attr]
    assert isinstance(bottom_s_parent.model, Script)
    assert told(bottom_s_parent.model)[0][1] == code
    assert last is not agent


async def test_it_never_gets_more_than_its_parent() -> None:
    inner = Script(calls(call("count", item=1), call("restock", item=2)), say("42"))
    child = Agent(inner, name="child", tools=[count, restock])
    result = await Agent(asks(), tools=[child], allow={"stock:read"}).run("go")
    assert told(inner) == [("1 are there", None), ("Not permitted; missing: stock:write.", "NOT_ALLOWED")]
    assert result.text == "done"


async def test_permissions_are_narrowed_at_each_level() -> None:
    inner = Script(calls(call("count", item=1), call("restock", item=2)), say("42"))
    child = Agent(inner, name="child", tools=[count, restock])
    middle = Agent(asks(), name="middle", tools=[child], allow={"stock:read"})
    await Agent(asks("middle"), tools=[middle], allow={"stock:read", "stock:write"}).run("go")
    assert [code for _, code in told(inner)] == [None, "NOT_ALLOWED"]


def test_its_own_tools_are_checked_against_its_own_permissions() -> None:
    with pytest.raises(NotAllowed, match="stock:write"):
        Agent(Script(), name="child", tools=[restock], allow={"stock:read"})


async def test_in_a_session_its_permissions_are_those_of_the_session(where: Where) -> None:
    inner = Script(calls(call("count", item=1), call("restock", item=2)), say("42"))
    child = Agent(inner, name="child", tools=[count, restock])
    async with open_store(where) as store:
        session = await store.create(Agent(asks(), tools=[child]), allow={"stock:read"})
        await session.ask("go")
    assert [code for _, code in told(inner)] == [None, "NOT_ALLOWED"]


# Output.


class Order(BaseModel):
    id: str
    cents: int


ORDER = {"id": "o-7", "cents": 25}


@pytest.mark.parametrize("mode", MODES)
async def test_the_parent_s_model_reads_the_json_of_its_output(mode: Mode) -> None:
    outer = asks()
    child = Agent(Structured(mode, answer(mode, ORDER)), name="child", output=Order)
    await Agent(outer, tools=[child]).run("go")
    ((content, code),) = told(outer)
    assert (json.loads(content), code) == (ORDER, None)


@pytest.mark.parametrize("mode", MODES)
async def test_in_a_session_the_parent_s_model_reads_the_json_of_its_output(where: Where, mode: Mode) -> None:
    child = Agent(Structured(mode, answer(mode, {"output": [ORDER]})), name="child", output=list[Order])
    async with open_store(where) as store:
        session = await store.create(Agent(asks(), tools=[child]))
        await session.ask("go")
        assert json.loads(results(session)[0][0]) == {"output": [ORDER]}


async def test_one_that_ends_without_a_text_says_so() -> None:
    child = Agent(Script(call("look", item=1)), name="clerk", tools=[look], stop_when=[lambda step: True])
    result = await Agent(Script(call("clerk", prompt="look"), say("done")), tools=[child]).run("go")
    assert results(result) == [("It ended without a text.", None)]


async def test_one_of_a_pool_that_ends_without_a_text_says_so(where: Where) -> None:
    child = Agent(Script(call("look", item=1)), name="clerk", tools=[look], stop_when=[lambda step: True])
    async with open_store(where) as store:
        wrapped = Pool(1).wrap("clerk", child, description="Looks things up.")
        session = await store.create(Agent(Script(call("clerk", prompt="look"), say("done")), tools=[wrapped]))
        result = await session.ask("go")
        assert results(result) == [("It ended without a text.", None)]
        assert [receipt.stop for receipt in session.receipts] == ["It ended without a text."]


async def test_its_answer_is_capped() -> None:
    child = Agent(Script(say("x" * 100_000)), name="child")
    result = await Agent(asks(), tools=[child]).run("go")
    content = results(result)[0][0]
    assert len(content) < 70_000
    assert content.endswith(f"[cut: {100_000 - 65_536} bytes are missing]")


@pytest.mark.parametrize("broken", [ModelError("x" * 100_000), WrongCall("x" * 100_000)])
async def test_the_reason_why_it_failed_is_capped(broken: Exception) -> None:
    child = Agent(Script(fail(broken)), name="child")
    result = await Agent(asks(), tools=[child]).run("go")
    content = results(result)[0][0]
    assert len(content) < 70_000
    assert content.endswith("bytes are missing]")


# Many, and nested.


async def test_four_at_once_give_their_results_in_call_order() -> None:
    gates = [asyncio.Event() for _ in range(4)]
    children = [Agent(Script(hold(gates[n], then=say(f"answer {n}"))), name=f"child{n}") for n in range(4)]
    outer = Script(calls(*(call(f"child{n}", prompt="x") for n in range(4))), say("done"))
    task = asyncio.ensure_future(Agent(outer, tools=children).run("go"))
    await settle()
    assert [len(child.model.requests) for child in children] == [1, 1, 1, 1]  # type: ignore[union-attr]
    for gate in reversed(gates):
        gate.set()
        await settle()
    assert results(await task) == [(f"answer {n}", None) for n in range(4)]


async def test_one_agent_may_be_asked_twice_in_a_step() -> None:
    child = Agent(Script(say("a"), say("b")), name="child")
    outer = Script(calls(call("child", prompt="1"), call("child", prompt="2")), say("done"))
    result = await Agent(outer, tools=[child]).run("go")
    assert sorted(results(result)) == [("a", None), ("b", None)]
    assert result.usage == Usage(input_tokens=40, output_tokens=20)


async def test_usage_counts_two_levels_deep_where_the_middle_fails_too() -> None:
    inner = Agent(Script(say("42")), name="inner")
    middle = Agent(Script(call("inner", prompt="x"), fail(OSError("secret"))), name="middle", tools=[inner])
    result = await Agent(asks("middle"), tools=[middle]).run("go")
    assert results(result)[0][1] == "SUBAGENT_FAILED"
    assert result.usage == Usage(input_tokens=40, output_tokens=20, unknown=1)


# In a session.


async def test_in_a_session_its_usage_is_the_session_s_own(where: Where) -> None:
    inner = Agent(Script(say("42")), name="inner")
    middle = Agent(asks("inner"), name="middle", tools=[inner])
    async with open_store(where) as store:
        session = await store.create(Agent(asks("middle"), tools=[middle]))
        result = await session.ask("go")
        assert result.usage == session.usage.turns == Usage(input_tokens=50, output_tokens=25)
        assert session.usage.delegated == Usage()
        assert session.receipts == ()
        threads = [header.thread async for header in store.list()]
        assert threads == [session.id]
    async with open_store(where) as store:
        reopened = await store.open(session.id)
        assert reopened.usage.turns == Usage(input_tokens=50, output_tokens=25)


async def test_its_usage_counts_where_it_failed_in_a_session(where: Where) -> None:
    child = Agent(Script(call("look", item=1), fail(OSError("x"))), name="child", tools=[look])
    model = Script(call("child", prompt="x"), fail(OSError("y")))
    async with open_store(where) as store:
        session = await store.create(Agent(model, tools=[child]))
        with pytest.raises(ModelFailed):
            await session.ask("go")
        assert session.usage.turns == SPENT + SPENT + Usage(unknown=2)


async def test_its_deadlines_are_those_of_the_store_s_clock(where: Where) -> None:
    clock = ManualClock()
    started = asyncio.Event()

    @tool(effect="none", timeout=10.0)
    async def slow() -> None:
        started.set()
        await asyncio.Event().wait()

    inner = Script(call("slow"), say("too slow"))
    async with open_store(where, clock=clock) as store:
        child = Agent(inner, name="child", tools=[slow])
        session = await store.create(Agent(asks(), tools=[child]))
        turn = await session.send("go")
        await started.wait()
        await clock.advance(10.0)
        await settle()
        assert told(inner)[0][1] == "TIMEOUT"
        assert (await turn.wait()).text == "done"


async def session_of(store: OpenStore, agent: Agent[Any, Any]) -> Session[Any]:
    """The one session of the scenario: found, or made."""
    async for header in store.list(meta={"scenario": "crash"}):
        return await store.open(header.thread, agent)
    return await store.create(agent, meta={"scenario": "crash"})


async def to_the_end(session: Session[Any], prompt: str) -> None:
    await session.resume()
    await session.send(prompt, key=prompt)
    await session.settled_or_waiting()
    while session.pending:
        request = session.pending[0]
        await session.decide(resolve(request, "it was done") if request.kind == "uncertain" else approve(request))
        await session.settled_or_waiting()


async def looks(kit: Kit) -> None:
    """A sub-agent without effects beside another call: it may be asked again after a crash."""
    child = kit.watch(Agent(Script(call("look", item=1), say("42")), name="child", tools=[look]))
    script = Script(calls(call("child", prompt="x"), call("look", item=2)), call("look", item=3), say("done"))
    async with kit.open() as store:
        await to_the_end(await session_of(store, kit.watch(Agent(script, tools=[child, look]))), "go")


@pytest.mark.parametrize("scenario", [looks])
async def test_every_crash_point_of_a_sub_agent_without_effects_holds(
    scenario: Callable[[Kit], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def check(kit: Kit) -> None:
        root = next(iter(kit.views().values()))
        assert list(root.ended.values())[-1].outcome == "answered"

    report = await crash_points(scenario, check)
    with capsys.disabled():
        print(f"\n{scenario.__name__}: {report}")
    assert str(report).endswith("all held")
    assert len(report.points) > 10


async def test_one_with_effects_is_uncertain_after_a_crash(where: Where) -> None:
    started = asyncio.Event()
    runs: list[str] = []

    @tool
    async def pay(order: str) -> str:
        runs.append(order)
        started.set()
        await asyncio.Event().wait()
        return "paid"

    child = Agent(Script(call("pay", order="1"), say("paid")), name="child", tools=[pay])
    agent = Agent(asks(), tools=[child])
    async with open_store(where, grace=0.0) as store:
        session = await store.create(agent)
        await session.send("go")
        await started.wait()
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        await session.resume()
        await session.settled_or_waiting()
        request = session.pending[0]
        assert (request.kind, request.tool) == ("uncertain", "child")
        assert runs == ["1"]
        turn = await session.decide(resolve(request, "it was paid"))
        assert (await turn.wait()).text == "done"
        assert results(session) == [("it was paid", None)]
        assert runs == ["1"]


async def test_the_keys_of_its_tools_are_the_same_where_it_is_asked_again_after_a_crash(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'weft.db'}"
    keys: list[str] = []
    hangs = asyncio.Event()

    @tool(effect="repeatable")
    async def pay(ctx: Context, order: str) -> str:
        keys.append(ctx.call.idempotency_key)
        if len(keys) == 3:
            hangs.set()
            await asyncio.Event().wait()
        return "paid"

    def agent() -> Agent[None, str]:
        one, two = call("pay", order="1"), call("pay", order="2")
        inner = Agent(Script(one, one, two, say("paid")), name="inner", tools=[pay])
        middle = Agent(asks("inner"), name="middle", tools=[inner])
        return Agent(asks("middle"), tools=[middle])

    async with open_store(address, grace=0.0) as store:
        session = await store.create(agent())
        await session.send("go")
        await hangs.wait()
    async with open_store(address) as store:
        session = await store.open(session.id, agent())
        turn = await session.resume()
        assert turn is not None
        assert (await turn.wait()).text == "done"
        first, again = keys[:3], keys[3:]
        assert (first, len(set(first))) == (again, 3)
        other = await store.create(agent())
        assert (await other.ask("go")).text == "done"
    assert not set(keys[6:]) & set(first)


async def test_the_keys_of_its_tools_differ_from_call_to_call() -> None:
    keys: list[str] = []

    @tool(effect="repeatable")
    async def pay(ctx: Context, order: str) -> str:
        keys.append(ctx.call.idempotency_key)
        return "paid"

    child = Agent(Script(*[calls(*[call("pay", order="1")] * 2), say("paid")] * 2), name="child", tools=[pay])
    outer = Script(calls(call("child", prompt="x"), call("child", prompt="x")), say("done"))
    await Agent(outer, tools=[child]).run("go")
    assert len(keys) == len(set(keys))
    assert len(keys) >= 2


async def test_a_sub_agent_that_waits_for_its_slot_has_not_started_where_its_run_is_cancelled() -> None:
    busy = Agent(Script(hold(asyncio.Event(), say("never")), say("never")), name="busy")
    ask = Pool(limit=1).wrap("ask", busy, description="Asks.")
    loop = Agent(Script(calls(call("ask", prompt="a"), call("ask", prompt="b"))), tools=[ask])._loop("go")
    task = asyncio.ensure_future(loop.drive(Begin()))
    await settle()
    loop.interrupt("cancel")
    await task
    assert [result.content for result in list(loop.history())[-1].results] == [
        "The call was cancelled. It had started, so its effect may have happened.",
        "The call was cancelled. It had not started, so nothing was done.",
    ]
