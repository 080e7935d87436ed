"""pydantic-ai. It stores nothing itself: the session is its messages as JSON in an SQLite file, written from here."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.peers.worker import (
    ANSWER,
    ARGUMENTS,
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

_KEPT = TemporaryDirectory(prefix="weft-bench-")


def answered(messages: list[ModelMessage]) -> bool:
    """Whether the last message brings results of tools."""
    last = messages[-1]
    return isinstance(last, ModelRequest) and any(isinstance(part, ToolReturnPart) for part in last.parts)


async def call_then_text(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    part = TextPart(ANSWER) if answered(messages) else ToolCallPart("add", ARGUMENTS)
    return ModelResponse(parts=[part])


AGENT = Agent(FunctionModel(call_then_text))


@AGENT.tool_plain
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def loop() -> Numbers:
    return asyncio.run(_loop())


async def _loop() -> Numbers:
    start = perf_counter()
    for _ in range(RUNS):
        expect((await AGENT.run(PROMPT)).output, ANSWER)
    return {"ms_per_run": elapsed_ms(start) / RUNS}


class Kept:
    """Messages of one conversation, a row for the new ones of each turn; a commit is fsynced."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS turns (n INTEGER PRIMARY KEY, messages BLOB NOT NULL)")

    def load(self) -> list[ModelMessage]:
        rows = self._connection.execute("SELECT messages FROM turns ORDER BY n")
        return [message for (row,) in rows for message in ModelMessagesTypeAdapter.validate_json(row)]

    def add(self, messages: list[ModelMessage]) -> None:
        row = ModelMessagesTypeAdapter.dump_json(messages)
        self._connection.execute("INSERT INTO turns (messages) VALUES (?)", (row,))

    def close(self) -> None:
        self._connection.close()


async def _converse(path: Path, turns: int) -> tuple[float, int]:
    """Milliseconds, and the messages that are stored."""
    kept = Kept(path)
    history: list[ModelMessage] = []
    start = perf_counter()
    for _ in range(turns):
        result = await AGENT.run(PROMPT, message_history=history)
        kept.add(result.new_messages())
        history = result.all_messages()
    took = elapsed_ms(start)
    stored = len(kept.load())
    kept.close()
    return took, stored


def session() -> Numbers:
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        took, stored = asyncio.run(_converse(Path(directory) / "bench.db", TURNS))
    expect(stored, 4 * TURNS)
    return {"ms_per_turn": took / TURNS}


async def text_only(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    await asyncio.sleep(0)
    return ModelResponse(parts=[TextPart(ANSWER)])


async def ask_all(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if answered(messages):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("research", {"prompt": f"find answer {n}"}) for n in range(CHILDREN)])


CHILD = Agent(FunctionModel(text_only))
PARENT = Agent(FunctionModel(ask_all))


@PARENT.tool_plain
async def research(prompt: str) -> str:
    """Delegates research to another agent."""
    return (await CHILD.run(prompt)).output


def fanout() -> Numbers:
    return asyncio.run(_fanout())


async def _fanout() -> Numbers:
    start = perf_counter()
    result = await PARENT.run("ask them all")
    took = elapsed_ms(start)
    done = [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]
    expect(sum(part.content == ANSWER for part in done), CHILDREN)
    return {"total_ms": took}


@cache
def _stored() -> Path:
    path = Path(_KEPT.name) / "kept.db"
    asyncio.run(_converse(path, MESSAGES // 4))
    return path


def reopen() -> Numbers:
    copy = _stored().with_name("copy.db")
    shutil.copy(_stored(), copy)
    return asyncio.run(_reopen(copy))


async def _reopen(path: Path) -> Numbers:
    start = perf_counter()
    kept = Kept(path)
    history = kept.load()
    result = await AGENT.run(PROMPT, message_history=history)
    kept.add(result.new_messages())
    took = elapsed_ms(start)
    kept.close()
    expect(len(result.all_messages()), MESSAGES + 4)
    return {"open_and_turn_ms": took}


async def pieces(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(DELTAS):
        yield PIECE


def stream() -> Numbers:
    return asyncio.run(_stream())


async def _stream() -> Numbers:
    agent = Agent(FunctionModel(stream_function=pieces))
    start = perf_counter()
    for _ in range(STREAMS):
        seen = 0
        async with agent.run_stream(PROMPT) as run:
            async for _ in run.stream_text(delta=True, debounce_by=None):
                seen += 1
        expect(seen, DELTAS)
    return {"us_per_delta": elapsed_ms(start) * 1000 / (STREAMS * DELTAS)}


if __name__ == "__main__":
    serve({"loop": loop, "session": session, "fanout": fanout, "reopen": reopen, "stream": stream})
