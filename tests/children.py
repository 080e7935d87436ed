"""Other processes that tests start, and how long they may take."""

from __future__ import annotations

from typing import Final

import pytest

STALLED: Final = 300.0
"""Seconds after which a process hangs. It promises no speed: a machine may stand still for minutes and go on."""
_FAULTS = ("-o", f"faulthandler_timeout={STALLED - 60}", "-o", "faulthandler_exit_on_timeout=true")


def run_pytest(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a process of its own, where a warning is an error, and a test that hangs says where."""
    return pytester.runpytest_subprocess("-W", "error", *_FAULTS, *args, timeout=STALLED)
