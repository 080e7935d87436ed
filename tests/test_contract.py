"""The store contract as a product: it needs no plugin, and sees a store that breaks a promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_examples import find_examples

from tests.children import run_pytest
from tests.thread.broken_stores import BROKEN

ROOT = Path(__file__).parents[1]
PLUGINS = {
    "none": (),
    "anyio": ("-p", "anyio", "-o", "anyio_mode=auto"),
    "asyncio": (
        *("-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto"),
        *("-o", "asyncio_default_fixture_loop_scope=function"),
    ),
}
SUITES = """
import pytest
from tests.thread.broken_stores import BROKEN
from weft.testing.contract import LEASE, StoreContract
from weft.thread import Memory

def suite(broken):
    class Suite(StoreContract):
        @pytest.fixture
        def new_store(self, clock):
            data = Memory()
            return lambda owner: broken(data, owner=owner, ttl=LEASE, clock=clock, survives=True)
    return Suite

for broken in BROKEN:
    globals()[f"Test{broken.__name__}"] = suite(broken)
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_example_of_the_page_runs_under_any_plugin_and_under_none(lone: pytest.Pytester, plugin: str) -> None:
    examples = find_examples(ROOT / "docs" / "testing.md")
    (example,) = (example.source for example in examples if "StoreContract" in example.source)
    lone.makepyfile(example)
    outcomes = run_pytest(lone, "-p", "no:cacheprovider", *PLUGINS[plugin]).parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] > 200


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_store_that_breaks_a_promise_is_seen(lone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)  # where it is set, pytest shows all of a difference, however long it takes
    file = lone.makepyfile(SUITES).name
    wanted = {(f"Test{broken.__name__}", test) for broken in BROKEN for test in broken.seen_by}
    tests = [f"{file}::{suite}::{test}" for suite, test in sorted(wanted)]
    result = run_pytest(lone, "-rf", "--tb=no", *tests)
    failed = re.findall(r"^FAILED [\w.]+::(\w+)::(\w+)", result.stdout.str(), re.M)
    assert {*failed} == wanted


def test_what_fails_says_what_it_has_found(lone: pytest.Pytester) -> None:
    file = lone.makepyfile(SUITES).name
    test = f"{file}::TestTellsOfNoMail::test_a_renewal_tells_how_many_lines_each_thread_has"
    result = run_pytest(lone, test)
    result.stdout.fnmatch_lines(["E*{'y': 1} != {'y': 3}*"])
