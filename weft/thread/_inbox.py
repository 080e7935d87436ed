"""Plans for input: what becomes of a message that is sent. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, TypeAlias

from weft._limits import Limits
from weft.errors import Busy, Conflict
from weft.messages import Message
from weft.thread._turns import Plan, started
from weft.thread._view import View
from weft.thread.entries import Inbox, Said

Policy: TypeAlias = Literal["queue", "reject", "steer", "interrupt"]
POLICIES: tuple[Policy, ...] = ("queue", "reject", "steer", "interrupt")


def send(view: View, message: Message, key: str | None, *, policy: Policy, first: Plan | None) -> Plan | None:
    """Accept an input: `first` starts its turn at once; None where the key has brought it before.

    Args:
        view: The session.
        message: The input.
        key: The sender's, for idempotency.
        policy: What becomes of it where the session is not idle.
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
        raise Busy(f"session {view.header.thread!r} {view.obstacle}, or queue the message")
    kept = "queue" if policy == "reject" else policy
    return Plan(bodies=(Inbox(state="accepted", policy=kept, message=message, key=key),), lease="mail")


def prompt(message: Message, key: str | None, owner: str, limits: Limits) -> Plan:
    """A turn for a new input, on an idle session with nothing queued."""
    return Plan(bodies=(started("prompt", owner, limits), Said(message=message, key=key)), lease="claim")


def queued(view: View, *, owner: str, limits: Limits) -> Plan | None:
    """A turn for the input that is next; None where none waits, or the session is not idle.

    What interrupts goes first, then the oldest.
    """
    if view.run is not None or not view.queue:
        return None
    hurried = (name for name, inbox in view.queue.items() if inbox.policy == "interrupt")
    item = next(hurried, None) or next(iter(view.queue))
    inbox = view.queue[item]
    if inbox.message is None:
        return None
    cause = "steer" if inbox.policy == "steer" else "queued"
    said = Said(message=inbox.message, key=inbox.key, item=item)
    return Plan(bodies=(started(cause, owner, limits), said), lease="claim")


def steers(view: View) -> list[tuple[str, Message]]:
    """What waits for a running turn's next drain point, in order: items and messages.

    Not what was sent before the message that began it: that was meant for an earlier run, and would be the last word.
    """
    overruled = () if view.run is None else view.run.overruled
    return [
        (name, inbox.message)
        for name, inbox in view.queue.items()
        if inbox.policy == "steer" and inbox.message is not None and name not in overruled
    ]


def drop(view: View, items: Container[str] | None = None) -> Plan | None:
    """Drop what was sent and waits; None where nothing does.

    Args:
        view: The session.
        items: Only these; None is all. A settlement's item is never dropped.
    """
    gone = tuple(
        Inbox(state="dropped", item=name, policy=inbox.policy)
        for name, inbox in view.queue.items()
        if inbox.receipt is None and (items is None or name in items)
    )
    return Plan(bodies=gone, lease="mail") if gone else None
