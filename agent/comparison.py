"""What differs between two moments of a thread, and where two threads part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from ..journal.envelope import Event
from ..journal.errors import UsageError
from ..journal.export import read_events
from ..journal.journal import Journal
from ..replay.differences import Difference, of_requests, of_values
from ..replay.text import visible
from ..replay.timeline import Timeline, line
from .overview import Overview, overview

_ACCIDENTAL = frozenset({"at", "latency_us", "uid", "key", "due", "retry_at", "request", "definition"})
"""Fields that differ between any two threads; a request is told by its fingerprint."""
_OF_WORKERS = frozenset(
    {"thread_created", "thread_forked", "run_resumed", "run_released", "run_parked", "divergence_accepted"}
)
"""Kinds that say who worked when, not what was done."""


class Compared(Struct, frozen=True, kw_only=True):
    """
    A comparison, for people and scripts.

    Args:
        title: What was compared.
        same: Whether nothing differs.
        differences: What does, the first few places.
        rows: Events worth seeing beside it, safe to show.
    """

    title: str
    same: bool
    differences: list[Difference]
    rows: list[str] = []

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        told = [each.record() for each in self.differences]
        return {"compared": self.title, "same": self.same, "differences": told, "events": self.rows}

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"{visible(self.title)}: {'nothing differs' if self.same else 'differs'}"
        yield from (f"  {row}" for row in self.rows)
        for difference in self.differences:
            yield from (f"  {visible(text)}" for text in difference.lines())


def compare_states(journal: Journal, thread: str, at: int, to: int) -> Compared:
    """
    What the events after *at* up to *to* changed of a thread: its runs, open calls, sums and conversation.

    Raises:
        ThreadNotFound: No such thread.
        UsageError: One of the seqs is not in the thread.
    """
    head = journal.info(thread).head
    for seq in (at, to):
        if not 0 <= seq <= head:
            raise UsageError(f"thread {thread!r} has seq 1 to {head}; there is no state at seq {seq}")
    before, after = overview(journal, thread, at=at), overview(journal, thread, at=to)
    found = of_requests((_plain(before), _messages(before)), (_plain(after), _messages(after)))
    named = [Difference(each.where.removeprefix("parameter 'runs'"), each.what, each.diff) for each in found]
    timeline = Timeline()
    events = read_events(journal, thread, after=min(at, to), upto=max(at, to))
    rows = [line(timeline.row(event)) for event in events]
    title = f"{thread} at seq {at} and at seq {to}"
    return Compared(title=title, same=not found and not rows, differences=named, rows=rows)


def compare_threads(journal: Journal, one: str, other: str) -> Compared:
    """
    Where two threads first differ in what was asked, done and answered; times, keys and workers aside.

    Raises:
        ThreadNotFound: One of them is not there.
    """
    upto = {thread: journal.info(thread).head for thread in (one, other)}
    timelines = Timeline(), Timeline()
    title = f"{one} and {other}"
    pairs = zip_longest(*(_deeds(journal, thread, upto[thread]) for thread in (one, other)))
    for left, right in pairs:
        rows = [
            timeline.row(event) for timeline, event in zip(timelines, (left, right), strict=True) if event
        ]
        if left is not None and right is not None:
            old, new = _meaning(left), _meaning(right)
            if old == new:
                continue
            found = of_values(left.kind if left.kind == right.kind else "event", old, new)
        else:
            longer = one if right is None else other
            found = [Difference("end", f"only {longer} goes on")]
        return Compared(title=title, same=False, differences=found, rows=[line(row) for row in rows])
    return Compared(title=title, same=True, differences=[])


def _deeds(journal: Journal, thread: str, upto: int) -> Iterator[Event]:
    return (event for event in read_events(journal, thread, upto=upto) if event.kind not in _OF_WORKERS)


def _meaning(event: Event) -> Any:
    try:
        body = msgspec.json.decode(event.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {"kind": event.kind, "bytes": event.body.hex()}
    return (
        {name: value for name, value in body.items() if name not in _ACCIDENTAL}
        if isinstance(body, dict)
        else body
    )


def _plain(view: Overview) -> dict[str, Any]:
    runs = msgspec.json.decode(msgspec.json.encode(view.runs))
    return {"runs": {run["run"]: run for run in runs}}


def _messages(view: Overview) -> list[Any]:
    return [msgspec.json.decode(raw) for raw in view.conversation]
