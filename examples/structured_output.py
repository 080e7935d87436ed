"""Structured output: the answer as a value of a type; asked again where it does not fit, and a typed error at last."""

import asyncio
from datetime import date

from pydantic import BaseModel, Field

from weft import Agent, Limits, NoOutput, tool
from weft.testing import Script, call, calls, refuse, say


class Line(BaseModel):
    article: str
    cents: int = Field(gt=0)


class Invoice(BaseModel):
    """An invoice, as it was read."""

    number: str
    day: date
    lines: list[Line]

    @property
    def total(self) -> int:
        return sum(line.cents for line in self.lines)


@tool(effect="none")
async def exchange(cents: int, currency: str) -> int:
    """Convert an amount into cents of a euro."""
    return cents * 9 // 10


async def main() -> None:
    # A model with a JSON-schema mode answers with the JSON itself. The first answer here does not fit.
    good = '{"number": "A-7", "day": "2026-11-30", "lines": [{"article": "teapot", "cents": 500}]}'
    model = Script(say(good.replace("500", "-500")), say(good))
    result = await Agent(model, name="reader", output=Invoice).run("Read this: …")
    print(result.output.day.year, result.output.total)  # 2026 500
    print(result.messages[2].text.splitlines()[1])  # lines.0.cents: Input should be greater than 0; got -500

    # Any other model submits it with a call. Nothing else changes.
    submission = {"number": "A-8", "day": "2026-11-30", "lines": [{"article": "cup", "cents": 450}]}
    model = Script(
        call("exchange", cents=500, currency="USD"),
        calls(call("submit_output", submission)),
        output="tool",
    )
    reader = Agent(model, name="reader", tools=[exchange], output=Invoice)
    print((await reader.run("Read this: …")).output.total)  # 450

    # Any type that pydantic can describe.
    print((await Agent(Script(say('{"output": ["a", "b"]}')), output=list[str]).run("Which?")).output)  # ['a', 'b']

    # A refusal, a filter or a cut is not asked again; an answer that never fits is, within the limit.
    for model in (Script(refuse("I would rather not.")), Script(say("{}"), say("{}"))):
        try:
            await Agent(model, output=Invoice, limits=Limits(retries=1)).run("Read this: …")
        except NoOutput as error:
            print(error.code, "-", error.result.text if error.result else "")
            # REFUSED - I would rather not.
            # INVALID_OUTPUT - {}


if __name__ == "__main__":
    asyncio.run(main())
