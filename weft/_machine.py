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
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias, assert_never

from weft import _texts
from weft._limits import START, Limits, Progress, reached
from weft._moves import (
    WITHOUT_BODY,
    Asked,
    Begin,
    CallFinished,
    CallModel,
    CallParked,
    CallResumed,
    CallUncertain,
    Cancelled,
    CheckStop,
    Deadline,
    Effect,
    Emit,
    End,
    Ended,
    Fact,
    Finished,
    Gate,
    Gated,
    Input,
    Joined,
    ModelFailed,
    OpenCall,
    Plan,
    Ready,
    Record,
    Recorded,
    RecordRefused,
    Replied,
    RunTools,
    Said,
    Spent,
    Start,
    Started,
    Steer,
    StopChecked,
    Submitted,
)
from weft.events import (
    Parked,
    RunFinished,
    RunStarted,
    Steered,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from weft.messages import NO_USAGE, UNKNOWN_CALL, ErrorInfo, Message, ToolCall, ToolResult, Usage

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
    submitted: str | None = None
    """The text of the output, where one of the calls has brought it."""

    @property
    def all(self) -> int:
        return (1 << len(self.plans)) - 1

    def bit(self, call: str) -> int:
        """The call's bit, or 0 where it is unknown or has its result."""
        place = self.places.get(call)
        return 0 if place is None else (1 << place) & ~self.done

    def child(self, call: str) -> int:
        """The same, of a delegating call alone."""
        bit = self.bit(call)
        plan = self.plans[self.places[call]] if bit else None
        return bit if isinstance(plan, Ready) and plan.delegate else 0

    def open(self) -> tuple[ToolCall, ...]:
        """The calls without a result, in call order."""
        return tuple(plan.call for place, plan in enumerate(self.plans) if not self.done >> place & 1)


class Rules(NamedTuple):
    """What stays the same during a run, beside its limits."""

    stops: bool = False
    """It has stop conditions."""
    structured: bool = False
    """Its answer is structured output: one that was refused, filtered or cut is a failure."""
    submission: str | None = None
    """The tool whose call brings the output; None where the answer's text does."""
    watched: bool = True
    """Somebody may follow it; else no events are made."""


PLAIN = Rules()


@dataclass(slots=True)
class State:
    """A run at one moment. Whoever holds one does not change it: `advance` makes a new one."""

    run: str
    limits: Limits
    rules: Rules = PLAIN
    progress: Progress = START
    usage: Usage = NO_USAGE
    extra: Usage = NO_USAGE
    """The part of `usage` that no message and no result carries."""
    phase: Literal["new", "model", "bodies", "tools", "stopping", "ending", "ended"] = "new"
    step: Step | None = None
    text: str = ""
    seq: int = 0
    unrecorded: int = 0
    held: Replied | None = None
    steers: tuple[Steer, ...] = ()
    late: bool = False
    """Its time is over."""
    cancelling: bool = False
    """It will be cancelled: what has happened is recorded, and nothing new begins."""
    end: Ended | None = None


_fields_of = attrgetter(*(field.name for field in fields(State)))
Effects: TypeAlias = tuple[Effect, ...]


def advance(state: State, given: Input) -> tuple[State, Effects]:
    """The next state, and what to do. Total: an input that comes too late changes nothing."""
    if state.phase == "ended":
        return state, ()
    state = State(*_fields_of(state))
    return state, _take(state, given)


# From here on a state is `advance`'s own copy, and is changed. What is in it is never changed, but replaced.


def _take(state: State, given: Input) -> Effects:  # noqa: C901, PLR0911, PLR0912  # one case for each input
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
        case StopChecked():
            return _stop_checked(state, given)
        case Steer():
            return _steered(state, given)
        case Spent():
            return _spent(state, given)
        case Deadline():
            return _out_of_time(state)
        case Cancelled():
            return _cancelled(state, given)
        case RecordRefused():
            state.phase = "ended"
            return (End(ended=None),)
        case _:
            assert_never(given)


def _record(state: State, facts: tuple[Fact, ...], gate: Gate) -> Record:
    state.unrecorded += 1
    return Record(facts=facts, gate=gate)


def _begin(state: State, given: Begin) -> Effects:
    if state.phase != "new":
        return ()
    started = (Emit(event=RunStarted(run=state.run)),) if state.rules.watched else ()
    if given.open:
        effects = _open_step(state, (), given.open, submitted=given.submitted)
    elif given.submitted is not None:
        state.text = given.submitted
        effects = _answer(state, (), "stop")
    elif given.stepped:
        effects = _leave_step(state, ())
    else:
        effects = _next_step(state, ())
    return (*started, *effects)


def _spend(state: State, usage: Usage) -> None:
    """Count what no message and no result carries."""
    state.usage += usage
    state.extra += usage


def _limit_reached(state: State, progress: Progress) -> ErrorInfo | None:
    return reached(state.limits, progress, state.usage, late=state.late, submission=state.rules.submission)


def _next_step(state: State, facts: tuple[Fact, ...], correction: Message | None = None) -> Effects:
    """Let in what has come for the run, record, and call the model; or say which limit forbids it."""
    progress = state.progress if correction is None else state.progress.corrected()
    error = _limit_reached(state, progress)
    if error is not None:
        if correction is not None and error.kind == "output":
            error = replace(
                error, message=f"{error.message}; the model was told: {_texts.capped(correction.text, 500)}"
            )
        return _fail(state, facts, error)
    if correction is not None:
        facts += (Joined(message=correction, source="correction"),)
        state.progress = progress
    told: Effects = (CallModel(),)
    if state.rules.watched:
        steered = (Emit(event=Steered(run=state.run, message=steer.message)) for steer in state.steers)
        told = (*steered, Emit(event=StepStarted(run=state.run, step=state.progress.steps + 1)), *told)
    if state.steers:
        facts += tuple(Joined(message=steer.message, source="steer", item=steer.item) for steer in state.steers)
        state.steers = ()
    state.phase = "model"
    state.step = None
    return (_record(state, facts, "reply"), *told) if facts else told


def _steered(state: State, given: Steer) -> Effects:
    if state.phase == "ending":
        return ()
    state.steers = (*state.steers, given)
    return ()


def _spent(state: State, given: Spent) -> Effects:
    if state.phase == "ending":  # the end that is being recorded says what was spent
        return ()
    _spend(state, given.usage)
    return ()


def _out_of_time(state: State) -> Effects:
    if state.phase == "ending":
        return ()
    state.late = True
    return ()


def _finish(state: State, facts: tuple[Fact, ...], ended: Ended) -> Effects:
    """End the run so; one that will be cancelled ends no other way."""
    if state.cancelling and ended.outcome != "cancelled":
        return (_record(state, facts, "reply"),) if facts else ()
    state.phase = "ending"
    state.end = ended
    state.held = None
    return (_record(state, (*facts, ended), "end"),)


def _fail(state: State, facts: tuple[Fact, ...], error: ErrorInfo) -> Effects:
    return _finish(state, facts, Ended(outcome="failed", error=error, usage=state.extra))


def _answer(state: State, facts: tuple[Fact, ...], reason: str) -> Effects:
    """The run has its answer, unless something has come for it meanwhile and it may go on."""
    if state.steers and _limit_reached(state, state.progress) is None:
        return _next_step(state, facts)
    return _finish(state, facts, Ended(outcome="answered", stop=reason, usage=state.extra))


def _model_failed(state: State, given: ModelFailed) -> Effects:
    if state.phase not in ("new", "model") or state.held is not None:
        return ()
    if state.phase == "model" and not given.counted:
        _spend(state, UNKNOWN_CALL)
    results = _not_gone_on(given.open, "cancel")
    facts = tuple([Finished(result=result, source="repair") for result in results])
    return (*_tell(state, results), *_fail(state, facts, given.error))


def _recorded(state: State) -> Effects:
    if not state.unrecorded:
        return ()
    state.unrecorded -= 1
    if state.unrecorded:
        return ()
    if state.held is not None:
        held, state.held = state.held, None
        return _replied(state, held)
    if state.phase == "bodies" and state.step is not None:
        return _run_bodies(state, state.step)
    if state.phase == "ending" and state.end is not None:
        return _end(state, state.end)
    return ()


def _end(state: State, ended: Ended) -> Effects:
    effects: list[Effect] = []
    if not state.rules.watched:
        pass
    elif ended.outcome in ("answered", "stopped"):
        finished = RunFinished(run=state.run, stop=ended.outcome, text=state.text, usage=state.usage)
        effects.append(Emit(event=finished))
    elif ended.outcome == "parked" and state.step is not None:
        effects.append(Emit(event=Parked(run=state.run, calls=state.step.open())))
    effects.append(End(ended=ended))
    state.phase = "ended"
    return tuple(effects)


# A reply.


def _replied(state: State, given: Replied) -> Effects:
    if state.phase != "model" or state.held is not None:
        return ()
    if state.unrecorded:
        state.held = given
        return ()
    usage, reason = given.finish.usage, given.finish.reason
    state.progress = state.progress.said(given.message)
    state.usage += UNKNOWN_CALL if usage is None else usage
    state.text = given.message.text
    said = Said(message=given.message, usage=usage, finish=reason, model=given.model)
    told: Effects = ()
    if state.rules.watched:
        step = StepFinished(run=state.run, step=state.progress.steps, message=given.message, usage=usage)
        told = (Emit(event=step),)
    if given.error is not None:
        results = tuple([plan.result for plan in given.plans if isinstance(plan, WITHOUT_BODY)])
        facts = tuple([Finished(result=result, source="refused") for result in results])
        effects = (*_tell(state, results), *_fail(state, (said, *facts), given.error))
    elif reason in _texts.BROKEN_OFF:
        effects = _broken_off(state, said, given.plans)
    elif given.plans:
        effects = _open_step(state, (said,), tuple([OpenCall(plan=plan) for plan in given.plans]))
    elif given.problem is not None:
        effects = _next_step(state, (said,), Message.user(given.problem))
    else:
        effects = _answer(state, (said,), reason)
    return (*told, *effects)


def _broken_off(state: State, said: Said, plans: tuple[Plan, ...]) -> Effects:
    """Cut by the output limit, refused or filtered: no call of it can be trusted to be what was meant."""
    reason = said.finish
    results = tuple(_texts.not_run(plan.call.id, reason) for plan in plans)
    facts: tuple[Fact, ...] = (said, *(Finished(result=result, source="refused") for result in results))
    told = _tell(state, results)
    output = not plans or any(plan.call.name == state.rules.submission for plan in plans)
    if state.rules.structured and (output or reason != "length"):
        error = ErrorInfo(kind="output", code=_texts.BROKEN_OFF[reason], message=_texts.no_output(reason))
        effects = _fail(state, facts, error)
    elif plans and reason == "length":
        effects = _next_step(state, facts)
    else:
        effects = _answer(state, facts, reason)
    return (*told, *effects)


# A step.


def _open_step(
    state: State, facts: tuple[Fact, ...], calls: tuple[OpenCall, ...], *, submitted: str | None = None
) -> Effects:
    """Decide for each open call: refuse, ask, start, or go on with what was started."""
    starts: list[Start] = []
    asks: list[Asked] = []
    refused: list[ToolResult] = []
    done = waiting = 0
    progress = state.progress
    for place, call in enumerate(calls):
        match _decide(call):
            case ToolResult() as result:
                refused.append(result)
                done |= 1 << place
                progress = progress.answered(call.plan.call.name, result.code)
            case Asked() as asked:
                asks.append(asked)
                waiting |= 1 << place
            case Start() as start:
                starts.append(start)
    step = Step(
        plans=tuple([call.plan for call in calls]),
        places={call.plan.call.id: place for place, call in enumerate(calls)},
        attempts=tuple([call.started + (0 if call.fresh or call.delegated else 1) for call in calls]),
        done=done,
        waiting=waiting,
        started=sum([1 << place for place, call in enumerate(calls) if call.started]),
        asks=tuple(asks),
        submitted=next((call.plan.call.arguments for call in calls if isinstance(call.plan, Submitted)), submitted),
    )
    facts += tuple([Finished(result=result, source="refused") for result in refused])
    if starts:
        facts += (Started(starts=tuple(starts)),)
    told = _tell(state, tuple(refused))
    state.phase = "bodies"
    state.step = step
    state.progress = progress
    if not step.all & ~done & ~waiting:
        return _step_over(state, step, facts, told)
    if facts:
        return (*told, _record(state, facts, "bodies"))
    return (*told, *_run_bodies(state, step))


def _decide(call: OpenCall) -> ToolResult | Asked | Start | None:
    """What has to be written before this call can go on; None where nothing has to be."""
    plan = call.plan
    if isinstance(plan, WITHOUT_BODY):
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


def _run_bodies(state: State, step: Step) -> Effects:
    runs = step.all & ~step.done & ~step.waiting
    plans: list[Ready | Gated] = []
    attempts: list[int] = []
    effects: list[Effect] = []
    seq = state.seq
    for place, plan in enumerate(step.plans):
        if runs >> place & 1 and not isinstance(plan, WITHOUT_BODY):
            plans.append(plan)
            attempts.append(step.attempts[place])
            if state.rules.watched:
                effects.append(Emit(event=ToolStarted(run=state.run, seq=seq, call=plan.call)))
                seq += 1
    effects.append(RunTools(plans=tuple(plans), attempts=tuple(attempts)))
    state.phase = "tools"
    state.step = step._replace(started=step.started | runs)
    state.seq = seq
    return tuple(effects)


def _tell(state: State, results: tuple[ToolResult, ...]) -> tuple[Emit, ...]:
    if not results or not state.rules.watched:
        return ()
    told = tuple(
        Emit(event=ToolFinished(run=state.run, seq=state.seq + place, result=result))
        for place, result in enumerate(results)
    )
    state.seq += len(told)
    return told


def _call_finished(state: State, given: CallFinished) -> Effects:
    step = state.step
    bit = 0 if step is None else step.bit(given.result.call)
    if step is None or not bit or state.phase != "tools":
        return ()
    place = step.places[given.result.call]
    attempt, name = step.attempts[place], step.plans[place].call.name
    spent = None if given.usage is NO_USAGE or given.usage == NO_USAGE else given.usage
    fact = Finished(result=given.result, source=given.source, attempt=attempt, usage=spent)
    step = step._replace(done=step.done | bit, waiting=step.waiting & ~bit)
    state.step = step
    state.progress = state.progress.answered(name, given.result.code)
    if spent is not None:
        state.usage += spent
    told = _tell(state, (given.result,))
    return _step_over(state, step, (fact,), told)


def _step_over(state: State, step: Step, facts: tuple[Fact, ...], told: Effects) -> Effects:
    """Record, and leave the step if nothing of it is at work any more."""
    if (step.done | step.waiting) != step.all or state.cancelling:
        return (*told, _record(state, facts, "reply")) if facts else told
    if step.waiting:
        waiting = tuple(call.id for call in step.open())
        asks = tuple(asked for asked in step.asks if asked.call.id in waiting)
        effects = _finish(state, (*facts, *asks), Ended(outcome="parked", open=waiting, usage=state.extra))
    elif step.submitted is not None:
        state.text = step.submitted
        effects = _answer(state, facts, "stop")
    else:
        effects = _leave_step(state, facts)
    return (*told, *effects)


def _leave_step(state: State, facts: tuple[Fact, ...]) -> Effects:
    """Each call has its result: ask the stop conditions, where there are any, or go on."""
    if not state.rules.stops:
        return _next_step(state, facts)
    state.phase = "stopping"
    return (_record(state, facts, "reply"), CheckStop()) if facts else (CheckStop(),)


def _stop_checked(state: State, given: StopChecked) -> Effects:
    if state.phase != "stopping":
        return ()
    if given.error is not None:
        return _fail(state, (), given.error)
    if given.stop:
        return _finish(state, (), Ended(outcome="stopped", usage=state.extra))
    return _next_step(state, ())


def _call_parked(state: State, call: str) -> Effects:
    step = state.step
    bit = 0 if step is None else step.child(call)
    if step is None or not bit or state.phase != "tools":
        return ()
    step = step._replace(waiting=step.waiting | bit)
    state.step = step
    return _step_over(state, step, (), ())


def _call_resumed(state: State, call: str) -> Effects:
    step = state.step
    bit = 0 if step is None else step.child(call)
    if step is None or not bit or state.phase != "tools":
        return ()
    state.step = step._replace(waiting=step.waiting & ~bit)
    return ()


def _call_uncertain(state: State, given: CallUncertain) -> Effects:
    step = state.step
    bit = 0 if step is None else step.bit(given.call)
    if step is None or not bit or step.waiting & bit or state.phase != "tools":
        return ()
    plan = step.plans[step.places[given.call]]
    assert not isinstance(plan, WITHOUT_BODY)
    asks = (*step.asks, _uncertain(plan, given.reason))
    step = step._replace(waiting=step.waiting | bit, asks=asks)
    state.step = step
    return _step_over(state, step, (), ())


def _cancelled(state: State, given: Cancelled) -> Effects:
    """Give each open call a result, and end. What was recorded stays; a reply that was held is dropped."""
    if state.phase == "ending":
        return ()
    if given.model_in_flight or state.held is not None:
        _spend(state, UNKNOWN_CALL)
    step = state.step
    results = list(_not_gone_on(given.open, given.by)) if state.phase == "new" else []
    if step is not None:
        for call in step.open():
            started = bool(step.started >> step.places[call.id] & 1) and call.id not in given.untouched
            results.append(_texts.cancelled(call.id, started=started, by=given.by))
    facts = tuple(Finished(result=result, source=given.by) for result in results)
    return (*_tell(state, tuple(results)), *_finish(state, facts, Ended(outcome="cancelled", usage=state.extra)))


def _not_gone_on(calls: tuple[OpenCall, ...], by: Literal["cancel", "interrupt"]) -> tuple[ToolResult, ...]:
    """For the open calls of a run that was to go on with them, and ends before that."""
    return tuple(
        _texts.cancelled(call.plan.call.id, started=call.delegated or (call.started > 0 and not call.fresh), by=by)
        for call in calls
    )
