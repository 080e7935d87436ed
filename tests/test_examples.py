"""Each example is a program of its own, and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, check, promised, run

PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in {"__init__.py", "demo.py"})


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_example_prints_what_it_says(program: Path, tmp_path: Path) -> None:
    source = program.read_text(encoding="utf-8")
    assert list(promised(source)), "it says of nothing what it prints"
    check(source, run(program, tmp_path), program.name)
