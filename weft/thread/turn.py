"""A turn as its users hold it: follow its events, wait for its result, find the turn that goes on from it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from functools import partial
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from weft._log import EventStream
from weft._moves import Ended, Outcome
from weft._result import MISSING, Result, raise_for, with_output
from weft.errors import Dropped, NoNext
from weft.events import (
    Compacted,
    Event,
    Parked,
    RunFinished,
    RunStarted,
    Steered,
    StepFinished,
    ToolFinished,
    TurnEnded,
    TurnStarted,
)
from weft.messages import ToolCall, ToolResult
from weft.thread import _approvals, _cancelling, _inbox, entries
from weft.thread._live import Live
from weft.thread._turnlog import TurnLog
from weft.thread._view import EndView, View
from weft.thread.watch import Watch

__all__ = ["Turn"]

OutputT = TypeVar("OutputT", default=str)

_Followed: TypeAlias = EndView | str


class Turn(Generic[OutputT]):
    """One turn of a session, run here, elsewhere, or still to come.

    Dropping a handle, leaving its events, or cancelling a wait never cancels the turn.
    """

    def __init__(
        self,
        live: Live,
        *,
        turn: str | None = None,
        item: str | None = None,
        after: str | None = None,
        log: TurnLog | None = None,
    ) -> None:
        self._live = live
        self._turn = turn
        self._item = item
        self._after = after
        self._log = log if log is not None or turn is None else live.log_of(turn)

    def __repr__(self) -> str:
        return f"Turn({self.id!r})"

    @property
    def id(self) -> str | None:
        """The turn's id; None while it has not begun (queued input, a parent that waits)."""
        if self._turn is None:
            view = self._live.view
            found = view.continued.get(self._after) if self._after is not None else None
            self._turn = found or (view.delivered.get(self._item) if self._item is not None else None)
        return self._turn or None

    @property
    def outcome(self) -> str | None:
        """answered, parked, stopped, failed, cancelled; None while it runs."""
        turn = self.id
        end = self._live.view.ended.get(turn) if turn is not None else None
        return None if end is None else end.outcome

    def events(self) -> AsyncIterable[Event]:
        """The turn's events from its start, live or late; may be ranged over again.

        Of a turn that another process runs: those that are durable.
        """
        return _Events(self)

    async def wait(self) -> Result[OutputT]:
        """The result, when the turn has ended or parked.

        Its `output` is of the type that the agent declares which has last opened the session here; text without one.

        Raises:
            RunFailed: The run failed; `LimitReached` and `ModelFailed` are its kinds.
            NoOutput: The answer is not the structured output that the agent declares.
            TurnCancelled: It was cancelled.
            WrongCall: A tool of the session waits here, for which its turn waits.
            Changed: The stored answer does not fit the output type that the agent has now.
            Dropped: The message was dropped from the queue.
            Closed: The store was left before the turn ended.
            StoreFailed: The store could not be read, where another process runs the turn: wait again. Or it could not
                be written, and the turn was given up here: `Session.resume` goes on with it.
        """
        turn, end = await self._end(await self._begun())
        view = self._live.view
        log = self._live.log_of(turn, self._log)
        result: Result[Any] = Result(
            text=end.text,
            usage=end.usage,
            stop=end.outcome,
            finish=end.stop,
            run=end.run,
            pending=_approvals.pending(view) if end.outcome == "parked" else (),
            _history=end.history,
            _output=end.text if end.outcome == "answered" else MISSING,
        )
        ended = Ended(outcome=_outcome(end), stop=end.stop, error=end.error)
        raise_for(ended, result, None if log is None else log.cause)
        return await with_output(result, self._live.output, MISSING if log is None else log.kept)

    async def cancel(self) -> bool:
        """Cancel it, wherever it runs, and also while it is parked or queued; durable when this returns.

        Queued input is dropped, and `wait` raises `Dropped`. A steer that has joined a turn is that turn. A turn that
        runs ends as cancelled, and `wait` raises `TurnCancelled`. A parked one stays parked, and the turn that `next`
        gives is the one that ends as cancelled. See `Session.cancel`.

        Returns:
            False where it has ended, or was cancelled before.

        Raises:
            StoreFailed: The store could not write. Nothing was written.
        """
        await self._live.refresh()
        turn = self.id
        if turn is None and self._item is not None:
            item = self._item
            if await self._live.command(lambda view: _inbox.drop(view, {item})) is not None:
                return True
            turn = self.id  # it was taken just now
        turn = turn or self._after
        return turn is not None and await _cancelling.cancel(self._live, turn)

    async def next(self) -> Turn[OutputT]:
        """The turn that goes on with the same run after a park, wherever it runs; waits for it to begin.

        Raises:
            NoNext: The turn ended otherwise.
            Closed: The store was left before.
        """
        turn, end = await self._end(await self._begun())
        if end.outcome != "parked":
            raise NoNext(f"turn {turn!r} ended as {end.outcome} and is not continued")
        following = await self._live.until(lambda view: view.continued.get(turn))
        return Turn(self._live, turn=following)

    async def _begun(self) -> str:
        def begun(view: View) -> str | None:
            turn = self.id
            if self._turn == "":
                return ""
            if turn is None and self._after is not None and view.waits(self._after):
                return self._after  # the child has parked again: so this session waits again
            return turn

        turn = await self._live.until(begun)
        if not turn:
            raise Dropped("the message was dropped from the queue before its turn began")
        return turn

    async def _end(self, turn: str) -> tuple[str, EndView]:
        """The end of this turn, or of the one that took it over."""
        while True:
            found: _Followed = await self._live.until(partial(self._look, turn))
            if isinstance(found, EndView):
                return turn, found
            turn = found

    def _look(self, turn: str, view: View) -> _Followed | None:
        end = view.ended.get(turn)
        if end is not None:
            return end
        log = self._live.log_of(turn, self._log)
        if log is not None and log.lost is not None and turn not in view.continued:
            raise log.lost
        return view.continued.get(turn)


def _outcome(end: EndView) -> Outcome:
    match end.outcome:
        case "answered" | "parked" | "stopped" | "cancelled":
            return end.outcome
        case _:
            return "failed"


class _Events:
    """A turn's events; each iteration begins at the turn's start."""

    def __init__(self, turn: Turn[Any]) -> None:
        self._turn = turn

    def __aiter__(self) -> AsyncIterator[Event]:
        return _EventIterator(self._turn)


class _EventIterator:
    """Follows the events that this process saw of a turn, or else its journal."""

    def __init__(self, turn: Turn[Any]) -> None:
        self._turn = turn
        self._source: AsyncIterator[Event] | None = None
        self._log: TurnLog | None = None
        """What this process saw of it, while that is what is told."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._source is None:
            name = await self._turn._begun()
            live = self._turn._live
            log = live.log_of(name, self._turn._log)
            self._log = log
            self._source = _Durable(live, name) if log is None else EventStream(log.events)
        try:
            return await self._source.__anext__()
        except StopAsyncIteration:
            log, self._log = self._log, None
            if log is None or log.taken is None:
                raise
            self._source = _Durable(self._turn._live, log.turn, after=log.taken)
            return await self._source.__anext__()


class _Durable:
    """The events of a turn as far as its journal tells them."""

    def __init__(self, live: Live, turn: str, *, after: int = 0) -> None:
        self._after = after
        """Entries before this position are only counted."""
        self._run = live.view.runs[turn]
        first = live.view.started_at.get(self._run, live.view.started_at[turn])
        self._watch = Watch(live, after=first)
        self._turn = turn
        self._reached = False
        self._prompted = False
        """The run has the message that began it."""
        self._step = 0
        self._seq = 0
        self._calls: tuple[ToolCall, ...] = ()
        self._ready: list[Event] = []
        self._over = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            entry = await self._watch.__anext__()
            told = self._events(entry)
            self._ready = told if entry.position >= self._after else []
        return self._ready.pop(0)

    def _events(self, entry: entries.Entry) -> list[Event]:
        """What an entry tells; the run's earlier turns are only counted."""
        body = entry.body
        if isinstance(body, entries.Said) and body.message.role == "assistant":
            self._step += 1
            self._calls = body.message.calls
        self._reached = self._reached or entry.id == self._turn
        if not self._reached:
            self._prompted = True
            return []
        if isinstance(body, entries.ToolsStarted):
            self._seq += len(body.calls)
        match body:
            case entries.TurnStarted():
                self._turn = entry.id  # or that of who took it over: a turn that ends is not looked beyond
                return [TurnStarted(turn=entry.id, run=self._run, cause=body.cause), RunStarted(run=self._run)]
            case entries.Said() if body.message.role == "assistant":
                return [StepFinished(run=self._run, step=self._step, message=body.message, usage=body.usage)]
            case entries.Said() if body.message.role == "user":
                return self._joined(body)
            case entries.Compaction():
                return [Compacted(run=self._run, before=body.before, after=body.after)]
            case entries.CallResult():
                self._seq += 1
                result = ToolResult(call=body.call, content=body.content, is_error=body.is_error, code=body.code)
                return [ToolFinished(run=self._run, seq=self._seq - 1, result=result)]
            case entries.TurnEnded() if body.turn == self._turn:
                self._over = True
                return self._ended(body)
            case _:
                return []

    def _joined(self, body: entries.Said) -> list[Event]:
        """A message that has come for the running run; not the one that began it, or a correction."""
        begins, self._prompted = not self._prompted, True
        return [] if begins or body.source is not None else [Steered(run=self._run, message=body.message)]

    def _ended(self, body: entries.TurnEnded) -> list[Event]:
        last = TurnEnded(turn=body.turn, run=self._run, outcome=body.outcome, error=body.error)
        end = self._watch.live.view.ended.get(body.turn)
        if body.outcome == "parked":
            calls = self._calls if end is None else end.history[-1].calls  # a branch parks at calls of an earlier run
            return [Parked(run=self._run, calls=tuple(c for c in calls if c.id in body.open)), last]
        if end is not None and body.outcome in ("answered", "stopped"):
            return [RunFinished(run=self._run, stop=body.outcome, text=end.text, usage=end.usage), last]
        return [last]
