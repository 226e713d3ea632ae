"""Errors of the engine, and the outcomes a program can catch. The whole tree is drawn in `journal.errors`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..journal.errors import RefoldError, UsageError

if TYPE_CHECKING:
    from .ports import Usage

Effect = Literal["none", "unknown", "done"]
"""What is known about the outside effect of a failed call: nothing happened, it may have, it did."""

ModelErrorKind = Literal[
    "rate_limit",
    "overloaded",
    "context_too_long",
    "refused",
    "bad_request",
    "auth",
    "timeout",
    "connection",
    "malformed",
    "other",
]

RETRYABLE: frozenset[str] = frozenset({"rate_limit", "overloaded", "timeout", "connection", "malformed"})
"""Kinds of model failure that asking again can mend."""


class RunError(RefoldError):
    """Something about a run, its program or its log."""


class ForeignAwait(RunError):
    """The program awaited something that is not a command of its Run; the run is left as it was."""


class UnknownEvent(RunError):
    """The log holds an event this version cannot apply; it can be shown, not resumed."""

    def __init__(self, thread: str, seq: int, kind: str, version: int, known: int | None) -> None:
        why = (
            f"kind {kind!r} is unknown to this version of refold"
            if known is None
            else f"kind {kind!r} has version {version}, this refold knows versions up to {known}"
        )
        super().__init__(
            f"thread {thread!r} cannot be resumed: seq {seq}: {why}. "
            "Upgrade refold (the event was written by a newer one); 'refold show' still lists the thread"
        )
        self.thread = thread
        self.seq = seq
        self.kind = kind
        self.version = version


class RunUnfinished(RunError):
    """The thread holds an unfinished run with another input or key; nothing was written."""


class RunFailed(RunError):
    """The run ended with an error, recorded in its log; `error_type` names the original class."""

    def __init__(self, message: str, *, error_type: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type


class NotPending(RunError):
    """An answer or a resolution names a call that is not waiting for it; nothing was written."""

    exit_code = 2


class OutcomeError(Exception):
    """Base of what a program catches around a command: the command was performed and failed."""

    error_type: str


class ToolError(OutcomeError):
    """
    A tool failed. Raised *by* a tool it asserts that nothing happened outside (effect none).

    A program sees one for every failed call, live and on replay alike.

    Args:
        message: What went wrong; the model reads it. Of an exception, its text.
        error_type: Name of the original exception's class, for code that must tell kinds apart.
        effect: What is known of the outside effect.

    Raises:
        UsageError: There is no such effect.
    """

    def __init__(self, message: Any = "", *, error_type: str = "ToolError", effect: Effect = "none") -> None:
        super().__init__(message)
        if effect not in get_args(Effect):
            raise UsageError(f"the effect of a failed call is 'none', 'unknown' or 'done', not {effect!r}")
        self.message = str(message)
        self.error_type = str(error_type)
        self.effect: Effect = effect


class StepError(OutcomeError):
    """A step failed; `error_type` names the original exception's class."""

    def __init__(self, message: str = "", *, error_type: str = "StepError") -> None:
        super().__init__(message)
        self.message = message
        self.error_type = error_type


class ModelError(OutcomeError):
    """
    A model call failed for good.

    Args:
        message: What the provider or the client said. Of an exception, its text.
        kind: Class of failure, of our own small set.
        error_type: Name of the original exception's class.
        status: HTTP status, where there was one.
        retry_after_s: What the provider asked for, seconds; what is no time is not kept to.
        usage: What the answer used that came and could not be used, as far as the provider said; None if none came.

    Raises:
        UsageError: There is no such kind, or a number is none.
    """

    def __init__(
        self,
        message: Any = "",
        *,
        kind: ModelErrorKind = "other",
        error_type: str = "ModelError",
        status: int | None = None,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        # Here, so that the command line shows help and errors without loading msgspec.
        from .ports import is_usage

        super().__init__(message)
        if kind not in get_args(ModelErrorKind):
            raise UsageError(f"the kind of a ModelError is one of {get_args(ModelErrorKind)}, not {kind!r}")
        if not isinstance(status, int | None):
            raise UsageError(f"the status of a ModelError is a number or None, not {status!r}")
        if not isinstance(retry_after_s, int | float | None):
            raise UsageError(f"retry_after_s is a number of seconds or None, not {retry_after_s!r}")
        if not (usage is None or is_usage(usage)):
            raise UsageError(f"usage is a Usage of whole numbers or None, not {usage!r}")
        self.message = str(message)
        self.kind: ModelErrorKind = kind
        self.error_type = str(error_type)
        self.status = status
        known = retry_after_s is not None and 0 <= retry_after_s < math.inf
        self.retry_after_s = retry_after_s if known else None
        self.usage = usage

    @property
    def retryable(self) -> bool:
        """Whether asking again can help."""
        return self.kind in RETRYABLE
