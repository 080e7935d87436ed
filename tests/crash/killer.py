"""Runs the demo, and kills its own process at one moment.

    python -m tests.crash.killer ask FILE

`WEFT_DEMO_KILL` names the moment; without it the process lives, and every moment is named on standard error.
A moment is `append desk 3`, just before the third append to the desk's thread reaches the store (what was
sent earlier has been written by then); `commit desk 3`, just after the third entry there was committed; or
`refund before` and `refund inside`, in the tool's body, before and after it has written its line.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples import demo
from weft._ports import SystemClock, SystemIds
from weft.thread import Entry, Head, OpenStore, open_store
from weft.thread._codec import decode_line
from weft.thread.entries import Header
from weft.thread.sqlite import SQLiteStore
from weft.thread.store import Appended, Index, LeaseChange, Loaded

LEASE = 3_600.0
"""Seconds. To wait for a dead process's lease to run out is a hang, by far."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Moments:
    """Counts what happens, and says whether this is the moment."""

    def __init__(self, fatal: str | None) -> None:
        self._fatal = fatal
        self._counts: Counter[str] = Counter()

    def is_now(self, what: str) -> bool:
        if self._fatal is None:
            sys.stderr.write(f"{what}\n")  # one write, also from a body in its thread
        return what == self._fatal

    def next(self, what: str) -> bool:
        self._counts[what] += 1
        return self.is_now(f"{what} {self._counts[what]}")


class KillingStore(SQLiteStore):
    """A store before which the process may die. Threads are named by their agents."""

    def __init__(self, file: Path, moments: Moments) -> None:
        super().__init__(file, owner=SystemIds().new(), ttl=LEASE, clock=SystemClock())
        self._moments = moments
        self._names: dict[str, str] = {}
        self._sent: set[asyncio.Future[Any]] = set()
        self._dying = False

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        self._names[thread] = index.name
        if self._stops(thread):
            return asyncio.get_running_loop().create_future()
        return self._send(super().create(thread, line, index, more))

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        if self._stops(thread):
            return asyncio.get_running_loop().create_future()
        return self._send(super().append(thread, lines, expect, lease, index))

    def _stops(self, thread: str) -> bool:
        """Whether this append never reaches the store: the process dies once the earlier ones are written."""
        if not self._dying and self._moments.next(f"append {self._names[thread]}"):
            self._dying = True
            self._die_if_written()
        return self._dying

    def _send(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        self._sent.add(future)
        future.add_done_callback(self._written)
        return future

    def _written(self, future: asyncio.Future[Any]) -> None:
        """Called before whoever waits for the future: it is the first callback."""
        self._sent.discard(future)
        if self._dying:
            self._die_if_written()

    def _die_if_written(self) -> None:
        if not self._sent:
            die()

    async def load(self, thread: str, after: int = 0) -> Loaded:
        loaded = await super().load(thread, after)
        if after == 0:
            header = decode_line(loaded.lines[0], thread, 0).body
            assert isinstance(header, Header)
            self._names[thread] = header.name
        return loaded

    def committed(self, thread: str, _: Entry) -> None:
        if self._moments.next(f"commit {self._names[thread]}"):
            die()


def main(fatal: str | None) -> int:
    moments = Moments(fatal)

    class KillingShop(demo.Shop):
        def pay_back(self, order: str, cents: int, key: str) -> None:
            if moments.is_now("refund before"):
                die()
            super().pay_back(order, cents, key)
            if moments.is_now("refund inside"):
                die()

    def opening(where: str) -> OpenStore:
        store = KillingStore(Path(where.removeprefix("sqlite:///")), moments)
        opened = open_store(store)
        opened.observe(store.committed)
        return opened

    return demo.main(sys.argv[1:], shop=KillingShop, opening=opening)


if __name__ == "__main__":
    sys.exit(main(os.environ.get("WEFT_DEMO_KILL")))
