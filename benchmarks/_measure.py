"""How things are measured: repeated runs, calibrations around each, one JSON line for all of them."""

from __future__ import annotations

import gc
import json
import sqlite3
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TypeAlias

Numbers: TypeAlias = Mapping[str, float]
"""What one run gave: quantities by name, with the unit in the name."""

REPEATS = 5
_ROUNDS = 200_000
_COMMITS = 100
_LINE = "x" * 400


def elapsed_ms(start: float) -> float:
    """Milliseconds since this reading of `perf_counter`."""
    return (perf_counter() - start) * 1000


def repeat(run: Callable[[], Numbers], *, times: int = REPEATS, disk: bool = False) -> list[Numbers]:
    """The numbers of each run of one thing; otherwise as `alternate`."""
    return alternate([run], times=times, disk=disk)[0]


def alternate(
    peers: Sequence[Callable[[], Numbers]], *, times: int = REPEATS, disk: bool = False
) -> list[list[Numbers]]:
    """The numbers of each run of several things that take turns, with calibrations around each.

    Args:
        peers: Each does its work once, and measures it.
        times: How often each.
        disk: Measure a commit as well.
    """
    runs: list[list[Numbers]] = [[] for _ in peers]
    for _ in range(times):
        for place, peer in enumerate(peers):
            before = _beside(disk=disk)
            gc.collect()
            numbers = peer()
            after = _beside(disk=disk)
            runs[place].append({**numbers, **{key: (before[key] + after[key]) / 2 for key in before}})
    return runs


def _beside(*, disk: bool) -> Numbers:
    gc.collect()
    calibration = {"calibration_ms": calibration_ms()}
    return {**calibration, "commit_ms": commit_ms()} if disk else calibration


def line(
    name: str, params: Mapping[str, object], runs: Sequence[Numbers], *, most: Container[str] = (), **facts: object
) -> str:
    """One measurement as a line of JSON: best and median of each quantity, then what is no number.

    Args:
        name: The benchmark's.
        params: What was measured.
        runs: The numbers of each run.
        most: The quantities of which more is better.
        facts: What is no number.
    """
    quantities = {key: _summary([run[key] for run in runs], max if key in most else min) for key in runs[0]}
    return json.dumps({"name": name, "params": dict(params), "runs": len(runs), **quantities, **facts})


def _summary(values: Sequence[float], best: Callable[[Sequence[float]], float]) -> dict[str, float]:
    return {"best": _short(best(values)), "median": _short(median(values))}


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def calibration_ms() -> float:
    """The time of a fixed pure-Python loop."""
    start = perf_counter()
    total = 0
    for number in range(_ROUNDS):
        total += number & 7
    return elapsed_ms(start)


def commit_ms() -> float:
    """The median time of one fsynced commit of one short line, in a fresh SQLite file."""
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        connection = sqlite3.connect(Path(directory) / "commit.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE lines (n INTEGER PRIMARY KEY, line TEXT NOT NULL)")
        times = [_commit(connection) for _ in range(_COMMITS)]
        connection.close()
    return median(times)


def _commit(connection: sqlite3.Connection) -> float:
    start = perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO lines (line) VALUES (?)", (_LINE,))
    connection.execute("COMMIT")
    return elapsed_ms(start)
