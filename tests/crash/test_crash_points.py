"""Every boundary of these scenarios, cut once each."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.thread.talk import told
from weft import Agent, tool
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, calls, say
from weft.testing.crash import Kit, crash_points
from weft.thread import Memory, OpenStore, Session, approve, open_store, resolve


@tool(effect="none")
async def look(order: str) -> str:
    """Look an order up."""
    return f"{order} has shipped"


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
    return f"refunded {order}"


async def session_of(store: OpenStore, agent: Agent) -> Session:
    """The one session of the scenario: found, or made."""
    async for header in store.list(meta={"scenario": "crash"}):
        return await store.open(header.thread, agent)
    return await store.create(agent, meta={"scenario": "crash"})


async def to_the_end(session: Session, prompt: str) -> None:
    """What an application does: go on, send, decide whatever waits, until the prompt is answered."""
    await session.resume()
    await session.send(prompt, key=prompt)
    await all_decided(session)


async def all_decided(session: Session) -> None:
    """Decide whatever waits, until nothing does."""
    await session.settled_or_waiting()
    while session.pending:
        request = session.pending[0]
        await session.decide(resolve(request, "it was done") if request.kind == "uncertain" else approve(request))
        await session.settled_or_waiting()


async def one_tool(kit: Kit) -> None:
    agent = kit.watch(Agent(Script(call("look", order="42"), say("shipped")), tools=[look]))
    async with kit.open() as store:
        await to_the_end(await session_of(store, agent), "where is 42?")


async def parallel(kit: Kit) -> None:
    script = Script(calls(call("look", order="1"), call("notify", order="2"), call("charge", order="3")), say("done"))
    agent = kit.watch(Agent(script, tools=[look, notify, charge]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await to_the_end(session, "do all three")


async def two_turns(kit: Kit) -> None:
    script = Script(call("charge", order="1"), say("one"), call("charge", order="2"), say("two"))
    agent = kit.watch(Agent(script, tools=[charge]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await to_the_end(session, "first")
        await to_the_end(session, "second")


async def approval(kit: Kit) -> None:
    script = Script(calls(call("look", order="1"), call("refund", order="2")), say("refunded"))
    agent = kit.watch(Agent(script, tools=[look, refund]))
    async with kit.open() as store:
        await to_the_end(await session_of(store, agent), "refund it")


async def delegation(kit: Kit) -> None:
    helper = kit.watch(Agent(Script(call("charge", order="7"), say("charged")), name="helper", tools=[charge]))
    pool = Pool(1)
    wrapped = pool.wrap("help", helper, description="Helps.")
    desk = Agent(Script(calls(call("help", prompt="a"), call("help", prompt="b")), say("done")), tools=[wrapped])
    async with kit.open() as store, pool:
        await to_the_end(await session_of(store, desk), "get help")


async def nested_approval(kit: Kit) -> None:
    refunds = kit.watch(Agent(Script(call("refund", order="7"), say("refunded")), name="refunds", tools=[refund]))
    pool = Pool(2)
    middle_tools = [pool.wrap("refunds", refunds, description="Refunds."), look]
    script = Script(calls(call("refunds", prompt="7"), call("look", order="7")), say("it is refunded"))
    middle = kit.watch(Agent(script, name="middle", tools=middle_tools))
    desk = Agent(Script(call("middle", prompt="7"), say("done")), tools=[pool.wrap("middle", middle, description="M.")])
    async with kit.open() as store, pool:
        await to_the_end(await session_of(store, desk), "refund 7")


async def branching(kit: Kit) -> None:
    """An approved call is branched back to, asked again, approved again; then all begins anew."""
    script = Script(calls(call("look", order="1"), call("refund", order="2")), say("refunded"))
    agent = kit.watch(Agent(script, tools=[look, refund]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        for prompt, leaves in (("refund it", 0), ("once more", 1), ("from the beginning", 2)):
            if leaves and await branched(store, session) < leaves:
                await to_the_end(session, "refund it")
                await session.branch(session.path[1].id if leaves == 1 else None)
            await to_the_end(session, prompt if leaves != 1 else "refund it")


async def branched(store: OpenStore, session: Session) -> int:
    """How often a session has been branched."""
    await session.refresh()
    return len([entry async for entry in store.watch(session.id, until=session.head) if entry.kind == "leaf"])


async def forking(kit: Kit) -> None:
    """A parked session is forked once; both are decided, and go on."""
    script = Script(calls(call("look", order="1"), call("refund", order="2")), say("refunded"), say("fine"))
    agent = kit.watch(Agent(script, tools=[look, refund]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("refund it", key="refund it")
        await session.settled_or_waiting()
        fork = await found(store, agent, "fork") or await session.fork(meta={"scenario": "fork"})
        for each in (session, fork):
            await each.resume()
            await all_decided(each)
            await to_the_end(each, "and now?")


async def found(store: OpenStore, agent: Agent, scenario: str) -> Session | None:
    async for info in store.list(meta={"scenario": scenario}):
        return await store.open(info.thread, agent)
    return None


async def parked_text() -> str:
    """The text of a session that waits for a person; always the same."""
    script = Script(calls(call("look", order="1"), call("refund", order="2")))
    async with open_store(Memory(), clock=ManualClock(), ids=CountingIds("x")) as store:
        session = await session_of(store, Agent(script, tools=[look, refund]))
        await session.ask("refund it", key="refund it")
        return await store.export(session.id)


async def restoring(kit: Kit) -> None:
    """A parked session comes from elsewhere, and goes on here."""
    text = await parked_text()
    script = Script(calls(call("look", order="1"), call("refund", order="2")), say("refunded"), say("fine"))
    agent = kit.watch(Agent(script, tools=[look, refund]))
    async with kit.open() as store:
        if await found(store, agent, "crash") is None:
            await store.restore(text)
        session = await session_of(store, agent)
        await to_the_end(session, "refund it")
        await to_the_end(session, "and now?")


async def deleting(kit: Kit) -> None:
    """A session with children does its work and is deleted; another one keeps note of that."""
    helper = kit.watch(Agent(Script(call("look", order="7"), say("seen")), name="helper", tools=[look]))
    pool = Pool(2)
    tools = [pool.wrap("help", helper, description="Helps.")]
    desk = Agent(Script(calls(call("help", prompt="a"), call("help", prompt="b")), say("done")), tools=tools)
    keeper = Agent(Script(say("noted")))
    async with kit.open() as store, pool:
        session = await session_of(store, keeper)
        if not session.notes:
            doomed = await store.create(desk, key="doomed")
            await to_the_end(doomed, "get help")
            await store.delete(doomed.id, children=True)
            await session.note("deleted", doomed.id)
        await to_the_end(session, "it is gone")


SCENARIOS = [
    one_tool,
    parallel,
    two_turns,
    approval,
    delegation,
    nested_approval,
    branching,
    forking,
    restoring,
    deleting,
]


def _each_once(scenario: Callable[[Kit], object], kit: Kit) -> None:
    """What a scenario does once is done once, whatever crashed on the way."""
    written = [entry for _, found in kit.entries().values() for entry in found]
    branches = sum(entry.kind == "leaf" for entry in written)
    assert branches == (2 if scenario is branching else 0)
    if scenario is forking:
        origin, fork = kit.views().values()
        assert fork.header.origin is not None
        assert fork.header.origin.thread == origin.header.thread
        said = [[line for line in told(view.messages) if line[0] != "["] for view in (origin, fork)]
        assert said[0] == said[1]  # a result may be uncertain in one of them only
    if scenario is deleting:
        assert len(kit.views()) == 1


@pytest.mark.soak  # its long form crashes each run that follows a crash as well
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_every_crash_point_holds(scenario: Callable[[Kit], object], capsys: pytest.CaptureFixture[str]) -> None:
    def answered(kit: Kit) -> None:
        for view in kit.views().values():
            assert list(view.ended.values())[-1].outcome == "answered"
            assert not view.undecided
        _each_once(scenario, kit)

    report = await crash_points(scenario, answered, crashes=2 if os.environ.get("WEFT_SOAK") else 1)
    with capsys.disabled():
        print(f"\n{scenario.__name__}: {report}")
    assert len(report.points) > 10
