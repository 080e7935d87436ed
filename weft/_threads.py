"""Run synchronous code off the loop, on daemon threads of weft's own.

They are reused. There is no list of them: the process's own registry of threads is asked each time. A fork leaves the
child none of them, and the interpreter's exit waits for none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

__all__ = ["MOST_ABANDONED", "ThreadsExhausted", "Worker", "in_thread", "workers"]

T = TypeVar("T")

Work: TypeAlias = Callable[[], Callable[[], object]]
"""Runs a function, and gives what delivers its outcome. Raises nothing."""

IDLE = 10.0
"""Seconds without work after which a thread ends."""
MOST_ABANDONED = 16
"""With so many threads in the process that work for nobody any more, nothing new is started."""


class ThreadsExhausted(Exception):
    """Raised when too many abandoned threads are still at work. The function was not started."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_ABANDONED} earlier calls were given up and still hold their threads")


async def in_thread(function: Callable[[], T]) -> T:
    """What `function` gives, run on a daemon thread in a copy of the caller's context.

    A cancelled waiter abandons the thread: its result is dropped, and the process does not wait for it.

    Raises:
        ThreadsExhausted: `MOST_ABANDONED` threads are abandoned; nothing was started.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # None only where T allows it

    def work() -> Callable[[], None]:
        return partial(_call_back, loop, partial(deliver, *_outcome(context, function)))

    worker = _put_to(work)
    try:
        return await future
    finally:  # of no effect once the function has ended
        worker.abandon(work)


def _outcome(context: Context, function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """What the function gave, or what it raised, as a future may carry it."""
    try:
        return context.run(function), None
    except BaseException as error:  # noqa: BLE001  # it is carried to the caller, whatever it is
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return None, error
        failure = RuntimeError(f"it raised {type(error).__name__}")
        failure.__cause__ = error
        return None, failure


def _call_back(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(deliver)


def workers() -> list[Worker]:
    """The threads of weft's own that this process has."""
    return [thread for thread in threading.enumerate() if isinstance(thread, Worker)]


def _put_to(work: Work) -> Worker:
    """The thread that does the work: one that is free, or a new one."""
    known = workers()
    if sum(worker.abandoned for worker in known) >= MOST_ABANDONED:
        raise ThreadsExhausted
    for worker in known:
        if worker.claim(work):
            return worker
    worker = Worker(work)
    worker.start()
    return worker


class Worker(threading.Thread):
    """A thread that does one work after another, and ends when it had none for a while.

    Args:
        work: The first, done once the thread is started.
        idle: Seconds that it waits for the next.
    """

    def __init__(self, work: Work, *, idle: float = IDLE) -> None:
        super().__init__(name="weft-tool", daemon=True)
        self._idle = idle
        self._guard = threading.Lock()
        """Held for what follows, and never while work is done."""
        self._work: Work | None = work
        """What it is at, or was given to do next; None while it is free."""
        self._abandoned = False
        self._over = False
        self._given: SimpleQueue[Work] = SimpleQueue()
        self._given.put(work)

    @property
    def abandoned(self) -> bool:
        """Whether it is at work for nobody."""
        return self._abandoned

    def claim(self, work: Work) -> bool:
        """Give it this work, from any thread; False if it is not free, or has ended."""
        with self._guard:
            if self._over or self._work is not None:
                return False
            self._work = work
            self._given.put(work)
            return True

    def abandon(self, work: Work) -> None:
        """Nobody waits for this work any more. Nothing happens if it is done already."""
        with self._guard:
            if self._work is work:
                self._abandoned = True

    def run(self) -> None:
        """Work until there is none."""
        while self._do_one():
            pass

    def _do_one(self) -> bool:
        work = self._next()
        if work is None:
            return False
        deliver = work()
        with self._guard:  # free before the outcome is known, so that whoever waited finds this thread again
            self._work = None
            self._abandoned = False
        deliver()
        return True

    def _next(self) -> Work | None:
        with suppress(Empty):
            return self._given.get(timeout=self._idle)
        with self._guard:
            self._over = self._work is None
        return None if self._over else self._given.get()  # claimed at the last moment
