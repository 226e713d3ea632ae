"""What is said when a program asks for something that its log does not have."""

from __future__ import annotations

from .errors import RunError


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
    """

    exit_code = 1

    def __init__(self, *, thread: str, seq: int, recorded: str, asked: str, shape: bool = True) -> None:
        if shape:
            remedy = (
                "Run the version of the code that recorded it, guard the new code with run.patched(...), "
                "or start a new run (supersede=True)"
            )
        else:
            remedy = "Run the version of the code that recorded it, or accept the change with on_divergence='accept'"
        super().__init__(
            f"thread {thread!r} diverged at seq {seq}:\n"
            f"  recorded: {recorded}\n"
            f"  asked:    {asked}\n"
            f"Nothing was executed. The code changed since this run was recorded, or it is not deterministic. {remedy}."
        )
        self.thread = thread
        self.seq = seq
        self.recorded = recorded
        self.asked = asked
        self.shape = shape
