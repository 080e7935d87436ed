"""The cost of opening an old session in SQLite and running one turn, against `json.loads` of its lines."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks._measure import Numbers, elapsed_ms, line, repeat
from benchmarks._subjects import CallThenText, add
from weft import Agent
from weft.thread import OpenStore, open_store

SIZES = (2_000, 10_000)
"""Messages."""
TIMES = 9
PASSES = 3
"""Of `json.loads` in each run; the quickest counts."""

_AGENT = Agent(CallThenText(), tools=[add])


@dataclass(frozen=True)
class Kept:
    """A stored session."""

    path: Path
    session: str
    messages: int


def measure(sizes: Sequence[int] = SIZES) -> Iterator[str]:
    """Milliseconds of opening and of a first turn, and the ratio; then how long opening stops the loop."""
    for messages in sizes:
        with _stored(messages) as kept:
            params = {"messages": messages, "store": "sqlite FULL"}
            yield line("reopen", params, repeat(partial(_run, kept), times=TIMES, disk=True))
            yield line("reopen_pause", params, repeat(partial(_watch, kept), disk=True))


@contextmanager
def _stored(messages: int) -> Iterator[Kept]:
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        path = Path(directory) / "kept.db"
        yield Kept(path, asyncio.run(_converse(path, messages)), messages)


async def _converse(path: Path, messages: int) -> str:
    async with open_store(f"sqlite:///{path}", synchronous="NORMAL") as store:
        session = await store.create(_AGENT)
        while len(session.messages) < messages:
            await session.ask("what is 1 and 2?")
        return session.id


@asynccontextmanager
async def _copied(kept: Kept) -> AsyncIterator[OpenStore]:
    """An open store of a copy, so that each run finds the session as it was."""
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        path = Path(directory) / "bench.db"
        shutil.copy(kept.path, path)
        async with open_store(f"sqlite:///{path}") as store:
            yield store


def _run(kept: Kept) -> Numbers:
    return asyncio.run(_time(kept))


async def _time(kept: Kept) -> Numbers:
    async with _copied(kept) as store:
        lines = (await store.export(kept.session)).encode("ascii").splitlines()
        dropped_ms = min(_parse(lines) for _ in range(PASSES))
        kept_ms = min(_parse_and_keep(lines) for _ in range(PASSES))
        del lines
        gc.collect()
        start = perf_counter()
        session = await store.open(kept.session, _AGENT)
        open_ms = elapsed_ms(start)
        await session.ask("what is 1 and 2?")
        total_ms = elapsed_ms(start)
        _check(len(session.messages), kept.messages + 4)
    return {
        "open_ms": open_ms,
        "open_and_turn_ms": total_ms,
        "json_ms": kept_ms,
        "ratio": total_ms / kept_ms,
        "json_dropped_ms": dropped_ms,
        "ratio_dropped": total_ms / dropped_ms,
    }


def _parse(lines: Sequence[bytes]) -> float:
    """Each object is dropped before the next."""
    gc.collect()
    start = perf_counter()
    for text in lines:
        json.loads(text)
    return elapsed_ms(start)


def _parse_and_keep(lines: Sequence[bytes]) -> float:
    """All objects are kept, as opening keeps all messages."""
    gc.collect()
    start = perf_counter()
    parsed = [json.loads(text) for text in lines]
    took = elapsed_ms(start)
    del parsed
    return took


# How long the loop stands still: separate runs, since watching costs time.


def _watch(kept: Kept) -> Numbers:
    return asyncio.run(_longest_pause(kept))


async def _longest_pause(kept: Kept) -> Numbers:
    async with _copied(kept) as store:
        opening = asyncio.ensure_future(store.open(kept.session, _AGENT))
        longest, before = 0.0, perf_counter()
        while not opening.done():
            await asyncio.sleep(0)
            longest = max(longest, elapsed_ms(before))
            before = perf_counter()
        _check(len((await opening).messages), kept.messages)
    return {"longest_pause_ms": longest}


def _check(there: int, expected: int) -> None:
    if there != expected:
        raise RuntimeError(f"{there} messages, not {expected}; the measurement is void")
