"""Other processes that tests start, and how long they may take."""

from __future__ import annotations

from typing import Final

import pytest

STALLED: Final = 300.0
"""Seconds after which a process hangs. It promises no speed: a machine may stand still for minutes and go on."""
_WATCHED = ("-p", "no:faulthandler", "-p", "tests.watched")  # pytest's own would call off the other's watch


def run_pytest(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a process of its own, where a warning is an error; if it hangs, it says where."""
    return pytester.runpytest_subprocess("-W", "error", *_WATCHED, *args, timeout=STALLED)
