"""Four workers on one file, one of which is killed while it writes: nothing is lost, and nobody else hears of it.

Each has 25 sessions at work at once. Somebody reads in one long transaction meanwhile, as a backup or a report does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.crash.test_two_processes import chained, one_path
from tests.crash.worker import SESSIONS, question, steps_of
from weft._ports import SystemClock
from weft.thread._codec import decode_lines
from weft.thread._view import fold
from weft.thread.entries import CallResult, Entry, Header, Said, TurnEnded, TurnStarted
from weft.thread.sqlite import SQLiteStore
from weft.thread.store import Loaded

SOAK = bool(os.environ.get("WEFT_SOAK"))
WORKERS = 4
TURNS = 20 if SOAK else 3
MOMENTS = [
    (moment, answers)
    for moment in ("inside", "committed", "outside")
    for answers in ((1, 7, 40, 150, 400) if SOAK else (7,))
]
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here"),
    pytest.mark.soak,
]


@dataclass
class Worker:
    """A process, and what it has said."""

    process: Process
    sessions: list[str] = field(default_factory=list)
    answered: dict[str, int] = field(default_factory=dict)
    """By session, how many of its questions were answered here."""
    faults: list[str] = field(default_factory=list)

    async def hear(self) -> dict[str, Any] | None:
        """Its next line; None when it is gone."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        return json.loads(line) if line else None

    def tell(self, **what: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")

    async def until_done(self, *, kill_after: int = 0) -> bool:
        """Follow it until all that it was told is done; False if it is gone before."""
        while (said := await self.hear()) is not None:
            if "done" in said:
                self.faults += said["errors"] + said["reports"]
                return True
            assert said["text"] == "noted"
            self.answered[said["session"]] = said["turn"] + 1
            if kill_after and sum(self.answered.values()) == kill_after:
                self.process.kill()
        return False

    async def gone(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        complaints = (await self.process.stderr.read()).decode()
        return await self.process.wait(), complaints


@asynccontextmanager
async def working(file: Path, moment: str, answers: int) -> AsyncIterator[list[Worker]]:
    """The workers, started one after the other has its sessions; the last one dies."""
    workers: list[Worker] = []
    try:
        for place in range(WORKERS):
            dies = (moment, str(answers)) if place == WORKERS - 1 and moment != "outside" else ("never", "0")
            command = [sys.executable, "-m", "tests.crash.worker", str(file), *dies]
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
            workers.append(Worker(process))
        for worker in workers:
            said = await worker.hear()
            assert said is not None, await worker.gone()
            worker.sessions = said["ready"]
        yield workers
    finally:
        for worker in workers:
            if worker.process.returncode is None:
                worker.process.kill()
            await worker.gone()


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """A read transaction that is open all the time, and sees the same at its end."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        before = connection.execute("SELECT count(*), sum(count) FROM threads").fetchone()
        yield
        assert connection.execute("SELECT count(*), sum(count) FROM threads").fetchone() == before
        connection.execute("COMMIT")
        assert connection.execute("SELECT count(*), sum(count) FROM threads").fetchone() != before


async def work(file: Path, moment: str, answers: int) -> list[Worker]:
    async with working(file, moment, answers) as workers:
        *others, doomed = workers
        with reading(file):
            for worker in workers:
                worker.tell(go=TURNS)
            working_on = [asyncio.ensure_future(worker.until_done()) for worker in others]
            assert not await doomed.until_done(kill_after=answers if moment == "outside" else 0)
            assert await doomed.gone() == (-signal.SIGKILL, "")
            for place, worker in enumerate(others):  # the others may still be busy with their own
                left = doomed.sessions[place :: len(others)]
                worker.tell(take={name: doomed.answered.get(name, 0) for name in left})
            assert all(await asyncio.gather(*working_on))
            assert all(await asyncio.gather(*(worker.until_done() for worker in others)))
        for worker in others:
            worker.tell(end=True)
            assert await worker.gone() == (0, "")
    return workers


async def journals(file: Path) -> dict[str, Loaded]:
    """Every thread of the file."""
    with closing(sqlite3.connect(file)) as connection:
        names = [name for (name,) in connection.execute("SELECT id FROM threads")]
    store = SQLiteStore(file, owner="reader", ttl=1.0, clock=SystemClock())
    await store.start()
    try:
        return {name: await store.load(name) for name in names}
    finally:
        await store.stop()


def check(name: str, loaded: Loaded, answered: int) -> list[Entry]:
    """A session that was asked all, in order, whoever did it."""
    assert chained(loaded.lines)
    assert not loaded.lease.live
    entries = decode_lines(loaded.lines, name, 0)
    assert one_path(entries)
    said = [entry.body for entry in entries if isinstance(entry.body, Said)]
    asked = [body.message.text for body in said if body.message.role == "user"]
    assert asked == [question(name, n) for n in range(TURNS)]
    assert answered <= sum(body.finish == "stop" for body in said) == TURNS
    calls = [call.id for body in said for call in body.message.calls]
    assert Counter(entry.body.call for entry in entries if isinstance(entry.body, CallResult)) == Counter(calls)
    assert len({*calls}) == len(calls) == TURNS * steps_of(name)
    header, *rest = entries
    assert isinstance(header.body, Header)
    assert fold(header.body, rest).phase == "idle"
    ends = [entry.body for entry in entries if isinstance(entry.body, TurnEnded)]
    assert [end.outcome for end in ends] == ["answered"] * TURNS
    return entries


@pytest.mark.parametrize(("moment", "answers"), MOMENTS)
async def test_a_worker_that_is_killed_costs_nobody_anything(tmp_path: Path, moment: str, answers: int) -> None:
    file = tmp_path / "shared.db"
    workers = await work(file, moment, answers)
    assert [worker.faults for worker in workers] == [[]] * WORKERS
    assert sum(workers[-1].answered.values()) >= answers
    answered = Counter[str]()
    for worker in workers:
        answered |= Counter(worker.answered)
    stored = await journals(file)
    assert sorted(stored) == sorted(name for worker in workers for name in worker.sessions)
    assert len(stored) == WORKERS * SESSIONS
    taken = 0
    for name, loaded in stored.items():
        entries = check(name, loaded, answered[name])
        taken += any(isinstance(e.body, TurnStarted) and e.body.cause == "recover" for e in entries)
        assert answered[name] == TURNS
    assert taken > 0 or moment == "outside"  # whoever kills from outside may be late, and find nothing at work
    assert list(file.parent.glob("*.alive")) == []
