"""The one place that catches every exception, used at the named boundaries only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")

Boundary: TypeAlias = Literal[
    "tool call",
    "child",
    "observer",
    "approver",
    "verify",
    "root",
    "watcher",
    "model",
    "turn",
    "decision",
    "store",
    "tokens",
]


class Contained(Exception):
    """Carries an exception out of a boundary as a value; its `__cause__` is what was raised."""

    def __init__(self, boundary: Boundary, cause: Exception) -> None:
        super().__init__(f"{boundary}: {type(cause).__name__}")
        self.__cause__ = cause
        self.cause = cause


async def contain(boundary: Boundary, work: Awaitable[T]) -> T | Contained:
    """What `work` gives, or the exception that it raised, as a value.

    A cancellation of the present task passes through. A `CancelledError` that `work` makes of its own is a
    failure like any other.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await work
    except Exception as error:
        return Contained(boundary, error)
    except asyncio.CancelledError as error:
        if task is None or task.cancelling() > before:
            raise
        failure = RuntimeError("it raised CancelledError without being cancelled")
        failure.__cause__ = error
        return Contained(boundary, failure)


def contain_call(boundary: Boundary, function: Callable[[], T]) -> T | Contained:
    """The same for a plain call."""
    try:
        return function()
    except Exception as error:
        return Contained(boundary, error)
