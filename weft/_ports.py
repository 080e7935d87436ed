"""Clock and ids, the system's versions of them, and the one helper that starts a task."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

__all__ = [
    "Clock",
    "Expects",
    "Ids",
    "SystemClock",
    "SystemIds",
    "Timer",
    "chance",
    "forget",
    "joined",
    "over_within",
    "shielded",
    "start_task",
]

T = TypeVar("T")


class Timer(Protocol):
    """A deadline that can be called off."""

    def cancel(self) -> None:
        """Call it off. A timer that has fired ignores this."""
        ...


class Clock(Protocol):
    """Owns the time and every deadline."""

    def now(self) -> float:
        """Seconds since the epoch. It may step back."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back and, where the system has one, runs through suspend."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def deadline(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the loop after `seconds`, unless it is called off."""
        ...


@runtime_checkable
class Expects(Protocol):
    """A clock that a test moves, and that moves only once what threads are at work on has come back to the loop."""

    def expect(self, work: asyncio.Future[Any]) -> None:
        """A thread is at work on this."""
        ...


class Ids(Protocol):
    """Mints identities."""

    def new(self) -> str:
        """A new id: URL-safe, without dots, unique."""
        ...


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Runs through suspend, where the system has it."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def deadline(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class SystemIds:
    """128 random bits from the operating system, as 22 URL-safe characters."""

    def new(self) -> str:
        return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode("ascii")


def chance() -> float:
    """A random number from 0 up to, but not including, 1; another in every process, also after a fork."""
    return int.from_bytes(os.urandom(6), "big") / 2**48


def start_task(work: Coroutine[Any, Any, T], *, name: str, context: Context | None = None) -> asyncio.Task[T]:
    """A task outside any group: a host task, or a body with a deadline. Its caller awaits it."""
    return asyncio.get_running_loop().create_task(work, name=name, context=context)


def shielded() -> AbstractContextManager[object]:
    """A wait in which a cancelled scope of anyio's, which cancels at every await, does not cancel once more.

    A cancellation by `Task.cancel` passes.
    """
    if "anyio" not in sys.modules:  # then there is no scope, and nothing that is worth its import
        return nullcontext()
    from anyio import CancelScope  # noqa: PLC0415  # has been imported already

    return CancelScope(shield=True)


async def over_within(work: asyncio.Future[Any], seconds: float, clock: Clock) -> bool:
    """Wait for it so long, and no longer; whether it is over. What is not goes on, and is not cancelled."""
    late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.deadline(seconds, partial(late.set_result, None))
    try:
        await asyncio.wait([work, late], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return work.done()


def forget(work: asyncio.Future[Any]) -> None:
    """Nobody waits for what it came to: read, so that the loop does not report it."""
    if not work.cancelled():
        work.exception()


async def joined(tasks: Sequence[asyncio.Task[Any]], *, stopping: bool = False) -> None:
    """Wait until all are over. One that fails cancels the others; what it failed with is left to the caller.

    A cancellation is passed on to them, and leaves when they are over; a second one is passed on as well, so that it
    cuts their clean-up short.

    Args:
        tasks: Tasks of `start_task`.
        stopping: They have been cancelled already.
    """
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            with shielded() if stopping else nullcontext():
                await asyncio.wait(left, return_when=asyncio.ALL_COMPLETED if stopping else asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError as error:
            cancelled = error
        stopping = True
        for task in left:
            task.cancel()
    for task in tasks:
        forget(task)
    if cancelled is not None:
        raise cancelled
