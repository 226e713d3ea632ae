"""When a session next looks at the clock, and how long it still waits for what runs."""

from __future__ import annotations

from .host import Host


class Alarms:
    """
    The clock of a session.

    Args:
        host: Calls the session when an alarm strikes.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._next_us: int | None = None
        self._grace_until_us: int | None = None

    def wake_at(self, at_us: int | None) -> None:
        """See to it that an alarm strikes by *at_us*, whatever else goes on until then."""
        if at_us is not None and (self._next_us is None or at_us < self._next_us):
            self._next_us = at_us
            self._host.alarm(at_us)

    def set_grace(self, grace_s: float, now_us: int) -> None:
        """Give what runs *grace_s* from *now_us* on."""
        self._grace_until_us = now_us + round(grace_s * 1e6)
        self.wake_at(self._grace_until_us)

    def end_grace(self) -> None:
        """There is nothing to be waited for any more."""
        self._grace_until_us = None

    def struck(self, now_us: int) -> bool:
        """An alarm has struck, or may have; whether the grace is over now."""
        self._next_us = None
        over = self._grace_until_us is not None and now_us >= self._grace_until_us
        if not over:
            self.wake_at(self._grace_until_us)
        return over
