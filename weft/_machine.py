"""One run as a pure machine: `advance(state, input) -> (state, effects)`.

The shell (`_run`) carries the effects out and feeds the inputs. No clock, no randomness, no I/O, no event
loop: ids and times come in with the input. Facts are what must be remembered; an effect that must wait
for facts to be durable is emitted when their `Recorded` has come in:

* gate `bodies`: the assistant message and `Started` are recorded before a body starts;
* gate `reply`: results may still be on their way while the model is called again; its reply waits for them;
* gate `end`: the end is told only when it is recorded.

An input causes one `Record` at most, so that a shell whose record was refused can go back to the state
before that input and feed what has changed (see `weft.thread._runner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, assert_never

from weft import _texts
from weft.events import (
    Event,
    Parked,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from weft.messages import NO_USAGE, ErrorInfo, Message, ToolCall, ToolResult, Usage
from weft.model import Finish

EffectKind: TypeAlias = Literal["none", "repeatable", "once"]
Gate: TypeAlias = Literal["bodies", "reply", "end"]
Outcome: TypeAlias = Literal["answered", "parked", "stopped", "failed", "cancelled"]

UNKNOWN_CALL = Usage(unknown=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may spend. Checked before the model is called again: a step that ends the run may overshoot."""

    steps: int = 10
    """Model calls of one run, across parks and recoveries."""
    tokens: int | None = None
    """Input and output tokens of one run; None is without limit."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError("Limits(steps=…) is at least 1")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError("Limits(tokens=…) is at least 1, or None")


# What the shell found out about a call before anything of it runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The call may run."""

    call: ToolCall
    effect: EffectKind
    digest: str
    """Of the stored argument text."""
    attempts: int = 3
    delegate: bool = False
    """The body is a child: it has a receipt, and is never uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The call never enters a body; this is its result."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """The call may run once somebody has approved it."""

    call: ToolCall
    effect: EffectKind
    digest: str
    reason: str | None = None
    expires: float | None = None
    """Seconds from the request on; None leaves it to the session."""
    attempts: int = 3


Plan: TypeAlias = Ready | Refused | Gated


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The model's whole reply."""

    message: Message
    usage: Usage | None
    finish: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A body is about to start."""

    call: str
    attempt: int
    effect: EffectKind
    digest: str
    delegate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Bodies are about to start."""

    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One call has its result."""

    result: ToolResult
    source: str
    """body, refused, decision, expiry, interrupt, cancel, timeout, verify, receipt, repair."""
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call waits for a person."""

    kind: Literal["approval", "uncertain"]
    call: ToolCall
    digest: str
    reason: str | None
    expires: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The run is over, or waits for decisions."""

    outcome: Outcome
    stop: str | None = None
    error: ErrorInfo | None = None
    open: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    """What no message carries."""


Fact: TypeAlias = Said | Started | Finished | Asked | Ended


# Inputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Start, or go on: `open` are the calls of the last assistant message that have no result."""

    open: tuple[OpenCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """The oldest record that was on its way is durable."""


@dataclass(frozen=True, slots=True)
class RecordRefused:
    """Somebody else owns the run now: say nothing more, do nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """The model's reply is whole; one plan for each of its calls, in order."""

    message: Message
    finish: Finish
    model: str
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed:
    """The model call failed, or could not be prepared. Nothing of it enters the transcript."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    """A body, or a child, gave its result."""

    result: ToolResult
    source: str = "body"
    usage: Usage = NO_USAGE
    """What a sub-agent spent for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParked:
    """The child of a delegating call waits for decisions."""

    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResumed:
    """The child of a delegating call goes on: its requests are decided."""

    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUncertain:
    """A body that may have had its effect was ended without a result."""

    call: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Stop; the bodies have been stopped already."""

    model_in_flight: bool = False


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
    | Cancelled
)


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Make these facts durable; answer with `Recorded`, or go back."""

    facts: tuple[Fact, ...]
    gate: Gate


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Run the bodies of these calls; answer with `CallFinished` for each."""

    plans: tuple[Ready | Gated, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Tell observers."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Nothing more will come."""

    ended: Ended | None
    """None: the run was taken away; nothing is known of its end."""


Effect: TypeAlias = Record | CallModel | RunTools | Emit | End


# State.


# Named tuples, since a changed copy of one costs a third of a changed dataclass.


class Step(NamedTuple):
    """The open calls of the last assistant message. Sets of calls are bit masks over `plans`."""

    plans: tuple[Plan, ...]
    places: Mapping[str, int]
    attempts: tuple[int, ...]
    done: int = 0
    waiting: int = 0
    """Waits for a person: gated, uncertain, or a parked child."""
    started: int = 0
    asks: tuple[Asked, ...] = ()

    @property
    def all(self) -> int:
        return (1 << len(self.plans)) - 1

    def bit(self, call: str) -> int:
        """The call's bit, or 0 where it is unknown or has its result."""
        place = self.places.get(call)
        return 0 if place is None else (1 << place) & ~self.done

    def open(self) -> tuple[ToolCall, ...]:
        """The calls without a result, in call order."""
        return tuple(plan.call for place, plan in enumerate(self.plans) if not self.done >> place & 1)


class State(NamedTuple):
    """A run at one moment."""

    run: str
    limits: Limits
    steps: int = 0
    usage: Usage = NO_USAGE
    phase: Literal["new", "model", "bodies", "tools", "ending", "ended"] = "new"
    step: Step | None = None
    text: str = ""
    seq: int = 0
    unrecorded: int = 0
    held: Replied | None = None
    end: Ended | None = None


Moved: TypeAlias = tuple[State, tuple[Effect, ...]]


def advance(state: State, given: Input) -> Moved:  # noqa: C901, PLR0911, PLR0912  # one case for each input
    """The next state, and what to do. Total: an input that comes too late changes nothing."""
    if state.phase == "ended":
        return state, ()
    match given:
        case Recorded():
            return _recorded(state)
        case CallFinished():
            return _call_finished(state, given)
        case Replied():
            return _replied(state, given)
        case Begin():
            return _begin(state, given)
        case ModelFailed():
            return _model_failed(state, given)
        case CallParked():
            return _call_parked(state, given.call)
        case CallResumed():
            return _call_resumed(state, given.call)
        case CallUncertain():
            return _call_uncertain(state, given)
        case Cancelled():
            return _cancelled(state, given)
        case RecordRefused():
            return state._replace(phase="ended"), (End(ended=None),)
        case _:
            assert_never(given)


def _record(state: State, facts: tuple[Fact, ...], gate: Gate) -> tuple[State, Record]:
    return state._replace(unrecorded=state.unrecorded + 1), Record(facts=facts, gate=gate)


def _begin(state: State, given: Begin) -> Moved:
    if state.phase != "new":
        return state, ()
    started = Emit(event=RunStarted(run=state.run))
    if not given.open:
        state, effects = _call_model(state)
    else:
        state, effects = _open_step(state, (), given.open)
    return state, (started, *effects)


def _call_model(state: State) -> Moved:
    """Call the model, or say which limit forbids it."""
    limits = state.limits
    if state.steps >= limits.steps:
        return _limit(state, "steps", f"the run has made {state.steps} model calls, and may make {limits.steps}")
    if limits.tokens is not None and state.usage.tokens >= limits.tokens:
        return _limit(state, "tokens", f"the run has used {state.usage.tokens} tokens, and may use {limits.tokens}")
    started = Emit(event=StepStarted(run=state.run, step=state.steps + 1))
    return state._replace(phase="model", step=None), (started, CallModel())


def _limit(state: State, limit: str, message: str) -> Moved:
    error = ErrorInfo(kind="limit", code="LIMIT", message=message, details={"limit": limit})
    return _finish(state, (), Ended(outcome="failed", error=error))


def _finish(state: State, facts: tuple[Fact, ...], ended: Ended) -> Moved:
    state, record = _record(state, (*facts, ended), "end")
    return state._replace(phase="ending", end=ended, held=None), (record,)


def _model_failed(state: State, given: ModelFailed) -> Moved:
    if state.phase not in ("new", "model") or state.held is not None:
        return state, ()
    extra = UNKNOWN_CALL if state.phase == "model" else NO_USAGE
    ended = Ended(outcome="failed", error=given.error, usage=extra)
    return _finish(state._replace(usage=state.usage + extra), (), ended)


def _recorded(state: State) -> Moved:
    if not state.unrecorded:
        return state, ()
    state = state._replace(unrecorded=state.unrecorded - 1)
    if state.unrecorded:
        return state, ()
    if state.held is not None:
        held = state.held
        return _replied(state._replace(held=None), held)
    if state.phase == "bodies" and state.step is not None:
        return _run_bodies(state, state.step)
    if state.phase == "ending" and state.end is not None:
        return _end(state, state.end)
    return state, ()


def _end(state: State, ended: Ended) -> Moved:
    effects: list[Effect] = []
    if ended.outcome in ("answered", "stopped"):
        finished = RunFinished(run=state.run, stop=ended.outcome, text=state.text, usage=state.usage)
        effects.append(Emit(event=finished))
    elif ended.outcome == "parked" and state.step is not None:
        effects.append(Emit(event=Parked(run=state.run, calls=state.step.open())))
    effects.append(End(ended=ended))
    return state._replace(phase="ended"), tuple(effects)


# A reply.


def _replied(state: State, given: Replied) -> Moved:
    if state.phase != "model":
        return state, ()
    if state.unrecorded:
        return state._replace(held=given), ()
    usage = given.finish.usage
    state = state._replace(
        steps=state.steps + 1,
        usage=state.usage + (UNKNOWN_CALL if usage is None else usage),
        text=given.message.text,
    )
    said = Said(message=given.message, usage=usage, finish=given.finish.reason, model=given.model)
    told = Emit(event=StepFinished(run=state.run, step=state.steps, message=given.message, usage=usage))
    if not given.plans:
        state, effects = _finish(state, (said,), Ended(outcome="answered", stop=given.finish.reason))
    elif given.finish.reason == "length":
        state, effects = _cut(state, said, given.plans)
    else:
        state, effects = _open_step(state, (said,), tuple(OpenCall(plan=plan) for plan in given.plans))
    return state, (told, *effects)


def _cut(state: State, said: Said, plans: tuple[Plan, ...]) -> Moved:
    """The output limit cut the reply: no call of it can be trusted to be what was meant."""
    results = tuple(_texts.not_run(plan.call.id) for plan in plans)
    facts = tuple(Finished(result=result, source="refused") for result in results)
    state, told = _tell(state, results)
    state, effects = _next_step(state, (said, *facts))
    return state, (*told, *effects)


def _next_step(state: State, facts: tuple[Fact, ...]) -> Moved:
    """Record, and call the model again; one record where a limit ends the run instead."""
    following, effects = _call_model(state)
    if not facts:
        return following, effects
    if following.phase == "ending" and following.end is not None:
        return _finish(state, facts, following.end)
    state, record = _record(following, facts, "reply")
    return state, (record, *effects)


# A step.


def _open_step(state: State, facts: tuple[Fact, ...], calls: tuple[OpenCall, ...]) -> Moved:
    """Decide for each open call: refuse, ask, start, or go on with what was started."""
    starts: list[Start] = []
    asks: list[Asked] = []
    refused: list[ToolResult] = []
    done = waiting = 0
    for place, call in enumerate(calls):
        match _decide(call):
            case ToolResult() as result:
                refused.append(result)
                done |= 1 << place
            case Asked() as asked:
                asks.append(asked)
                waiting |= 1 << place
            case Start() as start:
                starts.append(start)
            case None:
                pass
    step = Step(
        plans=tuple(call.plan for call in calls),
        places={call.plan.call.id: place for place, call in enumerate(calls)},
        attempts=tuple(call.started + (0 if call.fresh or call.delegated else 1) for call in calls),
        done=done,
        waiting=waiting,
        started=sum(1 << place for place, call in enumerate(calls) if call.started),
        asks=tuple(asks),
    )
    facts += tuple(Finished(result=result, source="refused") for result in refused)
    if starts:
        facts += (Started(starts=tuple(starts)),)
    state, told = _tell(state, tuple(refused))
    state = state._replace(phase="bodies", step=step)
    runs = step.all & ~done & ~waiting
    if not runs:
        return _step_over(state, step, facts, told)
    if not facts:
        state, effects = _run_bodies(state, step)
        return state, (*told, *effects)
    state, record = _record(state, facts, "bodies")
    return state, (*told, record)


def _decide(call: OpenCall) -> ToolResult | Asked | Start | None:
    """What has to be written before this call can go on; None where nothing has to be."""
    plan = call.plan
    if isinstance(plan, Refused):
        return plan.result
    if call.fresh or call.delegated:
        return None
    if call.started:
        if plan.effect == "once" or (plan.effect == "repeatable" and call.started >= plan.attempts):
            return _uncertain(plan, "it had started when its process ended")
    elif isinstance(plan, Gated):
        return Asked(kind="approval", call=plan.call, digest=plan.digest, reason=plan.reason, expires=plan.expires)
    delegate = isinstance(plan, Ready) and plan.delegate
    return Start(call=plan.call.id, attempt=call.started + 1, effect=plan.effect, digest=plan.digest, delegate=delegate)


def _uncertain(plan: Ready | Gated, reason: str) -> Asked:
    return Asked(kind="uncertain", call=plan.call, digest=plan.digest, reason=reason, expires=None)


def _run_bodies(state: State, step: Step) -> Moved:
    runs = step.all & ~step.done & ~step.waiting
    plans: list[Ready | Gated] = []
    attempts: list[int] = []
    effects: list[Effect] = []
    seq = state.seq
    for place, plan in enumerate(step.plans):
        if runs >> place & 1 and not isinstance(plan, Refused):
            plans.append(plan)
            attempts.append(step.attempts[place])
            effects.append(Emit(event=ToolStarted(run=state.run, seq=seq, call=plan.call)))
            seq += 1
    step = step._replace(started=step.started | runs)
    effects.append(RunTools(plans=tuple(plans), attempts=tuple(attempts)))
    return state._replace(phase="tools", step=step, seq=seq), tuple(effects)


def _tell(state: State, results: tuple[ToolResult, ...]) -> tuple[State, tuple[Emit, ...]]:
    if not results:
        return state, ()
    told = tuple(
        Emit(event=ToolFinished(run=state.run, seq=state.seq + place, result=result))
        for place, result in enumerate(results)
    )
    return state._replace(seq=state.seq + len(told)), told


def _call_finished(state: State, given: CallFinished) -> Moved:
    step = state.step
    bit = 0 if step is None else step.bit(given.result.call)
    if step is None or not bit or state.phase != "tools":
        return state, ()
    attempt = step.attempts[step.places[given.result.call]]
    fact = Finished(result=given.result, source=given.source, attempt=attempt)
    step = step._replace(done=step.done | bit, waiting=step.waiting & ~bit)
    told = Emit(event=ToolFinished(run=state.run, seq=state.seq, result=given.result))
    state = state._replace(step=step, seq=state.seq + 1, usage=state.usage + given.usage)
    return _step_over(state, step, (fact,), (told,))


def _step_over(state: State, step: Step, facts: tuple[Fact, ...], told: tuple[Effect, ...]) -> Moved:
    """Record, and leave the step if nothing of it is at work any more."""
    if (step.done | step.waiting) != step.all:
        if not facts:
            return state, told
        state, record = _record(state, facts, "reply")
        return state, (*told, record)
    if step.waiting:
        waiting = tuple(call.id for call in step.open())
        asks = tuple(asked for asked in step.asks if asked.call.id in waiting)
        state, effects = _finish(state, (*facts, *asks), Ended(outcome="parked", open=waiting))
        return state, (*told, *effects)
    state, effects = _next_step(state, facts)
    return state, (*told, *effects)


def _call_parked(state: State, call: str) -> Moved:
    step = state.step
    bit = 0 if step is None else step.bit(call)
    if step is None or not bit or state.phase != "tools":
        return state, ()
    step = step._replace(waiting=step.waiting | bit)
    return _step_over(state._replace(step=step), step, (), ())


def _call_resumed(state: State, call: str) -> Moved:
    step = state.step
    bit = 0 if step is None else step.bit(call)
    if step is None or not bit or state.phase != "tools":
        return state, ()
    return state._replace(step=step._replace(waiting=step.waiting & ~bit)), ()


def _call_uncertain(state: State, given: CallUncertain) -> Moved:
    step = state.step
    bit = 0 if step is None else step.bit(given.call)
    if step is None or not bit or step.waiting & bit or state.phase != "tools":
        return state, ()
    plan = step.plans[step.places[given.call]]
    assert not isinstance(plan, Refused)
    asks = (*step.asks, _uncertain(plan, given.reason))
    step = step._replace(waiting=step.waiting | bit, asks=asks)
    return _step_over(state._replace(step=step), step, (), ())


def _cancelled(state: State, given: Cancelled) -> Moved:
    """Give each open call a result, and end. What was recorded stays; a reply that was held is dropped."""
    if state.phase == "ending":
        return state, ()
    lost = given.model_in_flight or state.held is not None
    extra = UNKNOWN_CALL if lost else NO_USAGE
    step = state.step
    results: list[ToolResult] = []
    if step is not None:
        for call in step.open():
            started = bool(step.started >> step.places[call.id] & 1)
            results.append(_texts.cancelled(call.id, started=started))
    facts = tuple(Finished(result=result, source="cancel") for result in results)
    state, told = _tell(state._replace(usage=state.usage + extra), tuple(results))
    state, effects = _finish(state, facts, Ended(outcome="cancelled", usage=extra))
    return state, (*told, *effects)
