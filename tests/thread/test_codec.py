"""Lines: the stored format, byte for byte, and what a line that is not one comes to."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft import Agent, Message, Text
from weft.errors import Corrupt, NewerFormat, WrongCall
from weft.messages import ErrorInfo, File, Reasoning, ToolCall, Usage, clean_text
from weft.testing.script import Script, call, say
from weft.thread import Memory, open_store
from weft.thread._codec import (
    EMPTY,
    _decode_parts,
    chain,
    decode_line,
    decode_lines,
    digest_line,
    encode_body,
    encode_line,
    header_line,
)
from weft.thread.entries import (
    FORMAT,
    KINDS,
    NAMES,
    Audit,
    Body,
    CallResult,
    Cancel,
    Compaction,
    Decision,
    Entry,
    Head,
    Header,
    Inbox,
    Info,
    Leaf,
    Note,
    Origin,
    Receipt,
    Request,
    Said,
    StartedCall,
    ToolsStarted,
    TurnEnded,
    TurnStarted,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "lines.jsonl"
"""What earlier versions wrote. Its lines are never changed: a new kind or version adds one at the end."""

USAGE = Usage(
    input_tokens=2**53 + 1,
    output_tokens=2**64 + 1,
    cache_read_tokens=3,
    cache_write_tokens=4,
    reasoning_tokens=5,
    unknown=1,
)
ANSWER = Message(
    role="assistant",
    parts=(
        Reasoning(text="hm", block='{"signature": "Zm9v"}', provider="anthropic", model="m-1"),
        Text(text='naïve "\U0001f9f5" \\ \n \u2028 ,"body":'),
        ToolCall(id="c-1", name="pay", arguments='{"cents": 9007199254740993, "rate": 1.10}', provider_id="call_0"),
    ),
)
PROMPT = Message(
    role="user",
    parts=(
        Text(text="pay this"),
        File(media_type="image/png", data=b"\x89PNG\x00\xff"),
        File(media_type="text/html", url="https://example.org/?a=1&b=<2>"),
    ),
)
BODIES: tuple[Body, ...] = (
    Header(
        thread="t-2",
        kind="session",
        name="desk",
        created=1_800_000_000.123456,
        meta={"user": "ann", "a.b": 'say "hi"'},
        parent="t-1",
        root="t-0",
        depth=2,
        path=("lead", "desk", "payer"),
        call="c-0",
        allow=("pay", "read"),
        expires=3_600.5,
        origin=Origin(thread="t-9", position=12, digest="0123456789abcdef", copied=7, how="fork"),
    ),
    TurnStarted(
        cause="resume",
        run="e-0",
        of="e-1",
        spends=("d-1", "d-2"),
        owner="host:1/x",
        steps=50,
        tokens=2**53 + 1,
        tool_calls=7,
        seconds=90.5,
        retries=0,
        repeats=2,
    ),
    Said(
        message=ANSWER,
        usage=USAGE,
        model="m-1",
        finish="tool_calls",
        key="k-1",
        item="e-2",
        source="correction",
    ),
    ToolsStarted(calls=(StartedCall(call="c-1", attempt=2, effect="once", digest="0123456789abcdef"),)),
    CallResult(
        call="c-1",
        content="9007199254740993",
        is_error=True,
        code="DENIED",
        source="decision",
        attempt=2,
        usage=USAGE,
    ),
    TurnEnded(
        turn="e-1",
        outcome="failed",
        stop="tool_calls",
        error=ErrorInfo(kind="limit", code="LIMIT", message="too many", details={"limit": "steps"}),
        open=("c-1", "c-2"),
        usage=USAGE,
    ),
    Inbox(state="accepted", item="e-3", policy="steer", message=PROMPT, key="k-2", receipt="t-2.e-4"),
    Request(
        request="t-3.e-9",
        kind="uncertain",
        path=("lead", "payer"),
        call="c-1",
        tool="pay",
        args='{"cents": 9007199254740993, "rate": 1.10}',
        digest="0123456789abcdef",
        schema="fedcba9876543210",
        effect="once",
        reason="over the limit",
        created=1_800_000_000.5,
        expires=1_800_604_800.25,
        allowed=("approve", "deny", "resolve"),
    ),
    Decision(
        id="d-1",
        request="t-2.e-5",
        outcome="resolve",
        reason="seen",
        content="paid",
        error=True,
        by="ann",
        via="web",
        at=1_800_000_001.0,
        args='{"cents": 1}',
        always=True,
        key="k-3",
        nonce="n-1",
    ),
    Receipt(
        state="done",
        receipt="t-2.e-6",
        child="t-4",
        call="c-2",
        agent="payer",
        wrap="payer",
        prompt="pay it",
        requests=("t-4.e-1",),
        stop="paid",
        usage=USAGE,
        background=True,
        key="k-4",
    ),
    Cancel(scope="tree"),
    Info(title="Payments", meta={"state": "open"}, removed=("draft",)),
    Note(name="seen", text='{"x": 1e400}'),
    Leaf(to="e-4"),
    Compaction(
        keep="e-2", summary="they paid", stub="[left out]", usage=USAGE, model="m-1", before=90_000, after=20_000
    ),
    Audit(what="late result", call="c-1", request="t-2.e-5", detail="after the end"),
)


def entries() -> list[Entry]:
    """One of each kind, as one journal."""
    return [
        Entry(
            position=n,
            id=f"e-{n}",
            parent=f"e-{n - 1}" if n % 2 else None,
            time=1_800_000_000 + n / 8,
            body=body,
        )
        for n, body in enumerate(BODIES)
    ]


def encoded() -> list[bytes]:
    """The lines that this version writes for these values."""
    return chain(entries(), (encode_body(body) for body in BODIES), EMPTY)[0]


def golden() -> list[bytes]:
    return GOLDEN.read_bytes().splitlines()


def line(body: Body = BODIES[-1], position: int = 3, **envelope: Any) -> bytes:
    """A line of this body, with changes to its envelope; a value of `...` leaves a key out."""
    value = {"prev": "0" * 32, "n": position, "id": "e-1", "parent": None, "at": 1.5, "kind": NAMES[type(body)], "v": 1}
    changed = {key: found for key, found in (value | envelope).items() if found is not ...}
    text = json.dumps(changed, separators=(",", ":")).encode("ascii")
    return b'%s,"body":%s}' % (text[:-1], encode_body(body))


KIND_IDS = [NAMES[type(body)] for body in BODIES]


# The golden file.


def test_there_is_one_golden_line_for_each_kind_and_version() -> None:
    found = [(value["kind"], value["v"]) for value in map(json.loads, golden())]
    assert len(set(found)) == len(found)
    assert set(found) == {(kind, n + 1) for kind, (version, _) in KINDS.items() for n in range(version)}


@pytest.mark.parametrize("position", range(len(BODIES)), ids=KIND_IDS)
def test_a_golden_line_decodes_to_the_value_and_back_to_its_bytes(position: int) -> None:
    found = golden()[position]
    entry = decode_line(found, "t", position)
    assert entry == entries()[position]
    previous = digest_line(golden()[position - 1]) if position else ""
    assert encode_line(entry, encode_body(entry.body), previous) == found


def seen(value: Any) -> Iterator[tuple[str, str]]:
    """The fields that are not at their default, in a value and all that is in it."""
    if isinstance(value, tuple):
        for one in value:
            yield from seen(one)
    elif is_dataclass(value):
        for found in fields(value):
            if getattr(value, found.name) != found.default:
                yield type(value).__name__, found.name
            yield from seen(getattr(value, found.name))


def test_every_stored_field_is_there_to_be_seen() -> None:
    """A field that is at its default would not show that it is stored."""
    stored_types = {body for _, body in KINDS.values()} | {StartedCall, Origin, Message, Usage, ErrorInfo}
    stored_types |= {Text, File, Reasoning, ToolCall}
    wanted = {(made.__name__, found.name) for made in stored_types for found in fields(made)}
    constant = {("Header", "format")} | {(part.__name__, "kind") for part in (Text, File, Reasoning, ToolCall)}
    assert set(seen(BODIES)) == wanted - constant


def test_the_golden_file_is_one_chain() -> None:
    previous = ""
    for found in golden():
        assert json.loads(found)["prev"] == previous
        previous = digest_line(found)


def test_golden_lines_are_ascii_and_end_with_their_body() -> None:
    for found in golden():
        found.decode("ascii")
        assert list(json.loads(found)) == ["prev", "n", "id", "parent", "at", "kind", "v", "body"]


# Round trips.

TEXT = st.text(max_size=20)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, given_types = get_origin(hint), get_args(hint)
    if hint is float:
        return FINITE
    if hint is str:
        return TEXT
    if origin is Annotated:
        return values(given_types[0])
    if origin in (Union, types.UnionType):
        return st.one_of(*(values(one) for one in given_types))
    if origin is Literal:
        return st.sampled_from(given_types)
    if origin is tuple:
        return st.lists(values(given_types[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, TEXT, max_size=3)
    return instances(hint) if is_dataclass(hint) else st.from_type(hint)


def instances(made: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(made, include_extras=True)
    given = {found.name: values(hints[found.name]) for found in fields(made)}
    if made is Header:
        given["format"] = st.just(FORMAT)  # a higher one is a newer weft's
    return st.builds(made, **given)


IDS = st.text("abcXYZ019_-", min_size=1, max_size=22)
ENTRIES = st.one_of(*(instances(body) for _, body in KINDS.values())).flatmap(
    lambda body: st.builds(
        Entry,
        position=st.integers(0, 2**60),
        id=IDS,
        parent=st.none() | IDS,
        time=st.floats(0, 4e9),
        body=st.just(body),
    )
)


@given(ENTRIES)
def test_an_entry_survives_its_line(entry: Entry) -> None:
    written = encode_line(entry, encode_body(entry.body), "0" * 32)
    read = decode_line(written, "t", entry.position)
    assert replace(read, time=entry.time) == entry
    assert abs(read.time - entry.time) < 1e-6
    assert encode_line(read, encode_body(read.body), "0" * 32) == written


@given(ENTRIES)
def test_a_line_is_one_ascii_line_of_json(entry: Entry) -> None:
    written = encode_line(entry, encode_body(entry.body), "0" * 32)
    assert written.isascii()
    assert len(written.splitlines()) == 1
    assert b"\x00" not in written
    value = json.loads(written)
    assert (value["n"], value["id"], value["parent"]) == (entry.position, entry.id, entry.parent)
    assert (value["kind"], value["v"]) == (entry.kind, KINDS[entry.kind][0])


def test_none_for_ever_survives() -> None:
    body = replace(BODIES[0], expires=None)
    assert decode_line(line(body), "t", 3).body == body


@given(st.integers(2**53, 2**80), st.floats(allow_nan=False, allow_infinity=False))
def test_large_integers_and_floats_survive(number: int, rate: float) -> None:
    usage = Usage(input_tokens=number, output_tokens=-number)
    text = f'{{"n": {number}, "rate": {rate}, "one": 1.10, "huge": 1e400}}'
    message = Message(role="assistant", parts=(ToolCall(id="c", name="f", arguments=text),))
    body = Said(message=message, usage=usage)
    read = decode_line(line(body), "t", 3).body
    assert read == body
    assert replace(BODIES[0], created=rate) == decode_line(line(replace(BODIES[0], created=rate)), "t", 3).body


def test_open_strings_are_kept() -> None:
    for body in (
        TurnStarted(cause="of the future", owner="o", steps=1),
        CallResult(call="c", content="", code="NEW", source="of the future"),
        TurnEnded(turn="t", outcome="of the future", stop="new"),
        Receipt(state="of the future"),
        Inbox(state="of the future", policy="new"),
        Cancel(scope="of the future"),
    ):
        assert decode_line(line(body), "t", 3).body == body


# Digests.


def test_a_digest_is_half_a_sha256_in_hex() -> None:
    assert digest_line(b"") == "e3b0c44298fc1c149afbf4c8996fb924"


@pytest.mark.parametrize("cut", range(len(BODIES) + 1))
def test_a_chain_is_the_same_however_it_is_split(cut: int) -> None:
    everything, end = chain(entries(), map(encode_body, BODIES), EMPTY)
    first, head = chain(entries()[:cut], map(encode_body, BODIES[:cut]), EMPTY)
    rest, then = chain(entries()[cut:], map(encode_body, BODIES[cut:]), head)
    assert first + rest == everything
    assert then == end == Head(len(BODIES), digest_line(everything[-1]))
    assert decode_lines(rest, "t", cut) == entries()[cut:]


def test_a_body_is_wrapped_as_it_is() -> None:
    """A fork and an import keep what this version does not know, and how it was written."""
    body = b'{"what": "x" , "of_the_future":{"big":123456789012345678901234567890,"f":1.10}}'
    entry = replace(entries()[-1], position=7)
    written = encode_line(entry, body, "0" * 32)
    assert written.endswith(b',"body":' + body + b"}")
    assert decode_line(written, "t", 7).body == Audit(what="x")


# What is newer.


@pytest.mark.parametrize("version", [2, 3, 2**70])
@pytest.mark.parametrize("kind", KIND_IDS)
def test_a_higher_version_of_a_known_kind_is_newer(kind: str, version: int) -> None:
    with pytest.raises(NewerFormat, match=rf"'t', line 3: kind '{kind}' version {version}"):
        decode_line(line(kind=kind, v=version), "t", 3)


@pytest.mark.parametrize("kind", ["of_the_future", "", "Header", "message "])
def test_an_unknown_kind_is_newer(kind: str) -> None:
    with pytest.raises(NewerFormat, match="upgrade"):
        decode_line(line(kind=kind), "t", 3)


@pytest.mark.parametrize("more", [{}, {"of_the_future": 1}])
def test_a_thread_of_a_higher_format_is_newer(more: dict[str, int]) -> None:
    header = next(body for body in BODIES if isinstance(body, Header))
    written = header_line(replace(header, format=2))
    written = written[:-2] + b"".join(b',"%s":%d' % (key.encode(), n) for key, n in more.items()) + b"}}"
    with pytest.raises(NewerFormat, match=r"'t' has format 2, written by a newer weft; upgrade"):
        decode_line(written, "t", 0)
    assert decode_line(written.replace(b'"format":2', b'"format":1'), "t", 0).body == replace(header, format=1)


def test_a_newer_body_is_not_looked_at() -> None:
    written = line(v=2).replace(b'"what"', b'"why"')
    with pytest.raises(NewerFormat):
        decode_line(written, "t", 3)


@pytest.mark.parametrize("body", BODIES, ids=KIND_IDS)
def test_unknown_keys_are_tolerated(body: Body) -> None:
    written = line(body)[:-2] + b',"of_the_future":[1,{"a":1,"body":null}]}}'
    assert decode_line(written, "t", 3).body == body
    assert decode_line(line(body, more={"x": 1}), "t", 3).body == body


# What is no line.


def corrupt(written: bytes, position: int = 3) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_line(written, "t", position)
    assert (caught.value.thread, caught.value.position) == ("t", position)


@pytest.mark.parametrize("position", range(len(BODIES)), ids=KIND_IDS)
def test_a_truncated_line_is_corrupt(position: int) -> None:
    written = encoded()[position]
    for length in range(len(written)):
        corrupt(written[:length], position)


@pytest.mark.parametrize("at", [2, 4, -3, 0, 3.5, "3", None, [3], ...])
def test_another_position_is_corrupt(at: object) -> None:
    corrupt(line(n=at))


@pytest.mark.parametrize(
    "version",
    [None, "1", "2", [], {}, [1], ..., 0, -1, 0.5, 1.5, True, False],
)
def test_a_version_that_is_none_is_corrupt(version: object) -> None:
    corrupt(line(v=version))


@pytest.mark.parametrize("kind", [[], {}, ..., None, 1, True, 1.5])
def test_a_kind_that_is_no_text_is_corrupt(kind: object) -> None:
    corrupt(line(kind=kind))


@pytest.mark.parametrize("value", [..., None, 5, True, [], {}])
def test_an_id_that_is_no_text_is_corrupt(value: object) -> None:
    corrupt(line(id=value))


@pytest.mark.parametrize("value", [..., 5, True, [], {}])
def test_a_parent_that_is_no_text_is_corrupt(value: object) -> None:
    corrupt(line(parent=value))


@pytest.mark.parametrize("value", [..., None, "1.5", True, [], {}])
def test_a_time_that_is_no_number_is_corrupt(value: object) -> None:
    corrupt(line(at=value))


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b" ",
        b"{}",
        b"null",
        b"[]",
        b'"line"',
        b"\xff\xfe",
        b'{"body":{}}',
        b',"body":{}}',
        b'[1,"body":{}}',
        line() + b"}",
        line() + line(),
        line()[:-1] + b"\x00}",
        line()[:-1] + b"x",
        b"x" + line(),
        line().replace(b'"body"', b'"Body"'),
        line().replace(b'{"what"', b'["what"'),
        line().replace(b'"what"', b'"why"'),
        line().replace(b'"late result"', b"null"),
        line().replace(b'"late result"', b"5"),
        line().replace(b'"late result"', b'"late \xff result"'),
        line().replace(b'"late result"', b'"late \\ud800 result"'),
        line().replace(b'"late result"', b"[" * 10_000 + b"]" * 10_000),
    ],
    ids=range(23),
)
def test_what_is_no_line_is_corrupt(written: bytes) -> None:
    corrupt(written)


def test_what_is_corrupt_says_which_field_and_shows_no_value() -> None:
    with pytest.raises(Corrupt, match="steps") as caught:
        decode_line(line(BODIES[1]).replace(b'"steps":50', b'"steps":"secret"'), "t", 3)
    assert "secret" not in str(caught.value)


def test_the_position_of_a_corrupt_line_is_its_own() -> None:
    lines = encoded()
    lines[5] = lines[5][:-1]
    with pytest.raises(Corrupt) as caught:
        decode_lines(lines[2:], "t", 2)
    assert caught.value.position == 5


@given(st.binary(max_size=200))
def test_bytes_are_never_an_unknown_error(found: bytes) -> None:
    with pytest.raises((Corrupt, NewerFormat)):
        decode_line(found, "t", 0)


@given(st.integers(0, len(BODIES) - 1), st.data())
def test_a_damaged_line_decodes_or_is_told(position: int, data: st.DataObject) -> None:
    written = bytearray(encoded()[position])
    for _ in range(data.draw(st.integers(1, 3))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NewerFormat):
        try:
            decode_line(bytes(written), "t", position)
        except Corrupt as error:
            told = (error.thread, error.position)
        else:
            return
        assert told == ("t", position)


def read(decode: Callable[[bytes, str, int], Entry], written: bytes, position: int) -> object:
    try:
        return decode(written, "t", position)
    except (Corrupt, NewerFormat) as error:
        return str(error)


@given(st.integers(0, len(BODIES) - 1), st.data())
def test_a_line_says_the_same_read_at_once_and_part_by_part(position: int, data: st.DataObject) -> None:
    written = bytearray(encoded()[position])
    for _ in range(data.draw(st.integers(0, 3))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 127))
    assert read(decode_line, bytes(written), position) == read(_decode_parts, bytes(written), position)


# Text.

ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from("\x00\ud800\udfff\ud83e\udd72"), max_size=30)


def is_text(found: str) -> bool:
    return "\x00" not in found and not any("\ud800" <= letter <= "\udfff" for letter in found)


@given(ANY_TEXT)
@example("ascii\x00")
def test_clean_text_changes_what_is_no_text_and_nothing_else(text: str) -> None:
    clean = clean_text(text)
    assert is_text(clean)
    assert len(clean) == len(text)
    assert all(new == (old if is_text(old) else "\ufffd") for old, new in zip(text, clean, strict=True))
    assert clean_text(clean) == clean


@given(ANY_TEXT)
def test_cleaned_text_survives_its_line(text: str) -> None:
    body = CallResult(call="c", content=clean_text(text), source="body")
    assert decode_line(line(body), "t", 3).body == body


def test_two_lone_surrogates_are_not_a_letter() -> None:
    assert clean_text("\ud83e\uddf5") == "\ufffd\ufffd"
    assert clean_text("\U0001f9f5") == "\U0001f9f5"


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ud83e\uddf5"])
def test_a_lone_surrogate_is_never_encoded(text: str) -> None:
    with pytest.raises(WrongCall):
        encode_body(Note(name="n", text=text))


BAD = "a\x00b\ud800c"
GOOD = "a\ufffdb\ufffdc"


def texts_in(value: Any) -> list[str]:
    """Every string of a JSON value, keys too."""
    match value:
        case str():
            return [value]
        case list():
            return [text for one in value for text in texts_in(one)]
        case dict():
            return [*value, *texts_in(list(value.values()))]
        case _:
            return []


async def stored(data: Memory, session: str) -> list[Entry]:
    """A journal as it is stored, where every line is of clean text."""
    async with open_store(data) as store:
        lines = (await store._node.store.load(session)).lines
    assert all(is_text(text) for found in lines for text in texts_in(json.loads(found)))
    return decode_lines(lines, session, 0)


async def test_prompts_replies_arguments_and_results_are_cleaned() -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(Agent(Script(call(BAD, x=BAD), say(BAD), say(BAD)), name="desk"))
        assert (await session.ask(BAD)).text == GOOD
        await session.ask([Text(text=BAD)])
    found = [entry.body for entry in await stored(data, session.id)]
    texts = [body.message.text for body in found if isinstance(body, Said)]
    assert texts.count(GOOD) == 4


async def test_a_given_message_is_cleaned() -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(Agent(Script(say("hi")), name="desk"))
        await session.ask(Message(role="user", parts=(Text(text=BAD),)))
    said = [entry.body for entry in await stored(data, session.id) if isinstance(entry.body, Said)]
    assert said[0].message.text == GOOD


@pytest.mark.parametrize("bad", ["a\x00", "a\ud800"])
async def test_metadata_is_cleaned(bad: str) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(Agent(Script(), name="desk"), meta={bad: bad})
        assert session.meta == {"a\ufffd": "a\ufffd"}
    await stored(data, session.id)


@pytest.mark.parametrize("bad", ["a\x00", "a\ud800"])
async def test_a_key_is_cleaned(bad: str) -> None:
    data = Memory()
    async with open_store(data) as store:
        session = await store.create(Agent(Script(say("hi")), name="desk"))
        await session.ask("hello", key=bad)
    await stored(data, session.id)


if __name__ == "__main__":  # what a new kind or version adds to the golden file
    print(*(found.decode("ascii") for found in encoded()), sep="\n")
