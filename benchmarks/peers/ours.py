"""Weft's own side."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks._subjects import CallThenText, Slow, TextOnly, add, opened
from benchmarks.peers.worker import (
    ANSWER,
    CHILDREN,
    DELTAS,
    MESSAGES,
    PIECE,
    PROMPT,
    RUNS,
    STREAMS,
    TURNS,
    Numbers,
    elapsed_ms,
    expect,
    serve,
)
from weft import Agent, ModelInfo, ModelRequest, Usage
from weft.events import TextDelta
from weft.model import Finish, ModelEvent, TextChunk
from weft.pool import Pool
from weft.testing import Script, call, calls, say
from weft.thread import open_store

AGENT = Agent(CallThenText(), tools=[add])
_KEPT = TemporaryDirectory(prefix="weft-bench-")


def loop() -> Numbers:
    return asyncio.run(_loop())


async def _loop() -> Numbers:
    start = perf_counter()
    for _ in range(RUNS):
        expect((await AGENT.run(PROMPT)).text, ANSWER)
    return {"ms_per_run": elapsed_ms(start) / RUNS}


def session() -> Numbers:
    return asyncio.run(_session())


async def _session() -> Numbers:
    async with opened("sqlite FULL") as store:
        talk = await store.create(AGENT)
        start = perf_counter()
        for _ in range(TURNS):
            await talk.ask(PROMPT)
        took = elapsed_ms(start)
        expect(len(talk.messages), 4 * TURNS)
    return {"ms_per_turn": took / TURNS}


def fanout() -> Numbers:
    return asyncio.run(_fanout())


async def _fanout() -> Numbers:
    script = Script(calls(*(call("research", prompt=f"find answer {n}") for n in range(CHILDREN))), say("done"))
    child = Agent(Slow(TextOnly(), 0.0), name="researcher")
    async with opened("memory") as store, Pool(CHILDREN) as pool:
        tool = pool.wrap("research", child, description="Delegates research to a child session.")
        parent = await store.create(Agent(script, tools=[tool]))
        start = perf_counter()
        await parent.ask("ask them all")
        took = elapsed_ms(start)
        expect(sum(receipt.state == "done" for receipt in parent.receipts), CHILDREN)
    return {"total_ms": took, "bare_total_ms": await _fanout_bare(child)}


async def _fanout_bare(child: Agent) -> float:
    """The child as a plain tool: no session, no receipt, nothing stored."""
    wanted = calls(*(call(child.name, prompt=f"find answer {n}") for n in range(CHILDREN)))
    parent = Agent(Script(wanted, say("done")), tools=[child])
    start = perf_counter()
    result = await parent.run("ask them all")
    took = elapsed_ms(start)
    results = [part for message in result.messages for part in message.results]
    expect(sum(part.content == ANSWER for part in results), CHILDREN)
    return took


@cache
def _stored() -> tuple[Path, str]:
    path = Path(_KEPT.name) / "kept.db"
    return path, asyncio.run(_converse(path))


async def _converse(path: Path) -> str:
    async with open_store(f"sqlite:///{path}", synchronous="NORMAL") as store:
        talk = await store.create(AGENT)
        for _ in range(MESSAGES // 4):
            await talk.ask(PROMPT)
        return talk.id


def reopen() -> Numbers:
    path, name = _stored()
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    return asyncio.run(_reopen(copy, name))


async def _reopen(path: Path, name: str) -> Numbers:
    start = perf_counter()
    async with open_store(f"sqlite:///{path}") as store:
        talk = await store.open(name, AGENT)
        await talk.ask(PROMPT)
        took = elapsed_ms(start)
        expect(len(talk.messages), MESSAGES + 4)
    return {"open_and_turn_ms": took}


class Pieces:
    """Answers in pieces."""

    def info(self) -> ModelInfo:
        return ModelInfo(provider="bench", model="bench")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for _ in range(DELTAS):
            yield TextChunk(text=PIECE)
        yield Finish(reason="stop", usage=Usage(input_tokens=10, output_tokens=DELTAS))


def stream() -> Numbers:
    return asyncio.run(_stream())


async def _stream() -> Numbers:
    agent = Agent(Pieces())
    start = perf_counter()
    for _ in range(STREAMS):
        seen = 0
        async with agent.stream(PROMPT) as run:
            async for event in run:
                seen += isinstance(event, TextDelta)
        expect(seen, DELTAS)
    return {"us_per_delta": elapsed_ms(start) * 1000 / (STREAMS * DELTAS)}


if __name__ == "__main__":
    serve({"loop": loop, "session": session, "fanout": fanout, "reopen": reopen, "stream": stream})
