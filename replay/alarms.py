"""When a session next looks at the clock, how long it still waits for what runs, and when its run's time is over."""

from __future__ import annotations

import math

from .host import Host


class Alarms:
    """
    The clock of a session.

    Args:
        host: Calls the session when an alarm strikes.
        deadline_us: When the run's time is over, by the host's clock; None if it has no end.
    """

    def __init__(self, host: Host, deadline_us: int | None) -> None:
        self.deadline_us = deadline_us
        self._host = host
        self._next_us: int | None = None
        self._grace_until_us: int | None = None

    def wake_at(self, at_us: int | None) -> None:
        """See to it that an alarm strikes by *at_us*, whatever else goes on until then."""
        if at_us is not None and (self._next_us is None or at_us < self._next_us):
            self._next_us = at_us
            self._host.alarm(at_us)

    def set_grace(self, grace_s: float, now_us: int) -> None:
        """Give what runs *grace_s* from *now_us* on, and no longer than it was given before."""
        until_us = now_us + round(grace_s * 1e6)
        if self._grace_until_us is None or until_us < self._grace_until_us:
            self._grace_until_us = until_us
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

    def now_us(self) -> int:
        """The host's clock."""
        return self._host.now_us()

    def watch(self) -> bool:
        """Whether the run's time is over; if not, an alarm strikes when it is."""
        if self.overdue():
            return True
        self.wake_at(self.deadline_us)
        return False

    def overdue(self) -> bool:
        """Whether the run's time is over."""
        return self.deadline_us is not None and self.deadline_us <= self.now_us()

    def left_s(self) -> float:
        """Seconds that the run still has."""
        if self.deadline_us is None:
            return math.inf
        return max(0.0, (self.deadline_us - self.now_us()) / 1e6)

    def sooner(self, at_us: int | None) -> int | None:
        """*at_us*, or the end of the run's time if that comes first."""
        return min((each for each in (at_us, self.deadline_us) if each is not None), default=None)
