"""What is done with a thread as a whole: check it, copy it out and in, fork it, save what a damaged one still has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft._repair import Transcript
from weft.errors import Conflict, Corrupt, NewerFormat, NotFound
from weft.thread import _branches
from weft.thread._codec import decode_line, decode_lines, digest_line, previous_of
from weft.thread._live import Live, World
from weft.thread._view import View, as_result, fold
from weft.thread.entries import TREE, CallResult, Compaction, Entry, Head, Header, Leaf, Said
from weft.thread.store import BEHIND

__all__ = ["Fault", "Salvaged", "Verified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is wrong with a thread."""

    position: int
    """Of the line, from 0, which is the header."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a check of a thread has found."""

    thread: str
    count: int
    """Lines that there are."""
    faults: tuple[Fault, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """What was saved of a damaged thread."""

    thread: str
    """The new thread."""
    kept: int
    """Entries of the conversation that it has."""
    lost: tuple[int, ...]
    """Positions of the lines of the old one that are not to be had."""


async def verify(world: World, thread: str) -> Verified:
    """Read every line, and check that it decodes, follows from the one before, and stands at its place."""
    lines, head = await _whole(world, thread)
    return Verified(thread=thread, count=len(lines), faults=tuple(_faults(thread, lines, head)))


async def _whole(world: World, thread: str) -> tuple[Mapping[int, bytes], Head | None]:
    """What there is of its lines, and where it ends; what is written meanwhile belongs to neither."""
    head = await _head(world, thread)
    lines = await world.store.scan(thread)
    if head is not None and await _head(world, thread) != head:
        lines = {position: line for position, line in lines.items() if position < head.count}
    return lines, head


async def _head(world: World, thread: str) -> Head | None:
    """Where the store says that the thread ends; None where that cannot be read."""
    try:
        return (await world.store.load(thread, BEHIND)).head
    except Corrupt:
        return None


def _faults(thread: str, lines: Mapping[int, bytes], head: Head | None) -> list[Fault]:
    faults: list[Fault] = []
    last = max(lines, default=-1)
    count = max(last + 1, 0 if head is None else head.count)
    known: set[str] = set()
    whole = True
    for position in range(count):
        line = lines.get(position)
        entry = None
        if line is None:
            faults.append(Fault(position=position, why="the line is missing"))
        elif head is not None and position >= head.count:
            faults.append(
                Fault(position=position, why="the store's head is before it: nobody was told that it is there")
            )
        else:
            entry = _decoded(thread, position, line, faults)
        if entry is None:
            whole = False
        else:
            faults += _line_faults(thread, lines, entry, known, whole=whole)
    if head is not None and last == head.count - 1 and digest_line(lines[last]) != head.digest:
        faults.append(Fault(position=last, why="the store's head is not the digest of this line"))
    return faults


def _decoded(thread: str, position: int, line: bytes, faults: list[Fault]) -> Entry | None:
    try:
        return decode_line(line, thread, position)
    except (Corrupt, NewerFormat) as error:
        faults.append(Fault(position=position, why=str(error)))
        return None


def _line_faults(thread: str, lines: Mapping[int, bytes], entry: Entry, known: set[str], *, whole: bool) -> list[Fault]:
    """What is wrong with a line that decodes; `whole` says whether all before it do."""
    faults: list[Fault] = []
    position, body = entry.position, entry.body
    if (position == 0) != isinstance(body, Header):
        faults.append(Fault(position=position, why="a thread has one header, which is its first line"))
    if isinstance(body, Header) and body.thread != thread:
        faults.append(Fault(position=position, why=f"it is the header of thread {body.thread!r}"))
    if entry.id in known:
        faults.append(Fault(position=position, why=f"an entry before it has the id {entry.id!r}"))
    if whole and entry.parent is not None and entry.parent not in known:
        faults.append(Fault(position=position, why=f"no entry before it has the id of its parent, {entry.parent!r}"))
    known.add(entry.id)
    before = lines.get(position - 1)
    previous = "" if position == 0 else None if before is None else digest_line(before)
    if previous is not None and previous_of(lines[position]) != previous:
        faults.append(
            Fault(position=position, why=f"it does not follow from line {position - 1}, one of them was changed")
        )
    return faults


async def export(world: World, thread: str) -> str:
    """The thread's lines as they are stored, each with a line end."""
    loaded = await world.store.load(thread)
    for position, line in enumerate(loaded.lines):
        if not line.isascii():
            raise Corrupt(thread, position, "the line is no ASCII text")
    return "".join(f"{line.decode('ascii')}\n" for line in loaded.lines)


async def restore(world: World, text: str) -> tuple[str, ...]:
    """Make threads as `export` has written them, under their ids; see `OpenStore.restore`."""
    made: list[str] = []
    for lines in _threads(text):
        header, entries = _checked(lines)
        view = fold(header, entries)
        new = not await _is_there(world, header.thread)
        kept = await world.store.create(header.thread, lines[0], view.index, lines[1:])
        head = (await world.store.load(header.thread, len(lines))).head
        if kept != lines[0] or head != Head(len(lines), digest_line(lines[-1])):
            raise Conflict(f"thread {header.thread!r} is in the store already, and differs; delete it first")
        if new:
            world.committed(header.thread, decode_lines(lines, header.thread, 0))
        made.append(header.thread)
    return tuple(made)


async def _is_there(world: World, thread: str) -> bool:
    try:
        await world.store.load(thread, BEHIND)
    except NotFound:
        return False
    return True


def _threads(text: str) -> list[list[bytes]]:
    threads: list[list[bytes]] = []
    for line in filter(str.strip, text.splitlines()):  # an empty one is of who printed it
        data = line.encode(errors="surrogatepass")
        if previous_of(data) == "" or not threads:
            threads.append([])
        threads[-1].append(data)
    return threads


def _checked(lines: Sequence[bytes]) -> tuple[Header, list[Entry]]:
    """A whole thread.

    Raises:
        Corrupt: It is none.
        NewerFormat: A newer weft has written it.
    """
    first = decode_line(lines[0], "", 0)
    header = first.body
    if not isinstance(header, Header):
        raise Corrupt("", 0, "the first line is no header")
    thread = header.thread
    faults = _faults(thread, dict(enumerate(lines)), None)
    entries = decode_lines(lines[1:], thread, 1)
    if faults:
        raise Corrupt(thread, faults[0].position, faults[0].why)
    return header, entries


async def fork(live: Live, leaf: str | None, header: Header) -> None:
    """Make a thread with this header that has the path to an entry; atomic and durable."""
    world = live.world
    loaded = await world.store.load(live.id)
    entries = decode_lines(loaded.lines, live.id, 0)
    lines = {entry.id: (entry.position, line) for entry, line in zip(entries, loaded.lines, strict=True)}
    path = [entry.id for entry in live.view.path(leaf)]
    await _make(world, live.view, path, lines, header, loaded.head, how="fork")


async def _make(  # as for `_branches.copy`
    world: World,
    view: View,
    path: Sequence[str],
    lines: Mapping[str, tuple[int, bytes]],
    header: Header,
    head: Head,
    *,
    how: str,
) -> None:
    now = await world.store.now()
    made = _branches.copy(view, path, lines, header, head, how=how, new=world.ids.new, owner=world.store.owner, now=now)
    await world.store.create(header.thread, made.lines[0], made.index, made.lines[1:])
    world.committed(header.thread, decode_lines(made.lines, header.thread, 0))


async def salvage(world: World, thread: str) -> Salvaged:
    """Copy what a damaged thread still has of its conversation into a new one; see `OpenStore.salvage`."""
    lines, end = await _whole(world, thread)
    head = end or Head(max(lines, default=-1) + 1, "")
    entries, lost = _survivors(thread, lines, head)
    header = entries.pop(0).body if entries and entries[0].position == 0 else None
    if not isinstance(header, Header):
        raise Corrupt(thread, 0, "its header is lost, so nothing of it can be made sense of")
    path = _bridged(view := fold(header, entries), *_lineage(entries))
    fresh = replace(header, thread=world.ids.new(), created=world.clock.now(), meta=dict(view.index.meta))
    fresh = replace(fresh, root=fresh.thread, parent=None, call=None, depth=0, path=(header.name,))
    kept = {entry.id: (entry.position, lines[entry.position]) for entry in entries}
    await _make(world, view, path, kept, fresh, head, how="salvage")
    return Salvaged(thread=fresh.thread, kept=len(path), lost=lost)


def _lineage(entries: Sequence[Entry]) -> tuple[Mapping[str, str | None], str | None]:
    """What each entry of the tree follows, and the leaf; what followed a lost one follows what came before that."""
    parents: dict[str, str | None] = {}
    instead: dict[str, str | None] = {}
    leaf: str | None = None
    before: str | None = None  # where the leaf was at the latest line that is lost
    place = 0

    def known(name: str | None) -> str | None:
        return name if name is None or name in parents else instead.setdefault(name, before)

    for entry in entries:
        before = before if entry.position == place + 1 else leaf
        place = entry.position
        if isinstance(entry.body, Leaf):
            leaf = known(entry.body.to)
        elif type(entry.body) in TREE:
            parents[entry.id] = known(entry.parent)
            leaf = entry.id
    return parents, leaf


def _bridged(view: View, parents: Mapping[str, str | None], leaf: str | None) -> list[str]:
    """The path to the leaf, over what is lost; without results whose call is lost."""
    names: list[str] = []
    while leaf is not None:
        names.append(leaf)
        leaf = parents[leaf]
    path: list[str] = []
    transcript = Transcript()
    for name in reversed(names):
        match view.tree[name].body:
            case Said() as said:
                transcript.say(said.message)
            case CallResult() as result:
                if not transcript.answer(as_result(result)):
                    continue
            case Compaction() as compaction:
                if compaction.keep not in view.tree:
                    continue
        path.append(name)
    return path


def _survivors(thread: str, lines: Mapping[int, bytes], head: Head) -> tuple[list[Entry], tuple[int, ...]]:
    """The entries that are as they were written, and the positions of the others.

    From the end: a line that is good vouches for the one before it, by its digest; the head does for the last.

    Raises:
        NewerFormat: One that is as it was written is a newer weft's.
    """
    entries: list[Entry] = []
    lost: list[int] = []
    vouched: str | None = head.digest or None
    for position in reversed(range(head.count)):
        line = lines.get(position)
        try:
            if line is None or vouched not in (None, digest_line(line)):
                raise Corrupt(thread, position, "it is not as it was written")
            entries.append(decode_line(line, thread, position))
            vouched = previous_of(line)
        except (Corrupt, NewerFormat) as error:
            if isinstance(error, NewerFormat) and vouched is not None:
                raise  # it is as it was written
            lost.append(position)
            vouched = None
    return entries[::-1], tuple(lost[::-1])
