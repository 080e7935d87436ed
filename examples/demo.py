"""Delegate, park for an approval, end the process, and finish in another one.

    python -m examples.demo                 the whole story, as two processes
    python -m examples.demo ask FILE        asks the desk; ends when a person is needed
    python -m examples.demo approve FILE    approves what waits; ends with the desk's answer

The models are scripts, so it runs offline; with WEFT_DEMO_MODEL=openai:gpt-5 all agents use that model.
Either command may be killed at any moment; the next one goes on with what is there.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from weft import Agent, Context, RunFailed, Usage, tool
from weft.pool import Pool
from weft.testing import Script, call, say
from weft.thread import OpenStore, Session, approve, open_store

PROMPT = "Order 42 arrived broken. Please refund it."
META = {"demo": "refund"}
DONE, FAILED, UNCERTAIN, NOTHING = 0, 1, 3, 4  # exit codes


class Shop:
    """The world outside: money moves by one line in a ledger file."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger

    def pay_back(self, order: str, cents: int, key: str) -> None:
        with self.ledger.open("a") as file:
            file.write(f"{order} {cents} {key} {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())


@tool(effect="none")
def look_up(order: str) -> str:
    """Look an order up."""
    return f"Order {order}: a teapot, 500 cents, delivered."


@tool(approval=True, effect="once")
def refund(ctx: Context[Shop], order: str, cents: Annotated[int, Field(gt=0)]) -> str:
    """Refund an order."""
    ctx.deps.pay_back(order, cents, ctx.call.idempotency_key)
    return f"Refunded {cents} cents for order {order}."


def team(pool: Pool) -> Agent[Shop]:
    """The desk, with a researcher and a refunds agent under it."""
    model = os.environ.get("WEFT_DEMO_MODEL")
    researcher = Agent(
        model or Script(call("look_up", order="42"), say("A teapot for 500 cents, delivered.")),
        name="researcher",
        instructions="Look the order up with look_up. Answer in one sentence, with its price in cents.",
        deps=Shop,
        tools=[look_up],
    )
    refunds = Agent(
        model or Script(call("refund", order="42", cents=500), say("500 cents are on their way.")),
        name="refunds",
        instructions="Call refund once, with the order and the cents you are given. Say what came of it.",
        deps=Shop,
        tools=[refund],
    )
    return Agent(
        model
        or Script(
            call("researcher", prompt="What is order 42, and what did it cost?"),
            call("refunds", prompt="Refund order 42: 500 cents."),
            say("Sorry about the teapot. Your 500 cents are on their way."),
        ),
        name="desk",
        instructions="You help customers of a shop. Ask the researcher first, then let refunds pay the price back.",
        deps=Shop,
        tools=[
            pool.wrap("researcher", researcher, description="Finds out about an order."),
            pool.wrap("refunds", refunds, description="Refunds an order; name it, and the cents."),
        ],
    )


async def find(store: OpenStore, desk: Agent[Shop], shop: Shop) -> Session | None:
    """The demo's session in this file, if there is one."""
    async for header in store.list(meta=META):
        return await store.open(header.thread, desk, deps=shop)
    return None


async def go_on(store: OpenStore, session: Session) -> None:
    """Until nothing is left to do without a person; begins with what a killed process left."""
    seen = session.head.count
    while await session.resume() is not None:
        async for entry in store.watch(session.id, after=seen):
            seen = entry.position + 1
            if entry.kind in ("turn_ended", "request"):
                break


async def ask(store: OpenStore, desk: Agent[Shop], shop: Shop) -> int:
    session = await find(store, desk, shop) or await store.create(desk, deps=shop, meta=META)
    print("customer:", PROMPT)
    turn = await session.send(PROMPT, key="refund")  # sent again after a kill, it is still one turn
    await go_on(store, session)
    await turn.wait()
    return await report(store, session, shop)


async def approve_all(store: OpenStore, desk: Agent[Shop], shop: Shop) -> int:
    session = await find(store, desk, shop)
    if session is None or not session.messages:
        print("Nothing had been accepted: there is nothing to approve. Run `ask` first.")
        return NOTHING
    await go_on(store, session)
    while asked := [request for request in session.pending if request.kind == "approval"]:
        for request in asked:
            print("approving:", " / ".join(request.path), "->", request.tool, request.args)
        await session.decide(*(approve(request, by="you") for request in asked))
        await go_on(store, session)
    return await report(store, session, shop)


async def report(store: OpenStore, session: Session, shop: Shop) -> int:
    """What is there now: the answer or what waits, the threads, the receipts, the usage, the ledger."""
    last = session.messages[-1]
    if last.role == "assistant" and not last.calls:
        print("desk:", last.text)
    for request in session.pending:
        print(f"waiting ({request.kind}):", " / ".join(request.path), "->", request.tool, request.args)
    print("threads:")
    await draw(store, session, "  ")
    print("receipts:")
    for receipt in session.receipts:
        print(f"  {receipt.agent}: {receipt.state}", f"- {receipt.stop}" if receipt.stop else "")
    usage = session.usage
    print(f"usage: own {tokens(usage.turns)}; delegated {tokens(usage.delegated)}; total {tokens(usage.total)}")
    for line in shop.ledger.read_text().splitlines() if shop.ledger.exists() else []:
        order, cents, _, pid = line.split()
        print(f"ledger: order {order}, {cents} cents, by", "this process" if int(pid) == os.getpid() else "another")
    if any(request.kind == "uncertain" for request in session.pending):
        print("UNCERTAIN: a process died in the refund, which may have happened or not. Look into the ledger,")
        print("then resolve(request, …) with what you found, or approve(request) to run it again.")
        return UNCERTAIN
    return DONE


async def draw(store: OpenStore, session: Session, indent: str) -> None:
    print(f"{indent}{session.header.name}")
    for receipt in session.receipts:
        await draw(store, await store.open(receipt.child), indent + "  ")


def tokens(usage: Usage) -> str:
    return f"{usage.tokens} tokens" + (f" and {usage.unknown} unknown calls" if usage.unknown else "")


async def run(command: str, file: Path, shop: Shop, opening: Callable[[str], OpenStore]) -> int:
    async with opening(f"sqlite:///{file}") as store, Pool(2) as pool:
        try:
            return await (ask if command == "ask" else approve_all)(store, team(pool), shop)
        except RunFailed as error:
            print("The run failed:", error)
            return FAILED


def story() -> int:
    """Both commands, each as a process of its own, on a new file."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "shop.db"))
        for command, heading in (
            ("ask", "The first process asks, and ends at the approval."),
            ("approve", "The second process opens the file, approves, and the desk answers."),
        ):
            print(f"== {heading}", flush=True)
            code = subprocess.run([sys.executable, "-m", "examples.demo", command, file], check=False).returncode
            if code != DONE:
                return code
    return DONE


def main(
    args: list[str],
    *,
    shop: Callable[[Path], Shop] = Shop,
    opening: Callable[[str], OpenStore] = open_store,
) -> int:
    match args:
        case []:
            return story()
        case ["ask" | "approve" as command, name]:
            file = Path(name)
            return asyncio.run(run(command, file, shop(Path(f"{name}.ledger")), opening))
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
