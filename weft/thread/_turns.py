"""Plans for turns: which entries resume, take over, cancel and close one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from weft import _texts
from weft._limits import RETRIES, Limits
from weft.messages import NO_USAGE, UNKNOWN_CALL, ErrorInfo, ToolResult, Usage
from weft.thread._view import CallView, RunView, View
from weft.thread.entries import (
    Body,
    CallResult,
    Cancel,
    Decision,
    Receipt,
    StartedCall,
    ToolsStarted,
    TurnEnded,
    TurnStarted,
)

LeaseKind: TypeAlias = Literal["mail", "claim", "claim_once", "seize", "hold", "release", "hand_off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Entries to append together, and what happens to the lease with them."""

    bodies: tuple[Body, ...]
    lease: LeaseKind
    fresh: frozenset[str] = frozenset()
    """The calls whose bodies these entries start."""
    ids: tuple[str, ...] = ()
    """The entries' ids, once the store has accepted them."""
    turn: str | None = None
    """The id of the turn that these entries both start and end."""


def recover(view: View, *, owner: str) -> Plan | None:
    """Take an open turn over whose owner is gone; None where no turn is open."""
    run = view.run
    if run is None or run.parked:
        return None
    return Plan(bodies=(_goes_on(run, "recover", owner),), lease="claim")


def _goes_on(run: RunView, cause: str, owner: str, spends: tuple[str, ...] = ()) -> TurnStarted:
    return replace(started(cause, owner, run.limits), run=run.run, of=run.turn, spends=spends)


def started(cause: str, owner: str, limits: Limits) -> TurnStarted:
    """The entry that a turn begins with."""
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
    if run.cancelled is not None:
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
    bodies_start = (ToolsStarted(calls=tuple(starts)),) if starts else ()
    bodies: tuple[Body, ...] = (*first, _goes_on(run, "resume", owner, tuple(spends)), *results, *bodies_start)
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
            content = _texts.capped(decision.content or "", _texts.RESULT_CAP)
            results.append(CallResult(call=name, content=content, is_error=decision.error, source="decision"))
        case "expire":
            results.append(as_body(_texts.expired(name), "expiry"))
        case "cancel" | "interrupt" as why:
            results.append(_closed(call, why))
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
    """End the open run as failed, as it stands: a result for each open call, then the end. A cancel wins over that."""
    run = view.run
    if run is None or run.parked:
        return None
    if run.cancelled is not None:
        return close_open(view, "release")
    calls = view.open_calls()
    results = tuple(as_body(_texts.cancelled(call.call.id, started=call.started > 0), "repair") for call in calls)
    return Plan(bodies=(*results, TurnEnded(turn=run.turn, outcome="failed", error=error)), lease="release")


# Cancelling.


def cancel(view: View, turn: str | None, *, owner: str, fresh: str, now: float) -> Plan | None:
    """Cancel the run that is open or parked; None where it is not, or has been before.

    Args:
        view: The session.
        turn: Only the run whose latest turn this is, or has taken this one over; None is whatever there is.
        owner: Who does it.
        fresh: The id of the turn that closes a parked run.
        now: The store's time.
    """
    run = view.run
    if run is None or run.cancelled is not None or (turn is not None and view.taker(turn) != run.turn):
        return None
    if run.parked:
        closed = _closing(view, run, "cancel", owner=owner, fresh=fresh, now=now)
        return replace(closed, bodies=(Cancel(), *closed.bodies))
    return Plan(bodies=(Cancel(),), lease="mail")


def close_parked(view: View, *, owner: str, fresh: str, now: float) -> Plan | None:
    """End a parked run that is cancelled, in one append; None where there is none."""
    run = view.run
    if run is None or not run.parked or run.cancelled is None:
        return None
    return _closing(view, run, run.cancelled, owner=owner, fresh=fresh, now=now)


def _closing(
    view: View, run: RunView, why: Literal["cancel", "interrupt"], *, owner: str, fresh: str, now: float
) -> Plan:
    denials = retract(view, tuple(view.undecided), why, now)
    ended = TurnEnded(turn=fresh, outcome="cancelled")
    results = tuple(_closed(call, why) for call in view.open_calls())
    started = _goes_on(run, "cancel", owner, _spent_by_closing(view, denials))
    bodies: tuple[Body, ...] = (*denials, started, *results, ended)
    return Plan(bodies=bodies, lease="claim_once", turn=fresh)


def _spent_by_closing(view: View, denials: tuple[Decision, ...]) -> tuple[str, ...]:
    """The decisions about its open calls: those that nobody has applied yet, and the denials."""
    asked = [call.requests[-1] for call in view.open_calls() if call.requests]
    made = (view.requests[name].decision for name in asked)
    earlier = tuple(decision.id for decision in made if decision is not None)
    return (*earlier, *(decision.id for decision in denials if decision.request in asked))


def never_begin(view: View, *, owner: str, fresh: str) -> Plan | None:
    """End a child that has not begun; None where it has, or is over."""
    if view.run is not None or view.ended:
        return None
    return Plan(bodies=never_began(owner, fresh), lease="claim_once", turn=fresh)


def never_began(owner: str, fresh: str) -> tuple[Body, ...]:
    """A turn that is cancelled before anything is asked."""
    return (started("cancel", owner, Limits()), TurnEnded(turn=fresh, outcome="cancelled"))


def close_open(view: View, lease: Literal["claim_once", "seize", "release"]) -> Plan | None:
    """End an open run that is cancelled, as it stands: a function of the view, which needs no agent."""
    run = view.run
    if run is None or run.parked or run.cancelled is None:
        return None
    calls = view.open_calls()
    results = tuple(_closed(call, run.cancelled) for call in calls)
    usage = NO_USAGE if calls else UNKNOWN_CALL  # with no call open a model call may have been in flight
    return Plan(bodies=(*results, TurnEnded(turn=run.turn, outcome="cancelled", usage=usage)), lease=lease)


def _closed(call: CallView, why: Literal["cancel", "interrupt"]) -> CallResult:
    started = call.started > 0 or call.receipt is not None
    return as_body(_texts.cancelled(call.call.id, started=started, by=why), why)


def retract(
    view: View, requests: tuple[str, ...], why: Literal["cancel", "interrupt"], now: float
) -> tuple[Decision, ...]:
    """Denials of those that are undecided here. Each has an id of its own that everybody derives alike."""
    undecided = (name for name in requests if name in view.undecided)
    return tuple(Decision(id=f"{why}-{name}", request=name, outcome=why, at=now) for name in undecided)
