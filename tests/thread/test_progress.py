"""How far a run is says the same live, in the machine, and stored, in the fold of its journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from weft import Agent, Limits, ModelInfo, ModelRequest, Retry, Tool, WeftError, tool
from weft._limits import Progress
from weft._output import SUBMIT
from weft._run import RunLoop
from weft.model import ModelEvent
from weft.testing.script import Call, Reply, Script, call, calls, say
from weft.testing.script import cut as ended_by_the_limit
from weft.thread import Entry, Memory, OpenStore, Session, approve, deny, open_store, resolve
from weft.thread._view import View, evolve
from weft.thread.entries import Header, Said, TurnEnded

How: TypeAlias = Literal["schema", "tool"]


@tool(effect="none")
async def pick(n: int) -> int:
    """Takes what is not negative."""
    if n < 0:
        raise Retry("give me more")
    return n


@tool(effect="none")
async def look(n: int) -> int:
    """Takes what is not negative either."""
    if n < 0:
        raise Retry("give me more")
    return n


@tool(approval=True)
async def pay(n: int) -> int:
    """Needs somebody, and takes what is not negative."""
    if n < 0:
        raise Retry("give me more")
    return n


TOOLS: tuple[Tool[Any], ...] = (pick, look, pay)


@dataclass
class Watched:
    """A script that notes how far the machine is whenever the model is called."""

    script: Script
    output: How = "schema"
    session: Session | None = None
    loop: RunLoop | None = None
    seen: dict[int, Progress] = field(default_factory=dict)
    """By the request's position."""

    def info(self) -> ModelInfo:
        return replace(self.script.info(), output=self.output)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        assert self.session is not None
        runner = self.session._live.runner
        assert runner is not None
        self.loop = runner.loop
        assert self.loop is not None
        self.seen[request.position.index] = self.loop.state.progress
        async for event in self.script.stream(request):
            yield event


async def journal(store: OpenStore, session: Session) -> list[Entry]:
    return [entry async for entry in store.watch(session.id, until=session.head)]


async def drive(model: Watched, agent: Agent[Any], decisions: Sequence[str]) -> None:
    """A run from its prompt to its end, decided about where it parks, and read again before each decision."""
    data, left = Memory(), list(decisions)
    async with open_store(data) as store:
        model.session = session = await store.create(agent)
        await stands_still(store, model, await session.send("go"))
    while session.pending:
        async with open_store(data) as store:
            model.session = session = await store.open(session.id, agent=agent)
            model.loop = None  # a turn that does not call the model has none that is known here
            say_so = {"approve": approve, "deny": deny, "resolve": lambda request: resolve(request, "done by hand")}
            made = [say_so[left.pop() if left else "deny"](request) for request in session.pending]
            await stands_still(store, model, await session.decide(*made))


async def stands_still(store: OpenStore, model: Watched, turn: Any) -> None:
    """The turn has ended: compare."""
    session = model.session
    assert session is not None
    try:
        await turn.wait()
    except WeftError:
        assert turn.outcome == "failed"
    entries = await journal(store, session)
    stored = folded(session._live.view.header, entries, model.seen)
    loop, run = model.loop, session._live.view.run
    assert run is None or run.progress == stored
    assert loop is None or loop.state.progress == stored


def folded(header: Header, entries: Sequence[Entry], seen: dict[int, Progress]) -> Progress:
    """How far the run was before its last end; compared on the way with what the machine knew at each model call."""
    view, last = View(header), Progress()
    for entry in entries:
        if view.run is not None:
            if isinstance(entry.body, Said) and entry.body.message.role == "assistant":
                assert view.run.progress == seen[view.replies]
            if isinstance(entry.body, TurnEnded):
                last = view.run.progress
        evolve(view, entry)
    return last


# What a model may say.

NUMBERS = st.integers(-1, 1)
GOOD_CALLS = st.builds(lambda name, n: call(name, n=n), st.sampled_from(["pick", "look", "pay"]), NUMBERS)
BAD_CALLS = st.sampled_from([call("pick", n="many"), call("look", {}), call("pick", "{"), call("nobody", n=1)])
CALLS = st.lists(GOOD_CALLS | GOOD_CALLS | BAD_CALLS, min_size=1, max_size=3)


def step(wanted: Sequence[Call], *, cut: bool) -> Reply:
    return ended_by_the_limit("", *wanted) if cut else calls(*wanted)


STEPS = st.builds(step, CALLS, cut=st.sampled_from([False, False, False, True]))
WORDS = st.sampled_from([say("many"), say("{}")])
LIMITS = st.builds(
    Limits,
    steps=st.integers(2, 20),
    retries=st.integers(0, 5),
    repeats=st.none() | st.integers(2, 3),
    tool_calls=st.none() | st.integers(4, 12),
)
DECISIONS = st.lists(st.sampled_from(["approve", "approve", "deny", "resolve"]), max_size=6)


@settings(max_examples=60)
@given(st.lists(STEPS | WORDS, max_size=8), LIMITS, DECISIONS)
async def test_the_fold_of_a_journal_is_as_far_as_the_machine(
    steps: list[Reply], limits: Limits, decisions: list[str]
) -> None:
    model = Watched(Script(*steps, say('{"output": 7}')))
    await drive(model, Agent(model, tools=TOOLS, limits=limits, output=int), decisions)


SUBMISSIONS = st.sampled_from([call(SUBMIT, output="many"), call(SUBMIT, "{"), call(SUBMIT, {})])


@settings(max_examples=60)
@given(st.lists(STEPS | WORDS | SUBMISSIONS, max_size=8), LIMITS, DECISIONS)
async def test_so_it_is_where_a_call_brings_the_output(
    steps: list[Reply | Call], limits: Limits, decisions: list[str]
) -> None:
    model = Watched(Script(*steps, call(SUBMIT, output=7)), output="tool")
    await drive(model, Agent(model, tools=TOOLS, limits=limits, output=int), decisions)
