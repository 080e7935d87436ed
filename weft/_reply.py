"""From a model's stream to a whole message: assembles, tells observers, checks the seam's contract."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter

from weft._log import EventLog
from weft._ports import Ids
from weft.events import ArgumentsDelta, ReasoningDelta, TextDelta
from weft.messages import Message, Part, Reasoning, Text, ToolCall, Usage, clean_text
from weft.model import (
    Finish,
    ModelError,
    ModelEvent,
    ModelInfo,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
    WholeCall,
    is_clean,
    is_info,
)

_counts_of = attrgetter(*(field.name for field in fields(Usage)))


class Reply:
    """Assembles a reply from its events, and checks the seam's contract."""

    __slots__ = ("_events", "_finish", "_ids", "_parts", "_run", "_text", "_thinks", "_thought")

    def __init__(self, run: str, ids: Ids, events: EventLog | None) -> None:
        self._run = run
        self._ids = ids
        self._events = events
        self._parts: list[Part] = []
        self._text: list[str] = []
        self._thought: list[str] = []
        self._thinks = False
        self._finish: Finish | None = None

    def take(self, event: ModelEvent) -> None:
        """One event of the stream."""
        if self._finish is not None:
            raise ModelError("the model's stream went on after its finish", code="MODEL_CONTRACT")
        if type(event) is TextChunk and type(event.text) is str:  # as most are
            self._take_text(event.text)
            return
        match event:
            case TextChunk(text=str(text)):
                self._take_text(text)
            case ReasoningChunk(text=str(), block=block) if block is None or is_clean(block):  # it is stored as it is
                self._take_reasoning(event)
            case ToolCallChunk(index=int(), name=str() | None, arguments=str()):
                if self._events is not None:
                    name = None if event.name is None else clean_text(event.name)
                    text = clean_text(event.arguments)
                    self._events.push(ArgumentsDelta(run=self._run, index=event.index, text=text, name=name))
            case WholeCall(name=str(), arguments=str()):
                self._take_call(event)
            case Finish() if _is_sound(event):
                self._finish = event
            case _:  # what is stored must be read again
                given = type(event).__name__
                text = f"the model's stream gave a {given} that is no event, or has a field of a wrong type"
                raise ModelError(text, code="MODEL_CONTRACT")

    def _take_text(self, text: str) -> None:
        if not text:
            return
        if self._thought:
            self._close_thought(None)
        text = clean_text(text)
        self._text.append(text)
        if self._events is not None:
            self._events.push(TextDelta(run=self._run, text=text))

    def _take_reasoning(self, event: ReasoningChunk) -> None:
        self._close_text()
        if event.text:
            text = clean_text(event.text)
            self._thought.append(text)
            if self._events is not None:
                self._events.push(ReasoningDelta(run=self._run, text=text))
        if event.block is not None:
            self._close_thought(event.block)

    def _take_call(self, event: WholeCall) -> None:
        if not event.name:
            raise ModelError("the model asked for a call without a name", code="MODEL_CONTRACT")
        self._close_text()
        self._close_thought(None)
        call = ToolCall(
            id=self._ids.new(),
            name=clean_text(event.name),
            arguments=clean_text(event.arguments) or "{}",  # nothing is how some servers write an empty object
            provider_id=None if event.provider_id is None else clean_text(str(event.provider_id)),
        )
        self._parts.append(call)

    def _close_text(self) -> None:
        if self._text:
            self._parts.append(Text(text="".join(self._text)))
            self._text = []

    def _close_thought(self, block: str | None) -> None:
        if self._thought or block is not None:
            text = "".join(self._thought)
            self._parts.append(Reasoning(text=text, block=block))
            self._thinks = True
            self._thought = []

    def whole(self, info: ModelInfo) -> tuple[Message, Finish]:
        """The message and its finish; the finish says who answered, which is `info` unless it said so itself.

        Raises:
            ModelError: The stream ended without a finish.
        """
        if self._finish is None:
            raise ModelError("the model's stream was cut before its end", code="MODEL_CUT")
        self._close_text()
        self._close_thought(None)
        parts = self._parts
        if self._thinks:
            by = self._finish.by or info
            parts = [
                replace(part, provider=by.provider, model=by.model) if isinstance(part, Reasoning) else part
                for part in parts
            ]
        return Message(role="assistant", parts=tuple(parts)), self._finish


def _is_sound(finish: Finish) -> bool:
    """Whether what a finish says of the call can be stored."""
    counted = finish.usage is None or _is_counted(finish.usage)
    return counted and is_clean(finish.reason) and (finish.by is None or is_info(finish.by))


def _is_counted(usage: object) -> bool:
    """Whether it is usage in whole numbers, none of them below zero."""
    return isinstance(usage, Usage) and all(isinstance(count, int) and count >= 0 for count in _counts_of(usage))
