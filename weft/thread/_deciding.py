"""Decisions: recorded at the root, then passed down, level by level, to the thread that asks. Needs no agent."""

from __future__ import annotations

from weft.errors import NotFound, NotPending
from weft.thread import _approvals
from weft.thread._live import Live, World
from weft.thread._view import thread_of
from weft.thread.entries import Decision


async def decide(world: World, decisions: tuple[_approvals.Decision, ...]) -> None:
    """Record decisions of any sessions, each at its root, and pass them down. All are judged before any is recorded."""
    _approvals.checked(decisions)
    roots: dict[str, list[_approvals.Decision]] = {}
    for decision in decisions:
        roots.setdefault(await _root_of(world, decision.request), []).append(decision)
    now = await world.store.now()
    for thread, batch in roots.items():
        live = await world.live(thread).open()
        await live.refresh()
        _approvals.decide(live.view, batch, ["" for _ in batch], now)
    for thread, batch in roots.items():
        live = await world.live(thread).open()
        for made in await record(live, tuple(batch)):
            await push_down(world, made)


async def _root_of(world: World, request: str) -> str:
    try:
        live = await world.live(thread_of(request)).open()
    except NotFound:
        raise NotPending(request, "is of no thread in this store") from None
    return live.view.header.root


async def record(live: Live, decisions: tuple[_approvals.Decision, ...]) -> tuple[Decision, ...]:
    """Record decisions at the root; those that stand now, of these requests."""
    world = live.world
    now = await world.store.now()
    ids = [world.ids.new() for _ in decisions]
    if any(decision.request not in live.view.requests for decision in decisions):
        await live.refresh()
    await live.command(lambda view: _approvals.decide(view, decisions, ids, now))
    return _approvals.made(live.view, (decision.request for decision in decisions))


async def push_down(world: World, decision: Decision) -> None:
    """The same decision, level by level, to the thread that its request names, if that is still there."""
    path: list[Live] = []
    try:
        live = await world.live(thread_of(decision.request)).open()
    except NotFound:
        return
    while live.view.header.parent is not None:
        path.append(live)
        live = await world.live(live.view.header.parent).open()
    for level in reversed(path):
        await level.command(lambda view: _approvals.push(view, [decision]))
