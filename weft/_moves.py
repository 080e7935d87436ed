"""What the machine of a run is told, what it asks for, and what is remembered: plans, inputs, effects, facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, dataclass_transform

from weft.events import Event
from weft.messages import NO_USAGE, ErrorInfo, Message, ToolCall, ToolResult, Usage
from weft.model import Finish

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[T]) -> type[T]:
    """A dataclass that is frozen for the type checkers alone: many are made in every run.

    Freezing one at run time doubles what it costs to make it, and to make its class.
    """
    return dataclass(slots=True, kw_only=True)(cls)


EffectKind: TypeAlias = Literal["none", "repeatable", "once"]
STRICTNESS: tuple[EffectKind, ...] = ("none", "repeatable", "once")
"""From the laxest effect to the strictest."""
Gate: TypeAlias = Literal["bodies", "reply", "end"]
Outcome: TypeAlias = Literal["answered", "parked", "stopped", "failed", "cancelled"]

# What the shell found out about a call before anything of it runs.


@value
class Ready:
    """The call may run."""

    call: ToolCall
    effect: EffectKind
    digest: str
    """Of the stored argument text."""
    attempts: int = 3
    delegate: bool = False
    """The body is a child: it has a receipt, and is never uncertain."""


@value
class Refused:
    """The call never enters a body; this is its result."""

    call: ToolCall
    result: ToolResult


@value
class Submitted:
    """The call brings the run's output, which fits; no body runs, and the run ends with this step."""

    call: ToolCall
    result: ToolResult


@value
class Gated:
    """The call may run once somebody has approved it."""

    call: ToolCall
    effect: EffectKind
    digest: str
    reason: str | None = None
    expires: float | None = None
    """Seconds from the request on; None leaves it to the session."""
    attempts: int = 3


Plan: TypeAlias = Ready | Refused | Submitted | Gated
WITHOUT_BODY = (Refused, Submitted)
"""The plans of calls that have their result without a body."""


@value
class OpenCall:
    """A call without a result, as a journal knows it when a run goes on."""

    plan: Plan
    started: int = 0
    """How often its body was started."""
    fresh: bool = False
    """Started by the very append that began this turn: its body has yet to run."""
    delegated: bool = False
    """It has a receipt."""


# Facts: what a session's journal keeps.


@value
class Said:
    """The model's whole reply."""

    message: Message
    usage: Usage | None
    finish: str
    model: str


@value
class Start:
    """A body is about to start."""

    call: str
    attempt: int
    effect: EffectKind
    digest: str
    delegate: bool = False


@value
class Started:
    """Bodies are about to start."""

    starts: tuple[Start, ...]


@value
class Finished:
    """One call has its result."""

    result: ToolResult
    source: str
    """body, refused, decision, expiry, interrupt, cancel, timeout, verify, receipt, repair."""
    attempt: int = 0
    usage: Usage | None = None
    """What a sub-agent spent for it."""


@value
class Asked:
    """A call waits for a person."""

    kind: Literal["approval", "uncertain"]
    call: ToolCall
    digest: str
    reason: str | None
    expires: float | None


@value
class Ended:
    """The run is over, or waits for decisions."""

    outcome: Outcome
    stop: str | None = None
    error: ErrorInfo | None = None
    open: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    """What no message and no result carries."""


@value
class Joined:
    """A user message enters the run between two steps: a steer, or the word that an answer does not fit."""

    message: Message
    source: Literal["steer", "correction"]
    item: str | None = None
    """The accepted input that it delivers."""


Fact: TypeAlias = Said | Started | Finished | Asked | Joined | Ended


# Inputs.


@value
class Begin:
    """Start, or go on: `open` are the calls of the last assistant message that have no result."""

    open: tuple[OpenCall, ...] = ()
    stepped: bool = False
    """The transcript ends with the results of a step of this run."""
    submitted: str | None = None
    """The text of the output, where the last assistant message has brought it by a call."""


@value
class Recorded:
    """The oldest record that was on its way is durable."""


@value
class RecordRefused:
    """Somebody else owns the run now: say nothing more, do nothing more."""


@value
class Replied:
    """The model's reply is whole; one plan for each of its calls, in order."""

    message: Message
    finish: Finish
    model: str
    plans: tuple[Plan, ...]
    problem: str | None = None
    """Why the reply, which has no calls, is no answer: what the model is told."""
    error: ErrorInfo | None = None
    """The code that was to judge the reply is broken; its plans refuse each call."""


@value
class ModelFailed:
    """The model call failed, or could not be prepared. Nothing of it enters the transcript."""

    error: ErrorInfo
    counted: bool = False
    """What it has cost was said before, as `Spent`."""
    open: tuple[OpenCall, ...] = ()
    """As in `Cancelled`."""


@value
class CallFinished:
    """A body, or a child, gave its result."""

    result: ToolResult
    source: str = "body"
    usage: Usage = NO_USAGE
    """What a sub-agent spent for it."""


@value
class CallParked:
    """The child of a delegating call waits for decisions."""

    call: str


@value
class CallResumed:
    """The child of a delegating call goes on: its requests are decided."""

    call: str


@value
class CallUncertain:
    """A body that may have had its effect was ended without a result."""

    call: str
    reason: str


@value
class Spent:
    """A sub-agent that gave no result has spent this."""

    usage: Usage


@value
class StopChecked:
    """What the stop conditions say of the step."""

    stop: bool
    error: ErrorInfo | None = None
    """One of them is broken."""


@value
class Steer:
    """Input for the running run.

    It joins at the next drain point: after a step's results, or before an answer ends the run. Where the run ends
    before, it has not been delivered.
    """

    message: Message
    item: str | None = None


@value
class Deadline:
    """The run's time is over."""


@value
class Cancelled:
    """Stop; the bodies have been stopped already."""

    by: Literal["cancel", "interrupt"] = "cancel"
    """Somebody has cancelled it, or a new message interrupts it."""
    model_in_flight: bool = False
    untouched: frozenset[str] = frozenset()
    """The calls of which it is known that no body was ever entered, although a start may have been recorded."""
    open: tuple[OpenCall, ...] = ()
    """The open calls that the run was to begin with, where it has not begun."""


Input: TypeAlias = (
    Begin
    | Recorded
    | RecordRefused
    | Replied
    | ModelFailed
    | CallFinished
    | CallParked
    | CallResumed
    | CallUncertain
    | Spent
    | StopChecked
    | Steer
    | Deadline
    | Cancelled
)


# Effects.


@value
class Record:
    """Make these facts durable; answer with `Recorded`, or go back."""

    facts: tuple[Fact, ...]
    gate: Gate


@value
class CallModel:
    """Call the model."""


@value
class RunTools:
    """Run the bodies of these calls; answer with `CallFinished` for each."""

    plans: tuple[Ready | Gated, ...]
    attempts: tuple[int, ...]


@value
class CheckStop:
    """Ask the stop conditions about the step that is over; answer with `StopChecked`."""


@value
class Emit:
    """Tell observers."""

    event: Event


@value
class End:
    """Nothing more will come."""

    ended: Ended | None
    """None: the run was taken away; nothing is known of its end."""


Effect: TypeAlias = Record | CallModel | RunTools | CheckStop | Emit | End
