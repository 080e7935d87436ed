"""An agent and a tool: a run, its result, the same run watched, and structured output."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field

from weft import Agent, Context, Limits, tool
from weft.testing import Script, call, override, say


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


desk = Agent(
    "openai:gpt-5",  # or "openai-responses:…", "anthropic:…", or any Model
    name="desk",
    instructions="You help customers of a small shop.",
    deps=Shop,  # the type that tools may ask for; absent: none
    tools=[look_up, refund],
    limits=Limits(steps=10, tokens=200_000),
)
typed = Agent("anthropic:claude-opus-5", name="typed", output=Order)  # structured output: result.output is an Order


async def main() -> None:
    shop = Shop()
    script = Script(call("look_up", order_id="42"), say("It has shipped."), say("So has 43."), say("Hello."))
    with override({"desk": script, "typed": Script(say('{"id": "42", "status": "shipped"}'))}):
        result = await desk.run("Where is order 42?", deps=shop)  # one run, nothing stored
        print(result.text, result.stop)  # It has shipped. answered
        print(result.usage.tokens, len(result.messages), result.pending)  # 30 4 ()
        more = await desk.run("And 43?", deps=shop, history=result.messages)
        print(more.text)  # So has 43.
        async with desk.stream("Good morning!", deps=shop) as run:  # the same run, watched
            async for event in run:
                if event.kind == "text_delta":
                    print(event.text)  # Hello.
            result = await run.result()
        order = (await typed.run("Where is order 42?")).output
        print(order.id, order.status)  # 42 shipped


def in_a_script() -> None:
    with override({"desk": Script(say("Hello again."))}):
        print(desk.run_sync("Good morning!", deps=Shop()).text)  # Hello again.


if __name__ == "__main__":
    asyncio.run(main())
    in_a_script()
