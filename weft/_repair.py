"""Make any transcript valid for a provider, at once or message by message. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import overload

from weft import _texts
from weft.messages import Message, Part, ToolCall, ToolResult


class Transcript:
    """Messages of one path, kept valid as they come.

    The tool message of a step is built, in call order, once each call of the assistant message has its
    result; until then the calls are in `open`. Whoever goes on without a result gets one that says what
    is known. Settled messages never change, so that a `History` over them stays what it was.
    """

    __slots__ = ("_results", "messages", "open")

    def __init__(self, messages: list[Message] | None = None) -> None:
        self.messages: list[Message] = [] if messages is None else messages
        self.open: dict[str, None] = {}
        """The ids of the calls that have no result yet, in call order."""
        self._results: dict[str, ToolResult] = {}

    def say(self, message: Message) -> None:
        """A user or assistant message. Calls that are still open read as interrupted."""
        if self.open:
            for call in tuple(self.open):
                self.answer(_texts.interrupted(call))
        self.messages.append(message)
        if message.role == "assistant":
            self.open = {call.id: None for call in message.calls}

    def answer(self, result: ToolResult) -> bool:
        """The result of an open call; False, and no effect, where no such call is open."""
        if result.call not in self.open:
            return False
        del self.open[result.call]
        self._results[result.call] = result
        if not self.open:
            results = self._results
            ordered = tuple([results[call.id] for call in self.messages[-1].calls if call.id in results])
            self.messages.append(Message(role="tool", parts=ordered))
            self._results = {}
        return True

    def partial(self) -> Message | None:
        """The results of the open step that are there already, as a tool message; None where there are none."""
        if not self._results:
            return None
        known = (self._results.get(call.id) for call in self.messages[-1].calls)
        return Message(role="tool", parts=tuple(result for result in known if result is not None))

    def cut(self, length: int) -> None:
        """Take back the messages from this length on; what was open in them is forgotten."""
        if length < len(self.messages):
            del self.messages[length:]
            self.open = {}
            self._results = {}

    def fork(self) -> tuple[int, Transcript]:
        """How many messages are settled, and a transcript that goes on from there in a list of its own."""
        settled = len(self.messages)
        if not self.open:
            return settled, Transcript()
        tail = Transcript([self.messages[-1]])
        tail.open = dict(self.open)
        tail._results = dict(self._results)
        return settled - 1, tail


class History(Sequence[Message]):
    """A read-only view of fixed length over two lists that may grow behind its back."""

    __slots__ = ("_base", "_base_length", "_length", "_tail")

    def __init__(self, base: Sequence[Message], base_length: int, tail: Sequence[Message] = ()) -> None:
        self._base = base
        self._base_length = base_length
        self._tail = tail
        self._length = base_length + len(tail)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        tail = islice(self._tail, self._length - self._base_length)
        return chain(islice(self._base, self._base_length), tail)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._length)))
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(index)
        if position < self._base_length:
            return self._base[position]
        return self._tail[position - self._base_length]


def repair(messages: Iterable[Message]) -> list[Message]:
    """The same transcript, valid: one tool message after each assistant message with calls, one result a call.

    A missing result becomes an error result; a result without an open call is left out. Idempotent.
    """
    transcript = Transcript()
    for message in _with_unique_ids(messages):
        if message.role == "tool":
            for result in message.results:
                transcript.answer(result)
        else:
            transcript.say(message)
    for call in tuple(transcript.open):
        transcript.answer(_texts.interrupted(call))
    return transcript.messages


def _with_unique_ids(messages: Iterable[Message]) -> Iterator[Message]:
    """The same messages; a call id that stands there already is made unique, in its result as well."""
    seen: set[str] = set()
    renamed: dict[str, list[str]] = {}
    for message in messages:
        if message.role == "assistant":
            renamed = {}
            yield _rename_calls(message, seen, renamed)
        elif message.role == "tool":
            yield _rename_results(message, renamed)
        else:
            yield message


def _rename_calls(message: Message, seen: set[str], renamed: dict[str, list[str]]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            name, number = part.id, 2
            while name in seen or not name:
                name, number = f"{part.id}~{number}", number + 1
            seen.add(name)
            renamed.setdefault(part.id, []).append(name)
            parts.append(part if name == part.id else replace(part, id=name))
        else:
            parts.append(part)
    changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
    return replace(message, parts=tuple(parts)) if changed else message


def _rename_results(message: Message, renamed: dict[str, list[str]]) -> Message:
    """Results under their calls' new ids; each takes one away from those that are left."""
    parts = tuple(
        replace(part, call=renamed[part.call].pop(0))
        if isinstance(part, ToolResult) and renamed.get(part.call)
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)
