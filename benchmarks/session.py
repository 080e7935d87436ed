"""The cost of a turn in one long SQLite session, at its start and at its end.

Times of parts that lie seconds apart depend on the hour as well; `growth` compares old and young turns in pairs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from time import perf_counter

from benchmarks._measure import Numbers, elapsed_ms, line, repeat
from benchmarks._subjects import CallThenText, Where, add, opened
from weft import Agent

TURNS = 2_600
PART = 100
TIMES = 3


def measure() -> Iterator[str]:
    """Milliseconds and bytes per turn, and how many commits would take as long."""
    places: tuple[Where, ...] = ("sqlite FULL", "sqlite NORMAL")
    for where in places:
        runs = [_in_commits(run) for run in repeat(partial(_run, where), times=TIMES, disk=True)]
        yield line("session", {"turns": TURNS, "part": PART, "store": where}, runs)


def _run(where: Where) -> Numbers:
    return asyncio.run(_converse(where))


async def _converse(where: Where) -> Numbers:
    agent = Agent(CallThenText(), tools=[add])
    async with opened(where) as store:
        session = await store.create(agent)
        times: list[float] = []
        heads = [session.head.count]
        for _ in range(TURNS):
            start = perf_counter()
            await session.ask("what is 1 and 2?")
            times.append(elapsed_ms(start))
            heads.append(session.head.count)
        lines = (await store.export(session.id)).encode("ascii").splitlines()
    first_bytes, last_bytes = _bytes(lines[heads[0] : heads[PART]]), _bytes(lines[heads[-PART - 1] : heads[-1]])
    return {
        "ms_per_turn": fmean(times),
        "first_ms_per_turn": fmean(times[:PART]),
        "last_ms_per_turn": fmean(times[-PART:]),
        "first_bytes_per_turn": first_bytes,
        "last_bytes_per_turn": last_bytes,
        "last_first_bytes_ratio": last_bytes / first_bytes,
    }


def _bytes(lines: Sequence[bytes]) -> float:
    return sum(map(len, lines)) / PART


def _in_commits(run: Numbers) -> Numbers:
    return {**run, "commits_per_turn": run["ms_per_turn"] / run["commit_ms"]}
