"""What a session has made and not yet seen acknowledged: one append in flight, later events join the next one."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..journal.envelope import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, NewEvent
from ..journal.store import Batch, ThreadState
from . import events as ev
from .host import Host

Unrecorded = list[NewEvent]
"""Events that were made and may not be written any more."""

_NOTHING = Batch(())

_STATES: dict[type, ThreadState] = {
    ev.RunFinished: ThreadState.FINISHED,
    ev.RunFailed: ThreadState.FAILED,
    ev.RunCancelled: ThreadState.CANCELLED,
    ev.RunParked: ThreadState.PARKED,
    ev.RunReleased: ThreadState.WAITING,
}
"""What a thread is after an event that nothing follows by itself."""


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
    """

    def __init__(self, host: Host, *, head: int, last_at: int) -> None:
        self.head = self.durable = head
        self.last_at = last_at
        self.last: ev.EventBody | None = None
        self._host = host
        self._waiting: list[NewEvent] = []
        """Not yet handed over."""
        self._takes: dict[UUID, int] = {}
        """Inbox ids taken by events that wait, in their own transaction; by event id."""
        self._stale: list[int] = []
        self._flying = _NOTHING
        """The append under way."""
        self._next = _NOTHING
        """What goes out as soon as that is durable."""

    @property
    def empty(self) -> bool:
        """Whether everything made is durable."""
        return not self._waiting and not self._flying.events

    def put(self, body: ev.EventBody, data: bytes | None = None, consumed: int | None = None) -> None:
        """Add an event; *data* is its encoded body, *consumed* the inbox message it takes."""
        kind = ev.kind_of(body)
        event = NewEvent(
            self._host.new_id(), kind, ev.VERSIONS[kind], ev.encode_body(body) if data is None else data
        )
        self._waiting.append(event)
        if consumed is not None:
            self._takes[event.id] = consumed
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
        self._take_off(self._next)

    def abandon(self) -> Unrecorded:
        """Nothing more may be written; the events whose append was not acknowledged, and those that waited."""
        lost = [*self._flying.events, *self._waiting]
        self._flying = self._next = _NOTHING
        self._waiting.clear()
        return lost

    def flush(self, *, leaving: bool) -> None:
        """Hand over what waits: to be sent at once, or when the append under way has landed."""
        if not self._waiting:
            return
        batch, flying = self._batch(leaving), len(self._flying.events)
        if not flying:
            self._take_off(batch)
            self._host.append(batch)
        elif batch != self._next and self._host.append_next(batch, after=self.durable + flying):
            self._next = batch

    def _batch(self, leaving: bool) -> Batch:
        """As much of what waits as one append takes."""
        events = tuple(self._waiting[: _fitting(self._waiting)])
        taken = [self._takes[each.id] for each in events if each.id in self._takes] if self._takes else ()
        consumed = (*taken, *self._stale)
        if len(events) < len(self._waiting):
            return Batch(events, consumed=consumed)
        otherwise = ThreadState.WAITING if leaving else ThreadState.RUNNING
        wake_at_us = self.last.wake_at if isinstance(self.last, ev.RunReleased) else None
        return Batch(events, _STATES.get(type(self.last), otherwise), wake_at_us, consumed)

    def _take_off(self, batch: Batch) -> None:
        """From now on the append of *batch* is under way, if there is anything in it."""
        self._flying, self._next = batch, _NOTHING
        del self._waiting[: len(batch.events)]
        if batch.consumed:
            self._takes = {each: taken for each, taken in self._takes.items() if taken not in batch.consumed}
            self._stale = [each for each in self._stale if each not in batch.consumed]


def _fitting(waiting: Sequence[NewEvent]) -> int:
    """How many of these events one append takes."""
    size = 0
    for count, event in enumerate(waiting):
        size += len(event.body)
        if count and (size > BATCH_BYTES_MAX or count >= BATCH_EVENTS_MAX):
            return count
    return len(waiting)
