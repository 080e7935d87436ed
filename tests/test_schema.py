"""From a function's signature to a schema, from argument text to values, and from a value to text."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from tests import provider_rules
from weft import Agent, Context, Tool, tool
from weft._schema import InvalidArguments
from weft.errors import InvalidTool, WrongCall
from weft.testing.script import Script, call, calls, say


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Name(str, Enum):  # noqa: UP042  # the older spelling is in use, and its text is not its value
    ANN = "ann"


class Level(int, Enum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    A = "a"
    ONE = 1


class Size(NamedTuple):
    wide: int
    high: int = 2


class Hint(TypedDict, total=False):
    near: str


class Address(TypedDict):
    city: str
    zip: NotRequired[str]


@dataclass
class Point:
    x: int
    y: int = 0


class Line(BaseModel):
    sku: str
    count: Annotated[int, Field(gt=0)]


class Order(BaseModel):
    id: str
    lines: list[Line]


class Node(BaseModel):
    value: int
    children: list[Node] = []


@dataclass
class Tree:
    value: int
    left: Tree | None = None


class Boss(BaseModel):
    staff: list[Clerk]


class Clerk(BaseModel):
    boss: Boss


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


def takes(hint: object, *default: object) -> Tool[Any]:
    """A tool with one parameter `x` of this type."""

    def body(x: Any) -> None: ...

    body.__annotations__["x"] = hint
    body.__defaults__ = default
    return tool(name="takes")(body)


def gives(hint: object) -> Callable[[object], str]:
    """How a tool with this return type renders a value."""

    def body() -> Any: ...

    body.__annotations__["return"] = hint
    return tool(body)._signature.render


def parse(made: Tool[Any], arguments: object) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return made._signature.parse(text)


def refusal(made: Tool[Any], arguments: object) -> str:
    with pytest.raises(InvalidArguments) as refused:
        parse(made, arguments)
    return str(refused.value)


# What a parameter may be: the type, legal values with what the body gets, and values that are refused.

TYPES = [
    pytest.param(int, [(42, 42), (-1, -1), (10**30, 10**30)], ["x", 1.5, None, [1]], id="int"),
    pytest.param(float, [(1.5, 1.5), (2, 2.0)], ["x", None], id="float"),
    pytest.param(str, [("a", "a"), ("", ""), ("\u00e9\U0001f600", "\u00e9\U0001f600")], [1, None, ["a"]], id="str"),
    pytest.param(bool, [(True, True), (False, False)], ["maybe", None, 7], id="bool"),
    pytest.param(bytes, [("ab", b"ab")], [1, None], id="bytes"),
    pytest.param(None, [(None, None)], [0, "null"], id="None"),
    pytest.param(Optional[int], [(None, None), (1, 1)], ["x"], id="Optional"),  # noqa: UP045  # both spellings are in use
    pytest.param(int | None, [(1, 1), (None, None)], ["x"], id="or None"),
    pytest.param(int | str, [("a", "a"), (1, 1), ("1", "1")], [[], None], id="union"),
    pytest.param(int | list[int] | None, [(1, 1), ([1], [1]), (None, None)], ["x", ["x"]], id="union with a list"),
    pytest.param(Any, [(1, 1), (None, None), ({"a": [1]}, {"a": [1]})], [], id="Any"),
    pytest.param(list, [([], []), ([1, "a"], [1, "a"])], [{}, "a"], id="bare list"),
    pytest.param(list[int], [([1, 2], [1, 2]), ([], [])], [["x"], 1, {"a": 1}], id="list"),
    pytest.param(list[list[str]], [([["a"], []], [["a"], []])], [["a"], [[1]]], id="nested list"),
    pytest.param(tuple[int, str], [([1, "a"], (1, "a"))], [[1], [1, "a", 2], ["a", 1]], id="tuple"),
    pytest.param(tuple[int, int], [([1, 2], (1, 2))], [[1], ["a", 1]], id="tuple of one type"),
    pytest.param(tuple[int, ...], [([], ()), ([1, 2, 3], (1, 2, 3))], [["x"], 1], id="variadic tuple"),
    pytest.param(tuple[()], [([], ())], [[1]], id="empty tuple"),
    pytest.param(Size, [([1, 2], Size(1, 2)), ([1], Size(1))], [[], ["x"]], id="NamedTuple"),
    pytest.param(set[str], [(["a"], {"a"}), (["a", "a"], {"a"}), ([], set())], ["a", [1]], id="set"),
    pytest.param(frozenset[int], [([1], frozenset({1})), ([1, 1], frozenset({1}))], [["x"]], id="frozenset"),
    pytest.param(dict, [({}, {}), ({"a": 1}, {"a": 1})], [[]], id="bare dict"),
    pytest.param(dict[str, int], [({"a": 1}, {"a": 1})], [{"a": "x"}, []], id="dict"),
    pytest.param(dict[str, Any], [({"a": [1]}, {"a": [1]}), ({}, {})], [[], None], id="open dict"),
    pytest.param(dict[int, str], [({"1": "a"}, {1: "a"})], [{"a": "a"}], id="dict by number"),
    pytest.param(Literal["up", "down"], [("up", "up")], ["left", None], id="Literal"),
    pytest.param(Literal["one"], [("one", "one")], ["two"], id="Literal of one"),
    pytest.param(Literal["a", 1, None], [("a", "a"), (1, 1), (None, None)], ["1", 2], id="mixed Literal"),
    pytest.param(Color, [("red", Color.RED)], ["green", 1], id="Enum"),
    pytest.param(Name, [("ann", Name.ANN)], ["bob"], id="Enum of strings"),
    pytest.param(Level, [(1, Level.LOW)], [3, "low"], id="Enum of numbers"),
    pytest.param(Mixed, [("a", Mixed.A), (1, Mixed.ONE)], ["b", 2], id="mixed Enum"),
    pytest.param(
        datetime,
        [("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))],
        ["soon", "2026-13-01T00:00:00Z"],
        id="datetime",
    ),
    pytest.param(date, [("2026-01-02", date(2026, 1, 2))], ["2026", "2026-02-30"], id="date"),
    pytest.param(time, [("03:04:05", time(3, 4, 5))], ["25:00"], id="time"),
    pytest.param(timedelta, [("PT1H", timedelta(hours=1)), (60, timedelta(minutes=1))], ["long"], id="timedelta"),
    pytest.param(Decimal, [("1.20", Decimal("1.20")), (3, Decimal(3))], ["x", None], id="Decimal"),
    pytest.param(UUID, [("0" * 32, UUID(int=0))], ["x", 1], id="UUID"),
    pytest.param(Path, [("a/b", Path("a/b"))], [1], id="Path"),
    pytest.param(Annotated[int, Field(gt=0)], [(1, 1)], [0, -1], id="constrained"),
    pytest.param(Annotated[float, Field(ge=0, le=1, multiple_of=0.5)], [(0.5, 0.5)], [1.5, 0.3, -1], id="range"),
    pytest.param(Annotated[str, Field(max_length=2)], [("ab", "ab")], ["abc"], id="constrained text"),
    pytest.param(Annotated[str, Field(pattern="^[a-z]+$")], [("ab", "ab")], ["AB", ""], id="pattern"),
    pytest.param(Annotated[list[int], Field(min_length=1, max_length=2)], [([1], [1])], [[], [1, 2, 3]], id="lengths"),
    pytest.param(Address, [({"city": "Bern"}, {"city": "Bern"})], [{"zip": "1"}, {"city": 1}], id="TypedDict"),
    pytest.param(Hint, [({}, {}), ({"near": "a"}, {"near": "a"})], [{"near": 1}], id="TypedDict without required keys"),
    pytest.param(
        Point, [({"x": 1}, Point(x=1)), ({"x": 1, "y": 2}, Point(1, 2))], [{"y": 1}, {"x": "a"}], id="dataclass"
    ),
    pytest.param(
        Order,
        [({"id": "o", "lines": [{"sku": "s", "count": 1}]}, Order(id="o", lines=[Line(sku="s", count=1)]))],
        [{"id": "o", "lines": [{"sku": "s", "count": 0}]}, {"id": "o"}, "o"],
        id="nested model",
    ),
    pytest.param(
        Node,
        [({"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)]))],
        [{"value": 1, "children": [{}]}],
        id="recursive model",
    ),
    pytest.param(
        Tree,
        [({"value": 1, "left": {"value": 2}}, Tree(value=1, left=Tree(value=2)))],
        [{"value": 1, "left": {}}],
        id="recursive dataclass",
    ),
    pytest.param(
        Boss,
        [({"staff": [{"boss": {"staff": []}}]}, Boss(staff=[Clerk(boss=Boss(staff=[]))]))],
        [{"staff": [{"boss": {}}]}, {"staff": [1]}],
        id="mutually recursive models",
    ),
    pytest.param(Page[int], [({"items": [1]}, Page[int](items=[1]))], [{"items": ["x"]}], id="generic model"),
    pytest.param(Page[Line], [({"items": []}, Page[Line](items=[]))], [{"items": [1]}], id="generic model of a model"),
    pytest.param(
        Point | Address,
        [({"x": 1}, Point(x=1)), ({"city": "Bern"}, {"city": "Bern"})],
        [{}, 1],
        id="union of objects",
    ),
    pytest.param(
        Annotated[Cat | Dog, Field(discriminator="kind")],
        [({"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)), ({"kind": "dog"}, Dog(kind="dog"))],
        [{"kind": "cow"}, {}, {"kind": "cat"}],
        id="discriminated union",
    ),
    pytest.param(
        list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        [([{"kind": "dog"}], [Dog(kind="dog")]), ([], [])],
        [[{"kind": "cow"}]],
        id="list of a discriminated union",
    ),
    pytest.param(Closed, [({"a": 1}, Closed(a=1))], [{"a": 1, "b": 2}, {}], id="closed model"),
    pytest.param("Order", [({"id": "o", "lines": []}, Order(id="o", lines=[]))], [{}], id="string annotation"),
    pytest.param("list[Color]", [(["red"], [Color.RED])], [["green"]], id="string annotation of a generic"),
    pytest.param("Order | None", [(None, None)], [1], id="string annotation of a union"),
]


def same(one: object, other: object) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return all(map(same, one.values(), other.values()))  # type: ignore[attr-defined]  # of the same type
    return not isinstance(one, list | tuple) or all(map(same, one, other))  # type: ignore[call-overload]  # same here


@pytest.mark.parametrize(("hint", "good", "bad"), TYPES)
async def test_the_body_gets_values_of_the_declared_type_and_is_not_run_for_others(
    hint: object, good: list[tuple[object, object]], bad: list[object]
) -> None:
    got: list[object] = []

    async def body(x: Any) -> None:
        got.append(x)

    body.__annotations__["x"] = hint
    made = tool(name="takes")(body)
    right = [call("takes", x=legal) for legal, _ in good]
    wrong = [call("takes", x=illegal) for illegal in bad] + [call("takes"), call("takes", x=good[0][0], y=1)]
    result = await Agent(Script(calls(*right), calls(*wrong), say("end")), tools=[made]).run("start")
    assert [part.code for part in result.messages[2].results] == [None] * len(right)
    assert len(got) == len(good)
    for value, (_, wanted) in zip(got, good, strict=True):
        assert same(value, wanted)
    refused = result.messages[4].results
    assert [part.code for part in refused] == ["INVALID_INPUT"] * len(wrong)
    assert [part.content for part in refused[: len(bad)] if not part.content.startswith("x")] == []
    assert all("; got " in line for part in refused for line in part.content.splitlines())
    assert refused[-2].content == "x: Field required; got {}"
    assert refused[-1].content.startswith("y: ")


@pytest.mark.parametrize(("hint", "good", "bad"), TYPES)
def test_no_provider_refuses_a_schema(hint: object, good: object, bad: object) -> None:
    schema = takes(hint).definition.schema
    assert provider_rules.openai(schema, strict=False) == []
    assert provider_rules.anthropic(schema, strict=False) == []


@pytest.mark.parametrize(("hint", "good", "bad"), TYPES)
def test_every_schema_is_an_object_that_is_closed_and_takes_what_the_tool_takes(
    hint: object, good: list[tuple[object, object]], bad: object
) -> None:
    schema = takes(hint).definition.schema
    assert schema["type"] == "object"
    assert schema["required"] == ["x"]
    assert schema["additionalProperties"] is False
    Draft202012Validator(schema).validate({"x": good[0][0]})


@pytest.mark.parametrize(("hint", "good", "bad"), TYPES)
async def test_an_optional_parameter_of_any_type_may_be_left_out(hint: object, good: Any, bad: object) -> None:
    default = good[0][1]
    made = takes(hint, default)
    assert parse(made, "{}") == {"x": default}
    assert provider_rules.openai(made.definition.schema, strict=False) == []
    assert provider_rules.anthropic(made.definition.schema, strict=False) == []


@pytest.mark.parametrize(
    ("hint", "described"),
    [
        (int, {"type": "integer"}),
        (Annotated[int, Field(gt=0)], {"type": "integer", "exclusiveMinimum": 0}),
        (Literal["up", "down"], {"type": "string", "enum": ["up", "down"]}),
        (datetime, {"type": "string", "format": "date-time"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Color, {"$ref": "#/$defs/Color"}),
        (Node, {"$ref": "#/$defs/Node"}),
    ],
)
def test_the_schema_says_what_is_taken(hint: object, described: dict[str, object]) -> None:
    shown = takes(hint).definition.schema["properties"]["x"]
    assert {key: shown.get(key) for key in described} == described


def test_a_tool_without_arguments_has_an_empty_schema_and_takes_no_text() -> None:
    @tool
    def ping() -> str:
        return "pong"

    assert ping.definition.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert parse(ping, "") == {}
    assert parse(ping, "{}") == {}
    assert "surplus" in refusal(ping, {"surplus": 1})


@pytest.mark.parametrize(
    ("hint", "default"), [(int, 3), (int | None, None), (Color, Color.RED), (list[int], [1]), (dict[str, int], {})]
)
def test_a_parameter_with_a_default_may_be_left_out(hint: object, default: object) -> None:
    made = takes(hint, default)
    assert "required" not in made.definition.schema
    assert parse(made, "{}") == {"x": default}


def test_a_default_that_a_body_changes_does_not_reach_the_next_call() -> None:
    made = takes(list[int], [1])
    parse(made, "{}")["x"].append(2)
    assert parse(made, "{}") == {"x": [1]}


@pytest.mark.parametrize("default", [float("inf"), float("nan"), Path])
def test_a_default_that_is_no_json_is_not_in_the_schema(default: Any) -> None:
    made = takes(Any, default)
    assert "default" not in made.definition.schema["properties"]["x"]
    assert provider_rules.openai(made.definition.schema, strict=False) == []
    assert parse(made, "{}")["x"] is default


def test_the_model_is_told_of_a_default() -> None:
    assert takes(int, 3).definition.schema["properties"]["x"]["default"] == 3


def test_a_parameter_without_a_default_may_follow_one_with_a_default() -> None:
    @tool
    def search(*, limit: int = 10, text: str, deep: bool = False) -> None: ...

    assert search.definition.schema["required"] == ["text"]
    assert list(search.definition.schema["properties"]) == ["limit", "text", "deep"]
    assert parse(search, {"text": "x", "deep": True}) == {"limit": 10, "text": "x", "deep": True}


def test_none_is_not_taken_where_it_is_only_the_default() -> None:
    assert refusal(takes(int, None), {"x": None}).startswith("x")


def test_a_field_as_the_default_works_or_fails_at_its_definition() -> None:
    try:
        made = takes(int, Field(3, ge=1))
    except InvalidTool:
        return
    assert parse(made, "{}") == {"x": 3}
    assert refusal(made, {"x": 0}).startswith("x")


@pytest.mark.parametrize("name", ["self", "cls", "schema", "_private", "model_config", "json", "text"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def body({name}: int) -> int: ...", namespace)
    made = tool(namespace["body"])
    assert list(made.definition.schema["properties"]) == [name]
    assert parse(made, {name: 1}) == {name: 1}


def test_an_argument_may_have_another_name_than_its_parameter() -> None:
    made = takes(Annotated[int, Field(alias="from")])
    assert list(made.definition.schema["properties"]) == ["from"]
    assert parse(made, {"from": 1}) == {"x": 1}


def test_a_bound_method_is_a_tool_without_its_self() -> None:
    class Shelf:
        def take(self, book: str) -> str:
            """Take a book."""
            return book

    made = tool(Shelf().take)
    assert (made.name, made.definition.description) == ("take", "Take a book.")
    assert parse(made, {"book": "b"}) == {"book": "b"}


def test_a_wrapped_function_keeps_its_signature() -> None:
    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    @tool
    @counted
    def take(order: Order, note: str = "") -> None:
        """Take an order."""

    assert take.definition.schema["required"] == ["order"]
    assert parse(take, {"order": {"id": "o", "lines": []}}) == {"order": Order(id="o", lines=[]), "note": ""}


# Names of locals.


def test_annotations_of_locals_resolve() -> None:
    class Local(BaseModel):
        size: int

    @tool
    def plain(x: Local) -> Local:
        return x

    @tool(name="named")
    def with_options(x: list[Local]) -> None: ...

    assert parse(plain, {"x": {"size": 1}}) == {"x": Local(size=1)}
    assert plain._signature.render({"size": 2}) == '{"size":2}'
    assert parse(with_options, {"x": [{"size": 1}]}) == {"x": [Local(size=1)]}


def test_classes_of_a_function_may_name_each_other() -> None:
    class Parent(BaseModel):
        children: list[Child]

    class Child(BaseModel):
        parent: Parent | None = None

    @dataclass
    class Left:
        right: Right | None = None

    @dataclass
    class Right:
        left: Left | None = None

    @tool
    def adopt(x: Parent, y: Left) -> Child:
        return x.children[0]

    value = parse(adopt, {"x": {"children": [{"parent": {"children": []}}]}, "y": {"right": {"left": {}}}})
    assert type(value["x"].children[0].parent) is Parent
    assert value["y"] == Left(right=Right(left=Left()))
    assert adopt._signature.render({"parent": None}) == '{"parent":null}'
    assert provider_rules.openai(adopt.definition.schema, strict=False) == []


def test_a_class_that_is_defined_after_its_tool_fails_at_the_definition() -> None:
    class Early(BaseModel):
        late: Late

    with pytest.raises(InvalidTool, match=r"tool 'buy'.*'x'.*name 'Late' is not defined"):

        @tool
        def buy(x: Late) -> None: ...

    with pytest.raises(InvalidTool, match=r"tool 'sell'.*'y'.*Late"):

        @tool
        def sell(x: int, y: Early) -> None: ...

    with pytest.raises(InvalidTool, match=r"tool 'give'.*its result.*Late"):

        @tool
        def give() -> Early: ...

    class Late(BaseModel):
        size: int


def test_a_local_shadows_a_global_of_its_name() -> None:
    class Order(BaseModel):
        mine: int

    @tool
    def buy(x: Order) -> None: ...

    assert parse(buy, {"x": {"mine": 1}}) == {"x": Order(mine=1)}


def test_an_annotation_that_does_not_resolve_fails_at_the_definition() -> None:
    with pytest.raises(InvalidTool, match=r"tool 'buy'.*Nowhere"):

        @tool
        def buy(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_a_plain_function_whose_locals_are_out_of_sight_fails_at_the_definition() -> None:
    class Local(BaseModel):
        size: int

    def measure(x: Local) -> None: ...

    with pytest.raises(InvalidTool, match=r"tool 'measure'.*Local"):
        Agent(Script(), tools=[measure])


# Descriptions.


def test_descriptions_come_from_the_docstring() -> None:
    @tool
    def look_up(ctx: Context, order_id: str, deep: bool = False) -> None:
        """Look an order up.

        It may take a while.

        Args:
            ctx: Not for the model.
            order_id: The order's number,
                as the customer gave it.
            deep: Whether to ask the archive.

        Returns:
            Nothing.
        """

    shown = look_up.definition
    assert shown.description == "Look an order up.\n\nIt may take a while."
    assert shown.schema["properties"]["order_id"]["description"] == "The order's number,\nas the customer gave it."
    assert shown.schema["properties"]["deep"]["description"] == "Whether to ask the archive."
    assert list(shown.schema["properties"]) == ["order_id", "deep"]


def test_a_description_may_be_given() -> None:
    @tool(name="find", description="Finds it.")
    def look_up(x: Annotated[int, Field(description="How many.")]) -> None:
        """Look something up."""

    assert (look_up.definition.name, look_up.definition.description) == ("find", "Finds it.")
    assert look_up.definition.schema["properties"]["x"]["description"] == "How many."


def test_a_tool_without_a_docstring_has_no_description() -> None:
    assert takes(int).definition.description == ""
    assert "description" not in takes(int).definition.schema["properties"]["x"]


# The context.


class Shop:
    pass


def test_the_context_is_first_and_hidden() -> None:
    @tool
    def bare(ctx: Context, x: int) -> None: ...

    @tool
    def typed(ctx: Context[Shop], x: int) -> None: ...

    @tool
    def alone(ctx: Context[Shop]) -> None: ...

    for made, names in ((bare, ["x"]), (typed, ["x"]), (alone, [])):
        assert made._signature.takes_context
        assert list(made.definition.schema["properties"]) == names


def later(x: int, ctx: Context) -> None: ...
def maybe(ctx: Context | None, x: int) -> None: ...
def annotated(ctx: Annotated[Context, "the call"], x: int) -> None: ...


@pytest.mark.parametrize("function", [later, maybe, annotated])
def test_a_context_elsewhere_is_hidden_or_fails_at_the_definition(function: Callable[..., Any]) -> None:
    try:
        made = tool(function)
    except InvalidTool:
        return
    assert list(made.definition.schema["properties"]) == ["x"]


# What cannot be a tool.


def variadic(*args: int) -> None: ...
def variadic_by_name(**kwargs: int) -> None: ...
def positional(x: int, /) -> None: ...
def bare_parameter(x) -> None: ...  # type: ignore[no-untyped-def]  # that it is refused is the promise
def undescribed(x: Shop) -> None: ...
def callback(x: Callable[[], None]) -> None: ...
def undescribed_result() -> Shop: ...  # type: ignore[empty-body]  # never called
def one_by_one(x: int) -> Any:
    yield x


async def one_by_one_later(x: int) -> Any:
    yield x


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (variadic, r"\*args"),
        (variadic_by_name, r"\*\*kwargs"),
        (positional, "x"),
        (bare_parameter, "'x' has no annotation"),
        (undescribed, "Shop"),
        (callback, "Callable"),
        (undescribed_result, "Shop"),
        (one_by_one, "return a list"),
        (one_by_one_later, "return a list"),
    ],
)
def test_a_signature_that_cannot_be_described_is_refused_with_names(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(InvalidTool, match=rf"(?s)tool '{function.__name__}'.*{says}"):
        tool(function)


@pytest.mark.parametrize("hint", [Shop, Callable[[], None], "Nowhere"])
def test_a_parameter_that_cannot_be_described_is_named(hint: object) -> None:
    with pytest.raises(InvalidTool, match=r"tool 'takes'.*'x'"):
        takes(hint)


class Basket(BaseModel):
    """Its items would be read only when the body asks for them."""

    items: Iterable[int]


@pytest.mark.parametrize("hint", [Iterable[int], Generator[int, None, None], list[Iterable[int]], Basket])
def test_what_would_be_read_only_in_the_body_is_no_parameter(hint: object) -> None:
    with pytest.raises(InvalidTool, match=r"tool 'takes'.*'x'.*use a list"):
        takes(hint)


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, Field(pattern="(")],
        Annotated[str, Field(pattern="(?=a)")],
        Annotated[int, Field(json_schema_extra={"examples": [object()]})],
        Annotated[float, Field(json_schema_extra={"maximum": float("inf")})],
    ],
)
def test_a_schema_that_no_provider_could_read_is_refused_with_names(hint: object) -> None:
    with pytest.raises(InvalidTool, match=r"tool 'takes'.*'x'"):
        takes(hint)


@pytest.mark.parametrize("name", ["größe", "from here", "a[0]", "$top", "x" * 65, ""])
def test_an_argument_whose_name_a_provider_refuses_is_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(InvalidTool, match=r"(?s)tool 'takes'.*alias"):
        takes(Annotated[int, Field(alias=name)])


def test_a_parameter_of_any_letters_may_be_given_a_plain_name() -> None:
    @tool
    def measure(größe: Annotated[int, Field(alias="size")]) -> None: ...  # noqa: PLC2401  # that is the point

    assert parse(measure, {"size": 1}) == {"größe": 1}


@pytest.mark.parametrize("thing", [42, "text", None, Shop, Shop()])
def test_what_is_no_function_is_no_tool(thing: object) -> None:
    with pytest.raises(InvalidTool, match="neither a tool nor a function"):
        Agent(Script(), tools=[thing])


@dataclass
class Adder:
    x: str  # of another type than the parameter of this name

    def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize("thing", [Adder(x="1"), Shop(), partial(Adder.__call__, Adder(x="1"))])
def test_an_object_that_is_called_like_a_function_is_refused_with_a_way_out(thing: Any) -> None:
    with pytest.raises(InvalidTool, match=r"tool 'add'.*is no function; wrap it in a typed one"):
        tool(name="add")(thing)


def test_a_builtin_without_a_signature_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidTool, match="tool 'max'"):
        tool(max)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0.0},
        {"timeout": -1.0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"expires": 0.0},
        {"expires": float("inf")},
        {"attempts": 0},
        {"cap": 0},
        {"effect": "never"},
        {"approval": "no"},
        {"needs": "payments"},
    ],
    ids=str,
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    def body() -> None: ...

    with pytest.raises(InvalidTool, match=rf"tool 'body'.*{next(iter(options))}"):
        tool(**options)(body)


async def asks_about(x: int, *, y: int = 0) -> bool:
    return True


class Asks:
    def __call__(self, ctx: Context, x: int) -> bool:
        return True


@pytest.mark.parametrize("predicate", [lambda ctx, x: True, lambda: True, asks_about, Asks(), lambda x, /: True])
def test_a_predicate_that_cannot_be_asked_about_the_arguments_is_refused(predicate: Callable[..., Any]) -> None:
    def pay(ctx: Context, x: int, z: int) -> None: ...

    with pytest.raises(InvalidTool, match=r"tool 'pay': approval is asked with the tool's arguments by name: x, z"):
        tool(approval=predicate)(pay)


@pytest.mark.parametrize("predicate", [lambda x: True, lambda **given: True, asks_about])
def test_a_predicate_that_may_be_asked_is_taken(predicate: Callable[..., Any]) -> None:
    def pay(ctx: Context, x: int) -> None: ...

    assert tool(approval=predicate)(pay).approval is predicate


def test_an_invalid_tool_is_a_wrong_call() -> None:
    assert issubclass(InvalidTool, WrongCall)


# What the model is told of wrong arguments.


@tool
def buy(order: Order, note: str = "") -> None: ...


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param({}, ["order: Field required", "got {}"], id="missing"),
        pytest.param({"order": {"id": 1, "lines": []}}, ["order.id: ", "valid string", "got 1"], id="wrong type"),
        pytest.param(
            {"order": {"id": "o", "lines": [{"sku": "s", "count": 0}]}},
            ["order.lines.0.count: ", "greater than 0", "got 0"],
            id="deep inside",
        ),
        pytest.param({"order": {"id": "o", "lines": []}, "haste": True}, ["haste: ", "got True"], id="surplus"),
        pytest.param({"order": {}, "note": 3}, ["order.id: ", "order.lines: ", "note: "], id="several"),
        pytest.param("[1]", ["arguments: ", "object", "got [1]"], id="a list"),
        pytest.param('"text"', ["arguments: ", "object", "got 'text'"], id="a string"),
        pytest.param("null", ["arguments: ", "got None"], id="null"),
        pytest.param("not json", ["arguments: Invalid JSON", "got 'not json'"], id="no JSON"),
        pytest.param('{"order": ', ["arguments: Invalid JSON"], id="cut JSON"),
        pytest.param('{"note": "a"} {"note": "b"}', ["arguments: Invalid JSON"], id="JSON and more after it"),
        pytest.param(" ", ["arguments: Invalid JSON"], id="white space"),
    ],
)
def test_wrong_arguments_name_the_field_what_was_expected_and_what_came(arguments: object, says: list[str]) -> None:
    text = refusal(buy, arguments)
    assert [part for part in says if part not in text] == []
    assert "pydantic" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param('{"x": NaN}', "NaN, which JSON does not have", id="NaN"),
        pytest.param('{"x": -Infinity}', "-Infinity, which JSON does not have", id="Infinity"),
        pytest.param('{"x": {"deep": [NaN]}}', "NaN", id="NaN inside"),
        pytest.param('{"x": 1, "x": 2}', "'x' is there more than once", id="a key twice"),
        pytest.param('{"x": {"a": 1, "a": 1}}', "'a' is there more than once", id="a key twice inside"),
        pytest.param('{"x": 1, "\\u0078": 2}', "'x' is there more than once", id="a key twice, written otherwise"),
        pytest.param('{"x": ' + "[" * 300 + "]" * 300 + "}", "recursion limit", id="deep nesting"),
        pytest.param('{"x": ' + "[" * 100_000, "recursion limit", id="very deep nesting"),
        pytest.param('{"x": ' + "9" * 5000 + "}", "number out of range", id="a number of 5000 digits"),
        pytest.param('{"x": "\\ud800"}', "Invalid JSON", id="half a character"),
    ],
)
def test_text_that_is_no_plain_json_is_refused_for_any_type(text: str, says: str) -> None:
    for hint in (Any, int, Order, dict[str, Any]):
        told = refusal(takes(hint), text)
        assert told.startswith("arguments: Invalid JSON")
        assert says in told
        assert len(told) < 300


@pytest.mark.parametrize("number", ["1e400", "-1e400", '"Infinity"', '"nan"'])
@pytest.mark.parametrize(
    ("hint", "around"),
    [(float, "%s"), (float | None, "%s"), (Annotated[float, Field(multiple_of=2)], "%s"), (list[float], "[1, %s]")],
)
def test_a_number_that_is_not_finite_is_refused(hint: object, around: str, number: str) -> None:
    assert "finite number" in refusal(takes(hint), f'{{"x": {around % number}}}')


def test_a_whole_number_keeps_all_its_digits() -> None:
    assert parse(takes(int), '{"x": ' + "9" * 1000 + "}") == {"x": int("9" * 1000)}


def test_what_came_is_shown_in_short() -> None:
    text = refusal(takes(int), {"x": "y" * 10_000})
    assert len(text) < 300
    assert text.endswith("…")


def taken_or_refused(made: Tool[Any], text: str) -> dict[str, Any] | str:
    try:
        return made._signature.parse(text)
    except InvalidArguments as refused:
        return str(refused)


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    assert taken_or_refused(takes(int, 0), text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["order", "note", "other"]), JSON))
def test_any_object_is_taken_or_refused(arguments: dict[str, object]) -> None:
    taken = taken_or_refused(buy, json.dumps(arguments))
    assert taken
    if isinstance(taken, dict):
        assert isinstance(taken["order"], Order)
        assert isinstance(taken["note"], str)


@given(st.dictionaries(st.text(), JSON))
def test_a_dict_is_taken_unchanged(value: dict[str, object]) -> None:
    assert parse(takes(dict[str, Any]), {"x": value}) == {"x": value}


def test_a_validator_of_the_application_may_refuse() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    made = takes(Annotated[int, AfterValidator(even)])
    assert "must be even" in refusal(made, {"x": 1})


# What the model is shown of a value.


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        pytest.param(str, 'as "it" is', 'as "it" is', id="text verbatim"),
        pytest.param(Any, "as it is", "as it is", id="undeclared text verbatim"),
        pytest.param(int, 3, "3", id="int"),
        pytest.param(bool, True, "true", id="bool"),
        pytest.param(None, None, "null", id="None"),
        pytest.param(int | None, None, "null", id="optional"),
        pytest.param(list[int], (1, 2), "[1,2]", id="list"),
        pytest.param(Order, Order(id="o", lines=[]), '{"id":"o","lines":[]}', id="model"),
        pytest.param(Order, {"id": "o", "lines": []}, '{"id":"o","lines":[]}', id="a dict that fits a model"),
        pytest.param(Point, Point(x=1), '{"x":1,"y":0}', id="dataclass"),
        pytest.param(Address, {"city": "Bern"}, '{"city":"Bern"}', id="TypedDict"),
        pytest.param(Color, Color.RED, '"red"', id="Enum"),
        pytest.param(date, date(2026, 1, 2), '"2026-01-02"', id="date"),
        pytest.param(Node, Node(value=1, children=[Node(value=2)]), None, id="recursive"),
        pytest.param(Any, {"a": [Point(x=1), date(2026, 1, 2)]}, '{"a":[{"x":1,"y":0},"2026-01-02"]}', id="undeclared"),
        pytest.param(Any, Order(id="o", lines=[]), '{"id":"o","lines":[]}', id="undeclared model"),
        pytest.param(
            Any, {"a": float("nan"), "b": [float("inf")]}, '{"a":null,"b":[null]}', id="undeclared, not finite"
        ),
        pytest.param(float, float("nan"), "null", id="not finite"),
        pytest.param(Any, {"a": "b\ud800c"}, '{"a":"b\ufffdc"}', id="undeclared, half a character inside"),
        pytest.param(list[str], ["b\ud800c", "ä"], '["b\ufffdc","ä"]', id="half a character inside"),
        pytest.param(
            list[float | str], [float("inf"), "b\ud800"], '[null,"b\ufffd"]', id="half a character, and not finite"
        ),
    ],
)
def test_a_value_is_shown_by_its_declared_type(hint: object, value: object, text: str | None) -> None:
    shown = gives(hint)(value)
    if text is None:
        assert Node.model_validate_json(shown) == value
    else:
        assert shown == text


@pytest.mark.parametrize(("hint", "value"), [(int, None), (Order, {"id": "o"}), (list[int], [1, "x"]), (Color, 3)])
def test_a_value_that_does_not_fit_is_refused(hint: object, value: object) -> None:
    with pytest.raises(ValueError, match="validation error"):
        gives(hint)(value)


@pytest.mark.parametrize(
    ("hint", "value"), [(int, "many"), (date, "some day"), (Color, "green"), (Order, "o"), (str, {"a": 1}), (None, 3)]
)
def test_text_and_non_text_that_does_not_fit_is_refused(hint: object, value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        gives(hint)(value)


def test_an_enum_of_strings_is_shown_as_plain_text() -> None:
    assert type(gives(Name)(Name.ANN)) is str


def test_a_value_without_json_is_not_shown_by_its_address() -> None:
    try:
        shown = gives(Any)(object())
    except ValueError:
        return
    assert " at 0x" not in shown


@pytest.mark.parametrize(
    ("hint", "items"),
    [
        (tuple[int, int], {"type": "integer"}),
        (tuple[int, str, int], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (tuple[()], {}),
        (tuple[int, ...], {"type": "integer"}),
    ],
)
def test_a_tuple_says_each_kind_of_its_items_once(hint: Any, items: object) -> None:
    def take(a: object) -> None:
        """Takes."""

    take.__annotations__["a"] = hint
    assert tool(take).definition.schema["properties"]["a"]["items"] == items
