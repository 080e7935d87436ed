"""One of two processes that write to one session at once: `python -m tests.crash.writer FILE SESSION ROLE SECONDS`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

from weft import Agent, ModelInfo, ModelRequest, Usage, WeftError, tool
from weft.model import Finish, ModelEvent, TextChunk, WholeCall
from weft.thread import OpenStore, open_store

LEAST = 20
"""Each does so much, also where the machine stands still until the time is over."""


class Parrot:
    """Asks for one call, then answers, for ever."""

    def info(self) -> ModelInfo:
        return ModelInfo(provider="test", model="parrot")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        usage = Usage(input_tokens=1, output_tokens=1)
        if request.messages[-1].role == "user":
            yield WholeCall(name="note", arguments="{}")
            yield Finish(reason="tool_calls", usage=usage)
        else:
            yield TextChunk(text="noted")
            yield Finish(reason="stop", usage=usage)


@tool(effect="none")
async def note() -> str:
    """Note it."""
    return "ok"


def agent() -> Agent:
    return Agent(Parrot(), name="parrot", tools=[note])


async def turns(store: OpenStore, name: str, until: float) -> int:
    """Ask again and again, and leave nothing queued at the end."""
    session = await store.open(name, agent())
    done = 0
    while done < LEAST or time.monotonic() < until:
        result = await session.ask(f"turn {done}", key=f"turn {done}")
        assert result.text == "noted"
        done += 1
    return done


async def mail(store: OpenStore, name: str, until: float) -> int:
    """Send and send, without an agent."""
    session = await store.open(name)
    sent = 0
    while sent < LEAST or time.monotonic() < until:
        await session.send(f"mail {sent}", key=f"mail {sent}")
        sent += 1
        await asyncio.sleep(0.005)
    return sent


async def main(file: str, name: str, role: str, seconds: float) -> None:
    errors: list[str] = []
    done = 0
    async with open_store(f"sqlite:///{file}", synchronous="NORMAL") as store:
        work = turns if role == "turns" else mail
        try:
            done = await work(store, name, time.monotonic() + seconds)
        except WeftError as error:
            errors.append(type(error).__name__)
    print(json.dumps({"done": done, "errors": errors}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
