"""The store contract on the stores that need nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.testing.clock import ManualClock
from weft.testing.contract import LEASE, NewStore, StoreContract
from weft.thread.memory import Memory, MemoryStore
from weft.thread.sqlite import SQLiteStore


class TestMemory(StoreContract):
    @pytest.fixture
    def new_store(self, clock: ManualClock) -> NewStore:
        data = Memory()
        return lambda owner: MemoryStore(data, owner=owner, ttl=LEASE, clock=clock, survives=True)


class TestSQLite(StoreContract):
    @pytest.fixture
    def new_store(self, clock: ManualClock, tmp_path: Path) -> NewStore:
        return lambda owner: SQLiteStore(tmp_path / "weft.db", owner=owner, ttl=LEASE, clock=clock)
