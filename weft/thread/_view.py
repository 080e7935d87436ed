"""What a session's journal says: a fold of its entries, the same live and on open. Pure in effect.

A view is an accumulator that only its live thread's fold mutates. What `decide` functions need of an entry
is indexed here, never searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal, NamedTuple, assert_never

from weft._limits import START, Limits, Progress
from weft._repair import History, Transcript
from weft._texts import SUBMIT
from weft.errors import Corrupt
from weft.messages import NO_USAGE, UNKNOWN_CALL, ErrorInfo, Message, ToolCall, ToolResult, Usage
from weft.thread.entries import (
    SETTLED,
    Audit,
    Body,
    CallResult,
    Cancel,
    Compaction,
    Decision,
    Entry,
    Header,
    Inbox,
    Index,
    Info,
    Leaf,
    Note,
    Receipt,
    Request,
    Said,
    ToolsStarted,
    TurnEnded,
    TurnStarted,
)


@dataclass(slots=True)
class CallView:
    """An open call of the run's last assistant message."""

    call: ToolCall
    started: int = 0
    effect: str | None = None
    receipt: str | None = None
    requests: list[str] = field(default_factory=list)
    """Its own requests, in order; the last one counts."""


@dataclass(slots=True)
class RunView:
    """The run that is open or parked."""

    run: str
    turn: str
    """Its latest turn."""
    cause: str
    parked: bool
    owner: str
    limits: Limits
    began: float
    """When its latest turn started, by the writer's clock."""
    worked: float = 0.0
    """Seconds at work in its earlier turns."""
    progress: Progress = START
    usage: Usage = NO_USAGE
    text: str = ""
    submitted: str | None = None
    """The text of the output that a call of the last assistant message has brought, if the run ends with it."""
    cancelled: Literal["cancel", "interrupt"] | None = None
    """It is to end, and why: somebody has cancelled it, or a new message interrupts it. Stays in force."""
    calls: dict[str, CallView] = field(default_factory=dict)
    """The calls of the last assistant message, in order."""
    overruled: tuple[str, ...] = ()
    """What waits and was sent before the message that it began with, which went first since it interrupts."""


@dataclass(slots=True)
class RequestView:
    """A request, or the mirror of a child's."""

    id: str
    body: Request
    mirror: bool
    decision: Decision | None = None
    spent: bool = False


@dataclass(slots=True)
class ReceiptView:
    """A delegation."""

    id: str
    accepted: Receipt
    time: float
    requests: dict[str, None] = field(default_factory=dict)
    """What its entries have named as waiting."""
    settled: Receipt | None = None
    settled_time: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndView:
    """How a turn ended."""

    run: str
    outcome: str
    stop: str | None
    error: ErrorInfo | None
    text: str
    usage: Usage
    """Of the run so far."""
    history: History
    """What had been said by then."""


def thread_of(address: str) -> str:
    """The thread that a request's or a receipt's id contains."""
    return address.partition(".")[0]


def leaf_after(entry: Entry) -> str | None:
    """Where the leaf is after an entry of the tree."""
    return entry.body.to if isinstance(entry.body, Leaf) else entry.id


_INDEXED = frozenset({Request, Decision, Receipt, Info})


def first_index(header: Header) -> Index:
    """The index of a thread that is only a header."""
    return Index(kind=header.kind, name=header.name, parent=header.parent, root=header.root, meta=dict(header.meta))


def next_index(index: Index, body: Body) -> Index:
    """The index after one more entry; the same object where nothing of it changes."""
    if type(body) not in _INDEXED:
        return index
    match body:
        case Request():
            due = index.due if body.expires is None else min(body.expires, index.due or body.expires)
            return replace(index, pending=index.pending + 1, due=due)
        case Decision():
            pending = max(index.pending - 1, 0)
            return replace(index, pending=pending, due=index.due if pending else None)
        case Receipt() if body.receipt is None:
            return replace(index, unsettled=index.unsettled + 1)
        case Receipt() if body.state in SETTLED:
            return replace(index, unsettled=max(index.unsettled - 1, 0))
        case Info():
            meta = {key: value for key, value in index.meta.items() if key not in body.removed} | dict(body.meta)
            title = index.title if body.title is None else body.title or None
            return replace(index, title=title, meta=meta)
        case _:
            return index


class View:
    """A session as of its last fold."""

    __slots__ = (
        "_marked",
        "_messages",
        "continued",
        "copied",
        "decisions",
        "delegated",
        "delivered",
        "ended",
        "header",
        "index",
        "keys",
        "leaf",
        "limits",
        "notes",
        "queue",
        "receipts",
        "replies",
        "reported",
        "requests",
        "run",
        "runs",
        "started_at",
        "summaries",
        "transcript",
        "tree",
        "turns",
        "undecided",
        "unsettled",
    )

    def __init__(self, header: Header) -> None:  # noqa: PLR0915  # what a view is made of
        self.header = header
        self.copied = 0 if header.origin is None else header.origin.copied
        """The position of the last entry that was copied from another thread, which has it in its ledger."""
        self.index = first_index(header)
        self.leaf: str | None = None
        self.tree: dict[str, Entry] = {}
        """All entries of the tree that say something, also those of abandoned branches."""
        self.transcript = Transcript()
        """What the model reads: the path to the leaf, with what a compaction put in place of its beginning."""
        self.replies = 0
        """Assistant messages on the path."""
        self.reported: tuple[int, int] | None = None
        """How many tokens the provider has last reported that it read and wrote, and how many messages those were."""
        self.run: RunView | None = None
        self.limits = Limits()
        """Of the last run."""
        self.requests: dict[str, RequestView] = {}
        self.undecided: dict[str, None] = {}
        self.decisions: dict[str, Decision] = {}
        self.receipts: dict[str, ReceiptView] = {}
        self.unsettled: dict[str, None] = {}
        self.queue: dict[str, Inbox] = {}
        """Accepted input that waits, in order."""
        self.keys: dict[str, tuple[str, Message]] = {}
        """By the sender's key: the turn or the inbox item, and the message."""
        self.delivered: dict[str, str] = {}
        """By inbox item: the turn that took it."""
        self.ended: dict[str, EndView] = {}
        self.continued: dict[str, str] = {}
        """By turn: the one that went on from it."""
        self.started_at: dict[str, int] = {}
        """By turn: its entry's position."""
        self.runs: dict[str, str] = {}
        """By turn: its run."""
        self.notes: list[Entry] | tuple[()] = ()
        self.turns: Usage = NO_USAGE
        self.summaries: Usage = NO_USAGE
        self.delegated: Usage = NO_USAGE
        self._messages: tuple[Message, ...] = ()
        self._marked: list[Message] | None = None
        """Of which list `_messages` is a copy."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The transcript; built when asked for, kept until it grows."""
        messages = self.transcript.messages
        if self._marked is not messages or len(self._messages) != len(messages):
            self._marked, self._messages = messages, tuple(messages)
        return self._messages

    @property
    def phase(self) -> str:
        """idle, open or parked."""
        if self.run is None:
            return "idle"
        return "parked" if self.run.parked else "open"

    @property
    def obstacle(self) -> str:
        """What is in the way of something new, and what leads out of it."""
        match self.phase:
            case "open":
                return "runs a turn; wait for it with session.settled_or_waiting(), or cancel it"
            case "parked":
                return "is parked; decide what is in session.pending, or cancel the turn"
            case _:
                return "has messages that wait; go on with them by session.resume()"

    @property
    def last_turn(self) -> str | None:
        """The newest turn."""
        return next(reversed(self.started_at), None)

    def open_calls(self) -> list[CallView]:
        """The run's calls without a result, in call order."""
        run = self.run
        if run is None:
            return []
        still = self.transcript.open
        return [call for name, call in run.calls.items() if name in still]

    def receipt_state(self, receipt: ReceiptView) -> str:
        """accepted, parked, or how it settled. Parked while a request that its entries name is undecided here."""
        if receipt.settled is not None:
            return receipt.settled.state
        return "parked" if any(name in self.undecided for name in receipt.requests) else "accepted"

    def call_closed(self, call: CallView) -> bool:
        """Whether an open call needs nobody any more: its receipt is settled, or its request decided."""
        if call.receipt is not None:
            return self.receipts[call.receipt].settled is not None
        return bool(call.requests) and call.requests[-1] not in self.undecided

    def at_rest(self) -> bool:
        """Whether nothing moves without the outside: all done, or all that is open waits for a decision."""
        run = self.run
        if run is not None and not run.parked:
            return False
        if self.orphans():
            return False
        if run is None:
            return not self.queue and all(self._waits(self.receipts[name]) for name in self.unsettled)
        if run.cancelled is not None:
            return False
        # what was decided moves no sooner than the rest of its boundary
        delegated = (self.receipts[call.receipt] for call in self.open_calls() if call.receipt is not None)
        return all(r.settled is not None or self._waits(r) for r in delegated) and not self.resumable()

    def taker(self, turn: str) -> str:
        """This turn, or the one that has taken it over."""
        while turn not in self.ended and turn in self.continued:
            turn = self.continued[turn]
        return turn

    def waits(self, turn: str) -> bool:
        """Whether this turn is parked, and all that is open in it waits for a decision."""
        return self.run is not None and self.run.turn == turn and self.at_rest()

    def _waits(self, receipt: ReceiptView) -> bool:
        return self.receipt_state(receipt) == "parked"

    def resumable(self) -> bool:
        """Whether the parked turn can go on: none of its calls is open."""
        run = self.run
        if run is None or not run.parked:
            return False
        return run.cancelled is None and all(self.call_closed(call) for call in self.open_calls())

    def orphans(self) -> list[ReceiptView]:
        """Delegations that are not settled, and whose call has its result all the same: it was cancelled."""
        return [self.receipts[name] for name in self.unsettled if self.is_orphan(self.receipts[name])]

    def is_orphan(self, receipt: ReceiptView) -> bool:
        """Whether this is one of them."""
        accepted = receipt.accepted
        if receipt.settled is not None or accepted.background:
            return False
        return self.run is None or accepted.call not in self.transcript.open

    def path(self, leaf: str | None) -> list[Entry]:
        """The entries from the beginning to this one."""
        path: list[Entry] = []
        entry = None if leaf is None else self.tree.get(leaf)
        while entry is not None:
            path.append(entry)
            entry = None if entry.parent is None else self.tree.get(entry.parent)
        path.reverse()
        return path


def evolve(view: View, entry: Entry) -> None:  # noqa: C901, PLR0912, PLR0915  # one case for each kind
    """Fold one entry."""
    body = entry.body
    if type(body) in _INDEXED:
        view.index = next_index(view.index, body)
    match body:
        case Said():
            _said(view, entry, body)
            _grow(view, entry)
        case CallResult():
            _call_result(view, entry, body)
            _grow(view, entry)
        case TurnStarted():
            _turn_started(view, entry, body)
        case ToolsStarted():
            _tools_started(view, body)
        case TurnEnded():
            _turn_ended(view, entry, body)
        case Receipt():
            _receipt(view, entry, body)
        case Request():
            _request(view, entry, body)
        case Decision():
            _decision(view, body)
        case Inbox():
            _inbox(view, entry, body)
        case Cancel():
            if view.run is not None and view.run.cancelled is None:
                view.run.cancelled = "cancel"
        case Leaf():
            view.leaf = leaf_after(entry)
            _read_again(view)
        case Compaction():
            _grow(view, entry)
            if body.summary is not None and entry.position > view.copied:
                view.summaries += body.usage or UNKNOWN_CALL
            _read_again(view)
        case Note():
            if not isinstance(view.notes, list):
                view.notes = []
            view.notes.append(entry)
        case Header() | Info() | Audit():
            pass
        case _:
            assert_never(body)


def check_place(view: View, entry: Entry) -> None:
    """Refuse an entry that follows nothing that is there: all before it would drop out of the path in silence.

    Raises:
        Corrupt: Its parent, or where it moves the leaf, is no entry of the tree.
    """
    to = entry.body.to if type(entry.body) is Leaf else None
    for name in (entry.parent, to):
        if name is not None and name not in view.tree:
            why = f"it follows {name!r}, which is not there; see store.verify and store.salvage"
            raise Corrupt(view.header.thread, entry.position, why)


def fold(header: Header, entries: Iterable[Entry]) -> View:
    """The view of a journal."""
    view = View(header)
    for entry in entries:
        evolve(view, entry)
    return view


def _grow(view: View, entry: Entry) -> None:
    view.tree[entry.id] = entry
    view.leaf = entry.id


class Reading(NamedTuple):
    """What a model reads on a path."""

    transcript: Transcript
    marks: list[str]
    """By message: the entry that has made it whole."""
    replies: int
    """Assistant messages on the path, also those that a summary stands for."""


def _read_again(view: View) -> None:
    view.transcript, _, view.replies = read(view.path(view.leaf))
    view.reported = None


def read(path: Sequence[Entry]) -> Reading:
    """What a model reads on this path: all of it, but for what a compaction has put in place of its beginning."""
    places = {entry.id: place for place, entry in enumerate(path)}
    start, trimmed, stub = 0, 0, ""
    transcript = Transcript()
    marks: list[str] = []
    for entry in path:
        body = entry.body
        if not isinstance(body, Compaction) or body.keep not in places:
            continue
        if body.summary is not None:
            start = places[body.keep]
            transcript, marks = Transcript([Message.user(body.summary)]), [entry.id]
        elif body.stub is not None:
            trimmed, stub = places[body.keep], body.stub
    for place, entry in enumerate(path[start:], start):
        body = entry.body
        if isinstance(body, Said):
            transcript.say(body.message)
        elif isinstance(body, CallResult):
            transcript.answer(as_result(body, stub if place < trimmed else None))
        marks += [entry.id] * (len(transcript.messages) - len(marks))
    replies = sum(isinstance(entry.body, Said) and entry.body.message.role == "assistant" for entry in path)
    return Reading(transcript, marks, replies)


def as_result(body: CallResult, stub: str | None = None) -> ToolResult:
    """A result as the model reads it; `stub` stands for its text where that is shorter."""
    content = body.content if stub is None or len(body.content) <= len(stub) else stub
    return ToolResult(call=body.call, content=content, is_error=body.is_error, code=body.code)


def _said(view: View, entry: Entry, body: Said) -> None:
    run, copied = view.run, entry.position <= view.copied
    view.transcript.say(body.message)
    if body.message.role == "assistant":
        view.replies += 1
        spent = NO_USAGE if copied else UNKNOWN_CALL if body.usage is None else body.usage
        view.turns += spent
        if body.usage is not None:
            view.reported = (body.usage.tokens, len(view.transcript.messages))
        if run is not None:
            run.progress = run.progress.said(body.message)
            run.usage += spent
            run.text, run.submitted = body.message.text, None
            run.calls = {call.id: CallView(call) for call in body.message.calls}
        return
    if run is not None and run.progress is START:
        run.text, run.calls = "", {}  # it begins with this message: what stood open before is not its own
        if body.item in view.queue:
            run.overruled = tuple(takewhile(lambda name: name != body.item, view.queue))
    if run is not None and body.source == "correction":
        run.progress = run.progress.corrected()
    turn = "" if run is None else run.turn
    if copied:
        return
    if body.key is not None:
        view.keys.setdefault(body.key, (turn, body.message))
    if body.item is not None:
        view.queue.pop(body.item, None)
        view.delivered[body.item] = turn


def _call_result(view: View, entry: Entry, body: CallResult) -> None:
    result = as_result(body)
    if body.usage is not None and entry.position > view.copied:
        view.turns += body.usage
        if view.run is not None:
            view.run.usage += body.usage
    if view.transcript.answer(result) and view.run is not None:
        run, call = view.run, view.run.calls.get(body.call)
        if call is not None:
            run.progress = run.progress.answered(call.call.name, body.code)
            if call.call.name == SUBMIT and not body.is_error:
                run.submitted = call.call.arguments


def _turn_started(view: View, entry: Entry, body: TurnStarted) -> None:
    run = view.run
    view.started_at[entry.id] = entry.position
    view.runs[entry.id] = body.run or entry.id
    if body.of is not None:
        view.continued[body.of] = entry.id
    for name in body.spends:
        decision = view.decisions.get(name)
        if decision is not None and decision.request in view.requests:
            view.requests[decision.request].spent = True
    if run is None or body.run is None:
        limits = body.limits
        view.run = RunView(
            run=body.run or entry.id,
            turn=entry.id,
            cause=body.cause,
            parked=False,
            owner=body.owner,
            limits=limits,
            began=entry.time,
        )
        view.limits = limits
        _take_boundary(view, view.run)
        return
    run.began = entry.time
    run.turn, run.cause, run.owner, run.parked = entry.id, body.cause, body.owner, False
    if body.cause == "recover" and not view.transcript.open:  # a model call may have been in flight
        run.usage += UNKNOWN_CALL
        view.turns += UNKNOWN_CALL


def _take_boundary(view: View, run: RunView) -> None:
    """A run that begins where the leaf was moved to: the calls that are open there are its own."""
    if view.transcript.open:
        run.calls = {call.id: CallView(call) for call in view.transcript.messages[-1].calls}
        run.text = view.transcript.messages[-1].text


def _tools_started(view: View, body: ToolsStarted) -> None:
    if view.run is None:
        return
    for start in body.calls:
        call = view.run.calls.get(start.call)
        if call is not None:
            call.started = max(call.started, start.attempt)
            call.effect = start.effect


def _turn_ended(view: View, entry: Entry, body: TurnEnded) -> None:
    run = view.run
    if run is None:
        return
    run.worked += max(entry.time - run.began, 0.0)
    if body.usage != NO_USAGE:
        run.usage += body.usage
        view.turns += body.usage
    view.ended[body.turn] = EndView(
        run=run.run,
        outcome=body.outcome,
        stop=body.stop,
        error=body.error,
        text=run.submitted if body.outcome == "answered" and run.submitted is not None else run.text,
        usage=run.usage,
        history=History(view.transcript.messages, len(view.transcript.messages)),
    )
    if body.outcome == "parked":
        run.parked = True
    else:
        view.run = None


def _receipt(view: View, entry: Entry, body: Receipt) -> None:
    if body.receipt is None:
        name = f"{view.header.thread}.{entry.id}"
        view.receipts[name] = ReceiptView(name, body, entry.time)
        view.unsettled[name] = None
        if view.run is not None and body.call in view.run.calls:
            view.run.calls[body.call].receipt = name
        return
    receipt = view.receipts.get(body.receipt)
    if receipt is None or receipt.settled is not None:
        return
    receipt.requests.update(dict.fromkeys(body.requests))
    if body.state in SETTLED:
        receipt.settled = body
        receipt.settled_time = entry.time
        view.unsettled.pop(receipt.id, None)
        if body.usage is not None:
            view.delegated += body.usage


def _request(view: View, entry: Entry, body: Request) -> None:
    mirror = body.request is not None
    name = body.request or f"{view.header.thread}.{entry.id}"
    if name in view.requests:
        return
    view.requests[name] = RequestView(name, body, mirror)
    view.undecided[name] = None
    if not mirror and view.run is not None and body.call in view.run.calls:
        view.run.calls[body.call].requests.append(name)


def _decision(view: View, body: Decision) -> None:
    request = view.requests.get(body.request)
    if request is None or request.decision is not None:
        return
    view.decisions[body.id] = body
    request.decision = body
    view.undecided.pop(request.id, None)


def _inbox(view: View, entry: Entry, body: Inbox) -> None:
    if body.state == "accepted":
        view.queue[entry.id] = body
        if body.key is not None and body.message is not None:
            view.keys.setdefault(body.key, (entry.id, body.message))
        if body.policy == "interrupt" and view.run is not None and view.run.cancelled is None:
            view.run.cancelled = "interrupt"
    elif body.state == "dropped" and body.item in view.queue:
        del view.queue[body.item]
        view.delivered[body.item] = ""
