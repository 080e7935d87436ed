"""`retry` and `fallback`: what is asked again, after which pause, and what never is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from tests.test_idle import timers
from weft import Agent, Model, ModelError, ModelFailed, ModelInfo, ModelRequest, Reasoning, Settings, Usage, tool
from weft._moves import Begin
from weft.errors import WrongCall
from weft.events import TextDelta
from weft.messages import Message
from weft.model import Finish, ModelEvent, Position, ReasoningChunk, TextChunk, WholeCall
from weft.models import FALLBACK, TRANSIENT, fallback, retry
from weft.testing import ManualClock, Script, call, fail, override, say
from weft.testing.clock import settle
from weft.thread import open_store

SPENT = Usage(input_tokens=10, output_tokens=5)
HELLO = TextChunk(text="hello")
STOP = Finish(reason="stop", usage=SPENT)
REQUEST = ModelRequest(
    instructions=None,
    messages=[Message.user("hi")],
    tools=(),
    settings=Settings(),
    run_id="r",
    position=Position(thread=None, index=0),
)
FINAL = ["MODEL", "MODEL_AUTH", "MODEL_CONTEXT", "MODEL_CONTRACT", "MODEL_DENIED", "MODEL_REQUEST", "MODEL_SCRIPT"]


def error(code: str = "MODEL_SERVER", *, retry_after: float | None = None) -> ModelError:
    return ModelError(f"failed with {code}", code=code, retry_after=retry_after)


class Strict:
    """A model that plays its replies, each a list of events and of an exception at its end, and is asked for no more.

    It says which calls were closed, and insists that each was before the next, in the task that had opened it.
    """

    def __init__(self, name: str, *replies: list[ModelEvent | Exception], **info: Any) -> None:
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self._info = ModelInfo(provider=name, model=f"{name}-1", **info)
        self._replies = list(replies)

    def __repr__(self) -> str:
        return self._info.provider

    def info(self) -> ModelInfo:
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        assert self.closed == len(self.requests), "the call before is still open"
        assert self._replies, "asked once too often"
        self.requests.append(request)
        task = asyncio.current_task()
        try:
            for item in self._replies.pop(0):
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            assert asyncio.current_task() is task
            self.closed += 1


class Plain:
    """A model whose stream is no generator: it cannot be closed, and it fails when it is asked for."""

    def __init__(self, *replies: ModelError | list[ModelEvent]) -> None:
        self._replies = list(replies)

    def info(self) -> ModelInfo:
        return ModelInfo(provider="plain", model="plain-1")

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        reply = self._replies.pop(0)
        if isinstance(reply, ModelError):
            raise reply
        return Events(reply)


class Events:
    def __init__(self, events: list[ModelEvent]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        for event in self._events:
            return event
        raise StopAsyncIteration


async def played(model: Model, seen: list[ModelEvent] | None = None) -> list[ModelEvent]:
    seen = [] if seen is None else seen
    async for event in model.stream(REQUEST):
        seen.append(event)
    return seen


def asked(model: Model) -> asyncio.Task[list[ModelEvent]]:
    return asyncio.ensure_future(played(model))


def notes(raised: BaseException) -> list[str]:
    return list(getattr(raised, "__notes__", []))


def most() -> float:
    """The jitter with which a pause is as long as it may be."""
    return 1.0


def test_the_codes_that_are_acted_on_unless_told() -> None:
    passing = {"MODEL_CONNECTION", "MODEL_CUT", "MODEL_RATE_LIMIT", "MODEL_SERVER", "MODEL_TIMEOUT"}
    assert passing == TRANSIENT
    assert passing | {"MODEL_QUOTA"} == FALLBACK


# -- retry


async def test_what_succeeds_at_once_is_handed_on_as_it_is() -> None:
    model = Strict("a", [HELLO, STOP])
    assert await played(retry(model)) == [HELLO, STOP]
    assert (model.requests, model.closed) == ([REQUEST], 1)


@pytest.mark.parametrize("code", sorted(TRANSIENT))
async def test_a_failure_that_may_pass_is_tried_again_with_the_same_request(code: str) -> None:
    model = Strict("a", [error(code)], [HELLO, STOP])
    assert await played(retry(model, first=0)) == [HELLO, STOP]
    assert model.requests == [REQUEST, REQUEST]


@pytest.mark.parametrize("code", [*FINAL, "MODEL_QUOTA"])
async def test_a_failure_that_would_come_again_leaves_at_once(code: str) -> None:
    failure = error(code)
    with pytest.raises(ModelError) as caught:
        await played(retry(Strict("a", [failure])))
    assert caught.value is failure
    assert notes(failure) == ["retry: attempt 1 of at most 3"]


async def test_only_the_codes_that_were_told_are_tried_again() -> None:
    again = retry(Strict("a", [error("MODEL_AUTH")], [STOP]), codes={"MODEL_AUTH"}, first=0)
    assert await played(again) == [STOP]
    with pytest.raises(ModelError):
        await played(retry(Strict("a", [error("MODEL_SERVER")]), codes={"MODEL_AUTH"}))


async def test_an_exception_of_another_type_is_never_tried_again() -> None:
    with pytest.raises(KeyError):
        await played(retry(Strict("a", [KeyError("x")])))


async def test_the_last_error_leaves_as_itself_after_all_attempts() -> None:
    vendor = ConnectionError("refused")
    last = error("MODEL_CONNECTION")
    last.__cause__ = vendor
    with pytest.raises(ModelError) as caught:
        await played(retry(Strict("a", [error()], [error()], [last]), first=0))
    assert caught.value is last
    assert caught.value.__cause__ is vendor
    assert notes(last) == ["retry: attempt 3 of at most 3"]


async def test_an_error_that_leaves_again_and_again_gets_its_note_once() -> None:
    failure = error("MODEL_AUTH")
    model = retry(Strict("a", [failure], [failure]))
    for _ in range(2):
        with pytest.raises(ModelError):
            await played(model)
    assert len(notes(failure)) == 1


async def test_one_attempt_is_no_retry() -> None:
    with pytest.raises(ModelError):
        await played(retry(Strict("a", [error()]), attempts=1))


@pytest.mark.parametrize(
    "event", [HELLO, TextChunk(text=""), ReasoningChunk(text="hm"), WholeCall(name="f", arguments="{}"), STOP]
)
async def test_a_failure_after_the_first_event_is_final(event: ModelEvent) -> None:
    model = Strict("a", [event, error("MODEL_CUT")])
    seen: list[ModelEvent] = []
    with pytest.raises(ModelError, match="MODEL_CUT"):
        await played(retry(model), seen)
    assert (seen, len(model.requests)) == ([event], 1)


async def test_a_stream_without_any_event_is_tried_again() -> None:
    assert await played(retry(Strict("a", [], [HELLO, STOP]), first=0)) == [HELLO, STOP]
    with pytest.raises(ModelError) as caught:
        await played(retry(Strict("a", [], []), attempts=2, first=0))
    assert caught.value.code == "MODEL_CUT"


async def test_a_stream_without_a_finish_is_handed_on_for_the_run_to_judge() -> None:
    assert await played(retry(Strict("a", [HELLO]))) == [HELLO]


async def test_unless_told_there_are_three_attempts_with_pauses_of_half_a_second_and_one() -> None:
    clock, model = ManualClock(), Strict("a", [error()], [error()], [error()])
    task = asked(retry(model, clock=clock, jitter=most))
    await settle()
    for seconds, made in ((0.25, 1), (0.25, 2), (0.75, 2), (0.25, 3)):
        await clock.advance(seconds)
        assert len(model.requests) == made
    with pytest.raises(ModelError):
        await task


async def test_pauses_double_up_to_the_longest() -> None:
    clock = ManualClock()
    model = Strict("a", *([error()] for _ in range(5)), [STOP])
    task = asked(retry(model, attempts=6, first=1.0, longest=5.0, clock=clock, jitter=most))
    await settle()
    for pause in (1.0, 2.0, 4.0, 5.0, 5.0):
        before = len(model.requests)
        await clock.advance(pause - 0.25)
        assert len(model.requests) == before
        await clock.advance(0.25)
        assert len(model.requests) == before + 1
    assert await task == [STOP]


async def test_a_pause_is_the_share_of_it_that_the_jitter_says() -> None:
    clock, model = ManualClock(), Strict("a", [error()], [STOP])
    task = asked(retry(model, first=8.0, clock=clock, jitter=lambda: 0.25))
    await settle()
    await clock.advance(1.75)
    assert len(model.requests) == 1
    await clock.advance(0.25)
    assert await task == [STOP]


async def test_a_pause_is_random_and_less_than_its_most_unless_told() -> None:
    slept: list[float] = []

    class Sleepless(ManualClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    model = Strict("a", *([error()] for _ in range(9)), [STOP])
    await played(retry(model, attempts=10, first=1.0, longest=1.0, clock=Sleepless()))
    assert len(set(slept)) == 9
    assert all(0 <= pause < 1 for pause in slept)


async def test_the_thousandth_pause_is_still_a_number() -> None:
    model = Strict("a", *([error()] for _ in range(1_100)), [STOP])
    assert await played(retry(model, attempts=1_101, first=0)) == [STOP]


async def test_the_wait_that_a_server_asks_for_is_kept_exactly() -> None:
    clock, model = ManualClock(), Strict("a", [error(retry_after=7.0)], [STOP])
    task = asked(retry(model, clock=clock, longest=7.0, jitter=lambda: 0.0))
    await settle()
    await clock.advance(6.75)
    assert len(model.requests) == 1
    await clock.advance(0.25)
    assert await task == [STOP]


async def test_a_server_that_asks_for_no_wait_is_asked_again_without_one() -> None:
    model = Strict("a", [error(retry_after=0.0)], [STOP])
    assert await played(retry(model, clock=ManualClock(), jitter=most)) == [STOP]


async def test_a_wait_longer_than_the_longest_is_not_waited_for() -> None:
    failure = error("MODEL_RATE_LIMIT", retry_after=30.5)
    with pytest.raises(ModelError) as caught:
        await played(retry(Strict("a", [failure]), longest=30.0, clock=ManualClock()))
    assert caught.value is failure


async def test_a_cancellation_ends_the_pause_and_passes_through() -> None:
    clock, model = ManualClock(), Strict("a", [error()])
    task = asked(retry(model, clock=clock, jitter=most))
    await settle()
    assert (len(model.requests), model.closed) == (1, 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("wrap", [retry, fallback, lambda model: retry(fallback(retry(model)))])
async def test_who_leaves_early_closes_the_stream_inside(wrap: Callable[[Model], Model]) -> None:
    model = Strict("a", [HELLO, STOP])
    stream = wrap(model).stream(REQUEST)
    async with aclosing(stream) as events:  # type: ignore[type-var]  # an async generator, as the seam says
        assert await anext(events) == HELLO
        assert model.closed == 0
    assert model.closed == 1


@pytest.mark.parametrize("wrap", [retry, fallback])
async def test_a_cancelled_call_closes_the_stream_inside(wrap: Callable[[Model], Model]) -> None:
    model = Hanging()
    task = asked(wrap(model))
    await settle()
    assert not model.closed
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert model.closed


class Hanging:
    closed = False

    def info(self) -> ModelInfo:
        return ModelInfo(provider="hanging", model="hanging")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            await asyncio.Event().wait()
            yield HELLO
        finally:
            self.closed = True


async def test_a_stream_that_is_no_generator_is_wrapped_as_well() -> None:
    assert await played(retry(Plain(error(), [HELLO, STOP]), first=0)) == [HELLO, STOP]
    assert await played(fallback(Plain(error()), Plain([HELLO, STOP]))) == [
        HELLO,
        replace(STOP, by=ModelInfo(provider="plain", model="plain-1")),
    ]


@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"first": -1}, {"first": 2, "longest": 1}, {"longest": float("inf")}, {"first": float("nan")}],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(WrongCall, match="retry"):
        retry(Strict("a"), **options)


# -- fallback


async def test_the_first_model_answers_if_it_can() -> None:
    second = Strict("b")
    assert await played(fallback(Strict("a", [HELLO, STOP]), second)) == [HELLO, STOP]
    assert second.requests == []


@pytest.mark.parametrize("code", [*sorted(TRANSIENT), "MODEL_QUOTA"])
async def test_the_next_model_is_asked_and_signs_its_reply(code: str) -> None:
    first, second = Strict("a", [error(code)]), Strict("b", [HELLO, STOP])
    assert await played(fallback(first, second)) == [HELLO, replace(STOP, by=second.info())]
    assert (first.requests, second.requests) == ([REQUEST], [REQUEST])


@pytest.mark.parametrize("code", FINAL)
async def test_a_failure_that_the_next_model_would_not_mend_leaves_at_once(code: str) -> None:
    failure = error(code)
    with pytest.raises(ModelError) as caught:
        await played(fallback(Strict("a", [failure]), Strict("b")))
    assert caught.value is failure
    assert notes(failure) == []


async def test_only_the_codes_that_were_told_lead_to_the_next_model() -> None:
    model = fallback(Strict("a", [error("MODEL_CONTEXT")]), Strict("b", [STOP]), codes=FALLBACK | {"MODEL_CONTEXT"})
    assert len(await played(model)) == 1


async def test_the_last_error_leaves_and_tells_of_the_others() -> None:
    last = error("MODEL_RATE_LIMIT")
    with pytest.raises(ModelError) as caught:
        await played(fallback(Strict("a", [error()]), Strict("b", [error("MODEL_CUT")]), Strict("c", [last])))
    assert caught.value is last
    assert notes(last) == [
        "fallback: before this, a:a-1 failed with MODEL_SERVER: failed with MODEL_SERVER",
        "fallback: before this, b:b-1 failed with MODEL_CUT: failed with MODEL_CUT",
    ]


async def test_a_reply_that_has_begun_does_not_fall_back() -> None:
    failure = error("MODEL_CUT")
    with pytest.raises(ModelError) as caught:
        await played(fallback(Strict("a", [error()]), Strict("b", [HELLO, failure]), Strict("c")))
    assert caught.value is failure
    assert len(notes(failure)) == 1


async def test_every_call_begins_with_the_first_model() -> None:
    first, second = Strict("a", [error()], [STOP]), Strict("b", [STOP])
    model = fallback(first, second)
    assert [len(await played(model)), await played(model)] == [1, [STOP]]


async def test_a_finish_that_says_who_answered_keeps_it() -> None:
    other = ModelInfo(provider="x", model="y")
    second = Strict("b", [replace(STOP, by=other)])
    assert await played(fallback(Strict("a", [error()]), second)) == [replace(STOP, by=other)]


def test_info_is_of_the_first_and_of_what_all_can_do() -> None:
    first = Strict("a", context_window=1_000, output="schema")
    same = Strict("b", context_window=500, output="schema")
    other = Strict("c")
    mine, others = replace(first.info(), own_idle=True), replace(other.info(), own_idle=True)
    assert [fallback(first).info(), fallback(other).info()] == [mine, others]
    assert fallback(first, same).info() == replace(mine, context_window=500)
    assert fallback(first, other).info() == replace(mine, output="tool")
    assert fallback(other, first).info() == replace(others, context_window=1_000)
    assert retry(first).info() == mine


def test_no_model_is_refused() -> None:
    with pytest.raises(WrongCall, match="at least one model"):
        fallback()


async def test_wrappers_nest() -> None:
    first = Strict("a", [error()], [error()])
    second = Strict("b", [error()], [error()], [HELLO, STOP])
    inner = fallback(retry(first, attempts=1), retry(second, attempts=2, first=0))
    assert await played(retry(inner, first=0)) == [HELLO, replace(STOP, by=replace(second.info(), own_idle=True))]
    assert (len(first.requests), len(second.requests)) == (2, 3)


def test_a_wrapper_shows_what_it_wraps() -> None:
    assert repr(retry(fallback("openai:gpt-5", Strict("b")))) == "retry(fallback('openai:gpt-5', b), attempts=3)"


def test_a_string_is_looked_up_at_its_first_use_and_once() -> None:
    model = retry("openai:gpt-5")
    assert model.info().model == "gpt-5"
    unknown = fallback("nobody:x")
    with pytest.raises(WrongCall, match="nobody:x"):
        unknown.info()


async def test_a_name_that_no_adapter_has_is_said_when_it_is_asked() -> None:
    with pytest.raises(ModelFailed, match=r"the model call failed: no model 'nobody:x'; use one of anthropic:…"):
        await Agent(retry("nobody:x")).run("hi")


async def test_a_string_is_asked_as_the_model_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MODEL_REQUESTS", "deny")
    for model in (retry("openai:gpt-5"), fallback("openai:gpt-5", Strict("b"))):
        with pytest.raises(ModelError) as caught:
            await played(model)
        assert caught.value.code == "MODEL_DENIED"


# -- in a run


@tool(effect="none")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_a_failed_attempt_leaves_nothing_in_the_transcript() -> None:
    script = Script(fail(error(), times=2), call("add", a=1, b=2), fail(error("MODEL_TIMEOUT")), say("3"))
    result = await Agent(retry(script, first=0), tools=[add]).run("1 + 2?")
    assert (result.text, result.usage) == ("3", SPENT + SPENT)
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert len(script.requests) == 5
    script.assert_done()


async def test_a_cut_after_the_first_event_fails_the_run() -> None:
    script = Script(say("hel").then_fail(error("MODEL_CUT")), say("never"))
    agent = Agent(retry(script, first=0))
    texts: list[str] = []

    async def watch() -> None:
        async with agent.stream("hi") as run:
            async for event in run:
                texts.extend([event.text] if isinstance(event, TextDelta) else [])

    with pytest.raises(ModelFailed) as caught:
        await watch()
    assert (texts, caught.value.code, len(script.requests)) == (["hel"], "MODEL_CUT", 1)
    assert caught.value.result is not None
    assert [message.role for message in caught.value.result.messages] == ["user"]


async def test_a_run_fails_with_the_code_and_the_cause_of_the_last_attempt() -> None:
    last = error("MODEL_RATE_LIMIT")
    script = Script(fail(error()), fail(last), say("never"))
    with pytest.raises(ModelFailed) as caught:
        await Agent(retry(script, attempts=2, first=0)).run("hi")
    assert (caught.value.code, caught.value.__cause__) == ("MODEL_RATE_LIMIT", last)


async def test_reasoning_is_that_of_the_model_which_answered() -> None:
    second = Strict("b", [ReasoningChunk(text="hm", block="{}"), HELLO, STOP])
    result = await Agent(fallback(Strict("a", [error()]), second)).run("hi")
    assert result.usage == SPENT
    assert result.messages[-1].parts[0] == Reasoning(text="hm", block="{}", provider="b", model="b-1")


async def test_wrappers_work_in_an_override() -> None:
    desk = Agent("openai:gpt-5", name="desk")
    with override({"desk": fallback(Script(fail(error()), say("never")), retry(Script(say("hello"))))}):
        assert (await desk.run("hi")).text == "hello"


async def test_wrappers_work_in_a_session() -> None:
    script = Script(fail(error()), call("add", a=1, b=2), fail(error()), say("3"))
    backup = Script(call("add", a=1, b=2), say("never"))
    agent = Agent(fallback(retry(script, attempts=2, first=0), backup), tools=[add])
    async with open_store("memory:") as store:
        session = await store.create(agent)
        assert (await session.ask("1 + 2?")).text == "3"
        assert session.usage.total == SPENT + SPENT
        assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert (len(script.requests), backup.requests) == (4, [])


async def test_cancelling_a_run_ends_the_pause() -> None:
    clock, script = ManualClock(), Script(fail(error(), times=None), say("never"))
    task = asyncio.ensure_future(Agent(retry(script, clock=clock, jitter=most)).run("hi"))
    await settle()
    assert len(script.requests) == 1
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await clock.advance(60)
    assert len(script.requests) == 1


# The idle limit.


class Silent:
    """A model that says nothing for ever the first times it is asked, and then hello; a stream of it can be closed."""

    def __init__(self, times: int, *, after: tuple[ModelEvent, ...] = ()) -> None:
        self.times = times
        self.after = after
        self.open = 0
        self.calls = 0

    def info(self) -> ModelInfo:
        return ModelInfo(provider="silent", model="silent-1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.calls += 1
        self.open += 1
        try:
            if self.calls <= self.times:
                for event in self.after:
                    yield event
                await asyncio.get_running_loop().create_future()
            yield HELLO
            yield STOP
        finally:
            self.open -= 1


async def test_a_silent_attempt_is_retried_and_pauses_do_not_count() -> None:
    clock = ManualClock()
    model = Silent(1)
    wrapped = retry(model, first=1_000.0, longest=1_000.0, jitter=lambda: 1.0, clock=clock)
    loop = Agent(wrapped, settings=Settings(idle=10.0))._loop("hi", clock=clock)
    run = asyncio.ensure_future(loop.drive(Begin()))
    await settle()
    await clock.advance(9.0)
    assert (model.calls, model.open) == (1, 1)
    await clock.advance(1.0)
    assert (model.calls, model.open) == (1, 0)
    await clock.advance(999.0)
    assert model.calls == 1
    await clock.advance(1.0)
    ended = await run
    assert ended is not None
    assert (ended.outcome, loop.state.text, model.calls, model.open) == ("answered", "hello", 2, 0)


async def test_the_next_model_is_asked_where_one_is_silent() -> None:
    clock = ManualClock()
    silent, other = Silent(9), Strict("b", [HELLO, STOP])
    seen: list[ModelEvent] = []
    run = asyncio.ensure_future(played(fallback(retry(silent, attempts=2, first=0.0), other, clock=clock), seen))
    await settle()
    assert silent.calls == 1
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    run = asyncio.ensure_future(played(fallback(silent, other, clock=clock), seen))
    await settle()
    await clock.advance(60.0)
    assert (await run)[-1] == replace(STOP, by=other.info())
    assert silent.open == 0


@pytest.mark.parametrize("wrap", [retry, fallback])
@pytest.mark.parametrize("replies", [[[HELLO, STOP]], [[HELLO, error("MODEL_AUTH")]]], ids=["answered", "failed"])
async def test_no_timer_of_a_call_is_left_behind(
    wrap: Callable[..., Model], replies: list[list[ModelEvent | Exception]]
) -> None:
    clock = ManualClock()
    await asyncio.wait([asked(wrap(Strict("a", *replies), clock=clock))])
    assert timers(clock) == 0


async def test_the_pauses_of_a_wrapper_inside_do_not_count() -> None:
    clock = ManualClock()
    pausing = retry(Strict("a", [error()], [HELLO, STOP]), first=100.0, longest=100.0, jitter=most, clock=clock)
    run = asked(fallback(pausing, clock=clock))
    await settle()
    await clock.advance(99.0)
    assert not run.done()
    await clock.advance(1.0)
    assert await run == [HELLO, STOP]


async def test_a_model_that_falls_silent_in_its_reply_fails_for_good() -> None:
    clock = ManualClock()
    silent = Silent(1, after=(HELLO,))
    run = asyncio.ensure_future(played(retry(silent, clock=clock)))
    await settle()
    await clock.advance(60.0)
    with pytest.raises(ModelError, match="said nothing for 60 seconds") as caught:
        await run
    assert (caught.value.code, silent.calls, silent.open, run.cancelling()) == ("MODEL_TIMEOUT", 1, 0, 0)


async def test_a_cancellation_at_the_moment_of_the_limit_is_a_cancellation() -> None:
    clock = ManualClock()
    silent = Silent(9)
    run = asyncio.ensure_future(played(retry(silent, clock=clock)))
    await settle()
    clock.deadline(60.0, run.cancel)
    await clock.advance(60.0)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (silent.calls, silent.open) == (1, 0)


async def test_without_a_limit_or_a_stream_a_silent_model_is_waited_for() -> None:
    clock = ManualClock()
    for settings in (Settings(idle=None), Settings(stream=False)):
        silent = Silent(9)
        stream = retry(silent, clock=clock).stream(replace(REQUEST, settings=settings))
        run = asyncio.ensure_future(anext(stream))
        await settle()
        await clock.advance(1_000.0)
        assert (silent.calls, silent.open) == (1, 1)
        run.cancel()
        await asyncio.wait([run])


@pytest.mark.parametrize("wrap", [retry, fallback])
def test_one_string_is_no_set_of_codes(wrap: Callable[..., Model]) -> None:
    with pytest.raises(WrongCall, match=r"codes=… is a set of codes: \{'MODEL_SERVER'\}"):
        wrap(Strict("a"), codes="MODEL_SERVER")
