"""Fragments of streamed tool calls, put together. Pure, and free of any vendor's types."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from weft.model import ToolCallChunk, WholeCall

__all__ = ["Calls", "Fragment", "is_object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A piece of a call as the server sent it. What is None or empty, it did not say."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


@dataclass(slots=True)
class _Call:
    """A call that is being written."""

    place: int
    """Where it stands in the reply: the server's index if that was free, else the next free one."""
    index: int | None = None
    id: str | None = None
    name: str | None = None
    pieces: list[str] = field(default_factory=list)

    def take(self, fragment: Fragment) -> None:
        """What is said first stands; only the arguments grow."""
        self.index = fragment.index if self.index is None else self.index
        self.id = self.id or fragment.id
        self.name = self.name or fragment.name
        if fragment.arguments:
            self.pieces.append(fragment.arguments)

    def is_over(self, fragment: Fragment) -> bool:
        """True if the fragment begins another call, although nothing else tells the two apart."""
        if fragment.id and self.id and fragment.id != self.id:
            return True
        if not fragment.name or not self.name:
            return False
        return fragment.name != self.name or (bool(fragment.arguments) and is_object("".join(self.pieces)))


class Calls:
    """The calls of one reply, from fragments in whatever shape a server sends them.

    A fragment belongs to the call of its index; without one, to the call of its id; else to the last call.
    It begins a call of its own where there is none yet, and where its id or its name is another than that
    call's, or where it names a tool and brings arguments after arguments that were whole already.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        """In order of their last fragment."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragment: Fragment) -> ToolCallChunk | None:
        """Take a fragment; what observers see of it, or None if it says nothing."""
        if not (fragment.id or fragment.name or fragment.arguments):
            return None
        call = self._continued(fragment)
        if call is None:
            call = _Call(self._place(fragment.index))
        else:
            self._calls.remove(call)
        self._calls.append(call)
        call.take(fragment)
        return ToolCallChunk(index=call.place, name=fragment.name or None, arguments=fragment.arguments or "")

    def whole(self) -> tuple[WholeCall, ...]:
        """The calls in the reply's order. No arguments are `{}`; any others stay as the model wrote them."""
        return tuple(_whole(call) for call in sorted(self._calls, key=lambda call: call.place))

    def _continued(self, fragment: Fragment) -> _Call | None:
        here = [call for call in self._calls if fragment.index is None or call.index in (fragment.index, None)]
        same = [call for call in here if fragment.id and call.id == fragment.id]
        call = next(reversed(same or here), None)
        return None if call is None or call.is_over(fragment) else call

    def _place(self, index: int | None) -> int:
        taken = [call.place for call in self._calls]
        return max(taken, default=-1) + 1 if index is None or index in taken else index


def _whole(call: _Call) -> WholeCall:
    arguments = "".join(call.pieces)
    return WholeCall(
        name=call.name or "", arguments=arguments if arguments.strip() else "{}", provider_id=call.id or None
    )


def is_object(text: str) -> bool:
    """Whether the text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
