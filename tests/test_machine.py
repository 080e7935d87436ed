"""The pure machine of a run: tables over `advance`, and a property over random runs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import Limits, Message, Text, ToolCall, ToolResult, Usage
from weft._limits import Progress
from weft._machine import (
    Asked,
    Begin,
    CallFinished,
    CallModel,
    CallParked,
    CallResumed,
    CallUncertain,
    Cancelled,
    Effect,
    Emit,
    End,
    Ended,
    Fact,
    Finished,
    Gated,
    Input,
    ModelFailed,
    OpenCall,
    Plan,
    Ready,
    Record,
    Recorded,
    RecordRefused,
    Refused,
    Replied,
    RunTools,
    Said,
    Start,
    Started,
    State,
    advance,
)
from weft.events import Parked, RunFinished, RunStarted, StepFinished, StepStarted, ToolFinished, ToolStarted
from weft.messages import NO_USAGE, ErrorInfo
from weft.model import Finish

SPENT = Usage(input_tokens=10, output_tokens=5)
LOST = Usage(unknown=1)
BROKEN = ErrorInfo(code="MODEL", message="no answer")


def call(name: str) -> ToolCall:
    return ToolCall(id=name, name="tool", arguments="{}")


def ready(name: str, *, effect: str = "once", attempts: int = 3, delegate: bool = False) -> Ready:
    return Ready(call=call(name), effect=effect, digest=f"d{name}", attempts=attempts, delegate=delegate)


def gated(name: str, *, effect: str = "once", attempts: int = 3) -> Gated:
    reason = f"why {name}"
    return Gated(call=call(name), effect=effect, digest=f"d{name}", reason=reason, expires=60.0, attempts=attempts)


def refused(name: str) -> Refused:
    return Refused(call=call(name), result=result(name, error="NO_SUCH_TOOL"))


def result(name: str, content: str = "done", *, error: str | None = None) -> ToolResult:
    return ToolResult(call=name, content=content, is_error=error is not None, code=error)


def finished(name: str, usage: Usage = NO_USAGE) -> CallFinished:
    return CallFinished(result=result(name), usage=usage)


def reply(*plans: Plan, text: str = "", reason: str = "stop", usage: Usage | None = SPENT) -> Replied:
    parts = (*((Text(text=text),) if text else ()), *(plan.call for plan in plans))
    message = Message(role="assistant", parts=parts)
    return Replied(message=message, finish=Finish(reason=reason, usage=usage), model="p:m", plans=plans)


def said(given: Replied) -> Said:
    return Said(message=given.message, usage=given.finish.usage, finish=given.finish.reason, model=given.model)


class Machine:
    """A run that is given one input after the other."""

    def __init__(self, *inputs: Input, limits: Limits = Limits()) -> None:  # noqa: B008  # a frozen value
        self.state = State(run="r", limits=limits)
        self.feed(*inputs)

    def feed(self, *inputs: Input) -> tuple[Effect, ...]:
        """The effects of the last input."""
        effects: tuple[Effect, ...] = ()
        for given_input in inputs:
            self.state, effects = advance(self.state, given_input)
        return effects


def facts(effects: tuple[Effect, ...]) -> tuple[Fact, ...]:
    return tuple(fact for effect in effects if isinstance(effect, Record) for fact in effect.facts)


def results(effects: tuple[Effect, ...]) -> dict[str, str | None]:
    """The results among the facts: the call's id and the code."""
    return {fact.result.call: fact.result.code for fact in facts(effects) if isinstance(fact, Finished)}


def ended(effects: tuple[Effect, ...]) -> Ended:
    (fact,) = [fact for fact in facts(effects) if isinstance(fact, Ended)]
    return fact


def events(effects: tuple[Effect, ...]) -> list[object]:
    return [effect.event for effect in effects if isinstance(effect, Emit)]


def kinds(effects: tuple[Effect, ...]) -> list[str]:
    return [type(effect.event).__name__ if isinstance(effect, Emit) else type(effect).__name__ for effect in effects]


def ran(effects: tuple[Effect, ...]) -> dict[str, int]:
    """The calls whose bodies run now, with their attempts."""
    return {
        plan.call.id: attempt
        for effect in effects
        if isinstance(effect, RunTools)
        for plan, attempt in zip(effect.plans, effect.attempts, strict=True)
    }


# A run without calls.


def test_a_run_begins_with_a_model_call() -> None:
    assert Machine().feed(Begin()) == (
        Emit(event=RunStarted(run="r")),
        Emit(event=StepStarted(run="r", step=1)),
        CallModel(),
    )


def test_a_reply_without_calls_is_the_answer_and_is_recorded_with_the_end() -> None:
    answer = reply(text="hello")
    told, record = Machine(Begin()).feed(answer)
    assert told == Emit(event=StepFinished(run="r", step=1, message=answer.message, usage=SPENT))
    assert record == Record(facts=(said(answer), Ended(outcome="answered", stop="stop")), gate="end")


def test_the_end_is_told_only_after_it_is_recorded() -> None:
    run = Machine(Begin())
    assert kinds(run.feed(reply(text="hello"))) == ["StepFinished", "Record"]
    assert run.feed(Recorded()) == (
        Emit(event=RunFinished(run="r", stop="answered", text="hello", usage=SPENT)),
        End(ended=Ended(outcome="answered", stop="stop")),
    )


@pytest.mark.parametrize("reason", ["stop", "length", "refusal", "filter", "other"])
def test_the_end_says_why_the_last_reply_ended(reason: str) -> None:
    assert ended(Machine(Begin()).feed(reply(text="x", reason=reason))).stop == reason


def test_a_reply_without_usage_counts_as_unknown() -> None:
    run = Machine(Begin(), reply(text="x", usage=None), Recorded())
    assert run.state.usage == LOST


def test_a_failed_model_call_fails_the_run_and_leaves_no_message() -> None:
    run = Machine(Begin())
    effects = run.feed(ModelFailed(error=BROKEN))
    assert effects == (Record(facts=(Ended(outcome="failed", error=BROKEN, usage=LOST),), gate="end"),)
    assert run.feed(Recorded()) == (End(ended=Ended(outcome="failed", error=BROKEN, usage=LOST)),)
    assert run.state.usage == LOST


def test_a_model_call_that_could_not_be_prepared_fails_the_run_and_costs_nothing() -> None:
    run = Machine()
    effects = run.feed(ModelFailed(error=BROKEN))
    assert effects == (Record(facts=(Ended(outcome="failed", error=BROKEN),), gate="end"),)
    assert run.state.usage == NO_USAGE


def test_a_failed_run_tells_no_run_finished() -> None:
    assert events(Machine(Begin(), ModelFailed(error=BROKEN)).feed(Recorded())) == []


# A step.


def test_nothing_runs_before_its_start_is_recorded() -> None:
    asked = reply(ready("a"), ready("b", effect="none"), reason="tool_calls")
    run = Machine(Begin())
    effects = run.feed(asked)
    starts = (
        Start(call="a", attempt=1, effect="once", digest="da"),
        Start(call="b", attempt=1, effect="none", digest="db"),
    )
    assert kinds(effects) == ["StepFinished", "Record"]
    assert effects[1] == Record(facts=(said(asked), Started(starts=starts)), gate="bodies")
    effects = run.feed(Recorded())
    assert kinds(effects) == ["ToolStarted", "ToolStarted", "RunTools"]
    assert effects[2] == RunTools(plans=asked.plans, attempts=(1, 1))


def test_a_result_is_recorded_as_it_comes_and_the_model_is_called_after_the_last() -> None:
    run = Machine(Begin(), reply(ready("a"), ready("b")), Recorded())
    effects = run.feed(finished("b"))
    assert kinds(effects) == ["ToolFinished", "Record"]
    assert effects[1] == Record(facts=(Finished(result=result("b"), source="body", attempt=1),), gate="reply")
    effects = run.feed(finished("a"))
    assert kinds(effects) == ["ToolFinished", "Record", "StepStarted", "CallModel"]
    assert run.state.step is None


def test_a_reply_waits_for_the_results_that_are_on_their_way() -> None:
    run = Machine(Begin(), reply(ready("a"), ready("b")), Recorded(), finished("a"), finished("b"))
    answer = reply(text="both")
    assert run.feed(answer) == ()
    assert run.feed(Recorded()) == ()
    assert kinds(run.feed(Recorded())) == ["StepFinished", "Record"]
    assert run.state.progress.steps == 2


def test_tool_events_are_counted_over_the_whole_run() -> None:
    run = Machine(Begin())
    told = [
        event
        for given_input in (
            reply(ready("a"), refused("b"), ready("c")),
            Recorded(),
            finished("c"),
            finished("a"),
            Recorded(),
            Recorded(),
            reply(ready("d")),
            Recorded(),
            finished("d"),
        )
        for event in events(run.feed(given_input))
        if isinstance(event, ToolStarted | ToolFinished)
    ]
    assert [event.seq for event in told] == list(range(7))
    kinds_told = [event.kind for event in told]
    first = ["tool_finished", "tool_started", "tool_started", "tool_finished", "tool_finished"]
    assert kinds_told == [*first, "tool_started", "tool_finished"]


def test_what_a_sub_agent_spent_counts_to_the_run() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), finished("a", usage=Usage(output_tokens=7)), Recorded())
    (told,) = events(run.feed(reply(text="x"), Recorded()))
    assert isinstance(told, RunFinished)
    assert told.usage == Usage(input_tokens=20, output_tokens=17)


def test_a_refused_call_gets_its_result_and_its_siblings_run() -> None:
    asked = reply(refused("a"), ready("b"))
    run = Machine(Begin())
    effects = run.feed(asked)
    assert facts(effects)[1] == Finished(result=result("a", error="NO_SUCH_TOOL"), source="refused")
    assert ran(run.feed(Recorded())) == {"b": 1}


def test_a_step_of_refused_calls_goes_straight_to_the_model() -> None:
    effects = Machine(Begin()).feed(reply(refused("a"), refused("b")))
    assert kinds(effects) == ["StepFinished", "ToolFinished", "ToolFinished", "Record", "StepStarted", "CallModel"]
    assert [effect.gate for effect in effects if isinstance(effect, Record)] == ["reply"]


def test_a_cut_reply_runs_none_of_its_calls() -> None:
    asked = reply(ready("a"), gated("b"), refused("c"), reason="length")
    run = Machine(Begin())
    effects = run.feed(asked)
    assert kinds(effects) == ["StepFinished", *3 * ["ToolFinished"], "Record", "StepStarted", "CallModel"]
    assert facts(effects)[0] == said(asked)
    assert results(effects) == {"a": "NOT_RUN", "b": "NOT_RUN", "c": "NOT_RUN"}
    assert run.feed(Recorded()) == ()


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(tokens=1)])
def test_a_cut_reply_at_a_limit_causes_one_record(limits: Limits) -> None:
    effects = Machine(Begin(), limits=limits).feed(reply(ready("a"), reason="length"))
    assert results(effects) == {"a": "NOT_RUN"}
    assert ended(effects).outcome == "failed"
    assert [effect.gate for effect in effects if isinstance(effect, Record)] == ["end"]


# Parking.


def test_a_gated_call_parks_the_run_at_once_where_nothing_else_runs() -> None:
    asked = reply(gated("a"))
    run = Machine(Begin())
    effects = run.feed(asked)
    waiting = Asked(kind="approval", call=call("a"), digest="da", reason="why a", expires=60.0)
    end = Ended(outcome="parked", open=("a",))
    assert effects[-1] == Record(facts=(said(asked), waiting, end), gate="end")
    assert run.feed(Recorded()) == (Emit(event=Parked(run="r", calls=(call("a"),))), End(ended=end))


def test_a_gated_call_parks_the_run_after_its_siblings_are_done() -> None:
    run = Machine(Begin())
    effects = run.feed(reply(gated("a"), ready("b"), gated("c")))
    assert [type(fact) for fact in facts(effects)] == [Said, Started]
    assert ran(run.feed(Recorded())) == {"b": 1}
    effects = run.feed(finished("b"))
    assert [type(fact) for fact in facts(effects)] == [Finished, Asked, Asked, Ended]
    assert ended(effects).open == ("a", "c")


def test_a_parked_child_parks_the_run() -> None:
    run = Machine(Begin(), reply(ready("a", delegate=True), ready("b")), Recorded())
    assert run.feed(CallParked(call="a")) == ()
    effects = run.feed(finished("b"))
    assert [type(fact) for fact in facts(effects)] == [Finished, Ended]
    assert ended(effects) == Ended(outcome="parked", open=("a",))


def test_the_last_child_to_park_parks_the_run() -> None:
    run = Machine(Begin(), reply(ready("a", delegate=True)), Recorded())
    assert run.feed(CallParked(call="a")) == (Record(facts=(Ended(outcome="parked", open=("a",)),), gate="end"),)


def test_a_child_that_goes_on_is_waited_for_again() -> None:
    run = Machine(Begin(), reply(ready("a", delegate=True), ready("b")), Recorded(), CallParked(call="a"))
    assert run.feed(CallResumed(call="a")) == ()
    assert kinds(run.feed(finished("b"))) == ["ToolFinished", "Record"]
    assert kinds(run.feed(finished("a"))) == ["ToolFinished", "Record", "StepStarted", "CallModel"]


def test_a_parked_child_may_finish_in_the_same_turn() -> None:
    run = Machine(Begin(), reply(ready("a", delegate=True), ready("b")), Recorded(), CallParked(call="a"))
    run.feed(finished("a"))
    assert kinds(run.feed(finished("b")))[-1] == "CallModel"


def test_an_uncertain_body_parks_the_run_with_a_question() -> None:
    run = Machine(Begin(), reply(ready("a"), ready("b")), Recorded())
    assert run.feed(CallUncertain(call="a", reason="too late")) == ()
    effects = run.feed(finished("b"))
    asked = Asked(kind="uncertain", call=call("a"), digest="da", reason="too late", expires=None)
    assert facts(effects)[1:] == (asked, Ended(outcome="parked", open=("a",)))


def test_an_uncertain_body_whose_result_comes_after_all_is_not_asked_about() -> None:
    run = Machine(Begin(), reply(ready("a"), gated("b"), ready("c")), Recorded())
    run.feed(CallUncertain(call="a", reason="too late"), finished("a"))
    asked = [fact.call.id for fact in facts(run.feed(finished("c"))) if isinstance(fact, Asked)]
    assert asked == ["b"]


def test_a_call_is_asked_about_once() -> None:
    run = Machine(Begin(), reply(ready("a"), ready("b")), Recorded())
    run.feed(CallUncertain(call="a", reason="too late"), CallUncertain(call="a", reason="too late"))
    assert [fact.call.id for fact in facts(run.feed(finished("b"))) if isinstance(fact, Asked)] == ["a"]


# Limits.


def test_the_step_limit_fails_the_run_before_the_next_model_call() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), limits=Limits(steps=1))
    effects = run.feed(finished("a"))
    assert kinds(effects) == ["ToolFinished", "Record"]
    assert results(effects) == {"a": None}
    error = ended(effects).error
    assert error is not None
    assert (error.code, error.details) == ("LIMIT", {"limit": "steps"})
    assert kinds(run.feed(Recorded())) == ["End"]


def test_the_token_limit_fails_the_run_before_the_next_model_call() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), limits=Limits(tokens=15))
    error = ended(run.feed(finished("a"))).error
    assert error is not None
    assert error.details == {"limit": "tokens"}
    assert error.message == "the run has used 15 tokens, and may use 15"


def test_tokens_under_the_limit_let_the_run_go_on() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), limits=Limits(tokens=16))
    assert kinds(run.feed(finished("a")))[-1] == "CallModel"


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(tokens=1)])
def test_an_answer_may_overshoot_a_limit(limits: Limits) -> None:
    assert ended(Machine(Begin(), limits=limits).feed(reply(text="x"))).outcome == "answered"


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(tokens=1)])
def test_a_step_that_parks_may_overshoot_a_limit(limits: Limits) -> None:
    assert ended(Machine(Begin(), limits=limits).feed(reply(gated("a")))).outcome == "parked"


def test_a_limit_after_refused_calls_is_one_record() -> None:
    effects = Machine(Begin(), limits=Limits(steps=1)).feed(reply(refused("a")))
    assert [effect.gate for effect in effects if isinstance(effect, Record)] == ["end"]
    assert [type(fact) for fact in facts(effects)] == [Said, Finished, Ended]


def test_a_run_that_goes_on_counts_the_steps_it_had() -> None:
    before = State(run="r", limits=Limits(steps=3), progress=Progress(steps=3))
    _, effects = advance(before, Begin())
    error = ended(effects).error
    assert error is not None
    assert error.details == {"limit": "steps"}


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("steps", -1), ("tokens", 0)])
def test_limits_are_at_least_one(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})


# Cancelling.


def test_cancelling_before_the_start_ends_the_run() -> None:
    run = Machine()
    assert run.feed(Cancelled()) == (Record(facts=(Ended(outcome="cancelled"),), gate="end"),)
    assert run.feed(Recorded()) == (End(ended=Ended(outcome="cancelled")),)


def test_cancelling_a_model_call_counts_its_usage_as_unknown() -> None:
    run = Machine(Begin())
    effects = run.feed(Cancelled(model_in_flight=True))
    assert facts(effects) == (Ended(outcome="cancelled", usage=LOST),)
    assert run.state.usage == LOST


def test_cancelling_drops_a_held_reply() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), finished("a"), reply(text="too late"))
    effects = run.feed(Cancelled())
    assert facts(effects) == (Ended(outcome="cancelled", usage=LOST),)
    assert run.feed(Recorded()) == ()
    assert kinds(run.feed(Recorded())) == ["End"]


def test_cancelling_before_bodies_run_says_that_nothing_was_done() -> None:
    run = Machine(Begin(), reply(ready("a"), gated("b")))
    effects = run.feed(Cancelled())
    texts = [fact.result.content for fact in facts(effects) if isinstance(fact, Finished)]
    assert results(effects) == {"a": "CANCELLED", "b": "CANCELLED"}
    assert all("nothing was done" in text for text in texts)
    assert ran(run.feed(Recorded())) == {}
    assert kinds(run.feed(Recorded())) == ["End"]


def test_cancelling_bodies_says_which_may_have_happened() -> None:
    run = Machine(Begin(), reply(ready("a"), gated("b"), ready("c")), Recorded(), finished("c"))
    effects = run.feed(Cancelled())
    texts = {fact.result.call: fact.result.content for fact in facts(effects) if isinstance(fact, Finished)}
    assert kinds(effects) == ["ToolFinished", "ToolFinished", "Record"]
    assert "may have happened" in texts["a"]
    assert "nothing was done" in texts["b"]
    assert set(texts) == {"a", "b"}
    assert all(fact.source == "cancel" for fact in facts(effects) if isinstance(fact, Finished))
    assert ended(effects) == Ended(outcome="cancelled")


def test_cancelling_a_parked_child_answers_its_call() -> None:
    run = Machine(Begin(), reply(ready("a", delegate=True), ready("b")), Recorded(), CallParked(call="a"))
    assert results(run.feed(Cancelled())) == {"a": "CANCELLED", "b": "CANCELLED"}


def test_an_end_that_is_being_recorded_is_not_cancelled_any_more() -> None:
    run = Machine(Begin(), reply(text="x"))
    assert run.feed(Cancelled(model_in_flight=True)) == ()
    assert kinds(run.feed(Recorded())) == ["RunFinished", "End"]


def test_a_refused_record_ends_the_run_without_a_word_about_its_end() -> None:
    run = Machine(Begin(), reply(ready("a")))
    assert run.feed(RecordRefused()) == (End(ended=None),)
    assert run.feed(Recorded()) == ()


# Going on: the shapes of an open call.

DELEGATE = ready("a", effect="none", delegate=True)


@pytest.mark.parametrize(
    ("shape", "start"),
    [
        pytest.param(
            OpenCall(plan=ready("a")), Start(call="a", attempt=1, effect="once", digest="da"), id="never started"
        ),
        pytest.param(
            OpenCall(plan=ready("a", effect="none"), started=7),
            Start(call="a", attempt=8, effect="none", digest="da"),
            id="started, no effect",
        ),
        pytest.param(
            OpenCall(plan=ready("a", effect="repeatable"), started=2),
            Start(call="a", attempt=3, effect="repeatable", digest="da"),
            id="started, repeatable",
        ),
        pytest.param(
            OpenCall(plan=gated("a", effect="none"), started=1),
            Start(call="a", attempt=2, effect="none", digest="da"),
            id="approved, then started",
        ),
        pytest.param(
            OpenCall(plan=DELEGATE),
            Start(call="a", attempt=1, effect="none", digest="da", delegate=True),
            id="delegating, never started",
        ),
    ],
)
def test_an_open_call_that_may_run_is_started(shape: OpenCall, start: Start) -> None:
    run = Machine()
    effects = run.feed(Begin(open=(shape,)))
    assert kinds(effects) == ["RunStarted", "Record"]
    assert effects[1] == Record(facts=(Started(starts=(start,)),), gate="bodies")
    assert ran(run.feed(Recorded())) == {"a": start.attempt}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(OpenCall(plan=ready("a"), started=1, fresh=True), id="fresh"),
        pytest.param(OpenCall(plan=gated("a"), started=1, fresh=True), id="fresh and approved"),
        pytest.param(OpenCall(plan=DELEGATE, started=1, delegated=True), id="delegated"),
    ],
)
def test_an_open_call_whose_start_is_recorded_runs_at_once(shape: OpenCall) -> None:
    effects = Machine().feed(Begin(open=(shape,)))
    assert kinds(effects) == ["RunStarted", "ToolStarted", "RunTools"]
    assert ran(effects) == {"a": 1}


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ready("a"), id="once"),
        pytest.param(ready("a", effect="repeatable", attempts=1), id="repeatable, no attempt left"),
        pytest.param(gated("a"), id="approved, then started, once"),
    ],
)
def test_an_open_call_that_may_have_happened_is_asked_about(plan: Ready | Gated) -> None:
    effects = Machine().feed(Begin(open=(OpenCall(plan=plan, started=1),)))
    asked, end = facts(effects)
    assert isinstance(asked, Asked)
    assert (asked.kind, asked.call.id, asked.digest, asked.expires) == ("uncertain", "a", "da", None)
    assert end == Ended(outcome="parked", open=("a",))


def test_an_open_call_that_is_gated_is_asked_for() -> None:
    asked, end = facts(Machine().feed(Begin(open=(OpenCall(plan=gated("a")),))))
    assert asked == Asked(kind="approval", call=call("a"), digest="da", reason="why a", expires=60.0)
    assert end == Ended(outcome="parked", open=("a",))


@pytest.mark.parametrize("started", [0, 1])
def test_an_open_call_that_is_refused_gets_its_result(started: int) -> None:
    effects = Machine().feed(Begin(open=(OpenCall(plan=refused("a"), started=started),)))
    assert kinds(effects) == ["RunStarted", "ToolFinished", "Record", "StepStarted", "CallModel"]
    assert results(effects) == {"a": "NO_SUCH_TOOL"}


def test_a_fresh_call_that_is_refused_now_gets_its_result() -> None:
    effects = Machine().feed(Begin(open=(OpenCall(plan=refused("a"), started=1, fresh=True),)))
    assert results(effects) == {"a": "NO_SUCH_TOOL"}


def test_fresh_calls_wait_for_the_record_of_their_siblings() -> None:
    shapes = (
        OpenCall(plan=ready("a"), started=1, fresh=True),
        OpenCall(plan=ready("b", effect="none"), started=1),
        OpenCall(plan=refused("c")),
        OpenCall(plan=gated("d")),
    )
    run = Machine()
    effects = run.feed(Begin(open=shapes))
    assert kinds(effects) == ["RunStarted", "ToolFinished", "Record"]
    assert [type(fact) for fact in facts(effects)] == [Finished, Started]
    assert ran(run.feed(Recorded())) == {"a": 1, "b": 2}
    run.feed(finished("a"))
    assert ended(run.feed(finished("b"))).open == ("d",)


def test_cancelling_open_calls_says_which_had_started() -> None:
    shapes = tuple(OpenCall(plan=ready(name, effect="none"), started=int(name in "bd")) for name in "abcd")
    effects = Machine(Begin(open=shapes)).feed(Cancelled())
    texts = {fact.result.call: fact.result.content for fact in facts(effects) if isinstance(fact, Finished)}
    assert ["may have happened" in texts[name] for name in "abcd"] == [False, True, False, True]
    assert ["nothing was done" in texts[name] for name in "abcd"] == [True, False, True, False]


# Every input in every phase.

TWO = reply(ready("a"), ready("b", delegate=True))
PHASES: dict[str, tuple[Input, ...]] = {
    "new": (),
    "model": (Begin(),),
    "model, results on their way": (Begin(), TWO, Recorded(), finished("a"), finished("b")),
    "model, reply held": (Begin(), TWO, Recorded(), finished("a"), finished("b"), reply(text="held")),
    "bodies": (Begin(), TWO),
    "tools": (Begin(), TWO, Recorded()),
    "tools, one done": (Begin(), TWO, Recorded(), finished("a"), Recorded()),
    "ending": (Begin(), reply(text="x")),
    "ended": (Begin(), reply(text="x"), Recorded()),
    "taken away": (Begin(), RecordRefused()),
}
INPUTS: dict[str, Input] = {
    "begin": Begin(),
    "recorded": Recorded(),
    "refused": RecordRefused(),
    "replied": reply(text="late"),
    "failed": ModelFailed(error=BROKEN),
    "finished": finished("a"),
    "finished, unknown": finished("z"),
    "parked": CallParked(call="a"),
    "resumed": CallResumed(call="a"),
    "uncertain": CallUncertain(call="a", reason="late"),
    "cancelled": Cancelled(),
}
ACTS: dict[str, set[str]] = {
    "new": {"begin", "refused", "failed", "cancelled"},
    "model": {"refused", "replied", "failed", "cancelled"},
    "model, results on their way": {"recorded", "refused", "replied", "failed", "cancelled"},
    "model, reply held": {"recorded", "refused", "replied", "cancelled"},
    "bodies": {"recorded", "refused", "cancelled"},
    "tools": {"refused", "finished", "parked", "uncertain", "cancelled"},
    "tools, one done": {"refused", "cancelled"},
    "ending": {"recorded", "refused"},
    "ended": set(),
    "taken away": set(),
}


def _pairs(*, acting: bool) -> list[object]:
    return [
        pytest.param(
            phase,
            name,
            id=f"{name} in {phase}",
        )
        for phase in PHASES
        for name in INPUTS
        if (name in ACTS[phase]) is acting
    ]


@pytest.mark.parametrize(("phase", "name"), _pairs(acting=False))
def test_an_input_that_comes_too_late_changes_nothing(phase: str, name: str) -> None:
    run = Machine(*PHASES[phase])
    before = run.state
    assert run.feed(INPUTS[name]) == ()
    assert run.state == before


@pytest.mark.parametrize(("phase", "name"), _pairs(acting=True))
def test_an_input_in_time_changes_the_state_and_causes_one_record_at_most(phase: str, name: str) -> None:
    run = Machine(*PHASES[phase])
    before = run.state
    effects = run.feed(INPUTS[name])
    assert run.state != before
    assert sum(isinstance(effect, Record) for effect in effects) <= 1


@pytest.mark.parametrize("phase", [phase for phase in PHASES if ACTS[phase]])
def test_a_refused_record_ends_the_run_in_every_phase(phase: str) -> None:
    run = Machine(*PHASES[phase])
    assert run.feed(RecordRefused()) == (End(ended=None),)
    assert run.state.phase == "ended"


@pytest.mark.parametrize("phase", [phase for phase in PHASES if "cancelled" in ACTS[phase]])
def test_a_cancelled_run_ends_in_every_phase_with_a_result_for_each_open_call(phase: str) -> None:
    run = Machine(*PHASES[phase])
    step = run.state.step
    still_open = () if step is None else tuple(call.id for call in step.open())
    effects = run.feed(Cancelled())
    assert results(effects) == dict.fromkeys(still_open, "CANCELLED")
    assert ended(effects).outcome == "cancelled"
    while run.state.phase != "ended":
        effects = run.feed(Recorded())
    assert kinds(effects) == ["End"]


# Any run, any order of inputs.


@dataclass
class World:
    """A shell and a journal that hold the machine to its promises."""

    state: State
    on_the_way: deque[Record] = field(default_factory=deque)
    started: Counter[str] = field(default_factory=Counter)
    """The durable starts of each call."""
    asked_for: list[str] = field(default_factory=list)
    """Every call that a message asked for."""
    answers: Counter[str] = field(default_factory=Counter)
    bodies: dict[str, Plan] = field(default_factory=dict)
    """What runs now."""
    parked: set[str] = field(default_factory=set)
    allowed: dict[str, int] = field(default_factory=dict)
    """Calls that may run without a start of this run, with their attempt."""
    ran: set[str] = field(default_factory=set)
    asking: bool = False
    end: End | None = None
    told: list[object] = field(default_factory=list)

    def feed(self, given_input: Input) -> None:
        self.state, effects = advance(self.state, given_input)
        records = [effect for effect in effects if isinstance(effect, Record)]
        assert len(records) <= 1
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        assert self.end is None, "nothing comes after the end"
        match effect:
            case Record():
                self._remember(effect)
            case CallModel():
                assert not self.asking
                assert all(self.answers[name] for name in self.asked_for)
                self.asking = True
            case RunTools():
                for plan, attempt in zip(effect.plans, effect.attempts, strict=True):
                    self._run(plan, attempt)
            case Emit():
                self.told.append(effect.event)
            case End():
                assert effect.ended is None or not self.on_the_way, "the end is told after it is recorded"
                self.end = effect

    def _run(self, plan: Plan, attempt: int) -> None:
        name = plan.call.id
        assert not isinstance(plan, Refused)
        assert name not in self.ran
        assert self.allowed.get(name) == attempt or self.started[name] == attempt, "a body waits for its start"
        assert not self.answers[name]
        self.ran.add(name)
        self.bodies[name] = plan

    def _remember(self, record: Record) -> None:
        for fact in record.facts:
            match fact:
                case Said():
                    assert not self.on_the_way, "a reply waits for what is on its way"
                    self.asked_for.extend(call.id for call in fact.message.calls)
                case Finished():
                    self.answers[fact.result.call] += 1
                case Started():
                    assert record.gate == "bodies"
                case Asked():
                    assert not self.answers[fact.call.id]
                case Ended():
                    assert record.gate == "end"
        self.on_the_way.append(record)

    # -- what may happen next

    def choices(self) -> list[tuple[Callable[..., None], str]]:
        """What may happen now, with the call that it happens to."""
        usual: list[tuple[Callable[..., None], str]] = []
        if self.on_the_way:
            usual += [(World.durable, "")] * 3
        if self.asking:
            usual += [(World.replied, ""), (World.replied, ""), (World.failed, "")]
        for name, plan in self.bodies.items():
            usual.append((World.finished, name))
            if not (isinstance(plan, Ready) and plan.delegate):
                usual.append((World.uncertain, name))
            else:
                usual.append((World.resumed if name in self.parked else World.went_to_park, name))
        assert usual, "a run that has not ended waits for something"
        return [*usual, (World.cancelled, ""), (World.refused, ""), (World.late, "")]

    def durable(self, draw: st.DrawFn, name: str) -> None:
        for fact in self.on_the_way.popleft().facts:
            for start in fact.starts if isinstance(fact, Started) else ():
                self.started[start.call] += 1
                assert self.started[start.call] == start.attempt
        self.feed(Recorded())

    def replied(self, draw: st.DrawFn, name: str) -> None:
        self.asking = False
        self.feed(draw_reply(draw, self.state))

    def failed(self, draw: st.DrawFn, name: str) -> None:
        self.asking = False
        self.feed(ModelFailed(error=BROKEN))

    def finished(self, draw: st.DrawFn, name: str) -> None:
        del self.bodies[name]
        self.feed(finished(name, usage=Usage(output_tokens=1)))

    def went_to_park(self, draw: st.DrawFn, name: str) -> None:
        self.parked.add(name)
        self.feed(CallParked(call=name))

    def resumed(self, draw: st.DrawFn, name: str) -> None:
        self.parked.discard(name)
        self.feed(CallResumed(call=name))

    def uncertain(self, draw: st.DrawFn, name: str) -> None:
        del self.bodies[name]
        self.feed(CallUncertain(call=name, reason="late"))

    def cancelled(self, draw: st.DrawFn, name: str) -> None:
        asking, self.asking = self.asking, False
        self.bodies.clear()
        self.feed(Cancelled(model_in_flight=asking))

    def refused(self, draw: st.DrawFn, name: str) -> None:
        self.feed(RecordRefused())

    def late(self, draw: st.DrawFn, name: str) -> None:
        before = self.state
        for answered in self.answers:
            self.feed(finished(answered))
            self.feed(CallUncertain(call=answered, reason="late"))
            self.feed(CallParked(call=answered))
            self.feed(CallResumed(call=answered))
        assert self.state == before


PLAN_KINDS = ("none", "repeatable", "once", "delegate", "gated", "refused")


def make_plan(kind: str, name: str) -> Plan:
    match kind:
        case "delegate":
            return ready(name, effect="none", delegate=True)
        case "gated":
            return gated(name)
        case "refused":
            return refused(name)
        case _:
            return ready(name, effect=kind, attempts=2)


@st.composite
def open_calls(draw: st.DrawFn) -> tuple[OpenCall, ...]:
    shapes = []
    for place, kind in enumerate(draw(st.lists(st.sampled_from(PLAN_KINDS), max_size=5))):
        plan = make_plan(kind, f"open{place}")
        started = draw(st.integers(0, 3))
        runs = started > 0 and not isinstance(plan, Refused)
        delegated = runs and kind == "delegate"
        fresh = runs and not delegated and draw(st.booleans())
        shapes.append(OpenCall(plan=plan, started=started, fresh=fresh, delegated=delegated))
    return tuple(shapes)


def draw_reply(draw: st.DrawFn, state: State) -> Replied:
    kinds_drawn = draw(st.lists(st.sampled_from(PLAN_KINDS), max_size=5))
    plans = tuple(make_plan(kind, f"{state.progress.steps}.{place}") for place, kind in enumerate(kinds_drawn))
    reason = draw(st.sampled_from(["stop", "length"]))
    return reply(*plans, reason=reason, usage=draw(st.sampled_from([SPENT, None])))


def _check_the_end(world: World, end: Ended) -> None:
    left = set(end.open)
    assert bool(left) is (end.outcome == "parked")
    assert {name: world.answers[name] for name in world.asked_for} == {
        name: 0 if name in left else 1 for name in world.asked_for
    }
    assert set(world.answers) <= set(world.asked_for)
    seqs = [event.seq for event in world.told if isinstance(event, ToolStarted | ToolFinished)]
    assert seqs == list(range(len(seqs)))
    assert any(isinstance(event, RunFinished) for event in world.told) is (end.outcome == "answered")


LIMITS = st.builds(Limits, steps=st.integers(1, 4), tokens=st.none() | st.integers(1, 40))


@settings(max_examples=300)
@given(st.data(), LIMITS, open_calls())
def test_each_call_gets_one_result_or_stays_open_whatever_the_order(
    data: st.DataObject, limits: Limits, shapes: tuple[OpenCall, ...]
) -> None:
    world = World(State(run="r", limits=limits))
    for shape in shapes:
        name = shape.plan.call.id
        world.asked_for.append(name)
        world.started[name] = shape.started
        if shape.fresh or shape.delegated:
            world.allowed[name] = shape.started
    world.feed(Begin(open=shapes))
    while world.end is None:
        happen, name = data.draw(st.sampled_from(world.choices()))
        happen(world, data.draw, name)
    if world.end.ended is not None:
        _check_the_end(world, world.end.ended)
    before = world.state
    for late in INPUTS.values():
        assert advance(before, late) == (before, ())
