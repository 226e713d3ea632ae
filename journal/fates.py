"""What the answer to an append means for whoever holds the thread."""

from __future__ import annotations

from .errors import Corrupt, LeaseLost, LogRewound, RefoldError, ThreadNotFound
from .store import Append, AppendResult, Outcome


def failure_of(append: Append, result: AppendResult) -> RefoldError | None:
    """Why the holder that made *append* can write no more after that answer; None if the append is in the log."""
    if result.outcome in (Outcome.APPENDED, Outcome.DUPLICATE):
        return None
    # Heads never go down: whatever else is wrong, a shorter log has lost what it acknowledged.
    if result.head < append.expected:
        return LogRewound(append.thread, expected=append.expected, found=result.head)
    if result.outcome is Outcome.FENCED:
        return LeaseLost(append.thread, fence=append.fence)
    if result.outcome is Outcome.MISSING:
        return ThreadNotFound(append.thread)
    if result.head > append.expected:
        return RefoldError(
            f"thread {append.thread!r}: head {result.head} was found where this holder (fence {append.fence}) "
            f"expected {append.expected}, so something wrote under its lease; "
            "stop the worker and check the log with 'refold verify'"
        )
    if append.consumed:
        return RefoldError(
            f"thread {append.thread!r}: of the inbox messages {list(append.consumed)} one was already taken "
            f"or the hash of seq {append.expected} is another; nothing was written, read the inbox again"
        )
    return Corrupt(append.thread, append.expected, "its hash is not the one this holder had acknowledged")
