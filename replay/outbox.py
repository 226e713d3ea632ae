"""What a session has made and not yet seen acknowledged: one append in flight, later events join the next one."""

from __future__ import annotations

from ..journal.envelope import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, NewEvent
from ..journal.store import ThreadState
from . import events as ev
from .host import Host

Unrecorded = list[NewEvent]
"""Events that were made and may not be written any more."""


class Outbox:
    """
    Events on their way to the log.

    Args:
        host: Appends them.
        head: Seq of the thread's head, all of it durable.
        last_at: `at` of the newest event.

    Attributes:
        head: Seq of the newest event made.
        durable: Seq of the newest event acknowledged.
        last: Body of the newest event made here.
        flying: Number of events in the append under way.
    """

    def __init__(self, host: Host, *, head: int, last_at: int) -> None:
        self.head = self.durable = head
        self.last_at = last_at
        self.last: ev.EventBody | None = None
        self.flying = 0
        self._host = host
        self._waiting: list[tuple[NewEvent, tuple[int, ...]]] = []
        """Events not yet handed over, each with the inbox ids that it takes in its own transaction."""
        self._stale: list[int] = []
        self._sent: list[NewEvent] = []

    @property
    def empty(self) -> bool:
        """Whether everything made is durable."""
        return not self._waiting and not self.flying

    def put(self, body: ev.EventBody, data: bytes | None = None, consumed: int | None = None) -> None:
        """Add an event; *data* is its encoded body, *consumed* the inbox message it takes."""
        kind = ev.kind_of(body)
        event = NewEvent(
            self._host.new_id(), kind, ev.VERSIONS[kind], ev.encode_body(body) if data is None else data
        )
        self._waiting.append((event, () if consumed is None else (consumed,)))
        self.head += 1
        self.last_at = body.at
        self.last = body

    def adopt(self, body: ev.EventBody) -> None:
        """Count an event that was appended by somebody else's transaction, when nothing else was on its way."""
        assert self.empty
        self.head += 1
        self.durable = self.head
        self.last_at = body.at
        self.last = body

    def discard(self, *message_ids: int) -> None:
        """Take messages that nobody can use any more out of the inbox, with the next append."""
        self._stale.extend(message_ids)

    def acked(self, count: int) -> None:
        """The append under way is durable."""
        self.durable += count
        self.flying = 0
        self._sent = []

    def abandon(self) -> Unrecorded:
        """Nothing more may be written; the events whose append was not acknowledged, and those that waited."""
        lost = self._sent + [event for event, _ in self._waiting]
        self.flying = 0
        self._sent = []
        self._waiting.clear()
        return lost

    def flush(self, *, leaving: bool) -> None:
        """Hand over what waits, unless an append is under way."""
        if self.flying or not self._waiting:
            return
        count = size = 0
        for event, _ in self._waiting:
            size += len(event.body)
            if count and (size > BATCH_BYTES_MAX or count >= BATCH_EVENTS_MAX):
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        consumed = [taken for _, ids in batch for taken in ids] + self._stale
        self._stale = []
        self.flying = count
        self._sent = [event for event, _ in batch]
        state, wake_at = (ThreadState.RUNNING, None) if self._waiting else self._state(leaving)
        self._host.append(self._sent, state=state, wake_at_us=wake_at, consumed=consumed)

    def _state(self, leaving: bool) -> tuple[ThreadState, int | None]:
        match self.last:
            case ev.RunFinished():
                return ThreadState.FINISHED, None
            case ev.RunFailed():
                return ThreadState.FAILED, None
            case ev.RunCancelled():
                return ThreadState.CANCELLED, None
            case ev.RunParked():
                return ThreadState.PARKED, None
            case ev.RunReleased():
                return ThreadState.WAITING, self.last.wake_at
            case _:
                return (ThreadState.WAITING if leaving else ThreadState.RUNNING), None
