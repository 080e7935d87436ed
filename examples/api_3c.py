"""The child's approval is asked and answered at the parent."""

import asyncio

from weft import Agent, tool
from weft.pool import Pool
from weft.testing import Script, call, say
from weft.thread import approve, open_store


async def main() -> None:
    @tool(name="refund", approval=True)
    async def refund(order_id: str) -> str:
        """Refund an order."""
        return f"refunded {order_id}"

    child = Agent(Script(call("refund", order_id="42"), say("refund issued")), name="refunds", tools=[refund])
    async with open_store("memory:") as store, Pool(2) as pool:
        parent = Agent(
            Script(call("research", prompt="refund order 42"), say("handled")),
            tools=[pool.wrap("research", child, description="Delegates the refund flow.")],
        )
        session = await store.create(parent)
        turn = await session.send("refund order 42")
        await turn.wait()
        print("pending:", session.pending[0].tool)  # pending: refund
        child_turn = await pool.decide(session, approve(session.pending[0]))
        await child_turn.wait()
        result = await (await turn.next()).wait()  # the parent's parked turn, resumed with the answer
        print("parent:", result.text)  # parent: handled
        for receipt in pool.receipts(session):
            print("receipt:", receipt.state, "-", receipt.stop)  # receipt: done - refund issued


if __name__ == "__main__":
    asyncio.run(main())
