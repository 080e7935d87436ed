"""One of several workers of an application on one file, told what to do by lines: `python -m tests.crash.worker FILE`.

It makes its sessions and names them. `{"go": 3}` lets each ask three times, all sessions at once; every answer is
acknowledged by a line. `{"take": {session: 1}}` goes on with another worker's sessions from their second question.
`{"end": true}` leaves the store. `DIES` is a moment and a number of answers: then its own process is killed, in the
middle of a transaction or right after a commit, before anybody has heard of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.crash.writer import note
from weft import Agent, ModelInfo, ModelRequest, Usage
from weft._ports import SystemClock, SystemIds
from weft.model import Finish, ModelEvent, TextChunk, WholeCall
from weft.thread import OpenStore, open_store
from weft.thread.sqlite import SQLiteStore

SESSIONS = 25
LEASE = 3_600.0
"""Seconds: what is taken over within a test was proved dead."""


def steps_of(session: str) -> int:
    """How often a session notes something in a turn: 1, 2 or 3 times, so that sessions are not in step."""
    return 1 + sum(session.encode()) % 3


class Notes:
    """Asks for as many calls, one after the other, as the question says; then it answers."""

    def info(self) -> ModelInfo:
        return ModelInfo(provider="test", model="notes")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        asked = max(place for place, message in enumerate(request.messages) if message.role == "user")
        done = sum(message.role == "assistant" for message in request.messages[asked:])
        again = done < int(request.messages[asked].text.split()[-1])
        yield WholeCall(name="note", arguments="{}") if again else TextChunk(text="noted")
        usage = Usage(input_tokens=1, output_tokens=1)
        yield Finish(reason="tool_calls" if again else "stop", usage=usage)


def agent() -> Agent:
    return Agent(Notes(), name="notes", tools=[note])


def question(session: str, n: int) -> str:
    return f"turn {n}, {steps_of(session)}"


class DyingStore(SQLiteStore):
    """A store whose process may be killed while its writer writes. What a transaction writes spills to the file."""

    moment = ""
    due = False

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute("PRAGMA cache_size = 1")
        return connection

    def _work_off(self, connection: sqlite3.Connection, batch: list[Any]) -> list[object]:
        outcomes = super()._work_off(connection, batch)
        if self.due and self.moment == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    def _deliver(self, batch: list[Any], outcomes: list[object]) -> None:
        if self.due and self.moment == "committed":
            os.kill(os.getpid(), signal.SIGKILL)
        super()._deliver(batch, outcomes)


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Worker:
    def __init__(self, opened: OpenStore, store: DyingStore, answers: int) -> None:
        self.opened = opened
        self.store = store
        self.answers = answers
        """So many until it dies; 0 is never."""
        self.turns = 0

    async def asks(self, name: str, first: int) -> None:
        """Ask as a client that asks again does: with a key."""
        session = await self.opened.open(name, agent())
        await session.resume()
        for n in range(first, self.turns):
            result = await session.ask(question(name, n), key=f"turn {n}")
            say(session=name, turn=n, text=result.text)
            self.answers -= 1
            self.store.due = self.store.due or self.answers == 0

    async def work(self, sessions: dict[str, int]) -> None:
        asking = (self.asks(name, first) for name, first in sessions.items())
        found = await asyncio.gather(*asking, return_exceptions=True)
        errors = [repr(outcome) for outcome in found if outcome is not None]
        say(done=sorted(sessions), errors=errors, reports=[str(report) for report in self.opened.reports])


async def main(file: str, moment: str, answers: int) -> None:
    store = DyingStore(Path(file), owner=SystemIds().new(), ttl=LEASE, clock=SystemClock())
    store.moment = moment
    async with open_store(store) as opened, asyncio.TaskGroup() as group:
        worker = Worker(opened, store, answers)
        mine = [(await opened.create(agent())).id for _ in range(SESSIONS)]
        say(ready=mine)
        while True:
            told = json.loads(await asyncio.to_thread(sys.stdin.readline))
            if "go" in told:
                worker.turns = told["go"]
                group.create_task(worker.work(dict.fromkeys(mine, 0)))
            elif "take" in told:
                group.create_task(worker.work(told["take"]))
            else:
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
