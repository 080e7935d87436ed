"""One call: judge it before anything runs; run its body under a deadline; contain, render and cap."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from weft import _texts
from weft._contain import Contained, contain, contain_call
from weft._holding import hold
from weft._moves import CallFinished, CallUncertain, Gated, Plan, Ready, Refused
from weft._ports import Clock, over_within, shielded, start_task
from weft._schema import InvalidArguments, is_async
from weft._threads import MOST_ABANDONED, ThreadsExhausted, in_thread
from weft._tool import Context, Retry, Tool, ToolError
from weft.messages import ToolCall, ToolResult, clean_text

Late: TypeAlias = Callable[[ToolCall, Callable[[], Coroutine[Any, Any, ToolResult]]], None]
"""Told of a call whose result has come too late, and what makes it."""

_log = logging.getLogger("weft")
_LIBRARIES = (str(Path(traceback.__file__).parent), str(Path(__file__).parent), "<")
"""Where the files begin that are Python's own, or weft's."""

GRACE = 2.0
"""Seconds that a cancelled body gets to clean up."""


def digest_of(text: str) -> str:
    """The first 32 hex digits of the SHA-256 of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def judge(
    call: ToolCall,
    tools: Mapping[str, Tool[Any]],
    allow: frozenset[str] | None,
    *,
    asked: bool = False,
    parsed: dict[str, dict[str, Any]] | None = None,
) -> Plan:
    """What may become of a call: it runs, it is refused, or it waits for a person.

    Args:
        call: The call.
        tools: By name.
        allow: The permissions; None is everything.
        asked: A person has been asked, or the body has started: the tool's `approval` has had its say.
        parsed: Where to leave the arguments for `run_body`, by call.
    """
    tool = tools.get(call.name)
    if tool is None:
        return Refused(call=call, result=_texts.no_such_tool(call, tuple(tools)))
    arguments = await _parse(tool, call)
    if isinstance(arguments, Contained):
        return Refused(call=call, result=_wrong(tool, call, arguments))
    if allow is not None and not tool.needs <= allow:
        missing = ", ".join(sorted(tool.needs - allow))
        return Refused(call=call, result=_texts.error(call, _texts.NOT_ALLOWED, f"Not permitted; missing: {missing}."))
    digest = digest_of(call.arguments)
    if tool._delegate is not None and tool._delegate.sessions:
        return Ready(call=call, effect="none", digest=digest, delegate=True)
    if parsed is not None and isinstance(tool.approval, bool):  # a predicate could change them
        parsed[call.id] = arguments
    gated = not asked and await _gated(tool, arguments)
    if isinstance(gated, Contained):
        return Refused(call=call, result=_broken(tool, call, gated))
    if gated:
        return Gated(call=call, effect=tool.effect, digest=digest, expires=tool.expires, attempts=tool.attempts)
    return Ready(call=call, effect=tool.effect, digest=digest, attempts=tool.attempts)


async def _parse(tool: Tool[Any], call: ToolCall) -> dict[str, Any] | Contained:
    """The arguments; on a thread where a validator of the user's runs."""
    parse = partial(tool._signature.parse, call.arguments)
    if tool._signature.parse_runs_code:
        return await contain("tool call", in_thread(parse))
    return contain_call("tool call", parse)


def _wrong(tool: Tool[Any], call: ToolCall, failure: Contained) -> ToolResult:
    """For arguments that do not fit, or that could not be looked at."""
    if isinstance(failure.cause, InvalidArguments):
        return _texts.error(call, _texts.INVALID_INPUT, _texts.capped(clean_text(str(failure.cause)), tool.cap))
    return _broken(tool, call, failure)


def _broken(tool: Tool[Any], call: ToolCall, failure: Contained) -> ToolResult:
    """For a call that did not come to its body, since a validator or a predicate failed or found no thread."""
    if _not_run(failure):
        return _no_thread(call)
    if isinstance(failure.cause, Retry | ToolError):
        return _told(tool, call, failure.cause)
    _log.warning("a call of tool %s was not made: %s", call.name, _where(failure.cause))
    return _texts.unexpected(call.id)


async def _gated(tool: Tool[Any], arguments: dict[str, Any]) -> bool | Contained:
    predicate = tool.approval
    if isinstance(predicate, bool):
        return predicate
    return await contain("approver", truth_of(partial(predicate, **arguments)))


async def truth_of(function: Callable[[], Any]) -> bool:
    """Whether a user's function says yes; what it gives may have a truth of its own, which may fail."""
    return bool(await call_user_code(function))


async def text_of(function: Callable[[], Any]) -> str | None:
    """The text that a user's function gives, or None; what it gives may be of any type, and have no text."""
    given = await call_user_code(function)
    return None if given is None else clean_text(str(given))


async def call_user_code(function: Callable[[], Any]) -> Any:
    """What a user's function gives: a coroutine function on the loop, any other on a thread."""
    if is_async(function.func if isinstance(function, partial) else function):
        return await function()
    value = await in_thread(function)
    return await value if inspect.isawaitable(value) else value


async def run_body(  # noqa: PLR0913  # what a body needs; called in one place
    tool: Tool[Any],
    plan: Ready | Gated,
    context: Context[Any] | None,
    clock: Clock,
    *,
    durable: bool,
    late: Late,
    arguments: dict[str, Any] | None = None,
    place: Place | None = None,
    held: tuple[str, ...] = (),
) -> CallFinished | CallUncertain:
    """Run the body once. Cancellation passes through; everything else becomes a result.

    Args:
        tool: Whose body.
        plan: The call.
        context: What the body may ask for; None where its signature does not.
        clock: Owns its deadline.
        durable: Whether somebody can be asked about a body that may have had its effect.
        late: Told of a result that comes when nobody waits for it any more.
        arguments: As they were read when the call was judged.
        place: Among the synchronous bodies that are started together.
        held: The threads whose turns wait for it.
    """
    call = plan.call
    if arguments is None:
        read = await _parse(tool, call)
        if isinstance(read, Contained):  # the schema has changed since the call was judged
            return CallFinished(result=_wrong(tool, call, read), source="refused")
        arguments = read
    body = (
        partial(tool.function, context, **arguments)
        if tool._signature.takes_context
        else partial(tool.function, **arguments)
    )
    left = _Left(tool, call, late, held)
    name = f"weft tool {tool.name}"
    if tool._signature.is_async:
        value = await _within(body, tool.timeout, clock, left, name=name)
    else:
        value = await _on_a_thread(body, tool.timeout, clock, left, place or Place(None), name=name)
    if value is _LATE:
        return _late(tool, plan, durable=durable)
    if _not_run(value):
        return CallFinished(result=_no_thread(call), source="refused")
    return CallFinished(result=await _result(tool, call, value))


def _not_run(value: object) -> bool:
    """Whether this is the failure of a function that found no thread."""
    return isinstance(value, Contained) and isinstance(value.cause, ThreadsExhausted)


def _no_thread(call: ToolCall) -> ToolResult:
    return _texts.no_thread(call.id, MOST_ABANDONED)


def _late(tool: Tool[Any], plan: Ready | Gated, *, durable: bool) -> CallFinished | CallUncertain:
    seconds = tool.timeout or 0.0
    once = plan.effect == "once"
    if once and durable:
        return CallUncertain(call=plan.call.id, reason=f"it did not finish within {seconds:g} seconds")
    return CallFinished(result=_texts.timed_out(plan.call.id, seconds, unknown=once), source="timeout")


async def _result(tool: Tool[Any], call: ToolCall, value: object) -> ToolResult:
    if isinstance(value, Contained):
        return _told(tool, call, value.cause)
    render = partial(tool._signature.render, value)
    if not tool._signature.renders_inline(value):
        text = await contain("tool call", in_thread(render))
        if _not_run(text):  # the body has run, so its result is not given up
            text = contain_call("tool call", render)
    else:
        text = contain_call("tool call", render)
    if isinstance(text, Contained):
        _log.warning("what tool %s gave is no result: %s", tool.name, _where(text.cause))
        message = "The tool gave a value that does not fit its declared type."
        return _texts.error(call, _texts.INTERNAL, message)
    return ToolResult(call=call.id, content=_texts.capped(clean_text(text), tool.cap))


def _told(tool: Tool[Any], call: ToolCall, error: Exception) -> ToolResult:
    """What the model is told of an exception of the application's; it may be one that has no text."""
    told = contain_call("tool call", partial(_failure, tool, call, error))
    return _unexpected(tool, call, told.cause) if isinstance(told, Contained) else told


def _failure(tool: Tool[Any], call: ToolCall, error: Exception) -> ToolResult:
    match error:
        case ToolError():
            return _texts.error(call, clean_text(error.code), _texts.capped(clean_text(error.message), tool.cap))
        case Retry():
            return _texts.error(call, _texts.RETRY, _texts.capped(clean_text(str(error)), tool.cap))
        case _:
            return _unexpected(tool, call, error)


def _unexpected(tool: Tool[Any], call: ToolCall, error: Exception) -> ToolResult:
    _log.warning("tool %s failed: %s", tool.name, _where(error))
    return _texts.unexpected(call.id)


def _where(error: Exception) -> str:
    """The type of an exception, and where it was raised; not its text, which may hold anything.

    Where that is in a library, also the application's own line that led there.
    """
    frames = traceback.walk_tb(error.__traceback__)
    places = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames]
    if not places:
        return type(error).__name__
    own = [place for place in places if not _is_library(place)]
    led = f", called from {own[-1]}" if own and own[-1] != places[-1] else ""
    return f"{type(error).__name__} at {places[-1]}{led}"


def _is_library(place: str) -> bool:
    """Whether code is Python's, weft's, or was installed."""
    return "site-packages" in place or place.startswith(_LIBRARIES)


_LATE = object()


class Place:
    """A synchronous body's place among those that are started together: threads enter them in call order.

    Args:
        before: The place before it, if there is one.
    """

    __slots__ = ("_before", "_entered")

    def __init__(self, before: Place | None) -> None:
        self._before = before
        self._entered = threading.Event()

    def enter(self) -> None:
        """On the body's thread: wait for the one before, which waits for nothing but its own start."""
        before, self._before = self._before, None
        if before is not None:
            before._entered.wait()
        self._entered.set()

    def give_up(self) -> None:
        """It is entered, or never will be: nobody is to wait for it."""
        self._entered.set()


class _Left:
    """Where the result of a body goes that nobody waits for any more."""

    __slots__ = ("_call", "_late", "_tool", "gone", "held")

    def __init__(self, tool: Tool[Any], call: ToolCall, late: Late, held: tuple[str, ...]) -> None:
        self.gone = False
        self.held = held
        """The threads whose turns wait for the body."""
        self._tool = tool
        self._call = call
        self._late = late

    def watching(self, body: Callable[[], Any], place: Place) -> Callable[[], Any]:
        """The same body for a thread: entered after those before it, and with a word when it ends too late."""
        loop = asyncio.get_running_loop()

        def watched() -> Any:
            place.enter()
            value = contain_call("tool call", body)
            if self.gone:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self.tell, value)
            if isinstance(value, Contained):
                raise value.cause
            return value

        return watched

    def tell(self, value: object) -> None:
        """The body has ended, with this."""
        if not isinstance(value, Awaitable):
            self._late(self._call, partial(_result, self._tool, self._call, value))

    def ended(self, task: asyncio.Task[object]) -> None:
        """The task of a body that was left behind is over."""
        if not task.cancelled() and task.exception() is None:
            self.tell(task.result())


async def _on_a_thread(
    body: Callable[[], Any], seconds: float | None, clock: Clock, left: _Left, place: Place, *, name: str
) -> object:
    """The same for a synchronous body, whose thread is left behind at once."""
    body = left.watching(body, place)
    value: object = _LATE
    try:
        if seconds is None:
            value = await contain("tool call", in_thread(body))
            if inspect.isawaitable(value):  # of a plain function around a coroutine function, as a decorator makes one
                value = await _within(partial(_awaited, value), None, clock, left, name=name)
        else:
            value = await _within(partial(call_user_code, body), seconds, clock, left, name=name)
    finally:
        place.give_up()
        left.gone = value is _LATE
    return value


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


async def _within(
    body: Callable[[], Coroutine[Any, Any, Any]], seconds: float | None, clock: Clock, left: _Left, *, name: str
) -> object:
    """What the body gives, contained, or `_LATE` when the time is over; None is without limit.

    It runs in a task of its own, so that a body that swallows its cancellation can be left behind: cancelled by the
    deadline or by who waits, it has a short grace to clean up.
    """
    woken: asyncio.Future[None] = asyncio.Future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    async def run() -> object:
        hold(left.held)
        try:
            return await contain("tool call", body())
        finally:
            wake()

    task = start_task(run(), name=name)
    timer = None if seconds is None else clock.deadline(seconds, wake)
    in_time = False
    try:
        await woken
        in_time = task.done()
    finally:
        if timer is not None:
            timer.cancel()
        if not in_time:
            await _leave(task, clock, left)
    if not in_time:
        return _LATE
    if task.cancelled():
        return Contained("tool call", RuntimeError("it cancelled itself"))
    return task.result()


async def _leave(task: asyncio.Task[object], clock: Clock, left: _Left) -> None:
    """Cancel a body's task, and wait until it is done or the grace is over."""
    try:
        if not task.done():
            task.cancel()
            with shielded():
                await over_within(task, GRACE, clock)
    finally:
        task.add_done_callback(left.ended)
