"""What the tests of the contract share: lines, stores, and the ways in which a lease can stand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, iscoroutinefunction, signature
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from weft.testing.clock import ManualClock
from weft.thread._codec import digest_line
from weft.thread.store import Appended, Claim, Head, Hold, Index, Lease, LeaseChange, Query, Release, Seize, Store

LEASE = 30.0
"""Seconds that the leases of the contract's stores last."""

NewStore: TypeAlias = Callable[[str], Store]
"""Makes a store of an owner's token, not started, on the data of this test."""
Open: TypeAlias = Callable[[str], Awaitable[Store]]
"""The same, started; it is stopped in the end."""
T = TypeVar("T")


def header(thread: str, note: str = "") -> bytes:
    """A header line; a store never reads it."""
    return f'{{"prev":"","n":0,"thread":"{thread}","note":"{note}"}}'.encode("ascii")


def index(
    kind: str = "session", *, parent: str | None = None, meta: Mapping[str, str] | None = None, **rest: Any
) -> Index:
    """What a view says."""
    return Index(kind=kind, parent=parent, meta=meta or {}, **{"name": "desk", "root": "root", **rest})


def after(head: Head, *texts: str) -> tuple[list[bytes], Head]:
    """Lines that follow a head, and the head after them."""
    lines: list[bytes] = []
    for text in texts:
        lines.append(f'{{"prev":"{head.digest}","n":{head.count},"body":"{text}"}}'.encode("ascii"))
        head = Head(head.count + 1, digest_line(lines[-1]))
    return lines, head


def differing(found: Sequence[bytes], wanted: Sequence[bytes]) -> str:
    """Where long lines, or many, differ first; nothing if they are the same.

    pytest compares what an assertion names character by character where `CI` is set, and takes minutes for these.
    """
    for n, (left, right) in enumerate(zip_longest(found, wanted, fillvalue=b"")):
        if left != right:
            at = next(at for at, (one, other) in enumerate(zip_longest(left, right)) if one != other)
            return f"line {n}, byte {at}: {left[at : at + 40]!r}, and not {right[at : at + 40]!r}"
    return ""


async def create(store: Store, thread: str = "t", of: Index | None = None) -> Head:
    """A new thread of one line."""
    line = header(thread)
    assert await store.create(thread, line, of or index()) == line
    return Head(1, digest_line(line))


async def change(store: Store, head: Head, lease: LeaseChange, *texts: str, thread: str = "t") -> Appended:
    """An append of these lines, or of none."""
    return await store.append(thread, after(head, *texts)[0], head, lease, None)


async def outcomes(*waits: Awaitable[Any]) -> list[Any]:
    """What each came to; an exception is one."""
    return await asyncio.gather(*waits, return_exceptions=True)


async def lease_of(store: Store, thread: str = "t") -> Lease:
    """How its lease stands."""
    return (await store.load(thread)).lease


async def names(store: Store, query: Query | None = None) -> list[str]:
    """The threads that a query finds, in order."""
    found = await store.list(query or Query())
    assert [row.line for row in found] == [header(row.thread) for row in found]
    return [row.thread for row in found]


# Plain tests of coroutines.

_STORES = ("a", "b")


def plain(promises: type[T]) -> type[T]:
    """Make the tests of a class plain functions, so that they need no plugin that runs coroutines.

    Each gets a loop of its own, and of what it asks for: `a` and `b`, two started stores on the same data, and
    `opened`, which starts another. The rest are fixtures.
    """
    for name, test in tuple(vars(promises).items()):
        if name.startswith("test_") and iscoroutinefunction(test):
            setattr(promises, name, _plain(test))
    return promises


def _plain(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    asked = signature(test).parameters

    @wraps(test)
    def run(self: object, **given: Any) -> None:
        async def main() -> None:
            async with _opening(given["new_store"]) as opened:
                mine: dict[str, object] = {"opened": opened}
                for owner in _STORES:
                    if owner in asked:
                        mine[owner] = await opened(owner)
                mine |= given
                await test(self, **{name: value for name, value in mine.items() if name in asked})

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(main())

    fixtures = [name for name in asked if name not in (*_STORES, "opened", "self", "new_store")]
    run.__signature__ = Signature(  # type: ignore[attr-defined]  # how pytest learns what a test asks for
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "new_store", *fixtures)]
    )
    return run


@asynccontextmanager
async def _opening(new_store: NewStore) -> AsyncIterator[Open]:
    stores: list[Store] = []

    async def start(owner: str) -> Store:
        stores.append(store := new_store(owner))
        await store.start()
        return store

    try:
        yield start
    finally:
        for store in reversed(stores):
            await store.stop()


# How a lease can stand when `a` wants to change it.


@dataclass(frozen=True)
class World:
    """Two stores, and the clock of their leases."""

    a: Store
    b: Store
    clock: ManualClock


async def _free(world: World, head: Head) -> None: ...


async def _released(world: World, head: Head) -> None:
    claimed = await change(world.a, head, Claim(ttl=LEASE))
    await change(world.a, head, Release(generation=claimed.generation))


async def _own(world: World, head: Head) -> None:
    await change(world.a, head, Claim(ttl=LEASE))


async def _own_expired(world: World, head: Head) -> None:
    await _own(world, head)
    await world.clock.advance(LEASE)


async def _own_handed_off(world: World, head: Head) -> None:
    claimed = await change(world.a, head, Claim(ttl=LEASE))
    await change(world.a, head, Hold(generation=claimed.generation, hand_off=True))


async def _foreign(world: World, head: Head) -> None:
    await change(world.b, head, Claim(ttl=LEASE))


async def _foreign_expired(world: World, head: Head) -> None:
    await _foreign(world, head)
    await world.clock.advance(LEASE)


async def _foreign_handed_off(world: World, head: Head) -> None:
    claimed = await change(world.b, head, Claim(ttl=LEASE))
    await change(world.b, head, Hold(generation=claimed.generation, hand_off=True))


async def _taken_over(world: World, head: Head) -> None:
    await _own(world, head)
    await change(world.b, head, Seize(ttl=LEASE))


async def _seized_once(world: World, head: Head) -> None:
    await _own(world, head)
    await change(world.b, head, Seize(ttl=LEASE, once=True))


STATES: Mapping[str, Callable[[World, Head], Awaitable[None]]] = MappingProxyType(
    {
        "free": _free,
        "released": _released,
        "own": _own,
        "own expired": _own_expired,
        "own handed off": _own_handed_off,
        "foreign": _foreign,
        "foreign expired": _foreign_expired,
        "foreign handed off": _foreign_handed_off,
        "taken over": _taken_over,
        "seized once": _seized_once,
    }
)
LIVE = frozenset({"own", "foreign", "taken over"})
