"""The model seam: what a run asks of a model, and what a model streams back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from weft import _given
from weft.errors import WrongCall
from weft.messages import Message, Usage, clean_text

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


TOOL_CHOICES = frozenset({"auto", "none", "required"})
"""What a tool choice says that names no tool."""


EFFORTS = ("minimal", "low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to ask. What is None is left to the provider.

    Raises:
        WrongCall: A setting makes no sense.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    """The most output tokens of one reply."""
    effort: Literal["minimal", "low", "medium", "high"] | None = None
    """How much a reasoning model is to think."""
    parallel_tool_calls: bool | None = None
    """Whether one reply may hold several calls."""
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or a tool's name. What forces a call holds for a run's first model call only."""
    stream: bool = True
    """False asks the server for one whole reply; the events and the result are the same."""
    idle: float | None = 60.0
    """The most seconds between two chunks of a streamed reply; None is without limit. See docs/timeouts.md."""
    cache: bool = False
    """Set cache breakpoints, where the provider wants them set."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the provider's own request body, put in last and as they are."""

    def __post_init__(self) -> None:
        if self.temperature not in (None, 0) and not _given.positive(self.temperature):
            raise WrongCall(f"Settings(temperature=…) is a number of at least 0, or None; not {self.temperature!r}")
        if self.effort not in (None, *EFFORTS):
            raise WrongCall(f"Settings(effort=…) is one of {', '.join(EFFORTS)}, or None")
        if self.max_tokens is not None and not _given.at_least(1, self.max_tokens):
            raise WrongCall(f"Settings(max_tokens=…) is a number of at least 1, or None; not {self.max_tokens!r}")
        if self.idle is not None and not _given.positive(self.idle):
            raise WrongCall(f"Settings(idle=…) is a positive number of seconds, or None; not {self.idle!r}")
        if not isinstance(self.extra, Mapping):
            raise WrongCall(f"Settings(extra=…) is a dict of fields of the request; not {self.extra!r}")


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
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or a tool's name. Counts here; `settings.tool_choice` has been worked in."""
    settings: Settings
    output_schema: dict[str, Any] | None = None
    """The JSON schema that the reply's text must fit, an object's; only asked of a model whose `info` says so."""
    run_id: str
    position: Position | None
    """None for one that stands nowhere in a thread's path: that for a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Who answers."""

    provider: str
    model: str
    context_window: int | None = None
    """In tokens, where known."""
    output: Literal["schema", "tool"] = "tool"
    """How it gives structured output: by its own JSON-schema mode, or by a call of a submission tool."""
    own_idle: bool = False
    """It keeps `settings.idle` by itself, as a model around models does for each attempt."""


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
    by: ModelInfo | None = None
    """Who answered, where that is another than the model's `info` names."""


ModelEvent: TypeAlias = TextChunk | ReasoningChunk | ToolCallChunk | WholeCall | Finish


class Model(Protocol):
    """Anything that can answer a `ModelRequest`."""

    def info(self) -> ModelInfo:
        """Who answers, and how much fits. Where it fails, so does the model call."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply as it comes: an async generator that ends with one `Finish`.

        The run closes it. A stream that ends without a `Finish` is an error. Raise any exception to
        report failure; the run wraps it in `ModelFailed` and keeps it as the cause.
        """
        ...


def info_of(model: Model) -> ModelInfo:
    """Who answers, as the model says. Whatever else its `info` raises, leaves as itself.

    Raises:
        ModelError: What it says is no `ModelInfo`, or has a field of a wrong type.
    """
    info = model.info()
    if not is_info(info):
        text = "the model's info() gave no ModelInfo, or one with a field of a wrong type"
        raise ModelError(text, code="MODEL_CONTRACT")
    return info


def is_info(info: object) -> bool:
    """Whether it is a `ModelInfo` that can be stored."""
    if not isinstance(info, ModelInfo) or info.output not in ("schema", "tool"):
        return False
    window: object = info.context_window
    counted = window is None or (isinstance(window, int) and window >= 1)
    return counted and is_clean(info.provider) and is_clean(info.model)


def is_clean(given: object) -> bool:
    """Whether it is a text that a store takes as it is."""
    return isinstance(given, str) and clean_text(given) == given


CONTEXT = "MODEL_CONTEXT"
"""The code of a `ModelError` that says that the conversation is too long for the model."""


class ModelError(Exception):
    """What an adapter raises for a failed call: a code and a text that are safe to store and to show.

    The provider's own error belongs into `__cause__`. Any other exception is stored by its type's name only.

    Args:
        message: What happened, without keys or headers.
        code: `MODEL_AUTH`, `MODEL_CONNECTION`, `MODEL_CONTEXT` (too long), `MODEL_CONTRACT` (the stream breaks the
            seam's rules), `MODEL_CUT` (it ended early), `MODEL_DENIED`, `MODEL_QUOTA` (no credit left),
            `MODEL_RATE_LIMIT`, `MODEL_REQUEST`, `MODEL_SERVER`, `MODEL_TIMEOUT`, or `MODEL` for any
            other. An open string.
        retry_after: Seconds that the server asks to wait, where it said so.
    """

    def __init__(self, message: str, *, code: str = "MODEL", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
