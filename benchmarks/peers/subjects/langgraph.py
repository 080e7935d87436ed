"""langgraph: its prebuilt agent over a fake chat model, with its SQLite checkpointer."""

from __future__ import annotations

import asyncio
import shutil
import warnings
from collections.abc import AsyncIterator, Callable
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from uuid import uuid4

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.prebuilt import create_react_agent

from benchmarks.peers.worker import (
    ANSWER,
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

warnings.filterwarnings("ignore", message=".*create_react_agent")  # the other one is in a package of its own
_KEPT = TemporaryDirectory(prefix="weft-bench-")
_NUMBERS = count()
THREAD = {"configurable": {"thread_id": "s"}}


def called(name: str, args: dict[str, object]) -> dict[str, object]:
    return {"name": name, "args": args, "id": f"c-{next(_NUMBERS)}", "type": "tool_call"}


class Fake(BaseChatModel):
    """Answers by a function of the messages."""

    answer: Callable[[list[BaseMessage]], AIMessage]

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs) -> ChatResult:
        return self._generate(messages)


class Pieces(Fake):
    """Answers in pieces."""

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(DELTAS):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=PIECE))
            if run_manager is not None:
                await run_manager.on_llm_new_token(PIECE, chunk=chunk)
            yield chunk


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def call_then_text(messages: list[BaseMessage]) -> AIMessage:
    if isinstance(messages[-1], ToolMessage):
        return AIMessage(ANSWER)
    return AIMessage("", tool_calls=[called("add", {"a": 1, "b": 2})])


def agent(saver=None):
    return create_react_agent(Fake(answer=call_then_text), [add], checkpointer=saver)


def asked(text: str) -> dict[str, list[BaseMessage]]:
    return {"messages": [HumanMessage(text)]}


def loop() -> Numbers:
    return asyncio.run(_loop())


async def _loop() -> Numbers:
    graph = agent()
    start = perf_counter()
    for _ in range(RUNS):
        expect((await graph.ainvoke(asked(PROMPT)))["messages"][-1].content, ANSWER)
    return {"ms_per_run": elapsed_ms(start) / RUNS}


def session() -> Numbers:
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        return asyncio.run(_session(Path(directory) / "bench.db"))


async def _session(path: Path) -> Numbers:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        graph = agent(saver)
        start = perf_counter()
        for _ in range(TURNS):
            result = await graph.ainvoke(asked(PROMPT), THREAD)
        took = elapsed_ms(start)
        expect(len(result["messages"]), 4 * TURNS)
    return {"ms_per_turn": took / TURNS}


def fanout() -> Numbers:
    return asyncio.run(_fanout())


async def _fanout() -> Numbers:
    child = create_react_agent(Fake(answer=lambda messages: AIMessage(ANSWER)), [])

    @tool
    async def research(prompt: str) -> str:
        """Delegates research to another agent."""
        return (await child.ainvoke(asked(prompt)))["messages"][-1].content

    def ask_all(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage("done")
        return AIMessage("", tool_calls=[called("research", {"prompt": f"find answer {n}"}) for n in range(CHILDREN)])

    parent = create_react_agent(Fake(answer=ask_all), [research])
    start = perf_counter()
    result = await parent.ainvoke(asked("ask them all"))
    took = elapsed_ms(start)
    done = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    expect(sum(message.content == ANSWER for message in done), CHILDREN)
    return {"total_ms": took}


@cache
def _stored() -> Path:
    path = Path(_KEPT.name) / "kept.db"
    asyncio.run(_fill(path))
    return path


async def _fill(path: Path) -> None:
    """One checkpoint of all messages: each turn's would keep the whole list again."""
    messages: list[BaseMessage] = []
    for _ in range(MESSAGES // 4):
        call = called("add", {"a": 1, "b": 2})
        messages += [
            HumanMessage(PROMPT, id=str(uuid4())),
            AIMessage("", tool_calls=[call], id=str(uuid4())),
            ToolMessage("3", name="add", tool_call_id=call["id"], id=str(uuid4())),
            AIMessage(ANSWER, id=str(uuid4())),
        ]
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await agent(saver).aupdate_state(THREAD, {"messages": messages}, as_node="agent")


def reopen() -> Numbers:
    copy = _stored().with_name("copy.db")
    shutil.copy(_stored(), copy)
    return asyncio.run(_reopen(copy))


async def _reopen(path: Path) -> Numbers:
    start = perf_counter()
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        result = await agent(saver).ainvoke(asked(PROMPT), THREAD)
        took = elapsed_ms(start)
        expect(len(result["messages"]), MESSAGES + 4)
    return {"open_and_turn_ms": took}


def stream() -> Numbers:
    return asyncio.run(_stream())


async def _stream() -> Numbers:
    graph = create_react_agent(Pieces(answer=call_then_text), [])
    start = perf_counter()
    for _ in range(STREAMS):
        seen = 0
        async for message, _ in graph.astream(asked(PROMPT), stream_mode="messages"):
            seen += message.content == PIECE
        expect(seen, DELTAS)
    return {"us_per_delta": elapsed_ms(start) * 1000 / (STREAMS * DELTAS)}


if __name__ == "__main__":
    serve({"loop": loop, "session": session, "fanout": fanout, "reopen": reopen, "stream": stream})
