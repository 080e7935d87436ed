"""Checks a request as a strict provider would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from weft.messages import File, Message, Part, Reasoning, Text, ToolCall, ToolResult, clean_text
from weft.model import ModelEvent, ModelRequest, ReasoningChunk, TextChunk, WholeCall

__all__ = ["WireCheck", "WireError"]


class WireError(AssertionError):
    """Raised when a request would be refused by a provider."""


_PARTS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"user": (Text, File), "assistant": (Text, File, Reasoning, ToolCall), "tool": (ToolResult,)}
)
"""What a message of each role may hold."""


@dataclass(frozen=True, slots=True)
class _Gave:
    """What the model gave in a reply with blocks: by what the message is known again, and its blocks."""

    text: str
    tools: tuple[str, ...]
    blocks: tuple[str, ...]


@dataclass(slots=True)
class _Checked:
    """How far a transcript has been checked."""

    length: int = 0
    first: Message | None = None
    last: Message | None = None
    ids: set[str] = field(default_factory=set)
    blocks: list[tuple[int, Message]] = field(default_factory=list)
    gave: _Gave | None = None
    """What was answered to the last request, if that had blocks."""


class WireCheck:
    """One result per call right after it, unique ids, arguments an object, no empty turn, blocks unchanged.

    Linear in what is new of a thread, or of a run without one: what was checked before is known by its last
    message, and of the messages before that only those with a block are compared. A message of the model
    itself may be empty, and may hold another model's reasoning: adapters leave both out.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Checked] = {}

    def check(self, request: ModelRequest) -> None:
        """Check a request.

        Raises:
            WireError: A provider would refuse it.
        """
        messages = request.messages
        key = _key(request)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            _check_blocks(known, messages)
            _check_reply(known, messages)
        if known is None or not _goes_on(known, messages):
            known = _Checked()
        _check_new(known, messages)
        known.length = len(messages)
        known.first, known.last = (messages[0], messages[-1]) if known.length else (None, None)
        known.gave = None
        if key is not None:
            self._known[key] = known
        if not known.length or known.last is None or known.last.role == "assistant":
            raise WireError("a request ends with a user or tool message")

    def gave(self, request: ModelRequest, events: Sequence[ModelEvent]) -> None:
        """Take note of a whole reply to a request that was checked: its blocks must come back as they are."""
        thoughts = [event for event in events if isinstance(event, ReasoningChunk)]
        blocks = tuple([event.block for event in thoughts if event.block is not None])
        key = _key(request) if blocks else None
        if key is not None:
            text = clean_text("".join(event.text for event in events if isinstance(event, TextChunk)))
            tools = tuple(clean_text(event.name) for event in events if isinstance(event, WholeCall))
            self._known[key].gave = _Gave(text, tools, blocks)


def _key(request: ModelRequest) -> tuple[str, str] | None:
    """By what a transcript that grows is known again; None where each request stands alone."""
    if request.position is None:
        return None
    thread = request.position.thread
    return ("run", request.run_id) if thread is None else ("thread", thread)


def _goes_on(known: _Checked, messages: Sequence[Message]) -> bool:
    length = known.length
    return length <= len(messages) and (not length or messages[length - 1] is known.last)


def _check_blocks(known: _Checked, messages: Sequence[Message]) -> None:
    """A message that is there again, with other reasoning, was changed on the way."""
    if not known.blocks:
        return
    first = messages[0] if len(messages) else None
    if known.first is None or first is None or _substance(first) != _substance(known.first):
        return  # another transcript: a summary took the place of this one's start
    for place, message in known.blocks:
        again = messages[place] if place < len(messages) else message
        if again is message or _substance(again) != _substance(message):
            continue
        if _reasoning(again) != _reasoning(message) or _kinds(again) != _kinds(message):
            raise WireError(f"message {place}: a provider's block has changed")


def _check_reply(known: _Checked, messages: Sequence[Message]) -> None:
    """The reply to the last request holds the blocks that were given, if it is that reply."""
    gave, place = known.gave, known.length
    if gave is None or place >= len(messages) or messages[place - 1] != known.last:
        return
    message = messages[place]
    if message.role != "assistant" or message.text != gave.text or _tools(message) != gave.tools:
        return
    if tuple(part.block for part in _reasoning(message) if part.block is not None) != gave.blocks:
        raise WireError(f"message {place}: a provider's block did not come back as it was given")


def _substance(message: Message) -> tuple[str, str, tuple[str, ...]]:
    """What a message is known by, reasoning left out."""
    return message.role, message.text, tuple(call.id for call in message.calls)


def _reasoning(message: Message) -> tuple[Reasoning, ...]:
    return tuple([part for part in message.parts if isinstance(part, Reasoning)])


def _tools(message: Message) -> tuple[str, ...]:
    return tuple(call.name for call in message.calls)


def _kinds(message: Message) -> tuple[str, ...]:
    return tuple(part.kind for part in message.parts)


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
        if any(part.block is not None for part in _reasoning(message)):
            known.blocks.append((place, message))
        follower = messages[place + 1] if place + 1 < len(messages) else None
        if calls:
            _check_results(message, follower, place)
            place += 1
        elif message.role == "tool":
            raise WireError(f"message {place}: a tool message without calls before it")
        place += 1


def _check_message(message: Message, place: int) -> None:
    for part in message.parts:
        _check_part(message.role, part, place)
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    if not message.parts and message.role != "assistant":
        raise WireError(f"message {place}: a {message.role} message without parts")
    if message.role == "user" and not any(texts) and not any(isinstance(part, File) for part in message.parts):
        raise WireError(f"message {place}: an empty user message")


def _check_part(role: str, part: Part, place: int) -> None:
    if not isinstance(part, _PARTS[role]):
        raise WireError(f"message {place}: a {role} message holds no {part.kind}")


def _check_results(message: Message, follower: Message | None, place: int) -> None:
    wanted = [call.id for call in message.calls]
    if follower is None or follower.role != "tool":
        raise WireError(f"message {place}: calls without a tool message right after them")
    _check_message(follower, place + 1)
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
