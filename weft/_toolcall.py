"""One call: judge it before anything runs; run its body under a deadline; contain, render and cap."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from weft import _texts
from weft._contain import Contained, contain, contain_call
from weft._machine import CallFinished, CallUncertain, Gated, Plan, Ready, Refused
from weft._ports import Clock, start_task
from weft._schema import InvalidArguments
from weft._threads import MOST_ABANDONED, ThreadsExhausted, in_thread
from weft._tool import Context, Retry, Tool, ToolError
from weft.messages import ToolCall, ToolResult, clean_text

GRACE = 2.0
"""Seconds that a cancelled body gets to clean up."""


def digest_of(text: str) -> str:
    """The first 32 hex digits of the SHA-256 of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def judge(
    call: ToolCall, tools: Mapping[str, Tool[Any]], allow: frozenset[str] | None, *, asked: bool = False
) -> Plan:
    """What may become of a call: it runs, it is refused, or it waits for a person.

    Args:
        call: The call.
        tools: By name.
        allow: The permissions; None is everything.
        asked: A person has been asked, or the body has started: the tool's `approval` has had its say.
    """
    tool = tools.get(call.name)
    if tool is None:
        return Refused(call=call, result=_texts.no_such_tool(call, tuple(tools)))
    arguments = contain_call("tool call", lambda: tool._signature.parse(call.arguments))
    if isinstance(arguments, Contained):
        return Refused(call=call, result=_wrong(tool, call, arguments.cause))
    if allow is not None and not tool.needs <= allow:
        missing = ", ".join(sorted(tool.needs - allow))
        return Refused(call=call, result=_texts.error(call, _texts.NOT_ALLOWED, f"Not permitted; missing: {missing}."))
    digest = digest_of(call.arguments)
    if tool._delegate is not None:
        return Ready(call=call, effect="none", digest=digest, delegate=True)
    gated = not asked and await _gated(tool, arguments)
    if isinstance(gated, Contained):
        return Refused(call=call, result=_no_thread(call) if _not_run(gated) else _texts.unexpected(call.id))
    if gated:
        return Gated(call=call, effect=tool.effect, digest=digest, expires=tool.expires, attempts=tool.attempts)
    return Ready(call=call, effect=tool.effect, digest=digest, attempts=tool.attempts)


def _wrong(tool: Tool[Any], call: ToolCall, error: Exception) -> ToolResult:
    """For arguments that do not fit, or whose validator broke."""
    if isinstance(error, InvalidArguments):
        return _texts.error(call, _texts.INVALID_INPUT, _texts.capped(clean_text(str(error)), tool.cap))
    return _texts.unexpected(call.id)


async def _gated(tool: Tool[Any], arguments: dict[str, Any]) -> bool | Contained:
    predicate = tool.approval
    if isinstance(predicate, bool):
        return predicate
    answer = await contain("approver", call_user_code(partial(predicate, **arguments)))
    return answer if isinstance(answer, Contained) else bool(answer)


async def call_user_code(function: Callable[[], Any]) -> Any:
    """What a user's function gives: a coroutine function on the loop, any other on a thread."""
    inner = function.func if isinstance(function, partial) else function
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):
        return await function()
    value = await in_thread(function)
    return await value if inspect.isawaitable(value) else value


async def run_body(
    tool: Tool[Any], plan: Ready | Gated, context: Context[Any], clock: Clock, *, durable: bool
) -> CallFinished | CallUncertain:
    """Run the body once. Cancellation passes through; everything else becomes a result."""
    call = plan.call
    arguments = contain_call("tool call", lambda: tool._signature.parse(call.arguments))
    if isinstance(arguments, Contained):  # the schema has changed since the call was judged
        return CallFinished(result=_wrong(tool, call, arguments.cause), source="refused")
    body = (
        partial(tool.function, context, **arguments)
        if tool._signature.takes_context
        else partial(tool.function, **arguments)
    )
    work = call_user_code(body)
    if tool.timeout is None:
        value = await contain("tool call", work)
    else:
        value = await _within(contain("tool call", work), tool.timeout, clock, name=f"weft tool {tool.name}")
    if value is _LATE:
        return _late(tool, plan, durable=durable)
    if _not_run(value):
        return CallFinished(result=_no_thread(call), source="refused")
    return CallFinished(result=_result(tool, call, value))


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


def _result(tool: Tool[Any], call: ToolCall, value: object) -> ToolResult:
    if isinstance(value, Contained):
        return _failure(tool, call, value.cause)
    text = contain_call("tool call", lambda: tool._signature.render(value))
    if isinstance(text, Contained):
        message = "The tool gave a value that does not fit its declared type."
        return _texts.error(call, _texts.INTERNAL, message)
    return ToolResult(call=call.id, content=_texts.capped(clean_text(text), tool.cap))


def _failure(tool: Tool[Any], call: ToolCall, error: Exception) -> ToolResult:
    match error:
        case ToolError():
            return _texts.error(call, clean_text(error.code), _texts.capped(clean_text(error.message), tool.cap))
        case Retry():
            return _texts.error(call, _texts.RETRY, _texts.capped(clean_text(str(error)), tool.cap))
        case _:
            return _texts.unexpected(call.id)


_LATE = object()


async def _within(work: Awaitable[object], seconds: float, clock: Clock, *, name: str) -> object:
    """What `work` gives, or `_LATE`; then it was cancelled and had a short grace to clean up."""

    async def run() -> object:
        return await work

    task = start_task(run(), name=name)
    try:
        if await _finished(task, seconds, clock):
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await _finished(task, GRACE, clock)
    return _LATE


async def _finished(task: asyncio.Task[object], seconds: float, clock: Clock) -> bool:
    """True as soon as the task is done, False when the time is over."""
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    task.add_done_callback(wake)
    timer = clock.deadline(seconds, wake)
    try:
        await woken
    finally:
        timer.cancel()
        task.remove_done_callback(wake)
    return task.done()
