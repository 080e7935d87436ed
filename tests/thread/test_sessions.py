"""Sessions: turns, their history, their queue and their handles, and what leaving a store does to them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.thread.places import SlowStore, ticks
from weft import (
    Agent,
    Busy,
    Closed,
    Conflict,
    Context,
    LimitReached,
    Limits,
    Message,
    ModelFailed,
    ModelInfo,
    ModelRequest,
    RunFailed,
    Settings,
    Text,
    ToolError,
    Usage,
    tool,
)
from weft.errors import NoNext, NotFound, StopAndLook, TurnCancelled, WrongCall
from weft.events import Event, event_adapter
from weft.model import ModelEvent
from weft.testing import CountingIds, ManualClock, Script, call, calls, fail, hold, override, say
from weft.thread import Entry, Memory, OpenStore, Session, Turn, approve, open_store
from weft.thread.memory import MemoryStore
from weft.thread.store import Appended, Head, Index, LeaseChange

Where: TypeAlias = Memory | str
SPENT = Usage(input_tokens=10, output_tokens=5)


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


class Boom(Exception):
    """What a body raises."""


class Body:
    """A tool whose body says that it has started, and ends when it is told."""

    def __init__(self, name: str = "work", **options: Any) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.runs: list[int] = []
        self.keys: list[str] = []

        @tool(name=name, **options)
        async def body(ctx: Context, item: int) -> str:
            self.runs.append(item)
            self.keys.append(ctx.call.idempotency_key)
            self.started.set()
            await self.release.wait()
            return f"{name} {item}"

        self.tool = body


@tool(effect="none")
async def look(item: int) -> str:
    """Look something up."""
    return f"found {item}"


def said(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in session.messages]


def users(session: Session) -> list[str]:
    return [message.text for message in session.messages if message.role == "user"]


def answers(session: Session) -> list[tuple[str, bool, str | None]]:
    """Every result that the transcript has."""
    return [
        (result.content, result.is_error, result.code) for message in session.messages for result in message.results
    ]


def asked(script: Script) -> list[list[str]]:
    """The user texts of each request."""
    return [[message.text for message in request.messages if message.role == "user"] for request in script.requests]


async def journal(store: OpenStore, session: Session) -> list[Entry]:
    return [entry async for entry in store.watch(session.id, until=session.head)]


async def kinds(store: OpenStore, session: Session) -> list[str]:
    return [entry.kind for entry in await journal(store, session)]


async def followed(turn: Turn) -> list[Event]:
    return [event async for event in turn.events()]


def names(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def settle() -> None:
    """Let every task do what it can do now."""
    for _ in range(100):
        await asyncio.sleep(0)


# One turn.


async def test_an_answer_is_a_result_and_stays_in_the_session(where: Where) -> None:
    script = Script(say("hello"))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        result = await session.ask("hi")
        assert (result.text, result.stop, result.parked, result.usage) == ("hello", "answered", False, SPENT)
        assert result.pending == ()
        assert said(session) == [("user", "hi"), ("assistant", "hello")]
        assert result.messages == session.messages
        assert session.pending == ()
        assert session.receipts == ()
    script.assert_done()


async def test_four_appends_are_the_rule_and_their_kinds_are_those_of_the_design(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("look", item=1), say("done")), tools=[look]))
        await session.ask("go")
        assert await kinds(store, session) == [
            "header",
            "turn_started",
            "message",
            "message",
            "tools_started",
            "tool_result",
            "message",
            "turn_ended",
        ]


async def test_the_prompt_is_durable_when_send_returns(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(hold(never, say("late")))))
        async with open_store(where) as other:
            seen = await other.open(session.id)
            assert seen.messages == ()
            turn = await session.send("hi")
            await seen.refresh()
            assert said(seen) == [("user", "hi")]
        assert turn.id is not None
        assert turn.outcome is None


async def test_send_returns_before_the_turn_ends_and_wait_follows_it(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("hello")))))
        turn = await session.send("hi")
        assert turn.outcome is None
        go.set()
        assert (await turn.wait()).text == "hello"
        assert turn.outcome == "answered"
        assert (await turn.wait()).text == "hello"


async def test_a_turn_that_answered_has_no_next(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("hello"))))
        turn = await session.send("hi")
        with pytest.raises(NoNext):
            await turn.next()


async def test_any_number_wait_and_cancelling_one_cancels_neither_the_turn_nor_the_others(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("hello")))))
        turn = await session.send("hi")
        waits = [asyncio.create_task(turn.wait()) for _ in range(3)]
        await settle()
        waits[0].cancel()
        await asyncio.wait([waits[0]])
        assert waits[0].cancelled()
        go.set()
        assert [(await task).text for task in waits[1:]] == ["hello", "hello"]


async def test_cancelling_ask_does_not_cancel_the_turn(where: Where) -> None:
    body = Body(effect="none")
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("work", item=1), say("done")), tools=[body.tool]))
        task = asyncio.create_task(session.ask("go"))
        await body.started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        queued = await session.send("and then?", key="q")
        body.release.set()
        with pytest.raises(ModelFailed):  # the script has no more; the point is that the turns came this far
            await queued.wait()
        assert ("assistant", "done") in said(session)
        assert answers(session) == [("work 1", False, None)]


async def test_several_calls_of_a_step_answer_in_call_order(where: Where) -> None:
    slow = Body("slow", effect="none")
    async with open_store(where) as store:
        script = Script(calls(call("slow", item=1), call("look", item=2)), say("done"))
        session = await store.create(Agent(script, tools=[slow.tool, look]))
        turn = await session.send("go")
        await slow.started.wait()
        await settle()
        slow.release.set()
        await turn.wait()
        assert answers(session) == [("slow 1", False, None), ("found 2", False, None)]


async def test_a_fast_result_is_durable_while_its_slow_sibling_runs(where: Where) -> None:
    slow = Body("slow", effect="none")
    script = Script(calls(call("slow", item=1), call("look", item=2)), say("done"))
    async with open_store(where) as store:
        session = await store.create(Agent(script, tools=[slow.tool, look]))
        turn = await session.send("go")
        await slow.started.wait()
        async for entry in store.watch(session.id):  # hangs if the result is held back
            if entry.kind == "tool_result":
                break
        slow.release.set()
        await turn.wait()


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ([Text(text="a\x00b")], "a\ufffdb"),
        ([Text(text="one"), Text(text="two")], "onetwo"),
        (Message.user("a message"), "a message"),
        (Message(role="user", parts=(Text(text="a\x00\udfffb"),)), "a\ufffd\ufffdb"),
    ],
)
async def test_what_is_no_text_becomes_a_replacement_character_on_entry(where: Where, prompt: Any, text: str) -> None:
    script = Script(say("ok"))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        await session.ask(prompt)
        assert users(session) == [text]
    async with open_store(where) as store:
        assert users(await store.open(session.id)) == [text]
    assert asked(script) == [[text]]


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
async def test_what_is_no_text_in_a_result_becomes_a_replacement_character(where: Where, text: str) -> None:
    @tool(effect="none")
    async def odd() -> str:
        return text

    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("odd"), say("ok")), tools=[odd]))
        assert (await session.ask("go")).text == "ok"
    async with open_store(where) as store:
        assert answers(await store.open(session.id)) == [("a\ufffdb", False, None)]


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
async def test_what_is_no_text_in_a_tool_error_becomes_a_replacement_character(where: Where, text: str) -> None:
    @tool(effect="none")
    async def odd() -> str:
        raise ToolError("ODD", text)

    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("odd"), say("ok")), tools=[odd]))
        assert (await session.ask("go")).text == "ok"
    async with open_store(where) as store:
        assert answers(await store.open(session.id)) == [("a\ufffdb", True, "ODD")]


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
async def test_what_is_no_text_in_a_reply_becomes_a_replacement_character(where: Where, text: str) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say(text))))
        await session.ask("go")
    async with open_store(where) as store:
        assert said(await store.open(session.id))[-1] == ("assistant", "a\ufffdb")


# History.


async def test_a_turn_reads_the_turns_before_it(where: Where) -> None:
    script = Script(call("look", item=1), say("one"), say("two"))
    async with open_store(where) as store:
        session = await store.create(Agent(script, tools=[look]))
        first = await session.send("first")
        await first.wait()
        second = await session.ask("second")
        assert [message.role for message in script.requests[2].messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
        assert second.usage == SPENT
        late = await first.wait()
        assert len(late.messages) == 4
        assert late.messages == second.messages[:4]
        assert (late.text, late.usage) == ("one", SPENT + SPENT)


async def test_history_outlives_the_store(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("look", item=1), say("one")), tools=[look]))
        await session.ask("first")
        before = session.messages
    script = Script(say("?"), say("?"), say("two"))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(script, tools=[look]))
        assert again.messages == before
        assert (await again.ask("second")).text == "two"
        assert tuple(script.requests[0].messages)[:4] == before
        assert len(script.requests) == 1


async def test_positions_go_on_over_turns_and_restarts(where: Where) -> None:
    replies = [say("a"), say("b"), say("c")]
    async with open_store(where) as store:
        session = await store.create(Agent(Script(*replies)))
        assert [(await session.ask("x")).text for _ in range(2)] == ["a", "b"]
    script = Script(*replies)
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(script))
        assert (await again.ask("x")).text == "c"
    assert [(request.position.thread, request.position.index) for request in script.requests] == [(session.id, 2)]


async def test_sessions_of_one_agent_share_nothing(where: Where) -> None:
    agent = Agent(Script(call("look", item=1), say("done")), tools=[look])
    async with open_store(where) as store:
        sessions = [await store.create(agent) for _ in range(5)]
        results = await asyncio.gather(*(session.ask(str(n)) for n, session in enumerate(sessions)))
        assert [result.text for result in results] == ["done"] * 5
        assert [users(session) for session in sessions] == [[str(n)] for n in range(5)]
        ids = [item.id for session in sessions for message in session.messages for item in message.calls]
        assert len(set(ids)) == 5


# Keys.


async def test_the_same_key_and_message_is_the_same_turn(where: Where) -> None:
    script = Script(say("one"), say("two"))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        first = await session.send("hi", key="k")
        again = await session.send("hi", key="k")
        assert again.id == first.id
        await first.wait()
        late = await session.send("hi", key="k")
        assert late.id == first.id
        assert (await late.wait()).text == "one"
        assert (await session.ask("hi", key="k")).text == "one"
        assert users(session) == ["hi"]
    assert len(script.requests) == 1


async def test_a_key_is_known_after_a_restart(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("one"))))
        first = await session.send("hi", key="k")
        await first.wait()
    script = Script(say("one"), say("two"))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(script))
        turn = await again.send("hi", key="k")
        assert turn.id == first.id
        assert turn.outcome == "answered"
        result = await turn.wait()
        assert (result.text, result.stop, result.usage) == ("one", "answered", SPENT)
        assert script.requests == []


@pytest.mark.parametrize("rest", ["idle", "running", "queued"])
async def test_a_key_with_other_content_is_a_conflict_and_writes_nothing(where: Where, rest: str) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("one")), say("two"))))
        first = await session.send("hi", key="k")
        if rest == "queued":
            first = await session.send("more", key="q")
        if rest == "idle":
            go.set()
            await first.wait()
        await session.refresh()
        head = session.head
        with pytest.raises(Conflict):
            await session.send("something else", key="q" if rest == "queued" else "k")
        assert session.head == head
        go.set()
        await first.wait()


async def test_a_key_of_queued_input_gives_the_queued_turn(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("one")), say("two"))))
        await session.send("a")
        queued = await session.send("b", key="k")
        again = await session.send("b", key="k")
        assert (queued.id, again.id) == (None, None)
        go.set()
        assert (await again.wait()).text == (await queued.wait()).text == "two"
        assert again.id == queued.id is not None
        late = await session.send("b", key="k")
        assert late.id == queued.id
        assert users(session) == ["a", "b"]


async def test_a_client_that_retries_at_once_gets_one_turn(where: Where) -> None:
    script = Script(say("one"), say("two"))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        other = await store.open(session.id, Agent(script))
        turns = await asyncio.gather(*(handle.send("hi", key="k") for handle in (session, other) * 4))
        assert len({turn.id for turn in turns}) == 1
        assert {(await turn.wait()).text for turn in turns} == {"one"}
        assert users(session) == ["hi"]


async def test_two_stores_that_are_sent_the_same_key_at_once_make_one_turn(where: Where) -> None:
    scripts = [Script(say("one"), say("two")), Script(say("one"), say("two"))]
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(scripts[0]))
        other = await two.open(session.id, Agent(scripts[1]))
        turns = await asyncio.gather(session.send("hi", key="k"), other.send("hi", key="k"))
        assert [(await turn.wait()).text for turn in turns] == ["one", "one"]
        await session.refresh()
        assert users(session) == ["hi"]
        assert sum(len(script.requests) for script in scripts) == 1


async def test_of_two_messages_under_one_key_at_once_one_is_a_conflict(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("one"), say("two"))))
        outcomes = await asyncio.gather(session.send("a", key="k"), session.send("b", key="k"), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Turn"]
        [turn] = [outcome for outcome in outcomes if isinstance(outcome, Turn)]
        await turn.wait()
        assert len(users(session)) == 1


async def test_without_a_key_the_same_message_is_sent_again(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("one"), say("two"))))
        assert [(await session.ask("hi")).text for _ in range(2)] == ["one", "two"]


async def test_a_key_keeps_its_meaning_without_an_agent(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("one"))))
        first = await session.send("hi", key="k")
        await first.wait()
    async with open_store(where) as store:
        reader = await store.open(session.id)
        turn = await reader.send("hi", key="k")
        assert turn.id == first.id


async def test_without_an_agent_nobody_is_asked_and_what_is_sent_waits_for_who_has_one(where: Where) -> None:
    agent = Agent(Script(say("one"), say("two")))
    async with open_store(where) as store:
        session = await store.create(agent)
        reader = await store.open(session.id)
        with pytest.raises(WrongCall, match="opened without an agent"):
            await reader.ask("hi")
        turn = await reader.send("hi")
        await session.resume()
        assert (await turn.wait()).text == "one"
        assert len(session.messages) == 2


async def test_a_key_with_other_content_is_a_conflict_without_an_agent_too(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("one"))))
        reader = await store.open(session.id)
        await reader.send("hi", key="k")
        with pytest.raises(Conflict):
            await reader.send("something else", key="k")


# The queue.


async def test_what_is_sent_to_a_busy_session_runs_after_it_in_order(where: Where) -> None:
    go = asyncio.Event()
    script = Script(hold(go, say("1")), say("2"), say("3"), say("4"))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        turns = [await session.send(text) for text in "abcd"]
        assert [turn.id is None for turn in turns] == [False, True, True, True]
        await settle()
        assert len(script.requests) == 1
        go.set()
        assert [(await turn.wait()).text for turn in reversed(turns)] == ["4", "3", "2", "1"]
        assert [turn.outcome for turn in turns] == ["answered"] * 4
        assert len({turn.id for turn in turns}) == 4
        assert said(session) == [
            (role, text)
            for pair in zip("abcd", "1234", strict=True)
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        assert asked(script) == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


async def test_many_senders_at_once_are_served_one_at_a_time_each_once(where: Where) -> None:
    at_work = 0

    @tool(effect="none")
    async def once_at_a_time() -> str:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        await asyncio.sleep(0)
        at_work -= 1
        return "ok"

    n = 12
    replies = [reply for _ in range(n) for reply in (call("once_at_a_time"), say("done"))]
    async with open_store(where) as store:
        session = await store.create(Agent(Script(*replies), tools=[once_at_a_time]))
        handles = [session, await store.open(session.id, session.agent)]
        turns = await asyncio.gather(*(handles[i % 2].send(str(i)) for i in range(n)))
        assert [(await turn.wait()).text for turn in turns] == ["done"] * n
        assert users(session) == [str(i) for i in range(n)]
        assert answers(session) == [("ok", False, None)] * n


async def test_two_stores_that_send_at_once_lose_nothing_and_double_nothing(where: Where) -> None:
    n = 6
    replies = [say(f"{i}") for i in range(2 * n)]
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(*replies)))
        other = await two.open(session.id, Agent(Script(*replies)))
        turns = await asyncio.gather(
            *(handle.send(f"{name}{i}") for i in range(n) for name, handle in (("a", session), ("b", other)))
        )
        # Who has an agent and a queue goes on with it; what was sent elsewhere is for whoever asks.
        waits = [asyncio.ensure_future(turn.wait()) for turn in turns]
        while not all(wait.done() for wait in waits):
            for handle in (session, other):
                turn = await handle.resume()
                if turn is not None:
                    await turn.wait()
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await session.refresh()
        assert sorted(users(session)) == sorted(f"{name}{i}" for i in range(n) for name in "ab")
        assert [text for role, text in said(session) if role == "assistant"] == [str(i) for i in range(2 * n)]
        assert [role for role, _ in said(session)] == ["user", "assistant"] * (2 * n)


async def test_what_was_queued_runs_after_a_restart_in_order(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(hold(never, say("never")))))
        for text in "abc":
            await session.send(text, key=text)
    script = Script(say("1"), say("2"), say("3"))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(script))
        assert users(again) == ["a"]
        assert await again.resume() is not None
        turns = [await again.send(text, key=text) for text in "abc"]
        assert [(await turn.wait()).text for turn in turns] == ["1", "2", "3"]
        assert users(again) == ["a", "b", "c"]


async def test_what_waits_in_an_idle_session_goes_before_a_new_message(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script()))
        reader = await store.open(session.id)
        waiting = await reader.send("left by somebody")
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(say("1"), say("2"))))
        assert (await again.ask("new")).text == "2"
        assert users(again) == ["left by somebody", "new"]
    assert waiting.id is None


async def test_resume_runs_what_was_left_without_an_agent(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"))))
        reader = await store.open(session.id)
        waiting = await reader.send("hi", key="k")
        assert waiting.id is None
        turn = await session.resume()
        assert turn is not None
        assert (await turn.wait()).text == "1"
        assert (await waiting.wait()).text == "1"
        assert await session.resume() is None


async def test_what_another_store_sends_meanwhile_is_run_by_the_one_at_work(where: Where) -> None:
    body = Body(effect="none")
    replies = [call("work", item=1), say("1"), say("2")]
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(*replies), tools=[body.tool]))
        first = await session.send("a")
        await body.started.wait()
        other = await two.open(session.id)
        second = await other.send("b")
        assert second.id is None
        body.release.set()
        assert (await first.wait()).text == "1"
        assert (await second.wait()).text == "2"
        await session.refresh()
        assert users(session) == ["a", "b"]


async def test_an_agent_elsewhere_queues_too_while_the_turn_runs_here(where: Where) -> None:
    body = Body(effect="none")
    replies = [call("work", item=1), say("1"), say("2")]
    elsewhere = Script(*replies)
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(*replies), tools=[body.tool]))
        first = await session.send("a")
        await body.started.wait()
        other = await two.open(session.id, Agent(elsewhere, tools=[body.tool]))
        second = await other.send("b")
        body.release.set()
        assert [(await turn.wait()).text for turn in (first, second)] == ["1", "2"]
        assert body.runs == [1]


async def test_reject_refuses_a_busy_session_and_writes_nothing(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("one")), say("two"))))
        turn = await session.send("hi", policy="reject")
        head = session.head
        with pytest.raises(Busy):
            await session.send("again", policy="reject")
        assert session.head == head
        go.set()
        await turn.wait()
        assert (await (await session.send("again", policy="reject")).wait()).text == "two"


async def test_reject_refuses_while_a_turn_runs_in_another_store(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(hold(go, say("one")))))
        other = await two.open(session.id, Agent(Script(say("one"), say("two"))))
        turn = await session.send("hi")
        with pytest.raises(Busy):
            await other.send("again", policy="reject")
        go.set()
        await turn.wait()
        assert (await (await other.send("again", policy="reject")).wait()).text == "two"


async def test_reject_keeps_its_promise_without_an_agent(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("one")))))
        turn = await session.send("hi")
        reader = await store.open(session.id)
        head = reader.head
        with pytest.raises(Busy):
            await reader.send("again", policy="reject")
        assert reader.head == head
        go.set()
        await turn.wait()


async def test_reject_knows_its_key_in_a_busy_session(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("one")))))
        turn = await session.send("hi", key="k", policy="reject")
        again = await session.send("hi", key="k", policy="reject")
        assert again.id == turn.id
        go.set()
        await turn.wait()


async def test_an_unknown_policy_is_refused(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("one"))))
        head = session.head
        with pytest.raises(WrongCall):
            await session.send("hi", policy="sometime")  # type: ignore[arg-type]
        assert session.head == head


# Handles.


async def test_two_handles_are_one_session(where: Where) -> None:
    script = Script(say("one"), say("two"))
    async with open_store(where) as store:
        one = await store.create(Agent(script), meta={"a": "b"})
        two = await store.open(one.id, Agent(script))
        reader = await store.open(one.id)
        await one.ask("a")
        await two.ask("b")
        assert one.messages == two.messages == reader.messages
        assert one.head == two.head == reader.head
        assert one.usage == two.usage == reader.usage
        assert dict(two.meta) == dict(reader.meta) == {"a": "b"}
        assert reader.agent is None


async def test_open_reads_only(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(hold(never, say("never")))))
        await session.send("a")
        await session.send("b")
    script = Script(say("1"), say("2"))
    async with open_store(where) as store:
        one = await store.open(session.id, Agent(script))
        head = one.head
        await store.open(session.id)
        await settle()
        async with open_store(where) as other:
            assert (await other.open(session.id)).head == head
    assert script.requests == []


async def test_without_an_agent_a_session_reads_and_sends_and_does_not_resume(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"))))
        await session.ask("hi")
    async with open_store(where) as store:
        reader = await store.open(session.id)
        assert said(reader) == [("user", "hi"), ("assistant", "1")]
        with pytest.raises(WrongCall):
            await reader.resume()
        assert reader.usage.total == SPENT


async def test_resume_of_an_idle_session_is_none_and_writes_nothing(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"))))
        assert await session.resume() is None
        await session.ask("hi")
        head = session.head
        assert await session.resume() is None
        assert session.head == head


async def test_resume_while_the_turn_runs_here_is_that_turn(where: Where) -> None:
    go = asyncio.Event()
    script = Script(hold(go, say("1")))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        turn = await session.send("hi")
        same = await session.resume()
        assert same is not None
        assert same.id == turn.id
        go.set()
        assert (await same.wait()).text == "1"
    assert len(script.requests) == 1


async def test_resume_and_recover_leave_a_live_turn_of_another_store_alone(where: Where) -> None:
    go = asyncio.Event()
    elsewhere = Script(say("1"))
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(hold(go, say("1")))))
        turn = await session.send("hi")
        other = await two.open(session.id, Agent(elsewhere))
        assert await other.resume() is None
        assert await two.recover(session.id, Agent(elsewhere)) is None
        go.set()
        await turn.wait()
        assert [entry.kind for entry in await journal(one, session)].count("turn_started") == 1
    assert elsewhere.requests == []


async def test_properties_are_as_of_the_last_fold(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(say("1"))))
        other = await two.open(session.id)
        await session.ask("hi")
        assert other.messages == ()
        await other.refresh()
        assert other.messages == session.messages
        assert other.head == session.head


async def test_who_asks_for_an_unknown_session_is_told(where: Where) -> None:
    async with open_store(where) as store:
        with pytest.raises(NotFound):
            await store.open("nobody")
        with pytest.raises(NotFound):
            await store.recover("nobody", Agent(Script()))
        with pytest.raises(NotFound):
            await store.delete("nobody")
        with pytest.raises(NotFound):
            await anext(store.watch("nobody"))


async def test_deps_of_the_wrong_type_are_refused_before_anything_is_written(where: Where) -> None:
    class Shop:
        pass

    agent = Agent(Script(say("1")), deps=Shop)
    async with open_store(where) as store:
        with pytest.raises(WrongCall):
            await store.create(agent, deps="no shop")  # type: ignore[arg-type]
        with pytest.raises(WrongCall):
            await store.create(agent)
        assert [header async for header in store.list()] == []
        session = await store.create(agent, deps=Shop())
        with pytest.raises(WrongCall):
            await store.open(session.id, agent)


async def test_tools_get_the_deps_of_the_session(where: Where) -> None:
    class Shop:
        name = "ann's"

    @tool(effect="none")
    async def whose(ctx: Context[Shop]) -> str:
        assert ctx.call.thread is not None
        return ctx.deps.name

    agent = Agent(Script(call("whose"), say("1")), deps=Shop, tools=[whose])
    async with open_store(where) as store:
        session = await store.create(agent, deps=Shop())
        await session.ask("go")
        assert answers(session) == [("ann's", False, None)]


async def test_metadata_is_strings_and_stays(where: Where) -> None:
    async with open_store(where) as store:
        with pytest.raises(WrongCall):
            await store.create(Agent(Script()), meta={"n": 1})  # type: ignore[dict-item]
        session = await store.create(Agent(Script(), name="desk"), meta={"customer": "ann"})
    async with open_store(where) as store:
        again = await store.open(session.id)
        assert dict(again.meta) == dict(again.header.meta) == {"customer": "ann"}
        assert (again.header.name, again.header.kind, again.header.root) == ("desk", "session", again.id)


async def test_an_agent_can_be_replaced_by_its_name(where: Where) -> None:
    desk = Agent("openai:nothing-that-is-there", name="desk")
    async with open_store(where) as store:
        with override({"desk": Script(say("scripted"))}):
            session = await store.create(desk)
            assert (await session.ask("hi")).text == "scripted"


# Context variables.

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@tool(effect="none")
async def who() -> str:
    """Who asks."""
    return WHO.get()


@tool(effect="none")
def who_in_a_thread() -> str:
    """Who asks."""
    return WHO.get()


async def test_a_turn_runs_in_a_copy_of_its_sends_context(where: Where) -> None:
    async with open_store(where) as store:
        script = Script(calls(call("who"), call("who_in_a_thread")), say("1"))
        session = await store.create(Agent(script, tools=[who, who_in_a_thread]))
        token = WHO.set("ann")
        turn = await session.send("go")
        WHO.reset(token)
        await turn.wait()
        assert [content for content, *_ in answers(session)] == ["ann", "ann"]


async def test_queued_input_runs_in_its_own_sends_context(where: Where) -> None:
    body = Body(effect="none")
    async with open_store(where) as store:
        script = Script(call("work", item=1), say("1"), call("who"), say("2"), call("who"), say("3"))
        session = await store.create(Agent(script, tools=[body.tool, who]))
        for name in ("ann", "bob", "cid"):
            token = WHO.set(name)
            turn = await session.send(name)
            WHO.reset(token)
        await body.started.wait()
        body.release.set()
        await turn.wait()
        assert [content for content, *_ in answers(session)] == ["work 1", "bob", "cid"]


async def test_a_body_that_sets_a_variable_does_not_leak_it(where: Where) -> None:
    @tool(effect="none")
    async def become() -> str:
        WHO.set("mallory")
        return "ok"

    async with open_store(where) as store:
        script = Script(call("become"), say("1"), call("who"), say("2"))
        session = await store.create(Agent(script, tools=[become, who]))
        await session.ask("a")
        assert WHO.get() == "nobody"
        await session.ask("b")
        assert [content for content, *_ in answers(session)] == ["ok", "nobody"]


# Events.


async def test_events_are_the_same_live_late_and_again(where: Where) -> None:
    body = Body(effect="none")
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("work", item=1), say("done")), tools=[body.tool]))
        turn = await session.send("go")
        live = [asyncio.create_task(followed(turn)) for _ in range(2)]
        await body.started.wait()
        middle = asyncio.create_task(followed(turn))
        body.release.set()
        await turn.wait()
        late = await followed(turn)
        assert [await task for task in (*live, middle)] == [late] * 3
        stream = turn.events()
        assert [event async for event in stream] == late
        assert [event async for event in stream] == late
    kinds = names(late)
    assert kinds[:2] == ["turn_started", "run_started"]
    assert kinds[-2:] == ["run_finished", "turn_ended"]
    assert kinds.count("turn_started") == kinds.count("turn_ended") == kinds.count("run_finished") == 1
    assert kinds.index("step_started") < kinds.index("step_finished") < kinds.index("tool_started")
    assert kinds.index("tool_started") < kinds.index("tool_finished") < kinds.index("run_finished")
    assert "text_delta" in kinds
    assert late[-1].outcome == "answered"  # type: ignore[union-attr]


async def test_events_are_json_and_name_their_turn_and_run(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("look", item=1), say("done")), tools=[look]))
        turn = await session.send("go")
        result = await turn.wait()
        events = await followed(turn)
    adapter = event_adapter()
    assert [adapter.validate_json(adapter.dump_json(event)) for event in events] == events
    assert {event.run for event in events} == {result.run} == {turn.id}
    assert events[0].turn == events[-1].turn == turn.id  # type: ignore[union-attr]


async def test_leaving_the_events_cancels_nothing(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("done")))))
        turn = await session.send("go")
        async for _ in turn.events():
            break
        task = asyncio.create_task(followed(turn))
        await settle()
        task.cancel()
        await asyncio.wait([task])
        go.set()
        assert (await turn.wait()).text == "done"
        assert names(await followed(turn))[-1] == "turn_ended"


async def test_events_of_queued_input_can_be_followed_before_its_turn(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as store:
        session = await store.create(Agent(Script(hold(go, say("1")), say("2"))))
        await session.send("a")
        queued = await session.send("b")
        task = asyncio.create_task(followed(queued))
        await settle()
        assert not task.done()
        go.set()
        events = await task
        assert (names(events)[0], names(events)[-1]) == ("turn_started", "turn_ended")
        assert events[0].turn == queued.id  # type: ignore[union-attr]
        assert events[0].cause == "queued"  # type: ignore[union-attr]


async def test_a_failed_turn_ends_its_events_without_a_finish(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(fail(Boom("no"), times=None))))
        turn = await session.send("go")
        with pytest.raises(RunFailed):
            await turn.wait()
        events = await followed(turn)
        assert "run_finished" not in names(events)
        assert names(events)[-1] == "turn_ended"
        assert events[-1].outcome == "failed"  # type: ignore[union-attr]


async def test_the_end_is_durable_when_it_is_told(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(say("done"))))
        turn = await session.send("go")
        async for event in turn.events():
            if event.kind == "run_finished":
                reader = await two.open(session.id)
                assert said(reader)[-1] == ("assistant", "done")
                assert [entry.kind for entry in await journal(two, reader)][-1] == "turn_ended"


async def test_a_turn_of_another_store_gives_its_durable_events(where: Where) -> None:
    body = Body(effect="none")
    replies = [call("work", item=1), say("done")]
    elsewhere = Script(*replies)
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(*replies), tools=[body.tool]))
        turn = await session.send("go", key="k")
        other = await two.open(session.id, Agent(elsewhere, tools=[body.tool]))
        same = await other.send("go", key="k")
        assert same.id == turn.id
        task = asyncio.create_task(followed(same))
        await body.started.wait()
        body.release.set()
        result = await same.wait()
        assert (result.text, result.usage, result.stop) == ("done", SPENT + SPENT, "answered")
        events = await task
        assert events == await followed(same)
        assert names(events) == [
            "turn_started",
            "run_started",
            "step_finished",
            "tool_finished",
            "step_finished",
            "run_finished",
            "turn_ended",
        ]
        assert {event.run for event in events} == {result.run}
        assert [event for event in await followed(turn) if event.kind in ("turn_ended", "tool_finished")] == [
            event for event in events if event.kind in ("turn_ended", "tool_finished")
        ]
    assert elsewhere.requests == []


async def test_a_turn_of_an_earlier_store_gives_its_durable_events(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("look", item=1), say("done"), say("more")), tools=[look]))
        turn = await session.send("go", key="k")
        await turn.wait()
        await session.ask("more")
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(), tools=[look]))
        same = await again.send("go", key="k")
        events = await followed(same)
        assert names(events)[0] == "turn_started"
        assert names(events)[-2:] == ["run_finished", "turn_ended"]
        assert events[-1].turn == turn.id  # type: ignore[union-attr]


# Usage.


async def test_usage_is_the_sum_of_what_was_reported(where: Where) -> None:
    script = Script(say("1", usage=Usage(input_tokens=3, output_tokens=2, reasoning_tokens=1)), say("2", usage=None))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        assert session.usage.total == Usage()
        await session.ask("a")
        second = await session.ask("b")
        assert second.usage == Usage(unknown=1)
        wanted = Usage(input_tokens=3, output_tokens=2, reasoning_tokens=1, unknown=1)
        assert session.usage.turns == session.usage.total == wanted
        assert session.usage.delegated == Usage()
    async with open_store(where) as store:
        assert (await store.open(session.id)).usage == session.usage


async def test_a_failed_turn_is_counted(where: Where) -> None:
    async with open_store(where) as store:
        script = Script(call("look", item=1), fail(Boom("no")), say("never mind"))
        session = await store.create(Agent(script, tools=[look]))
        with pytest.raises(ModelFailed):
            await session.ask("a")
        assert session.usage.turns.input_tokens == 10
        assert session.usage.turns.unknown <= 1
        await session.ask("b")
        assert session.usage.turns.input_tokens == 20


async def test_a_recovered_turn_counts_one_unknown_call(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(call("look", item=1), hold(never, say("done"))), tools=[look]))
        await session.send("go")
        async for entry in store.watch(session.id):
            if entry.kind == "tool_result":
                break
    async with open_store(where) as store:
        script = Script(call("look", item=1), say("done"))
        turn = await store.recover(session.id, Agent(script, tools=[look]))
        assert turn is not None
        result = await turn.wait()
        assert result.usage == SPENT + SPENT + Usage(unknown=1)
        assert len(script.requests) == 1
    async with open_store(where) as store:
        assert (await store.open(session.id)).usage.turns == SPENT + SPENT + Usage(unknown=1)


async def test_a_turn_recovered_in_its_bodies_counts_no_unknown_call(where: Where) -> None:
    body = Body(effect="none")
    replies = [call("work", item=1), say("done")]
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(*replies), tools=[body.tool]))
        await session.send("go")
        await body.started.wait()
    body.release.set()
    async with open_store(where) as store:
        turn = await store.recover(session.id, Agent(Script(*replies), tools=[body.tool]))
        assert turn is not None
        assert (await turn.wait()).usage == SPENT + SPENT


# Failures and limits.


@pytest.mark.parametrize("error", [Boom("no"), RuntimeError("no"), TimeoutError("no"), ConnectionError("no")])
async def test_a_failed_turn_says_why_and_leaves_a_usable_session(where: Where, error: Exception) -> None:
    script = Script(fail(error), say("fine"), say("still"))
    async with open_store(where) as store:
        session = await store.create(Agent(script))
        turn = await session.send("a")
        with pytest.raises(ModelFailed) as caught:
            await turn.wait()
        assert caught.value.__cause__ is error
        assert caught.value.result is not None
        assert turn.outcome == "failed"
        with pytest.raises(NoNext):
            await turn.next()
        assert (await session.ask("b")).text == "fine"
        assert users(session) == ["a", "b"]
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(say("?"), say("still"))))
        assert (await again.ask("c")).text == "still"


async def test_a_failed_turn_is_one_elsewhere_and_later_too(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("look", item=1), fail(Boom("no"), times=None)), tools=[look]))
        with pytest.raises(ModelFailed):
            await session.ask("a", key="k")
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(), tools=[look]))
        turn = await again.send("a", key="k")
        assert turn.outcome == "failed"
        with pytest.raises(RunFailed) as caught:
            await turn.wait()
        assert caught.value.result is not None
        assert caught.value.result.usage.input_tokens == 10
        assert "run_finished" not in names(await followed(turn))


async def test_a_failed_turn_does_not_hold_up_the_queue(where: Where) -> None:
    go = asyncio.Event()

    @tool(effect="none")
    async def wait_here() -> str:
        await go.wait()
        return "ok"

    async with open_store(where) as store:
        script = Script(call("wait_here"), fail(Boom("no")), say("2"), say("3"))
        session = await store.create(Agent(script, tools=[wait_here]))
        first, second, third = [await session.send(text) for text in "abc"]
        go.set()
        with pytest.raises(ModelFailed):
            await first.wait()
        assert (await second.wait()).text == "2"
        assert (await third.wait()).text == "3"


async def test_instructions_that_raise_fail_the_turn_and_no_more(where: Where) -> None:
    broken = True

    def instructions(ctx: Context[None]) -> str:
        if broken:
            raise Boom("no instructions")
        return "Be brief."

    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("fine")), instructions=instructions))
        turn = await session.send("a")
        with pytest.raises(RunFailed):
            await turn.wait()
        assert turn.outcome == "failed"
        assert names(await followed(turn))[-1] == "turn_ended"
        broken = False
        assert (await session.ask("b")).text == "fine"
        assert await session.resume() is None


async def test_a_tool_that_raises_is_data_for_the_model(where: Where) -> None:
    @tool
    async def broken() -> str:
        raise Boom("the password is hunter2")

    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("broken"), say("oh")), tools=[broken]))
        assert (await session.ask("go")).text == "oh"
        [(content, is_error, code)] = answers(session)
        assert (is_error, code) == (True, "INTERNAL")
        assert "hunter2" not in content
        assert session.pending == ()


async def test_a_limit_ends_the_turn_and_not_the_session(where: Where) -> None:
    script = Script(call("look", item=1), call("look", item=2), say("fine"))
    async with open_store(where) as store:
        session = await store.create(Agent(script, tools=[look], limits=Limits(steps=2)))
        turn = await session.send("a")
        with pytest.raises(LimitReached) as caught:
            await turn.wait()
        assert caught.value.limit == "steps"
        assert caught.value.result is not None
        assert caught.value.result.usage == SPENT + SPENT
        assert len(script.requests) == 2
        assert answers(session) == [("found 1", False, None), ("found 2", False, None)]
        assert (await session.ask("b")).text == "fine"


async def test_a_limit_is_one_when_it_is_read_later(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(
            Agent(Script(call("look", item=1), say("no")), tools=[look], limits=Limits(steps=1))
        )
        with pytest.raises(LimitReached):
            await session.ask("a", key="k")
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script(), tools=[look]))
        with pytest.raises(LimitReached) as caught:
            await again.ask("a", key="k")
        assert caught.value.limit == "steps"


async def test_tokens_are_counted_for_each_run_and_not_for_the_session(where: Where) -> None:
    script = Script(say("1"), say("2"), call("look", item=1), say("never"))
    async with open_store(where) as store:
        session = await store.create(Agent(script, tools=[look], limits=Limits(tokens=15)))
        assert (await session.ask("a")).text == "1"
        assert (await session.ask("b")).text == "2"
        with pytest.raises(LimitReached) as caught:
            await session.ask("c")
        assert caught.value.limit == "tokens"


async def test_a_limit_holds_over_a_restart_and_the_stored_one_wins_over_a_laxer_one(where: Where) -> None:
    body = Body(effect="none")
    replies = [call("work", item=1), call("work", item=2), call("work", item=3), say("never")]
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(*replies), tools=[body.tool], limits=Limits(steps=2)))
        await session.send("go", key="k")
        await body.started.wait()
    body.release.set()
    async with open_store(where) as store:
        script = Script(*replies)
        again = await store.open(session.id, Agent(script, tools=[body.tool], limits=Limits(steps=50)))
        turn = await again.resume()
        assert turn is not None
        with pytest.raises(LimitReached):
            await turn.wait()
        assert len(script.requests) == 1


# Listing.


async def listed(store: OpenStore, **query: Any) -> list[str]:
    return [header.thread async for header in store.list(**query)]


async def test_sessions_are_listed_newest_first_and_by_their_metadata(where: Where) -> None:
    agent = Agent(Script(), name="desk")
    async with open_store(where) as store:
        assert await listed(store) == []
        ids = [
            (await store.create(agent, meta={"customer": "ann" if n % 2 else "bob", "n": str(n)})).id for n in range(4)
        ]
        assert await listed(store) == ids[::-1]
    async with open_store(where) as store:
        assert await listed(store) == ids[::-1]
        assert await listed(store, meta={"customer": "ann"}) == [ids[3], ids[1]]
        assert await listed(store, meta={"customer": "ann", "n": "1"}) == [ids[1]]
        assert await listed(store, meta={"customer": "nobody"}) == []
        assert await listed(store, meta={"nothing": ""}) == []
        assert await listed(store, kind="saga") == []
        await store.delete(ids[2])
        assert await listed(store) == [ids[3], ids[1], ids[0]]


@pytest.mark.parametrize("value", ["it's", 'a "quoted" one', "100%", "a_b", "ü", "\\", "]", "$.x", ""])
async def test_metadata_are_matched_as_they_are(where: Where, value: str) -> None:
    async with open_store(where) as store:
        await store.create(Agent(Script()), meta={"other": value, "key": "aXb"})
        wanted = await store.create(Agent(Script()), meta={"key": value, value: "x"})
        assert await listed(store, meta={"key": value}) == [wanted.id]
        assert await listed(store, meta={value: "x"}) == [wanted.id]


async def test_many_sessions_are_listed_each_once(where: Where) -> None:
    async with open_store(where) as store:
        ids = [(await store.create(Agent(Script()), meta={"odd": str(n % 2)})).id for n in range(230)]
        assert await listed(store) == ids[::-1]
        assert await listed(store, meta={"odd": "1"}) == ids[1::2][::-1]


async def test_a_listing_goes_on_over_what_is_created_and_deleted_meanwhile(where: Where) -> None:
    async with open_store(where) as store:
        ids = [(await store.create(Agent(Script()))).id for _ in range(150)]
        seen: list[str] = []
        async for header in store.list():
            seen.append(header.thread)
            if len(seen) == 10:
                await store.create(Agent(Script()))
                await store.delete(ids[20])
        assert seen == [name for name in ids[::-1] if name != ids[20]]


async def test_a_listing_goes_on_over_the_deletion_of_what_it_has_just_given(where: Where) -> None:
    async with open_store(where) as store:
        ids = [(await store.create(Agent(Script()))).id for _ in range(230)]
        seen: list[str] = []
        async for header in store.list():  # as a clean-up would be written
            seen.append(header.thread)
            await store.delete(header.thread)
        assert seen == ids[::-1]
        assert await listed(store) == []


async def test_a_listing_goes_on_where_it_was(where: Where) -> None:
    async with open_store(where) as store:
        ids = [(await store.create(Agent(Script()))).id for _ in range(3)]
        listing = store.list()
        assert (await anext(aiter(listing))).thread == ids[2]
        assert [header.thread async for header in listing] == [ids[1], ids[0]]


# Watching.


async def test_a_watch_gives_every_entry_once_in_order_until_a_head(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("look", item=1), say("1")), tools=[look]))
        await session.ask("go")
        entries = await journal(store, session)
        assert [entry.position for entry in entries] == list(range(session.head.count))
        assert len({entry.id for entry in entries}) == len(entries)
        tail = [entry async for entry in store.watch(session.id, after=3, until=session.head)]
        assert tail == entries[3:]
        assert [entry async for entry in store.watch(session.id, after=50, until=session.head)] == []
        watch = store.watch(session.id, until=session.head)
        assert await anext(watch) == entries[0]
        assert [entry async for entry in watch] == entries[1:]
    async with open_store(where) as store:
        assert await journal(store, await store.open(session.id)) == entries


async def test_a_watch_goes_on_live(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"), say("2"))))
        watch = store.watch(session.id)
        assert (await anext(watch)).kind == "header"
        later = asyncio.ensure_future(anext(watch))
        await settle()
        assert not later.done()
        await session.ask("a")
        assert (await later).kind == "turn_started"
        await session.ask("b")
        rest = [(await anext(watch)).position for _ in range(session.head.count - 2)]
        assert rest == list(range(2, session.head.count))


async def test_a_watch_sees_what_another_store_writes(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(say("1"), say("2"))))
        seen: list[Entry] = []

        async def follow() -> None:
            async for entry in two.watch(session.id):
                seen.append(entry)
                if sum(entry.kind == "turn_ended" for entry in seen) == 2:
                    return

        task = asyncio.create_task(follow())
        await session.ask("a")
        await session.ask("b")
        await task
        assert seen == await journal(one, session)


async def test_who_reads_a_long_journal_lets_others_run_meanwhile(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("hello"))))
        await asyncio.gather(*(session.note("n", str(number)) for number in range(1_000)))
        turns: list[int] = []

        async def others() -> None:
            while True:
                turns.append(len(found))
                await asyncio.sleep(0)

        found: list[Entry] = []
        runs = asyncio.ensure_future(others())
        async for entry in store.watch(session.id, until=session.head):
            found.append(entry)
        runs.cancel()
        assert [entry.position for entry in found] == list(range(1_001))
        assert len(set(turns)) > 3


async def test_who_watches_may_write_meanwhile(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"), say("2"))))
        positions = []
        async for entry in store.watch(session.id):
            positions.append(entry.position)
            if entry.kind == "header":
                await session.ask("a")
            elif entry.kind == "turn_ended" and len(session.messages) == 2:
                await session.ask("b")
            elif entry.kind == "turn_ended" and entry.position == session.head.count - 1:
                break
        assert positions == list(range(session.head.count))


async def test_a_watch_ends_when_its_thread_is_deleted(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script()))
        watch = store.watch(session.id)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await settle()
        await store.delete(session.id)
        with pytest.raises(NotFound):
            await waiting
        with pytest.raises(NotFound):
            await anext(store.watch(session.id))


async def test_a_watch_ends_when_another_store_deletes_the_thread(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script()))
        watch = two.watch(session.id)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await settle()
        await one.delete(session.id)
        with pytest.raises(NotFound):
            await waiting


async def test_a_watch_does_not_go_on_in_another_thread_of_the_same_id(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(say("1"))))
        await session.ask("hi")
        watch = two.watch(session.id)
        for _ in range(session.head.count):
            await anext(watch)
        await one.delete(session.id)
        waiting = asyncio.ensure_future(anext(watch))
        async with open_store(where, ids=_Given("store", session.id)) as three:
            other = await three.create(Agent(Script(say("1"), say("2"))))
            assert other.id == session.id
            await other.ask("a")
            await other.ask("b")  # by now it is longer than the first one was
            with pytest.raises(NotFound):
                await waiting


class _Given:
    """These ids, then others."""

    def __init__(self, *ids: str) -> None:
        self._ids = list(ids)
        self._rest = CountingIds("rest")

    def new(self) -> str:
        return self._ids.pop(0) if self._ids else self._rest.new()


# Deleting.


async def test_what_was_deleted_is_gone(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"))))
        await session.ask("hi")
        reader = await store.open(session.id)
        await store.delete(session.id)
        with pytest.raises(NotFound):
            await store.open(session.id)
        with pytest.raises(NotFound):
            await store.delete(session.id)
        for handle in (session, reader):
            with pytest.raises(NotFound):
                await handle.send("again")
            with pytest.raises(NotFound):
                await handle.refresh()
    async with open_store(where) as store:
        assert await listed(store) == []
        with pytest.raises(NotFound):
            await store.open(session.id)


@pytest.mark.parametrize("children", [False, True])
async def test_an_id_that_no_thread_can_have_is_not_found(where: Where, children: bool) -> None:
    async with open_store(where) as store:
        for name in ("", "a\x00", "a\ud800"):
            with pytest.raises(NotFound):
                await store.delete(name, children=children)


async def test_handles_elsewhere_learn_that_it_was_deleted(where: Where) -> None:
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(say("1"))))
        other = await two.open(session.id, Agent(Script(say("1"))))
        await one.delete(session.id)
        with pytest.raises(NotFound):
            await other.send("hi")
        with pytest.raises(NotFound):
            await two.open(session.id)
        with pytest.raises(NotFound):
            await other.refresh()


async def test_a_session_at_work_is_not_deleted(where: Where) -> None:
    go = asyncio.Event()
    async with open_store(where) as one, open_store(where) as two:
        session = await one.create(Agent(Script(hold(go, say("1")))))
        turn = await session.send("hi")
        for store in (one, two):
            with pytest.raises(Busy):
                await store.delete(session.id)
        go.set()
        assert (await turn.wait()).text == "1"
        await two.delete(session.id)
        with pytest.raises(NotFound):
            await one.open(session.id)


async def test_a_parked_session_can_be_deleted(where: Where) -> None:
    work = Body(approval=True)
    async with open_store(where) as store:
        session = await store.create(Agent(Script(call("work", item=1)), tools=[work.tool]))
        await session.ask("go")
        await store.delete(session.id)
        assert await listed(store) == []


async def test_a_session_whose_turn_was_handed_off_can_be_deleted(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(hold(never, say("1")))))
        await session.send("hi")
    async with open_store(where) as store:
        await store.delete(session.id)  # a leased thread is refused; this one's lease was handed over
        assert await listed(store) == []


# Observers.


async def test_an_observer_sees_every_entry_of_this_store_in_order(where: Where) -> None:
    seen: list[tuple[str, Entry]] = []
    foreign: list[tuple[str, Entry]] = []
    async with open_store(where) as store, open_store(where) as other:
        store.observe(lambda thread, entry: seen.append((thread, entry)))
        other.observe(lambda thread, entry: foreign.append((thread, entry)))
        session = await store.create(Agent(Script(call("look", item=1), say("1")), tools=[look]))
        await session.ask("go")
        entries = [(entry.position, entry.id, entry.body) for entry in await journal(store, session)]
        told = [(entry.position, entry.id, entry.body) for _, entry in seen if entry.kind != "header"]
        assert told == entries[1:]
        assert {thread for thread, _ in seen} == {session.id}
        await (await other.open(session.id)).refresh()
        assert foreign == []


async def test_an_entry_is_the_same_live_and_when_it_is_read(where: Where) -> None:
    seen: list[Entry] = []
    async with open_store(where, clock=ManualClock(1_796_075_967.305_579_7)) as store:
        store.observe(lambda _, entry: seen.append(entry))
        session = await store.create(Agent(Script(say("1"))))
        await session.ask("go")
        assert [entry for entry in seen if entry.kind != "header"] == (await journal(store, session))[1:]


async def test_an_observer_sees_also_what_nobody_waits_for_any_more(where: Where) -> None:
    async with open_store(where) as store:
        seen: list[tuple[str, str]] = []
        told = asyncio.Event()

        def see(thread: str, entry: Entry) -> None:
            seen.append((thread, entry.kind))
            told.set()

        store.observe(see)
        creates = asyncio.ensure_future(store.create(Agent(Script(say("hello")))))
        await ticks(1)
        creates.cancel()
        await told.wait()
        assert creates.cancelled()
        assert seen == [(info.thread, "header") async for info in store.list()]


async def test_an_observer_that_raises_changes_nothing(where: Where) -> None:
    seen: list[str] = []

    def broken(thread: str, entry: Entry) -> None:
        seen.append(entry.kind)
        raise Boom("observer")

    after: list[str] = []
    async with open_store(where) as store:
        store.observe(broken)
        store.observe(lambda _, entry: after.append(entry.kind))
        session = await store.create(Agent(Script(call("look", item=1), say("1")), tools=[look]))
        assert (await session.ask("go")).text == "1"
        assert seen == after
        assert seen[-1] == "turn_ended"


async def test_an_observer_is_told_after_the_commit(where: Where) -> None:
    def stored(thread: str) -> int:
        if isinstance(where, Memory):
            return len(where._threads[thread].lines)
        with closing(sqlite3.connect(where.removeprefix("sqlite:///"))) as connection:
            query = "SELECT count(*) FROM lines JOIN threads USING (tid) WHERE id = ?"
            return int(connection.execute(query, (thread,)).fetchone()[0])

    early: list[str] = []

    def check(thread: str, entry: Entry) -> None:
        if stored(thread) <= entry.position:
            early.append(entry.kind)

    async with open_store(where) as store:
        store.observe(check)
        session = await store.create(Agent(Script(call("look", item=1), say("1")), tools=[look]))
        await session.ask("go")
    assert early == []


# Leaving.


async def test_after_leaving_everything_says_closed(where: Where) -> None:
    agent = Agent(Script(say("1"), say("2")))
    async with open_store(where) as store:
        session = await store.create(agent)
        reader = await store.open(session.id)
        turn = await session.send("hi")
        await turn.wait()
    attempts: list[Callable[[], Awaitable[Any]]] = [
        lambda: session.send("x"),
        lambda: session.ask("x"),
        session.resume,
        session.refresh,
        lambda: session.decide(approve("x.y")),
        lambda: reader.send("x"),
        lambda: store.create(agent),
        lambda: store.open(session.id),
        lambda: store.delete(session.id),
        lambda: store.recover(session.id, agent),
        lambda: store.decide(approve("x.y")),
        lambda: listed(store),
        lambda: anext(store.watch(session.id)),
    ]
    for attempt in attempts:
        with pytest.raises(Closed, match="open"):
            await attempt()
    assert said(session) == [("user", "hi"), ("assistant", "1")]
    assert turn.outcome == "answered"
    async with open_store(where) as store:
        assert said(await store.open(session.id)) == said(session)


async def test_a_store_that_is_not_entered_is_closed(where: Where) -> None:
    store = open_store(where)
    with pytest.raises(Closed, match="async with"):
        await store.create(Agent(Script()))
    with pytest.raises(Closed, match="async with"):
        await store.open("x")


async def test_a_turn_that_ended_keeps_its_result_after_leaving(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(say("1"))))
        turn = await session.send("hi")
        await turn.wait()
    assert (await turn.wait()).text == "1"
    assert names(await followed(turn))[-1] == "turn_ended"


@pytest.mark.parametrize("at_work", [False, True])
async def test_an_exception_of_the_body_leaves_unchanged(where: Where, at_work: bool) -> None:
    never = asyncio.Event()
    boom = Boom("the body's own")
    handles: list[Session] = []

    async def body() -> None:
        async with open_store(where) as store:
            handles.append(await store.create(Agent(Script(hold(never, say("1"))))))
            if at_work:
                await handles[0].send("hi")
            raise boom

    with pytest.raises(Boom) as caught:
        await body()
    assert caught.value is boom
    assert caught.value.__cause__ is None
    async with open_store(where) as store:
        again = await store.open(handles[0].id, Agent(Script(say("1"))))
        turn = await again.resume()
        assert (turn is not None) == at_work
        if turn is not None:
            assert (await turn.wait()).text == "1"


async def test_a_failed_turn_does_not_reach_the_body(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent(Script(fail(Boom("no"), times=None))))
        turn = await session.send("hi")
        async for _ in turn.events():
            pass
        await settle()
    assert turn.outcome == "failed"


async def test_cancelling_the_body_leaves_as_cancelled(where: Where) -> None:
    never = asyncio.Event()
    entered = asyncio.Event()
    ids: list[str] = []

    async def body() -> None:
        async with open_store(where) as store:
            session = await store.create(Agent(Script(hold(never, say("1")))))
            ids.append(session.id)
            await session.send("hi")
            entered.set()
            await never.wait()

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    async with open_store(where) as store:
        turn = await store.recover(ids[0], Agent(Script(say("1"))))
        assert turn is not None
        assert (await turn.wait()).text == "1"


async def test_handles_on_what_was_handed_off_are_closed_and_say_how_to_go_on(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(hold(never, say("1")))))
        turn = await session.send("a")
        queued = await session.send("b")
        waits = [asyncio.ensure_future(wait) for wait in (turn.wait(), queued.wait(), turn.next(), followed(queued))]
        await settle()
    for wait in waits:
        with pytest.raises(Closed, match=r"store\.open"):
            await wait
    for late in (turn.wait(), queued.wait(), turn.next()):
        with pytest.raises(Closed, match=r"store\.open"):
            await late
    assert turn.outcome is None


async def test_the_events_of_what_was_handed_off_come_to_an_end(where: Where) -> None:
    never = asyncio.Event()
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(hold(never, say("1")))))
        turn = await session.send("a")
        task = asyncio.create_task(followed(turn))
        await settle()
    await asyncio.wait([task])
    try:
        seen = names(task.result())
    except Closed:
        return
    assert "run_finished" not in seen


async def test_leaving_records_nothing_of_what_it_hands_off(where: Where) -> None:
    body = Body(effect="repeatable")
    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(call("work", item=1), say("done")), tools=[body.tool]))
        await session.send("go")
        await body.started.wait()
        head = session.head
    async with open_store(where) as store:
        again = await store.open(session.id)
        assert again.head == head
        assert (await kinds(store, again))[-1] == "tools_started"


@pytest.mark.parametrize("left", ["grace", "exception"])
async def test_a_hanging_body_is_handed_off_and_recovered_at_once(where: Where, left: str) -> None:
    body = Body(effect="none")
    replies = [call("work", item=1), say("done")]
    try:
        async with open_store(where, grace=0 if left == "grace" else 25.0) as store:
            session = await store.create(Agent(Script(*replies), tools=[body.tool]))
            first = await session.send("go")
            await body.started.wait()
            if left == "exception":
                raise Boom("crash")
    except Boom:
        pass
    again = Body(effect="none")
    again.release.set()
    script = Script(*replies)
    async with open_store(where) as store:
        turn = await store.recover(session.id, Agent(script, tools=[again.tool]))
        assert turn is not None
        assert turn.id != first.id
        result = await turn.wait()
        assert (result.text, result.run) == ("done", first.id)
        session = await store.open(session.id)
        assert answers(session) == [("work 1", False, None)]
    assert (body.runs, again.runs) == ([1], [1])
    assert len(script.requests) == 1


async def test_a_hanging_synchronous_body_does_not_hold_up_leaving(where: Where) -> None:
    started = asyncio.Event()
    release = threading.Event()
    loop = asyncio.get_running_loop()

    @tool(effect="none")
    def stuck() -> str:
        loop.call_soon_threadsafe(started.set)
        release.wait()
        return "late"

    try:
        async with open_store(where, grace=0) as store:
            session = await store.create(Agent(Script(call("stuck"), say("done")), tools=[stuck]))
            await session.send("go")
            await started.wait()
        async with open_store(where) as store:
            assert (await kinds(store, await store.open(session.id)))[-1] == "tools_started"
    finally:
        release.set()


async def test_a_body_that_swallows_its_cancellation_and_answers_does_not_stop_the_next_store(where: Where) -> None:
    started = asyncio.Event()
    never = asyncio.Event()
    runs: list[str] = []

    @tool
    async def stubborn() -> str:
        runs.append("started")
        started.set()
        try:
            await never.wait()
        except asyncio.CancelledError:
            return "swallowed"
        return "?"

    async with open_store(where, grace=0) as store:
        session = await store.create(Agent(Script(call("stubborn"), say("done")), tools=[stubborn]))
        await session.send("go")
        await started.wait()
    script = Script(call("stubborn"), say("done"))
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(script, tools=[stubborn]))
        turn = await again.resume()
        result = None if turn is None else await turn.wait()
        # Its answer was recorded before the hand-off, or it is uncertain; it is never run again in silence.
        assert runs == ["started"]
        if result is not None and result.parked:
            assert [request.kind for request in again.pending] == ["uncertain"]
        else:
            assert answers(again) == [("swallowed", False, None)]


class Stubborn(Script):
    """A model that takes no cancellation before it is told to."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self.asked = asyncio.Event()
        self.release = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked.set()
        while not self.release.is_set():
            with suppress(asyncio.CancelledError):
                await self.release.wait()
        async for event in super().stream(request):
            yield event


async def test_a_model_that_swallows_its_cancellation_does_not_hold_up_leaving_for_ever() -> None:
    clock, data = ManualClock(), Memory()
    model = Stubborn(say("too late"))
    store = open_store(data, clock=clock, grace=0.0)
    await store.__aenter__()
    session = await store.create(Agent(model))
    turn = await session.send("go")
    await model.asked.wait()
    leaves = asyncio.ensure_future(store.__aexit__(None, None, None))
    await clock.advance(10.0)
    assert leaves.done()
    with pytest.raises(Closed):
        await turn.wait()
    async with open_store(data, clock=clock) as other:
        again = await other.open(session.id, Agent(Script(say("here")), name="agent"))
        going_on = await again.resume()
        assert going_on is not None
        assert (await going_on.wait()).text == "here"
    model.release.set()
    await settle()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("weft")]
    assert store.reports == []


async def test_a_leaving_that_is_cancelled_stops_its_store_all_the_same(tmp_path: Path) -> None:
    model = Stubborn(say("too late"))
    store = open_store(f"sqlite:///{tmp_path / 'weft.db'}", grace=0.0)
    await store.__aenter__()
    session = await store.create(Agent(model))
    await session.send("go")
    await model.asked.wait()
    leaves = asyncio.ensure_future(store.__aexit__(None, None, None))
    await settle()
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    with pytest.raises(Closed):  # what it reads by is closed last
        await store._node.store.load(session.id)
    model.release.set()
    await settle()


async def test_a_tool_that_ends_within_the_grace_is_awaited_and_its_turn_ends(where: Where) -> None:
    body = Body(effect="once")
    script = Script(call("work", item=1), say("done"))
    left = asyncio.Event()

    async def live() -> Session:
        async with open_store(where) as store:
            session = await store.create(Agent(script, tools=[body.tool]))
            await session.send("go", key="k")
            await body.started.wait()
            left.set()
        return session

    task = asyncio.create_task(live())
    await left.wait()
    await settle()
    assert not task.done()
    body.release.set()
    session = await task
    async with open_store(where) as store:
        again = await store.open(session.id, Agent(Script()))
        assert said(again)[-1] == ("assistant", "done")
        assert await again.resume() is None
    script.assert_done()


async def test_while_a_store_is_being_left_it_takes_no_new_work(where: Where) -> None:
    body = Body(effect="none")
    script = Script(say("1"))
    left = asyncio.Event()
    idle: list[Session] = []

    async def live() -> None:
        async with open_store(where) as store:
            session = await store.create(Agent(Script(call("work", item=1), say("done")), tools=[body.tool]))
            idle.append(await store.create(Agent(script)))
            await session.send("a")
            await body.started.wait()
            left.set()

    task = asyncio.create_task(live())
    await left.wait()
    await settle()
    with pytest.raises(Closed):
        await idle[0].send("b")
    body.release.set()
    await task
    assert script.requests == []


async def test_while_a_store_is_being_left_what_is_queued_does_not_begin_and_is_kept(where: Where) -> None:
    body = Body(effect="none")
    script = Script(call("work", item=1), say("1"), say("2"))
    left = asyncio.Event()
    handles: list[Session] = []

    async def live() -> None:
        async with open_store(where) as store:
            session = await store.create(Agent(script, tools=[body.tool]))
            handles.append(session)
            await session.send("a")
            await body.started.wait()
            await session.send("b", key="b")
            left.set()

    task = asyncio.create_task(live())
    await left.wait()
    await settle()
    body.release.set()
    await task
    assert len(script.requests) == 2
    again = Script(say("?"), say("?"), say("2"))
    async with open_store(where) as store:
        session = await store.open(handles[0].id, Agent(again, tools=[body.tool]))
        assert said(session)[-1] == ("assistant", "1")
        turn = await session.resume()
        assert turn is not None
        assert (await turn.wait()).text == "2"
        assert users(session) == ["a", "b"]


@pytest.mark.parametrize("after", range(4))
async def test_a_store_whose_entering_is_cancelled_leaves_nothing_and_can_be_entered(after: int) -> None:
    clock, data = ManualClock(), Memory()
    disk = MemoryStore(data, owner="one", ttl=30.0, clock=clock, survives=True)
    store = OpenStore(disk, clock=clock, ids=CountingIds(), grace=0.0)
    others = asyncio.all_tasks()
    enters = asyncio.ensure_future(store.__aenter__())
    await ticks(after)
    if not enters.cancel():
        await store.__aexit__(None, None, None)
    await settle()
    assert asyncio.all_tasks() == others
    with pytest.raises(Closed):
        await disk.load("any")
    async with store:
        assert (await (await store.create(Agent(Script(say("hello"))))).ask("hi")).text == "hello"


async def test_an_empty_store_can_be_left_and_entered_over_and_over(where: Where) -> None:
    for _ in range(5):
        async with open_store(where) as store:
            await listed(store)


async def test_leaving_memory_cancels_what_runs_and_records_it() -> None:
    body = Body(effect="once")
    seen: list[Entry] = []
    async with open_store("memory:", grace=0) as store:
        store.observe(lambda _, entry: seen.append(entry))
        session = await store.create(Agent(Script(call("work", item=1), say("done")), tools=[body.tool]))
        turn = await session.send("go")
        await body.started.wait()
        wait = asyncio.ensure_future(turn.wait())
        await settle()
    with pytest.raises(TurnCancelled):
        await wait
    assert turn.outcome == "cancelled"
    assert [entry.kind for entry in seen][-2:] == ["tool_result", "turn_ended"]
    [(_, is_error, code)] = answers(session)
    assert (is_error, code) == (True, "CANCELLED")
    assert names(await followed(turn))[-1] == "turn_ended"


async def test_leaving_memory_by_an_exception_cancels_too() -> None:
    work = Body(effect="none")
    boom = Boom()
    turns: list[Turn] = []

    async def body() -> None:
        async with open_store("memory:") as store:
            session = await store.create(Agent(Script(call("work", item=1), say("done")), tools=[work.tool]))
            turns.append(await session.send("go"))
            await work.started.wait()
            raise boom

    with pytest.raises(Boom) as caught:
        await body()
    assert caught.value is boom
    assert turns[0].outcome == "cancelled"


async def test_leaving_memory_waits_for_what_ends_in_time() -> None:
    go = asyncio.Event()
    async with open_store("memory:") as store:
        session = await store.create(Agent(Script(hold(go, say("done")))))
        turn = await session.send("go")
        asyncio.get_running_loop().call_soon(go.set)
    assert turn.outcome == "answered"


async def test_two_memories_are_two_places() -> None:
    async with open_store("memory:") as one, open_store("memory:") as two:
        session = await one.create(Agent(Script()))
        with pytest.raises(NotFound):
            await two.open(session.id)


@pytest.mark.parametrize("address", ["", "memory", "sqlite://", "sqlite:///", "mysql://x", "weft.db"])
def test_an_address_that_means_nothing_is_refused(address: str) -> None:
    with pytest.raises(WrongCall):
        open_store(address)


@pytest.mark.parametrize("lease", [0.0, 0.05, -1.0, 100_000.0, float("nan"), float("inf")])
def test_a_lease_has_bounds(lease: float) -> None:
    with pytest.raises(WrongCall):
        open_store(Memory(), lease=lease)


# Leases: who stalls is succeeded, and can do no harm.


async def test_who_stalled_past_its_lease_is_succeeded_and_writes_nothing(where: Where) -> None:
    go = asyncio.Event()
    body = Body()
    body.release.set()
    successor = Body()
    successor.release.set()
    here, there = ManualClock(), ManualClock()
    replies = [call("work", item=1), say("done")]
    async with open_store(where, clock=here) as one, open_store(where, clock=there) as two:
        session = await one.create(Agent(Script(hold(go, replies[0]), replies[1]), tools=[body.tool]))
        stalled = await session.send("go")
        assert await two.recover(session.id, Agent(Script(*replies), tools=[successor.tool])) is None
        await there.advance(31.0)
        taken = await two.recover(session.id, Agent(Script(*replies), tools=[successor.tool]))
        assert taken is not None
        assert (await taken.wait()).text == "done"
        go.set()
        # Handles on a turn that was revoked here follow the one that took it over.
        assert (await stalled.wait()).text == "done"
        assert (await stalled.wait()).run == stalled.id
        await session.refresh()
        assert (body.runs, successor.runs) == ([], [1])
        assert said(session) == [("user", "go"), ("assistant", ""), ("tool", ""), ("assistant", "done")]
        causes = [entry.body.cause for entry in await journal(one, session) if entry.kind == "turn_started"]  # type: ignore[union-attr]
        assert causes == ["prompt", "recover"]


async def test_who_stalled_in_a_body_can_not_record_its_result(where: Where) -> None:
    body = Body(effect="repeatable")
    successor = Body(effect="repeatable")
    here, there = ManualClock(), ManualClock()
    replies = [call("work", item=1), say("done")]
    async with open_store(where, clock=here) as one, open_store(where, clock=there) as two:
        session = await one.create(Agent(Script(*replies), tools=[body.tool]))
        stalled = await session.send("go")
        await body.started.wait()
        await there.advance(31.0)
        taken = await two.recover(session.id, Agent(Script(*replies), tools=[successor.tool]))
        assert taken is not None
        await successor.started.wait()
        body.release.set()
        await settle()
        successor.release.set()
        assert (await taken.wait()).text == "done"
        await session.refresh()
        assert (await stalled.wait()).text == "done"
        entries = await journal(one, session)
        assert [entry.kind for entry in entries].count("tool_result") == 1
        assert [entry.kind for entry in entries].count("turn_ended") == 1
        assert body.keys == successor.keys
        assert await one.recover(session.id, Agent(Script(*replies), tools=[body.tool])) is None


async def test_renewals_keep_a_lease_however_long_a_turn_takes() -> None:
    where = Memory()
    clock = ManualClock()
    go = asyncio.Event()
    async with open_store(where, clock=clock) as one, open_store(where, clock=clock) as two:
        script = Script(call("look", item=1), hold(go, say("done")))
        session = await one.create(Agent(script, tools=[look], settings=Settings(idle=None)))
        turn = await session.send("go")
        await settle()
        await clock.advance(300.0)
        assert await two.recover(session.id, Agent(Script(), tools=[look])) is None
        go.set()
        assert (await turn.wait()).text == "done"


async def test_a_right_to_act_that_ran_out_starts_no_body(where: Where) -> None:
    # The clock jumps past the lease with no renewal in between, as after a suspend.
    clock = _Jumping()
    go = asyncio.Event()
    body = Body()
    body.release.set()
    async with open_store(where, clock=clock, grace=0) as store:
        session = await store.create(Agent(Script(hold(go, call("work", item=1)), say("done")), tools=[body.tool]))
        await session.send("go")
        await settle()
        clock.jump(40.0)
        go.set()
        for _ in range(20):
            await session.refresh()
            await settle()
        assert body.runs == []


class _Jumping(ManualClock):
    """A clock that can jump without firing what has become due."""

    def jump(self, seconds: float) -> None:
        self._move(self._monotonic + seconds)


# Data that is not what it should be.


async def test_a_broken_line_is_corrupt_and_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "weft.db"
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.create(Agent(Script(say("1"))))
        await session.ask("hi")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE lines SET line = 'nonsense' WHERE n = 2")
        connection.commit()
    async with open_store(f"sqlite:///{file}") as store:
        with pytest.raises(StopAndLook) as caught:
            await store.open(session.id, Agent(Script()))
        assert "2" in str(caught.value)
        other = await store.create(Agent(Script(say("fine"))))
        assert (await other.ask("hi")).text == "fine"


# A model that cannot be had.


async def test_a_model_that_nobody_knows_is_refused_before_anything_is_written(where: Where) -> None:
    async with open_store(where) as store:
        session = await store.create(Agent("nobody:model"))
        head = session.head
        with pytest.raises(WrongCall, match="nobody:model"):
            await session.ask("hi")
        await session.refresh()
        assert session.head == head
        again = await store.open(session.id, Agent(Script(say("hello"))))
        assert (await again.ask("hi")).text == "hello"


class Unfindable:
    """A model around one that cannot be had."""

    def info(self) -> ModelInfo:
        raise WrongCall("there is no such model")

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        raise AssertionError("never asked")


@pytest.mark.parametrize(
    "agent",
    [
        Agent(Script(say("never")), settings=Settings(tool_choice="lok")),
        Agent(Unfindable(), output=int),
    ],
    ids=["a tool choice that no tool fits", "a model that cannot be had"],
)
async def test_a_run_that_cannot_begin_is_refused_before_anything_is_written(agent: Agent[Any, Any]) -> None:
    async with open_store("memory:") as store:
        session = await store.create(agent)
        before = session.head
        with pytest.raises(WrongCall, match=r"no tool 'lok'|no such model"):
            await session.send("go")
        assert session.head == before


async def test_what_nobody_may_contain_closes_the_store_and_whoever_waits_is_told() -> None:
    class Unheard(BaseException):
        """As what a test's runner raises to fail or skip."""

    @tool
    async def burst() -> None:
        raise Unheard

    async with open_store("memory:") as store:
        quiet = await store.create(Agent(Script(hold(asyncio.Event(), say("never")))))
        other = asyncio.ensure_future(quiet.ask("wait"))
        await settle()
        session = await store.create(Agent(Script(call("burst"), say("never")), tools=[burst]))
        for waiting in (session.ask("go"), other, session.ask("again")):
            with pytest.raises(Closed, match="Unheard") as closed:
                await waiting
            assert isinstance(closed.value.__cause__, Unheard)


async def test_a_fault_that_escapes_what_the_store_does_is_reported_and_ends_nothing_else() -> None:
    broken = KeyError("a bug")

    async def escapes() -> None:
        raise broken

    async with open_store("memory:") as store:
        store._node.spawn(escapes(), name="weft test")
        session = await store.create(Agent(Script(say("hello"))))
        assert (await session.ask("hi")).text == "hello"
        assert store.reports == [("weft test", broken)]


async def test_nothing_is_begun_after_that_and_the_store_can_be_left_at_once() -> None:
    class Unheard(BaseException):
        """As above."""

    @tool
    async def burst() -> None:
        raise Unheard

    store = open_store(Memory(), clock=ManualClock())  # so a grace is never over
    await store.__aenter__()
    session = await store.create(Agent(Script(call("burst")), tools=[burst]))
    with pytest.raises(Closed):
        await session.ask("go")
    with pytest.raises(Closed, match="Unheard"):
        await (await store.create(Agent(Script(say("never"))))).ask("go")
    leaving = asyncio.ensure_future(store.__aexit__(None, None, None))
    await settle()
    assert leaving.done()


async def test_the_events_of_a_turn_that_was_left_before_its_first_step_end() -> None:
    data, clock = Memory(), ManualClock()
    disk = SlowStore(data, "one", clock)
    async with OpenStore(disk, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(Script(say("never"))))
        disk.hold(1)
        sending = asyncio.ensure_future(session.send("hi"))
        await settle()
        disk.shut, claim = False, disk.held.pop()
        claim.future.set_result(await MemoryStore.append(disk, *claim.given))  # it lands while the store is left
    turn = await sending
    told = asyncio.ensure_future(_kinds(turn))
    await settle()
    assert told.done()
    assert told.result() == ["turn_ended"]


async def _kinds(turn: Turn) -> list[str]:
    return [event.kind async for event in turn.events()]


class Batched(MemoryStore):
    """While `batch` is a list, what is to be written is gathered there, and written together."""

    batch: list[tuple[asyncio.Future[Any], Callable[[], Any]]] | None = None

    async def delete(self, thread: str, expect: Head) -> None:
        await self._gather(lambda: self._delete(thread, expect))

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        return self._gather(lambda: self._append(thread, lines, expect, lease, index))

    def _gather(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.batch is None:
            future.set_result(work())
        else:
            self.batch.append((future, work))
        return future

    def write(self) -> None:
        gathered, self.batch = self.batch or [], None
        for future, work in gathered:
            try:
                future.set_result(work())
            except NotFound as error:
                future.set_exception(error)


async def test_who_writes_to_a_thread_that_is_being_deleted_is_told() -> None:
    disk = Batched(Memory(), owner="one", ttl=30.0, clock=ManualClock(), survives=True)
    async with OpenStore(disk, clock=ManualClock(), ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(Script()))
        disk.batch = []
        deleting = asyncio.ensure_future(store.delete(session.id))
        await settle()
        noting = asyncio.ensure_future(session.note("n", "too late"))
        await settle()
        disk.write()
        await settle()
        assert deleting.done()
        assert noting.done()
        assert isinstance(noting.exception(), NotFound)
