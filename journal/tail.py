"""Follows the log of a thread, or of all: what is there, then what comes, each event once and in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from .bells import Bells
from .envelope import Event
from .errors import UsageError
from .sources import Sources
from .store import Cursor, Page

POLL_S = 0.5
_POLL_MIN_S = 0.005
_PAGE = 500


class Reads(Protocol):
    """What a tail reads from: a journal."""

    def read(self, thread: str, *, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Event]:
        """Events of one thread."""

    def feed(self, after: Cursor | None = None, *, limit: int = 1000) -> Page:
        """Events of all threads."""


class Tail:
    """
    The events of one thread, or of all, from a place of choice on, without an end; made by `Journal.tail`.

    It shows what the store holds and nothing else: hints only decide when it looks. Iterate over it, or `take`
    what has come. To go on later, in this or another process, keep `cursor`. For one thread at a time, but for
    `close`.

    Attributes:
        cursor: The place of the last event handed out; a tail opened after it goes on with the next.
    """

    def __init__(
        self,
        journal: Reads,
        bells: Bells,
        sources: Sources,
        *,
        thread: str | None,
        after: int | Cursor | None,
        poll_s: float,
    ) -> None:
        if not poll_s > 0:
            raise UsageError(f"poll_s={poll_s} must be positive")
        start: int | Cursor = after if after is not None else Cursor() if thread is None else 0
        if isinstance(start, Cursor) is not (thread is None):
            raise UsageError("a tail of one thread goes on after a seq, a tail of all threads after a cursor")
        self.cursor: int | Cursor = start
        self._journal = journal
        self._sources = sources
        self._thread = thread
        self._poll_s = poll_s
        self._pause_s = _POLL_MIN_S
        self._news = threading.Event()
        self._closed = False
        self._ready: deque[tuple[Event, int | Cursor]] = deque()
        self._read_upto: int | Cursor = start
        self._hung: AbstractContextManager[None] = bells.hung("log", thread, self._news.set)
        self._hung.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """The next event, waiting for it; the end when the tail was closed. Raises `StoreUnavailable`."""
        if not self._ready:
            self._fill(None)
        if self._closed or not self._ready:
            raise StopIteration
        event, self.cursor = self._ready.popleft()
        return event

    def take(self, timeout_s: float | None = None, *, limit: int = _PAGE) -> list[Event]:
        """
        What has come, in order; waits for the first event.

        Args:
            timeout_s: How long to wait, seconds; None: until there is one or the tail is closed.
            limit: Events at most.

        Returns:
            Nothing, if nothing has come in time.

        Raises:
            StoreUnavailable: The store is away; the tail can be used again.
        """
        if not self._ready:
            self._fill(timeout_s)
        events: list[Event] = []
        while self._ready and len(events) < limit:
            event, self.cursor = self._ready.popleft()
            events.append(event)
        return events

    def close(self) -> None:
        """Stop; whoever waits for an event is let go. From any thread."""
        if not self._closed:
            self._closed = True
            self._hung.__exit__(None, None, None)
            self._news.set()

    def _fill(self, timeout_s: float | None) -> None:
        end_s = None if timeout_s is None else self._sources.monotonic_s() + timeout_s
        while not self._closed:
            # Cleared before looking: a ring meanwhile is news for the next look.
            self._news.clear()
            self._look()
            if self._ready:
                self._pause_s = _POLL_MIN_S
                return
            left_s = None if end_s is None else end_s - self._sources.monotonic_s()
            if left_s is not None and left_s <= 0:
                return
            if self._news.wait(self._pause_s if left_s is None else min(self._pause_s, left_s)):
                # What rang may not be settled yet, where events of all threads wait for older transactions.
                self._pause_s = _POLL_MIN_S
            else:
                self._pause_s = min(self._poll_s, self._pause_s * 2)

    def _look(self) -> None:
        if self._thread is not None:
            assert isinstance(self._read_upto, int)
            events = self._journal.read(self._thread, after=self._read_upto, limit=_PAGE)
            self._ready.extend((event, event.seq) for event in events)
        else:
            assert isinstance(self._read_upto, Cursor)
            page = self._journal.feed(self._read_upto, limit=_PAGE)
            self._ready.extend(zip(page.events, page.cursors, strict=True))
        if self._ready:
            self._read_upto = self._ready[-1][1]


def cursor_text(cursor: int | Cursor) -> str:
    """A cursor as one word, for people and other programs to keep."""
    return f"{cursor.xid}.{cursor.seq}.{cursor.thread}" if isinstance(cursor, Cursor) else str(cursor)


def read_cursor(text: str) -> Cursor:
    """What `cursor_text` made. Raises `UsageError`."""
    xid, _, rest = text.partition(".")
    seq, _, thread = rest.partition(".")
    if not (_is_number(xid) and _is_number(seq)):
        raise UsageError(
            f"a cursor is XID.SEQ.THREAD, as 'refold tail --all --json' tells it, not {text[:80]!r}"
        )
    return Cursor(int(xid), thread, int(seq))


def read_seq(text: str) -> int:
    """A seq from 1 on. Raises `UsageError`."""
    if not _is_number(text) or int(text) < 1:
        raise UsageError(f"a seq is a number from 1 on, not {text[:80]!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
