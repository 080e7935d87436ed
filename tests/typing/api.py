"""Checked by type checkers, never run: what the public names promise to their users."""

from __future__ import annotations

from typing import Any, assert_type

from pydantic import BaseModel

from weft import Agent, Context, Limits, Message, Model, ModelRequest, Result, Tool, Usage, tool
from weft.events import Event
from weft.pool import Pool
from weft.testing import Script, call, calls, override, say
from weft.thread import Entry, Header, Receipt, Request, Session, ThreadInfo, Turn, approve, deny, open_store, resolve


class Shop:
    """Somebody's deps."""

    name: str = ""


@tool(effect="none")
async def look_up(order_id: str) -> str:
    """Look an order up."""
    return order_id


@tool(approval=True)
async def refund(ctx: Context[Shop], order_id: str) -> str:
    """Refund an order."""
    assert_type(ctx.deps, Shop)
    return ctx.deps.name + order_id


@tool
def count(n: int) -> int:
    """Count."""
    return n


assert_type(look_up, Tool[object])
assert_type(refund, Tool[Shop])
assert_type(count, Tool[object])

plain = Agent(Script(say("hi")), name="plain", tools=[look_up, count])
assert_type(plain, Agent[None, str])
desk = Agent("openai:gpt-5", deps=Shop, tools=[look_up, refund], limits=Limits(steps=3))
assert_type(desk, Agent[Shop, str])


class Order(BaseModel):
    """Somebody's output."""

    id: str


typed = Agent("anthropic:claude", output=Order)
assert_type(typed, Agent[None, Order])
shop_typed = Agent("anthropic:claude", deps=Shop, output=Order, tools=[refund, plain])
assert_type(shop_typed, Agent[Shop, Order])
listed = Agent("anthropic:claude", output=list[Order])
assert_type(listed, Agent[None, list[Order]])
model: Model = Script(calls(call("look_up", order_id="1")), say("done"))


async def run() -> None:
    result = await desk.run("hi", deps=Shop())
    assert_type(result, Result)
    assert_type(result.messages, tuple[Message, ...])
    assert_type(result.usage, Usage)
    assert_type(result.output, str)
    assert_type((await typed.run("hi")).output, Order)
    async with typed.stream("hi") as typed_run:
        assert_type((await typed_run.result()).output, Order)
    async with desk.stream("hi", deps=Shop()) as watched:
        async for event in watched:
            assert_type(event, Event)
        assert_type(await watched.result(), Result)
    await desk.run(1, deps=Shop())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await desk.run("hi", deps=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def sessions() -> None:
    async with open_store("memory:") as store, Pool(2) as pool:
        session = await store.create(desk, deps=Shop(), meta={"a": "b"})
        assert_type(session, Session)
        assert_type(await session.send("hi"), Turn)
        assert_type(await session.ask("hi"), Result)
        typed_session = await store.create(typed)
        assert_type(typed_session, Session[Order])
        assert_type((await typed_session.ask("hi")).output, Order)
        assert_type((await (await typed_session.send("hi")).wait()).output, Order)
        assert_type(await store.open("id", typed), Session[Order])
        assert_type(await store.open("id"), Session[str])
        assert_type(session.pending, tuple[Request, ...])
        assert_type(session.receipts, tuple[Receipt, ...])
        turn = await session.decide(approve("a.b"), deny("a.c", "no"), resolve("a.d", "done", error=True))
        assert_type(turn, Turn)
        assert_type(await session.resume(), Turn | None)
        assert_type(await pool.decide(session, approve("a.b")), Turn[Any])
        async for found in store.list(meta={}):
            assert_type(found, ThreadInfo)
            assert_type(found.header, Header)
        async for entry in store.watch(session.id, until=session.head):
            assert_type(entry, Entry)
        with override({"desk": model}):
            pass


def requests(script: Script) -> None:
    assert_type(script.requests, list[ModelRequest])
