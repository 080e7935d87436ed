"""Delegate, park for an approval, end the process, and finish in another one.

    python -m examples.demo                 the whole story, as two processes
    python -m examples.demo ask FILE        asks the desk; ends when a person is needed
    python -m examples.demo approve FILE    approves what waits; ends with the desk's answer

Offline: the models are scripts. With WEFT_DEMO_MODEL=openai:gpt-5 all agents use that model. Either process may be
killed at any moment; the next one goes on with what is in the file.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from weft import Agent, Context, RunFailed, Tool, Usage, tool
from weft.pool import Pool
from weft.testing import Script, call, say
from weft.thread import OpenStore, Session, approve, open_store

PROMPT = "Order 42 arrived broken. Please refund it."
META = {"demo": "refund"}
DONE, FAILED, UNCERTAIN, NOTHING = 0, 1, 3, 4  # exit codes


class Shop:
    """The world outside: a refund is one line in a file that weft knows nothing of."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger

    def pay_back(self, order: str, cents: int, key: str) -> None:
        with self.ledger.open("a") as file:
            file.write(f"{order} {cents} {key} {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())


@tool(effect="none")  # only reads: after a crash it runs again
def look_up(order: str) -> str:
    """Look an order up."""
    return f"Order {order}: a teapot, 500 cents, delivered."


@tool(approval=True, effect="once")  # waits for a person; after a crash inside it, a person decides
def refund(ctx: Context[Shop], order: str, cents: Annotated[int, Field(gt=0)]) -> str:
    """Refund an order."""
    ctx.deps.pay_back(order, cents, ctx.call.idempotency_key)
    return f"Refunded {cents} cents for order {order}."


def agent(name: str, script: Script, instructions: str, *tools: Tool[Any]) -> Agent[Shop]:
    model = os.environ.get("WEFT_DEMO_MODEL") or script
    return Agent(model, name=name, instructions=instructions, deps=Shop, tools=tools)


def team(pool: Pool) -> Agent[Shop]:
    """A desk that delegates to a researcher and to a refunds agent."""
    researcher = agent(
        "researcher",
        Script(call("look_up", order="42"), say("Order 42 is a teapot for 500 cents.")),
        "Call look_up. Answer in one sentence that names the price in cents.",
        look_up,
    )
    refunds = agent(
        "refunds",
        Script(call("refund", order="42", cents=500), say("500 cents were refunded.")),
        "Call refund once, with the order and the cents that you are given. Then say what came of it.",
        refund,
    )
    return agent(
        "desk",
        Script(
            call("researcher", prompt="What did order 42 cost?"),
            call("refunds", prompt="Refund order 42: 500 cents."),
            say("Sorry about the teapot. Your 500 cents are on their way."),
        ),
        "You help a shop's customers. Ask the researcher for the price, then let refunds pay it back.",
        pool.wrap("researcher", researcher, description="Finds out about an order."),
        pool.wrap("refunds", refunds, description="Refunds an order; name it, and the cents."),
    )


async def find(store: OpenStore, desk: Agent[Shop], shop: Shop) -> Session | None:
    """The demo's session in this file."""
    async for header in store.list(meta=META):
        return await store.open(header.thread, desk, deps=shop)
    return None


async def ask(store: OpenStore, desk: Agent[Shop], shop: Shop) -> int:
    session = await find(store, desk, shop) or await store.create(desk, deps=shop, meta=META)
    print("customer:", PROMPT)
    await session.resume()  # what a killed process left
    turn = await session.send(PROMPT, key="refund")  # sent again after a kill, it is still one turn
    await session.settled_or_waiting()
    await turn.wait()  # raises where the run failed
    return await report(store, session, shop)


async def approve_all(store: OpenStore, desk: Agent[Shop], shop: Shop) -> int:
    session = await find(store, desk, shop)
    if session is None or not session.messages:
        print("Nothing had been accepted, so nothing is lost and nothing waits. Ask first.")
        return NOTHING
    await session.resume()  # what a killed process left
    await session.settled_or_waiting()
    while requests := [request for request in session.pending if request.kind == "approval"]:
        for request in requests:
            print("approving:", " / ".join(request.path), "->", request.tool, request.args)
        await session.decide(*map(approve, requests))
        await session.settled_or_waiting()
    return await report(store, session, shop)


async def report(store: OpenStore, session: Session, shop: Shop) -> int:
    """The answer or what waits, the threads with their receipts, the usage, the ledger."""
    last = session.messages[-1]
    answered = last.role == "assistant" and not last.calls
    if answered:
        print("desk:", last.text)
    for request in session.pending:
        print(f"waiting for a person ({request.kind}):", " / ".join(request.path), "->", request.tool, request.args)
    print("threads:", session.header.name)
    await draw(store, session, "  ")
    usage = session.usage
    print(f"usage: own {spent(usage.turns)}, delegated {spent(usage.delegated)}, total {spent(usage.total)}")
    for line in shop.ledger.read_text().splitlines() if shop.ledger.exists() else []:
        order, cents, _, pid = line.split()
        print(f"ledger: {cents} cents for order {order}, by", "this process" if int(pid) == os.getpid() else "another")
    if any(request.kind == "uncertain" for request in session.pending):
        print("UNCERTAIN: a process died inside the refund, so it may have happened or not. Look into the ledger;")
        print("then decide: resolve(request, what you found), or approve(request) to run it again.")
        return UNCERTAIN
    return DONE if answered or session.pending else FAILED


async def draw(store: OpenStore, session: Session, indent: str) -> None:
    """The children, each with its receipt."""
    for receipt in session.receipts:
        print(f"{indent}-> {receipt.agent} [{receipt.state}]", receipt.stop or "(no answer yet)")
        await draw(store, await store.open(receipt.child), indent + "  ")


def spent(usage: Usage) -> str:
    return f"{usage.tokens} tokens" + (f" (+ {usage.unknown} unknown)" if usage.unknown else "")


async def run(command: str, file: str, shop: Shop, opening: Callable[[str], OpenStore]) -> int:
    async with opening(f"sqlite:///{file}") as store, Pool(2) as pool:
        try:
            return await (ask if command == "ask" else approve_all)(store, team(pool), shop)
        except RunFailed as error:
            print("the run failed:", error)
            return FAILED


def step(heading: str, *args: str) -> int:
    """One command in a process of its own."""
    print(f"== {heading}", flush=True)
    return subprocess.run([sys.executable, "-m", "examples.demo", *args], check=False).returncode


def story() -> int:
    """Both commands on a new file; stops at the first that fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/shop.db"
        return step("The first process asks, and ends while the refund waits for a person.", "ask", file) or step(
            "The second process opens the file and approves; the desk answers.", "approve", file
        )


def main(
    args: list[str], *, shop: Callable[[Path], Shop] = Shop, opening: Callable[[str], OpenStore] = open_store
) -> int:
    match args:
        case []:
            return story()
        case ["ask" | "approve" as command, file]:
            return asyncio.run(run(command, file, shop(Path(f"{file}.ledger")), opening))
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
