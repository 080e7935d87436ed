"""Structured output: how it is asked for, and what of a transcript is a run's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft import _texts
from weft._contain import Contained, contain, contain_call
from weft._moves import Plan, Refused, Submitted
from weft._schema import InvalidArguments, OutputShape
from weft._texts import SUBMIT
from weft._threads import in_thread
from weft._tool import Retry
from weft.messages import ErrorInfo, Message, ToolCall, ToolResult, clean_text
from weft.model import ToolDefinition

_DESCRIPTION = "Gives your final answer. Call it once, alone, when you are done."


class Broken(Exception):
    """The output type's own code has failed; carries what the run ends with."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(type(cause).__name__)  # it may have no text
        self.cause = cause
        self.error = ErrorInfo(
            code=_texts.INTERNAL, message=f"the output type's own code failed ({type(cause).__name__})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What an agent's answer must be."""

    shape: OutputShape

    @property
    def definition(self) -> ToolDefinition:
        """The submission tool, as the model is told of it."""
        return ToolDefinition(name=SUBMIT, description=_DESCRIPTION, schema=self.shape.schema)

    async def read(self, text: str) -> Any:
        """The value in this text, or `Contained`; the user's own validators run on a thread."""
        parse = partial(self.shape.parse, text)
        if self.shape.runs_code:
            return await contain("tool call", in_thread(parse))
        return contain_call("tool call", parse)

    async def judge(self, call: ToolCall, keep: Callable[[object], None]) -> Plan:
        """What becomes of a call of the submission tool; `keep` gets its value, if it is one.

        Raises:
            Broken: The output type's own code failed.
        """
        problem = await self.problem(call.arguments, keep)
        if problem is None:
            return Submitted(call=call, result=_texts.output_taken(call.id))
        text = _texts.capped(problem, _texts.RESULT_CAP)
        return Refused(call=call, result=_texts.error(call, _texts.INVALID_INPUT, text))

    async def problem(self, text: str, keep: Callable[[object], None]) -> str | None:
        """Why this text is no output; None where it is one, and `keep` has got its value.

        Raises:
            Broken: The output type's own code failed.
        """
        value = await self.read(text)
        if not isinstance(value, Contained):
            keep(value)
            return None
        if isinstance(value.cause, InvalidArguments | Retry):
            told = contain_call("tool call", partial(_text_of, value.cause))
            if not isinstance(told, Contained):
                return told
        raise Broken(value.cause)


def _text_of(error: Exception) -> str:
    return clean_text(str(error))


def output_text(messages: Sequence[Message]) -> str:
    """The text of a run's output: the arguments of the call that was taken, or else the answer's own text."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.role == "assistant":
            results = messages[place + 1].results if place + 1 < len(messages) else ()
            taken = taken_call(message, results)
            return message.text if taken is None else taken.arguments
    return ""


def taken_call(message: Message, results: Sequence[ToolResult]) -> ToolCall | None:
    """The call of a message that brought the output; None where none did."""
    good = {result.call for result in results if not result.is_error}
    return next((call for call in message.calls if call.name == SUBMIT and call.id in good), None)
