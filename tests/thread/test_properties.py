"""Whatever is done to a session by several processes, in whatever order, its journal stays what it promises.

Two stores on one data: `one` runs turns and may stall (its appends hang, and later come too late); its lease may run
out, or its owner be proved dead, while it does. Steps are not waited for: the next one comes in the middle of them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thread.places import LEASE, Place, a_place, at_rest, sound, ticks
from tests.thread.talk import Tools, talker
from tests.thread.test_view import shown
from weft import Agent
from weft.errors import WeftError
from weft.pool import Pool
from weft.testing.clock import settle
from weft.thread import Session, approve, deny, resolve
from weft.thread._view import evolve, fold
from weft.thread.entries import Header

SOAK = bool(os.environ.get("WEFT_SOAK"))
Step: TypeAlias = tuple[str, int]
POLICIES = ("queue", "steer", "interrupt", "reject")
PROMPTS = ("hello", "do look 1", "do pay 1", "do look 1, pay 2", "do help look, look 3", "do help pay")
VERBS = (
    *("send",) * 6,
    *("decide",) * 3,
    *("tick",) * 3,
    *("cancel", "cancel turn", "clear", "branch", "compact", "resume", "time", "stall", "wake", "die", "note"),
)
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 255)), max_size=20)


@dataclass
class World:
    """The session under two stores, and what was begun and not waited for."""

    place: Place
    mine: Session
    theirs: Session
    tools: Tools
    begun: list[asyncio.Future[Any]] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)

    def begin(self, work: Awaitable[Any]) -> None:
        self.begun.append(asyncio.ensure_future(work))

    def session(self, n: int) -> Session:
        return self.theirs if n % 2 else self.mine


async def decide(session: Session, n: int) -> None:
    pending = session.pending
    if not pending:
        return
    request = pending[n % len(pending)]
    if request.kind == "uncertain":
        await session.decide(resolve(request, "looked it up"))
    else:
        await session.decide(approve(request) if n // 2 % 2 else deny(request))


async def branch(session: Session, n: int) -> None:
    path = session.path
    await session.branch(path[n % len(path)].id if path and n % 5 else None)


def do(world: World, verb: str, n: int) -> Callable[[], Awaitable[Any]] | None:  # noqa: PLR0911  # one for each verb
    """The step, if it is one that is begun and not waited for."""
    session = world.session(n)
    match verb:
        case "send":
            policy, prompt = POLICIES[n // 2 % 4], PROMPTS[n // 8 % len(PROMPTS)]
            key = f"k{n % 3}-{prompt}" if n % 7 == 0 else None
            return lambda: session.send(prompt, policy=policy, key=key)  # type: ignore[arg-type]
        case "decide":
            return lambda: decide(session, n)
        case "cancel":
            return session.cancel if n % 3 else lambda: world.place.two.cancel(session.id)
        case "cancel turn":
            return lambda: cancel_last(session)
        case "clear":
            return session.clear_queue
        case "branch":
            return lambda: branch(session, n)
        case "compact":
            return session.compact
        case "resume":
            return session.resume
        case "note":
            return lambda: session.note("n", str(n))
        case _:
            return None


async def cancel_last(session: Session) -> None:
    turn = await session.send("do look 2", policy="queue")
    await turn.cancel()


async def play(world: World, verb: str, n: int) -> None:
    place = world.place
    work = do(world, verb, n)
    if work is not None:
        world.begin(work())
        await ticks(n % 9)
        return
    match verb:
        case "tick":
            await ticks(n % 40)
        case "time":
            await place.clock.advance((0.3, LEASE / 3 + 0.1, LEASE + 0.1)[n % 3])
        case "stall":
            place.disk.hold(1 + n % 3)
        case "wake":
            await place.disk.open_up()
        case "die":  # as if its process had died; what it has sent comes all the same, and is refused
            if place.disk.shut:
                place.data._dead.add("one")
    await settle()


async def finish(world: World) -> None:
    """Everything is let go of, gone on with and decided, until nothing is left to do."""
    place = world.place
    await place.disk.open_up()
    place.data._dead.discard("one")
    await place.clock.advance(LEASE + 1)
    for _ in range(30):
        for session in (world.mine, world.theirs):
            outcome = await place.outcome(session.resume())
            assert outcome is None or not isinstance(outcome, Exception) or isinstance(outcome, WeftError), outcome
        await place.rests(world.theirs, seconds=4 * LEASE)
        if not world.theirs.pending:
            break
        for request in world.theirs.pending:
            decision = resolve(request, "it was") if request.kind == "uncertain" else deny(request)
            await place.outcome(world.theirs.decide(decision))
    await place.until(lambda: all(work.done() for work in world.begun), seconds=8 * LEASE)
    await place.rests(world.mine)
    for work in world.begun:
        error = None if work.cancelled() else work.exception()
        assert error is None or isinstance(error, WeftError), error


async def holds(world: World, split: int) -> None:
    """What must hold at the end."""
    place = world.place
    at_rest(place)
    for name, thread in place.data._threads.items():
        assert (await place.two.verify(name)).sound
        header, *rest = place.entries(name)
        assert isinstance(header.body, Header)
        whole = fold(header.body, rest)
        assert thread.index == whole.index
        some = split % (len(rest) + 1)
        begun = fold(header.body, rest[:some])  # any prefix opens,
        for entry in rest[some:]:  # and any split gives the same
            evolve(begun, entry)
        assert shown(begun) == shown(whole)
    for store, session in ((place.one, world.mine), (place.two, world.theirs)):
        await session.refresh()
        header, *rest = place.entries(session.id)
        assert isinstance(header.body, Header)
        assert shown(store._node.live(session.id).view) == shown(fold(header.body, rest))
    paid = Counter(key for ran, key in zip(world.tools.ran, world.tools.keys, strict=True) if ran.startswith("pay"))
    assert all(times == 1 for times in paid.values()), "a body that may run once ran twice"


async def run_all(steps: list[Step], split: int) -> None:
    async with a_place() as place, Pool(1 + split % 2) as pool:
        tools = Tools()
        helper = tools.agent(talker(), tools=[tools.look, tools.pay])
        desk: Agent[Any, Any] = tools.agent(
            talker(200), tools=[tools.look, tools.pay, pool.wrap("help", helper, description="Helps.")]
        )
        mine = await place.one.create(desk)
        theirs = await place.two.open(mine.id, desk)
        world = World(place, mine, theirs, tools)
        try:
            for verb, n in steps:
                await play(world, verb, n)
                sound(place, moving=True)
            await finish(world)
            await holds(world, split)
            following = await place.outcome(world.theirs.ask("hello"))
            assert not isinstance(following, Exception), following
        finally:
            for work in world.begun:
                work.cancel()
            place.one.reports.clear()  # what a stalled store could not go on with is said there
            place.two.reports.clear()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_session_keeps_its_promises_whatever_is_done_to_it() -> None:
    examples = 20_000 if SOAK else 200

    @settings(max_examples=examples, derandomize=not SOAK, print_blob=True)
    @given(STEPS, st.integers(0, 1_000))
    def holds_for(steps: list[Step], split: int) -> None:
        asyncio.run(run_all(steps, split))

    holds_for()
