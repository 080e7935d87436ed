"""The calls of a step at work: which run together, and each one's body or sub-agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from weft import _texts
from weft._contain import Contained, contain
from weft._moves import Begin, CallFinished, CallUncertain, Gated, Input, Ready, RunTools, Spent
from weft._ports import Clock, Ids, joined, start_task
from weft._result import child_result, reason_of
from weft._setup import Recorder, Setup, Slot, narrower
from weft._tool import CallInfo, Context, Delegate, Tool
from weft._toolcall import Place, run_body
from weft.messages import NO_USAGE, ToolCall

if TYPE_CHECKING:
    from weft._run import RunLoop

__all__ = ["Bodies"]

Feed: TypeAlias = Callable[[Input], None]


class Bodies:
    """Runs the calls of one run, in the task of its loop.

    Args:
        run: The run's id.
        setup: What the run is made of.
        recorder: Says whether a body may start, and takes a session's delegations.
        slot: The run's place at work.
        clock: Keeps the bodies' deadlines.
        ids: For sub-agents.
    """

    __slots__ = (
        "_clock",
        "_ids",
        "_place",
        "_recorder",
        "_run",
        "_running",
        "_setup",
        "_slot",
        "ahead",
        "parsed",
    )

    def __init__(
        self,
        run: str,
        setup: Setup,
        recorder: Recorder,
        slot: Slot,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._run = run
        self._setup = setup
        self._recorder = recorder
        self._slot = slot
        self._clock = clock
        self._ids = ids
        self.parsed: dict[str, dict[str, Any]] = {}
        """By call: arguments that were read when it was judged; taken out when they are used."""
        self._running: set[str] = set()
        self._place: Place | None = None
        """Of the last synchronous body that was started."""
        self.ahead: set[str] = set()
        """Calls whose bodies are to be entered for the first time."""

    def look_ahead(self, work: RunTools) -> None:
        """Note what is about to be entered for the first time."""
        for plan, attempt in zip(work.plans, work.attempts, strict=True):
            if attempt == 1 and plan.call.id not in self._running and not self._is_child(plan):
                self.ahead.add(plan.call.id)

    async def run(self, work: RunTools, feed: Feed) -> None:
        """Run the calls that do not run yet; return when all but a session's delegations are over.

        Args:
            work: The calls, those included that run already.
            feed: Gives the machine an input, at once: what came of each call. Not kept, so that a run makes no cycle.
        """
        local: list[tuple[Ready | Gated, int]] = []
        for plan, attempt in zip(work.plans, work.attempts, strict=True):
            if plan.call.id in self._running:
                continue
            self._running.add(plan.call.id)
            if isinstance(plan, Ready) and self._is_child(plan):
                self._recorder.delegate(plan)
            else:
                local.append((plan, attempt))
        if not local:
            return
        await self._slot.take()
        if len(local) == 1:
            await self._run_one(*local[0], feed)
            return
        for lane in _lanes(local, self._setup.tools):
            await self._run_lane(lane, feed)

    def context(self, call: ToolCall, attempt: int) -> Context[Any]:
        """What user code that is called for this call may see."""
        recorder = self._recorder
        key = recorder.idempotency_key(call.id)
        info = CallInfo(id=call.id, name=call.name, attempt=attempt, idempotency_key=key, thread=recorder.thread)
        return Context(deps=self._setup.deps, call=info, run=self._run)

    def _is_child(self, plan: Ready | Gated) -> bool:
        """Whether the call is a session's child, which runs on its own."""
        return self._recorder.durable and isinstance(plan, Ready) and plan.delegate

    async def _run_lane(self, lane: list[tuple[Ready | Gated, int]], feed: Feed) -> None:
        """Run these calls at once, but no more than the limit of those that delegate to no pool."""
        if len(lane) == 1:
            await self._run_one(*lane[0], feed)
            return
        queue = iter([item for item in lane if not _is_delegated(item[0])])

        async def work_off() -> None:
            for plan, attempt in queue:
                await self._run_one(plan, attempt, feed)

        tasks: list[asyncio.Task[None]] = []
        places = self._setup.limits.parallel
        for plan, attempt in lane:
            if _is_delegated(plan):
                tasks.append(start_task(self._run_one(plan, attempt, feed), name="weft calls"))
            elif places:
                places -= 1
                tasks.append(start_task(work_off(), name="weft calls"))
        await joined(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _run_one(self, plan: Ready | Gated, attempt: int, feed: Feed) -> None:
        call = plan.call
        tool = self._setup.tools[call.name]
        if not self._recorder.may_act():
            return
        if tool._delegate is not None:
            finished: CallFinished | CallUncertain = await self._sub_agent(
                tool, call, self.context(call, attempt), feed
            )
        else:
            finished = await self._body(tool, plan, attempt)
        self._running.discard(call.id)
        feed(finished)

    async def _body(self, tool: Tool[Any], plan: Ready | Gated, attempt: int) -> CallFinished | CallUncertain:
        call, recorder = plan.call, self._recorder
        self.ahead.discard(call.id)
        if not tool._signature.is_async:
            self._place = Place(self._place)
        return await run_body(
            tool,
            plan,
            self.context(call, attempt) if tool._signature.takes_context else None,
            self._clock,
            durable=recorder.durable,
            late=recorder.late,
            arguments=self.parsed.pop(call.id, None),
            place=self._place,
            held=recorder.held,
        )

    async def _sub_agent(self, tool: Tool[Any], call: ToolCall, context: Context[Any], feed: Feed) -> CallFinished:
        """A delegating call of a bare run: an ordinary sub-agent, under a slot."""
        delegate = tool._delegate
        assert delegate is not None
        self._slot.hand_back()
        slot = Slot(delegate)
        await slot.take()
        self.ahead.discard(call.id)
        run: RunLoop | Contained | None = None
        try:
            run = await contain("child", self._sub_loop(delegate, tool, call, context, slot))
            ended = run if isinstance(run, Contained) else await contain("child", run.drive(Begin()))
        except asyncio.CancelledError:
            if run is not None and not isinstance(run, Contained):
                feed(Spent(usage=run.state.usage))
            raise
        finally:
            slot.hand_back()
        usage = NO_USAGE if isinstance(run, Contained) else run.state.usage
        if isinstance(ended, Contained):
            reason = _texts.capped(reason_of(ended.cause), tool.cap)
            return CallFinished(result=_texts.subagent_failed(call.id, reason), usage=usage)
        text = "" if isinstance(run, Contained) else run.state.text
        return CallFinished(result=child_result(call.id, ended, text, tool.cap), usage=usage)

    async def _sub_loop(
        self, delegate: Delegate, tool: Tool[Any], call: ToolCall, context: Context[Any], slot: Slot
    ) -> RunLoop:
        prompt = tool._signature.parse(call.arguments)["prompt"]
        deps = await delegate.child_deps(context.deps)
        return delegate.agent._loop(
            prompt,
            deps=deps,
            chain=self._setup.chain,
            slot=slot,
            allow=narrower(self._setup.allow, delegate.allow),
            clock=self._clock,
            ids=self._ids,
            key=context.call.idempotency_key,
        )


def _is_delegated(plan: Ready | Gated) -> bool:
    return isinstance(plan, Ready) and plan.delegate


def _lanes(
    local: list[tuple[Ready | Gated, int]], tools: Mapping[str, Tool[Any]]
) -> Iterable[list[tuple[Ready | Gated, int]]]:
    """The calls in order, cut where a `sequential` one stands alone."""
    lane: list[tuple[Ready | Gated, int]] = []
    for item in local:
        if tools[item[0].call.name].sequential:
            if lane:
                yield lane
            yield [item]
            lane = []
        else:
            lane.append(item)
    if lane:
        yield lane
