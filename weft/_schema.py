"""From a function's signature to a JSON schema, and from argument text to values."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, SchemaError, core_schema, to_json, to_jsonable_python

from weft._usercode import is_lazy, is_open, is_plain, runs_code
from weft.errors import InvalidTool, WrongCall
from weft.messages import clean_text

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_SHOWN = 80
_UNSAID = object()
_UNDESCRIBED = (PydanticUserError, SchemaError, AttributeError, NameError, TypeError, ValueError)
"""What pydantic raises for a type that it cannot read or describe, and `json` for a schema that is no JSON."""
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""What a property of a tool's schema may be called; Anthropic refuses the whole request for any other name."""


class InvalidArguments(ValueError):
    """Text that is not one JSON object, or does not validate; the message is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a tool's function takes and gives."""

    schema: dict[str, Any]
    arguments: TypeAdapter[Any]
    names: tuple[str, ...]
    result: TypeAdapter[Any] | None
    """None where the result is undeclared, or `Any`."""
    takes_context: bool
    deps: type | None
    """The class whose value the context must hold; None where nothing, or no plain class, is asked for."""
    is_async: bool
    summary: str
    parse_runs_code: bool
    """Reading arguments runs code of the application's: validators, `__post_init__`, factories and the like."""
    render_runs_code: bool
    """Rendering a result runs code of the application's, for its declared type. See also `renders_inline`."""
    result_is_open: bool
    """The result may hold values whose type is not declared, and which bring their own code to be rendered."""

    @property
    def runs_code(self) -> bool:
        """Reading arguments or rendering a result runs code of the application's."""
        return self.parse_runs_code or self.render_runs_code

    def parse(self, text: str) -> dict[str, Any]:
        """The keyword arguments of the body.

        Raises:
            InvalidArguments: The text is not one JSON object, or does not validate.
        """
        value = _validated(self.arguments, text or "{}", "arguments")
        return {name: getattr(value, name) for name in self.names}

    def render(self, value: object) -> str:
        """A string verbatim; anything else as JSON, by the declared type where there is one."""
        checked = value if self.result is None else self.result.validate_python(value)
        if isinstance(checked, str):
            return str(checked.value) if isinstance(checked, Enum) else str(checked)
        try:
            return self._json(checked)
        except PydanticSerializationError:  # half a character, which is no UTF-8, or what has no JSON at all
            typed = checked if self.result is None else self.result.dump_python(checked, mode="json")
            plain = to_jsonable_python(typed, inf_nan_mode="null")
            return clean_text(json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")))

    def _json(self, value: object) -> str:
        text = to_json(value, inf_nan_mode="null") if self.result is None else self.result.dump_json(value)
        return text.decode()

    def renders_inline(self, value: object) -> bool:
        """Whether rendering this value runs no code of the application's.

        A value of a declared type is taken to be what the type says.
        """
        return not self.render_runs_code and (not self.result_is_open or is_plain(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputShape:
    """What a run's answer must be."""

    schema: dict[str, Any]
    """Always an object's schema, with its `$defs` at the root."""
    wrapped: bool
    """The type itself is no object: the answer is its property `output`."""
    runs_code: bool
    """Reading an answer runs code of the application's."""
    adapter: TypeAdapter[Any]

    def parse(self, text: str) -> Any:
        """The answer as a value of the type.

        Raises:
            InvalidArguments: The text is not JSON, or does not validate.
        """
        value = _validated(self.adapter, text, "output")
        return value.output if self.wrapped else value


class _JsonSchema(GenerateJsonSchema):
    """As pydantic describes a type, but an array always says what its `items` are.

    OpenAI refuses an array without `items`, even beside `prefixItems`.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # pydantic's own attribute

    def encode_default(self, dft: Any) -> Any:
        """A default, unless it is no JSON; then the schema has none."""
        encoded = super().encode_default(dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from error
        return encoded

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        """A tuple."""
        return _with_items(super().tuple_schema(schema))

    def named_tuple_schema(self, schema: core_schema.NamedTupleSchema) -> JsonSchemaValue:
        """A named tuple."""
        return _with_items(super().named_tuple_schema(schema))


def _with_items(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "items" not in schema:
        kinds: list[JsonSchemaValue] = []
        for place in schema.get("prefixItems", ()):
            kind = {key: value for key, value in deepcopy(place).items() if key not in ("title", "default")}
            if kind not in kinds:
                kinds.append(kind)
        schema["items"] = {"anyOf": kinds} if len(kinds) > 1 else kinds[0] if kinds else {}
    return schema


def _validated(adapter: TypeAdapter[Any], text: str, what: str) -> Any:
    """What the adapter makes of the text.

    Raises:
        InvalidArguments: The text is not JSON, names a key twice in one object, or does not validate.
    """
    if _needs_a_look(text):
        try:
            _TEXT.decode(text)
        except _NotPlain as error:
            raise InvalidArguments(f"{what}: Invalid JSON: {error}") from None
        except (ValueError, RecursionError):
            pass  # the validator knows better what is wrong
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise InvalidArguments(_explain(error, what)) from None


class _NotPlain(ValueError):
    """What pydantic lets pass, and weft does not."""


def _needs_a_look(text: str) -> bool:
    """Whether the text may hold what the validator would let pass; cheap, for the most part of texts does not."""
    if "\\" in text or "NaN" in text or "Infinity" in text:
        return True
    keys = [key for key, colon in _STRINGS.findall(text) if colon] if text.count(":") > 1 else ()
    return len(set(keys)) < len(keys)


def _once(pairs: list[tuple[str, object]]) -> None:
    """No key twice: who reads the stored text, to approve it say, must read what the body gets."""
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _NotPlain(f"the key {_shown(twice)} is there more than once; give it once")


def _no_constant(name: str) -> None:
    raise _NotPlain(f"a number was expected; got {name}, which JSON does not have")


_STRINGS = re.compile(r'"([^"]*)"\s*(:?)')
"""The strings of a text without backslashes, and whether each is a key."""
_TEXT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
"""Finds what pydantic lets pass."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _explain(error: ValidationError, what: str) -> str:
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"]) or what
        lines.append(f"{where}: {item['msg']}; got {_shown(item['input'])}")
    return "\n".join(lines)


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine: a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def inspect_function(function: Callable[..., Any], name: str, context: type, namespace: Mapping[str, Any]) -> Signature:
    """Read a tool's function.

    Args:
        function: The body.
        name: The tool's name, for errors.
        context: The class whose annotation marks the first parameter as the context.
        namespace: The locals of the frame that defines the function, for string annotations.

    Raises:
        InvalidTool: It is no function, or a generator; a parameter cannot be described, or is variadic.
    """
    import docstring_parser  # noqa: PLC0415  # slow to import, and needed by who makes tools alone

    _check_function(function, name)
    hints = _hints(function, name, namespace)
    parameters = _parameters(function, name)
    takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name), context)
    docs = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {param.arg_name: param.description for param in docs.params if param.description}
    fields = [_field(p, hints, described, name, context) for p in parameters[takes_context:]]
    shape = make_dataclass("Arguments", fields, kw_only=True)
    shape.__pydantic_config__ = _STRICT  # type: ignore[attr-defined]  # pydantic reads it from the class
    arguments, schema = _described(shape, fields, name, namespace)
    result = _result(hints.get("return", _UNSAID), name, namespace)
    returned = None if result is None else result.core_schema
    summary = "\n\n".join(text for text in (docs.short_description, docs.long_description) if text)
    return Signature(
        schema=schema,
        arguments=arguments,
        names=tuple(entry[0] for entry in fields),
        result=result,
        takes_context=takes_context,
        deps=_asked_deps(hints[parameters[0].name]) if takes_context else None,
        is_async=is_async(function),
        summary=summary,
        parse_runs_code=runs_code(arguments.core_schema, rendering=False),
        render_runs_code=runs_code(returned, rendering=True),
        result_is_open=returned is None or is_open(returned),
    )


def inspect_output(kind: Any, name: str) -> OutputShape:
    """Read the type of a run's answer.

    A model, a dataclass, a TypedDict or a dict is taken as it is, and keys that it does not name are its own affair.
    Anything else (a list, a number, a union, an enum, a root model of those) is wrapped: `{"output": …}`.

    Args:
        kind: Anything that pydantic can read from JSON.
        name: Whose answer it is, for errors.

    Raises:
        WrongCall: The type cannot be described; the message names it.
    """
    try:
        adapter = _adapter(kind, {})
        schema = _hoisted(_schema(adapter))
        wrapped = not _is_object(schema)
        if wrapped:
            shape = make_dataclass("Output", [("output", kind)], kw_only=True)
            shape.__pydantic_config__ = _STRICT  # type: ignore[attr-defined]  # pydantic reads it from the class
            adapter = _adapter(shape, {})
            schema = _schema(adapter)
            del schema["title"]
    except _UNDESCRIBED as error:
        raise WrongCall(f"the output of {name!r}: {kind!r} cannot be described: {_first(error)}") from error
    return OutputShape(
        schema=schema, wrapped=wrapped, runs_code=runs_code(adapter.core_schema, rendering=False), adapter=adapter
    )


def _hoisted(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with what its root refers to at the root."""
    seen: set[str] = set()
    while "$ref" in schema and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        target = schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and not schema.keys() & {"allOf", "anyOf", "const", "enum", "oneOf"}


def _check_function(function: Callable[..., Any], name: str) -> None:
    if not (inspect.isroutine(function) or inspect.isclass(function) or hasattr(function, "__wrapped__")):
        raise InvalidTool(
            f"tool {name!r}: an object of {type(function).__name__!r} is no function; wrap it in a typed one"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTool(f"tool {name!r}: a generator's items would be made after the call; return a list")


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidTool(f"tool {name!r}: its signature cannot be read; wrap it in a typed function") from error


def _hints(function: Callable[..., Any], name: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    names = {**getattr(function, "__globals__", {}), **namespace}
    try:
        return get_type_hints(function, globalns=names, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        where = ", ".join(repr(key) for key, hint in _annotations(function).items() if isinstance(hint, str))
        raise InvalidTool(f"tool {name!r}: an annotation does not resolve ({where}): {error}") from error


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = getattr(function, "__annotations__", {})
    return found


def _is_context(hint: object, context: type) -> bool:
    return hint is context or get_origin(hint) is context


def _asked_deps(hint: object) -> type | None:
    kind = next(iter(get_args(hint)), None)
    if kind is Any or not isinstance(kind, type):
        return None
    try:
        return None if isinstance(None, kind) else kind
    except TypeError:  # a protocol, or another class whose fit cannot be seen
        return None


def _mentions(hint: object, context: type) -> bool:
    return _is_context(hint, context) or any(_mentions(part, context) for part in get_args(hint))


def _field(
    parameter: inspect.Parameter, hints: Mapping[str, Any], described: Mapping[str, str], name: str, context: type
) -> tuple[str, Any, Any]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise InvalidTool(f"tool {name!r}: parameter {parameter} cannot be filled by name; give it a plain one")
    if parameter.name not in hints and parameter.name in ("self", "cls"):
        raise InvalidTool(
            f"tool {name!r}: parameter {parameter.name!r}: "
            f"a method becomes a tool where it has its object: tools=[thing.{name}]"
        )
    if parameter.name not in hints:
        raise InvalidTool(f"tool {name!r}: parameter {parameter.name!r} has no annotation; say what it takes")
    hint = hints[parameter.name]
    if _mentions(hint, context):
        raise InvalidTool(f"tool {name!r}: parameter {parameter.name!r}: the context is plain, and comes first")
    if isinstance(parameter.default, FieldInfo):
        raise InvalidTool(f"tool {name!r}: parameter {parameter.name!r}: put Field(…) into Annotated[…]")
    if parameter.name in described:
        hint = Annotated[hint, Field(description=described[parameter.name])]
    if parameter.default is parameter.empty:
        return (parameter.name, hint, field())
    default = parameter.default
    if type(default).__hash__ is None:  # a list, a dict: each call gets its own
        return (parameter.name, hint, field(default_factory=lambda: deepcopy(default)))
    return (parameter.name, hint, field(default=default))


def _adapter(hint: Any, namespace: Mapping[str, Any]) -> TypeAdapter[Any]:
    """Raises one of `_UNDESCRIBED`."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    if not adapter.pydantic_complete:  # classes of a function may name each other
        adapter.rebuild(force=True, _types_namespace=namespace)
    return adapter


def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Raises one of `_UNDESCRIBED`."""
    if is_lazy(adapter.core_schema):
        raise TypeError("its items would be read only when they are asked for; use a list")
    schema = adapter.json_schema(schema_generator=_JsonSchema)
    json.dumps(schema, allow_nan=False)  # a schema of the application's own may hold anything
    return schema


def _described(
    shape: type, fields: list[tuple[str, Any, Any]], name: str, namespace: Mapping[str, Any]
) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        arguments = _adapter(shape, namespace)
        schema = _schema(arguments)
    except _UNDESCRIBED as error:
        for parameter, hint, _ in fields:  # which one is it?
            _check(hint, f"tool {name!r}: parameter {parameter!r}", namespace)
        raise InvalidTool(f"tool {name!r}: {_first(error)}") from error
    schema.pop("title", None)
    for key in schema.setdefault("properties", {}):
        if _KEY.fullmatch(key) is None:
            raise InvalidTool(
                f"tool {name!r}: argument {key!r}: not every provider takes this name; use at most 64 of a-z, A-Z, "
                "0-9, '_', '.', '-', or give the parameter an alias: Annotated[…, Field(alias=…)]"
            )
    return arguments, schema


def _first(error: Exception) -> str:
    """What pydantic says of a type, without its advice: none of it helps here."""
    text = str(error).split("\n\n")[0]
    said, _, _ = text.partition(". Set `arbitrary_types_allowed=True`")
    return said if said == text else f"{said}; use a pydantic model, a dataclass or a TypedDict"


def _check(hint: Any, what: str, namespace: Mapping[str, Any]) -> None:
    try:
        _schema(_adapter(hint, namespace))
    except _UNDESCRIBED as error:
        raise InvalidTool(f"{what}: {_first(error)}") from error


def _result(hint: Any, name: str, namespace: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    if hint is _UNSAID or hint is Any:
        return None
    try:
        return _adapter(hint, namespace)
    except _UNDESCRIBED as error:
        raise InvalidTool(f"tool {name!r}: its result: {_first(error)}") from error
