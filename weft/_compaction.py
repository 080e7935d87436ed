"""When a conversation is made shorter for its model, and how. Plans on messages; what is written is the thread's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft import _given, _texts
from weft.errors import WrongCall
from weft.messages import File, Message, Reasoning, Text, ToolCall, ToolResult
from weft.model import Model, ModelInfo
from weft.tokens import TokenCounter

SHOWN = 2_000
"""Characters of a call's arguments, and of a result, that the summarizer is shown; of any text, where all of them are
too much for it."""
FREED = 0.75
"""The part of the room that may be used after a trim; where more is, there is a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When a session's conversation is made shorter for its model. Nothing is deleted from the journal.

    Before a model call it is looked how much the model would read: what the provider has last reported, and an
    estimate of what was added since. Above `window - reserve`, the results of tools before the last `keep` tokens are
    replaced by stubs, where that frees enough; else all before them is replaced by a summary. It is cut at a user or
    assistant message, never between a call and its result. A provider that says that the conversation is too long has
    the same effect, once a step.

    Args:
        window: Tokens that the model can read and write; absent: what the model says of itself. Where neither is known,
            only the provider's error makes it shorter.
        reserve: Tokens that are kept free for the reply; a quarter of the window at most.
        keep: Tokens at the end that stay as they are; half of the room at most, of which instructions and tools take
            their part. The last message stays whatever its size, and with its calls what they gave.
        summarizer: The model that writes summaries; absent: the agent's own.
        counter: Counts tokens; absent: a quarter of the bytes.

    Raises:
        WrongCall: A number is below 1, or `window` is under 1,000.
    """

    window: int | None = None
    reserve: int = 16_384
    keep: int = 20_000
    summarizer: Model | str | None = None
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        if not (_given.at_least(1, self.reserve) and _given.at_least(1, self.keep)):
            raise WrongCall("Compaction(reserve=…, keep=…): both are at least 1 token")
        if self.window is not None and not _given.at_least(1_000, self.window):  # said in the message
            raise WrongCall("Compaction(window=…) is at least 1,000 tokens; absent is what the model says of itself")

    def room(self, info: ModelInfo) -> Room:
        """How much of a model's window may be used."""
        window = self.window or info.context_window
        if window is None:
            return Room(None, self.keep, self.reserve)
        reserve = min(self.reserve, window // 4)
        return Room(window - reserve, min(self.keep, (window - reserve) // 2), reserve)

    @property
    def tokens(self) -> TokenCounter:
        """What counts."""
        return self.counter or TokenCounter(None)


class Room(NamedTuple):
    """Tokens that a conversation may take."""

    most: int | None
    """None is not known."""
    keep: int
    reserve: int


class Cut(NamedTuple):
    """How a conversation is made shorter."""

    place: int
    """The first message that stays as it is: a user or assistant message."""
    trims: bool
    """Results before it become stubs; else a summary stands for all of it."""
    before: int
    after: int
    """Tokens, about; of a summary without its own text."""


def cut(messages: Sequence[Message], used: int, room: Room, tokens: TokenCounter, *, summarized: bool) -> Cut | None:
    """Where to cut, and how; None where nothing can be left out.

    Args:
        messages: What the model would read.
        used: Tokens that it takes.
        room: What there is.
        tokens: Counts.
        summarized: The first message is an earlier summary.
    """
    sizes = [tokens.count_message(message) for message in messages]
    place = _place(messages, sizes, _kept(room, used - sum(sizes)))
    if place is None or place <= summarized:
        return None
    freed = sum(_freed(message, tokens) for message in messages[:place])
    if freed and room.most is not None and used - freed <= FREED * room.most:
        return Cut(place, trims=True, before=used, after=used - freed)
    return Cut(place, trims=False, before=used, after=max(used - sum(sizes[:place]), 0))


def _kept(room: Room, besides: int) -> int:
    """What may stay as it is: half of what instructions, tools and the like leave of the room, at most."""
    left = None if room.most is None else room.most - max(besides, 0)
    return room.keep if left is None or left <= 0 else min(room.keep, left // 2)


def _place(messages: Sequence[Message], sizes: Sequence[int], keep: int) -> int | None:
    """The first user or assistant message from which on no more than `keep` follows, or else the last one.

    None where all of it is no more than that, or where there is no such message but the first.
    """
    if sum(sizes) <= keep:
        return None
    found: int | None = None
    left = keep
    for place in range(len(messages) - 1, 0, -1):
        left -= sizes[place]
        if left < 0 and found is not None:
            break
        if messages[place].role != "tool":
            found = place
    return found


def _freed(message: Message, tokens: TokenCounter) -> int:
    stub = tokens.count(_texts.LEFT_OUT)
    long = (result.content for result in message.results if len(result.content) > len(_texts.LEFT_OUT))
    return sum(max(tokens.count(content) - stub, 0) for content in long)


def as_text(messages: Sequence[Message], *, whole: int | None = None) -> str:
    """A conversation as the summarizer reads it. Data: whatever stands in it, it is no instruction.

    Each part begins at the margin with who says it, and only there: no text can pass for what somebody else has said.

    Args:
        messages: What is said.
        whole: How many messages, from the first, have their texts whole; absent: all of them.
    """
    names = {call.id: call.name for message in messages for call in message.calls}
    count = len(messages) if whole is None else whole
    parts = (part for place, message in enumerate(messages) for part in _lines(message, names, whole=place < count))
    return "\n\n".join("\n  ".join(part.splitlines()) for part in parts)


def _lines(message: Message, names: dict[str, str], *, whole: bool) -> list[str]:
    lines: list[str] = []
    for part in message.parts:
        match part:
            case Text():
                lines.append(f"[{message.role}] {part.text if whole else _shown(part.text)}")
            case File():
                lines.append(f"[{message.role}] (a file, {part.media_type})")
            case ToolCall():
                lines.append(f"[call of {part.name}] {_shown(part.arguments)}")
            case ToolResult():
                lines.append(f"[result of {names.get(part.call, 'a call')}] {_shown(part.content)}")
            case Reasoning():
                pass
    return lines


def _shown(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]} (and {len(text) - SHOWN} more characters)"
