"""The fold: any prefix of a journal is a view, and what stands beside the journal says the same as the view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass

import pytest

from tests.crash.test_crash_points import SCENARIOS
from weft import Settings
from weft._repair import History, Transcript, repair
from weft.messages import Message
from weft.model import ModelRequest, Position
from weft.testing.crash import Kit
from weft.testing.wire import WireCheck
from weft.thread._view import View, evolve, fold
from weft.thread.entries import Entry, Header

Scenario = Callable[[Kit], Awaitable[None]]


async def journals(scenario: Scenario) -> list[tuple[Header, list[Entry]]]:
    kit = Kit()
    await kit.run(scenario)
    return list(kit.entries().values())


def shown(value: object) -> object:
    """A view as plain values, to compare."""
    if isinstance(value, View):
        return {name: shown(getattr(value, name)) for name in View.__slots__ if name not in ("_messages", "_marked")}
    if isinstance(value, Transcript):
        return (value.messages, list(value.open))
    if isinstance(value, dict):
        return [(key, shown(item)) for key, item in value.items()]
    if isinstance(value, History):
        return list(value)
    if isinstance(value, Message) or not is_dataclass(value) or isinstance(value, type):
        return value
    return [shown(getattr(value, item.name)) for item in fields(value)]


def valid_for_a_provider(messages: list[Message]) -> None:
    asked = [*messages, Message.user("and then?")]
    request = ModelRequest(
        instructions=None,
        messages=asked,
        tools=(),
        settings=Settings(),
        run_id="r",
        position=Position(thread=None, index=0),
    )
    WireCheck().check(request)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_any_prefix_opens_and_its_history_is_valid(scenario: Scenario) -> None:
    for header, entries in await journals(scenario):
        for length in range(len(entries) + 1):
            view = fold(header, entries[:length])
            valid_for_a_provider(repair(view.messages))


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_folding_any_split_gives_the_same_view(scenario: Scenario) -> None:
    for header, entries in await journals(scenario):
        whole = shown(fold(header, entries))
        for cut in range(len(entries)):
            view = fold(header, entries[:cut])
            assert view.messages is not None  # what leaves a view in between does not change what comes later
            for entry in entries[cut:]:
                evolve(view, entry)
            assert shown(view) == whole


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_index_says_what_the_view_says(scenario: Scenario) -> None:
    kit = Kit()
    await kit.run(scenario)
    for name, (header, entries) in kit.entries().items():
        for length in range(len(entries) + 1):
            view = fold(header, entries[:length])
            assert view.index.pending == len(view.undecided)
            assert view.index.unsettled == len(view.unsettled)
        assert kit.data._threads[name].index == kit.views()[name].index
