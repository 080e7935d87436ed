"""The one place that catches every exception, used at the named boundaries only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")

Boundary: TypeAlias = Literal[
    "tool call", "child", "observer", "approver", "verify", "root", "watcher", "model", "turn", "decision"
]


class Contained(Exception):
    """Carries an exception out of a boundary as a value; its `__cause__` is what was raised."""

    def __init__(self, boundary: Boundary, cause: Exception) -> None:
        super().__init__(f"{boundary}: {type(cause).__name__}")
        self.__cause__ = cause
        self.cause = cause


async def contain(boundary: Boundary, work: Awaitable[T]) -> T | Contained:
    """What `work` gives, or the exception that it raised, as a value. Cancellation passes through."""
    try:
        return await work
    except Exception as error:
        return Contained(boundary, error)


def contain_call(boundary: Boundary, function: Callable[[], T]) -> T | Contained:
    """The same for a plain call."""
    try:
        return function()
    except Exception as error:
        return Contained(boundary, error)
