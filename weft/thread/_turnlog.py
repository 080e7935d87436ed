"""What a live thread knows of the turn that runs on it, and what is kept of it when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from weft._log import EventLog
from weft._result import MISSING
from weft.thread.entries import Entry

Failure: TypeAlias = BaseException


class TurnLog:
    """What this process saw of a turn: its events, and the exception behind its end."""

    __slots__ = ("cause", "events", "kept", "lost", "taken", "turn")

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.events = EventLog()
        self.cause: BaseException | None = None
        self.taken: int | None = None
        """The position from which the journal goes on with the turn, where somebody else has taken it away."""
        self.lost: BaseException | None = None
        """Why the turn was given up here without an end."""
        self.kept: object = MISSING
        """Its output, where it was read here."""


class Runner(Protocol):
    """The turn that this process runs on the thread."""

    def wants_again(self, entries: Sequence[Entry]) -> bool:
        """Whether what others wrote changes the decision behind the records on their way."""
        ...

    def decide_again(self, entries: Sequence[Entry]) -> None:
        """The records on their way are void; decide with what others wrote."""
        ...

    def revoke(self, cause: Failure | None) -> None:
        """Somebody else owns the turn now, or nothing can be written any more."""
        ...
