"""Steering: a message joins the running turn at its next drain point; one that comes too late is a turn of its own."""

import asyncio

from weft import Agent, ModelRequest, tool
from weft.events import Steered
from weft.testing import Script, call, reply
from weft.thread import open_store


def answer(request: ModelRequest) -> str:
    """What a model would make of all that it has been told."""
    return "I looked for " + ", then ".join(m.text for m in request.messages if m.role == "user")


async def main() -> None:
    looking, found = asyncio.Event(), asyncio.Event()

    @tool(effect="none")
    async def search(words: str) -> str:
        """Search the shop."""
        looking.set()
        await found.wait()
        return f"12 hits for {words}"

    clerk = Agent(Script(call("search", words="a teapot"), *[reply(answer)] * 2), tools=[search])
    async with open_store("memory:") as store:
        session = await store.create(clerk)
        turn = await session.send("a teapot")
        await looking.wait()  # the tool is at work
        steer = await session.send("a blue one", policy="steer")  # durable now, and not yet read
        found.set()
        print((await turn.wait()).text)  # I looked for a teapot, then a blue one
        print(steer.id == turn.id)  # True
        async for event in turn.events():
            if isinstance(event, Steered):
                print("joined:", event.message.text)  # joined: a blue one

        late = await session.send("and a cup", policy="steer")  # no turn runs any more
        print(late.id == turn.id)  # False
        print((await late.wait()).text)  # I looked for a teapot, then a blue one, then and a cup


if __name__ == "__main__":
    asyncio.run(main())
