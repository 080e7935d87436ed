"""One live thread per id and store: the queue of its writes, the fold of what was accepted, and the rebase.

All writes of this process to a thread go through here, so local writers never race for the head. A turn's
records are pipelined: the next is enqueued on the head that the one before will have. A command is decided
with nothing in flight. The view changes only by folding what the store accepted.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from weft._contain import Contained, contain, contain_call
from weft._holding import holds
from weft._output import Output
from weft._ports import Clock, Ids, forget
from weft.errors import Busy, Closed, Corrupt, Locked, NotFound, Stale, StoreFailed, WrongCall
from weft.thread._codec import EMPTY, chain, decode_line, decode_lines, digest_line, encode_body, header_line
from weft.thread._turnlog import Failure, Runner, TurnLog
from weft.thread._turns import LeaseKind, Plan
from weft.thread._view import View, check_place, evolve, first_index, leaf_after, next_index
from weft.thread._writes import Append, Command, Lost, together
from weft.thread.entries import MAIL, TREE, Body, Entry, Header, Leaf, TurnStarted
from weft.thread.store import (
    Appended,
    Claim,
    Head,
    Hold,
    Index,
    Lease,
    LeaseChange,
    Loaded,
    Release,
    Seize,
    Store,
)

T = TypeVar("T")

POLL = 0.2
"""Seconds between looks at a thread that another process may write."""
SLICE = 256
"""Lines that are decoded before the loop gets its turn."""
RETRIES = (0.01, 0.1, 0.5)
"""Seconds to wait before a turn's record that the disk refused is tried again."""
ACT = 0.8
"""The part of a lease during which its holder may act."""

Keeper: TypeAlias = weakref.WeakMethod[Callable[[], Coroutine[Any, Any, None]]]
"""Goes on with what waits."""


class World(Protocol):
    """What a live thread needs of the store that it belongs to."""

    store: Store
    clock: Clock
    ids: Ids

    def live(self, thread: str) -> Live:
        """The live thread of this id."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, context: Context | None = None) -> None:
        """Start a task in the store's group."""
        ...

    def report(self, thread: str, error: Exception) -> None:
        """Keep what could not be gone on with."""
        ...

    def check_loop(self, running: asyncio.AbstractEventLoop) -> None:
        """Refuse another event loop than that of the store."""
        ...

    @property
    def observed(self) -> bool:
        """Whether anybody is told what is committed."""
        ...

    def committed(self, thread: str, entries: Sequence[Entry]) -> None:
        """Entries of this process were committed."""
        ...


class Live:
    """A thread as this process knows it."""

    def __init__(self, world: World, thread: str) -> None:
        self.id = thread
        self.runner: Runner | None = None
        self.output: Output | None = None
        """What the answers of the agent are that has last opened the thread here."""
        self._keepers: tuple[Keeper, ...] = ()
        """Of those who have the session open here with an agent, the latest last."""
        self.context: Context | None = None
        """The context in which the present run was sent; its resumes and children run in copies of it."""
        self.contexts: dict[str, Context] = {}
        """The same, by inbox item, for what is queued."""
        self.generation: int | None = None
        """Of the lease that this store holds on the thread."""
        self.valid_until = 0.0
        """The monotonic time until which a body may be started under it."""
        self.lease = Lease(owner=None, generation=0, live=False)
        """As of the last load."""
        self.world = world
        self._view: View | None = None
        self.head = EMPTY
        self._next = EMPTY
        self._next_leaf: str | None = None
        self._next_index: Index | None = None
        # Lists, not deques: they are short, and an empty deque takes 760 bytes, which counts with many children.
        self._records: list[Append] = []
        self._inflight: list[Append] = []
        self._commands: list[Command] = []
        self._catching = False
        self._asking: Command | None = None
        """Who waits for the read that is on its way."""
        self._refusing = False
        """Some of what is in flight was refused; the rest will be."""
        self._failures = 0
        self._opening: asyncio.Future[None] | None = None
        self.version = 0
        """Grows whenever the view may have changed."""
        self._waiters: list[asyncio.Future[None]] = []
        self._following = False
        self._closed: Failure | None = None
        self.log: TurnLog | None = None
        """Of the latest turn that ran here; handles keep those of their own."""

    @property
    def view(self) -> View:
        """The thread as of the last fold."""
        assert self._view is not None, "the thread has not been loaded"
        return self._view

    def kept_by(self, keeper: Keeper) -> None:
        """One more who has the session open here with an agent, for as long as it is held."""
        self._keepers = (*(kept for kept in self._keepers if kept() is not None), keeper)

    def keeper(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Who goes on with what waits, where the session is open here with an agent: the latest who is left."""
        return next((found for kept in reversed(self._keepers) if (found := kept()) is not None), None)

    @property
    def loaded(self) -> bool:
        """Whether there is a view."""
        return self._view is not None

    @property
    def closed(self) -> bool:
        """Whether nothing more is read or written here: it was deleted, or cannot be read, or the store was left."""
        return self._closed is not None

    # -- opening

    async def open(self) -> Live:
        """Load and fold the journal, once.

        Raises:
            NotFound: No thread has this id.
            Corrupt, NewerFormat: A line does not decode.
        """
        while self._view is None:
            if self._opening is not None:
                await asyncio.wait([self._opening])
                continue
            self._opening = asyncio.get_running_loop().create_future()
            try:
                await self._load()
            finally:
                self._opening.set_result(None)
                self._opening = None
        return self

    async def _load(self) -> None:
        loaded = await self.world.store.load(self.id)
        header = decode_line(loaded.lines[0], self.id, 0).body if loaded.lines else None
        if not isinstance(header, Header):
            raise Corrupt(self.id, 0, "the first line is no header")
        view = View(header)
        await self._fold_slices(view, loaded.lines, 1)
        self._take(view, loaded)

    async def _fold_slices(self, view: View, lines: list[bytes], first: int) -> None:
        """Each entry is dropped before the next is made: what is kept by the thousand, the collector goes through."""
        for start in range(first, len(lines), SLICE):
            for place, line in enumerate(lines[start : start + SLICE], start):
                entry = decode_line(line, self.id, place)
                if entry.parent != view.leaf or type(entry.body) is Leaf:  # else it follows what is there
                    check_place(view, entry)
                evolve(view, entry)
            if start + SLICE < len(lines):
                await self.world.clock.sleep(0)

    def _take(self, view: View, loaded: Loaded) -> None:
        self._view = view
        self.head = loaded.head
        self.lease = loaded.lease
        self._reset_next()

    def _reset_next(self) -> None:
        """What is sent next follows the accepted head."""
        self._next = self.head
        self._next_leaf = self.view.leaf
        self._next_index = self.view.index

    def found(self, header: Header) -> tuple[bytes, asyncio.Future[bytes]]:
        """Make the thread, with this header; what follows may be recorded at once.

        Returns:
            The header's line, and a future of the one that the store keeps: another one if the thread was
            there already; then this is closed.
        """
        line, created = self._begin(header)
        created.add_done_callback(partial(self._not_made, line))
        if self.world.observed:
            created.add_done_callback(partial(self._created, header, line))
        return line, created

    def _not_made(self, line: bytes, created: asyncio.Future[bytes]) -> None:
        """Nothing that follows can be written: told before that is tried, so that everybody knows why."""
        failure = None if created.cancelled() else created.exception()
        if failure is None and not created.cancelled() and created.result() != line:
            failure = Busy(f"thread {self.id!r} was made elsewhere just now; try again")
        if failure is not None:
            self.close(failure)

    def _begin(self, header: Header) -> tuple[bytes, asyncio.Future[bytes]]:
        line = header_line(header)
        self._view = View(header)
        self.head = Head(1, digest_line(line))
        self._reset_next()
        return line, self.world.store.create(self.id, line, first_index(header))

    async def make(self, header: Header, *, new: bool) -> None:
        """Make the thread durably; unless it is `new`, somebody else may just have made it: then it is opened.

        Raises:
            StoreFailed: The store could not write.
        """
        if new:
            line, created = self._begin(header)
        else:
            line = header_line(header)
            created = self.world.store.create(self.id, line, first_index(header))
        created.add_done_callback(partial(self._created, header, line))  # also where nobody waits any more
        await asyncio.wait([created])
        created.result()
        await self.open()

    def _created(self, header: Header, line: bytes, created: asyncio.Future[bytes]) -> None:
        if not created.cancelled() and created.exception() is None and created.result() == line:
            time = round(header.created, 6)  # as the line keeps it
            self.world.committed(self.id, [Entry(position=0, id=self.id, parent=None, time=time, body=header)])

    def log_of(self, turn: str, kept: TurnLog | None = None) -> TurnLog | None:
        """What this process saw of a turn, by the latest log or by the one that a handle has kept."""
        for log in (kept, self.log):
            if log is not None and log.turn == turn:
                return log
        return None

    async def lines(self, after: int) -> list[bytes]:
        """The stored lines from a position on.

        Raises:
            NotFound: The thread was deleted.
        """
        return (await self.world.store.load(self.id, after)).lines

    # -- writing

    def record(self, bodies: Sequence[Body], lease: LeaseKind, done: Callable[[], object]) -> None:
        """A turn's own entries, in order; `done` is called when they are durable and folded.

        What is recorded in one turn of the loop, as when many children settle at once, shares an append.
        """
        if self._closed is not None:
            return
        if not self._records:
            asyncio.get_running_loop().call_soon(self._pump)
        self._records.append(self._make(bodies, lease, done=(done,)))

    async def command(
        self, decide: Callable[[View], Plan | None], then: Callable[[Plan], object] | None = None
    ) -> Plan | None:
        """Decide on the view, with nothing in flight, and append what comes of it; again on each new head.

        Args:
            decide: The plan, or None where there is nothing to do.
            then: Called with the plan that was accepted, durable and folded, also where nobody waits any more.

        Returns:
            The plan that was accepted, durable and folded; None if there was nothing to do.

        Raises:
            Locked: Somebody else holds the thread, and the plan needs it.
            StoreFailed: The store could not write.
            Closed: The store was left.
        """
        return await self._queue(decide, then)

    async def hand_off(self) -> None:
        """Expire the lease that is held here, or is being claimed, so that anyone may go on at once."""
        if self._inflight or self.generation is not None:
            await self.command(lambda _: None if self.generation is None else Plan(bodies=(), lease="hand_off"))

    async def refresh(self) -> None:
        """Fold what others wrote."""
        await self._queue(None)

    async def _queue(
        self, decide: Callable[[View], Plan | None] | None, then: Callable[[Plan], object] | None = None
    ) -> Plan | None:
        if self._closed is not None:
            raise self._closed
        self.world.check_loop(loop := asyncio.get_running_loop())
        waiter: asyncio.Future[Plan | None] = loop.create_future()
        self._commands.append(Command(decide, waiter, then))
        self._pump()
        return await waiter

    def _make(
        self,
        bodies: Sequence[Body],
        lease: LeaseKind,
        *,
        done: tuple[Callable[[], object], ...] = (),
        command: Command | None = None,
        turn: str | None = None,
    ) -> Append:
        """Entries with ids and times of their own; a rebase keeps them."""
        given = command is not None
        texts = [encode_body(body, given=given) for body in bodies]  # before anything is counted: it may be refused
        now = round(self.world.clock.now(), 6)  # as the line keeps it
        entries: list[Entry] = []
        first = self._records[-1].entries[-1].position + 1 if self._records and done else self._next.count
        leaf = self._next_leaf
        for place, body in enumerate(bodies, first):  # both are guesses, mended when it is sent
            name = self.world.ids.new() if turn is None or not isinstance(body, TurnStarted) else turn
            tree = type(body) in TREE
            entries.append(Entry(position=place, id=name, parent=leaf if tree else None, time=now, body=body))
            if tree:
                leaf = leaf_after(entries[-1])
        return Append(entries, texts, lease, done, command)

    def _pump(self) -> None:
        """Send what may be sent. Commands go before records, and alone."""
        while not self._catching and self._closed is None and not self._refusing:
            if self._inflight and self._inflight[0].command is not None:
                return
            if self._commands:
                if self._inflight:
                    return
                self._decide(self._commands.pop(0))
            elif self._records:
                waiting, self._records = self._records, []
                self._send(together(waiting))
            else:
                return

    def _decide(self, command: Command) -> None:
        if command.waiter.done():
            return
        if command.decide is None:
            self._catch_up(command)
            return
        if self._view is None:
            command.refuse(Closed(f"thread {self.id!r} is not loaded; open it again"))
            return
        made = contain_call("decision", partial(self._decided, command, command.decide))
        if isinstance(made, Contained):
            command.refuse(made.cause)
        elif made is None:
            command.settle(None)
        else:
            self._send(made)

    def _decided(self, command: Command, decide: Callable[[View], Plan | None]) -> Append | None:
        plan = command.plan = decide(self.view)
        return None if plan is None else self._make(plan.bodies, plan.lease, command=command, turn=plan.turn)

    def _send(self, append: Append) -> None:
        store = self.world.store
        change = self._change(append.lease)
        if isinstance(change, Lost):
            if append.command is not None:
                append.command.refuse(Locked(self.id, self.lease.owner))
            return
        append.entries = self._placed(append.entries)
        lines, append.after = chain(append.entries, append.texts, self._next)
        index = self._index_after(append)
        expect, self._next = self._next, append.after
        self._inflight.append(append)

        def hand_over() -> asyncio.Future[Appended]:
            append.sent = self.world.clock.monotonic()
            return store.append(self.id, lines, expect, change, index)

        sent = contain_call("store", hand_over)
        if isinstance(sent, Contained):  # it, or the clock, breaks its contract, but nobody may wait for ever
            future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            future.set_exception(sent.cause)
        else:
            future = sent
        future.add_done_callback(partial(self._landed, append))

    def _placed(self, entries: list[Entry]) -> list[Entry]:
        """The same, where they come to stand: after all that is in flight, and nothing else."""
        placed: list[Entry] = []
        for place, entry in enumerate(entries, self._next.count):
            tree = type(entry.body) in TREE
            parent = self._next_leaf if tree else None
            same = entry.position == place and entry.parent == parent
            placed.append(entry if same else replace(entry, position=place, parent=parent))
            if tree:
                self._next_leaf = leaf_after(entry)
        return placed

    def _index_after(self, append: Append) -> Index | None:
        before = self._next_index
        index = before
        for entry in append.entries:
            index = next_index(index, entry.body) if index is not None else None
        self._next_index = index
        return None if index is before else index

    def _change(self, lease: LeaseKind) -> LeaseChange | Lost:
        match lease:
            case "mail":
                return None
            case "claim":
                return Claim(ttl=self.world.store.ttl)
            case "claim_once":
                return Claim(ttl=self.world.store.ttl, once=True)
            case "seize":
                return Seize(ttl=self.world.store.ttl, once=True)
            case "hold" | "release" | "hand_off":
                if self.generation is None:
                    return Lost()
                if lease == "release":
                    return Release(generation=self.generation)
                return Hold(generation=self.generation, hand_off=lease == "hand_off")

    # -- what became of it

    def _landed(self, append: Append, future: asyncio.Future[Appended]) -> None:
        failure: Failure | None = Closed() if future.cancelled() else future.exception()
        if failure is None and self._refusing:  # so what it follows is there all the same: it is read back
            failure = Stale(self.id, append.after)
        if failure is not None:
            append.refused = failure
            self._refusing = True
            if all(item.refused is not None for item in self._inflight):
                self._after_refusal()
            return
        self._inflight.pop(0)
        self._failures = 0
        self.head = append.after
        self._lease_moved(append, future.result())
        self._accept(append)
        self._pump()

    def _lease_moved(self, append: Append, appended: Appended) -> None:
        match append.lease:
            case "claim":
                self.generation = appended.generation
                self.valid_until = append.sent + ACT * self.world.store.ttl
            case "release" | "hand_off":
                self.generation = None

    def _accept(self, append: Append) -> None:
        for entry in append.entries:
            evolve(self.view, entry)
        if append.lease != "claim":  # who claims runs in the context of what it delivers
            self._forget_contexts()
        self.world.committed(self.id, append.entries)
        if append.command is not None:
            append.command.accept(append.entries)
            self._foreign(append.entries)
        for done in append.done:
            done()
        self._notify()

    def _forget_contexts(self) -> None:
        """Of input that waits no longer."""
        for item in [item for item in self.contexts if item not in self.view.queue]:
            del self.contexts[item]

    def _foreign(self, entries: Sequence[Entry]) -> None:
        """Entries that the running turn did not write: it may have to decide again."""
        runner, run = self.runner, self.view.run
        if runner is not None and runner.wants_again(entries):
            self.drop_records()
            runner.decide_again(entries)
        elif runner is None and run is not None and run.cancelled is not None:
            # the turn was left: nobody can decide here again how it ends
            self._records = [record for record in self._records if record.lease != "release"]

    def _after_refusal(self) -> None:
        """Everything in flight has been answered, and some of it was refused."""
        refused, self._inflight, self._refusing = self._inflight, [], False
        failures = [append.refused for append in refused]
        self._reset_next()
        hard = next((f for f in failures if not isinstance(f, Stale | StoreFailed | Locked)), None)
        commands = [append.command for append in refused if append.command is not None]
        if hard is not None:
            self._commands[:0] = commands
            self.close(hard)
            return
        locked = next((f for f in failures if isinstance(f, Locked)), None)
        if commands:
            self._command_refused(commands[0], locked or failures[0])
            return
        if locked is not None:
            self._revoke(locked)
            self._pump()
            return
        if self.generation is not None:  # else they were a turn's that was given up meanwhile
            self._records[:0] = refused
        self._reset_next()
        broken = next((f for f in failures if isinstance(f, StoreFailed)), None)
        if broken is None:
            self._catch_up(None)
        else:
            self._try_again(broken)

    def _command_refused(self, command: Command, failure: Failure | None) -> None:
        if isinstance(failure, Stale) and self._closed is None:
            self._commands.insert(0, command)
            self._catch_up(None)
            return
        if failure is not None:
            command.refuse(self._closed or failure)
        self._pump()

    def _try_again(self, failure: StoreFailed) -> None:
        """The disk refused a turn's record, or a read before it: again later, a few times; then it is given up."""
        if self._failures < len(RETRIES):
            self._catching = True
            again = partial(self.world.clock.deadline, RETRIES[self._failures], partial(self._caught, None))
            self._failures += 1
            if not isinstance(contain_call("store", again), Contained):  # else the clock has failed as well
                return
            self._catching = False
        self._failures = 0
        self._revoke(failure)
        self._pump()

    def _revoke(self, cause: Failure | None) -> None:
        self._records.clear()
        self.generation = None
        runner, self.runner = self.runner, None
        self._reset_next()
        if runner is not None:
            runner.revoke(cause)
        self._notify()

    def may_act(self) -> bool:
        """Whether a body may start under the lease: it has time left, counted from before its last renewal."""
        return self.generation is not None and self.world.clock.monotonic() < self.valid_until

    def renewed(self, sent: float) -> None:
        """The lease was extended by a renewal that was sent at this monotonic time."""
        self.valid_until = sent + ACT * self.world.store.ttl

    @property
    def quiet(self) -> bool:
        """Whether a record that is enqueued now will be sent without anything having to be read first."""
        return not self._catching and not self._refusing

    def now(self) -> float:
        """The writer's clock, seconds since the epoch."""
        return self.world.clock.now()

    def noticed(self, count: int) -> None:
        """The store has this many lines of the thread: look at what others wrote, if it is more than is known."""
        if count > max(self.head.count, self._next.count) and self._closed is None:
            waiter: asyncio.Future[Plan | None] = asyncio.get_running_loop().create_future()
            waiter.add_done_callback(forget)
            self._commands.append(Command(None, waiter))
            self._pump()

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._notify()

    def drop_records(self) -> None:
        """Forget the records that were not sent yet: their turn is given up."""
        self._records.clear()

    def lose(self) -> None:
        """The lease is no longer held: the turn here may not go on."""
        if self.generation is not None:
            self._revoke(None)

    # -- what others wrote

    def _catch_up(self, command: Command | None) -> None:
        self._catching, self._asking = True, command
        try:
            self.world.spawn(self._read_news(command), name=f"weft catch-up {self.id}")
        except Closed as error:
            self._catching = False
            if command is not None:
                command.refuse(error)
            self.close(error)

    async def _read_news(self, command: Command | None) -> None:
        found = await contain("store", self._news())
        if isinstance(found, Contained):
            self._unread(command, found.cause)
            return
        loaded, news = found
        folded = contain_call("store", partial(self._take_in, news))
        if isinstance(folded, Contained):
            self._unread(command, folded.cause)
            return
        self._forget_contexts()
        self.head, self.lease = loaded.head, loaded.lease
        self._reset_next()
        taken = any(type(entry.body) not in MAIL for entry in news)
        if taken and self.generation is not None:
            self._revoke(None)
        elif news:
            self._foreign(news)
        self._caught(command)
        if news:
            self._notify()

    async def _news(self) -> tuple[Loaded, list[Entry]]:
        loaded = await self.world.store.load(self.id, self.head.count)
        if not _follows(self.head, loaded):
            raise NotFound(self.id)
        return loaded, decode_lines(loaded.lines, self.id, self.head.count)

    def _take_in(self, news: list[Entry]) -> None:
        for entry in news:
            check_place(self.view, entry)
            evolve(self.view, entry)

    def _unread(self, command: Command | None, failure: Exception) -> None:
        """What others wrote could not be read: told to who has asked for it; a turn's records wait a little longer."""
        self._catching, self._asking = False, None
        refused = [command] if command is not None else self._commands
        if command is None:
            self._commands = []
        for waits in refused:
            waits.refuse(failure)
        if not isinstance(failure, StoreFailed):
            self.close(failure)
        elif command is None and self._records:
            self._try_again(failure)
        else:
            self._pump()

    def _caught(self, command: Command | None) -> None:
        self._catching, self._asking = False, None
        if command is not None:
            command.settle(None)
        self._pump()

    # -- waiting

    def _notify(self) -> None:
        self.version += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, since: int | None = None) -> None:
        """Return when the view may have changed; looks at the store now and then where no turn runs here.

        Args:
            since: The `version` that was looked at; returns at once where there is a newer one.

        Raises:
            Closed: The store was left.
        """
        if self._closed is not None:
            raise self._closed
        if since is not None and since != self.version:
            return
        self.world.check_loop(loop := asyncio.get_running_loop())
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        self._follow()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def _follow(self) -> None:
        if not self._following and self.runner is None:
            self._following = True
            self.world.spawn(self._poll(), name=f"weft follow {self.id}")

    async def _poll(self) -> None:
        try:
            looked = await contain("watcher", self._look_again_and_again())
            if isinstance(looked, Contained):  # what cannot be mended has closed the thread
                self._fail_waiters(looked.cause)
        finally:
            self._following = False

    async def _look_again_and_again(self) -> None:
        while any(not waiter.done() for waiter in self._waiters) and self._closed is None:
            await self.world.clock.sleep(POLL)
            if self.runner is None and self._closed is None:
                await self.refresh()
                self._notify()

    def _fail_waiters(self, cause: Failure) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(cause)

    async def until(self, found: Callable[[View], T | None]) -> T:
        """What `found` gives, as soon as it gives something.

        Raises:
            WrongCall: The present task is a tool's body that the thread's turn waits for.
        """
        while True:
            value = found(self.view)
            if value is not None:
                return value
            self.check_free()
            await self.changed()

    def check_free(self) -> None:
        """Refuse to wait where that would never end.

        Raises:
            WrongCall: The present task is a tool's body that the thread's turn waits for.
        """
        if holds(self.id):
            raise WrongCall(
                f"session {self.id!r} waits for this tool, so the tool cannot wait for the session; "
                "let it `send` what is to come next, and return"
            )

    def close(self, cause: Failure) -> None:
        """Nothing more is read or written here; whoever waits gets the cause, the first one where there are several."""
        cause = self._closed = self._closed or cause
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.revoke(cause)
        for command in (*self._commands, *filter(None, [self._asking])):
            command.refuse(cause)
        self._commands.clear()
        self._asking = None
        self._records.clear()
        self.generation = None  # what was held runs out: nobody here goes on with it
        self._fail_waiters(cause)


def _follows(head: Head, loaded: Loaded) -> bool:
    """Whether the lines go on from this head; not those of another thread that has taken the id."""
    if not loaded.lines:
        return loaded.head == head
    return loaded.lines[0].startswith(b'{"prev":"%s",' % head.digest.encode("ascii"))
