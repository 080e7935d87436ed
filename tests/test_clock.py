"""The clock that a test moves."""

from __future__ import annotations

import asyncio

from weft.testing import ManualClock


async def test_what_was_started_before_an_advance_is_under_way_when_the_clock_moves() -> None:
    clock = ManualClock()
    sleeper = asyncio.ensure_future(clock.sleep(5.0))  # has not begun
    await clock.advance(5.0)
    assert sleeper.done()
