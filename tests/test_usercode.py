"""Whether reading arguments, and rendering a result, runs code of the application's."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntFlag
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from annotated_types import MultipleOf, Predicate
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    EncodedBytes,
    Field,
    GetCoreSchemaHandler,
    HttpUrl,
    InstanceOf,
    Json,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    PrivateAttr,
    RootModel,
    SecretStr,
    Tag,
    WrapSerializer,
    WrapValidator,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import core_schema
from typing_extensions import TypedDict

from weft import Tool, tool


def keep(value: Any) -> Any:
    return value


def keep_by(value: Any, handler: Any) -> Any:
    return handler(value)


class Plain(BaseModel):
    a: int = 1
    b: list[int] = []
    c: dict[str, int] = Field(default_factory=dict)
    _seen: int = PrivateAttr(0)


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list)


class Size(NamedTuple):
    wide: int
    high: int = 1


class Address(TypedDict):
    city: str


class Color(Enum):
    RED = "red"


class Flags(IntFlag):
    A = 1


class Node(BaseModel):
    children: list[Node] = []


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Text(str):
    """A type that describes itself without a function."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return handler(str)


NONE = [
    *(int, str, bytes, bool, float, None, list[int], set[int], tuple[int, str], dict[str, int], frozenset[str]),
    *(Decimal, Fraction, UUID, Path, datetime, IPv4Address, HttpUrl, SecretStr, Json[int], PositiveInt),
    *(deque[int], OrderedDict[str, int], defaultdict[str, int], Sequence[int], Mapping[str, int]),
    *(Plain, Point, Size, Address, Color, Flags, Node, Page[int], Text, RootModel[list[int]], Literal["a"]),
    Annotated[int, MultipleOf(3)],
    Annotated[Decimal, Field(max_digits=5, gt=0)],
    Annotated[Fraction, Field(gt=0)],
    Annotated[str, Field(pattern="a+", max_length=3)],
    Annotated[Cat | Dog, Field(discriminator="kind")],
    list[Plain] | Point | None,
]


class Checked(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def check(cls, value: int) -> int:
        return value


class CheckedAfter(BaseModel):
    a: int

    @model_validator(mode="after")
    def check(self) -> CheckedAfter:
        return self


class CheckedBefore(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def check(cls, value: Any) -> Any:
        return value


class AfterInit(BaseModel):
    a: int

    def model_post_init(self, context: object) -> None: ...


class AfterInitWithPrivate(BaseModel):
    _a: int = PrivateAttr(1)

    def model_post_init(self, context: object) -> None: ...


class PrivateFactory(BaseModel):
    _a: int = PrivateAttr(default_factory=lambda: 1)


class OwnInit(BaseModel):
    a: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)


class OwnNew(BaseModel):
    a: int

    def __new__(cls, *args: Any, **kwargs: Any) -> OwnNew:
        return super().__new__(cls)


class Factory(BaseModel):
    a: int = Field(default_factory=lambda: 1)


@dataclass
class PostInit:
    a: int

    def __post_init__(self) -> None: ...


@dataclass
class FieldFactory:
    a: int = field(default_factory=lambda: 1)


class Lenient(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.A


class Own:
    """A type that describes itself by a function."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            keep, json_schema_input_schema=core_schema.int_schema(), serialization=core_schema.to_string_ser_schema()
        )


class SizeNew(Size):
    def __new__(cls, wide: int, high: int = 1) -> SizeNew:
        return super().__new__(cls, wide, high)


class Fields(BaseModel):
    """Fields with the names of a core schema's keys."""

    metadata: int
    default: Checked


class Late(BaseModel):
    model_config = ConfigDict(defer_build=True)
    a: Checked


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    a: int

    def __hash__(self) -> int:
        return 1


class Encoder:
    @classmethod
    def decode(cls, data: bytes) -> bytes:
        return data

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def get_json_format(cls) -> str:
        return "own"


PARSED = [
    Annotated[int, AfterValidator(keep)],
    Annotated[int, BeforeValidator(keep)],
    Annotated[int, PlainValidator(keep, json_schema_input_type=int)],
    Annotated[int, WrapValidator(keep_by)],
    Annotated[int, Predicate(keep)],
    Annotated[bytes, EncodedBytes(encoder=Encoder)],
    Annotated[Annotated[Cat, Tag("a")] | Annotated[Dog, Tag("b")], Discriminator(keep)],
    *(Checked, CheckedAfter, CheckedBefore, AfterInit, AfterInitWithPrivate, PrivateFactory, OwnInit, OwnNew),
    *(Factory, PostInit, FieldFactory, Lenient, Own, SizeNew, Fields, Late, RootModel[list[Checked]], set[Frozen]),
    *(list[Checked], dict[str, Checked], Checked | None, tuple[int, Checked], Page[Checked]),
]


class Shown(BaseModel):
    a: int

    @field_serializer("a")
    def show(self, value: int) -> int:
        return value


class AllShown(BaseModel):
    a: int

    @model_serializer
    def show(self) -> dict[str, int]:
        return {}


class Computed(BaseModel):
    a: int

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own order
    @property
    def twice(self) -> int:
        return 2 * self.a


class Left(BaseModel):
    a: int = Field(exclude_if=bool)
    b: int = Field(exclude_if=lambda value: True)


RENDERED = [
    Annotated[int, PlainSerializer(keep)],
    Annotated[int, WrapSerializer(keep_by)],
    *(Shown, AllShown, Computed, Left, list[Computed]),
]


def with_parameter(hint: object, *default: object) -> Tool[Any]:
    def body(x: Any) -> None: ...

    body.__annotations__["x"] = hint
    body.__defaults__ = default
    return tool(body)


def with_result(hint: object) -> Tool[Any]:
    def body() -> Any: ...

    body.__annotations__["return"] = hint
    return tool(body)


def flags(made: Tool[Any]) -> tuple[bool, bool]:
    signature = made._signature
    assert signature.runs_code == (signature.parse_runs_code or signature.render_runs_code)
    return signature.parse_runs_code, signature.render_runs_code


@pytest.mark.parametrize("hint", NONE, ids=str)
def test_types_without_code_run_none(hint: object) -> None:
    assert flags(with_parameter(hint)) == (False, False)
    assert flags(with_result(hint)) == (False, False)


@pytest.mark.parametrize("hint", PARSED, ids=str)
def test_code_in_a_parameters_type_counts_for_reading(hint: object) -> None:
    assert flags(with_parameter(hint)) == (True, False)


@pytest.mark.parametrize("hint", PARSED, ids=str)
def test_code_that_checks_counts_for_a_result_as_well(hint: object) -> None:
    assert flags(with_result(hint)) == (False, True)


@pytest.mark.parametrize("hint", RENDERED, ids=str)
def test_code_that_only_shows_counts_for_a_result_alone(hint: object) -> None:
    assert flags(with_parameter(hint)) == (False, False)
    assert flags(with_result(hint)) == (False, True)


def test_what_is_read_when_it_is_shown_counts_for_a_result() -> None:
    assert flags(with_result(Iterable[int])) == (False, True)


class Meta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Judged(metaclass=Meta):
    pass


class Plainly:
    pass


@pytest.mark.parametrize(("kind", "counts"), [(Judged, True), (Plainly, False)])
def test_a_class_that_judges_its_instances_counts(kind: type, counts: bool) -> None:
    made = with_result(InstanceOf[kind])  # type: ignore[valid-type]  # made at run time
    assert flags(made) == (False, counts)


@pytest.mark.parametrize("default", [[1], {}, {"a": [1]}, set()])
def test_a_default_that_is_copied_for_each_call_does_not_count(default: object) -> None:
    assert flags(with_parameter(Any, default)) == (False, False)


def test_what_a_class_defines_and_pydantic_does_not_call_does_not_count() -> None:
    @dataclass
    class Init:
        a: int

        def __init__(self, a: int) -> None:
            raise AssertionError("not reached")

    made = with_parameter(Init)
    assert flags(made) == (False, False)
    assert made._signature.parse('{"x": {"a": 1}}')["x"].a == 1


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize("hint", [Any, dict[str, Any], list, Extra, object])
def test_a_result_of_no_declared_type_is_rendered_inline_where_it_is_plain_json(hint: object) -> None:
    signature = with_result(hint)._signature
    assert not signature.render_runs_code
    assert signature.renders_inline({"a": [1, 2.5, "x", None, True, ("y",)]})
    assert not signature.renders_inline({"a": [Computed(a=1)]})
    assert not signature.renders_inline([OrderedDict()])


def test_a_result_without_a_declaration_is_rendered_inline_where_it_is_text() -> None:
    @tool
    def look():  # type: ignore[no-untyped-def]  # that is the case
        """Look."""

    assert look._signature.renders_inline("x" * 100_000)
    assert not look._signature.renders_inline(Path())


def test_a_value_that_takes_long_to_look_through_is_not_rendered_inline() -> None:
    signature = with_result(list[Any])._signature
    assert signature.renders_inline([1] * 500)
    assert not signature.renders_inline([1] * 100_000)


def test_a_declared_result_is_rendered_inline_by_its_type_alone() -> None:
    assert with_result(list[int])._signature.renders_inline([1] * 100_000)
    assert with_result(Plain)._signature.renders_inline(Plain())
    assert not with_result(Computed)._signature.renders_inline({"a": 1})
    assert not with_result(Annotated[str, AfterValidator(keep)])._signature.renders_inline("a")
