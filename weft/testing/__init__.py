"""Tools for testing agents offline: a scripted model, clocks, crash points."""

from weft.testing.clock import CountingIds, ManualClock
from weft.testing.override import override
from weft.testing.script import Script, call, calls, fail, hold, say
from weft.testing.wire import WireError

__all__ = ["CountingIds", "ManualClock", "Script", "WireError", "call", "calls", "fail", "hold", "override", "say"]
