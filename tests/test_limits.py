"""Limits, how far a run is, and which limit forbids another model call."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import Limits, Message, Text, ToolCall, Usage
from weft._limits import OUTPUT, RETRIES, START, Progress, reached
from weft.errors import WrongCall

# Limits.


def test_a_run_without_limits_of_its_own_makes_ten_steps_and_retries_three_times() -> None:
    assert Limits() == Limits(steps=10, tokens=None, tool_calls=None, seconds=None, retries=RETRIES, repeats=None)
    assert RETRIES == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", -1),
        ("tokens", 0),
        ("tokens", -1),
        ("tool_calls", 0),
        ("repeats", 1),
        ("retries", -1),
        ("parallel", 0),
        ("seconds", 0),
        ("seconds", -0.5),
        ("seconds", float("inf")),
        ("seconds", float("nan")),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(WrongCall, match=rf"Limits\({name}=…\)"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 1),
        ("tokens", 1),
        ("tool_calls", 1),
        ("repeats", 2),
        ("retries", 0),
        ("parallel", 1),
        ("seconds", 0.001),
    ],
)
def test_the_smallest_limits_are_allowed(name: str, value: float) -> None:
    assert getattr(Limits(**{name: value}), name) == value


def test_limits_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().steps = 3  # type: ignore[misc]


ANY_LIMITS = st.builds(
    Limits,
    steps=st.integers(1, 5),
    tokens=st.none() | st.integers(1, 5),
    tool_calls=st.none() | st.integers(1, 5),
    seconds=st.none() | st.floats(0.5, 5),
    retries=st.integers(0, 5),
    repeats=st.none() | st.integers(2, 5),
    parallel=st.integers(1, 5),
)


@pytest.mark.parametrize(
    ("name", "less", "more"),
    [
        ("steps", 2, 3),
        ("retries", 0, 1),
        ("parallel", 1, 2),
        *((name, less, more) for name in ("tokens", "tool_calls", "repeats") for less, more in ((2, 3), (2, None))),
        ("seconds", 0.5, 3),
        ("seconds", 0.5, None),
    ],
)
def test_the_stricter_of_two_is_the_smaller_of_each(name: str, less: float, more: float | None) -> None:
    strict, lax = Limits(**{name: less}), Limits(**{name: more})
    assert strict.stricter(lax) == strict
    assert lax.stricter(strict) == strict
    assert strict.stricter(strict) == strict


@given(ANY_LIMITS, ANY_LIMITS, ANY_LIMITS)
def test_what_is_stricter_does_not_depend_on_the_order(one: Limits, two: Limits, three: Limits) -> None:
    assert one.stricter(one) == one
    assert one.stricter(two) == two.stricter(one)
    assert one.stricter(two).stricter(three) == one.stricter(two.stricter(three))
    both = one.stricter(two)
    for part in fields(Limits):
        mine, others, smaller = (getattr(limits, part.name) for limits in (one, two, both))
        assert smaller in (mine, others)
        assert all(smaller <= value for value in (mine, others) if value is not None)


# Progress.

Fact: TypeAlias = tuple[Any, ...]


def reply(*calls: tuple[str, str] | str) -> Message:
    """A reply with these calls: names, or names and argument texts."""
    pairs = [(one, "{}") if isinstance(one, str) else one for one in calls]
    parts = [ToolCall(id=f"c{place}", name=name, arguments=text) for place, (name, text) in enumerate(pairs)]
    return Message(role="assistant", parts=(Text(text="hm"), *parts))


def fold(progress: Progress, *facts: Fact) -> Progress:
    """Facts: ("said", call, …), ("got", tool, code), ("corrected",)."""
    for kind, *rest in facts:
        match kind:
            case "said":
                progress = progress.said(reply(*rest))
            case "got":
                progress = progress.answered(*rest)
            case "corrected":
                progress = progress.corrected()
    return progress


def said(*calls: tuple[str, str] | str) -> Fact:
    return ("said", *calls)


def got(tool: str, code: str | None = None) -> Fact:
    return ("got", tool, code)


CORRECTED: Fact = ("corrected",)
RETRY, INVALID = "RETRY", "INVALID_INPUT"


def test_each_reply_is_a_step_and_its_calls_are_counted() -> None:
    progress = fold(START, said("x", "y"), said("x"), said())
    assert (progress.steps, progress.calls) == (3, 3)


@pytest.mark.parametrize(
    ("facts", "same"),
    [
        pytest.param([said("x")], 1, id="one step"),
        pytest.param([said("x")] * 3, 3, id="three times the same"),
        pytest.param([said("x"), got("x"), said("x")], 2, id="results do not matter"),
        pytest.param([said(("x", "1")), said(("x", "2"))], 1, id="other arguments"),
        pytest.param([said(("x", "1")), said(("x", " 1"))], 1, id="arguments that are written otherwise"),
        pytest.param([said("x"), said("y"), said("x")], 1, id="another tool in between"),
        pytest.param([said("x"), said(), said("x")], 1, id="an answer in between"),
        pytest.param([said("x", "y"), said("x", "y")], 2, id="two calls"),
        pytest.param([said("x", "y"), said("y", "x")], 1, id="two calls in another order"),
        pytest.param([said("x"), said("x", "x")], 1, id="more of the same"),
        pytest.param([said("x"), said("x"), said()], 0, id="an answer"),
        pytest.param([said(), said()], 0, id="answers do not repeat"),
        pytest.param([said("x"), said("y"), said("y")], 2, id="the latest count"),
    ],
)
def test_steps_that_ask_for_the_same_calls_in_a_row_are_counted(facts: list[Fact], same: int) -> None:
    assert fold(START, *facts).same == same


@pytest.mark.parametrize(
    ("facts", "counts"),
    [
        pytest.param([said("x"), got("x", RETRY)], {"x": 1}, id="once"),
        pytest.param([said("x"), got("x", INVALID)], {"x": 1}, id="invalid arguments"),
        pytest.param([said("x"), got("x", RETRY), said("x"), got("x", INVALID)], {"x": 2}, id="two steps in a row"),
        pytest.param([said("x", "x"), got("x", RETRY), got("x", INVALID)], {"x": 1}, id="twice in one step"),
        pytest.param([said("x"), got("x", RETRY), said("x"), got("x")], {}, id="then a success"),
        pytest.param([said("x"), got("x", RETRY), said("x"), got("x", "DENIED")], {}, id="then another error"),
        pytest.param([said("x"), got("x", RETRY), said("x"), got("x", "NOT_RUN")], {"x": 1}, id="then not run"),
        pytest.param([said("x"), got("x", RETRY), said("x")], {"x": 1}, id="then still open"),
        pytest.param(
            [said("x"), got("x", RETRY), said("y"), got("y"), said("x"), got("x", RETRY)],
            {"x": 2},
            id="a step without the tool in between",
        ),
        pytest.param(
            [said("x", "y"), got("x", RETRY), got("y", RETRY), said("x", "y"), got("y", RETRY), got("x")],
            {"y": 2},
            id="two tools",
        ),
        pytest.param([said("x"), got("x", "NO_SUCH_TOOL")], {}, id="an unknown name"),
        pytest.param([said("x"), got("x", "INTERNAL")], {}, id="a failure"),
        pytest.param([said("x"), got("x")], {}, id="a success"),
        pytest.param([said("x", "x"), got("x", RETRY), got("x")], {"x": 1}, id="turned down, then taken, in one step"),
        pytest.param([said("x", "x"), got("x"), got("x", RETRY)], {"x": 1}, id="taken, then turned down, in one step"),
        pytest.param([said(), CORRECTED], {OUTPUT: 1}, id="an answer that does not fit"),
        pytest.param([said(), CORRECTED, said(), CORRECTED], {OUTPUT: 2}, id="two answers that do not fit"),
        pytest.param([said(), CORRECTED, said()], {OUTPUT: 1}, id="then an answer, of which nothing is known yet"),
        pytest.param([said(), CORRECTED, said(), said("x")], {}, id="then an answer that fits, and more"),
        pytest.param([said(), CORRECTED, said(), said(), CORRECTED], {OUTPUT: 1}, id="a fit answer in between"),
        pytest.param([said(), CORRECTED, said("x"), said(), CORRECTED], {OUTPUT: 2}, id="calls in between"),
        pytest.param(
            [said("x"), got("x", RETRY), said(), CORRECTED, said(), said("y")], {"x": 1}, id="a tool and an answer"
        ),
    ],
)
def test_steps_in_a_row_in_which_a_tool_turns_down_what_it_is_given_are_counted(
    facts: list[Fact], counts: dict[str, int]
) -> None:
    assert {tool: count for tool, (count, _) in fold(START, *facts).again.items()} == counts


CODES = st.sampled_from([None, RETRY, INVALID, "DENIED", "NOT_RUN", "NO_SUCH_TOOL"])
TOOLS = st.sampled_from(["x", "y"])
FACTS = st.lists(
    st.lists(TOOLS, max_size=3).map(lambda names: said(*names)) | st.builds(got, TOOLS, CODES) | st.just(CORRECTED),
    max_size=12,
)


@given(FACTS, st.integers(0, 12))
def test_folding_any_split_is_folding_the_whole(facts: list[Fact], cut: int) -> None:
    before = fold(START, *facts[:cut])
    kept = before._replace(again=dict(before.again))
    assert fold(before, *facts[cut:]) == fold(START, *facts)
    assert before == kept, "a value does not change"
    assert Progress() == START


@given(FACTS, st.data())
def test_the_order_of_the_results_of_a_step_makes_no_difference(facts: list[Fact], data: st.DataObject) -> None:
    before = fold(START, *facts, said("x", "y"))
    results = data.draw(st.lists(st.builds(got, TOOLS, CODES), max_size=4))
    other = data.draw(st.permutations(results))
    assert fold(before, *results) == fold(before, *other)


# Which limit.

SPENT = Usage(input_tokens=10, output_tokens=5, unknown=3)
FAR = Progress(
    steps=4, calls=7, asked=(("x", "{}"),), same=3, again={"x": (1, 3), "y": (3, 4), OUTPUT: (2, 4), "submit": (1, 2)}
)
"""How far a run is that every limit below forbids to go on."""
EVERY: dict[str, Any] = {"steps": 4, "tokens": 15, "tool_calls": 6, "seconds": 2.5, "repeats": 3, "retries": 2}
TEXTS = {
    "steps": "the run has made 4 model calls, and may make 4",
    "tokens": "the run has used 15 tokens, and may use 15",
    "tool_calls": "the run has asked for 7 calls, and may for 6",
    "seconds": "the run has been at work for 2.5 seconds, and may be no longer",
    "repeats": "the model has asked for the same calls 3 steps in a row",
    "retries": "tool 'y' turned down what it was given 3 steps in a row",
}
LAX: dict[str, Any] = {"steps": 5, "tokens": 16, "tool_calls": 7, "seconds": None, "repeats": 4, "retries": 3}


@pytest.mark.parametrize("place", range(len(TEXTS)))
def test_the_first_limit_that_is_reached_is_named(place: int) -> None:
    earlier = list(TEXTS)[:place]
    name = list(TEXTS)[place]
    limits = Limits(**{**EVERY, **{one: LAX[one] for one in earlier}})
    error = reached(limits, FAR, SPENT, late=True)
    assert error is not None
    assert (error.kind, error.code, error.message) == ("limit", "LIMIT", TEXTS[name])
    assert error.details == {"limit": name}


@pytest.mark.parametrize("name", TEXTS)
def test_each_limit_is_reached_alone(name: str) -> None:
    error = reached(Limits(**{**LAX, name: EVERY[name]}), FAR, SPENT, late=True)
    assert error is not None
    assert error.message == TEXTS[name]


def test_below_every_limit_the_run_goes_on() -> None:
    assert reached(Limits(**LAX), FAR, SPENT, late=True) is None
    assert reached(Limits(**{**LAX, "seconds": 2.5}), FAR, SPENT, late=False) is None
    assert reached(Limits(), START, Usage(), late=False) is None


def test_tokens_that_are_not_known_do_not_count() -> None:
    assert reached(Limits(tokens=1), START, Usage(unknown=9), late=False) is None


@pytest.mark.parametrize(("submission", "count"), [(None, 2), ("submit", 3)])
def test_answers_that_do_not_fit_are_no_output(submission: str | None, count: int) -> None:
    progress = Progress(steps=4, again={OUTPUT: (2, 4), "submit": (1, 3)})
    fine = Limits(retries=count)
    assert reached(fine, progress, Usage(), late=False, submission=submission) is None
    error = reached(Limits(retries=count - 1), progress, Usage(), late=False, submission=submission)
    assert error is not None
    assert (error.kind, error.code) == ("output", "INVALID_OUTPUT")
    assert error.message == f"the answer did not fit the declared output {count} times in a row"
    assert error.details == {}


def test_a_tool_comes_before_the_answer() -> None:
    progress = Progress(steps=4, again={OUTPUT: (2, 3), "x": (2, 4)})
    error = reached(Limits(retries=1), progress, Usage(), late=False)
    assert error is not None
    assert error.details == {"limit": "retries"}
