"""Starts aimock, a fake model server that nobody here wrote, with the replies that a test wants.

with aimock(when("weather", calls(("weather", {"city": "Oslo"})), result=False),
            when("weather", say("Sunny."), result=True)) as server:
    client = AsyncOpenAI(base_url=server.url, api_key="test")
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

CLI = Path(__file__).parents[1] / ".node" / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Aimock:
    """A running server."""

    origin: str

    @property
    def url(self) -> str:
        """The base URL for OpenAI's SDK."""
        return f"{self.origin}/v1"

    def requests(self) -> list[Json]:
        """The body of every request so far, in order."""
        with urllib.request.urlopen(f"{self.origin}/__aimock/journal") as answer:
            return [entry["body"] for entry in json.load(answer)]


def say(text: str, **overrides: Any) -> Json:
    """A reply of one text; overrides are aimock's: `finishReason`, `usage`, …"""
    return {"content": text, **overrides}


def calls(*wanted: tuple[str, Json], text: str = "", **overrides: Any) -> Json:
    """A reply of tool calls, by name and arguments, and a text before them if given."""
    said = {"content": text} if text else {}
    return {**said, "toolCalls": [{"name": name, "arguments": args} for name, args in wanted], **overrides}


def fail(status: int, kind: str, code: str | None = None) -> Json:
    """An error instead of a reply."""
    return {"status": status, "error": {"message": "told to fail", "type": kind, "code": code}}


def when(message: str, reply: Json, *, result: bool | str | None = None, **how: Any) -> Json:
    """The reply to a last user message that contains `message`; the first rule that fits is taken.

    Args:
        message: Part of the user message.
        reply: From `say`, `calls` or `fail`.
        result: False: only before a tool has answered it; True: only after; a text: only right after a tool
            result that contains it. So a sequence needs no state in the server.
        how: aimock's own options: `truncateAfterChunks`, `latency`, `chaos`, …
    """
    match: Json = {"userMessage": message}
    if isinstance(result, str):
        match["toolResultContains"] = result
    elif result is not None:
        match["hasToolResult"] = result
    return {"match": match, "response": reply, **how}


def require() -> str:
    """The path of node; skips the test where it or aimock is missing, and fails it if WEFT_REQUIRE_NODE is set."""
    node = shutil.which("node")
    if node is not None and CLI.is_file():
        return node
    why = "node is not installed" if node is None else "aimock is not installed: see .ci/run"
    if os.environ.get("WEFT_REQUIRE_NODE"):
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def aimock(*rules: Json) -> Iterator[Aimock]:
    """A server on a free port. A request that no rule fits is an error 503."""
    node = require()
    with tempfile.TemporaryDirectory() as folder:
        fixtures = Path(folder, "rules.json")
        fixtures.write_text(json.dumps({"fixtures": rules}))
        command = [node, str(CLI), "--port", "0", "--strict", "--validate-on-load", "--fixtures", str(fixtures)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            drain = threading.Thread(target=deque, args=(process.stdout, 0))  # a full pipe would stop the server
            try:
                origin = _origin(process.stdout)
                drain.start()
                yield Aimock(origin)
            finally:
                process.kill()
                if drain.is_alive():
                    drain.join()


def _origin(output: IO[str]) -> str:
    """Where it listens, from what it prints once it does."""
    said: list[str] = []
    for line in output:
        said.append(line)
        if "listening on " in line:
            return line.split("listening on ")[1].strip()
    raise RuntimeError(f"aimock did not start: {''.join(said)}")
