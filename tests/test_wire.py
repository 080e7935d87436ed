"""Each rule of the wire check refuses what breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from weft import File, Message, ModelRequest, Reasoning, Settings, Text, ToolCall, ToolResult
from weft.model import Finish, Position, ReasoningChunk, TextChunk
from weft.testing.wire import WireCheck, WireError

USER = Message.user("hi")
THOUGHT = Message(
    role="assistant", parts=(Reasoning(text="hm", block='{"signature": "x"}', provider="p", model="m"), Text(text="ok"))
)


def request(messages: Sequence[Message], *, thread: str | None = "t", run: str = "r") -> ModelRequest:
    return ModelRequest(
        instructions=None,
        messages=messages,
        tools=(),
        settings=Settings(),
        run_id=run,
        position=Position(thread=thread, index=0),
    )


def check(*messages: Message) -> None:
    WireCheck().check(request(messages))


def asks(*names: str, arguments: str = "{}") -> Message:
    return Message(role="assistant", parts=tuple(ToolCall(id=name, name="tool", arguments=arguments) for name in names))


def answers(*names: str, is_error: bool = False) -> Message:
    return Message(role="tool", parts=tuple(ToolResult(call=name, content="done", is_error=is_error) for name in names))


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([USER], id="a user message"),
        pytest.param([USER, asks("a", "b"), answers("a", "b")], id="a step"),
        pytest.param([USER, asks("a"), answers("a"), asks("b"), answers("b"), USER], id="several steps"),
        pytest.param([USER, asks("a", arguments=""), answers("a")], id="no arguments"),
        pytest.param([USER, asks("a", arguments="nonsense"), answers("a", is_error=True)], id="refused arguments"),
        pytest.param([Message(role="user", parts=(File(media_type="a/b", data=b"x"),))], id="a file alone"),
        pytest.param([USER, Message(role="assistant", parts=()), USER], id="an empty reply"),
        pytest.param([USER, THOUGHT, USER], id="a provider's block"),
        pytest.param(
            [USER, Message(role="assistant", parts=(Reasoning(text="hm", block="{}"),)), USER], id="a block alone"
        ),
        pytest.param(
            [USER, Message(role="assistant", parts=(Reasoning(text="hm"), *THOUGHT.parts)), USER],
            id="blocks of several models",
        ),
    ],
)
def test_a_valid_request_passes(messages: list[Message]) -> None:
    check(*messages)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        pytest.param([], "ends with", id="nothing"),
        pytest.param([USER, THOUGHT], "ends with", id="the assistant last"),
        pytest.param([Message(role="user", parts=())], "without parts", id="a user message without parts"),
        pytest.param([Message.user("")], "empty user message", id="an empty user message"),
        pytest.param([USER, asks("a"), USER], "without a tool message", id="no results"),
        pytest.param([USER, asks("a")], "without a tool message", id="no results at the end"),
        pytest.param([USER, asks("a", "b"), answers("a")], "got results for", id="a result is missing"),
        pytest.param([USER, asks("a"), answers("a", "a")], "got results for", id="two results of a call"),
        pytest.param([USER, asks("a", "b"), answers("b", "a")], "got results for", id="results out of order"),
        pytest.param([USER, asks("a"), answers("b")], "got results for", id="a result of another call"),
        pytest.param([USER, answers("a")], "without calls before it", id="a tool message without calls"),
        pytest.param(
            [USER, asks("a"), answers("a"), answers("a")], "without calls before it", id="a second tool message"
        ),
        pytest.param([USER, asks("a", "a"), answers("a", "a")], "repeated", id="an id twice in a step"),
        pytest.param(
            [USER, asks("a"), answers("a"), asks("a"), answers("a")], "repeated", id="an id again in a later step"
        ),
        pytest.param([USER, asks(""), answers("")], "empty", id="an empty id"),
        pytest.param([USER, asks("a", arguments="[]"), answers("a")], "no object", id="arguments that are a list"),
        pytest.param([USER, asks("a", arguments="{"), answers("a")], "no object", id="arguments that are no JSON"),
        pytest.param([Message(role="tool", parts=())], "without parts", id="an empty tool message"),
        pytest.param(
            [Message(role="user", parts=(*USER.parts, *asks("a").parts)), answers("a")],
            "message 0: a user message holds no tool_call",
            id="a call of the user",
        ),
        pytest.param(
            [Message(role="user", parts=(*USER.parts, *THOUGHT.parts))], "no reasoning", id="reasoning of the user"
        ),
        pytest.param(
            [USER, Message(role="assistant", parts=answers("a").parts), USER], "no tool_result", id="a result as said"
        ),
        pytest.param(
            [USER, asks("a"), Message(role="tool", parts=(*answers("a").parts, Text(text="so")))],
            "message 2: a tool message holds no text",
            id="a text among the results",
        ),
    ],
)
def test_each_rule_refuses_what_breaks_it(messages: list[Message], says: str) -> None:
    with pytest.raises(WireError, match=says):
        check(*messages)


def test_the_place_of_the_fault_is_named() -> None:
    with pytest.raises(WireError, match="message 3"):
        check(USER, asks("a"), answers("a"), asks("b"), USER)


# A thread that grows: what was checked before is not checked again.


def test_what_is_new_of_a_thread_is_checked() -> None:
    wire = WireCheck()
    messages = [USER, asks("a"), answers("a")]
    wire.check(request(messages))
    wire.check(request([*messages, asks("b"), answers("b")]))
    with pytest.raises(WireError, match="repeated"):
        wire.check(request([*messages, asks("b"), answers("b"), asks("a"), answers("a")]))


def test_a_changed_block_is_refused() -> None:
    wire = WireCheck()
    wire.check(request([THOUGHT, USER]))
    changed = replace(THOUGHT, parts=(replace(THOUGHT.parts[0], block='{"signature":"x"}'), THOUGHT.parts[1]))
    with pytest.raises(WireError, match="message 0: a provider's block has changed"):
        wire.check(request([changed, USER]))


def test_a_changed_block_is_refused_in_a_transcript_that_was_read_anew() -> None:
    wire = WireCheck()
    wire.check(request([THOUGHT, USER]))
    changed = replace(THOUGHT, parts=(replace(THOUGHT.parts[0], block='{"signature":"x"}'), THOUGHT.parts[1]))
    with pytest.raises(WireError, match="a provider's block has changed"):
        wire.check(request([changed, Message.user("hi")]))


SIGNED, SAID = THOUGHT.parts
CALLED = Message(role="assistant", parts=(SIGNED, *asks("a").parts))


@pytest.mark.parametrize(
    "again",
    [
        pytest.param((SAID,), id="dropped"),
        pytest.param((SAID, SIGNED), id="moved"),
        pytest.param((SIGNED, SIGNED, SAID), id="doubled"),
        pytest.param((replace(SIGNED, text="hm, hm"), SAID), id="merged"),  # type: ignore[type-var]  # it is reasoning
        pytest.param((replace(SIGNED, model="another"), SAID), id="said to be another model's"),  # type: ignore[type-var]
    ],
)
def test_reasoning_that_was_changed_is_refused(again: tuple[Any, ...]) -> None:
    wire = WireCheck()
    wire.check(request([USER, THOUGHT, USER]))
    with pytest.raises(WireError, match="message 1: a provider's block has changed"):
        wire.check(request([USER, Message(role="assistant", parts=again), USER]))


def test_a_call_that_was_edited_keeps_its_blocks() -> None:
    edited = Message(role="assistant", parts=(SIGNED, *asks("a", arguments='{"x": 1}').parts))
    wire = WireCheck()
    wire.check(request([USER, CALLED, answers("a"), USER]))
    wire.check(request([USER, edited, answers("a"), USER]))
    with pytest.raises(WireError, match="message 1: a provider's block has changed"):
        wire.check(request([USER, asks("a", arguments='{"x": 1}'), answers("a"), USER]))


def test_the_same_words_after_a_summary_are_another_message() -> None:
    wire = WireCheck()
    wire.check(request([USER, THOUGHT, USER, THOUGHT, USER]))
    later = replace(THOUGHT, parts=(replace(SIGNED, block="{}"), SAID))  # type: ignore[type-var]  # it is reasoning
    wire.check(request([Message.user("what was said so far"), later, USER]))


def test_an_equal_block_passes() -> None:
    wire = WireCheck()
    wire.check(request([THOUGHT, USER]))
    wire.check(request([replace(THOUGHT), USER, Message(role="assistant", parts=()), USER]))


@pytest.mark.parametrize("shorter", [[USER], [Message.user("another")], [Message.user("another"), THOUGHT, USER]])
def test_a_thread_that_went_back_is_checked_from_its_start(shorter: list[Message]) -> None:
    wire = WireCheck()
    wire.check(request([USER, asks("a"), answers("a")]))
    wire.check(request(shorter))
    wire.check(request([*shorter, asks("a"), answers("a")]))


@pytest.mark.parametrize("wrong", [[Message.user("")], [USER, asks("b"), USER], [USER, asks("a"), answers("b"), USER]])
def test_what_is_wrong_in_a_thread_that_went_back_is_refused(wrong: list[Message]) -> None:
    wire = WireCheck()
    wire.check(request([USER, asks("a"), answers("a"), USER, USER]))
    with pytest.raises(WireError):
        wire.check(request(wrong))


class Read(list[Message]):
    """Messages that know which of them were looked at."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(messages)
        self.places: set[int] = set()

    def __getitem__(self, place: Any) -> Any:
        self.places.add(place % len(self))
        return super().__getitem__(place)


def test_what_was_checked_before_is_not_read_again_but_for_the_first_and_blocks() -> None:
    wire = WireCheck()
    messages = [USER, THOUGHT, USER, asks("a"), answers("a")]
    wire.check(request(messages))
    read = Read([*messages, asks("b"), answers("b")])
    wire.check(request(read))
    assert read.places == {0, 1, 4, 5, 6}


def test_threads_are_checked_apart() -> None:
    wire = WireCheck()
    wire.check(request([USER, asks("a"), answers("a")], thread="one"))
    wire.check(request([USER, asks("a"), answers("a")], thread="two"))


def test_what_is_new_of_a_run_without_a_thread_is_checked() -> None:
    wire = WireCheck()
    messages = [USER, asks("a"), answers("a")]
    wire.check(request(messages, thread=None))
    read = Read([*messages, asks("b"), answers("b")])
    wire.check(request(read, thread=None))
    assert read.places <= {0, 2, 3, 4}
    with pytest.raises(WireError, match="repeated"):
        wire.check(request([*messages, asks("b"), answers("b"), asks("a"), answers("a")], thread=None))


def test_runs_are_checked_apart() -> None:
    wire = WireCheck()
    messages = [USER, asks("a"), answers("a")]
    wire.check(request(messages, thread=None, run="one"))
    read = Read(messages)
    wire.check(request(read, thread=None, run="two"))
    assert read.places == {0, 1, 2}
    wire.check(request(messages, thread="one"))


def test_a_request_without_a_position_stands_alone() -> None:
    wire = WireCheck()
    messages = [USER, THOUGHT, USER, asks("a"), answers("a")]
    wire.check(request(messages, thread=None))
    nowhere = [USER, replace(THOUGHT, parts=(SAID,)), USER, asks("a"), answers("a")]
    wire.check(replace(request(nowhere, thread=None), position=None))
    with pytest.raises(WireError, match="repeated"):
        wire.check(replace(request([*nowhere, asks("a"), answers("a")]), position=None))


# What the model gave.

GIVEN = [ReasoningChunk(text="hm", block='{"signature": "x"}'), TextChunk(text="ok"), Finish(reason="stop")]


def test_a_reply_that_lost_its_block_is_refused() -> None:
    wire = WireCheck()
    wire.check(request([USER]))
    wire.gave(request([USER]), GIVEN)
    with pytest.raises(WireError, match="message 1: a provider's block did not come back"):
        wire.check(request([USER, replace(THOUGHT, parts=(SAID,)), USER]))


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([USER, THOUGHT, USER], id="it came back"),
        pytest.param([Message.user("hi"), replace(THOUGHT), USER], id="it came back, read anew"),
        pytest.param([USER], id="it was not taken"),
        pytest.param([USER, USER], id="a message came instead"),
        pytest.param([USER, Message.user("ok")], id="a message came instead that says the same"),
        pytest.param([USER, Message(role="assistant", parts=(Text(text="other"),)), USER], id="another's reply"),
        pytest.param([USER, Message(role="assistant", parts=(SAID, *asks("a").parts)), answers("a")], id="with a call"),
        pytest.param(
            [Message.user("else"), Message(role="assistant", parts=(SAID,)), USER], id="the same words on another path"
        ),
    ],
)
def test_a_reply_is_held_against_what_was_given_only_where_it_is_that_reply(messages: list[Message]) -> None:
    wire = WireCheck()
    wire.check(request([USER]))
    wire.gave(request([USER]), GIVEN)
    wire.check(request(messages))


def test_what_was_given_is_held_against_the_next_request_alone() -> None:
    wire = WireCheck()
    wire.check(request([USER]))
    wire.gave(request([USER]), GIVEN)
    other = Message(role="assistant", parts=(Text(text="other"),))
    wire.check(request([USER, other, USER]))
    wire.check(request([USER, other, USER, Message(role="assistant", parts=(SAID,)), USER]))
