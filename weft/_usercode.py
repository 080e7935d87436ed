"""Whether validating or serialising by a pydantic core schema runs code that the user wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

_OPAQUE = frozenset({"cls", "config", "default", "expected", "members", "metadata"})
"""Keys of a schema whose values are no schemas."""
_RENDERING = frozenset({"computed_fields", "serialization", "serialization_exclude_if"})
"""Keys that matter to serialising only."""
_CALLED = ("default_factory", "discriminator", "function")
"""Keys whose value, if it is callable, is called."""
_OWN = frozenset({"enum", "pydantic", "pydantic_core"})
"""The packages whose functions are as good as pydantic's own validators."""
_MAKERS = frozenset({bool, bytes, dict, float, frozenset, int, list, set, str, tuple})
_LOOKED_AT = 1000
"""Values that `is_plain` looks at before it gives up."""
_VALUES = frozenset({"decimal", "fractions", "ipaddress", "pathlib", "pydantic", "uuid"})
"""The packages whose types only make a value."""
_HASHED = frozenset(
    {"bool", "bytes", "date", "datetime", "decimal", "enum", "float", "int", "literal", "none", "str", "time"}
    | {"timedelta", "url", "uuid"}
)
"""What a set may hold without asking a class of the user's for a hash."""


def runs_code(schema: object, *, rendering: bool) -> bool:
    """Whether code of the user's may run: validators, factories, hooks of classes, and serialisers if `rendering`.

    What weft and pydantic bring along does not count. In doubt the answer is True.

    Args:
        schema: The `core_schema` of a `TypeAdapter`.
        rendering: The schema is used to validate and to serialise; otherwise only to validate.
    """
    return any(_runs(node, rendering=rendering) for node in _nodes(schema, () if rendering else _RENDERING))


def is_open(schema: object) -> bool:
    """Whether a value of any type may be somewhere inside, which brings its own way to be serialised."""
    return any(
        node["type"] == "any" or "allow" in (node.get("extra_behavior"), _config(node).get("extra_fields_behavior"))
        for node in _nodes(schema, ())
    )


def is_lazy(schema: object) -> bool:
    """Whether a part of a value would be validated only once it is asked for."""
    return any(node["type"] == "generator" for node in _nodes(schema, ()))


def is_plain(value: object) -> bool:
    """Whether a value consists of Python's own JSON types alone; False where that takes long to tell."""
    left, seen = [value], 0
    while left:
        item, seen = left.pop(), seen + 1
        kind = type(item)
        if kind is dict and isinstance(item, dict):
            left += [*item, *item.values()]
        elif kind in (list, tuple) and isinstance(item, list | tuple):
            left += item
        elif item is not None and kind not in (bool, float, int, str):
            return False
        if seen + len(left) > _LOOKED_AT:
            return False
    return True


def _nodes(schema: object, skipped: frozenset[str] | tuple[()]) -> Iterator[Mapping[Any, Any]]:
    """Every part of a core schema that has a `type`, each once."""
    seen: set[int] = set()
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, list | tuple):
            left += node
        elif isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node.get("type"), str):
                yield node
                left += [value for key, value in node.items() if key not in _OPAQUE and key not in skipped]
            else:  # names and what they stand for: a field may have the name of a key
                left += node.values()


def _config(node: Mapping[Any, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = node.get("config") or {}
    return found


def _runs(node: Mapping[Any, Any], *, rendering: bool) -> bool:
    called = _CALLED + ("serialization_exclude_if",) * rendering
    if any(callable(node.get(key)) and not _own(node[key]) for key in called):
        return True
    match node["type"]:
        case "enum":
            return not _own(node["cls"]._missing_)
        case "model" | "dataclass" | "named-tuple":
            return _class_runs(node)
        case "set" | "frozenset":
            return node.get("items_schema", {}).get("type") not in _HASHED
        case "is-instance" | "is-subclass":
            return not _standard(type(node["cls"]))
        case "generator" | "computed-field":
            return rendering
    return False


def _class_runs(node: Mapping[Any, Any]) -> bool:
    """Whether making an instance runs what the class defines."""
    cls, after = node["cls"], node.get("post_init")
    made = cls.__new__
    if node.get("custom_init") or not (made in (object.__new__, tuple.__new__) or _own(made)):
        return True
    if after and not _own(getattr(cls, "__post_init__" if after is True else after)):
        return True
    private = getattr(cls, "__private_attributes__", {}).values()
    return any(entry.default_factory is not None and not _own(entry.default_factory) for entry in private)


def _own(function: Any) -> bool:
    """A function of pydantic's or weft's that holds none of the user's, or a type that makes a plain value."""
    if isinstance(function, partial):
        return _own(function.func) and not any(map(_foreign, (*function.args, *function.keywords.values())))
    if isinstance(function, type):
        return function in _MAKERS or function.__module__.partition(".")[0] in _VALUES
    module = str(getattr(function, "__module__", None))
    if module == "weft._schema" or module.startswith("namedtuple_"):
        return True
    return module.partition(".")[0] in _OWN and not any(map(_foreign, _held(function)))


def _held(function: Any) -> Iterator[object]:
    """What a closure, or the object of a bound method, refers to."""
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type):
        names = (*getattr(owner, "__slots__", ()), *getattr(owner, "__dict__", ()))
        yield from (getattr(owner, name, None) for name in names)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled
            continue


def _foreign(value: object) -> bool:
    """Something that could call the user: a function, a class, or an annotation that holds one."""
    if type(value).__module__.partition(".")[0] == "annotated_types":
        return True
    return callable(value) and not _standard(value)


def _standard(value: object) -> bool:
    root = str(getattr(value, "__module__", None)).partition(".")[0]
    return root in _OWN or root in sys.stdlib_module_names
