"""Making events and appends by hand, for tests below the tenure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from refold.journal.envelope import GENESIS, Event, NewEvent, chain
from refold.journal.journal import Journal
from refold.journal.store import Append, AppendResult, Lease, Outcome, Store


def event(body: bytes = b"{}", kind: str = "thing_happened", version: int = 1) -> NewEvent:
    """An event that is not in a log yet."""
    return NewEvent(uuid.uuid4(), kind, version, body)


class Pen:
    """Holds a thread and builds its appends, keeping head and hash as a holder must."""

    def __init__(self, store: Store, thread: str, *, ttl_s: float = 30.0, steal: bool = False) -> None:
        store.create(thread)
        robbed = store.info(thread).fence if steal else None
        lease = store.acquire(thread, holder=uuid.uuid4(), ttl_s=ttl_s, steal=robbed)
        assert isinstance(lease, Lease), lease
        self.store = store
        self.thread = thread
        self.ttl_s = ttl_s
        self.fence = lease.fence
        self.head = lease.head
        self.head_hash = lease.head_hash

    def next(self, events: Sequence[NewEvent] | None = None, **changes: Any) -> Append:
        """An append after the head, not sent."""
        batch = tuple(events if events is not None else [event()])
        previous, hashes = self.head_hash, []
        for seq, each in enumerate(batch, self.head + 1):
            previous = chain(previous, seq, each)
            hashes.append(previous)
        parts: dict[str, Any] = {
            "thread": self.thread,
            "expected": self.head,
            "expected_hash": self.head_hash,
            "fence": self.fence,
            "events": batch,
            "hashes": tuple(hashes),
            "ttl_s": self.ttl_s,
        }
        return Append(**(parts | changes))

    def done(self, append: Append) -> None:
        """Go on from an append that is in the log."""
        self.head = append.expected + len(append.events)
        self.head_hash = append.hashes[-1]

    def write(self, *events: NewEvent, **changes: Any) -> AppendResult:
        """Append and go on."""
        append = self.next(events or None, **changes)
        result = self.store.append(append)
        assert result.outcome is Outcome.APPENDED, result
        self.done(append)
        return result


def verify(events: Sequence[Event]) -> None:
    """Seqs are dense from 1, the chain holds, and fences never fall; computed apart from the stores."""
    previous, fence = GENESIS, 0
    for seq, each in enumerate(events, 1):
        assert each.seq == seq
        assert each.hash == chain(previous, seq, each)
        assert each.fence >= fence
        previous, fence = each.hash, each.fence


def check_whole(journal: Journal, thread: str, head: int) -> None:
    """The thread holds together, up to *head*."""
    events = journal.read(thread)
    verify(events)
    assert len(events) == journal.info(thread).head == head
