"""The command: `python -m benchmarks.peers [names…]`; all benchmarks where none is named."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Self

from benchmarks._measure import Numbers, alternate, line
from benchmarks.peers.environments import PEERS, ROOT, WEFT, NotMade, Subject, last_line, python_of, versions
from benchmarks.peers.worker import CHILDREN, DELTAS, MESSAGES, RUNS, TURNS

TIMES = 5
FEWER = 3
"""Rounds of `fanout`, which takes long."""

PARAMS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "loop": {"runs": RUNS, "store": "none"},
        "session": {"turns": TURNS, "store": "sqlite FULL"},
        "fanout": {"children": CHILDREN},
        "reopen": {"messages": MESSAGES, "store": "sqlite FULL"},
        "stream": {"deltas": DELTAS},
        "import": {},
    }
)
_IMPORT = "import time; start = time.perf_counter(); {imports}; print(time.perf_counter() - start)"
_QUIET = {
    "PYTHONPATH": str(ROOT),
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AGNO_TELEMETRY": "false",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
}


class Failed(Exception):
    """Raised when a subject cannot do what it is asked for."""


class Process:
    """A subject's process, which waits for its turn."""

    def __init__(self, subject: Subject, python: Path) -> None:
        self._python = str(python)
        self._subject = subject
        self._errors = TemporaryFile("w+")  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [self._python, "-m", subject.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **_QUIET},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        self._errors.close()

    def run(self, name: str) -> Numbers:
        """Do a benchmark's work once; importing takes a fresh process.

        Raises:
            Failed: It cannot.
        """
        if name == "import":
            return {"seconds": self._import()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed("its process has ended") from None
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise Failed(last_line(self._errors.read()))
        numbers: Numbers = json.loads(answer)
        return numbers

    def _import(self) -> float:
        command = [self._python, "-c", _IMPORT.format(imports=self._subject.imports)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Failed(last_line(done.stderr))
        return float(done.stdout)


def measure(name: str) -> Iterator[str]:
    """A line for weft, then one for each peer with its ratio to weft, or the reason why there is none."""
    with ExitStack() as stack:
        ready: list[tuple[Subject, Callable[[], Numbers]]] = []
        for subject in (WEFT, *PEERS):
            try:
                run = partial(stack.enter_context(Process(subject, python_of(subject))).run, name)
                run()  # what is made once is made
            except (Failed, NotMade) as error:
                yield json.dumps({"name": f"peers_{name}", "peer": subject.name, "not_available": str(error)})
            else:
                ready.append((subject, run))
        if not ready or ready[0][0] is not WEFT:
            return
        rounds = alternate([run for _, run in ready], times=FEWER if name == "fanout" else TIMES, disk=True)
    for (subject, _), runs in zip(ready, rounds, strict=True):
        yield _line(name, subject, runs if subject is WEFT else _compared(runs, rounds[0]))


def _compared(runs: list[Numbers], of_weft: list[Numbers]) -> list[Numbers]:
    """With the ratio to weft, round by round; `bare` is to weft's sub-agents that are not stored either."""
    quantity = next(iter(runs[0]))
    ratios = {"ratio_to_weft": quantity, "ratio_to_bare_weft": f"bare_{quantity}"}
    return [
        {**run, **{name: run[quantity] / weft[key] for name, key in ratios.items() if key in weft}}
        for run, weft in zip(runs, of_weft, strict=True)
    ]


def _line(name: str, subject: Subject, runs: list[Numbers]) -> str:
    facts = {"pins": versions(subject), "note": subject.notes.get(name, "")}
    params = {"peer": subject.name, **PARAMS[name]}
    return line(f"peers_{name}", params, runs, **{key: fact for key, fact in facts.items() if fact})


def main() -> None:
    """Print the lines of the benchmarks that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="Print one JSON line a measurement."
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PARAMS)}; all where none is given")
    names: list[str] = parser.parse_args().names
    for name in names:
        if name not in PARAMS:
            parser.error(f"no benchmark is named {name!r}; choose of {', '.join(PARAMS)}")
    for name in names or PARAMS:
        for text in measure(name):
            print(text, flush=True)


if __name__ == "__main__":
    main()
