"""What every adapter needs around its SDK's client: one for each running loop, and none where requests are refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Generic, TypeVar

import httpx2

from weft.errors import WrongCall
from weft.model import ModelError
from weft.models._errors import Asked, connection_failed, not_made, not_set_up, shown, timed_out, unreadable

__all__ = ["Clients", "check_allowed", "other_errors"]

C = TypeVar("C")


def check_allowed() -> None:
    """Refuse before any use of the network.

    Raises:
        ModelError: `WEFT_MODEL_REQUESTS` is `deny`.
    """
    if os.environ.get("WEFT_MODEL_REQUESTS") == "deny":
        text = "model requests are refused here: WEFT_MODEL_REQUESTS=deny; in a test, override the agent with a Script"
        raise ModelError(text, code="MODEL_DENIED")


@contextmanager
def other_errors(asked: Asked) -> Iterator[None]:
    """Turn into errors that are safe to store what an SDK lets through without making it an error of its own."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise timed_out(asked) from error
    except httpx2.TransportError as error:
        raise connection_failed(asked, error) from shown(error)
    except (TypeError, UnicodeEncodeError) as error:  # a key that no header can hold; what has no JSON
        raise not_made(error, asked) from error
    except (httpx2.DecodingError, RecursionError, ValueError) as error:  # also JSON too deep, or too long a number
        raise unreadable() from error


class Clients(Generic[C]):
    """One client for each running loop, made at its first call and closed with its loop.

    Args:
        make: Makes a client, which is entered; what it reads of the environment, it reads then.
        given: A client that is used as it is, and never closed.
        variable: The environment variable that holds the key.

    Attributes:
        key: Where the key comes from, in words.

    Raises:
        WrongCall: What is given is no asynchronous client.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[C]], given: C | None, *, variable: str) -> None:
        if given is not None and (isinstance(given, type) or not hasattr(given, "__aenter__")):
            kind = given.__name__ if isinstance(given, type) else type(given).__name__
            raise WrongCall(f"client=… is an asynchronous client of the vendor's, such as AsyncOpenAI(…); not {kind}")
        self._make = make
        self._given = given
        self.key = variable if given is None else "the key of the client"
        self._owned: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[C]]] = {}

    def asked(self, netloc: bytes, model: str) -> Asked:
        """Who is asked for this model, for the words of an error; an address that names no host says so."""
        return Asked(netloc.decode("ascii") or "the server, whose URL names no host,", self.key, model)

    async def here(self) -> C:
        """The client of the running loop. Raises whatever making one raises.

        Raises:
            ModelError: No client can be made of what the environment says.
        """
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._owned:
            for other in list(self._owned):
                if other.is_closed():
                    self._owned.pop(other, None)  # another thread may do so as well
            owner = _owner(self._make)
            try:
                self._owned[loop] = (await anext(owner), owner)
            except OSError as error:
                raise not_set_up(error) from error
            except (httpx2.InvalidURL, ValueError) as error:  # they quote an address, which may hold a password
                raise not_set_up(error) from None
        return self._owned[loop][0]


async def _owner(make: Callable[[], AbstractAsyncContextManager[C]]) -> AsyncGenerator[C]:
    """Holds a client until its loop shuts down: a loop closes the async generators that are still suspended."""
    async with make() as client:
        yield client
