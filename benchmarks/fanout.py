"""The cost of a step that delegates many times: each call is a child with a session and a receipt of its own."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter

from benchmarks._measure import Numbers, alternate, elapsed_ms, line, repeat
from benchmarks._subjects import Slow, TextOnly, Where, opened
from weft import Agent, Model
from weft.pool import Pool
from weft.testing import Script, call, calls, say
from weft.thread import Session

LIMIT = 1_000
SIZES = (1, 10, 100, 1_000)
LATENCY_MS = 20.0
"""Of the children's model; alternating with runs without. The parent's has none."""


def measure() -> Iterator[str]:
    """Milliseconds in all, without and with latency; then bytes per child."""
    places: tuple[Where, ...] = ("memory", "sqlite FULL")
    for where in places:
        for children in SIZES:
            yield from _lines(where, children)
    for kind in ("script", "plain"):
        runs = repeat(partial(_weigh, kind), times=3)
        yield line("fanout_bytes", {"children": SIZES[-1], "limit": LIMIT, "store": "memory", "model": kind}, runs)


def _lines(where: Where, children: int) -> Iterator[str]:
    """A line for each latency, from runs that alternate."""
    peers = [partial(_run, where, children, latency_ms) for latency_ms in (0.0, LATENCY_MS)]
    quick, slow = alternate(peers, disk=where != "memory")
    params = {"children": children, "limit": LIMIT, "store": where}
    yield line("fanout", {**params, "latency_ms": 0.0}, quick)
    ratios = [late["total_ms"] / (early["total_ms"] + LATENCY_MS) for early, late in zip(quick, slow, strict=True)]
    slow = [{**late, "latency_ratio": ratio} for late, ratio in zip(slow, ratios, strict=True)]
    yield line("fanout", {**params, "latency_ms": LATENCY_MS}, slow)


def _run(where: Where, children: int, latency_ms: float) -> Numbers:
    return {"total_ms": asyncio.run(_time(where, children, latency_ms))}


async def _time(where: Where, children: int, latency_ms: float) -> float:
    async with _ready(where, children, Slow(_answering(), latency_ms / 1000)) as session:
        start = perf_counter()
        await session.ask("ask them all")
        total = elapsed_ms(start)
        _check(session, children)
    return total


def _answering() -> Script:
    return Script(say("the answer is 42"))


@asynccontextmanager
async def _ready(where: Where, children: int, model: Model) -> AsyncIterator[Session]:
    """A session of a parent that will delegate to so many children of this model."""
    child = Agent(model, name="researcher")
    wanted = (call("research", prompt=f"find answer {number}") for number in range(children))
    script = Script(calls(*wanted), say("done"))
    async with opened(where) as store, Pool(LIMIT) as pool:
        wrapped = pool.wrap("research", child, description="Delegates research to a child session.")
        yield await store.create(Agent(script, tools=[wrapped]))


def _check(session: Session, children: int) -> None:
    done = sum(receipt.state == "done" for receipt in session.receipts)
    if done != children:
        raise RuntimeError(f"{done} of {children} children are done; the measurement is void")


# Bytes: separate runs, since tracing slows everything down.


def _weigh(kind: str) -> Numbers:
    model = Slow(_answering() if kind == "script" else TextOnly(), 0.0)
    return asyncio.run(_trace(SIZES[-1], model))


async def _trace(children: int, model: Model) -> Numbers:
    async with _ready("memory", children, model) as session:
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await session.ask("ask them all")
            _, peak = tracemalloc.get_traced_memory()
            await asyncio.sleep(0.1)  # the last children's tasks end after the turn
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        _check(session, children)
    return {"bytes_per_child": (after - before) / children, "peak_bytes_per_child": (peak - before) / children}
