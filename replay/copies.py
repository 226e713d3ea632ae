"""Tells the events that several threads of a journal hold: what was imported under another name, or forked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..journal.envelope import Event

FORKED = "thread_forked"


class Copies:
    """
    Says of each event of a feed whether it is the first of its kind, or the copy of one.

    An event's hash covers everything before it and not the thread's name, so what two threads share has equal hashes.
    Of threads that share nothing only the first hash is kept.

    Args:
        read: Gives the events of a thread up to a seq.
    """

    def __init__(self, read: Callable[[str, int], Iterable[Event]]) -> None:
        self._read = read
        self._first: dict[bytes, str] = {}
        """Threads by the hash of their first event."""
        self._heads: dict[str, int] = {}
        self._families: dict[bytes, dict[bytes, str]] = {}
        """By the hash of their first event, threads that share it: who holds each of their hashes as its own."""
        self._family_of: dict[str, dict[bytes, str]] = {}

    def own(self, event: Event) -> bool:
        """Whether no other thread has brought this very event; those of a thread come in their order."""
        thread = event.thread
        if event.seq == 1:
            self._admit(event)
        self._heads[thread] = event.seq
        family = self._family_of.get(thread)
        return family is None or family.setdefault(event.hash, thread) == thread

    def release(self, event: Event) -> bool:
        """Whether the event was its thread's own; it is nobody's from now on."""
        family = self._family_of.get(event.thread)
        if family is None:
            return True
        if family.get(event.hash) != event.thread:
            return False
        del family[event.hash]
        return True

    def _admit(self, event: Event) -> None:
        first = self._first.setdefault(event.hash, event.thread)
        if first == event.thread:
            return
        family = self._families.get(event.hash)
        if family is None:
            family = self._families[event.hash] = self._family_of[first] = {}
            for each in self._read(first, self._heads[first]):
                if each.kind == FORKED:
                    # What it holds before was released.
                    family.clear()
                family[each.hash] = first
        self._family_of[event.thread] = family
