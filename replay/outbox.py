"""What a session has made and not yet seen acknowledged: one append in flight, later events join the next one."""

from __future__ import annotations

from msgspec import Struct

from ..journal.envelope import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, NewEvent
from ..journal.store import ThreadState
from . import events as ev
from .host import Host

Unrecorded = list[NewEvent]
"""Events that were made and may not be written any more."""


class _Batch(Struct, frozen=True):
    """One append: its events, the inbox ids that it takes, and what it makes of the thread."""

    events: list[NewEvent]
    consumed: tuple[int, ...]
    state: ThreadState
    wake_at_us: int | None


_NOTHING = _Batch([], (), ThreadState.RUNNING, None)


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
        self._next = _NOTHING
        """What goes out as soon as the append under way is durable."""
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
        """The append under way is durable; what was to go out next is under way now."""
        self.durable += count
        self.flying = 0
        self._sent = []
        if self._next.events:
            self._take_off(self._next)

    def abandon(self) -> Unrecorded:
        """Nothing more may be written; the events whose append was not acknowledged, and those that waited."""
        lost = self._sent + [event for event, _ in self._waiting]
        self.flying = 0
        self._sent = []
        self._next = _NOTHING
        self._waiting.clear()
        return lost

    def flush(self, *, leaving: bool) -> None:
        """Hand over what waits: to be sent at once, or when the append under way has landed."""
        if not self._waiting:
            return
        batch = self._batch(leaving)
        if not self.flying:
            self._take_off(batch)
            self._host.append(
                batch.events, state=batch.state, wake_at_us=batch.wake_at_us, consumed=batch.consumed
            )
        elif batch != self._next and self._host.append_next(
            batch.events,
            after=self.durable + self.flying,
            state=batch.state,
            wake_at_us=batch.wake_at_us,
            consumed=batch.consumed,
        ):
            self._next = batch

    def _batch(self, leaving: bool) -> _Batch:
        """As much of what waits as one append takes."""
        count = size = 0
        for event, _ in self._waiting:
            size += len(event.body)
            if count and (size > BATCH_BYTES_MAX or count >= BATCH_EVENTS_MAX):
                break
            count += 1
        waiting = self._waiting[:count]
        state, wake_at_us = (
            (ThreadState.RUNNING, None) if count < len(self._waiting) else self._state(leaving)
        )
        consumed = [taken for _, ids in waiting for taken in ids]
        return _Batch([event for event, _ in waiting], (*consumed, *self._stale), state, wake_at_us)

    def _take_off(self, batch: _Batch) -> None:
        count = self.flying = len(batch.events)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        own = sum([len(ids) for _, ids in taken])
        self._stale = self._stale[len(batch.consumed) - own :]
        self._sent = batch.events
        self._next = _NOTHING

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
