"""This process at work on a store: its live threads, the turns that run here, their leases, and leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from weft._contain import Contained, contain, contain_call
from weft._ports import Clock, Ids, over_within
from weft._toolcall import GRACE as BODY_GRACE
from weft.errors import Closed, NotFound, WrongCall
from weft.thread._host import Host
from weft.thread._live import Live
from weft.thread._runner import TurnRunner
from weft.thread.entries import Entry
from weft.thread.store import RenewsAlone, Store

_STRAGGLING = 2 * BODY_GRACE
"""Seconds for what was cancelled: what its bodies have, and time to write."""


class Node:
    """Everything of a store that runs in this process; handles, actors and live threads share it.

    Args:
        store: Where the threads are.
        clock: The time.
        ids: The identities.
        grace: Seconds that leaving waits for what runs.
    """

    def __init__(self, store: Store, *, clock: Clock, ids: Ids, grace: float) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self.reports: list[tuple[str, Exception]] = []
        """What could not be gone on with and was left, and why: by thread, or by the task of a fault of weft's own."""
        self._grace = grace
        self._host = Host(self._broken, self.report)
        self._why = Closed()
        self._lives: WeakValueDictionary[str, Live] = WeakValueDictionary()
        self._runners: set[TurnRunner] = set()
        self._observers: list[Callable[[str, Entry], None]] = []
        self._claims = 0
        self._idle: asyncio.Future[None] | None = None
        self._open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """In which it was entered, until it is left."""

    # -- opening and leaving

    async def enter(self) -> None:
        """Start the store, and the host task that owns all that will run here.

        Raises:
            WrongCall: It was entered before, and was not left.
        """
        if self._loop is not None:
            raise WrongCall("the store is entered already: enter it once, where the application starts, and hand it on")
        self._loop = asyncio.get_running_loop()
        try:
            await self._start()
        except BaseException:
            self._loop = None
            raise

    async def _start(self) -> None:
        if isinstance(self.store, RenewsAlone):
            self.store.on_renewal(self._renewed)
        await self.store.start()
        try:
            await self._host.start()
        except BaseException:
            await self._end()
            raise
        self._open = True
        self._host.spawn(self._renew(), name="weft leases")

    async def leave(self, *, at_once: bool) -> None:
        """Take no new work, wait for what runs unless it is to be left `at_once`, and hand the rest off."""
        self._open = False
        try:
            if self._runners or self._claims:
                await self._rest(0.0 if at_once else self._grace)
            if self._runners and not self.store.survives:
                await self._cancel_running()
        finally:
            try:
                await self._end()
            finally:
                self._loop = None

    async def _end(self) -> None:
        try:
            await self._host.leave(self.clock, _STRAGGLING)
            self._end_runners()
            await self._hand_off()
        finally:
            self._end_runners()
            self._close_lives()
            await self.store.stop()

    def _end_runners(self) -> None:
        """Those whose tasks had not begun, or take no cancellation."""
        for runner in tuple(self._runners):
            runner.end()

    def _close_lives(self) -> None:
        for live in tuple(self._lives.values()):
            live.close(self._why)

    def _broken(self, error: BaseException) -> None:
        """Something ended all that runs here: whoever waits is told."""
        self._why = Closed(f"{type(error).__name__} has ended all that runs in this store; leave it, and open it again")
        self._why.__cause__ = error
        self._close_lives()

    async def _rest(self, seconds: float) -> None:
        """Return when nothing runs, or the time is over."""
        if seconds <= 0:
            return
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = idle
        try:
            await over_within(idle, seconds, self.clock)
        finally:
            self._idle = None

    async def _cancel_running(self) -> None:
        for runner in tuple(self._runners):
            if runner.loop is not None:
                runner.loop.interrupt("cancel")
        await self._rest(_STRAGGLING)

    async def _hand_off(self) -> None:
        """Expire our leases, so that anyone may go on at once."""
        for live in tuple(self._lives.values()):
            if live.quiet:
                await contain("turn", live.hand_off())

    def check_open(self) -> None:
        """Refuse new work once the store is being left.

        Raises:
            Closed: It is, or it was not entered, or something has ended all that runs in it, or another event loop
                runs than that in which it was entered.
        """
        if self._why.__cause__ is not None:
            raise self._why
        if not self._open:
            raise Closed("the store is not open; use `async with open_store(…) as store:`, then store.open(id, agent)")
        with suppress(RuntimeError):  # no loop runs: nobody waits
            self.check_loop(asyncio.get_running_loop())

    def check_loop(self, running: asyncio.AbstractEventLoop) -> None:
        """Refuse another event loop than that in which the store was entered: whoever waits there is never woken.

        Raises:
            Closed: It is another.
        """
        if running is not self._loop:
            raise Closed(
                "the store was entered in another event loop; use it there, from another thread by "
                "asyncio.run_coroutine_threadsafe(…, that loop), or enter one of your own here"
            )

    @property
    def leaving(self) -> bool:
        """Whether no new turn may begin."""
        return not self._open

    # -- leases

    async def _renew(self) -> None:
        """Extend the leases of what runs here, every third of their time."""
        every = self.store.ttl / 3
        while True:
            await self.clock.sleep(every)
            held = [(live.id, live.generation) for live in self._lives.values() if live.generation is not None]
            sent = self.clock.monotonic()
            outcome = await contain("store", self.store.renew(held))
            if not isinstance(outcome, Contained):  # a failed renewal kills nothing; the time running out does
                self._renewed(held, sent, outcome)

    def _renewed(self, held: Sequence[tuple[str, int]], sent: float, kept: Mapping[str, int]) -> None:
        """What a renewal came to that was sent at this monotonic time, asked for here or made by the store alone."""
        for thread, generation in held:
            live = self._lives.get(thread)
            if live is not None and live.generation == generation:
                if thread in kept:
                    live.renewed(sent)
                    live.noticed(kept[thread])
                else:
                    live.lose()

    # -- live threads

    def live(self, thread: str) -> Live:
        """The live thread of this id; not yet loaded, perhaps. One that was closed is never used again."""
        found = self._lives.get(thread)
        if found is None or found.closed:
            found = self._lives[thread] = Live(self, thread)
        return found

    async def as_it_is(self, thread: str) -> Live:
        """The live thread as the store has it now, also where it was deleted, and made again, elsewhere.

        Raises:
            NotFound: No thread has this id.
        """
        live = self.live(thread)
        if live.loaded:
            with suppress(NotFound):  # then it is closed, and `live` gives another one
                await live.refresh()
                return live
        return await self.live(thread).open()

    def observe(self, observer: Callable[[str, Entry], None]) -> None:
        """Call `observer(thread, entry)` for every entry that is committed here."""
        self._observers.append(observer)

    @property
    def observed(self) -> bool:
        """Whether anybody is told what is committed."""
        return bool(self._observers)

    def committed(self, thread: str, committed: Sequence[Entry]) -> None:
        """Tell observers of entries that this process has committed."""
        for observer in self._observers:
            for entry in committed:
                contain_call("observer", partial(observer, thread, entry))

    # -- what runs here

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, context: Context | None = None) -> None:
        """Start a task in the store's group.

        Raises:
            Closed: The store was left.
        """
        self._host.spawn(work, name=name, context=context)

    def running(self, runner: TurnRunner) -> None:
        """A turn runs here, until it is done."""
        self._runners.add(runner)

    def rests(self, runner: TurnRunner) -> None:
        """A turn that ran here is over."""
        self._runners.discard(runner)
        self._look_idle()

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """While a turn is being claimed here: leaving waits for what comes of it."""
        self._claims += 1
        try:
            yield
        finally:
            self._claims -= 1
            asyncio.get_running_loop().call_soon(self._look_idle)  # not before its turn is `running`

    def _look_idle(self) -> None:
        if not self._runners and not self._claims and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def report(self, thread: str, error: Exception) -> None:
        """Keep what could not be gone on with."""
        self.reports.append((thread, error))
