"""Models around models: `retry` asks one again, `fallback` asks the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import count

from weft import _given
from weft._idle import Idle, silent
from weft._ports import Clock, SystemClock, chance
from weft.errors import WrongCall
from weft.model import Finish, Model, ModelError, ModelEvent, ModelInfo, ModelRequest
from weft.models.resolve import resolve

__all__ = ["FALLBACK", "TRANSIENT", "fallback", "retry"]

TRANSIENT = frozenset({"MODEL_CONNECTION", "MODEL_CUT", "MODEL_RATE_LIMIT", "MODEL_SERVER", "MODEL_TIMEOUT"})
"""Codes of failures that may pass: what `retry` acts on unless told otherwise.

The others say that the same would happen again (`MODEL_AUTH`, `MODEL_CONTEXT`, `MODEL_CONTRACT`, `MODEL_QUOTA`,
`MODEL_REQUEST`) or that somebody forbade it (`MODEL_DENIED`).
"""
FALLBACK = TRANSIENT | {"MODEL_QUOTA"}
"""Codes of failures that another model may not have: what `fallback` acts on unless told otherwise."""

_log = logging.getLogger("weft")


def retry(
    model: Model | str,
    *,
    attempts: int = 3,
    first: float = 0.5,
    longest: float = 30.0,
    codes: AbstractSet[str] = TRANSIENT,
    clock: Clock | None = None,
    jitter: Callable[[], float] = chance,
) -> Model:
    """A model that asks `model` again after a failure that may pass.

    Only a `ModelError` with one of the codes is answered by another attempt, and only before the failed attempt's first
    event: once anything of a reply was handed on, its failure is final. An exception of any other type is never
    retried, nor is a cancellation, which also ends a pause.

    Before attempt n + 1 it waits between 0 and `first * 2 ** (n - 1)` seconds, at most `longest`; where the server said
    how long to wait (`ModelError.retry_after`), exactly that long. If that is longer than `longest`, the error leaves
    at once. The last attempt's error leaves as itself, with a note that says which attempt it was.

    A vendor's SDK retries as well, underneath; see docs/retries.md.

    Args:
        model: What is asked; a string is looked up at its first use.
        attempts: The most calls in all, the first one included.
        first: Seconds; the most to wait after the first failure. Doubles with each further one.
        longest: Seconds; the most to wait at once.
        codes: The codes of the failures to retry.
        clock: Where pauses are spent, and the idle limit of each attempt is kept; absent: the system's.
        jitter: The share of a pause that is waited, from 0 to 1; absent: random.

    Raises:
        WrongCall: `attempts` is below 1, not `0 <= first <= longest < inf`, a model is none, or `codes` is one string.
    """
    if not _given.at_least(1, attempts):
        raise WrongCall(f"retry(attempts=…) is a number of at least 1; not {attempts!r}")
    if not (_given.at_least(0, first) and _given.at_least(first, longest) and longest < float("inf")):
        raise WrongCall("retry(first=…, longest=…) are seconds, and 0 <= first <= longest")
    pauses = _Pauses(attempts=attempts, first=first, longest=longest, codes=_set_of(codes), jitter=jitter)
    return _Retry(_model(model), pauses, clock or SystemClock())


def fallback(*models: Model | str, codes: AbstractSet[str] = FALLBACK, clock: Clock | None = None) -> Model:
    """A model that asks the next of `models` where one fails before its first event.

    Only a `ModelError` with one of the codes leads to the next model: not a wrong key, a request that does not fit, or
    a refusal by `WEFT_MODEL_REQUESTS=deny`, unless told. Once anything of a reply was handed on, its failure is final.
    Every call begins with the first model again.

    `info()` is that of the first, with the smallest context window that is known, and with `output="schema"` only if
    all say so. Where another than the first answered, its `Finish.by` says which. The error that leaves is that of the
    model asked last, with a note for each model that failed before it.

    Args:
        models: In the order in which they are asked; a string is looked up at its first use.
        codes: The codes of the failures after which the next model is asked.
        clock: Keeps the idle limit of each attempt; absent: the system's.

    Raises:
        WrongCall: There is no model, one is none, or `codes` is one string.
    """
    if not models:
        raise WrongCall("fallback(…) needs at least one model")
    return _Fallback(tuple(_model(model) for model in models), _set_of(codes), clock or SystemClock())


def _set_of(codes: Iterable[str]) -> frozenset[str]:
    if isinstance(codes, str):  # its letters are no codes
        raise WrongCall(f"codes=… is a set of codes: {{{codes!r}}}")
    return frozenset(codes)


class _Pauses:
    """When to try again, and after how long."""

    __slots__ = ("_codes", "_first", "_jitter", "_longest", "attempts")

    def __init__(
        self, *, attempts: int, first: float, longest: float, codes: frozenset[str], jitter: Callable[[], float]
    ) -> None:
        self.attempts = attempts
        self._first = first
        self._longest = longest
        self._codes = codes
        self._jitter = jitter

    def after(self, error: ModelError, attempt: int) -> float | None:
        """Seconds to wait after this attempt; None if it was the last."""
        if attempt >= self.attempts or error.code not in self._codes:
            return None
        if error.retry_after is None:
            return min(self._first * 2.0 ** min(attempt - 1, 64), self._longest) * self._jitter()
        return error.retry_after if error.retry_after <= self._longest else None


class _Retry:
    __slots__ = ("_clock", "_model", "_pauses")

    def __init__(self, model: Model, pauses: _Pauses, clock: Clock) -> None:
        self._model = model
        self._pauses = pauses
        self._clock = clock

    def __repr__(self) -> str:
        return f"retry({self._model!r}, attempts={self._pauses.attempts})"

    def info(self) -> ModelInfo:
        """That of the model inside."""
        return replace(self._model.info(), own_idle=True)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply of the first attempt that begins one."""
        for attempt in count(1):
            events, begun = _reply(self._model, request, self._clock), False
            try:
                async for event in events:
                    begun = True
                    yield event
                return
            except ModelError as error:
                pause = None if begun else self._pauses.after(error, attempt)
                if pause is None:
                    _note(error, f"retry: attempt {attempt} of at most {self._pauses.attempts}")
                    raise
                _log.info("a model call failed (%s); asking again in %.3g seconds", error.code, pause)
            finally:
                await events.aclose()
            await self._clock.sleep(pause)


class _Fallback:
    __slots__ = ("_clock", "_codes", "_models")

    def __init__(self, models: tuple[Model, ...], codes: frozenset[str], clock: Clock) -> None:
        self._models = models
        self._codes = codes
        self._clock = clock

    def __repr__(self) -> str:
        return f"fallback({', '.join(map(repr, self._models))})"

    def info(self) -> ModelInfo:
        """Who is asked first, and what all of them can do."""
        infos = [model.info() for model in self._models]
        windows = [info.context_window for info in infos if info.context_window is not None]
        schema = all(info.output == "schema" for info in infos)
        return replace(
            infos[0],
            context_window=min(windows, default=None),
            output="schema" if schema else "tool",
            own_idle=True,
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply of the first model that begins one."""
        failed: list[str] = []
        for place, model in enumerate(self._models):
            events, begun = _reply(model, request, self._clock), False
            try:
                async for event in events:
                    begun = True
                    yield _signed(event, model) if place else event
                return
            except ModelError as error:
                if begun or place == len(self._models) - 1 or error.code not in self._codes:
                    _note(error, *failed)
                    raise
                failed.append(f"fallback: before this, {_name(model)} failed with {error.code}: {error}")
                _log.info("%s failed (%s); asking %s", _name(model), error.code, _name(self._models[place + 1]))
            finally:
                await events.aclose()


def _signed(event: ModelEvent, model: Model) -> ModelEvent:
    """The event; a finish says who answered, unless it does so already."""
    return replace(event, by=model.info()) if isinstance(event, Finish) and event.by is None else event


def _name(model: Model) -> str:
    info = model.info()
    return f"{info.provider}:{info.model}"


def _note(error: ModelError, *notes: str) -> None:
    """Add the notes, each once: a model may raise one object again and again."""
    for note in notes:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


async def _reply(model: Model, request: ModelRequest, clock: Clock) -> AsyncGenerator[ModelEvent]:
    """The model's events. Its stream is closed in this task; one without any event is a failure like another.

    The idle limit is kept here, so that a silent attempt is a failure like another too.
    """
    settings = request.settings
    seconds = settings.idle if settings.stream and not model.info().own_idle else None
    stream, idle = model.stream(request), Idle(clock)
    empty = True
    try:
        while True:
            idle.start(seconds, asyncio.current_task())
            was_silent = False
            try:
                try:
                    event = await anext(stream)
                finally:
                    was_silent = idle.stop()
            except StopAsyncIteration:
                break
            except asyncio.CancelledError:
                if not was_silent:
                    raise
                raise silent(seconds) from None
            empty = False
            yield event
    finally:  # an iterator that cannot be closed is left alone
        idle.close()
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    if empty:
        raise ModelError("the model's stream ended before its first event", code="MODEL_CUT")


def _model(model: Model | str) -> Model:
    if isinstance(model, str):
        return _Named(model)
    if isinstance(model, type) or not hasattr(model, "stream"):
        raise WrongCall(f"what stands around models takes models, or strings that name them, one by one; not {model!r}")
    return model


class _Named:
    """A model that is looked up at its first use."""

    __slots__ = ("_found", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: Model | None = None

    def __repr__(self) -> str:
        return repr(self._name)

    def info(self) -> ModelInfo:
        """Who answers."""
        return self._model().info()

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The reply as it comes."""
        return self._model().stream(request)

    def _model(self) -> Model:
        if self._found is None:
            self._found = resolve(self._name)
        return self._found
