"""A scripted model: it answers from a list, by position, and checks every request on the way."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, TypeAlias

from weft.messages import Usage
from weft.model import Finish, ModelError, ModelEvent, ModelInfo, ModelRequest, ReasoningChunk, TextChunk, WholeCall
from weft.testing.wire import WireCheck, WireError

__all__ = [
    "Call",
    "Fail",
    "Reply",
    "Script",
    "Step",
    "call",
    "calls",
    "cut",
    "fail",
    "hold",
    "raw",
    "refuse",
    "reply",
    "say",
    "stream",
    "think",
]

_SHOWN = 500
"""Characters of a message in an error."""

SPENT = Usage(input_tokens=10, output_tokens=5)
"""What a reply reports unless told otherwise."""

Answer: TypeAlias = "str | Reply | Call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply of the model, as `say` and its like make it."""

    parts: tuple[ReplyPart, ...] = ()

    def then_fail(self, error: Exception, *, times: int | None = 1) -> Fail:
        """Give all of it but its finish, then fail, `times` times (None: for ever); takes no position of its own."""
        return replace(fail(error, times=times), parts=self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the model asks for. Used alone, it is a reply of one call."""

    tool: str
    arguments: str
    provider_id: str | None = None

    def then_fail(self, error: Exception, *, times: int | None = 1) -> Fail:
        """Give the call, then fail, as `Reply.then_fail` does."""
        return calls(self).then_fail(error, times=times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """A failure before the reply that follows it."""

    error: Exception
    times: int | None = 1
    parts: tuple[ReplyPart, ...] = ()
    """What is given before it, but for a finish."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a function makes of the request takes its place."""

    make: Callable[[ModelRequest], Answer | Awaitable[Answer]]


ReplyPart: TypeAlias = ModelEvent | Call | Made | asyncio.Event
"""In order: an event is given, a call is given as a `WholeCall`, an `asyncio.Event` is waited for."""
Step: TypeAlias = Reply | Call | Fail


def say(text: str, *, usage: Usage | None = SPENT) -> Reply:
    """A reply of one text. `usage=None` is a provider that does not report it."""
    _check("say(…)", "a text", text, str)
    return Reply(parts=(*_text(text), Finish(reason="stop", usage=usage)))


def call(
    tool: str, /, args: Mapping[str, Any] | str | None = None, *, call_id: str | None = None, **kwargs: Any
) -> Call:
    """A call of a tool, as a reply of its own or inside `calls`.

    Args:
        tool: The tool's name.
        args: The arguments, as a dict or as raw text (which may be wrong on purpose); one that is called `args` is
            given in the dict.
        call_id: The provider's id; unique unless told.
        kwargs: The arguments, by name.

    Raises:
        TypeError: There is a raw text, and arguments beside it.
    """
    _check("call(…)", "a tool's name", tool, str)
    _check(f"call({tool!r}, …)", "a dict of arguments, or a raw text", {} if args is None else args, Mapping | str)
    if isinstance(args, str) and kwargs:
        raise TypeError(f"call({tool!r}, …) takes a raw text or arguments, not both")
    arguments = args if isinstance(args, str) else json.dumps({**(args or {}), **kwargs})
    return Call(tool=tool, arguments=arguments, provider_id=call_id)


def calls(*wanted: Call, text: str = "", usage: Usage | None = SPENT) -> Reply:
    """A reply with several calls, and a text before them if given."""
    _check_calls("calls(…)", text, wanted)
    return Reply(parts=(*_text(text), *wanted, Finish(reason="tool_calls", usage=usage)))


def think(text: str, then: Reply | Call, *, block: str | None = None) -> Reply:
    """A reply that starts with reasoning.

    Args:
        text: The reasoning; may be empty where there is a block.
        then: The reply that follows it.
        block: The provider's own block, as JSON text; every later request must hold it byte for byte.

    Raises:
        ValueError: The block is no JSON text, or there is neither a text nor a block.
    """
    if block is not None:
        json.loads(block)
    elif not text:
        raise ValueError("think(…) needs a text, or a block")
    return Reply(parts=(ReasoningChunk(text=text, block=block), *_as_reply(then).parts))


def cut(text: str = "", *wanted: Call, usage: Usage | None = SPENT) -> Reply:
    """A reply that the output limit ended: a text, and the calls that it had come to."""
    _check_calls("cut(…)", text, wanted)
    return Reply(parts=(*_text(text), *wanted, Finish(reason="length", usage=usage)))


def refuse(text: str, *, usage: Usage | None = SPENT) -> Reply:
    """A reply in which the model refuses, in this text."""
    _check("refuse(…)", "a text", text, str)
    return Reply(parts=(*_text(text), Finish(reason="refusal", usage=usage)))


def stream(*chunks: str | TextChunk | ReasoningChunk, usage: Usage | None = SPENT) -> Reply:
    """A reply in exactly these pieces; a string is a `TextChunk`."""
    for chunk in chunks:
        _check("stream(…)", "texts and chunks", chunk, str | TextChunk | ReasoningChunk)
    pieces = (TextChunk(text=chunk) if isinstance(chunk, str) else chunk for chunk in chunks)
    return Reply(parts=(*pieces, Finish(reason="stop", usage=usage)))


def raw(*events: ModelEvent) -> Reply:
    """Exactly these events, which may be wrong on purpose: no finish, two of them, a call without a name.

    A wrong one leaves no message, so it stays at its position: no reply after it is reached.
    """
    steps: list[object] = [event for event in events if _is_step(event)]
    if steps:
        raise TypeError(f"raw(…) takes model events; this is {steps[0]!r}, a step of its own")
    return Reply(parts=events)


def reply(make: Callable[[ModelRequest], Answer | Awaitable[Answer]]) -> Reply:
    """What a function, sync or async, makes of the request: a text, a call, or a reply.

    It is asked each time, so it depends on nothing but the request: a call made again gets the same reply.
    What it raises fails the model call.
    """
    _check("reply(…)", "a function of the request", make, Callable)
    return Reply(parts=(Made(make),))


def fail(error: Exception, *, times: int | None = 1) -> Fail:
    """Fail `times` times (None: for ever) at the position of the next reply; takes no position of its own."""
    _check("fail(…)", "an exception", error, Exception)
    return Fail(error=error, times=times)


def hold(event: asyncio.Event, then: Reply | Call) -> Reply:
    """Wait for the event, then give the reply."""
    _check("hold(…)", "an asyncio.Event", event, asyncio.Event)
    return Reply(parts=(event, *_as_reply(then).parts))


def _is_step(given: object) -> bool:
    return isinstance(given, Reply | Call | Fail)


def _check(what: str, wanted: str, given: object, kind: Any) -> None:
    if not isinstance(given, kind):
        raise TypeError(f"{what} takes {wanted}; this is {given!r}")


def _check_calls(what: str, text: str, wanted: tuple[Call, ...]) -> None:
    _check(what, "a text", text, str)
    for one in wanted:
        _check(what, "calls, one by one,", one, Call)


def _text(text: str) -> tuple[TextChunk, ...]:
    return (TextChunk(text=text),) if text else ()


def _as_reply(step: object) -> Reply:
    if isinstance(step, Call):
        return calls(step)
    if isinstance(step, Reply):
        return step
    raise TypeError(f"a reply is made by say(…), call(…) and their like; this is {step!r}")


SUMMARY = say("A summary of what was said so far.")


@dataclass(slots=True)
class _Place:
    """A position: what fails before it, and its reply."""

    failures: list[Fail] = field(default_factory=list)
    reply: Reply | None = None
    given: bool = False
    failed: bool = False

    @property
    def left(self) -> bool:
        """Whether it was not asked for: its reply, or the failures after the last one."""
        return not (self.failed if self.reply is None else self.given)


class Script:
    """A model that answers from a list.

    In a thread it answers by position, the number of assistant messages before the request: a request made
    again after a crash, from a new process, or by any number of children of one agent gets the same reply.
    Requests without a thread are answered in order. Every request is recorded, and checked as a provider
    would check it.

    Args:
        steps: The replies, in order, and the failures before them.
        summary: What a request without a position is answered: one for a summary, which stands nowhere.
        output: How it says that it gives structured output: by a JSON schema, or by a tool.
        context_window: In tokens.
        provider: The provider that it says it is.
        model: The model that it says it is; with another name, two scripts are two models.

    Raises:
        TypeError: A step is none.
    """

    def __init__(
        self,
        *steps: Step,
        summary: Reply | Call = SUMMARY,
        output: Literal["schema", "tool"] = "schema",
        context_window: int | None = None,
        provider: str = "script",
        model: str = "script",
    ) -> None:
        self.requests: list[ModelRequest] = []
        """Every request, in order."""
        self._info = ModelInfo(provider=provider, model=model, context_window=context_window, output=output)
        self._places = _places(steps)
        self._summary = _Place(reply=_as_reply(summary))
        self._bare = 0
        self._returned: list[int] = []
        self._refused: Exception | None = None
        self._provider_ids = count(1)
        self._wire = WireCheck()

    def info(self) -> ModelInfo:
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        try:
            self._wire.check(request)
        except WireError as error:
            self._refuse(error)
            raise
        bare = request.position is not None and request.position.thread is None
        taken = self._take() if bare else None
        given: list[ModelEvent] = []
        whole = False
        try:
            place = self._place(request, taken)
            failure = _next_failure(place)
            parts = deque(self._reply(place, request).parts if failure is None else failure.parts)
            while parts:
                event = parts.popleft()
                if isinstance(event, Call | Made | asyncio.Event):
                    await self._unfold(event, parts, request)
                    continue
                if failure is None:
                    whole = isinstance(event, Finish) and not whole
                    place.given = place.given or not parts or _ends(event)
                    given.append(event)
                    if whole:
                        self._wire.gave(request, given)
                elif isinstance(event, Finish):
                    continue
                yield event
            if failure is not None:
                place.failed = True
                raise failure.error
            place.given = True
        finally:
            if taken is not None and not whole:
                heappush(self._returned, taken)

    def assert_done(self) -> None:
        """Every reply was given at least once, and no request refused; a summary need not be asked for.

        Raises:
            WireError: A provider would have refused a request, although nobody may have been told.
            AssertionError: Some were not given, or one more was asked for; says which.
        """
        if isinstance(self._refused, WireError):
            raise self._refused
        if self._refused is not None:
            raise AssertionError(str(self._refused))
        left = [index for index, place in enumerate(self._places) if place.left]
        if left:
            raise AssertionError(f"{len(left)} of the script's replies were not asked for, first that at {left[0]}")

    # -- which reply

    def _take(self) -> int:
        """The next position of a request without a thread: one that was cut short comes again."""
        if self._returned:
            return heappop(self._returned)
        self._bare += 1
        return self._bare - 1

    def _place(self, request: ModelRequest, taken: int | None) -> _Place:
        if request.position is None:
            return self._summary
        index = request.position.index if taken is None else taken
        if index >= len(self._places):
            raise self._refuse(self._past_the_end(request))
        return self._places[index]

    def _reply(self, place: _Place, request: ModelRequest) -> Reply:
        if place.reply is None:
            raise self._refuse(self._past_the_end(request))
        return place.reply

    def _refuse(self, error: Exception) -> Exception:
        """Whoever asked may contain it: a sub-agent that fails is a result for its parent."""
        self._refused = self._refused or error
        return error

    def _past_the_end(self, request: ModelRequest) -> ModelError:
        replies = self._count()
        last = repr(request.messages[-1]) if len(request.messages) else "none"
        shown = last if len(last) <= _SHOWN else f"{last[:_SHOWN]}…"
        told = f"the script has {replies} and was asked for one more; the last message was {shown}"
        return ModelError(told, code="MODEL_SCRIPT")

    def _count(self) -> str:
        replies = sum(place.reply is not None for place in self._places)
        return "1 reply" if replies == 1 else f"{replies} replies"

    def __repr__(self) -> str:
        return f"Script({self._count()})"

    # -- what it gives

    async def _unfold(self, part: Call | Made | asyncio.Event, parts: deque[ReplyPart], request: ModelRequest) -> None:
        """Put the events of this part before the others, or wait for it."""
        if isinstance(part, Call):
            parts.appendleft(WholeCall(name=part.tool, arguments=part.arguments, provider_id=self._provider_id(part)))
        elif isinstance(part, Made):
            parts.extendleft(reversed((await _make(part, request)).parts))
        else:
            await part.wait()

    def _provider_id(self, wanted: Call) -> str:
        return f"call_{next(self._provider_ids)}" if wanted.provider_id is None else wanted.provider_id


async def _make(part: Made, request: ModelRequest) -> Reply:
    made = part.make(request)
    answer = await made if inspect.isawaitable(made) else made
    return say(answer) if isinstance(answer, str) else _as_reply(answer)


def _ends(event: ModelEvent) -> bool:
    """Whether no run reads on after it: a finish, or a call that breaks the seam's contract."""
    return isinstance(event, Finish) or (isinstance(event, WholeCall) and not event.name)


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
