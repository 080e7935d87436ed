"""Which threads wait for the present task, a tool's body: were it to wait for one of those, nothing would ever end."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any
from weakref import ref

_holding: ContextVar[tuple[ref[asyncio.Task[Any]], tuple[str, ...]] | None] = ContextVar("weft_holding", default=None)
"""The body's task, which holds its context: so that they make no cycle, it is not held in turn."""


def hold(threads: tuple[str, ...]) -> None:
    """The present task is a body that the turns of these threads wait for."""
    task = asyncio.current_task()
    if threads and task is not None:
        _holding.set((ref(task), threads))


def holds(thread: str) -> bool:
    """Whether the present task is a body that this thread waits for. One that a body has started may outlast it."""
    held = _holding.get()
    if held is None:
        return False
    task, threads = held
    return thread in threads and task() is asyncio.current_task()
