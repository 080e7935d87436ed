"""Deleting a thread, and its children; never one that is at work, or that a parent waits for."""

from __future__ import annotations

from weft.errors import Busy, Corrupt, Locked, NotFound, Stale
from weft.thread._listing import children_of
from weft.thread._node import Node
from weft.thread.store import BEHIND


async def delete(node: Node, thread: str, *, children: bool) -> None:
    """Delete a thread; with `children` those that it has, and theirs, first.

    Raises:
        NotFound: No thread has this id.
        Busy: It, or one of them, is at work or is waited for. Some of them may be gone by then.
    """
    if await _is_waited_for(node, thread):
        raise Busy(f"thread {thread!r} is a child that its parent waits for; cancel it, or delete the parent")
    await _delete_tree(node, thread, children=children)


async def _is_waited_for(node: Node, thread: str) -> bool:
    """Whether a parent would start the child anew, if it was gone. Not of one that cannot be read."""
    try:
        parent = (await node.as_it_is(thread)).view.header.parent
        view = None if parent is None else (await node.as_it_is(parent)).view
    except (Corrupt, NotFound):
        return False
    return view is not None and any(view.receipts[name].accepted.child == thread for name in view.unsettled)


async def _delete_tree(node: Node, thread: str, *, children: bool) -> None:
    if children:
        async for child in children_of(node, thread):
            await _delete_tree(node, child.thread, children=True)
    while not await _delete(node, thread, children=children):
        pass


async def _delete(node: Node, thread: str, *, children: bool) -> bool:
    """Delete this thread as it is, also where it cannot be read; False where it has moved on meanwhile."""
    try:
        live = await node.as_it_is(thread)
    except Corrupt:
        live, head = node.live(thread), (await node.store.load(thread, BEHIND)).head
    else:
        head = live.head
        if live.view.unsettled and not children:
            raise Busy(f"thread {thread!r} has delegations that are not settled; see children=True")
    try:
        await node.store.delete(thread, head)
    except Stale:
        return False
    except Locked:
        raise Busy(f"thread {thread!r} runs a turn") from None
    live.close(NotFound(thread))
    return True
