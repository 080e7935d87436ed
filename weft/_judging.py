"""What becomes of each call of a reply, and of a reply without calls, before anything runs."""

from __future__ import annotations

from typing import Any

from weft import _texts
from weft._moves import Plan, Ready, Refused, Submitted
from weft._result import MISSING
from weft._setup import Setup
from weft._tool import Delegate
from weft._toolcall import judge
from weft.messages import Message, ToolResult
from weft.model import Finish

__all__ = ["Judge", "refuse_delegation"]


class Judge:
    """Judges the replies of one run.

    Args:
        setup: What the run is made of.
        parsed: By call: where the arguments go that were read on the way.
    """

    __slots__ = ("_parsed", "_setup", "kept")

    def __init__(self, setup: Setup, parsed: dict[str, dict[str, Any]]) -> None:
        self._setup = setup
        self._parsed = parsed
        self.kept: object = MISSING
        """The last value that was read as the run's output."""

    async def plans(self, message: Message, finish: Finish) -> tuple[tuple[Plan, ...], str | None]:
        """A plan for each call, and why a reply without calls is no answer.

        Raises:
            Broken: Code of the user's that reads an output has failed.
        """
        output, submission = self._setup.output, self._setup.rules.submission
        calls = message.calls
        if finish.reason in _texts.BROKEN_OFF:  # nobody is asked about calls that do not run
            return tuple(Refused(call=call, result=_texts.not_run(call.id, finish.reason)) for call in calls), None
        if output is not None and not calls:
            if submission is not None:
                return (), _texts.not_submitted(submission)
            problem = await output.problem(message.text, self._keep)
            return (), None if problem is None else _texts.not_the_output(_texts.capped(problem, _texts.RESULT_CAP))
        plans: list[Plan] = []
        for call in calls:
            if output is not None and call.name == submission:
                taken = any(isinstance(plan, Submitted) for plan in plans)
                refused = Refused(call=call, result=_texts.not_taken(call.id))
                plans.append(refused if taken else await output.judge(call, self._keep))
            else:
                plan = await judge(call, self._setup.tools, self._setup.allow, parsed=self._parsed)
                plans.append(self._guarded(plan))
        return tuple(plans), None

    def _keep(self, value: object) -> None:
        self.kept = value

    def _guarded(self, plan: Plan) -> Plan:
        delegate = self._setup.tools[plan.call.name]._delegate if isinstance(plan, Ready) else None
        if delegate is not None:
            refusal = refuse_delegation(delegate, self._setup.chain, plan.call.id)
            if refusal is not None:
                return Refused(call=plan.call, result=refusal)
        return plan


def refuse_delegation(delegate: Delegate, chain: tuple[object, ...], call: str) -> ToolResult | None:
    """The result of a delegation that must not start: to who is already at work above, or too deep."""
    if any(agent is delegate.agent for agent in chain):
        return _texts.subagent_cycle(call, delegate.agent.name)
    if len(chain) > delegate.depth:
        return _texts.subagent_depth(call, delegate.depth)
    return None
