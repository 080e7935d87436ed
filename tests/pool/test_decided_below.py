"""What becomes of a grandchild that was decided."""

from __future__ import annotations

from typing import Any

from tests.thread.places import Body
from weft import Agent, Changed
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, calls, say
from weft.thread import Memory, approve, deny, open_store

WANTED = calls(call("one", prompt="x"), call("two", prompt="y"))


def tree(pool: Pool, *, with_one: bool = True) -> tuple[Agent[Any, Any], Body, Body]:
    """A root that delegates to a middle, which delegates to two that ask."""
    bodies = Body("pay", approval=True, free=True), Body("pay", approval=True, free=True)
    askers = [Agent(Script(call("pay"), say("paid")), name=f"asker{n}", tools=[b.tool]) for n, b in enumerate(bodies)]
    tools = [pool.wrap(name, asker, description="x") for name, asker in zip(("one", "two"), askers, strict=True)]
    middle = Agent(Script(WANTED, say("both")), name="middle", tools=tools if with_one else tools[1:])
    root = Agent(
        Script(call("middle", prompt="z"), say("done")),
        name="root",
        tools=[pool.wrap("middle", middle, description="x")],
    )
    return root, *bodies


async def test_it_goes_on_while_its_sibling_waits() -> None:
    clock, pool = ManualClock(), Pool(1)
    root, first, second = tree(pool)
    async with open_store(Memory(), clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(root)
        await session.send("go")
        await clock.advance(1.0)
        (one, two) = session.pending
        await session.decide(approve(one))
        await clock.advance(1.0)
        assert (first.runs, second.runs) == (1, 0)
        middle = await store.open(session.receipts[0].child)
        assert [receipt.state for receipt in middle.receipts] == ["done", "parked"]
        assert session.receipts[0].state == "parked"
        assert pool._slots.used == 0
        await session.decide(deny(two))
        await clock.advance(1.0)
        assert session.messages[-1].text == "done"
        assert store.reports == []


async def test_it_goes_on_at_any_depth_while_its_sibling_waits() -> None:
    clock, pool = ManualClock(), Pool(1)
    root, first, second = tree(pool)
    for name in ("above", "top"):
        wrapped = pool.wrap("below", root, description="x")
        root = Agent(Script(call("below", prompt=name), say("done")), name=name, tools=[wrapped])
    async with open_store(Memory(), clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(root)
        await session.send("go")
        await clock.advance(1.0)
        (one, two) = session.pending
        await session.decide(approve(one))
        await clock.advance(1.0)
        assert (first.runs, second.runs) == (1, 0)
        await session.decide(approve(two))
        await clock.advance(1.0)
        assert second.runs == 1
        assert session.messages[-1].text == "done"
        assert store.reports == []


async def test_one_that_cannot_be_gone_on_with_is_not_tried_again_and_again() -> None:
    clock, data = ManualClock(), Memory()
    root, *_ = tree(Pool(1))
    async with open_store(data, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(root)
        await session.send("go")
        await clock.advance(1.0)
        await store.decide(*map(approve, session.pending))
    other, *_ = tree(Pool(1), with_one=False)
    async with open_store(data, clock=clock, ids=CountingIds("b"), grace=0.0) as store:
        session = await store.open(session.id, other)
        await session.resume()
        await clock.advance(5.0)
        told = len(store.reports)
        assert {type(error) for _, error in store.reports} == {Changed}
        await clock.advance(60.0)
        assert len(store.reports) == told
