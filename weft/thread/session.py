"""A session: an agent's stored conversation, with its turns, requests and receipts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from weft._agent import Agent, Prompt
from weft._result import Result
from weft.errors import Busy, Locked, WrongCall
from weft.messages import Message, ToolResult, Usage, as_message, clean_text
from weft.thread import _approvals, _branches, _cancelling, _deciding, _inbox, _receipts, _upkeep, entries
from weft.thread._actor import Actor, known_turn
from weft.thread._live import Live
from weft.thread._node import Node
from weft.thread._turns import Plan
from weft.thread._view import View, as_result, thread_of
from weft.thread.store import Head
from weft.thread.turn import Turn

__all__ = ["PathEntry", "Session", "SessionNote", "SessionUsage"]


OutputT = TypeVar("OutputT", default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUsage:
    """What a session has spent, as providers reported it."""

    turns: Usage
    """All its own model calls, failed attempts and abandoned branches too."""
    summaries: Usage
    """Its compactions'."""
    delegated: Usage
    """Its settled delegations, each with its child's whole ledger."""

    @property
    def total(self) -> Usage:
        """All of it."""
        return self.turns + self.summaries + self.delegated


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEntry:
    """An entry of the conversation: a message, or one call's result."""

    id: str
    """Give it to `branch` or `fork` to go on from here."""
    message: Message | None = None
    """A user or assistant message."""
    result: ToolResult | None = None
    summary: str | None = None
    """A compaction's: what the model reads in place of what came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNote:
    """An application's own entry."""

    id: str
    time: float
    """Its writer's clock, seconds since the epoch."""
    name: str
    text: str


class Session(Generic[OutputT]):
    """A handle on a session. Any number may be open; all of this process share one live thread.

    The properties are as of the last fold and do no I/O; `refresh` folds what others wrote.
    """

    def __init__(self, node: Node, live: Live, actor: Actor | None) -> None:
        self._node = node
        self._live = live
        self._actor = actor

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self._live.view.header.name!r}, {self._live.view.phase})"

    @property
    def id(self) -> str:
        """The thread's id."""
        return self._live.id

    @property
    def agent(self) -> Agent[Any, OutputT] | None:
        """Who runs it here; None where it was opened only to read, decide and send."""
        return None if self._actor is None else self._actor.agent

    @property
    def header(self) -> entries.Header:
        """Its first line."""
        return self._live.view.header

    @property
    def meta(self) -> Mapping[str, str]:
        """Its metadata."""
        return self._live.view.index.meta

    @property
    def head(self) -> Head:
        """How many lines it has, and the digest of the last."""
        return self._live.head

    @property
    def messages(self) -> tuple[Message, ...]:
        """The transcript, up to the open step."""
        return self._live.view.messages

    @property
    def pending(self) -> tuple[_approvals.Request, ...]:
        """What waits for a decision here, children's requests too, in the order in which it was asked."""
        return _approvals.pending(self._live.view)

    @property
    def turn(self) -> Turn[OutputT] | None:
        """The turn that runs, here or elsewhere, or is parked, as of the last fold; None where none is.

        A handle on what is under way, for whoever has not sent it: to watch it, to wait for it, to cancel it.
        """
        return self._turn_here()

    @property
    def queued(self) -> tuple[Message, ...]:
        """What was sent and has not begun, in the order in which it was sent, as of the last fold."""
        return tuple(inbox.message for inbox in self._live.view.queue.values() if inbox.message is not None)

    @property
    def receipts(self) -> tuple[_receipts.Receipt, ...]:
        """Its delegations, in acceptance order."""
        return _receipts.receipts(self._live.view)

    @property
    def title(self) -> str | None:
        """Its title, if it has been given one."""
        return self._live.view.index.title

    @property
    def notes(self) -> tuple[SessionNote, ...]:
        """The application's own entries, in order."""
        notes = ((entry, entry.body) for entry in self._live.view.notes)
        return tuple(
            SessionNote(id=entry.id, time=entry.time, name=body.name, text=body.text)
            for entry, body in notes
            if isinstance(body, entries.Note)
        )

    @property
    def path(self) -> tuple[PathEntry, ...]:
        """The conversation from its beginning to where it stands, whole: also what a compaction stands for.

        Built anew each time, at a cost in proportion to its length.
        """
        return tuple(map(_path_entry, self._live.view.path(self._live.view.leaf)))

    @property
    def usage(self) -> SessionUsage:
        """What it has spent."""
        view = self._live.view
        return SessionUsage(turns=view.turns, summaries=view.summaries, delegated=view.delegated)

    async def ask(self, prompt: Prompt, *, key: str | None = None) -> Result[OutputT]:
        """`send`, then `wait`. Cancelling it does not cancel the turn.

        On a session that is parked it waits until somebody has decided: look at `pending` before, or use `send` with
        another policy than `queue`.

        Raises:
            WrongCall: The session was opened without an agent, so nobody here would answer; `send` and `wait` do. Or a
                tool of its own asks, for which its turn waits. Nothing was written.
            RunFailed: The run failed.
            TurnCancelled: It was cancelled.
        """
        if self._actor is None:
            raise WrongCall(
                "this session was opened without an agent; open it with one to ask, or send and wait for who has one"
            )
        self._live.check_free()
        return await (await self.send(prompt, key=key)).wait()

    async def send(
        self,
        prompt: Prompt,
        *,
        policy: Literal["queue", "reject", "steer", "interrupt"] = "queue",
        key: str | None = None,
    ) -> Turn[OutputT]:
        """Accept an input; durable when this returns.

        On an idle session it begins a turn at once, whatever the policy is.

        Args:
            prompt: Text, parts, or a message.
            policy: What becomes of it on a session that is busy. `queue`: it runs after what came before, also after
                a restart. `reject`: it is refused. `steer`: it joins the running turn at its next drain point, that
                is after a step's results or before its last answer is final; where there is none any more, it
                becomes the next turn. `interrupt`: the running or parked turn is cancelled, its open calls get
                results, its requests are denied; then this one runs, before what is queued.
            key: Makes it idempotent: the same key and message gives the same turn.

        Raises:
            Busy: With `reject`, where a turn runs or waits. Nothing was written.
            Conflict: The key was used before with another message.
            StoreFailed: The store could not write. Nothing was written.
        """
        self._node.check_open()
        if policy not in _inbox.POLICIES:
            raise WrongCall(f"no policy {policy!r}; use one of {', '.join(map(repr, _inbox.POLICIES))}")
        message = as_message(prompt)
        key = None if key is None else clean_text(key)
        if self._actor is not None:
            return await self._actor.send(message, policy=policy, key=key)
        if policy == "reject":
            await self._live.refresh()
        plan = await self._live.command(
            lambda view: _inbox.send(view, message, key, policy=policy, first=None),
            lambda _: _cancelling.see_to_sent(self._live),  # it may interrupt what runs elsewhere
        )
        if plan is None:
            _cancelling.see_to_sent(self._live)
        return known_turn(self._live, key) if plan is None else Turn(self._live, item=plan.ids[0])

    async def decide(self, *decisions: _approvals.Decision) -> Turn[OutputT]:
        """Record decisions, all or none, durably; then go on with what they allow.

        Returns:
            The turn that goes on; while other calls wait, the parked one, whose `wait` returns at once; for
            a child's request, the turn here that goes on when the child is done.

        Raises:
            NotPending: A request is unknown here.
            Expired: Its time is over.
            Conflict: It was decided otherwise before.
            InvalidDecision: It does not allow this outcome, or there is no decision.
            DecideAtRoot: This session is a child.
            Changed: The agent given now has no tool for an approved call any more.
        """
        self._node.check_open()
        _approvals.checked(decisions)
        turn = self._turn_here()
        made = await _deciding.record(self._live, decisions)
        await self._carry_down(made)
        if self._actor is None:
            return turn or self._last_turn()
        going_on = await self._actor.go_on()
        if going_on is not None:
            return going_on
        own = all(thread_of(decision.request) == self.id for decision in made)
        parked = self._turn_here()
        if parked is not None and not own:
            return Turn(self._live, after=parked.id)
        return parked or turn or self._last_turn()

    async def _carry_down(self, made: tuple[entries.Decision, ...]) -> None:
        for decision in made:
            if thread_of(decision.request) != self.id:
                await _deciding.push_down(self._node, decision)

    def _turn_here(self) -> Turn[OutputT] | None:
        run = self._live.view.run
        return None if run is None else Turn(self._live, turn=run.turn)

    def _last_turn(self) -> Turn[OutputT]:
        """The newest one: where everything was decided, and done, before."""
        return Turn(self._live, turn=self._live.view.last_turn)

    async def resume(self) -> Turn[OutputT] | None:
        """Go on with whatever can be: a dead turn, a decided one, queued input, children, decisions to pass down.

        Returns:
            The turn that runs, or will when a child is done; None where nothing is to be done, or somebody
            else is at it.

        Raises:
            WrongCall: The session was opened without an agent.
            Changed: The agent given now does not fit what is stored.
        """
        self._node.check_open()
        if self._actor is None:
            raise WrongCall("this session was opened without an agent; use store.open(id, agent) to go on with it")
        return await self._actor.go_on()

    async def cancel(self) -> bool:
        """Cancel the run that is open or parked here, wherever it runs; durable when this returns.

        Its open calls get results that say so, its requests are denied, its children are cancelled, and `wait` of
        its turn raises `TurnCancelled`. What runs in another process sees it at its next append or renewal; if it
        has not ended after a renewal's period, it is ended without it. Queued input stays: see `clear_queue`.

        Returns:
            False where nothing runs or waits, or it has been cancelled before.

        Raises:
            StoreFailed: The store could not write. Nothing was written.
        """
        self._node.check_open()
        return await _cancelling.cancel(self._live)

    async def clear_queue(self) -> int:
        """Drop the input that waits; durable when this returns. `wait` of its turns raises `Dropped`.

        Returns:
            How many messages were dropped. What a turn has taken meanwhile is not among them.
        """
        self._node.check_open()
        await self._live.refresh()
        plan = await self._live.command(_inbox.drop)
        return 0 if plan is None else len(plan.bodies)

    async def branch(self, entry: str | None) -> None:
        """Go on from another entry, between turns: the next message follows it. Durable when this returns.

        Nothing is deleted; what is left aside stays in the journal, and can be branched back to. Where calls wait for
        a person at that entry, they are asked again: the session is parked there, with fresh requests, and decisions
        made before do not apply. Other calls without a result there read as interrupted.

        Args:
            entry: The `id` of one of `path`, or of an earlier path; None is the very beginning.

        Raises:
            WrongCall: The session has no such entry, or is a child; that can be forked.
            Busy: A turn runs or is parked; wait for it, or cancel it.
            StoreFailed: The store could not write. Nothing was written.
        """
        self._node.check_open()
        await self._live.refresh()
        fresh, now = self._node.ids.new(), await self._node.store.now()
        owner = self._node.store.owner
        try:
            await self._live.command(lambda view: _branches.branch(view, entry, owner=owner, fresh=fresh, now=now))
        except Locked:
            raise Busy(f"session {self.id!r} runs a turn; wait for it, or cancel it") from None

    async def fork(self, entry: str | None = None, *, meta: Mapping[str, str] | None = None) -> Session[OutputT]:
        """A new session that has this one's conversation up to an entry; durable when this returns.

        It has the agent, the deps, the title, the metadata and the permissions of this one, and a ledger of its own
        that begins at nothing. What waits for a person is asked again there. Queued input, children and their
        requests stay here; a delegation that is open reads as interrupted there.

        Args:
            entry: The `id` of one of `path`, or of an earlier path; absent: where the session stands.
            meta: More metadata, over this one's.

        Raises:
            WrongCall: The session has no such entry.
            StoreFailed: The store could not write. Nothing was written.
        """
        self._node.check_open()
        await self._live.refresh()
        view = self._live.view
        if entry is not None and entry not in view.tree:
            raise WrongCall(f"session {self.id!r} has no message or result {entry!r}; see session.path for those")
        fresh = self._node.ids.new()
        header = dataclasses.replace(
            view.header,
            thread=fresh,
            root=fresh,
            parent=None,
            call=None,
            depth=0,
            path=(view.header.name,),
            created=self._node.clock.now(),
            meta={**view.index.meta, **checked_meta(meta or {})},
        )
        await _upkeep.fork(self._live, view.leaf if entry is None else entry, header)
        live = await self._node.live(fresh).open()
        mine = self._actor
        return Session(self._node, live, None if mine is None else Actor(self._node, live, mine.agent, mine.deps))

    async def compact(self) -> bool:
        """Put a summary in place of the older part of the conversation, between turns; durable when this returns.

        A session does so by itself where its agent has a `Compaction`. The journal keeps everything, and so does
        `path`.

        Returns:
            False where there is nothing to leave out.

        Raises:
            WrongCall: The session was opened without an agent.
            Busy: A turn runs or is parked, or has begun meanwhile.
            ModelError: The summarizer failed, or its summary cannot be used. Nothing was written.
            StoreFailed: The store could not write. Nothing was written.
        """
        self._node.check_open()
        if self._actor is None:
            raise WrongCall("this session was opened without an agent; use store.open(id, agent) to go on with it")
        try:
            return await self._actor.compact()
        except Locked:
            raise Busy(f"session {self.id!r} runs a turn; wait for it, or cancel it") from None

    async def note(self, name: str, text: str) -> str:
        """Keep something of the application's in the journal; no model sees it. Durable when this returns.

        Returns:
            The entry's id.
        """
        self._node.check_open()
        note = entries.Note(name=clean_text(name), text=clean_text(text))
        return await self._mail(note)

    async def describe(self, *, title: str | None = None, meta: Mapping[str, str | None] | None = None) -> None:
        """Set the title, or metadata; durable when this returns.

        Args:
            title: Absent: as it is; empty: none any more.
            meta: What is given is set, None removes a key, and the rest stays.

        Raises:
            WrongCall: The metadata are not strings by strings.
        """
        self._node.check_open()
        given: Any = meta or {}
        if not isinstance(given, Mapping):
            raise WrongCall(f"metadata is strings by strings, or None to take one away; not {given!r}")
        removed = tuple(checked_meta({key: "" for key, value in given.items() if value is None}))
        kept = checked_meta({key: value for key, value in given.items() if value is not None})
        title = None if title is None else clean_text(title)
        await self._mail(entries.Info(title=title, meta=kept, removed=removed))

    async def _mail(self, body: entries.Body) -> str:
        plan = await self._live.command(lambda _: Plan(bodies=(body,), lease="mail"))
        return "" if plan is None else plan.ids[0]

    async def settled_or_waiting(self) -> None:
        """Return when nothing moves here without the outside: no turn and nothing queued, or all waits for decisions.

        A child that parks again shows here, as a new request in `pending`. Also follows what another
        process runs; it does not start anything, see `resume`.

        Raises:
            Closed: The store was left before.
            StoreFailed: A turn here was given up, since nothing could be written; `resume` goes on with it.
        """
        await self._live.until(self._at_rest)

    def _at_rest(self, view: View) -> bool | None:
        log = self._live.log
        if log is not None and log.lost is not None and view.run is not None and view.run.turn == log.turn:
            raise log.lost
        return view.at_rest() or None

    async def refresh(self) -> None:
        """Fold what others wrote."""
        await self._live.refresh()


def _path_entry(entry: entries.Entry) -> PathEntry:
    match entry.body:
        case entries.Said() as said:
            return PathEntry(id=entry.id, message=said.message)
        case entries.CallResult() as result:
            return PathEntry(id=entry.id, result=as_result(result))
        case entries.Compaction() as compaction:
            return PathEntry(id=entry.id, summary=compaction.summary)
        case _:
            return PathEntry(id=entry.id)


def checked_meta(meta: Mapping[str, str]) -> dict[str, str]:
    """Metadata as they are stored.

    Raises:
        WrongCall: They are not strings by strings.
    """
    given: Any = meta
    if not isinstance(given, Mapping):
        raise WrongCall(f"metadata is strings by strings, {{'customer': 'ann'}}; not {given!r}")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongCall(f"metadata is strings by strings; {key!r} has {value!r}")
    return {clean_text(key): clean_text(value) for key, value in meta.items()}
