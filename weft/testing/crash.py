"""Crash a scenario at every boundary, and see that what follows is right.

A scenario is an application's own main: it opens the store, finds or makes its session, resumes what is
there, sends with a key, decides, waits. It is run once to name the boundaries; then, for each, it is run
until there, *severed*, and run again with new objects until it is through; then everything is checked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from weft._agent import Agent
from weft._ports import Clock, SystemClock, forget, over_within, shielded, start_task
from weft._tool import Context, Tool
from weft._toolcall import call_user_code
from weft.errors import Closed, Locked, NotFound, Stale
from weft.messages import Usage
from weft.testing.clock import CountingIds, ManualClock
from weft.thread._codec import decode_lines
from weft.thread._view import View, fold
from weft.thread.entries import Decision, Entry, Header, Inbox, Said, ToolsStarted, TurnStarted
from weft.thread.memory import Memory, MemoryStore
from weft.thread.openstore import OpenStore
from weft.thread.store import Appended, Head, Index, LeaseChange

__all__ = ["CrashFailed", "CrashReport", "Kit", "Point", "Severed", "crash_points"]

DepsT = TypeVar("DepsT")
OutputT = TypeVar("OutputT")
Where: TypeAlias = Literal["before append", "after append", "inside batch", "before body", "after body"]


class Severed(BaseException):
    """Raised by every append of a store that was severed. Nothing contains it."""


class CrashFailed(AssertionError):
    """Raised when a promise did not hold after a crash; names the point."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A boundary: a thread, by the order of creation, and its n-th append or body."""

    thread: int
    nth: int
    where: Where

    def __str__(self) -> str:
        return f"{self.where} {self.nth} of thread {self.thread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """What was run. Printing it says how many points, and that all held."""

    points: tuple[Point, ...]
    """The boundaries of an undisturbed run."""
    runs: int
    """How many crashes, or chains of crashes, were played."""

    def __str__(self) -> str:
        return f"crash points: {self.runs} run, all held"


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long a run of the scenario may take."""

    seconds: float = 300.0
    clock: Clock = field(default_factory=SystemClock)

    async def ended(self, task: asyncio.Task[None]) -> bool:
        """Wait for a run; False where it goes on when its time is over."""
        return await over_within(task, self.seconds, self.clock)


_PATIENT = _Patience()


@dataclass(slots=True)
class _Queued:
    future: asyncio.Future[Any]
    point: tuple[int, int]
    work: Callable[[], object]


class CrashStore(MemoryStore):
    """A memory store that commits in batches, and can be cut before, inside and after each append or deletion."""

    def __init__(self, kit: Kit, owner: str) -> None:
        super().__init__(kit.data, owner=owner, ttl=30.0, clock=kit.clock, survives=True)
        self._kit = kit
        self._queue: list[_Queued] = []

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        return self._enqueue(thread, partial(self._create, thread, line, index, more))

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        return self._enqueue(thread, partial(self._append, thread, lines, expect, lease, index))

    async def delete(self, thread: str, expect: Head) -> None:
        await self._enqueue(thread, partial(self._delete, thread, expect))

    def _enqueue(self, thread: str, work: Callable[[], object]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._kit.severed:
            future.set_exception(Severed())
            return future
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        self._queue.append(_Queued(future, self._kit.nth_append(thread), work))
        return future

    def _flush(self) -> None:
        batch, self._queue = self._queue, []
        kit = self._kit
        if any(kit.cut_at(job.point, "inside batch") for job in batch[1:]):
            kit.sever()
        for job in batch:
            if kit.severed or kit.cut_at(job.point, "before append"):
                kit.sever()
                _refuse(job, Severed())
                continue
            self._apply(job)
            if kit.cut_at(job.point, "after append"):
                kit.sever()

    def _apply(self, job: _Queued) -> None:
        try:
            self._check_open()
            outcome = job.work()
        except (Closed, NotFound, Stale, Locked) as error:
            _refuse(job, error)
            return
        if self._kit.cut_at(job.point, "after append"):
            _refuse(job, Severed())
        elif not job.future.done():
            job.future.set_result(outcome)


def _refuse(job: _Queued, error: BaseException) -> None:
    if not job.future.done():
        job.future.set_exception(error)


@dataclass(slots=True)
class Kit:
    """One run of a scenario: opens its stores, watches its bodies."""

    data: Memory = field(default_factory=Memory)
    clock: ManualClock = field(default_factory=ManualClock)
    incarnation: int = 1
    """1 before the first crash, 2 after it, …"""
    cuts: tuple[Point, ...] = ()
    """Where each incarnation dies; the one after the last runs to its end."""
    severed: bool = False
    seen: dict[Point, None] = field(default_factory=dict)
    """The boundaries that this incarnation has reached."""
    bodies: Counter[str] = field(default_factory=Counter)
    """How often each body was entered, by its idempotency key, over all incarnations."""
    _opened: int = 0
    """How many stores were opened: each has ids, and an owner, of its own."""
    _order: dict[str, int] = field(default_factory=dict)
    _appends: Counter[int] = field(default_factory=Counter)
    _entered: Counter[int] = field(default_factory=Counter)
    _task: asyncio.Task[None] | None = None

    def open(self) -> OpenStore:
        """A store on the scenario's data."""
        self._opened += 1
        place = f"{self.incarnation}.{self._opened}"
        store = CrashStore(self, owner=f"crash/{place}")
        return OpenStore(store, clock=self.clock, ids=CountingIds(place), grace=0.0)

    def watch(self, agent: Agent[DepsT, OutputT]) -> Agent[DepsT, OutputT]:
        """The agent, with a boundary before and after each of its bodies."""
        return agent.replace(tools=[self._watched(tool) for tool in agent.tools])

    def _watched(self, tool: Tool[Any]) -> Tool[Any]:
        if tool._delegate is not None:
            return tool
        signature = replace(tool._signature, takes_context=True)
        return replace(tool, function=partial(_body, self, tool), _signature=signature)

    # -- boundaries

    def thread(self, name: str) -> int:
        """A thread's number, by the order in which it was first written."""
        return self._order.setdefault(name, len(self._order))

    def nth_append(self, thread: str) -> tuple[int, int]:
        """Count an append."""
        number = self.thread(thread)
        self._appends[number] += 1
        return number, self._appends[number]

    def nth_body(self, thread: str) -> tuple[int, int]:
        """Count a body."""
        number = self.thread(thread)
        self._entered[number] += 1
        return number, self._entered[number]

    def cut_at(self, place: tuple[int, int], where: Where) -> bool:
        """Note a boundary; whether it is the one to die at."""
        point = Point(*place, where)
        self.seen[point] = None
        return self.cuts[self.incarnation - 1 : self.incarnation] == (point,)

    def sever(self) -> None:
        """Die here: no later append is taken, and every task is cancelled."""
        if not self.severed:
            self.severed = True
            if self._task is not None:
                self._task.cancel()

    async def run(self, scenario: Scenario, patience: _Patience = _PATIENT) -> bool:
        """Run the scenario to its end; False where it was severed."""
        self.severed = False
        self._task = task = start_task(_as_coroutine(scenario(self)), name="weft crash scenario")
        ended = False
        try:
            ended = await patience.ended(task)
        finally:
            self._task = None
            if not ended:
                task.cancel()
                with shielded():
                    await patience.ended(task)
        if not ended:
            _not_ended(task, patience.seconds)
        if self.severed:
            forget(task)
            return False
        task.result()
        return True

    def restarted(self) -> Kit:
        """The next process: the same data, new objects."""
        return replace(self, incarnation=self.incarnation + 1, severed=False, seen={})

    # -- what is there at the end

    def entries(self) -> Mapping[str, tuple[Header, list[Entry]]]:
        """Every thread's header and entries, in order of creation."""
        found: dict[str, tuple[Header, list[Entry]]] = {}
        for name, thread in self.data._threads.items():
            header, *rest = decode_lines(thread.lines, name, 0)
            assert isinstance(header.body, Header)
            found[name] = (header.body, rest)
        return found

    def views(self) -> Mapping[str, View]:
        """Every thread's view."""
        return {name: fold(header, entries) for name, (header, entries) in self.entries().items()}


async def _body(kit: Kit, tool: Tool[Any], context: Context[Any], /, **arguments: Any) -> object:
    place = kit.nth_body(context.call.thread or "")
    if kit.cut_at(place, "before body"):
        kit.sever()
    await _alive(kit)
    kit.bodies[context.call.idempotency_key] += 1
    body = partial(tool.function, context) if tool._signature.takes_context else tool.function
    value = await call_user_code(partial(body, **arguments))
    if kit.cut_at(place, "after body"):
        kit.sever()
    await _alive(kit)
    return value


async def _alive(kit: Kit) -> None:
    """A body of a dead process goes no further."""
    if kit.severed:
        await asyncio.get_running_loop().create_future()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def _not_ended(task: asyncio.Task[None], seconds: float) -> None:
    """Say so; the cause says where the scenario waited."""
    told = f"the scenario had not ended after {seconds:g} seconds"
    if not task.done():
        raise CrashFailed(f"{told}, and goes on although it was cancelled")
    cause: BaseException | None
    try:
        cause = task.exception()
    except asyncio.CancelledError as error:
        cause = error
    raise CrashFailed(told) from cause


Scenario: TypeAlias = Callable[[Kit], Awaitable[None]]


async def crash_points(
    scenario: Scenario,
    check: Callable[[Kit], None] | None = None,
    *,
    crashes: int = 1,
    seconds: float = _PATIENT.seconds,
    clock: Clock = _PATIENT.clock,
) -> CrashReport:
    """Run the scenario once, then once for each boundary, severed there and run again.

    Args:
        scenario: Called with a `Kit`; it must go on with what it finds.
        check: Your own promises, checked after each run on top of the general ones: each call has one
            result, bodies ran at most once, what was reported as spent is equal, receipts are settled,
            decisions are spent once, accepted input is delivered once or dropped, nothing is leased.
        crashes: With 2, every boundary of each run after a crash is a crash as well: many more runs.
        seconds: How long one run of the scenario may take.
        clock: By which it may; the system's unless told, whatever `kit.clock` says.

    Raises:
        CrashFailed: A promise did not hold, or a run did not end; its note names the point.
    """
    first = Kit()
    patience = _Patience(seconds, clock)
    await first.run(scenario, patience)
    trial = _Trial(scenario, check, _spent(first), patience)
    trial.judge(first)
    runs = await trial.explore((), tuple(sorted(first.seen)), crashes)
    return CrashReport(points=tuple(sorted(first.seen)), runs=runs)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A scenario, what must hold after it, and what an undisturbed run of it spends."""

    scenario: Scenario
    check: Callable[[Kit], None] | None
    spent: Usage
    patience: _Patience

    def judge(self, kit: Kit) -> None:
        _check(kit, self.spent, crashes=kit.incarnation - 1)
        if self.check is not None:
            outcome: object = self.check(kit)
            if isinstance(outcome, Coroutine):
                outcome.close()
                raise TypeError("crash_points: check is a plain function; a coroutine is never run")

    async def explore(self, cuts: tuple[Point, ...], points: tuple[Point, ...], left: int) -> int:
        """Die at each of these points, after the crashes before; how many runs that were."""
        runs = 0
        for point in points:
            through = await self.play((*cuts, point))
            runs += 1
            if left > 1:
                runs += await self.explore((*cuts, point), tuple(sorted(through.seen)), left - 1)
        return runs

    async def play(self, cuts: tuple[Point, ...]) -> Kit:
        """Crash at each of these points in turn, then run to the end."""
        kit = Kit(cuts=cuts)
        try:
            for _ in cuts:
                if await kit.run(self.scenario, self.patience):
                    raise CrashFailed("a rerun did not reach its point")
                kit = kit.restarted()
            await kit.run(self.scenario, self.patience)
            self.judge(kit)
        except Exception as error:
            error.add_note(f"crash points: {', then '.join(str(point) for point in cuts)}")
            raise
        return kit


def _spent(kit: Kit) -> Usage:
    """By all sessions; what their children spend is in theirs."""
    roots = [view for view in kit.views().values() if view.header.parent is None]
    if not roots:
        raise CrashFailed("the scenario has made no thread; it opens its store with kit.open()")
    return sum((root.turns + root.summaries + root.delegated for root in roots), Usage())


def _check(kit: Kit, spent: Usage, *, crashes: int) -> None:
    for name, (header, entries) in kit.entries().items():
        view = fold(header, entries)
        _check_thread(kit, name, view)
        _check_decisions(name, entries)
        _check_input(name, entries)
        _check_starts(name, entries)
    total = _spent(kit)
    lost = crashes * len(kit.data._threads)  # each crash may cut one model call of each thread
    if replace(total, unknown=0) != replace(spent, unknown=0) or total.unknown > spent.unknown + lost:
        raise CrashFailed(f"spent {total}, without a crash {spent}")


def _check_thread(kit: Kit, name: str, view: View) -> None:
    if view.phase == "open":
        raise CrashFailed(f"thread {name!r} still runs a turn")
    if view.phase == "idle" and view.transcript.open:
        raise CrashFailed(f"thread {name!r} has calls without a result: {tuple(view.transcript.open)}")
    if view.phase == "idle" and view.unsettled:
        raise CrashFailed(f"thread {name!r} has receipts that are not settled: {tuple(view.unsettled)}")
    if view.queue:
        raise CrashFailed(f"thread {name!r} has accepted input that nobody took: {tuple(view.queue)}")
    thread = kit.data._threads[name]
    if thread.owner is not None:
        raise CrashFailed(f"thread {name!r} is still leased by {thread.owner!r}")


def _check_decisions(name: str, entries: Sequence[Entry]) -> None:
    spent = Counter(spend for e in entries if isinstance(e.body, TurnStarted) for spend in e.body.spends)
    twice = [decision for decision, times in spent.items() if times > 1]
    decided = Counter(e.body.request for e in entries if isinstance(e.body, Decision))
    if twice or any(times > 1 for times in decided.values()):
        raise CrashFailed(f"thread {name!r}: decisions are spent, or made, more than once")


def _check_input(name: str, entries: Sequence[Entry]) -> None:
    """What was accepted is delivered once or dropped, and a key brings one message."""
    said = [e.body for e in entries if isinstance(e.body, Said)]
    inbox = [e for e in entries if isinstance(e.body, Inbox)]
    accepted = {e.id: e.body for e in inbox if isinstance(e.body, Inbox) and e.body.state == "accepted"}
    dropped = [e.body.item for e in inbox if isinstance(e.body, Inbox) and e.body.state == "dropped"]
    fates = Counter([*(body.item for body in said if body.item is not None), *dropped])
    if fates != Counter(list(accepted)):
        raise CrashFailed(f"thread {name!r}: of accepted input {tuple(accepted)} became {dict(fates)}")
    first = [body.key for body in said if body.item is None]
    keys = Counter(key for key in (*first, *(body.key for body in accepted.values())) if key is not None)
    if any(times > 1 for times in keys.values()):
        raise CrashFailed(f"thread {name!r}: a key has brought a message more than once: {dict(keys)}")


def _check_starts(name: str, entries: Sequence[Entry]) -> None:
    """A `once` body is started again only where a person said so."""
    starts = Counter(
        call.call for e in entries if isinstance(e.body, ToolsStarted) for call in e.body.calls if call.effect == "once"
    )
    approvals = sum(isinstance(e.body, Decision) and e.body.outcome == "approve" for e in entries)
    again = sum(times - 1 for times in starts.values())
    if again > approvals:
        raise CrashFailed(f"thread {name!r}: a `once` body was started again without a person's word")
