"""A scripted model: it answers from a list, by position, and checks every request on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeAlias

from weft.messages import Usage
from weft.model import Finish, ModelError, ModelEvent, ModelInfo, ModelRequest, TextChunk, WholeCall
from weft.testing.wire import WireCheck

__all__ = ["Fail", "Reply", "Script", "Step", "call", "calls", "fail", "hold", "say"]

SPENT = Usage(input_tokens=10, output_tokens=5)
"""What a reply reports unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One whole reply of the model."""

    events: tuple[ModelEvent, ...] = ()
    wanted: tuple[Call, ...] = ()
    finish: Finish
    held: tuple[asyncio.Event, ...] = ()

    def then_fail(self, error: Exception, *, times: int | None = 1) -> Fail:
        """Give the text, then fail, `times` times (None: for ever); takes no position of its own."""
        return Fail(error=error, times=times, events=self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the model asks for. Used alone, it is a reply of one call."""

    tool: str
    arguments: str
    provider_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """A failure before the reply that follows it."""

    error: Exception
    times: int | None = 1
    events: tuple[ModelEvent, ...] = ()


Step: TypeAlias = Reply | Call | Fail


def say(text: str, *, usage: Usage | None = SPENT) -> Reply:
    """A reply of one text. `usage=None` is a provider that does not report it."""
    events = (TextChunk(text=text),) if text else ()
    return Reply(events=events, finish=Finish(reason="stop", usage=usage))


def call(tool: str, /, args: dict[str, Any] | str | None = None, *, call_id: str | None = None, **kwargs: Any) -> Call:
    """A call of a tool, as a reply of its own or inside `calls`.

    Args:
        tool: The tool's name.
        args: The arguments, as a dict or as raw text (which may be wrong on purpose).
        call_id: The provider's id; unique unless told.
        kwargs: The arguments, by name.
    """
    arguments = args if isinstance(args, str) else json.dumps({**(args or {}), **kwargs})
    return Call(tool=tool, arguments=arguments, provider_id=call_id)


def calls(*wanted: Call, text: str = "", usage: Usage | None = SPENT) -> Reply:
    """A reply with several calls, and a text before them if given."""
    events = (TextChunk(text=text),) if text else ()
    return Reply(events=events, wanted=wanted, finish=Finish(reason="tool_calls", usage=usage))


def fail(error: Exception, *, times: int | None = 1) -> Fail:
    """Fail `times` times (None: for ever) at the position of the next reply; takes no position of its own."""
    return Fail(error=error, times=times)


def hold(event: asyncio.Event, then: Reply | Call) -> Reply:
    """Wait for the event, then give the reply."""
    reply = _as_reply(then)
    return replace(reply, held=(event, *reply.held))


def _as_reply(step: Reply | Call) -> Reply:
    return calls(step) if isinstance(step, Call) else step


@dataclass(slots=True)
class _Place:
    """A position: what fails before it, and its reply."""

    failures: list[Fail] = field(default_factory=list)
    reply: Reply | None = None
    given: bool = False


class Script:
    """A model that answers from a list.

    In a thread it answers by position, the number of assistant messages before the request: a request made
    again after a crash, from a new process, or by any number of children of one agent gets the same reply.
    Requests without a thread are answered in order. Every request is recorded, and checked as a provider
    would check it.
    """

    def __init__(self, *steps: Step) -> None:
        self.requests: list[ModelRequest] = []
        """Every request, in order."""
        self._places = _places(steps)
        self._bare = 0
        self._returned: list[int] = []
        self._provider_ids = count(1)
        self._wire = WireCheck()

    def info(self) -> ModelInfo:
        return ModelInfo(provider="script", model="script")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        self._wire.check(request)
        bare = request.position.thread is None
        index = self._take() if bare else request.position.index
        whole = False
        try:
            async for event in self._reply(self._place(index, request), request):
                whole = isinstance(event, Finish)
                yield event
        finally:
            if bare and not whole:
                heappush(self._returned, index)

    def _take(self) -> int:
        """The next position of a request without a thread: one that was cut short comes again."""
        if self._returned:
            return heappop(self._returned)
        self._bare += 1
        return self._bare - 1

    async def _reply(self, place: _Place, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        failure = _next_failure(place)
        if failure is not None:
            for event in failure.events:
                yield event
            raise failure.error
        reply = place.reply
        if reply is None:
            raise ModelError(self._past_the_end(request), code="MODEL_SCRIPT")
        for held in reply.held:
            await held.wait()
        for event in reply.events:
            yield event
        for wanted in reply.wanted:
            provider_id = wanted.provider_id
            if provider_id is None:
                provider_id = f"call_{next(self._provider_ids)}"
            yield WholeCall(name=wanted.tool, arguments=wanted.arguments, provider_id=provider_id)
        place.given = True
        yield reply.finish

    def assert_done(self) -> None:
        """Every reply was given at least once.

        Raises:
            AssertionError: Some were not; names the first.
        """
        left = [index for index, place in enumerate(self._places) if place.reply is not None and not place.given]
        if left:
            raise AssertionError(f"{len(left)} of the script's replies were not asked for, first that at {left[0]}")

    def _place(self, index: int, request: ModelRequest) -> _Place:
        if index >= len(self._places):
            raise ModelError(self._past_the_end(request), code="MODEL_SCRIPT")
        return self._places[index]

    def _past_the_end(self, request: ModelRequest) -> str:
        replies = sum(place.reply is not None for place in self._places)
        last = request.messages[-1] if len(request.messages) else None
        return f"the script has {replies} replies and was asked for one more; the last message was {last!r}"


def _places(steps: tuple[Step, ...]) -> list[_Place]:
    places = [_Place()]
    for step in steps:
        if isinstance(step, Fail):
            places[-1].failures.append(step)
        else:
            places[-1].reply = _as_reply(step)
            places.append(_Place())
    if not places[-1].failures:
        places.pop()
    return places


def _next_failure(place: _Place) -> Fail | None:
    while place.failures:
        first = place.failures[0]
        if first.times is None:
            return first
        if first.times > 0:
            place.failures[0] = replace(first, times=first.times - 1)
            return first
        place.failures.pop(0)
    return None
