"""What the tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result
from refold.journal.envelope import NewEvent
from refold.journal.journal import Journal
from refold.journal.sources import SYSTEM
from refold.journal.store import ThreadState
from refold.replay import events as ev

Refold = Callable[..., Result]


class Scribe:
    """Writes events into threads as a worker would, without running anything."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def write(
        self, thread: str, *bodies: ev.EventBody | NewEvent, state: ThreadState = ThreadState.RUNNING
    ) -> None:
        """Append bodies, or events as they are, in one batch."""
        events = [body if isinstance(body, NewEvent) else event_of(body) for body in bodies]
        tenure = self.journal.acquire(thread)
        tenure.append(events, state=state).result()
        tenure.release()


def event_of(body: ev.EventBody) -> NewEvent:
    """A body as a new event."""
    return raw_event(ev.kind_of(body), ev.encode_body(body))


def raw_event(kind: str, body: bytes, version: int = 1) -> NewEvent:
    """An event with whatever body."""
    return NewEvent(SYSTEM.new_id(), kind, version, body)


def documents(result: Result) -> list[Any]:
    """The JSON documents that a command printed, one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def kinds(journal: Journal, thread: str) -> list[str]:
    """The kinds of a thread's events in order."""
    return [event.kind for event in journal.read(thread)]
