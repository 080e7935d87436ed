"""What a journal consists of: a header, and entries of these kinds. Frozen values; the format that stays.

*Tree* kinds have a parent and move the leaf; *journal* kinds are folded over the whole journal. *Turn* kinds
are written by the turn's owner under its lease; *mail* kinds by any process. Codes, sources, causes and
outcomes are open strings: an unknown one is kept and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from weft._limits import RETRIES, Limits
from weft.messages import NO_USAGE, ErrorInfo, Message, Usage

FORMAT = 1
"""The format of the lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a copied thread comes from."""

    thread: str
    position: int
    """The last entry that was copied, in the thread that it comes from."""
    digest: str
    """Of that thread's head when it was copied."""
    copied: int
    """How many entries were copied; they are those right after the header."""
    how: str
    """fork, salvage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a thread. Never changes."""

    thread: str
    kind: str
    """`session`, `work`, `saga`, `loop`."""
    name: str
    """The agent's or the definition's name."""
    created: float
    """Seconds since the epoch, by its writer's clock."""
    meta: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT
    parent: str | None = None
    """The thread that delegated to this one."""
    root: str
    """The thread at the top; its own id for a root."""
    depth: int = 0
    path: tuple[str, ...]
    """The root's name, then the name of each delegating tool down to here."""
    call: str | None = None
    """The parent's call that this child answers."""
    allow: tuple[str, ...] | None = None
    """The permissions that its tools may need; None is everything."""
    expires: float | None = None
    """Seconds that a request stays open where its tool does not say; None is for ever."""
    origin: Origin | None = None

    @property
    def permissions(self) -> frozenset[str] | None:
        """`allow`, as a set."""
        return None if self.allow is None else frozenset(self.allow)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """Journal, turn. A turn begins; its id is the entry's."""

    cause: str
    """prompt, queued, steer, resume, recover, cancel, branch, fork, salvage."""
    run: str | None = None
    """The run that it goes on with; None where it begins one, whose id is then the turn's."""
    of: str | None = None
    """The turn that it goes on from."""
    spends: tuple[str, ...] = ()
    """The decisions that it applies."""
    owner: str
    steps: int
    """The limit of the run, in model calls; those that follow are its other limits."""
    tokens: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    retries: int | None = None
    """None is the default."""
    repeats: int | None = None

    @property
    def limits(self) -> Limits:
        """What the run may spend."""
        return Limits(
            steps=self.steps,
            tokens=self.tokens,
            tool_calls=self.tool_calls,
            seconds=self.seconds,
            retries=RETRIES if self.retries is None else self.retries,
            repeats=self.repeats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Tree, turn. A user or assistant message."""

    message: Message
    usage: Usage | None = None
    """What the step spent; None on a user message, or where the provider did not say."""
    model: str | None = None
    finish: str | None = None
    key: str | None = None
    """The sender's key, for idempotency."""
    item: str | None = None
    """The inbox item that this delivers."""
    source: str | None = None
    """`correction`: weft told the model that its answer does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedCall:
    """One body that is about to start."""

    call: str
    attempt: int
    effect: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsStarted:
    """Journal, turn. Durable before the bodies start."""

    calls: tuple[StartedCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Tree, turn. The one result of one call."""

    call: str
    content: str
    is_error: bool = False
    code: str | None = None
    source: str
    """body, refused, decision, expiry, interrupt, cancel, timeout, verify, receipt, repair."""
    attempt: int = 0
    usage: Usage | None = None
    """What a sub-agent without a session spent for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """Journal, turn. The turn's end, or its park."""

    turn: str
    outcome: str
    """answered, parked, stopped, failed, cancelled."""
    stop: str | None = None
    """The last reply's finish reason."""
    error: ErrorInfo | None = None
    open: tuple[str, ...] = ()
    """The calls that wait, where it parked."""
    usage: Usage = NO_USAGE
    """What no message and no result carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Tree, turn. What follows goes on from another entry of the tree."""

    to: str | None = None
    """That entry; None is the very beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Tree, turn. What the model reads from now on, in place of what came before `keep`. Nothing is deleted."""

    keep: str
    """The first message that stays as it is: the id of a user or assistant message on the path."""
    summary: str | None = None
    """What stands for all before it; None for a trim, which only shortens the results before it."""
    stub: str | None = None
    """What stands for each of these results."""
    usage: Usage | None = None
    """What the summary has cost; None where the provider did not say, or nothing was asked."""
    model: str | None = None
    before: int
    after: int
    """Tokens that the model reads, as counted or estimated here, before and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """Journal, mail. Input that was accepted, and later what became of it."""

    state: str
    """accepted, dropped. What is delivered is named by its message; until then it waits, also for a later turn."""
    item: str | None = None
    """The accepting entry's id; None on that entry itself."""
    policy: str = "queue"
    """queue, steer, interrupt."""
    message: Message | None = None
    key: str | None = None
    receipt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Journal, mail. A call waits for a person: one occurrence of one call with exactly these arguments."""

    request: str | None = None
    """None on the request itself, whose id is `<thread>.<entry id>`; on a mirror the id of what it mirrors."""
    kind: str
    """approval, uncertain."""
    path: tuple[str, ...]
    call: str
    tool: str
    args: str
    """The stored argument text."""
    digest: str
    schema: str | None = None
    """The digest of the tool's schema: the call means the same only under the same one."""
    effect: str
    reason: str | None = None
    created: float
    expires: float | None = None
    """Seconds since the epoch, by the store's clock."""
    allowed: tuple[str, ...]
    """approve, deny, resolve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Journal, mail. What a person, or weft itself, decided about a request."""

    id: str
    request: str
    outcome: str
    """approve, deny, resolve, expire, cancel, interrupt."""
    reason: str | None = None
    content: str | None = None
    error: bool = False
    by: str | None = None
    via: str | None = None
    at: float
    args: str | None = None
    always: bool = False
    key: str | None = None
    nonce: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Journal, mail. A delegation: accepted, parked, then settled once."""

    state: str
    """accepted, parked, done, failed, cancelled, capped."""
    receipt: str | None = None
    """None on the accepting entry, whose id makes the receipt's: `<thread>.<entry id>`."""
    child: str | None = None
    call: str | None = None
    agent: str | None = None
    wrap: str | None = None
    """The delegating tool's name."""
    prompt: str | None = None
    requests: tuple[str, ...] = ()
    """What a parked child waits for."""
    stop: str | None = None
    """The answer, or the cause of another end."""
    usage: Usage | None = None
    """The child's whole ledger."""
    background: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Journal, mail. The run that is open or parked here is to end."""

    scope: str = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """Journal, mail. A title, or more metadata."""

    title: str | None = None
    """None: as it was; empty: none any more."""
    meta: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """Keys of the metadata that are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Journal, mail. An application's own entry; no model sees it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Journal, mail. What was refused, or arrived too late."""

    what: str
    call: str | None = None
    request: str | None = None
    detail: str | None = None


Body: TypeAlias = (
    Header
    | TurnStarted
    | Said
    | ToolsStarted
    | CallResult
    | TurnEnded
    | Leaf
    | Compaction
    | Inbox
    | Request
    | Decision
    | Receipt
    | Cancel
    | Info
    | Note
    | Audit
)

KINDS: Mapping[str, tuple[int, type[Body]]] = MappingProxyType(
    {
        "header": (1, Header),
        "turn_started": (1, TurnStarted),
        "message": (1, Said),
        "tools_started": (1, ToolsStarted),
        "tool_result": (1, CallResult),
        "turn_ended": (1, TurnEnded),
        "leaf": (1, Leaf),
        "compaction": (1, Compaction),
        "inbox": (1, Inbox),
        "request": (1, Request),
        "decision": (1, Decision),
        "receipt": (1, Receipt),
        "cancel": (1, Cancel),
        "info": (1, Info),
        "note": (1, Note),
        "audit": (1, Audit),
    }
)
"""The kinds of a session, with their version."""

NAMES: Mapping[type[Body], str] = MappingProxyType({body: kind for kind, (_, body) in KINDS.items()})
TREE: frozenset[type[Body]] = frozenset({Said, CallResult, Leaf, Compaction})
MAIL: frozenset[type[Body]] = frozenset({Inbox, Request, Decision, Receipt, Cancel, Info, Note, Audit})
SETTLED: frozenset[str] = frozenset({"done", "failed", "cancelled", "capped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a journal, decoded."""

    position: int
    """Its place. Order only, never an identity."""
    id: str
    parent: str | None
    """For tree kinds, the entry that it follows on its path."""
    time: float
    """Its writer's clock, seconds since the epoch; decides nothing."""
    body: Body

    @property
    def kind(self) -> str:
        """The kind's name."""
        return NAMES[type(self.body)]


@dataclass(frozen=True, slots=True)
class Head:
    """Where a thread stands: how many lines it has, and the digest of the last one."""

    count: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What a thread's view says after its last line, for listing and for the sweeper. Rebuilt from the journal."""

    kind: str
    name: str
    parent: str | None
    root: str
    meta: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None
    pending: int = 0
    """Requests that wait for a decision."""
    unsettled: int = 0
    """Receipts that are not settled."""
    due: float | None = None
    """When something has to be done without anybody asking, by the store's clock."""
