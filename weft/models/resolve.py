"""From `"provider:model"` to a model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from weft.errors import MissingExtra, WrongCall
from weft.model import Model

_ADAPTERS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "anthropic": ("weft.models.anthropic", "AnthropicMessages", "anthropic"),
        "openai": ("weft.models.openai", "OpenAIChat", "openai"),
        "openai-responses": ("weft.models.openai_responses", "OpenAIResponses", "openai"),
    }
)
"""Prefix: module, class, extra."""


def resolve(name: str) -> Model:
    """The model that a string names; its adapter is imported now, its client made at the first call.

    Raises:
        WrongCall: The string is not `provider:model`, or no adapter has that prefix.
        MissingExtra: The vendor's SDK is not installed.
    """
    prefix, _, model = name.partition(":")
    if not model or prefix not in _ADAPTERS:
        known = ", ".join(f"{known}:…" for known in _ADAPTERS)
        raise WrongCall(f"no model {name!r}; use one of {known}, or any object with the `Model` methods")
    module, attribute, extra = _ADAPTERS[prefix]
    try:
        adapter = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weft"):
            raise
        raise MissingExtra(extra) from error
    made: Model = getattr(adapter, attribute)(model)
    return made
