"""What a run is made of: its agent's parts, its place at work, and where its facts go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from weft._compaction import Compaction
from weft._limits import Limits
from weft._machine import Rules
from weft._moves import Ready, Record, value
from weft._output import Output
from weft._repair import Transcript
from weft._tool import Delegate, Tool
from weft._toolcall import digest_of
from weft.messages import Message, ToolCall, ToolResult, Usage
from weft.model import Model, Settings, ToolDefinition


class Slot:
    """One child's place at work in its pool; a root has none and works when it likes."""

    __slots__ = ("_delegate", "_used", "held")

    def __init__(self, delegate: Delegate | None = None, *, used: bool = False) -> None:
        self._delegate = delegate
        self._used = used
        self.held = False

    async def take(self) -> None:
        """Be at work; who had a slot before comes back ahead of new ones."""
        if self._delegate is None or self.held:
            return
        await self._delegate.enter(returning=self._used)
        self.held = self._used = True

    def hand_back(self) -> None:
        """Be at work no longer."""
        if self._delegate is not None and self.held:
            self.held = False
            self._delegate.leave()


def narrower(left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    """What both allow; None allows everything."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


Instructions: TypeAlias = Any
"""Text, or a function of `Context`, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """A step that is over, as a stop condition sees it."""

    step: int
    """Counts from 1 over the whole run."""
    message: Message
    """What the model said, with its calls."""
    results: tuple[ToolResult, ...]
    """The calls' results, in call order."""
    usage: Usage
    """Of the run so far."""


StopCondition: TypeAlias = Callable[[StepInfo], bool | Awaitable[bool]]


@value
class Setup:
    """What stays the same during a run."""

    model: Model
    instructions: Instructions
    tools: Mapping[str, Tool[Any]]
    definitions: tuple[ToolDefinition, ...]
    limits: Limits
    settings: Settings
    allow: frozenset[str] | None
    deps: Any
    output: Output | None
    stop_when: tuple[StopCondition, ...]
    compaction: Compaction | None
    """None where the run may not be made shorter, as a bare one."""
    rules: Rules
    fault: Exception | None
    """What the model failed with when it was to say who it is; its first call fails with it."""
    chain: tuple[object, ...]
    """The agents at work from the root down to this one, for the guard against cycles."""


class Recorder(Protocol):
    """Where a run's facts go."""

    thread: str | None
    durable: bool
    """False: an uncertain effect cannot be asked about, and a child is an ordinary sub-agent."""

    @property
    def held(self) -> tuple[str, ...]:
        """The threads whose turns wait for the run's bodies."""
        ...

    def record(self, record: Record) -> None:
        """Take the facts, if this is durable; `Recorded` is fed when they are."""
        ...

    def delegate(self, plan: Ready) -> None:
        """Start the child of a call, or go on with it; its result is fed as `CallFinished`."""
        ...

    async def make_room(self, *, overflow: bool) -> bool:
        """Make the conversation shorter before a model call, where it is too long; whether it was made.

        Args:
            overflow: The provider has said that it is too long.
        """
        ...

    def may_act(self) -> bool:
        """Whether a body may start now: False once the lease may be over."""
        ...

    def idempotency_key(self, call: str) -> str:
        """The call's key, the same across attempts."""
        ...

    def late(self, call: ToolCall, result: Callable[[], Coroutine[Any, Any, ToolResult]]) -> None:
        """A body has ended that nobody waits for any more; for the record, the model is not told."""
        ...


class BareRecorder:
    """A run without a session.

    Args:
        run: Its id.
        transcript: Its messages.
        key: Of a sub-agent's run, the key of the call that it answers. Asked again after a crash it mints other ids,
            so there a call is known by what it asks for, and the how-manieth of its like it is.
    """

    thread: str | None = None
    durable = False
    held: tuple[str, ...] = ()

    def __init__(self, run: str, transcript: Transcript, key: str | None = None) -> None:
        self.run = run
        self._transcript = transcript
        self._key = key

    def record(self, record: Record) -> None:
        raise AssertionError("nothing keeps a bare run's facts")

    def delegate(self, plan: Ready) -> None:
        raise AssertionError("a bare run has no child sessions")

    async def make_room(self, *, overflow: bool) -> bool:
        raise AssertionError("nothing keeps a bare run's summaries")

    def may_act(self) -> bool:
        return True

    def idempotency_key(self, call: str) -> str:
        if self._key is None:
            return digest_of(f"{self.run}\n{call}\n")
        return digest_of(f"{self._key}\n{self._what(call)}")

    def late(self, call: ToolCall, result: Callable[[], Coroutine[Any, Any, ToolResult]]) -> None:
        return None

    def _what(self, call: str) -> str:
        before: list[tuple[str, str]] = []
        for asked in (asked for message in self._transcript.messages for asked in message.calls):
            if asked.id == call:
                nth = before.count((asked.name, asked.arguments))
                return f"{asked.name}\n{nth}\n{asked.arguments}"
            before.append((asked.name, asked.arguments))
        return ""
