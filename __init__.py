"""
refold: an event-sourced run journal for AI agents, with deterministic replay.

The names here are the public face. They are loaded when they are first used,
so that `import refold` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent.agent import Agent as Agent
    from .agent.context import ToolContext as ToolContext
    from .agent.errors import ToolDefinitionError as ToolDefinitionError
    from .agent.mcp_server import McpServer as McpServer
    from .agent.programs import resume as resume
    from .agent.programs import resume_sync as resume_sync
    from .agent.programs import run as run
    from .agent.programs import run_sync as run_sync
    from .agent.pytest_plugin import refold_replay as refold_replay
    from .agent.scripted import ScriptedModel as ScriptedModel
    from .agent.streaming import ApprovalRequested as ApprovalRequested
    from .agent.streaming import CallDelta as CallDelta
    from .agent.streaming import ModelFailed as ModelFailed
    from .agent.streaming import ModelResponded as ModelResponded
    from .agent.streaming import Provisional as Provisional
    from .agent.streaming import RunEnded as RunEnded
    from .agent.streaming import StreamEvent as StreamEvent
    from .agent.streaming import TextDelta as TextDelta
    from .agent.streaming import ThoughtDelta as ThoughtDelta
    from .agent.streaming import ToolFailed as ToolFailed
    from .agent.streaming import ToolInDoubt as ToolInDoubt
    from .agent.streaming import ToolReturned as ToolReturned
    from .agent.streaming import ToolStarted as ToolStarted
    from .agent.tools import Tool as Tool
    from .agent.tools import tool as tool
    from .journal.errors import Corrupt as Corrupt
    from .journal.errors import LeaseLost as LeaseLost
    from .journal.errors import LimitExceeded as LimitExceeded
    from .journal.errors import LogRewound as LogRewound
    from .journal.errors import MissingExtra as MissingExtra
    from .journal.errors import RefoldError as RefoldError
    from .journal.errors import StoreError as StoreError
    from .journal.errors import StoreRefused as StoreRefused
    from .journal.errors import StoreUnavailable as StoreUnavailable
    from .journal.errors import ThreadBusy as ThreadBusy
    from .journal.errors import ThreadNotFound as ThreadNotFound
    from .journal.errors import ThreadsDiffer as ThreadsDiffer
    from .journal.errors import ThreadSealed as ThreadSealed
    from .journal.errors import UnsupportedValue as UnsupportedValue
    from .journal.errors import UsageError as UsageError
    from .journal.journal import Journal as Journal
    from .replay import answers as answers
    from .replay import fuzz as fuzz
    from .replay.divergence import Divergence as Divergence
    from .replay.errors import ForeignAwait as ForeignAwait
    from .replay.errors import ModelError as ModelError
    from .replay.errors import NotPending as NotPending
    from .replay.errors import RunFailed as RunFailed
    from .replay.errors import RunUnfinished as RunUnfinished
    from .replay.errors import StepError as StepError
    from .replay.errors import ToolError as ToolError
    from .replay.errors import UnknownEvent as UnknownEvent
    from .replay.outcomes import DidNotHappen as DidNotHappen
    from .replay.outcomes import Happened as Happened
    from .replay.outcomes import Unknown as Unknown
    from .replay.ports import ModelClient as ModelClient
    from .replay.ports import ModelReply as ModelReply
    from .replay.ports import Usage as Usage
    from .replay.program import Program as Program
    from .replay.program import program as program
    from .replay.requests import Messages as Messages
    from .replay.run import Run as Run
    from .replay.runner import RunResult as RunResult
    from .replay.stats import StatsReport as StatsReport
    from .replay.stats import read_stats as read_stats

__version__ = "0.1.0"

_HOMES = {
    "agent.agent": ("Agent",),
    "agent.context": ("ToolContext",),
    "agent.errors": ("ToolDefinitionError",),
    "agent.mcp_server": ("McpServer",),
    "agent.programs": ("resume", "resume_sync", "run", "run_sync"),
    "agent.pytest_plugin": ("refold_replay",),
    "agent.scripted": ("ScriptedModel",),
    "agent.streaming": (
        "ApprovalRequested",
        "CallDelta",
        "ModelFailed",
        "ModelResponded",
        "Provisional",
        "RunEnded",
        "StreamEvent",
        "TextDelta",
        "ThoughtDelta",
        "ToolFailed",
        "ToolInDoubt",
        "ToolReturned",
        "ToolStarted",
    ),
    "agent.tools": ("Tool", "tool"),
    "journal.errors": (
        "Corrupt",
        "LeaseLost",
        "LimitExceeded",
        "LogRewound",
        "MissingExtra",
        "RefoldError",
        "StoreError",
        "StoreRefused",
        "StoreUnavailable",
        "ThreadBusy",
        "ThreadNotFound",
        "ThreadSealed",
        "ThreadsDiffer",
        "UnsupportedValue",
        "UsageError",
    ),
    "journal.journal": ("Journal",),
    "replay.divergence": ("Divergence",),
    "replay.errors": (
        "ForeignAwait",
        "ModelError",
        "NotPending",
        "RunFailed",
        "RunUnfinished",
        "StepError",
        "ToolError",
        "UnknownEvent",
    ),
    "replay.outcomes": ("DidNotHappen", "Happened", "Unknown"),
    "replay.ports": ("ModelClient", "ModelReply", "Usage"),
    "replay.program": ("Program", "program"),
    "replay.requests": ("Messages",),
    "replay.run": ("Run",),
    "replay.runner": ("RunResult",),
    "replay.stats": ("StatsReport", "read_stats"),
}
_ROOMS = {"answers": "replay.answers", "fuzz": "replay.fuzz"}
"""Modules that are part of the public face as they are."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, *_ROOMS, "__version__"]  # noqa: PLE0604 - the names are the keys


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{_ROOMS[name]}", __name__)
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
