"""An approval two levels down, with siblings at work beside it, decided by another operating-system process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from weft import Agent, tool
from weft.pool import Pool
from weft.testing import Script, call, calls, say
from weft.thread import open_store


class Shop:
    """Two tools that count, and a tree of agents over them."""

    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.looks: list[str] = []

        @tool(approval=True)
        async def refund(order: str) -> str:
            """Refund an order."""
            self.refunds.append(order)
            return f"refunded {order}"

        @tool(effect="none")
        async def look(order: str) -> str:
            """Look an order up."""
            self.looks.append(order)
            return f"{order} has shipped"

        self.refund, self.look = refund, look

    def desk(self, pool: Pool) -> Agent:
        refunds = Agent(
            Script(
                calls(call("refund", order="1"), call("refund", order="2"), call("look", order="3")),
                say("both are back"),
            ),
            name="refunds",
            tools=[self.refund, self.look],
        )
        middle = Agent(
            Script(calls(call("refunds", prompt="1 and 2"), call("look", order="4")), say("it is settled")),
            name="middle",
            tools=[pool.wrap("refunds", refunds, description="Refunds."), self.look],
        )
        script = Script(calls(call("middle", prompt="settle it"), call("look", order="5")), say("all done"))
        return Agent(script, name="desk", tools=[pool.wrap("middle", middle, description="Settles."), self.look])


async def other_process(file: Path, *requests: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.crash.decider", str(file), *requests, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one after the other"])
@pytest.mark.parametrize("limit", [1, 3])
async def test_an_approval_two_levels_down_is_decided_by_another_process(
    tmp_path: Path, limit: int, together: bool
) -> None:
    file, shop = tmp_path / "shop.db", Shop()
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.create(shop.desk(Pool(limit)))
        assert (await session.ask("go")).parked
        waiting = session.pending
        assert [request.path for request in waiting] == [("desk", "middle", "refunds")] * 2
        batches = [[request.id for request in waiting]] if together else [[request.id] for request in waiting[::-1]]
        for batch in batches:
            await other_process(file, *batch)
        await session.resume()
        await session.settled_or_waiting()
        assert session.pending == ()
        assert session.messages[-1].text == "all done"
        assert [receipt.stop for receipt in session.receipts] == ["it is settled"]
    assert sorted(shop.refunds) == ["1", "2"]
    assert sorted(shop.looks) == ["3", "4", "5"]


async def test_it_is_decided_while_no_process_has_the_agents(tmp_path: Path) -> None:
    file, shop = tmp_path / "shop.db", Shop()
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.create(shop.desk(Pool(1)))
        assert (await session.ask("go")).parked
        waiting = [request.id for request in session.pending]
    await other_process(file, *waiting)
    async with open_store(f"sqlite:///{file}") as store:
        turn = await store.recover(session.id, shop.desk(Pool(1)))
        assert turn is not None
        assert (await turn.wait()).text == "all done"
    assert sorted(shop.refunds) == ["1", "2"]
    assert sorted(shop.looks) == ["3", "4", "5"]
