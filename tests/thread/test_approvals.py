"""Approvals: what parks, who decides, from where, when it is too late, and what runs after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import ContextVar
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from weft import Agent, Busy, Changed, Conflict, Context, LimitReached, Limits, ToolResult, Usage, tool
from weft._texts import RESULT_CAP
from weft.errors import (
    DecideAtRoot,
    Expired,
    InvalidDecision,
    NoNext,
    NotPending,
    WrongCall,
)
from weft.events import Event, Parked, TurnEnded, TurnStarted
from weft.pool import Pool
from weft.testing import ManualClock, Script, call, calls, hold, say
from weft.thread import (
    Decision,
    Entry,
    Memory,
    OpenStore,
    Request,
    Root,
    Session,
    Turn,
    approve,
    deny,
    open_store,
    resolve,
)

Where: TypeAlias = Memory | str
SPENT = Usage(input_tokens=10, output_tokens=5)
WEEK = 7 * 86_400.0


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


class Work:
    """A tool that remembers every start of its body. Gated and `once` unless told otherwise."""

    def __init__(self, name: str = "pay", *, hangs: bool = False, **options: Any) -> None:
        self.name = name
        self.runs: list[int] = []
        self.keys: list[str] = []
        self.attempts: list[int] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        if not hangs:
            self.release.set()

        @tool(name=name, **{"approval": True, **options})
        async def body(ctx: Context, item: int) -> str:
            self.runs.append(item)
            self.keys.append(ctx.call.idempotency_key)
            self.attempts.append(ctx.call.attempt)
            self.started.set()
            await self.release.wait()
            return f"{name} {item}"

        self.tool = body


def free(name: str = "look", **options: Any) -> Work:
    """A tool that needs nobody."""
    return Work(name, **{"approval": False, "effect": "none", **options})


def results(session: Session) -> list[ToolResult]:
    return [result for message in session.messages for result in message.results]


def contents(session: Session) -> list[str]:
    return [result.content for result in results(session)]


def users(session: Session) -> list[str]:
    return [message.text for message in session.messages if message.role == "user"]


def roles(session: Session) -> list[str]:
    return [message.role for message in session.messages]


async def journal(store: OpenStore, session: Session) -> list[Entry]:
    return [entry async for entry in store.watch(session.id, until=session.head)]


async def kinds(store: OpenStore, session: Session) -> list[str]:
    return [entry.kind for entry in await journal(store, session)]


async def followed(turn: Turn) -> list[Event]:
    return [event async for event in turn.events()]


async def settle() -> None:
    """Let every task do what it can do now."""
    for _ in range(100):
        await asyncio.sleep(0)


async def parked(store: OpenStore, agent: Agent[Any], **options: Any) -> tuple[Session, Turn]:
    """A session of this agent whose first turn has parked."""
    session = await store.create(agent, **options)
    turn = await session.send("go")
    assert (await turn.wait()).parked
    return session, turn


async def went_on(session: Session) -> Turn:
    """The turn that `resume` starts."""
    turn = await session.resume()
    assert turn is not None
    return turn


ONE = (call("pay", item=1), say("done"))


# Parking.


async def test_a_gated_call_parks_and_its_request_says_what_is_asked(where: Where) -> None:
    pay = Work()
    script = Script(*ONE)
    async with open_store(where, clock=ManualClock(1000.0)) as store:
        session = await store.create(Agent(script, name="desk", tools=[pay.tool]))
        turn = await session.send("go")
        result = await turn.wait()
        assert (result.stop, result.parked, turn.outcome) == ("parked", True, "parked")
        [request] = session.pending
        assert result.pending == (request,)
        thread, _, entry = request.id.partition(".")
        assert thread == session.id
        assert entry in {item.id for item in await journal(store, session) if item.kind == "request"}
        assert (request.kind, request.path, request.tool) == ("approval", ("desk",), "pay")
        assert json.loads(request.args) == {"item": 1}
        assert request.call == session.messages[-1].calls[0].id
        assert (request.created, request.expires) == (1000.0, 1000.0 + WEEK)
        assert set(request.allowed) == {"approve", "deny", "resolve"}
        assert pay.runs == []
        assert roles(session) == ["user", "assistant"]
    assert len(script.requests) == 1


async def test_what_is_pending_reads_the_same_after_a_restart(where: Where) -> None:
    agent = Agent(Script(calls(call("pay", item=1), call("pay", item=2))), tools=[Work().tool])
    async with open_store(where) as store:
        session, _ = await parked(store, agent)
        before = session.pending
        assert [json.loads(request.args)["item"] for request in before] == [1, 2]
    async with open_store(where) as store:
        reader = await store.open(session.id)
        assert reader.pending == before
        assert reader.messages == session.messages


async def test_a_parked_turn_tells_its_events_whom_it_waits_for(where: Where) -> None:
    async with open_store(where) as store:
        session, turn = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        events = await followed(turn)
        assert [event.kind for event in events][-2:] == ["parked", "turn_ended"]
        assert isinstance(events[-2], Parked)
        assert [item.id for item in events[-2].calls] == [session.pending[0].call]
        assert isinstance(events[-1], TurnEnded)
        assert events[-1].outcome == "parked"
        assert "run_finished" not in {event.kind for event in events}


async def test_a_parked_session_waits_without_a_lease(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session, _ = await parked(one, Agent(Script(*ONE), tools=[Work().tool]))
        other = await two.open(session.id, Agent(Script(*ONE), tools=[Work().tool]))
        turn = await other.decide(approve(other.pending[0]))
        assert (await turn.wait()).text == "done"


async def test_resume_of_what_waits_for_a_person_is_none_and_writes_nothing(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        head = session.head
        assert await session.resume() is None
        assert await store.recover(session.id, Agent(Script(*ONE), tools=[Work().tool])) is None
        assert session.head == head


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_the_siblings_of_a_gated_call_run_once_and_keep_their_results(
    where: Where, place: int, restart: bool
) -> None:
    wanted = [call("look", item=1), call("once", item=2)]
    wanted.insert(place, call("pay", item=9))
    texts = ["look 1", "once 2"]
    texts.insert(place, "pay 9")
    look, once, pay = free(), Work("once", approval=False), Work()
    tools = [look.tool, once.tool, pay.tool]
    script = Script(calls(*wanted), say("done"))
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=tools))
        assert (look.runs, once.runs, pay.runs) == ([1], [2], [])
        assert (await kinds(store, session)).count("tool_result") == 2
        if not restart:
            turn = await session.decide(approve(session.pending[0]))
            assert (await turn.wait()).text == "done"
    if restart:
        script = Script(calls(*wanted), say("done"))
        async with open_store(where) as store:
            session = await store.open(session.id, Agent(script, tools=tools))
            turn = await session.decide(approve(session.pending[0]))
            assert (await turn.wait()).text == "done"
    assert (look.runs, once.runs, pay.runs) == ([1], [2], [9])
    assert contents(session) == texts
    assert roles(session) == ["user", "assistant", "tool", "assistant"]
    assert len(script.requests) == (1 if restart else 2)


async def test_a_predicate_parks_what_it_says(where: Where) -> None:
    seen: list[int] = []

    def dear(item: int) -> bool:
        seen.append(item)
        return item > 10

    async def dear_too(item: int) -> bool:
        return item > 10

    pay, buy = Work("pay", approval=dear), Work("buy", approval=dear_too)
    script = Script(
        calls(call("pay", item=1), call("buy", item=2), call("pay", item="11"), call("buy", item=12)), say("done")
    )
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool, buy.tool]))
        assert [request.tool for request in session.pending] == ["pay", "buy"]
        assert (pay.runs, buy.runs) == ([1], [2])
        assert set(seen) == {1, 11}  # validated arguments
        turn = await session.decide(*(approve(request) for request in session.pending))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["pay 1", "buy 2", "pay 11", "buy 12"]


async def test_a_predicate_that_raises_lets_nothing_run(where: Where) -> None:
    def broken(item: int) -> bool:
        raise RuntimeError("no idea")

    pay = Work(approval=broken)
    async with open_store(where) as store:
        session = await store.create(Agent(Script(*ONE), tools=[pay.tool]))
        result = await session.ask("go")
        assert pay.runs == []
        assert result.parked or results(session)[0].is_error


async def test_what_was_approved_runs_whatever_the_predicate_says_by_then(where: Where) -> None:
    strict = Work(approval=lambda item: True)
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[strict.tool]))

    def broken(item: int) -> bool:
        raise RuntimeError("no idea")

    lax = Work(approval=broken)
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*ONE), tools=[lax.tool]))
        turn = await again.decide(approve(again.pending[0]))
        assert (await turn.wait()).text == "done"
        assert lax.runs == [1]


async def test_what_parked_stays_parked_under_a_laxer_agent(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
    lax = Work(approval=False)
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*ONE), tools=[lax.tool]))
        assert await again.resume() is None
        assert len(again.pending) == 1
        assert lax.runs == []


async def test_arguments_that_do_not_validate_do_not_park(where: Where) -> None:
    pay = Work()
    script = Script(calls(call("pay", item="many"), call("pay", "not json"), call("pay", item=1)), say("done"))
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool]))
        assert [json.loads(request.args) for request in session.pending] == [{"item": 1}]
        await (await session.decide(approve(session.pending[0]))).wait()
        assert [result.code for result in results(session)] == ["INVALID_INPUT", "INVALID_INPUT", None]
        assert pay.runs == [1]


# Deciding.


async def test_an_approved_call_runs_once_in_the_same_run(where: Where) -> None:
    pay = Work()
    script = Script(*ONE)
    async with open_store(where) as store:
        session, first = await parked(store, Agent(script, tools=[pay.tool]))
        before = await first.wait()
        turn = await session.decide(approve(session.pending[0], by="ann"))
        result = await turn.wait()
        assert (result.text, result.stop, result.run, result.usage) == ("done", "answered", before.run, SPENT + SPENT)
        assert turn.id != first.id
        assert (await first.next()).id == turn.id
        assert (await (await first.next()).wait()).text == "done"
        assert first.outcome == "parked"
        assert (await first.wait()).parked
        with pytest.raises(NoNext):
            await turn.next()
        assert session.pending == ()
        assert pay.runs == [1]
        events = await followed(turn)
        assert isinstance(events[0], TurnStarted)
        assert (events[0].turn, events[0].cause, events[0].run) == (turn.id, "resume", before.run)
        decided = [entry.body for entry in await journal(store, session) if entry.kind == "decision"]
        assert [body.by for body in decided] == ["ann"]  # type: ignore[union-attr]
        assert await session.resume() is None
    assert len(script.requests) == 2
    assert users(session) == ["go"]


async def test_a_denied_call_is_told_with_its_reason_and_does_not_run(where: Where) -> None:
    pay = Work()
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        turn = await session.decide(deny(session.pending[0], "too\x00 dear"))
        assert (await turn.wait()).text == "done"
        [result] = results(session)
        assert (result.is_error, result.code) == (True, "DENIED")
        assert "too\ufffd dear" in result.content
        assert pay.runs == []


async def test_a_call_can_be_denied_without_a_reason(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        turn = await session.decide(deny(session.pending[0]))
        await turn.wait()
        assert [result.code for result in results(session)] == ["DENIED"]


@pytest.mark.parametrize("error", [False, True])
async def test_a_resolved_call_reads_as_told_and_does_not_run(where: Where, error: bool) -> None:
    pay = Work()
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        turn = await session.decide(resolve(session.pending[0], "paid\ud800 by hand", error=error))
        assert (await turn.wait()).text == "done"
        [result] = results(session)
        assert (result.content, result.is_error) == ("paid\ufffd by hand", error)
        assert pay.runs == []


@pytest.mark.parametrize("decider", [resolve, deny])
async def test_what_a_person_says_is_cut_for_the_model_and_kept_whole_in_the_journal(
    where: Where, decider: Callable[[Request, str], Decision]
) -> None:
    said = "a" * (RESULT_CAP + 1)
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        turn = await session.decide(decider(session.pending[0], said))
        assert (await turn.wait()).text == "done"
        [result] = results(session)
        assert result.content.endswith("a\n[cut: 1 bytes are missing]")
        assert said in await store.export(session.id)


async def test_requests_are_decided_by_their_id_too(where: Where) -> None:
    pay = Work()
    script = Script(calls(call("pay", item=1), call("pay", item=2), call("pay", item=3)), say("done"))
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool]))
        one, two, three = (request.id for request in session.pending)
        turn = await session.decide(approve(one), deny(two), resolve(three, "x"))
        assert (await turn.wait()).text == "done"
        assert [result.code for result in results(session)] == [None, "DENIED", None]
        assert pay.runs == [1]


DECIDERS: list[Callable[[Request], Decision]] = [approve, lambda r: deny(r, "no"), lambda r: resolve(r, "by hand")]


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_calls_decided_one_at_a_time_in_any_order_resume_once_all_are(
    where: Where, order: tuple[int, ...]
) -> None:
    look, pay = free(), Work()
    script = Script(
        calls(call("pay", item=1), call("look", item=7), call("pay", item=2), call("pay", item=3)), say("done")
    )
    async with open_store(where) as store:
        session, first = await parked(store, Agent(script, tools=[look.tool, pay.tool]))
        requests = session.pending
        for n in order[:-1]:
            turn = await session.decide(DECIDERS[n](requests[n]))
            assert turn.id == first.id
            assert (await turn.wait()).parked
            assert pay.runs == []
            assert len(script.requests) == 1
        assert session.pending == (requests[order[-1]],)
        turn = await session.decide(DECIDERS[order[-1]](requests[order[-1]]))
        assert turn.id != first.id
        assert (await turn.wait()).text == "done"
        assert [content.split(":")[0] for content in contents(session)][:2] == ["pay 1", "look 7"]
        assert [result.code for result in results(session)] == [None, None, "DENIED", None]
        assert contents(session)[3] == "by hand"
        assert (look.runs, pay.runs) == ([7], [1])
        assert roles(session) == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_calls_decided_one_at_a_time_across_restarts(where: Where, order: tuple[int, int]) -> None:
    look, pay = free(), Work()
    replies = [calls(call("pay", item=1), call("look", item=7), call("pay", item=2)), say("done")]
    async with open_store(where) as store:
        session, first = await parked(store, Agent(Script(*replies), tools=[look.tool, pay.tool]))
        requests = session.pending
    async with open_store(where) as store:
        session = await store.open(session.id, Agent(Script(*replies), tools=[look.tool, pay.tool]))
        turn = await session.decide(approve(requests[order[0]]))
        assert turn.id == first.id
        assert (await turn.wait()).parked
        assert session.pending == (requests[order[1]],)
    script = Script(*replies)
    async with open_store(where) as store:
        session = await store.open(session.id, Agent(script, tools=[look.tool, pay.tool]))
        assert session.pending == (requests[order[1]],)
        turn = await session.decide(approve(requests[order[1]].id))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["pay 1", "look 7", "pay 2"]
    assert (look.runs, sorted(pay.runs)) == ([7], [1, 2])
    assert len(script.requests) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_batch_may_name_its_requests_in_any_order(where: Where, order: tuple[int, int]) -> None:
    pay = Work()
    script = Script(calls(call("pay", item=1), call("pay", item=2)), say("done"))
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool]))
        head = session.head.count
        turn = await session.decide(*(approve(session.pending[n]) for n in order))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["pay 1", "pay 2"]
        assert (await kinds(store, session))[head : head + 2] == ["decision", "decision"]


async def test_a_run_may_park_again_and_again(where: Where) -> None:
    pay = Work()
    script = Script(call("pay", item=1), call("pay", item=2), calls(call("pay", item=3), call("pay", item=4)), say("x"))
    async with open_store(where) as store:
        session, turn = await parked(store, Agent(script, tools=[pay.tool]))
        run = (await turn.wait()).run
        seen: list[str] = []
        while session.pending:
            seen += [request.id for request in session.pending]
            following = await session.decide(*(approve(request) for request in session.pending))
            result = await following.wait()
            assert (await turn.next()).id == following.id
            assert result.run == run
            turn = following
        assert result.text == "x"
        assert result.usage.input_tokens == 40
        assert len(set(seen)) == 4
        assert sorted(pay.runs) == [1, 2, 3, 4]
        assert len(set(pay.keys)) == 4


async def test_limits_are_of_the_run_across_its_parks(where: Where) -> None:
    pay = Work()
    replies = [call("pay", item=1), call("pay", item=2), say("never")]
    limits = Limits(steps=2)
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*replies), tools=[pay.tool], limits=limits))
        await (await session.decide(approve(session.pending[0]))).wait()
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*replies), tools=[pay.tool], limits=Limits(steps=9)))
        turn = await again.decide(approve(again.pending[0]))
        with pytest.raises(LimitReached):
            await turn.wait()
        assert pay.runs == [1, 2]


@pytest.mark.parametrize("text", ['{"item":   1}', '{"note": "\\u00fc", "item": 1e0}', '{"\\u0069tem": 1}'])
async def test_what_runs_are_the_stored_arguments(where: Where, text: str) -> None:
    got: list[tuple[int, str]] = []

    @tool(approval=True)
    async def pay(item: int, note: str = "") -> str:
        got.append((item, note))
        return "paid"

    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(call("pay", text), say("done")), tools=[pay]))
        assert session.pending[0].args == text
        digest = session.pending[0].digest
    async with open_store(where) as store:
        other = Script(call("pay", item=666), say("done"))  # what a model would say by now does not matter
        again = await store.open(session.id, Agent(other, tools=[pay]))
        assert (again.pending[0].args, again.pending[0].digest) == (text, digest)
        await (await again.decide(approve(again.pending[0]))).wait()
    wanted = json.loads(text)
    assert got == [(int(wanted["item"]), wanted.get("note", ""))]


async def test_arguments_with_a_key_twice_are_never_shown_to_a_person(where: Where) -> None:
    pay = Work()
    text = '{"item": 1, "item": 2}'  # who reads the first would approve another than what runs
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("pay", text), say("done")), tools=[pay.tool]))
        await (await session.send("go")).wait()
        assert session.pending == ()
    assert pay.runs == []


async def test_the_same_arguments_have_the_same_digest_and_others_another(where: Where) -> None:
    script = Script(calls(call("pay", item=1), call("pay", item=1), call("pay", item=2)), say("done"))
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[Work().tool]))
        one, two, three = session.pending
        assert one.digest == two.digest != three.digest
        assert len({one.id, two.id, three.id}) == len({one.call, two.call, three.call}) == 3


async def test_a_resumed_body_gets_the_deps_of_now(where: Where) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

    @tool(approval=True)
    async def whose(ctx: Context[Shop]) -> str:
        return ctx.deps.name

    replies = [call("whose"), say("done")]
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*replies), deps=Shop, tools=[whose]), deps=Shop("old"))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*replies), deps=Shop, tools=[whose]), deps=Shop("new"))
        await (await again.decide(approve(again.pending[0]))).wait()
        assert contents(again) == ["new"]


WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_a_resume_runs_in_the_context_of_the_send(where: Where) -> None:
    @tool(approval=True)
    async def who() -> str:
        return WHO.get()

    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("who"), say("done")), tools=[who]))
        token = WHO.set("ann")
        turn = await session.send("go")
        WHO.reset(token)
        await turn.wait()
        token = WHO.set("the boss")
        turn = await session.decide(approve(session.pending[0]))
        WHO.reset(token)
        await turn.wait()
        assert contents(session) == ["ann"]


# Deciding again, otherwise, wrongly.


@pytest.mark.parametrize("n", range(3))
async def test_the_same_decision_again_has_no_effect(where: Where, n: int) -> None:
    pay = Work()
    replies = [calls(call("pay", item=1), call("pay", item=2)), say("done")]
    async with open_store(where) as store:
        script = Script(*replies)
        session, first = await parked(store, Agent(script, tools=[pay.tool]))
        one, two = session.pending
        await session.decide(DECIDERS[n](one))
        head = session.head
        again = await session.decide(DECIDERS[n](one))
        assert again.id == first.id
        assert (await again.wait()).parked
        await store.decide(DECIDERS[n](one))
        assert session.head == head
        turn = await session.decide(DECIDERS[n](one), approve(two))  # one of them is known
        assert (await turn.wait()).text == "done"
        head, runs = session.head, list(pay.runs)
        await session.decide(DECIDERS[n](one))
        await store.decide(DECIDERS[n](one), approve(two))
        await settle()
        assert (session.head, pay.runs) == (head, runs)
        assert len(script.requests) == 2
    async with open_store(where) as store:
        script = Script(*replies)
        session = await store.open(session.id, Agent(script, tools=[pay.tool]))
        await session.decide(DECIDERS[n](one), approve(two))
        await settle()
        assert (session.head, pay.runs, script.requests) == (head, runs, [])


async def test_a_decision_that_is_repeated_after_its_turn_gives_that_turn(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        request = session.pending[0]
        turn = await session.decide(approve(request))
        await turn.wait()
        await settle()
        late = await session.decide(approve(request))
        assert late.id == turn.id  # else waiting for it would never end
        assert (await late.wait()).text == "done"


async def test_a_decision_that_is_repeated_while_its_turn_runs_gives_that_turn(where: Where) -> None:
    pay = Work(hangs=True)
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        request = session.pending[0]
        turn = await session.decide(approve(request))
        await pay.started.wait()
        again = await session.decide(approve(request))
        assert again.id == turn.id
        pay.release.set()
        assert [(await handle.wait()).text for handle in (turn, again)] == ["done", "done"]
        assert pay.runs == [1]


async def test_a_client_that_decides_twice_at_once_resumes_once(where: Where) -> None:
    pay = Work()
    script = Script(*ONE)
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool]))
        other = await store.open(session.id, Agent(script, tools=[pay.tool]))
        request = session.pending[0]
        turns = await asyncio.gather(*(handle.decide(approve(request)) for handle in (session, other) * 3))
        for turn in turns:
            result = await turn.wait()
            assert result.parked or result.text == "done"
        assert "done" in [(await turn.wait()).text for turn in turns]
        assert pay.runs == [1]
        assert (await kinds(store, session)).count("turn_started") == 2
    assert len(script.requests) == 2


OTHERWISE: list[tuple[Callable[[Request], Decision], Callable[[Request], Decision]]] = [
    (approve, deny),
    (deny, approve),
    (approve, lambda r: resolve(r, "x")),
    (lambda r: deny(r, "a"), lambda r: deny(r, "b")),
    (lambda r: resolve(r, "a"), lambda r: resolve(r, "b")),
    (lambda r: resolve(r, "a"), lambda r: resolve(r, "a", error=True)),
]


@pytest.mark.parametrize(("first", "second"), OTHERWISE)
async def test_another_decision_is_a_conflict_before_and_after_the_resume(
    where: Where, first: Callable[[Request], Decision], second: Callable[[Request], Decision]
) -> None:
    pay = Work()
    script = Script(calls(call("pay", item=1), call("pay", item=2)), say("done"))
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool]))
        one, two = session.pending
        await session.decide(first(one))
        head = session.head
        with pytest.raises(Conflict):
            await session.decide(second(one))
        with pytest.raises(Conflict):
            await store.decide(second(one))
        with pytest.raises(Conflict):
            await session.decide(approve(two), second(one))
        assert session.head == head
        assert session.pending == (two,)
        await (await session.decide(deny(two))).wait()
        head, runs = session.head, list(pay.runs)
        with pytest.raises(Conflict):
            await session.decide(second(one))
        assert (session.head, pay.runs) == (head, runs)


async def test_one_request_twice_in_a_batch_is_refused(where: Where) -> None:
    pay = Work()
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        request, head = session.pending[0], session.head
        for batch in ((approve(request), deny(request)), (approve(request), approve(request.id))):
            with pytest.raises(WrongCall):
                await session.decide(*batch)
            with pytest.raises(WrongCall):
                await store.decide(*batch)
        assert (session.head, pay.runs) == (head, [])


@pytest.mark.parametrize("name", ["", "x", "no.such", "a.b.c", "{session}", "{session}.", "{session}.nobody"])
async def test_a_request_that_is_not_there_is_not_pending(where: Where, name: str) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        head = session.head
        for decide in (session.decide, store.decide):
            with pytest.raises(NotPending):
                await decide(approve(name.format(session=session.id)))
            with pytest.raises(NotPending):
                await decide(approve(session.pending[0]), deny(name.format(session=session.id)))
        assert session.head == head


async def test_a_request_of_another_session_is_not_pending_here(where: Where) -> None:
    async with open_store(where) as store:
        one, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        two, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        with pytest.raises(NotPending):
            await one.decide(approve(two.pending[0]))
        assert len(two.pending) == 1


async def test_a_request_of_a_deleted_session_is_not_pending(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        request = session.pending[0]
        await store.delete(session.id)
        with pytest.raises(NotPending):
            await store.decide(approve(request))


async def test_no_decision_at_all_is_invalid_for_a_session(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        head = session.head
        with pytest.raises(InvalidDecision):
            await session.decide()
        assert session.head == head


async def test_no_decision_at_all_is_invalid_for_a_store(where: Where) -> None:
    async with open_store(where) as store:
        with pytest.raises(InvalidDecision):
            await store.decide()


async def test_a_batch_over_two_sessions_is_recorded_or_refused_whole(where: Where) -> None:
    pay = Work()
    async with open_store(where) as store:
        one, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        two, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        heads = (one.head, two.head)
        for wrong in (deny(f"{two.id}.nobody"), approve("nobody.nothing")):
            with pytest.raises(NotPending):
                await store.decide(approve(one.pending[0]), wrong)
            await one.refresh()
            assert (one.head, two.head) == heads
        await store.decide(approve(one.pending[0]), deny(two.pending[0]))
        for session in (one, two):
            assert session.pending == ()
            assert (await (await went_on(session)).wait()).text == "done"
        assert pay.runs == [1]


async def test_a_child_refuses_to_be_decided_and_names_the_root(where: Where) -> None:
    pay = Work()
    child = Agent(Script(*ONE), tools=[pay.tool])
    async with open_store(where) as store, Pool(1) as pool:
        parent = Agent(Script(call("ask", prompt="x"), say("ok")), tools=[pool.wrap("ask", child, description="x")])
        session, _ = await parked(store, parent)
        inner = await store.open(session.receipts[0].child, child)
        assert [request.id for request in inner.pending] == [request.id for request in session.pending]
        head = inner.head
        with pytest.raises(DecideAtRoot) as caught:
            await inner.decide(approve(inner.pending[0]))
        assert caught.value.root == session.id
        assert inner.head == head
        assert pay.runs == []
        assert len(session.pending) == 1


# Several stores.


async def test_what_parked_in_a_left_store_goes_on_in_the_next(where: Where) -> None:
    pay = Work()
    async with open_store(where) as store:
        session, first = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
    script = Script(*ONE)
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(script, tools=[pay.tool]))
        turn = await again.decide(approve(again.pending[0]))
        result = await turn.wait()
        assert (result.text, result.run) == ("done", first.id)
        assert contents(again) == ["pay 1"]
    assert pay.runs == [1]
    assert len(script.requests) == 1


async def test_a_second_store_decides_while_the_first_is_open(where: Where) -> None:
    here, there = Work(), Work()
    async with open_store(where) as one, open_store(where) as two:
        session, first = await parked(one, Agent(Script(*ONE), tools=[here.tool]))
        following = asyncio.ensure_future(first.next())
        other = await two.open(session.id, Agent(Script(*ONE), tools=[there.tool]))
        turn = await other.decide(approve(other.pending[0]))
        assert (await turn.wait()).text == "done"
        assert (await following).id == turn.id
        assert (await (await following).wait()).text == "done"
        await session.refresh()
        assert session.pending == ()
        assert session.messages == other.messages
        assert (here.runs, there.runs) == ([], [1])


async def test_a_handle_that_has_not_seen_the_park_decides_all_the_same(where: Where) -> None:
    pay = Work()
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(*ONE), tools=[pay.tool]))
        stale = await two.open(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        await session.ask("go")
        turn = await stale.decide(approve(session.pending[0]))
        assert (await turn.wait()).text == "done"
        assert pay.runs == [1]


async def test_without_an_agent_a_decision_is_recorded_and_nothing_runs(where: Where) -> None:
    pay = Work()
    async with open_store(where) as one, open_store(where) as two:
        session, first = await parked(one, Agent(Script(*ONE), tools=[pay.tool]))
        reader = await two.open(session.id)
        turn = await reader.decide(approve(reader.pending[0]))
        assert (await turn.wait()).parked
        assert reader.pending == ()
        await settle()
        assert pay.runs == []
        resumed = await went_on(session)
        assert (await resumed.wait()).text == "done"
        assert (await first.next()).id == resumed.id
        assert (await (await turn.next()).wait()).text == "done"
        assert pay.runs == [1]


@pytest.mark.parametrize("how", ["open", "recover", "root"])
async def test_a_store_decides_and_another_goes_on(where: Where, how: str) -> None:
    pay = Work()
    script = Script(*ONE)
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        request = session.pending[0]
    async with open_store(where) as store:
        assert await store.decide(approve(request.id, by="ann")) is None
        await settle()
        assert (await store.open(session.id)).pending == ()
    assert pay.runs == []
    async with open_store(where) as store:
        agent = Agent(script, tools=[pay.tool])
        if how == "open":
            turn = await (await store.open(session.id, agent)).resume()
        else:
            turn = await store.recover(session.id, agent if how == "recover" else Root(agent=agent))
        assert turn is not None
        assert (await turn.wait()).text == "done"
    assert pay.runs == [1]
    assert len(script.requests) == 1


async def test_of_two_stores_that_decide_differently_at_once_one_wins(where: Where) -> None:
    pay = Work()
    async with open_store(where) as one, open_store(where) as two:
        session, _ = await parked(one, Agent(Script(*ONE), tools=[pay.tool]))
        other = await two.open(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        request = session.pending[0]
        outcomes = await asyncio.gather(
            session.decide(approve(request)), other.decide(deny(request)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Turn"]
        [turn] = [outcome for outcome in outcomes if isinstance(outcome, Turn)]
        assert (await turn.wait()).text == "done"
        assert pay.runs == ([1] if isinstance(outcomes[0], Turn) else [])


async def test_two_stores_that_decide_the_same_at_once_run_it_once(where: Where) -> None:
    pay = Work()
    async with open_store(where) as one, open_store(where) as two:
        session, first = await parked(one, Agent(Script(*ONE), tools=[pay.tool]))
        other = await two.open(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        request = session.pending[0]
        await asyncio.gather(session.decide(approve(request)), other.decide(approve(request)))
        assert (await (await first.next()).wait()).text == "done"
        await session.refresh()
        assert pay.runs == [1]
        found = await kinds(one, session)
        assert (found.count("decision"), found.count("turn_started"), found.count("tool_result")) == (1, 2, 1)


async def test_two_stores_that_each_decide_one_of_two_at_once_resume_once(where: Where) -> None:
    pay = Work()
    replies = [calls(call("pay", item=1), call("pay", item=2)), say("done")]
    async with open_store(where) as one, open_store(where) as two:
        session, first = await parked(one, Agent(Script(*replies), tools=[pay.tool]))
        other = await two.open(session.id, Agent(Script(*replies), tools=[pay.tool]))
        a, b = session.pending
        await asyncio.gather(session.decide(approve(a)), other.decide(approve(b)))
        assert (await (await first.next()).wait()).text == "done"
        await session.refresh()
        assert sorted(pay.runs) == [1, 2]
        assert contents(session) == ["pay 1", "pay 2"]
        assert (await kinds(one, session)).count("turn_started") == 2


@pytest.mark.parametrize("how", ["session", "store"])
async def test_what_was_decided_just_before_leaving_is_done_or_untouched_and_never_uncertain(
    where: Where, how: str
) -> None:
    pay = Work()
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        decide = session.decide if how == "session" else store.decide
        await decide(approve(session.pending[0]))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        turn = await again.resume()
        if turn is not None:
            assert (await turn.wait()).text == "done"
        assert again.pending == ()
        assert contents(again) == ["pay 1"]
    assert pay.runs == [1]


# What changed meanwhile.


def _other_type() -> Any:
    @tool(name="pay", approval=True)
    async def pay(item: str) -> str:
        raise AssertionError("never")

    return pay


def _more_required() -> Any:
    @tool(name="pay", approval=True)
    async def pay(item: int, currency: str) -> str:
        raise AssertionError("never")

    return pay


def _more_optional() -> Any:
    @tool(name="pay", approval=True)
    async def pay(item: int, currency: str = "EUR") -> str:
        raise AssertionError("never")

    return pay


@pytest.mark.parametrize(
    "tools", [lambda: [], lambda: [Work("paid").tool], lambda: [_other_type()], lambda: [_more_required()]]
)
@pytest.mark.parametrize("how", ["decide", "resume", "recover"])
async def test_a_tool_that_is_gone_or_other_is_changed_and_nothing_is_lost(
    where: Where, how: str, tools: Callable[[], list[Any]]
) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
        request = session.pending[0]
        if how != "decide":
            await store.decide(approve(request))
    async with open_store(where) as store:
        script = Script(*ONE)
        wrong = Agent(script, tools=tools())
        again = await store.open(session.id, wrong)
        attempt = {
            "decide": lambda: again.decide(approve(request)),
            "resume": again.resume,
            "recover": lambda: store.recover(session.id, wrong),
        }[how]
        with pytest.raises(Changed):
            await attempt()
        assert script.requests == []
    pay = Work()
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        turn = await again.decide(approve(request))
        assert (await turn.wait()).text == "done"
    assert pay.runs == [1]


async def test_a_schema_that_still_takes_the_arguments_but_is_another_is_changed(where: Where) -> None:
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool]))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*ONE), tools=[_more_optional()]))
        with pytest.raises(Changed):
            await again.decide(approve(again.pending[0]))


async def test_the_rest_of_an_agent_may_change(where: Where) -> None:
    pay = Work()
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work().tool], instructions="old"))
    script = Script(*ONE)
    async with open_store(where) as store:
        agent = Agent(script, name="renamed", instructions="new", tools=[free().tool, pay.tool])
        again = await store.open(session.id, agent)
        assert (await (await again.decide(approve(again.pending[0]))).wait()).text == "done"
    assert script.requests[0].instructions == "new"


# The queue meanwhile.


@pytest.mark.parametrize("restart", [False, True])
async def test_a_plain_send_to_a_parked_session_queues_and_runs_after(where: Where, restart: bool) -> None:
    pay = Work()
    replies = [call("pay", item=1), say("done"), say("b's"), say("c's")]
    async with open_store(where) as store:
        script = Script(*replies)
        agent = Agent(script, tools=[pay.tool])
        session, _ = await parked(store, agent)
        turns = [await session.send(text, key=text) for text in "bc"]
        assert [turn.id for turn in turns] == [None, None]
        with pytest.raises(Busy):
            await session.send("d", policy="reject")
        await settle()
        assert (users(session), len(script.requests)) == (["go"], 1)
        assert await session.resume() is None
        if not restart:
            turn = await session.decide(approve(session.pending[0]))
            assert (await turn.wait()).text == "done"
            assert [(await turn.wait()).text for turn in turns] == ["b's", "c's"]
    if restart:
        async with open_store(where) as store:
            session = await store.open(session.id, Agent(Script(*replies), tools=[pay.tool]))
            turn = await session.decide(approve(session.pending[0]))
            assert (await turn.wait()).text == "done"
            turns = [await session.send(text, key=text) for text in "bc"]
            assert [(await turn.wait()).text for turn in turns] == ["b's", "c's"]
    assert pay.runs == [1]
    assert users(session) == ["go", "b", "c"]
    assert roles(session) == ["user", "assistant", "tool", "assistant", *["user", "assistant"] * 2]


async def test_what_is_sent_without_an_agent_to_a_parked_session_runs_after_it(where: Where) -> None:
    replies = [call("pay", item=1), say("done"), say("b's")]
    async with open_store(where) as one, open_store(where) as two:
        session, _ = await parked(one, Agent(Script(*replies), tools=[Work().tool]))
        reader = await two.open(session.id)
        queued = await reader.send("b")
        await reader.decide(deny(reader.pending[0], "no"))
        turn = await went_on(session)
        assert (await turn.wait()).text == "done"
        assert (await queued.wait()).text == "b's"


# Expiry.

GOES_ON = (call("pay", item=1), say("too late then"), say("next"))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("decider", DECIDERS)
async def test_a_late_decision_is_expired_and_the_model_is_told(
    where: Where, decider: Callable[[Request], Decision], restart: bool
) -> None:
    clock = ManualClock()
    pay = Work(expires=60.0)
    async with open_store(where, clock=clock) as store:
        session, first = await parked(store, Agent(Script(*GOES_ON), tools=[pay.tool]))
        [request] = session.pending
        assert request.expires == request.created + 60.0
        if not restart:
            await clock.advance(61.0)
            with pytest.raises(Expired):
                await session.decide(decider(request))
            with pytest.raises(Expired):
                await store.decide(decider(request))
            assert (await (await went_on(session)).wait()).text == "too late then"
            following = await first.next()
            assert following.outcome == "answered"
    if restart:
        await clock.advance(61.0)
        async with open_store(where, clock=clock) as store:
            session = await store.open(session.id, Agent(Script(*GOES_ON), tools=[pay.tool]))
            with pytest.raises(Expired):
                await session.decide(decider(request))
            assert (await (await went_on(session)).wait()).text == "too late then"
    [result] = results(session)
    assert (result.is_error, result.code) == (True, "EXPIRED")
    assert "denied" not in result.content.lower()
    assert pay.runs == []
    assert session.pending == ()


async def test_an_expired_request_stays_expired(where: Where) -> None:
    clock = ManualClock()
    pay = Work(expires=60.0)
    async with open_store(where, clock=clock) as store:
        session, _ = await parked(store, Agent(Script(*GOES_ON), tools=[pay.tool]))
        [request] = session.pending
        await clock.advance(61.0)
        await (await went_on(session)).wait()
        head = session.head
        with pytest.raises(Expired):
            await session.decide(approve(request))
        assert session.head == head
        assert pay.runs == []


async def test_a_send_to_a_parked_session_finds_what_has_expired(where: Where) -> None:
    clock = ManualClock()
    pay = Work(expires=60.0)
    async with open_store(where, clock=clock) as store:
        session, first = await parked(store, Agent(Script(*GOES_ON), tools=[pay.tool]))
        await clock.advance(61.0)
        turn = await session.send("anything?")
        assert (await turn.wait()).text == "next"
        assert (await (await first.next()).wait()).text == "too late then"
        assert [result.code for result in results(session)] == ["EXPIRED"]
        assert users(session) == ["go", "anything?"]
        assert pay.runs == []


async def test_a_decision_in_time_stands_though_the_time_passes_before_it_runs(where: Where) -> None:
    clock = ManualClock()
    pay, slow = Work(expires=60.0), Work("slow", expires=1000.0)
    replies = [calls(call("pay", item=1), call("slow", item=2)), say("done")]
    async with open_store(where, clock=clock) as store:
        session, _ = await parked(store, Agent(Script(*replies), tools=[pay.tool, slow.tool]))
        one, two = session.pending
        await clock.advance(59.0)
        await session.decide(approve(one))
        await clock.advance(600.0)
        turn = await session.decide(approve(one), approve(two))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["pay 1", "slow 2"]


async def test_one_expired_request_waits_for_its_sibling(where: Where) -> None:
    clock = ManualClock()
    pay, slow = Work(expires=60.0), Work("slow", expires=None)
    replies = [calls(call("pay", item=1), call("slow", item=2)), say("done")]
    script = Script(*replies)
    async with open_store(where, clock=clock) as store:
        session, _ = await parked(store, Agent(script, tools=[pay.tool, slow.tool]), expires=None)
        one, two = session.pending
        assert two.expires is None
        await clock.advance(5000.0)
        head = session.head
        with pytest.raises(Expired):
            await session.decide(approve(two), approve(one))
        assert all(entry.body.outcome == "expire" for entry in (await journal(store, session))[head.count :])  # type: ignore[union-attr]
        assert await session.resume() is None
        assert [request.tool for request in session.pending] == ["slow"]
        assert len(script.requests) == 1
        turn = await session.decide(approve(two))
        assert (await turn.wait()).text == "done"
        assert [result.code for result in results(session)] == ["EXPIRED", None]
        assert (pay.runs, slow.runs) == ([], [2])


@pytest.mark.parametrize(("of_tool", "of_session", "lasts"), [(None, 5.0, 5.0), (9.0, 5.0, 9.0), (9.0, None, 9.0)])
async def test_the_tool_then_the_session_says_how_long(
    where: Where, of_tool: float | None, of_session: float | None, lasts: float
) -> None:
    clock = ManualClock()
    async with open_store(where, clock=clock) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[Work(expires=of_tool).tool]), expires=of_session)
        [request] = session.pending
        assert request.expires == request.created + lasts
        await clock.advance(lasts - 1.0)
        turn = await session.decide(approve(request))
        assert (await turn.wait()).text == "done"


# The provider's call ids are not to be trusted.


@pytest.mark.parametrize("provider_id", ["call_1", ""])
async def test_repeated_provider_ids_do_no_harm(where: Where, provider_id: str) -> None:
    def wanted(item: int, name: str = "pay") -> Any:
        return call(name, item=item, call_id=provider_id)

    look, pay = free(), Work()
    replies = [
        calls(wanted(1), wanted(2, "look"), wanted(3)),
        wanted(4),
        say("first"),
        wanted(5),
        say("second"),
    ]
    async with open_store(where) as store:
        session, _ = await parked(store, Agent(Script(*replies), tools=[look.tool, pay.tool]))
        old = session.pending
        assert (await (await session.decide(approve(old[0]))).wait()).parked
        assert (await (await session.decide(deny(old[1], "no"))).wait()).parked
        [again] = session.pending
        assert again.id not in {request.id for request in old}
        assert (await (await session.decide(approve(again))).wait()).text == "first"
        assert (await session.ask("more")).parked
        [last] = session.pending
        await session.decide(approve(again))  # an old approval is for an old occurrence
        await session.decide(approve(old[0]))
        await settle()
        assert session.pending == (last,)
        assert pay.runs == [1, 4]
    async with open_store(where) as store:
        session = await store.open(session.id, Agent(Script(*replies), tools=[look.tool, pay.tool]))
        turn = await session.decide(deny(session.pending[0], "enough"))
        assert (await turn.wait()).text == "second"
        assert [result.code for result in results(session)] == [None, None, "DENIED", None, "DENIED"]
    assert (look.runs, pay.runs) == ([2], [1, 4])
    assert len(set(pay.keys)) == 2


# Effects: what a dead process leaves.


async def crashed(where: Where, agent: Agent[Any], *working: Work, decide: bool = False) -> str:
    """A session whose store was left while these bodies ran; with `decide`, after everything was approved."""
    async with open_store(where, grace=0) as store:
        session = await store.create(agent)
        turn = await session.send("go")
        if decide:
            await turn.wait()
            await session.decide(*(approve(request) for request in session.pending))
        for work in working:
            await work.started.wait()
    return session.id


def dying(name: str, effect: str, **options: Any) -> Work:
    return Work(name, hangs=True, **{"approval": False, "effect": effect, **options})


async def test_a_once_body_that_was_cut_is_uncertain_and_asks(where: Where) -> None:
    pay = dying("pay", "once")
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay)
    script = Script(*ONE)
    async with open_store(where) as store:
        session = await store.open(name, Agent(script, name="desk", tools=[pay.tool]))
        assert session.pending == ()
        turn = await went_on(session)
        result = await turn.wait()
        assert result.parked
        [request] = session.pending
        assert (request.kind, request.tool, json.loads(request.args)) == ("uncertain", "pay", {"item": 1})
        assert request.id.startswith(f"{name}.")
        assert set(request.allowed) == {"approve", "deny", "resolve"}
        assert await session.resume() is None
    assert (pay.runs, script.requests) == ([1], [])
    async with open_store(where) as store:
        again = await store.open(name, Agent(script, tools=[pay.tool]))
        assert again.pending == (request,)
        assert await again.resume() is None
    assert pay.runs == [1]


@pytest.mark.parametrize("restart", [False, True])
async def test_an_uncertain_call_that_is_resolved_reads_as_told(where: Where, restart: bool) -> None:
    pay = dying("pay", "once")
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay)
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*ONE), tools=[pay.tool]))
        await (await went_on(session)).wait()
        if not restart:
            turn = await session.decide(resolve(session.pending[0], "it was paid"))
            assert (await turn.wait()).text == "done"
    if restart:
        async with open_store(where) as store:
            session = await store.open(name, Agent(Script(*ONE), tools=[pay.tool]))
            turn = await session.decide(resolve(session.pending[0], "it was paid"))
            assert (await turn.wait()).text == "done"
    assert contents(session) == ["it was paid"]
    assert not results(session)[0].is_error
    assert pay.runs == [1]


async def test_an_uncertain_call_that_is_denied_does_not_run_again(where: Where) -> None:
    pay = dying("pay", "once")
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay)
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*ONE), tools=[pay.tool]))
        await (await went_on(session)).wait()
        turn = await session.decide(deny(session.pending[0], "leave it"))
        assert (await turn.wait()).text == "done"
        [result] = results(session)
        assert result.is_error
        assert "leave it" in result.content
    assert pay.runs == [1]


@pytest.mark.parametrize("gated", [False, True])
async def test_an_uncertain_call_that_is_approved_runs_again_under_the_same_key(where: Where, gated: bool) -> None:
    pay = dying("pay", "once", approval=gated)
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay, decide=gated)
    pay.release.set()
    script = Script(*ONE)
    async with open_store(where) as store:
        session = await store.open(name, Agent(script, tools=[pay.tool]))
        assert (await (await went_on(session)).wait()).parked
        [request] = session.pending
        assert request.kind == "uncertain"
        assert pay.runs == [1]
        turn = await session.decide(approve(request))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["pay 1"]
    assert pay.runs == [1, 1]
    assert len(set(pay.keys)) == 1
    assert pay.attempts == [1, 2]
    assert len(script.requests) == 1


async def test_a_knowing_repetition_that_is_cut_too_asks_afresh(where: Where) -> None:
    pay = dying("pay", "once")
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay)
    asked: list[str] = []
    for _ in range(2):
        pay.started.clear()
        async with open_store(where, grace=0) as store:
            session = await store.open(name, Agent(Script(*ONE), tools=[pay.tool]))
            assert (await (await went_on(session)).wait()).parked
            asked.append(session.pending[0].id)
            await session.decide(approve(session.pending[0]))
            await pay.started.wait()
    assert pay.runs == [1, 1, 1]
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*ONE), tools=[pay.tool]))
        assert (await (await went_on(session)).wait()).parked
        asked.append(session.pending[0].id)
        turn = await session.decide(resolve(session.pending[0], "stop it"))
        assert (await turn.wait()).text == "done"
    assert len(set(asked)) == 3
    assert (len(pay.runs), len(set(pay.keys))) == (3, 1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_bodies_that_were_cut_ask_one_by_one(where: Where, order: tuple[int, int]) -> None:
    one, two = dying("one", "once"), dying("two", "once")
    replies = [calls(call("one", item=1), call("two", item=2)), say("done")]
    name = await crashed(where, Agent(Script(*replies), tools=[one.tool, two.tool]), one, two)
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*replies), tools=[one.tool, two.tool]))
        await (await went_on(session)).wait()
        requests = session.pending
        assert [request.tool for request in requests] == ["one", "two"]
        turn = await session.decide(resolve(requests[order[0]], f"r{order[0]}"))
        assert (await turn.wait()).parked
        turn = await session.decide(resolve(requests[order[1]], f"r{order[1]}"))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["r0", "r1"]


async def test_what_was_cut_is_treated_by_its_effect_and_what_was_done_is_kept(where: Where) -> None:
    done = Work("done", approval=False)
    none, again, once = dying("nothing", "none"), dying("again", "repeatable"), dying("once", "once")
    gated = Work("gated")
    tools = [work.tool for work in (done, none, again, once, gated)]
    wanted = calls(*(call(work, item=n) for n, work in enumerate(("done", "nothing", "again", "once", "gated"))))
    name = await crashed(where, Agent(Script(wanted, say("end")), tools=tools), done, none, again, once)
    for work in (none, again, once):
        work.release.set()
    script = Script(wanted, say("end"))
    async with open_store(where) as store:
        session = await store.open(name, Agent(script, tools=tools))
        turn = await went_on(session)
        assert (await turn.wait()).parked
        assert [(request.tool, request.kind) for request in session.pending] == [
            ("once", "uncertain"),
            ("gated", "approval"),
        ]
        assert (done.runs, none.runs, again.runs, once.runs, gated.runs) == ([0], [1, 1], [2, 2], [3], [])
        turn = await session.decide(resolve(session.pending[0], "it was"), approve(session.pending[1]))
        assert (await turn.wait()).text == "end"
        assert contents(session) == ["done 0", "nothing 1", "again 2", "it was", "gated 4"]
    assert (done.runs, none.runs, again.runs, once.runs, gated.runs) == ([0], [1, 1], [2, 2], [3], [4])
    assert len(set(again.keys)) == 1
    assert again.attempts == [1, 2]
    assert len(script.requests) == 1


async def test_a_body_without_effect_runs_again_as_often_as_it_is_cut(where: Where) -> None:
    look = dying("look", "none")
    replies = [call("look", item=1), say("done")]
    name = await crashed(where, Agent(Script(*replies), tools=[look.tool]), look)
    for _ in range(4):
        look.started.clear()
        async with open_store(where, grace=0) as store:
            await went_on(await store.open(name, Agent(Script(*replies), tools=[look.tool])))
            await look.started.wait()
    look.release.set()
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*replies), tools=[look.tool]))
        assert (await (await went_on(session)).wait()).text == "done"
    assert look.runs == [1] * 6


async def test_a_repeatable_body_starts_no_more_often_than_it_may(where: Where) -> None:
    post = dying("post", "repeatable", attempts=2)
    replies = [call("post", item=1), say("done")]
    name = await crashed(where, Agent(Script(*replies), tools=[post.tool]), post)
    post.started.clear()
    async with open_store(where, grace=0) as store:
        await went_on(await store.open(name, Agent(Script(*replies), tools=[post.tool])))
        await post.started.wait()
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*replies), tools=[post.tool]))
        result = await (await went_on(session)).wait()
        assert post.runs == [1, 1]
        assert len(set(post.keys)) == 1
        if result.parked:
            assert [request.kind for request in session.pending] == ["uncertain"]
            turn = await session.decide(resolve(session.pending[0], "it is there"))
            result = await turn.wait()
        assert result.text == "done"
    assert post.runs == [1, 1]


async def test_what_was_approved_and_not_started_runs_after_the_crash(where: Where) -> None:
    first, second = dying("first", "none", approval=True, sequential=True), Work("second", sequential=True)
    replies = [calls(call("first", item=1), call("second", item=2)), say("done")]
    tools = [first.tool, second.tool]
    name = await crashed(where, Agent(Script(*replies), tools=tools), first, decide=True)
    assert second.runs == []
    first.release.set()
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*replies), tools=tools))
        turn = await went_on(session)
        result = await turn.wait()
        if result.parked:  # its start was written with the resume, so it may have happened
            assert [request.kind for request in session.pending] == ["uncertain"]
            turn = await session.decide(approve(session.pending[0]))
            result = await turn.wait()
        assert result.text == "done"
        assert contents(session) == ["first 1", "second 2"]
    assert (first.runs, second.runs) == ([1, 1], [2])


async def test_an_approval_that_ran_out_of_time_after_it_was_given_still_counts(where: Where) -> None:
    clock = ManualClock()
    pay = Work(expires=60.0)
    async with open_store(where, clock=clock) as store:
        session, _ = await parked(store, Agent(Script(*ONE), tools=[pay.tool]))
        await store.decide(approve(session.pending[0]))
    await clock.advance(1000.0)
    async with open_store(where, clock=clock) as store:
        turn = await store.recover(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        assert turn is not None
        assert (await turn.wait()).text == "done"
    assert pay.runs == [1]


async def test_a_crash_after_the_result_runs_nothing_again(where: Where) -> None:
    pay = Work()
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        script = Script(call("pay", item=1), hold(never, say("done")))
        session, _ = await parked(store, Agent(script, tools=[pay.tool]))
        await session.decide(approve(session.pending[0]))
        async for entry in store.watch(session.id):
            if entry.kind == "tool_result":
                break
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(*ONE), tools=[pay.tool]))
        assert (await (await went_on(again)).wait()).text == "done"
        assert contents(again) == ["pay 1"]
    assert pay.runs == [1]


async def test_what_is_uncertain_and_gone_is_changed(where: Where) -> None:
    pay = dying("pay", "once")
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay)
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*ONE)))
        with pytest.raises(Changed):
            await session.resume()
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*ONE), tools=[pay.tool]))
        assert (await (await went_on(session)).wait()).parked
    assert pay.runs == [1]


async def test_what_a_person_made_uncertain_is_not_run_by_a_laxer_effect(where: Where) -> None:
    pay = dying("pay", "once")
    name = await crashed(where, Agent(Script(*ONE), tools=[pay.tool]), pay)
    lax = Work("pay", approval=False, effect="none")
    async with open_store(where) as store:
        session = await store.open(name, Agent(Script(*ONE), tools=[lax.tool]))
        # It was started as `once`: what decides safety is stored, and the stored rule wins.
        assert (await (await went_on(session)).wait()).parked
        assert lax.runs == []


async def test_a_once_body_ended_by_its_deadline_is_uncertain(where: Where) -> None:
    clock = ManualClock()
    pay = dying("pay", "once", timeout=5.0)
    async with open_store(where, clock=clock) as store:
        session = await store.create(Agent(Script(*ONE), tools=[pay.tool]))
        turn = await session.send("go")
        await pay.started.wait()
        await clock.advance(5.0)
        assert (await turn.wait()).parked
        [request] = session.pending
        assert request.kind == "uncertain"
        turn = await session.decide(resolve(request, "paid after all"))
        assert (await turn.wait()).text == "done"
        assert contents(session) == ["paid after all"]
    assert pay.runs == [1]


@pytest.mark.parametrize("effect", ["none", "repeatable"])
async def test_another_body_ended_by_its_deadline_is_a_timeout(where: Where, effect: str) -> None:
    clock = ManualClock()
    pay = dying("pay", effect, timeout=5.0)
    async with open_store(where, clock=clock) as store:
        session = await store.create(Agent(Script(*ONE), tools=[pay.tool]))
        turn = await session.send("go")
        await pay.started.wait()
        await clock.advance(5.0)
        assert (await turn.wait()).text == "done"
        assert [result.code for result in results(session)] == ["TIMEOUT"]


async def test_keys_differ_between_calls_sessions_and_occurrences(where: Where) -> None:
    pay = Work()
    replies = [calls(call("pay", item=1), call("pay", item=1)), call("pay", item=1), say("done")]
    agent = Agent(Script(*replies), tools=[pay.tool])
    async with open_store(where) as store:
        for _ in range(2):
            session, _ = await parked(store, agent)
            while session.pending:
                await (await session.decide(*(approve(request) for request in session.pending))).wait()
    assert len(pay.keys) == len(set(pay.keys)) == 6
