"""Requests and decisions: values, and the plans that record them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from weft.errors import Conflict, DecideAtRoot, Expired, InvalidDecision, NotPending
from weft.messages import clean_text
from weft.thread import entries
from weft.thread._turns import Plan
from weft.thread._view import RequestView, View

__all__ = ["Decision", "Request", "approve", "deny", "resolve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call that waits for a person: one occurrence of one call, with exactly these arguments."""

    id: str
    """`<thread>.<entry>`: one string that addresses it from any process."""
    kind: str
    """`approval`, or `uncertain`: the body started and left no result."""
    path: tuple[str, ...]
    """From the root's agent down to the one that asks."""
    call: str
    """The call's id."""
    tool: str
    args: str
    """The argument text as it will be passed."""
    digest: str
    """Of that text."""
    reason: str | None
    created: float
    expires: float | None
    """By the store's clock, seconds since the epoch; None is never."""
    allowed: tuple[str, ...]
    """`approve`, `deny`, `resolve`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What somebody decided about a request. Made by `approve`, `deny`, `resolve`."""

    request: str
    outcome: Literal["approve", "deny", "resolve"]
    reason: str | None = None
    content: str | None = None
    error: bool = False
    by: str | None = None


_HOW = "by approve(request), deny(request) or resolve(request, content)"


def _id(request: Request | str) -> str:
    if isinstance(request, str):
        return request
    if not isinstance(request, Request):  # whoever calls may have no type checker
        raise InvalidDecision(
            f"what is decided is a request of session.pending, or its id; not {type(request).__name__}"
        )
    return request.id


def approve(request: Request | str, *, by: str | None = None) -> Decision:
    """Let the call run, with exactly the stored arguments; an uncertain one runs again, knowingly.

    Args:
        request: The request, or its id.
        by: Who decided.
    """
    return Decision(request=_id(request), outcome="approve", by=by)


def deny(request: Request | str, reason: str | None = None, *, by: str | None = None) -> Decision:
    """Refuse the call; the model reads the reason."""
    return Decision(request=_id(request), outcome="deny", reason=None if reason is None else clean_text(reason), by=by)


def resolve(request: Request | str, content: str, *, error: bool = False, by: str | None = None) -> Decision:
    """Answer the call from outside: the body does not run, the model reads `content`."""
    return Decision(request=_id(request), outcome="resolve", content=clean_text(content), error=error, by=by)


def public(request: RequestView) -> Request:
    """A request as users see it."""
    body = request.body
    return Request(
        id=request.id,
        kind=body.kind,
        path=body.path,
        call=body.call,
        tool=body.tool,
        args=body.args,
        digest=body.digest,
        reason=body.reason,
        created=body.created,
        expires=body.expires,
        allowed=body.allowed,
    )


def pending(view: View) -> tuple[Request, ...]:
    """What waits for a decision, children's requests too, in the order in which it was asked."""
    return tuple(public(view.requests[name]) for name in view.undecided)


def checked(decisions: Sequence[Decision]) -> None:
    """Refuse what is no decision; whoever calls may have no type checker.

    Raises:
        InvalidDecision: There is none, or one is something else, such as a request.
    """
    if not decisions:
        raise InvalidDecision(f"give at least one decision, {_HOW}")
    for given in decisions:
        if not isinstance(given, Decision):
            raise InvalidDecision(f"a decision is made of a request, {_HOW}; not {type(given).__name__}")


def decide(view: View, decisions: Sequence[Decision], ids: Sequence[str], now: float) -> Plan | None:
    """Record decisions: all of them, or none. None where all were recorded before.

    Args:
        view: The root session.
        decisions: At least one.
        ids: A fresh id for each.
        now: The store's time.

    Raises:
        DecideAtRoot: The session is a child.
        NotPending: A request is unknown.
        Expired: A request's time is over.
        Conflict: A request was decided otherwise, or is decided twice here.
        InvalidDecision: The request does not allow this outcome.
    """
    checked(decisions)
    if view.header.parent is not None:
        raise DecideAtRoot(decisions[0].request, view.header.root)
    if len({decision.request for decision in decisions}) < len(decisions):
        raise Conflict("a request is decided twice in one batch; decide it once")
    bodies: list[entries.Decision] = []
    for decision, name in zip(decisions, ids, strict=True):
        request = view.requests.get(decision.request)
        if request is None:
            raise NotPending(decision.request, "is unknown in this session")
        body = _body(decision, name, now)
        if _is_new(request, body, now):
            bodies.append(body)
    return Plan(bodies=tuple(bodies), lease="mail") if bodies else None


def _is_new(request: RequestView, body: entries.Decision, now: float) -> bool:
    earlier = request.decision
    if earlier is not None:
        if _content(earlier) == _content(body):
            return False
        if earlier.outcome == "expire":
            raise Expired(request.id)
        raise Conflict(f"request {request.id!r} was decided before: {earlier.outcome} by {earlier.by or 'somebody'}")
    if request.body.expires is not None and request.body.expires <= now:
        raise Expired(request.id)
    if body.outcome not in request.body.allowed:
        allowed = ", ".join(request.body.allowed)
        raise InvalidDecision(f"request {request.id!r} takes {allowed}, not {body.outcome}")
    return True


def _content(body: entries.Decision) -> tuple[object, ...]:
    return (body.outcome, body.reason, body.content, body.error, body.args, body.always)


def _body(decision: Decision, name: str, now: float) -> entries.Decision:
    return entries.Decision(
        id=name,
        request=decision.request,
        outcome=decision.outcome,
        reason=decision.reason,
        content=decision.content,
        error=decision.error,
        by=decision.by,
        at=now,
    )


def made(view: View, requests: Iterable[str]) -> tuple[entries.Decision, ...]:
    """The decisions that stand here for these requests."""
    found = (view.requests[name].decision for name in requests if name in view.requests)
    return tuple(decision for decision in found if decision is not None)


def push(view: View, decisions: Iterable[entries.Decision]) -> Plan | None:
    """The same decisions, one level further down: those whose request waits here."""
    fitting = tuple(body for body in decisions if body.request in view.undecided)
    return Plan(bodies=fitting, lease="mail") if fitting else None


def expire(view: View, ids: Sequence[str], now: float) -> Plan | None:
    """Expire what is over its time; recorded at the root only."""
    late = [name for name in view.undecided if _late(view.requests[name], now)]
    bodies = tuple(
        entries.Decision(id=fresh, request=name, outcome="expire", at=now)
        for name, fresh in zip(late, ids, strict=False)
    )
    return Plan(bodies=bodies, lease="mail") if bodies else None


def late_requests(view: View, now: float) -> int:
    """How many requests are over their time."""
    return sum(_late(view.requests[name], now) for name in view.undecided)


def _late(request: RequestView, now: float) -> bool:
    return request.body.expires is not None and request.body.expires <= now
