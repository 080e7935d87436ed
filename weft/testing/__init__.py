"""Tools for testing agents offline: a scripted model, clocks, crash points."""

from weft.testing.clock import CountingIds, ManualClock
from weft.testing.crash import CrashFailed, CrashReport, Kit, crash_points
from weft.testing.override import override
from weft.testing.script import (
    Reply,
    Script,
    call,
    calls,
    cut,
    fail,
    hold,
    raw,
    refuse,
    reply,
    say,
    stream,
    think,
)
from weft.testing.wire import WireError

__all__ = [
    "CountingIds",
    "CrashFailed",
    "CrashReport",
    "Kit",
    "ManualClock",
    "Reply",
    "Script",
    "WireError",
    "call",
    "calls",
    "crash_points",
    "cut",
    "fail",
    "hold",
    "override",
    "raw",
    "refuse",
    "reply",
    "say",
    "stream",
    "think",
]
