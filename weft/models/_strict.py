"""Whether a JSON schema can be sent with `strict: true`, as it is.

A provider that is asked for strictness refuses the whole request if it does not like one schema in it. So the answer
is True only for what is surely taken; a schema that is merely likely to be taken is sent without.

What both allow: `title` and `description` beside anything but a `$ref`; a `$ref` alone, into the root's `$defs`;
`anyOf`; `enum` and `const` of one plain `type`; closed objects, whose `required` names only what is there; arrays with
`items`; bare strings, numbers, booleans and null. The root is an object. Never a `default`: the OpenAI SDK lets it
stand unless it is null, and the API does not permit it; the Anthropic SDK moves it into the description.

OpenAI. Source: the structured outputs guide, and `_ensure_strict_json_schema` in `openai.lib._pydantic`, which leaves
such a schema as it is. Every property is required. Of two objects in one `anyOf`, the first properties differ in name.
Recursion is fine. Bounds and formats (`minimum`, `pattern`, `minItems`, `format`) are taken by current models of
OpenAI, but not by fine-tuned ones nor by Azure, which the same adapter reaches: not sure. So are the sizes those of the
guide's first edition, which Azure still has: 100 properties, 5 levels, 500 enum values and 15,000 characters in all,
7,500 characters in an enum of more than 250 values. Arrays count as levels here, and a `$ref` as what it refers to.

Anthropic. Source: the structured outputs guide, and `transform_schema` in `anthropic.lib._parse._transform`, which
leaves such a schema as it is. Properties may be optional. The formats that the SDK knows, and a `minItems` of 0 or 1,
are taken. No recursion. At most 24 optional properties and 16 unions; these, and at most 20 strict tools, are meant for
all strict schemas of one request together, so an adapter asks `anthropic_strict_tools`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_NOTES = frozenset({"title", "description"})
_PREFIX = "#/$defs/"
_SCALARS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What one provider takes."""

    all_required: bool
    recursion: bool
    first_names_differ: bool
    formats: frozenset[str] = frozenset()
    min_items: tuple[int, ...] = ()
    properties: int | None = None
    levels: int | None = None
    values: int | None = None
    characters: int | None = None
    characters_of_many: int | None = None
    """Of an enum of more than 250 values."""
    optional: int | None = None
    unions: int | None = None


_OPENAI = _Rules(
    all_required=True,
    recursion=True,
    first_names_differ=True,
    properties=100,
    levels=5,
    values=500,
    characters=15_000,
    characters_of_many=7_500,
)
_ANTHROPIC = _Rules(
    all_required=False,
    recursion=False,
    first_names_differ=False,
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}),
    min_items=(0, 1),
    optional=24,
    unions=16,
)
_ANTHROPIC_TOOLS = 20


def openai_strict(schema: Schema) -> bool:
    """Whether OpenAI surely takes this schema with `strict: true`. Linear in the schema, which is left as it is."""
    return _survey(schema, _OPENAI) is not None


def anthropic_strict(schema: Schema) -> bool:
    """Whether Anthropic surely takes this schema with `strict: true`, if it is the only one of its request."""
    return _survey(schema, _ANTHROPIC) is not None


def anthropic_strict_tools(schemas: Sequence[Schema]) -> tuple[bool, ...]:
    """For each tool of one request, in order, whether it may be strict: earlier ones use up what a request allows."""
    optional = unions = tools = 0
    flags = []
    for schema in schemas:
        found = _survey(schema, _ANTHROPIC)
        strict = (
            found is not None
            and tools < _ANTHROPIC_TOOLS
            and _within(optional + found.optional, _ANTHROPIC.optional)
            and _within(unions + found.unions, _ANTHROPIC.unions)
        )
        if strict and found is not None:
            optional, unions, tools = optional + found.optional, unions + found.unions, tools + 1
        flags.append(strict)
    return tuple(flags)


@dataclass(slots=True, kw_only=True)
class _Survey:
    """What was counted on the way."""

    rules: _Rules
    defs: Schema
    home: str = ""
    """The definition at work; the root's is empty."""
    level: int = 0
    """How many objects and arrays are around the present node, inside its definition."""
    properties: int = 0
    values: int = 0
    characters: int = 0
    optional: int = 0
    unions: int = 0
    depth: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By definition, how deep it is without what it refers to."""
    edges: defaultdict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """By definition, what it refers to, and at which level."""


def _survey(schema: Schema, rules: _Rules) -> _Survey | None:
    """The counts; None if something is not surely taken."""
    root = {key: value for key, value in schema.items() if key != "$defs"}
    defs = schema.get("$defs", {})
    if root.get("type") != "object" or not isinstance(defs, Mapping):
        return None
    found = _Survey(rules=rules, defs=defs, characters=sum(map(len, defs)))
    left: list[tuple[str, int, object]] = [("", 0, root), *((name, 0, node) for name, node in defs.items())]
    while left:
        found.home, found.level, node = left.pop()
        inside = _children(node, found)
        if inside is None:
            return None
        deeper = found.level + (isinstance(node, Mapping) and node.get("type") in ("object", "array"))
        found.depth[found.home] = max(found.depth[found.home], deeper)
        left += [(found.home, deeper, child) for child in inside]
    return found if _in_bounds(found) else None


def _children(node: object, found: _Survey) -> Iterable[object] | None:
    """The schemas inside one, which are still to be looked at; None if it is not surely taken."""
    if not isinstance(node, Mapping):
        return None
    keys = node.keys() - _NOTES
    if "$ref" in node:
        return () if node.keys() == {"$ref"} and _refers(node["$ref"], found) else None
    if keys == {"anyOf"}:
        return _union(node["anyOf"], found)
    kind = node.get("type")
    match kind:
        case "object":
            return _object(node, keys, found)
        case "array":
            bounded = node.get("minItems", 0) in found.rules.min_items
            allowed = {"type", "items"} | ({"minItems"} if bounded else set())
            return (node["items"],) if "items" in keys and keys <= allowed else None
        case str() if kind in _SCALARS:
            return () if _scalar(node, keys, kind, found) else None
    return None


def _refers(target: object, found: _Survey) -> bool:
    if not isinstance(target, str) or target.removeprefix(_PREFIX) not in found.defs or not target.startswith(_PREFIX):
        return False
    found.edges[found.home].append((target.removeprefix(_PREFIX), found.level))
    return True


def _union(arms: object, found: _Survey) -> Iterable[object] | None:
    if not isinstance(arms, list) or not arms:
        return None
    found.unions += 1
    if found.rules.first_names_differ and not _told_apart(arms, found.defs):
        return None
    return arms


def _told_apart(arms: list[object], defs: Schema) -> bool:
    """The objects among the arms begin with properties of different names, and no arm hides another union."""
    firsts: list[object] = []
    for arm in arms:
        target = arm.get("$ref") if isinstance(arm, Mapping) else None
        node = defs.get(str(target).removeprefix(_PREFIX)) if target is not None else arm
        if not isinstance(node, Mapping) or "anyOf" in node or "$ref" in node:
            return False
        if node.get("type") == "object":
            firsts.append(next(iter(node.get("properties") or {}), None))
    return len(set(firsts)) == len(firsts)


def _object(node: Schema, keys: set[str], found: _Survey) -> Iterable[object] | None:
    properties, required = node.get("properties"), node.get("required", None if found.rules.all_required else [])
    if (
        keys - {"type", "properties", "required", "additionalProperties"}
        or node.get("additionalProperties") is not False
    ):
        return None
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    missing = [name for name in properties if name not in required]
    if len(required) + len(missing) != len(properties) or (missing and found.rules.all_required):
        return None
    found.properties += len(properties)
    found.optional += len(missing)
    found.characters += sum(map(len, properties))
    return list(properties.values())


def _scalar(node: Schema, keys: set[str], kind: str, found: _Survey) -> bool:
    if "enum" in keys or "const" in keys:
        values = node["enum"] if "enum" in keys else [node["const"]]
        return len(keys) == 2 and isinstance(values, list) and _values(values, kind, found)
    if "format" in keys:
        return keys == {"type", "format"} and kind == "string" and str(node["format"]) in found.rules.formats
    return keys == {"type"}


def _values(values: list[object], kind: str, found: _Survey) -> bool:
    if not values or not all(
        isinstance(value, _SCALARS[kind]) and (kind == "boolean" or not isinstance(value, bool)) for value in values
    ):
        return False
    characters = sum(len(str(value)) for value in values)
    found.values += len(values)
    found.characters += characters
    return len(values) <= 250 or _within(characters, found.rules.characters_of_many)


def _within(count: int, most: int | None) -> bool:
    return most is None or count <= most


def _in_bounds(found: _Survey) -> bool:
    rules = found.rules
    deepest = _deepest(found)
    if deepest is None:
        if not rules.recursion:
            return False
        deepest = sum(found.depth.values())  # no way through the definitions that takes each once is deeper
    return (
        _within(deepest, rules.levels)
        and _within(found.properties, rules.properties)
        and _within(found.values, rules.values)
        and _within(found.characters, rules.characters)
        and _within(found.optional, rules.optional)
        and _within(found.unions, rules.unions)
    )


def _deepest(found: _Survey) -> int | None:
    """How many levels there are with all that is referred to in its place; None if that has no end."""
    waiting: defaultdict[str, int] = defaultdict(int)
    for edges in found.edges.values():
        for target, _ in edges:
            waiting[target] += 1
    ready = [name for name in found.depth if not waiting[name]]
    above: defaultdict[str, int] = defaultdict(int)
    done = deepest = 0
    while ready:
        name = ready.pop()
        done += 1
        deepest = max(deepest, above[name] + found.depth[name])
        for target, level in found.edges[name]:
            above[target] = max(above[target], above[name] + level)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return deepest if done == len(found.depth) else None
