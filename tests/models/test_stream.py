"""Fragments of calls, in every shape in which servers send them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model import ToolCallChunk, WholeCall
from weft.models._stream import Calls, Fragment, is_object


def bit(
    arguments: str | None = None, *, index: int | None = None, id: str | None = None, name: str | None = None
) -> Fragment:
    return Fragment(index=index, id=id, name=name, arguments=arguments)


def put_together(*fragments: Fragment) -> list[tuple[str, str, str | None]]:
    calls = Calls()
    for fragment in fragments:
        calls.add(fragment)
    return [(call.name, call.arguments, call.provider_id) for call in calls.whole()]


ONE = [("add", '{"x": 1}', "a")]
TWO = [("add", '{"x": 1}', "a"), ("mul", '{"y": 2}', "b")]
TWINS = [("add", '{"x": 1}', "a"), ("add", '{"x": 2}', "b")]

SHAPES: dict[str, tuple[Any, ...]] = {
    "as OpenAI does": (
        ONE,
        bit("", index=0, id="a", name="add"),
        bit('{"x"', index=0),
        bit(": 1}", index=0),
    ),
    "whole in one": (ONE, bit('{"x": 1}', index=0, id="a", name="add")),
    "two, one after the other": (
        TWO,
        bit("", index=0, id="a", name="add"),
        bit('{"x": 1}', index=0),
        bit("", index=1, id="b", name="mul"),
        bit('{"y": 2}', index=1),
    ),
    "two, interleaved": (
        TWO,
        bit("", index=0, id="a", name="add"),
        bit("", index=1, id="b", name="mul"),
        bit('{"x"', index=0),
        bit('{"y"', index=1),
        bit(": 1}", index=0),
        bit(": 2}", index=1),
    ),
    "index out of order": (
        TWO,
        bit('{"y"', index=1, id="b", name="mul"),
        bit('{"x": 1}', index=0, id="a", name="add"),
        bit(": 2}", index=1),
    ),
    "index from one": (
        TWO,
        bit('{"x": 1}', index=1, id="a", name="add"),
        bit('{"y": 2}', index=2, id="b", name="mul"),
    ),
    "index equal, ids differ": (
        TWINS,
        bit('{"x"', index=0, id="a", name="add"),
        bit(": 1}", index=0),
        bit('{"x"', index=0, id="b", name="add"),
        bit(": 2}", index=0),
    ),
    "index equal, back to an id that is known": (
        TWO,
        bit('{"x"', index=0, id="a", name="add"),
        bit('{"y"', index=0, id="b", name="mul"),
        bit(": 1}", index=0, id="a"),
        bit(": 2}", index=0, id="b"),
    ),
    "index equal, no ids, other names": (
        [("add", '{"x": 1}', None), ("mul", '{"y": 2}', None)],
        bit('{"x": 1}', index=0, name="add"),
        bit('{"y": 2}', index=0, name="mul"),
    ),
    "index equal, no ids, one name, whole": (
        [("add", '{"x": 1}', None), ("add", '{"x": 2}', None)],
        bit('{"x": 1}', index=0, name="add"),
        bit('{"x": 2}', index=0, name="add"),
    ),
    "index equal twice, then its own": (
        [("add", "{}", "a"), ("mul", "{}", "b"), ("sub", "{}", "c")],
        bit(index=0, id="a", name="add"),
        bit(index=0, id="b", name="mul"),
        bit(index=1, id="c", name="sub"),
    ),
    "index missing, id in front": (
        TWO,
        bit('{"x"', id="a", name="add"),
        bit(": 1}"),
        bit('{"y"', id="b", name="mul"),
        bit(": 2}"),
    ),
    "index missing, id in all": (
        TWO,
        bit('{"x"', id="a", name="add"),
        bit('{"y"', id="b", name="mul"),
        bit(": 1}", id="a"),
        bit(": 2}", id="b"),
    ),
    "index missing, whole, without ids": (
        [("add", '{"x": 1}', None), ("add", '{"x": 2}', None), ("mul", "{}", None)],
        bit('{"x": 1}', name="add"),
        bit('{"x": 2}', name="add"),
        bit("{}", name="mul"),
    ),
    "index only in front": (
        ONE,
        bit('{"x"', index=0, id="a", name="add"),
        bit(": 1}"),
    ),
    "index only later": (
        ONE,
        bit('{"x"', id="a", name="add"),
        bit(": 1}", index=0),
    ),
    "no index after two calls: the last one": (
        TWO,
        bit('{"x": 1}', index=0, id="a", name="add"),
        bit('{"y"', index=1, id="b", name="mul"),
        bit(": 2}"),
    ),
    "id late": (
        ONE,
        bit('{"x"', index=0, name="add"),
        bit(": 1}", index=0, id="a"),
    ),
    "id late, without an index": (
        ONE,
        bit('{"x"', name="add"),
        bit(": 1}", id="a"),
    ),
    "id late, name repeated": (
        ONE,
        bit('{"x"', name="add"),
        bit(": 1}", id="a", name="add"),
    ),
    "name late": (
        ONE,
        bit('{"x"', index=0, id="a"),
        bit(": 1}", index=0, name="add"),
    ),
    "id and name in all": (
        ONE,
        bit('{"x"', index=0, id="a", name="add"),
        bit(": 1}", index=0, id="a", name="add"),
    ),
    "name repeated at the end, with nothing": (
        ONE,
        bit('{"x": 1}', index=0, id="a", name="add"),
        bit("", index=0, id="a", name="add"),
    ),
    "id and name empty when they are known": (
        ONE,
        bit('{"x"', index=0, id="a", name="add"),
        bit(": 1}", index=0, id="", name=""),
    ),
    "the same id twice, by index": (
        [("add", '{"x": 1}', "a"), ("add", '{"x": 2}', "a")],
        bit('{"x": 1}', index=0, id="a", name="add"),
        bit('{"x": 2}', index=1, id="a", name="add"),
    ),
    "the same id twice, without an index": (
        [("add", '{"x": 1}', "a"), ("mul", '{"y": 2}', "a")],
        bit('{"x": 1}', id="a", name="add"),
        bit('{"y": 2}', id="a", name="mul"),
    ),
    "an empty id": ([("add", '{"x": 1}', None)], bit('{"x": 1}', index=0, id="", name="add")),
    "arguments null": ([("add", "{}", "a")], bit(None, index=0, id="a", name="add")),
    "arguments empty": (
        [("add", "{}", "a")],
        bit("", index=0, id="a", name="add"),
        bit("", index=0),
    ),
    "arguments blank": ([("add", "{}", "a")], bit(" \n", index=0, id="a", name="add")),
    "arguments no JSON": ([("add", '{"x": ', "a")], bit('{"x": ', index=0, id="a", name="add")),
    "nothing said": ([], bit(), bit("", index=0), bit("", index=3, id="", name="")),
    "no name at all": ([("", "{}", "a")], bit("{}", index=0, id="a")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape_gives_the_calls(shape: str) -> None:
    wanted, *fragments = SHAPES[shape]
    assert put_together(*fragments) == wanted


def test_each_fragment_is_shown_at_the_place_of_its_call() -> None:
    calls = Calls()
    shown = [
        calls.add(bit("", index=0, id="a", name="add")),
        calls.add(bit('{"x": 1}', index=0)),
        calls.add(bit("", index=0)),
        calls.add(bit('{"y"', index=0, id="b", name="mul")),
        calls.add(bit(": 2}")),
    ]
    assert shown == [
        ToolCallChunk(index=0, name="add"),
        ToolCallChunk(index=0, arguments='{"x": 1}'),
        None,
        ToolCallChunk(index=1, name="mul", arguments='{"y"'),
        ToolCallChunk(index=1, arguments=": 2}"),
    ]


def test_calls_are_true_once_there_is_one() -> None:
    calls = Calls()
    assert not calls
    assert calls.whole() == ()
    calls.add(bit(id="a", name="add"))
    assert calls
    assert calls.whole() == (WholeCall(name="add", arguments="{}", provider_id="a"),)


@given(st.lists(st.text(alphabet='{}":x1 ', min_size=1), min_size=1, max_size=4), st.data())
def test_any_cut_and_any_order_across_calls_gives_the_same(texts: list[str], data: st.DataObject) -> None:
    """Fragments of one call keep their order; those of several calls mix as they like."""
    waiting = {index: list(text) for index, text in enumerate(texts)}
    calls = Calls()
    for index in waiting:
        calls.add(bit(index=index, id=f"call_{index}", name="add"))
    while waiting:
        index = data.draw(st.sampled_from(sorted(waiting)))
        size = data.draw(st.integers(1, len(waiting[index])))
        calls.add(bit("".join(waiting[index][:size]), index=index))
        del waiting[index][:size]
        if not waiting[index]:
            del waiting[index]
    assert [call.arguments for call in calls.whole()] == [text if text.strip() else "{}" for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", True),
        (' {"x": [1]} ', True),
        ("", False),
        ("null", False),
        ("[]", False),
        ('{"x"', False),
        ("{}{}", False),
    ],
)
def test_an_object_is_told_from_anything_else(text: str, expected: bool) -> None:
    assert is_object(text) is expected


def test_arguments_nested_without_end_are_no_object() -> None:
    assert not is_object('{"x":' * 200_000)
