"""Opening a store of sessions, and what can be done with it while it is open."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from weft import _given
from weft._agent import Agent, check_allowed
from weft._ports import Clock, Ids, SystemClock, SystemIds
from weft._setup import narrower
from weft.errors import (
    NotFound,
    WrongCall,
)
from weft.messages import clean_text
from weft.thread import _approvals, _cancelling, _deciding, _deleting, _upkeep
from weft.thread._actor import Actor
from weft.thread._listing import Listing, ThreadInfo, children_of
from weft.thread._live import Live
from weft.thread._node import Node
from weft.thread._receipts import derived
from weft.thread._upkeep import Salvaged, Verified
from weft.thread.entries import Entry, Header
from weft.thread.memory import Memory, MemoryStore
from weft.thread.session import Session, checked_meta
from weft.thread.sqlite import SQLiteStore, Synchronous
from weft.thread.store import BEHIND, Head, Query, Store
from weft.thread.turn import Turn
from weft.thread.watch import Watch

__all__ = ["OpenStore", "Root", "open_store"]

DepsT = TypeVar("DepsT")
OutputT = TypeVar("OutputT")

GRACE = 25.0
"""Seconds that leaving waits for what runs."""


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
        self._node = Node(store, clock=clock, ids=ids, grace=grace)

    async def __aenter__(self) -> Self:
        await self._node.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._node.leave(at_once=kind is not None)

    @property
    def reports(self) -> list[tuple[str, Exception]]:
        """What could not be gone on with and was left, and why: by thread, or by the task of a fault of weft's own."""
        return self._node.reports

    # -- sessions

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
        self._node.check_open()
        _given.instance("agent", agent, Agent)._check_deps(deps)
        allowed = narrower(agent.allow, _given.permissions(allow))
        check_allowed(agent.tools, allowed)
        if expires is not None and not _given.positive(expires):
            raise WrongCall(f"expires is a positive number of seconds, or None for ever; not {expires!r}")
        header = Header(
            thread=(thread := self._node.ids.new() if key is None else keyed(key)),
            kind="session",
            name=agent.name,
            created=self._node.clock.now(),
            meta=checked_meta(meta or {}),
            root=thread,
            path=(agent.name,),
            allow=None if allowed is None else tuple(sorted(allowed)),
            expires=expires,
        )
        live = await self._make(header, new=key is None)
        return Session(self._node, live, Actor(self._node, live, agent, deps))

    async def _make(self, header: Header, *, new: bool) -> Live:
        """The live thread with this header; one that is there already, unless it is `new`."""
        if not new:
            with suppress(NotFound):
                return await self._node.as_it_is(header.thread)
        live = self._node.live(header.thread)
        await live.make(header, new=new)
        return live

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
        self._node.check_open()
        if agent is not None:
            _given.instance("agent", agent, Agent)._check_deps(deps)
        live = await self._node.as_it_is(session)
        return Session(self._node, live, None if agent is None else Actor(self._node, live, agent, deps))

    async def recover(self, session: str, root: Root | Agent[Any, Any]) -> Turn[Any] | None:
        """`open`, then `resume`, for what a dead process left.

        A child is rebuilt from its root: give the root's agent.

        Returns:
            The thread's turn that goes on; None where nothing is to be done, or somebody is at it.

        Raises:
            NotFound: No thread has this id.
            Changed: The agent does not fit what is stored.
        """
        self._node.check_open()
        root = root if isinstance(root, Root) else Root(agent=root)
        live = await self._node.live(session).open()
        header = live.view.header
        if header.root == session:
            opened = await self.open(session, root.agent, deps=root.deps_for(header))
            return await opened.resume()
        top = await self._node.live(header.root).open()
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
        self._node.check_open()
        await _deciding.decide(self._node, decisions)

    async def cancel(self, thread: str) -> bool:
        """Cancel what runs or waits in a session, wherever it runs; see `Session.cancel`. Needs no agent.

        Returns:
            False where nothing does, or it has been cancelled before.

        Raises:
            NotFound: No thread has this id.
        """
        self._node.check_open()
        return await _cancelling.cancel(await self._node.live(thread).open())

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
            after=None if after is None else min(after, BEHIND),
        )
        return Listing(self._node, query, limit)

    def watch(self, thread: str, *, after: int = 0, until: Head | None = None) -> Watch:
        """Every entry from position `after` on, exactly once, in order, then live; `until` a head.

        Also what other processes write. Raises `NotFound` when the thread is deleted.

        Raises:
            WrongCall: `after` is less than 0.
        """
        self._node.check_open()
        if not _given.at_least(0, after):
            raise WrongCall(f"after is a position, 0 or more; not {after!r}")
        return Watch(self._node.live(thread), after=after, until=until)

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
        self._node.check_open()
        await _deleting.delete(self._node, thread, children=children)

    # -- upkeep

    async def verify(self, thread: str) -> Verified:
        """Read all of a thread, and check that each line is as it was written; for a whole store, do it for each.

        Raises:
            NotFound: No thread has this id.
        """
        self._node.check_open()
        return await _upkeep.verify(self._node, thread)

    async def export(self, thread: str, *, children: bool = False) -> str:
        """The journal as it is stored: JSON Lines, the header first.

        Args:
            thread: Its id.
            children: Its children after it, and theirs.

        Raises:
            NotFound: No thread has this id.
            Corrupt: A line is missing; see `verify` and `salvage`.
        """
        self._node.check_open()
        text = await _upkeep.export(self._node, thread)
        if children:
            async for child in children_of(self._node, thread):
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
        self._node.check_open()
        return await _upkeep.restore(self._node, _given.instance("text", text, str))

    async def salvage(self, thread: str) -> Salvaged:
        """Copy what a damaged session still has of its conversation into a new one; the old one stays as it is.

        What follows a lost line goes on from what came before it; a result whose call is lost is left out, and a call
        whose result is lost reads as interrupted. What waited for a person is asked again.

        Raises:
            NotFound: Nothing of it is there.
            Corrupt: Its header is lost.
            NewerFormat: A newer weft has written it.
        """
        self._node.check_open()
        return await _upkeep.salvage(self._node, thread)

    def observe(self, observer: Callable[[str, Entry], None]) -> None:
        """Call `observer(thread, entry)` for every entry that this process commits, a header too, after the commit.

        What it raises is contained.

        Raises:
            WrongCall: The observer is no function.
        """
        if not callable(observer):
            raise WrongCall(f"an observer is a function of a thread's id and an entry; not {observer!r}")
        self._node.observe(observer)


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
