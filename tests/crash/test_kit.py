"""What the kit promises to whoever writes a scenario."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from weft import Agent, tool
from weft.testing import CrashFailed, Kit, Script, call, crash_points, say
from weft.thread import OpenStore, Session


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


@pytest.mark.parametrize("hangs_in", [1, 2])
async def test_a_run_that_hangs_fails(hangs_in: int) -> None:
    async def scenario(kit: Kit) -> None:
        await one_turn(kit)
        if kit.incarnation == hangs_in:
            await asyncio.Event().wait()

    with pytest.raises(CrashFailed, match="the scenario did not end"):
        await crash_points(scenario, patience=0.2)


async def test_a_run_that_hangs_and_cannot_be_cancelled_fails() -> None:
    never = asyncio.Event()

    async def scenario(kit: Kit) -> None:
        while not never.is_set():
            with suppress(asyncio.CancelledError):
                await never.wait()

    with pytest.raises(CrashFailed, match="the scenario did not end"):
        await crash_points(scenario, patience=0.01)
    never.set()
