"""What a subject's process is: it reads the name of a benchmark, does its work once, and writes its numbers.

Imported in every peer's environment, so it needs nothing but the standard library.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeAlias

Numbers: TypeAlias = Mapping[str, float]

RUNS = 200
"""Of `loop`."""
TURNS = 100
"""Of `session`."""
CHILDREN = 1_000
"""Of `fanout`."""
MESSAGES = 2_000
"""Stored, of `reopen`: a fourth of them are prompts."""
DELTAS = 2_000
"""Of `stream`."""
STREAMS = 3
PROMPT = "what is 1 and 2?"
ANSWER = "that makes 3"
ARGUMENTS = '{"a": 1, "b": 2}'
PIECE = "word "


def elapsed_ms(start: float) -> float:
    """Milliseconds since this reading of `perf_counter`."""
    return (perf_counter() - start) * 1000


def expect(found: object, wanted: object) -> None:
    """The measurement is void where something else was done."""
    if found != wanted:
        raise RuntimeError(f"{found!r}, not {wanted!r}; the measurement is void")


def serve(benchmarks: Mapping[str, Callable[[], Numbers]]) -> None:
    """Do what is asked for, until standard input ends. What the library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for text in sys.stdin:
        gc.collect()
        print(json.dumps(benchmarks[text.strip()]()), file=answers, flush=True)
