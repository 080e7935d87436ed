"""Lines: one JSON object each, ASCII, chained by digests. The body comes last, so that its raw text can be cut out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from weft.errors import Corrupt, NewerFormat
from weft.thread.entries import KINDS, NAMES, Body, Entry, Head, Header

_BODY = b',"body":'
EMPTY = Head(0, "")
"""The head of a thread that does not exist yet."""


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind][1])


def digest_line(line: bytes) -> str:
    """The first 32 hex digits of the SHA-256 of the line's bytes."""
    return hashlib.sha256(line).hexdigest()[:32]


def encode_body(body: Body) -> bytes:
    """The body as compact ASCII JSON; what is None is left out."""
    return _adapter(NAMES[type(body)]).dump_json(body, exclude_none=True, ensure_ascii=True)


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
    return encode_line(entry, encode_body(header), "")


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
        NewerFormat: The kind is unknown, or of a higher version.
        Corrupt: The line does not decode, or stands at another position.
    """
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
