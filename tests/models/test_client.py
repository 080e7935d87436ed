"""The clients of the running loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import anthropic
import openai
import pytest

from weft.errors import WrongCall
from weft.models._client import Clients
from weft.models.anthropic import AnthropicMessages
from weft.models.openai import OpenAIChat
from weft.models.openai_responses import OpenAIResponses


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
