"""Run synchronous code off the loop, on daemon threads of weft's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What `function` gives, run on a daemon thread in a copy of the caller's context.

    A cancelled waiter abandons the thread: its result is dropped, and the process does not wait for it.
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

    def work() -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001  # it is carried to the caller, whatever it is
            failure = error
            if isinstance(error, StopIteration) or not isinstance(error, Exception):  # no future may carry these
                failure = RuntimeError(f"it raised {type(error).__name__}")
                failure.__cause__ = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=work, name="weft-tool", daemon=True).start()
    return await future
