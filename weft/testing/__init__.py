"""Tools for testing agents offline: a scripted model, clocks, crash points."""

from weft.testing.clock import CountingIds, ManualClock
from weft.testing.crash import CrashFailed, CrashReport, Kit, crash_points
from weft.testing.override import override
from weft.testing.script import Script, call, calls, fail, hold, say
from weft.testing.wire import WireError

__all__ = [
    "CountingIds",
    "CrashFailed",
    "CrashReport",
    "Kit",
    "ManualClock",
    "Script",
    "WireError",
    "call",
    "calls",
    "crash_points",
    "fail",
    "hold",
    "override",
    "say",
]
