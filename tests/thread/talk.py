"""A model that does what the prompt says, tools that count, and a transcript told in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from weft import Agent, Context, Message, tool
from weft.model import ModelRequest
from weft.testing import Script, call, calls, reply
from weft.testing.script import Answer
from weft.thread import Entry, Memory, OpenStore, Session
from weft.thread._codec import digest_line
from weft.thread.store import Head


def talk(request: ModelRequest) -> Answer:
    """`do look 1, pay 2` asks for these calls; results are read out; anything else is answered."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"read {'|'.join(result.content for result in last.results)}"
    if not last.text.startswith("do "):
        return f"re {last.text}"
    wanted = (part.split() for part in last.text.removeprefix("do ").split(", "))
    return calls(*(call(name, _arguments(name, given)) for name, given in wanted))


def _arguments(name: str, given: str) -> dict[str, Any]:
    return {"prompt": f"do {given} 7"} if name == "help" else {"item": int(given)}


def talker(replies: int = 40) -> Script:
    """A script of `talk`, at every position."""
    return Script(*[reply(talk)] * replies)


class Tools:
    """`look` is free, `pay` waits for a person; both say which bodies ran, under which idempotency keys."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.keys: list[str] = []

        def note(ctx: Context, name: str) -> str:
            self.ran.append(name)
            self.keys.append(ctx.call.idempotency_key)
            return name

        @tool(effect="none")
        async def look(ctx: Context, item: int) -> str:
            return note(ctx, f"look {item}")

        @tool(approval=True)
        async def pay(ctx: Context, item: int) -> str:
            return note(ctx, f"pay {item}")

        self.look, self.pay = look, pay

    def agent(self, script: Script | None = None, **options: Any) -> Agent[Any, Any]:
        """An agent that talks, with these tools."""
        return Agent(script or talker(), name="desk", **{"tools": [self.look, self.pay], **options})


def told(messages: Iterable[Message]) -> list[str]:
    """A transcript: `> prompt`, `answer`, `name+name` for calls, `[result|result]`."""
    return [_told(message) for message in messages]


def _told(message: Message) -> str:
    if message.role == "user":
        return f"> {message.text}"
    if message.role == "tool":
        return f"[{'|'.join(_brief(result.content) for result in message.results)}]"
    return "+".join(call.name for call in message.calls) or message.text


def _brief(content: str) -> str:
    """A result of a body is short; what weft says of an interrupted call is not."""
    return content if len(content) < 20 else "interrupted" if "interrupted" in content else content


def request_of(script: Script, n: int = -1) -> list[str]:
    """What the model was asked, in a few words."""
    return told(script.requests[n].messages)


def place(session: Session, n: int) -> str:
    """The id of the n-th entry of the path."""
    return session.path[n].id


async def journal(store: OpenStore, session: Session) -> list[Entry]:
    """The session's entries as they are stored."""
    return [entry async for entry in store.watch(session.id, until=session.head)]


def lines_of(data: Memory, thread: str) -> list[bytes]:
    """The stored lines; a list that may be changed."""
    return data._threads[thread].lines


def damaged(data: Memory, thread: str, lines: Iterable[bytes]) -> None:
    """Put other lines in their place, the head left as it was."""
    data._threads[thread].lines[:] = lines


def with_bodies(data: Memory, thread: str, change: Mapping[int, Mapping[str, Any]]) -> None:
    """Add keys to bodies, by position, as a newer weft might have; the chain is made good."""
    stored = data._threads[thread]
    previous, made = "", list[bytes]()
    for position, line in enumerate(stored.lines):
        value = from_json(line)
        value["prev"] = previous
        value["body"].update(change.get(position, {}))
        made.append(to_json(value))
        previous = digest_line(made[-1])
    stored.lines[:] = made
    stored.head = Head(len(made), previous)
