"""
Every error refold raises, one tree.

```
RefoldError
├── UsageError                 wrong use, found before any effect            (exit 2)
│   ├── MissingExtra           a part whose optional dependency is missing
│   ├── LimitExceeded          an id, event or batch over its documented limit
│   └── UnsupportedValue       a value the codec refuses, with its path
├── ThreadNotFound             no such thread                                (exit 2)
├── ThreadBusy                 a live worker holds the thread
├── ThreadSealed               an imported thread that nobody has adopted     (exit 2)
├── ThreadsDiffer              an import that is no continuation of the thread
├── LeaseLost                  another worker owns the thread now; stop
├── TransactionSpoilt          a transactional tool left it in no state to be committed; rolled back
├── TransactionEnded           a transactional tool ended it itself; what it did may be committed
├── StoreError                                                               (exit 3)
│   ├── StoreUnavailable       unreachable, or the answer was lost and the retries too
│   ├── StoreRefused           reachable but unfit: too old, unsafe, rights or schema missing
│   └── LogRewound             the server's log is shorter than what was acknowledged
├── Corrupt                    a gap, a wrong hash or an undecodable body    (exit 1)
└── RunError                   (refold.replay.errors)
    ├── Divergence             the program asked for something the log does not say
    ├── ForeignAwait           the program awaited something that is not its Run
    ├── UnknownEvent           an event of an unknown kind or a newer version
    ├── RunUnfinished          the thread holds an unfinished run with another input
    ├── RunFailed              the program ended with an error
    └── NotPending             an answer or resolution for a call that is not waiting for it
```

`ToolError` and `ModelError` (refold.replay.errors) are what a *program* catches; they describe outcomes.
Each message says what happened, to which thread and seq, what was expected and found, and what to do.
"""

from __future__ import annotations


class RefoldError(Exception):
    """
    Base of every error refold raises; `exit_code` is what the CLI answers with.

    With `of_lines` its text is several lines of its own making, to be shown as they are.
    """

    exit_code = 1
    of_lines = False


class UsageError(RefoldError):
    """refold was used wrongly; found before anything was written or called."""

    exit_code = 2


class MissingExtra(UsageError, ImportError):
    """A part of refold was used whose optional dependency is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'refold[{extra}]'")
        self.extra = extra


class LimitExceeded(UsageError, ValueError):
    """A thread id, key, event or batch is over its documented limit; nothing was written."""


class UnsupportedValue(UsageError, TypeError):
    """A value cannot be recorded; the message names the type and the path to it."""


class ThreadNotFound(RefoldError, LookupError):
    """No thread of that id exists in this journal."""

    exit_code = 2

    def __init__(self, thread: str) -> None:
        super().__init__(f"no thread {thread!r} in this journal; 'refold threads' lists them")
        self.thread = thread


class ThreadBusy(RefoldError):
    """A live worker holds the thread's lease; nothing was called and nothing was written."""

    def __init__(self, thread: str, *, remaining_s: float) -> None:
        super().__init__(
            f"thread {thread!r} is held by a live worker (its lease runs for another {remaining_s:.1f} s); "
            "wait for it, send to it ('refold send'), or take a hung thread with 'refold resume --steal'"
        )
        self.thread = thread
        self.remaining_s = remaining_s


class ThreadSealed(RefoldError):
    """An imported thread that nobody has adopted: it may still go on where it came from."""

    exit_code = 2

    def __init__(self, thread: str) -> None:
        super().__init__(
            f"thread {thread!r} was imported and is sealed: it can be shown, replayed and forked. To resume it here, "
            "make sure that it does not go on where it came from, then adopt it ('refold import FILE --adopt')"
        )
        self.thread = thread


class ThreadsDiffer(RefoldError):
    """A thread that is to be imported is not the one that is here under its name; nothing was written."""

    def __init__(self, thread: str, seq: int, why: str) -> None:
        super().__init__(f"thread {thread!r} was not imported, seq {seq}: {why}")
        self.thread = thread
        self.seq = seq


class LeaseLost(RefoldError):
    """Another worker owns the thread now; this one stopped without writing."""

    def __init__(self, thread: str, *, fence: int) -> None:
        super().__init__(
            f"thread {thread!r} was taken over: fence {fence} is no longer current; this worker has stopped. "
            "The new holder goes on from the log; nothing needs to be done here"
        )
        self.thread = thread
        self.fence = fence


class TransactionSpoilt(RefoldError):
    """A transactional tool left its transaction in a state in which nothing can be committed; it was rolled back."""


class TransactionEnded(RefoldError):
    """A transactional tool ended the transaction that it was given; what it did may or may not be committed."""

    def __init__(self) -> None:
        super().__init__(
            "the tool ended the transaction that was to record its outcome (it sent COMMIT or ROLLBACK), so what it "
            "wrote may be committed; use 'with context.connection.transaction():' for a part that may be undone"
        )


class StoreError(RefoldError):
    """The store cannot be used now, or must not be."""

    exit_code = 3


class StoreUnavailable(StoreError):
    """
    The server cannot be reached, or an answer was lost and the retries were too.

    Args:
        message: What happened and what to do.
        ambiguous: Whether the call may have been performed all the same; sending it again tells.
        contended: Whether only this thread's row was in the way, and the server is well.
    """

    def __init__(self, message: str, *, ambiguous: bool = False, contended: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        self.contended = contended


class StoreRefused(StoreError):
    """The server answers but is unfit: too old, unsafe settings, missing rights or schema."""


class LogRewound(StoreError):
    """The server's log is shorter than what it had acknowledged, as after a failover that lost commits."""

    def __init__(self, thread: str, *, expected: int, found: int) -> None:
        super().__init__(
            f"thread {thread!r} was rewound: seq {expected} had been acknowledged, the server's head is {found}. "
            "The server has lost committed events (a failover or a restored backup?); "
            "stop the workers and compare with the old primary or an export before resuming"
        )
        self.thread = thread
        self.expected = expected
        self.found = found


class Corrupt(RefoldError):
    """The log contradicts itself at one thread and seq."""

    def __init__(self, thread: str, seq: int, why: str) -> None:
        super().__init__(f"thread {thread!r} is corrupt at seq {seq}: {why}")
        self.thread = thread
        self.seq = seq
