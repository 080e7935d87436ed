"""The store's one host task: every turn, child and watcher runs in a group that is entered and left inside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from weft._contain import Contained, contain
from weft._ports import Clock, forget, over_within, start_task
from weft.errors import Closed


class Host:
    """Owns the group. Nothing is entered in the caller's task, so a turn's bug never cancels the user's body.

    Args:
        ended: Told of what ended the group, which nobody may contain: no `Exception`, from a body say.
        escaped: Told of a fault that escaped a task, by its name; each is a bug, and ends that task alone.
    """

    def __init__(self, ended: Callable[[BaseException], None], escaped: Callable[[str, Exception], None]) -> None:
        self._told = ended
        self._escaped = escaped
        self._group: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._left: asyncio.Future[None] | None = None
        self._tasks: dict[asyncio.Task[Contained | None], Coroutine[Any, Any, None]] = {}

    async def start(self) -> None:
        """Start the host task, and wait until it is ready."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = asyncio.get_running_loop().create_future()
        self._task = start_task(self._main(ready), name="weft host")
        await ready

    async def _main(self, ready: asyncio.Future[None]) -> None:
        assert self._left is not None
        async with asyncio.TaskGroup() as group:
            self._group = group
            if not ready.done():  # whoever starts it may have been cancelled
                ready.set_result(None)
            await self._left
            self._group = None
            for task in tuple(self._tasks):
                task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, context: Context | None = None) -> None:
        """Start a task in the group.

        Raises:
            Closed: The store was left.
        """
        if self._group is None:
            work.close()
            raise Closed()
        task = self._group.create_task(contain("turn", work), name=name, context=context)
        self._tasks[task] = work
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Contained | None]) -> None:
        self._tasks.pop(task).close()  # it may have been cancelled before its first step
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:  # the group cancels all the others now
            if self._group is not None:
                self._group = None
                self._told(error)
            return
        outcome = task.result()
        if isinstance(outcome, Contained):
            self._escaped(task.get_name(), outcome.cause)

    async def leave(self, clock: Clock, within: float) -> None:
        """Cancel what is left, and wait for it so many seconds: whatever takes no cancellation stays behind."""
        task, left = self._task, self._left
        if task is None or left is None:
            return
        if not left.done():
            left.set_result(None)
        try:
            await over_within(task, within, clock)
        finally:
            self._task = None
            task.add_done_callback(forget)  # what is no `Exception` (a severed test store) ends the store, nothing else
