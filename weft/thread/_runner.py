"""Runs one turn: the core's loop, with its facts turned into entries of the live thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from weft import _texts
from weft._agent import Agent
from weft._compaction import Compaction
from weft._contain import Contained, contain, contain_call
from weft._moves import (
    STRICTNESS,
    Asked,
    Begin,
    CallFinished,
    CallParked,
    CallResumed,
    Ended,
    Fact,
    Finished,
    Input,
    Joined,
    OpenCall,
    Plan,
    Ready,
    Record,
    Recorded,
    Refused,
    Said,
    Start,
    Started,
    Steer,
    Submitted,
)
from weft._repair import History
from weft._run import RunLoop
from weft._tool import Tool
from weft._toolcall import digest_of
from weft.errors import Locked
from weft.events import Compacted, TurnEnded, TurnStarted
from weft.messages import ErrorInfo, Message, ToolCall, ToolResult
from weft.model import info_of
from weft.thread import entries
from weft.thread._live import Live
from weft.thread._receipts import child_id, over
from weft.thread._room import Unusable, shorter
from weft.thread._turnlog import Failure, TurnLog
from weft.thread._turns import LeaseKind, as_body, fail, of_receipt
from weft.thread._turns import Plan as Entries
from weft.thread._view import CallView, View
from weft.thread.entries import (
    SETTLED,
    Body,
    CallResult,
    Cancel,
    Decision,
    Entry,
    Inbox,
    Receipt,
    StartedCall,
    ToolsStarted,
)

Allowed = ("approve", "deny", "resolve")


class Children(Protocol):
    """Starts the children of a turn, and goes on with them."""

    @property
    def held(self) -> tuple[str, ...]:
        """The threads whose turns wait for what runs here."""
        ...

    def start_child(self, receipt: str, *, fresh: bool = False) -> None:
        """Drive the receipt's child; the outcome is given to the runner."""
        ...

    def note(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside the turn, as long as the store is open."""
        ...


class TurnRunner:
    """One turn of one session, from its claim to its end."""

    durable = True

    def __init__(
        self,
        live: Live,
        children: Children,
        turn: str,
        log: TurnLog,
        tools: Mapping[str, Tool[Any]],
        rests: Callable[[TurnRunner], None],
        agent: Agent[Any, Any],
    ) -> None:
        self.live = live
        self.thread: str | None = live.id
        self.turn = turn
        self.log = log
        self._rests = rests
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.loop: RunLoop | None = None
        self._children = children
        self.held = children.held
        self._tools = tools
        self._settlements: dict[str, Receipt] = {}
        self._asked: dict[str, tuple[str, ...]] = {}
        """By call: what its child had asked, where that has ended."""
        self._accepted: set[str] | None = None
        """The delegating calls whose receipts are of this turn."""
        self._revoked = False
        self._told = live.head.count
        """How many entries there were when the last of this turn was written here."""
        self._agent = agent
        self._reported = live.view.reported
        """Tokens of the last reply with all that went before, and how many messages those are."""
        self._writing: asyncio.Future[bool] | None = None
        """A compaction that is on its way; done with False where it was dropped."""
        self._no_room = False
        """A summary has failed."""
        self._unwritable: Exception | None = None
        """Why what has happened could not be recorded."""

    # -- the core's recorder

    def record(self, record: Record) -> None:
        """Append the facts, under the turn's lease."""
        kept = contain_call("turn", lambda: self._record(record))
        if isinstance(kept, Contained) and self.loop is not None:  # what cannot be stored; or the clock has failed
            self._unwritable = kept.cause
            self.loop.interrupt("leave")

    def _record(self, record: Record) -> None:
        bodies: list[Body] = []
        for fact in record.facts:
            bodies += self._bodies(fact)
        ended = any(isinstance(fact, Ended) for fact in record.facts)
        self._append(bodies, "release" if ended else "hold", self._recorded)

    def _append(self, bodies: Sequence[Body], lease: LeaseKind, done: Callable[[], object]) -> None:
        if not self._revoked:  # it ends at the loop's next turn; what comes until then would follow the lost lease
            self.live.record(bodies, lease, done)

    def _recorded(self) -> None:
        self._told = self.live.head.count
        if self.loop is not None:
            self.loop.feed(Recorded())

    def _bodies(self, fact: Fact) -> list[Body]:
        match fact:
            case Said():
                self._note_usage(fact)
                said = entries.Said(message=fact.message, usage=fact.usage, model=fact.model, finish=fact.finish)
                return [said]
            case Started():
                return self._started(fact.starts)
            case Finished():
                return self._finished(fact)
            case Asked():
                return [self._request(fact)]
            case Joined():
                source = None if fact.source == "steer" else fact.source
                return [entries.Said(message=fact.message, item=fact.item, source=source)]
            case Ended():
                end = entries.TurnEnded(
                    turn=self.turn,
                    outcome=fact.outcome,
                    stop=fact.stop,
                    error=fact.error,
                    open=fact.open,
                    usage=fact.usage,
                )
                return [end]

    def _note_usage(self, fact: Said) -> None:
        """What the provider has reported counts where the conversation may have to be made shorter."""
        loop = self.loop
        if loop is not None and loop.setup.compaction is not None and fact.usage is not None:
            self._reported = (fact.usage.tokens, _through(fact.message, loop.history()))

    def _started(self, starts: tuple[Start, ...]) -> list[Body]:
        calls = tuple(StartedCall(call=s.call, attempt=s.attempt, effect=s.effect, digest=s.digest) for s in starts)
        return [ToolsStarted(calls=calls), *(self._receipt(start.call) for start in starts if start.delegate)]

    def _receipt(self, call: str) -> Receipt:
        """The intent: durable before the child exists, and it says which child that will be."""
        loop = self.loop
        assert loop is not None
        asked = loop.call(call)
        tool = self._tools[asked.name]
        delegate = tool._delegate
        assert delegate is not None
        self._accepted = self._accepted or set()
        self._accepted.add(call)
        return Receipt(
            state="accepted",
            child=child_id(self.live.id, call),
            call=call,
            agent=delegate.agent.name,
            wrap=tool.name,
            prompt=tool._signature.parse(asked.arguments)["prompt"],
        )

    def _finished(self, fact: Finished) -> list[Body]:
        """The result, and the settlement that it comes from; again, where the append before was refused."""
        settled = self._settlements.get(fact.result.call)
        result = as_body(fact.result, fact.source, fact.attempt, fact.usage)
        if settled is None:
            return [result]
        receipt = self.live.view.receipts[settled.receipt or ""]
        if receipt.settled is not None:
            return [result]
        asked = self._asked.get(fact.result.call, ())
        return [*over(self.live.view, receipt, asked, self.live.now()), settled, result]

    def _request(self, fact: Asked) -> entries.Request:
        header = self.live.view.header
        now = self.live.now()
        lasts = header.expires if fact.expires is None else fact.expires
        tool = self._tools.get(fact.call.name)
        return entries.Request(
            kind=fact.kind,
            path=header.path,
            call=fact.call.id,
            tool=fact.call.name,
            args=fact.call.arguments,
            digest=fact.digest,
            schema=None if tool is None else tool.schema_digest,
            effect="once" if tool is None else tool.effect,
            reason=fact.reason,
            created=now,
            expires=None if lasts is None or fact.kind == "uncertain" else now + lasts,
            allowed=Allowed,
        )

    def delegate(self, plan: Ready) -> None:
        """Start the call's child, or go on with it."""
        receipt = self._receipt_of(plan.call.id)
        if receipt is not None:
            self._children.start_child(receipt, fresh=plan.call.id in (self._accepted or ()))

    def _receipt_of(self, call: str) -> str | None:
        run = self.live.view.run
        found = None if run is None else run.calls.get(call)
        return None if found is None else found.receipt

    async def make_room(self, *, overflow: bool) -> bool:
        """Write what the model reads in place of the beginning, where that is too long; whether it was written."""
        loop = self.loop
        compaction = None if loop is None else loop.setup.compaction
        if loop is None or compaction is None or self._no_room:
            return False
        room = compaction.room(info_of(loop.setup.model))
        used = self._used(loop, compaction)
        if overflow:
            half = compaction.tokens.estimate(loop.history()) // 2
            room = room._replace(most=None, keep=min(room.keep, half))  # whatever was counted, it was too much
        elif room.most is None or used <= room.most:
            return False
        await loop.recorded()
        model = self._agent._resolved(compaction.summarizer)
        outcome = await contain("model", shorter(self.live.view, compaction, room, used, model, loop.aside))
        if isinstance(outcome, Contained):
            self._no_room = True  # not again at each step
            loop.unanswered(outcome.cause.usage if isinstance(outcome.cause, Unusable) else None)
            self.live.world.report(self.live.id, outcome.cause)
            return False
        if outcome is None:
            return False
        await self._write(outcome)
        loop.shortened(self.live.view.transcript, self.live.view.replies)
        self._reported = (outcome.after, len(loop.history()))
        self.log.events.push(Compacted(run=loop.state.run, before=outcome.before, after=outcome.after))
        return True

    def _used(self, loop: RunLoop, compaction: Compaction) -> int:
        """Tokens that the model would read: what was reported last, and what was added since, about."""
        history = loop.history()
        spent, length = self._reported or (0, 0)
        return spent + compaction.tokens.estimate(history[place] for place in range(length, len(history)))

    async def _write(self, body: entries.Compaction) -> None:
        """Durable and folded when this returns, whatever others write meanwhile."""
        written = False
        while not written:
            waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._writing = waiter
            self._append([body], "hold", partial(_set, waiter, True))
            written = await waiter
        self._writing = None

    def may_act(self) -> bool:
        """False, and the turn is given up, once the lease may be over."""
        if self.live.may_act():
            return True
        self.live.lose()
        return False

    def idempotency_key(self, call: str) -> str:
        """A digest of (thread, call, its approval request or nothing).

        What is uncertain, and asked about again at a branch, is still the occurrence that was approved before.
        """
        run, requests = self.live.view.run, self.live.view.requests
        found = None if run is None else run.calls.get(call)
        own = [] if found is None else found.requests
        approvals = [name for name in own if requests[name].body.kind == "approval"]
        if own and not approvals:
            earlier = (name for name, asked in requests.items() if asked.body.call == call)
            approvals = [name for name in earlier if requests[name].body.kind == "approval"]
        return digest_of(f"{self.live.id}\n{call}\n{approvals[-1] if approvals else ''}")

    def late(self, call: ToolCall, result: Callable[[], Coroutine[Any, Any, ToolResult]]) -> None:
        """Keep what came too late as an audit entry."""
        self._children.note(self._audit(call, result))

    async def _audit(self, call: ToolCall, result: Callable[[], Coroutine[Any, Any, ToolResult]]) -> None:
        made = await result()
        text = f"{made.code}: {made.content}" if made.is_error else made.content
        audit = entries.Audit(what="late_result", call=call.id, detail=text)
        await contain("store", self.live.command(lambda _: Entries(bodies=(audit,), lease="mail")))

    # -- what children and others say

    def settle(self, call: str, settled: Receipt, asked: tuple[str, ...]) -> bool:
        """A child has ended: its receipt's settlement and the call's result are one append of this turn.

        What it had `asked` is denied with it.

        False where the turn does not wait for it any more.
        """
        loop = self.loop
        if loop is None or not loop.expects(call):
            return False
        body = of_receipt(call, settled)
        self._settlements[call] = settled
        if asked:
            self._asked[call] = asked
        loop.feed(CallFinished(result=_as_result(body), source="receipt"))
        return True

    def parked(self, call: str) -> None:
        """A child waits for decisions."""
        if self.loop is not None:
            self.loop.feed(CallParked(call=call))

    def resumed(self, call: str) -> None:
        """A parked child goes on."""
        if self.loop is not None:
            self.loop.feed(CallResumed(call=call))

    def wants_again(self, news: Sequence[Entry]) -> bool:
        """A cancel, a steer, a drop; and what closes, or reopens, a call that the turn may be about to park on."""
        return any(
            isinstance(entry.body, Cancel | Decision)
            or (isinstance(entry.body, Receipt) and entry.body.state in SETTLED)
            or (isinstance(entry.body, Inbox) and (entry.body.policy != "queue" or entry.body.state == "dropped"))
            for entry in news
        )

    def decide_again(self, news: Sequence[Entry]) -> None:
        """Give the machine what others wrote, in place of what is void."""
        loop = self.loop
        if loop is None:
            return
        inputs: list[Input] = []
        run = self.live.view.run
        dropped: set[str] = set()
        for entry in news:
            match entry.body:
                case Inbox(state="accepted", policy="steer", message=message) if message is not None:
                    inputs.append(Steer(message=message, item=entry.id))
                case Inbox(state="dropped", item=item) if item is not None:
                    dropped.add(item)
                case Receipt() as receipt if receipt.state in SETTLED:
                    inputs += self._settled_elsewhere(receipt)
                case Decision() as decision:
                    inputs += self._decided(decision)
        steered = [given for given in inputs if not isinstance(given, Steer) or given.item not in dropped]
        if self._writing is not None:
            _set(self._writing, False)  # dropped with the other records
        loop.back(*steered, cancel=None if run is None else run.cancelled, dropped=dropped)

    def _settled_elsewhere(self, receipt: Receipt) -> list[Input]:
        found = self.live.view.receipts.get(receipt.receipt or "")
        call = None if found is None else found.accepted.call
        if call is None:
            return []
        return [CallFinished(result=_as_result(of_receipt(call, receipt)), source="receipt")]

    def _decided(self, decision: Decision) -> list[Input]:
        """A parked child of ours that nobody is asked about any more: drive it again, and wait for it."""
        view = self.live.view
        inputs: list[Input] = []
        for call in view.open_calls():
            receipt = None if call.receipt is None else view.receipts[call.receipt]
            if receipt is not None and decision.request in receipt.requests:
                if view.receipt_state(receipt) == "accepted":
                    inputs.append(CallResumed(call=call.call.id))
                self._children.start_child(receipt.id)
        return inputs

    def revoke(self, cause: Failure | None) -> None:
        """The turn is somebody else's now, or cannot be written any more."""
        self._revoked = True
        self.log.lost = cause
        if (cause is None or isinstance(cause, Locked)) and self.outcome() == "lost":
            self.log.taken = self._told
        if self.loop is not None:
            self.loop.interrupt("revoke")

    # -- running

    async def run(self, loop: RunLoop, begin: Begin, started: TurnStarted) -> None:
        """Drive the loop to its end; whatever happens, the turn's followers are told."""
        self.log.events.push(started)
        try:
            ended = await contain("turn", loop.drive(begin))
            self.log.cause = loop.cause
            self.log.kept = loop.kept
            broken = ended.cause if isinstance(ended, Contained) else self._unwritable
            if broken is not None:
                self.log.cause = broken
                await self._fail(broken)
        finally:
            self.end()

    def end(self) -> None:
        """It runs here no longer, or never will: its followers are told."""
        if self._over:  # it was left behind
            return
        if self.live.runner is self:
            self.live.runner = None
        if self.log.taken is None:  # else its events go on with those of the journal
            self.log.events.push(self._told_end(self.live.view.runs[self.turn]))
        self.log.events.close()
        self._over = True
        self.loop = None  # the loop refers to this: so nothing is left for the garbage collector to find
        self._rests(self)
        if self._waiter is not None:
            self._waiter.set_result(None)
        self.live.wake()

    async def finished(self) -> None:
        """Return when the turn runs here no longer."""
        if self._over:
            return
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._waiter])

    def _told_end(self, run: str) -> TurnEnded:
        end = self.live.view.ended.get(self.turn)
        return TurnEnded(turn=self.turn, run=run, outcome=self.outcome(), error=None if end is None else end.error)

    def outcome(self) -> str:
        """How the turn ended, as its journal says; `lost` where it has no end."""
        end = self.live.view.ended.get(self.turn)
        return "lost" if end is None else end.outcome

    async def _fail(self, cause: Exception) -> None:
        """A fault of the program around the run (instructions, for instance): the turn ends as failed."""
        error = ErrorInfo(code=_texts.INTERNAL, message=f"the turn failed ({type(cause).__name__})")
        self.live.runner = None
        self.live.drop_records()
        if not self._revoked:
            kept = await contain("turn", self.live.command(lambda view: fail(view, error)))
            if isinstance(kept, Contained):  # so the turn has no end: who waits is told, and its lease runs out
                self.revoke(kept.cause)
                self.live.lose()


def _through(message: Message, history: History) -> int:
    """How many messages there are up to this one, which is one of the last."""
    return next(place + 1 for place in reversed(range(len(history))) if history[place] is message)


def _set(waiter: asyncio.Future[bool], value: bool) -> None:  # what it is done with
    if not waiter.done():
        waiter.set_result(value)


def _as_result(body: CallResult) -> ToolResult:
    return ToolResult(call=body.call, content=body.content, is_error=body.is_error, code=body.code)


def _as_stored(plan: Plan, call: CallView) -> Plan:
    """The effect under which a body was started wins over a laxer one that the tool has now."""
    if isinstance(plan, Refused | Submitted) or call.effect is None:
        return plan
    known = [effect for effect in STRICTNESS if effect in (call.effect, plan.effect)]
    return replace(plan, effect=known[-1])


def open_calls(view: View, plans: Mapping[str, Plan], fresh: frozenset[str]) -> tuple[OpenCall, ...]:
    """The open calls of a run that goes on, as its machine takes them."""
    return tuple(
        OpenCall(
            plan=_as_stored(plans[call.call.id], call),
            started=call.started,
            fresh=call.call.id in fresh,
            delegated=call.receipt is not None,
        )
        for call in view.open_calls()
    )
