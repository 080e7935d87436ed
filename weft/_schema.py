"""From a function's signature to a JSON schema, and from argument text to values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from weft.errors import InvalidTool

_STRICT = ConfigDict(extra="forbid")
_SHOWN = 80
_UNSAID = object()


class InvalidArguments(ValueError):
    """Argument text that is not one JSON object, or does not validate; the message is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a tool's function takes and gives."""

    schema: dict[str, Any]
    arguments: TypeAdapter[Any]
    names: tuple[str, ...]
    result: TypeAdapter[Any] | None
    takes_context: bool
    summary: str

    def parse(self, text: str) -> dict[str, Any]:
        """The keyword arguments of the body.

        Raises:
            InvalidArguments: The text is not one JSON object, or does not validate.
        """
        try:
            value = self.arguments.validate_json(text or "{}")
        except ValidationError as error:
            raise InvalidArguments(_explain(error)) from None
        return {name: getattr(value, name) for name in self.names}

    def render(self, value: object) -> str:
        """A string verbatim; anything else as JSON, by the declared type where there is one."""
        checked = value if self.result is None else self.result.validate_python(value)
        if isinstance(checked, str):
            return str(checked.value) if isinstance(checked, Enum) else str(checked)
        return (to_json(checked) if self.result is None else self.result.dump_json(checked)).decode()


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"]) or "arguments"
        came = repr(item["input"])
        came = came if len(came) <= _SHOWN else came[:_SHOWN] + "…"
        lines.append(f"{where}: {item['msg']}; got {came}")
    return "\n".join(lines)


def inspect_function(function: Callable[..., Any], name: str, context: type, namespace: Mapping[str, Any]) -> Signature:
    """Read a tool's function.

    Args:
        function: The body.
        name: The tool's name, for errors.
        context: The class whose annotation marks the first parameter as the context.
        namespace: The locals of the frame that defines the function, for string annotations.

    Raises:
        InvalidTool: A parameter cannot be described, or is variadic.
    """
    hints = _hints(function, name, namespace)
    parameters = _parameters(function, name)
    takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name), context)
    docs = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {param.arg_name: param.description for param in docs.params if param.description}
    fields = [_field(p, hints, described, name, context) for p in parameters[takes_context:]]
    shape = make_dataclass("Arguments", fields, kw_only=True)
    shape.__pydantic_config__ = _STRICT  # type: ignore[attr-defined]  # pydantic reads it from the class
    arguments = _shape_adapter(shape, fields, name)
    schema = _schema(arguments, name)
    summary = "\n\n".join(text for text in (docs.short_description, docs.long_description) if text)
    return Signature(
        schema=schema,
        arguments=arguments,
        names=tuple(entry[0] for entry in fields),
        result=_result(hints.get("return", _UNSAID), name),
        takes_context=takes_context,
        summary=summary,
    )


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


def _mentions(hint: object, context: type) -> bool:
    return _is_context(hint, context) or any(_mentions(part, context) for part in get_args(hint))


def _field(
    parameter: inspect.Parameter, hints: Mapping[str, Any], described: Mapping[str, str], name: str, context: type
) -> tuple[str, Any, Any]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise InvalidTool(f"tool {name!r}: parameter {parameter} cannot be filled by name; give it a plain one")
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


def _adapter(hint: Any, name: str, what: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except (PydanticUserError, NameError, TypeError) as error:
        raise InvalidTool(f"tool {name!r}: {what}: {error}") from error


def _shape_adapter(shape: Any, fields: list[tuple[str, Any, Any]], name: str) -> TypeAdapter[Any]:
    try:
        adapter = TypeAdapter(shape)
        adapter.json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        for parameter, hint, _ in fields:  # which one is it?
            _schema(_adapter(hint, name, f"parameter {parameter!r}"), name, f"parameter {parameter!r}")
        raise InvalidTool(f"tool {name!r}: {error}") from error
    return adapter


def _schema(arguments: TypeAdapter[Any], name: str, what: str = "its arguments") -> dict[str, Any]:
    try:
        schema = arguments.json_schema()
    except PydanticUserError as error:
        raise InvalidTool(f"tool {name!r}: {what}: {error}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _result(hint: Any, name: str) -> TypeAdapter[Any] | None:
    return None if hint is _UNSAID or hint is Any else _adapter(hint, name, "its result")
