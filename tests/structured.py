"""A strict double for structured output: a script that says by which of the two ways it gives it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from weft import ModelInfo, ModelRequest
from weft.model import Finish, ModelEvent
from weft.testing import Script, call, calls, say
from weft.testing.script import Call, Reply, Step

Mode = Literal["schema", "tool"]
MODES: tuple[Mode, ...] = ("schema", "tool")
SUBMIT = "submit_output"


class Structured:
    """Answers from a script. Each request must ask for structured output, and by this model's own way alone."""

    def __init__(self, mode: Mode, *steps: Step) -> None:
        self.mode = mode
        self.script = Script(*steps)

    @property
    def requests(self) -> list[ModelRequest]:
        return self.script.requests

    def info(self) -> ModelInfo:
        return ModelInfo(provider="structured", model=self.mode, output=self.mode)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        names = [definition.name for definition in request.tools]
        assert len(names) == len(set(names))
        if self.mode == "schema":
            assert request.output_schema is not None
            assert request.output_schema["type"] == "object"
            assert SUBMIT not in names
        else:
            assert request.output_schema is None
            assert names[-1] == SUBMIT
            assert request.tools[-1].schema["type"] == "object"
            assert request.tool_choice == "required"
        async for event in self.script.stream(request):
            yield event


def answer(mode: Mode, value: Mapping[str, Any] | str) -> Reply | Call:
    """A reply that gives this JSON as the run's output; a text is given as it is."""
    text = value if isinstance(value, str) else json.dumps(value)
    return say(text) if mode == "schema" else call(SUBMIT, text)


def broken_off(mode: Mode, value: Mapping[str, Any] | str, reason: Any) -> Reply:
    """The same reply, broken off for this reason."""
    whole = answer(mode, value)
    return ended(calls(whole) if isinstance(whole, Call) else whole, reason)


def ended(reply: Reply, reason: Any) -> Reply:
    """The same reply with another end."""
    *parts, finish = reply.parts
    assert isinstance(finish, Finish)
    return Reply(parts=(*parts, replace(finish, reason=reason)))
