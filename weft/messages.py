"""Messages, their parts, and usage: frozen values, read and written by one pydantic adapter."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, PlainSerializer, TypeAdapter, WithJsonSchema
from pydantic.functional_validators import BeforeValidator

from weft.errors import WrongCall

__all__ = [
    "File",
    "Message",
    "Part",
    "Reasoning",
    "Text",
    "ToolCall",
    "ToolResult",
    "Usage",
    "as_message",
    "clean_text",
    "message_adapter",
]

_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """The text with U+0000 and lone surrogates replaced by U+FFFD; nothing else changes.

    Raises:
        WrongCall: It is no text.
    """
    if not isinstance(text, str):  # whoever calls may have no type checker
        raise WrongCall(f"a text is a str, not {type(text).__name__!r}")
    if text.isascii() and "\x00" not in text:
        return text
    return _NOT_TEXT.sub("\ufffd", text)


def _from_base64(value: object) -> object:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def _to_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


_Base64 = Annotated[
    bytes | None,
    BeforeValidator(_from_base64),
    PlainSerializer(_to_base64, return_type=str | None),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Plain text."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model asked for."""

    id: str
    """Weft's own id, minted when the reply was received; unique in the store, and what the wire carries."""
    name: str
    arguments: str
    """The raw argument text as the model wrote it, or as a decision edited it."""
    provider_id: str | None = None
    """The id that the provider gave. Data only: providers repeat it."""
    kind: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The one result of one call."""

    call: str
    """The id of the `ToolCall`."""
    content: str
    is_error: bool = False
    code: str | None = None
    """Why it is an error: `INVALID_INPUT`, `DENIED`, … An open string."""
    kind: Literal["tool_result"] = "tool_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """What the model thought, with the provider's opaque block kept byte for byte."""

    text: str
    block: str | None = None
    """The provider's own block as JSON text, replayed unchanged to the same provider and model."""
    provider: str | None = None
    model: str | None = None
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file, by its bytes or by its URL."""

    media_type: str
    data: _Base64 = None
    url: str | None = None
    kind: Literal["file"] = "file"

    def __repr__(self) -> str:
        """Without its bytes, which may be many."""
        what = f"url={self.url!r}" if self.data is None else f"data=<{len(self.data)} bytes>"
        return f"File(media_type={self.media_type!r}, {what})"


Part: TypeAlias = Annotated[Text | ToolCall | ToolResult | Reasoning | File, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a transcript. Instructions are not a message."""

    role: Literal["user", "assistant", "tool"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in the order in which the model asked for them."""
        return tuple([part for part in self.parts if isinstance(part, ToolCall)])

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results, in call order."""
        return tuple([part for part in self.parts if isinstance(part, ToolResult)])

    @classmethod
    def user(cls, text: str) -> Self:
        """A user message of one text."""
        return cls(role="user", parts=(Text(text=clean_text(text)),))


def as_message(content: str | Message | Iterable[Text | File]) -> Message:
    """A user message from text, parts, or a message.

    Raises:
        WrongCall: It is none of these, is another role's message, or says nothing: providers refuse a blank message.
    """
    parts = _user_parts(content)
    if all(isinstance(part, Text) and not part.text.strip() for part in parts):
        raise WrongCall("an input says something: give it some text, or a file")
    return Message(role="user", parts=parts)


def _user_parts(content: object) -> tuple[Text | File, ...]:
    """The parts of an input, cleaned."""
    if isinstance(content, str):
        return (Text(text=clean_text(content)),)
    if isinstance(content, Message) and content.role != "user":
        raise WrongCall(f"an input is a user message, not one of role {content.role!r}; give earlier ones as history")
    parts = content.parts if isinstance(content, Message) else content
    if isinstance(parts, bytes) or not isinstance(parts, Iterable):
        raise WrongCall(f"an input is text, a user message, or a list of Text and File, not {type(parts).__name__}")
    return tuple(_user_part(part) for part in parts)


def _user_part(part: object) -> Text | File:
    if isinstance(part, Text):
        return Text(text=clean_text(part.text))
    if isinstance(part, File):
        if part.data is None and part.url is None:
            raise WrongCall("a File has its bytes, File(data=…), or is where its url says, File(url=…)")
        return part
    raise WrongCall(f"the parts of an input are Text and File, not {type(part).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens as providers reported them. Integers; a sum of what was reported."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    """The part of `input_tokens` that was read from the provider's cache."""
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    """The part of `output_tokens` that was spent on reasoning."""
    unknown: int = 0
    """The number of model calls whose usage is not known (cut, crashed, not reported)."""

    def __repr__(self) -> str:
        """What is not zero."""
        counts = ((item.name, getattr(self, item.name)) for item in fields(self))
        return f"Usage({', '.join(f'{name}={count!r}' for name, count in counts if count)})"

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        if self is NO_USAGE:
            return other
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            unknown=self.unknown + other.unknown,
        )

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


NO_USAGE = Usage()
"""Nothing was spent."""
UNKNOWN_CALL = Usage(unknown=1)
"""One model call, of which nothing is known."""


@cache
def message_adapter() -> TypeAdapter[Message]:
    """The one adapter that reads and writes messages."""
    return TypeAdapter(Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """A failure as it is stored and shown: a code, a text without internals."""

    kind: str = "run"
    """`limit`, `model`, `output`, `run`: which error is raised for it. An open string."""
    code: str
    message: str
    details: Mapping[str, str] = field(default_factory=dict)
