"""An agent: a value that says who answers, how, and with which tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context as ContextVars
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, Generic, Self, TypeAlias, overload

from typing_extensions import TypeVar, is_typeddict

from weft import _given
from weft._compaction import Compaction
from weft._contain import Contained, contain_call
from weft._limits import Limits
from weft._log import EventLog, EventStream
from weft._machine import Rules, State
from weft._moves import STRICTNESS, Begin, EffectKind
from weft._output import Output
from weft._ports import Clock, Ids, SystemClock, SystemIds, joined, start_task
from weft._repair import Transcript, repair
from weft._result import Result, raise_for, with_output
from weft._run import RunLoop
from weft._schema import inspect_output
from weft._setup import BareRecorder, Setup, Slot, StopCondition, narrower
from weft._texts import SUBMIT
from weft._tool import Context, Tool, as_tool, delegating, toolset
from weft.errors import InsideLoop, InvalidTool, NotAllowed, TurnCancelled, WrongCall
from weft.events import Event
from weft.messages import File, Message, Text, as_message
from weft.model import TOOL_CHOICES, Model, Settings, info_of
from weft.models.resolve import resolve

__all__ = ["Agent", "RunStream"]

DepsT = TypeVar("DepsT", default=None)
OutputT = TypeVar("OutputT", default=str)

Prompt: TypeAlias = str | Message | Sequence[Text | File]

_overrides: ContextVar[Mapping[str, Model]] = ContextVar("weft_overrides", default=MappingProxyType({}))


@contextmanager
def overriding(models: Mapping[str, Model]) -> Iterator[None]:
    """Within it, agents of these names use these models.

    Raises:
        WrongCall: They are no dict, a key is no name, or a value no model.
    """
    given: Any = models
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise WrongCall(f"override takes models by their agents' names, {{'desk': Script(…)}}; not {given!r}")
    for name, model in models.items():
        check_model(name, model)
    token = _overrides.set(MappingProxyType({**_overrides.get(), **models}))
    try:
        yield
    finally:
        _overrides.reset(token)


def check_model(agent: str, model: object) -> None:
    """Refuse what cannot be asked.

    Raises:
        WrongCall: It has not the methods of a `Model`.
    """
    if isinstance(model, type) or not hasattr(model, "stream"):
        raise WrongCall(f"agent {agent!r}: {model!r} is no model; give 'openai:…', or an object with Model's methods")


def empty_context() -> ContextVars:
    """A context without the application's variables; what `override` has set stays in force."""
    context = ContextVars()
    context.run(_overrides.set, _overrides.get())
    return context


class Agent(Generic[DepsT, OutputT]):
    """Who answers: a model, instructions, tools, limits. A value; `replace` makes a changed copy.

    Making one does no I/O and needs no event loop: a model named by a string is looked up at its first use.

    Args:
        model: `"openai:gpt-5"`, or any object with the methods of `Model`.
        name: What receipts, requests and `override` call it.
        instructions: Text, or a function of `Context` (sync or async), asked at each turn's start.
        deps: The type that tools may ask for; absent: none.
        tools: Tools, typed functions, or other agents. An agent is a sub-agent under its own name: it gets a prompt
            and the same deps, has no session, and what it spends counts to the run.
        output: The type that the answer must have, any that pydantic can describe; absent: text. The model is asked
            by its own JSON-schema mode where it has one, else by a submission tool.
        limits: What one run may spend.
        settings: How to ask the model.
        stop_when: Asked after each step whose calls have their results; True ends the run as `stopped`. A function
            of `StepInfo`, sync or async, or several.
        allow: The permissions that its tools may need; absent: everything.
        description: What a model is told of it where it is another agent's tool.
        compaction: When a session's conversation is made shorter for the model; absent: never by itself.

    Raises:
        WrongCall: The output type cannot be described, the model is none, or another argument is of a wrong type.
        InvalidTool: A function cannot be a tool, two tools have one name, or one asks for deps, and there are none.
        NotAllowed: A tool needs a permission that `allow` lacks.
    """

    __slots__ = (
        "_definitions",
        "_models",
        "_output",
        "_quiet_rules",
        "_rules",
        "_submitting",
        "_tools",
        "allow",
        "compaction",
        "deps",
        "description",
        "instructions",
        "limits",
        "model",
        "name",
        "output",
        "settings",
        "stop_when",
    )

    @overload
    def __init__(
        self: Agent[None, str],
        model: Model | str,
        *,
        name: str = "agent",
        instructions: str | Callable[[Context[None]], Any] | None = None,
        deps: None = None,
        tools: Iterable[Tool[None] | Agent[Any, Any] | Callable[..., Any]] = (),
        output: None = None,
        limits: Limits = ...,
        settings: Settings = ...,
        stop_when: StopCondition | Iterable[StopCondition] = ...,
        allow: Iterable[str] | None = None,
        description: str | None = None,
        compaction: Compaction | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[DepsT, str],
        model: Model | str,
        *,
        name: str = "agent",
        instructions: str | Callable[[Context[DepsT]], Any] | None = None,
        deps: type[DepsT],
        tools: Iterable[Tool[DepsT] | Agent[Any, Any] | Callable[..., Any]] = (),
        output: None = None,
        limits: Limits = ...,
        settings: Settings = ...,
        stop_when: StopCondition | Iterable[StopCondition] = ...,
        allow: Iterable[str] | None = None,
        description: str | None = None,
        compaction: Compaction | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[None, OutputT],
        model: Model | str,
        *,
        name: str = "agent",
        instructions: str | Callable[[Context[None]], Any] | None = None,
        deps: None = None,
        tools: Iterable[Tool[None] | Agent[Any, Any] | Callable[..., Any]] = (),
        output: type[OutputT],
        limits: Limits = ...,
        settings: Settings = ...,
        stop_when: StopCondition | Iterable[StopCondition] = ...,
        allow: Iterable[str] | None = None,
        description: str | None = None,
        compaction: Compaction | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Model | str,
        *,
        name: str = "agent",
        instructions: str | Callable[[Context[DepsT]], Any] | None = None,
        deps: type[DepsT],
        tools: Iterable[Tool[DepsT] | Agent[Any, Any] | Callable[..., Any]] = (),
        output: type[OutputT],
        limits: Limits = ...,
        settings: Settings = ...,
        stop_when: StopCondition | Iterable[StopCondition] = ...,
        allow: Iterable[str] | None = None,
        description: str | None = None,
        compaction: Compaction | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, Any],
        model: Model | str,
        *,
        name: str = "agent",
        instructions: str | Callable[[Context[Any]], Any] | None = None,
        deps: Any = None,
        tools: Iterable[Tool[Any] | Agent[Any, Any] | Callable[..., Any]] = (),
        output: Any,
        limits: Limits = ...,
        settings: Settings = ...,
        stop_when: StopCondition | Iterable[StopCondition] = ...,
        allow: Iterable[str] | None = None,
        description: str | None = None,
        compaction: Compaction | None = None,
    ) -> None: ...
    def __init__(  # noqa: PLR0913  # keyword-only, and each is a part of the value
        self,
        model: Model | str,
        *,
        name: str = "agent",
        instructions: Any = None,
        deps: Any = None,
        tools: Iterable[Any] = (),
        output: Any = None,
        limits: Limits = Limits(),  # noqa: B008  # a frozen value
        settings: Settings = Settings(),  # noqa: B008  # a frozen value
        stop_when: Any = (),
        allow: Iterable[str] | None = None,
        description: str | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        if not isinstance(model, str):
            check_model(name, model)
        self.model = model
        self.name = _given.named(name)
        self.instructions = _given.prompting(instructions)
        self.deps = _given.deps_type(deps)
        self.limits = _given.instance("limits", limits, Limits)
        self.settings = _given.instance("settings", settings, Settings)
        self.output = None if output is str else output
        self.stop_when: tuple[StopCondition, ...] = _given.conditions("stop_when", stop_when)
        self.allow = _given.permissions(allow)
        self.description = _given.optional("description", description, str)
        self.compaction = _given.optional("compaction", compaction, Compaction)
        listed = _given.listed("tools", tools)
        made = [as_agent_tool(item) if isinstance(item, Agent) else as_tool(item) for item in listed]
        self._tools = toolset(tuple(made))
        if deps is None:
            check_deps_unasked(self._tools.values(), name)
        self._definitions = tuple(tool.definition for tool in self._tools.values())
        self._output = None if self.output is None else Output(shape=inspect_output(self.output, name))
        self._submitting = self._definitions
        if self._output is not None:
            if SUBMIT in self._tools:
                raise InvalidTool(f"agent {name!r} has an output type, so no tool of it may be named {SUBMIT!r}")
            self._submitting = (*self._definitions, self._output.definition)
        self._rules = Rules(stops=bool(self.stop_when), structured=self._output is not None)
        self._quiet_rules = self._rules._replace(watched=False)
        self._models: dict[str, Model] = {}
        """By name, what was resolved, here or by a copy, so that each keeps its clients."""
        check_allowed(self._tools.values(), self.allow)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def tools(self) -> tuple[Tool[Any], ...]:
        """The tools, in the order in which the model sees them."""
        return tuple(self._tools.values())

    def replace(self, **changes: Any) -> Self:
        """A copy with these arguments of the constructor changed.

        Raises:
            TypeError: There is no such argument.
        """
        values: dict[str, Any] = {
            "name": self.name,
            "instructions": self.instructions,
            "deps": self.deps,
            "tools": self.tools,
            "output": self.output,
            "limits": self.limits,
            "settings": self.settings,
            "stop_when": self.stop_when,
            "allow": self.allow,
            "description": self.description,
            "compaction": self.compaction,
        }
        model = changes.pop("model", self.model)
        copy = type(self)(model, **{**values, **changes})
        copy._models = self._models
        return copy

    async def run(
        self,
        prompt: Prompt,
        *,
        deps: DepsT = None,  # type: ignore[assignment]  # None is right where the agent has no deps
        history: Sequence[Message] = (),
        model: Model | str | None = None,
        settings: Settings | None = None,
    ) -> Result[OutputT]:
        """One run, nothing stored.

        A call that needs an approval ends it with `stop="parked"` and the call in `result.pending`; to
        decide, use a session.

        Args:
            prompt: Text, parts, or a message.
            deps: What tools get as `ctx.deps`.
            history: Earlier messages; made valid if they are not.
            model: Instead of the agent's own.
            settings: Instead of the agent's own.

        Raises:
            RunFailed: The run failed; `LimitReached` and `ModelFailed` are its kinds.
            WrongCall: The deps are not of the agent's type, another argument is of a wrong one, or no adapter fits the
                model's name.
        """
        loop = self._loop(prompt, deps=deps, history=history, model=model, settings=settings)
        return await _finish(loop)

    def stream(
        self,
        prompt: Prompt,
        *,
        deps: DepsT = None,  # type: ignore[assignment]  # None is right where the agent has no deps
        history: Sequence[Message] = (),
        model: Model | str | None = None,
        settings: Settings | None = None,
    ) -> RunStream[OutputT]:
        """The same run, watched: an async context manager that is iterated for the run's events.

        Leaving it before the end cancels the run.
        """
        log = EventLog()
        loop = self._loop(prompt, deps=deps, history=history, model=model, settings=settings, events=log)
        return RunStream(loop, log)

    def run_sync(
        self,
        prompt: Prompt,
        *,
        deps: DepsT = None,  # type: ignore[assignment]  # None is right where the agent has no deps
        history: Sequence[Message] = (),
        model: Model | str | None = None,
        settings: Settings | None = None,
    ) -> Result[OutputT]:
        """The same run for scripts, on an event loop of its own.

        Raises:
            InsideLoop: An event loop is running already; nothing was done.
        """
        if _inside_loop():
            raise InsideLoop("run_sync cannot run inside an event loop; use `await agent.run(…)`")
        return asyncio.run(self.run(prompt, deps=deps, history=history, model=model, settings=settings))

    # -- for the layers above

    def _resolved(self, model: Model | str | None = None) -> Model:
        overridden = _overrides.get().get(self.name)
        if overridden is not None:
            return overridden
        chosen = self.model if model is None else model
        if not isinstance(chosen, str):
            if model is not None:
                check_model(self.name, model)
            return chosen
        if chosen not in self._models:
            self._models[chosen] = resolve(chosen)
        return self._models[chosen]

    def _check_deps(self, deps: object) -> None:
        if isinstance(self.deps, type) and not _structural(self.deps) and not isinstance(deps, self.deps):
            wanted = self.deps.__name__
            raise WrongCall(f"agent {self.name!r} needs deps={wanted}(…); it got {type(deps).__name__}")

    def _check_choice(self, settings: Settings) -> None:
        choice = settings.tool_choice
        if choice is not None and choice not in TOOL_CHOICES and choice not in self._tools:
            raise WrongCall(f"agent {self.name!r} has no tool {choice!r} that Settings(tool_choice=…) could mean")

    def _check_ready(self) -> None:
        """Raise what would keep a run from beginning: a model that cannot be had, settings that fit no tool."""
        model = self._resolved()
        if self.compaction is not None:
            self._resolved(self.compaction.summarizer)
        self._check_choice(self.settings)
        self._submits(model)

    def _submits(self, model: Model) -> bool | Contained:
        """Whether a call brings the output; contained where the model fails to say what it can.

        Raises:
            WrongCall: The model cannot be had.
        """
        if self._output is None:
            return False
        info = contain_call("model", lambda: info_of(model))
        if not isinstance(info, Contained):
            return info.output == "tool"
        if isinstance(info.cause, WrongCall):
            raise info.cause
        return info

    def _setup(
        self,
        *,
        deps: Any,
        model: Model | str | None = None,
        settings: Settings | None = None,
        chain: tuple[object, ...] = (),
        allow: frozenset[str] | None = None,
        watched: bool = True,
        stored: bool = False,
    ) -> Setup:
        chosen = self._resolved(model)
        settings = _given.optional("settings", settings, Settings) or self.settings
        self._check_choice(settings)
        rules = self._rules if watched else self._quiet_rules
        asked = self._submits(chosen)
        submits = asked is True
        return Setup(
            model=chosen,
            instructions=self.instructions,
            tools=self._tools,
            definitions=self._submitting if submits else self._definitions,
            limits=self.limits,
            settings=settings,
            allow=narrower(self.allow, allow),
            deps=deps,
            output=self._output,
            stop_when=self.stop_when,
            compaction=self.compaction if stored else None,
            rules=rules._replace(submission=SUBMIT) if submits else rules,
            fault=asked.cause if isinstance(asked, Contained) else None,
            chain=(*chain, self),
        )

    def _loop(  # noqa: PLR0913  # the ways in which a bare run may differ
        self,
        prompt: Prompt,
        *,
        deps: Any = None,
        history: Sequence[Message] = (),
        model: Model | str | None = None,
        settings: Settings | None = None,
        chain: tuple[object, ...] = (),
        allow: frozenset[str] | None = None,
        slot: Slot | None = None,
        events: EventLog | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        key: str | None = None,
    ) -> RunLoop:
        """A bare run, ready to be driven; `key` is that of the call which a sub-agent's run answers."""
        self._check_deps(deps)
        ids = ids or SystemIds()
        base = repair(_given.history(history)) if history else []
        transcript = Transcript([as_message(prompt)])
        recorder = BareRecorder(ids.new(), transcript, key)
        watched = events is not None
        setup = self._setup(deps=deps, model=model, settings=settings, chain=chain, allow=allow, watched=watched)
        return RunLoop(
            setup,
            State(run=recorder.run, limits=self.limits, rules=setup.rules),
            transcript,
            base=base,
            base_length=len(base),
            replies=sum(message.role == "assistant" for message in base),
            recorder=recorder,
            clock=clock or SystemClock(),
            ids=ids,
            events=events,
            slot=slot or Slot(),
        )


class SubAgent:
    """What the tool of an agent that stands in `tools` carries: the run's own sub-agent, under no pool."""

    sessions = False
    depth = 8
    allow = None

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self.agent = agent

    async def child_deps(self, deps: object) -> object:
        return None if self.agent.deps is None else deps

    async def enter(self, *, returning: bool) -> None:
        return None

    def leave(self) -> None:
        return None


def as_agent_tool(agent: Agent[Any, Any]) -> Tool[Any]:
    """A tool that asks this agent. Its effect is the strictest of the agent's own tools'."""
    description = agent.description or f"Asks the agent {agent.name!r}; give it all that it needs to know."
    return delegating(agent.name, description, SubAgent(agent), _strictest(agent))


def _strictest(agent: Agent[Any, Any]) -> EffectKind:
    """Of its tools' effects; of those that delegate, what is behind them."""
    behind = [tool.effect if tool._delegate is None else _strictest(tool._delegate.agent) for tool in agent.tools]
    return max(behind, key=STRICTNESS.index, default="none")


def _structural(kind: type) -> bool:
    """Whether a value's fit cannot be seen from its class."""
    return bool(getattr(kind, "_is_protocol", False)) or is_typeddict(kind)


def check_deps_unasked(tools: Iterable[Tool[Any]], agent: str) -> None:
    """Refuse tools of an agent without deps that would find none.

    Raises:
        InvalidTool: A tool asks for a context with deps.
    """
    for tool in tools:
        if tool._signature.deps is not None:
            kind = tool._signature.deps.__name__
            raise InvalidTool(
                f"tool {tool.name!r} asks for Context[{kind}], and agent {agent!r} has no deps: "
                f"give Agent(deps={kind}), and the value to its run or session"
            )


def check_allowed(tools: Iterable[Tool[Any]], allow: frozenset[str] | None) -> None:
    """Refuse tools that could never run.

    Raises:
        NotAllowed: A tool needs a permission that is not given.
    """
    if allow is None:
        return
    for tool in tools:
        if not tool.needs <= allow:
            missing = ", ".join(sorted(tool.needs - allow))
            raise NotAllowed(f"tool {tool.name!r} needs {missing}; allow it, or leave the tool out")


def _inside_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _finish(loop: RunLoop) -> Result[Any]:
    ended = await loop.drive(Begin())
    result = raise_for(ended, loop.result(pending=loop.asked), loop.cause)
    return await with_output(result, loop.setup.output, loop.kept)


class RunStream(Generic[OutputT]):
    """A run that is watched. Iterate it for its events, any number of times; then ask for its `result()`."""

    def __init__(self, loop: RunLoop, log: EventLog) -> None:
        self._loop = loop
        self._log = log
        self._task: asyncio.Task[Result[OutputT]] | None = None

    def __repr__(self) -> str:
        return f"RunStream({self._loop.state.run!r})"

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise WrongCall("a stream is entered once; make another one by agent.stream(…)")
        self._task = start_task(self._drive(), name="weft stream")
        return self

    async def _drive(self) -> Result[OutputT]:
        try:
            return await _finish(self._loop)
        finally:
            self._log.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        if task is None:
            return
        try:
            task.cancel()
            await joined([task], stopping=True)
        finally:
            self._log.close()  # where the task was cancelled before its first step

    def __aiter__(self) -> AsyncIterator[Event]:
        self._entered()
        return EventStream(self._log, self.result)

    async def result(self) -> Result[OutputT]:
        """The run's result, when it is over. Raises as `run` does. Cancelling the wait does not cancel the run.

        Raises:
            RunFailed: The run failed.
        """
        task = self._entered()
        await asyncio.wait([task])
        if task.cancelled():
            raise TurnCancelled("the stream was left before its run ended")
        return task.result()

    def _entered(self) -> asyncio.Task[Result[OutputT]]:
        if self._task is None:
            raise WrongCall("enter the stream first: `async with agent.stream(…) as run:`")
        return self._task
