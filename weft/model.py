"""The model seam: what a run asks of a model, and what a model streams back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from weft.messages import Message, Usage

__all__ = [
    "Finish",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelInfo",
    "ModelRequest",
    "Position",
    "ReasoningChunk",
    "Settings",
    "TextChunk",
    "ToolCallChunk",
    "ToolDefinition",
    "WholeCall",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to ask. What is None is left to the provider."""

    temperature: float | None = None
    max_tokens: int | None = None
    """The most output tokens of one reply."""
    parallel_tool_calls: bool | None = None
    stream: bool = True
    """False asks the server for one whole reply; the events and the result are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """What the model is told of a tool."""

    name: str
    description: str
    schema: dict[str, Any]
    """The JSON schema of the arguments. Shared: adapters must not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a request stands: its thread and how many assistant messages precede it on the path."""

    thread: str | None
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One model call."""

    instructions: str | None
    messages: Sequence[Message]
    """Read-only and of fixed length: a view over a shared list, not a copy."""
    tools: tuple[ToolDefinition, ...]
    tool_choice: Literal["auto", "none", "required"] = "auto"
    settings: Settings
    output_schema: dict[str, Any] | None = None
    run_id: str
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Who answers."""

    provider: str
    model: str
    context_window: int | None = None
    """In tokens, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningChunk:
    """A piece of reasoning. A `block` ends the part and is kept byte for byte."""

    text: str = ""
    block: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallChunk:
    """A piece of a call that is being written; observers see it, the run waits for the `WholeCall`."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCall:
    """A complete call."""

    name: str
    arguments: str
    """Raw JSON text; an adapter gives `{}` where the provider gave nothing."""
    provider_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a reply; exactly one, and nothing after it."""

    reason: Literal["stop", "tool_calls", "length", "refusal", "filter", "other"]
    usage: Usage | None = None
    """None where the provider did not report it."""
    provider_reason: str | None = None
    """The provider's own word."""


ModelEvent: TypeAlias = TextChunk | ReasoningChunk | ToolCallChunk | WholeCall | Finish


class Model(Protocol):
    """Anything that can answer a `ModelRequest`."""

    def info(self) -> ModelInfo:
        """Who answers, and how much fits."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply as it comes: an async generator that ends with one `Finish`.

        The run closes it. A stream that ends without a `Finish` is an error. Raise any exception to
        report failure; the run wraps it in `ModelFailed` and keeps it as the cause.
        """
        ...


class ModelError(Exception):
    """What an adapter raises for a failed call: a code and a text that are safe to store and to show.

    The provider's own error belongs into `__cause__`. Any other exception is stored by its type's name only.
    """

    def __init__(self, message: str, *, code: str = "MODEL") -> None:
        super().__init__(message)
        self.code = code
