"""Every text that weft writes for a model, as it was agreed on: a change of one is seen here."""

from __future__ import annotations

import inspect
from pathlib import Path

from weft import _texts
from weft.messages import ToolCall, ToolResult

GOLDEN = Path(__file__).parent / "golden" / "texts.txt"
CALL = ToolCall(id="c", name="look", arguments="{}")
TEXTS: dict[str, ToolResult | str] = {
    "interrupted": _texts.interrupted("c"),
    "cancelled, started": _texts.cancelled("c", started=True),
    "cancelled, not started": _texts.cancelled("c", started=False),
    "not_run": _texts.not_run("c", "length"),
    "not_run, refused": _texts.not_run("c", "refusal"),
    "not_taken": _texts.not_taken("c"),
    "output_taken": _texts.output_taken("c"),
    "not_the_output": _texts.not_the_output("cents: Input should be greater than 0; got -1"),
    "not_submitted": _texts.not_submitted("submit_output"),
    "no_output": _texts.no_output("length"),
    "no_output, refused": _texts.no_output("refusal"),
    "no_output, filtered": _texts.no_output("filter"),
    "denied": _texts.denied("c", None),
    "denied, with a reason": _texts.denied("c", "too much"),
    "expired": _texts.expired("c"),
    "timed_out": _texts.timed_out("c", 2.5, unknown=False),
    "timed_out, unknown": _texts.timed_out("c", 2.5, unknown=True),
    "unexpected": _texts.unexpected("c"),
    "no_thread": _texts.no_thread("c", 16),
    "no_such_tool": _texts.no_such_tool(CALL, ("a", "b")),
    "no_such_tool, none": _texts.no_such_tool(CALL, ()),
    "subagent_failed": _texts.subagent_failed("c", "it was cancelled"),
    "subagent_answer, none": _texts.subagent_answer("", 10),
    "subagent_cycle": _texts.subagent_cycle("c", "desk"),
    "subagent_depth": _texts.subagent_depth("c", 8),
    "subagent_parked": _texts.subagent_parked("c"),
    "cancelled, interrupted": _texts.cancelled("c", started=True, by="interrupt"),
    "cancelled, interrupted, not started": _texts.cancelled("c", started=False, by="interrupt"),
    "left out": _texts.LEFT_OUT,
    "summarize": _texts.SUMMARIZE,
    "summary": _texts.summary("They paid.", ()),
    "summary, with open work": _texts.summary("They paid.", ("one", "two")),
    "open_request": _texts.open_request("refund", '{"cents": 5}'),
    "open_receipt": _texts.open_receipt("t.e", "researcher", "find it"),
}


def rendered() -> str:
    shown = {name: text if isinstance(text, str) else f"{text.code}: {text.content}" for name, text in TEXTS.items()}
    return "".join(f"{name}\n    {text.replace(chr(10), '⏎')}\n" for name, text in shown.items())


def test_the_texts_are_those_that_were_agreed_on() -> None:
    assert rendered() == GOLDEN.read_text(encoding="utf-8")


def test_every_text_is_there() -> None:
    made = {
        name for name, value in vars(_texts).items() if inspect.isfunction(value) and value.__module__ == "weft._texts"
    }
    assert made - {"error", "capped"} == {name.partition(",")[0] for name in TEXTS} - {"left out", "summarize"}


def test_the_texts_are_of_one_call_and_errors() -> None:
    results = {name: text for name, text in TEXTS.items() if isinstance(text, ToolResult)}
    assert all(text.call == "c" for text in results.values())
    assert [name for name, text in results.items() if not text.is_error] == ["output_taken"]
