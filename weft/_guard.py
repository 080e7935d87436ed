"""Work that can be stopped from within the program, which is told from a cancellation of its task from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Guard:
    """Awaits work in a task.

    Args:
        task: The task; None where there is none, and nothing can be stopped.
    """

    __slots__ = ("_before", "_fired", "_working", "task")

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.task = task
        self._before = 0 if task is None else task.cancelling()
        """How often it was cancelled before."""
        self._fired = False
        self._working = False

    def stop(self) -> bool:
        """Cancel what is awaited, once; False where nothing is, or it was stopped already."""
        if self.task is None or self._fired or not self._working:
            return False
        self._fired = True
        self.task.cancel()
        return True

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Await it; where it is stopped from here, this returns.

        Raises:
            CancelledError: The task was cancelled from outside, also where the work has swallowed that.
        """
        self._working = True
        try:
            await work
        except asyncio.CancelledError:
            if not self._take_back():
                raise
        else:
            if not self._take_back() and self._cancelled_outside():
                raise asyncio.CancelledError
        finally:
            self._working = False

    def _take_back(self) -> bool:
        """Take our own cancellation back; False if there was none, or the outside cancelled as well."""
        fired, self._fired = self._fired, False
        if self.task is None or not fired:
            return False
        self.task.uncancel()
        return not self._cancelled_outside()

    def _cancelled_outside(self) -> bool:
        return self.task is not None and self.task.cancelling() > self._before
