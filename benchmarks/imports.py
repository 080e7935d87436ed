"""What it costs to import weft, in fresh processes, and what comes along."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks._measure import Numbers, line, repeat

_MODULES = (("weft",), ("weft.thread", "weft.pool"))
_VENDORS = ("aiosqlite", "anthropic", "httpx", "httpx2", "openai", "psycopg", "requests", "starlette", "tiktoken")
"""What an import must not bring along: SDKs, their HTTP clients, and database drivers but `sqlite3`."""
_PROGRAM = """
import json, sys, time
start = time.perf_counter()
import {modules}
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted({{name.partition(".")[0] for name in sys.modules}})]))
"""


def measure() -> Iterator[str]:
    """Seconds of the import statement, with bytecode compiled, and the vendor modules that it loaded."""
    for modules in _MODULES:
        _, loaded = _import(modules)  # compiles what is not compiled yet
        runs = repeat(partial(_run, modules))
        vendors = [name for name in loaded if name in _VENDORS]
        yield line("import", {"modules": modules}, runs, vendor_modules=vendors)


def _run(modules: tuple[str, ...]) -> Numbers:
    seconds, _ = _import(modules)
    return {"seconds": seconds}


def _import(modules: tuple[str, ...]) -> tuple[float, list[str]]:
    program = _PROGRAM.format(modules=", ".join(modules))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    seconds, loaded = json.loads(done.stdout)
    return float(seconds), [str(name) for name in loaded]
