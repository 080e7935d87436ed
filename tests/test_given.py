"""What is no agent, no input and no history is refused where it is given, in words that say what to give."""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NewType, Protocol, TypedDict, TypeVar

import pytest

from weft import (
    Agent,
    Compaction,
    Context,
    File,
    Limits,
    Message,
    ModelFailed,
    Settings,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    tool,
)
from weft.errors import InvalidDecision, InvalidTool, WrongCall
from weft.models import fallback, retry
from weft.pool import Pool
from weft.testing import CountingIds, ManualClock, Script, call, override, say
from weft.thread import approve, deny, open_store


@dataclass(frozen=True)
class Deps:
    user: str


class Named(Protocol):
    name: str


class Options(TypedDict):
    depth: int


Tenant = NewType("Tenant", str)


def search(words: str) -> str:
    """Search."""
    return words


ARGUMENTS = [
    ({"tools": search}, "tools=… is a list, not function; put it into brackets: tools=[…]"),
    ({"tools": tool(search)}, "tools=… is a list, not Tool; put it into brackets: tools=[…]"),
    ({"tools": "search"}, "tools=… is a list, not str; put it into brackets: tools=[…]"),
    ({"tools": None}, "tools=… is a list, not None; put it into brackets: tools=[…]"),
    ({"stop_when": 5}, "stop_when=… is a list, not int; put it into brackets: stop_when=[…]"),
    ({"stop_when": [5]}, "stop_when=… is a function, or a list of functions, not of int"),
    ({"allow": "pay"}, "allow=… is a set of permissions: {'pay'}"),
    ({"allow": [5]}, "allow=… is a str, not int"),
    ({"limits": {"steps": 5}}, "limits=… is a Limits, not dict"),
    ({"settings": None}, "settings=… is a Settings, not None"),
    ({"name": 5}, "name=… is a str, not int"),
    ({"description": 5}, "description=… is a str, not int"),
    ({"instructions": ["Be kind."]}, "instructions=… is text, or a function of a Context, not list"),
    ({"compaction": True}, "compaction=… is a Compaction, not bool"),
    (
        {"deps": Deps("a")},
        "Agent(deps=…) is a type, not a value of Deps: give Agent(deps=Deps), and the value to its run",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), ARGUMENTS)
def test_an_argument_of_a_wrong_type_is_refused_when_an_agent_is_made(arguments: dict[str, Any], text: str) -> None:
    make: Callable[..., Any] = Agent
    with pytest.raises(WrongCall) as caught:
        make(Script(), **arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "deps", [None, Deps, Named, Options, Tenant, dict[str, int], str | int, Any, Callable[[str], int]]
)
def test_whatever_stands_for_a_type_may_be_the_deps(deps: Any) -> None:
    agent: Agent[Any, Any] = Agent(Script(), deps=deps)
    assert agent.deps is deps


PICTURE = File(media_type="image/png", data=b"png")
SAYS_SOMETHING = "an input says something: give it some text, or a file"
NO_INPUTS = [
    ("", SAYS_SOMETHING),
    (" \n", SAYS_SOMETHING),
    ([], SAYS_SOMETHING),
    ([Text(text="")], SAYS_SOMETHING),
    (Message.user(" "), SAYS_SOMETHING),
    (5, "an input is text, a user message, or a list of Text and File, not int"),
    (None, "an input is text, a user message, or a list of Text and File, not NoneType"),
    (b"hi", "an input is text, a user message, or a list of Text and File, not bytes"),
    (["hi"], "the parts of an input are Text and File, not str"),
    ({"role": "user"}, "the parts of an input are Text and File, not str"),
    ([ToolResult(call="c", content="x")], "the parts of an input are Text and File, not ToolResult"),
    (
        Message(role="user", parts=(ToolCall(id="c", name="f", arguments="{}"),)),
        "the parts of an input are Text and File, not ToolCall",
    ),
]


@pytest.mark.parametrize(("prompt", "text"), NO_INPUTS)
async def test_what_is_no_input_is_refused_before_the_model_is_asked(prompt: Any, text: str) -> None:
    model = Script(say("never asked for"))
    with pytest.raises(WrongCall) as caught:
        await Agent(model).run(prompt)
    assert str(caught.value) == text
    assert model.requests == []


@pytest.mark.parametrize("policy", ["queue", "reject", "steer", "interrupt"])
async def test_what_is_no_input_is_not_sent(policy: Any) -> None:
    async with open_store("memory:") as store:
        session = await store.create(Agent(Script(say("Hi."))))
        await session.ask("Hello.")
        before = session.messages
        with pytest.raises(WrongCall, match="says something"):
            await session.send("  ", policy=policy)
        assert tuple(session.messages) == tuple(before)


@pytest.mark.parametrize("prompt", [[PICTURE], [Text(text=" "), PICTURE], ".", [Text(text=""), Text(text="a")]])
async def test_a_file_or_any_text_is_an_input(prompt: Any) -> None:
    assert (await Agent(Script(say("Hi."))).run(prompt)).text == "Hi."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"settings": {"temperature": 0.5}}, "settings=… is a Settings, not dict"),
        ({"settings": {}}, "settings=… is a Settings, not dict"),
        ({"model": 5}, "5 is no model"),
        ({"model": Script}, "is no model"),
    ],
)
async def test_an_argument_of_a_wrong_type_is_refused_before_the_model_is_asked(
    arguments: dict[str, Any], text: str
) -> None:
    agent = Agent(Script(say("never asked for")))
    with pytest.raises(WrongCall, match=text):
        await agent.run("hi", **arguments)
    with pytest.raises(WrongCall, match=text):
        agent.stream("hi", **arguments)


async def test_what_holds_no_messages_is_no_history() -> None:
    history: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(WrongCall, match=r"history=… holds messages, such as result.messages, not dict"):
        await Agent(Script()).run("Go on.", history=history)


async def test_a_model_that_delegates_nothing_is_told() -> None:
    helper = Agent(Script(say("never asked for")), name="helper")
    agent = Agent(Script(call("helper", prompt=" "), say("I see.")), tools=[helper])
    result = await agent.run("Ask.")
    (told,) = result.messages[2].results
    assert (told.code, "at least 1 character" in told.content) == ("INVALID_INPUT", True)


async def test_a_store_wants_an_agent() -> None:
    other: Any = Script()
    async with open_store("memory:") as store:
        with pytest.raises(WrongCall, match="agent=… is an Agent, not Script"):
            await store.create(other)
        session = await store.create(Agent(Script()))
        with pytest.raises(WrongCall, match="agent=… is an Agent, not Script"):
            await store.open(session.id, other)


async def test_a_history_that_can_be_read_once_is_read() -> None:
    script = Script(say("Hello."))
    history: Any = (message for message in [Message.user("Hi.")])
    await Agent(script).run("Go on.", history=history)
    assert [message.text for message in script.requests[0].messages] == ["Hi.", "Go on."]


async def test_instructions_are_no_message_of_a_history() -> None:
    wrong: Any = "system"
    with pytest.raises(WrongCall, match=r"no message of role 'system'.*Agent\(instructions=…\)"):
        await Agent(Script()).run("Go on.", history=[Message(role=wrong, parts=(Text(text="Be brief."),))])


async def test_instructions_are_text_that_can_be_sent() -> None:
    script = Script(say("a"))
    await Agent(script, instructions="Be \ud800 kind.").run("hi")
    assert script.requests[0].instructions == "Be \ufffd kind."


@pytest.mark.parametrize("name", ["", " "])
def test_an_agent_has_a_name(name: str) -> None:
    with pytest.raises(WrongCall, match="give it some text"):
        Agent(Script(), name=name)


async def test_a_file_without_bytes_or_url_is_no_input() -> None:
    with pytest.raises(WrongCall, match=r"File\(data=…\)"):
        await Agent(Script()).run([File(media_type="image/png")])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"effort": "max"}, "one of minimal, low, medium, high"),
    ],
)
def test_settings_that_no_provider_knows_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongCall, match=text):
        Settings(**wrong)


NUMBERS: list[tuple[Callable[..., Any], str, Any, str]] = [
    (Limits, "steps", "3", "Limits(steps=…) is a number of at least 1; not '3'"),
    (Limits, "retries", None, "Limits(retries=…) is a number of at least 0; not None"),
    (Limits, "tokens", "50", "Limits(tokens=…) is a number of at least 1, or None; not '50'"),
    (Limits, "repeats", [2], "Limits(repeats=…) is a number of at least 2, or None; not [2]"),
    (Limits, "seconds", "60", "Limits(seconds=…) is a positive number of seconds, or None; not '60'"),
    (Settings, "temperature", "hot", "Settings(temperature=…) is a number of at least 0, or None; not 'hot'"),
    (Settings, "max_tokens", "9", "Settings(max_tokens=…) is a number of at least 1, or None; not '9'"),
    (Settings, "idle", "60", "Settings(idle=…) is a positive number of seconds, or None; not '60'"),
    (Settings, "extra", 5, "Settings(extra=…) is a dict of fields of the request; not 5"),
    (Compaction, "window", "8000", "Compaction(window=…) is at least 1,000 tokens"),
    (Compaction, "keep", "8000", "Compaction(reserve=…, keep=…): both are at least 1 token"),
    (Pool, "limit", "2", "Pool(limit, depth=…): both are at least 1"),
    (Pool, "limit", None, "Pool(limit, depth=…): both are at least 1"),
    (partial(retry, Script()), "attempts", "3", "retry(attempts=…) is a number of at least 1; not '3'"),
    (partial(retry, Script()), "first", "3", "retry(first=…, longest=…) are seconds, and 0 <= first <= longest"),
]


@pytest.mark.parametrize(("make", "name", "given", "text"), NUMBERS)
def test_a_number_that_is_none_is_refused_by_its_name(
    make: Callable[..., Any], name: str, given: Any, text: str
) -> None:
    with pytest.raises(WrongCall, match=re.escape(text)):
        make(**{name: given})


@pytest.mark.parametrize("name", ["timeout", "expires", "attempts", "cap"])
def test_a_tools_number_that_is_none_is_refused_by_its_name(name: str) -> None:
    options: dict[str, Any] = {name: "3"}
    with pytest.raises(InvalidTool, match=rf"tool 'search': {name} .*not '3'"):
        tool(**options)(search)


@pytest.mark.parametrize("name", ["name", "description"])
def test_a_tools_text_that_is_none_is_refused_by_its_name(name: str) -> None:
    options: dict[str, Any] = {name: 5}
    with pytest.raises(InvalidTool, match=rf"{name} is a text; not 5"):
        tool(**options)(search)


async def test_what_is_no_decision_is_refused_with_what_makes_one() -> None:
    @tool(approval=True)
    def pay() -> str:
        return "paid"

    async with open_store("memory:") as store:
        session = await store.create(Agent(Script(call("pay"), say("done")), tools=[pay]))
        await session.ask("go")
        request: Any = session.pending[0]
        for decide in (session.decide, store.decide):
            with pytest.raises(InvalidDecision, match=r"by approve\(request\).*not Request"):
                await decide(request)
        for make in (approve, deny):
            with pytest.raises(InvalidDecision, match=r"a request of session.pending, or its id; not NoneType"):
                make(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("models", [{"desk": "openai:gpt-5"}, {Agent(Script()): Script()}, {"desk": Script}])
def test_what_an_agent_is_overridden_with_is_a_model_by_the_agents_name(models: Any) -> None:
    with pytest.raises(WrongCall), override(models):
        raise AssertionError("not entered")


def test_a_database_in_memory_is_none_of_sqlites() -> None:
    with pytest.raises(WrongCall, match="use 'memory:'"):
        open_store("sqlite:///:memory:")


SHOWN = [
    (File(media_type="image/png", data=b"x" * 1_000_000), "File(media_type='image/png', data=<1000000 bytes>)"),
    (File(media_type="image/png", url="http://a.test/b"), "File(media_type='image/png', url='http://a.test/b')"),
    (Usage(), "Usage()"),
    (Usage(input_tokens=3, unknown=1), "Usage(input_tokens=3, unknown=1)"),
    (tool(search), "Tool('search')"),
    (Script(say("a")), "Script(1 reply)"),
    (Script(say("a"), say("b")), "Script(2 replies)"),
    (Pool(3), "Pool(3, depth=8)"),
    (ManualClock(5.0), "ManualClock(5.0)"),
    (CountingIds("b"), "CountingIds('b')"),
]


@pytest.mark.parametrize(("value", "text"), SHOWN)
def test_what_is_shown_of_a_value_is_short(value: object, text: str) -> None:
    assert repr(value) == text


async def test_a_script_that_was_asked_too_often_shows_the_beginning_of_the_last_message() -> None:
    with pytest.raises(ModelFailed) as failed:
        await Agent(Script()).run("word " * 1000)
    assert len(str(failed.value)) < 700


@pytest.mark.parametrize("given", [5, None, [Script(), Script()], Script, say("hi")])
@pytest.mark.parametrize("around", [retry, fallback])
def test_what_is_no_model_is_refused_by_what_stands_around_one(around: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(WrongCall, match="takes models, or strings that name them"):
        around(given)


def test_override_takes_names_and_models_and_says_so() -> None:
    given: Any = [Script()]
    with pytest.raises(WrongCall, match=re.escape("override takes models by their agents' names, {'desk': Script(…)}")):
        override(given).__enter__()


async def asks(ctx: Context[Deps], words: str) -> str:
    """Ask."""
    return ctx.deps.user


def test_a_tool_that_asks_for_deps_is_refused_by_an_agent_without_any() -> None:
    text = "tool 'asks' asks for Context[Deps], and agent 'desk' has no deps: give Agent(deps=Deps), and the value to"
    with pytest.raises(InvalidTool, match=re.escape(text)):
        Agent(Script(), name="desk", tools=[asks])
    assert Agent(Script(), tools=[asks], deps=Deps).tools
    with pytest.raises(InvalidTool, match="has no deps"):
        Agent(Script(), tools=[asks], deps=Deps).replace(deps=None)


T = TypeVar("T")


async def anything(ctx: Context[Any]) -> str:
    return ""


async def nothing(ctx: Context[None]) -> str:
    return ""


async def unsaid(ctx: Context) -> str:
    return ""


async def perhaps(ctx: Context[Deps | None]) -> str:
    return ""


async def whatever(ctx: Context[object]) -> str:
    return ""


async def generic(ctx: Context[T]) -> str:
    return ""


async def hashable(ctx: Context[Hashable]) -> str:
    return ""


async def structural(ctx: Context[Named]) -> str:
    return ""


@pytest.mark.parametrize(
    "body",
    [anything, nothing, unsaid, perhaps, whatever, generic, hashable, structural],
    ids=lambda body: body.__name__,
)
def test_a_tool_that_can_do_without_deps_is_taken_by_an_agent_without_any(body: Callable[..., Any]) -> None:
    assert Agent(Script(), tools=[body]).tools


def test_an_output_that_is_a_value_is_refused() -> None:
    wrong: Any = Deps("a")
    with pytest.raises(WrongCall, match=r"the output of 'agent'.* cannot be described"):
        Agent(Script(), output=wrong)


class Desk:
    def look_up(self, order: str) -> str:
        """Look an order up."""
        return order


def test_a_method_is_a_tool_where_it_is_bound_and_elsewhere_its_refusal_says_so() -> None:
    text = "tool 'look_up': parameter 'self': a method becomes a tool where it has its object: tools=[thing.look_up]"
    with pytest.raises(InvalidTool, match=re.escape(text)):
        tool(Desk.look_up)
    assert [made.name for made in Agent(Script(), tools=[Desk().look_up]).tools] == ["look_up"]


def test_a_pool_wraps_agents_alone() -> None:
    wrong: Any = "desk"
    with pytest.raises(WrongCall, match="agent=… is an Agent, not str"):
        Pool(2).wrap("desk", wrong, description="Looks orders up.")


def test_a_history_that_is_no_list_is_refused_with_where_messages_are() -> None:
    result: Any = Agent(Script(say("hello"))).run_sync("hi")
    with pytest.raises(WrongCall, match=r"history=… is a list of messages, such as result\.messages, not Result"):
        Agent(Script(say("again"))).run_sync("and?", history=result)


@pytest.mark.parametrize("given", [None, 5, True])
def test_needs_that_are_no_set_are_refused_where_the_tool_is_defined(given: Any) -> None:
    with pytest.raises(InvalidTool, match=f"tool 'search': needs is a set of permissions; not {given!r}"):
        tool(needs=given)(search)
