"""Limits: what a run may spend, what it had done when one was reached, and conditions that end it well."""

import asyncio

from weft import Agent, LimitReached, Limits, Retry, StepInfo, tool
from weft.testing import Script, call, calls, say


@tool(effect="none")
async def search(words: str) -> str:
    """Search the shelves."""
    return "nothing"


@tool
async def book(seat: str) -> str:
    """Book a seat."""
    if not seat.isdigit():
        raise Retry("A seat is a number.")
    return f"booked {seat}"


def booked(step: StepInfo) -> bool:
    """Enough is done: something was booked."""
    return any(result.content.startswith("booked") for result in step.results)


async def ends(script: Script, limits: Limits) -> None:
    agent = Agent(script, tools=[search, book], limits=limits)
    try:
        result = await agent.run("Find me a seat.")
    except LimitReached as error:
        done = error.result
        if done is None:
            raise
        print(f"{error.limit}: {error} ({done.usage.tokens} tokens, {len(done.messages)} messages)")
        # steps: the run has made 2 model calls, and may make 2 (30 tokens, 5 messages)
        # tokens: the run has used 30 tokens, and may use 20 (30 tokens, 5 messages)
        # tool_calls: the run has asked for 3 calls, and may for 2 (15 tokens, 3 messages)
        # repeats: the model has asked for the same calls 3 steps in a row (45 tokens, 7 messages)
        # retries: tool 'book' turned down what it was given 2 steps in a row (30 tokens, 5 messages)
    else:
        print(result.stop, "-", result.text)  # answered - Sorry.


async def main() -> None:
    words = [call("search", words=word) for word in ("window", "aisle", "any")]
    await ends(Script(*words), Limits(steps=2))
    await ends(Script(*words), Limits(tokens=20))
    await ends(Script(calls(*words)), Limits(tool_calls=2))
    await ends(Script(words[0], words[0], words[0]), Limits(repeats=3))
    await ends(Script(call("book", seat="window"), call("book", seat="aisle")), Limits(retries=1))
    await ends(Script(words[0], say("Sorry.")), Limits(steps=2))  # the last allowed step may answer

    agent = Agent(Script(call("book", seat="7")), tools=[search, book], stop_when=booked)
    result = await agent.run("Find me a seat.")
    print(result.stop, result.messages[-1].results[0].content)  # stopped booked 7


if __name__ == "__main__":
    asyncio.run(main())
