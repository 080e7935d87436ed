"""Queueing: what becomes of messages that are sent while a turn runs. All of them are durable once `send` returns."""

import asyncio

from weft import Agent, Busy, EndedOtherwise, ModelRequest
from weft.testing import Script, hold, reply
from weft.thread import Turn, open_store


def answer(request: ModelRequest) -> str:
    return f"answer to {request.messages[-1].text!r}"


async def outcome(turn: Turn) -> str:
    try:
        return (await turn.wait()).text
    except EndedOtherwise as error:  # cancelled, dropped, failed
        return type(error).__name__


async def main() -> None:
    gate = asyncio.Event()
    script = Script(hold(gate, then=reply(answer)), *[reply(answer)] * 3)
    async with open_store("memory:") as store:
        session = await store.create(Agent(script))
        running = await session.send("first")
        second = await session.send("second", key="order-2")  # queued: the default
        again = await session.send("second", key="order-2")  # a client that retried
        third = await session.send("third")
        try:
            await session.send("fourth", policy="reject")
        except Busy:
            print("refused: it is busy")  # refused: it is busy
        hurried = await session.send("stop, rather this", policy="interrupt")
        print(await third.cancel())  # True

        print("first:", await outcome(running))  # first: TurnCancelled
        gate.set()  # the model may answer now
        print("hurried:", await outcome(hurried))  # hurried: answer to 'stop, rather this'
        print("second:", await outcome(second))  # second: answer to 'second'
        print("again:", again.id == second.id)  # again: True
        print("third:", await outcome(third))  # third: Dropped

    gate.clear()
    async with open_store("memory:") as store:
        session = await store.create(Agent(Script(hold(gate, then=reply(answer)), reply(answer))))
        running = await session.send("one")
        waiting = [await session.send(text) for text in ("two", "three")]
        print("dropped:", await session.clear_queue())  # dropped: 2
        gate.set()
        print([await outcome(turn) for turn in (running, *waiting)])  # ["answer to 'one'", 'Dropped', 'Dropped']


if __name__ == "__main__":
    asyncio.run(main())
