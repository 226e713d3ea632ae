"""What differs between two moments of a thread, and where two threads part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from ..journal.envelope import Event
from ..journal.errors import UsageError
from ..journal.journal import Journal, check_journal
from ..journal.reading import read_events
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
        yield f"{visible(self.title)}: {'nothing differs' if self.same else 'they differ'}"
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
    check_journal(journal)
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
    check_journal(journal)
    left, right = _deeds(journal, one), _deeds(journal, other)
    title = f"{one} and {other}"
    timeline = Timeline()
    for key, event in left.items():
        twin = right.get(key)
        if twin is None:
            return _only(title, one, event)
        old, new = _meaning(event), _meaning(twin)
        if old != new:
            rows = [line(timeline.row(event)), line(timeline.row(twin))]
            return Compared(title=title, same=False, differences=of_values(event.kind, old, new), rows=rows)
    for key, event in right.items():
        if key not in left:
            return _only(title, other, event)
    return Compared(title=title, same=True, differences=[])


def _only(title: str, thread: str, event: Event) -> Compared:
    found = Difference(f"seq {event.seq} of {thread}", "only this thread has it")
    return Compared(title=title, same=False, differences=[found], rows=[line(Timeline().row(event))])


def _deeds(journal: Journal, thread: str) -> dict[tuple[str, str, int], Event]:
    """Events by what they are about: calls that ran at once may have ended in another order."""
    deeds: dict[tuple[str, str, int], Event] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for event in read_events(journal, thread, upto=journal.info(thread).head):
        if event.kind in _OF_WORKERS:
            continue
        body = _meaning(event)
        about = str(body.get("call") or body.get("run")) if isinstance(body, dict) else ""
        counts[event.kind, about] += 1
        deeds[event.kind, about, counts[event.kind, about]] = event
    return deeds


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
