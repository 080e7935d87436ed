"""What a run may spend, and how far it is: folded from its facts, the same live and from a journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from weft import _given, _texts
from weft.errors import WrongCall
from weft.messages import ErrorInfo, Message, Usage

__all__ = ["Limits", "Progress", "reached"]

N = TypeVar("N", int, float)

RETRIES = 3
OUTPUT = ""
"""Stands for the answer itself where a tool's name is asked for; no tool has this name."""
_ASKS_AGAIN = frozenset({_texts.INVALID_INPUT, _texts.RETRY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may spend. Checked before the model is called again: a step that ends the run may overshoot.

    All hold for the whole run, across parks and recoveries; but of `seconds`, what a turn had used whose process died
    is not known, and does not count.

    Raises:
        WrongCall: A limit makes no sense.
    """

    steps: int = 10
    """Model calls."""
    tokens: int | None = None
    """Input and output tokens, as reported, sub-agents' included; None is without limit."""
    tool_calls: int | None = None
    """Calls that the model asks for, whatever becomes of them."""
    seconds: float | None = None
    """Time at work; waiting for a person does not count. What runs when it is over is not cut short."""
    retries: int = RETRIES
    """How many steps in a row one tool may turn down what it was given (`Retry`, invalid arguments), and be asked
    again; the same holds for an answer that does not fit the declared output."""
    repeats: int | None = None
    """How many steps in a row may ask for exactly the same calls, before the run is stopped; at least 2."""
    parallel: int = 4
    """How many bodies of one step run at once; delegations to a pool take no place of these. A rule of the present
    agent, which no journal keeps."""

    def __post_init__(self) -> None:
        at_least = _given.at_least
        if not at_least(1, self.steps):
            raise WrongCall(f"Limits(steps=…) is a number of at least 1; not {self.steps!r}")
        if not at_least(1, self.parallel):
            raise WrongCall(f"Limits(parallel=…) is a number of at least 1; not {self.parallel!r}")
        if not at_least(0, self.retries):
            raise WrongCall(f"Limits(retries=…) is a number of at least 0; not {self.retries!r}")
        if self.tokens is not None and not at_least(1, self.tokens):
            raise WrongCall(f"Limits(tokens=…) is a number of at least 1, or None; not {self.tokens!r}")
        if self.tool_calls is not None and not at_least(1, self.tool_calls):
            raise WrongCall(f"Limits(tool_calls=…) is a number of at least 1, or None; not {self.tool_calls!r}")
        if self.repeats is not None and not at_least(2, self.repeats):
            raise WrongCall(f"Limits(repeats=…) is a number of at least 2, or None; not {self.repeats!r}")
        if self.seconds is not None and not _given.positive(self.seconds):
            raise WrongCall(f"Limits(seconds=…) is a positive number of seconds, or None; not {self.seconds!r}")

    def stricter(self, other: Limits) -> Limits:
        """The smaller of each."""
        if self == other:
            return self
        return Limits(
            steps=min(self.steps, other.steps),
            tokens=_least(self.tokens, other.tokens),
            tool_calls=_least(self.tool_calls, other.tool_calls),
            seconds=_least(self.seconds, other.seconds),
            retries=min(self.retries, other.retries),
            repeats=_least(self.repeats, other.repeats),
            parallel=min(self.parallel, other.parallel),
        )


def _least(left: N | None, right: N | None) -> N | None:
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


class Progress(NamedTuple):
    """How far a run is. A value; each fact makes a new one."""

    steps: int = 0
    """Replies of the model."""
    calls: int = 0
    asked: tuple[tuple[str, str], ...] = ()
    """The last step's calls: names and argument texts."""
    same: int = 0
    """How many steps in a row have asked for these."""
    again: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """By tool: how many steps in a row it has turned down what it was given, and the last of these steps."""

    def said(self, message: Message) -> Progress:
        """The model has replied."""
        calls = message.calls
        again = self._since_an_answer() if self.again else self.again
        if not calls:
            return Progress(self.steps + 1, self.calls, (), 0, again)
        asked = tuple([(call.name, call.arguments) for call in calls])
        same = self.same + 1 if asked == self.asked else 1
        return Progress(self.steps + 1, self.calls + len(calls), asked, same, again)

    def _since_an_answer(self) -> Mapping[str, tuple[int, int]]:
        """What counts after the last reply: a reply without calls that was not corrected was an answer that fits."""
        if self.asked or self.again.get(OUTPUT, (0, self.steps))[1] == self.steps:
            return self.again
        return {name: count for name, count in self.again.items() if name != OUTPUT}

    def answered(self, tool: str, code: str | None) -> Progress:
        """A call of this tool has its result. In which order a step's results come makes no difference."""
        if code in _ASKS_AGAIN:
            count, step = self.again.get(tool, (0, 0))
            if step == self.steps:
                return self
            return self._replace(again={**self.again, tool: (count + 1, self.steps)})
        if tool not in self.again or code == _texts.NOT_RUN:
            return self
        if self.again[tool][1] == self.steps:  # it has taken one call of this step, and turned down another
            return self._replace(again={**self.again, tool: (1, self.steps)})
        return self._replace(again={name: count for name, count in self.again.items() if name != tool})

    def corrected(self) -> Progress:
        """The answer does not fit the declared output, and the model has been told."""
        return self.answered(OUTPUT, _texts.RETRY)


START = Progress()


def reached(
    limits: Limits, progress: Progress, usage: Usage, *, late: bool, submission: str | None = None
) -> ErrorInfo | None:
    """The limit that forbids another model call; None where none does.

    `submission` is the tool whose call brings the output, if there is one.
    """
    if progress.steps >= limits.steps:
        return _over("steps", f"the run has made {progress.steps} model calls, and may make {limits.steps}")
    if limits.tokens is not None and usage.tokens >= limits.tokens:
        return _over("tokens", f"the run has used {usage.tokens} tokens, and may use {limits.tokens}")
    if limits.tool_calls is not None and progress.calls > limits.tool_calls:
        return _over("tool_calls", f"the run has asked for {progress.calls} calls, and may for {limits.tool_calls}")
    if late and limits.seconds is not None:
        return _over("seconds", f"the run has been at work for {limits.seconds:g} seconds, and may be no longer")
    if limits.repeats is not None and progress.same >= limits.repeats:
        return _over("repeats", f"the model has asked for the same calls {progress.same} steps in a row")
    return _retries(limits, progress, submission) if progress.again else None


def _retries(limits: Limits, progress: Progress, submission: str | None) -> ErrorInfo | None:
    unfit = 0
    for tool, (count, _) in progress.again.items():
        if tool in (OUTPUT, submission):
            unfit += count
        elif count > limits.retries:
            return _over("retries", f"tool {tool!r} turned down what it was given {count} steps in a row")
    if unfit <= limits.retries:
        return None
    text = f"the answer did not fit the declared output {unfit} times in a row"
    return ErrorInfo(kind="output", code="INVALID_OUTPUT", message=text)


def _over(limit: str, message: str) -> ErrorInfo:
    return ErrorInfo(kind="limit", code="LIMIT", message=message, details={"limit": limit})
