"""The pytest plugin, in processes of its own: under each runner, and with nothing but what the test names loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.children import run_pytest

ROOT = Path(__file__).parents[1]
ASYNCIO = ("-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function", "-o")
RUNNERS = {
    "anyio, by mark": (("-p", "anyio"), "pytest.mark.anyio"),
    "anyio, auto": (("-p", "anyio", "-o", "anyio_mode=auto"), "lambda test: test"),
    "asyncio, strict": ((*ASYNCIO, "asyncio_mode=strict"), "pytest.mark.asyncio"),
    "asyncio, auto": ((*ASYNCIO, "asyncio_mode=auto"), "lambda test: test"),
}
FIXTURES = """
import asyncio
import pytest
from weft import Agent, Message, tool
from weft.errors import Expired
from weft.testing import Script, call, calls, hold, say
from weft.thread import approve, open_store

in_loop = {mark}

@pytest.fixture
def anyio_backend():
    return "asyncio"

@tool(approval=True, expires=60.0)
def refund(order: str) -> str:
    "Refund."
    return "refunded"

@pytest.mark.parametrize("turn", [1, 2])
@in_loop
async def test_a_store_is_new(weft_store, weft_script, turn):
    desk = Agent(weft_script(say("hello")))
    async with weft_store as store:
        session = await store.create(desk)
        assert (await session.ask("hi")).text == "hello"
        assert [header.thread async for header in store.list()] == [session.id]

@in_loop
async def test_a_store_stands_on_the_clock(weft_store, weft_clock, weft_script):
    desk = Agent(weft_script(call("refund", order="42")), tools=[refund])
    async with weft_store as store:
        session = await store.create(desk)
        await session.ask("Refund 42.")
        await weft_clock.advance(61.0)
        with pytest.raises(Expired):
            await session.decide(approve(session.pending[0]))

@in_loop
async def test_a_file_may_be_opened_again(weft_sqlite, weft_script, tmp_path, weft_clock):
    desk = Agent(weft_script(say("hello"), say("again")))
    async with weft_sqlite as store:
        session = await store.create(desk)
        await session.ask("hi")
    async with open_store(f"sqlite:///{{tmp_path / 'weft.db'}}", clock=weft_clock) as store:
        session = await store.open(session.id, desk)
        assert (await session.ask("hi")).text == "again"

@pytest.mark.parametrize("kind", ["weft_store", "weft_sqlite"])
@in_loop
async def test_leaving_waits_for_nothing(kind, request, weft_script):
    asked = asyncio.Event()

    class Tells:
        def info(self):
            return script.info()

        def stream(self, request):
            asked.set()
            return script.stream(request)

    script = Script(hold(asyncio.Event(), then=say("never")))
    async with request.getfixturevalue(kind) as store:
        session = await store.create(Agent(Tells()))
        await session.send("hi")
        await asked.wait()

@pytest.mark.xfail(raises=AssertionError, strict=True)
@in_loop
async def test_all_replies_must_be_asked_for(weft_script):
    weft_script(say("never"))

def test_fixtures_need_no_loop(weft_store, weft_sqlite, weft_clock, weft_script):
    start = weft_clock.now()
    assert weft_store._node.clock is weft_clock and weft_sqlite._node.clock is weft_clock
    assert Agent(weft_script(say("hi"), model="m")).run_sync("hi").text == "hi"
    assert weft_script(output="tool").info().output == "tool"
    assert weft_clock.now() == start
"""


def run(lone: pytest.Pytester, *args: str) -> pytest.RunResult:
    return run_pytest(lone, "--strict-markers", "-p", "weft_pytest", *args)


# The fixtures.


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_fixtures_work_under_each_runner(lone: pytest.Pytester, runner: str) -> None:
    args, mark = RUNNERS[runner]
    lone.makepyfile(FIXTURES.format(mark=mark))
    run(lone, *args).assert_outcomes(passed=7, xfailed=1)


def test_a_passing_test_fails_if_a_reply_of_its_scripts_was_not_asked_for(lone: pytest.Pytester) -> None:
    lone.makepyfile("""
        import pytest
        from weft.testing import say

        def test_left(weft_script):
            weft_script()
            weft_script(say("a"), say("b"))

        @pytest.mark.xfail(strict=True)
        def test_left_and_known(weft_script):
            weft_script(say("a"))

        def test_failing(weft_script):
            weft_script(say("a"))
            raise OSError("its own failure")

        def test_skipped(weft_script):
            weft_script(say("a"))
            pytest.skip("not here")

        def test_none(weft_script):
            pass
    """)
    result = run(lone)
    result.assert_outcomes(failed=2, xfailed=1, skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*AssertionError: 2 of the script's replies were not asked for*", "*its own failure*"])


# Requests to real models.

ASKS = """
import os
import pytest
from weft import Agent, ModelFailed

def code():
    # no server can be there, and the SDK has no key: what is not refused fails in another way
    with pytest.raises(ModelFailed) as failed:
        Agent("openai:gpt-5").run_sync("hi")
    return failed.value.code
"""


def test_requests_are_refused_in_tests_and_their_fixtures(lone: pytest.Pytester) -> None:
    lone.makepyfile(
        ASKS
        + """
@pytest.fixture(params=["function"])
def asked():
    before = code()
    yield before
    assert code() == "MODEL_DENIED"

@pytest.fixture(scope="module")
def asked_once():
    return code()

def test_refused(asked, asked_once):
    assert (asked, asked_once, code()) == ("MODEL_DENIED",) * 3
"""
    )
    run(lone).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("args", "mark"), [(("--weft-live",), ""), ((), "@pytest.mark.weft_live")], ids=["option", "mark"]
)
def test_requests_are_made_where_the_option_or_the_mark_says_so(
    lone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], mark: str
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    lone.makepyfile(f"{ASKS}\n{mark}\ndef test_asked():\n    assert code() != 'MODEL_DENIED'\n")
    run(lone, *args).assert_outcomes(passed=1)


@pytest.mark.parametrize(("before", "args"), [(None, ()), ("allow", ()), ("deny", ("--weft-live",))])
def test_the_environment_is_as_before_after_each_test(
    lone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, before: str | None, args: tuple[str, ...]
) -> None:
    if before is not None:
        monkeypatch.setenv("WEFT_MODEL_REQUESTS", before)
    lone.makeconftest(f"""
        import os
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol():
            outcome = yield
            assert os.environ.get("WEFT_MODEL_REQUESTS") == {before!r}
            return outcome
    """)
    lone.makepyfile(f"""
        import os
        import pytest

        def test_passing():
            assert os.environ.get("WEFT_MODEL_REQUESTS") == {before if args else "deny"!r}

        def test_failing():
            raise OSError

        @pytest.mark.weft_live
        def test_live():
            assert os.environ.get("WEFT_MODEL_REQUESTS") == {before!r}
    """)
    run(lone, *args).assert_outcomes(passed=2, failed=1)


def test_the_option_and_the_mark_are_explained(lone: pytest.Pytester) -> None:
    run(lone, "--help").stdout.fnmatch_lines(["weft:", "*--weft-live *let tests ask real models*"])
    run(lone, "--markers").stdout.fnmatch_lines(["@pytest.mark.weft_live: *"])


# What it costs those who do not use it.


def test_weft_is_not_imported_before_a_fixture_is_used(lone: pytest.Pytester) -> None:
    lone.makepyfile("""
        import sys

        def test_before(tmp_path):
            assert not {"weft", "weft.testing", "pydantic"} & set(sys.modules)

        def test_after(weft_clock):
            assert "weft.testing" in sys.modules
    """)
    run(lone).assert_outcomes(passed=2)


def test_an_installed_wheel_brings_the_plugin(
    lone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"), prepend=os.pathsep)
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    lone.makepyfile(f"""
        import os

        def test_it(weft_store):
            import weft_pytest
            assert weft_pytest.__file__.startswith({str(tmp_path)!r})
            assert os.environ["WEFT_MODEL_REQUESTS"] == "deny"
    """)
    result = run_pytest(lone, "--strict-markers", "-p", "no:asyncio")
    result.assert_outcomes(passed=1)
    off = run_pytest(lone, "-p", "no:weft", "-p", "no:asyncio")
    off.assert_outcomes(errors=1)
