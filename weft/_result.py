"""What a run came to: its result, or the error that it raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from typing_extensions import TypeVar

from weft import _texts
from weft._contain import Contained
from weft._moves import Ended
from weft._output import Output, output_text
from weft.errors import Changed, LimitReached, NoOutput, RunFailed, TurnCancelled, WeftError, WrongCall
from weft.errors import ModelFailed as ModelFailedError
from weft.messages import ErrorInfo, Message, ToolResult, Usage, clean_text

OutputT_co = TypeVar("OutputT_co", covariant=True, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call of a bare run that would need an approval."""

    call: str
    tool: str
    args: str
    """The stored argument text."""
    reason: str | None


class _Missing:
    """Marks a result without an output."""


MISSING = _Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[OutputT_co]):
    """What a run, or a turn, came to."""

    text: str
    """The text of the last assistant message; the JSON of a structured answer, also where a call brought it."""
    usage: Usage
    """Of this run, all its steps and sub-agents."""
    stop: str
    """`answered`, `parked`, `stopped` (by a stop condition); on an error's `result`, `failed`."""
    finish: str | None = None
    """The last reply's finish reason: `stop`, `length`, `refusal`, `filter`, …"""
    run: str
    """The run's id."""
    pending: tuple[Any, ...] = ()
    """What waits for a decision: in a session, its requests."""
    _history: Sequence[Message] = field(default=(), repr=False)
    _output: OutputT_co | _Missing = field(default=MISSING, repr=False)

    @property
    def output(self) -> OutputT_co:
        """The answer, of the agent's output type; for an agent without one, the text.

        Raises:
            WrongCall: There is none: the run is parked, stopped, or failed.
        """
        if isinstance(self._output, _Missing):
            raise WrongCall(f"the run has no output: it is {self.stop}; see stop, pending and text")
        return self._output

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole transcript, built when asked for."""
        return tuple(self._history)

    @property
    def parked(self) -> bool:
        """True while the run waits for a decision."""
        return self.stop == "parked"


async def with_output(result: Result[Any], output: Output | None, kept: object = MISSING) -> Result[Any]:
    """The same result with its output, where the run was answered; `kept` is its value where it was read here.

    Raises:
        Changed: What is stored does not fit the output type that the agent has now.
    """
    if output is None or result.stop != "answered":
        return result
    value = await output.read(output_text(result._history)) if kept is MISSING else kept
    if isinstance(value, Contained):
        raise Changed("the stored answer does not fit the agent's output type; open it with the type as it was")
    return replace(result, _output=value)


def raise_for(ended: Ended | None, result: Result[Any], cause: BaseException | None = None) -> Result[Any]:
    """The result of a run that gave one.

    Raises:
        LimitReached: A limit stopped it.
        ModelFailedError: The model call failed.
        NoOutput: The answer is not the structured output that was asked for.
        RunFailed: It failed otherwise.
        TurnCancelled: It was cancelled.
    """
    if ended is None or ended.outcome == "cancelled":
        raise TurnCancelled("the run was cancelled")
    if ended.outcome != "failed":
        return result
    error = ended.error or ErrorInfo(code="FAILED", message="the run failed")
    match error.kind:
        case "limit":
            raise LimitReached(error.message, limit=error.details.get("limit", ""), result=result)
        case "output":
            raise NoOutput(error.message, code=error.code, result=result)
        case "model":
            raise ModelFailedError(error.message, code=error.code, result=result) from cause
        case _:
            raise RunFailed(error.message, code=error.code, result=result) from cause


def reason_of(error: Exception) -> str:
    """What may be told of an exception: weft's own errors whole, of any other the type's name."""
    return clean_text(str(error)) if isinstance(error, WeftError) else type(error).__name__


def child_result(call: str, ended: Ended | None, text: str, cap: int) -> ToolResult:
    """A delegating call's result, from how its child ended."""
    if ended is None:
        return _texts.subagent_failed(call, "it was interrupted")
    match ended.outcome:
        case "answered" | "stopped":
            return ToolResult(call=call, content=_texts.subagent_answer(text, cap))
        case "parked":
            return _texts.subagent_parked(call)
        case "cancelled":
            return _texts.subagent_failed(call, "it was cancelled")
        case "failed":
            reason = "unknown" if ended.error is None else ended.error.message
            return _texts.subagent_failed(call, _texts.capped(reason, cap))
