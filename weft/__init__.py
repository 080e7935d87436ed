"""Agents that delegate, and that pick up where they stopped."""

from weft._agent import Agent, RunStream
from weft._compaction import Compaction
from weft._limits import Limits
from weft._ports import Clock, Ids
from weft._result import Pending, Result
from weft._setup import StepInfo
from weft._tool import CallInfo, Context, Retry, Tool, ToolError, tool
from weft.errors import (
    Busy,
    Changed,
    Closed,
    Conflict,
    EndedOtherwise,
    LimitReached,
    ModelFailed,
    NoOutput,
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
    "Compaction",
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
    "NoOutput",
    "Pending",
    "Reasoning",
    "Result",
    "Retry",
    "RunFailed",
    "RunStream",
    "Settings",
    "StepInfo",
    "Text",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Usage",
    "WeftError",
    "tool",
]

__version__ = "0.1.0"
"""The distribution's, `weft-agents`."""
