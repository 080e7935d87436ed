"""Structured output: any type, by either way, with the same result."""

from __future__ import annotations

import asyncio
import enum
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator
from typing_extensions import TypedDict

from tests.children import STALLED
from tests.structured import MODES, SUBMIT, Mode, Structured, answer, broken_off
from weft import Agent, LimitReached, Limits, NoOutput, Retry, RunFailed, Settings, Usage, tool
from weft.errors import InvalidTool, WrongCall
from weft.events import RunFinished, StepFinished, ToolFinished, ToolStarted
from weft.testing import Script, call, calls, cut, override, refuse, say
from weft.testing.script import SPENT
from weft.thread import open_store

T = TypeVar("T")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """How the model gives structured output."""
    found: Mode = request.param
    return found


class Order(BaseModel):
    id: str
    cents: int = Field(gt=0)


ORDER = {"id": "o-7", "cents": 2_500}


@dataclass
class Charge:
    order: Order
    at: datetime


class Row(TypedDict):
    name: str
    count: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Page(BaseModel, Generic[T]):
    items: list[T]
    last: bool


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Names(RootModel[list[str]]):
    pass


class Prices(RootModel[dict[str, int]]):
    pass


class Aliased(BaseModel):
    order: str = Field(alias="orderId")


class Point(NamedTuple):
    x: int
    y: int = 0


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    output: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

TYPES: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("model", Order, ORDER, Order(id="o-7", cents=2_500)),
    (
        "dataclass",
        Charge,
        {"order": ORDER, "at": "2026-03-01T12:00:00Z"},
        Charge(order=Order(id="o-7", cents=2_500), at=NOON),
    ),
    ("TypedDict", Row, {"name": "a", "count": 2}, {"name": "a", "count": 2}),
    ("list of models", list[Order], {"output": [ORDER, ORDER]}, [Order(id="o-7", cents=2_500)] * 2),
    ("dict", dict[str, int], {"a": 1, "b": 2}, {"a": 1, "b": 2}),
    ("bare dict", dict, {"a": [1, None]}, {"a": [1, None]}),
    ("int", int, {"output": 42}, 42),
    ("float", float, {"output": 1.5}, 1.5),
    ("bool", bool, {"output": False}, False),
    ("Literal", Literal["yes", "no"], {"output": "no"}, "no"),
    ("Enum", Color, {"output": "blue"}, Color.BLUE),
    ("IntEnum", Level, {"output": 2}, Level.HIGH),
    ("Union", int | Order, {"output": ORDER}, Order(id="o-7", cents=2_500)),
    ("Optional that is there", Optional[Order], {"output": ORDER}, Order(id="o-7", cents=2_500)),  # noqa: UP045
    ("Optional that is not", Order | None, {"output": None}, None),
    ("tuple", tuple[int, str, bool], {"output": [1, "a", True]}, (1, "a", True)),
    ("set", set[int], {"output": [1, 2]}, {1, 2}),
    ("datetime", datetime, {"output": "2026-03-01T12:00:00Z"}, NOON),
    ("bytes", bytes, {"output": "abc"}, b"abc"),
    ("generic model", Page[Order], {"items": [ORDER], "last": True}, Page[Order](items=[Order(**ORDER)], last=True)),
    (
        "recursive model",
        Node,
        {"name": "a", "children": [{"name": "b", "children": []}]},
        Node(name="a", children=[Node(name="b")]),
    ),
    ("root model of a list", Names, {"output": ["a", "b"]}, Names(["a", "b"])),
    ("root model of a dict", Prices, {"a": 1}, Prices({"a": 1})),
    ("discriminated union", Pet, {"output": {"kind": "dog", "good": True}}, Dog(kind="dog", good=True)),
    ("list of a discriminated union", list[Pet], {"output": [{"kind": "cat", "lives": 9}]}, [Cat(kind="cat", lives=9)]),
    ("constrained number", Annotated[int, Field(ge=1, le=5)], {"output": 5}, 5),
    ("text that is not all text", Annotated[str, Field(pattern="^[A-Z]+$")], {"output": "ABC"}, "ABC"),
    ("model with an alias", Aliased, {"orderId": "1"}, Aliased(orderId="1")),
    ("named tuple", Point, {"output": [1, 2]}, Point(1, 2)),
    ("model whose field is named output", Closed, {"output": 1}, Closed(output=1)),
    ("anything", Any, {"output": {"a": [1]}}, {"a": [1]}),
]
KINDS = pytest.mark.parametrize(("kind", "given", "value"), [pytest.param(*row[1:], id=row[0]) for row in TYPES])


@tool(effect="none")
async def look(item: int) -> str:
    """Look something up."""
    return f"found {item}"


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    raise AssertionError("nobody has approved this")


def results(found: Any) -> list[tuple[str, str | None]]:
    return [(result.content, result.code) for message in found.messages for result in message.results]


def told(model: Structured, request: int = -1) -> str:
    """What the model was told last before this request: a result, or a user's words."""
    last = model.requests[request].messages[-1]
    return last.text or last.results[-1].content


# Any type, the same by both ways.


@KINDS
async def test_an_answer_is_of_the_declared_type(mode: Mode, kind: Any, given: dict[str, Any], value: Any) -> None:
    model = Structured(mode, answer(mode, given))
    result = await Agent(model, output=kind).run("go")
    assert result.output == value
    assert type(result.output) is type(value)
    assert (result.stop, result.finish) == ("answered", "stop")
    assert result.usage == Usage(input_tokens=10, output_tokens=5)
    assert len(model.requests) == 1


@KINDS
async def test_the_text_of_a_structured_answer_is_its_json(
    mode: Mode, kind: Any, given: dict[str, Any], value: Any
) -> None:
    result = await Agent(Structured(mode, answer(mode, given)), output=kind).run("go")
    assert json.loads(result.text) == given


@KINDS
async def test_the_messages_of_a_structured_answer_may_be_gone_on_with(
    mode: Mode, kind: Any, given: dict[str, Any], value: Any
) -> None:
    model = Structured(mode, answer(mode, given), answer(mode, given))
    agent = Agent(model, output=kind)
    first = await agent.run("go")
    second = await agent.run("again", history=first.messages)
    assert (second.output, len(model.requests)) == (value, 2)
    assert second.messages[: len(first.messages)] == first.messages


async def test_the_schema_that_is_asked_for_is_the_same_by_both_ways() -> None:
    by_schema, by_tool = Structured("schema", answer("schema", ORDER)), Structured("tool", answer("tool", ORDER))
    for model in (by_schema, by_tool):
        await Agent(model, output=Order).run("go")
    schema = by_schema.requests[0].output_schema
    assert schema is not None
    assert schema == by_tool.requests[0].tools[-1].schema
    assert set(schema["properties"]) == {"id", "cents"}
    assert by_schema.requests[0].tool_choice == "auto"
    assert by_schema.requests[0].tools == ()
    assert by_tool.requests[0].tools[-1].description


async def test_an_agent_without_an_output_type_gives_its_text() -> None:
    script = Script(say("hello"))
    result = await Agent(script).run("go")
    assert result.output == result.text == "hello"
    assert script.requests[0].output_schema is None
    assert script.requests[0].tools == ()


async def test_text_is_no_structured_output() -> None:
    script = Script(say("hello"))
    assert (await Agent(script, output=str).run("go")).output == "hello"
    assert script.requests[0].output_schema is None


async def test_the_way_is_chosen_by_the_model_that_answers() -> None:
    by_schema, by_tool = Structured("schema", answer("schema", ORDER)), Structured("tool", *[answer("tool", ORDER)] * 2)
    agent = Agent(by_schema, name="desk", output=Order)
    assert (await agent.run("go")).output == Order(**ORDER)
    assert (await agent.run("go", model=by_tool)).output == Order(**ORDER)
    with override({"desk": by_tool}):
        assert (await agent.run("go")).output == Order(**ORDER)


# Tools and output.


async def test_an_agent_may_have_tools_and_an_output(mode: Mode) -> None:
    model = Structured(mode, call("look", item=1), answer(mode, ORDER))
    result = await Agent(model, tools=[look], output=Order).run("go")
    assert result.output == Order(**ORDER)
    assert results(result)[0] == ("found 1", None)
    assert model.requests[1].tools[0].name == "look"


async def test_the_siblings_of_a_submission_run_before_the_run_ends() -> None:
    submitted = call(SUBMIT, json.dumps(ORDER))
    model = Structured("tool", calls(call("look", item=1), submitted, call("look", item=2)))
    result = await Agent(model, tools=[look], output=Order).run("go")
    assert result.output == Order(**ORDER)
    assert [content for content, _ in results(result)][::2] == ["found 1", "found 2"]
    assert [code for _, code in results(result)] == [None, None, None]
    assert len(model.requests) == 1


async def test_a_sibling_that_fails_does_not_take_the_output_back() -> None:
    model = Structured("tool", calls(call("look", "{"), call(SUBMIT, json.dumps(ORDER)), call("nothing")))
    result = await Agent(model, tools=[look], output=Order, limits=Limits(retries=0)).run("go")
    assert result.output == Order(**ORDER)
    assert [code for _, code in results(result)] == ["INVALID_INPUT", None, "NO_SUCH_TOOL"]


@pytest.mark.parametrize("first", [ORDER, {"id": 1}], ids=["both fit", "only the second fits"])
async def test_the_first_submission_that_fits_counts(first: dict[str, Any]) -> None:
    other = {"id": "o-8", "cents": 1}
    model = Structured("tool", calls(*(call(SUBMIT, json.dumps(given)) for given in (first, other, ORDER))))
    result = await Agent(model, output=Order).run("go")
    assert result.output == (Order(**ORDER) if first is ORDER else Order(**other))
    assert len([code for _, code in results(result) if code is None]) == 1
    assert json.loads(result.text) == result.output.model_dump()


async def test_a_submission_beside_a_call_that_needs_an_approval_is_no_output_yet() -> None:
    model = Structured("tool", calls(call("refund", order="1"), call(SUBMIT, json.dumps(ORDER))))
    result = await Agent(model, tools=[refund], output=Order).run("go")
    assert (result.stop, [pending.tool for pending in result.pending]) == ("parked", ["refund"])
    with pytest.raises(WrongCall, match="parked"):
        _ = result.output


async def test_a_stopped_run_has_no_output(mode: Mode) -> None:
    model = Structured(mode, call("look", item=1))
    result = await Agent(model, tools=[look], output=Order, stop_when=lambda step: True).run("go")
    with pytest.raises(WrongCall, match="stopped"):
        _ = result.output


async def test_a_failed_run_has_no_output(mode: Mode) -> None:
    model = Structured(mode, call("look", item=1))
    with pytest.raises(LimitReached) as caught:
        await Agent(model, tools=[look], output=Order, limits=Limits(steps=1)).run("go")
    assert caught.value.result is not None
    with pytest.raises(WrongCall, match="failed"):
        _ = caught.value.result.output


async def test_a_stream_gives_the_output_too(mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER)), output=Order)
    async with agent.stream("go") as run:
        events = [event async for event in run]
        result = await run.result()
    assert result.output == Order(**ORDER)
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert json.loads(last.text) == ORDER
    assert sum(isinstance(event, StepFinished) for event in events) == 1
    assert not any(isinstance(event, ToolStarted) for event in events), "no body runs for a submission"
    assert sum(isinstance(event, ToolFinished) for event in events) == (mode == "tool")


def test_run_sync_gives_the_output_too(mode: Mode) -> None:
    assert Agent(Structured(mode, answer(mode, ORDER)), output=Order).run_sync("go").output == Order(**ORDER)


# An answer that does not fit.

WRONG: list[tuple[str, str, str]] = [
    ("a field is missing", '{"id": "o-7"}', "cents"),
    ("a field has the wrong type", '{"id": "o-7", "cents": "many"}', "cents"),
    ("a field breaks its rule", '{"id": "o-7", "cents": 0}', "greater than 0"),
    ("it is no object", "[1]", "object"),
    ("it is no JSON", '{"id": ', "JSON"),
    ("it is nothing", "", "JSON"),
    ("it is too deep", '{"id": ' + "[" * 10_000 + "]" * 10_000 + "}", "JSON"),
    ("a key comes twice", '{"id": "1", "id": "2", "cents": 1}', "id"),
    ("a number is none", '{"id": "1", "cents": NaN}', "JSON"),
    ("something follows", json.dumps(ORDER) + " {}", "JSON"),
]


@pytest.mark.parametrize(("wrong", "says"), [pytest.param(*row[1:], id=row[0]) for row in WRONG])
async def test_the_model_is_told_why_its_answer_does_not_fit(mode: Mode, wrong: str, says: str) -> None:
    model = Structured(mode, answer(mode, wrong), answer(mode, ORDER))
    result = await Agent(model, output=Order).run("go")
    assert result.output == Order(**ORDER)
    empty = mode == "tool" and not wrong  # a call without arguments has an empty object
    assert ("cents" if empty else says) in told(model)
    assert result.usage == Usage(input_tokens=20, output_tokens=10)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_answers_that_do_not_fit_count_against_the_retries(mode: Mode, retries: int) -> None:
    model = Structured(mode, *[answer(mode, {"id": "o-7"})] * 9)
    with pytest.raises(NoOutput) as caught:
        await Agent(model, output=Order, limits=Limits(retries=retries)).run("go")
    assert caught.value.code == "INVALID_OUTPUT"
    assert len(model.requests) == retries + 1
    assert caught.value.result is not None
    assert caught.value.result.usage.input_tokens == 10 * (retries + 1)


async def test_an_answer_may_fit_at_the_last_retry(mode: Mode) -> None:
    model = Structured(mode, *[answer(mode, {"id": "o-7"})] * 2, answer(mode, ORDER))
    assert (await Agent(model, output=Order, limits=Limits(retries=2)).run("go")).output == Order(**ORDER)


async def test_words_instead_of_a_submission_are_told_and_count() -> None:
    model = Structured("tool", say("o-7 costs 25"), answer("tool", ORDER))
    assert (await Agent(model, output=Order).run("go")).output == Order(**ORDER)
    assert SUBMIT in told(model)
    model = Structured("tool", *[say("o-7 costs 25")] * 9)
    with pytest.raises(NoOutput) as caught:
        await Agent(model, output=Order, limits=Limits(retries=1)).run("go")
    assert (caught.value.code, len(model.requests)) == ("INVALID_OUTPUT", 2)
    assert caught.value.result is not None
    assert caught.value.result.text == "o-7 costs 25"


async def test_words_and_bad_submissions_count_together() -> None:
    bad = answer("tool", {"id": "o-7"})
    model = Structured("tool", *[say("o-7 costs 25"), bad] * 5)
    with pytest.raises(NoOutput) as caught:
        await Agent(model, output=Order, limits=Limits(retries=2)).run("go")
    assert (caught.value.code, len(model.requests)) == ("INVALID_OUTPUT", 3)


async def test_a_reply_with_several_bad_submissions_is_one_try() -> None:
    bad = call(SUBMIT, {"id": "o-7"})
    model = Structured("tool", calls(bad, bad, bad), answer("tool", ORDER))
    assert (await Agent(model, output=Order, limits=Limits(retries=1)).run("go")).output == Order(**ORDER)


async def test_a_tool_s_retries_are_not_those_of_the_output(mode: Mode) -> None:
    bad = answer(mode, {"id": "o-7"})
    model = Structured(mode, call("look", "{"), bad, call("look", "{"), bad, answer(mode, ORDER))
    agent = Agent(model, tools=[look], output=Order, limits=Limits(retries=2))
    assert (await agent.run("go")).output == Order(**ORDER)


async def test_a_huge_problem_is_cut_for_the_model(mode: Mode) -> None:
    given = {f"field{n}": "x" * 1_000 for n in range(200)}
    model = Structured(mode, answer(mode, given), answer(mode, {"a": 1}))
    await Agent(model, output=dict[str, int]).run("go")
    assert len(told(model).encode()) < 70_000


# Refused, filtered, cut.


@pytest.mark.parametrize(("reason", "code"), [("refusal", "REFUSED"), ("filter", "FILTERED"), ("length", "CUT")])
@pytest.mark.parametrize("given", ["I will not", '{"id": "o-7", "ce', json.dumps(ORDER)])
async def test_an_answer_that_was_broken_off_is_told_with_its_text_and_never_asked_again(
    mode: Mode, reason: str, code: str, given: str
) -> None:
    model = Structured(mode, broken_off("schema", given, reason))
    with pytest.raises(NoOutput) as caught:
        await Agent(model, output=Order).run("go")
    assert caught.value.code == code
    assert len(model.requests) == 1
    result = caught.value.result
    assert result is not None
    assert (result.text, result.stop, result.usage) == (given, "failed", Usage(input_tokens=10, output_tokens=5))
    with pytest.raises(WrongCall):
        _ = result.output


@pytest.mark.parametrize(("reason", "code"), [("refusal", "REFUSED"), ("filter", "FILTERED"), ("length", "CUT")])
async def test_a_submission_that_was_broken_off_is_not_taken(reason: str, code: str) -> None:
    model = Structured("tool", broken_off("tool", ORDER, reason))
    with pytest.raises(NoOutput) as caught:
        await Agent(model, output=Order).run("go")
    assert (caught.value.code, len(model.requests)) == (code, 1)
    assert results(caught.value.result)[0][1] == "NOT_RUN"


async def test_another_call_that_was_cut_is_asked_for_again(mode: Mode) -> None:
    model = Structured(mode, cut("", call("look", item=1)), answer(mode, ORDER))
    assert (await Agent(model, tools=[look], output=Order).run("go")).output == Order(**ORDER)


async def test_a_refusal_of_an_agent_without_output_is_its_text() -> None:
    result = await Agent(Script(refuse("I will not"))).run("go")
    assert (result.output, result.finish) == ("I will not", "refusal")


# Validators.


class Even(BaseModel):
    n: int
    seen: Annotated[list[str], Field(exclude=True)] = []

    @field_validator("n")
    @classmethod
    def even(cls, n: int) -> int:
        if n == 13:
            raise OSError("secret: the disk is full")
        if n == 15:
            raise Retry("try a small one")
        if n % 2:
            raise ValueError("must be even")
        return n


async def test_a_validator_s_word_is_told_to_the_model(mode: Mode) -> None:
    model = Structured(mode, answer(mode, {"n": 1}), answer(mode, {"n": 2}))
    assert (await Agent(model, output=Even).run("go")).output.n == 2
    assert "must be even" in told(model)


async def test_a_validator_may_ask_again_by_a_retry(mode: Mode) -> None:
    model = Structured(mode, answer(mode, {"n": 15}), answer(mode, {"n": 2}))
    assert (await Agent(model, output=Even).run("go")).output.n == 2
    assert "try a small one" in told(model)


async def test_a_validator_that_breaks_fails_the_run_without_internals(mode: Mode) -> None:
    model = Structured(mode, answer(mode, {"n": 13}))
    with pytest.raises(RunFailed) as caught:
        await Agent(model, output=Even).run("go")
    error = caught.value
    assert not isinstance(error, NoOutput)
    assert (error.code, len(model.requests)) == ("INTERNAL", 1)
    assert "secret" not in str(error)
    assert "OSError" in str(error)
    assert isinstance(error.__cause__, OSError)
    assert error.result is not None
    assert (error.result.usage, len(error.result.messages)) == (SPENT, 2 if mode == "schema" else 3)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class MuteRetry(Mute, Retry):
    pass


@pytest.mark.parametrize("raised", [Mute(), MuteRetry()])
async def test_a_validator_may_raise_what_has_no_text(mode: Mode, raised: Exception) -> None:
    class Never(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def never(cls, n: int) -> int:
            raise raised

    with pytest.raises(RunFailed) as caught:
        await Agent(Structured(mode, answer(mode, {"n": 1})), output=Never).run("go")
    assert caught.value.code == "INTERNAL"
    assert caught.value.__cause__ is raised


async def test_an_answer_is_read_once(mode: Mode) -> None:
    read: list[int] = []

    class Once(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def once(cls, n: int) -> int:
            assert not read
            read.append(n)
            return n

    assert (await Agent(Structured(mode, answer(mode, {"n": 1})), output=Once).run("go")).output.n == 1
    read.clear()
    async with open_store("memory:") as store:
        session = await store.create(Agent(Structured(mode, answer(mode, {"n": 2})), output=Once))
        turn = await session.send("go")
        assert (await turn.wait()).output.n == 2
        assert (await turn.wait()).output.n == 2
    assert read == [2]


@pytest.mark.parametrize("kind", [Iterable[int], dict[str, Iterable[int]]])
def test_what_would_be_read_only_when_it_is_asked_for_is_no_output_type(kind: Any) -> None:
    with pytest.raises(WrongCall, match="use a list"):
        Agent(Script(), output=kind)


async def test_a_tool_choice_that_no_tool_fits_is_refused_before_the_model_is_asked() -> None:
    script = Script(say("hi"))
    with pytest.raises(WrongCall, match="no tool 'lok'"):
        await Agent(script, tools=[look], settings=Settings(tool_choice="lok")).run("go")
    assert script.requests == []


async def test_validators_do_not_run_on_the_loop_s_thread(mode: Mode) -> None:
    seen: list[threading.Thread] = []

    class Slow(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def look_around(cls, n: int) -> int:
            seen.append(threading.current_thread())
            return n

    await Agent(Structured(mode, answer(mode, {"n": 1})), output=Slow).run("go")
    assert seen
    assert threading.current_thread() not in seen


async def test_a_validator_that_waits_does_not_hold_up_the_loop(mode: Mode) -> None:
    go = threading.Event()

    class Slow(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def wait(cls, n: int) -> int:
            assert go.wait(STALLED)
            return n

    task = asyncio.ensure_future(Agent(Structured(mode, answer(mode, {"n": 1})), output=Slow).run("go"))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(go.set)
    assert (await task).output.n == 1


# What an agent refuses.


def test_a_tool_of_the_submission_s_name_is_refused() -> None:
    @tool(name=SUBMIT, effect="none")
    async def mine(x: int) -> int:
        return x

    with pytest.raises(InvalidTool, match=r"'desk'.*submit_output"):
        Agent(Script(), name="desk", tools=[mine], output=Order)
    plain = Agent(Script(), name="desk", tools=[mine])
    with pytest.raises(InvalidTool, match=SUBMIT):
        plain.replace(output=Order)


async def test_without_an_output_the_name_of_the_submission_is_free() -> None:
    @tool(name=SUBMIT, effect="none")
    async def mine(x: int) -> int:
        return x + 1

    result = await Agent(Script(call(SUBMIT, x=1), say("done")), tools=[mine]).run("go")
    assert (result.text, results(result)) == ("done", [("2", None)])


class Opaque:
    pass


@pytest.mark.parametrize("kind", [Opaque, list[Opaque], type, threading.Lock, "Order", 42], ids=str)
def test_a_type_that_cannot_be_described_is_refused_with_the_agent_s_name(kind: Any) -> None:
    with pytest.raises(WrongCall, match="desk"):
        Agent(Script(), name="desk", output=kind)


async def test_replace_changes_the_output(mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER)), output=int, name="desk")
    changed_agent: Agent[None, Any] = agent.replace(output=Order)
    assert (await changed_agent.run("go")).output == Order(**ORDER)
    assert agent.output is int
    script = Script(say("text"))
    assert (await agent.replace(model=script, output=None).run("go")).output == "text"
    again = agent.replace(model=Structured(mode, answer(mode, {"output": 3})), name="other")
    assert (await again.run("go")).output == 3


# What forces a call.


class Choosing(Structured):
    """A structured model that leaves the tool choice to the test."""

    async def stream(self, request: Any) -> Any:
        async for event in self.script.stream(request):
            yield event


@pytest.mark.parametrize(
    ("choice", "plain", "tool_mode"),
    [
        (None, ["auto", "auto"], ["required", "required"]),
        ("auto", ["auto", "auto"], ["required", "required"]),
        ("none", ["none", "none"], ["required", "required"]),
        ("required", ["required", "auto"], ["required", "required"]),
        ("look", ["look", "auto"], ["look", "required"]),
    ],
)
async def test_a_forced_call_is_forced_at_the_first_model_call_only(
    choice: str | None, plain: list[str], tool_mode: list[str]
) -> None:
    settings = Settings(tool_choice=choice)
    script = Script(call("look", item=1), say("done"))
    await Agent(script, tools=[look], settings=settings).run("go")
    assert [request.tool_choice for request in script.requests] == plain
    for mode, wanted in (("schema", plain), ("tool", tool_mode)):
        model = Choosing(mode, call("look", item=1), answer(mode, ORDER))  # type: ignore[arg-type]
        agent = Agent(model, tools=[look], output=Order, settings=settings)
        assert (await agent.run("go")).output == Order(**ORDER)
        assert [request.tool_choice for request in model.requests] == wanted


async def test_a_run_s_own_settings_may_force_a_call() -> None:
    script = Script(call("look", item=1), say("done"))
    await Agent(script, tools=[look]).run("go", settings=Settings(tool_choice="look"))
    assert [request.tool_choice for request in script.requests] == ["look", "auto"]
