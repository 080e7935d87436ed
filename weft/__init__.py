"""Agents that delegate, and that pick up where they stopped."""

from weft._agent import Agent, RunStream
from weft._machine import Limits
from weft._ports import Clock, Ids
from weft._result import Pending, Result
from weft._tool import CallInfo, Context, Retry, Tool, ToolError, tool
from weft.errors import (
    Busy,
    Changed,
    Closed,
    Conflict,
    EndedOtherwise,
    LimitReached,
    ModelFailed,
    RunFailed,
    WeftError,
)
from weft.messages import File, Message, Reasoning, Text, ToolCall, ToolResult, Usage
from weft.model import Model, ModelError, ModelInfo, ModelRequest, Settings

__all__ = [
    "Agent",
    "Busy",
    "CallInfo",
    "Changed",
    "Clock",
    "Closed",
    "Conflict",
    "Context",
    "EndedOtherwise",
    "File",
    "Ids",
    "LimitReached",
    "Limits",
    "Message",
    "Model",
    "ModelError",
    "ModelFailed",
    "ModelInfo",
    "ModelRequest",
    "Pending",
    "Reasoning",
    "Result",
    "Retry",
    "RunFailed",
    "RunStream",
    "Settings",
    "Text",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Usage",
    "WeftError",
    "tool",
]
