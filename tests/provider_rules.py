"""What providers refuse in a tool's schema, written apart from what weft does about it.

`openai` and `anthropic` give complaints, none if the provider takes the schema. The sources: JSON Schema 2020-12, which
both name; the providers' guides to function calling, tool use and structured outputs; the messages of their errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from anthropic.lib._parse._transform import transform_schema
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from openai.lib._pydantic import _ensure_strict_json_schema

Schema = dict[str, Any]

PLACES = ("properties", "$defs", "patternProperties", "dependentSchemas")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
OPENAI_KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "exclusiveMaximum", "format"),
    *("exclusiveMinimum", "items", "maxItems", "maximum", "minItems", "minimum", "multipleOf", "pattern", "properties"),
    *("required", "title", "type"),
}
ANTHROPIC_KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum", "format"),
    *("items", "minItems", "pattern", "properties", "required", "title", "type"),
}
OPENAI_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def nodes(schema: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema inside one, and itself."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for key in PLACES:
        for name, inner in schema.get(key, {}).items():
            yield from nodes(inner, f"{path}/{key}/{name}")
    for key in LISTS:
        for index, inner in enumerate(schema.get(key, [])):
            yield from nodes(inner, f"{path}/{key}/{index}")
    for key in SINGLE:
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}/{key}")


def target(schema: Schema, ref: str) -> Any:
    """What a reference means; None for nothing."""
    found: Any = schema
    for step in ref.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found if ref.startswith("#/") else None


def anybody(schema: Schema) -> Iterator[str]:
    """What no provider takes, strict or not."""
    try:
        json.dumps(schema, allow_nan=False)
        Draft202012Validator.check_schema(schema)
    except (SchemaError, TypeError, ValueError) as error:
        yield f"no JSON schema: {error}"
        return
    if schema.get("type") != "object":
        yield "the root is no object"
    for key in ("anyOf", "oneOf", "allOf", "enum", "not"):
        if key in schema:
            yield f"{key} at the root"
    for path, node in nodes(schema):
        if isinstance(node, dict) and "$ref" in node and target(schema, node["$ref"]) is None:
            yield f"{path}: {node['$ref']} leads nowhere"
        if path and isinstance(node, dict) and "$defs" in node:
            yield f"{path}: $defs below the root"


def openai(schema: Schema, *, strict: bool) -> list[str]:
    """Why OpenAI would refuse a request with this schema."""
    found = list(anybody(schema))
    for path, node in nodes(schema):
        if isinstance(node, dict) and node.get("type") == "array" and "items" not in node:
            found.append(f"{path}: array schema missing items")
    return found if found or not strict else [*_openai_strict(schema), *_openai_sizes(schema)]


def _openai_strict(schema: Schema) -> Iterator[str]:
    if _ensure_strict_json_schema(deepcopy(schema), path=(), root=deepcopy(schema)) != schema:
        yield "the SDK would change it"
    for path, node in nodes(schema):
        if not isinstance(node, dict):
            yield f"{path}: a schema that is no object"
            continue
        for key in sorted(node.keys() - OPENAI_KEYWORDS):
            yield f"{path}: {key!r} is not permitted"
        if not node.keys() & {"type", "$ref", "anyOf"}:
            yield f"{path}: schema must have a 'type' key"
        if "$ref" in node and len(node) > 1:
            yield f"{path}: $ref cannot have keywords beside it"
        yield from _open_object(path, node)
        yield from _odd_text(path, node)
        yield from _same_beginnings(schema, path, node)


def _open_object(path: str, node: Schema) -> Iterator[str]:
    if node.get("type") != "object":
        return
    if node.get("additionalProperties") is not False:
        yield f"{path}: 'additionalProperties' is required to be supplied and to be false"
    if "required" not in node or sorted(node["required"]) != sorted(node.get("properties", {})):
        yield f"{path}: 'required' is required to include every key in properties"


def _odd_text(path: str, node: Schema) -> Iterator[str]:
    if node.get("format", "date") not in OPENAI_FORMATS:
        yield f"{path}: {node['format']!r} is not a valid format"
    if re.search(r"\(\?[=!<]", node.get("pattern", "")):
        yield f"{path}: lookaround in a pattern"


def _same_beginnings(schema: Schema, path: str, node: Schema) -> Iterator[str]:
    firsts = []
    for arm in node.get("anyOf", ()):
        meant = target(schema, arm["$ref"]) if "$ref" in arm else arm
        firsts += list(meant.get("properties", {}))[:1]
    if len(set(firsts)) < len(firsts):
        yield f"{path}: objects provided via 'anyOf' must not share identical first keys"


def _openai_sizes(schema: Schema) -> Iterator[str]:
    every = [node for _, node in nodes(schema)]
    enums = [node["enum"] for node in every if "enum" in node]
    names = [name for node in every for key in ("properties", "$defs") for name in node.get(key, ())]
    words = [*names, *(str(value) for values in enums for value in values), *(str(n.get("const", "")) for n in every)]
    if sum(len(node.get("properties", ())) for node in every) > 5000:
        yield "more than 5000 properties"
    if sum(map(len, enums)) > 1000:
        yield "more than 1000 enum values"
    if any(len(values) > 250 and sum(len(str(value)) for value in values) > 15_000 for values in enums):
        yield "an enum of more than 15000 characters"
    if sum(map(len, words)) > 120_000:
        yield "more than 120000 characters"
    if levels(schema, schema, ()) > 10:
        yield "more than 10 levels"


def levels(root: Schema, node: Schema, above: tuple[str, ...]) -> int:
    """How deep objects are nested, each definition taken once on the way."""
    if "$ref" in node:
        return 0 if node["$ref"] in above else levels(root, target(root, node["$ref"]), (*above, node["$ref"]))
    inner = [
        *node.get("properties", {}).values(),
        *node.get("anyOf", ()),
        *([node["items"]] if "items" in node else ()),
    ]
    return (node.get("type") == "object") + max((levels(root, child, above) for child in inner), default=0)


def anthropic(schema: Schema, *, strict: bool) -> list[str]:
    """Why Anthropic would refuse a request with this schema."""
    found = list(anybody(schema))
    for key in schema.get("properties", {}):
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key):
            found.append(f"property keys should match the pattern: {key!r}")
    return found if found or not strict else list(_anthropic_strict(schema))


def _anthropic_strict(schema: Schema) -> Iterator[str]:
    if _typed(transform_schema(deepcopy(schema))) != _typed(schema):
        yield "the SDK would change it"
    optional = unions = 0
    for path, node in nodes(schema):
        for key in sorted(node.keys() - ANTHROPIC_KEYWORDS):
            yield f"{path}: {key!r} is not supported"
        if node.get("type") == "object" and node.get("additionalProperties") is not False:
            yield f"{path}: additionalProperties must be false"
        if node.get("minItems", 0) > 1:
            yield f"{path}: minItems of 0 or 1"
        if any(isinstance(value, dict | list) for value in node.get("enum", ())):
            yield f"{path}: complex enum"
        if "$ref" in node and _returns(schema, node["$ref"]):
            yield f"{path}: recursive"
        optional += len(node.get("properties", {}).keys() - set(node.get("required", ())))
        unions += "anyOf" in node or isinstance(node.get("type"), list)
    if optional > 24 or unions > 16:
        yield f"{optional} optional properties, {unions} unions"


def _returns(root: Schema, ref: str) -> bool:
    """Whether a reference can be reached from what it means."""
    seen: set[str] = set()
    left = [ref]
    while left:
        for _, node in nodes(target(root, left.pop())):
            found = node.get("$ref")
            if found == ref:
                return True
            if found and found not in seen:
                seen.add(found)
                left.append(found)
    return False


def _typed(schema: object, *, named: bool = False) -> object:
    """A schema without the `type` beside values, which the SDK leaves out, and without empty parts."""
    if isinstance(schema, list):
        return [_typed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    drop = () if named or not schema.keys() & {"enum", "const"} else ("type",)
    return {key: _typed(value, named=key in PLACES) for key, value in schema.items() if key not in drop}
