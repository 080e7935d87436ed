"""Whether a schema may be sent with `strict: true`: never one that the provider would refuse."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import date
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from tests import provider_rules
from tests.test_schema import TYPES, Address, Color, Mixed, Order, Page, Point, takes
from weft import tool
from weft.models._strict import anthropic_strict, anthropic_strict_tools, openai_strict


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Line(Closed):
    sku: str
    count: int


class Bill(Closed):
    """What is due."""

    number: int
    lines: list[Line]
    note: str | None


class Tree(Closed):
    value: int
    children: list[Tree]


class Other(Closed):
    name: str
    count: int


class Partial(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic reads it
    near: str


def nested(levels: int) -> Any:
    """A model with this many levels."""
    made: Any = int
    for _ in range(levels):
        made = create_model("Level", __base__=Closed, inner=(made, ...))
    return made


def wide(count: int) -> Any:
    return create_model("Wide", __base__=Closed, **{f"p{index}": (int, ...) for index in range(count)})


def many(count: int, length: int = 5) -> Any:
    return Literal[tuple(f"{index:0{length}}" for index in range(count))]  # type: ignore[misc]  # made at run time


# The type of a parameter, and whether it is surely taken by OpenAI and by Anthropic.
TAKEN = [
    pytest.param(int, True, True, id="int"),
    pytest.param(str | None, True, True, id="optional"),
    pytest.param(Optional[list[str]], True, True, id="optional list"),  # noqa: UP045  # both spellings are in use
    pytest.param(int | str, True, True, id="union"),
    pytest.param(list[list[str]], True, True, id="nested list"),
    pytest.param(Literal["a", "b"], True, True, id="Literal"),
    pytest.param(Literal["a"], True, True, id="Literal of one"),
    pytest.param(Color, True, True, id="Enum"),
    pytest.param(Bill, True, True, id="closed models"),
    pytest.param(list[Bill], True, True, id="list of closed models"),
    pytest.param(Bill | Line, True, True, id="union of models"),
    pytest.param(Line | Other, True, True, id="union of models that begin differently"),
    pytest.param(Annotated[int, Field(description="How many.")], True, True, id="description"),
    pytest.param(Tree, True, False, id="recursive"),
    pytest.param(date, False, True, id="format"),
    pytest.param(Partial, False, True, id="optional key"),
    pytest.param(Annotated[list[int], Field(min_length=1)], False, True, id="at least one"),
    pytest.param(many(501), False, True, id="many values"),
    pytest.param(many(300, 30), False, True, id="long values"),
    pytest.param(wide(101), False, True, id="many properties"),
    pytest.param(nested(4), True, True, id="four levels"),
    pytest.param(nested(5), False, True, id="five levels"),
    pytest.param(Annotated[list[int], Field(min_length=2)], False, False, id="at least two"),
    pytest.param(Annotated[int, Field(gt=0)], False, False, id="bounds"),
    pytest.param(Annotated[str, Field(pattern="a+")], False, False, id="pattern"),
    pytest.param(Annotated[str, Field(min_length=1)], False, False, id="length"),
    pytest.param(Annotated[Bill, Field(description="The bill.")], False, False, id="description beside a reference"),
    pytest.param(Any, False, False, id="Any"),
    pytest.param(list, False, False, id="bare list"),
    pytest.param(dict[str, int], False, False, id="dict"),
    pytest.param(tuple[int, str], False, False, id="tuple"),
    pytest.param(set[int], False, False, id="set"),
    pytest.param(bytes, False, False, id="bytes"),
    pytest.param(Mixed, False, False, id="mixed Enum"),
    pytest.param(Order, False, False, id="models that are not closed"),
    pytest.param(Address, False, True, id="optional key in a TypedDict"),
    pytest.param(Page[int], False, False, id="generic model that is not closed"),
    pytest.param(Point, False, False, id="default inside"),
]


@pytest.mark.parametrize(("hint", "openai", "anthropic"), TAKEN)
def test_each_provider_is_asked_for_what_it_surely_takes(hint: object, openai: bool, anthropic: bool) -> None:
    schema = takes(hint).definition.schema
    assert (openai_strict(schema), anthropic_strict(schema)) == (openai, anthropic)
    check(schema)


def check(schema: dict[str, Any]) -> None:
    """Whatever is called strict, the provider takes; and asking changes nothing."""
    before = deepcopy(schema)
    if openai_strict(schema):
        assert provider_rules.openai(schema, strict=True) == []
    if anthropic_strict(schema):
        assert provider_rules.anthropic(schema, strict=True) == []
    assert schema == before


@pytest.mark.parametrize(("hint", "good", "bad"), TYPES)
def test_nothing_that_a_provider_refuses_is_called_strict(hint: object, good: Any, bad: object) -> None:
    check(takes(hint).definition.schema)
    check(takes(hint, good[0][1]).definition.schema)


def test_a_default_is_never_strict() -> None:
    for default in (1, None):
        schema = takes(int | None, default).definition.schema
        assert not openai_strict(schema)
        assert not anthropic_strict(schema)


def test_a_tool_without_arguments() -> None:
    @tool
    def ping() -> None: ...

    assert not openai_strict(ping.definition.schema)  # it has no `required`
    assert openai_strict({**ping.definition.schema, "required": []})
    assert anthropic_strict(ping.definition.schema)


def test_objects_of_a_union_that_begin_alike_are_told_apart_by_anthropic_alone() -> None:
    twin = create_model("Twin", __base__=Closed, sku=(int, ...), price=(int, ...))
    for hint in (Line | twin, list[Line | twin], Line | twin | None):
        schema = takes(hint).definition.schema
        assert (openai_strict(schema), anthropic_strict(schema)) == (False, True)


def closed(**properties: object) -> dict[str, Any]:
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [closed()]},
        {"$ref": "#/$defs/A", "$defs": {"A": closed()}},
        {**closed(), "additionalProperties": True},
        {**closed(), "required": ["other"]},
        {**closed(a={"type": "string"}), "required": ["a", "a"]},
        {**closed(a={"type": "string"}), "required": "a"},
        {**closed(a={"type": "string"}), "required": [{}]},
        {**closed(), "$defs": []},
        {**closed(), "$defs": {"Unused": {}}},
        closed(a=True),
        closed(a={"type": "nothing"}),
        closed(a={"type": ["string", "null"]}),
        closed(a={"type": "string", "format": []}),
        closed(a={"type": "string", "enum": []}),
        closed(a={"type": "string", "enum": "ab"}),
        closed(a={"type": "string", "enum": [1]}),
        closed(a={"type": "integer", "enum": [True]}),
        closed(a={"enum": ["a"]}),
        closed(a={"type": "string", "enum": ["a"], "const": "a"}),
        closed(a={"type": "array"}),
        closed(a={"anyOf": []}),
        closed(a={"anyOf": [{"type": "string"}], "type": "string"}),
        closed(a={"oneOf": [{"type": "string"}]}),
        closed(a={"allOf": [{"type": "string"}]}),
        closed(a={"$ref": "#/$defs/Nowhere"}),
        closed(a={"$ref": "http://example.org/schema"}),
        closed(a={"$ref": 1}),
        closed(a={"type": "string", "x-own": 1}),
        {**closed(a={"$ref": "A"}), "$defs": {"A": closed()}},
        closed(a={**closed(), "$defs": {}}),
    ],
    ids=json.dumps,
)
def test_a_schema_that_is_not_surely_taken_is_not_strict(schema: dict[str, Any]) -> None:
    assert not openai_strict(schema)
    assert not anthropic_strict(schema)


def test_a_chain_of_definitions_counts_as_what_it_refers_to() -> None:
    chain = {f"D{index}": closed(inner={"$ref": f"#/$defs/D{index + 1}"}) for index in range(2000)}
    schema = {**closed(a={"$ref": "#/$defs/D1996"}), "$defs": {**chain, "D2000": {"type": "string"}}}
    assert not openai_strict(schema)
    assert anthropic_strict(schema)
    short = {name: node for name, node in schema["$defs"].items() if name >= "D1996" and len(name) > 4}
    assert openai_strict({**schema, "$defs": {**short, "D2000": {"type": "string"}}})


def test_levels_inside_a_recursion_count_once() -> None:
    deep = closed(a=closed(b=closed(c={"type": "array", "items": {"$ref": "#/$defs/A"}})))
    assert openai_strict({**closed(a={"$ref": "#/$defs/A"}), "$defs": {"A": deep}})
    assert not openai_strict({**closed(a=closed(b={"$ref": "#/$defs/A"})), "$defs": {"A": deep}})


def test_the_tools_of_one_request_share_what_anthropic_allows() -> None:
    plain = closed(a={"type": "string"})
    assert anthropic_strict_tools([plain] * 22) == (True,) * 20 + (False,) * 2
    optional = {**closed(**{f"p{index}": {"type": "string"} for index in range(10)}), "required": []}
    assert anthropic_strict_tools([optional, optional, optional, plain]) == (True, True, False, True)
    union = closed(**{f"p{index}": {"anyOf": [{"type": "string"}, {"type": "null"}]} for index in range(9)})
    assert anthropic_strict_tools([union, {}, union, plain]) == (True, False, False, True)
    assert anthropic_strict_tools([]) == ()


# Of any signature.


def tree() -> Any:
    """A recursive model, made anew: pydantic keeps what a signature says of such a one for every signature after it."""
    return create_model("Tree", __base__=Closed, value=(int, ...), children=(list["Tree"], ...))


SCALARS = st.sampled_from(
    [int, str, bool, float, None, date, Literal["a", "b"], Literal[1], Color, Mixed, Line, Bill, tree, Partial, Address]
).map(lambda hint: hint() if hint is tree else hint)


@st.composite
def models(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    parts = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(inner, st.booleans()), max_size=3))
    closed = draw(st.booleans())
    fields = {
        name: (Union[hint, None], None) if optional else (hint, ...)  # noqa: UP007  # the hint may be None
        for name, (hint, optional) in parts.items()
    }
    return create_model("Made", __config__=ConfigDict(extra="forbid" if closed else "ignore"), **fields)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: Optional[hint]),  # noqa: UP045  # the hint may be None
        st.tuples(inner, inner).map(lambda pair: Union[pair[0], pair[1]]),  # noqa: UP007  # same
        st.tuples(inner, inner).map(lambda pair: tuple[pair[0], pair[1]]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: Annotated[hint, Field(description="It.")]),
        models(inner),
    )


HINTS = st.recursive(SCALARS, larger, max_leaves=6)


@given(HINTS)
def test_of_any_signature_no_provider_refuses_what_it_is_sent(hint: Any) -> None:
    schema = takes(hint).definition.schema
    assert provider_rules.openai(schema, strict=False) == []
    assert provider_rules.anthropic(schema, strict=False) == []
    check(schema)


# Of any schema: one that is near to strict, with something changed.

LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "title": "N"},
        {"type": "null"},
        {"type": "string", "enum": ["a", "b"]},
        {"const": 1, "type": "integer"},
        {"$ref": "#/$defs/A"},
        {"$ref": "#/$defs/B"},
        {"type": "string", "format": "date"},
    ]
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda node: {"type": "array", "items": node}),
        st.lists(inner, min_size=1, max_size=3).map(lambda arms: {"anyOf": arms}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda parts: closed(**parts)),
    ),
    max_leaves=6,
)
ODD = st.sampled_from(
    [
        *({"default": 1}, {"minimum": 1}, {"maxLength": 2}, {"uniqueItems": True}, {"oneOf": [{"type": "string"}]}),
        *({"required": []}, {"additionalProperties": True}, {"additionalProperties": {"type": "string"}}),
        *({"minItems": 1}, {"minItems": 2}, {"not": {}}, {"description": "d"}, {"type": "string"}, {"format": "ipv4"}),
    ]
)


@given(st.dictionaries(st.sampled_from("abc"), NODES), NODES, NODES, st.none() | ODD, st.integers(min_value=0))
def test_of_any_schema_nothing_that_a_provider_refuses_is_called_strict(
    parts: dict[str, Any], one: dict[str, Any], two: dict[str, Any], odd: dict[str, Any] | None, place: int
) -> None:
    schema = deepcopy({**closed(**parts), "$defs": {"A": one, "B": two}})
    if odd is not None:
        every = [node for _, node in provider_rules.nodes(schema) if isinstance(node, dict)]
        every[place % len(every)].update(odd)
    check(schema)
