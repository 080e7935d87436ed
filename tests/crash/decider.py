"""Another process that decides: `python -m tests.crash.decider FILE REQUEST…` approves them, without an agent."""

from __future__ import annotations

import asyncio
import sys

from weft.thread import approve, open_store


async def main(file: str, requests: list[str]) -> None:
    async with open_store(f"sqlite:///{file}") as store:
        await store.decide(*(approve(request, by="the other process") for request in requests))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
