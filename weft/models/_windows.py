"""How much fits into the vendors' models, as they publish it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft import _given
from weft.errors import WrongCall

__all__ = ["ANTHROPIC", "OPENAI", "window_of"]

OPENAI: Mapping[str, int] = MappingProxyType(
    {
        "chatgpt-4o": 128_000,
        "codex-mini": 200_000,
        "gpt-3.5-turbo": 16_385,
        "gpt-3.5-turbo-0301": 4_096,
        "gpt-3.5-turbo-0613": 4_096,
        "gpt-4": 8_192,
        "gpt-4-0125": 128_000,
        "gpt-4-1106": 128_000,
        "gpt-4-32k": 32_768,
        "gpt-4-turbo": 128_000,
        "gpt-4-vision": 128_000,
        "gpt-4.1": 1_047_576,
        "gpt-4.5": 128_000,
        "gpt-4o": 128_000,
        "gpt-5": 272_000,
        "gpt-5-chat": 128_000,
        "gpt-5-pro": 128_000,
        "gpt-5.1": 272_000,
        "gpt-5.1-chat": 128_000,
        "gpt-5.2": 272_000,
        "gpt-5.2-chat": 128_000,
        "gpt-5.3-chat": 128_000,
        "gpt-5.4": 922_000,
        "gpt-5.4-mini": 272_000,
        "gpt-5.4-nano": 272_000,
        "gpt-5.5": 922_000,
        "gpt-6-astra": 922_000,
        "gpt-6.2-astra": 922_000,
        "o1": 200_000,
        "o1-mini": 128_000,
        "o1-preview": 128_000,
        "o3": 200_000,
        "o4-mini": 200_000,
    }
)
"""Tokens, by the beginning of the name. Where a model has a limit of its own for what it reads, it is that one."""

ANTHROPIC: Mapping[str, int] = MappingProxyType(
    {
        "claude-3": 200_000,
        "claude-fable-5": 1_000_000,
        "claude-haiku-4": 200_000,
        "claude-opus-4": 200_000,
        "claude-opus-4-6": 1_000_000,
        "claude-opus-4-8": 1_000_000,
        "claude-opus-5": 1_000_000,
        "claude-sonnet-4": 200_000,
        "claude-sonnet-5": 1_000_000,
    }
)
"""Tokens, by the beginning of the name. What a beta header gives on top is not in it."""


def window_of(model: str, given: int | None, windows: Mapping[str, int]) -> int | None:
    """What was given; else the window of the longest name with which this one begins, up to its end, a `-` or a `:`.

    So a dated version and a fine-tuned model have what their model has, and a new version, of which nothing is known,
    has none.

    Raises:
        WrongCall: What was given is below 1.
    """
    if given is not None:
        if not _given.at_least(1, given):
            raise WrongCall("context_window=… is at least 1 token, or None for what is known of the model")
        return given
    name = model.removeprefix("ft:")
    known = (start for start in windows if name == start or name.startswith((f"{start}-", f"{start}:")))
    longest = max(known, key=len, default=None)
    return None if longest is None else windows[longest]
