"""Tools: a typed function that a model may call, and what its body gets."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    get_args,
    overload,
)

from pydantic import StringConstraints
from typing_extensions import TypeVar

from weft import _given
from weft._moves import EffectKind
from weft._schema import Signature, inspect_function
from weft._texts import RESULT_CAP
from weft.errors import InvalidTool
from weft.model import TOOL_CHOICES, ToolDefinition

if TYPE_CHECKING:
    from weft._agent import Agent

__all__ = ["CallInfo", "Context", "Delegate", "Retry", "Tool", "ToolError", "tool"]

D = TypeVar("D")
DepsT_co = TypeVar("DepsT_co", default=None, covariant=True)
DepsT_contra = TypeVar("DepsT_contra", default=object, contravariant=True)
P = ParamSpec("P")


class ToolError(Exception):
    """Raised in a body, its arguments' validators or its `approval` to report a failure: a code and a text to read."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = str(message)


class Retry(Exception):
    """Raised in the same places, or an output's validators, to ask the model to try again, with a hint how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """Which call a body serves."""

    id: str
    """Weft's id of the call, unique in the store."""
    name: str
    attempt: int
    """1 for the first start of the body; more after a crash or a knowing repetition."""
    idempotency_key: str
    """The same across attempts, another for every other call; give it to whoever can deduplicate."""
    thread: str | None
    """The session's thread id; None in a bare run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[DepsT_co]):
    """What a body may ask for as its first parameter; the model does not see it."""

    deps: DepsT_co
    """The application's own object, as given to `run`, `create` or `open`."""
    call: CallInfo
    run: str
    """The run's id."""


class Delegate(Protocol):
    """What a delegating tool carries: the child, and the right to be at work.

    `weft.pool` implements it; a session and a bare run call it. So neither imports the pool.
    """

    @property
    def agent(self) -> Agent[Any, Any]:
        """The child."""
        ...

    @property
    def sessions(self) -> bool:
        """Whether in a session the child is a session of its own, with a receipt; else it is a part of the run."""
        ...

    @property
    def depth(self) -> int:
        """How many levels of delegation are allowed below the root."""
        ...

    @property
    def allow(self) -> frozenset[str] | None:
        """The permissions that the child's tools may need, beside what its parent has; None narrows nothing."""
        ...

    async def child_deps(self, deps: object) -> object:
        """The child's deps, from the parent's."""
        ...

    async def enter(self, *, returning: bool) -> None:
        """Wait for a slot. A child that had one and comes back goes before new ones."""
        ...

    def leave(self) -> None:
        """Give the slot back."""
        ...


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider takes as a tool's name."""

Approval: TypeAlias = bool | Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool(Generic[DepsT_contra]):
    """A function that a model may call. Made by `@tool`; a value that never changes."""

    name: str
    description: str
    function: Callable[..., Any]
    """The body, as it was written."""
    effect: EffectKind
    approval: Approval
    timeout: float | None
    """Seconds that a body may take."""
    needs: frozenset[str]
    """The permissions without which it does not run."""
    expires: float | None
    """Seconds that a request for approval stays open; None leaves it to the session."""
    attempts: int
    cap: int
    """Bytes of a result that the model is shown."""
    sequential: bool
    _signature: Signature
    _delegate: Delegate | None = None

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    @property
    def schema_digest(self) -> str:
        """Of the arguments' schema, to tell whether a stored call still means the same."""
        text = json.dumps(self._signature.schema, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told."""
        return ToolDefinition(name=self.name, description=self.description, schema=self._signature.schema)


class _Decorator(Protocol):
    @overload
    def __call__(self, function: Callable[Concatenate[Context[D], P], object], /) -> Tool[D]: ...
    @overload
    def __call__(self, function: Callable[..., object], /) -> Tool[object]: ...


@overload
def tool(function: Callable[Concatenate[Context[D], P], object], /) -> Tool[D]: ...
@overload
def tool(function: Callable[..., object], /) -> Tool[object]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = False,
    effect: EffectKind = "once",
    timeout: float | None = None,
    needs: set[str] | frozenset[str] = frozenset(),
    expires: float | None = None,
    attempts: int = 3,
    cap: int = RESULT_CAP,
    sequential: bool = False,
) -> _Decorator: ...
def tool(  # noqa: PLR0913  # keyword-only options
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = False,
    effect: EffectKind = "once",
    timeout: float | None = None,
    needs: set[str] | frozenset[str] = frozenset(),
    expires: float | None = None,
    attempts: int = 3,
    cap: int = RESULT_CAP,
    sequential: bool = False,
) -> Tool[Any] | _Decorator:
    """Make a tool of a typed function, sync or async.

    The schema comes from the signature, through pydantic; the descriptions from the docstring. A first
    parameter annotated `Context` is not shown to the model. A synchronous body runs on a thread of weft's own.

    Args:
        function: The body, where the decorator is used without parentheses.
        name: What the model calls it; the function's name if absent.
        description: What the model is told; the docstring's text if absent.
        approval: True, or a predicate over the arguments, to park the call until somebody approves it.
        effect: `"none"` for reads, `"repeatable"` for what may run again under the same idempotency key,
            `"once"` for what must not: found started without a result, it asks a person.
        timeout: Seconds that the body may take.
        needs: Permissions without which the call is refused.
        expires: Seconds that a request for approval stays open.
        attempts: How often a `"repeatable"` body may start in all.
        cap: Bytes of the result that the model is shown.
        sequential: Run alone: after the calls before it, before those after it.

    Raises:
        InvalidTool: The signature cannot be described; the message names the tool and the parameter.
    """
    frame = sys._getframe(1)
    namespace = dict(frame.f_locals)

    def make(body: Callable[..., Any]) -> Tool[Any]:
        _check_texts(name, description)
        label = str(getattr(body, "__name__", "tool")) if name is None else name
        _check_name(label)
        _check_options(label, timeout=timeout, expires=expires, attempts=attempts, cap=cap)
        _check_kinds(label, effect=effect, approval=approval, needs=needs)
        signature = inspect_function(body, label, Context, namespace)
        _check_predicate(label, approval, signature.names)
        return Tool(
            name=label,
            description=description or signature.summary,
            function=body,
            effect=effect,
            approval=approval,
            timeout=timeout,
            needs=frozenset(needs),
            expires=expires,
            attempts=attempts,
            cap=cap,
            sequential=sequential,
            _signature=signature,
        )

    return make if function is None else make(function)


def _check_texts(name: object, description: object) -> None:
    for label, given in (("name", name), ("description", description)):
        if given is not None and not isinstance(given, str):
            raise InvalidTool(f"a tool's {label} is a text; not {given!r}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name in TOOL_CHOICES:
        raise InvalidTool(
            f"tool {name!r}: a name is 1 to 64 of a-z, A-Z, 0-9, _ and -, "
            f"and none of {', '.join(sorted(TOOL_CHOICES))}; give another with name=…"
        )


def _check_options(name: str, *, timeout: float | None, expires: float | None, attempts: int, cap: int) -> None:
    for label, value in (("timeout", timeout), ("expires", expires)):
        if value is not None and not _given.positive(value):
            raise InvalidTool(f"tool {name!r}: {label} is a positive number of seconds, or None; not {value!r}")
    for label, value in (("attempts", attempts), ("cap", cap)):
        if not _given.at_least(1, value):
            raise InvalidTool(f"tool {name!r}: {label} is a number of at least 1; not {value!r}")


def _check_kinds(name: str, *, effect: object, approval: object, needs: object) -> None:
    if effect not in get_args(EffectKind):
        raise InvalidTool(f"tool {name!r}: effect is one of {', '.join(map(repr, get_args(EffectKind)))}")
    if not isinstance(approval, bool) and not callable(approval):
        raise InvalidTool(f"tool {name!r}: approval is True, False, or a function of the tool's arguments")
    if isinstance(needs, str):
        raise InvalidTool(f"tool {name!r}: needs is a set of permissions: {{{needs!r}}}")
    if not isinstance(needs, Iterable):
        raise InvalidTool(f"tool {name!r}: needs is a set of permissions; not {needs!r}")


def _check_predicate(name: str, approval: Approval, arguments: tuple[str, ...]) -> None:
    """Refuse a predicate that would fail at each call."""
    if isinstance(approval, bool):
        return
    try:
        taken = inspect.signature(approval)
    except ValueError:  # a builtin may have none
        return
    try:
        taken.bind(**dict.fromkeys(arguments))
    except TypeError as error:
        names = ", ".join(arguments) or "there are none"
        raise InvalidTool(f"tool {name!r}: approval is asked with the tool's arguments by name: {names}") from error


def as_tool(item: Tool[Any] | Callable[..., Any]) -> Tool[Any]:
    """A tool, from a tool or a plain typed function."""
    if isinstance(item, Tool):
        return item
    if inspect.isroutine(item):
        return tool(item)
    raise InvalidTool(f"{item!r} is neither a tool nor a function")


def delegating(name: str, description: str, delegate: Delegate, effect: EffectKind = "none") -> Tool[Any]:
    """A tool that hands a prompt to another agent."""

    async def hand_over(prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]) -> str:
        raise AssertionError("a delegating tool has no body")

    return replace(tool(name=name, description=description, effect=effect)(hand_over), _delegate=delegate)


def toolset(items: tuple[Tool[Any], ...]) -> Mapping[str, Tool[Any]]:
    """The tools by name.

    Raises:
        InvalidTool: Two tools have one name.
    """
    named: dict[str, Tool[Any]] = {}
    for item in items:
        if item.name in named:
            raise InvalidTool(f"two tools are named {item.name!r}; give one of them another name")
        named[item.name] = item
    return named
