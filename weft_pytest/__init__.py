"""The pytest plugin: stores, a clock and scripts as fixtures, and no request to a real model.

pytest imports it at its start in every project where weft is installed, so it imports weft only when a fixture
is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weft.testing import ManualClock, Script
    from weft.thread import OpenStore

__all__ = ["weft_clock", "weft_script", "weft_sqlite", "weft_store"]

_REQUESTS = "WEFT_MODEL_REQUESTS"
_LIVE = "weft_live: may ask real models, also without --weft-live"
_scripts = pytest.StashKey[list["Script"]]()


@pytest.fixture
def weft_clock() -> ManualClock:
    """A clock that stands still until the test advances it."""
    from weft.testing import ManualClock

    return ManualClock()


@pytest.fixture
def weft_store(weft_clock: ManualClock) -> OpenStore:
    """A store in memory, on `weft_clock`, for `async with`; leaving it waits for nothing."""
    from weft.thread import Memory, open_store

    return open_store(Memory(), clock=weft_clock, grace=0.0)


@pytest.fixture
def weft_sqlite(weft_clock: ManualClock, tmp_path: Path) -> OpenStore:
    """The same in a file, `weft.db` in `tmp_path`, which may be opened again."""
    from weft.thread import open_store

    return open_store(f"sqlite:///{tmp_path / 'weft.db'}", clock=weft_clock, grace=0.0)


@pytest.fixture
def weft_script(request: pytest.FixtureRequest) -> Callable[..., Script]:
    """Makes a `Script` of its arguments; a test that passes fails after all if a reply was not asked for."""
    from weft.testing import Script

    made = request.node.stash[_scripts] = []

    def make(*steps: Any, **options: Any) -> Script:
        script = Script(*steps, **options)
        made.append(script)
        return script

    return make


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--weft-live`."""
    group = parser.getgroup("weft")
    group.addoption("--weft-live", action="store_true", help="let tests ask real models through weft")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _LIVE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse requests to real models while a test, with its fixtures, runs."""
    if item.config.getoption("weft_live") or item.get_closest_marker("weft_live"):
        return (yield)
    before = os.environ.get(_REQUESTS)
    os.environ[_REQUESTS] = "deny"
    try:
        return (yield)
    finally:
        if before is None:
            os.environ.pop(_REQUESTS, None)
        else:
            os.environ[_REQUESTS] = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a test that has passed to its scripts."""
    outcome = yield
    for script in item.stash.get(_scripts, ()):
        script.assert_done()
    return outcome
