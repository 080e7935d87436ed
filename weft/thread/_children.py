"""A child at work here: brought to its end, or to where it waits for a person; then its parent is told."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from weft._contain import Contained, contain
from weft._result import reason_of
from weft._setup import Slot, narrower
from weft._texts import RESULT_CAP
from weft.errors import Closed, Locked, NotFound, TryAgain, WeftError, WrongCall
from weft.messages import Message
from weft.thread import _approvals, _cancelling, _inbox, _receipts
from weft.thread._again import FIRST_PAUSE, LONGEST_PAUSE, persisting
from weft.thread._runner import TurnRunner
from weft.thread._turns import Plan
from weft.thread._view import ReceiptView, View
from weft.thread.entries import Receipt

if TYPE_CHECKING:
    from weft.thread._actor import Actor, Work


class Delegation:
    """One receipt whose child is driven here, in a task of its own.

    Args:
        parent: Who has delegated.
        receipt: The receipt's id.
    """

    __slots__ = ("_name", "_parent", "child")

    def __init__(self, parent: Actor, receipt: str) -> None:
        self._parent = parent
        self._name = receipt
        self.child: Actor | None = None
        """None where it is not yet known."""

    @property
    def _receipt(self) -> ReceiptView:
        return self._parent.live.view.receipts[self._name]

    async def drive(self, *, fresh: bool) -> None:
        """Go on with the child; `fresh` where it was accepted just now, so no child can be there."""
        node, parent = self._parent.node, self._parent.live.id
        pause = FIRST_PAUSE
        try:
            outcome = await contain("child", self._drive(fresh=fresh))
            while isinstance(outcome, Contained) and isinstance(outcome.cause, TryAgain):
                await node.clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                outcome = await contain("child", self._drive(fresh=False))
        finally:
            self._parent.driven.pop(self._name, None)
        if isinstance(outcome, Contained):
            node.report(parent, outcome.cause)
            left = await persisting(node.clock, "child", partial(self._stuck, outcome.cause))
            if isinstance(left, Contained) and not isinstance(left.cause, Closed):
                node.report(parent, left.cause)

    async def _stuck(self, cause: Exception) -> None:
        """What cannot be gone on with is left for later; what is a fault of the program settles as failed."""
        if isinstance(cause, WeftError) and not isinstance(cause, WrongCall):
            self._park_call()
        else:
            await self._fail(reason_of(cause))

    def _park_call(self) -> None:
        """The parent's running turn has nothing to wait for in this call."""
        runner, call = self._parent.live.runner, self._receipt.accepted.call
        if isinstance(runner, TurnRunner) and call is not None:
            runner.parked(call)

    async def _fail(self, why: str) -> None:
        await self._settle(Receipt(receipt=self._name, state="failed", stop=why), ())

    async def _drive(self, *, fresh: bool) -> None:
        """Bring the child to its end, or to where it waits for a person; then say so in the parent."""
        receipt, parent = self._receipt, self._parent
        child = self.child = await parent.child_of(receipt)
        new = fresh or await _is_new(child)
        if new and receipt.requests:  # it has asked, so it was there: begun again it would do everything twice
            await self._lost()
            return
        slot = Slot(child.delegate, used=not new and bool(child.live.view.started_at))
        try:
            if new:
                await self._begin(child, slot)
            if not child.live.loaded:  # it was cancelled before there was a child
                await _cancelling.settle(parent.live, _receipts.cancelled(self._name), ())
                return
            await self._to_rest(child, slot)
        finally:
            slot.hand_back()

    async def _lost(self) -> None:
        """The child's thread was there and is not any more: deleted, or left out of an export."""
        child = self._receipt.accepted.child
        self._parent.node.report(self._parent.live.id, NotFound(child or ""))
        await self._fail(f"its session {child!r} is gone, and so is what it has done")

    def _is_over(self) -> bool:
        """Whether nobody waits for the child any more, since the run that has delegated was cancelled."""
        receipt = self._receipt
        return receipt.settled is not None or self._parent.live.view.is_orphan(receipt)

    # -- its beginning

    async def _begin(self, child: Actor, slot: Slot) -> None:
        """Create the child with a slot in hand, and run its first turn. Repeats nothing that is there."""
        child.agent._check_ready()
        if not await self._may_begin(slot) or child.live.loaded:  # another handle's actor may have made it meanwhile
            slot.hand_back()
            return
        await _run(await self._make(child, slot), slot)

    async def _may_begin(self, slot: Slot) -> bool:
        """Wait for a slot; whether the child is still waited for by then."""
        await slot.take()
        if not self._parent.live.may_act():  # somebody else may have ended the run
            await self._parent.live.refresh()
        return not self._is_over()

    async def _make(self, child: Actor, slot: Slot) -> Work | None:
        """The child's thread with its first turn, at once; None where somebody else has made it, or has ended it."""
        parent = self._parent.live.view.header
        allow = narrower(child.agent.allow, parent.permissions)
        if child.delegate is not None:
            allow = narrower(allow, child.delegate.allow)
        header = _receipts.child_header(parent, self._receipt, allow, child.node.clock.now())
        child.live.context = copy_context()
        line, created = child.live.found(header)
        work = await contain("child", self._first_turn(child, slot))
        kept = await contain("child", created)
        if isinstance(kept, Contained):  # also why there is no turn
            raise kept.cause
        if kept != line:
            child.live = await child.node.live(child.live.id).open()
            child.live.output = child.agent._output
            return None
        if isinstance(work, Contained):
            raise work.cause
        return work

    async def _first_turn(self, child: Actor, slot: Slot) -> Work | None:
        """Claim it, with a slot in hand; None where somebody else was first."""
        accepted = self._receipt.accepted
        message = Message.user(accepted.prompt or "")
        owner, limits = child.node.store.owner, child.agent.limits

        def decide(view: View) -> Plan | None:
            if view.run is not None or view.ended:
                return None
            return _inbox.prompt(message, accepted.call, owner, limits)

        taken: list[Work] = []
        await child.live.command(decide, lambda plan: taken.append(child.take_on(plan, {}, slot)))
        return taken[0] if taken else None

    # -- its way to where it rests

    async def _to_rest(self, child: Actor, slot: Slot) -> None:
        while True:
            view = child.live.view
            if self._is_over():
                await _cancelling.cancel(child.live)
                await _cancelling.never_begin(child.live)
            if view.run is None and view.orphans():
                await _cancelling.end(child.live)
            if view.run is None and view.ended:
                end = next(reversed(view.ended.values()))
                settled = _receipts.settlement(self._name, end, view, self._cap())
                await self._settle(settled, tuple(view.requests))
                return
            await self.pass_down()
            if await self._step(child, slot):
                continue
            if view.undecided and await self._wait_for_decisions(child) and not await self._go_on_below(child):
                return

    def _cap(self) -> int:
        tool = self._parent.agent._tools.get(self._receipt.accepted.wrap or "")
        return RESULT_CAP if tool is None else tool.cap

    async def _step(self, child: Actor, slot: Slot) -> bool:
        """One step of a child that is not over; False where nothing can be done here and now."""
        view = child.live.view
        running = child.live.runner
        if isinstance(running, TurnRunner):
            await running.finished()
            return True
        if view.run is None:
            await _run(await self._first_turn(child, slot) if await self._may_begin(slot) else None, slot)
            return True
        if not view.run.parked or view.resumable():
            await _claim_and_run(child, slot)
            return True
        if view.undecided:
            return False
        await self._pump(child)
        return True

    async def _pump(self, child: Actor) -> None:
        """Go on with the child's own children, and return when there is news: what cannot be gone on with stays so."""
        tried = self._seen(child)
        await child.pump()
        while self._seen(child) == tried and child.live.runner is None:
            await child.live.changed()

    async def _go_on_below(self, child: Actor) -> bool:
        """Go on with what is decided below a child that waits for a person; whether there is news of it."""
        if not _some_decided(child.live.view):
            return False
        tried = self._seen(child)
        await child.pump()
        while child.driven:
            await child.live.changed()
        return self._seen(child) != tried

    def _seen(self, child: Actor) -> tuple[object, ...]:
        return child.live.head, child.live.lease, self._parent.live.head

    async def pass_down(self) -> None:
        """The decisions that stand in the parent, for requests that wait in the child."""
        child = self.child
        if child is None or not child.live.loaded or not child.live.view.undecided:
            return
        decisions = _approvals.made(self._parent.live.view, child.live.view.undecided)
        if decisions:
            await child.live.command(lambda view: _approvals.push(view, decisions))

    async def _wait_for_decisions(self, child: Actor) -> bool:
        """Mirror what the child waits for up to the root, park its receipt; False if it is decided meanwhile."""
        parent = self._parent
        requests = _receipts.mirrored(child.live.view)
        names = tuple(body.request for body in requests if body.request is not None)
        below, ancestor = child, child.parent
        while ancestor is not None:
            plan = partial(_receipts.mirror, requests=requests, receipt=below.receipt)
            await ancestor.live.command(plan)
            if not all(request in ancestor.live.view.requests for request in names):  # nobody waits for it any more
                await _cancelling.retract_above(child.live, names, await parent.node.store.now())
                return ancestor is not parent  # who is above cancels the parent, and it then its child
            below, ancestor = ancestor, ancestor.parent
        await parent.live.command(lambda view: _receipts.park(view, self._name, names))
        if self._receipt.settled is not None:
            await _cancelling.retract_above(parent.live, names, await parent.node.store.now())
            return True
        if not any(request in parent.live.view.undecided for request in names):
            return False
        self._park_call()
        return True

    # -- its end

    async def _settle(self, body: Receipt, asked: tuple[str, ...]) -> None:
        """Record the child's end in the parent: by the running turn, or with the resume that it allows, or as mail."""
        live, receipt = self._parent.live, self._receipt
        call = receipt.accepted.call
        asked = tuple(dict.fromkeys((*receipt.requests, *asked)))
        while True:
            runner = live.runner
            if isinstance(runner, TurnRunner):
                if call is not None and runner.settle(call, body, asked):
                    break
                await runner.finished()
                continue
            await self._settle_at_rest(body, asked)
            break
        if asked:
            await _cancelling.retract_above(live, asked, await self._parent.node.store.now())

    async def _settle_at_rest(self, body: Receipt, asked: tuple[str, ...]) -> None:
        parent, node = self._parent, self._parent.node
        owner = node.store.owner
        outcome = await contain("root", parent.judge_open())
        plans = {} if isinstance(outcome, Contained) else outcome
        resumes = not isinstance(outcome, Contained) and not node.leaving
        now = await node.store.now()

        def decide(view: View) -> Plan | None:
            known = all(call.call.id in plans for call in view.open_calls())
            return _receipts.settle(view, body, asked, owner=owner, may_resume=resumes and known, now=now)

        try:
            with node.claiming():
                plan = await parent.live.command(decide)
        except Locked:
            resumes = False
            plan = await parent.live.command(decide)
        if plan is not None and plan.lease == "claim":
            parent.start(plan, plans)


def _some_decided(view: View) -> bool:
    """Whether something that a delegation here has asked is decided, so that it may go on."""
    open_ = (view.receipts[name] for name in view.unsettled)
    return any(name not in view.undecided for receipt in open_ for name in receipt.requests)


async def _is_new(child: Actor) -> bool:
    try:
        await child.live.open()
    except NotFound:
        return True
    return False


async def _run(work: Work | None, slot: Slot) -> None:
    """Run a turn that was claimed with a slot in hand; where there is none, the slot is not needed."""
    if work is None:
        slot.hand_back()
    else:
        await work()


async def _claim_and_run(child: Actor, slot: Slot) -> None:
    seen = child.live.version
    work = await child.claim_next(partial(child.take_on, slot=slot))
    if work is None:
        await child.live.changed(seen)
    else:
        await work()
