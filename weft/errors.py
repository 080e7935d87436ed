"""Every error that weft raises, grouped by what the caller does next.

```
WeftError
├── WrongCall             the call is wrong; nothing was written
│   ├── InvalidTool           a function cannot be a tool
│   ├── InvalidDecision       a decision does not fit its request
│   ├── NotPending            the request is unknown or no longer waits
│   ├── Expired               the request's time is over
│   ├── Conflict              the same key or request, but other content
│   ├── NotAllowed            a permission is missing
│   ├── DecideAtRoot          a child's request is decided at its root session
│   ├── InsideLoop            run_sync was called inside a running event loop
│   └── MissingExtra          an optional package is not installed
├── TryAgain              somebody else is at work; nothing was written
│   ├── Busy                  the session runs a turn, or waits for a decision
│   ├── Locked                another owner holds the thread's lease
│   └── StoreFailed           the disk or the database refused the write
├── OpenAgain             this handle is of no more use
│   ├── Closed                the store or the pool was left
│   ├── Stale                 the thread has moved on (for who writes to a store directly)
│   └── Changed               the agent given now does not fit what is stored
├── EndedOtherwise        the work is over, and did not give an answer
│   ├── RunFailed             the run failed; carries the partial result
│   │   ├── LimitReached          a limit of the run was reached
│   │   ├── NoOutput              the answer is not the structured output that was asked for
│   │   └── ModelFailed           the model call failed; the `ModelError` is the cause
│   ├── TurnCancelled         the turn was cancelled
│   ├── Dropped               the queued message was dropped
│   └── NoNext                the turn ended without a continuation
├── StopAndLook           the data is not what it should be
│   ├── Corrupt               a stored line does not decode, or is missing
│   └── NewerFormat           a newer weft wrote this
└── NotFound              no thread has this id
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft._result import Result
    from weft.thread.store import Head

__all__ = [
    "Busy",
    "Changed",
    "Closed",
    "Conflict",
    "Corrupt",
    "DecideAtRoot",
    "Dropped",
    "EndedOtherwise",
    "Expired",
    "InsideLoop",
    "InvalidDecision",
    "InvalidTool",
    "LimitReached",
    "Locked",
    "MissingExtra",
    "ModelFailed",
    "NewerFormat",
    "NoNext",
    "NoOutput",
    "NotAllowed",
    "NotFound",
    "NotPending",
    "OpenAgain",
    "RunFailed",
    "Stale",
    "StopAndLook",
    "StoreFailed",
    "TryAgain",
    "TurnCancelled",
    "WeftError",
    "WrongCall",
]


class WeftError(Exception):
    """The root of every error that weft raises."""


class WrongCall(WeftError):
    """The call is wrong. Nothing was written; mend the call."""


class TryAgain(WeftError):
    """Somebody or something is in the way for now. Nothing was written; try again later."""


class OpenAgain(WeftError):
    """The handle is of no more use. Open the thread again."""


class EndedOtherwise(WeftError):
    """The work is over and did not give an answer."""


class StopAndLook(WeftError):
    """The stored data is not what it should be. A person has to look."""


class InvalidTool(WrongCall):
    """Raised when a function cannot be a tool, at its definition; names the tool and the reason."""


class InvalidDecision(WrongCall):
    """Raised when a decision does not fit its request. The whole batch is refused."""


class NotPending(WrongCall):
    """Raised when a request is unknown or no longer waits for a decision."""

    def __init__(self, request: str, why: str = "is not pending") -> None:
        super().__init__(f"request {request!r} {why}; see session.pending for what waits")
        self.request = request


class Expired(WrongCall):
    """Raised when a decision comes after its request's time."""

    def __init__(self, request: str) -> None:
        super().__init__(f"request {request!r} has expired; the model is told so when the turn goes on")
        self.request = request


class Conflict(WrongCall):
    """Raised when the same key or request was used before with other content."""


class NotAllowed(WrongCall):
    """Raised when a tool needs a permission that was not given, before anything starts."""


class DecideAtRoot(WrongCall):
    """Raised when a child session is asked to decide; the root session's id is in `root`."""

    def __init__(self, request: str, root: str) -> None:
        super().__init__(f"request {request!r} is decided at the root: open session {root!r} and decide there")
        self.request = request
        self.root = root


class InsideLoop(WrongCall):
    """Raised when `run_sync` is called inside a running event loop, before any work."""


class MissingExtra(WrongCall):
    """Raised when an optional package is needed and not installed; the message is the install line."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"pip install 'weft-agents[{extra}]'")
        self.extra = extra


class Busy(TryAgain):
    """Raised when the session runs a turn, waits for a decision, or cannot be deleted now."""


class Locked(TryAgain):
    """Raised when another owner holds the thread's lease; `holder` is its token."""

    def __init__(self, thread: str, holder: str | None) -> None:
        super().__init__(f"thread {thread!r} is held by {holder!r}; try again when its turn or its lease has ended")
        self.thread = thread
        self.holder = holder


class StoreFailed(TryAgain):
    """Raised when the store could not write (full disk, I/O error), or not read. Nothing of an append was written."""


class Closed(OpenAgain):
    """Raised when a store or pool was left, or is not entered (in this event loop); the message names the way."""

    def __init__(self, message: str = "the store was left; open it again with open_store, then store.open") -> None:
        super().__init__(message)


class Stale(OpenAgain):
    """Raised when an append expected an older head; `head` is the present one."""

    def __init__(self, thread: str, head: Head) -> None:
        super().__init__(f"thread {thread!r} has moved on to {head}; load what is new and decide again")
        self.thread = thread
        self.head = head


class Changed(OpenAgain):
    """Raised when the agent given now does not fit what is stored (a tool is gone, its arguments changed)."""


class RunFailed(EndedOtherwise):
    """Raised when a run failed. `result` has what was done until then, where it is known."""

    def __init__(self, message: str, *, code: str = "FAILED", result: Result[Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.result = result


class LimitReached(RunFailed):
    """Raised when a limit stopped the run; `limit` names it, `result` has what was done until then."""

    def __init__(self, message: str, *, limit: str, result: Result[Any] | None = None) -> None:
        super().__init__(message, code="LIMIT", result=result)
        self.limit = limit


class NoOutput(RunFailed):
    """Raised when a run gave no structured output: the answer was refused, filtered or cut, or did not fit.

    `result.text` has what the model said; `code` is `REFUSED`, `FILTERED`, `CUT` or `INVALID_OUTPUT`.
    """


class ModelFailed(RunFailed):
    """Raised when a model call failed.

    Where this process saw it, `__cause__` is what the model raised: a `ModelError`, whose own `__cause__` is the error
    of the provider's SDK.
    """


class TurnCancelled(EndedOtherwise):
    """Raised when a turn that is waited for was cancelled."""


class Dropped(EndedOtherwise):
    """Raised when a queued message that is waited for was dropped."""


class NoNext(EndedOtherwise):
    """Raised when a turn ended and is not continued."""


class Corrupt(StopAndLook):
    """Raised when a stored line does not decode or is missing; `thread` and `position` say which."""

    def __init__(self, thread: str, position: int, why: str) -> None:
        super().__init__(f"thread {thread!r}, line {position}: {why}")
        self.thread = thread
        self.position = position


class NewerFormat(StopAndLook):
    """Raised when a newer weft wrote the line or the schema; upgrade to read it."""


class NotFound(WeftError):
    """Raised when no thread has this id."""

    def __init__(self, thread: str) -> None:
        super().__init__(f"no thread {thread!r} in this store; store.list() gives those that there are")
        self.thread = thread
