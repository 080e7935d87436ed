"""What every store promises, as tests; the one module of weft that imports pytest.

A subclass named `Test…` with a fixture `new_store` is the whole of a store's tests:

    class TestMine(StoreContract):
        @pytest.fixture
        def new_store(self, clock, tmp_path):
            return lambda owner: MyStore(tmp_path / "data", owner=owner, ttl=LEASE, clock=clock)
"""

import pytest

# Before they are imported: their assertions say what was found also where pytest does not know the plugin of weft.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("_appends", "_ends", "_kit", "_leases", "_lists")))

from weft.testing.clock import ManualClock
from weft.testing.contract._appends import AppendPromises
from weft.testing.contract._ends import EndPromises
from weft.testing.contract._kit import LEASE, NewStore
from weft.testing.contract._leases import LeasePromises
from weft.testing.contract._lists import ListPromises

__all__ = ["LEASE", "NewStore", "StoreContract"]


class StoreContract(AppendPromises, LeasePromises, ListPromises, EndPromises):
    """The promises of a store, as plain tests: they need no plugin that runs coroutines.

    Appends are all or nothing, and refused in order: no thread, another head, somebody's lease. Leases are
    claimed, held, seized, released and renewed where they may be, and nowhere else. Lists are filtered and
    paged. What was written outlives the store that wrote it.

    A subclass has a fixture `new_store`: a function of an owner's token that gives a store on this test's data,
    not started, whose leases last `LEASE` seconds on the fixture `clock`. It is called more than once in a test, as
    many processes would open one database. It must not be async.
    """

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The time by which the stores judge leases."""
        return ManualClock()
