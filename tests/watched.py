"""A plugin for pytest in a process of its own: where it hangs, it says where, and ends.

Unlike pytest's own, it also sees a process that hangs before its tests, at its exit, or after a test that has failed.
"""

from __future__ import annotations

import faulthandler
import os

from tests.children import STALLED

faulthandler.dump_traceback_later(STALLED - 60, exit=True, file=os.dup(2))  # pytest will capture what is written to 2
