"""What the kit promises to whoever writes a scenario."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from weft import Agent, Message, ToolCall, tool
from weft.testing import CrashFailed, Kit, ManualClock, Script, call, crash_points, say
from weft.thread import OpenStore, Session
from weft.thread._turns import Plan
from weft.thread.entries import Body, Decision, Inbox, Receipt, Said, StartedCall, ToolsStarted, TurnStarted


@tool(effect="none")
async def look(order: str) -> str:
    """Look an order up."""
    return "shipped"


async def session_of(store: OpenStore, agent: Agent, customer: str = "ann") -> tuple[Session, bool]:
    """The customer's session, and whether it has just been made."""
    async for header in store.list(meta={"customer": customer}):
        return await store.open(header.thread, agent), False
    return await store.create(agent, meta={"customer": customer}), True


async def one_turn(kit: Kit) -> None:
    async with kit.open() as store:
        session, _ = await session_of(store, Agent(Script(say("done"))))
        await session.resume()
        await session.send("hi", key="hi")
        await session.settled_or_waiting()


async def test_a_tools_arguments_may_have_any_name() -> None:
    @tool(effect="none")
    async def run(kit: str, tool: str, context: str) -> str:
        """Run."""
        return f"{kit} {tool} {context}"

    kit = Kit()
    desk = kit.watch(Agent(Script(call("run", kit="a", tool="b", context="c"), say("done")), tools=[run]))
    result = await desk.run("hi")
    assert [part.content for message in result.messages for part in message.results] == ["a b c"]


async def test_a_scenario_may_open_its_store_more_than_once() -> None:
    async def scenario(kit: Kit) -> None:
        script = Script(call("look", order="1"), say("one"), call("look", order="2"), say("two"))
        desk = kit.watch(Agent(script, tools=[look]))
        for prompt in ("first", "second"):
            async with kit.open() as store:
                session, _ = await session_of(store, desk)
                await session.resume()
                await session.send(prompt, key=prompt)
                await session.settled_or_waiting()

    assert (await crash_points(scenario)).runs > 10


async def test_a_message_that_any_session_has_lost_is_seen() -> None:
    async def scenario(kit: Kit) -> None:
        desk = Agent(Script(say("done")))
        async with kit.open() as store:
            for customer in ("ann", "bob"):
                session, new = await session_of(store, desk, customer)
                if new or customer == "ann":  # after a crash nobody sends bob's
                    await session.send("hi", key="hi")
                await session.resume()
                await session.settled_or_waiting()

    with pytest.raises(CrashFailed, match="spent") as failed:
        await crash_points(scenario)
    assert failed.value.__notes__ == ["crash points: after append 1 of thread 1"]


async def test_a_check_that_would_never_run_is_refused() -> None:
    async def check(kit: Kit) -> None:
        raise AssertionError

    wrong: Any = check
    with pytest.raises(TypeError, match="check is a plain function"):
        await crash_points(one_turn, wrong)


async def test_a_scenario_that_writes_nothing_is_told_so() -> None:
    async def scenario(kit: Kit) -> None:
        async with kit.open():
            pass

    with pytest.raises(CrashFailed, match=r"made no thread.*kit\.open\(\)"):
        await crash_points(scenario)


async def test_a_scenario_that_never_ends_after_a_crash_fails_and_names_the_point() -> None:
    clock = ManualClock()

    async def scenario(kit: Kit) -> None:
        if kit.incarnation == 2:
            await clock.advance(59.0)
            await clock.advance(1.0)
            await asyncio.Event().wait()
        await one_turn(kit)

    with pytest.raises(CrashFailed, match="had not ended after 60 seconds") as failed:
        await crash_points(scenario, seconds=60.0, clock=clock)
    assert failed.value.__notes__ == ["crash points: after append 1 of thread 0"]
    assert isinstance(failed.value.__cause__, asyncio.CancelledError)  # it says where the scenario waits


async def test_a_scenario_that_swallows_its_cut_or_its_end_is_not_waited_for_either() -> None:
    clock = ManualClock()
    over = asyncio.Event()

    async def scenario(kit: Kit) -> None:
        try:
            await one_turn(kit)
        finally:
            while kit.severed and not over.is_set():
                with suppress(asyncio.CancelledError):
                    await clock.advance(60.0)
                    await over.wait()

    with pytest.raises(CrashFailed, match="after 60 seconds, and goes on although it was cancelled"):
        await crash_points(scenario, seconds=60.0, clock=clock)
    over.set()


async def test_cancelling_the_crash_points_ends_the_scenario_that_runs() -> None:
    began, left = asyncio.Event(), asyncio.Event()

    async def scenario(kit: Kit) -> None:
        async with kit.open():
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

    before = asyncio.all_tasks()
    trial = asyncio.ensure_future(crash_points(scenario))
    await began.wait()
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert left.is_set()
    assert asyncio.all_tasks() == before


RECEIPT = Receipt(state="accepted", child="c", call="a", agent="b", wrap="b", prompt="x")
STARTED = StartedCall(call="a", attempt=1, effect="once", digest="d")
DECISION = Decision(id="d", request="r", outcome="approve", at=0.0)
BEGUN = TurnStarted(cause="prompt", owner="o", steps=1)
ASKED = Said(message=Message(role="assistant", parts=(ToolCall(id="a", name="look", arguments="{}"),)))
WRONG: dict[str, tuple[Body, ...]] = {
    "still runs a turn": (BEGUN,),
    "calls without a result": (ASKED,),
    "receipts that are not settled": (RECEIPT,),
    "accepted input that nobody took": (Inbox(state="accepted", policy="queue", message=Message.user("more")),),
    "decisions are spent, or made, more than once": (DECISION, DECISION),
    "a `once` body was started again": (ToolsStarted(calls=(STARTED,)), ToolsStarted(calls=(STARTED,))),
}


@pytest.mark.parametrize("told", WRONG)
async def test_a_promise_that_a_journal_breaks_is_seen(told: str) -> None:
    async def scenario(kit: Kit) -> None:
        await one_turn(kit)
        async with kit.open() as store:
            session, _ = await session_of(store, Agent(Script(say("done"))))
            await session._live.command(lambda _: Plan(bodies=WRONG[told], lease="mail"))

    with pytest.raises(CrashFailed, match=told):
        await crash_points(scenario)


async def test_a_lease_that_is_left_is_seen() -> None:
    async def scenario(kit: Kit) -> None:
        await one_turn(kit)
        for thread in kit.data._threads.values():
            thread.owner = "somebody"

    with pytest.raises(CrashFailed, match="still leased by 'somebody'"):
        await crash_points(scenario)


async def test_a_scenario_that_is_another_when_it_runs_again_is_told_so() -> None:
    async def scenario(kit: Kit) -> None:
        ran.append(kit)
        await one_turn(kit)
        if len(ran) == 1:
            async with kit.open() as store:
                session, _ = await session_of(store, Agent(Script(say("done"))))
                await session.note("once", "and never again")

    ran: list[Kit] = []
    with pytest.raises(CrashFailed, match="a rerun did not reach its point"):
        await crash_points(scenario)
