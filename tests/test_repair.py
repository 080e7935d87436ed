"""A transcript is valid for a provider, whatever it was before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import File, Message, ModelRequest, Reasoning, Settings, Text, ToolCall, ToolResult
from weft._repair import History, Transcript, repair
from weft.model import Position
from weft.testing.wire import WireCheck

PROMPT = Message.user("go on")


def call(name: str) -> ToolCall:
    return ToolCall(id=name, name="tool", arguments="{}")


def asks(*names: str, text: str = "") -> Message:
    parts = (*((Text(text=text),) if text else ()), *map(call, names))
    return Message(role="assistant", parts=parts)


def result(name: str, content: str = "done") -> ToolResult:
    return ToolResult(call=name, content=content)


def answers(*names: str) -> Message:
    return Message(role="tool", parts=tuple(map(result, names)))


def lost(name: str) -> ToolResult:
    text = "The call was interrupted; its outcome is unknown."
    return ToolResult(call=name, content=text, is_error=True, code="INTERRUPTED")


def tool(*results: ToolResult) -> Message:
    return Message(role="tool", parts=results)


USER = Message.user("hi")
SAYS = Message(role="assistant", parts=(Text(text="hello"),))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([USER, SAYS], [USER, SAYS], id="no calls"),
        pytest.param([USER, asks("a"), answers("a"), SAYS], [USER, asks("a"), answers("a"), SAYS], id="valid"),
        pytest.param([asks("a")], [asks("a"), tool(lost("a"))], id="cut before the first result"),
        pytest.param([asks("a"), USER], [asks("a"), tool(lost("a")), USER], id="went on without a result"),
        pytest.param([asks("a"), SAYS], [asks("a"), tool(lost("a")), SAYS], id="spoke without a result"),
        pytest.param(
            [asks("a", "b"), answers("b"), USER], [asks("a", "b"), tool(lost("a"), result("b")), USER], id="one of two"
        ),
        pytest.param([asks("a", "b"), answers("b", "a")], [asks("a", "b"), answers("a", "b")], id="wrong order"),
        pytest.param(
            [asks("a", "b"), answers("a"), answers("b")], [asks("a", "b"), answers("a", "b")], id="two tool messages"
        ),
        pytest.param(
            [asks("a", "b"), answers("b"), answers("a")], [asks("a", "b"), answers("a", "b")], id="two, wrong order"
        ),
        pytest.param(
            [asks("a"), USER, answers("a")], [asks("a"), tool(lost("a")), USER], id="the result came after its place"
        ),
        pytest.param([answers("a"), USER], [USER], id="a result without a call"),
        pytest.param([asks("a"), answers("b", "a")], [asks("a"), answers("a")], id="a result of another call"),
        pytest.param(
            [asks("a"), tool(result("a", "first"), result("a", "second"))],
            [asks("a"), tool(result("a", "first"))],
            id="two results: the first counts",
        ),
        pytest.param([asks("a"), tool()], [asks("a"), tool(lost("a"))], id="an empty tool message"),
    ],
)
def test_repair_gives_each_call_one_result_right_after_it(before: list[Message], after: list[Message]) -> None:
    assert repair(before) == after


def test_repair_leaves_what_it_is_given_alone() -> None:
    before = [asks("a", "b"), answers("b"), USER]
    repair(before)
    assert before == [asks("a", "b"), answers("b"), USER]


def test_repair_hands_on_the_very_messages_that_were_valid() -> None:
    before = [USER, asks("a", text="look"), answers("a"), SAYS]
    after = repair(before)
    assert all(after[place] is before[place] for place in (0, 1, 3))


# Any transcript.

IDS = st.sampled_from("abcdefgh")


def unique_asks(seen: set[str]) -> st.SearchStrategy[Message]:
    fresh = st.lists(IDS.filter(lambda name: name not in seen), unique=True, max_size=4)
    return st.builds(lambda names, text: asks(*names, text=text), fresh, st.sampled_from(["", "look"]))


TOOLS = st.lists(IDS, max_size=4).map(lambda names: answers(*names))
USERS = st.sampled_from(
    [USER, Message(role="user", parts=(Text(text=""), File(media_type="image/png", url="https://host/cat.png")))]
)
THINKS = st.sampled_from([SAYS, Message(role="assistant", parts=(Reasoning(text="hm", block='{"sig": 1}'),))])


@st.composite
def transcripts(draw: st.DrawFn) -> list[Message]:
    """Messages in any order; call ids are unique, as weft mints them."""
    messages: list[Message] = []
    seen: set[str] = set()
    for kind in draw(st.lists(st.sampled_from(["asks", "tool", "user", "says"]), max_size=12)):
        if kind == "asks" and len(seen) < 8:
            message = draw(unique_asks(seen))
            seen |= {asked.id for asked in message.calls}
        else:
            message = draw({"tool": TOOLS, "user": USERS}.get(kind, THINKS))
        messages.append(message)
    return messages


def check_wire(messages: Sequence[Message]) -> None:
    request = ModelRequest(
        instructions=None,
        messages=messages,
        tools=(),
        settings=Settings(),
        run_id="r",
        position=Position(thread="t", index=0),
    )
    WireCheck().check(request)


@given(transcripts())
def test_a_repaired_transcript_is_valid(messages: list[Message]) -> None:
    check_wire([*repair(messages), PROMPT])


@given(transcripts())
def test_repair_is_idempotent(messages: list[Message]) -> None:
    once = repair(messages)
    assert repair(once) == once


@given(transcripts())
def test_repair_keeps_every_user_and_assistant_message(messages: list[Message]) -> None:
    kept = [message for message in repair(messages) if message.role != "tool"]
    assert kept == [message for message in messages if message.role != "tool"]


@given(transcripts())
def test_repair_invents_no_result_but_an_error(messages: list[Message]) -> None:
    given_results = Counter(part for message in messages for part in message.results)
    kept = Counter(part for message in repair(messages) for part in message.results if not part.is_error)
    assert kept <= given_results


REPEATED = st.sampled_from(["a", "b", "a~2", ""])
REPEATED_ASKS = st.lists(REPEATED, max_size=3).map(lambda names: asks(*names))
REPEATED_ANSWERS = st.lists(REPEATED, max_size=3).map(lambda names: answers(*names))


@given(st.lists(st.one_of(REPEATED_ASKS, REPEATED_ANSWERS, USERS)))
def test_repeated_and_empty_ids_are_made_valid_as_well(messages: list[Message]) -> None:
    once = repair(messages)
    check_wire([*once, PROMPT])
    assert repair(once) == once
    assert [message.role for message in once if message.role != "tool"] == [
        message.role for message in messages if message.role != "tool"
    ]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        pytest.param(
            [asks("a", "a"), tool(result("a", "first"), result("a", "second"))], ["first", "second"], id="in one step"
        ),
        pytest.param(
            [asks("a"), tool(result("a", "first")), asks("a"), tool(result("a", "second"))],
            ["first", "second"],
            id="in two steps",
        ),
        pytest.param(
            [asks("a"), USER, asks("a"), tool(result("a", "second"))],
            [lost("a").content, "second"],
            id="in two steps, the first without a result",
        ),
        pytest.param(
            [asks("a", "a", "a~2"), tool(result("a~2", "third"), result("a", "first"), result("a", "second"))],
            ["first", "second", "third"],
            id="next to an id that looks like a new one",
        ),
        pytest.param([asks("", ""), tool(result("", "first"), result("", "second"))], ["first", "second"], id="empty"),
        pytest.param(
            [asks("a", "a"), tool(result("a", "first")), tool(result("a", "second"))],
            ["first", "second"],
            id="in two tool messages",
        ),
    ],
)
def test_calls_of_one_id_keep_their_own_results(before: list[Message], told: list[str]) -> None:
    after = repair(before)
    assert [part.content for message in after for part in message.results] == told
    ids = [asked.id for message in after for asked in message.calls]
    assert len(set(ids)) == len(ids)
    check_wire([*after, PROMPT])


# A transcript, message by message.


def test_a_tool_message_is_built_when_the_last_result_is_there() -> None:
    transcript = Transcript([USER])
    transcript.say(asks("a", "b"))
    assert transcript.answer(result("b"))
    assert (len(transcript.messages), list(transcript.open)) == (2, ["a"])
    assert transcript.answer(result("a"))
    assert transcript.messages == [USER, asks("a", "b"), answers("a", "b")]
    assert not transcript.open


def test_the_result_of_a_call_that_is_not_open_changes_nothing() -> None:
    transcript = Transcript([USER])
    assert not transcript.answer(result("a"))
    transcript.say(asks("a"))
    assert not transcript.answer(result("b"))
    assert transcript.answer(result("a"))
    assert not transcript.answer(result("a", "again"))
    assert transcript.messages == [USER, asks("a"), answers("a")]


def test_the_results_that_are_there_already_may_be_looked_at() -> None:
    transcript = Transcript([USER])
    assert transcript.partial() is None
    transcript.say(asks("a", "b", "c"))
    assert transcript.partial() is None
    transcript.answer(result("c"))
    transcript.answer(result("a"))
    assert transcript.partial() == answers("a", "c")
    assert len(transcript.messages) == 2
    transcript.answer(result("b"))
    assert transcript.partial() is None


def test_settled_messages_never_change() -> None:
    transcript = Transcript([USER])
    transcript.say(asks("a"))
    settled = list(transcript.messages)
    transcript.answer(result("a"))
    transcript.say(USER)
    assert [old is new for old, new in zip(settled, transcript.messages, strict=False)] == [True, True]


def test_what_is_cut_off_is_forgotten_with_its_open_calls() -> None:
    transcript = Transcript([USER])
    transcript.say(asks("a", "b"))
    transcript.answer(result("a"))
    transcript.cut(1)
    assert (transcript.messages, dict(transcript.open)) == ([USER], {})
    transcript.say(asks("a", "b"))
    transcript.answer(result("b"))
    transcript.answer(result("a", "another"))
    assert transcript.messages[-1] == tool(result("a", "another"), result("b"))


def test_a_cut_past_the_end_changes_nothing() -> None:
    transcript = Transcript([USER])
    transcript.say(asks("a"))
    transcript.cut(2)
    assert list(transcript.open) == ["a"]
    assert len(transcript.messages) == 2


def test_a_fork_of_a_settled_transcript_starts_empty() -> None:
    transcript = Transcript([USER, SAYS])
    settled, fork = transcript.fork()
    assert (settled, fork.messages) == (2, [])


def test_a_fork_takes_the_open_calls_along_and_leaves_the_original_alone() -> None:
    transcript = Transcript([USER])
    transcript.say(asks("a", "b"))
    transcript.answer(result("b"))
    settled, fork = transcript.fork()
    fork.answer(result("a", "of the fork"))
    assert settled == 1
    assert fork.messages == [asks("a", "b"), tool(result("a", "of the fork"), result("b"))]
    assert list(transcript.open) == ["a"]
    transcript.answer(result("a"))
    assert transcript.messages == [USER, asks("a", "b"), answers("a", "b")]


@given(transcripts(), st.data())
def test_a_fork_anywhere_goes_on_as_the_original_would(messages: list[Message], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(messages)))
    whole, fork_of = Transcript(), Transcript()
    feed(whole, messages)
    feed(fork_of, messages[:place])
    settled, fork = fork_of.fork()
    feed(fork, messages[place:])
    assert [*fork_of.messages[:settled], *fork.messages] == whole.messages


def feed(transcript: Transcript, messages: Sequence[Message]) -> None:
    for message in messages:
        if message.role == "tool":
            for part in message.results:
                transcript.answer(part)
        else:
            transcript.say(message)


# A view of fixed length.

MESSAGES = [Message.user(str(number)) for number in range(6)]


def test_a_history_keeps_its_length_while_its_lists_grow() -> None:
    base, tail = MESSAGES[:3], MESSAGES[3:5]
    history = History(base, 2, tail)
    tail.append(MESSAGES[5])
    expected = [MESSAGES[0], MESSAGES[1], MESSAGES[3], MESSAGES[4]]
    assert len(history) == 4
    assert list(history) == expected
    assert [history[place] for place in range(4)] == expected
    assert history[-1] is MESSAGES[4]
    assert tuple(reversed(history)) == tuple(reversed(expected))


def test_a_part_of_a_history_reaches_over_both_lists() -> None:
    history = History(MESSAGES, 2, MESSAGES[4:])
    assert history[1:3] == (MESSAGES[1], MESSAGES[4])
    assert history[::-2] == (MESSAGES[5], MESSAGES[1])


@pytest.mark.parametrize("place", [4, -5, 100])
def test_a_history_has_nothing_outside_its_length(place: int) -> None:
    tail = list(MESSAGES[2:])
    history = History(MESSAGES, 2, tail[:2])
    with pytest.raises(IndexError):
        history[place]


@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_a_history_reads_like_a_list(base_length: int, tail_length: int, data: st.DataObject) -> None:
    history = History(MESSAGES, base_length, MESSAGES[:tail_length])
    expected = [*MESSAGES[:base_length], *MESSAGES[:tail_length]]
    assert list(history) == expected
    part = data.draw(st.slices(len(expected)))
    assert list(history[part]) == expected[part]
    if expected:
        place = data.draw(st.integers(-len(expected), len(expected) - 1))
        assert history[place] == expected[place]


def test_a_history_refuses_to_be_written() -> None:
    history = History(MESSAGES, 2)
    with pytest.raises(TypeError):
        history[0] = PROMPT  # type: ignore[index]  # that it cannot be is the promise
