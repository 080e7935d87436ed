"""The cost of a run itself: prompt, tool call, result, text; nothing stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks._measure import Numbers, elapsed_ms, line, repeat
from benchmarks._subjects import CallThenText, add
from weft import Agent, Model, Tool, tool
from weft.testing import Script, call, say

RUNS = 2_000
_CASES = (("script", "async"), ("script", "sync"), ("plain", "async"))
"""Model and body. `plain` shows what the script's own checks add, `sync` what a thread for the body does."""


@tool(name="add", effect="none")
def add_in_thread(a: int, b: int) -> int:
    """Adds, on a thread."""
    return a + b


def measure() -> Iterator[str]:
    """Milliseconds per run."""
    for model, body in _CASES:
        runs = repeat(partial(_run, model, add if body == "async" else add_in_thread))
        yield line("loop", {"runs": RUNS, "model": model, "body": body}, runs)


def _run(model: str, body: Tool[Any]) -> Numbers:
    agent = Agent(_script() if model == "script" else CallThenText(), tools=[body])
    return asyncio.run(_time(agent))


def _script() -> Model:
    replies = (call("add", a=1, b=2), say("that makes 3"))
    return Script(*(reply for _ in range(RUNS) for reply in replies))


async def _time(agent: Agent[None]) -> Numbers:
    start = perf_counter()
    for _ in range(RUNS):
        await agent.run("what is 1 and 2?")
    return {"ms_per_run": elapsed_ms(start) / RUNS}
