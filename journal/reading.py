"""Reads the events of a thread a page at a time, however many there are."""

from __future__ import annotations

from collections.abc import Iterator

from .envelope import Event
from .journal import Journal

PAGE = 100
"""So that large events take little memory; who wants all of them at once asks for more."""


def read_events(
    journal: Journal, thread: str, *, after: int = 0, upto: int | None = None, page: int = PAGE
) -> Iterator[Event]:
    """Events with `after < seq <= upto` in seq order, read as they are taken, *page* at a time."""
    while upto is None or after < upto:
        events = journal.read(thread, after=after, upto=upto, limit=page)
        yield from events
        if len(events) < page:
            return
        after = events[-1].seq
