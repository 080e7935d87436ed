"""Many sessions at once on one SQLite file: what their sharing of commits brings.

Beside the store as it is stand one that commits each append alone, both with each commit slowed as on a busy
disk, and the store in memory. They take turns, and the ratios are those of the same round.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TypeAlias

from benchmarks._measure import Numbers, alternate, elapsed_ms, line
from benchmarks._subjects import CallThenText, add, opened
from weft import Agent
from weft._ports import SystemClock
from weft.thread import OpenStore, Session, open_store
from weft.thread._sqlite_jobs import Append, Job
from weft.thread.sqlite import SQLiteStore

Work: TypeAlias = Job | Append

SESSIONS = 200
TURNS = 10
TIMES = 3
SLOWED_MS = 1.0
"""Added to each commit, where it is slowed."""


class Counted(SQLiteStore):
    """Counts its commits and the appends in them, and can make each commit slow."""

    def __init__(self, path: Path, *, slowed_ms: float) -> None:
        super().__init__(path, owner="bench", ttl=300.0, clock=SystemClock(), synchronous="FULL")
        self._slowed = slowed_ms / 1000
        self.commits = 0
        self.appends = 0

    def _commit(self, connection: sqlite3.Connection, batch: list[Work]) -> list[object]:
        self.commits += 1
        self.appends += len(batch)
        if self._slowed:
            time.sleep(self._slowed)
        return super()._commit(connection, batch)


class Ungrouped(Counted):
    """Commits each append alone, and wakes its waiter then."""

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        for job in gathered:
            self._jobs.put([job])

    def _drain(self, first: list[Work]) -> tuple[list[Work], bool]:
        return first, False


@dataclass(frozen=True)
class Case:
    """One way of storing."""

    name: str
    kind: type[Counted] | None
    """None is the store in memory."""
    slowed_ms: float = 0.0


CASES = (
    Case("grouped", Counted),
    Case("one commit per append", Ungrouped),
    Case("grouped", Counted, SLOWED_MS),
    Case("one commit per append", Ungrouped, SLOWED_MS),
    Case("memory", None),
)


def measure(sessions: int = SESSIONS, turns: int = TURNS) -> Iterator[str]:
    """Turns per second and appends per commit; on the grouped cases how that compares with the others."""
    rounds = alternate([partial(_run, case, sessions, turns) for case in CASES], times=TIMES, disk=True)
    grouped, alone, slow_grouped, slow_alone, memory = rounds
    lines = (
        [_compared(*round_) for round_ in zip(grouped, alone, memory, strict=True)],
        alone,
        [_compared(*round_) for round_ in zip(slow_grouped, slow_alone, memory, strict=True)],
        slow_alone,
        memory,
    )
    for case, runs in zip(CASES, lines, strict=True):
        params = {"sessions": sessions, "turns": turns, "commits": case.name, "slowed_ms": case.slowed_ms}
        yield line("sessions", params, runs, most=("turns_per_second", "appends_per_commit", "speed_up", "of_memory"))


def _compared(grouped: Numbers, alone: Numbers, memory: Numbers) -> Numbers:
    """The speed-up against one commit per append, and the part of the speed in memory."""
    return {
        **grouped,
        "speed_up": grouped["turns_per_second"] / alone["turns_per_second"],
        "of_memory": grouped["turns_per_second"] / memory["turns_per_second"],
    }


def _run(case: Case, sessions: int, turns: int) -> Numbers:
    return asyncio.run(_converse(case, sessions, turns))


async def _converse(case: Case, sessions: int, turns: int) -> Numbers:
    agent = Agent(CallThenText(), tools=[add])
    async with _opened(case) as (store, counted):
        opened_sessions = [await store.create(agent) for _ in range(sessions)]
        commits, appends = (0, 0) if counted is None else (counted.commits, counted.appends)
        start = perf_counter()
        await asyncio.gather(*(_ask(session, turns) for session in opened_sessions))
        total_ms = elapsed_ms(start)
        _check(opened_sessions, turns)
        numbers = {"turns_per_second": sessions * turns / total_ms * 1000}
        if counted is None:
            return numbers
        return {
            **numbers,
            "commits": counted.commits - commits,
            "appends_per_commit": (counted.appends - appends) / (counted.commits - commits),
        }


@asynccontextmanager
async def _opened(case: Case) -> AsyncIterator[tuple[OpenStore, Counted | None]]:
    if case.kind is None:
        async with opened("memory") as store:
            yield store, None
        return
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        counted = case.kind(Path(directory) / "bench.db", slowed_ms=case.slowed_ms)
        async with open_store(counted) as store:
            yield store, counted


async def _ask(session: Session, turns: int) -> None:
    for _ in range(turns):
        await session.ask("what is 1 and 2?")


def _check(sessions: Sequence[Session], turns: int) -> None:
    if any(len(session.messages) != 4 * turns for session in sessions):
        raise RuntimeError("a session has not the messages of its turns; the measurement is void")
