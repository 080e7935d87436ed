"""Receipts, mirrors and settlements: values and plans. Pure."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weft._texts import capped, subagent_answer
from weft.messages import Usage
from weft.thread import entries
from weft.thread._codec import chain, digest_line, encode_body, header_line
from weft.thread._turns import Plan, resume
from weft.thread._turns import never_began as _never_began
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


def child_header(
    parent: entries.Header, receipt: ReceiptView, allow: frozenset[str] | None, created: float
) -> entries.Header:
    """The first line of a receipt's child."""
    accepted = receipt.accepted
    return entries.Header(
        thread=accepted.child or "",
        kind="session",
        name=accepted.agent or "",
        created=created,
        parent=parent.thread,
        root=parent.root,
        depth=parent.depth + 1,
        path=(*parent.path, accepted.wrap or ""),
        call=accepted.call,
        allow=None if allow is None else tuple(sorted(allow)),
        expires=parent.expires,
    )


def never_began(header: entries.Header, *, owner: str, names: Sequence[str]) -> list[bytes]:
    """The lines of a child that was cancelled before it was made: whoever makes it late finds it ended.

    Args:
        header: The child's.
        owner: Who cancels it.
        names: Fresh ids for two entries: the turn that begins and its end.
    """
    line, bodies = header_line(header), _never_began(owner, names[0])
    made = [
        entries.Entry(position=place, id=name, parent=None, time=header.created, body=body)
        for place, (name, body) in enumerate(zip(names, bodies, strict=True), 1)
    ]
    return [line, *chain(made, map(encode_body, bodies), entries.Head(1, digest_line(line)))[0]]


def cancelled(receipt: str) -> entries.Receipt:
    """The settlement of a delegation that was cancelled before it had a child."""
    return entries.Receipt(receipt=receipt, state="cancelled", stop="it was cancelled")


def settlement(receipt: str, end: EndView, child: View, cap: int) -> entries.Receipt:
    """A receipt's settlement, from how its child ended; the answer, or why there is none, cut at `cap` bytes."""
    usage = child.turns + child.summaries + child.delegated
    match end.outcome:
        case "answered" | "stopped":
            return entries.Receipt(receipt=receipt, state="done", stop=subagent_answer(end.text, cap), usage=usage)
        case "cancelled":
            return entries.Receipt(receipt=receipt, state="cancelled", stop="it was cancelled", usage=usage)
        case _:
            error = end.error
            state = "capped" if error is not None and error.code == "LIMIT" else "failed"
            stop = "it failed" if error is None else capped(error.message, cap)
            return entries.Receipt(receipt=receipt, state=state, stop=stop, usage=usage)


def settle(
    view: View, body: entries.Receipt, asked: Iterable[str], *, owner: str, may_resume: bool, now: float
) -> Plan | None:
    """Record a settlement in a parent without a running turn; None where it is settled already.

    If it closes the last open call of a parked turn, the same append claims and resumes it. What the child had `asked`
    and nobody has decided is denied with it.
    """
    receipt = view.receipts.get(body.receipt or "")
    if receipt is None or receipt.settled is not None:
        return None
    denials = over(view, receipt, asked, now)
    going_on = resume(view, owner=owner, settles=body) if may_resume else None
    if going_on is not None:
        return replace(going_on, bodies=(*denials, *going_on.bodies))
    return Plan(bodies=(*denials, body), lease="mail")


def over(view: View, receipt: ReceiptView, asked: Iterable[str], now: float) -> tuple[entries.Decision, ...]:
    """Denials of what a child had asked that is over: also of what the receipt does not name yet."""
    return _denials(view, tuple(dict.fromkeys((*receipt.requests, *asked))), "cancel", now)


def retract(view: View, requests: tuple[str, ...], now: float) -> Plan | None:
    """The same in an ancestor; None where nothing of it waits."""
    denials = _denials(view, requests, "cancel", now)
    return Plan(bodies=denials, lease="mail") if denials else None


def waits(view: View, receipt: str) -> bool:
    """Whether a run that is open or parked here still waits for this receipt's child."""
    found = view.receipts.get(receipt)
    if found is None or found.settled is not None or view.run is None:
        return False
    return found.accepted.background or found.accepted.call in view.transcript.open


def mirror(view: View, requests: tuple[entries.Request, ...], receipt: str) -> Plan | None:
    """A child's requests, as mail in an ancestor that waits for it by this receipt; those that are not there yet."""
    if not waits(view, receipt):
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
