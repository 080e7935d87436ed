"""Claims, cancels and records that are on their way to one journal at once: what is written follows what is there."""

from __future__ import annotations

import asyncio

from tests.thread.places import Body, Place, SlowStore, _Held, a_place, at_rest, sound, ticks
from weft import Agent, Limits
from weft.errors import Locked, TurnCancelled
from weft.messages import Message
from weft.pool import Pool
from weft.testing import CountingIds, Script, call, calls, hold, say
from weft.testing.clock import settle
from weft.thread import OpenStore, deny
from weft.thread._turns import Plan
from weft.thread.entries import Said


async def test_what_is_recorded_while_a_command_is_refused_follows_what_is_there() -> None:
    async with a_place() as place:
        gate = asyncio.Event()
        session = await place.one.create(Agent(Script(hold(gate, then=say("hello")), say("again"))))
        turn = await session.send("go")
        await settle()
        place.disk.hold(1)
        theirs = Plan(bodies=(Said(message=Message.user("mine")),), lease="claim_once")  # but the turn has the lease
        refused = asyncio.ensure_future(session._live.command(lambda _: theirs))
        await settle()
        gate.set()
        await settle()
        await place.disk.open_up()
        assert isinstance(await place.outcome(refused), Locked)
        assert (await place.outcome(turn.wait())).text == "hello"
        sound(place)
        assert (await place.two.verify(session.id)).sound


async def test_a_child_that_is_gone_on_with_while_it_is_cancelled_ends_once() -> None:
    for n in range(40):
        async with a_place() as place:
            look, pool = Body("look"), Pool(1)
            helper = Agent(Script(call("look"), say("helped")), name="helper", tools=[look.tool])
            wrapped = pool.wrap("help", helper, description="Helps.")
            parent = Agent(Script(call("help", prompt="x"), say("done")), tools=[wrapped])
            async with place.another("gone", "c") as gone:
                session = await gone.create(parent)
                await session.send("go")
                await look.started.wait()
                (receipt,) = session.receipts
            mine = await place.one.open(session.id, parent)
            going_on = asyncio.ensure_future(mine.resume())
            await ticks(n)
            await place.outcome(place.one.cancel(receipt.child))
            await place.outcome(going_on)
            await place.rests(mine)
            sound(place)
            for thread in (session.id, receipt.child):
                assert (await place.two.verify(thread)).sound, n


async def test_what_was_claimed_here_just_now_is_not_claimed_again_here() -> None:
    for n in range(12):
        async with a_place() as place:
            session = await place.one.create(Agent(Script(say("hello"), say("again"))))
            place.data._dead.add("one")  # it is held for dead, so its lease keeps nobody away
            going_on = asyncio.ensure_future(session.resume())
            await ticks(n)
            turn = await place.outcome(session.send("go"))
            await place.outcome(going_on)
            assert (await place.outcome(turn.wait())).text == "hello", n
            sound(place)


class Late(SlowStore):
    """Appends are written so many turns of the loop later."""

    turns = 0

    def _write(self, held: _Held) -> None:
        self._later(self.turns, held)

    def _later(self, turns: int, held: _Held) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._later, turns - 1, held)
        else:
            super()._write(held)


async def test_a_cancel_that_is_accepted_while_its_store_is_left_is_not_overruled() -> None:
    for n in range(1, 12):
        place, gate = Place(), asyncio.Event()
        disk = Late(place.data, "late", place.clock)
        agent = Agent(Script(hold(gate, then=say("hello"))))
        async with OpenStore(disk, clock=place.clock, ids=CountingIds("c"), grace=0.0) as store:
            session = await store.create(agent)
            await session.send("go")
            await settle()
            disk.turns = 12
            cancels = asyncio.ensure_future(session.cancel())
            await ticks(8)  # it is on its way
            gate.set()
            await ticks(n)  # what the model says waits for it
        await asyncio.wait([cancels])
        async with place.two:
            session = await place.two.open(session.id, agent)
            await session.resume()
            await place.rests(session)
            at_rest(place)


async def test_a_cancel_wins_over_a_limit_that_ends_what_was_just_gone_on_with() -> None:
    async with a_place() as place:
        pay = Body("pay", approval=True)
        script = Script(calls(call("pay"), call("pay")), say("never"))
        agent = Agent(script, tools=[pay.tool], limits=Limits(tool_calls=1))
        session = await place.one.create(agent)
        await place.outcome(session.send("go"))
        await place.rests(session)
        await place.two.decide(*map(deny, session.pending))
        place.disk.hold(2)  # the end that its limit gives it
        turn = await session.resume()
        await settle()
        assert await place.two.cancel(session.id)
        await place.disk.open_up()
        assert turn is not None
        assert isinstance(await place.outcome(turn.wait()), TurnCancelled)
        at_rest(place)
