"""What becomes of a call: refused, parked, run, bounded, and answered."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import dataclass
from json import JSONDecoder
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel

from tests.children import STALLED
from weft import Agent, Context, Limits, Result, Retry, Tool, ToolCall, ToolError, ToolResult, tool
from weft._moves import Begin, CallFinished, CallUncertain, Gated, Ready, Refused
from weft._setup import narrower
from weft._texts import capped
from weft._threads import workers
from weft._tool import CallInfo
from weft._toolcall import GRACE, digest_of, judge, run_body
from weft.errors import InvalidTool, NotAllowed
from weft.testing.clock import ManualClock, settle
from weft.testing.script import Script, call, calls, say

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


async def run_calls(tools: list[Tool[Any]], *wanted: Any, **options: Any) -> Result:
    """A run of one step with these calls."""
    return await Agent(Script(calls(*wanted), say("end")), tools=tools, **options).run("start")


async def results_of(tools: list[Tool[Any]], *wanted: Any) -> tuple[ToolResult, ...]:
    return (await run_calls(tools, *wanted)).messages[2].results


async def result_of(made: Tool[Any], args: dict[str, Any] | str | None = None) -> ToolResult:
    (result,) = await results_of([made], call(made.name, args))
    return result


def codes(results: tuple[ToolResult, ...]) -> list[str | None]:
    return [result.code for result in results]


# Refused before the body.


async def test_wrong_arguments_never_enter_the_body_and_siblings_run() -> None:
    entered: list[int] = []

    @tool
    async def add(x: int) -> int:
        entered.append(x)
        return x + 1

    wrong, right = await results_of([add], call("add", x="many"), call("add", x=1))
    assert (wrong.is_error, wrong.code) == (True, "INVALID_INPUT")
    assert wrong.content.startswith("x: ")
    assert "integer" in wrong.content
    assert wrong.content.endswith("got 'many'")
    assert (right.is_error, right.content) == (False, "2")
    assert entered == [1]


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "7", "not json", '{"x": 1} {"x": 2}', '{"x": 1', " "])
async def test_arguments_that_are_not_one_object_are_refused(text: str) -> None:
    @tool
    async def take(x: int = 0) -> int:
        raise AssertionError("not reached")

    assert (await result_of(take, text)).code == "INVALID_INPUT"


async def test_no_arguments_at_all_are_an_empty_object() -> None:
    @tool
    async def ping() -> str:
        return "pong"

    assert (await result_of(ping, "")).content == "pong"


async def test_the_text_of_wrong_arguments_is_capped() -> None:
    @tool(cap=1000)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    assert len((await result_of(total, {"numbers": ["x"] * 1000})).content) < 1100


async def test_a_validator_that_breaks_refuses_its_call_and_siblings_run() -> None:
    def broken(value: int) -> int:
        raise KeyError("secret")

    @tool
    async def take(x: Annotated[int, AfterValidator(broken)]) -> int:
        return x

    @tool
    async def ping() -> str:
        return "pong"

    broken_one, right = await results_of([take, ping], call("take", x=1), call("ping"))
    assert broken_one.is_error
    assert "secret" not in broken_one.content
    assert right.content == "pong"


async def test_an_unknown_tool_is_refused_with_the_names_that_exist() -> None:
    @tool
    async def ping() -> str:
        return "pong"

    unknown, right = await results_of([ping], call("pign"), call("ping"))
    assert unknown.code == "NO_SUCH_TOOL"
    assert unknown.content.endswith("Tools: ping.")
    assert right.content == "pong"


async def test_an_agent_without_tools_refuses_every_call() -> None:
    (refused,) = await results_of([], call("ping"))
    assert refused.code == "NO_SUCH_TOOL"
    assert refused.content.endswith("Tools: none.")


# Permissions.


@tool(needs={"stock:write", "stock:read"})
async def restock(count: int) -> str:
    return f"{count} more"


@pytest.mark.parametrize("allow", [set(), {"stock:read"}, {"other"}])
def test_a_missing_permission_is_told_before_anything_starts(allow: set[str]) -> None:
    with pytest.raises(NotAllowed, match=r"tool 'restock' needs .*stock:write"):
        Agent(Script(), tools=[restock], allow=allow)


def test_a_changed_copy_is_checked_as_well() -> None:
    agent = Agent(Script(), tools=[restock])
    with pytest.raises(NotAllowed):
        agent.replace(allow={"stock:read"})


@pytest.mark.parametrize("allow", [None, {"stock:write", "stock:read"}, {"stock:write", "stock:read", "other"}])
async def test_a_call_with_its_permissions_runs(allow: set[str] | None) -> None:
    result = await run_calls([restock], call("restock", count=2), allow=allow)
    assert result.messages[2].results[0].content == "2 more"


async def test_a_permission_is_checked_again_at_the_call() -> None:
    wanted = ToolCall(id="a", name="restock", arguments='{"count": 1}')
    plan = await judge(wanted, {"restock": restock}, frozenset({"stock:read"}))
    assert isinstance(plan, Refused)
    assert (plan.result.code, plan.result.content) == ("NOT_ALLOWED", "Not permitted; missing: stock:write.")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (None, None, None),
        (None, {"a"}, {"a"}),
        ({"a"}, None, {"a"}),
        ({"a", "b"}, {"b", "c"}, {"b"}),
        ({"a"}, set(), set()),
    ],
)
def test_two_sets_of_permissions_allow_what_both_allow(
    one: set[str] | None, other: set[str] | None, both: set[str] | None
) -> None:
    left, right = (None if given_set is None else frozenset(given_set) for given_set in (one, other))
    assert narrower(left, right) == both


async def test_wrong_arguments_are_told_before_a_missing_permission() -> None:
    plan = await judge(ToolCall(id="a", name="restock", arguments="{}"), {"restock": restock}, frozenset())
    assert isinstance(plan, Refused)
    assert plan.result.code == "INVALID_INPUT"


# Approval.


async def test_a_call_that_needs_approval_parks_the_run_and_does_not_start() -> None:
    entered: list[str] = []

    @tool(approval=True)
    async def refund(order: str) -> str:
        entered.append(order)
        return "refunded"

    @tool
    async def look_up(order: str) -> str:
        entered.append(f"look {order}")
        return "found"

    script = Script(calls(call("refund", order="42"), call("look_up", order="42")), say("never"))
    result = await Agent(script, tools=[refund, look_up]).run("start")
    (pending,) = result.pending
    assert (result.stop, result.parked) == ("parked", True)
    assert (pending.tool, pending.args) == ("refund", '{"order": "42"}')
    assert pending.call == result.messages[1].calls[0].id
    assert entered == ["look 42"]
    assert len(script.requests) == 1


async def test_a_predicate_decides_over_the_arguments() -> None:
    asked: list[tuple[int, str]] = []

    def over(cents: int, note: str = "") -> bool:
        asked.append((cents, note))
        return cents > 100

    @tool(approval=over)
    async def refund(cents: int, note: str = "none") -> str:
        return f"refunded {cents}"

    result = await run_calls([refund], call("refund", cents=50), call("refund", cents=500, note="x"))
    assert asked == [(50, "none"), (500, "x")]
    assert [pending.args for pending in result.pending] == ['{"cents": 500, "note": "x"}']


@pytest.mark.parametrize(("answer", "stop"), [(True, "parked"), (False, "answered"), (1, "parked"), (None, "answered")])
async def test_a_predicate_may_wait(answer: object, stop: str) -> None:
    async def ask(x: int) -> object:
        await asyncio.sleep(0)
        return answer

    @tool(approval=ask)
    async def act(x: int) -> str:
        return "done"

    assert (await run_calls([act], call("act", x=1))).stop == stop


async def test_a_plain_predicate_runs_off_the_loop() -> None:
    threads: list[int] = []

    def ask(x: int) -> bool:
        threads.append(threading.get_ident())
        return False

    @tool(approval=ask)
    async def act(x: int) -> str:
        return "done"

    await run_calls([act], call("act", x=1))
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_predicate_that_breaks_refuses_its_call_without_internals(*, waits: bool) -> None:
    entered: list[int] = []

    def broken(x: int) -> bool:
        raise KeyError("secret")

    async def broken_later(x: int) -> bool:
        raise KeyError("secret")

    @tool(approval=broken_later if waits else broken)
    async def act(x: int) -> None:
        entered.append(x)

    result = await result_of(act, {"x": 1})
    assert result.code == "INTERNAL"
    assert "secret" not in result.content
    assert entered == []


@pytest.mark.parametrize(
    ("error", "told"),
    [(Retry("ask for less"), ("ask for less", "RETRY")), (ToolError("TOO_MUCH", "never"), ("never", "TOO_MUCH"))],
)
@pytest.mark.parametrize("place", ["predicate", "validator"])
async def test_what_a_predicate_or_a_validator_says_to_the_model_is_told(
    place: str, error: Exception, told: tuple[str, str]
) -> None:
    def check(x: int) -> int:
        raise error

    async def checked(x: Annotated[int, AfterValidator(check)]) -> None:
        raise AssertionError("not reached")

    async def asked(x: int) -> None:
        raise AssertionError("not reached")

    made = tool(approval=check)(asked) if place == "predicate" else tool(checked)
    result = await result_of(made, {"x": 1})
    assert (result.is_error, result.content, result.code) == (True, *told)


async def test_a_plan_knows_the_digest_of_the_stored_text_and_the_tool_s_options() -> None:
    @tool(approval=True, effect="repeatable", attempts=5, expires=60.0)
    async def gated() -> None: ...

    @tool(effect="none", attempts=2)
    async def free() -> None: ...

    tools = {"gated": gated, "free": free}
    first = ToolCall(id="a", name="gated", arguments="{ }")
    second = ToolCall(id="b", name="free", arguments="{}")
    assert await judge(first, tools, None) == Gated(
        call=first, effect="repeatable", digest=digest_of("{ }"), expires=60.0, attempts=5
    )
    assert await judge(second, tools, None) == Ready(call=second, effect="none", digest=digest_of("{}"), attempts=2)
    assert digest_of("{}") == "44136fa355b3678a1146ad16f7e8649e"  # the first half of the SHA-256


# What a body may do.


@pytest.mark.parametrize("code", ["NO_STOCK", "RETRY"])
async def test_a_tool_error_is_told_with_its_code_and_text(code: str) -> None:
    @tool
    async def ship() -> str:
        raise ToolError(code, "nothing left")

    result = await result_of(ship)
    assert (result.is_error, result.code, result.content) == (True, code, "nothing left")


async def test_a_retry_is_told_with_its_hint() -> None:
    @tool
    def ship() -> str:
        raise Retry("use the long id")

    result = await result_of(ship)
    assert (result.is_error, result.code, result.content) == (True, "RETRY", "use the long id")


@pytest.mark.parametrize(
    "error", [KeyError("secret"), RuntimeError("secret"), StopIteration("secret"), StopAsyncIteration("secret")]
)
@pytest.mark.parametrize("waits", [True, False])
async def test_any_other_exception_is_told_without_internals(error: Exception, *, waits: bool) -> None:
    def fail() -> str:
        raise error

    async def fail_later() -> str:
        raise error

    result = await result_of(tool(name="fail")(fail_later if waits else fail))
    assert (result.is_error, result.code) == (True, "INTERNAL")
    assert "secret" not in result.content
    assert type(error).__name__ not in result.content


@pytest.mark.parametrize(("code", "message", "told"), [(404, "gone", ("404", "gone")), ("X", KeyError(7), ("X", "7"))])
async def test_the_code_and_text_of_a_tool_error_may_be_of_any_type(
    code: Any, message: Any, told: tuple[str, str]
) -> None:
    @tool
    async def ship() -> str:
        raise ToolError(code, message)

    result = await result_of(ship)
    assert (result.is_error, result.code, result.content) == (True, *told)


class Bare(ToolError):
    """Has neither a code nor a text."""

    def __init__(self) -> None:
        Exception.__init__(self, "secret")


class Mute(Retry):
    """Cannot be told."""

    def __str__(self) -> str:
        raise ValueError("secret")


@pytest.mark.parametrize("error", [Bare(), Mute()])
async def test_an_error_that_cannot_be_told_is_told_without_internals_and_siblings_run(error: Exception) -> None:
    @tool
    async def fail() -> str:
        raise error

    @tool
    async def ping() -> str:
        return "pong"

    failed, right = await results_of([fail, ping], call("fail"), call("ping"))
    assert (failed.is_error, failed.code) == (True, "INTERNAL")
    assert "secret" not in failed.content
    assert right.content == "pong"


async def test_a_value_that_does_not_fit_its_declared_type_is_told_without_internals() -> None:
    @tool
    async def count() -> int:
        return ["secret"]  # type: ignore[return-value]  # that it is caught is the promise

    result = await result_of(count)
    assert (result.is_error, result.code) == (True, "INTERNAL")
    assert "secret" not in result.content


async def test_a_failure_does_not_touch_its_siblings() -> None:
    @tool
    async def act(x: int) -> int:
        if x == 1:
            raise RuntimeError
        return x

    results = await results_of([act], *(call("act", x=x) for x in range(3)))
    assert codes(results) == [None, "INTERNAL", None]


async def test_a_cancellation_of_the_body_s_own_making_is_its_result() -> None:
    @tool
    async def act() -> str:
        raise asyncio.CancelledError

    task = asyncio.ensure_future(result_of(act))
    await asyncio.wait([task])
    assert not task.cancelled()
    assert task.result().is_error


async def test_a_cancellation_of_the_body_s_own_making_does_not_hang_its_siblings() -> None:
    @tool
    async def act(x: int) -> str:
        if x == 0:
            raise asyncio.CancelledError
        return "done"

    task = asyncio.ensure_future(results_of([act], call("act", x=0), call("act", x=1)))
    await settle()
    hangs = not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert not hangs
    assert codes(task.result())[1] is None


async def test_a_plain_body_runs_in_another_thread_with_the_caller_s_context() -> None:
    seen: list[tuple[str, bool]] = []

    @tool
    def look() -> str:
        seen.append((where.get(), threading.get_ident() == threading.main_thread().ident))
        where.set("inside")
        return "done"

    where.set("outside")
    await results_of([look], call("look"), call("look"))
    assert seen == [("outside", False), ("outside", False)]
    assert where.get() == "outside"


async def test_a_coroutine_runs_on_the_loop_with_the_caller_s_context() -> None:
    seen: list[tuple[str, int]] = []

    @tool
    async def look() -> str:
        seen.append((where.get(), threading.get_ident()))
        return "done"

    where.set("outside")
    await results_of([look], call("look"), call("look"))
    assert seen == [("outside", threading.get_ident())] * 2


async def test_a_plain_body_does_not_hold_up_the_loop() -> None:
    release = threading.Event()

    @tool
    def block() -> str:
        assert release.wait(STALLED)
        return "released"

    @tool
    async def free() -> str:
        release.set()
        return "done"

    results = await results_of([block, free], call("block"), call("free"))
    assert [result.content for result in results] == ["released", "done"]


async def test_a_plain_function_may_give_an_awaitable() -> None:
    async def later() -> str:
        return "waited for"

    @tool
    def act() -> Any:
        return later()

    assert (await result_of(act)).content == "waited for"


async def test_an_object_with_an_async_call_is_not_put_in_a_thread() -> None:
    class Ask:
        async def __call__(self, x: int) -> bool:
            return threading.get_ident() != threading.main_thread().ident

    @tool(approval=Ask())
    async def act(x: int) -> str:
        return "on the loop"

    assert (await run_calls([act], call("act", x=1))).stop == "answered"


@dataclass
class Shop:
    name: str


async def test_a_body_gets_the_deps_and_its_call() -> None:
    seen: list[Context[Shop]] = []

    @tool
    async def act(ctx: Context[Shop], x: int) -> str:
        seen.append(ctx)
        return ctx.deps.name

    script = Script(calls(call("act", x=1), call("act", x=1)), say("end"))
    shop = Shop("corner")
    result = await Agent(script, deps=Shop, tools=[act]).run("start", deps=shop)
    first, second = seen
    assert first.deps is shop
    assert [first.call.id, second.call.id] == [part.id for part in result.messages[1].calls]
    assert (first.call.name, first.call.attempt, first.call.thread) == ("act", 1, None)
    assert first.call.idempotency_key != second.call.idempotency_key
    assert first.run == result.run


async def test_the_body_gets_what_validating_the_stored_text_gives() -> None:
    class Order(BaseModel):
        id: str

    got: list[Order] = []

    @tool
    async def act(order: Order) -> None:
        got.append(order)
        order.id = "changed"

    script = Script(call("act", order={"id": "42"}), say("end"))
    result = await Agent(script, tools=[act]).run("start")
    assert got == [Order(id="changed")]
    assert result.messages[1].calls[0].arguments == '{"order": {"id": "42"}}'


# What the model is shown.


async def test_results_are_json_by_their_declared_type() -> None:
    class Order(BaseModel):
        id: str
        open: bool = True

    @tool
    async def look_up() -> Order:
        return Order(id="42")

    @tool
    def all_of_them() -> list[Order]:
        return [Order(id="42", open=False)]

    @tool
    def text() -> str:
        return '{"not": "touched" }'

    @tool
    def nothing() -> None: ...

    results = await results_of(
        [look_up, all_of_them, text, nothing], *map(call, ("look_up", "all_of_them", "text", "nothing"))
    )
    assert [result.content for result in results] == [
        '{"id":"42","open":true}',
        '[{"id":"42","open":false}]',
        '{"not": "touched" }',
        "null",
    ]


async def test_what_is_no_text_is_replaced_in_a_result() -> None:
    @tool
    async def act() -> str:
        return "a\x00b\ud800c"

    assert (await result_of(act)).content == "a\ufffdb\ufffdc"


async def test_a_result_is_cut_on_a_character_and_says_what_is_missing() -> None:
    @tool(cap=10)
    async def act() -> str:
        return "ääääää"  # 12 bytes

    assert (await result_of(act)).content == "äääää\n[cut: 2 bytes are missing]"


@pytest.mark.parametrize(
    ("text", "cap", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "abc\n[cut: 1 bytes are missing]"),
        ("ää", 3, "ä\n[cut: 2 bytes are missing]"),
        ("€", 2, "\n[cut: 3 bytes are missing]"),
        ("a😀b", 4, "a\n[cut: 5 bytes are missing]"),
        ("a😀b", 6, "a😀b"),
    ],
)
def test_a_text_is_cut_on_a_character(text: str, cap: int, shown: str) -> None:
    assert capped(text, cap) == shown


@given(st.text(max_size=200), st.integers(1, 250))
def test_a_cut_text_and_what_is_missing_add_up(text: str, cap: int) -> None:
    shown = capped(text, cap)
    size = len(text.encode())
    if size <= cap:
        assert shown == text
        return
    kept, _, notice = shown.rpartition("\n")
    assert text.startswith(kept)
    assert cap - 3 <= len(kept.encode()) <= cap
    assert notice == f"[cut: {size - len(kept.encode())} bytes are missing]"


async def test_results_are_capped_unless_told_otherwise() -> None:
    @tool
    async def act() -> str:
        return "x" * (64 * 1024 + 1)

    assert (await result_of(act)).content.endswith("x\n[cut: 1 bytes are missing]")


@pytest.mark.parametrize("error", [ToolError("NO", "y" * 50), Retry("y" * 50)])
async def test_the_texts_of_errors_are_capped(error: Exception) -> None:
    @tool(cap=10)
    async def act() -> str:
        raise error

    assert (await result_of(act)).content == "y" * 10 + "\n[cut: 40 bytes are missing]"


# Several calls.


class Bodies:
    """Bodies that wait until they are let go; a tool tells where it is."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.gates = {x: asyncio.Event() for x in range(20)}

        @tool(effect="none")
        async def work(x: int) -> int:
            return await self._wait(x)

        @tool(effect="none", sequential=True)
        async def alone(x: int) -> int:
            return await self._wait(x)

        self.work, self.alone = work, alone

    async def _wait(self, x: int) -> int:
        self.started.append(x)
        await self.gates[x].wait()
        return x

    def start(self, *wanted: Any) -> asyncio.Task[tuple[ToolResult, ...]]:
        return asyncio.ensure_future(results_of([self.work, self.alone], *wanted))

    async def let_go(self, *numbers: int) -> list[int]:
        """What has been started once these are over."""
        for number in numbers:
            self.gates[number].set()
        await settle()
        return self.started


async def test_calls_start_in_order_and_at_most_four_run_at_once() -> None:
    bodies = Bodies()
    run = bodies.start(*(call("work", x=x) for x in range(7)))
    assert await bodies.let_go() == [0, 1, 2, 3]
    assert await bodies.let_go(2) == [0, 1, 2, 3, 4]
    assert await bodies.let_go(0, 1) == [0, 1, 2, 3, 4, 5, 6]
    await bodies.let_go(*range(7))
    assert [result.content for result in await run] == ["0", "1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("parallel", [1, 2, 7])
async def test_an_agent_says_how_many_run_at_once(parallel: int) -> None:
    bodies = Bodies()
    script = Script(calls(*(call("work", x=x) for x in range(6))), say("done"))
    agent = Agent(script, tools=[bodies.work], limits=Limits(parallel=parallel))
    run = asyncio.ensure_future(agent.run("go"))
    assert await bodies.let_go() == [*range(min(parallel, 6))]
    assert await bodies.let_go(0) == [*range(min(parallel + 1, 6))]
    await bodies.let_go(*range(6))
    assert (await run).text == "done"


async def test_results_are_in_call_order_whatever_the_order_of_the_bodies() -> None:
    bodies = Bodies()
    run = bodies.start(*(call("work", x=x) for x in range(4)))
    for x in (3, 1, 0, 2):
        await bodies.let_go(x)
    assert [result.content for result in await run] == ["0", "1", "2", "3"]


async def test_a_sequential_call_is_a_barrier() -> None:
    bodies = Bodies()
    run = bodies.start(
        call("work", x=0),
        call("work", x=1),
        call("alone", x=2),
        call("work", x=3),
        call("work", x=4),
        call("alone", x=5),
        call("alone", x=6),
    )
    assert await bodies.let_go() == [0, 1]
    assert await bodies.let_go(1) == [0, 1]
    assert await bodies.let_go(0) == [0, 1, 2]
    assert await bodies.let_go(2) == [0, 1, 2, 3, 4]
    assert await bodies.let_go(3) == [0, 1, 2, 3, 4]
    assert await bodies.let_go(4) == [0, 1, 2, 3, 4, 5]
    assert await bodies.let_go(5) == [0, 1, 2, 3, 4, 5, 6]
    await bodies.let_go(6)
    assert [result.content for result in await run] == ["0", "1", "2", "3", "4", "5", "6"]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidTool, match="'restock'"):
        Agent(Script(), tools=[restock, restock])


# Deadlines.


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Let everything come to rest, then move the clock."""
    await settle()
    await clock.advance(seconds)


def deadlines(clock: ManualClock) -> int:
    """How many are still waited for."""
    return sum(timer.callback is not None for _, _, timer in clock._timers)


def body_of(
    made: Tool[Any], clock: ManualClock, *, durable: bool = False
) -> asyncio.Task[CallFinished | CallUncertain]:
    wanted = ToolCall(id="a", name=made.name, arguments="{}")
    plan = Ready(call=wanted, effect=made.effect, digest=digest_of("{}"))
    info = CallInfo(id="a", name=made.name, attempt=1, idempotency_key="k", thread=None)
    context: Context[None] = Context(deps=None, call=info, run="r")
    return asyncio.ensure_future(run_body(made, plan, context, clock, durable=durable, late=lambda *_: None))


class Slow:
    """A body that waits, and may refuse to stop."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.gate = asyncio.Event()
        self.cancelled = 0
        self.stubborn = stubborn
        self.over = False

    async def __call__(self) -> str:
        while True:
            try:
                await self.gate.wait()
                break
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.stubborn:
                    raise
        self.over = True
        return "late"

    def tool(self, effect: str = "once", timeout: float = 30.0) -> Tool[Any]:
        async def slow() -> str:
            return await self()

        return tool(name="slow", effect=effect, timeout=timeout)(slow)


async def test_a_body_is_ended_by_its_deadline_and_told_as_a_timeout() -> None:
    clock, slow = ManualClock(), Slow()
    body = body_of(slow.tool("none"), clock)
    await pass_time(clock, 29.5)
    assert (body.done(), slow.cancelled) == (False, 0)
    await pass_time(clock, 0.5)
    finished = await body
    assert isinstance(finished, CallFinished)
    assert (finished.source, finished.result.code, finished.result.is_error) == ("timeout", "TIMEOUT", True)
    assert finished.result.content == "The call did not finish within 30 seconds."
    assert slow.cancelled == 1
    assert deadlines(clock) == 0


async def test_a_body_within_its_deadline_leaves_no_timer() -> None:
    clock, slow = ManualClock(), Slow()
    body = body_of(slow.tool(), clock)
    await pass_time(clock, 29.5)
    slow.gate.set()
    finished = await body
    assert isinstance(finished, CallFinished)
    assert (finished.source, finished.result.content) == ("body", "late")
    assert deadlines(clock) == 0


@pytest.mark.parametrize("effect", ["none", "repeatable"])
async def test_the_outcome_of_a_once_body_that_is_late_is_unknown(effect: str) -> None:
    texts = []
    for kind in ("once", effect):
        clock = ManualClock()
        body = body_of(Slow().tool(kind), clock)
        await pass_time(clock, 30)
        finished = await body
        assert isinstance(finished, CallFinished)
        texts.append(finished.result.content)
    assert ["utcome unknown" in text for text in texts] == [True, False]


@pytest.mark.parametrize(("effect", "uncertain"), [("once", True), ("repeatable", False), ("none", False)])
async def test_in_a_session_a_once_body_that_is_late_is_uncertain(effect: str, *, uncertain: bool) -> None:
    clock = ManualClock()
    body = body_of(Slow().tool(effect), clock, durable=True)
    await pass_time(clock, 30)
    finished = await body
    assert isinstance(finished, CallUncertain) is uncertain
    if isinstance(finished, CallUncertain):
        assert finished == CallUncertain(call="a", reason="it did not finish within 30 seconds")


async def test_a_late_result_is_not_shown() -> None:
    clock, slow = ManualClock(), Slow(stubborn=True)
    body = body_of(slow.tool("none"), clock)
    await pass_time(clock, 30)
    assert (body.done(), slow.cancelled) == (False, 1)
    slow.gate.set()
    finished = await body
    assert slow.over
    assert isinstance(finished, CallFinished)
    assert finished.result.code == "TIMEOUT"


async def test_a_body_that_does_not_stop_is_left_behind_after_its_grace() -> None:
    clock, slow = ManualClock(), Slow(stubborn=True)
    body = body_of(slow.tool("none"), clock)
    await pass_time(clock, 30)
    await pass_time(clock, GRACE - 0.5)
    assert not body.done()
    await pass_time(clock, 0.5)
    finished = await body
    assert isinstance(finished, CallFinished)
    assert finished.result.code == "TIMEOUT"
    slow.gate.set()
    await settle()
    assert slow.over


async def test_synchronous_bodies_of_a_step_are_entered_in_call_order() -> None:
    entered: list[int] = []

    @tool(effect="none")
    def note(n: int) -> None:
        """Note."""
        entered.append(n)

    script = Script(*(step for _ in range(50) for step in (calls(*(call("note", n=n) for n in range(4))), say("x"))))
    agent = Agent(script, tools=[note])
    for _ in range(50):
        await agent.run("go")
    assert entered == [0, 1, 2, 3] * 50


async def threads_are_free() -> None:
    while any(worker.abandoned for worker in workers()):
        await settle()


async def test_a_plain_body_that_is_late_is_left_behind() -> None:
    release = threading.Event()

    @tool(effect="none", timeout=1.0)
    def block() -> str:
        assert release.wait(STALLED)
        return "late"

    clock = ManualClock()
    body = body_of(block, clock)
    await pass_time(clock, 1)
    finished = await body
    assert isinstance(finished, CallFinished)
    assert finished.result.code == "TIMEOUT"
    release.set()
    await threads_are_free()


def test_a_plain_body_that_outlives_its_loop_ends_without_a_word() -> None:
    started, release = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        started.set()
        assert release.wait(STALLED)
        return "late"

    async def leave() -> None:
        body = body_of(block, ManualClock())
        await settle()
        assert started.wait(STALLED)
        body.cancel()
        await asyncio.wait([body])

    asyncio.run(leave())
    release.set()
    asyncio.run(threads_are_free())


async def test_a_failure_within_its_deadline_is_a_result() -> None:
    @tool(timeout=1.0)
    async def fail() -> str:
        raise KeyError("secret")

    finished = await body_of(fail, ManualClock())
    assert isinstance(finished, CallFinished)
    assert finished.result.code == "INTERNAL"


async def test_a_cancelled_call_with_a_deadline_cancels_its_body_and_waits_for_it() -> None:
    clock, slow = ManualClock(), Slow(stubborn=True)
    body = body_of(slow.tool(), clock)
    await settle()
    body.cancel()
    await settle()
    assert (body.done(), slow.cancelled) == (False, 1)
    slow.gate.set()
    await asyncio.wait([body])
    assert body.cancelled()
    assert deadlines(clock) == 0


async def test_a_cancellation_of_the_body_s_own_making_within_its_deadline_is_its_result() -> None:
    @tool(timeout=1.0)
    async def act() -> str:
        raise asyncio.CancelledError

    body = body_of(act, ManualClock())
    await asyncio.wait([body])
    assert not body.cancelled()
    assert isinstance(body.result(), CallFinished)


async def test_arguments_that_do_not_fit_any_more_do_not_enter_the_body() -> None:
    @tool
    async def act(x: int) -> str:
        raise AssertionError("not reached")

    finished = await body_of(act, ManualClock())
    assert isinstance(finished, CallFinished)
    assert (finished.source, finished.result.code) == ("refused", "INVALID_INPUT")


async def test_a_run_goes_on_after_a_deadline() -> None:
    clock, slow = ManualClock(), Slow()

    @tool
    async def quick() -> str:
        return "quick"

    agent = Agent(Script(calls(call("slow"), call("quick")), say("end")), tools=[slow.tool(), quick])
    loop = agent._loop("start", clock=clock)
    driven = asyncio.ensure_future(loop.drive(Begin()))
    await pass_time(clock, 30)
    ended = await driven
    assert ended is not None
    assert ended.outcome == "answered"
    assert codes(loop.history()[2].results) == ["TIMEOUT", None]


async def test_where_a_body_or_a_predicate_has_failed_is_logged_without_the_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        """Break."""
        raise OSError("secret")

    def predicate() -> bool:
        raise KeyError("secret")

    gated = tool(name="gated", approval=predicate)(lambda: None)
    script = Script(calls(call("broken"), call("gated")), say("x"))
    await Agent(script, tools=[tool(broken), gated]).run("go")
    assert "secret" not in caplog.text
    told = {record.getMessage().split(" at ")[0]: record.getMessage() for record in caplog.records}
    assert set(told) == {"tool broken failed: OSError", "a call of tool gated was not made: KeyError"}
    assert all(f"{__file__}:" in text for text in told.values())


async def test_where_a_library_has_failed_the_line_that_called_it_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def parse() -> object:
        """Parse."""
        return JSONDecoder().decode("{secret")

    await Agent(Script(call("parse"), say("x")), tools=[tool(parse)]).run("go")
    (record,) = caplog.records
    before, after = record.getMessage().split(", called from ")
    assert before.startswith("tool parse failed: JSONDecodeError at ")
    assert "decoder.py:" in before
    assert after.startswith(f"{__file__}:")
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [(Any, {"name": "secret", "it": object()}, "PydanticSerializationError"), (int, "secret", "ValidationError")],
)
async def test_a_value_that_cannot_be_shown_is_logged_without_it(
    kind: Any, value: object, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def odd() -> object:
        return value

    odd.__annotations__["return"] = kind
    assert (await result_of(tool(odd))).code == "INTERNAL"
    (record,) = caplog.records
    assert record.getMessage().startswith(f"what tool odd gave is no result: {told} at ")
    assert "secret" not in caplog.text
