"""Processes that steer, interrupt, cancel, branch, fork and summarize are killed; the next brings all to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.children import STALLED
from tests.crash.test_crash_inbox import cancelled, cancels_a_tree, interrupted, interrupts, steered, steers
from tests.crash.test_crash_points import SHORTENED, branching, forking
from tests.crash.test_kill import ROOT, all_hold, spread
from weft.testing.crash import _check_decisions, _check_input, _check_starts
from weft.thread import open_store
from weft.thread._codec import decode_lines
from weft.thread._view import View, fold
from weft.thread.entries import Compaction, Header

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here"),
    pytest.mark.soak,
]


def run(scenario: str, file: Path, moment: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_DEMO")}
    if moment is not None:
        env["WEFT_DEMO_KILL"] = moment
    words = [sys.executable, "-m", "tests.crash.inbox_killer", scenario, str(file)]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=STALLED, check=False)


async def views(file: Path) -> list[View]:
    """Every thread's view, the root's first; each is at rest, and sound."""
    found: list[View] = []
    async with open_store(f"sqlite:///{file}") as store:
        async for header in store.list(children=True):
            loaded = await store._node.store.load(header.thread)
            first, *entries = decode_lines(loaded.lines, header.thread, 0)
            assert isinstance(first.body, Header)
            _check_decisions(header.thread, entries)
            _check_input(header.thread, entries)
            _check_starts(header.thread, entries)
            view = fold(first.body, entries)
            assert view.at_rest()
            assert view.run is None
            assert not view.undecided
            assert not view.transcript.open
            assert not loaded.lease.live
            found.insert(0, view)
    return found


def answered(view: View) -> None:
    assert list(view.ended.values())[-1].outcome == "answered"


def shortened(view: View) -> None:
    answered(view)
    assert sum(isinstance(entry.body, Compaction) for entry in view.tree.values()) == 1


@pytest.mark.parametrize(
    ("scenario", "holds"),
    [
        (steers, steered),
        (interrupts, interrupted),
        (cancels_a_tree, cancelled),
        (branching, answered),
        (forking, answered),
        *((scenario, shortened) for scenario in SHORTENED),
    ],
)
def test_the_process_may_die_at_any_moment(
    scenario: Callable[[Any], object],
    holds: Callable[[View], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = scenario.__name__
    undisturbed = run(name, tmp_path / "trace.db")
    assert undisturbed.returncode == 0, undisturbed.stderr
    moments = spread(undisturbed.stderr.splitlines(), 6)
    killed: list[str] = []

    def check(place: int, moment: str) -> None:
        file = tmp_path / f"{place}.db"
        process = run(name, file, moment)
        assert process.returncode in (0, -signal.SIGKILL), process.stderr
        if process.returncode:  # else it went another way: what shares an append depends on the disk
            killed.append(moment)
        again = run(name, file)
        assert again.returncode == 0, again.stderr
        holds(asyncio.run(views(file))[0])

    all_hold(check, moments, capsys)
    assert len(killed) > len(moments) / 2
