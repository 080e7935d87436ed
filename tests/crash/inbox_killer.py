"""Runs a scenario of `test_crash_inbox` or `test_crash_points` on SQLite, and kills its own process at one moment.

    python -m tests.crash.inbox_killer steers FILE

The moments are those of `killer`, and `body` before and after each body. `WEFT_DEMO_KILL` names one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.crash import test_crash_inbox, test_crash_points
from tests.crash.killer import KillingStore, Moments, die
from weft import Agent
from weft._tool import Tool
from weft.thread import OpenStore, open_store


class KillKit:
    """What a scenario needs of a kit: a store, and bodies that are watched."""

    def __init__(self, file: Path, moments: Moments) -> None:
        self._file = file
        self._moments = moments

    def open(self) -> OpenStore:
        store = KillingStore(self._file, self._moments)
        opened = open_store(store, grace=0)
        opened.observe(store.committed)
        return opened

    def watch(self, agent: Agent[Any, Any]) -> Agent[Any, Any]:
        return agent.replace(tools=[self._watched(tool) for tool in agent.tools])

    def _watched(self, tool: Tool[Any]) -> Tool[Any]:
        if tool._delegate is not None:
            return tool

        async def body(**arguments: Any) -> object:
            if self._moments.next("body"):
                die()
            value = await tool.function(**arguments)
            if self._moments.next("body"):
                die()
            return value

        return replace(tool, function=body)


def main(scenario: str, file: str, fatal: str | None) -> None:
    test_crash_inbox.Work.pause = 0.002
    kit: Any = KillKit(Path(file), Moments(fatal))
    module = test_crash_inbox if hasattr(test_crash_inbox, scenario) else test_crash_points
    asyncio.run(getattr(module, scenario)(kit))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], os.environ.get("WEFT_DEMO_KILL"))
