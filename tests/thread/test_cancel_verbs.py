"""Cancelling by its verbs, at any instant, from here and from another store, with children and without."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import pytest

from tests.thread.places import LEASE, Body, Place, Seen, a_place, at_rest, results, ticks, users
from weft import Agent, Message, ModelRequest, Usage
from weft.errors import Conflict, NoNext, TurnCancelled
from weft.pool import Pool
from weft.testing import call, calls, hold, reply, say
from weft.testing.clock import settle
from weft.thread import Session, Turn, approve
from weft.thread._turns import Plan, close_open
from weft.thread.entries import Cancel, Inbox

Verb: TypeAlias = Literal["turn", "session", "store"]
VERBS: tuple[Verb, ...] = ("turn", "session", "store")
WHERE = ["here", "elsewhere"]
MORE = Message.user("more")
STEP = 1 if os.environ.get("WEFT_SOAK") else 3
"""Of a tree's many instants, the short form takes every third one."""
MAYBE, NOTHING = "may have happened", "nothing was done"


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with a_place() as made:
        yield made


def asks_once(first: Any, answer: str, gates: list[asyncio.Event] | None = None) -> Seen:
    """A model that answers its first message with calls, and whatever comes after that with a text."""

    async def make(request: ModelRequest) -> Any:
        last = request.messages[-1].text
        if last == "wait" and gates:
            await gates[-1].wait()
        return first if last in ("go", "x") else answer

    return Seen(*[reply(make)] * 8)


@dataclass
class Tree:
    """A root that delegates to a middle one, which delegates to a leaf; each has a tool of its own beside it."""

    gated: str = ""
    limit: int = 2
    free: bool = True
    bodies: dict[str, Body] = field(default_factory=dict)
    scripts: dict[str, Seen] = field(default_factory=dict)
    gates: list[asyncio.Event] = field(default_factory=list)
    """What the answer to `wait` waits for."""

    def agent(self) -> Agent[Any, Any]:
        pool = Pool(self.limit)
        leaf = self._agent("leaf", call("act_leaf"), [])
        delegates = pool.wrap("ask_leaf", leaf, description="Asks.")
        middle = self._agent("middle", calls(call("ask_leaf", prompt="x"), call("act_middle")), [delegates])
        asked = pool.wrap("ask_middle", middle, description="Asks.")
        return self._agent("root", calls(call("act_root"), call("ask_middle", prompt="x")), [asked])

    def _agent(self, name: str, first: Any, more: list[Any]) -> Agent[Any, Any]:
        options = {"approval": True} if name in self.gated else {}
        self.bodies[name] = Body(f"act_{name}", free=self.free, **options)
        self.scripts[name] = asks_once(first, f"{name} is done", self.gates)
        return Agent(self.scripts[name], name=name, tools=[self.bodies[name].tool, *more])

    def asked(self) -> int:
        return sum(len(script.read) for script in self.scripts.values())


async def cancel(place: Place, session: Session, turn: Turn[Any], verb: Verb, where: str) -> bool:
    if verb == "store":
        return await place.store(where).cancel(session.id)
    if where == "elsewhere":
        session = await place.two.open(session.id)
        turn = await session.send("go", key="go")
    return await (turn.cancel() if verb == "turn" else session.cancel())


async def next_one_works(place: Place, session: Session, text: str = "root is done") -> None:
    answer = await place.outcome(session.ask("go on"))
    assert answer.text == text
    await place.rests(session)
    at_rest(place)


# Every instant.


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_turn_that_is_cancelled_at_any_instant_ends_once(verb: Verb, where: str) -> None:
    instant, over, fates = 0, False, set[bool]()
    while not over:
        async with a_place() as place:
            one, two = Body("one", free=True), Body("two", free=True)
            script = asks_once(calls(call("one"), call("two")), "root is done")
            session = await place.one.create(Agent(script, tools=[one.tool, two.tool]))
            turn = await session.send("go", key="go")
            await ticks(instant)
            over = turn.outcome is not None
            cancelled = await cancel(place, session, turn, verb, where)
            fates.add(cancelled)
            outcome = await place.outcome(turn.wait())
            assert isinstance(outcome, TurnCancelled) == cancelled
            await place.rests(session)
            at_rest(place)
            for body, (code, text) in zip((one, two), results(session), strict=False):
                assert (code is None) == (text == "acted")
                assert code is None or (MAYBE in text if body.runs else code == "CANCELLED")
            assert not await cancel(place, session, turn, verb, where)
            await next_one_works(place, session)
        instant += 1
    assert fates == {True, False}


SHAPES = [("", 2), ("", 1), ("leaf", 2), ("leaf", 1), ("middle leaf", 2), ("root middle leaf", 2)]


@pytest.mark.soak
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("gated", "limit"), SHAPES)
async def test_a_tree_that_is_cancelled_at_any_instant_comes_to_rest(gated: str, limit: int, where: str) -> None:
    instant, over = 0, False
    while not over:
        async with a_place() as place:
            tree = Tree(gated, limit)
            session = await place.one.create(tree.agent())
            turn = await session.send("go", key="go")
            await ticks(instant)
            over = turn.outcome is not None and session._live.view.at_rest()
            cancelled = await cancel(place, session, turn, "session", where)
            assert isinstance(await place.outcome(turn.wait()), TurnCancelled) == (turn.outcome == "cancelled")
            await place.rests(session)
            assert cancelled == ("cancelled" in [end.outcome for end in session._live.view.ended.values()])
            if where == "here" and cancelled:
                asked = tree.asked()
                await place.clock.advance(LEASE)
                assert tree.asked() == asked
            at_rest(place)
            assert session.pending == ()
            assert session.usage.delegated == delegated(place, session.id)
            await next_one_works(place, session)
        instant += STEP
    assert instant > 20


def all_settled(place: Place) -> bool:
    return not any(place.view(name).unsettled for name in place.data._threads)


def delegated(place: Place, thread: str) -> Usage:
    """What the children of a thread say that they have spent, all the way down."""
    total = Usage()
    for name, live in place.data._threads.items():
        if live.index.parent == thread:
            view = place.view(name)
            total += view.turns + delegated(place, name)
    return total


def begins_a_child(place: Place) -> bool:
    """Whether the first append that is held is a child's first."""
    thread, _, head, *_ = place.disk.held[0].given
    return head.count == 1 and place.view(thread).header.parent is not None


async def test_a_child_that_an_owner_begins_too_late_asks_no_model() -> None:
    """The owner stalls after it has accepted the receipt; the tree is ended without it; then it wakes."""
    async with a_place() as place:
        tree = Tree()
        session = await place.one.create(tree.agent())
        place.disk.hold(3)
        await session.send("go")
        await settle()
        assert begins_a_child(place)
        theirs = await place.two.open(session.id)
        assert await theirs.cancel()
        await place.rests(theirs, seconds=LEASE)
        assert [receipt.state for receipt in theirs.receipts] == ["cancelled"]
        await place.disk.open_up()
        await place.clock.advance(LEASE)
        assert tree.scripts["middle"].read == []
        at_rest(place)


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("gated", ["", "leaf", "middle leaf"])
async def test_an_owner_that_stalls_at_any_append_is_ended_without_it_and_is_refused_later(
    gated: str, goes_on: bool
) -> None:
    """It stalls with its lease alive; the other store ends the tree; then it wakes, in the middle of the next turn."""
    nth, stalled = 0, True
    while stalled:
        nth += 1
        async with a_place() as place:
            tree = Tree(gated)
            agent = tree.agent()
            session = await place.one.create(agent)
            place.disk.hold(nth + 1)
            turn = await session.send("go", key="go")
            await settle()
            stalled = place.disk.shut
            theirs = await place.two.open(session.id, agent)
            was_open = theirs._live.view.phase == "open"
            assert await theirs.cancel() == (stalled or bool(gated))
            await place.clock.advance(0.9 * LEASE / 3)
            assert (theirs._live.view.run is None) == (not was_open)
            await place.rests(theirs, seconds=4 * LEASE)
            at_rest(place)
            gate = asyncio.Event()
            tree.gates.append(gate)
            following = await theirs.send("wait")
            await settle()
            if not goes_on:
                gate.set()
                await place.outcome(following.wait())
            await place.disk.open_up()
            await place.clock.advance(1.0)
            gate.set()
            assert (await place.outcome(following.wait())).text == "root is done"
            await session.refresh()
            assert isinstance(await place.outcome(turn.wait()), TurnCancelled) == was_open
            await place.rests(session)
            at_rest(place)
            await next_one_works(place, session)
    assert nth > 5


# An owner that is elsewhere, slow, or dead.


async def test_an_owner_sees_a_cancel_at_its_renewal(place: Place) -> None:
    body = Body()
    session = await place.one.create(Agent(asks_once(call("act"), "root is done"), tools=[body.tool]))
    turn = await session.send("go", key="go")
    await body.started.wait()
    assert await (await place.two.open(session.id)).cancel()
    await place.clock.advance(0.9 * LEASE / 3)
    assert turn.outcome is None
    await place.clock.advance(0.1 * LEASE / 3)
    assert turn.outcome == "cancelled"
    ((code, text),) = results(session)
    assert (code, MAYBE in text) == ("CANCELLED", True)
    at_rest(place)
    await next_one_works(place, session)


@pytest.mark.parametrize("verb", VERBS)
async def test_an_owner_that_does_not_stir_is_ended_after_a_renewal_period(place: Place, verb: Verb) -> None:
    body = Body()
    session = await place.one.create(Agent(asks_once(call("act"), "root is done"), tools=[body.tool]))
    turn = await session.send("go", key="go")
    await body.started.wait()
    place.disk.hold(1)
    body.release.set()
    await settle()
    assert await cancel(place, session, turn, verb, "elsewhere")
    theirs = await place.two.open(session.id)
    await place.clock.advance(0.9 * LEASE / 3)
    assert place.view(session.id).phase == "open"
    await place.clock.advance(0.2 * LEASE / 3)
    assert place.view(session.id).phase == "idle"
    ended = len(place.entries(session.id))
    await place.disk.open_up()
    await settle()
    assert len(place.entries(session.id)) == ended, "the owner's result came after the end"
    assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
    assert [event.kind async for event in turn.events()][-1] == "turn_ended"
    await theirs.refresh()
    ((code, text),) = results(theirs)
    assert (code, MAYBE in text) == ("CANCELLED", True)
    await session.refresh()
    assert session.usage.total == Usage(input_tokens=10, output_tokens=5)
    await next_one_works(place, session)


async def test_a_model_call_of_an_owner_that_does_not_stir_counts_as_unknown(place: Place) -> None:
    gate = asyncio.Event()
    session = await place.one.create(Agent(Seen(hold(gate, then=say("never")), say("root is done"))))
    await session.send("go", key="go")
    await settle()
    place.disk.hold(1)
    assert await place.two.cancel(session.id)
    await settle()
    await place.clock.advance(1.1 * LEASE / 3)
    view = place.view(session.id)
    assert (view.phase, view.turns) == ("idle", Usage(unknown=1))
    gate.set()
    await place.disk.open_up()
    await session.refresh()
    assert session.usage.total == Usage(unknown=1)
    assert (await place.outcome(session.ask("go on"))).text == "never"
    at_rest(place)


async def test_an_interrupt_of_an_owner_that_does_not_stir_runs_where_it_was_sent(place: Place) -> None:
    body = Body()
    agent = Agent(asks_once(call("act"), "root is done"), tools=[body.tool])
    session = await place.one.create(agent)
    turn = await session.send("go", key="go")
    await body.started.wait()
    place.disk.hold(1)
    body.release.set()
    await settle()
    theirs = await place.two.open(session.id, agent)
    sent = await theirs.send("now", policy="interrupt")
    assert (await place.outcome(sent.wait(), 2 * LEASE / 3)).text == "root is done"
    assert users(theirs) == ["go", "now"]
    ((code, text),) = results(theirs)
    assert (code, MAYBE in text) == ("INTERRUPTED", True)
    await place.disk.open_up()
    assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
    await place.rests(session)
    at_rest(place)


async def dies(place: Place, agent: Agent[Any, Any], until: Callable[[], bool]) -> str:
    """A session whose owner dies in the middle of its turn."""
    dead = place.another("dead", "d")
    async with dead:
        session = await dead.create(agent)
        await session.send("go", key="go")
        await place.until(until)
    return session.id


@pytest.mark.parametrize("agent_there", [False, True])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("effect", ["once", "repeatable", "none"])
async def test_a_dead_owners_turn_ends_at_once(place: Place, effect: str, verb: Verb, agent_there: bool) -> None:
    body = Body(effect=effect)
    agent = Agent(asks_once(call("act"), "root is done"), tools=[body.tool])
    name = await dies(place, agent, body.started.is_set)
    session = await place.one.open(name, agent if agent_there else None)
    turn = await session.send("go", key="go")
    assert await cancel(place, session, turn, verb, "here")
    await settle()
    at_rest(place)
    assert body.runs == 1
    ((code, text),) = results(session)
    assert (code, MAYBE in text) == ("CANCELLED", True)
    assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
    await next_one_works(place, await place.one.open(name, agent))


@pytest.mark.parametrize("verb", [*VERBS, "interrupt"])
async def test_what_was_cancelled_ends_also_where_who_cancels_waits_no_longer(verb: Any) -> None:
    for instant in range(8):
        async with a_place() as place:
            body = Body()
            agent = Agent(asks_once(call("act"), "root is done"), tools=[body.tool])
            name = await dies(place, agent, body.started.is_set)
            session = await place.one.open(name)
            turn = await session.send("go", key="go")
            asks: Any = (
                session.send(MORE, policy="interrupt")
                if verb == "interrupt"
                else cancel(place, session, turn, verb, "here")
            )
            waits = asyncio.ensure_future(asks)
            await ticks(instant)
            waits.cancel()
            await settle()
            run = place.view(name).run
            assert run is None or run.cancelled is None, f"accepted at {instant}, and never seen to"


@pytest.mark.parametrize("fate", ["answered", "cancelled"])
async def test_the_events_of_a_dead_owners_turn_go_on_with_who_takes_it_over(place: Place, fate: str) -> None:
    body = Body(effect="none")
    agent = Agent(asks_once(call("act"), "root is done"), tools=[body.tool])
    name = await dies(place, agent, body.started.is_set)
    session = await place.one.open(name, agent)
    handles = [await session.send("go", key="go"), await (await place.two.open(name)).send("go", key="go")]
    follow = [asyncio.ensure_future(kinds(handle)) for handle in handles]
    await settle()
    body.release.set()
    if fate == "cancelled":
        assert await session.cancel()
    else:
        await session.resume()
    for events in follow:
        seen = await place.outcome(events)
        assert (seen[0], seen[-1]) == ("turn_started", "turn_ended")
        assert seen.count("turn_ended") == 1
        assert ("run_finished" in seen) == (fate == "answered")
    await session.settled_or_waiting()
    at_rest(place)


async def kinds(turn: Turn[Any]) -> list[str]:
    return [event.kind async for event in turn.events()]


@pytest.mark.parametrize("policy", ["cancel", "interrupt"])
@pytest.mark.parametrize("goes_on", ["resume", "send", "recover"])
async def test_a_cancelled_turn_that_is_recovered_ends_with_a_result_for_each_call(
    place: Place, goes_on: str, policy: str
) -> None:
    """The cancel is in the journal, nobody has ended the run, and somebody with the agent comes at that moment."""
    body, gated = Body(effect="none"), Body("gated", approval=True)
    script = asks_once(calls(call("act"), call("gated")), "root is done")
    agent = Agent(script, tools=[body.tool, gated.tool])
    dead = place.another("dead", "d")
    async with dead:
        session = await dead.create(agent)
        turn = await session.send("go", key="go")
        await body.started.wait()
        live = session._live
        mail: Any = Cancel() if policy == "cancel" else Inbox(state="accepted", policy="interrupt", message=MORE)
        live.runner = None  # it is deaf from now on
        await live.command(lambda _: Plan(bodies=(mail,), lease="mail"))
    session = await place.one.open(turn._live.id, agent)
    match goes_on:
        case "resume":
            await session.resume()
        case "send":
            await session.send("more")
        case _:
            await place.one.recover(session.id, agent)
    await settle()
    assert [code for code, _ in results(session)] == ["CANCELLED" if policy == "cancel" else "INTERRUPTED"] * 2
    assert [MAYBE in text for _, text in results(session)] == [True, False]
    assert (body.runs, gated.runs) == (1, 0)
    await place.rests(session)
    at_rest(place)
    await next_one_works(place, session)


# Parked.


async def is_parked(place: Place, *approvals: str) -> tuple[Session, Turn[Any], dict[str, Body]]:
    """Two gated calls, of which some are decided."""
    bodies = {name: Body(name, free=True, approval=True) for name in ("one", "two")}
    script = asks_once(calls(call("one"), call("two")), "root is done")
    session = await place.one.create(Agent(script, tools=[body.tool for body in bodies.values()]))
    turn = await session.send("go", key="go")
    assert (await turn.wait()).parked
    for request in session.pending:
        if request.tool in approvals:
            await place.two.decide(approve(request))
    await session.refresh()
    return session, turn, bodies


@pytest.mark.parametrize("decided", [(), ("one",), ("one", "two")], ids=str)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_parked_turn_ends_in_one_append(place: Place, verb: Verb, where: str, decided: tuple[str, ...]) -> None:
    session, turn, bodies = await is_parked(place, *decided)
    lines = len(place.entries(session.id))
    assert await cancel(place, session, turn, verb, where)
    at_rest(place)
    added = [entry.kind for entry in place.entries(session.id)[lines:]]
    denials = ["decision"] * (2 - len(decided))
    assert added == ["cancel", *denials, "turn_started", "tool_result", "tool_result", "turn_ended"]
    await session.refresh()
    assert [(code, NOTHING in text) for code, text in results(session)] == [("CANCELLED", True)] * 2
    assert session.pending == ()
    assert [body.runs for body in bodies.values()] == [0, 0]
    assert all(request.spent for request in place.view(session.id).requests.values())
    assert (await turn.wait()).parked
    following = await turn.next()
    assert following.outcome == "cancelled"
    assert [event.kind async for event in following.events()][-1] == "turn_ended"
    with pytest.raises(NoNext):
        await following.next()
    assert not await turn.cancel()
    assert session.usage.total.unknown == 0
    await next_one_works(place, session)


@pytest.mark.parametrize("queued", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
async def test_what_was_queued_behind_a_parked_turn_runs_when_that_is_cancelled(
    place: Place, verb: Verb, queued: str
) -> None:
    session, turn, _ = await is_parked(place)
    sent = await session.send("more") if queued == "before" else None
    assert await cancel(place, session, turn, verb, "here")
    sent = sent or await session.send("more")
    assert (await place.outcome(sent.wait())).text == "root is done"
    await place.rests(session)
    assert users(session) == ["go", "more"]
    at_rest(place)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("first", ["decide", "cancel"])
async def test_a_cancel_that_races_a_decision_of_any_instant_spends_it_once(first: str, where: str) -> None:
    fates: set[str | None] = set()
    for instant in range(24):
        async with a_place() as place:
            session, turn, bodies = await is_parked(place, "two")
            request = session.pending[0]
            theirs = session if where == "here" else await place.two.open(session.id)
            verbs: list[Callable[[], Any]] = [partial(session.decide, approve(request)), theirs.cancel]
            one, two = verbs if first == "decide" else reversed(verbs)
            racing: asyncio.Future[Any] = asyncio.ensure_future(one())
            await ticks(instant)
            for outcome in (await place.outcome(two()), await place.outcome(racing)):
                assert not isinstance(outcome, Exception) or isinstance(outcome, Conflict)
            await place.rests(session)
            at_rest(place)
            following = await place.outcome(turn.next())
            await place.outcome(following.wait())
            fates.add(following.outcome)
            for body, (code, text) in zip(bodies.values(), results(session), strict=True):
                assert body.runs <= 1
                assert (text == "acted") if code is None else (body.runs == 0 or MAYBE in text)
            await next_one_works(place, session)
    assert "cancelled" in fates


# Children.


def child(place: Place, session: Session, *calls_down: int) -> str:
    """A descendant: the receipt's number at each level."""
    thread = session.id
    for number in calls_down:
        receipts = list(place.view(thread).receipts.values())
        thread = receipts[number].accepted.child or ""
    return thread


def settled(place: Place, thread: str) -> list[str]:
    view = place.view(thread)
    return [view.receipt_state(receipt) for receipt in view.receipts.values()]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("level", [1, 2])
async def test_a_child_that_is_cancelled_while_it_runs_settles_and_its_parent_goes_on(
    place: Place, level: int, where: str
) -> None:
    tree = Tree(free=False)
    session = await place.one.create(tree.agent())
    turn = await session.send("go", key="go")
    await tree.bodies["leaf"].started.wait()
    tree.bodies["root"].release.set()
    if level == 2:
        tree.bodies["middle"].release.set()
    name = child(place, session, *[0] * level)
    assert await place.store(where).cancel(name)
    assert (await place.outcome(turn.wait())).text == "root is done"
    await place.rests(session)
    at_rest(place)
    parent = child(place, session, *[0] * (level - 1))
    assert settled(place, parent) == ["cancelled"]
    given = [result for message in place.view(parent).messages for result in message.results]
    assert sorted(result.code or "" for result in given) == ["", "SUBAGENT_FAILED"]
    assert [end.outcome for end in place.view(child(place, session, 0, 0)).ended.values()] == ["cancelled"]
    assert session.usage.delegated == delegated(place, session.id)
    assert not await place.store(where).cancel(name)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("parent", ["parked", "at work"])
async def test_a_parked_child_that_is_cancelled_is_not_asked_about_any_more(
    place: Place, level: int, where: str, parent: str
) -> None:
    tree = Tree("leaf", free=False)
    session = await place.one.create(tree.agent())
    turn = await session.send("go", key="go")
    await tree.bodies["root"].started.wait()
    await tree.bodies["middle"].started.wait()
    await place.until(lambda: bool(session.pending))
    if parent == "parked":
        for name in ("root", "middle"):
            tree.bodies[name].release.set()
        assert (await place.outcome(turn.wait())).parked
    elif level == 1:
        tree.bodies["middle"].release.set()
        await settle()
    (request,) = session.pending
    assert await place.store(where).cancel(child(place, session, *[0] * level))
    await place.until(lambda: not place.view(session.id).undecided, LEASE)
    for name in ("root", "middle"):
        tree.bodies[name].release.set()
    await session.refresh()
    assert session.pending == ()
    if parent == "parked":
        assert settled(place, child(place, session, *[0] * (level - 1))) == ["cancelled"]
        with pytest.raises(Conflict):
            await session.decide(approve(request))
        if where == "elsewhere":  # who has the agent hears nothing of it
            await session.resume()
        turn = await place.outcome(turn.next())
    assert (await place.outcome(turn.wait())).text == "root is done"
    await place.rests(session)
    at_rest(place)
    assert tree.bodies["leaf"].runs == 0
    assert session.usage.delegated == delegated(place, session.id)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("policy", ["cancel", "interrupt"])
async def test_a_parked_tree_ends_at_every_level(place: Place, policy: str, where: str) -> None:
    tree = Tree("root middle leaf")
    agent = tree.agent()
    session = await place.one.create(agent)
    turn = await session.send("go", key="go")
    assert (await place.outcome(turn.wait())).parked
    requests = session.pending
    assert [request.path for request in requests] == [
        ("root", "ask_middle", "ask_leaf"),
        ("root", "ask_middle"),
        ("root",),
    ] or len(requests) == 3
    theirs = session if where == "here" else await place.two.open(session.id, agent)
    if policy == "cancel":
        assert await theirs.cancel()
        await place.rests(theirs)
    else:
        assert (await place.outcome((await theirs.send("now", policy="interrupt")).wait())).text == "root is done"
        await place.rests(theirs)
    at_rest(place)
    why, code = ("cancel", "CANCELLED") if policy == "cancel" else ("interrupt", "INTERRUPTED")
    root = place.view(session.id)
    assert [r.decision.outcome for r in root.requests.values() if r.decision] == [why] * 3
    assert [r.mirror for r in root.requests.values() if r.spent] == [False]  # each level spends its own
    await session.refresh()
    assert [given for given, _ in results(session)][:2] == [code] * 2
    for level in (1, 2):
        view = place.view(child(place, session, *[0] * level))
        assert [end.outcome for end in view.ended.values()] == ["parked", "cancelled"]
        assert all(request.decision is not None for request in view.requests.values())
    assert tree.bodies["leaf"].runs == tree.bodies["root"].runs == 0
    assert session.usage.delegated == delegated(place, session.id)
    for request in requests:
        with pytest.raises(Conflict):
            await place.one.decide(approve(request))


async def test_a_child_that_waits_for_its_slot_is_never_made(place: Place) -> None:
    body = Body()
    pool = Pool(1)
    worker = asks_once(call("act"), "worked")
    wrapped = pool.wrap("ask", Agent(worker, name="worker", tools=[body.tool]), description="Asks.")
    asked = calls(*[call("ask", prompt="x") for _ in range(3)])
    session = await place.one.create(Agent(asks_once(asked, "root is done"), tools=[wrapped]))
    turn = await session.send("go", key="go")
    await body.started.wait()
    assert await session.cancel()
    assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
    await place.rests(session)
    at_rest(place)
    assert len(place.data._threads) == 2
    assert settled(place, session.id) == ["cancelled"] * 3
    assert len(worker.read) == 1
    assert pool._slots.used == 0
    body.release.set()
    assert (await place.outcome(session.ask("x"))).text == "root is done"
    assert len(place.data._threads) == 5


async def test_observers_see_the_end_of_a_child_that_never_was(place: Place) -> None:
    """The owner stalls while one child has the only slot; the tree is ended without it, the other children too."""
    body = Body()
    agent = Agent(asks_once(call("act"), "worked"), name="worker", tools=[body.tool])
    asked = calls(*[call("ask", prompt="x") for _ in range(2)])
    root = Agent(asks_once(asked, "done"), tools=[Pool(1).wrap("ask", agent, description="Asks.")])
    session = await place.one.create(root)
    await session.send("go")
    await body.started.wait()
    await settle()
    place.disk.hold(1)
    told: list[tuple[str, int]] = []
    place.two.observe(lambda thread, entry: told.append((thread, entry.position)))
    theirs = await place.two.open(session.id)
    assert await theirs.cancel()
    await place.rests(theirs, seconds=LEASE)
    (never_was,) = (r.child for r in theirs.receipts if len(place.entries(r.child)) == 3)
    assert [position for thread, position in told if thread == never_was] == [0, 1, 2]
    await place.disk.open_up()
    body.release.set()
    await place.clock.advance(LEASE)
    at_rest(place)


async def test_a_tree_whose_owner_is_dead_ends_without_an_agent(place: Place) -> None:
    tree = Tree(free=False)
    name = await dies(place, tree.agent(), lambda: all(body.started.is_set() for body in tree.bodies.values()))
    assert len(place.data._threads) == 3
    assert await place.one.cancel(name)
    await place.until(lambda: not place.view(name).unsettled)
    at_rest(place)
    session = await place.one.open(name)
    assert session.usage.total == Usage(input_tokens=30, output_tokens=15)
    assert [receipt.state for receipt in session.receipts] == ["cancelled"]


@pytest.mark.parametrize("owner", ["one", "dead"])
async def test_a_cancel_of_children_that_was_cut_short_is_brought_to_its_end_by_whoever_resumes(
    place: Place, owner: str
) -> None:
    """The root's run has ended, the store was left, and its children are as they were."""
    tree = Tree("leaf", free=False)
    agent = tree.agent()
    dead = place.another("dead", "d")
    async with dead:
        session = await dead.create(agent)
        await session.send("go", key="go")
        await place.until(lambda: all(tree.bodies[name].started.is_set() for name in ("root", "middle")))
        await place.until(lambda: bool(session.pending))
        live = session._live
        live.runner = None
        await live.command(lambda _: Plan(bodies=(Cancel(),), lease="mail"))
        await live.command(lambda view: close_open(view, "seize"))
        name = session.id
    assert place.view(name).phase == "idle"
    session = await place.one.open(name, agent)
    await session.resume()
    await place.rests(session)
    at_rest(place)
    assert session.pending == ()
    assert session.usage.delegated == delegated(place, name)
    await next_one_works(place, session)


@pytest.mark.parametrize("where", WHERE)
async def test_a_cancel_that_races_a_settlement_of_any_instant_settles_it_once(where: str) -> None:
    fates: set[str] = set()
    for instant in range(-30, 20):
        async with a_place() as place:
            body, other = Body(), Body("other")
            pool = Pool(1)
            worker = Agent(asks_once(call("act"), "worked"), name="worker", tools=[body.tool])
            root = asks_once(calls(call("ask", prompt="x"), call("other")), "root is done")
            session = await place.one.create(
                Agent(root, tools=[pool.wrap("ask", worker, description="Asks."), other.tool])
            )
            turn = await session.send("go", key="go")
            await body.started.wait()
            if instant >= 0:
                body.release.set()
            await ticks(instant)
            cancelling = asyncio.ensure_future(place.store(where).cancel(session.id))
            await ticks(-instant)
            body.release.set()
            assert await cancelling
            assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
            await place.rests(session)
            at_rest(place)
            (receipt,) = session.receipts
            fates.add(receipt.state)
            assert receipt.usage == delegated(place, session.id)
            ((code, _), (other_code, _)) = results(session)
            assert other_code == "CANCELLED"
            assert code in (None, "CANCELLED")
            assert code is not None or receipt.state == "done"
    assert fates == ({"done", "cancelled"} if where == "here" else {"done"})


async def test_the_events_of_a_turn_that_was_taken_away_go_on_with_who_has_taken_it(place: Place) -> None:
    body = Body(effect="none")
    agent = Agent(asks_once(call("act"), "root is done"), tools=[body.tool])
    session = await place.one.create(agent)
    turn = await session.send("go", key="go")
    await body.started.wait()
    place.data._threads[session.id].expires = 0.0  # as if it had been suspended for longer than its lease
    theirs = await place.two.open(session.id, agent)
    assert await theirs.resume() is not None
    body.release.set()
    await place.rests(theirs)
    await place.rests(session)
    assert (await place.outcome(turn.wait())).text == "root is done"
    assert [event.outcome async for event in turn.events() if event.kind == "turn_ended"] == ["answered"]


@pytest.mark.soak
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("gated", ["", "leaf", "root middle leaf"])
async def test_a_tree_that_is_interrupted_at_any_instant_comes_to_rest_and_the_message_runs(
    gated: str, where: str
) -> None:
    instant, over = 0, False
    while not over:
        async with a_place() as place:
            tree = Tree(gated)
            agent = tree.agent()
            session = await place.one.create(agent)
            await session.send("go", key="go")
            await ticks(instant)
            over = session._live.view.at_rest()
            theirs = session if where == "here" else await place.two.open(session.id, agent)
            sent = await theirs.send("now", policy="interrupt")
            assert (await place.outcome(sent.wait())).text == "root is done"
            await place.rests(session)
            await place.until(partial(all_settled, place))
            at_rest(place)
            assert users(session) == ["go", "now"]
            assert session.usage.delegated == delegated(place, session.id)
        instant += STEP


@pytest.mark.parametrize("gated", ["", "leaf"])
async def test_two_that_cancel_at_any_two_instants_cancel_once(gated: str) -> None:
    for instant in range(0, 60, 3):
        async with a_place() as place:
            tree = Tree(gated)
            session = await place.one.create(tree.agent())
            await session.send("go", key="go")
            await ticks(instant)
            theirs = await place.two.open(session.id)
            cancels = [session.cancel(), theirs.cancel(), place.one.cancel(session.id), place.two.cancel(session.id)]
            assert sum(await asyncio.gather(*cancels)) <= 1
            await place.rests(session)
            at_rest(place)
            assert [entry.kind for entry in place.entries(session.id)].count("cancel") <= 1
            await next_one_works(place, session)
