"""What a program can ask for, and the record of one such call while it is pending."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

from msgspec import Struct

from .branch import Branch
from .ports import ToolSpec, Usage
from .requests import Request


class ModelCall(Struct, frozen=True, tag_field="command", tag="model"):
    """
    Ask a model.

    Args:
        request: What is asked.
        in_doubt: What becomes of a call that may act, when it is in doubt. None for one that is just asked again.
        again: Whether it may be asked again, by what the attempt used that failed; None leaves it to the policy.
    """

    request: Request
    in_doubt: Literal["park", "retry"] | None = None
    again: Callable[[Usage], bool] | None = None


class ToolCall(Struct, frozen=True, tag_field="command", tag="tool"):
    """
    Call a tool.

    Args:
        tool: Which.
        args: Canonical bytes of the named arguments.
        raw: Reply with the outcome as it is recorded: the result's bytes, or the `ToolError`, which is not raised.
        refused: Why the call cannot even begin (arguments that do not fit); it is recorded as failed.
    """

    tool: ToolSpec
    args: bytes
    raw: bool = False
    refused: str | None = None


class StepCall(Struct, frozen=True, tag_field="command", tag="step"):
    """Do repeatable outside work and record what came of it."""

    name: str
    args: bytes
    function: Callable[..., Any]
    read_only: bool = False


class Sleep(Struct, frozen=True, tag_field="command", tag="sleep"):
    """Let time pass."""

    duration_us: int


class WaitFor(Struct, frozen=True, tag_field="command", tag="wait"):
    """Wait for a signal from outside."""

    name: str
    timeout_us: int | None = None


Command = ModelCall | ToolCall | StepCall | Sleep | WaitFor


class Phase(Enum):
    """Where a pending call stands, by the log alone."""

    ASKED = "asked"
    """Nothing recorded yet: begin it."""
    HELD = "held"
    """A tool call that must be approved, and whose request for approval is not recorded yet."""
    ASKING = "waits for approval"
    STARTED = "started"
    """A recorded start of this tenure."""
    BACKOFF = "between attempts"
    DOUBT = "in doubt"
    REFUSED = "refused"
    """A tool call that cannot begin: its failure is to be recorded."""
    WAITING = "waiting"
    """A timer or a wait that is recorded."""


class Call(Struct, eq=False):
    """One command that has been asked and not yet answered."""

    path: str
    id: str
    command: Command
    branch: Branch
    phase: Phase = Phase.ASKED
    attempt: int = 0
    """Attempts whose start or failure is recorded."""
    failures: int = 0
    """Attempts that failed and were to be followed by another; what a crash took is none of them."""
    key: str | None = None
    due: int | None = None
    retry_at: int | None = None
    asked_us: int = 0
    """When the start of the attempt under way was made, by the host's clock: before it was recorded."""

    def describe(self) -> str:
        """One line for people: what is asked."""
        return describe(self.command)

    def __repr__(self) -> str:
        return f"Call({self.id}: {self.describe()}, {self.phase.value}, attempt {self.attempt})"


def describe(command: Command) -> str:
    """One line for people."""
    match command:
        case ModelCall():
            return f"model({command.request.params.values.get('model')!s}, {command.request.size} messages)"
        case ToolCall():
            return f"tool {command.tool.name}({shorten(command.args.decode())})"
        case StepCall():
            return f"step {command.name}({shorten(command.args.decode())})"
        case Sleep():
            return f"sleep({command.duration_us / 1e6:g} s)"
        case WaitFor():
            return f"wait_for({command.name!r})"


def shorten(text: str, limit: int = 200) -> str:
    """*text*, cut in the middle when it is long."""
    if len(text) <= limit:
        return text
    half = limit // 2 - 10
    return f"{text[:half]} ...{len(text) - 2 * half} characters... {text[-half:]}"
