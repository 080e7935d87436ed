"""Delegation: a parent asks a child, each in a session of its own."""

import asyncio

from weft import Agent
from weft.pool import Pool
from weft.testing import Script, call, say
from weft.thread import open_store


async def main() -> None:
    child = Agent(Script(say("the answer is 42")), name="researcher")
    async with open_store("memory:") as store, Pool(2) as pool:
        parent = Agent(
            Script(call("research", prompt="find the answer"), say("done")),
            tools=[pool.wrap("research", child, description="Delegates research to a child session.")],
        )
        session = await store.create(parent)
        result = await session.ask("what is the answer?")
        print("reply:", result.text)  # reply: done
        for receipt in pool.receipts(session):
            print("receipt:", receipt.state, "-", receipt.stop)  # receipt: done - the answer is 42
        print("delegated output tokens:", session.usage.delegated.output_tokens)  # 5


if __name__ == "__main__":
    asyncio.run(main())
