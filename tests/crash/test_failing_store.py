"""The store that refuses its n-th append, once or for a while: nothing is lost, and the application goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tests.crash.test_crash_inbox import SCENARIOS as INBOX
from tests.crash.test_crash_points import SCENARIOS
from tests.thread.places import refused
from weft.errors import StoreFailed
from weft.testing.clock import CountingIds
from weft.testing.crash import Kit, _check, _spent
from weft.thread import OpenStore
from weft.thread.memory import MemoryStore
from weft.thread.store import Appended, Head, Index, LeaseChange


@dataclass
class Disk:
    """Counts what is written, and refuses the n-th append; `until` the last it refuses."""

    refuses: int = 0
    until: int = 0
    written: int = 0

    def full(self) -> bool:
        self.written += 1
        return self.refuses <= self.written <= self.until


class FailingStore(MemoryStore):
    """A memory store on such a disk."""

    disk: Disk

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        return refused() if self.disk.full() else super().create(thread, line, index, more)

    async def delete(self, thread: str, expect: Head) -> None:
        if self.disk.full():
            raise StoreFailed("the disk is full")
        await super().delete(thread, expect)

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        return refused() if self.disk.full() else super().append(thread, lines, expect, lease, index)


@dataclass(slots=True)
class FailKit(Kit):
    """Runs a scenario on a failing store."""

    disk: Disk = field(default_factory=Disk)

    def open(self) -> OpenStore:
        owner = f"fail/{self.incarnation}"
        store = FailingStore(self.data, owner=owner, ttl=30.0, clock=self.clock, survives=True)
        store.disk = self.disk
        return OpenStore(store, clock=self.clock, ids=CountingIds(f"i{self.incarnation}"), grace=0.0)


async def run(kit: Kit, scenario: Callable[[Kit], Awaitable[None]]) -> bool:
    """Run the scenario while time goes by; False where the store's failure reached the application."""
    task = asyncio.ensure_future(kit.run(scenario))
    while not task.done():
        await kit.clock.advance(0.3)
    try:
        return task.result()
    except StoreFailed:
        return False


@pytest.mark.parametrize("times", [1, 6], ids=["once", "for a while"])
@pytest.mark.parametrize("scenario", [*SCENARIOS, *(scenario for scenario, _ in INBOX)])
async def test_an_append_that_is_refused_loses_nothing(scenario: Callable[[Kit], Awaitable[None]], times: int) -> None:
    whole = FailKit()
    assert await run(whole, scenario)
    for n in range(1, whole.disk.written + 1):
        kit = FailKit(disk=Disk(refuses=n, until=n + times - 1))
        if not await run(kit, scenario):
            kit.incarnation += 1
            kit.disk = Disk()
            assert await run(kit, scenario), f"append {n}"
        _check(kit, _spent(whole), crashes=2)
        root = next(iter(kit.views().values()))
        assert list(root.ended.values())[-1].outcome == "answered", f"append {n}"
