"""The cost of a delta: one run whose answer comes in many pieces, followed by a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from time import perf_counter

from benchmarks._measure import Numbers, elapsed_ms, line, repeat
from weft import Agent, ModelInfo, ModelRequest, Usage
from weft.events import TextDelta
from weft.model import Finish, ModelEvent, TextChunk

DELTAS = 2_000
RUNS = 20
_PIECE = TextChunk(text="word ")
_END = Finish(reason="stop", usage=Usage(input_tokens=10, output_tokens=DELTAS))


class Pieces:
    """Answers in pieces; `yields` gives the loop a turn before each, as a network would."""

    def __init__(self, *, yields: bool) -> None:
        self._yields = yields

    def info(self) -> ModelInfo:
        return ModelInfo(provider="bench", model="bench")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for _ in range(DELTAS):
            if self._yields:
                await asyncio.sleep(0)
            yield _PIECE
        yield _END


def measure() -> Iterator[str]:
    """Microseconds per delta, from the model to the consumer; with the model yielding to the loop, and without."""
    for yields in (False, True):
        runs = repeat(partial(_run, yields))
        yield line("stream", {"deltas": DELTAS, "runs": RUNS, "model_yields": yields}, runs)


def _run(yields: bool) -> Numbers:
    return asyncio.run(_time(Agent(Pieces(yields=yields))))


async def _time(agent: Agent) -> Numbers:
    start = perf_counter()
    for _ in range(RUNS):
        seen = 0
        async with agent.stream("go") as run:
            async for event in run:
                seen += isinstance(event, TextDelta)
            await run.result()
        assert seen == DELTAS
    return {"us_per_delta": elapsed_ms(start) * 1000 / (RUNS * DELTAS)}
