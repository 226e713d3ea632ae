"""A journal as it is left by a worker that died: every prefix of a log is one."""

from __future__ import annotations

from refold import Journal
from refold.journal.envelope import NewEvent
from refold.journal.store import ThreadState
from refold.replay.runner import read_all


def died_at(journal: Journal, thread: str, seq: int) -> Journal:
    """Another journal in memory, whose log of *thread* ends at *seq*."""
    left = Journal.memory()
    events = read_all(journal, thread)[:seq]
    tenure = left.acquire(thread)
    batch = [NewEvent(event.id, event.kind, event.version, event.body) for event in events]
    tenure.append(batch, state=ThreadState.RUNNING).result(10)
    tenure.release(0)
    return left
