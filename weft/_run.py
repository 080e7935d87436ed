"""The shell of a run: carries the machine's effects out, feeds its inputs, emits events.

There is one loop, and it streams; `run` drains it. A bare run records nothing; a session's recorder
appends. Nothing else of a session is in here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

from weft import _texts
from weft._bodies import Bodies
from weft._contain import Contained, contain
from weft._guard import Guard
from weft._idle import Idle, listen
from weft._judging import Judge
from weft._log import EventLog
from weft._machine import State, advance
from weft._moves import (
    Asked,
    Begin,
    CallModel,
    Cancelled,
    CheckStop,
    Deadline,
    Effect,
    Emit,
    End,
    Ended,
    Finished,
    Input,
    Joined,
    ModelFailed,
    OpenCall,
    Record,
    Recorded,
    RecordRefused,
    Refused,
    Replied,
    RunTools,
    Said,
    Spent,
    Steer,
    StopChecked,
)
from weft._output import Broken, taken_call
from weft._ports import Clock, Ids, Timer
from weft._repair import History, Transcript
from weft._reply import Reply
from weft._result import MISSING, Pending, Result
from weft._setup import Recorder, Setup, Slot, StepInfo
from weft._since import Since, acknowledge, asked_last
from weft._toolcall import text_of, truth_of
from weft.errors import WrongCall
from weft.events import Event
from weft.messages import UNKNOWN_CALL, ErrorInfo, Message, ToolCall, ToolResult, Usage, clean_text
from weft.model import (
    CONTEXT,
    Finish,
    Model,
    ModelError,
    ModelRequest,
    Position,
    info_of,
)

Ending: TypeAlias = Literal["cancel", "interrupt"]
Stop: TypeAlias = Ending | Literal["revoke", "leave"]


class RunLoop:
    """Drives one run, from `Begin` to its end, in the task of its caller."""

    __slots__ = (
        "_asking",
        "_base",
        "_base_length",
        "_bodies",
        "_checking",
        "_clock",
        "_events",
        "_feeding",
        "_guard",
        "_idle",
        "_idling",
        "_ids",
        "_in_flight",
        "_inputs",
        "_instructions",
        "_judge",
        "_open",
        "_recorder",
        "_replies",
        "_settled",
        "_since",
        "_slot",
        "_stop",
        "_told",
        "_void",
        "_work",
        "_worked",
        "asked",
        "cause",
        "ended",
        "over",
        "setup",
        "state",
        "transcript",
    )

    def __init__(  # noqa: PLR0913, PLR0915  # what a run is made of; called in two places
        self,
        setup: Setup,
        state: State,
        transcript: Transcript,
        *,
        base: Sequence[Message],
        base_length: int,
        replies: int,
        recorder: Recorder,
        clock: Clock,
        ids: Ids,
        events: EventLog | None,
        slot: Slot,
        worked: float = 0.0,
    ) -> None:
        self.setup = setup
        self.state = state
        self.transcript = transcript
        self.ended: Ended | None = None
        self.cause: Exception | None = None
        """What the model raised, if that ended the run."""
        self.over = False
        self.asked: tuple[Pending, ...] = ()
        """What the run waits for, where it is parked."""
        self._base = base
        self._base_length = base_length
        self._replies = replies
        self._recorder = recorder
        self._clock = clock
        self._ids = ids
        self._events = events
        self._slot = slot
        self._worked = worked
        """Seconds at work in earlier turns of the run."""
        self._instructions: str | None = None
        self._open: tuple[OpenCall, ...] = ()
        """What it was to begin with."""
        self._since: list[Since] = []
        self._settled: asyncio.Future[None] | None = None
        self._inputs: list[Input] = []
        self._feeding = False
        self._told: list[str] | None = None
        """While an input is fed again: the kinds of the events that it has caused before."""
        self._work: CallModel | RunTools | CheckStop | None = None
        self._bodies = Bodies(state.run, setup, recorder, slot, clock, ids)
        self._judge = Judge(setup, self._bodies.parsed)
        self._asking = False
        """Whether a model call is being made; the machine that went back may ask for it again."""
        self._void = False
        """Whether its request has what was dropped meanwhile: its reply is not taken, and it is made again."""
        self._checking = False
        """The same of the stop conditions."""
        self._in_flight = False
        """Whether a model call was made whose reply is not known."""
        self._idle: asyncio.Future[None] | None = None
        self._idling = Idle(clock)
        self._guard = Guard(None)
        self._stop: Stop | None = None

    # -- what the outside may do

    def feed(self, given: Input) -> None:
        """Give the machine an input, and carry out what follows at once. Never waits."""
        self._inputs.append(given)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._inputs:
                self._advance(self._inputs.pop(0))
        finally:
            self._feeding = False

    def interrupt(self, stop: Stop) -> None:
        """Stop what runs, from any task: `cancel` or `interrupt` it, `revoke` the right to it, `leave` it as it is."""
        if self.over:
            return
        self._stop = self._stop or stop
        asyncio.get_running_loop().call_soon(self._fire)

    def back(self, *news: Input, cancel: Ending | None = None, dropped: Collection[str] = ()) -> None:
        """The records on their way were refused and are void: decide again, with what is new.

        Goes back to the state before the first of them and feeds the news, and what has really happened since but for
        what they overrule: a reply, a failure or a stop, where the run is cancelled; a park, where the call goes on.

        Args:
            news: What is new.
            cancel: The run is cancelled, or interrupted.
            dropped: Items that were to steer the run and are not to any more.
        """
        since, self._since = self._since, []
        if since:
            said = [item.said for item in since if item.said is not None]
            if said:
                self.transcript.cut(said[0])
                self._replies -= sum(item.replies for item in since)
            self.state = since[0].before
        if dropped:
            since = self._without(since, dropped)
        if cancel is not None:
            if self.state.held is not None or any(item.has_asked() for item in since):
                self._in_flight = True  # what it spent is not known any more
            self.state = replace(self.state, held=None, cancelling=True)
        self._feed_all([given for given in news if not isinstance(given, Steer)])
        late = asked_last(since, again=isinstance(self._work, CallModel))
        for item in since[:late]:
            self._feed_again(item, news, cancel=cancel is not None)
        self._feed_all([given for given in news if isinstance(given, Steer)])  # after an end they would come too late
        for item in since[late:]:
            self._feed_again(item, news, cancel=cancel is not None)
        if isinstance(self._work, CallModel) and (self.state.phase != "model" or self.state.held is not None):
            self._work = None  # it has been made
        if cancel is not None:
            self.interrupt(cancel)
        self._look_recorded()

    def _feed_all(self, inputs: Iterable[Input]) -> None:
        for given in inputs:
            self.feed(given)

    def _feed_again(self, item: Since, news: tuple[Input, ...], *, cancel: bool) -> None:
        if item.is_overruled(news, cancel=cancel):
            return
        self._told = [effect.event.kind for effect in item.effects if isinstance(effect, Emit)]
        try:
            self.feed(item.given)
        finally:
            self._told = None

    def _without(self, since: list[Since], dropped: Collection[str]) -> list[Since]:
        """What has happened since, but for what was dropped, and for the reply to a request that had it."""
        left = tuple(steer for steer in self.state.steers if steer.item is None or steer.item not in dropped)
        self.state = replace(self.state, steers=left)
        kept: list[Since] = []
        read = False
        for item in since:
            if read and isinstance(item.given, Replied):
                self.unanswered(item.given.finish.usage)
                read = False
            elif not item.is_one_of(dropped):
                kept.append(item)
                read = read or item.joins(dropped)
        self._void = self._void or (read and self._asking)
        return kept

    @property
    def kept(self) -> object:
        """The last value that was read as the run's output."""
        return self._judge.kept

    def expects(self, call: str) -> bool:
        """Whether the run waits for this call's result."""
        step = self.state.step
        return not self.over and self.state.phase == "tools" and step is not None and bool(step.bit(call))

    def call(self, call: str) -> ToolCall:
        """An open call of the present step."""
        step = self.state.step
        assert step is not None
        return step.plans[step.places[call]].call

    def result(self, *, pending: tuple[Any, ...] = ()) -> Result:
        """What came of the run so far."""
        ended = self.ended
        partial_results = self.transcript.partial()
        tail = self.transcript.messages if partial_results is None else [*self.transcript.messages, partial_results]
        return Result(
            text=self.state.text,
            usage=self.state.usage,
            stop="failed" if ended is None else ended.outcome,
            finish=None if ended is None else ended.stop,
            run=self.state.run,
            pending=pending,
            _history=History(self._base, self._base_length, tail),
            _output=self.state.text if ended is not None and ended.outcome == "answered" else MISSING,
        )

    def history(self) -> History:
        """The transcript as it stands, as a view of fixed length."""
        return History(self._base, self._base_length, self.transcript.messages)

    # -- the loop

    async def drive(self, begin: Begin) -> Ended | None:
        """Run to the end, and say which it was; None where the run was taken away or left as it is.

        Cancelling the task from outside ends the run here and leaves as `CancelledError`.
        """
        self._open = begin.open
        self._guard = Guard(asyncio.current_task())
        timer = self._clocked()
        try:
            if self._stop is None and callable(self.setup.instructions):
                await self._guard.run(self._prepare(begin))
            elif self._stop is None:
                self._begin(begin, self.setup.instructions)
            while not self.over:
                if self._stop is not None:
                    self._halt()
                elif (work := self._next()) is not None:
                    await self._guard.run(work)
                else:
                    await self._wait()
        except asyncio.CancelledError:
            if not self._recorder.durable:  # a bare run is over, so its usage is what it is; a session's is handed on
                self.feed(self._cancelled("cancel"))
            raise
        finally:
            self.over = True
            self._idling.close()
            if timer is not None:
                timer.cancel()
            self._slot.hand_back()
        return self.ended

    def _next(self) -> Coroutine[Any, Any, None] | None:
        """What is to be done now."""
        work, self._work = self._work, None
        match work:
            case CallModel():
                return self._call_model()
            case RunTools():
                return self._bodies.run(work, self.feed)
            case CheckStop():
                return self._check_step()
            case None:
                return None

    def _clocked(self) -> Timer | None:
        """Tell the machine when the run's time is over."""
        seconds = self.state.limits.seconds
        if seconds is None:
            return None
        left = seconds - self._worked
        if left <= 0:
            self.feed(Deadline())
            return None
        return self._clock.deadline(left, partial(self.feed, Deadline()))

    async def _prepare(self, begin: Begin) -> None:
        """Ask for the instructions, and begin."""
        await self._slot.take()
        wanted = partial(self.setup.instructions, self._bodies.context(_NO_CALL, 0))
        text = await contain("model", text_of(wanted))
        if self._stop is not None:  # it came first
            return
        if isinstance(text, Contained):
            self.cause = text.cause
            self.feed(ModelFailed(error=_broken("instructions", text.cause), open=self._open))
        else:
            self._begin(begin, text)

    def _begin(self, begin: Begin, instructions: str | None) -> None:
        self._instructions = instructions
        self.feed(self._where(begin) if self.state.progress.steps else begin)

    def _where(self, begin: Begin) -> Begin:
        """Where a run goes on: with which step's results behind it, and whether its output is there."""
        message, results = self._last_step()
        if message is None:
            return begin
        stepped = not begin.open and bool(results)
        taken = None if self.setup.output is None else taken_call(message, results)
        return replace(begin, stepped=stepped, submitted=None if taken is None else taken.arguments)

    def _last_step(self) -> tuple[Message | None, tuple[ToolResult, ...]]:
        """The assistant message that the transcript ends with, and the results of its calls so far."""
        history = self.history()
        partial_results = self.transcript.partial()
        results = () if partial_results is None else partial_results.results
        for place in range(len(history) - 1, max(len(history) - 3, -1), -1):
            message = history[place]
            match message.role:
                case "tool":
                    results = message.results
                case "assistant":
                    return message, results
                case "user":
                    break
        return None, ()

    def _halt(self) -> None:
        stop, self._stop, self._work = self._stop, None, None
        match stop:
            case "cancel" | "interrupt":
                self.feed(self._cancelled(stop))
            case "revoke":
                self.feed(RecordRefused())
            case "leave" | None:
                self.over = True

    def _cancelled(self, by: Ending) -> Cancelled:
        untouched = frozenset(self._bodies.ahead)
        return Cancelled(by=by, model_in_flight=self._in_flight, untouched=untouched, open=self._open)

    def _fire(self) -> None:
        if not self._guard.stop():
            self._wake()

    async def _wait(self) -> None:
        """Wait until there is work again; a child with nothing but delegations at work hands its slot back."""
        if self.state.phase == "tools":
            self._slot.hand_back()
        self._idle = asyncio.get_running_loop().create_future()
        if self._work is None and not self.over and self._stop is None:
            await self._idle
        self._idle = None

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # -- inputs and effects

    def _advance(self, given: Input) -> None:
        if self.over:
            return
        before = self.state
        self.state, effects = advance(before, given)
        if isinstance(given, Recorded) and self._told is None:
            self._acknowledge()
        if self._recorder.durable:  # else nothing is refused that has been recorded
            records = Record in map(type, effects)
            if records or self._since:
                self._since.append(Since(before, given, effects, records))
        for effect in effects:
            self._carry_out(effect)

    def _acknowledge(self) -> None:
        acknowledge(self._since)
        if self._settled is not None:
            self._look_recorded()

    def _look_recorded(self) -> None:
        if not self._since and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Emit():
                if self._told is not None:
                    self._emit_again(effect.event)
                elif self._events is not None:
                    self._events.push(effect.event)
            case Record():
                self._remember(effect)
                if self._recorder.durable:
                    self._recorder.record(effect)
                else:
                    self._inputs.append(Recorded())
            case CallModel():
                self._work = None if self._asking else effect
                self._wake()
            case RunTools():
                self._bodies.look_ahead(effect)
                self._work = effect
                self._wake()
            case CheckStop():
                self._work = None if self._checking else effect
                self._wake()
            case End():
                self.ended = effect.ended
                self.over = True
                self._wake()

    def _emit_again(self, event: Event) -> None:
        """What an input causes that is fed again: told, unless it was before."""
        if self._told is not None and event.kind in self._told:
            self._told.remove(event.kind)
        elif self._events is not None:
            self._events.push(event)

    def _remember(self, record: Record) -> None:
        for fact in record.facts:
            if isinstance(fact, Said | Joined):
                self._add(fact.message)
            elif isinstance(fact, Finished):
                self.transcript.answer(fact.result)
            elif isinstance(fact, Ended):
                asked = (fact for fact in record.facts if isinstance(fact, Asked))
                self.asked = tuple(
                    Pending(call=ask.call.id, tool=ask.call.name, args=ask.call.arguments, reason=ask.reason)
                    for ask in asked
                )

    def _add(self, message: Message) -> None:
        answered = message.role == "assistant"
        self._replies += answered
        if self._since:
            since = self._since[-1]
            since.replies += answered
            if since.said is None:
                since.said = len(self.transcript.messages)
        self.transcript.say(message)

    # -- the model

    async def _call_model(self) -> None:
        await self._slot.take()
        self._asking = True
        try:
            reply = await contain("model", self._ask() if self.setup.compaction is None else self._ask_with_room())
        finally:
            self._asking = False
        counted, self._in_flight = not self._in_flight, False
        if self._void or self._stop is not None:  # what stops the run came before its reply
            self._void = False
            if not counted:
                self.unanswered(None if isinstance(reply, Contained) else reply.finish.usage)
            self._work = CallModel()
        elif isinstance(reply, Contained):
            self.cause = reply.cause
            self.feed(ModelFailed(error=_describe(reply.cause), counted=counted))
        else:
            self.feed(reply)

    async def _check_step(self) -> None:
        self._checking = True
        try:
            checked = await self._ask_conditions()
        finally:
            self._checking = False
        if self._stop is None:  # else it came first
            self.feed(checked)

    async def _ask_conditions(self) -> StopChecked:
        message, results = self._last_step()
        stop = False
        if message is not None and message.calls:
            step = StepInfo(step=self.state.progress.steps, message=message, results=results, usage=self.state.usage)
            for condition in self.setup.stop_when:
                answer = await contain("approver", truth_of(partial(condition, step)))
                if isinstance(answer, Contained):
                    self.cause = answer.cause
                    return StopChecked(stop=False, error=_broken("stop condition", answer.cause))
                stop = stop or answer
        return StopChecked(stop=stop)

    async def _ask_with_room(self) -> Replied:
        """Ask; where the conversation is too long for the model, make it shorter before, or ask once more."""
        await self._recorder.make_room(overflow=False)
        try:
            return await self._ask()
        except ModelError as error:
            if error.code != CONTEXT:
                raise
            self.unanswered()
            if not await self._recorder.make_room(overflow=True):
                raise
        return await self._ask()

    def unanswered(self, usage: Usage | None = None) -> None:
        """A model call has failed that does not end the run; it has cost this, if that is known."""
        self._in_flight = False
        self.feed(Spent(usage=usage or UNKNOWN_CALL))

    async def aside(self, model: Model, request: ModelRequest) -> tuple[Message, Finish]:
        """Ask a model something that is no step of the run.

        Raises:
            ModelError: It has failed.
        """
        self._in_flight = True
        reply = Reply(self.state.run, self._ids, None)
        info = info_of(model)
        seconds = None if info.own_idle else request.settings.idle
        await listen(model.stream(request), reply.take, self._idling, seconds, self._guard.task)
        self._in_flight = False
        return reply.whole(info)

    async def recorded(self) -> None:
        """Return when all that this run has recorded is durable."""
        while self._since:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def shortened(self, transcript: Transcript, replies: int) -> None:
        """Go on from this transcript, which says the same as what was recorded, and is shorter."""
        settled, self.transcript = transcript.fork()
        self._base, self._base_length, self._replies = transcript.messages, settled, replies

    async def _ask(self) -> Replied:
        setup = self.setup
        if setup.fault is not None:
            raise setup.fault
        info = info_of(setup.model)
        request = ModelRequest(
            instructions=self._instructions,
            messages=self.history(),
            tools=setup.definitions,
            tool_choice=self._tool_choice(),
            settings=setup.settings,
            output_schema=None if setup.output is None or setup.rules.submission else setup.output.shape.schema,
            run_id=self.state.run,
            position=Position(thread=self._recorder.thread, index=self._replies),
        )
        reply = Reply(self.state.run, self._ids, self._events)
        self._in_flight = True
        watched = setup.settings.stream and not info.own_idle
        seconds = setup.settings.idle if watched else None
        await listen(setup.model.stream(request), reply.take, self._idling, seconds, self._guard.task)
        message, finish = reply.whole(info)
        by = finish.by or info
        model = f"{by.provider}:{by.model}"
        try:
            plans, problem = await self._judge.plans(message, finish)
        except asyncio.CancelledError:  # the reply is lost, but not what it has cost
            self._in_flight = False
            self.feed(Spent(usage=finish.usage or UNKNOWN_CALL))
            raise
        except Broken as broken:
            self.cause = broken.cause
            plans = tuple(Refused(call=call, result=_texts.unexpected(call.id)) for call in message.calls)
            return Replied(message=message, finish=finish, model=model, plans=plans, error=broken.error)
        return Replied(message=message, finish=finish, model=model, plans=plans, problem=problem)

    def _tool_choice(self) -> str:
        """How this model call may call tools.

        What forces a call holds for the first model call of a run only, or else the run would never end; but where a
        call brings the output, each reply has to call something.
        """
        choice = self.setup.settings.tool_choice or "auto"
        if choice not in ("auto", "none") and self.state.progress.steps == 0:
            return choice
        if self.setup.rules.submission:
            return "required"
        return "none" if choice == "none" else "auto"


_NO_CALL = ToolCall(id="", name="", arguments="")


def _describe(error: Exception) -> ErrorInfo:
    if isinstance(error, ModelError):
        return ErrorInfo(kind="model", code=error.code, message=clean_text(str(error)))
    why = f": {clean_text(str(error))}" if isinstance(error, WrongCall) else f" ({type(error).__name__})"
    return ErrorInfo(kind="model", code="MODEL", message=f"the model call failed{why}")


def _broken(what: str, error: Exception) -> ErrorInfo:
    return ErrorInfo(code=_texts.INTERNAL, message=f"the {what} failed ({type(error).__name__})")
