"""Structured output in sessions: stored, read again, corrected, and gone on with after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pydantic import BaseModel, Field, field_validator

from tests.structured import MODES, SUBMIT, Mode, Structured, answer, broken_off
from tests.test_run import GOOD_INFO, ODD_INFOS, STOP, Unknown
from weft import Agent, Limits, ModelFailed, NoOutput, RunFailed, tool
from weft.errors import Changed, WrongCall
from weft.events import RunFinished
from weft.model import ModelEvent, ModelRequest, TextChunk
from weft.pool import Pool
from weft.testing import Kit, Script, call, calls, crash_points, hold, say
from weft.thread import Memory, OpenStore, Session, approve, deny, open_store
from weft.thread.entries import Said

Where: TypeAlias = Memory | str


@pytest.fixture(params=["memory", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Data that outlives the stores opened on it."""
    return Memory() if request.param == "memory" else f"sqlite:///{tmp_path / 'weft.db'}"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """How the model gives structured output."""
    found: Mode = request.param
    return found


class Order(BaseModel):
    id: str
    cents: int = Field(gt=0)


class Other(BaseModel):
    name: str


ORDER = {"id": "o-7", "cents": 2_500}
WHOLE = Order(id="o-7", cents=2_500)
BAD = {"id": "o-7"}


@tool(effect="none")
async def look(item: int) -> str:
    """Look something up."""
    return f"found {item}"


@tool
async def charge(order: str) -> str:
    """Charge for an order."""
    return f"charged {order}"


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def results(session: Session[Any]) -> list[tuple[str, str | None]]:
    return [(result.content, result.code) for message in session.messages for result in message.results]


async def sources(store: OpenStore, session: Session[Any]) -> list[str | None]:
    """Whose words the user messages of the journal are."""
    entries = [entry async for entry in store.watch(session.id, until=session.head)]
    return [e.body.source for e in entries if isinstance(e.body, Said) and e.body.message.role == "user"]


async def test_a_session_gives_the_output(where: Where, mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER), answer(mode, {**ORDER, "cents": 1})), output=Order)
    async with open_store(where) as store:
        session = await store.create(agent)
        turn = await session.send("go")
        result = await turn.wait()
        assert (result.output, json.loads(result.text), result.stop) == (WHOLE, ORDER, "answered")
        assert (await session.ask("again")).output.cents == 1
        again = await turn.wait()
        assert (again.output, json.loads(again.text)) == (WHOLE, ORDER)
        assert again.messages == result.messages
        events = [event async for event in turn.events()]
        finished = next(event for event in events if isinstance(event, RunFinished))
        assert json.loads(finished.text) == ORDER


async def test_a_stored_answer_is_read_again_by_the_same_agent(where: Where, mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER)), output=Order)
    async with open_store(where) as store:
        session = await store.create(agent)
        await session.send("go", key="k")
        await session.settled_or_waiting()
    async with open_store(where) as store:
        reopened = await store.open(session.id, agent)
        result = await (await reopened.send("go", key="k")).wait()
        assert (result.output, json.loads(result.text)) == (WHOLE, ORDER)


class Choices(BaseModel):
    """All of it may be left out."""

    color: str = "blue"


async def test_a_submission_without_any_arguments_is_an_output(where: Where) -> None:
    """Some servers send an empty text in place of an empty object."""
    script = Script(call(SUBMIT, ""), output="tool")
    agent = Agent(script, output=Choices)
    bare = await Agent(Script(call(SUBMIT, ""), output="tool"), output=Choices).run("go")
    assert (bare.output, bare.text) == (Choices(), "{}")
    async with open_store(where) as store:
        session = await store.create(agent)
        result = await session.ask("go", key="k")
        assert (result.output, result.text) == (Choices(), "{}")
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        assert (await session.ask("go", key="k")).output == Choices()
    script.assert_done()


async def test_without_an_agent_a_stored_answer_is_its_text(where: Where, mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER)), output=Order)
    async with open_store(where) as store:
        session = await store.create(agent)
        await session.send("go", key="k")
        await session.settled_or_waiting()
    async with open_store(where) as store:
        reopened = await store.open(session.id)
        turn = await reopened.send("go", key="k")
        result: Any = await turn.wait()
        assert result.output == result.text
        assert json.loads(result.text) == ORDER
        finished = [event async for event in turn.events() if isinstance(event, RunFinished)]
        assert [json.loads(event.text) for event in finished] == [ORDER]


async def test_a_stored_answer_of_another_type_is_changed(where: Where, mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER)), output=Order)
    async with open_store(where) as store:
        session = await store.create(agent)
        await session.send("go", key="k")
        await session.settled_or_waiting()
    async with open_store(where) as store:
        reopened = await store.open(session.id, agent.replace(output=Other))
        turn = await reopened.send("go", key="k")
        with pytest.raises(Changed, match="output type"):
            await turn.wait()


async def test_an_answer_is_read_again_whichever_way_the_model_now_gives_it(where: Where, mode: Mode) -> None:
    agent = Agent(Structured(mode, answer(mode, ORDER)), output=Order)
    async with open_store(where) as store:
        session = await store.create(agent)
        await session.send("go", key="k")
        await session.settled_or_waiting()
    other: Mode = "tool" if mode == "schema" else "schema"
    model = Structured(other, say("never asked for"), answer(other, {**ORDER, "cents": 1}))
    async with open_store(where) as store:
        reopened = await store.open(session.id, agent.replace(model=model))
        assert (await (await reopened.send("go", key="k")).wait()).output == WHOLE
        assert (await reopened.ask("again")).output.cents == 1
        assert (await (await reopened.send("go", key="k")).wait()).output == WHOLE


async def test_a_correction_is_in_the_journal_and_says_so(where: Where) -> None:
    model = Structured("schema", answer("schema", BAD), answer("schema", ORDER))
    async with open_store(where) as store:
        session = await store.create(Agent(model, output=Order))
        assert (await session.ask("go")).output == WHOLE
        assert await sources(store, session) == [None, "correction"]
        assert "cents" in session.messages[2].text


async def test_words_instead_of_a_submission_are_corrected_in_the_journal(where: Where) -> None:
    model = Structured("tool", say("o-7"), answer("tool", BAD), answer("tool", ORDER))
    async with open_store(where) as store:
        session = await store.create(Agent(model, output=Order))
        assert (await session.ask("go")).output == WHOLE
        assert await sources(store, session) == [None, "correction"]
        assert [code for _, code in results(session)] == ["INVALID_INPUT", None]


async def test_no_output_stays_no_output(where: Where, mode: Mode) -> None:
    model = Structured(mode, answer(mode, BAD), answer(mode, BAD), broken_off("schema", "I will not", "refusal"))
    agent = Agent(model, output=Order, limits=Limits(retries=1))
    async with open_store(where) as store:
        session = await store.create(agent)
        for prompt, code in (("go", "INVALID_OUTPUT"), ("again", "REFUSED")):
            with pytest.raises(NoOutput) as caught:
                await (await session.send(prompt, key=prompt)).wait()
            assert caught.value.code == code
    async with open_store(where) as store:
        session = await store.open(session.id, agent)
        with pytest.raises(NoOutput) as caught:
            await (await session.send("again", key="again")).wait()
        assert caught.value.code == "REFUSED"
        assert caught.value.result is not None
        assert caught.value.result.text == "I will not"
        with pytest.raises(WrongCall):
            _ = caught.value.result.output


async def test_a_validator_that_breaks_fails_the_turn_without_internals(where: Where, mode: Mode) -> None:
    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def broken(cls, n: int) -> int:
            raise OSError("secret")

    async with open_store(where) as store:
        session = await store.create(Agent(Structured(mode, answer(mode, {"n": 1})), output=Odd))
        with pytest.raises(RunFailed) as caught:
            await session.ask("go")
        assert caught.value.code == "INTERNAL"
        entries = [entry async for entry in store.watch(session.id, until=session.head)]
    assert "secret" not in repr(entries)


async def test_a_submission_beside_an_approval_ends_the_turn_once_it_is_decided(where: Where) -> None:
    for decide in (approve, deny):
        model = Structured("tool", calls(call("refund", order="1"), answer_call()))
        agent = Agent(model, tools=[refund], output=Order)
        async with open_store(where) as store:
            session = await store.create(agent)
            parked = await session.ask("go")
            assert parked.parked
            with pytest.raises(WrongCall, match="parked"):
                _ = parked.output
        async with open_store(where) as store:
            session = await store.open(session.id, agent)
            turn = await session.decide(decide(session.pending[0]))
            result = await turn.wait()
            assert (result.stop, result.output, json.loads(result.text)) == ("answered", WHOLE, ORDER)
            assert len(model.requests) == 1
            assert results(session)[0][1] == (None if decide is approve else "DENIED")


def answer_call() -> Any:
    return call(SUBMIT, ORDER)


async def test_the_name_of_the_submission_is_free_in_a_session_without_an_output(where: Where) -> None:
    @tool(name=SUBMIT, effect="none")
    async def mine(x: int) -> int:
        return x + 1

    script = Script(calls(call(SUBMIT, x=1), call("refund", order="1")), say("done"))
    agent = Agent(script, tools=[mine, refund])
    async with open_store(where) as store:
        session = await store.create(agent)
        parked = await session.ask("go")
        assert (parked.parked, parked.text) == (True, "")
        result = await (await session.decide(approve(session.pending[0]))).wait()
        assert (result.text, result.output) == ("done", "done")


# After a crash.


class Hanging(Structured):
    """Hangs in the call after its last reply, and says that it does."""

    def __init__(self, mode: Mode, *steps: Any) -> None:
        super().__init__(mode, *steps, hold(asyncio.Event(), then=say("never")))
        self.hangs = asyncio.Event()
        self.before = len(steps)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if len(self.requests) == self.before:
            self.hangs.set()
        async for event in super().stream(request):
            yield event


async def test_the_retries_of_an_answer_are_counted_across_processes(where: Where, mode: Mode) -> None:
    bad = answer(mode, BAD)
    first = Hanging(mode, bad, bad)
    agent = Agent(first, output=Order, limits=Limits(retries=2))
    async with open_store(where, grace=0.0) as store:
        session = await store.create(agent)
        await session.send("go", key="k")
        await first.hangs.wait()
    second = Structured(mode, bad, bad, bad, answer(mode, ORDER))
    async with open_store(where) as store:
        session = await store.open(session.id, agent.replace(model=second))
        turn = await session.resume()
        assert turn is not None
        with pytest.raises(NoOutput) as caught:
            await turn.wait()
        assert (caught.value.code, len(second.requests)) == ("INVALID_OUTPUT", 1)


async def session_of(store: OpenStore, agent: Agent[Any, Any]) -> Session[Any]:
    """The one session of the scenario: found, or made."""
    async for header in store.list(meta={"scenario": "crash"}):
        return await store.open(header.thread, agent)
    return await store.create(agent, meta={"scenario": "crash"})


async def to_the_end(session: Session[Any], prompt: str) -> Any:
    """What an application does, until the prompt is answered; the result."""
    await session.resume()
    turn = await session.send(prompt, key=prompt)
    await session.settled_or_waiting()
    while session.pending:
        request = session.pending[0]
        await session.decide(approve(request))
        await session.settled_or_waiting()
    return turn


async def answered(session: Session[Any], prompt: str) -> Any:
    """The result of the turn that the prompt ended with, across parks."""
    turn = await to_the_end(session, prompt)
    result = await turn.wait()
    while result.parked:
        turn = await turn.next()
        result = await turn.wait()
    return result


async def corrected(kit: Kit) -> None:
    model = Structured("schema", call("look", item=1), answer("schema", BAD), answer("schema", ORDER))
    agent = kit.watch(Agent(model, tools=[look], output=Order, limits=Limits(retries=1)))
    async with kit.open() as store:
        assert (await answered(await session_of(store, agent), "go")).output == WHOLE


async def submitted_with_siblings(kit: Kit) -> None:
    bad = calls(call("look", item=1), call(SUBMIT, BAD))
    good = calls(call("refund", order="2"), call(SUBMIT, ORDER), call("look", item=2))
    model = Structured("tool", say("in words"), bad, good)
    agent = kit.watch(Agent(model, tools=[look, refund], output=Order, limits=Limits(retries=2)))
    async with kit.open() as store:
        result = await answered(await session_of(store, agent), "go")
        assert (result.output, json.loads(result.text)) == (WHOLE, ORDER)


async def two_answers(kit: Kit) -> None:
    model = Structured("tool", calls(call(SUBMIT, ORDER), call("look", item=1)), answer("tool", {**ORDER, "cents": 1}))
    agent = kit.watch(Agent(model, tools=[look], output=Order))
    async with kit.open() as store:
        session = await session_of(store, agent)
        assert (await answered(session, "first")).output == WHOLE
        assert (await answered(session, "second")).output.cents == 1


@pytest.mark.parametrize("scenario", [corrected, submitted_with_siblings, two_answers])
async def test_every_crash_point_of_structured_output_holds(
    scenario: Callable[[Kit], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def check(kit: Kit) -> None:
        root = next(iter(kit.views().values()))
        assert list(root.ended.values())[-1].outcome == "answered"

    report = await crash_points(scenario, check)
    with capsys.disabled():
        print(f"\n{scenario.__name__}: {report}")
    assert str(report).endswith("all held")
    assert len(report.points) > 10


# A child in a session of its own.


async def test_a_delegated_agent_s_output_is_read_by_its_parent(where: Where, mode: Mode) -> None:
    child = Agent(Structured(mode, answer(mode, ORDER)), name="child", output=Order)
    async with open_store(where) as store, Pool(1) as pool:
        ask = pool.wrap("ask", child, description="Asks.")
        session = await store.create(Agent(Script(call("ask", prompt="x"), say("done")), tools=[ask]))
        assert (await session.ask("go")).text == "done"
        assert json.loads(results(session)[0][0]) == ORDER
        stop = pool.receipts(session)[0].stop
        assert stop is not None
        assert json.loads(stop) == ORDER


@pytest.mark.parametrize("given", [*ODD_INFOS, OSError("no")])
async def test_a_session_outlives_a_model_that_cannot_say_who_it_is(given: object) -> None:
    async with open_store(Memory()) as store:
        model = Unknown(given)
        session = await store.create(Agent(model, output=int))
        with pytest.raises(ModelFailed):
            await (await session.send("hi")).wait()
        model.given, model.replies = [GOOD_INFO], [[TextChunk(text='{"output": 3}'), STOP]]
        assert (await (await session.send("again")).wait()).output == 3
