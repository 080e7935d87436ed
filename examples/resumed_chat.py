"""A chat whose process is killed: a second process answers, and the first one's customer is served."""

import asyncio
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from weft import Agent, tool
from weft.testing import Script, call, say
from weft.thread import Session, approve, open_store


@tool(effect="none")
async def look_up(order: str) -> str:
    """Look an order up."""
    if "--stall" in sys.argv:  # the first process never gets further
        print("at work", flush=True)
        await asyncio.get_running_loop().create_future()
    return "a teapot, 500 cents"


@tool(approval=True)
async def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents"


SCRIPT = Script(
    call("look_up", order="42"),
    call("refund", order="42", cents=500),
    say("Your 500 cents are on their way."),
)
DESK = Agent(SCRIPT, name="desk", tools=[look_up, refund])


async def serve(file: str) -> None:
    """What each process does: find or make the customer's session, go on with what was left, take the message."""
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.create(DESK, key="ann", meta={"customer": "ann"})
        await session.resume()
        await session.send("Refund order 42, please.", key="message-1")  # the client sends it again: one turn
        await session.settled_or_waiting()
        show(session)
        for request in session.pending:
            await session.decide(approve(request, by="boss"))
        await session.settled_or_waiting()
        print("desk:", session.messages[-1].text)


def show(session: Session) -> None:
    for request in session.pending:
        print("waits for a person:", request.tool, request.args)


def main() -> None:
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "chat.db")
        command = [sys.executable, __file__, file, "--stall"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            print("first process:", first.stdout.readline().strip())  # first process: at work
            first.kill()
        print("first process: killed")  # first process: killed
        asyncio.run(serve(file))
        # waits for a person: refund {"order": "42", "cents": 500}
        # desk: Your 500 cents are on their way.


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve(sys.argv[1]))
    else:
        main()
