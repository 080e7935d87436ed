"""A session together with the agent that can run it: starts its turns, goes on with what was left, drives children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakMethod

from weft._agent import Agent, empty_context
from weft._compaction import Compaction
from weft._contain import Contained
from weft._machine import State
from weft._moves import Begin, Ready, Refused, Steer
from weft._moves import Plan as CallPlan
from weft._run import RunLoop
from weft._setup import Slot, narrower
from weft._tool import Delegate
from weft._toolcall import judge
from weft.errors import Busy, Changed, Closed, Locked
from weft.events import TurnStarted
from weft.messages import Message
from weft.model import info_of
from weft.thread import _approvals, _branches, _cancelling, _inbox, _turns, entries
from weft.thread._again import persisting
from weft.thread._children import Delegation
from weft.thread._live import Live
from weft.thread._node import Node
from weft.thread._room import ask_alone, shorter
from weft.thread._runner import TurnRunner, open_calls
from weft.thread._turnlog import TurnLog
from weft.thread._turns import Plan
from weft.thread._view import CallView, ReceiptView, View
from weft.thread.turn import Turn

T = TypeVar("T")

Work: TypeAlias = Callable[[], Awaitable[None]]
"""Runs a turn that was claimed."""


class Actor:
    """One session, and who runs it here."""

    def __init__(
        self,
        node: Node,
        live: Live,
        agent: Agent[Any, Any],
        deps: object,
        *,
        parent: Actor | None = None,
        delegate: Delegate | None = None,
        receipt: str = "",
    ) -> None:
        self.node = node
        self.live = live
        self.agent = agent
        live.output = agent._output
        if parent is None:
            live.kept_by(WeakMethod(self._go_on_quietly))
        self.deps = deps
        self.parent = parent
        self.delegate = delegate
        self.receipt = receipt
        """A child's, in its parent."""
        self.driven: dict[str, Delegation] = {}
        """By receipt, whose children are at work here."""
        self._going = asyncio.Lock()
        self._watching = False
        """A task sees to what is queued."""

    @property
    def chain(self) -> tuple[object, ...]:
        """The agents above this one."""
        return () if self.parent is None else (*self.parent.chain, self.parent.agent)

    @property
    def held(self) -> tuple[str, ...]:
        """The threads whose turns wait for this one's: its own, and those above."""
        return (self.live.id,) if self.parent is None else (*self.parent.held, self.live.id)

    # -- input

    async def send(self, message: Message, *, policy: _inbox.Policy, key: str | None) -> Turn[Any]:
        """Accept an input, durably; run it at once where nothing is in the way."""
        context = copy_context()
        self.agent._check_ready()  # what keeps a run from beginning is said before anything is written
        if policy == "reject" and self.live.runner is None:
            await self.live.refresh()
        owner, limits = self.node.store.owner, self.agent.limits

        def decide(view: View) -> Plan | None:
            return _inbox.send(view, message, key, policy=policy, first=_inbox.prompt(message, key, owner, limits))

        turns: list[Turn[Any]] = []
        plan = await self._claim_or_queue(decide, lambda plan: turns.append(self._take_up(plan, context)))
        return self._known(key, context) if plan is None else turns[0]

    def _take_up(self, plan: Plan, context: Context) -> Turn[Any]:
        """Run what was accepted, now or when it is its turn; also where its sender waits no longer."""
        if plan.lease == "claim":
            self.live.context = context
            return self.start(plan, {})
        if plan.ids[0] in self.live.view.queue:
            self.live.contexts[plan.ids[0]] = context
        _cancelling.see_to(self.live)  # it may interrupt what runs elsewhere
        self._watch(context)
        return Turn(self.live, item=plan.ids[0])

    def _known(self, key: str | None, context: Context) -> Turn[Any]:
        """The turn of an input that was sent before under this key; who had it then may be dead."""
        if self._has_work(self.live.view):
            self._watch(context)
        return known_turn(self.live, key)

    def _watch(self, context: Context) -> None:
        if not self._watching:
            self._watching = True
            self.node.spawn(self._see_to_input(), name=f"weft queue {self.live.id}", context=context)

    async def _see_to_input(self) -> None:
        try:
            await self._see_to(self._has_work)
        finally:
            self._watching = False

    def _has_work(self, view: View) -> bool:
        """Whether input waits, or a turn runs elsewhere, whose process may die."""
        run = view.run
        elsewhere = run is not None and not run.parked and self.live.runner is None
        return elsewhere or bool(view.queue)

    async def _see_to(self, wanted: Callable[[View], bool]) -> None:
        """Go on for as long as this is so, also where another process dies that is at work on it."""
        tried = (self.live.head, self.live.lease)
        await self._go_on_quietly()
        while wanted(self.live.view) and not self.node.leaving:
            if isinstance(await persisting(self.node.clock, "watcher", self.live.changed), Contained):
                return  # it was deleted, or can be read no more
            now = (self.live.head, self.live.lease)
            if self._is_left() and now != tried:  # what could not be gone on with cannot be now, as long as it is so
                tried = now
                await self._go_on_quietly()

    def _is_left(self) -> bool:
        """Whether nobody is at work on the thread although there is work."""
        run = self.live.view.run
        if self.live.runner is not None or self.live.lease.live:
            return False
        return run is None or run.cancelled is not None or not run.parked

    async def _claim_or_queue(
        self, decide: Callable[[View], Plan | None], then: Callable[[Plan], object]
    ) -> Plan | None:
        """Claim; where somebody else has just claimed, look again."""
        while True:
            try:
                with self.node.claiming():
                    return await self.live.command(decide, then)
            except Locked:
                await self.live.refresh()
                if self.live.view.run is None and not self.live.lease.live:
                    raise
                if self.live.view.run is None:
                    await self.live.changed()

    async def compact(self) -> bool:
        """Put a summary in place of the older part, between turns; whether there was one."""
        await self.live.refresh()
        view, agent = self.live.view, self.agent
        _branches.check_idle(view)
        leaf = view.leaf
        compaction = agent.compaction or Compaction()
        room = compaction.room(info_of(agent._resolved()))._replace(most=None)
        used = compaction.tokens.estimate(view.transcript.messages)
        ask = partial(ask_alone, clock=self.node.clock, ids=self.node.ids)
        made = await shorter(view, compaction, room, used, agent._resolved(compaction.summarizer), ask)
        if made is None:
            return False

        def decide(view: View) -> Plan:
            _branches.check_idle(view)
            if view.leaf != leaf:
                raise Busy(f"session {view.header.thread!r} has gone on meanwhile; try again")
            return Plan(bodies=(made,), lease="claim_once")

        await self.live.command(decide)
        return True

    # -- turns

    def start(self, plan: Plan, plans: Mapping[str, CallPlan]) -> Turn[Any]:
        """Run the turn that was just claimed, in a task of its own."""
        runner, loop, begin, started = self._prepare(plan, plans, Slot(self.delegate, used=True))
        self.node.spawn(
            self._run(runner, loop, begin, started), name=f"weft turn {runner.turn}", context=self._own_context()
        )
        return Turn(self.live, turn=runner.turn, log=runner.log)

    def _own_context(self) -> Context:
        """A copy of the context in which the run was sent; an empty one where that was elsewhere."""
        context = self.live.context
        return empty_context() if context is None else context.copy()

    async def _run(self, runner: TurnRunner, loop: RunLoop, begin: Begin, started: TurnStarted) -> None:
        await runner.run(loop, begin, started)
        _cancelling.see_to(self.live)
        if self.parent is not None or self.node.leaving:
            return
        if runner.log.taken is not None:  # the lease was lost: to somebody, or to nobody
            await self._see_to(lambda view: _is_open(view, started.run) and self.live.runner is None)
        elif self.live.view.queue:
            await self._go_on_quietly()

    def take_on(self, plan: Plan, plans: Mapping[str, CallPlan], slot: Slot) -> Work:
        """Have the turn that was just claimed; what this gives runs it, in the task that calls it."""
        runner, loop, begin, started = self._prepare(plan, plans, slot)
        return partial(runner.run, loop, begin, started)

    def _prepare(
        self, plan: Plan, plans: Mapping[str, CallPlan], slot: Slot
    ) -> tuple[TurnRunner, RunLoop, Begin, TurnStarted]:
        live, agent, view = self.live, self.agent, self.live.view
        run = view.run
        assert run is not None
        delivered = [body.item for body in plan.bodies if isinstance(body, entries.Said) and body.item is not None]
        for item in delivered:
            live.context = live.contexts.pop(item, None)
        setup = agent._setup(deps=self.deps, chain=self.chain, allow=view.header.permissions, stored=True)
        log = live.log = TurnLog(run.turn)
        runner = TurnRunner(live, self, run.turn, log, setup.tools, self.node.rests, agent)
        settled, tail = view.transcript.fork()
        limits = run.limits.stricter(agent.limits)  # the stored rule wins over a laxer one
        loop = RunLoop(
            setup,
            State(run=run.run, limits=limits, rules=setup.rules, progress=run.progress, usage=run.usage, text=run.text),
            tail,
            base=view.transcript.messages,
            base_length=settled,
            replies=view.replies,
            recorder=runner,
            clock=self.node.clock,
            ids=self.node.ids,
            events=log.events,
            slot=slot,
            worked=run.worked,
        )
        runner.loop = loop
        live.runner = runner
        self.node.running(runner)
        if run.cancelled is not None:  # stays in force through every later recovery of its run
            loop.interrupt(run.cancelled)
        for item, message in _inbox.steers(view):
            loop.feed(Steer(message=message, item=item))
        begin = Begin(open=open_calls(view, plans, plan.fresh))
        return runner, loop, begin, TurnStarted(turn=run.turn, run=run.run, cause=run.cause)

    # -- going on

    async def _go_on_quietly(self) -> None:
        outcome = await persisting(self.node.clock, "root", self.go_on)
        if isinstance(outcome, Contained) and not isinstance(outcome.cause, Locked | Closed):
            self.node.report(self.live.id, outcome.cause)

    async def go_on(self) -> Turn[Any] | None:
        """Continue whatever can be: a dead turn, a decided one, queued input, children, decisions to pass down.

        Raises:
            Changed: A call that was approved has no tool any more, or other arguments.
        """
        async with self._going:
            if self.live.runner is None:
                await self.live.refresh()
            return await self._go_on()

    async def _go_on(self) -> Turn[Any] | None:
        running = self.live.runner
        if isinstance(running, TurnRunner):
            await self.pump()
            return Turn(self.live, turn=running.turn, log=running.log)
        if self.parent is None:
            await self._expire()
        await self._end_cancelled()
        view = self.live.view
        if view.run is not None and view.run.parked and not view.resumable():
            turn = view.run.turn
            waits = bool(view.undecided)
            await self.pump()
            return None if waits else Turn(self.live, after=turn)
        return await self.claim_next(self.start)

    async def _end_cancelled(self) -> None:
        """Close what was parked and is cancelled; settle, beside what comes next, what was delegated by it."""
        run = self.live.view.run
        if run is not None and run.parked and run.cancelled is not None:
            await _cancelling.end(self.live)
        _cancelling.see_to(self.live)

    async def claim_next(self, then: Callable[[Plan, Mapping[str, CallPlan]], T]) -> T | None:
        """Claim the thread for the turn that is due; None where there is none, or somebody else has it.

        `then` takes it on: at once, before anything else is decided, and also where nobody waits for this any more.
        """
        self.agent._check_ready()
        plans = await self.judge_open()
        if self.node.leaving:
            return None
        taken: list[T] = []
        try:
            with self.node.claiming():
                decide = partial(self._due, plans=plans)
                await self.live.command(decide, lambda plan: taken.append(then(plan, plans)))
        except Locked:
            return None
        return taken[0] if taken else None

    def _due(self, view: View, plans: Mapping[str, CallPlan]) -> Plan | None:
        owner = self.node.store.owner
        if self.live.runner is not None or any(call.call.id not in plans for call in view.open_calls()):
            return None
        limits = self.agent.limits
        return (
            _turns.recover(view, owner=owner)
            or _turns.resume(view, owner=owner)
            or (_inbox.queued(view, owner=owner, limits=limits) if self.parent is None else None)
        )

    async def judge_open(self) -> dict[str, CallPlan]:
        """What the agent given now makes of the open calls.

        Raises:
            Changed: A call that waits for a person, or was answered, has no tool that fits any more.
        """
        view = self.live.view
        allow = narrower(self.agent.allow, view.header.permissions)
        plans: dict[str, CallPlan] = {}
        for call in view.open_calls():
            asked = bool(call.requests or call.started)
            if call.receipt is not None:
                plans[call.call.id] = Ready(call=call.call, effect="none", digest="", delegate=True)
                continue
            plan = await judge(call.call, self.agent._tools, allow, asked=asked)
            if asked and (isinstance(plan, Refused) or self._schema_differs(call)):
                raise Changed(
                    f"agent {self.agent.name!r} cannot go on with call {call.call.name!r}: its tool is gone or takes "
                    "other arguments now; open the session with an agent that has the tool as it was"
                )
            plans[call.call.id] = plan
        return plans

    def _schema_differs(self, call: CallView) -> bool:
        stored = self.live.view.requests[call.requests[-1]].body.schema if call.requests else None
        return stored is not None and self.agent._tools[call.call.name].schema_digest != stored

    async def _expire(self) -> None:
        now = await self.node.store.now()
        late = _approvals.late_requests(self.live.view, now)
        if late:
            ids = [self.node.ids.new() for _ in range(late)]
            await self.live.command(lambda view: _approvals.expire(view, ids, now))

    def note(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside the turn; nothing of it where the store was left."""
        with suppress(Closed):
            self.node.spawn(work, name=f"weft note {self.live.id}", context=empty_context())

    # -- children

    def start_child(self, receipt: str, *, fresh: bool = False) -> None:
        """Go on with the child of a receipt; `fresh` where it was accepted just now, so no child can be there."""
        if receipt not in self.driven:
            self.driven[receipt] = delegation = Delegation(self, receipt)
            self.node.spawn(delegation.drive(fresh=fresh), name=f"weft child {receipt}", context=self._own_context())

    async def pump(self) -> None:
        """Go on with every child that is not settled: pass decisions down, resume what is decided, settle."""
        for receipt in tuple(self.live.view.unsettled):
            driven = self.driven.get(receipt)
            child = None if driven is None else driven.child
            if driven is not None and child is not None and child.live.loaded:
                await driven.pass_down()
                await child.pump()
            else:
                self.start_child(receipt)

    async def child_of(self, receipt: ReceiptView) -> Actor:
        """The child of a receipt, with the deps that it gets.

        Raises:
            Changed: There is no tool any more that has delegated it.
        """
        accepted = receipt.accepted
        tool = self.agent._tools.get(accepted.wrap or "")
        delegate = None if tool is None else tool._delegate
        if delegate is None or accepted.child is None:
            raise Changed(f"agent {self.agent.name!r} has no delegating tool {accepted.wrap!r} any more")
        deps = await delegate.child_deps(self.deps)
        delegate.agent._check_deps(deps)
        live = self.node.live(accepted.child)
        return Actor(self.node, live, delegate.agent, deps, parent=self, delegate=delegate, receipt=receipt.id)


def _is_open(view: View, run: str) -> bool:
    """Whether this run is at work, here or elsewhere."""
    return view.run is not None and view.run.run == run and not view.run.parked


def known_turn(live: Live, key: str | None) -> Turn[Any]:
    """The turn of an input that was sent before under this key."""
    name = live.view.keys[key or ""][0]
    return Turn(live, turn=name) if name in live.view.started_at else Turn(live, item=name)
