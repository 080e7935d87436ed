"""The documents keep their word: their programs print what they say, and every public name is in the reference."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_examples import CodeExample, find_examples

from tests.children import STALLED
from weft import errors

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    "weft",
    "weft.events",
    "weft.model",
    "weft.models",
    "weft.pool",
    "weft.testing",
    "weft.testing.contract",
    "weft.testing.crash",
    "weft.thread",
    "weft.tokens",
]
ALIASES = {"Event", "ModelEvent", "LEASE", "NewStore"}
"""Values and aliases of types, whose docstrings are not kept."""

FILE_NAME = re.compile(r"# (\w+\.py)\n")
"""As a block's first line, what later blocks of the page import it as."""
ROW = re.compile(r"^\| `(\w+)`[^|]*\| ([^|]+) \|$", re.M)
DRIVER = """
import json, runpy, sys

def record(*values, sep=" ", end="\\n", **_):
    said.append([sys._getframe(1).f_lineno, sep.join(map(str, values))])

said = []
program, notes = sys.argv[1:3]
del sys.argv[1:]
sys.argv[0] = program
runpy.run_path(program, init_globals={"print": record}, run_name="__main__")
with open(notes, "w") as file:
    json.dump(said, file)
"""
"""Runs a program with a `print` of its own, which notes the line that it is called from."""


def run(program: Path, folder: Path) -> dict[int, list[str]]:
    """What a program prints, as a process of its own in this folder, by the line of the `print`."""
    notes = folder / "printed.json"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER, str(program), str(notes)],
        cwd=folder,
        env={**os.environ, "WEFT_MODEL_REQUESTS": "deny"},
        capture_output=True,
        text=True,
        timeout=STALLED,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    printed = defaultdict(list)
    for line, text in json.loads(notes.read_text()):
        printed[line] += [row.rstrip() for row in text.splitlines()]
    return printed


def promised(source: str) -> Iterator[tuple[int, list[str]]]:
    """The line of each `print` that says what it prints: in a comment after it, or in those right under it."""
    comments = {
        token.start: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    trailing = {row: text for (row, _), text in comments.items()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            last = node.end_lineno or node.lineno
            if last in trailing:
                yield node.lineno, [trailing[last]]
                continue
            under = []
            while (last + 1 + len(under), node.col_offset) in comments:
                under.append(comments[last + 1 + len(under), node.col_offset])
            if under:
                yield node.lineno, under


def check(source: str, printed: dict[int, list[str]], where: str, first: int = 0) -> None:
    """Hold what was printed against what the comments say; a comment may leave the label out."""
    for line, said in promised(source):
        got = printed[line]
        kept = len(got) == len(said) and all(
            text == comment or text.endswith(f" {comment}") for text, comment in zip(got, said, strict=True)
        )
        assert kept, f"{where}:{first + line} prints {got}, and says {said}"


def blocks(page: Path) -> list[CodeExample]:
    return [example for example in list(find_examples(page)) if "notest" not in example.prefix_tags()]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_and_print_what_they_say(page: Path, tmp_path: Path) -> None:
    # Each is a program of its own; those of one page are run in order, in one folder.
    for block in blocks(page):
        name = FILE_NAME.match(block.source)
        program = tmp_path / (name[1] if name else f"block_{block.start_line}.py")
        program.write_text(block.source, encoding="utf-8")
        check(block.source, run(program, tmp_path), page.name, block.start_line)


def test_the_comments_under_and_after_a_print_are_what_it_promises() -> None:
    source = 'print("a")  # a\nprint(\n    "b"\n)\n# b\n# c\nx = 1  # no print\nprint(x)\n'
    assert list(promised(source)) == [(1, ["a"]), (2, ["b", "c"])]


@pytest.mark.parametrize(
    ("printed", "kept"),
    [("reply: done", True), ("it says reply: done", True), ("reply: done!", False), ("", False)],
)
def test_a_promise_is_held_against_what_was_printed(printed: str, kept: bool) -> None:
    source = "print(x)  # reply: done"
    if kept:
        check(source, {1: [printed]}, "page")
    else:
        with pytest.raises(AssertionError, match="page:1 prints"):
            check(source, {1: [printed]}, "page")


def test_readme_has_its_first_program_before_line_25() -> None:
    first = blocks(PAGES[0])[0]
    assert first.end_line <= 25


def test_agents_page_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.parametrize("page", [*PAGES, ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def reference(module: str) -> dict[str, str]:
    """The rows of a module's table in the reference: each name, and what is said of it."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    found = re.search(rf"^## `{re.escape(module)}`\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"docs/reference.md has no section for {module}"
    return dict(ROW.findall(found[1]))


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name_and_no_other(module: str) -> None:
    rows = reference(module)
    names = importlib.import_module(module).__all__
    assert sorted(rows) == sorted(names)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_sorted_and_there_and_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__all__ == sorted(set(loaded.__all__))
    assert [name for name in loaded.__all__ if not says_something(name, getattr(loaded, name))] == []


def says_something(name: str, value: object) -> bool:
    """A docstring that somebody wrote, not one that a dataclass made."""
    text = value.__doc__ or ""
    return name in ALIASES or (bool(text.strip()) and not text.startswith(f"{name}("))


def test_every_error_is_on_the_page_of_errors() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [name for name in errors.__all__ if f"`{name}`" not in text] == []
