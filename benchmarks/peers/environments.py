"""A virtual environment for each peer, made of its pins when it is not there yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).parent / "requirements"
HOME = ROOT / ".peers"

_TOOLS = "each sub-agent is run by a tool; nothing is stored"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A library that is measured."""

    name: str
    """As on the package index."""
    module: str
    imports: str
    """What `session` needs of it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What must be known of a benchmark, by its name."""


WEFT = Subject(
    name="weft",
    module="benchmarks.peers.ours",
    imports="import weft, weft.thread",
    notes={"fanout": "each child is a session with a receipt, in the store in memory; `bare`: as a tool, not stored"},
)
PEERS = (
    Subject(
        name="pydantic-ai-slim",
        module="benchmarks.peers.subjects.pydantic_ai",
        imports="from pydantic_ai import Agent",
        notes={
            "session": "it has no store: the benchmark writes each turn's messages as JSON, one fsynced commit a turn",
            "reopen": "it has no store: the benchmark reads its JSON",
            "fanout": _TOOLS,
        },
    ),
    Subject(
        name="openai-agents",
        module="benchmarks.peers.subjects.openai_agents",
        imports="from agents import Agent, Runner, SQLiteSession",
        notes={"fanout": "each sub-agent is run by `as_tool`; nothing is stored"},
    ),
    Subject(
        name="langgraph",
        module="benchmarks.peers.subjects.langgraph",
        imports="from langgraph.prebuilt import create_react_agent; "
        "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver",
        notes={"fanout": _TOOLS, "reopen": "one checkpoint of all messages"},
    ),
    Subject(
        name="agno",
        module="benchmarks.peers.subjects.agno",
        imports="from agno.agent import Agent; from agno.db.sqlite import SqliteDb",
        notes={"fanout": _TOOLS},
    ),
)


class NotMade(Exception):
    """Raised when an environment cannot be made."""


def python_of(subject: Subject) -> Path:
    """The interpreter of a subject's environment; makes it where it is missing or of other pins.

    Raises:
        NotMade: Its packages cannot be installed.
    """
    if subject is WEFT:
        return Path(sys.executable)
    home = HOME / subject.name
    pins = PINS / f"{subject.name}.txt"
    made = home / "made.txt"
    if not made.exists() or made.read_text() != pins.read_text():
        _run(sys.executable, "-m", "venv", "--clear", str(home))
        _run(str(home / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(pins))
        made.write_text(pins.read_text())
    return home / "bin" / "python"


def versions(subject: Subject) -> str:
    """What is measured, as it is pinned."""
    return "" if subject is WEFT else ", ".join((PINS / f"{subject.name}.txt").read_text().split())


def _run(*command: str) -> None:
    print(f"making an environment: {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotMade(f"cannot be installed: {last_line(done.stderr)}")


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")
