"""Cancelling: a run, wherever it runs, and the children that it leaves behind. Needs no agent."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Literal

from weft._contain import Contained
from weft._texts import RESULT_CAP
from weft.errors import Busy, Closed, Locked, NotFound
from weft.thread import _receipts, _turns
from weft.thread._again import persisting
from weft.thread._codec import decode_lines
from weft.thread._live import Live
from weft.thread._turns import Plan
from weft.thread._view import ReceiptView, View, first_index
from weft.thread.entries import Receipt


async def cancel(live: Live, turn: str | None = None) -> bool:
    """Cancel the run that is open or parked; durable when this returns, and seen to after that.

    What runs here is stopped at once. What another process runs sees it at its next append or renewal; if it has not
    ended within a renewal's period, it is ended without it. A parked run is closed at once.

    Args:
        live: The thread.
        turn: Only the run whose latest turn this is, or has taken this one over; None is whatever there is.

    Returns:
        False where there is no such run, or it has been cancelled before.
    """
    world = live.world
    await live.refresh()
    fresh, owner = world.ids.new(), world.store.owner
    now = await world.store.now()

    def decide(view: View) -> Plan | None:
        return _turns.cancel(view, turn, owner=owner, fresh=fresh, now=now)

    def begin(_: Plan) -> None:
        with suppress(Closed):  # it stands; whoever opens the store next sees to it
            world.spawn(_see_to(live), name=f"weft cancel {live.id}")

    try:
        plan = await live.command(decide, begin)
    except Locked:  # somebody has claimed the parked run just now
        await live.refresh()
        plan = await live.command(decide, begin)
    if plan is None:
        see_to(live)
    return plan is not None


def see_to(live: Live) -> None:
    """See in the background that what is cancelled here comes to its end, and its children with it."""
    view = live.view
    if (view.run is not None and view.run.cancelled is not None) or view.orphans():
        live.world.spawn(_see_to(live), name=f"weft cancel {live.id}")


def see_to_sent(live: Live) -> None:
    """The same after a message was sent without an agent; and run it, where somebody else here has one."""
    see_to(live)
    if live.view.run is None and live.keeper() is not None:
        live.world.spawn(_go_on(live), name=f"weft queue {live.id}")


async def _see_to(live: Live) -> None:
    outcome = await persisting(live.world.clock, "child", partial(end, live))
    if isinstance(outcome, Contained) and not isinstance(outcome.cause, Closed | NotFound):
        live.world.report(live.id, outcome.cause)
    await _go_on(live)
    root = live.world.live(live.view.header.root)
    if root is not live and root.loaded and not root.closed:  # it may wait for this one
        await _go_on(root)


async def _go_on(live: Live) -> None:
    """Run what waits, where the session is open here with an agent."""
    keep = live.keeper()
    run = live.view.run
    waits = live.view.queue if run is None else run.parked and not live.view.at_rest()
    if keep is not None and waits:
        await keep()


async def end(live: Live) -> None:
    """Bring a cancelled run to its end, and settle the children that it leaves behind."""
    seized = False
    while (run := live.view.run) is not None and run.cancelled is not None:
        if live.runner is not None:
            await live.changed()
        elif run.parked:
            await _close_parked(live)
        else:
            seized = await _end_elsewhere(live, run.run) or seized
    while live.view.orphans():
        for receipt in live.view.orphans():
            await _end_child(live, receipt, seized=seized)
    await _tell_parent(live)


async def _tell_parent(live: Live) -> None:
    """Settle the receipt of a child that was cancelled by itself, where its parent's run waits for it."""
    header, view = live.view.header, live.view
    end = next(reversed(view.ended.values()), None)
    if header.parent is None or view.run is not None or end is None or end.outcome != "cancelled":
        return
    parent = await live.world.live(header.parent).open()
    await parent.refresh()
    run = parent.view.run
    call = None if run is None else run.calls.get(header.call or "")
    if call is not None and call.receipt is not None and parent.view.receipts[call.receipt].settled is None:
        settled = _receipts.settlement(call.receipt, end, view, RESULT_CAP)
        await settle(parent, settled, tuple(view.requests))


async def _close_parked(live: Live) -> None:
    world = live.world
    fresh, now = world.ids.new(), await world.store.now()
    try:
        await live.command(lambda view: _turns.close_parked(view, owner=world.store.owner, fresh=fresh, now=now))
    except Locked:
        await live.changed()


async def _end_elsewhere(live: Live, run: str) -> bool:
    """Give the owner one renewal's period to end the run; then end it here. A dead owner gets none.

    Returns:
        Whether the run was taken from an owner that may be alive, and late.
    """
    world = live.world
    over = world.clock.monotonic() + world.store.ttl / 3
    timer = world.clock.deadline(world.store.ttl / 3, live.wake)
    try:
        await live.refresh()
        while _runs_elsewhere(live, run) and live.lease.live and world.clock.monotonic() < over:
            await live.changed()
    finally:
        timer.cancel()
    return _runs_elsewhere(live, run) and await _take_over(live)


async def _take_over(live: Live) -> bool:
    lease: Literal["claim_once", "seize"] = "seize" if live.lease.live else "claim_once"
    try:  # it may just have been taken up here
        await live.command(lambda view: _turns.close_open(view, lease) if live.runner is None else None)
    except Locked:  # somebody recovers it just now, and ends it as cancelled
        await live.changed()
    return lease == "seize"


def _runs_elsewhere(live: Live, run: str) -> bool:
    now = live.view.run
    return live.runner is None and now is not None and now.run == run and not now.parked


async def _end_child(live: Live, receipt: ReceiptView, *, seized: bool) -> None:
    """Cancel the child, its own children first, and settle its receipt with what it has spent."""
    settled = _receipts.cancelled(receipt.id)
    child = live.world.live(receipt.accepted.child or "")
    try:
        if seized:
            await _never_begins(live, receipt, child)
        await child.open()
        await cancel(child)
        await child.until(lambda view: view.run is None or None)
        await end(child)
    except NotFound:
        pass
    except Busy:  # it was to be made here, and somebody else has made it just now: again, with theirs
        return
    else:
        if child.view.ended:
            last = next(reversed(child.view.ended.values()))
            settled = _receipts.settlement(receipt.id, last, child.view, RESULT_CAP)
    await settle(live, settled, tuple(child.view.requests) if child.loaded else ())


async def _never_begins(live: Live, receipt: ReceiptView, child: Live) -> None:
    """End a child that has not begun, and make it if it is not there: whoever is late with it finds it ended."""
    world = live.world
    try:
        await child.open()
    except NotFound:
        header = _receipts.child_header(live.view.header, receipt, live.view.header.permissions, world.clock.now())
        names = (world.ids.new(), world.ids.new())
        first, *more = _receipts.never_began(header, owner=world.store.owner, names=names)
        if await world.store.create(child.id, first, first_index(header), more) == first:
            world.committed(child.id, decode_lines([first, *more], child.id, 0))
        await child.open()
    with suppress(Locked):  # it has just begun
        await never_begin(child)


async def never_begin(child: Live) -> None:
    """End a child that was made and has not begun; nothing where it has, or is over."""
    fresh, owner = child.world.ids.new(), child.world.store.owner
    await child.command(lambda view: _turns.never_begin(view, owner=owner, fresh=fresh))


async def settle(live: Live, settled: Receipt, asked: tuple[str, ...]) -> None:
    """Record a settlement as mail, and take back, here and above, what its child had asked."""
    now = await live.world.store.now()
    asked = tuple(dict.fromkeys((*live.view.receipts[settled.receipt or ""].requests, *asked)))
    await live.command(lambda view: _receipts.settle(view, settled, asked, owner="", may_resume=False, now=now))
    await retract_above(live, asked, now)


async def retract_above(live: Live, requests: tuple[str, ...], now: float) -> None:
    """Deny, in every ancestor, what a child that is over had asked."""
    while requests and live.view.header.parent is not None:
        live = await live.world.live(live.view.header.parent).open()
        await live.command(lambda view: _receipts.retract(view, requests, now))
