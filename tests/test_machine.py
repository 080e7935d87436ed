"""The pure machine of a run: tables over `advance`, and a property over random runs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import Limits, Message, Text, ToolCall, ToolResult, Usage
from weft._limits import START, Progress, reached
from weft._machine import Rules, State, advance
from weft._moves import (
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
    Refused,
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
from weft.errors import WrongCall
from weft.events import Parked, RunFinished, RunStarted, Steered, StepFinished, StepStarted, ToolFinished, ToolStarted
from weft.messages import NO_USAGE, ErrorInfo
from weft.model import Finish

SPENT = Usage(input_tokens=10, output_tokens=5)
LOST = Usage(unknown=1)
BROKEN = ErrorInfo(code="MODEL", message="no answer")


def call(name: str, tool: str = "tool", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=name, name=tool, arguments=arguments)


def ready(name: str, *, effect: str = "once", attempts: int = 3, delegate: bool = False, tool: str = "tool") -> Ready:
    return Ready(call=call(name, tool), effect=effect, digest=f"d{name}", attempts=attempts, delegate=delegate)


def gated(name: str, *, effect: str = "once", attempts: int = 3) -> Gated:
    reason = f"why {name}"
    return Gated(call=call(name), effect=effect, digest=f"d{name}", reason=reason, expires=60.0, attempts=attempts)


def refused(name: str, code: str = "NO_SUCH_TOOL", tool: str = "tool") -> Refused:
    return Refused(call=call(name, tool), result=result(name, error=code))


def submitted(name: str) -> Submitted:
    return Submitted(call=call(name, "submit"), result=result(name, "Taken."))


def result(name: str, content: str = "done", *, error: str | None = None) -> ToolResult:
    return ToolResult(call=name, content=content, is_error=error is not None, code=error)


def finished(name: str, usage: Usage = NO_USAGE, *, error: str | None = None) -> CallFinished:
    return CallFinished(result=result(name, error=error), usage=usage)


def steer(text: str) -> Steer:
    return Steer(message=Message.user(text), item=f"item {text}")


def reply(
    *plans: Plan, text: str = "", reason: str = "stop", usage: Usage | None = SPENT, problem: str | None = None
) -> Replied:
    parts = (*((Text(text=text),) if text else ()), *(plan.call for plan in plans))
    message = Message(role="assistant", parts=parts)
    finish = Finish(reason=reason, usage=usage)
    return Replied(message=message, finish=finish, model="p:m", plans=plans, problem=problem)


def said(given: Replied) -> Said:
    return Said(message=given.message, usage=given.finish.usage, finish=given.finish.reason, model=given.model)


STOPS = Rules(stops=True)
TYPED = Rules(structured=True)
SUBMITS = Rules(structured=True, submission="submit")


class Machine:
    """A run that is given one input after the other."""

    def __init__(self, *inputs: Input, limits: Limits = Limits(), rules: Rules = Rules()) -> None:  # noqa: B008  # frozen values
        self.state = State(run="r", limits=limits, rules=rules)
        self.feed(*inputs)

    def feed(self, *inputs: Input) -> tuple[Effect, ...]:
        """The effects of the last input."""
        effects: tuple[Effect, ...] = ()
        for given_input in inputs:
            self.state, effects = advance(self.state, given_input)
        return effects

    def durable(self) -> tuple[Effect, ...]:
        """Everything that is on its way is recorded; the effects of the last record."""
        effects: tuple[Effect, ...] = ()
        while self.state.unrecorded:
            effects = self.feed(Recorded())
        return effects


def facts(effects: tuple[Effect, ...]) -> tuple[Fact, ...]:
    return tuple(fact for effect in effects if isinstance(effect, Record) for fact in effect.facts)


def results(effects: tuple[Effect, ...]) -> dict[str, str | None]:
    """The results among the facts: the call's id and the code."""
    return {fact.result.call: fact.result.code for fact in facts(effects) if isinstance(fact, Finished)}


def joined(effects: tuple[Effect, ...]) -> list[str]:
    """The texts of the messages that join the run."""
    return [fact.message.text for fact in facts(effects) if isinstance(fact, Joined)]


def records(effects: tuple[Effect, ...]) -> list[str]:
    """The gates of the records."""
    return [effect.gate for effect in effects if isinstance(effect, Record)]


def problem_of(effects: tuple[Effect, ...]) -> ErrorInfo:
    """The error of a run that fails."""
    end = ended(effects)
    assert end.outcome == "failed"
    assert end.error is not None
    return end.error


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
    with pytest.raises(WrongCall, match=name):
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


def test_a_run_that_will_be_cancelled_ends_no_other_way() -> None:
    run = Machine(limits=Limits(steps=1))
    run.state = replace(run.state, progress=Progress(steps=1), cancelling=True)
    assert facts(run.feed(Begin())) == ()
    assert ended(run.feed(Cancelled())) == Ended(outcome="cancelled")


def test_what_comes_before_such_an_end_is_recorded() -> None:
    run = Machine(Begin())
    run.state = replace(run.state, cancelling=True)
    effects = run.feed(reply(text="x"))
    assert [type(fact) for fact in facts(effects)] == [Said]
    assert records(effects) == ["reply"]
    run.feed(Recorded())
    assert ended(run.feed(Cancelled())).outcome == "cancelled"


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


@pytest.mark.parametrize("by", ["cancel", "interrupt", None])
def test_a_run_that_ends_before_it_goes_on_says_which_open_calls_had_started(
    by: Literal["cancel", "interrupt"] | None,
) -> None:
    shapes = (
        OpenCall(plan=ready("new")),
        OpenCall(plan=ready("begun"), started=1),
        OpenCall(plan=ready("approved"), started=1, fresh=True),
        OpenCall(plan=ready("delegated"), delegated=True),
    )
    run = Machine()
    effects = run.feed(ModelFailed(error=BROKEN, open=shapes) if by is None else Cancelled(by=by, open=shapes))
    texts = {fact.result.call: fact.result.content for fact in facts(effects) if isinstance(fact, Finished)}
    assert {name: "may have happened" in text for name, text in texts.items()} == {
        "new": False,
        "begun": True,
        "approved": False,
        "delegated": True,
    }
    assert {fact.source for fact in facts(effects) if isinstance(fact, Finished)} == {by or "repair"}
    assert set(results(effects).values()) == {"INTERRUPTED" if by == "interrupt" else "CANCELLED"}


# Exits: the first that matches ends the step.

AT: dict[str, Limits] = {
    "steps": Limits(steps=1),
    "tokens": Limits(tokens=15),
    "tool_calls": Limits(tool_calls=1),
    "seconds": Limits(seconds=5),
    "repeats": Limits(repeats=2),
    "retries": Limits(retries=0),
}
"""Limits that the step reaches that `step_at` makes."""


def step_at(limit: str, *plans: Plan, rules: Rules = Rules()) -> Machine:  # noqa: B008  # a frozen value
    """A run whose first step reaches this limit; the body of `a` is still at work, and nothing else."""
    run = Machine(Begin(), limits=AT[limit], rules=rules)
    first = reply(ready("a"), ready("b", tool="other"), *plans)
    if limit == "repeats":  # the step before it has asked for the same
        asked = tuple((call.name, call.arguments) for call in first.message.calls)
        run.state = replace(run.state, progress=run.state.progress._replace(asked=asked, same=1))
    run.feed(first)
    run.durable()
    if limit == "seconds":
        assert run.feed(Deadline()) == ()
    run.feed(finished("b", error="RETRY"))
    return run


@pytest.mark.parametrize("limit", AT)
def test_a_limit_fails_the_run_once_the_step_is_over(limit: str) -> None:
    run = step_at(limit)
    effects = run.feed(finished("a"))
    error = problem_of(effects)
    assert (error.kind, error.code, error.details) == ("limit", "LIMIT", {"limit": limit})
    assert kinds(effects) == ["ToolFinished", "Record"]
    assert records(effects) == ["end"]
    assert kinds(run.durable()) == ["End"]


@pytest.mark.parametrize("limit", AT)
def test_the_same_step_without_the_limit_goes_on(limit: str) -> None:
    run = Machine(Begin(), reply(ready("a"), ready("b")), Recorded(), finished("b", error="RETRY"))
    assert kinds(run.feed(finished("a")))[-1] == "CallModel"


@pytest.mark.parametrize("limit", AT)
def test_a_stop_condition_comes_before_a_limit(limit: str) -> None:
    run = step_at(limit, rules=STOPS)
    assert kinds(run.feed(finished("a"))) == ["ToolFinished", "Record", "CheckStop"]
    assert ended(run.feed(StopChecked(stop=True))) == Ended(outcome="stopped")


@pytest.mark.parametrize("limit", AT)
def test_a_limit_is_reached_where_no_condition_stops_the_run(limit: str) -> None:
    run = step_at(limit, rules=STOPS)
    run.feed(finished("a"))
    assert problem_of(run.feed(StopChecked(stop=False))).details == {"limit": limit}


@pytest.mark.parametrize("limit", AT)
def test_a_submission_may_overshoot_every_limit(limit: str) -> None:
    assert ended(step_at(limit, submitted("s")).feed(finished("a"))) == Ended(outcome="answered", stop="stop")


@pytest.mark.parametrize("limit", AT)
def test_a_step_that_parks_may_overshoot_every_limit(limit: str) -> None:
    assert ended(step_at(limit, gated("g")).feed(finished("a"))) == Ended(outcome="parked", open=("g",))


@pytest.mark.parametrize("limit", AT)
def test_cancelling_comes_before_a_limit(limit: str) -> None:
    effects = step_at(limit).feed(Cancelled())
    assert results(effects) == {"a": "CANCELLED"}
    assert ended(effects) == Ended(outcome="cancelled")


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param((), id="while the model is called"),
        pytest.param((Deadline(),), id="and the time is over"),
    ],
)
def test_an_answer_at_a_limit_is_an_answer(prepare: tuple[Input, ...]) -> None:
    run = Machine(Begin(), *prepare, limits=Limits(steps=1, tokens=1, seconds=5))
    assert ended(run.feed(reply(text="x"))).outcome == "answered"


def test_cancelling_comes_before_pending_requests() -> None:
    run = Machine(Begin(), reply(gated("a"), ready("b")), Recorded())
    effects = run.feed(Cancelled())
    assert results(effects) == {"a": "CANCELLED", "b": "CANCELLED"}
    assert ended(effects) == Ended(outcome="cancelled")
    assert not [fact for fact in facts(effects) if isinstance(fact, Asked)]


def test_cancelling_comes_before_a_submission() -> None:
    run = Machine(Begin(), reply(submitted("a"), ready("b")), Recorded(), rules=SUBMITS)
    effects = run.feed(Cancelled())
    assert results(effects) == {"b": "CANCELLED"}
    assert ended(effects).outcome == "cancelled"


def test_cancelling_comes_before_a_stop_condition() -> None:
    run = Machine(Begin(), reply(refused("a")), rules=STOPS)
    assert ended(run.feed(Cancelled())).outcome == "cancelled"
    assert run.feed(StopChecked(stop=True)) == ()
    assert kinds(run.durable()) == ["End"]


def test_pending_requests_come_before_a_submission() -> None:
    effects = Machine(Begin(), rules=SUBMITS).feed(reply(submitted("a"), gated("b")))
    assert results(effects) == {"a": None}
    assert ended(effects) == Ended(outcome="parked", open=("b",))


def test_pending_requests_come_before_a_stop_condition() -> None:
    effects = Machine(Begin(), rules=STOPS).feed(reply(refused("a"), gated("b")))
    assert CheckStop() not in effects
    assert ended(effects).outcome == "parked"


def test_an_answer_comes_before_a_stop_condition() -> None:
    effects = Machine(Begin(), rules=STOPS).feed(reply(text="x"))
    assert CheckStop() not in effects
    assert ended(effects).outcome == "answered"


def test_a_submission_comes_before_a_stop_condition() -> None:
    effects = Machine(Begin(), rules=SUBMITS._replace(stops=True)).feed(reply(submitted("a"), refused("b")))
    assert CheckStop() not in effects
    assert results(effects) == {"a": None, "b": "NO_SUCH_TOOL"}
    assert ended(effects) == Ended(outcome="answered", stop="stop")


# A submission.


def test_a_submission_ends_the_run_with_one_record() -> None:
    asked = reply(submitted("a"))
    run = Machine(Begin(), rules=SUBMITS)
    effects = run.feed(asked)
    assert kinds(effects) == ["StepFinished", "ToolFinished", "Record"]
    end = Ended(outcome="answered", stop="stop")
    taken = Finished(result=result("a", "Taken."), source="refused")
    assert effects[-1] == Record(facts=(said(asked), taken, end), gate="end")
    assert kinds(run.feed(Recorded())) == ["RunFinished", "End"]


def test_a_submission_waits_for_its_siblings() -> None:
    run = Machine(Begin(), reply(ready("a"), submitted("b")), rules=SUBMITS)
    assert ran(run.feed(Recorded())) == {"a": 1}
    effects = run.feed(finished("a"))
    assert kinds(effects) == ["ToolFinished", "Record"]
    assert ended(effects).outcome == "answered"


def test_a_run_that_goes_on_answers_with_the_submission_that_it_had() -> None:
    shape = OpenCall(plan=ready("a"), started=1, fresh=True)
    run = Machine(Begin(open=(shape,), submitted=True), rules=SUBMITS)
    assert ended(run.feed(finished("a"))) == Ended(outcome="answered", stop="stop")


def test_a_submission_that_is_open_when_its_run_goes_on_is_taken() -> None:
    effects = Machine(rules=SUBMITS).feed(Begin(open=(OpenCall(plan=submitted("a")),)))
    assert kinds(effects) == ["RunStarted", "ToolFinished", "Record"]
    assert ended(effects).outcome == "answered"


def test_a_run_that_goes_on_with_all_results_and_a_submission_answers_at_once() -> None:
    effects = Machine(limits=Limits(steps=1), rules=SUBMITS).feed(Begin(stepped=True, submitted=True))
    assert kinds(effects) == ["RunStarted", "Record"]
    assert facts(effects) == (Ended(outcome="answered", stop="stop"),)


# Stop conditions.


def test_stop_conditions_are_asked_once_each_call_has_its_result() -> None:
    run = Machine(Begin(), reply(ready("a"), ready("b")), Recorded(), rules=STOPS)
    assert kinds(run.feed(finished("b"))) == ["ToolFinished", "Record"]
    effects = run.feed(finished("a"))
    assert kinds(effects) == ["ToolFinished", "Record", "CheckStop"]
    assert records(effects) == ["reply"]


def test_the_model_is_called_once_no_condition_stops_the_run() -> None:
    run = Machine(Begin(), reply(refused("a")), rules=STOPS)
    assert kinds(run.feed(StopChecked(stop=False))) == ["StepStarted", "CallModel"]


def test_a_stopped_run_is_told_after_its_results_and_its_end_are_recorded() -> None:
    run = Machine(Begin(), reply(refused("a"), text="so far"), rules=STOPS)
    assert kinds(run.feed(StopChecked(stop=True))) == ["Record"]
    assert run.feed(Recorded()) == ()
    assert run.feed(Recorded()) == (
        Emit(event=RunFinished(run="r", stop="stopped", text="so far", usage=SPENT)),
        End(ended=Ended(outcome="stopped")),
    )


def test_a_broken_stop_condition_fails_the_run_whatever_the_others_say() -> None:
    run = Machine(Begin(), reply(refused("a")), rules=STOPS)
    effects = run.feed(StopChecked(stop=True, error=BROKEN))
    assert ended(effects) == Ended(outcome="failed", error=BROKEN)


def test_a_run_that_goes_on_after_a_step_asks_the_stop_conditions_again() -> None:
    run = Machine(rules=STOPS)
    assert kinds(run.feed(Begin(stepped=True))) == ["RunStarted", "CheckStop"]
    assert ended(run.feed(StopChecked(stop=True))).outcome == "stopped"


def test_a_run_that_goes_on_after_a_step_without_stop_conditions_calls_the_model() -> None:
    assert kinds(Machine().feed(Begin(stepped=True))) == ["RunStarted", "StepStarted", "CallModel"]


def test_a_cut_step_asks_no_stop_condition() -> None:
    effects = Machine(Begin(), rules=STOPS).feed(reply(ready("a"), reason="length"))
    assert kinds(effects)[-1] == "CallModel"


# Steering.


def test_steers_join_after_a_step_in_the_order_in_which_they_came() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), steer("one"), steer("two"))
    effects = run.feed(finished("a"))
    assert kinds(effects) == ["ToolFinished", "Record", "Steered", "Steered", "StepStarted", "CallModel"]
    assert effects[1] == Record(
        facts=(
            Finished(result=result("a"), source="body", attempt=1),
            Joined(message=Message.user("one"), source="steer", item="item one"),
            Joined(message=Message.user("two"), source="steer", item="item two"),
        ),
        gate="reply",
    )
    assert events(effects)[1:3] == [Steered(run="r", message=Message.user(text)) for text in ("one", "two")]


def test_a_steer_joins_instead_of_an_answer_and_the_run_answers_later() -> None:
    run = Machine(Begin(), steer("one"))
    answer = reply(text="x")
    effects = run.feed(answer)
    assert kinds(effects) == ["StepFinished", "Record", "Steered", "StepStarted", "CallModel"]
    assert [type(fact) for fact in facts(effects)] == [Said, Joined]
    assert records(effects) == ["reply"]
    run.durable()
    assert facts(run.feed(reply(text="y"))) == (said(reply(text="y")), Ended(outcome="answered", stop="stop"))


def test_a_steer_is_delivered_once() -> None:
    run = Machine(Begin(), steer("one"), reply(refused("a")))
    run.durable()
    assert joined(run.feed(reply(refused("b")))) == []


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param((steer("one"), Begin()), id="before the run begins"),
        pytest.param((steer("one"), Begin(stepped=True)), id="before the run goes on"),
        pytest.param((Begin(), steer("one"), reply(refused("a"))), id="before a step of refused calls"),
        pytest.param((Begin(), steer("one"), reply(ready("a"), reason="length")), id="before a cut step"),
        pytest.param((Begin(), steer("one"), reply(text="x", reason="length")), id="before a cut answer"),
        pytest.param((Begin(), steer("one"), reply(text="x", reason="refusal")), id="before a refusal"),
        pytest.param((Begin(), reply(ready("a")), steer("one"), Recorded(), finished("a")), id="before bodies run"),
        pytest.param(
            (Begin(), reply(ready("a"), ready("b")), Recorded(), finished("a"), steer("one"), finished("b")),
            id="while results are on their way",
        ),
    ],
)
def test_a_steer_joins_at_the_next_drain_point(inputs: tuple[Input, ...]) -> None:
    run = Machine(*inputs[:-1])
    assert run.state.steers == (steer("one"),)
    effects = run.feed(inputs[-1])
    assert joined(effects) == ["one"]
    assert kinds(effects)[-3:] == ["Steered", "StepStarted", "CallModel"]
    assert records(effects) == ["reply"]
    assert run.state.steers == ()


def test_a_steer_that_comes_while_a_reply_is_held_joins_after_that_reply() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), finished("a"), reply(text="held"), steer("one"))
    effects = run.feed(Recorded())
    assert [type(fact) for fact in facts(effects)] == [Said, Joined]
    assert kinds(effects)[-1] == "CallModel"


def test_a_steer_that_comes_with_a_held_reply_with_calls_joins_after_their_results() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), finished("a"), reply(ready("b")), steer("one"))
    assert joined(run.feed(Recorded())) == []
    assert joined(run.feed(Recorded())) == []
    assert joined(run.feed(finished("b"))) == ["one"]


def test_a_steer_that_comes_after_the_model_was_called_waits_for_the_whole_step() -> None:
    run = Machine(Begin(), steer("one"))
    assert joined(run.feed(reply(ready("a")))) == []
    assert joined(run.feed(Recorded())) == []
    assert joined(run.feed(finished("a"))) == ["one"]


def test_a_steer_joins_after_the_stop_conditions_let_the_run_go_on() -> None:
    run = Machine(Begin(), reply(refused("a")), steer("one"), rules=STOPS)
    effects = run.feed(StopChecked(stop=False))
    assert joined(effects) == ["one"]
    assert kinds(effects) == ["Record", "Steered", "StepStarted", "CallModel"]


def test_a_steer_makes_a_submission_one_step_among_others() -> None:
    run = Machine(Begin(), steer("one"), rules=SUBMITS)
    effects = run.feed(reply(submitted("a")))
    assert [type(fact) for fact in facts(effects)] == [Said, Finished, Joined]
    assert kinds(effects)[-1] == "CallModel"
    run.durable()
    run.feed(reply(refused("b")))
    assert run.state.phase == "model", "the first submission ends no later step"
    run.durable()
    assert ended(run.feed(reply(submitted("c")))).outcome == "answered"


def test_a_steer_before_a_run_goes_on_with_a_submission_joins() -> None:
    effects = Machine(steer("one"), rules=SUBMITS).feed(Begin(stepped=True, submitted=True))
    assert joined(effects) == ["one"]
    assert kinds(effects)[-1] == "CallModel"


def test_a_correction_stands_before_the_steers() -> None:
    run = Machine(Begin(), steer("one"), rules=TYPED)
    effects = run.feed(reply(text="x", problem="not a number"))
    assert joined(effects) == ["not a number", "one"]
    assert [type(event) for event in events(effects)] == [StepFinished, Steered, StepStarted]


UNDELIVERED: dict[str, tuple[Rules, tuple[Input, ...]]] = {
    "a park at once": (Rules(), (Begin(), steer("one"), reply(gated("a")))),
    "a park after a body": (Rules(), (Begin(), reply(gated("a"), ready("b")), Recorded(), steer("one"), finished("b"))),
    "a child's park": (
        Rules(),
        (Begin(), reply(ready("a", delegate=True)), Recorded(), steer("one"), CallParked(call="a")),
    ),
    "a park with a submission": (SUBMITS, (Begin(), steer("one"), reply(submitted("a"), gated("b")))),
    "a stop condition": (STOPS, (Begin(), steer("one"), reply(refused("a")), StopChecked(stop=True))),
    "a broken stop condition": (
        STOPS,
        (Begin(), steer("one"), reply(refused("a")), StopChecked(stop=False, error=BROKEN)),
    ),
    "a failed model call": (Rules(), (Begin(), steer("one"), ModelFailed(error=BROKEN))),
    "a refused structured answer": (TYPED, (Begin(), steer("one"), reply(text="no", reason="refusal"))),
    "a cancel": (Rules(), (Begin(), reply(ready("a")), steer("one"), Cancelled())),
    "a cancel before the start": (Rules(), (steer("one"), Cancelled())),
}


@pytest.mark.parametrize("end", UNDELIVERED)
def test_a_steer_is_not_delivered_where_the_run_ends_otherwise(end: str) -> None:
    rules, inputs = UNDELIVERED[end]
    run = Machine(*inputs[:-1], rules=rules)
    effects = run.feed(inputs[-1])
    assert ended(effects).outcome != "answered"
    assert joined(effects) == []
    assert not [event for event in events(effects) if isinstance(event, Steered)]


@pytest.mark.parametrize("limit", AT)
def test_a_steer_is_not_delivered_where_a_limit_ends_the_run(limit: str) -> None:
    run = step_at(limit)
    run.feed(steer("one"))
    effects = run.feed(finished("a"))
    assert problem_of(effects).details == {"limit": limit}
    assert joined(effects) == []
    assert kinds(effects) == ["ToolFinished", "Record"]


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(tokens=1)])
def test_an_answer_stands_where_a_limit_forbids_the_step_that_a_steer_needs(limits: Limits) -> None:
    effects = Machine(Begin(), steer("one"), limits=limits).feed(reply(text="x"))
    assert ended(effects).outcome == "answered"
    assert joined(effects) == []


# A reply that could not be judged.


def test_a_reply_that_broken_code_was_to_judge_is_kept_and_fails_the_run() -> None:
    given = replace(reply(refused("a"), refused("b"), text="x"), error=BROKEN)
    effects = Machine(Begin()).feed(given)
    assert facts(effects)[0] == said(given)
    assert results(effects) == {"a": "NO_SUCH_TOOL", "b": "NO_SUCH_TOOL"}
    assert problem_of(effects) == BROKEN
    assert kinds(effects) == ["StepFinished", "ToolFinished", "ToolFinished", "Record"]


# A reply that was broken off.

BROKEN_OFF_CALLS: dict[str, tuple[Plan, ...]] = {
    "none": (),
    "some": (ready("a"), gated("b")),
    "with the output": (ready("a"), submitted("s")),
}
BROKEN_OFF: list[tuple[Rules, str, str, str]] = [
    # the rules, the calls, the finish reason, what becomes of the run
    (Rules(), "none", "length", "answered length"),
    (Rules(), "some", "length", "goes on"),
    (Rules(), "none", "refusal", "answered refusal"),
    (Rules(), "some", "refusal", "answered refusal"),
    (Rules(), "none", "filter", "answered filter"),
    (Rules(), "some", "filter", "answered filter"),
    (TYPED, "none", "length", "failed CUT"),
    (TYPED, "some", "length", "goes on"),
    (TYPED, "none", "refusal", "failed REFUSED"),
    (TYPED, "some", "refusal", "failed REFUSED"),
    (TYPED, "none", "filter", "failed FILTERED"),
    (TYPED, "some", "filter", "failed FILTERED"),
    (SUBMITS, "none", "length", "failed CUT"),
    (SUBMITS, "some", "length", "goes on"),
    (SUBMITS, "with the output", "length", "failed CUT"),
    (SUBMITS, "none", "refusal", "failed REFUSED"),
    (SUBMITS, "some", "refusal", "failed REFUSED"),
    (SUBMITS, "with the output", "refusal", "failed REFUSED"),
    (SUBMITS, "none", "filter", "failed FILTERED"),
    (SUBMITS, "some", "filter", "failed FILTERED"),
    (SUBMITS, "with the output", "filter", "failed FILTERED"),
]


def became(effects: tuple[Effect, ...]) -> str:
    if CallModel() in effects:
        return "goes on"
    end = ended(effects)
    return f"{end.outcome} {end.stop if end.error is None else end.error.code}"


@pytest.mark.parametrize("held", [False, True], ids=["", "held"])
@pytest.mark.parametrize(("rules", "calls", "reason", "outcome"), BROKEN_OFF)
def test_a_reply_that_was_broken_off_runs_none_of_its_calls(
    rules: Rules, calls: str, reason: str, outcome: str, held: bool
) -> None:
    asked = reply(*BROKEN_OFF_CALLS[calls], text="so far", reason=reason)
    if held:
        run = Machine(Begin(), reply(refused("z")), rules=rules)
        assert run.feed(asked) == ()
        effects = run.feed(Recorded())
    else:
        run = Machine(Begin(), rules=rules)
        effects = run.feed(asked)
    assert became(effects) == outcome
    assert results(effects) == dict.fromkeys((plan.call.id for plan in asked.plans), "NOT_RUN")
    assert records(effects) == ["reply" if outcome == "goes on" else "end"]
    assert facts(effects)[0] == said(asked)
    assert [type(event) for event in events(effects)][: 1 + len(asked.plans)] == [
        StepFinished,
        *[ToolFinished] * len(asked.plans),
    ]
    error = None if outcome == "goes on" else ended(effects).error
    assert error is None or error.kind == "output"
    assert run.state.text == "so far"


@pytest.mark.parametrize(
    ("reason", "words"), [("length", "cut"), ("refusal", "refused or filtered"), ("filter", "refused or filtered")]
)
def test_the_result_of_a_call_that_was_broken_off_says_why(reason: str, words: str) -> None:
    (fact,) = [f for f in facts(Machine(Begin()).feed(reply(ready("a"), reason=reason))) if isinstance(f, Finished)]
    assert words in fact.result.content
    assert fact.source == "refused"


@pytest.mark.parametrize("limit", ["steps", "tokens"])
def test_a_structured_answer_that_was_cut_is_told_as_such_also_at_a_limit(limit: str) -> None:
    effects = Machine(Begin(), limits=AT[limit], rules=TYPED).feed(reply(text="{", reason="length"))
    assert problem_of(effects).code == "CUT"


# Corrections.

BAD = reply(text="x", problem="not a number")


def test_an_answer_that_does_not_fit_is_told_to_the_model() -> None:
    run = Machine(Begin(), rules=TYPED)
    effects = run.feed(BAD)
    assert kinds(effects) == ["StepFinished", "Record", "StepStarted", "CallModel"]
    correction = Joined(message=Message.user("not a number"), source="correction")
    assert effects[1] == Record(facts=(said(BAD), correction), gate="reply")
    run.durable()
    assert ended(run.feed(reply(text="7"))) == Ended(outcome="answered", stop="stop")


def answers(run: Machine, *given: Replied) -> tuple[Effect, ...]:
    """The effects of the last reply; all are recorded before."""
    effects: tuple[Effect, ...] = ()
    for one in given:
        run.durable()
        effects = run.feed(one)
    return effects


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_too_many_answers_that_do_not_fit_are_no_output(retries: int) -> None:
    run = Machine(Begin(), limits=Limits(retries=retries), rules=TYPED)
    for _ in range(retries):
        assert kinds(answers(run, BAD))[-1] == "CallModel"
    effects = answers(run, BAD)
    error = problem_of(effects)
    assert (error.kind, error.code) == ("output", "INVALID_OUTPUT")
    assert f"{retries + 1} times" in error.message


def test_the_last_answer_that_does_not_fit_is_told_to_nobody() -> None:
    effects = answers(Machine(Begin(), limits=Limits(retries=0), rules=TYPED), BAD)
    assert [type(fact) for fact in facts(effects)] == [Said, Ended]
    assert records(effects) == ["end"]


def test_a_correction_at_another_limit_is_told_to_nobody() -> None:
    effects = answers(Machine(Begin(), limits=Limits(steps=1), rules=TYPED), BAD)
    assert problem_of(effects).details == {"limit": "steps"}
    assert joined(effects) == []


def bad_submission(name: str) -> Replied:
    return reply(refused(name, "INVALID_INPUT", "submit"))


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_too_many_submissions_that_do_not_fit_are_no_output(retries: int) -> None:
    run = Machine(Begin(), limits=Limits(retries=retries), rules=SUBMITS)
    for place in range(retries):
        assert kinds(answers(run, bad_submission(f"s{place}")))[-1] == "CallModel"
    effects = answers(run, bad_submission("last"))
    error = problem_of(effects)
    assert (error.kind, error.code) == ("output", "INVALID_OUTPUT")
    assert results(effects) == {"last": "INVALID_INPUT"}


def test_a_bad_submission_and_words_in_its_place_count_together() -> None:
    run = Machine(Begin(), limits=Limits(retries=1), rules=SUBMITS)
    words = reply(text="x", problem="call submit")
    assert problem_of(answers(run, bad_submission("s"), words)).code == "INVALID_OUTPUT"


def test_a_tool_of_another_run_that_is_named_like_a_submission_is_a_tool() -> None:
    run = Machine(Begin(), limits=Limits(retries=0))
    assert problem_of(answers(run, bad_submission("s"))).details == {"limit": "retries"}


def test_an_answer_that_fits_begins_a_new_count() -> None:
    run = Machine(Begin(), limits=Limits(retries=1), rules=TYPED)
    answers(run, BAD)
    run.feed(steer("again, please"))
    answers(run, reply(text="7"))
    assert kinds(answers(run, BAD))[-1] == "CallModel"
    assert problem_of(answers(run, BAD)).code == "INVALID_OUTPUT"


def test_a_submission_that_fits_begins_a_new_count() -> None:
    run = Machine(Begin(), limits=Limits(retries=1), rules=SUBMITS)
    answers(run, bad_submission("a"))
    run.feed(steer("again, please"))
    answers(run, reply(submitted("b")))
    assert kinds(answers(run, bad_submission("c")))[-1] == "CallModel"
    assert problem_of(answers(run, bad_submission("d"))).code == "INVALID_OUTPUT"


def test_steps_with_calls_between_two_answers_do_not_begin_a_new_count() -> None:
    run = Machine(Begin(), limits=Limits(retries=1), rules=TYPED)
    assert problem_of(answers(run, BAD, reply(refused("a")), BAD)).code == "INVALID_OUTPUT"


# Retries and repeats.


class Steps:
    """A run that makes one step after the other, each with calls that bodies answer."""

    def __init__(self, limits: Limits) -> None:
        self.run = Machine(Begin(), limits=limits)
        self.made = 0

    def step(self, *outcomes: tuple[str, str | None], arguments: str = "{}") -> tuple[Effect, ...]:
        """One step: by call its tool and the code of its result. The effects of the last result."""
        self.made += 1
        names = [f"{self.made}.{place}" for place in range(len(outcomes))]
        plans = [
            Ready(call=call(name, tool, arguments), effect="none", digest="d")
            for name, (tool, _) in zip(names, outcomes, strict=True)
        ]
        self.run.feed(reply(*plans))
        effects = self.run.durable()
        for name, (_, code) in zip(names, outcomes, strict=True):
            effects = self.run.feed(finished(name, error=code))
        self.run.durable()
        return effects


RETRY = "RETRY"
TRIES: list[object] = [
    pytest.param([[("x", RETRY)]] * 3, id="three in a row"),
    pytest.param([[("x", RETRY)], [("x", "INVALID_INPUT")], [("x", RETRY)]], id="either code"),
    pytest.param([[("x", RETRY)], [("y", None)], [("x", RETRY)], [("x", RETRY)]], id="steps without it in between"),
    pytest.param([[("x", RETRY), ("y", RETRY)], [("x", RETRY), ("y", None)], [("y", RETRY), ("x", RETRY)]], id="two"),
    pytest.param([[("x", None)], [("x", None)], *[[("x", RETRY)]] * 3], id="after successes"),
    pytest.param([[("x", RETRY)] * 5, [("x", RETRY)] * 5, [("x", RETRY)] * 5], id="many at once"),
]
NO_TRIES: list[object] = [
    pytest.param([[("x", RETRY)] * 3], id="parallel failures of one step count once"),
    pytest.param([[("x", RETRY)] * 2, [("x", None)], [("x", RETRY)] * 2, [("x", RETRY)]], id="a success resets"),
    pytest.param([[("x", RETRY)], [("y", RETRY)], [("x", RETRY)], [("y", RETRY)]], id="two tools count apart"),
    pytest.param([[("x", "NO_SUCH_TOOL")]] * 6, id="an unknown name"),
    *[
        pytest.param([[("x", code)]] * 6, id=code)
        for code in ("INTERNAL", "TIMEOUT", "DENIED", "EXPIRED", "NOT_ALLOWED", "SUBAGENT_FAILED", "MINE")
    ],
]


@pytest.mark.parametrize("steps", TRIES)
def test_a_tool_that_turns_down_what_it_is_given_too_often_ends_the_run(steps: list[list[tuple[str, str]]]) -> None:
    run = Steps(Limits(retries=2, steps=100))
    for step in steps[:-1]:
        assert CallModel() in run.step(*step)
    error = problem_of(run.step(*steps[-1]))
    assert (error.kind, error.details) == ("limit", {"limit": "retries"})
    assert "'x'" in error.message
    assert " 3 steps" in error.message


@pytest.mark.parametrize("steps", NO_TRIES)
def test_what_is_no_retry_too_many(steps: list[list[tuple[str, str]]]) -> None:
    run = Steps(Limits(retries=2, steps=100))
    for step in steps:
        assert CallModel() in run.step(*step)


@pytest.mark.parametrize("second", [[("x", RETRY), ("x", None)], [("x", None), ("x", RETRY)]])
def test_the_order_in_which_bodies_end_does_not_change_the_count(second: list[tuple[str, str | None]]) -> None:
    run = Steps(Limits(retries=2))
    run.step(("x", RETRY))
    run.step(*second)
    assert run.run.state.progress.again["x"] == (1, 2)


def test_a_call_that_was_not_run_says_nothing_of_its_tool() -> None:
    run = Steps(Limits(retries=1))
    run.step(("x", RETRY))
    run.run.feed(reply(ready("cut", tool="x"), reason="length"))
    run.run.durable()
    assert problem_of(run.step(("x", RETRY))).details == {"limit": "retries"}


def test_arguments_that_are_refused_count_as_a_tool_that_turns_them_down() -> None:
    run = Machine(Begin(), limits=Limits(retries=1))
    bad = [reply(refused(name, "INVALID_INPUT")) for name in "ab"]
    assert kinds(answers(run, bad[0]))[-1] == "CallModel"
    assert problem_of(answers(run, bad[1])).details == {"limit": "retries"}


def test_a_run_that_goes_on_counts_the_retries_it_had() -> None:
    before = State(run="r", limits=Limits(retries=1), progress=Progress(steps=1, again={"tool": (1, 1)}))
    run = Machine()
    run.state = before
    run.feed(Begin(stepped=True))
    assert problem_of(answers(run, reply(refused("a", "INVALID_INPUT")))).details == {"limit": "retries"}


def test_the_same_calls_too_many_steps_in_a_row_end_the_run() -> None:
    run = Steps(Limits(repeats=3))
    assert CallModel() in run.step(("x", None), ("y", None))
    assert CallModel() in run.step(("x", None), ("y", None))
    error = problem_of(run.step(("x", None), ("y", None)))
    assert error.details == {"limit": "repeats"}
    assert " 3 steps" in error.message


def test_other_arguments_are_another_call() -> None:
    run = Steps(Limits(repeats=2))
    for number in range(4):
        assert CallModel() in run.step(("x", None), arguments=f'{{"n": {number}}}')


def test_steps_that_alternate_do_not_repeat() -> None:
    run = Steps(Limits(repeats=2))
    for tool in "xyxyx":
        assert CallModel() in run.step((tool, None))


@pytest.mark.parametrize("calls", [2, 3])
def test_exactly_as_many_calls_as_allowed_are_fine(calls: int) -> None:
    run = Steps(Limits(tool_calls=calls))
    assert CallModel() in run.step(("x", None), ("y", None))


def test_more_calls_than_allowed_run_and_end_the_run() -> None:
    run = Steps(Limits(tool_calls=3))
    run.step(("x", None), ("y", None))
    effects = run.step(("x", None), ("y", None))
    error = problem_of(effects)
    assert error.details == {"limit": "tool_calls"}
    assert error.message == "the run has asked for 4 calls, and may for 3"


def test_calls_that_do_not_run_count_as_calls() -> None:
    run = Machine(Begin(), limits=Limits(tool_calls=2))
    answers(run, reply(refused("a")), reply(ready("b"), reason="length"))
    assert problem_of(answers(run, reply(refused("c")))).details == {"limit": "tool_calls"}


# The run's time.


def test_no_model_is_called_once_the_time_is_over() -> None:
    effects = Machine(Deadline(), limits=Limits(seconds=5)).feed(Begin())
    assert kinds(effects) == ["RunStarted", "Record"]
    assert problem_of(effects).details == {"limit": "seconds"}
    assert problem_of(effects).message == "the run has been at work for 5 seconds, and may be no longer"


def test_calls_that_are_open_run_even_where_the_time_is_over() -> None:
    run = Machine(Deadline(), Begin(open=(OpenCall(plan=ready("a")),)), limits=Limits(seconds=5))
    assert ran(run.feed(Recorded())) == {"a": 1}
    assert problem_of(run.feed(finished("a"))).details == {"limit": "seconds"}


def test_calls_of_a_reply_that_comes_late_run() -> None:
    run = Machine(Begin(), Deadline(), reply(ready("a")), limits=Limits(seconds=5))
    assert ran(run.feed(Recorded())) == {"a": 1}
    assert problem_of(run.feed(finished("a"))).details == {"limit": "seconds"}


def test_a_deadline_during_a_stop_check_waits_for_its_word() -> None:
    run = Machine(Begin(), reply(refused("a")), rules=STOPS, limits=Limits(seconds=5))
    assert run.feed(Deadline()) == ()
    assert problem_of(run.feed(StopChecked(stop=False))).details == {"limit": "seconds"}


def test_a_held_reply_that_answers_is_an_answer_also_late() -> None:
    run = Machine(Begin(), reply(refused("a")), reply(text="held"), Deadline(), limits=Limits(seconds=5))
    assert ended(run.feed(Recorded())).outcome == "answered"


def test_a_deadline_means_nothing_to_a_run_without_one() -> None:
    run = Machine(Begin(), Deadline())
    assert kinds(run.feed(reply(refused("a"))))[-1] == "CallModel"


# What no message carries is in the end, once; the end is told after its record.

CHILD = Usage(input_tokens=100, output_tokens=50)
GRANDCHILD = Usage(output_tokens=7)
ENDS: dict[str, tuple[str, Rules, Limits, tuple[Input, ...], int]] = {
    # by name: the outcome, the rules, the limits, the inputs after a step that has spent, model calls not known
    "an answer": ("answered", Rules(), Limits(), (reply(text="x"),), 0),
    "an answer of unknown usage": ("answered", Rules(), Limits(), (reply(text="x", usage=None),), 0),
    "a submission": ("answered", SUBMITS, Limits(), (reply(submitted("s")),), 0),
    "a park at once": ("parked", Rules(), Limits(), (reply(gated("p")),), 0),
    "a park after a body": (
        "parked",
        Rules(),
        Limits(),
        (reply(gated("p"), ready("q")), Recorded(), finished("q")),
        0,
    ),
    "a stop": ("stopped", STOPS, Limits(), (reply(refused("s")), StopChecked(stop=True)), 0),
    "a limit": ("failed", Rules(), Limits(steps=2), (reply(refused("s")),), 0),
    "a failed model call": ("failed", Rules(), Limits(), (ModelFailed(error=BROKEN),), 1),
    "a refusal": ("failed", TYPED, Limits(), (reply(text="no", reason="refusal"),), 0),
    "no output": ("failed", TYPED, Limits(retries=0), (BAD,), 0),
    "a broken condition": ("failed", STOPS, Limits(), (reply(refused("s")), StopChecked(stop=True, error=BROKEN)), 0),
    "a cancelled model call": ("cancelled", Rules(), Limits(), (Cancelled(model_in_flight=True),), 1),
    "a cancelled step": ("cancelled", Rules(), Limits(), (reply(ready("s")), Recorded(), Cancelled()), 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_no_message_carries_is_in_the_end_once(name: str) -> None:
    outcome, rules, limits, inputs, unknown = ENDS[name]
    run = Machine(Begin(), limits=limits, rules=rules)
    given: list[Input] = [reply(ready("a"), ready("b"), usage=None), Recorded(), Spent(usage=GRANDCHILD)]
    given += [finished("a", CHILD), finished("b"), Recorded(), Recorded()]
    given += [StopChecked(stop=False)] if rules.stops else []
    written: list[Fact] = []
    for one in (*given, *inputs):
        effects = run.feed(one)
        written += facts(effects)
        assert not [kind for kind in kinds(effects) if kind in ("End", "RunFinished", "Parked")]
    end = written.pop()
    assert isinstance(end, Ended)
    assert end.outcome == outcome
    assert end.usage == Usage(output_tokens=7, unknown=unknown)
    carried = [LOST if fact.usage is None else fact.usage for fact in written if isinstance(fact, Said)]
    carried += [fact.usage for fact in written if isinstance(fact, Finished) and fact.usage is not None]
    assert sum(carried, end.usage) == run.state.usage
    told = run.durable()
    assert told[-1] == End(ended=end)
    assert [event.usage for event in events(told) if isinstance(event, RunFinished)] == [run.state.usage] * (
        outcome in ("answered", "stopped")
    )


def test_a_run_that_goes_on_says_what_it_has_spent_since() -> None:
    run = Machine()
    run.state = State(run="r", limits=Limits(), usage=SPENT + CHILD)
    run.feed(Begin(open=(OpenCall(plan=ready("a"), started=1, fresh=True),)), Spent(usage=GRANDCHILD), finished("a"))
    run.feed(Recorded())
    assert ended(run.feed(reply(text="x"))).usage == GRANDCHILD
    assert run.state.usage == Usage(input_tokens=120, output_tokens=67)


def test_what_a_sub_agent_spent_counts_for_the_token_limit() -> None:
    run = Machine(Begin(), reply(ready("a")), Recorded(), Spent(usage=Usage(output_tokens=5)), limits=Limits(tokens=20))
    assert problem_of(run.feed(finished("a"))).details == {"limit": "tokens"}


# A run that nobody follows.


@pytest.mark.parametrize(
    "inputs",
    [
        (
            reply(ready("a"), refused("b")),
            Recorded(),
            steer("one"),
            finished("a"),
            Recorded(),
            reply(text="x"),
            Recorded(),
        ),
        (reply(gated("a")), Recorded()),
    ],
    ids=["answers", "parks"],
)
def test_a_run_that_nobody_follows_does_the_same_and_tells_nothing(inputs: tuple[Input, ...]) -> None:
    watched, quiet = Machine(), Machine(rules=Rules(watched=False))
    for one in (Begin(), *inputs):
        effects = watched.feed(one)
        assert quiet.feed(one) == tuple(effect for effect in effects if not isinstance(effect, Emit))
    assert watched.state.phase == quiet.state.phase == "ended"


# Every input in every phase.

TWO = reply(ready("a"), ready("b", delegate=True), gated("c"))
DONE = reply(refused("a"))
PHASES: dict[str, tuple[Input, ...]] = {
    "new": (),
    "model": (Begin(),),
    "model, results on their way": (Begin(), DONE, StopChecked(stop=False)),
    "model, reply held": (Begin(), DONE, StopChecked(stop=False), reply(text="held")),
    "bodies": (Begin(), TWO),
    "tools": (Begin(), TWO, Recorded()),
    "tools, one done": (Begin(), TWO, Recorded(), finished("a"), Recorded()),
    "stopping": (Begin(stepped=True),),
    "stopping, results on their way": (Begin(), DONE),
    "ending, answered": (Begin(), reply(text="x")),
    "ending, parked": (Begin(), reply(gated("a"), gated("b"))),
    "ending, failed": (Begin(), ModelFailed(error=BROKEN)),
    "ending, stopped": (Begin(stepped=True), StopChecked(stop=True)),
    "ending, cancelled": (Begin(), DONE, Cancelled()),
    "ended": (Begin(), reply(text="x"), Recorded()),
    "taken away": (Begin(), RecordRefused()),
}
INPUTS: dict[str, Input] = {
    "begin": Begin(),
    "recorded": Recorded(),
    "refused": RecordRefused(),
    "replied": reply(text="late"),
    "failed": ModelFailed(error=BROKEN),
    "finished": finished("a", CHILD),
    "finished, unknown": finished("z", CHILD),
    "parked": CallParked(call="b"),
    "parked, no child": CallParked(call="a"),
    "resumed": CallResumed(call="b"),
    "resumed, no child": CallResumed(call="c"),
    "uncertain": CallUncertain(call="a", reason="late"),
    "stop": StopChecked(stop=True),
    "no stop": StopChecked(stop=False),
    "broken stop": StopChecked(stop=False, error=BROKEN),
    "spent": Spent(usage=CHILD),
    "steer": steer("one"),
    "deadline": Deadline(),
    "cancelled": Cancelled(),
}
ANY_TIME = {"refused", "spent", "steer", "deadline", "cancelled"}
CHECKED = {"stop", "no stop", "broken stop"}
ACTS: dict[str, set[str]] = {
    "new": {"begin", "failed", *ANY_TIME},
    "model": {"replied", "failed", *ANY_TIME},
    "model, results on their way": {"recorded", "replied", "failed", *ANY_TIME},
    "model, reply held": {"recorded", *ANY_TIME},
    "bodies": {"recorded", *ANY_TIME},
    "tools": {"finished", "parked", "uncertain", *ANY_TIME},
    "tools, one done": {"parked", *ANY_TIME},
    "stopping": {*CHECKED, *ANY_TIME},
    "stopping, results on their way": {"recorded", *CHECKED, *ANY_TIME},
    **{f"ending, {how}": {"recorded", "refused"} for how in ("answered", "parked", "failed", "stopped", "cancelled")},
    "ended": set(),
    "taken away": set(),
}
TABLE_LIMITS = Limits(seconds=5)


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
    run = Machine(*PHASES[phase], limits=TABLE_LIMITS, rules=STOPS)
    before = run.state
    assert run.feed(INPUTS[name]) == ()
    assert run.state == before


@pytest.mark.parametrize(("phase", "name"), _pairs(acting=True))
def test_an_input_in_time_changes_the_state_and_causes_one_record_at_most(phase: str, name: str) -> None:
    run = Machine(*PHASES[phase], limits=TABLE_LIMITS, rules=STOPS)
    before = run.state
    effects = run.feed(INPUTS[name])
    assert run.state != before
    assert len(records(effects)) <= 1


@pytest.mark.parametrize(("phase", "name"), [*_pairs(acting=True), *_pairs(acting=False)])
def test_the_state_that_is_given_is_never_changed(phase: str, name: str) -> None:
    run = Machine(*PHASES[phase], limits=TABLE_LIMITS, rules=STOPS)
    before = run.state
    kept = repr(before)
    run.feed(INPUTS[name])
    assert repr(before) == kept


@pytest.mark.parametrize("name", ["spent", "steer", "deadline"])
@pytest.mark.parametrize("phase", [phase for phase in PHASES if "steer" in ACTS[phase]])
def test_what_is_only_noted_has_no_effect_by_itself(phase: str, name: str) -> None:
    run = Machine(*PHASES[phase], limits=TABLE_LIMITS, rules=STOPS)
    before = run.state
    assert run.feed(INPUTS[name]) == ()
    spent = before.usage + CHILD if name == "spent" else before.usage
    noted = {"spent": ("usage", "extra"), "steer": ("steers",), "deadline": ("late",)}[name]
    assert run.state.usage == spent
    assert replace(run.state, **{field: getattr(before, field) for field in noted}) == before


@pytest.mark.parametrize("phase", [phase for phase in PHASES if ACTS[phase]])
def test_a_refused_record_ends_the_run_in_every_phase(phase: str) -> None:
    run = Machine(*PHASES[phase], rules=STOPS)
    assert run.feed(RecordRefused()) == (End(ended=None),)
    assert run.state.phase == "ended"


@pytest.mark.parametrize("phase", [phase for phase in PHASES if "cancelled" in ACTS[phase]])
def test_a_cancelled_run_ends_in_every_phase_with_a_result_for_each_open_call(phase: str) -> None:
    run = Machine(*PHASES[phase], rules=STOPS)
    step = run.state.step
    still_open = () if step is None else tuple(call.id for call in step.open())
    effects = run.feed(Cancelled())
    assert results(effects) == dict.fromkeys(still_open, "CANCELLED")
    assert ended(effects).outcome == "cancelled"
    assert kinds(run.durable()) == ["End"]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase.startswith("ending")])
def test_an_end_is_told_with_the_record_of_it_and_with_no_other(phase: str) -> None:
    run = Machine(*PHASES[phase], rules=STOPS)
    while run.state.unrecorded > 1:
        assert run.feed(Recorded()) == ()
    end = run.feed(Recorded())[-1]
    assert isinstance(end, End)
    assert end.ended is not None
    assert end.ended.outcome == phase.removeprefix("ending, ")


# Any run, any order of inputs.


def folded(progress: Progress, tools: dict[str, str], written: tuple[Fact, ...]) -> Progress:
    """How far a run is, from its facts alone. `tools` are the names of the calls' tools."""
    for fact in written:
        match fact:
            case Said():
                progress = progress.said(fact.message)
                tools.update((one.id, one.name) for one in fact.message.calls)
            case Finished():
                progress = progress.answered(tools[fact.result.call], fact.result.code)
            case Joined(source="correction"):
                progress = progress.corrected()
    return progress


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
    checking: bool = False
    """Whether the stop conditions are being asked."""
    end: End | None = None
    told: list[object] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    """What the facts say was spent."""
    progress: Progress = START
    """How far the facts say that the run is."""
    steers: list[str] = field(default_factory=list)
    """What was given to the run before its end was on its way."""
    delivered: list[str] = field(default_factory=list)
    ending: Ended | None = None

    def feed(self, given_input: Input) -> None:
        before, kept = self.state, repr(self.state)
        self.state, effects = advance(before, given_input)
        assert repr(before) == kept, "the state that was given is never changed"
        assert len(records(effects)) <= 1
        if joined(effects):
            assert CallModel() in effects, "what joins is given to the model"
        for effect in effects:
            self._carry_out(effect)
        if self.ending is None or self.ending.outcome != "cancelled":
            assert self.state.progress == self.progress
        assert len(self.delivered) + len(self.state.steers) == len(self.steers)

    def _carry_out(self, effect: Effect) -> None:
        assert self.end is None, "nothing comes after the end"
        match effect:
            case Record():
                self._remember(effect)
            case CallModel():
                assert not self.asking
                assert not self.checking
                assert self.ending is None
                assert all(self.answers[name] for name in self.asked_for)
                self.asking = True
            case CheckStop():
                assert self.state.rules.stops
                assert not self.checking
                assert all(self.answers[name] for name in self.asked_for)
                self.checking = True
            case RunTools():
                for plan, attempt in zip(effect.plans, effect.attempts, strict=True):
                    self._run(plan, attempt)
            case Emit():
                self.told.append(effect.event)
            case End():
                assert effect.ended is None or not self.on_the_way, "the end is told after it is recorded"
                assert effect.ended in (None, self.ending)
                self.end = effect

    def _run(self, plan: Plan, attempt: int) -> None:
        name = plan.call.id
        assert not isinstance(plan, Refused | Submitted)
        assert name not in self.ran
        assert self.allowed.get(name) == attempt or self.started[name] == attempt, "a body waits for its start"
        assert not self.answers[name]
        self.ran.add(name)
        self.bodies[name] = plan

    def _remember(self, record: Record) -> None:
        assert self.ending is None, "an end is the last fact"
        self.progress = folded(self.progress, self.tools, record.facts)
        for fact in record.facts:
            match fact:
                case Said():
                    assert not self.on_the_way, "a reply waits for what is on its way"
                    self.asked_for.extend(call.id for call in fact.message.calls)
                    self.usage += LOST if fact.usage is None else fact.usage
                case Finished():
                    self.answers[fact.result.call] += 1
                    self.usage += fact.usage or NO_USAGE
                case Started():
                    assert record.gate == "bodies"
                case Asked():
                    assert not self.answers[fact.call.id]
                case Joined():
                    assert all(self.answers[name] for name in self.asked_for), "nothing joins a step"
                    if fact.item is not None:
                        self.delivered.append(fact.item)
                case Ended():
                    assert record.gate == "end"
                    self.usage += fact.usage
                    self.ending = fact
        self.on_the_way.append(record)

    # -- what may happen next

    def choices(self) -> list[tuple[Callable[..., None], str]]:
        """What may happen now, with the call that it happens to."""
        usual: list[tuple[Callable[..., None], str]] = []
        if self.on_the_way:
            usual += [(World.durable, "")] * 3
        if self.asking:
            usual += [(World.replied, "")] * 4
            usual.append((World.failed, ""))
        if self.checking:
            usual += [(World.checked, "")] * 2
        for name, plan in self.bodies.items():
            usual += [(World.finished, name)] * 2
            if not (isinstance(plan, Ready) and plan.delegate):
                usual.append((World.uncertain, name))
            else:
                usual.append((World.resumed if name in self.parked else World.went_to_park, name))
        assert usual, "a run that has not ended waits for something"
        rare = (World.spent, World.out_of_time, World.cancelled, World.refused, World.late)
        return [*usual, *[(World.steered, "")] * (2 if len(self.steers) < 4 else 0), *((one, "") for one in rare)]

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

    def checked(self, draw: st.DrawFn, name: str) -> None:
        self.checking = False
        self.feed(draw(st.sampled_from([*[StopChecked(stop=False)] * 4, *STOPPED])))

    def finished(self, draw: st.DrawFn, name: str) -> None:
        del self.bodies[name]
        error = draw(st.sampled_from([None, "RETRY", "INTERNAL"]))
        self.feed(finished(name, Usage(output_tokens=1), error=error))

    def went_to_park(self, draw: st.DrawFn, name: str) -> None:
        self.parked.add(name)
        self.feed(CallParked(call=name))

    def resumed(self, draw: st.DrawFn, name: str) -> None:
        self.parked.discard(name)
        self.feed(CallResumed(call=name))

    def uncertain(self, draw: st.DrawFn, name: str) -> None:
        del self.bodies[name]
        self.feed(CallUncertain(call=name, reason="late"))

    def steered(self, draw: st.DrawFn, name: str) -> None:
        given_steer = steer(f"{len(self.steers)}")
        if self.ending is None:
            self.steers.append(f"item {len(self.steers)}")
        self.feed(given_steer)

    def spent(self, draw: st.DrawFn, name: str) -> None:
        self.feed(Spent(usage=Usage(input_tokens=3)))

    def out_of_time(self, draw: st.DrawFn, name: str) -> None:
        self.feed(Deadline())

    def cancelled(self, draw: st.DrawFn, name: str) -> None:
        asking, self.asking, self.checking = self.asking, False, False
        self.bodies.clear()
        self.feed(Cancelled(model_in_flight=asking))

    def refused(self, draw: st.DrawFn, name: str) -> None:
        self.feed(RecordRefused())

    def late(self, draw: st.DrawFn, name: str) -> None:
        before = self.state
        for answered in self.answers:
            self.feed(finished(answered, CHILD))
            self.feed(CallUncertain(call=answered, reason="late"))
            self.feed(CallParked(call=answered))
            self.feed(CallResumed(call=answered))
        self.feed(Begin())
        if not self.checking:
            self.feed(StopChecked(stop=True))
        if not self.asking:
            self.feed(reply(text="late"))
            self.feed(ModelFailed(error=BROKEN))
        if not self.on_the_way:
            self.feed(Recorded())
        assert self.state == before


STOPPED = (StopChecked(stop=True), StopChecked(stop=False, error=BROKEN))
PLAN_KINDS = ("none", "repeatable", "once", "delegate", "gated", "refused", "invalid")


def make_plan(kind: str, name: str) -> Plan:
    match kind:
        case "delegate":
            return ready(name, effect="none", delegate=True)
        case "gated":
            return gated(name)
        case "refused":
            return refused(name)
        case "invalid":
            return refused(name, "INVALID_INPUT")
        case "submitted":
            return submitted(name)
        case "no submission":
            return refused(name, "INVALID_INPUT", "submit")
        case _:
            return ready(name, effect=kind, attempts=2, tool=f"{kind} tool")


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
    rules = state.rules
    kinds_possible = (*PLAN_KINDS, "submitted", "no submission") if rules.submission else PLAN_KINDS
    kinds_drawn = draw(st.lists(st.sampled_from(kinds_possible), max_size=5))
    plans = tuple(make_plan(kind, f"{state.progress.steps}.{place}") for place, kind in enumerate(kinds_drawn))
    reason = draw(st.sampled_from(["stop", "stop", "length", "refusal", "filter"]))
    problem = None
    if rules.structured and not plans and reason == "stop" and (rules.submission or draw(st.booleans())):
        problem = "not a number"
    return reply(*plans, reason=reason, usage=draw(st.sampled_from([SPENT, None])), problem=problem)


def _check_the_end(world: World, end: Ended) -> None:
    left = set(end.open)
    assert bool(left) is (end.outcome == "parked")
    assert {name: world.answers[name] for name in world.asked_for} == {
        name: 0 if name in left else 1 for name in world.asked_for
    }
    assert set(world.answers) <= set(world.asked_for)
    seqs = [event.seq for event in world.told if isinstance(event, ToolStarted | ToolFinished)]
    assert seqs == list(range(len(seqs)))
    if world.state.rules.watched:
        assert any(isinstance(event, RunFinished) for event in world.told) is (end.outcome in ("answered", "stopped"))
        assert sum(isinstance(event, Steered) for event in world.told) == len(world.delivered)
    else:
        assert not world.told
    assert world.usage == world.state.usage
    assert world.delivered == world.steers[: len(world.delivered)], "in the order in which they came"
    if end.outcome == "answered" and world.delivered != world.steers:
        state = world.state
        submission = state.rules.submission
        assert reached(state.limits, state.progress, state.usage, late=state.late, submission=submission) is not None


LIMITS = st.builds(
    Limits,
    steps=st.integers(1, 5),
    tokens=st.none() | st.integers(1, 60),
    tool_calls=st.none() | st.integers(1, 12),
    seconds=st.none() | st.just(5.0),
    retries=st.integers(0, 3),
    repeats=st.none() | st.integers(2, 3),
)
RULES = st.builds(Rules, stops=st.booleans(), structured=st.just(value=False)) | st.builds(
    Rules, stops=st.booleans(), structured=st.just(value=True), submission=st.sampled_from([None, "submit"])
)


@settings(max_examples=300)
@given(st.data(), LIMITS, RULES, open_calls(), st.booleans())
def test_each_call_gets_one_result_or_stays_open_whatever_the_order(
    data: st.DataObject, limits: Limits, rules: Rules, shapes: tuple[OpenCall, ...], stepped: bool
) -> None:
    world = World(State(run="r", limits=limits, rules=rules))
    for shape in shapes:
        name = shape.plan.call.id
        world.asked_for.append(name)
        world.tools[name] = shape.plan.call.name
        world.started[name] = shape.started
        if shape.fresh or shape.delegated:
            world.allowed[name] = shape.started
    for happen in data.draw(st.lists(st.sampled_from([World.steered, World.spent, World.out_of_time]), max_size=2)):
        happen(world, data.draw, "")
    world.feed(Begin(open=shapes, stepped=stepped and not shapes))
    while world.end is None:
        happen, name = data.draw(st.sampled_from(world.choices()))
        happen(world, data.draw, name)
    if world.end.ended is not None:
        _check_the_end(world, world.end.ended)
    before = world.state
    for late in INPUTS.values():
        assert advance(before, late) == (before, ())
