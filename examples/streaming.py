"""Streaming: a run's events as they come, to any number of consumers, early or late."""

import asyncio
from collections import Counter

from weft import Agent, RunStream, tool
from weft.events import ReasoningDelta, TextDelta, ToolFinished, ToolStarted, event_adapter
from weft.testing import Script, call, stream, think


@tool(effect="none")
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order} has shipped"


async def show(run: RunStream) -> str:
    """What a terminal would show; the run does not wait for it."""
    shown: list[str] = []
    async for event in run:
        match event:
            case ReasoningDelta():
                shown.append(f"({event.text}) ")
            case ToolStarted():
                shown.append(f"[{event.call.name} …] ")
            case ToolFinished():
                shown.append(f"[{event.result.content}] ")
            case TextDelta():
                shown.append(event.text)
    return "".join(shown)


async def tally(run: RunStream) -> Counter[str]:
    return Counter([event.kind async for event in run])


async def main() -> None:
    model = Script(
        think("The number is known.", then=call("look_up", order="42")),
        stream("It ", "has ", "shipped."),
    )
    desk = Agent(model, name="desk", tools=[look_up])
    async with desk.stream("Where is order 42?") as run:
        shown, kinds = await asyncio.gather(show(run), tally(run))
        print(shown)  # (The number is known.) [look_up …] [order 42 has shipped] It has shipped.
        print(kinds["text_delta"], kinds["step_started"], kinds["run_finished"])  # 3 2 1
        late = [event async for event in run]  # once more from the start, although it is over
        print(late[0].kind, late[-1].kind)  # run_started run_finished
        line = event_adapter().dump_json(late[-1])  # any event is JSON, for a socket or a log
        print(event_adapter().validate_json(line) == late[-1])  # True
        print((await run.result()).text)  # It has shipped.


if __name__ == "__main__":
    asyncio.run(main())
