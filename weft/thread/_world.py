"""What a live thread needs of its store and of the turn that runs on it, and what is kept of a turn."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from weft._contain import Boundary, Contained, contain
from weft._log import EventLog
from weft._ports import Clock, Ids
from weft._result import MISSING
from weft.errors import StoreFailed
from weft.thread.entries import Entry
from weft.thread.store import Store

if TYPE_CHECKING:
    from weft.thread._live import Live

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds until what is done in the background is tried again, where the disk or another owner stands in the way."""

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


class World(Protocol):
    """What a live thread needs of the store that it belongs to."""

    store: Store
    clock: Clock
    ids: Ids

    def live(self, thread: str) -> Live:
        """The live thread of this id."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, context: Context | None = None) -> None:
        """Start a task in the store's group."""
        ...

    def report(self, thread: str, error: Exception) -> None:
        """Keep what could not be gone on with."""
        ...

    @property
    def observed(self) -> bool:
        """Whether anybody is told what is committed."""
        ...

    def committed(self, thread: str, entries: Sequence[Entry]) -> None:
        """Entries of this process were committed."""
        ...


async def persisting(clock: Clock, boundary: Boundary, work: Callable[[], Coroutine[Any, Any, T]]) -> T | Contained:
    """What the work gives, or fails with; again, after a while, where it was only that the disk refused."""
    pause = FIRST_PAUSE
    outcome = await contain(boundary, work())
    while isinstance(outcome, Contained) and isinstance(outcome.cause, StoreFailed):
        await clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        outcome = await contain(boundary, work())
    return outcome
