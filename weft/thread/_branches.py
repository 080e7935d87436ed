"""Plans and lines for what goes on from another place: a branch, a fork, a salvage. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft import _texts
from weft.errors import Busy, WrongCall
from weft.thread._codec import chain, digest_line, encode_body, header_line, rewrap
from weft.thread._turns import Plan, as_body, started
from weft.thread._view import View, first_index, next_index, read
from weft.thread.entries import (
    Body,
    CallResult,
    Entry,
    Head,
    Header,
    Index,
    Info,
    Leaf,
    Origin,
    Request,
    TurnEnded,
    TurnStarted,
)


def branch(view: View, to: str | None, *, owner: str, fresh: str, now: float) -> Plan:
    """Move the leaf, between turns. Where calls wait for a person there, they are asked again.

    Args:
        view: The session.
        to: The entry to go on from; None is the very beginning.
        owner: Who does it.
        fresh: The id of the turn that is parked there, if one has to be.
        now: The store's time.

    Raises:
        WrongCall: The session has no such entry, or is a child.
        Busy: A turn runs or is parked.
    """
    if view.header.parent is not None:
        raise WrongCall(f"session {view.header.thread!r} is a child, whose parent waits for it; fork it instead")
    if to is not None and to not in view.tree:
        raise WrongCall(f"session {view.header.thread!r} has no message or result {to!r}; see session.path for those")
    check_idle(view)
    asks = boundary(view, view.path(to), view.header, cause="branch", owner=owner, fresh=fresh, now=now)
    bodies = (Leaf(to=to), *asks)
    return Plan(bodies=bodies, lease="claim_once", turn=fresh)


def check_idle(view: View) -> None:
    """Refuse what is for between turns.

    Raises:
        Busy: A turn runs or is parked.
    """
    if view.run is not None:
        raise Busy(f"session {view.header.thread!r} {view.obstacle}")


def boundary(  # what a turn is made of
    view: View, path: Sequence[Entry], header: Header, *, cause: str, owner: str, fresh: str, now: float
) -> tuple[Body, ...]:
    """What has to be written where calls are open at the end of a path; nothing where nobody was asked about them.

    Those that wait for a person are asked again, with fresh requests: no old decision applies to them. The others
    read as interrupted.

    Args:
        view: What was asked about the calls.
        path: The entries from the beginning to where it goes on.
        header: That of the thread that asks again.
        cause: branch, fork, salvage.
        owner: Who does it.
        fresh: The id of the turn that is parked there.
        now: The store's time.
    """
    still = read(path).transcript.open
    asked = {call: request for call in still if (request := _asked(view, call)) is not None}
    if not asked:
        return ()
    results: list[CallResult] = [as_body(_texts.interrupted(call), "interrupt") for call in still if call not in asked]
    requests = [_again(request, header, now) for request in asked.values()]
    parked = TurnEnded(turn=fresh, outcome="parked", open=tuple(asked))
    return (started(cause, owner, view.limits), *results, *requests, parked)


def _asked(view: View, call: str) -> Request | None:
    """The last request about a call; not that of a child of its."""
    own = (found.body for found in reversed(view.requests.values()) if not found.mirror and found.body.call == call)
    return next(own, None)


def _again(request: Request, header: Header, now: float) -> Request:
    expires = None if request.expires is None else now + request.expires - request.created
    return replace(request, path=header.path, created=now, expires=expires)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A thread that is made from another's lines."""

    lines: tuple[bytes, ...]
    """The header's first."""
    index: Index


def copy(  # noqa: PLR0913  # what a copy is made of; called in two places
    view: View,
    path: Sequence[str],
    lines: Mapping[str, tuple[int, bytes]],
    header: Header,
    head: Head,
    *,
    how: str,
    new: Callable[[], str],
    owner: str,
    now: float,
) -> Copy:
    """The lines of a thread that has this path, with the text of its bodies as it stands.

    Args:
        view: The thread that is copied.
        path: The ids of the entries that are copied, in order.
        lines: By id: the position and the line of an entry.
        header: That of the new thread, but for its origin.
        head: The head of the thread that is copied.
        how: fork, salvage.
        new: Mints ids.
        owner: Who does it.
        now: The store's time.
    """
    position = max((lines[name][0] for name in path), default=0)
    origin = Origin(thread=view.header.thread, position=position, digest=head.digest, copied=len(path), how=how)
    header = replace(header, origin=origin)
    made = [header_line(header)]
    parent: str | None = None
    for place, name in enumerate(path, 1):
        made.append(rewrap(lines[name][1], prev=digest_line(made[-1]), position=place, parent=parent))
        parent = name
    added = _added(view, path, header, len(made), how=how, new=new, owner=owner, now=now)
    texts = [encode_body(entry.body) for entry in added]
    made += chain(added, texts, Head(len(made), digest_line(made[-1])))[0]
    index = first_index(header)
    for entry in added:
        index = next_index(index, entry.body)
    return Copy(lines=tuple(made), index=index)


def _added(  # noqa: PLR0913  # as for `copy`
    view: View,
    path: Sequence[str],
    header: Header,
    position: int,
    *,
    how: str,
    new: Callable[[], str],
    owner: str,
    now: float,
) -> list[Entry]:
    """The entries after those that are copied: the title, and what is asked again."""
    fresh = new()
    title: tuple[Body, ...] = () if view.index.title is None else (Info(title=view.index.title),)
    nodes = [view.tree[name] for name in path]
    leaf = path[-1] if path else None
    bodies = (*title, *boundary(view, nodes, header, cause=how, owner=owner, fresh=fresh, now=now))
    entries: list[Entry] = []
    for place, body in enumerate(bodies, position):
        name = fresh if isinstance(body, TurnStarted) else new()
        parent = leaf if isinstance(body, CallResult) else None
        entries.append(Entry(position=place, id=name, parent=parent, time=header.created, body=body))
        leaf = name if isinstance(body, CallResult) else leaf
    return entries
