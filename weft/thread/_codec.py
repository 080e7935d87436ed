"""Lines: one JSON object each, ASCII, chained by digests. The body comes last, so that its raw text can be cut out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema, from_json, to_json

from weft.errors import Corrupt, NewerFormat, WrongCall
from weft.thread.entries import FORMAT, KINDS, NAMES, Body, Entry, Head, Header

_BODY = b',"body":'
_KIND = b',"kind":"'
"""Found first in the envelope: within a string its quotes would be escaped."""
_STORED: Mapping[bytes, str] = MappingProxyType({kind.encode("ascii"): kind for kind in KINDS})
"""The kinds by their names in lines."""
_FIELD = re.compile(r"field_name=('\w+')")
"""In what pydantic says of a value that is of another type."""
EMPTY = Head(0, "")
"""The head of a thread that does not exist yet."""


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind][1])


class _Line:
    """How pydantic makes an entry of a whole line of one kind, in one call; what it cannot take is no quick line."""

    def __init__(self, kind: str) -> None:
        self._version, self._body = KINDS[kind]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        whole, text = core_schema.int_schema(strict=True), core_schema.str_schema(strict=True)
        fields = {
            "position": ("n", whole),
            "id": ("id", text),
            "parent": ("parent", core_schema.nullable_schema(text)),
            "time": ("at", core_schema.float_schema(strict=True)),
            "body": ("body", handler.generate_schema(self._body)),
        }
        version = core_schema.int_schema(strict=True, ge=1, le=self._version)
        arguments = core_schema.dataclass_args_schema(
            Entry.__name__,
            [
                *(
                    core_schema.dataclass_field(name, schema, validation_alias=alias, kw_only=True)
                    for name, (alias, schema) in fields.items()
                ),
                core_schema.dataclass_field("v", version, kw_only=True, init_only=True),
            ],
            collect_init_only=True,
        )
        return core_schema.dataclass_schema(Entry, arguments, list(fields), slots=True, frozen=True)


@cache
def _reader(kind: str) -> Callable[[bytes], Entry]:
    """Reads a whole line of this kind."""
    read: Callable[[bytes], Entry] = TypeAdapter(Annotated[Entry, _Line(kind)]).validator.validate_json
    return read


def digest_line(line: bytes) -> str:
    """The first 32 hex digits of the SHA-256 of the line's bytes."""
    return hashlib.sha256(line).hexdigest()[:32]


def encode_body(body: Body, *, given: bool = False) -> bytes:
    """The body as compact ASCII JSON; what is None is left out.

    Args:
        body: What happened.
        given: Values in it come from a caller, who may have no type checker: each is looked at. A run's own are not,
            since that takes half as long again; what a model gives is looked at when it comes.

    Raises:
        WrongCall: A value in it is not of its type, or is none that can be stored: it could not be read again.
    """
    kind = NAMES[type(body)]
    try:
        return _adapter(kind).dump_json(
            body, exclude_none=True, ensure_ascii=True, warnings="error" if given else "warn"
        )
    except PydanticSerializationError as error:
        where = _FIELD.search(str(error))
        what = "a value" if where is None else f"the value of {where[1]}"
        raise WrongCall(f"{what} is not of the type that is declared, so no {kind!r} entry was written") from error


def encode_line(entry: Entry, body: bytes, previous: str) -> bytes:
    """An entry's line: its envelope around the body's text."""
    kind = NAMES[type(entry.body)]
    parent = "null" if entry.parent is None else f'"{entry.parent}"'
    envelope = (
        f'{{"prev":"{previous}","n":{entry.position},"id":"{entry.id}","parent":{parent},'
        f'"at":{entry.time:.6f},"kind":"{kind}","v":{KINDS[kind][0]},"body":'
    )
    return b"%s%s}" % (envelope.encode("ascii"), body)


def header_line(header: Header) -> bytes:
    """The first line of a thread."""
    entry = Entry(position=0, id=header.thread, parent=None, time=header.created, body=header)
    return encode_line(entry, encode_body(header, given=True), "")


def chain(entries: Iterable[Entry], bodies: Iterable[bytes], head: Head) -> tuple[list[bytes], Head]:
    """The lines of entries that follow `head`, and the head after them."""
    count, digest = head.count, head.digest
    lines: list[bytes] = []
    for entry, body in zip(entries, bodies, strict=True):
        line = encode_line(entry, body, digest)
        lines.append(line)
        digest = digest_line(line)
        count += 1
    return lines, Head(count, digest)


def rewrap(line: bytes, *, prev: str, position: int, parent: str | None) -> bytes:
    """The same entry at another place: a new envelope around the body's text as it stands."""
    cut = line.index(_BODY)
    envelope = from_json(line[:cut] + b"}")
    name, above, kind = (to_json(value) for value in (envelope["id"], parent, envelope["kind"]))
    start = b'{"prev":"%s","n":%d,"id":%s,"parent":%s,"at":%.6f,"kind":%s,"v":%d'
    at, version = envelope["at"], envelope["v"]
    return start % (prev.encode("ascii"), position, name, above, at, kind, version) + line[cut:]


def previous_of(line: bytes) -> str | None:
    """The digest of the line before, as a line says; None where it says none."""
    try:
        found = from_json(line)["prev"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def decode_line(line: bytes, thread: str, position: int) -> Entry:
    """An entry from its line.

    Raises:
        NewerFormat: The kind is unknown, or of a higher version; a header whose thread is of a higher format.
        Corrupt: The line does not decode, or stands at another position.
    """
    start = line.find(_KIND) + len(_KIND)
    kind = _STORED.get(line[start : line.find(b'"', start)])
    if kind is not None:
        try:
            entry = _reader(kind)(line)
        except ValidationError:
            pass  # what is wrong with it is told below
        else:
            if entry.position == position:
                return entry if position else _of_this_format(entry, thread)
    entry = _decode_parts(line, thread, position)
    return entry if position else _of_this_format(entry, thread)


def _of_this_format(entry: Entry, thread: str) -> Entry:
    if isinstance(entry.body, Header) and entry.body.format > FORMAT:
        raise NewerFormat(f"thread {thread!r} has format {entry.body.format}, written by a newer weft; upgrade")
    return entry


def _decode_parts(line: bytes, thread: str, position: int) -> Entry:
    """The same, part by part, so that what is wrong can be told."""
    cut = line.find(_BODY)
    try:
        if cut < 0 or not line.endswith(b"}"):
            raise ValueError("no body")
        envelope = from_json(line[:cut] + b"}")
        kind, version, at = envelope["kind"], envelope["v"], envelope["n"]
        _check_version(kind, version, thread, position)
        if at != position:
            raise ValueError(f"it says that it is line {at}")
        body = _adapter(kind).validate_json(line[cut + len(_BODY) : -1])
        name, parent, time = envelope["id"], envelope["parent"], envelope["at"]
        if not isinstance(name, str) or not isinstance(parent, str | None) or type(time) not in (float, int):
            raise ValueError("its id, parent or time is none")
        return Entry(position=position, id=name, parent=parent, time=time, body=body)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise Corrupt(thread, position, f"the line does not decode: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return ", ".join(".".join(str(part) for part in item["loc"]) for item in error.errors(include_input=False))
    return str(error)


def _check_version(kind: object, version: object, thread: str, position: int) -> None:
    if not isinstance(kind, str) or type(version) is not int or version < 1:
        raise ValueError("its kind or version is none")
    if kind not in KINDS or version > KINDS[kind][0]:
        raise NewerFormat(
            f"thread {thread!r}, line {position}: kind {kind!r} version {version} was written by a newer weft; upgrade"
        )


def decode_lines(lines: Sequence[bytes], thread: str, first: int) -> list[Entry]:
    """The entries of consecutive lines, the first of which stands at `first`."""
    return [decode_line(line, thread, first + place) for place, line in enumerate(lines)]
