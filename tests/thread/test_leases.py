"""A turn's lease: renewed while the turn runs, and not given back to who has lost it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import pytest

from tests.thread.places import Body, SlowStore
from weft import Agent, tool
from weft.errors import StoreFailed
from weft.testing import CountingIds, ManualClock, Script, call, hold, say
from weft.testing.clock import settle
from weft.thread import Memory, open_store
from weft.thread.memory import MemoryStore
from weft.thread.openstore import OpenStore


class Held:
    """A tool whose body waits."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.runs = 0

        @tool(effect="none")
        async def work() -> str:
            """Work."""
            self.runs += 1
            self.started.set()
            await self.release.wait()
            return "worked"

        self.tool = work

    def agent(self) -> Agent:
        return Agent(Script(call("work"), say("done")), tools=[self.tool])


class Deaf(MemoryStore):
    """A store whose renewals never arrive."""

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        raise StoreFailed("no answer")


async def keeps_its_lease(one: OpenStore, two: OpenStore, clock: ManualClock, held: Held) -> None:
    """A turn of the first store that takes far longer than its lease lasts; the second never gets it."""
    session = await one.create(held.agent())
    turn = await session.send("go")
    await held.started.wait()
    await clock.advance(300.0)
    other = await two.open(session.id, Held().agent())
    assert await other.resume() is None
    held.release.set()
    assert (await turn.wait()).text == "done"


async def test_a_long_turn_keeps_its_lease() -> None:
    data, clock, held = Memory(), ManualClock(), Held()
    async with open_store(data, clock=clock) as one, open_store(data, clock=clock) as two:
        await keeps_its_lease(one, two, clock, held)
    assert held.runs == 1


async def test_who_lost_its_lease_writes_nothing_more_and_its_handles_follow_the_taker() -> None:
    data, clock, stalled, taker = Memory(), ManualClock(), Held(), Held()
    deaf = Deaf(data, owner="deaf", ttl=30.0, clock=clock, survives=True)
    async with OpenStore(deaf, clock=clock, ids=CountingIds("a")) as one, open_store(data, clock=clock) as two:
        session = await one.create(stalled.agent())
        turn = await session.send("go")
        await stalled.started.wait()
        await clock.advance(31.0)
        other = await two.open(session.id, taker.agent())
        taken = await other.resume()
        assert taken is not None
        await taker.started.wait()
        stalled.release.set()
        await clock.advance(1.0)
        taker.release.set()
        assert (await taken.wait()).text == "done"
        waited = asyncio.ensure_future(turn.wait())
        await clock.advance(0.0)  # it begins to wait, and so to look
        await clock.advance(1.0)
        assert (await waited).text == "done"
        await other.refresh()
        owners = [
            entry.body.owner async for entry in two.watch(session.id, until=other.head) if entry.kind == "turn_started"
        ]
        results = [entry async for entry in two.watch(session.id, until=other.head) if entry.kind == "tool_result"]
    assert owners[0] == "deaf"
    assert len(owners) == 2
    assert len(results) == 1


async def test_no_body_starts_once_the_lease_may_be_over() -> None:
    data, clock, first = Memory(), ManualClock(), Held()
    deaf = Deaf(data, owner="deaf", ttl=30.0, clock=clock, survives=True)
    script = Script(call("work"), call("late"), say("never"))
    late = 0

    @tool(name="late")
    async def too_late() -> str:
        """Come late."""
        nonlocal late
        late += 1
        return "late"

    async with OpenStore(deaf, clock=clock, ids=CountingIds("a"), grace=0.0) as store:
        session = await store.create(Agent(script, tools=[first.tool, too_late]))
        await session.send("go")
        await first.started.wait()
        await clock.advance(25.0)  # four fifths of the lease are over, the lease itself is not
        first.release.set()
        await clock.advance(1.0)
    assert late == 0


@pytest.mark.parametrize("effect", ["none", "once"])
async def test_a_turn_whose_lease_ran_out_and_that_nobody_took_goes_on_here(effect: Literal["none", "once"]) -> None:
    clock, started = ManualClock(), asyncio.Event()
    runs = 0

    @tool(name="work", effect=effect)
    async def work() -> str:
        nonlocal runs
        runs += 1
        started.set()
        if runs == 1:
            await asyncio.Event().wait()
        return "worked"

    async with open_store(Memory(), clock=clock, grace=0.0) as store:
        session = await store.create(Agent(Script(call("work"), say("done")), tools=[work]))
        turn = await session.send("go")
        await started.wait()
        clock.step_back(-3600.0)  # forward: the machine was suspended
        waits = asyncio.ensure_future(turn.wait())
        for _ in range(60):
            await clock.advance(1.0)
        assert waits.done()
        result = waits.result()
        assert (result.stop, runs) == (("answered", 2) if effect == "none" else ("parked", 1))


async def test_who_lost_its_lease_goes_on_when_the_taker_dies() -> None:
    data, clock, stalled, taker = Memory(), ManualClock(), Held(), Held()
    deaf = Deaf(data, owner="deaf", ttl=30.0, clock=clock, survives=True)
    async with OpenStore(deaf, clock=clock, ids=CountingIds("a"), grace=0.0) as one:
        session = await one.create(stalled.agent())
        turn = await session.send("go")
        await stalled.started.wait()
        await clock.advance(31.0)
        async with open_store(data, clock=clock, grace=0.0) as two:
            assert await (await two.open(session.id, taker.agent())).resume() is not None
            await taker.started.wait()
            stalled.release.set()
            await clock.advance(1.0)
            assert turn.outcome is None
        waits = asyncio.ensure_future(turn.wait())
        for _ in range(10):
            await clock.advance(1.0)
        assert waits.done()
        assert waits.result().text == "done"


@pytest.mark.parametrize("had", ["begun", "queued"])
async def test_a_message_that_is_sent_again_is_answered_although_who_had_it_is_dead(had: str) -> None:
    """Its sender cannot know what became of it; the same key and message is all that it has to say."""
    data, clock, dead = Memory(), ManualClock(), Held()
    deaf = Deaf(data, owner="deaf", ttl=30.0, clock=clock, survives=True)
    async with (
        OpenStore(deaf, clock=clock, ids=CountingIds("a"), grace=0.0) as one,
        open_store(data, clock=clock) as two,
    ):
        session = await one.create(dead.agent())
        if had == "queued":
            await session.send("first")
        await session.send("go", key="k")
        await dead.started.wait()
        await clock.advance(15.0)  # its lease is still good
        taker = Held()
        taker.release.set()
        agent = Agent(Script(call("work"), say("done"), call("work"), say("done")), tools=[taker.tool])
        again = await (await two.open(session.id, agent)).send("go", key="k")
        waits = asyncio.ensure_future(again.wait())
        await clock.advance(0.0)
        for _ in range(40):
            await clock.advance(1.0)
        assert waits.done()
        assert (await waits).text == "done"


class Losing(SlowStore):
    """Whose renewals say that nothing is held any more, at the moment at which what was held up is written."""

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        for late in self.held[:1]:
            late.future.set_result(await MemoryStore.append(self, *late.given))
            self.held.remove(late)
        return {}


async def test_a_reply_that_waits_when_the_lease_is_lost_leaves_no_trace() -> None:
    data, clock, body = Memory(), ManualClock(), Body(free=True)
    disk = Losing(data, "one", clock)
    agent = Agent(Script(call("act"), say("done")), tools=[body.tool])
    async with OpenStore(disk, clock=clock, ids=CountingIds("a")) as one, open_store(data, clock=clock) as two:
        session = await one.create(agent)
        disk.hold(3)  # the append of the result: the reply to it waits
        turn = await session.send("go")
        await settle()
        noted = asyncio.ensure_future(session.note("n", "goes before what waits"))
        await clock.advance(40.0)
        await disk.open_up()
        await clock.advance(1.0)
        await noted
        assert (await turn.wait()).text == "done"
        assert (await two.open(session.id)).path == session.path


class Stalled(SlowStore):
    """Whose renewals fail while its appends are held."""

    deaf = False

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        if self.deaf:
            raise StoreFailed("no answer")
        return await super().renew(held)


async def test_what_was_on_its_way_when_the_lease_was_lost_is_not_written_under_the_next() -> None:
    data, clock, body = Memory(), ManualClock(), Body(free=True)
    disk = Stalled(data, "one", clock)
    mine = Agent(Script(call("act"), say("done")), tools=[body.tool])
    theirs = Agent(Script(hold(asyncio.Event(), say("never"))), tools=[body.tool])
    async with OpenStore(disk, clock=clock, ids=CountingIds("a")) as one:
        session = await one.create(mine)
        disk.hold(2)  # the append of the call
        turn = await session.send("go")
        disk.deaf = True
        await clock.advance(31.0)
        async with open_store(data, clock=clock, ids=CountingIds("b"), grace=0.0) as two:
            taker = await two.open(session.id, theirs)
            assert await taker.resume() is not None
            await taker.send("and this", policy="steer")
            disk.deaf = False
            await clock.advance(11.0)
        notes = [asyncio.ensure_future(session.note("n", "goes before what waits")) for _ in range(3)]
        await settle()
        await disk.open_up()
        await clock.advance(1.0)
        await asyncio.gather(*notes)
        assert (await turn.wait()).text == "done"
        assert [message.role for message in session.messages] == ["user", "user", "assistant", "tool", "assistant"]
        assert body.runs == 1


class Shaky(MemoryStore):
    """Whose first renewal raises what a store should not."""

    asked = 0

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        self.asked += 1
        if self.asked == 1:
            raise OSError("connection reset")
        return await super().renew(held)


async def test_a_renewal_that_raises_what_it_should_not_is_not_the_last() -> None:
    data, clock, held = Memory(), ManualClock(), Held()
    disk = Shaky(data, owner="shaky", ttl=30.0, clock=clock, survives=True)
    async with OpenStore(disk, clock=clock, ids=CountingIds("a")) as one, open_store(data, clock=clock) as two:
        await keeps_its_lease(one, two, clock, held)
