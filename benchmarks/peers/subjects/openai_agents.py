"""openai-agents, with its SQLite session; tracing is off."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.peers.worker import (
    ANSWER,
    ARGUMENTS,
    CHILDREN,
    DELTAS,
    MESSAGES,
    PIECE,
    PROMPT,
    RUNS,
    STREAMS,
    TURNS,
    Numbers,
    elapsed_ms,
    expect,
    serve,
)

set_tracing_disabled(True)
_KEPT = TemporaryDirectory(prefix="weft-bench-")
_NUMBERS = count()


def said(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(
        id=f"m-{next(_NUMBERS)}", content=[content], role="assistant", status="completed", type="message"
    )


def called(tool: str, arguments: str) -> ResponseFunctionToolCall:
    number = next(_NUMBERS)
    return ResponseFunctionToolCall(
        id=f"f-{number}", call_id=f"c-{number}", name=tool, arguments=arguments, type="function_call"
    )


def answered(given) -> bool:
    """Whether the last item brings a tool's result."""
    return not isinstance(given, str) and given[-1].get("type") == "function_call_output"


class Fake(Model):
    """Answers by a function of the input."""

    def __init__(self, answer: Callable[[object], list[object]]) -> None:
        self._answer = answer

    async def get_response(self, system_instructions, input, *args, **kwargs) -> ModelResponse:
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=self._answer(input), usage=usage, response_id=None)

    async def stream_response(self, system_instructions, input, *args, **kwargs) -> AsyncIterator[object]:
        for number in range(DELTAS):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=PIECE,
                item_id="m",
                logprobs=[],
                output_index=0,
                sequence_number=number,
                type="response.output_text.delta",
            )
        whole = Response(
            id="r",
            created_at=0,
            model="fake",
            object="response",
            output=[said(PIECE * DELTAS)],
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(response=whole, sequence_number=DELTAS, type="response.completed")


@function_tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


AGENT = Agent(
    name="adder",
    model=Fake(lambda given: [said(ANSWER) if answered(given) else called("add", ARGUMENTS)]),
    tools=[add],
)


def loop() -> Numbers:
    return asyncio.run(_loop())


async def _loop() -> Numbers:
    start = perf_counter()
    for _ in range(RUNS):
        expect((await Runner.run(AGENT, PROMPT)).final_output, ANSWER)
    return {"ms_per_run": elapsed_ms(start) / RUNS}


def session() -> Numbers:
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        return asyncio.run(_session(Path(directory) / "bench.db"))


async def _session(path: Path) -> Numbers:
    talk = SQLiteSession("s", path)
    start = perf_counter()
    for _ in range(TURNS):
        await Runner.run(AGENT, PROMPT, session=talk)
    took = elapsed_ms(start)
    expect(len(await talk.get_items()), 4 * TURNS)
    talk.close()
    return {"ms_per_turn": took / TURNS}


CHILD = Agent(name="researcher", model=Fake(lambda given: [said(ANSWER)]))
PARENT = Agent(
    name="lead",
    model=Fake(
        lambda given: (
            [said("done")]
            if answered(given)
            else [called("research", json.dumps({"input": f"find answer {n}"})) for n in range(CHILDREN)]
        )
    ),
    tools=[CHILD.as_tool("research", "Delegates research to another agent.")],
)


def fanout() -> Numbers:
    return asyncio.run(_fanout())


async def _fanout() -> Numbers:
    start = perf_counter()
    result = await Runner.run(PARENT, "ask them all")
    took = elapsed_ms(start)
    done = [item for item in result.to_input_list() if item.get("type") == "function_call_output"]
    expect(sum(item["output"] == ANSWER for item in done), CHILDREN)
    return {"total_ms": took}


@cache
def _stored() -> Path:
    path = Path(_KEPT.name) / "kept.db"
    asyncio.run(_converse(path))
    return path


async def _converse(path: Path) -> None:
    talk = SQLiteSession("s", path)
    for _ in range(MESSAGES // 4):
        result = await Runner.run(AGENT, PROMPT)
        await talk.add_items(result.to_input_list())
    talk.close()


def reopen() -> Numbers:
    copy = _stored().with_name("copy.db")
    shutil.copy(_stored(), copy)
    return asyncio.run(_reopen(copy))


async def _reopen(path: Path) -> Numbers:
    start = perf_counter()
    talk = SQLiteSession("s", path)
    await Runner.run(AGENT, PROMPT, session=talk)
    took = elapsed_ms(start)
    expect(len(await talk.get_items()), MESSAGES + 4)
    talk.close()
    return {"open_and_turn_ms": took}


def stream() -> Numbers:
    return asyncio.run(_stream())


async def _stream() -> Numbers:
    agent = Agent(name="talker", model=Fake(lambda given: []))
    start = perf_counter()
    for _ in range(STREAMS):
        seen = 0
        async for event in Runner.run_streamed(agent, PROMPT).stream_events():
            seen += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        expect(seen, DELTAS)
    return {"us_per_delta": elapsed_ms(start) * 1000 / (STREAMS * DELTAS)}


if __name__ == "__main__":
    serve({"loop": loop, "session": session, "fanout": fanout, "reopen": reopen, "stream": stream})
