"""A pool: runs other agents as children of a session, a limited number at once, each with a receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, overload

from weft import _given
from weft._agent import Agent, check_allowed
from weft._tool import Tool, delegating
from weft._toolcall import call_user_code
from weft.errors import WrongCall
from weft.pool._slots import Slots
from weft.thread._approvals import Decision, checked
from weft.thread._receipts import Receipt
from weft.thread._view import thread_of
from weft.thread.session import Session
from weft.thread.turn import Turn

__all__ = ["Pool"]


class _Inherit:
    """Marks deps that are the parent's."""


_INHERIT = _Inherit()


class _Wrapped:
    """What a delegating tool carries."""

    sessions = True

    def __init__(self, pool: Pool, agent: Agent[Any, Any], deps: object) -> None:
        self._pool = pool
        self._deps = deps
        self.agent = agent

    @property
    def depth(self) -> int:
        return self._pool.depth

    @property
    def allow(self) -> frozenset[str] | None:
        return self._pool.allow

    async def child_deps(self, deps: object) -> object:
        if isinstance(self._deps, _Inherit):
            return deps
        made = self._deps
        return await call_user_code(partial(made, deps)) if callable(made) else made

    async def enter(self, *, returning: bool) -> None:
        await self._pool._slots.enter(returning=returning)

    def leave(self) -> None:
        self._pool._slots.leave()


class Pool:
    """Children at work, a limited number at once. It keeps no truth: receipts are entries of their parents.

    It needs no event loop to be made, and may be made, and may wrap, at import time.

    Args:
        limit: How many children of this pool may work at once in this process. A child that only waits for
            its own delegations, or is parked, holds no slot, so any fan-out and depth finishes with any limit.
        depth: How many levels of delegation are allowed.
        allow: The permissions that its children's tools may need; absent: what their parents have.

    Raises:
        WrongCall: The limit or the depth is below 1, or `allow` is no set of permissions.
    """

    def __init__(self, limit: int, *, depth: int = 8, allow: Iterable[str] | None = None) -> None:
        if not (_given.at_least(1, limit) and _given.at_least(1, depth)):
            raise WrongCall("Pool(limit, depth=…): both are at least 1")
        self.limit = limit
        self.depth = depth
        self.allow = _given.permissions(allow)
        self._slots = Slots(limit)

    def __repr__(self) -> str:
        return f"Pool({self.limit}, depth={self.depth})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def wrap(
        self,
        name: str,
        agent: Agent[Any, Any],
        *,
        description: str,
        deps: object | Callable[[Any], object] = _INHERIT,
    ) -> Tool[Any]:
        """A tool that delegates a prompt to a child of this agent; its result is the child's answer.

        In a session's turn the child is a session of its own, with a receipt in the parent; in a bare run it
        is an ordinary sub-agent under a slot.

        Args:
            name: What the model calls it.
            agent: The child.
            description: What the model is told.
            deps: The child's deps, or a function of the parent's; absent: the parent's.

        Raises:
            NotAllowed: A tool of the child's needs a permission that the pool's `allow` lacks.
            WrongCall: The agent is none.
        """
        check_allowed(_given.instance("agent", agent, Agent).tools, self.allow)
        return delegating(name, description, _Wrapped(self, agent, deps))

    def receipts(self, session: Session[Any]) -> tuple[Receipt, ...]:
        """The session's receipts, in acceptance order, as of its last fold."""
        return session.receipts

    @overload
    async def decide(self, session: Session[Any], decision: Decision, /, *decisions: Decision) -> Turn[Any]: ...
    @overload
    async def decide(self, session: Session[Any]) -> Turn[Any] | None: ...
    async def decide(self, session: Session[Any], *decisions: Decision) -> Turn[Any] | None:
        """`session.decide` that returns the resumed child's turn; with several children, the first one's.

        It does not wait for the child. When the child ends, the parent's parked turn goes on: `turn.next()`.
        Without decisions it goes on with the children that nobody is asked about any more, and returns the
        first one's turn, or None.

        Raises:
            NotPending, Expired, Conflict, InvalidDecision, DecideAtRoot, Changed: As for `session.decide`.
        """
        if not decisions:
            return await self._pump(session)
        checked(decisions)
        first = next((d.request for d in decisions if thread_of(d.request) != session.id), None)
        child = None if first is None else await session._node.live(thread_of(first)).open()
        parked = None if child is None or child.view.run is None else child.view.run.turn
        turn = await session.decide(*decisions)
        if child is None:
            return turn
        return Turn(child, turn=child.view.last_turn) if parked is None else Turn(child, after=parked)

    async def _pump(self, session: Session[Any]) -> Turn[Any] | None:
        await session.refresh()
        found: Turn[Any] | None = None
        for receipt in session.receipts:
            if receipt.state == "accepted" and found is None:
                child = await session._node.live(receipt.child).open()
                run = child.view.run
                if run is not None:
                    found = Turn(child, after=run.turn) if run.parked else Turn(child, turn=run.turn)
        await session.resume()
        return found
