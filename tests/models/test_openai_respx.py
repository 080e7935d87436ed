"""Whole runs of both OpenAI adapters against a server that respx plays."""

import json
from collections.abc import AsyncIterator
from typing import TypeAlias

import httpx
import pytest
import respx
from openai import AsyncOpenAI

import weft
from tests.models import test_openai, test_openai_responses
from tests.models.respx_bridge import respx_client
from tests.models.served import Json, sse
from tests.models.test_aimock import plain
from weft.errors import ModelFailed
from weft.messages import Reasoning
from weft.model import ModelError, Settings
from weft.models.openai import OpenAIChat
from weft.models.openai_responses import OpenAIResponses

Adapter: TypeAlias = type[OpenAIChat] | type[OpenAIResponses]

PATHS = {OpenAIChat: "/v1/chat/completions", OpenAIResponses: "/v1/responses"}
ADAPTERS = pytest.mark.parametrize("adapter", list(PATHS))
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture
def router() -> respx.MockRouter:
    return respx.MockRouter(base_url="http://model.test")


@pytest.fixture
async def client(router: respx.MockRouter) -> AsyncIterator[AsyncOpenAI]:
    http = respx_client(router)
    async with AsyncOpenAI(api_key="test", base_url="http://model.test/v1", http_client=http, max_retries=0) as made:
        yield made


def add(x: int) -> str:
    """Add one."""
    return str(x + 1)


def chat(request: httpx.Request) -> httpx.Response:
    """A call with a thought before it, then an answer."""
    body = json.loads(request.content)
    if body["messages"][-1]["role"] == "user":
        function = {"name": "add", "arguments": '{"x": 2}'}
        said: Json = {"reasoning_content": "Hm.", "tool_calls": [{"index": 0, "id": "call_1", "function": function}]}
        word = "tool_calls"
    else:
        said, word = {"content": f"It is {body['messages'][-1]['content']}."}, "stop"
    if not body.get("stream"):
        return httpx.Response(200, json=test_openai.completion(said, word, usage=test_openai.SPENT))
    pieces = [test_openai.chunk({key: value}) for key, value in said.items()]
    last = test_openai.chunk(finish=word, usage=test_openai.SPENT)
    return httpx.Response(200, content=sse(*pieces, last, "[DONE]"))


def responses(request: httpx.Request) -> httpx.Response:
    """A call with a thought before it, then an answer."""
    body = json.loads(request.content)
    if body["input"][-1].get("role") == "user":
        items = [test_openai_responses.thought("Hm."), test_openai_responses.call('{"x": 2}')]
    else:
        assert test_openai_responses.thought("Hm.") in body["input"]
        items = [test_openai_responses.text(f"It is {body['input'][-1]['output']}.")]
    if not body["stream"]:
        return httpx.Response(200, json=test_openai_responses.response(*items, usage=test_openai_responses.SPENT))
    return httpx.Response(200, content=sse(*test_openai_responses.events(*items, usage=test_openai_responses.SPENT)))


@ADAPTERS
async def test_a_run_streamed_or_whole_leaves_the_same_messages(
    router: respx.MockRouter, client: AsyncOpenAI, adapter: Adapter
) -> None:
    route = router.post(PATHS[adapter]).mock(side_effect=chat if adapter is OpenAIChat else responses)
    agent = weft.Agent(adapter("gpt-5", client=client), tools=[add])
    streamed = await agent.run("What is one more than two?", settings=Settings(stream=True))
    whole = await agent.run("What is one more than two?", settings=Settings(stream=False))
    assert route.call_count == 4
    assert streamed.text == "It is 3."
    assert isinstance(streamed.messages[1].parts[0], Reasoning)
    assert plain(streamed.messages) == plain(whole.messages)
    assert (streamed.text, streamed.finish, streamed.usage) == (whole.text, whole.finish, whole.usage)
    assert streamed.usage == test_openai.USAGE + test_openai.USAGE


@ADAPTERS
@BOTH
async def test_a_key_goes_into_the_header_and_nowhere_else(
    router: respx.MockRouter, client: AsyncOpenAI, adapter: Adapter, stream: bool
) -> None:
    route = router.post(PATHS[adapter]).mock(side_effect=chat if adapter is OpenAIChat else responses)
    await weft.Agent(adapter("gpt-5", client=client), tools=[add], settings=Settings(stream=stream)).run("Hi")
    request = route.calls.last.request
    assert request.headers["authorization"] == "Bearer test"
    assert b"Bearer" not in request.content


@ADAPTERS
@BOTH
@pytest.mark.parametrize(
    ("answer", "code", "wait"),
    [
        (httpx.Response(429, headers={"retry-after": "2"}, json={"error": {}}), "MODEL_RATE_LIMIT", 2.0),
        (httpx.Response(429, headers={"retry-after-ms": "250"}, json={"error": {}}), "MODEL_RATE_LIMIT", 0.25),
        (httpx.Response(500, text="it broke"), "MODEL_SERVER", None),
        (httpx.Response(200, headers={"content-type": "application/json"}, text="{malformed"), "MODEL_SERVER", None),
        (httpx.ConnectError("no route"), "MODEL_CONNECTION", None),
        (httpx.ReadTimeout("slow"), "MODEL_TIMEOUT", None),
    ],
)
async def test_a_fault_is_a_typed_error_and_the_agent_goes_on(
    router: respx.MockRouter,
    client: AsyncOpenAI,
    adapter: Adapter,
    stream: bool,
    answer: httpx.Response | Exception,
    code: str,
    wait: float | None,
) -> None:
    route = router.post(PATHS[adapter])
    agent = weft.Agent(adapter("gpt-5", client=client), tools=[add], settings=Settings(stream=stream))
    route.mock(side_effect=[answer])
    with pytest.raises(ModelFailed) as caught:
        await agent.run("What is one more than two?")
    assert caught.value.code == code
    assert isinstance(caught.value.__cause__, ModelError)
    assert caught.value.__cause__.retry_after == wait
    route.mock(side_effect=chat if adapter is OpenAIChat else responses)
    assert (await agent.run("What is one more than two?")).text == "It is 3."


def add_maybe(x: int, y: int = 1) -> str:
    """Add."""
    return str(x + y)


@ADAPTERS
async def test_only_a_tool_whose_schema_can_bear_it_is_strict(
    router: respx.MockRouter, client: AsyncOpenAI, adapter: Adapter
) -> None:
    route = router.post(PATHS[adapter]).mock(side_effect=chat if adapter is OpenAIChat else responses)
    await weft.Agent(adapter("gpt-5", client=client), tools=[add, add_maybe]).run("Hi")
    tools = json.loads(route.calls[0].request.content)["tools"]
    told = [tool["function"] if adapter is OpenAIChat else tool for tool in tools]
    assert [(each["name"], each["strict"]) for each in told] == [("add", True), ("add_maybe", False)]
