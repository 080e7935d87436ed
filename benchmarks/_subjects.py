"""What is measured: models that cost next to nothing, a tool, stores in places of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from weft import Model, ModelInfo, ModelRequest, Usage, tool
from weft.model import Finish, ModelEvent, TextChunk, WholeCall
from weft.thread import OpenStore, open_store

Where: TypeAlias = Literal["memory", "sqlite FULL", "sqlite NORMAL"]

_SPENT = Usage(input_tokens=10, output_tokens=5)
_INFO = ModelInfo(provider="bench", model="bench")
_CALL = WholeCall(name="add", arguments='{"a": 1, "b": 2}')
_ANSWER = TextChunk(text="that makes 3")


class CallThenText:
    """Answers by the parity of the position: a call of `add`, then a text.

    Unlike a `Script` it needs no list of replies, checks nothing and keeps no request, so that a long session
    is measured without it.
    """

    def info(self) -> ModelInfo:
        return _INFO

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if request.position is not None and request.position.index % 2 == 0:
            yield _CALL
            yield Finish(reason="tool_calls", usage=_SPENT)
        else:
            yield _ANSWER
            yield Finish(reason="stop", usage=_SPENT)


class TextOnly:
    """Always answers the same text; keeps nothing."""

    def info(self) -> ModelInfo:
        return _INFO

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield _ANSWER
        yield Finish(reason="stop", usage=_SPENT)


class Slow:
    """Another model, after a pause. It always yields to the loop, as a request over a network would."""

    def __init__(self, model: Model, seconds: float) -> None:
        self._model = model
        self._seconds = seconds

    def info(self) -> ModelInfo:
        return self._model.info()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await asyncio.sleep(self._seconds)
        async for event in self._model.stream(request):
            yield event


@tool(effect="none")
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@asynccontextmanager
async def opened(where: Where) -> AsyncIterator[OpenStore]:
    """An open store, empty; a file is gone afterwards."""
    if where == "memory":
        async with open_store("memory:") as store:
            yield store
        return
    synchronous: Literal["FULL", "NORMAL"] = "FULL" if where == "sqlite FULL" else "NORMAL"
    with TemporaryDirectory(prefix="weft-bench-") as directory:
        path = Path(directory) / "bench.db"
        async with open_store(f"sqlite:///{path}", synchronous=synchronous) as store:
            yield store
