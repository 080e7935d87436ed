"""Two processes write to one session at once: no lost entry, no forked journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.crash.writer import LEAST, agent
from weft.thread import open_store
from weft.thread._codec import decode_lines, digest_line
from weft.thread.entries import Entry, Said, TurnEnded, TurnStarted

SECONDS = 60.0 if os.environ.get("WEFT_SOAK") else 5.0


def start(file: Path, session: str, role: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.writer", str(file), session, role, str(SECONDS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def chained(lines: list[bytes]) -> bool:
    """Whether each line names the digest of the one before it."""
    digests = ["", *(digest_line(line) for line in lines)]
    pairs = zip(digests, lines, strict=False)  # the last digest has no follower
    return all(line.startswith(f'{{"prev":"{digest}"'.encode()) for digest, line in pairs)


def one_path(entries: list[Entry]) -> bool:
    """Whether each message and result follows the one before it."""
    tree = [entry for entry in entries if entry.parent is not None or isinstance(entry.body, Said)]
    return all(entry.parent == before.id for before, entry in pairwise(tree))


@pytest.mark.soak
@pytest.mark.timeout(int(SECONDS) + 600)
async def test_turns_of_one_process_and_mail_of_another_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "shared.db"
    async with open_store(f"sqlite:///{file}", synchronous="NORMAL") as store:
        session = await store.create(agent())
    writers = [start(file, session.id, role) for role in ("turns", "mail")]
    said = [json.loads(writer.communicate()[0]) for writer in writers]
    turns, mail = said
    assert turns["errors"] == mail["errors"] == []
    assert min(turns["done"], mail["done"]) >= LEAST
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.open(session.id, agent())
        await session.resume()
        await session.settled_or_waiting()
        lines = (await store._node.store.load(session.id)).lines
    entries = decode_lines(lines, session.id, 0)
    asked = Counter(e.body.message.text for e in entries if isinstance(e.body, Said) and e.body.message.role == "user")
    wanted = [f"turn {n}" for n in range(turns["done"])] + [f"mail {n}" for n in range(mail["done"])]
    assert asked == Counter(wanted)
    assert chained(lines)
    assert one_path(entries)
    starts = [entry.body.cause for entry in entries if isinstance(entry.body, TurnStarted)]
    begun = [cause for cause in starts if cause != "recover"]  # a machine that stands still loses its lease meanwhile
    assert len(begun) == sum(isinstance(entry.body, TurnEnded) for entry in entries)
