"""What is said when a program asks for something that its log does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..journal.errors import UsageError
from . import events as ev
from .commands import Command, shorten
from .differences import Difference
from .errors import RunError

DivergenceKind = Literal["command", "name", "arguments", "request", "output", "ended", "order", "outcome"]
"""
How program and log part: another kind of command (or none) at that path, another tool, step or signal,
other arguments, another request of the same call, another output, a program or run that has ended before,
another order or attempt, an outcome that no longer fits its type.
"""


OnDivergence = Literal["stop", "accept"]
"""What a resume does about a changed request."""


def accepts(on_divergence: OnDivergence) -> bool:
    """Whether changed requests are accepted. Raises `UsageError` for another word."""
    if on_divergence not in ("stop", "accept"):
        raise UsageError(f"on_divergence is 'stop' or 'accept', not {on_divergence!r}")
    return on_divergence == "accept"


class Divergence(RunError):
    """
    The program and its log disagree at one seq; nothing was executed.

    Either the code changed since the run was recorded, or it is not deterministic
    (a clock, randomness or I/O outside `run`).

    Args:
        thread: Thread id.
        seq: Position of the recorded event, or one past the head when the log has ended.
        recorded: What the log holds there.
        asked: What the program asks for.
        shape: True when another command, tool or argument is asked for; False when only a request changed.
        kind: How they part.
        path: Call id of the recorded event, or the id of the run; empty outside of any.
        differences: What differs inside arguments, output or request.
        changed: Parts of the program's definition that changed since, in words.
        body: The recorded event.
        command: What the program asks for at that path, if anything.
    """

    exit_code = 1
    of_lines = True

    def __init__(
        self,
        *,
        thread: str,
        seq: int,
        recorded: str,
        asked: str,
        shape: bool = True,
        kind: DivergenceKind = "command",
        path: str = "",
        differences: Sequence[Difference] = (),
        changed: Sequence[str] = (),
        body: ev.EventBody | None = None,
        command: Command | None = None,
    ) -> None:
        self.thread = thread
        self.seq = seq
        self.recorded = recorded
        self.asked = asked
        self.shape = shape
        self.kind: DivergenceKind = kind
        self.path = path
        self.differences = tuple(differences)
        self.changed = tuple(changed)
        self.body = body
        self.command = command
        super().__init__("\n".join(self._lines()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Crosses processes as what it says; the event and the command stay behind.
        return (_remade, (self.record(),))

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        return {
            "thread": self.thread,
            "seq": self.seq,
            "kind": self.kind,
            "path": self.path,
            "shape": self.shape,
            "recorded": self.recorded,
            "asked": self.asked,
            "differences": [difference.record() for difference in self.differences],
            "changed": list(self.changed),
            "remedy": self.remedy,
        }

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.shape:
            return (
                "Run the version of the code that recorded it, guard the new code with run.patched(...), "
                "or start a new run (supersede=True)"
            )
        return (
            "Run the version of the code that recorded it, or accept the change "
            "(on_divergence='accept', 'refold resume --accept-divergence')"
        )

    def _lines(self) -> list[str]:
        where = f", {self.path}" if self.path else ""
        lines = [
            f"thread {self.thread!r} diverged at seq {self.seq}{where} ({self.kind}):",
            f"  recorded: {self.recorded}",
            f"  asked:    {self.asked}",
        ]
        for difference in self.differences:
            lines += [f"  {line}" for line in difference.lines()]
        if self.changed:
            lines.append(f"  changed in the definition: {'; '.join(self.changed)}")
        lines.append(
            "Nothing was executed. The code changed since this run was recorded, or it is not deterministic. "
            f"{self.remedy}."
        )
        return lines


def _remade(record: dict[str, Any]) -> Divergence:
    given = {name: value for name, value in record.items() if name != "remedy"}
    given["differences"] = [Difference(**each) for each in given["differences"]]
    return Divergence(**given)


def describe_body(body: ev.EventBody) -> str:
    """One line for people: what an event says."""
    kind = ev.kind_of(body)
    call = getattr(body, "call", None)
    where = f" at {call}" if call else ""
    match body:
        case ev.ToolStarted() | ev.ApprovalRequested():
            return f"{kind} {body.tool}({shorten(bytes(body.args).decode())}){where}"
        case ev.StepRecorded() | ev.StepFailed():
            return f"{kind} {body.name}({shorten(bytes(body.args).decode())}){where}"
        case ev.RunFinished():
            return f"{kind} with {shorten(bytes(body.output).decode())}"
        case ev.RunStarted():
            return f"{kind} of program {body.program!r}"
        case ev.Patched():
            return f"{kind}({body.id!r})"
        case _:
            return f"{kind}{where}"
