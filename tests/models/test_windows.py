"""How much fits into a model: what is known by its name, and what is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.errors import WrongCall
from weft.model import Model
from weft.models import fallback
from weft.models._windows import ANTHROPIC, OPENAI, window_of
from weft.models.anthropic import AnthropicMessages
from weft.models.openai import OpenAIChat
from weft.models.openai_responses import OpenAIResponses


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("gpt-4o", 128_000),
        ("gpt-4o-2024-08-06", 128_000),
        ("gpt-4o-mini", 128_000),
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-4-32k-0613", 32_768),
        ("gpt-4-turbo-preview", 128_000),
        ("gpt-4-1106-preview", 128_000),
        ("gpt-4.1-nano-2025-04-14", 1_047_576),
        ("gpt-3.5-turbo", 16_385),
        ("gpt-5", 272_000),  # of 400,000 in all, the rest is for what it writes
        ("gpt-5-mini", 272_000),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-5.4-mini-2026-03-17", 272_000),
        ("gpt-5.5-2026-04-23", 922_000),
        ("o1", 200_000),
        ("o1-mini-2024-09-12", 128_000),
        ("o3-mini", 200_000),
        ("ft:gpt-4o-mini-2024-07-18:us::7p4l", 128_000),
        ("ft:gpt-4o:us", 128_000),
    ],
)
def test_a_models_window_is_known_by_how_its_name_begins(name: str, window: int) -> None:
    assert OpenAIChat(name).info().context_window == window
    assert OpenAIResponses(name).info().context_window == window


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("claude-3-5-haiku-latest", 200_000),
        ("claude-3-7-sonnet-20250219", 200_000),
        ("claude-opus-4-1", 200_000),
        ("claude-opus-4-6", 1_000_000),
        ("claude-sonnet-4-20250514", 200_000),
        ("claude-sonnet-4-5", 200_000),  # 1,000,000 only with a beta header
        ("claude-haiku-4-5-20251001", 200_000),
        ("claude-opus-5", 1_000_000),
        ("claude-opus-5-5", 1_000_000),
    ],
)
def test_anthropics_models_too(name: str, window: int) -> None:
    assert AnthropicMessages(name).info().context_window == window


@pytest.mark.parametrize(
    "name", ["gpt-5.9", "gpt-55", "gpt-4ox", "gpt", "o", "o11", "llama-3", "openai/gpt-4o", "", "ft:"]
)
def test_of_a_model_that_is_not_known_nothing_is_said(name: str) -> None:
    assert OpenAIChat(name).info().context_window is None
    assert OpenAIResponses(name).info().context_window is None


@pytest.mark.parametrize("name", ["claude", "claude-2", "claude-opus-6", "claude-haiku-5-5", "gpt-4o"])
def test_nor_of_one_of_another_vendor(name: str) -> None:
    assert AnthropicMessages(name).info().context_window is None


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, AnthropicMessages])
def test_what_is_given_wins(adapter: Callable[..., Model]) -> None:
    assert adapter("gpt-4o", context_window=32_000).info().context_window == 32_000
    assert adapter("a-model-of-mine", context_window=8_000).info().context_window == 8_000
    with pytest.raises(WrongCall, match="context_window"):
        adapter("gpt-4o", context_window=0)


def test_of_several_models_the_smallest_window_counts() -> None:
    both = fallback(OpenAIChat("gpt-5"), OpenAIChat("gpt-4o"), OpenAIChat("unknown"))
    assert both.info().context_window == 128_000


@pytest.mark.parametrize("table", [OPENAI, ANTHROPIC])
def test_every_name_of_a_table_finds_itself(table: dict[str, int]) -> None:
    assert list(table) == sorted(table)
    assert all(window_of(name, None, table) == window >= 4_096 for name, window in table.items())
