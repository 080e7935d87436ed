"""Count tokens: exactly once an encoding is loaded, by an estimate before that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from weft._contain import Contained, contain_call
from weft._threads import ThreadsExhausted, in_thread
from weft.messages import File, Message, Part, Reasoning, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from tiktoken import Encoding

__all__ = ["FILE_TOKENS", "TokenCounter"]

FILE_TOKENS = 1_500
"""What a file counts, whatever is in it: about what a large image costs. A long document costs more."""
_FRAME = 4
"""What a message, a call and a result count beside their texts."""
_LONGEST = 65_536
"""Characters of one text that are encoded. Bounds the time; a regular expression of tiktoken's fails on much more."""

_log = logging.getLogger("weft")


class TokenCounter:
    """Counts tokens as one of tiktoken's encodings has them.

    `count` never waits and never fails. Until the encoding is loaded it estimates: the bytes of the text's UTF-8
    divided by 4, rounded up. The first estimate, and a first load that fails, each leave a warning in the log `weft`.

    tiktoken comes with the extra `tokens`. It fetches an encoding over the network at first use, and keeps it on disk
    (see `TIKTOKEN_CACHE_DIR`). So loading is asked for, and happens on a daemon thread, which no exit waits for. Other
    vendors' models have other encodings; for them any count is an estimate.

    Args:
        encoding: tiktoken's name for it; None only ever estimates, and warns of nothing.
    """

    __slots__ = ("_encoding", "_loading", "_name", "_said", "_saying")

    def __init__(self, encoding: str | None = "o200k_base") -> None:
        self._name = encoding
        self._encoding: Encoding | None = None
        self._loading = threading.Lock()
        self._said: set[str] = set()
        self._saying = threading.Lock()

    def __repr__(self) -> str:
        return f"TokenCounter({self._name!r})"

    @property
    def exact(self) -> bool:
        """Whether the encoding is loaded."""
        return self._encoding is not None

    async def load(self) -> bool:
        """Load the encoding, if it is not; say whether it is loaded now. After a failure this may be tried again.

        Cancelling the wait does not end the loading.
        """
        if self._encoding is None:
            with suppress(ThreadsExhausted):  # the estimate stays
                await in_thread(self._load)
        return self.exact

    def load_in_background(self) -> None:
        """Begin to load the encoding, and do not wait; needs no event loop."""
        if self._encoding is None:
            threading.Thread(target=self._load, name="weft-tokens", daemon=True).start()

    def count(self, text: str) -> int:
        """The tokens of a text. What looks like a special token counts as the text that it is.

        Of a text longer than 65,536 characters the beginning is counted, and the rest in proportion.
        """
        encoding = self._encoding
        if encoding is None:
            if self._name is not None:
                self._say("estimate", f"tokens are estimated (bytes / 4): the encoding {self._name!r} is not loaded")
            return -(-_bytes(text) // 4)
        beginning = text[:_LONGEST]
        tokens = len(encoding.encode_ordinary(beginning))
        return tokens if beginning == text else -(-tokens * _bytes(text) // _bytes(beginning))

    def count_message(self, message: Message) -> int:
        """The tokens of a message, about: those of its texts, calls and results, and some around them.

        Of reasoning its text counts, or the provider's block where there is no text. Each file counts `FILE_TOKENS`.
        """
        return _FRAME + sum(map(self._count_part, message.parts))

    def estimate(self, messages: Iterable[Message]) -> int:
        """The tokens of a transcript, about. Instructions and tool definitions are not in it; they can be counted."""
        return sum(map(self.count_message, messages))

    def _count_part(self, part: Part) -> int:
        match part:
            case Text():
                return self.count(part.text)
            case ToolCall():
                return _FRAME + self.count(part.name) + self.count(part.arguments)
            case ToolResult():
                return _FRAME + self.count(part.content)
            case Reasoning():
                return self.count(part.text or part.block or "")
            case File():
                return FILE_TOKENS

    def _load(self) -> None:
        with self._loading:
            if self._encoding is not None or self._name is None:
                return
            found = contain_call("tokens", partial(_encoding, self._name))
            if not isinstance(found, Contained):
                self._encoding = found
                return
        why = type(found.cause).__name__  # its text may name a proxy, with a password
        advice = "; pip install 'weft-agents[tokens]'" if isinstance(found.cause, ImportError) else ""
        self._say("failure", f"the encoding {self._name!r} could not be loaded ({why}){advice}")

    def _say(self, what: str, text: str) -> None:
        """Log it, the first time."""
        with self._saying:
            if what in self._said:
                return
            self._said.add(what)
        _log.warning(text)


def _encoding(name: str) -> Encoding:
    import tiktoken  # noqa: PLC0415  # optional, and slow to import

    return tiktoken.get_encoding(name)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
