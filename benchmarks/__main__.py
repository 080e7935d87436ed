"""The command: `python -m benchmarks [names…]`; all of them where none is named."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

from benchmarks import fanout, growth, imports, loop, reopen, session, sessions, stream

BENCHMARKS: Mapping[str, Callable[[], Iterator[str]]] = {
    "loop": loop.measure,
    "stream": stream.measure,
    "session": session.measure,
    "growth": growth.measure,
    "sessions": sessions.measure,
    "reopen": reopen.measure,
    "fanout": fanout.measure,
    "import": imports.measure,
}


def main() -> None:
    """Print the lines of the benchmarks that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Print one JSON line a measurement.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; all where none is given")
    names: list[str] = parser.parse_args().names
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark is named {name!r}; choose of {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        for text in BENCHMARKS[name]():
            print(text, flush=True)


if __name__ == "__main__":
    main()
