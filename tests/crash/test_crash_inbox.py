"""Every boundary of what is sent to a busy session, of interrupts and of cancels, cut once each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.crash.test_crash_points import session_of
from weft import Agent, Message, ModelRequest, Usage, tool
from weft.errors import Dropped, TurnCancelled
from weft.pool import Pool
from weft.testing import Script, call, calls, reply, say
from weft.testing.crash import CrashFailed, CrashReport, Kit, _check_input, crash_points
from weft.thread import Entry, Session, approve, resolve
from weft.thread._view import View
from weft.thread.entries import Header, Inbox, Said


class Work:
    """A body that waits until it is released, and can be waited for."""

    pause = 0.0
    """Seconds between looks: none where nothing takes time."""

    def __init__(self, name: str = "work", **options: Any) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()

        @tool(name=name, **options)
        async def work() -> str:
            self.started.set()
            await self.release.wait()
            return "worked"

        self.tool = work

    async def begun(self) -> None:
        """Return when it is at work; or after a while, since after a crash it may be over."""
        for _ in range(400):
            if self.started.is_set():
                return
            await asyncio.sleep(self.pause)


def model(first: Any) -> Script:
    """Asks for its work once. Costs nothing: how many calls it takes depends on when a message comes."""

    def make(request: ModelRequest) -> Any:
        if request.messages[-1].text in ("first", "x"):
            return calls(*first, usage=Usage())
        texts = [message.text for message in request.messages if message.role == "user"]
        return say("read " + ", ".join(texts), usage=Usage())

    return Script(*[reply(make)] * 8)


async def to_rest(session: Session) -> None:
    """Decide whatever waits, until nothing does."""
    await session.settled_or_waiting()
    while session.pending:
        request = session.pending[0]
        await session.decide(resolve(request, "it was done") if request.kind == "uncertain" else approve(request))
        await session.settled_or_waiting()


async def steers(kit: Kit) -> None:
    work = Work()
    agent = kit.watch(Agent(model([call("work")]), tools=[work.tool]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("first", key="1")
        await work.begun()
        await session.send("queued", key="2")
        await session.send("steer", key="3", policy="steer")
        work.release.set()
        await session.send("steer again", key="4", policy="steer")
        await to_rest(session)


async def interrupts(kit: Kit) -> None:
    work = Work()
    agent = kit.watch(Agent(model([call("work")]), tools=[work.tool]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("first", key="1")
        await work.begun()
        await session.send("queued", key="2")
        await session.send("now", key="3", policy="interrupt")
        work.release.set()
        await to_rest(session)


async def interrupts_parked(kit: Kit) -> None:
    gated = Work("gated", approval=True)
    free = Work()
    gated.release.set()
    free.release.set()
    agent = kit.watch(Agent(model([call("work"), call("gated")]), tools=[gated.tool, free.tool]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("first", key="1")
        await session.settled_or_waiting()
        await session.send("now", key="2", policy="interrupt")
        await to_rest(session)


async def cancels_a_tree(kit: Kit) -> None:
    leaf, own = Work("leaf"), Work("own", effect="none")
    pool = Pool(2)
    below = kit.watch(Agent(model([call("leaf")]), name="below", tools=[leaf.tool]))
    wrapped = pool.wrap("below", below, description="B.")
    middle = kit.watch(Agent(model([call("below", prompt="x")]), name="middle", tools=[wrapped]))
    tools = [pool.wrap("middle", middle, description="M."), own.tool]
    desk = kit.watch(Agent(model([call("own"), call("middle", prompt="x")]), tools=tools))
    async with kit.open() as store, pool:
        session = await session_of(store, desk)
        await session.resume()
        turn = await session.send("first", key="1")
        await leaf.begun()
        await turn.cancel()
        leaf.release.set()
        own.release.set()
        await session.settled_or_waiting()
        await session.send("then", key="2")
        await session.settled_or_waiting()
        with suppress(TurnCancelled):
            await turn.wait()


async def cancels_a_parked_tree(kit: Kit) -> None:
    leaf = Work("leaf", approval=True)
    pool = Pool(2)
    below = kit.watch(Agent(model([call("leaf")]), name="below", tools=[leaf.tool]))
    wrapped = pool.wrap("below", below, description="B.")
    middle = kit.watch(Agent(model([call("below", prompt="x")]), name="middle", tools=[wrapped]))
    desk = kit.watch(Agent(model([call("middle", prompt="x")]), tools=[pool.wrap("middle", middle, description="M.")]))
    async with kit.open() as store, pool:
        session = await session_of(store, desk)
        await session.resume()
        turn = await session.send("first", key="1")
        await session.settled_or_waiting()
        await turn.cancel()
        await session.settled_or_waiting()
        await session.send("then", key="2")
        await session.settled_or_waiting()


async def cancels_a_parked_child(kit: Kit) -> None:
    leaf = Work("leaf", approval=True)
    pool = Pool(2)
    below = kit.watch(Agent(model([call("leaf")]), name="below", tools=[leaf.tool]))
    desk = kit.watch(Agent(model([call("below", prompt="x")]), tools=[pool.wrap("below", below, description="B.")]))
    async with kit.open() as store, pool:
        session = await session_of(store, desk)
        await session.resume()
        await session.send("first", key="1")
        await session.settled_or_waiting()
        for receipt in session.receipts:
            await store.cancel(receipt.child)
        for _ in range(400):  # what the child had asked is denied here a little later, where a write is refused
            if session.pending:
                await session.resume()
                await asyncio.sleep(Work.pause)
        await session.settled_or_waiting()
        await session.send("then", key="2")
        await session.settled_or_waiting()


async def clears(kit: Kit) -> None:
    work = Work()
    agent = kit.watch(Agent(model([call("work")]), tools=[work.tool]))
    async with kit.open() as store:
        session = await session_of(store, agent)
        await session.resume()
        await session.send("first", key="1")
        await work.begun()
        await session.send("steer", key="2", policy="steer")
        await session.send("queued", key="3")
        work.release.set()
        await session.clear_queue()
        sent = await session.send("last", key="4")
        await to_rest(session)
        with suppress(Dropped):
            await sent.wait()


def all_are_read(view: View, *texts: str) -> None:
    said = [message.text for message in view.messages if message.role == "user"]
    assert sorted(said) == sorted(texts)
    assert view.messages[-1].text == "read " + ", ".join(said)


def steered(view: View) -> None:
    all_are_read(view, "first", "queued", "steer", "steer again")


def interrupted(view: View) -> None:
    all_are_read(view, "first", "queued", "now")
    said = [message.text for message in view.messages if message.role == "user"]
    assert said.index("now") < said.index("queued") or "answered" in [end.outcome for end in view.ended.values()][:1]


def interrupted_parked(view: View) -> None:
    all_are_read(view, "first", "now")
    assert "cancelled" in [end.outcome for end in view.ended.values()]


def cancelled(view: View) -> None:
    all_are_read(view, "first", "then")
    assert [end.outcome for end in view.ended.values() if end.outcome != "parked"] == ["cancelled", "answered"]


def cleared(view: View) -> None:
    said = [message.text for message in view.messages if message.role == "user"]
    assert set(said) <= {"first", "steer", "queued", "last"}
    assert len(set(said)) == len(said)


def child_cancelled(view: View) -> None:
    all_are_read(view, "first", "then")
    assert [receipt.settled and receipt.settled.state for receipt in view.receipts.values()] == ["cancelled"]


SCENARIOS: list[tuple[Callable[[Kit], Any], Callable[[View], None]]] = [
    (steers, steered),
    (interrupts, interrupted),
    (interrupts_parked, interrupted_parked),
    (cancels_a_tree, cancelled),
    (cancels_a_parked_tree, cancelled),
    (cancels_a_parked_child, child_cancelled),
    (clears, cleared),
]


@pytest.mark.soak  # its long form crashes each run that follows a crash as well
@pytest.mark.parametrize(("scenario", "holds"), SCENARIOS)
async def test_every_crash_point_of_the_inbox_and_of_cancelling_holds(
    scenario: Callable[[Kit], Any], holds: Callable[[View], None], tell: Callable[[str, CrashReport], None]
) -> None:
    def check(kit: Kit) -> None:
        views = list(kit.views().values())
        holds(views[0])
        assert not any(view.undecided for view in views)

    report = await crash_points(scenario, check, crashes=2 if os.environ.get("WEFT_SOAK") else 1)
    tell(scenario.__name__, report)
    assert len(report.points) > 10


def delivers(*items: str) -> list[Entry]:
    """A turn that is given these items, of which one was accepted, and dropped where it is given none."""
    header = Header(thread="t", kind="session", name="a", created=0.0, root="t", path=("a",))
    hello = Message.user("hello")
    accepted = Inbox(state="accepted", message=hello, key="k")
    said = [Said(message=hello, item=item) for item in items] or [Inbox(state="dropped", item="item")]
    return [
        Entry(position=n, id="item" if body is accepted else f"e{n}", parent=None, time=0.0, body=body)
        for n, body in enumerate([header, accepted, *said])
    ]


def test_the_kit_sees_input_that_is_delivered_twice_or_never() -> None:
    _check_input("t", delivers("item"))
    _check_input("t", delivers())
    for wrong in (delivers("item", "item"), delivers("another"), delivers("item")[:2]):
        with pytest.raises(CrashFailed, match="accepted input"):
            _check_input("t", wrong)
    once = delivers("item")
    with pytest.raises(CrashFailed, match="a key"):
        _check_input("t", [*once, *[replace(entry, id="other") for entry in once[1:2]], *said_of("other")])


def said_of(item: str) -> list[Entry]:
    body = Said(message=Message.user("hello"), item=item)
    return [Entry(position=9, id="e9", parent=None, time=0.0, body=body)]
