"""Every error is exported once, says when it is raised, and stands where the drawn tree says."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from contextlib import suppress

import pytest

import weft
from weft import errors
from weft.errors import WeftError

EVERY = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
GROUPS = {WeftError, *(kind for kind in WeftError.__subclasses__() if kind.__subclasses__())}
RAISED = [kind for kind in EVERY if kind not in GROUPS]
BRANCH = re.compile(r"^(?P<indent>[│ ]*)[├└]── (?P<name>\w+) +(?P<says>\S.*)$")


def drawn() -> dict[str, tuple[str, str]]:
    """The tree of the module docstring: each error's parent, and what is said of it."""
    block = (errors.__doc__ or "").split("```")[1]
    root, *lines = block.strip().splitlines()
    path = [root]
    tree = {}
    for line in lines:
        branch = BRANCH.match(line)
        assert branch, line
        depth = len(branch["indent"]) // 4
        path[depth + 1 :] = [branch["name"]]
        assert branch["name"] not in tree
        tree[branch["name"]] = (path[depth], branch["says"])
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {kind.__name__: kind.__base__.__name__ for kind in EVERY if kind is not WeftError}
    assert {name: parent for name, (parent, _) in drawn().items()} == real


def test_the_tree_has_one_root() -> None:
    assert WeftError.__base__ is Exception
    assert all(issubclass(kind, WeftError) and len(kind.__bases__) == 1 for kind in EVERY if kind is not WeftError)


def test_each_error_is_exported_once() -> None:
    assert Counter(errors.__all__) == Counter(kind.__name__ for kind in EVERY)
    assert errors.__all__ == sorted(errors.__all__)


def test_every_error_of_the_package_is_in_this_file() -> None:
    for module in pkgutil.walk_packages(weft.__path__, "weft."):
        if not module.name.endswith("__main__"):
            with suppress(ModuleNotFoundError):  # the package of an extra that is not installed
                importlib.import_module(module.name)
    pending, found = [WeftError], set()
    while pending:
        kind = pending.pop()
        if kind.__module__.startswith("weft."):
            found.add(kind)
        pending += kind.__subclasses__()
    assert found == set(EVERY)


def test_the_facade_exports_errors_of_this_file_only() -> None:
    public = [getattr(weft, name) for name in weft.__all__]
    assert {kind for kind in public if isinstance(kind, type) and issubclass(kind, WeftError)} <= set(EVERY)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            id=kind.__name__,
        )
        for kind in RAISED
    ],
)
def test_each_error_says_when_it_is_raised(kind: type[WeftError]) -> None:
    assert (kind.__doc__ or "").startswith("Raised when ")


@pytest.mark.parametrize("kind", sorted(GROUPS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_each_group_says_what_to_do(kind: type[WeftError]) -> None:
    assert (kind.__doc__ or "").strip()


@pytest.mark.parametrize(
    ("error", "fields", "says"),
    [
        (errors.NotPending("q"), {"request": "q"}, "session.pending"),
        (errors.NotPending("q", "is decided"), {"request": "q"}, "is decided"),
        (errors.Expired("q"), {"request": "q"}, "has expired"),
        (errors.DecideAtRoot("q", "top"), {"request": "q", "root": "top"}, "open session 'top'"),
        (errors.MissingExtra("openai"), {"extra": "openai"}, "pip install 'weft-agents[openai]'"),
        (errors.Locked("t", "node"), {"thread": "t", "holder": "node"}, "held by 'node'"),
        (errors.Closed(), {}, "open it again"),
        (errors.Stale("t", 7), {"thread": "t", "head": 7}, "load what is new"),
        (errors.RunFailed("no"), {"code": "FAILED", "result": None}, "no"),
        (errors.LimitReached("no", limit="steps"), {"code": "LIMIT", "limit": "steps", "result": None}, "no"),
        (errors.Corrupt("t", 3, "torn"), {"thread": "t", "position": 3}, "line 3: torn"),
        (errors.NotFound("t"), {"thread": "t"}, "no thread 't'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WeftError) else "",
)
def test_an_error_carries_fields_and_names_the_way_out(error: WeftError, fields: dict[str, object], says: str) -> None:
    assert {name: getattr(error, name) for name in fields} == fields
    assert says in str(error)
