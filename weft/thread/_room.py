"""Makes a session's conversation shorter for its model: what is written in place of its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft import _texts
from weft._compaction import Compaction, Room, as_text, cut
from weft._idle import Idle, listen
from weft._ports import Clock, Ids
from weft._reply import Reply
from weft.messages import UNKNOWN_CALL, Message, Usage
from weft.model import CONTEXT, Finish, Model, ModelError, ModelRequest, Settings, info_of
from weft.thread import entries
from weft.thread._view import View, read

LONGEST = 8_192
"""Tokens that a summary may take at most; more than some models write at once is refused by their providers."""

Ask: TypeAlias = Callable[[Model, ModelRequest], Awaitable[tuple[Message, Finish]]]


class Unusable(ModelError):
    """Raised for a summary that cannot stand for anything, with what it has cost."""

    def __init__(self, why: str, usage: Usage | None) -> None:
        super().__init__(f"the summary {why}; the conversation stays as it is", code="MODEL_SUMMARY")
        self.usage = usage


async def shorter(
    view: View, compaction: Compaction, room: Room, used: int, summarizer: Model, ask: Ask
) -> entries.Compaction | None:
    """What is to be written so that the model reads less; None where nothing can be left out.

    Args:
        view: The session, with nothing on its way.
        compaction: How.
        room: What there is.
        used: Tokens that the model would read now.
        summarizer: Writes the summary, where it comes to one.
        ask: Makes a model call.

    Raises:
        ModelError: The summarizer failed.
        Unusable: Its answer was cut, refused or empty.
    """
    reading, tokens = read(view.path(view.leaf)), compaction.tokens
    messages, marks = reading.transcript.messages, reading.marks
    summarized = bool(marks) and isinstance(view.tree[marks[0]].body, entries.Compaction)
    found = cut(messages, used, room, tokens, summarized=summarized)
    if found is None:
        return None
    keep = marks[found.place]
    if found.trims:
        return entries.Compaction(keep=keep, stub=_texts.LEFT_OUT, before=found.before, after=found.after)
    message, finish = await _summarize(messages[: found.place], room, view, summarizer, ask, whole=int(summarized))
    if finish.reason in _texts.BROKEN_OFF or not message.text.strip():
        raise Unusable(f"ended with {finish.reason!r}" if message.text.strip() else "is empty", finish.usage)
    text = _texts.summary(message.text, _open_work(view))
    after = found.after + tokens.count(text)
    if after >= found.before:
        raise Unusable("is as long as what it stands for", finish.usage)
    by = finish.by or info_of(summarizer)
    model = f"{by.provider}:{by.model}"
    return entries.Compaction(
        keep=keep, summary=text, usage=finish.usage, model=model, before=found.before, after=after
    )


async def _summarize(
    messages: Sequence[Message], room: Room, view: View, summarizer: Model, ask: Ask, *, whole: int
) -> tuple[Message, Finish]:
    """The summary; where the summarizer says that it is too long, of the beginnings of long texts.

    Else one message that is too long for any model would end the session: nothing could ever be left out again.
    """
    full, short = as_text(messages), as_text(messages, whole=whole)
    try:
        return await ask(summarizer, _request(full, room, view))
    except ModelError as error:
        if error.code != CONTEXT or short == full:
            raise
    try:
        message, finish = await ask(summarizer, _request(short, room, view))
    except ModelError as error:
        raise Unusable(f"could not be made, of shortened texts either: {error}", Usage(unknown=2)) from error
    return message, replace(finish, usage=UNKNOWN_CALL + (finish.usage or UNKNOWN_CALL))


def _request(text: str, room: Room, view: View) -> ModelRequest:
    return ModelRequest(
        instructions=_texts.SUMMARIZE,
        messages=(Message.user(text),),
        tools=(),
        settings=Settings(max_tokens=min(room.reserve, LONGEST)),
        run_id=view.header.thread if view.run is None else view.run.run,
        position=None,
    )


def _open_work(view: View) -> tuple[str, ...]:
    """What the model must not forget: delegations at work, and calls that wait for a person."""
    receipts = ((name, view.receipts[name].accepted) for name in view.unsettled)
    at_work = [_texts.open_receipt(name, body.agent or "", body.prompt or "") for name, body in receipts]
    asked = (view.requests[name].body for name in view.undecided)
    return (*at_work, *(_texts.open_request(body.tool, body.args) for body in asked))


async def ask_alone(model: Model, request: ModelRequest, clock: Clock, ids: Ids) -> tuple[Message, Finish]:
    """A model call outside any run."""
    reply = Reply(request.run_id, ids, None)
    info = info_of(model)
    idle = Idle(clock)
    try:
        seconds = None if info.own_idle else request.settings.idle
        await listen(model.stream(request), reply.take, idle, seconds, asyncio.current_task())
    finally:
        idle.close()
    return reply.whole(info)
