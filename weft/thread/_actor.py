"""A session together with the agent that can run it: starts its turns, goes on with what was left, drives children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol
from weakref import WeakMethod

from weft._agent import Agent, empty_context
from weft._compaction import Compaction
from weft._contain import Contained, contain
from weft._machine import State
from weft._moves import Begin, Ready, Refused, Steer
from weft._moves import Plan as CallPlan
from weft._ports import Clock, Ids
from weft._result import reason_of
from weft._run import RunLoop
from weft._setup import Slot, narrower
from weft._texts import RESULT_CAP
from weft._tool import Delegate
from weft._toolcall import judge
from weft.errors import Busy, Changed, Closed, Locked, NotFound, TryAgain, WeftError, WrongCall
from weft.events import TurnStarted
from weft.messages import Message
from weft.model import info_of
from weft.thread import _approvals, _branches, _cancelling, _inbox, _receipts, _turns, entries
from weft.thread._again import FIRST_PAUSE, LONGEST_PAUSE, persisting
from weft.thread._live import Live
from weft.thread._room import ask_alone, shorter
from weft.thread._runner import TurnRunner, open_calls
from weft.thread._turnlog import TurnLog
from weft.thread._turns import Plan
from weft.thread._view import CallView, ReceiptView, View
from weft.thread.entries import Header
from weft.thread.store import Store
from weft.thread.turn import Turn


class Place(Protocol):
    """What an actor needs of the store that it works in."""

    store: Store
    clock: Clock
    ids: Ids

    @property
    def leaving(self) -> bool:
        """Whether no new turn may begin."""
        ...

    def live(self, thread: str) -> Live:
        """The live thread of this id."""
        ...

    def spawn(self, work: Any, *, name: str, context: Context | None = None) -> None:
        """Start a task in the store's group."""
        ...

    def claiming(self) -> AbstractContextManager[None]:
        """While a turn is being claimed here."""
        ...

    def running(self, runner: TurnRunner) -> None:
        """A turn runs here, until it is done."""
        ...

    def rests(self, runner: TurnRunner) -> None:
        """A turn that ran here is over."""
        ...

    def report(self, thread: str, error: Exception) -> None:
        """Something could not be gone on with, and was left."""
        ...


class Actor:
    """One session, and who runs it here."""

    def __init__(
        self,
        place: Place,
        live: Live,
        agent: Agent[Any, Any],
        deps: object,
        *,
        parent: Actor | None = None,
        delegate: Delegate | None = None,
    ) -> None:
        self.place = place
        self.live = live
        self.agent = agent
        live.output = agent._output
        if parent is None:
            live.kept_by(WeakMethod(self._go_on_quietly))
        self.deps = deps
        self.parent = parent
        self._delegate = delegate
        self.receipt = ""
        """A child's, in its parent."""
        self._driven: dict[str, Actor | None] = {}
        """The receipts whose children are being driven here; None where the child is not yet known."""
        self._going = asyncio.Lock()
        self._watching = False
        """A task sees to what is queued."""

    @property
    def chain(self) -> tuple[object, ...]:
        """The agents above this one."""
        return () if self.parent is None else (*self.parent.chain, self.parent.agent)

    # -- input

    async def send(self, message: Message, *, policy: _inbox.Policy, key: str | None) -> Turn[Any]:
        """Accept an input, durably; run it at once where nothing is in the way."""
        context = copy_context()
        self.agent._check_ready()  # what keeps a run from beginning is said before anything is written
        if policy == "reject" and self.live.runner is None:
            await self.live.refresh()
        owner, limits = self.place.store.owner, self.agent.limits

        def decide(view: View) -> Plan | None:
            return _inbox.send(view, message, key, policy=policy, first=_inbox.prompt(message, key, owner, limits))

        turns: list[Turn[Any]] = []
        plan = await self._claim_or_queue(decide, lambda plan: turns.append(self._take_up(plan, context)))
        return self._known(key, context) if plan is None else turns[0]

    def _take_up(self, plan: Plan, context: Context) -> Turn[Any]:
        """Run what was accepted, now or when it is its turn; also where its sender waits no longer."""
        if plan.lease == "claim":
            self.live.context = context
            return self._start(plan, {})
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
            self.place.spawn(self._see_to_input(), name=f"weft queue {self.live.id}", context=context)

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
        while wanted(self.live.view) and not self.place.leaving:
            if isinstance(await persisting(self.place.clock, "watcher", self.live.changed), Contained):
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
                with self.place.claiming():
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
        ask = partial(ask_alone, clock=self.place.clock, ids=self.place.ids)
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

    def _start(self, plan: Plan, plans: Mapping[str, CallPlan]) -> Turn[Any]:
        """Run the turn that was just claimed, in a task of its own."""
        runner, loop, begin, started = self._prepare(plan, plans, Slot(self._delegate, used=True))
        self.place.spawn(
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
        if self.parent is not None or self.place.leaving:
            return
        if runner.log.taken is not None:  # the lease was lost: to somebody, or to nobody
            await self._see_to(lambda view: _is_open(view, started.run) and self.live.runner is None)
        elif self.live.view.queue:
            await self._go_on_quietly()

    def _run_here(self, plan: Plan, plans: Mapping[str, CallPlan], slot: Slot) -> Awaitable[None]:
        """Run the turn that was just claimed, in the present task."""
        runner, loop, begin, started = self._prepare(plan, plans, slot)
        return runner.run(loop, begin, started)

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
        runner = TurnRunner(live, self, run.turn, log, setup.tools, self.place.rests, agent)
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
            clock=self.place.clock,
            ids=self.place.ids,
            events=log.events,
            slot=slot,
            worked=run.worked,
        )
        runner.loop = loop
        live.runner = runner
        self.place.running(runner)
        if run.cancelled is not None:  # stays in force through every later recovery of its run
            loop.interrupt(run.cancelled)
        for item, message in _inbox.steers(view):
            loop.feed(Steer(message=message, item=item))
        begin = Begin(open=open_calls(view, plans, plan.fresh))
        return runner, loop, begin, TurnStarted(turn=run.turn, run=run.run, cause=run.cause)

    # -- going on

    async def _go_on_quietly(self) -> None:
        outcome = await persisting(self.place.clock, "root", self.go_on)
        if isinstance(outcome, Contained) and not isinstance(outcome.cause, Locked | Closed):
            self.place.report(self.live.id, outcome.cause)

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
        turns: list[Turn[Any]] = []
        claimed = await self._claim_next(lambda plan, plans: turns.append(self._start(plan, plans)))
        return None if claimed is None else turns[0]

    async def _end_cancelled(self) -> None:
        """Close what was parked and is cancelled; settle, beside what comes next, what was delegated by it."""
        run = self.live.view.run
        if run is not None and run.parked and run.cancelled is not None:
            await _cancelling.end(self.live)
        _cancelling.see_to(self.live)

    async def _claim_next(
        self, then: Callable[[Plan, Mapping[str, CallPlan]], object] | None = None
    ) -> tuple[Plan, Mapping[str, CallPlan]] | None:
        """Claim the thread for the turn that is due; None where there is none, or somebody else has it.

        `then` is called once it is claimed, also where nobody waits for this any more.
        """
        self.agent._check_ready()
        plans = await self._judge_open()
        if self.place.leaving:
            return None
        try:
            with self.place.claiming():
                start = None if then is None else partial(_swapped, then, plans)
                plan = await self.live.command(lambda view: self._due(view, plans), start)
        except Locked:
            return None
        return None if plan is None else (plan, plans)

    def _due(self, view: View, plans: Mapping[str, CallPlan]) -> Plan | None:
        owner = self.place.store.owner
        if any(call.call.id not in plans for call in view.open_calls()):
            return None
        limits = self.agent.limits
        return (
            _turns.recover(view, owner=owner)
            or _turns.resume(view, owner=owner)
            or (_inbox.queued(view, owner=owner, limits=limits) if self.parent is None else None)
        )

    async def _judge_open(self) -> dict[str, CallPlan]:
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
        now = await self.place.store.now()
        late = _approvals.late_requests(self.live.view, now)
        if late:
            ids = [self.place.ids.new() for _ in range(late)]
            await self.live.command(lambda view: _approvals.expire(view, ids, now))

    def note(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside the turn; nothing of it where the store was left."""
        with suppress(Closed):
            self.place.spawn(work, name=f"weft note {self.live.id}", context=empty_context())

    # -- children

    def start_child(self, receipt: str, *, fresh: bool = False) -> None:
        """Go on with the child of a receipt; `fresh` where it was accepted just now, so no child can be there."""
        if receipt not in self._driven:
            self._driven[receipt] = None
            self.place.spawn(
                self._drive(receipt, fresh=fresh), name=f"weft child {receipt}", context=self._own_context()
            )

    async def pump(self) -> None:
        """Go on with every child that is not settled: pass decisions down, resume what is decided, settle."""
        for receipt in tuple(self.live.view.unsettled):
            child = self._driven.get(receipt)
            if child is not None and child.live.loaded:
                await self._pass_down(child)
                await child.pump()
            else:
                self.start_child(receipt)

    async def _drive(self, receipt: str, *, fresh: bool) -> None:
        pause = FIRST_PAUSE
        try:
            outcome = await contain("child", self._drive_child(receipt, fresh=fresh))
            while isinstance(outcome, Contained) and isinstance(outcome.cause, TryAgain):
                await self.place.clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                outcome = await contain("child", self._drive_child(receipt, fresh=False))
        finally:
            self._driven.pop(receipt, None)
        if isinstance(outcome, Contained):
            self.place.report(self.live.id, outcome.cause)
            stuck = partial(self._child_stuck, receipt, outcome.cause)
            left = await persisting(self.place.clock, "child", stuck)
            if isinstance(left, Contained) and not isinstance(left.cause, Closed):
                self.place.report(self.live.id, left.cause)

    async def _child_stuck(self, receipt: str, cause: Exception) -> None:
        """What cannot be gone on with is left for later; what is a fault of the program settles as failed."""
        accepted = self.live.view.receipts[receipt].accepted
        if isinstance(cause, WeftError) and not isinstance(cause, WrongCall):
            runner = self.live.runner
            if isinstance(runner, TurnRunner) and accepted.call is not None:
                runner.parked(accepted.call)
            return
        stop = reason_of(cause)
        await self._settle(accepted.call, entries.Receipt(receipt=receipt, state="failed", stop=stop), ())

    async def _drive_child(self, name: str, *, fresh: bool) -> None:
        """Bring one child to its end, or to where it waits for a person; then say so here."""
        receipt = self.live.view.receipts[name]
        child = await self._child(receipt)
        child.receipt = name
        self._driven[name] = child
        new = fresh or await child._is_new()
        if new and receipt.requests:  # it has asked, so it was there: begun again it would do everything twice
            await self._lost(receipt)
            return
        slot = Slot(child._delegate, used=not new and bool(child.live.view.started_at))
        try:
            if new:
                await child._begin_as_child(receipt, self.live.view.header, slot)
            if not child.live.loaded:  # it was cancelled before there was a child
                await _cancelling.settle(self.live, _receipts.cancelled(name), ())
                return
            await self._drive_to_rest(name, receipt, child, slot)
        finally:
            slot.hand_back()

    async def _lost(self, receipt: ReceiptView) -> None:
        """The child's thread was there and is not any more: deleted, or left out of an export."""
        accepted = receipt.accepted
        self.place.report(self.live.id, NotFound(accepted.child or ""))
        stop = f"its session {accepted.child!r} is gone, and so is what it has done"
        await self._settle(accepted.call, entries.Receipt(receipt=receipt.id, state="failed", stop=stop), ())

    async def _drive_to_rest(self, name: str, receipt: ReceiptView, child: Actor, slot: Slot) -> None:
        while True:
            view = child.live.view
            if self._is_over(receipt):
                await _cancelling.cancel(child.live)
            if view.run is None and view.orphans():
                await _cancelling.end(child.live)
            if view.run is None and view.ended:
                end = next(reversed(view.ended.values()))
                settled = _receipts.settlement(name, end, view, self._cap(receipt))
                await self._settle(receipt.accepted.call, settled, tuple(view.requests))
                return
            await self._pass_down(child)
            if await child._step(receipt, slot):
                continue
            if view.undecided and await self._wait_for_decisions(name, child):
                return

    def _is_over(self, receipt: ReceiptView) -> bool:
        """Whether nobody waits for the child any more, since the run that has delegated was cancelled."""
        return receipt.settled is not None or self.live.view.is_orphan(receipt)

    async def _is_over_by_now(self, receipt: ReceiptView) -> bool:
        """The same, where a child is about to begin; read anew where somebody else may have ended the run."""
        if not self.live.may_act():
            await self.live.refresh()
        return self._is_over(receipt)

    async def _child(self, receipt: ReceiptView) -> Actor:
        accepted = receipt.accepted
        tool = self.agent._tools.get(accepted.wrap or "")
        delegate = None if tool is None else tool._delegate
        if delegate is None or accepted.child is None:
            raise Changed(f"agent {self.agent.name!r} has no delegating tool {accepted.wrap!r} any more")
        deps = await delegate.child_deps(self.deps)
        delegate.agent._check_deps(deps)
        live = self.place.live(accepted.child)
        return Actor(self.place, live, delegate.agent, deps, parent=self, delegate=delegate)

    def _cap(self, receipt: ReceiptView) -> int:
        tool = self.agent._tools.get(receipt.accepted.wrap or "")
        return RESULT_CAP if tool is None else tool.cap

    async def _is_new(self) -> bool:
        try:
            await self.live.open()
        except NotFound:
            return True
        return False

    async def _begin_as_child(self, receipt: ReceiptView, parent: Header, slot: Slot) -> None:
        """Create the child with a slot in hand, and run its first turn. Repeats nothing that is there."""
        self.agent._check_ready()
        await slot.take()
        over = self.parent is not None and await self.parent._is_over_by_now(receipt)
        if over or self.live.loaded:  # or another handle's actor has made it while this one waited
            slot.hand_back()
            return
        allow = narrower(self.agent.allow, parent.permissions)
        if self._delegate is not None:
            allow = narrower(allow, self._delegate.allow)
        header = _receipts.child_header(parent, receipt, allow, self.place.clock.now())
        self.live.context = copy_context()
        line, created = self.live.found(header)
        plan = await contain("child", self._first_prompt(receipt))
        kept = await contain("child", created)
        if isinstance(kept, Contained):  # also why the plan has failed
            raise kept.cause
        if kept != line:  # somebody else has made it, or has ended it before it began
            self.live.close(Busy(f"thread {self.live.id!r} was made elsewhere just now; try again"))
            self.live = await self.place.live(self.live.id).open()
            self.live.output = self.agent._output
            slot.hand_back()
            return
        if isinstance(plan, Contained):
            raise plan.cause
        await self._run_first(plan, slot)

    async def _run_first(self, plan: Plan | None, slot: Slot) -> None:
        """Run the turn that was claimed with a slot in hand; where somebody else was first, it is not needed."""
        if plan is None:
            slot.hand_back()
        else:
            await self._run_here(plan, {}, slot)

    async def _first_prompt(self, receipt: ReceiptView) -> Plan | None:
        accepted = receipt.accepted
        message = Message.user(accepted.prompt or "")
        owner = self.place.store.owner

        def decide(view: View) -> Plan | None:
            if view.run is not None or view.ended:
                return None
            return _inbox.prompt(message, accepted.call, owner, self.agent.limits)

        return await self.live.command(decide)

    async def _step(self, receipt: ReceiptView, slot: Slot) -> bool:
        """One step of a child that is not over; False where nothing can be done here and now."""
        view = self.live.view
        running = self.live.runner
        if isinstance(running, TurnRunner):
            await running.finished()
            return True
        if view.run is None:
            await slot.take()
            await self._run_first(await self._first_prompt(receipt), slot)
            return True
        if not view.run.parked or view.resumable():
            await self._claim_and_run(slot)
            return True
        if view.undecided:
            return False
        seen = self.live.version
        await self.pump()
        await self.live.changed(seen)
        return True

    async def _claim_and_run(self, slot: Slot) -> None:
        seen = self.live.version
        claimed = await self._claim_next()
        if claimed is None:
            await self.live.changed(seen)
        else:
            await self._run_here(*claimed, slot)

    async def _pass_down(self, child: Actor) -> None:
        """The decisions that stand here, for requests that wait in the child."""
        if not child.live.loaded or not child.live.view.undecided:
            return
        decisions = _approvals.made(self.live.view, child.live.view.undecided)
        if decisions:
            await child.live.command(lambda view: _approvals.push(view, decisions))

    async def _wait_for_decisions(self, name: str, child: Actor) -> bool:
        """Mirror what the child waits for up to the root, park its receipt; False if it is decided meanwhile."""
        requests = _receipts.mirrored(child.live.view)
        names = tuple(body.request for body in requests if body.request is not None)
        below, ancestor = child, child.parent
        while ancestor is not None:
            plan = partial(_receipts.mirror, requests=requests, receipt=below.receipt)
            await ancestor.live.command(plan)
            if not all(request in ancestor.live.view.requests for request in names):  # nobody waits for it any more
                await _cancelling.retract_above(child.live, names, await self.place.store.now())
                return ancestor is not self  # who is above cancels this session, and it then its child
            below, ancestor = ancestor, ancestor.parent
        await self.live.command(lambda view: _receipts.park(view, name, names))
        receipt = self.live.view.receipts[name]
        if receipt.settled is not None:
            await _cancelling.retract_above(self.live, names, await self.place.store.now())
            return True
        if not any(request in self.live.view.undecided for request in names):
            return False
        runner = self.live.runner
        if isinstance(runner, TurnRunner) and receipt.accepted.call is not None:
            runner.parked(receipt.accepted.call)
        return True

    async def _settle(self, call: str | None, body: entries.Receipt, asked: tuple[str, ...]) -> None:
        """Record a child's end here: by the running turn, or with the resume that it allows, or as mail."""
        asked = tuple(dict.fromkeys((*self.live.view.receipts[body.receipt or ""].requests, *asked)))
        while True:
            runner = self.live.runner
            if isinstance(runner, TurnRunner):
                if call is not None and runner.settle(call, body, asked):
                    break
                await runner.finished()
                continue
            await self._settle_at_rest(body, asked)
            break
        if asked:
            await _cancelling.retract_above(self.live, asked, await self.place.store.now())

    async def _settle_at_rest(self, body: entries.Receipt, asked: tuple[str, ...]) -> None:
        owner = self.place.store.owner
        outcome = await contain("root", self._judge_open())
        plans = {} if isinstance(outcome, Contained) else outcome
        resumes = not isinstance(outcome, Contained) and not self.place.leaving
        now = await self.place.store.now()

        def decide(view: View) -> Plan | None:
            known = all(call.call.id in plans for call in view.open_calls())
            return _receipts.settle(view, body, asked, owner=owner, may_resume=resumes and known, now=now)

        try:
            with self.place.claiming():
                plan = await self.live.command(decide)
        except Locked:
            resumes = False
            plan = await self.live.command(decide)
        if plan is not None and plan.lease == "claim":
            self._start(plan, plans)


def _is_open(view: View, run: str) -> bool:
    """Whether this run is at work, here or elsewhere."""
    return view.run is not None and view.run.run == run and not view.run.parked


def _swapped(
    then: Callable[[Plan, Mapping[str, CallPlan]], object], plans: Mapping[str, CallPlan], plan: Plan
) -> object:
    return then(plan, plans)


def known_turn(live: Live, key: str | None) -> Turn[Any]:
    """The turn of an input that was sent before under this key."""
    name = live.view.keys[key or ""][0]
    return Turn(live, turn=name) if name in live.view.started_at else Turn(live, item=name)
