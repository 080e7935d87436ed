"""Checks a request as a strict provider would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from weft.messages import File, Message, Reasoning, Text
from weft.model import ModelRequest

__all__ = ["WireCheck", "WireError"]


class WireError(AssertionError):
    """Raised when a request would be refused by a provider."""


@dataclass(slots=True)
class _Checked:
    """How far a thread's transcript has been checked."""

    length: int = 0
    last: Message | None = None
    ids: set[str] = field(default_factory=set)
    blocks: list[tuple[int, Message]] = field(default_factory=list)


class WireCheck:
    """One result per call right after it, unique ids, arguments an object, no empty turn, blocks unchanged.

    Linear in what is new of a thread: what was checked before is known by its last message.
    """

    def __init__(self) -> None:
        self._threads: dict[str, _Checked] = {}

    def check(self, request: ModelRequest) -> None:
        """Check a request.

        Raises:
            WireError: A provider would refuse it.
        """
        messages = request.messages
        key = request.position.thread
        known = self._threads.get(key) if key is not None else None
        if known is not None:
            _check_blocks(known, messages)
        if known is None or not _goes_on(known, messages):
            known = _Checked()
        _check_new(known, messages)
        known.length = len(messages)
        known.last = messages[-1] if known.length else None
        if key is not None:
            self._threads[key] = known
        if not known.length or known.last is None or known.last.role == "assistant":
            raise WireError("a request ends with a user or tool message")


def _goes_on(known: _Checked, messages: Sequence[Message]) -> bool:
    length = known.length
    return length <= len(messages) and (not length or messages[length - 1] is known.last)


def _check_blocks(known: _Checked, messages: Sequence[Message]) -> None:
    """A message that is there again, with another block, was changed on the way."""
    for place, message in known.blocks:
        again = messages[place] if place < len(messages) else message
        if again is not message and again != message and _without_blocks(again) == _without_blocks(message):
            raise WireError(f"message {place}: a provider's block has changed")


def _without_blocks(message: Message) -> tuple[object, ...]:
    parts = (replace(part, block=None) if isinstance(part, Reasoning) else part for part in message.parts)
    return (message.role, *parts)


def _check_new(known: _Checked, messages: Sequence[Message]) -> None:
    place = known.length
    while place < len(messages):
        message = messages[place]
        _check_message(message, place)
        calls = message.calls
        for call in calls:
            if not call.id or call.id in known.ids:
                raise WireError(f"message {place}: call id {call.id!r} is empty or repeated")
            known.ids.add(call.id)
        if any(isinstance(part, Reasoning) and part.block is not None for part in message.parts):
            known.blocks.append((place, message))
        follower = messages[place + 1] if place + 1 < len(messages) else None
        if calls:
            _check_results(message, follower, place)
            place += 1
        elif message.role == "tool":
            raise WireError(f"message {place}: a tool message without calls before it")
        place += 1


def _check_message(message: Message, place: int) -> None:
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    if not message.parts and message.role != "assistant":
        raise WireError(f"message {place}: a {message.role} message without parts")
    if message.role == "user" and not any(texts) and not any(isinstance(part, File) for part in message.parts):
        raise WireError(f"message {place}: an empty user message")


def _check_results(message: Message, follower: Message | None, place: int) -> None:
    wanted = [call.id for call in message.calls]
    if follower is None or follower.role != "tool":
        raise WireError(f"message {place}: calls without a tool message right after them")
    got = [result.call for result in follower.results]
    if got != wanted:
        raise WireError(f"message {place}: calls {wanted} got results for {got}")
    for call, result in zip(message.calls, follower.results, strict=True):
        _check_arguments(call.arguments, place, refused=result.is_error)


def _check_arguments(arguments: str, place: int, *, refused: bool) -> None:
    """Arguments are an object; the model's own malformed text is the adapter's to mend, so it must be refused."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) and not refused:
        raise WireError(f"message {place}: arguments that are no object were accepted: {arguments!r}")
