"""Until when calls in doubt are left alone, because the worker before may still be at them."""

from __future__ import annotations

from collections.abc import Mapping

from .commands import Call
from .host import Host

LATE_S = 1.0
"""How much later than its start was made a call may begin and have its whole time: a hold is so much longer."""


class Holds:
    """
    Calls that are neither run again nor looked up yet.

    By the host's clock: the time of events never goes back, and after one that was ahead it would end every hold
    at once.

    Args:
        host: Its clock.
        until_us: Time of the host's clock by path.
    """

    def __init__(self, host: Host, until_us: Mapping[str, int]) -> None:
        self._host = host
        self._until_us = until_us

    def __bool__(self) -> bool:
        return bool(self._until_us)

    def until(self, call: Call) -> int | None:
        """When the hold on *call* ends; None when there is none, or none any more."""
        until_us = self._until_us.get(call.path)
        return until_us if until_us is not None and until_us > self._host.now_us() else None
