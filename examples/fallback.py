"""Fallback and retry: models around models, and what of a failure is seen."""

import asyncio

from weft import Agent, ModelError, ModelFailed
from weft.models import fallback, retry
from weft.testing import Script, fail, say

BUSY = ModelError("the server answered 429", code="MODEL_RATE_LIMIT", retry_after=0.0)
DOWN = ModelError("the connection to the server failed", code="MODEL_CONNECTION")
WRONG = ModelError("the server answered 401", code="MODEL_AUTH")


async def main() -> None:
    # In an application the models are names: fallback(retry("anthropic:…"), "openai:…").
    first = Script(fail(BUSY), say("Hello."), provider="a", model="large")
    second = Script(say("Hello from the other one."), provider="b", model="small")
    desk = Agent(fallback(retry(first, attempts=2), second), name="desk")
    result = await desk.run("Good morning!")
    print(result.text, len(first.requests), result.usage.unknown)  # Hello. 2 0

    first = Script(fail(DOWN, times=None), provider="a", model="large")
    desk = desk.replace(model=fallback(retry(first, attempts=2, first=0.0), second))
    result = await desk.run("Good morning!")
    print(result.text, len(first.requests))  # Hello from the other one. 2

    # What trying again cannot mend is not tried again, and the run's error has the whole story.
    for model in (fallback(Script(fail(WRONG)), second), retry(Script(say("Hel").then_fail(DOWN)))):
        try:
            await desk.run("Good morning!", model=model)
        except ModelFailed as error:
            print(error.code, "-", error)
            # MODEL_AUTH - the server answered 401
            # MODEL_CONNECTION - the connection to the server failed


if __name__ == "__main__":
    asyncio.run(main())
