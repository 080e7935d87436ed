"""Plans for turns: which entries start, resume, take over and close one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from weft import _texts
from weft._limits import RETRIES, Limits
from weft.errors import Busy, Conflict
from weft.messages import ErrorInfo, Message, ToolResult, Usage
from weft.thread._view import CallView, RunView, View
from weft.thread.entries import (
    Body,
    CallResult,
    Decision,
    Inbox,
    Receipt,
    Said,
    StartedCall,
    ToolsStarted,
    TurnEnded,
    TurnStarted,
)

LeaseKind: TypeAlias = Literal["mail", "claim", "hold", "release", "hand_off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Entries to append together, and what happens to the lease with them."""

    bodies: tuple[Body, ...]
    lease: LeaseKind
    fresh: frozenset[str] = frozenset()
    """The calls whose bodies these entries start."""
    ids: tuple[str, ...] = ()
    """The entries' ids, once the store has accepted them."""


def send(view: View, message: Message, key: str | None, *, policy: str, first: Plan | None) -> Plan | None:
    """Accept an input: `first` starts its turn at once; None where the key has brought it before.

    Args:
        view: The session.
        message: The input.
        key: The sender's, for idempotency.
        policy: `queue` or `reject`.
        first: The plan of its turn, where one can be run here.

    Raises:
        Conflict: The key was used before with another message.
        Busy: The policy is `reject`, and the session is not idle.
    """
    if key is not None and key in view.keys:
        if view.keys[key][1] != message:
            raise Conflict(f"key {key!r} was used before with another message")
        return None
    idle = view.run is None and not view.queue
    if idle and first is not None:
        return first
    if policy == "reject" and not idle:
        raise Busy(f"session {view.header.thread!r} is {view.phase}; wait for its turn, or queue the message")
    return accept(message, key)


def prompt(message: Message, key: str | None, owner: str, limits: Limits) -> Plan:
    """A turn for a new input, on an idle session with nothing queued."""
    started = _started("prompt", owner, limits)
    return Plan(bodies=(started, Said(message=message, key=key)), lease="claim")


def queued(view: View, *, owner: str, limits: Limits) -> Plan | None:
    """A turn for the oldest input that waits; None where nothing does, or the session is not idle."""
    if view.run is not None or not view.queue:
        return None
    item, inbox = next(iter(view.queue.items()))
    if inbox.message is None:
        return None
    started = _started("queued", owner, limits)
    return Plan(bodies=(started, Said(message=inbox.message, key=inbox.key, item=item)), lease="claim")


def accept(message: Message, key: str | None) -> Plan:
    """Input for later, durable now."""
    return Plan(bodies=(Inbox(state="accepted", policy="queue", message=message, key=key),), lease="mail")


def recover(view: View, *, owner: str) -> Plan | None:
    """Take an open turn over whose owner is gone; None where no turn is open."""
    run = view.run
    if run is None or run.parked:
        return None
    return Plan(bodies=(_goes_on(run, "recover", owner),), lease="claim")


def _goes_on(run: RunView, cause: str, owner: str, spends: tuple[str, ...] = ()) -> TurnStarted:
    return replace(_started(cause, owner, run.limits), run=run.run, of=run.turn, spends=spends)


def _started(cause: str, owner: str, limits: Limits) -> TurnStarted:
    return TurnStarted(
        cause=cause,
        owner=owner,
        steps=limits.steps,
        tokens=limits.tokens,
        tool_calls=limits.tool_calls,
        seconds=limits.seconds,
        retries=None if limits.retries == RETRIES else limits.retries,
        repeats=limits.repeats,
    )


def resume(view: View, *, owner: str, settles: Receipt | None = None) -> Plan | None:
    """Go on with a parked turn none of whose calls is open: results of what is closed, starts of what is approved.

    Args:
        view: The session.
        owner: Who claims it.
        settles: A receipt's settlement that closes the last open call and rides along.

    Returns:
        None where the turn is not parked, or a call of it is still open.
    """
    run = view.run
    if run is None or not run.parked:
        return None
    spends: list[str] = []
    results: list[CallResult] = []
    starts: list[StartedCall] = []
    for call in view.open_calls():
        settled = _settlement(view, call, settles)
        decision = None if call.receipt is not None else _decision(view, call)
        if settled is not None:
            results.append(of_receipt(call.call.id, settled))
        elif decision is not None:
            spends.append(decision.id)
            _apply(view, call, decision, results, starts)
        else:
            return None
    first = () if settles is None else (settles,)
    started = (ToolsStarted(calls=tuple(starts)),) if starts else ()
    bodies: tuple[Body, ...] = (*first, _goes_on(run, "resume", owner, tuple(spends)), *results, *started)
    return Plan(bodies=bodies, lease="claim", fresh=frozenset(start.call for start in starts))


def _settlement(view: View, call: CallView, settles: Receipt | None) -> Receipt | None:
    if call.receipt is None:
        return None
    if settles is not None and settles.receipt == call.receipt:
        return settles
    return view.receipts[call.receipt].settled


def _decision(view: View, call: CallView) -> Decision | None:
    return view.requests[call.requests[-1]].decision if call.requests else None


def _apply(
    view: View, call: CallView, decision: Decision, results: list[CallResult], starts: list[StartedCall]
) -> None:
    name = call.call.id
    request = view.requests[decision.request].body
    match decision.outcome:
        case "approve":
            start = StartedCall(call=name, attempt=call.started + 1, effect=request.effect, digest=request.digest)
            starts.append(start)
        case "resolve":
            content = decision.content or ""
            results.append(CallResult(call=name, content=content, is_error=decision.error, source="decision"))
        case "expire":
            results.append(as_body(_texts.expired(name), "expiry"))
        case "cancel":
            results.append(as_body(_texts.cancelled(name, started=call.started > 0), "cancel"))
        case _:
            results.append(as_body(_texts.denied(name, decision.reason), "decision"))


def as_body(result: ToolResult, source: str, attempt: int = 0, usage: Usage | None = None) -> CallResult:
    """A result as its entry."""
    return CallResult(
        call=result.call,
        content=result.content,
        is_error=result.is_error,
        code=result.code,
        source=source,
        attempt=attempt,
        usage=usage,
    )


def of_receipt(call: str, settled: Receipt) -> CallResult:
    """A delegating call's result, from its receipt's settlement."""
    if settled.state == "done":
        return CallResult(call=call, content=settled.stop or "", source="receipt")
    return as_body(_texts.subagent_failed(call, settled.stop or settled.state), "receipt")


def fail(view: View, error: ErrorInfo) -> Plan | None:
    """End the open run as failed, as it stands: a result for each open call, then the end."""
    run = view.run
    if run is None or run.parked:
        return None
    calls = view.open_calls()
    results = tuple(as_body(_texts.cancelled(call.call.id, started=call.started > 0), "repair") for call in calls)
    return Plan(bodies=(*results, TurnEnded(turn=run.turn, outcome="failed", error=error)), lease="release")
