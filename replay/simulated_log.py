"""The log of a simulated thread: all who look at it decode, fold and check each event once, between them."""

from __future__ import annotations

from ..journal.envelope import GENESIS, Event
from .rebuild import Thread, check_chain, load
from .status import ThreadStatus


class Log:
    """
    What of a thread's log has been read so far. A recorded event never changes, so nobody needs to read it again.

    Args:
        name: The thread.
    """

    def __init__(self, name: str) -> None:
        self._events: list[Event] = []
        self._read = load(name, [])
        self._checked = 0

    @property
    def head(self) -> int:
        """Seq of the newest event that has been read."""
        return len(self._events)

    def status(self, events: list[Event]) -> ThreadStatus:
        """What the log says with *events* after those that have been read; to be looked at, not to be changed."""
        if events:
            self._read.extend(events)
            self._events += events
        return self._read.status

    def load(self, events: list[Event]) -> Thread:
        """As `rebuild.load`, of a whole log; what differs from what has been read before is read anew."""
        read, known = self._read, self._events
        if len(events) < len(known) or events[: len(known)] != known:
            return load(read.name, events)
        head = self._checked
        check_chain(read.name, known[head - 1].hash if head else GENESIS, head, events[head:])
        self.status(events[len(known) :])
        self._checked = len(events)
        return Thread(read.name, read.bodies[:], read.recorded_at[:], read.fences[:], read.status.copy())
