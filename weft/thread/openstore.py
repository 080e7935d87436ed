"""Opening a store of sessions, and what can be done with it while it is open."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from weakref import WeakValueDictionary

from weft._agent import Agent, check_allowed, narrower, permissions
from weft._contain import contain, contain_call
from weft._ports import Clock, Ids, SystemClock, SystemIds
from weft._toolcall import GRACE as BODY_GRACE
from weft.errors import Busy, Closed, InvalidDecision, Locked, NotFound, NotPending, WeftError, WrongCall
from weft.messages import clean_text
from weft.thread import _approvals, _cancelling, entries
from weft.thread._actor import Actor
from weft.thread._codec import decode_line
from weft.thread._host import Host
from weft.thread._live import Live
from weft.thread._runner import TurnRunner
from weft.thread._view import thread_of
from weft.thread.entries import Entry, Header
from weft.thread.memory import Memory, MemoryStore
from weft.thread.session import Session
from weft.thread.sqlite import SQLiteStore, Synchronous
from weft.thread.store import Head, Listed, Query, RenewsAlone, Store
from weft.thread.turn import Turn
from weft.thread.watch import Watch

__all__ = ["OpenStore", "Root", "open_store"]

DepsT = TypeVar("DepsT")
OutputT = TypeVar("OutputT")

GRACE = 25.0
"""Seconds that leaving waits for what runs."""
PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """An agent with its deps, for going on with what others left.

    `deps` is a value, or a function of the session's header.
    """

    agent: Agent[Any, Any]
    deps: Any = field(default=None)

    def deps_for(self, header: Header) -> Any:
        """The deps for one session."""
        return self.deps(header) if callable(self.deps) else self.deps


class OpenStore:
    """An open store: `create`, `open`, `list`, `watch`, `decide`, `delete`, `recover`.

    Entering starts a host task that owns every turn; leaving hands off: what runs gets up to `grace`
    seconds, the rest stays as it is for whoever opens the store next. An exception of the body leaves
    unchanged, and waits for nothing. On `memory:` nobody can take over, so leaving cancels what runs.
    """

    def __init__(self, store: Store, *, clock: Clock, ids: Ids, grace: float = GRACE) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self.reports: list[tuple[str, Exception]] = []
        """What could not be gone on with and was left: thread and reason."""
        self._grace = grace
        self._host = Host()
        self._lives: WeakValueDictionary[str, Live] = WeakValueDictionary()
        self._runners: set[TurnRunner] = set()
        self._observers: list[Callable[[str, Entry], None]] = []
        self._claims = 0
        self._idle: asyncio.Future[None] | None = None
        self._open = False

    # -- opening and leaving

    async def __aenter__(self) -> Self:
        if isinstance(self.store, RenewsAlone):
            self.store.on_renewal(self._renewed)
        await self.store.start()
        await self._host.start()
        self._open = True
        self._host.spawn(self._renew(), name="weft leases")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if self._runners or self._claims:
                await self._rest(0.0 if kind is not None else self._grace)
            if self._runners and not self.store.survives:
                await self._cancel_running()
        finally:
            await self._end()

    async def _end(self) -> None:
        await self._host.leave()
        try:
            await self._hand_off()
        finally:
            for live in tuple(self._lives.values()):
                live.close(Closed())
            await self.store.stop()

    async def _rest(self, seconds: float) -> None:
        """Return when nothing runs, or the time is over."""
        if seconds <= 0:
            return
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = idle

        def over() -> None:
            if not idle.done():
                idle.set_result(None)

        timer = self.clock.deadline(seconds, over)
        try:
            await idle
        finally:
            timer.cancel()
            self._idle = None

    async def _cancel_running(self) -> None:
        for runner in tuple(self._runners):
            if runner.loop is not None:
                runner.loop.interrupt("cancel")
        await self._rest(2 * BODY_GRACE)  # theirs, and time to write

    async def _hand_off(self) -> None:
        """Expire our leases, so that anyone may go on at once."""
        for live in tuple(self._lives.values()):
            if live.quiet:
                await contain("turn", live.hand_off())

    async def _renew(self) -> None:
        """Extend the leases of what runs here, every third of their time."""
        every = self.store.ttl / 3
        while True:
            await self.clock.sleep(every)
            held = [(live.id, live.generation) for live in self._lives.values() if live.generation is not None]
            sent = self.clock.monotonic()
            outcome = await _contained_renewal(self.store, held)
            if outcome is not None:  # a failed renewal kills nothing; the time running out does
                self._renewed(held, sent, outcome)

    def _renewed(self, held: Sequence[tuple[str, int]], sent: float, kept: Mapping[str, int]) -> None:
        """What a renewal came to that was sent at this monotonic time, asked for here or made by the store alone."""
        for thread, generation in held:
            live = self._lives.get(thread)
            if live is not None and live.generation == generation:
                if thread in kept:
                    live.renewed(sent)
                    live.noticed(kept[thread])
                else:
                    live.lose()

    # -- for actors and live threads

    def live(self, thread: str) -> Live:
        """The live thread of this id; not yet loaded, perhaps."""
        found = self._lives.get(thread)
        if found is None:
            found = self._lives[thread] = Live(self, thread)
        return found

    def spawn(self, work: Any, *, name: str, context: Context | None = None) -> None:
        """Start a task in the store's group."""
        self._host.spawn(work, name=name, context=context)

    def committed(self, thread: str, committed: Sequence[Entry]) -> None:
        """Tell observers of entries that this process has committed."""
        for observer in self._observers:
            for entry in committed:
                contain_call("observer", _told(observer, thread, entry))

    def running(self, runner: TurnRunner) -> None:
        """A turn runs here, until it is done."""
        self._runners.add(runner)

    def rests(self, runner: TurnRunner) -> None:
        """A turn that ran here is over."""
        self._runners.discard(runner)
        self._look_idle()

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """While a turn is being claimed here: leaving waits for what comes of it."""
        self._claims += 1
        try:
            yield
        finally:
            self._claims -= 1
            asyncio.get_running_loop().call_soon(self._look_idle)  # not before its turn is `running`

    def _look_idle(self) -> None:
        if not self._runners and not self._claims and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def report(self, thread: str, error: Exception) -> None:
        """Keep what could not be gone on with."""
        self.reports.append((thread, error))

    # -- sessions

    def check_open(self) -> None:
        """Refuse new work once the store is being left.

        Raises:
            Closed: It is, or it was not entered.
        """
        if not self._open:
            raise Closed("the store is not open; use `async with open_store(…) as store:`, then store.open(id, agent)")

    @property
    def leaving(self) -> bool:
        """Whether no new turn may begin."""
        return not self._open

    async def create(
        self,
        agent: Agent[DepsT, OutputT],
        *,
        deps: DepsT = None,  # type: ignore[assignment]  # None is right where the agent has no deps
        meta: Mapping[str, str] | None = None,
        allow: Iterable[str] | None = None,
        expires: float | None = 7 * 86_400.0,
    ) -> Session[OutputT]:
        """A new session; durable when this returns.

        Args:
            agent: Who runs it.
            deps: What its tools get.
            meta: Strings by which it can be listed.
            allow: The permissions that its tools may need; absent: what the agent allows.
            expires: Seconds that its requests stay open where a tool does not say; None is for ever.

        Raises:
            NotAllowed: A tool needs a permission that is not given.
            WrongCall: The deps or the metadata are not of the right type.
        """
        self.check_open()
        agent._check_deps(deps)
        allowed = narrower(agent.allow, permissions(allow))
        check_allowed(agent.tools, allowed)
        header = Header(
            thread=(thread := self.ids.new()),
            kind="session",
            name=agent.name,
            created=self.clock.now(),
            meta=_checked(meta or {}),
            root=thread,
            path=(agent.name,),
            allow=None if allowed is None else tuple(sorted(allowed)),
            expires=expires,
        )
        live = self.live(thread)
        await live.found(header)[1]
        return Session(self, live, Actor(self, live, agent, deps))

    @overload
    async def open(self, session: str) -> Session[str]: ...
    @overload
    async def open(
        self,
        session: str,
        agent: Agent[DepsT, OutputT],
        *,
        deps: DepsT = ...,
    ) -> Session[OutputT]: ...
    async def open(self, session: str, agent: Agent[Any, Any] | None = None, *, deps: Any = None) -> Session[Any]:
        """A session that is there. Reads only: starts nothing, writes nothing; `resume` goes on with it.

        Without an agent it can be read, decided and sent to, and whoever has the agent goes on.

        Raises:
            NotFound: No thread has this id.
            Corrupt, NewerFormat: Its journal cannot be read.
        """
        self.check_open()
        if agent is not None:
            agent._check_deps(deps)
        live = self.live(session)
        fresh = not live.loaded
        await live.open()
        if not fresh:
            await live.refresh()
        return Session(self, live, None if agent is None else Actor(self, live, agent, deps))

    async def recover(self, session: str, root: Root | Agent[Any, Any]) -> Turn[Any] | None:
        """`open`, then `resume`, for what a dead process left.

        A child is rebuilt from its root: give the root's agent.

        Returns:
            The thread's turn that goes on; None where nothing is to be done, or somebody is at it.

        Raises:
            NotFound: No thread has this id.
            Changed: The agent does not fit what is stored.
        """
        self.check_open()
        root = root if isinstance(root, Root) else Root(agent=root)
        live = await self.live(session).open()
        header = live.view.header
        if header.root == session:
            opened = await self.open(session, root.agent, deps=root.deps_for(header))
            return await opened.resume()
        top = await self.live(header.root).open()
        parked = None if live.view.run is None else live.view.run.turn
        opened = await self.open(header.root, root.agent, deps=root.deps_for(top.view.header))
        await opened.resume()
        await live.refresh()
        run = live.view.run
        waits = run is not None and run.parked and bool(live.view.undecided)
        elsewhere = any(thread.lease.live and thread.runner is None for thread in (live, top))
        return None if parked is None or waits or elsewhere else Turn(live, after=parked)

    async def decide(self, *decisions: _approvals.Decision) -> None:
        """Record decisions without an agent, and pass them down; whoever has the agent goes on.

        The requests may be of several sessions; those of a child are recorded at its root. All are judged
        before any is recorded; what one session is told is recorded all or none.

        Raises:
            NotPending: A request is unknown.
            Expired, Conflict, InvalidDecision: As for `session.decide`.
        """
        self.check_open()
        if not decisions:
            raise InvalidDecision("give at least one decision: approve(request), deny(request), resolve(request, …)")
        roots: dict[str, list[_approvals.Decision]] = {}
        for decision in decisions:
            roots.setdefault(await self._root_of(decision.request), []).append(decision)
        now = await self.store.now()
        for thread, batch in roots.items():
            live = await self.live(thread).open()
            await live.refresh()
            _approvals.decide(live.view, batch, ["" for _ in batch], now)
        for thread, batch in roots.items():
            live = self.live(thread)
            await live.open()
            for made in await self.record_decisions(live, tuple(batch)):
                await self.push_down(made)

    async def _root_of(self, request: str) -> str:
        try:
            live = await self.live(thread_of(request)).open()
        except NotFound:
            raise NotPending(request, "is of no thread in this store") from None
        return live.view.header.root

    async def record_decisions(
        self, live: Live, decisions: tuple[_approvals.Decision, ...]
    ) -> tuple[entries.Decision, ...]:
        """Record decisions at the root; those that stand now, of these requests."""
        now = await self.store.now()
        ids = [self.ids.new() for _ in decisions]
        if any(decision.request not in live.view.requests for decision in decisions):
            await live.refresh()
        await live.command(lambda view: _approvals.decide(view, decisions, ids, now))
        return _approvals.made(live.view, (decision.request for decision in decisions))

    async def push_down(self, decision: entries.Decision) -> None:
        """The same decision, level by level, to the thread that its request names."""
        path: list[Live] = []
        live = await self.live(thread_of(decision.request)).open()
        while live.view.header.parent is not None:
            path.append(live)
            live = await self.live(live.view.header.parent).open()
        for level in reversed(path):
            await level.command(lambda view: _approvals.push(view, [decision]))

    async def cancel(self, thread: str) -> bool:
        """Cancel what runs or waits in a session, wherever it runs; see `Session.cancel`. Needs no agent.

        Returns:
            False where nothing does, or it has been cancelled before.

        Raises:
            NotFound: No thread has this id.
        """
        self.check_open()
        return await _cancelling.cancel(await self.live(thread).open())

    def list(self, *, meta: Mapping[str, str] | None = None, kind: str = "session") -> AsyncIterator[Header]:
        """Headers, newest first.

        Args:
            meta: Only threads with these metadata.
            kind: Only threads of this kind.
        """
        return _Listing(self, Query(kind=kind, meta=_checked(meta or {}), limit=PAGE))

    def watch(self, thread: str, *, after: int = 0, until: Head | None = None) -> Watch:
        """Every entry from position `after` on, exactly once, in order, then live; `until` a head.

        Also what other processes write. Raises `NotFound` when the thread is deleted.
        """
        self.check_open()
        return Watch(self.live(thread), after=after, until=until)

    async def delete(self, thread: str) -> None:
        """Delete an idle thread.

        Raises:
            NotFound: No thread has this id.
            Busy: It runs a turn, or has delegations that are not settled.
        """
        self.check_open()
        live = await self.live(thread).open()
        await live.refresh()
        if live.view.unsettled:
            raise Busy(f"thread {thread!r} has delegations that are not settled")
        try:
            await self.store.delete(thread, live.head)
        except Locked:
            raise Busy(f"thread {thread!r} runs a turn") from None
        live.close(NotFound(thread))
        self._lives.pop(thread, None)

    def observe(self, observer: Callable[[str, Entry], None]) -> None:
        """Call `observer(thread, entry)` for every entry that this process commits, after the commit.

        What it raises is contained.
        """
        self._observers.append(observer)


class _Listing:
    """Pages of headers, one after another. Owns nothing that needs closing."""

    def __init__(self, store: OpenStore, query: Query) -> None:
        self._store = store
        self._query = query
        self._rows: list[Listed] = []
        self._more = True

    def __aiter__(self) -> AsyncIterator[Header]:
        return self

    async def __anext__(self) -> Header:
        self._store.check_open()
        if not self._rows and self._more:
            await self._page()
        if not self._rows:
            raise StopAsyncIteration
        row = self._rows.pop(0)
        header = decode_line(row.line, row.thread, 0).body
        assert isinstance(header, Header)
        return header

    async def _page(self) -> None:
        query = self._query
        self._rows = await self._store.store.list(query)
        self._more = len(self._rows) == query.limit
        if self._rows:
            self._query = Query(kind=query.kind, meta=query.meta, after=self._rows[-1].cursor, limit=query.limit)


def open_store(
    where: str | Memory | Store,
    *,
    node: str | None = None,
    lease: float = 30.0,
    clock: Clock | None = None,
    ids: Ids | None = None,
    synchronous: Synchronous | Literal["FULL", "NORMAL"] = "FULL",
    grace: float = GRACE,
) -> OpenStore:
    """A store, to be entered with `async with`.

    Args:
        where: `"memory:"`, a `Memory`, `"sqlite:///relative.db"` or `"sqlite:////absolute.db"`, or a `Store`.
        node: A name for this node in lease tokens; host, process and a random part if absent.
        lease: Seconds that a lease lasts, 0.1 to 86,400.
        clock: The time; the system's if absent.
        ids: The identities; random if absent.
        synchronous: SQLite's setting. `FULL` keeps what was acknowledged through power loss; `NORMAL` may
            lose the last commits then, and nothing when only the process dies.
        grace: Seconds that leaving waits for what runs.

    Raises:
        WrongCall: The address or a setting is not understood.
    """
    if not 0.1 <= lease <= 86_400:
        raise WrongCall("lease is between 0.1 and 86,400 seconds")
    clock = clock or SystemClock()
    ids = ids or SystemIds()
    name = node or f"{socket.gethostname()}:{os.getpid()}"
    owner = f"{name}/{ids.new()}"
    return OpenStore(_store(where, owner, lease, clock, synchronous), clock=clock, ids=ids, grace=grace)


def _store(
    where: str | Memory | Store, owner: str, lease: float, clock: Clock, synchronous: Literal["FULL", "NORMAL"]
) -> Store:
    if isinstance(where, Memory):
        return MemoryStore(where, owner=owner, ttl=lease, clock=clock, survives=True)
    if not isinstance(where, str):
        return where
    if where == "memory:":
        return MemoryStore(Memory(), owner=owner, ttl=lease, clock=clock, survives=False)
    if where.startswith("sqlite:///") and len(where) > len("sqlite:///"):
        return SQLiteStore(
            Path(where.removeprefix("sqlite:///")).absolute(),
            owner=owner,
            ttl=lease,
            clock=clock,
            synchronous=synchronous,
        )
    raise WrongCall(f"no store at {where!r}; use 'memory:' or 'sqlite:///file.db'")


def _checked(meta: Mapping[str, str]) -> dict[str, str]:
    pairs: tuple[tuple[object, object], ...] = tuple(meta.items())
    for key, value in pairs:
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongCall(f"metadata is strings by strings; {key!r} has {value!r}")
    return {clean_text(key): clean_text(value) for key, value in meta.items()}


def _told(observer: Callable[[str, Entry], None], thread: str, entry: Entry) -> Callable[[], None]:
    return lambda: observer(thread, entry)


async def _contained_renewal(store: Store, held: Sequence[tuple[str, int]]) -> dict[str, int] | None:
    try:
        return await store.renew(held)
    except WeftError:
        return None
