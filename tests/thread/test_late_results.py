"""A result that comes when nobody waits for it any more is kept as an audit entry, and the model does not read it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.children import STALLED
from weft import Agent, tool
from weft._toolcall import GRACE
from weft.testing import ManualClock, Script, call, say
from weft.testing.clock import settle
from weft.thread import OpenStore, Session, open_store
from weft.thread.entries import Audit


async def audits(store: OpenStore, session: Session) -> list[tuple[str, str | None, str | None]]:
    await session.refresh()
    found = [entry.body async for entry in store.watch(session.id, until=session.head)]
    return [(body.what, body.call, body.detail) for body in found if isinstance(body, Audit)]


@pytest.mark.parametrize("grace", [True, False], ids=["within the grace", "after it"])
async def test_what_a_body_gives_after_its_deadline_is_noted(grace: bool) -> None:
    clock, go = ManualClock(), asyncio.Event()

    @tool(effect="none", timeout=5.0)
    async def slow() -> str:
        """Slow."""
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                if grace:
                    return "cleaned up"
        return "done at last"

    script = Script(call("slow"), say("too slow"))
    async with open_store("memory:", clock=clock, grace=0) as store:
        session = await store.create(Agent(script, tools=[slow]))
        turn = await session.send("go")
        await settle()
        await clock.advance(5.0)
        await clock.advance(GRACE)
        assert (await turn.wait()).text == "too slow"
        go.set()
        await settle()
        name = session.messages[1].calls[0].id
        assert await audits(store, session) == [("late_result", name, "cleaned up" if grace else "done at last")]
        assert [result.code for result in script.requests[1].messages[-1].results] == ["TIMEOUT"]


async def test_what_a_thread_gives_or_raises_after_its_deadline_is_noted() -> None:
    clock, go = ManualClock(), threading.Event()

    @tool(effect="none", timeout=5.0)
    def gives() -> dict[str, int]:
        """Slow."""
        assert go.wait(STALLED)
        return {"a": 1}

    @tool(effect="none", timeout=5.0)
    def raises() -> None:
        """Slow."""
        assert go.wait(STALLED)
        raise OSError("secret")

    async with open_store("memory:", clock=clock, grace=0) as store:
        noted = asyncio.Event()
        store.observe(lambda _, entry: noted.set() if isinstance(entry.body, Audit) else None)
        for body, said in ((gives, '{"a":1}'), (raises, "INTERNAL: The tool failed with an internal error.")):
            go.clear()
            noted.clear()
            session = await store.create(Agent(Script(call(body.name), say("too slow")), tools=[body]))
            turn = await session.send("go")
            await settle()
            await clock.advance(5.0)
            assert (await turn.wait()).text == "too slow"
            go.set()
            await noted.wait()
            assert [detail for _, _, detail in await audits(store, session)] == [said]


async def test_a_result_in_time_is_noted_nowhere() -> None:
    @tool(effect="none", timeout=5.0)
    async def quick() -> str:
        """Quick."""
        return "done"

    @tool(effect="none", timeout=5.0)
    def quick_thread() -> str:
        """Quick."""
        return "done"

    async with open_store("memory:") as store:
        session = await store.create(
            Agent(Script(call("quick"), call("quick_thread"), say("x")), tools=[quick, quick_thread])
        )
        await session.ask("go")
        assert await audits(store, session) == []
