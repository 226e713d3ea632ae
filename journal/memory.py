"""A store in memory with the promises of the Postgres store: for tests, simulators and throw-away runs."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from .admission import check_fork, not_there
from .envelope import GENESIS, Event, chain, check_thread_id
from .errors import Corrupt, StoreRefused, StoreUnavailable, ThreadNotFound, ThreadSealed, UsageError
from .limits import check_events, check_message
from .sources import SYSTEM, Sources
from .store import (
    Admission,
    Admitted,
    Append,
    AppendResult,
    Busy,
    Cursor,
    Fork,
    Lease,
    Message,
    Outcome,
    Page,
    Release,
    Sent,
    ThreadInfo,
    ThreadState,
)

_ATTENTION = frozenset({ThreadState.PARKED, ThreadState.FAILED, ThreadState.WAITING})


class _Thread:
    """One row of `threads`, with its events and its inbox."""

    __slots__ = (
        "created_at",
        "events",
        "fence",
        "head_hash",
        "holder",
        "holder_name",
        "inbox",
        "keys",
        "lease_until",
        "sealed",
        "state",
        "updated_at",
        "waiting",
        "wake_at_us",
    )

    def __init__(self, now_us: int) -> None:
        self.events: list[Event] = []
        self.head_hash = GENESIS
        self.fence = 0
        self.holder: UUID | None = None
        self.holder_name = ""
        self.lease_until = 0
        self.state = ThreadState.IDLE
        self.wake_at_us: int | None = None
        self.created_at = now_us
        self.updated_at = now_us
        self.inbox: list[Message] = []
        self.keys: dict[str, int] = {}
        self.waiting: set[int] = set()
        self.sealed = False


class MemoryStore:
    """
    Threads in memory; every promise of `Store` but durability.

    Args:
        sources: `now_us` of it is the clock that decides when a lease has expired.
    """

    def __init__(self, sources: Sources = SYSTEM) -> None:
        self._sources = sources
        self._identity = f"memory-{sources.new_id()}"
        self._lock = threading.Lock()
        self._threads: dict[str, _Thread] = {}
        self._order: list[tuple[int, str]] = []
        self._feed: list[tuple[int, str, int]] = []
        self._xid = 0
        self._closed = False

    @property
    def identity(self) -> str:
        """Unique to this object."""
        return self._identity

    def create(self, thread: str) -> bool:
        """Make *thread* if it is not there; True if it was made now."""
        check_thread_id(thread)
        with self._lock:
            self._check_open()
            if thread in self._threads:
                return False
            self._create(thread)
            return True

    def info(self, thread: str) -> ThreadInfo:
        """The thread's row. Raises `ThreadNotFound`."""
        with self._lock:
            return self._info(thread, self._find(thread))

    def threads(
        self,
        *,
        after: tuple[int, str] | None = None,
        limit: int = 100,
        states: Sequence[ThreadState] | None = None,
        attention: bool = False,
    ) -> list[ThreadInfo]:
        """Threads, newest first, one keyset page."""
        page: list[ThreadInfo] = []
        with self._lock:
            self._check_open()
            place = len(self._order) if after is None else bisect_left(self._order, after)
            while place and len(page) < limit:
                place -= 1
                thread = self._order[place][1]
                row = self._threads[thread]
                if states is not None and row.state not in states:
                    continue
                if attention and not self._needs_attention(row):
                    continue
                page.append(self._info(thread, row))
        return page

    def acquire(
        self, thread: str, *, holder: UUID, ttl_s: float, name: str = "", steal: int | None = None
    ) -> Lease | Busy:
        """Take the thread if it is free, expired, or already *holder*'s; the fence grows unless it is."""
        with self._lock:
            row = self._find(thread)
            if row.sealed:
                raise ThreadSealed(thread)
            now_us = self._sources.now_us()
            left_open = row.holder is not None
            before = "" if row.holder == holder else row.holder_name
            if row.holder != holder:
                if row.holder is not None and row.lease_until > now_us and row.fence != steal:
                    return Busy((row.lease_until - now_us) / 1e6, row.fence, row.holder_name)
                row.fence += 1
                row.holder = holder
            row.holder_name = name
            row.lease_until = now_us + int(ttl_s * 1e6)
            return Lease(
                thread=thread,
                holder=holder,
                fence=row.fence,
                head=len(row.events),
                head_hash=row.head_hash,
                state=row.state,
                ttl_s=ttl_s,
                left_open=left_open,
                now_us=now_us,
                before=before,
            )

    def renew(self, thread: str, *, fence: int, ttl_s: float) -> bool:
        """Renew the lease for *ttl_s* from now; False if the fence is not current."""
        with self._lock:
            self._check_open()
            row = self._threads.get(thread)
            if row is None or row.fence != fence or row.holder is None:
                return False
            row.lease_until = self._sources.now_us() + int(ttl_s * 1e6)
            return True

    def append(self, append: Append) -> AppendResult:
        """Append a batch, or say why not."""
        with self._lock:
            self._check_open()
            self._xid += 1
            return self._append(append)

    def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Append batches of different threads with one commit; each has its own outcome, in order."""
        if len({append.thread for append in appends}) != len(appends):
            raise UsageError("append_many takes at most one append for each thread")
        results: dict[str, AppendResult] = {}
        with self._lock:
            self._check_open()
            self._xid += 1
            # The feed is ordered by thread within one commit.
            for append in sorted(appends, key=lambda each: each.thread):
                results[append.thread] = self._append(append)
        return [results[append.thread] for append in appends]

    def transact(self, work: Callable[[Any], Append], *, limit_s: float) -> AppendResult:
        """Refused: there is no database whose transaction could be shared."""
        raise StoreRefused("this journal is in memory: a transactional tool needs one in PostgreSQL")

    def recorded(self, thread: str, seq: int, event: UUID) -> bool:
        """Whether that event is in the log at *seq*."""
        with self._lock:
            self._check_open()
            row = self._threads.get(thread)
            return row is not None and 0 < seq <= len(row.events) and row.events[seq - 1].id == event

    def release(self, thread: str, *, fence: int, seen: int) -> Release:
        """Give the lease back, unless a message with an id above *seen* waits in the inbox."""
        with self._lock:
            row = self._find(thread)
            if row.fence != fence:
                return Release.FENCED
            if row.holder is not None:
                if any(message > seen for message in row.waiting):
                    return Release.INBOX_PENDING
                row.holder = None
                row.lease_until = 0
            return Release.RELEASED

    def read(self, thread: str, *, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Event]:
        """Events with `after < seq <= upto` in seq order, *limit* at most. Empty for an unknown thread."""
        with self._lock:
            self._check_open()
            row = self._threads.get(thread)
            if row is None:
                return []
            start = max(after, 0)
            stop = start + max(limit, 0)
            return row.events[start : stop if upto is None else min(stop, max(upto, 0))]

    def feed(self, after: Cursor, *, limit: int = 1000) -> Page:
        """Events of all threads after *after*, each once, in seq order within a thread, none ever missed."""
        with self._lock:
            self._check_open()
            start = bisect_right(self._feed, (after.xid, after.thread, after.seq))
            places = self._feed[start : start + limit]
            events = tuple(self._threads[thread].events[seq - 1] for _, thread, seq in places)
        cursors = tuple(Cursor(*place) for place in places)
        return Page(events, cursors[-1] if places else after, cursors)

    def send(self, thread: str, *, key: str, kind: str, body: bytes) -> Sent:
        """Put a message into the inbox; of several with one key the first stays. Raises `ThreadNotFound`."""
        check_message(thread, key, kind, body)
        with self._lock:
            return self._send(self._find(thread), thread, key, kind, body)

    def inbox(self, thread: str, *, after: int = 0, consumed: bool = False) -> list[Message]:
        """Messages that wait, in order of arrival; with *consumed* those already taken too."""
        with self._lock:
            self._check_open()
            row = self._threads.get(thread)
            if row is None:
                return []
            if consumed:
                return row.inbox[max(after, 0) :]
            return [row.inbox[message - 1] for message in sorted(row.waiting) if message > after]

    def admit(self, admission: Admission) -> Admitted:
        """Keep events of another journal in a sealed thread, or say why not."""
        thread, given = check_thread_id(admission.thread), admission.events
        check_events(thread, given)
        with self._lock:
            self._check_open()
            row = self._threads.get(thread)
            last = admission.expected + len(given)
            if row is not None and len(row.events) >= last:
                same = row.events[last - 1].hash == given[-1].hash
                return Admitted.PRESENT if same else Admitted.FORK
            head, head_hash = (0, GENESIS) if row is None else (len(row.events), row.head_hash)
            if (head, head_hash) != (admission.expected, admission.expected_hash):
                return Admitted.FORK
            if row is not None and not row.sealed:
                return Admitted.OPEN
            previous = head_hash
            for seq, event in enumerate(given, head + 1):
                if chain(previous, seq, event) != event.hash:
                    raise Corrupt(thread, seq, "its hash does not follow from the event before")
                previous = event.hash
            if row is None:
                row = self._create(thread)
                row.sealed = True
            self._xid += 1
            self._keep(row, thread, given, 0)
            row.head_hash, row.state, row.updated_at = previous, admission.state, given[-1].recorded_at
            return Admitted.ADMITTED

    def fork(self, fork: Fork) -> bool:
        """Make a thread of another one's first events and some of its own, all at once."""
        check_fork(fork)
        with self._lock:
            self._check_open()
            origin = self._threads.get(fork.origin)
            common = [] if origin is None else origin.events[: fork.upto]
            if len(common) < fork.upto or common[-1].hash != fork.upto_hash:
                raise not_there(fork)
            row = self._threads.get(fork.thread)
            if row is not None:
                last = fork.upto + len(fork.events) - 1
                return len(row.events) > last and row.events[last].hash == fork.hashes[-1]
            row = self._create(fork.thread)
            row.fence, row.head_hash, row.state = 1, fork.hashes[-1], fork.state
            self._xid += 1
            own = [
                Event(fork.thread, 0, new.id, new.kind, new.version, 1, row.created_at, digest, new.body)
                for new, digest in zip(fork.events, fork.hashes, strict=True)
            ]
            self._keep(row, fork.thread, [*common, *own], 1)
            for message in fork.messages:
                self._send(row, fork.thread, *message)
            return True

    def adopt(self, thread: str) -> bool:
        """Let a sealed thread be acquired; False if it was not sealed. Raises `ThreadNotFound`."""
        with self._lock:
            row = self._find(thread)
            was, row.sealed = row.sealed, False
            return was

    def close(self) -> None:
        """Refuse further calls; what was stored is gone with the object."""
        self._closed = True

    def _send(self, row: _Thread, thread: str, key: str, kind: str, body: bytes) -> Sent:
        there = row.keys.get(key)
        if there is not None:
            return Sent(False, row.inbox[there - 1])
        message = Message(
            id=len(row.inbox) + 1,
            thread=thread,
            key=key,
            kind=kind,
            body=body,
            sent_at=self._sources.now_us(),
        )
        row.inbox.append(message)
        row.keys[key] = message.id
        row.waiting.add(message.id)
        return Sent(True, message)

    def _keep(self, row: _Thread, thread: str, events: Sequence[Event], fence: int) -> None:
        """Events recorded elsewhere, after those that are there."""
        for seq, event in enumerate(events, len(row.events) + 1):
            kept = (event.id, event.kind, event.version, fence, event.recorded_at, event.hash, event.body)
            row.events.append(Event(thread, seq, *kept))
            self._feed.append((self._xid, thread, seq))

    def _append(self, append: Append) -> AppendResult:
        row = self._threads.get(append.thread)
        if row is None:
            return AppendResult(Outcome.MISSING, 0)
        events = row.events
        head = len(events)
        if row.fence != append.fence or row.holder is None:
            return AppendResult(Outcome.FENCED, head)
        if head != append.expected or row.head_hash != append.expected_hash:
            last = append.expected + len(append.events)
            if last <= head and events[last - 1].hash == append.hashes[-1]:
                return AppendResult(Outcome.DUPLICATE, head)
            return AppendResult(Outcome.CONFLICT, head)
        if append.consumed:
            if not row.waiting.issuperset(append.consumed):
                return AppendResult(Outcome.CONFLICT, head)
            self._consume(row, append)
        now_us = self._sources.now_us()
        thread, fence, xid, seq = append.thread, append.fence, self._xid, head
        for event, digest in zip(append.events, append.hashes, strict=True):
            seq += 1
            events.append(
                Event(thread, seq, event.id, event.kind, event.version, fence, now_us, digest, event.body)
            )
            self._feed.append((xid, thread, seq))
        row.head_hash = append.hashes[-1]
        row.state = append.state
        row.wake_at_us = append.wake_at_us
        row.lease_until = now_us + int(append.ttl_s * 1e6)
        row.updated_at = now_us
        return AppendResult(Outcome.APPENDED, seq)

    @staticmethod
    def _consume(row: _Thread, append: Append) -> None:
        taken_at = append.expected + len(append.events)
        for message in append.consumed:
            old = row.inbox[message - 1]
            row.inbox[message - 1] = Message(
                id=old.id,
                thread=old.thread,
                key=old.key,
                kind=old.kind,
                body=old.body,
                sent_at=old.sent_at,
                consumed_seq=taken_at,
            )
            row.waiting.discard(message)

    def _create(self, thread: str) -> _Thread:
        now_us = self._sources.now_us()
        row = self._threads[thread] = _Thread(now_us)
        place = (now_us, thread)
        self._order.insert(bisect_left(self._order, place), place)
        return row

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("this journal is closed; open another one")

    def _find(self, thread: str) -> _Thread:
        self._check_open()
        row = self._threads.get(thread)
        if row is None:
            raise ThreadNotFound(thread)
        return row

    def _needs_attention(self, row: _Thread) -> bool:
        if row.sealed:
            return False
        if row.state in _ATTENTION:
            return True
        free = row.holder is None or row.lease_until <= self._sources.now_us()
        return free and (row.state is ThreadState.RUNNING or bool(row.waiting))

    def _info(self, thread: str, row: _Thread) -> ThreadInfo:
        remaining = None
        if row.holder is not None:
            remaining = (row.lease_until - self._sources.now_us()) / 1e6
        return ThreadInfo(
            thread=thread,
            head=len(row.events),
            head_hash=row.head_hash,
            fence=row.fence,
            holder=row.holder,
            lease_remaining_s=remaining,
            state=row.state,
            wake_at_us=row.wake_at_us,
            created_at=row.created_at,
            updated_at=row.updated_at,
            inbox_waiting=len(row.waiting),
            sealed=row.sealed,
            holder_name=row.holder_name,
        )
