"""Whether a turn costs more in an old session: old and young turns, alternating in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter

from benchmarks._measure import Numbers, elapsed_ms, line, repeat
from benchmarks._subjects import CallThenText, Where, add, opened
from weft import Agent
from weft.thread import Session

TURNS = 2_600
"""The age of the old session."""
PAIRS = 100
TIMES = 3


def measure() -> Iterator[str]:
    """The ratio of an old session's turn to a young one's; the median of the pairs."""
    places: tuple[Where, ...] = ("memory", "sqlite NORMAL")
    for where in places:
        runs = repeat(partial(_run, where), times=TIMES, disk=where != "memory")
        yield line("growth", {"turns": TURNS, "pairs": PAIRS, "store": where}, runs)


def _run(where: Where) -> Numbers:
    return asyncio.run(_compare(where))


async def _compare(where: Where) -> Numbers:
    agent = Agent(CallThenText(), tools=[add])
    async with opened(where) as store:
        old = await store.create(agent)
        for _ in range(TURNS):
            await _turn(old)
        pairs: list[tuple[float, float]] = []
        for number in range(PAIRS):
            young = await store.create(agent)
            if number % 2:
                pairs.append((await _turn(old), await _turn(young)))
            else:
                young_ms = await _turn(young)
                pairs.append((await _turn(old), young_ms))
    return {
        "old_young_ratio": median(old_ms / young_ms for old_ms, young_ms in pairs),
        "old_ms_per_turn": median(old_ms for old_ms, _ in pairs),
        "young_ms_per_turn": median(young_ms for _, young_ms in pairs),
    }


async def _turn(session: Session) -> float:
    start = perf_counter()
    await session.ask("what is 1 and 2?")
    return elapsed_ms(start)
