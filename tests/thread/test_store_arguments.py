"""What is no store, no setting, no metadata and no filter is refused where it is given; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from weft import Agent
from weft.errors import WrongCall
from weft.testing import Script
from weft.thread import Memory, OpenStore, open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Path("/var/shop.db"), "a Path is no store; use 'sqlite:////var/shop.db'"),
        (Path("shop.db"), "a Path is no store; use 'sqlite:///shop.db'"),
        (None, "no store at None; use 'memory:' or 'sqlite:///file.db'"),
        (Memory, "no store at <class 'weft.thread.memory.Memory'>; use 'memory:' or 'sqlite:///file.db'"),
        (b"memory:", "no store at b'memory:'; use 'memory:' or 'sqlite:///file.db'"),
        ("sqlite:///a\0b.db", r"no store at 'sqlite:///a\x00b.db'; use 'memory:' or 'sqlite:///file.db'"),
    ],
)
def test_what_is_no_store_is_refused_with_what_names_one(where: Any, text: str) -> None:
    with pytest.raises(WrongCall, match=re.escape(text)):
        open_store(where)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": "30"}, "lease is between 0.1 and 86,400 seconds"),
        ({"lease": None}, "lease is between 0.1 and 86,400 seconds"),
        ({"grace": "25"}, "grace is a number of seconds, 0 or more; not '25'"),
        ({"grace": -1}, "grace is a number of seconds, 0 or more; not -1"),
        ({"clock": 5}, "clock is a Clock, an object with its methods; not 5"),
        ({"ids": 5}, "ids is an Ids, an object with its method; not 5"),
        ({"node": 5}, "node=… is a str, not int"),
        ({"synchronous": ["FULL"]}, "synchronous is 'FULL' or 'NORMAL', not ['FULL']"),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused_before_anything_is_opened(options: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongCall, match=re.escape(text)):
        open_store("memory:", **options)


async def listed(store: OpenStore, **filters: Any) -> None:
    async for _ in store.list(**filters):
        pass


async def followed(store: OpenStore, thread: str, after: Any) -> None:
    async for _ in store.watch(thread, after=after):
        pass


async def described(store: OpenStore, thread: str, meta: Any) -> None:
    await (await store.open(thread)).describe(meta=meta)


async def observed(store: OpenStore, observer: Any) -> None:
    store.observe(observer)


Act = Callable[[OpenStore, str, Any], Awaitable[object]]
ACTS: dict[str, tuple[Act, Any, str]] = {
    "create, meta a list": (
        lambda store, _, bad: store.create(Agent(Script()), meta=bad),
        ["customer"],
        "metadata is strings by strings, {'customer': 'ann'}; not ['customer']",
    ),
    "create, meta a text": (
        lambda store, _, bad: store.create(Agent(Script()), meta=bad),
        "customer",
        "metadata is strings by strings, {'customer': 'ann'}; not 'customer'",
    ),
    "create, expires in the past": (
        lambda store, _, bad: store.create(Agent(Script()), expires=bad),
        -1.0,
        "expires is a positive number of seconds, or None for ever; not -1.0",
    ),
    "create, expires without an end": (
        lambda store, _, bad: store.create(Agent(Script()), expires=bad),
        float("nan"),
        "expires is a positive number of seconds, or None for ever; not nan",
    ),
    "create, expires a text": (
        lambda store, _, bad: store.create(Agent(Script()), expires=bad),
        "7",
        "expires is a positive number of seconds, or None for ever; not '7'",
    ),
    "list, meta": (lambda store, _, bad: listed(store, meta=bad), ["a"], "metadata is strings by strings"),
    "list, limit": (lambda store, _, bad: listed(store, limit=bad), "5", "limit is 0 or more, or None"),
    "list, after": (lambda store, _, bad: listed(store, after=bad), "5", "after is the cursor of a row; not '5'"),
    "watch, after": (followed, "1", "after is a position, 0 or more; not '1'"),
    "describe, meta": (described, ["a"], "metadata is strings by strings, or None to take one away; not ['a']"),
    "restore": (lambda store, _, bad: store.restore(bad), b"{}", "text=… is a str, not bytes"),
    "observe": (
        lambda store, _, bad: observed(store, bad),
        5,
        "an observer is a function of a thread's id and an entry",
    ),
}


@pytest.mark.parametrize(("act", "bad", "text"), ACTS.values(), ids=ACTS)
async def test_what_a_store_cannot_read_is_refused_and_nothing_is_written(act: Act, bad: Any, text: str) -> None:
    async with open_store("memory:") as store:
        session = await store.create(Agent(Script()))
        head = session.head
        with pytest.raises(WrongCall, match=re.escape(text)):
            await act(store, session.id, bad)
        await session.refresh()
        assert session.head == head
        assert [info.thread async for info in store.list()] == [session.id]
