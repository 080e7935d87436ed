"""The clock that a test moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weft import Agent, tool
from weft.testing import ManualClock, Script, call, say
from weft.thread import open_store


async def test_what_was_started_before_an_advance_is_under_way_when_the_clock_moves() -> None:
    clock = ManualClock()
    sleeper = asyncio.ensure_future(clock.sleep(5.0))  # has not begun
    await clock.advance(5.0)
    assert sleeper.done()


@pytest.mark.parametrize("where", ["memory:", "sqlite"])
async def test_the_clock_moves_when_what_a_store_was_asked_is_done(tmp_path: Path, where: str) -> None:
    """Two bodies that time out one after the other, with what is written between, in one advance."""
    clock = ManualClock()

    @tool(effect="none", timeout=5.0)
    async def look() -> str:
        await asyncio.Event().wait()
        return "never"

    where = f"sqlite:///{tmp_path / 'weft.db'}" if where == "sqlite" else where
    async with open_store(where, clock=clock, grace=0.0) as store:
        session = await store.create(Agent(Script(call("look"), call("look"), say("done")), tools=[look]))
        turn = await session.send("go")
        await clock.advance(20.0)
        assert turn.outcome == "answered"
        assert [result.code for message in session.messages for result in message.results] == ["TIMEOUT"] * 2


async def test_what_another_loop_left_behind_is_not_waited_for() -> None:
    clock = ManualClock()
    loop = asyncio.new_event_loop()
    clock.expect(loop.create_future())
    loop.close()
    await clock.advance(1.0)
    assert clock.monotonic() == 1.0
