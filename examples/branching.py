"""Branching: go on from an earlier place, in the same session or in a copy of it. Nothing is deleted."""

import asyncio

from weft import Agent, tool
from weft.testing import Script, call, say
from weft.thread import Session, approve, deny, open_store


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def told(session: Session) -> list[str]:
    return [message.text or "(a call)" for message in session.messages if message.role != "tool"]


async def main() -> None:
    script = Script(say("It was lost."), call("refund", order="42"), say("Done."), say("Goodbye."))
    desk = Agent(script, tools=[refund])
    async with open_store("memory:") as store:
        session = await store.create(desk, meta={"customer": "ann"})
        await session.ask("Where is order 42?")
        await session.ask("Then refund it.")
        await (await session.decide(approve(session.pending[0]))).wait()
        print(told(session))  # ['Where is order 42?', 'It was lost.', 'Then refund it.', '(a call)', 'Done.']

        # Back to the call: it is asked again, and the old approval does not apply to it.
        asked = next(entry for entry in session.path if entry.message and entry.message.calls)
        await session.branch(asked.id)
        print("asked again:", session.pending[0].tool)  # asked again: refund
        await (await session.decide(deny(session.pending[0], "too late"))).wait()
        print(session.messages[-2].results[0].content)  # The call was denied: too late

        # Back to the first answer: the next message follows it.
        await session.branch(session.path[1].id)
        print(told(session))  # ['Where is order 42?', 'It was lost.']

        # A copy goes its own way; this session stays as it is.
        copy = await session.fork(meta={"for": "training"})
        await copy.ask("Then refund it.")
        print(dict(copy.meta), len(copy.pending))  # {'customer': 'ann', 'for': 'training'} 1
        print(told(session), len(session.pending))  # ['Where is order 42?', 'It was lost.'] 0
        print(copy.usage.total.tokens, "of", session.usage.total.tokens)  # 15 of 60


if __name__ == "__main__":
    asyncio.run(main())
