"""A journal as it is left by a worker that died: every prefix of a log is one."""

from __future__ import annotations

import functools
import subprocess
import sys
import uuid

from refold import Journal
from refold.journal.envelope import NewEvent, chain
from refold.journal.store import Append, Lease, Outcome
from refold.replay.runner import read_all


@functools.cache
def dead_holder() -> str:
    """How a process called itself that provably no longer runs."""
    command = [sys.executable, "-c", "from refold.journal.holder import describe; print(describe())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def died_at(journal: Journal, thread: str, seq: int) -> Journal:
    """Another journal in memory, whose log of *thread* ends at *seq*, held by a process that is dead."""
    left = Journal.memory()
    left.create(thread)
    lease = left.store.acquire(thread, holder=uuid.uuid4(), ttl_s=30.0, name=dead_holder())
    assert isinstance(lease, Lease)
    events = [NewEvent(e.id, e.kind, e.version, e.body) for e in read_all(journal, thread)[:seq]]
    hashes: list[bytes] = []
    for position, event in enumerate(events, 1):
        hashes.append(chain(hashes[-1] if hashes else lease.head_hash, position, event))
    append = Append(
        thread=thread,
        expected=0,
        expected_hash=lease.head_hash,
        fence=lease.fence,
        events=tuple(events),
        hashes=tuple(hashes),
        ttl_s=30.0,
    )
    assert left.store.append(append).outcome is Outcome.APPENDED
    return left
