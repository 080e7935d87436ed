"""The clients of the running loops."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, Self

import anthropic
import openai
import pytest

from tests.models.served import KEY, asked
from weft.errors import WrongCall
from weft.model import ModelError
from weft.models._client import Clients
from weft.models.anthropic import AnthropicMessages
from weft.models.openai import OpenAIChat
from weft.models.openai_responses import OpenAIResponses
from weft.models.resolve import resolve


class Client:
    """Is entered, and left with its loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


async def test_a_closed_loop_may_be_forgotten_by_two_threads_at_once() -> None:
    clients: Clients[Client] = Clients(Client, None, variable="KEY")

    class Gone:
        """A loop that is closed."""

        def is_closed(self) -> bool:
            owned.pop(self, None)  # as another thread does that looks at the same moment
            return True

    owned: dict[Any, Any] = clients._owned
    owned[Gone()] = None
    assert isinstance(await clients.here(), Client)
    assert list(owned) == [asyncio.get_running_loop()]


NOT_SET_UP = "check the base URL, and the proxies and certificates that are set"


@pytest.mark.parametrize("name", ["openai:gpt-5", "openai-responses:gpt-5", "anthropic:claude-opus-5"])
async def test_an_address_of_which_no_client_can_be_made_is_a_typed_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = "ANTHROPIC" if name.startswith("anthropic") else "OPENAI"
    monkeypatch.setenv(f"{vendor}_API_KEY", KEY)
    monkeypatch.setenv(f"{vendor}_BASE_URL", f"http://user:{KEY}@[::1")
    model = resolve(name)
    for _ in range(2):
        with pytest.raises(ModelError) as caught:
            await anext(model.stream(asked()))
        assert caught.value.code == "MODEL_REQUEST"
        assert str(caught.value) == f"no client could be made (InvalidURL): {NOT_SET_UP}"
        assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [ValueError(f"foo://user:{KEY}@proxy.test"), FileNotFoundError(2, "no certificates")])
async def test_proxies_and_certificates_of_which_no_client_can_be_made_are_a_typed_error(error: Exception) -> None:
    def make() -> Client:
        raise error

    clients: Clients[Client] = Clients(make, None, variable="KEY")
    with pytest.raises(ModelError) as caught:
        await clients.here()
    assert str(caught.value) == f"no client could be made ({type(error).__name__}): {NOT_SET_UP}"
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is (error if isinstance(error, OSError) else None)


SYNCHRONOUS = [
    openai.OpenAI(api_key="sk-a"),
    anthropic.Anthropic(api_key="sk-a"),
    "http://model.test/v1",
    openai.AsyncOpenAI,
]


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, AnthropicMessages])
@pytest.mark.parametrize(
    "client", SYNCHRONOUS, ids=lambda client: str(getattr(client, "__name__", type(client).__name__))
)
def test_a_client_that_is_not_asynchronous_is_refused_where_it_is_given(
    adapter: Callable[..., Any], client: Any
) -> None:
    with pytest.raises(WrongCall, match=r"client=… is an asynchronous client of the vendor's, such as Async"):
        adapter("a-model", client=client)
