"""The demo's processes are killed, one at each moment: the next one finishes, or says what is uncertain.

The moments are those that a run without a kill goes through (see `killer`), so none is a matter of timing.
In the short form ten of each process are taken; in the long one, all.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples import demo
from examples.demo import DONE, NOTHING, UNCERTAIN, Shop
from tests.children import STALLED
from weft.pool import Pool
from weft.thread import open_store, resolve

ROOT = Path(__file__).parents[2]
SOAK = bool(os.environ.get("WEFT_SOAK"))

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here"),
    pytest.mark.soak,
]


def start(module: str, command: str, file: Path, moment: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_DEMO")}
    if moment is not None:
        env["WEFT_DEMO_KILL"] = moment
    words = [sys.executable, "-m", module, command, str(file)]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=STALLED, check=False)


def moments_of(command: str, file: Path) -> list[str]:
    """The moments of one undisturbed run, in order."""
    process = start("tests.crash.killer", command, file)
    assert process.returncode == DONE
    return process.stderr.splitlines()


def spread(moments: Sequence[str], wanted: int) -> list[str]:
    """So many of them, from the first to the last; all of them in the long form."""
    if SOAK:
        return list(moments)
    return [moments[round(place * (len(moments) - 1) / (wanted - 1))] for place in range(wanted)]


def ledger(file: Path) -> list[str]:
    path = Path(f"{file}.ledger")
    return path.read_text().splitlines() if path.exists() else []


def kill(command: str, file: Path, moment: str) -> None:
    process = start("tests.crash.killer", command, file, moment)
    assert process.returncode == -signal.SIGKILL, f"it did not come to {moment!r}: {process}"


def finish(file: Path, commands: Sequence[str], expected: int) -> None:
    """The next processes, each started as soon as the one before it is gone; then everything is checked."""
    for command in commands:
        process = start("examples.demo", command, file)
        assert process.stderr == ""
    said = process.stdout
    assert process.returncode == expected, said
    assert len(ledger(file)) <= 1
    if expected == DONE:
        assert "desk: Sorry about the teapot." in said
        assert len(ledger(file)) == 1
        assert [line.split("]")[0] for line in said.splitlines() if "->" in line and "[" in line] == [
            "  -> researcher [done",
            "  -> refunds [done",
        ]
    elif expected == UNCERTAIN:
        assert "UNCERTAIN" in said
        assert asyncio.run(settle(file)) == "Sorry about the teapot. Your 500 cents are on their way."
        assert len(ledger(file)) <= 1
    else:
        assert ledger(file) == []


async def settle(file: Path) -> str:
    """What a person does about an uncertain refund: answers for it. The desk's answer."""
    shop = Shop(Path(f"{file}.ledger"))
    async with open_store(f"sqlite:///{file}") as store, Pool(2) as pool:
        session = await demo.find(store, demo.team(pool), shop)
        assert session is not None
        (request,) = session.pending
        assert request.kind == "uncertain"
        assert request.path == ("desk", "refunds")
        await session.decide(resolve(request, "Refunded 500 cents for order 42."))
        await session.settled_or_waiting()
        return session.messages[-1].text


def all_hold(check: Callable[[int, str], None], moments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the check for each moment, two at a time; every failure is reported, with its moment."""

    def contained(place: int) -> str | None:
        try:
            check(place, moments[place])
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"killed at {moments[place]!r}: {error}"
        return None

    with ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(contained, range(len(moments))) if failure]
    assert not failures, "\n".join(failures)
    with capsys.disabled():
        print(f"\nkills: {len(moments)} run, all held")


def test_the_first_process_may_die_at_any_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moments = moments_of("ask", tmp_path / "trace.db")
    accepted = moments.index("commit desk 2")  # the first is the session's header, with nothing asked yet

    def check(place: int, moment: str) -> None:
        """Every second time, the next process approves straight away."""
        file = tmp_path / f"{place}.db"
        kill("ask", file, moment)
        straight = place % 2 == 1
        lost = straight and moments.index(moment) < accepted
        finish(file, ["approve"] if straight else ["ask", "approve"], NOTHING if lost else DONE)

    all_hold(check, spread(moments, 10), capsys)


def test_nothing_accepted_is_said(tmp_path: Path) -> None:
    for moment in ("append desk 1", "commit desk 1", "append desk 2"):
        file = tmp_path / f"{moment}.db"
        kill("ask", file, moment)
        finish(file, ["approve"], NOTHING)
        finish(file, ["ask", "approve"], DONE)


def test_the_second_process_may_die_at_any_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = tmp_path / "asked.db"
    assert start("examples.demo", "ask", asked).returncode == DONE
    moments = moments_of("approve", Path(shutil.copy(asked, tmp_path / "trace.db")))
    body, after = moments.index("refund before"), moments.index("refund inside") + 1
    uncertain = moments[max(n for n in range(body) if moments[n].startswith("append")) + 1 : after + 1]
    around = moments[body - 1 : after + 1]  # started, before the line is written, after it, before the result is
    rest = [moment for moment in moments if moment not in around]
    assert around[-1].startswith("append refunds")

    def check(place: int, moment: str) -> None:
        """Every second time, the next process asks again."""
        file = Path(shutil.copy(asked, tmp_path / f"{place}.db"))
        kill("approve", file, moment)
        commands = ["ask", "approve"] if place % 2 == 1 else ["approve"]
        finish(file, commands, UNCERTAIN if moment in uncertain else DONE)
        assert len(ledger(file)) == 1 or moment in uncertain[: uncertain.index("refund inside")]

    all_hold(check, [*around, *spread(rest, 6)], capsys)
