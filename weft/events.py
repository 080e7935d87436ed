"""What a run tells an observer: frozen values, discriminated by `kind`, serialisable as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from weft.messages import ErrorInfo, Message, ToolCall, ToolResult, Usage

__all__ = [
    "ArgumentsDelta",
    "Compacted",
    "Event",
    "Parked",
    "ReasoningDelta",
    "RunFinished",
    "RunStarted",
    "Steered",
    "StepFinished",
    "StepStarted",
    "TextDelta",
    "ToolFinished",
    "ToolStarted",
    "TurnEnded",
    "TurnStarted",
    "event_adapter",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run, or its continuation after a park or a crash, starts."""

    run: str
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A model call starts. `step` counts from 1 over the whole run."""

    run: str
    step: int
    kind: Literal["step_started"] = "step_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of text. It may precede its durability."""

    run: str
    text: str
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """A piece of reasoning."""

    run: str
    text: str
    kind: Literal["reasoning_delta"] = "reasoning_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsDelta:
    """A piece of a call's arguments, by the call's place in the reply."""

    run: str
    index: int
    text: str
    name: str | None = None
    kind: Literal["arguments_delta"] = "arguments_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool's body, or a child, starts. `seq` counts the tool events of a run."""

    run: str
    seq: int
    call: ToolCall
    kind: Literal["tool_started"] = "tool_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A call has its result; for a call that was refused before its body there is no start."""

    run: str
    seq: int
    result: ToolResult
    kind: Literal["tool_finished"] = "tool_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """The model's reply is whole; its calls, if any, run next."""

    run: str
    step: int
    message: Message
    usage: Usage | None
    kind: Literal["step_finished"] = "step_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """An input that was sent to the running run has joined it; the next model call sees it."""

    run: str
    message: Message
    kind: Literal["steered"] = "steered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The conversation was made shorter for the model; the next model call reads less. Nothing was deleted."""

    run: str
    before: int
    """Tokens that the model would have read, about."""
    after: int
    """Tokens that it reads now, about."""
    kind: Literal["compacted"] = "compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """The run waits for decisions on these calls."""

    run: str
    calls: tuple[ToolCall, ...]
    kind: Literal["parked"] = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run succeeded: its last message is final, and durable in a session."""

    run: str
    stop: str
    text: str
    usage: Usage
    kind: Literal["run_finished"] = "run_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """A turn of a session started, for this cause."""

    turn: str
    run: str
    cause: str
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """Always a turn's last event. Its end is durable, but for the outcome `lost`: given up here without an end."""

    turn: str
    run: str
    outcome: str
    error: ErrorInfo | None = None
    """Why, where it has failed."""
    kind: Literal["turn_ended"] = "turn_ended"


Event: TypeAlias = Annotated[
    RunStarted
    | StepStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | ToolStarted
    | ToolFinished
    | StepFinished
    | Steered
    | Compacted
    | Parked
    | RunFinished
    | TurnStarted
    | TurnEnded,
    Field(discriminator="kind"),
]


@cache
def event_adapter() -> TypeAdapter[Event]:
    """The adapter that writes an event as JSON and reads it back."""
    return TypeAdapter(Event)
