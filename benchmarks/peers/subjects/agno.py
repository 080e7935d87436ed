"""agno, with its SQLite database; telemetry is off, and each run gets the whole history."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.run.agent import RunContentEvent

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
_NUMBERS = count()
ALL_RUNS = 10_000
"""More than there are: the whole history goes to the model."""


def called(name: str, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"c-{next(_NUMBERS)}", "type": "function", "function": function}


@dataclass
class Fake(Model):
    """Answers by a function of the messages."""

    id: str = "fake"
    name: str = "fake"
    provider: str = "bench"
    answer: Callable[[list[Message]], ModelResponse] | None = None

    def invoke(self, *args, **kwargs) -> ModelResponse:
        raise NotImplementedError

    async def ainvoke(self, messages, *args, **kwargs) -> ModelResponse:
        return self.answer(messages)

    def invoke_stream(self, *args, **kwargs) -> Iterator[ModelResponse]:
        raise NotImplementedError

    async def ainvoke_stream(self, *args, **kwargs) -> AsyncIterator[ModelResponse]:
        for _ in range(DELTAS):
            yield ModelResponse(role="assistant", content=PIECE)

    def _parse_provider_response(self, response, **kwargs) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response) -> ModelResponse:
        return response


def call_then_text(messages: list[Message]) -> ModelResponse:
    if messages[-1].role == "tool":
        return ModelResponse(role="assistant", content=ANSWER)
    return ModelResponse(role="assistant", tool_calls=[called("add", ARGUMENTS)])


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def agent(db: SqliteDb | None = None) -> Agent:
    return Agent(
        model=Fake(answer=call_then_text),
        tools=[add],
        telemetry=False,
        db=db,
        session_id="s",
        add_history_to_context=db is not None,
        num_history_runs=ALL_RUNS,
    )


def loop() -> Numbers:
    return asyncio.run(_loop())


async def _loop() -> Numbers:
    adder = agent()
    start = perf_counter()
    for _ in range(RUNS):
        expect((await adder.arun(PROMPT)).content, ANSWER)
    return {"ms_per_run": elapsed_ms(start) / RUNS}


async def _converse(path: Path, turns: int) -> float:
    db = SqliteDb(db_file=str(path))
    adder = agent(db)
    start = perf_counter()
    for _ in range(turns):
        result = await adder.arun(PROMPT)
    took = elapsed_ms(start)
    db.close()  # writes all of it into the one file
    expect(len(result.messages), 4 * turns)
    return took


def session() -> Numbers:
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        took = asyncio.run(_converse(Path(directory) / "bench.db", TURNS))
    return {"ms_per_turn": took / TURNS}


def text_only(messages: list[Message]) -> ModelResponse:
    return ModelResponse(role="assistant", content=ANSWER)


def ask_all(messages: list[Message]) -> ModelResponse:
    if messages[-1].role == "tool":
        return ModelResponse(role="assistant", content="done")
    wanted = [called("research", json.dumps({"prompt": f"find answer {n}"})) for n in range(CHILDREN)]
    return ModelResponse(role="assistant", tool_calls=wanted)


def fanout() -> Numbers:
    return asyncio.run(_fanout())


async def _fanout() -> Numbers:
    child = Agent(model=Fake(answer=text_only), telemetry=False)

    async def research(prompt: str) -> str:
        """Delegates research to another agent."""
        return (await child.arun(prompt)).content

    parent = Agent(model=Fake(answer=ask_all), tools=[research], telemetry=False)
    start = perf_counter()
    result = await parent.arun("ask them all")
    took = elapsed_ms(start)
    done = [message for message in result.messages if message.role == "tool"]
    expect(sum(message.content == ANSWER for message in done), CHILDREN)
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
    db = SqliteDb(db_file=str(path))
    result = await agent(db).arun(PROMPT)
    took = elapsed_ms(start)
    db.close()
    expect(len(result.messages), MESSAGES + 4)
    return {"open_and_turn_ms": took}


def stream() -> Numbers:
    return asyncio.run(_stream())


async def _stream() -> Numbers:
    talker = Agent(model=Fake(), telemetry=False)
    start = perf_counter()
    for _ in range(STREAMS):
        seen = 0
        async for event in talker.arun(PROMPT, stream=True):
            seen += isinstance(event, RunContentEvent)
        expect(seen, DELTAS)
    return {"us_per_delta": elapsed_ms(start) * 1000 / (STREAMS * DELTAS)}


if __name__ == "__main__":
    serve({"loop": loop, "session": session, "fanout": fanout, "reopen": reopen, "stream": stream})
