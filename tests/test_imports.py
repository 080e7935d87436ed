"""What importing costs: no vendor SDK, no tokenizer, no driver but sqlite3's."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("openai", "anthropic", "tiktoken", "aiosqlite", "psycopg", "httpx", "httpx2", "respx", "pytest")
CODE = "import sys, {0}; print(' '.join(m for m in {1!r} if m in sys.modules))"


def loaded(modules: str, unwanted: tuple[str, ...]) -> str:
    command = [sys.executable, "-c", CODE.format(modules, unwanted)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_importing_weft_loads_no_vendor_sdk_tokenizer_or_driver() -> None:
    assert loaded("weft", (*HEAVY, "sqlite3")) == ""


@pytest.mark.parametrize(
    "modules", ["weft.models", "weft.thread", "weft.pool", "weft.testing", "weft.thread, weft.pool"]
)
def test_importing_a_package_loads_no_vendor_sdk_or_tokenizer(modules: str) -> None:
    assert loaded(modules, HEAVY) == ""


@pytest.mark.parametrize(
    ("model", "extra"), [("openai:m", "openai"), ("openai-responses:m", "openai"), ("anthropic:m", "anthropic")]
)
def test_a_missing_extra_is_told_by_the_line_that_installs_it(model: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{extra!r}] = None
from weft import Agent
from weft.errors import MissingExtra
agent = Agent({model!r})
try:
    agent.run_sync("hi")
except MissingExtra as error:
    print(error)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == f"pip install 'weft-agents[{extra}]'\n"
