"""Threads of weft's own: reused, bounded where nobody waits for them, and waited for by no exit."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from queue import Empty, SimpleQueue

import pytest

from tests.children import STALLED
from weft import Agent, tool
from weft._threads import MOST_ABANDONED, ThreadsExhausted, Work, Worker, in_thread, workers
from weft.testing import Script, call, calls, say
from weft.testing.clock import settle

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await settle()


def abandoned() -> int:
    return sum(worker.abandoned for worker in workers())


class Stuck:
    """Calls that block until they are released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.ended = 0
        self._started = threading.Semaphore(0)

    def block(self) -> str:
        self._started.release()
        assert self.release.wait(STALLED)
        self.ended += 1
        return "late"

    async def abandon(self, number: int) -> None:
        """Start so many at once, and give them up."""
        tasks = [asyncio.ensure_future(in_thread(self.block)) for _ in range(number)]
        for _ in tasks:
            await until(partial(self._started.acquire, blocking=False))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)


@pytest.fixture
async def stuck() -> AsyncIterator[Stuck]:
    assert abandoned() == 0
    made = Stuck()
    yield made
    made.release.set()
    await until(lambda: not abandoned())


async def test_a_call_gives_what_the_function_gives() -> None:
    assert await in_thread(lambda: 1 + 1) == 2
    assert await in_thread(lambda: None) is None


async def test_a_call_runs_in_a_copy_of_the_caller_s_context() -> None:
    where.set("outside")

    def look() -> str:
        seen = where.get()
        where.set("inside")
        return seen

    assert [await in_thread(look), await in_thread(look)] == ["outside", "outside"]
    assert where.get() == "outside"


async def test_a_thread_that_is_used_again_keeps_no_context_of_the_call_before() -> None:
    seen: list[tuple[int, str]] = []

    def look() -> None:
        seen.append((threading.get_ident(), where.get()))

    async def ask(place: str | None) -> None:
        if place is not None:
            where.set(place)
        await in_thread(look)

    for place in ("a", "b", None):
        await asyncio.create_task(ask(place), context=contextvars.Context())
    assert [place for _, place in seen] == ["a", "b", "nowhere"]
    assert len({thread for thread, _ in seen}) == 1


async def test_calls_one_after_the_other_use_one_thread() -> None:
    assert len({await in_thread(threading.get_ident) for _ in range(100)}) == 1


async def test_calls_at_once_use_a_thread_each() -> None:
    meet = threading.Barrier(8, timeout=STALLED)

    def look() -> int:
        meet.wait()
        return threading.get_ident()

    first = set(await asyncio.gather(*(in_thread(look) for _ in range(8))))
    assert len(first) == 8
    assert threading.get_ident() not in first
    assert set(await asyncio.gather(*(in_thread(look) for _ in range(8)))) <= {worker.ident for worker in workers()}


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError(), TimeoutError()])
async def test_an_exception_comes_out_as_itself(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(BaseException) as caught:  # noqa: PT011  # which one it is, is what is tested
        await in_thread(fail)
    if isinstance(error, Exception):
        assert caught.value is error
    else:
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [StopIteration(3), KeyboardInterrupt(), SystemExit(2)])
async def test_what_no_future_may_carry_comes_out_as_a_cause(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"it raised {type(error).__name__}") as caught:
        await in_thread(fail)
    assert caught.value.__cause__ is error


async def test_a_thread_works_on_after_an_exception() -> None:
    def fail() -> None:
        raise KeyboardInterrupt(threading.get_ident())

    with pytest.raises(RuntimeError) as caught:
        await in_thread(fail)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.args == (await in_thread(threading.get_ident),)


async def test_a_free_thread_keeps_nothing_of_its_last_call() -> None:
    class Big:
        pass

    def use(big: Big) -> Big:
        return big

    big = Big()
    gone = weakref.ref(big)
    assert await in_thread(partial(use, big)) is big
    del big
    await until(lambda: gone() is None)


async def test_a_given_up_call_counts_until_its_function_ends(stuck: Stuck) -> None:
    await stuck.abandon(3)
    assert (abandoned(), stuck.ended) == (3, 0)
    stuck.release.set()
    await until(lambda: abandoned() == 0)
    assert stuck.ended == 3


async def test_a_call_that_is_waited_for_is_not_abandoned(stuck: Stuck) -> None:
    waiting = asyncio.ensure_future(in_thread(stuck.block))
    await stuck.abandon(1)
    assert abandoned() == 1
    stuck.release.set()
    assert await waiting == "late"


async def test_what_a_given_up_call_gives_is_dropped(stuck: Stuck) -> None:
    await stuck.abandon(1)
    stuck.release.set()
    await until(lambda: abandoned() == 0)
    assert await in_thread(lambda: "own") == "own"


async def test_a_released_thread_is_used_again(stuck: Stuck) -> None:
    await stuck.abandon(MOST_ABANDONED)
    held = {worker.ident for worker in workers() if worker.abandoned}
    stuck.release.set()
    await until(lambda: abandoned() == 0)
    known = len(workers())  # asked once: one that has had no work for long may end at any moment
    meet = threading.Barrier(known, timeout=STALLED)

    def look() -> int:
        meet.wait()
        return threading.get_ident()

    assert held <= set(await asyncio.gather(*(in_thread(look) for _ in range(known))))


async def test_with_sixteen_abandoned_nothing_more_is_started(stuck: Stuck) -> None:
    started: list[str] = []
    await in_thread(lambda: None)  # a free thread is no reason to start something either
    await stuck.abandon(MOST_ABANDONED - 1)
    await in_thread(lambda: started.append("sixteenth"))
    await stuck.abandon(1)
    before = workers()
    with pytest.raises(ThreadsExhausted, match="16 earlier calls"):
        await in_thread(lambda: started.append("never"))
    assert started == ["sixteenth"]
    assert set(workers()) <= set(before)
    stuck.release.set()
    await until(lambda: abandoned() < MOST_ABANDONED)
    await in_thread(lambda: started.append("again"))
    assert started == ["sixteenth", "again"]


async def test_a_model_is_told_that_a_tool_found_no_thread(stuck: Stuck) -> None:
    ran: list[str] = []

    @tool
    def plain() -> None:
        ran.append("plain")

    @tool(timeout=STALLED)
    def timed() -> None:
        ran.append("timed")

    @tool(approval=lambda: ran.append("asked") is None)
    async def asked() -> None:
        ran.append("not reached")

    @tool
    async def free() -> str:
        return "on the loop"

    script = Script(calls(call("plain"), call("timed"), call("asked"), call("free")), say("so"), say("never"))
    await stuck.abandon(MOST_ABANDONED)
    result = await Agent(script, tools=[plain, timed, asked, free]).run("go")
    refused = ("INTERNAL", "The tool was not run: 16 earlier calls still hold their threads.")
    results = [(each.code, each.content) for each in result.messages[2].results]
    assert results == [refused, refused, refused, (None, "on the loop")]
    assert (ran, result.text) == ([], "so")


def test_a_call_that_outlives_its_loop_ends_without_a_word() -> None:
    stuck = Stuck()
    asyncio.run(stuck.abandon(1))
    stuck.release.set()
    asyncio.run(until(lambda: abandoned() == 0))
    assert asyncio.run(in_thread(lambda: "next")) == "next"


def test_two_loops_in_two_threads_get_what_is_theirs() -> None:
    wrong: list[object] = []
    ended: list[str] = []

    async def ask(name: str) -> None:
        where.set(name)
        own = threading.get_ident()
        for number in range(200):
            value = await in_thread(lambda number=number: (where.get(), number))
            if (value, threading.get_ident()) != ((name, number), own):
                wrong.append(value)
        ended.append(name)

    loops = [threading.Thread(target=lambda name=name: asyncio.run(ask(name))) for name in ("a", "b")]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert (sorted(ended), wrong) == (["a", "b"], [])


def test_a_thread_without_work_ends_and_cannot_be_claimed_any_more() -> None:
    done: list[int] = []
    worker = Worker(lambda: partial(done.append, 1), idle=0)
    worker.start()
    worker.join()
    assert done == [1]
    assert worker not in workers()
    assert not worker.claim(lambda: partial(done.append, 2))
    assert done == [1]


def test_a_thread_at_work_cannot_be_claimed() -> None:
    release = threading.Event()
    worker = Worker(lambda: partial(release.wait, STALLED) if release.wait(STALLED) else release.clear, idle=0)
    worker.start()
    assert not worker.claim(lambda: release.clear)
    release.set()
    worker.join()


class LastMoment(SimpleQueue[Work]):
    """Hands its worker new work in the very moment in which it has waited long enough."""

    worker: Worker
    late: Work | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Work:
        if timeout is not None and self.empty() and self.late is not None:
            late, self.late = self.late, None
            assert self.worker.claim(late)
            raise Empty
        return super().get(block, timeout)


def test_work_that_was_taken_in_the_last_moment_is_done() -> None:
    done: list[int] = []
    worker = Worker(lambda: partial(done.append, 1), idle=0)
    given = worker._given = LastMoment()
    given.put(lambda: partial(done.append, 1))
    given.worker, given.late = worker, lambda: partial(done.append, 2)
    worker.start()
    worker.join()
    assert done == [1, 2]


def test_a_thread_that_ends_refuses_what_it_does_not_do() -> None:
    done: list[int] = []
    taken = 0
    for _ in range(300):
        worker = Worker(lambda: partial(done.append, 0), idle=0)
        worker.start()
        while worker.is_alive():
            taken += worker.claim(lambda: partial(done.append, 1))
        worker.join()
    assert taken == sum(done)


def test_giving_up_what_is_done_already_has_no_effect() -> None:
    def work() -> Callable[[], object]:
        return lambda: None

    worker = Worker(work, idle=0)
    worker.start()
    worker.join()
    worker.abandon(work)
    assert not worker.abandoned


STUCK = """
import asyncio, threading
from weft import Agent, tool
from weft.testing import Script, call, say

@tool(effect="none")
def stick():
    started.set()
    threading.Event().wait()

@tool(effect="none")
def quick():
    return "quick"

async def main():
    global started
    started = threading.Event()
    agent = Agent(Script(call("quick"), call("stick"), say("never")), tools=[stick, quick])
    task = asyncio.ensure_future(agent.run("go"))
    while not started.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    print(task.cancelled())

asyncio.run(main())
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=STALLED, check=False)


def test_a_process_with_a_stuck_thread_exits_at_once() -> None:
    process = run("-W", "error", "-c", STUCK)
    assert (process.returncode, process.stdout, process.stderr) == (0, "True\n", "")


FORK = """
import asyncio, os, threading
from weft._threads import in_thread, workers

asyncio.run(in_thread(int))
assert len(workers()) == 1
child = os.fork()
if child == 0:
    assert workers() == []
    ident = asyncio.run(in_thread(threading.get_ident))
    os._exit(0 if [worker.ident for worker in workers()] == [ident] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_starts_with_no_threads_and_makes_its_own() -> None:
    process = run("-c", FORK)
    assert (process.returncode, process.stdout) == (0, "0\n"), process.stderr
