"""What is over is freed at once: nothing of it waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from weft import Agent, Context, tool
from weft._run import RunLoop
from weft.pool import Pool
from weft.testing.clock import settle
from weft.testing.script import Script, call, calls, say
from weft.thread import open_store
from weft.thread._live import Live
from weft.thread._runner import TurnRunner

KEPT = (RunLoop, TurnRunner, Live, asyncio.Task)


@tool(effect="none")
async def look(ctx: Context, item: int) -> str:
    """Looks."""
    return f"{item} for {ctx.call.id}"


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    return Counter(type(item).__name__ for item in gc.get_objects() if isinstance(item, KEPT))


async def test_a_run_that_is_over_is_freed_at_once() -> None:
    helper = Agent(Script(say("42")), name="helper")
    script = Script(calls(call("look", item=1), call("look", item=2), call("helper", prompt="find it")), say("done"))
    before = alive()
    result = await Agent(script, tools=[look, helper]).run("go")
    assert result.text == "done"
    assert alive() == before


async def test_a_streamed_run_that_is_over_is_freed_with_its_stream() -> None:
    agent = Agent(Script(call("look", item=1), say("done")), tools=[look])
    before = alive()
    async with agent.stream("go") as run:
        assert [event.kind async for event in run][-1] == "run_finished"
    del run
    assert alive() == before


async def test_a_child_that_is_over_is_freed_while_its_store_is_open() -> None:
    child = Agent(Script(call("look", item=1), say("42")), name="researcher", tools=[look])
    wrapped = Pool(2).wrap("ask", child, description="Asks.")
    wanted = [call("ask", prompt=f"find {item}") for item in range(3)]
    async with open_store("memory:") as store:
        session = await store.create(Agent(Script(calls(*wanted), say("done")), tools=[wrapped]))
        before = alive()
        assert (await session.ask("go")).text == "done"
        await settle()
        assert alive() == before
