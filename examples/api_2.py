"""A session: stored turns, a parked approval, and another process that goes on."""

import asyncio
import tempfile
from contextlib import chdir
from typing import Annotated

from pydantic import BaseModel, Field

from weft import Agent, Context, Limits, tool
from weft.testing import Script, call, say
from weft.thread import approve, open_store


class Order(BaseModel):
    id: str
    status: str


class Shop:
    """The application's own object."""

    async def refund(self, order_id: str, cents: int, *, key: str) -> str:
        return f"refunded {cents} cents of order {order_id}"


@tool(effect="none")
async def look_up(order_id: str) -> Order:
    """Look an order up.

    Args:
        order_id: The order's number, as the customer gave it.
    """
    return Order(id=order_id, status="shipped")


@tool(approval=True, effect="once", timeout=30.0, needs={"payments:refund"})
async def refund(ctx: Context[Shop], order_id: str, cents: Annotated[int, Field(gt=0)]) -> str:
    """Refund an order."""
    return await ctx.deps.refund(order_id, cents, key=ctx.call.idempotency_key)


def make_desk() -> Agent[Shop]:
    """The desk, on a script; each process makes its own."""
    return Agent(
        Script(
            call("look_up", order_id="42"),
            say("It has shipped."),
            call("refund", order_id="42", cents=500),
            say("I have refunded 500 cents."),
        ),
        name="desk",
        instructions="You help customers of a small shop.",
        deps=Shop,
        tools=[look_up, refund],
        limits=Limits(steps=10, tokens=200_000),
    )


async def main() -> None:
    shop = Shop()
    desk = make_desk()
    async with open_store("sqlite:///shop.db") as store:  # "memory:", "sqlite:///…", "postgresql://…"
        session = await store.create(desk, deps=shop, meta={"customer": "ann"})
        result = await session.ask("Where is order 42?")  # send, then wait
        print("reply:", result.text)  # reply: It has shipped.
        turn = await session.send("Refund it, 500 cents")  # returns at once, accepted and durable
        async for event in turn.events():  # may be ranged over again, and late
            print("event:", event.kind)
        result = await turn.wait()
        print("parked:", result.parked)  # parked: True
        request = session.pending[0]  # .id .tool .args .expires .path …
        print("pending:", request.tool, request.args)  # pending: refund {"order_id": "42", "cents": 500}
        turn = await session.decide(approve(request))  # or deny(request, "reason"), …
        result = await turn.wait()
        print("reply:", result.text)  # reply: I have refunded 500 cents.
        print("tokens:", session.usage.total.tokens, session.usage.delegated.tokens)  # tokens: 60 0
        print("receipts:", len(session.receipts), "messages:", len(session.messages))  # receipts: 0 messages: 8
    session_id = session.id
    desk = make_desk()

    async with open_store("sqlite:///shop.db") as store:  # another process, later
        session = await store.open(session_id, desk, deps=shop)
        async for header in store.list(meta={"customer": "ann"}):
            print("listed:", header.name)  # listed: desk
        kinds = []
        async for entry in store.watch(session_id, until=session.head):
            kinds.append(entry.kind)
        print("entries:", len(kinds), "first", kinds[0], "last", kinds[-1])
        # entries: 19 first header last turn_ended
        await store.delete(session_id)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        asyncio.run(main())
