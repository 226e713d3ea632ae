"""`ToolContext`: what a running tool may ask about its own call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _nobody_listens() -> None:
    """A context without an engine, as in a unit test, has nobody to beat for."""


def _never() -> bool:
    return False


class ToolContext:
    """
    What a running tool may ask about its own call.

    A tool gets one by annotating a parameter with this class; the parameter is not shown to the model.
    Every part may be used from any thread. In a unit test, make one with the fields the tool reads.

    Args:
        idempotency_key: Unique to this call, the same in every attempt of it; send it to the service.
        attempt: 1, 2 ...: which start of this call is running.
        thread: Thread id.
        call: Call id, `run/path`.
        deps: What the caller passed to `run(deps=...)`; never recorded.
        deadline_s: Seconds this attempt has in all, counted from its start; never more than the run still has.
        heartbeat: Called at each beat; must be safe to call from any thread.
        cancelled: Answers whether the call should stop; must be safe to call from any thread.
        connection: The open transaction of a transactional tool, a psycopg connection; None for others.
    """

    __slots__ = (
        "_cancelled",
        "_heartbeat",
        "attempt",
        "call",
        "connection",
        "deadline_s",
        "deps",
        "idempotency_key",
        "thread",
    )

    def __init__(
        self,
        *,
        idempotency_key: str = "",
        attempt: int = 1,
        thread: str = "",
        call: str = "",
        deps: Any = None,
        deadline_s: float = 300.0,
        heartbeat: Callable[[], None] = _nobody_listens,
        cancelled: Callable[[], bool] = _never,
        connection: Any = None,
    ) -> None:
        self.idempotency_key = idempotency_key
        self.attempt = attempt
        self.thread = thread
        self.call = call
        self.deps = deps
        self.connection = connection
        self.deadline_s = deadline_s
        self._heartbeat = heartbeat
        self._cancelled = cancelled

    def heartbeat(self) -> None:
        """Tell that the tool is alive; restarts its idle time-out."""
        self._heartbeat()

    @property
    def cancelled(self) -> bool:
        """Whether the run wants this call to stop; a long tool looks now and then and returns early."""
        return self._cancelled()

    def __repr__(self) -> str:
        return f"ToolContext({self.call!r} of {self.thread!r}, attempt {self.attempt})"
