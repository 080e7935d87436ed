"""What is on its way to the store, or waits to be sent: a turn's records, and commands with who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from weft._contain import Contained, contain_call
from weft.thread._codec import EMPTY
from weft.thread._turnlog import Failure
from weft.thread._turns import LeaseKind, Plan
from weft.thread._view import View
from weft.thread.entries import Entry
from weft.thread.store import Head


@dataclass(slots=True)
class Append:
    """Entries on their way, kept until the store has answered."""

    entries: list[Entry]
    texts: list[bytes]
    lease: LeaseKind
    done: tuple[Callable[[], object], ...] = ()
    command: Command | None = None
    after: Head = EMPTY
    sent: float = 0.0
    refused: Failure | None = None


class Lost:
    """In place of a change of the lease: it is gone, and the entries are dropped."""


@dataclass(slots=True)
class Command:
    """Something to be decided on the view; None only looks at what is new."""

    decide: Callable[[View], Plan | None] | None
    waiter: asyncio.Future[Plan | None]
    then: Callable[[Plan], object] | None = None
    plan: Plan | None = None
    """What was decided, once that is on its way."""

    def settle(self, plan: Plan | None) -> None:
        """Whoever waits gets this; where nobody does any more, nothing happens."""
        if not self.waiter.done():
            self.waiter.set_result(plan)

    def refuse(self, failure: Failure) -> None:
        """Whoever waits gets this failure."""
        if not self.waiter.done():
            self.waiter.set_exception(failure)

    def accept(self, entries: Sequence[Entry]) -> None:
        """The plan is in the store, as these: what follows from it happens, and who waits for it knows."""
        assert self.plan is not None
        plan = replace(self.plan, ids=tuple(entry.id for entry in entries))
        outcome = None if self.then is None else contain_call("turn", partial(self.then, plan))
        if isinstance(outcome, Contained):
            self.refuse(outcome.cause)
        else:
            self.settle(plan)


def together(records: list[Append]) -> Append:
    """Records of one turn as one append; the last one says what becomes of the lease."""
    if len(records) == 1:
        return records[0]
    return Append(
        entries=[entry for record in records for entry in record.entries],
        texts=[text for record in records for text in record.texts],
        lease=records[-1].lease,
        done=tuple(done for record in records for done in record.done),
    )
