"""A SQLite store's renewals: by a thread and a connection of their own, so that a blocked event loop loses no lease."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from weft._contain import Contained, contain_call
from weft._ports import Clock
from weft.thread import _schema_sql as sql
from weft.thread.store import Claim, Hold, LeaseChange, Release, Seize, Told

RETRY = 0.25
"""The part of the patience after which a renewal that has failed is tried again."""

Held: TypeAlias = Sequence[tuple[str, int]]


@dataclass(slots=True)
class _Asked:
    held: Held
    future: asyncio.Future[dict[str, int] | Contained]


@dataclass(frozen=True, slots=True)
class _Known:
    """A lease that the writer has seen taken, or the loop has named."""

    generation: int
    fresh: bool
    """Taken since the loop has named what it holds: it may not have heard of it."""


class Renewals:
    """Renews what the loop asks for; and, where it has not asked for too long, what is known to be held.

    Args:
        connect: Opens the connection, in the thread.
        begin: Begins a transaction that writes, however long another one lasts.
        owner: Whose leases.
        ttl: Seconds that a lease lasts.
        clock: The time by which leases are judged.
        patience: Seconds after which the loop is taken to be blocked; None is never.
    """

    def __init__(  # each its own
        self,
        connect: Callable[[], sqlite3.Connection],
        begin: Callable[[sqlite3.Connection], None],
        *,
        owner: str,
        ttl: float,
        clock: Clock,
        patience: float | None,
    ) -> None:
        self.told: Told | None = None
        """Called on the loop with what a renewal came to that nobody has asked for."""
        self._connect = connect
        self._begin = begin
        self._owner = owner
        self._ttl = ttl
        self._clock = clock
        self._patience = patience
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        """Around what is known."""
        self._connection: sqlite3.Connection | None = None
        self._failed = False

    def start(self, call_back: Callable[..., None], ended: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            call_back: Has a function called on the loop, with these arguments.
            ended: To be called so when the thread has ended.
        """
        self._call_back = call_back
        threading.Thread(target=self._work, args=(ended,), name="weft-renewals", daemon=True).start()

    def ask(self, held: Held) -> asyncio.Future[dict[str, int] | Contained]:
        """Renew these, and know that the loop holds them and no other. Gives what is still held, or the failure."""
        future: asyncio.Future[dict[str, int] | Contained] = asyncio.get_running_loop().create_future()
        self._asked.put(_Asked(tuple(held), future))
        return future

    def end(self) -> None:
        """End the thread, when it has answered what was asked."""
        self._asked.put(None)

    def note(self, thread: str, lease: LeaseChange, generation: int) -> None:
        """A change of a lease has been written; in the writer's thread."""
        match lease:
            case Claim(once=False) | Seize(once=False):
                with self._lock:
                    self._known[thread] = _Known(generation, fresh=True)
            case Claim() | Seize() | Release() | Hold(hand_off=True):
                with self._lock:
                    self._known.pop(thread, None)

    # -- in the thread

    def _work(self, ended: Callable[[], None]) -> None:
        try:
            while True:
                try:
                    asked = self._asked.get(timeout=self._wait())
                except queue.Empty:
                    self._renew_alone()
                    continue
                if asked is None:
                    return
                self._answer(asked)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._call_back(ended)

    def _wait(self) -> float | None:
        if self._patience is None:
            return None
        return self._patience * RETRY if self._failed else self._patience

    def _answer(self, asked: _Asked) -> None:
        self._heard(asked.held)
        outcome = self._renew(asked.held)
        self._call_back(_answered, asked.future, outcome)

    def _heard(self, held: Held) -> None:
        named = {thread: _Known(generation, fresh=False) for thread, generation in held}
        with self._lock:
            for thread, known in self._known.items():
                if known.fresh:  # the loop hears of it now, or has heard and names it, or holds it no more
                    named[thread] = _Known(known.generation, fresh=False)
            self._known = named

    def _renew_alone(self) -> None:
        with self._lock:
            held = [(thread, known.generation) for thread, known in self._known.items()]
        if not held:
            return
        sent = self._clock.monotonic()
        outcome = self._renew(held)
        if not isinstance(outcome, Contained):
            self._call_back(self._tell, held, sent, outcome)

    def _tell(self, held: Held, sent: float, kept: dict[str, int]) -> None:
        """On the loop, after those have run who wait for the claims that were written before."""
        if self.told is not None:
            asyncio.get_running_loop().call_soon(self.told, held, sent, kept)

    def _renew(self, held: Held) -> dict[str, int] | Contained:
        outcome = contain_call("store", lambda: self._write(held)) if held else {}
        self._failed = isinstance(outcome, Contained)
        return outcome

    def _write(self, held: Held) -> dict[str, int]:
        if self._connection is None:
            self._connection = self._connect()
        self._begin(self._connection)
        try:
            kept = self._extend(self._connection, held)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise
        return kept

    def _extend(self, connection: sqlite3.Connection, held: Held) -> dict[str, int]:
        now = self._clock.now()
        kept: dict[str, int] = {}
        for thread, generation in held:
            row = connection.execute(sql.RENEW, (now + self._ttl, thread, self._owner, generation, now)).fetchone()
            if row is not None:
                kept[thread] = row[0]
        return kept


def _answered(future: asyncio.Future[dict[str, int] | Contained], outcome: dict[str, int] | Contained) -> None:
    if not future.done():
        future.set_result(outcome)
