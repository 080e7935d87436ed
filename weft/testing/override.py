"""Run an application's own agents on scripts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from weft._agent import overriding
from weft.model import Model

__all__ = ["override"]


def override(models: Mapping[str, Model]) -> AbstractContextManager[None]:
    """Within it, every agent of these names uses these models, also inside wraps.

    Example:
        ```python
        with override({"desk": Script(say("hello"))}):
            result = await desk.run("hi")
        ```
    """
    return overriding(models)
