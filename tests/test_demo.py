"""The demo delegates, parks, ends, and finishes in a second process; and it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples.demo import DONE, FAILED, NOTHING
from tests.aimock import aimock, calls, say, when
from tests.children import STALLED

ROOT = Path(__file__).parents[1]
TOLD = ("WEFT_DEMO_MODEL", "WEFT_MODEL_REQUESTS")
"""What the test's own environment must not decide."""

STORY = """\
== The first process asks, and ends while the refund waits for a person.
customer: Order 42 arrived broken. Please refund it.
waiting for a person (approval): desk / refunds -> refund {"order": "42", "cents": 500}
threads: desk
  -> researcher [done] Order 42 is a teapot for 500 cents.
  -> refunds [parked] (no answer yet)
usage: own 30 tokens, delegated 30 tokens, total 60 tokens
== The second process opens the file and approves; the desk answers.
approving: desk / refunds -> refund {"order": "42", "cents": 500}
desk: Sorry about the teapot. Your 500 cents are on their way.
threads: desk
  -> researcher [done] Order 42 is a teapot for 500 cents.
  -> refunds [done] 500 cents were refunded.
usage: own 45 tokens, delegated 60 tokens, total 105 tokens
ledger: 500 cents for order 42, by this process
"""


def demo(*args: str, **told: str) -> tuple[int, str]:
    """The exit code, and what was printed; nothing may come on standard error."""
    env = {name: value for name, value in os.environ.items() if name not in TOLD} | told
    words = [sys.executable, "-W", "error", "-m", "examples.demo", *args]
    process = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=STALLED, check=False)
    assert process.stderr == ""
    return process.returncode, process.stdout


def test_it_delegates_parks_ends_and_finishes_in_a_second_process() -> None:
    assert demo() == (DONE, STORY)


def test_asking_twice_is_one_turn_and_approving_twice_is_one_refund(tmp_path: Path) -> None:
    file = str(tmp_path / "shop.db")
    assert demo("ask", file) == demo("ask", file)
    assert demo("approve", file)[0] == DONE
    code, said = demo("approve", file)
    assert code == DONE
    assert "approving" not in said
    assert "total 105 tokens" in said
    assert said.endswith("ledger: 500 cents for order 42, by another\n")


def test_approving_before_anything_was_asked_is_said(tmp_path: Path) -> None:
    code, said = demo("approve", str(tmp_path / "shop.db"))
    assert code == NOTHING
    assert said.startswith("Nothing had been accepted")


def test_a_failed_run_is_said_and_ends_the_story() -> None:
    code, said = demo(WEFT_DEMO_MODEL="openai:gpt-demo", WEFT_MODEL_REQUESTS="deny", OPENAI_API_KEY="test")
    assert code == FAILED
    assert "the run failed: " in said
    assert "second process" not in said


def test_a_wrong_command_prints_the_usage() -> None:
    code, said = demo("refund")
    assert code == 2
    assert "python -m examples.demo approve FILE" in said


def test_it_runs_on_a_real_adapter() -> None:
    broken, cost, pay = "arrived broken", "What did order 7 cost?", "Refund order 7: 900 cents."
    rules = (
        when(broken, calls(("researcher", {"prompt": cost})), result=False),
        when(broken, calls(("refunds", {"prompt": pay})), result="It cost 900 cents."),
        when(broken, say("It is paid back."), result="The refund is done."),
        when(cost, calls(("look_up", {"order": "7"})), result=False),
        when(cost, say("It cost 900 cents."), result="teapot"),
        when(pay, calls(("refund", {"order": "7", "cents": 900})), result=False),
        when(pay, say("The refund is done."), result="Refunded 900"),
    )
    with aimock(*rules) as server:
        code, said = demo(WEFT_DEMO_MODEL="openai:gpt-demo", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="test")
        requests = server.requests()
    assert code == DONE
    assert 'waiting for a person (approval): desk / refunds -> refund {"order":"7","cents":900}' in said
    assert "desk: It is paid back." in said
    assert "  -> researcher [done] It cost 900 cents." in said
    assert "  -> refunds [done] The refund is done." in said
    assert said.endswith("ledger: 900 cents for order 7, by this process\n")
    assert {request["model"] for request in requests} == {"gpt-demo"}
    assert len(requests) == 7
