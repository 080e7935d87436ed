"""Opening a store of sessions, and what can be done with it while it is open."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from weakref import WeakValueDictionary

from weft import _given
from weft._agent import Agent, check_allowed
from weft._contain import Contained, contain, contain_call
from weft._ports import Clock, Ids, SystemClock, SystemIds, over_within
from weft._setup import narrower
from weft._toolcall import GRACE as BODY_GRACE
from weft.errors import (
    Busy,
    Closed,
    Corrupt,
    Locked,
    NotFound,
    NotPending,
    Stale,
    WrongCall,
)
from weft.messages import clean_text
from weft.thread import _approvals, _cancelling, _upkeep, entries
from weft.thread._actor import Actor
from weft.thread._host import Host
from weft.thread._listing import Listing, ThreadInfo
from weft.thread._live import Live
from weft.thread._receipts import derived
from weft.thread._runner import TurnRunner
from weft.thread._upkeep import Salvaged, Verified
from weft.thread._view import thread_of
from weft.thread.entries import Entry, Header, Index
from weft.thread.memory import Memory, MemoryStore
from weft.thread.session import Session, checked_meta
from weft.thread.sqlite import SQLiteStore, Synchronous
from weft.thread.store import Head, Query, RenewsAlone, Store
from weft.thread.turn import Turn
from weft.thread.watch import Watch

__all__ = ["OpenStore", "Root", "open_store"]

DepsT = TypeVar("DepsT")
OutputT = TypeVar("OutputT")

GRACE = 25.0
"""Seconds that leaving waits for what runs."""
_STRAGGLING = 2 * BODY_GRACE
"""Seconds for what was cancelled: what its bodies have, and time to write."""
PAGE = 100
_BEHIND = 2**40
"""A position that no thread has: to load nothing but where it ends. A cursor that no list gives, too."""


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
        """What could not be gone on with and was left, and why: by thread, or by the task of a fault of weft's own."""
        self._grace = grace
        self._host = Host(self._broken, self.report)
        self._why = Closed()
        self._lives: WeakValueDictionary[str, Live] = WeakValueDictionary()
        self._runners: set[TurnRunner] = set()
        self._observers: list[Callable[[str, Entry], None]] = []
        self._claims = 0
        self._idle: asyncio.Future[None] | None = None
        self._open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """In which it was entered, until it is left."""

    # -- opening and leaving

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise WrongCall("the store is entered already: enter it once, where the application starts, and hand it on")
        self._loop = asyncio.get_running_loop()
        try:
            await self._enter()
        except BaseException:
            self._loop = None
            raise
        return self

    async def _enter(self) -> None:
        if isinstance(self.store, RenewsAlone):
            self.store.on_renewal(self._renewed)
        await self.store.start()
        try:
            await self._host.start()
        except BaseException:
            await self._end()
            raise
        self._open = True
        self._host.spawn(self._renew(), name="weft leases")

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
            try:
                await self._end()
            finally:
                self._loop = None

    async def _end(self) -> None:
        try:
            await self._host.leave(self.clock, _STRAGGLING)
            self._end_runners()
            await self._hand_off()
        finally:
            self._end_runners()
            self._close_lives()
            await self.store.stop()

    def _end_runners(self) -> None:
        """Those whose tasks had not begun, or take no cancellation."""
        for runner in tuple(self._runners):
            runner.end()

    def _close_lives(self) -> None:
        for live in tuple(self._lives.values()):
            live.close(self._why)

    def _broken(self, error: BaseException) -> None:
        """Something ended all that runs here: whoever waits is told."""
        self._why = Closed(f"{type(error).__name__} has ended all that runs in this store; leave it, and open it again")
        self._why.__cause__ = error
        self._close_lives()

    async def _rest(self, seconds: float) -> None:
        """Return when nothing runs, or the time is over."""
        if seconds <= 0:
            return
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = idle
        try:
            await over_within(idle, seconds, self.clock)
        finally:
            self._idle = None

    async def _cancel_running(self) -> None:
        for runner in tuple(self._runners):
            if runner.loop is not None:
                runner.loop.interrupt("cancel")
        await self._rest(_STRAGGLING)

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
            outcome = await contain("store", self.store.renew(held))
            if not isinstance(outcome, Contained):  # a failed renewal kills nothing; the time running out does
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
        """The live thread of this id; not yet loaded, perhaps. One that was closed is never used again."""
        found = self._lives.get(thread)
        if found is None or found.closed:
            found = self._lives[thread] = Live(self, thread)
        return found

    def spawn(self, work: Any, *, name: str, context: Context | None = None) -> None:
        """Start a task in the store's group."""
        self._host.spawn(work, name=name, context=context)

    @property
    def observed(self) -> bool:
        """Whether anybody is told what is committed."""
        return bool(self._observers)

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
            Closed: It is, or it was not entered, or something has ended all that runs in it, or another event loop
                runs than that in which it was entered.
        """
        if self._why.__cause__ is not None:
            raise self._why
        if not self._open:
            raise Closed("the store is not open; use `async with open_store(…) as store:`, then store.open(id, agent)")
        with suppress(RuntimeError):  # no loop runs: nobody waits
            self.check_loop(asyncio.get_running_loop())

    def check_loop(self, running: asyncio.AbstractEventLoop) -> None:
        """Refuse another event loop than that in which the store was entered: whoever waits there is never woken.

        Raises:
            Closed: It is another.
        """
        if running is not self._loop:
            raise Closed(
                "the store was entered in another event loop; use it there, from another thread by "
                "asyncio.run_coroutine_threadsafe(…, that loop), or enter one of your own here"
            )

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
        key: str | None = None,
        allow: Iterable[str] | None = None,
        expires: float | None = 7 * 86_400.0,
    ) -> Session[OutputT]:
        """A new session; durable when this returns.

        Args:
            agent: Who runs it.
            deps: What its tools get.
            meta: Strings by which it can be listed.
            key: Makes it idempotent: with a key that was given before, from any process, this is the session that
                was made then, as it is.
            allow: The permissions that its tools may need; absent: what the agent allows.
            expires: Seconds that its requests stay open where a tool does not say; None is for ever.

        Raises:
            NotAllowed: A tool needs a permission that is not given.
            WrongCall: The agent, the deps, the metadata or another argument are not of the right type.
        """
        self.check_open()
        _given.instance("agent", agent, Agent)._check_deps(deps)
        allowed = narrower(agent.allow, _given.permissions(allow))
        check_allowed(agent.tools, allowed)
        if expires is not None and not _given.positive(expires):
            raise WrongCall(f"expires is a positive number of seconds, or None for ever; not {expires!r}")
        header = Header(
            thread=(thread := self.ids.new() if key is None else keyed(key)),
            kind="session",
            name=agent.name,
            created=self.clock.now(),
            meta=checked_meta(meta or {}),
            root=thread,
            path=(agent.name,),
            allow=None if allowed is None else tuple(sorted(allowed)),
            expires=expires,
        )
        live = await self._make(header, new=key is None)
        return Session(self, live, Actor(self, live, agent, deps))

    async def _make(self, header: Header, *, new: bool) -> Live:
        """The live thread with this header; one that is there already, unless it is `new`."""
        if not new:
            with suppress(NotFound):
                return await self._as_it_is(header.thread)
        live = self.live(header.thread)
        await live.make(header, new=new)
        return live

    async def _as_it_is(self, thread: str) -> Live:
        """The live thread as the store has it now, also where it was deleted, and made again, elsewhere.

        Raises:
            NotFound: No thread has this id.
        """
        live = self.live(thread)
        if live.loaded:
            with suppress(NotFound):  # then it is closed, and `live` gives another one
                await live.refresh()
                return live
        return await self.live(thread).open()

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
            WrongCall: The agent is none, or the deps are not of its type.
            Corrupt, NewerFormat: Its journal cannot be read.
        """
        self.check_open()
        if agent is not None:
            _given.instance("agent", agent, Agent)._check_deps(deps)
        live = await self._as_it_is(session)
        return Session(self, live, None if agent is None else Actor(self, live, agent, deps))

    async def handle(self, session: str, like: Actor | None) -> Session[Any]:
        """A session's handle, with the agent and the deps of another one's."""
        live = await self.live(session).open()
        return Session(self, live, None if like is None else Actor(self, live, like.agent, like.deps))

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
        _approvals.checked(decisions)
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
        """The same decision, level by level, to the thread that its request names, if that is still there."""
        path: list[Live] = []
        try:
            live = await self.live(thread_of(decision.request)).open()
        except NotFound:
            return
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

    def list(  # noqa: PLR0913  # each a filter of its own
        self,
        *,
        meta: Mapping[str, str] | None = None,
        title: str | None = None,
        pending: bool | None = None,
        name: str | None = None,
        kind: str | None = "session",
        parent: str | None = None,
        children: bool = False,
        after: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ThreadInfo]:
        """Threads, newest first. Without `parent` and `children` those that nobody has delegated.

        Args:
            meta: Only those with these metadata.
            title: Only those whose title contains this text, in any case of letters.
            pending: Only those where something waits for a decision, or nothing does.
            name: Only those of this agent or definition.
            kind: Only those of this kind; None is all kinds.
            parent: Only the children of this thread.
            children: Children as well.
            after: The `cursor` of the last one of the page before.
            limit: At most so many; None is all there are.

        Raises:
            WrongCall: The limit is less than 0, the metadata are not strings by strings, or another filter is of a
                wrong type.
        """
        if limit is not None and not _given.at_least(0, limit):
            raise WrongCall(f"limit is 0 or more, or None for all there are; not {limit!r}")
        if after is not None and not isinstance(after, int):
            raise WrongCall(f"after is the cursor of a row; not {after!r}")
        query = Query(
            kind=_text(kind),
            name=_text(name),
            parent=_text(parent),
            roots=parent is None and not children,
            meta=checked_meta(meta or {}),
            title=_text(title),
            pending=pending,
            after=None if after is None else min(after, _BEHIND),
            limit=PAGE,
        )
        return Listing(self.store, query, self.check_open, self.report, limit, self._index_of)

    async def _index_of(self, thread: str) -> Index:
        """What a list shows of a thread, from its journal."""
        return (await self.live(thread).open()).view.index

    def watch(self, thread: str, *, after: int = 0, until: Head | None = None) -> Watch:
        """Every entry from position `after` on, exactly once, in order, then live; `until` a head.

        Also what other processes write. Raises `NotFound` when the thread is deleted.

        Raises:
            WrongCall: `after` is less than 0.
        """
        self.check_open()
        if not _given.at_least(0, after):
            raise WrongCall(f"after is a position, 0 or more; not {after!r}")
        return Watch(self.live(thread), after=after, until=until)

    async def delete(self, thread: str, *, children: bool = False) -> None:
        """Delete a thread that runs no turn; nothing of it is left.

        Args:
            thread: Its id.
            children: Delete its children as well, and theirs, first. Without this they stay.

        Raises:
            NotFound: No thread has this id.
            Busy: It runs a turn, has delegations that are not settled, or is a child that its parent waits for; with
                `children`, or one of them runs a turn. Some of them may be gone by then.
        """
        self.check_open()
        if await self._is_waited_for(thread):
            raise Busy(f"thread {thread!r} is a child that its parent waits for; cancel it, or delete the parent")
        await self._delete_tree(thread, children=children)

    async def _is_waited_for(self, thread: str) -> bool:
        """Whether a parent would start the child anew, if it was gone. Not of one that cannot be read."""
        try:
            parent = (await self._as_it_is(thread)).view.header.parent
            view = None if parent is None else (await self._as_it_is(parent)).view
        except (Corrupt, NotFound):
            return False
        return view is not None and any(view.receipts[name].accepted.child == thread for name in view.unsettled)

    async def _delete_tree(self, thread: str, *, children: bool) -> None:
        if children:
            async for child in self.list(kind=None, parent=thread):
                await self._delete_tree(child.thread, children=True)
        while not await self._delete(thread, children=children):
            pass

    async def _delete(self, thread: str, *, children: bool) -> bool:
        """Delete this thread as it is, also where it cannot be read; False where it has moved on meanwhile."""
        try:
            live = await self._as_it_is(thread)
        except Corrupt:
            live, head = self.live(thread), (await self.store.load(thread, _BEHIND)).head
        else:
            head = live.head
            if live.view.unsettled and not children:
                raise Busy(f"thread {thread!r} has delegations that are not settled; see children=True")
        try:
            await self.store.delete(thread, head)
        except Stale:
            return False
        except Locked:
            raise Busy(f"thread {thread!r} runs a turn") from None
        live.close(NotFound(thread))
        return True

    # -- upkeep

    async def verify(self, thread: str) -> Verified:
        """Read all of a thread, and check that each line is as it was written; for a whole store, do it for each.

        Raises:
            NotFound: No thread has this id.
        """
        self.check_open()
        return await _upkeep.verify(self, thread)

    async def export(self, thread: str, *, children: bool = False) -> str:
        """The journal as it is stored: JSON Lines, the header first.

        Args:
            thread: Its id.
            children: Its children after it, and theirs.

        Raises:
            NotFound: No thread has this id.
            Corrupt: A line is missing; see `verify` and `salvage`.
        """
        self.check_open()
        text = await _upkeep.export(self, thread)
        if children:
            async for child in self.list(kind=None, parent=thread):
                text += await self.export(child.thread, children=True)
        return text

    async def restore(self, text: str) -> tuple[str, ...]:
        """Make threads from what `export` gave, under the ids that they had; durable when this returns.

        A thread that is here already, just so, stays as it is. One that had a turn under way reads as one whose
        process has died: `recover` goes on with it.

        Returns:
            Their ids, in the order of the text.

        Raises:
            WrongCall: It is no text.
            Corrupt: The text is not a whole journal. Nothing of that thread was written; those before it were.
            NewerFormat: A newer weft has written it.
            Conflict: A thread of this id is here, and differs.
        """
        self.check_open()
        return await _upkeep.restore(self, _given.instance("text", text, str))

    async def salvage(self, thread: str) -> Salvaged:
        """Copy what a damaged session still has of its conversation into a new one; the old one stays as it is.

        What follows a lost line goes on from what came before it; a result whose call is lost is left out, and a call
        whose result is lost reads as interrupted. What waited for a person is asked again.

        Raises:
            NotFound: Nothing of it is there.
            Corrupt: Its header is lost.
            NewerFormat: A newer weft has written it.
        """
        self.check_open()
        return await _upkeep.salvage(self, thread)

    def observe(self, observer: Callable[[str, Entry], None]) -> None:
        """Call `observer(thread, entry)` for every entry that this process commits, a header too, after the commit.

        What it raises is contained.

        Raises:
            WrongCall: The observer is no function.
        """
        if not callable(observer):
            raise WrongCall(f"an observer is a function of a thread's id and an entry; not {observer!r}")
        self._observers.append(observer)


def keyed(key: str) -> str:
    """The thread id of a session that is created under a key."""
    return derived("session", clean_text(key))


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
    if not (_given.at_least(0.1, lease) and lease <= 86_400):
        raise WrongCall("lease is between 0.1 and 86,400 seconds")
    if synchronous not in ("FULL", "NORMAL"):
        raise WrongCall(f"synchronous is 'FULL' or 'NORMAL', not {synchronous!r}")
    if not _given.at_least(0, grace):
        raise WrongCall(f"grace is a number of seconds, 0 or more; not {grace!r}")
    clock = clock or SystemClock()
    ids = ids or SystemIds()
    if not hasattr(clock, "deadline"):
        raise WrongCall(f"clock is a Clock, an object with its methods; not {clock!r}")
    if not hasattr(ids, "new"):
        raise WrongCall(f"ids is an Ids, an object with its method; not {ids!r}")
    name = _given.optional("node", node, str) or f"{socket.gethostname()}:{os.getpid()}"
    owner = f"{name}/{ids.new()}"
    return OpenStore(_store(where, owner, lease, clock, synchronous), clock=clock, ids=ids, grace=grace)


def _text(filter_: str | None) -> str | None:
    """As what is stored was made text."""
    return None if filter_ is None else clean_text(filter_)


def _store(
    where: str | Memory | Store, owner: str, lease: float, clock: Clock, synchronous: Literal["FULL", "NORMAL"]
) -> Store:
    if isinstance(where, Memory):
        return MemoryStore(where, owner=owner, ttl=lease, clock=clock, survives=True)
    if not isinstance(where, str):
        if isinstance(where, type) or not hasattr(where, "start"):
            raise _no_store(where)
        return where
    if where == "memory:":
        return MemoryStore(Memory(), owner=owner, ttl=lease, clock=clock, survives=False)
    if where == "sqlite:///:memory:":
        raise WrongCall("no SQLite database is kept in memory; use 'memory:'")
    if where.startswith("sqlite:///") and len(where) > len("sqlite:///") and "\0" not in where:
        return SQLiteStore(
            Path(where.removeprefix("sqlite:///")).absolute(),
            owner=owner,
            ttl=lease,
            clock=clock,
            synchronous=synchronous,
        )
    raise _no_store(where)


def _no_store(where: object) -> WrongCall:
    if isinstance(where, Path):
        return WrongCall(f"a Path is no store; use {f'sqlite:///{where}'!r}")
    return WrongCall(f"no store at {where!r}; use 'memory:' or 'sqlite:///file.db'")


def _told(observer: Callable[[str, Entry], None], thread: str, entry: Entry) -> Callable[[], None]:
    return lambda: observer(thread, entry)
