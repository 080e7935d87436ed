"""Receipts, mirrors and settlements: values and plans. Pure."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace

from weft._texts import capped
from weft.messages import Usage
from weft.thread import entries
from weft.thread._turns import Plan, resume
from weft.thread._turns import retract as _denials
from weft.thread._view import EndView, ReceiptView, View

__all__ = ["Receipt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A delegation: which child works for which call, and what came of it."""

    id: str
    state: str
    """accepted, parked, done, failed, cancelled, capped."""
    child: str
    """The child session's thread id."""
    call: str | None
    """The parent's call."""
    agent: str
    prompt: str
    stop: str | None
    """The answer, or the cause of another end."""
    usage: Usage | None
    """The child's whole ledger, once settled."""
    accepted: float
    settled: float | None
    """Writers' clocks, seconds since the epoch."""


def public(view: View, receipt: ReceiptView) -> Receipt:
    """A receipt as users see it."""
    accepted = receipt.accepted
    settled = receipt.settled
    return Receipt(
        id=receipt.id,
        state=view.receipt_state(receipt),
        child=accepted.child or "",
        call=accepted.call,
        agent=accepted.agent or "",
        prompt=accepted.prompt or "",
        stop=None if settled is None else settled.stop,
        usage=None if settled is None else settled.usage,
        accepted=receipt.time,
        settled=receipt.settled_time,
    )


def receipts(view: View) -> tuple[Receipt, ...]:
    """A session's receipts, in acceptance order."""
    return tuple(public(view, receipt) for receipt in view.receipts.values())


def child_id(parent: str, call: str) -> str:
    """A child's thread id: derived, so that a delegation made again finds the same child."""
    return derived(parent, call)


def derived(one: str, other: str) -> str:
    """A thread id that these two texts determine."""
    digest = hashlib.sha256(f"{one}\n{other}".encode()).digest()[:16]
    return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def cancelled(receipt: str) -> entries.Receipt:
    """The settlement of a delegation that was cancelled before it had a child."""
    return entries.Receipt(receipt=receipt, state="cancelled", stop="it was cancelled")


def settlement(receipt: str, end: EndView, child: View, cap: int) -> entries.Receipt:
    """A receipt's settlement, from how its child ended; the answer cut at `cap` bytes."""
    usage = child.turns + child.summaries + child.delegated
    match end.outcome:
        case "answered" | "stopped":
            return entries.Receipt(receipt=receipt, state="done", stop=capped(end.text, cap), usage=usage)
        case "cancelled":
            return entries.Receipt(receipt=receipt, state="cancelled", stop="it was cancelled", usage=usage)
        case _:
            error = end.error
            state = "capped" if error is not None and error.code == "LIMIT" else "failed"
            stop = "it failed" if error is None else error.message
            return entries.Receipt(receipt=receipt, state=state, stop=stop, usage=usage)


def settle(view: View, body: entries.Receipt, *, owner: str, may_resume: bool, now: float) -> Plan | None:
    """Record a settlement in a parent without a running turn; None where it is settled already.

    If it closes the last open call of a parked turn, the same append claims and resumes it. What the child had asked
    and nobody has decided is denied with it.
    """
    receipt = view.receipts.get(body.receipt or "")
    if receipt is None or receipt.settled is not None:
        return None
    denials = over(view, receipt, now)
    going_on = resume(view, owner=owner, settles=body) if may_resume else None
    if going_on is not None:
        return replace(going_on, bodies=(*denials, *going_on.bodies))
    return Plan(bodies=(*denials, body), lease="mail")


def over(view: View, receipt: ReceiptView, now: float) -> tuple[entries.Decision, ...]:
    """Denials of what a child had asked that is over."""
    return _denials(view, tuple(receipt.requests), "cancel", now)


def retract(view: View, requests: tuple[str, ...], now: float) -> Plan | None:
    """The same in an ancestor; None where nothing of it waits."""
    denials = _denials(view, requests, "cancel", now)
    return Plan(bodies=denials, lease="mail") if denials else None


def mirror(view: View, requests: tuple[entries.Request, ...]) -> Plan | None:
    """A child's requests, as mail in an ancestor; those that are not there yet.

    Not under a settled receipt, and not in a thread that has ended.
    """
    if view.run is None:
        return None
    fresh = tuple(body for body in requests if body.request not in view.requests)
    return Plan(bodies=fresh, lease="mail") if fresh else None


def mirrored(view: View) -> tuple[entries.Request, ...]:
    """What waits here, its own and what it mirrors, as it is written one level up."""
    return tuple(replace(view.requests[name].body, request=name) for name in view.undecided)


def park(view: View, receipt: str, requests: tuple[str, ...]) -> Plan | None:
    """Say that a receipt's child waits for these requests; None where that is known, or it is settled."""
    found = view.receipts.get(receipt)
    if found is None or found.settled is not None:
        return None
    if all(name in found.requests for name in requests):
        return None
    if not any(name in view.undecided for name in requests):
        return None
    return Plan(bodies=(entries.Receipt(receipt=receipt, state="parked", requests=requests),), lease="mail")
