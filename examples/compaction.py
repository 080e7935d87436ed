"""Compaction: a chat that gets too long for its model goes on from a summary, and its journal keeps all of it."""

import asyncio

from weft import Agent, Compaction, Usage
from weft.events import Compacted
from weft.testing import Reply, Script, say
from weft.thread import open_store

LETTER = "Dear friend, today the river was high and we walked along it. " * 20  # about 300 tokens


def answer(text: str, read: int) -> Reply:
    return say(text, usage=Usage(input_tokens=read, output_tokens=len(text) // 4))


async def main() -> None:
    script = Script(
        answer(f"Your first letter is about a river. {LETTER}", 330),
        answer("The second one too.", 350),
        answer("Both.", 370),
        summary=say("Two letters about a river were read.", usage=Usage(input_tokens=700, output_tokens=9)),
    )
    reader = Agent(
        script,
        instructions="You read letters.",
        compaction=Compaction(window=1_000, reserve=100, keep=330),  # for a model that reads 1,000 tokens
    )
    async with open_store("memory:") as store:
        session = await store.create(reader)
        await session.ask(f"Read this: {LETTER}")
        turn = await session.send(f"And this: {LETTER}")
        await turn.wait()
        async for event in turn.events():
            if isinstance(event, Compacted):
                print(f"made shorter: {event.before} -> {event.after} tokens")  # made shorter: 966 -> 344 tokens
        await session.ask("Which of them was about a river?")

        for message in session.messages:  # what the model reads
            print(f"{message.role}: {message.text[:60]!r}")
            # user: 'Summary of the conversation so far:\nTwo letters about a rive'
            # user: 'And this: Dear friend, today the river was high and we walke'
            # assistant: 'The second one too.'
            # user: 'Which of them was about a river?'
            # assistant: 'Both.'
        kept = [entry.message for entry in session.path if entry.message is not None]
        print(len(kept), "messages in the journal")  # 6 messages in the journal
        print(session.usage.summaries.tokens, "tokens for summaries")  # 709 tokens for summaries

        await session.branch(session.path[1].id)  # to before the summary
        print(len(session.messages), session.messages[0].text[:10])  # 2 Read this:


if __name__ == "__main__":
    asyncio.run(main())
