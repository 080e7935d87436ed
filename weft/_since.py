"""A run's inputs since its last durable record: what becomes of them where a record on its way is refused. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from weft._machine import State
from weft._moves import (
    CallFinished,
    CallModel,
    CallParked,
    CallResumed,
    Effect,
    Input,
    Joined,
    ModelFailed,
    Record,
    Replied,
    Steer,
    StopChecked,
)


@dataclass(slots=True)
class Since:
    """An input whose record is not durable yet, with the state before it."""

    before: State
    given: Input
    effects: tuple[Effect, ...]
    records: bool
    said: int | None = None
    """The length of the transcript before the first message that it added."""
    replies: int = 0
    """How many of the model's it added."""

    def has_asked(self) -> bool:
        """Whether this is what came of a model call whose cost is not said yet."""
        given = self.given
        failed = isinstance(given, ModelFailed) and self.before.phase == "model" and not given.counted
        return failed or isinstance(given, Replied)

    def joins(self, items: Container[str]) -> bool:
        """Whether it has put one of these items into the conversation."""
        facts = (fact for effect in self.effects if isinstance(effect, Record) for fact in effect.facts)
        return any(isinstance(fact, Joined) and fact.item is not None and fact.item in items for fact in facts)

    def is_one_of(self, items: Container[str]) -> bool:
        """Whether it is the steer that one of these items was to be."""
        return isinstance(self.given, Steer) and self.given.item is not None and self.given.item in items

    def is_overruled(self, news: Sequence[Input], *, cancel: bool) -> bool:
        """Whether the news, or the cancellation, take its place."""
        given = self.given
        match given:
            case Replied() | ModelFailed() | StopChecked():
                return cancel
            case CallParked():
                return any(
                    (isinstance(new, CallResumed) and new.call == given.call)
                    or (isinstance(new, CallFinished) and new.result.call == given.call)
                    for new in news
                )
            case _:
                return False


def acknowledge(since: list[Since]) -> None:
    """The oldest input with a record is durable now; what came before the next one is settled too."""
    while since:
        if since.pop(0).records:
            break
    while since and not since[0].records:
        since.pop(0)


def asked_last(since: Sequence[Since], *, again: bool) -> int:
    """How many inputs there are up to the last request that was made: it has not read what comes now.

    Args:
        since: The inputs.
        again: The last one that they ask for has not been made.
    """
    asked = [place for place, item in enumerate(since, 1) if CallModel in map(type, item.effects)]
    if asked and again:
        asked.pop()
    return asked[-1] if asked else 0
