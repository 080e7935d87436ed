"""The shape of a run's answer: always an object's schema, and text to a value of the type."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Generic, Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, field_validator
from typing_extensions import TypedDict

from tests import provider_rules
from weft._schema import InvalidArguments, inspect_output
from weft.errors import InvalidTool, WrongCall
from weft.models._strict import anthropic_strict, openai_strict


class Line(BaseModel):
    sku: str
    count: int


class Order(BaseModel):
    """What was bought."""

    id: Annotated[str, Field(description="The number.")]
    lines: list[Line] = []


class Node(BaseModel):
    """A tree."""

    value: int
    children: list[Node] = []


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class OneOfTwo(BaseModel):
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    a: int = 0
    b: int = 0


class Lines(RootModel[list[Line]]):
    """Lines of an order."""


class Wrapped(RootModel[Closed]):
    pass


class Address(TypedDict):
    city: str


@dataclass
class Point:
    x: int
    y: int = 0


class Color(Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


# The type, legal JSON of it with the value, and JSON that is refused.
OBJECTS = [
    pytest.param(Order, {"id": "o", "lines": []}, Order(id="o"), {"id": 1}, id="model"),
    pytest.param(
        Node, {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)]), {}, id="tree"
    ),
    pytest.param(Closed, {"a": 1}, Closed(a=1), {"a": 1, "b": 2}, id="closed model"),
    pytest.param(Open, {"a": 1, "b": 2}, Open(a=1, b=2), {"b": 2}, id="open model"),  # type: ignore[call-arg]
    pytest.param(Point, {"x": 1}, Point(1), {"y": 1}, id="dataclass"),
    pytest.param(Address, {"city": "Bern"}, {"city": "Bern"}, {}, id="TypedDict"),
    pytest.param(Page[int], {"items": [1]}, Page[int](items=[1]), {"items": ["x"]}, id="generic model"),
    pytest.param(dict[str, int], {"a": 1}, {"a": 1}, {"a": "x"}, id="dict"),
    pytest.param(Wrapped, {"a": 1}, Wrapped(Closed(a=1)), {}, id="root model of an object"),
    pytest.param(Annotated[Closed, Field(description="It.")], {"a": 1}, Closed(a=1), {}, id="annotated model"),
]
OTHERS = [
    pytest.param(int, 1, 1, "x", id="int"),
    pytest.param(str, "a", "a", 1, id="str"),
    pytest.param(bool, True, True, "maybe", id="bool"),
    pytest.param(date, "2026-01-02", date(2026, 1, 2), "soon", id="date"),
    pytest.param(None, None, None, 0, id="None"),
    pytest.param(list[Line], [{"sku": "s", "count": 1}], [Line(sku="s", count=1)], [{}], id="list of models"),
    pytest.param(list[Node], [{"value": 1}], [Node(value=1)], [{}], id="list of trees"),
    pytest.param(tuple[int, str], [1, "a"], (1, "a"), [1], id="tuple"),
    pytest.param(Closed | Address, {"city": "Bern"}, {"city": "Bern"}, {}, id="union of objects"),
    pytest.param(Closed | None, None, None, {}, id="optional"),
    pytest.param(Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat"}, Cat(kind="cat"), {}, id="tagged"),
    pytest.param(OneOfTwo, {"a": 1}, OneOfTwo(a=1), {"a": "x"}, id="model with a union of its own"),
    pytest.param(Literal["yes", "no"], "yes", "yes", "maybe", id="Literal"),
    pytest.param(Color, "red", Color.RED, "green", id="Enum"),
    pytest.param(Lines, [{"sku": "s", "count": 1}], Lines([Line(sku="s", count=1)]), [{}], id="root model of a list"),
    pytest.param(RootModel[Closed | None], None, RootModel[Closed | None](None), 1, id="root model of a union"),
    pytest.param(Annotated[int, Field(gt=0)], 1, 1, 0, id="constrained"),
]


def told(kind: object, text: str) -> str:
    with pytest.raises(InvalidArguments) as refused:
        inspect_output(kind, "desk").parse(text)
    return str(refused.value)


@pytest.mark.parametrize(("kind", "good", "value", "bad"), OBJECTS)
def test_an_object_is_taken_as_it_is(kind: object, good: object, value: object, bad: object) -> None:
    shape = inspect_output(kind, "desk")
    assert not shape.wrapped
    assert shape.parse(json.dumps(good)) == value
    assert type(shape.parse(json.dumps(good))) is type(value)
    assert "; got " in told(kind, json.dumps(bad))


@pytest.mark.parametrize(("kind", "good", "value", "bad"), OTHERS)
def test_anything_else_is_wrapped(kind: object, good: object, value: object, bad: object) -> None:
    shape = inspect_output(kind, "desk")
    assert shape.wrapped
    assert list(shape.schema["properties"]) == shape.schema["required"] == ["output"]
    assert shape.schema["additionalProperties"] is False
    assert shape.parse(json.dumps({"output": good})) == value
    assert type(shape.parse(json.dumps({"output": good}))) is type(value)
    assert told(kind, json.dumps({"output": bad})).startswith("output")
    assert told(kind, "{}") == "output: Field required; got {}"
    assert told(kind, json.dumps({"output": good, "more": 1})).startswith("more: ")


@pytest.mark.parametrize(("kind", "good", "value", "bad"), OBJECTS + OTHERS)
def test_every_provider_takes_the_schema_and_it_says_what_is_taken(
    kind: object, good: object, value: object, bad: object
) -> None:
    shape = inspect_output(kind, "desk")
    assert provider_rules.openai(shape.schema, strict=False) == []
    assert provider_rules.anthropic(shape.schema, strict=False) == []
    assert not openai_strict(shape.schema) or provider_rules.openai(shape.schema, strict=True) == []
    assert not anthropic_strict(shape.schema) or provider_rules.anthropic(shape.schema, strict=True) == []
    Draft202012Validator(shape.schema).validate({"output": good} if shape.wrapped else good)


@pytest.mark.parametrize(("kind", "good", "value", "bad"), OBJECTS + OTHERS)
@pytest.mark.parametrize("text", ["", "not JSON", '{"output": ', "[]", "7", '{"a": NaN}', '{"a": 1, "a": 1}', "{} {}"])
def test_text_that_is_not_one_object_is_refused_with_a_reason(
    kind: object, good: object, value: object, bad: object, text: str
) -> None:
    assert re.match(r"(output|a|city|id|items|value|x): .+; ", told(kind, text))


@given(st.text())
@pytest.mark.parametrize("kind", [Order, list[Order], dict[str, float]])
def test_any_text_is_taken_or_refused(kind: object, text: str) -> None:
    with suppress(InvalidArguments):
        inspect_output(kind, "desk").parse(text)


def test_a_models_title_and_descriptions_stay() -> None:
    schema = inspect_output(Order, "desk").schema
    assert (schema["title"], schema["description"]) == ("Order", "What was bought.")
    assert schema["properties"]["id"]["description"] == "The number."


def test_what_the_root_refers_to_stands_at_the_root() -> None:
    schema = inspect_output(Node, "desk").schema
    assert (schema["title"], schema["description"]) == ("Node", "A tree.")
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert list(schema["$defs"]) == ["Node"]


def test_a_description_of_what_is_wrapped_stays() -> None:
    assert inspect_output(Lines, "desk").schema["$defs"]["Lines"]["description"] == "Lines of an order."
    schema = inspect_output(Annotated[int, Field(description="How many.")], "desk").schema
    assert schema["properties"]["output"]["description"] == "How many."
    assert "title" not in schema


@pytest.mark.parametrize("kind", [Callable[[], None], object(), type("Bare", (), {}), "Nowhere"], ids=str)
def test_a_type_that_cannot_be_described_is_a_wrong_call_that_names_it(kind: object) -> None:
    with pytest.raises(WrongCall, match=r"(?s)output of 'desk'.*(Callable|object|Bare|Nowhere).* cannot be described"):
        inspect_output(kind, "desk")
    with pytest.raises(WrongCall) as refused:
        inspect_output(kind, "desk")
    assert not isinstance(refused.value, InvalidTool)


def test_what_is_said_of_a_type_is_one_line_that_names_the_way_out() -> None:
    with pytest.raises(WrongCall) as refused:
        inspect_output(type("Bare", (), {}), "desk")
    assert str(refused.value).endswith("; use a pydantic model, a dataclass or a TypedDict")
    assert "\n" not in str(refused.value)


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Broken(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def check(cls, value: int) -> int:
        raise LookupError("a bug")


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        (Order, False),
        (list[Order], False),
        (Color, False),
        (Broken, True),
        (Annotated[int, AfterValidator(even)], True),
    ],
)
def test_a_type_says_whether_it_runs_the_applications_code(kind: object, runs: bool) -> None:
    assert inspect_output(kind, "desk").runs_code is runs


def test_a_validator_of_the_application_may_refuse() -> None:
    assert "must be even" in told(Annotated[int, AfterValidator(even)], '{"output": 1}')


def test_what_else_a_validator_raises_is_not_the_models_fault() -> None:
    with pytest.raises(LookupError, match="a bug"):
        inspect_output(Broken, "desk").parse('{"a": 1}')
