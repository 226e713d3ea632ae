"""What every store promises. No SQL and no psycopg here; `tests/conformance` holds each store to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

from .envelope import Event, NewEvent
from .holder import is_dead
from .thread_state import ThreadState as ThreadState  # noqa: PLC0414 - one of the words of a store


class Outcome(StrEnum):
    """What became of an append."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    """These very events are already there: an earlier answer was lost."""
    FENCED = "fenced"
    """The fence is not current: another worker owns the thread."""
    CONFLICT = "conflict"
    """The fence is current and the head is another: a programming error, or a rewound log."""
    MISSING = "missing"
    """No such thread."""


class Append(Struct, frozen=True, kw_only=True):
    """
    One batch for one thread; sent again unchanged after any ambiguous failure.

    Args:
        thread: Thread id.
        expected: Seq of the thread's head before this batch.
        expected_hash: Hash of that head; the append is a compare-and-set on the whole history.
        fence: The tenure that writes.
        events: At least one event, in order; they get the seqs after *expected*.
        hashes: Their chain hashes, computed by the writer and recomputed by every reader.
        ttl_s: The lease is renewed for this long.
        state: The thread's state from now on.
        wake_at_us: When a waiting thread wants to be resumed, microseconds since the epoch.
        consumed: Inbox ids taken by this batch, in the same transaction.
    """

    thread: str
    expected: int
    expected_hash: bytes
    fence: int
    events: tuple[NewEvent, ...]
    hashes: tuple[bytes, ...]
    ttl_s: float
    state: ThreadState = ThreadState.RUNNING
    wake_at_us: int | None = None
    consumed: tuple[int, ...] = ()


class Batch(Struct, frozen=True):
    """
    What an append is to record.

    Args:
        events: In order.
        state: The thread's state from then on.
        wake_at_us: When a waiting thread wants to be resumed, microseconds since the epoch.
        consumed: Inbox ids that the events take, in the same transaction.
    """

    events: tuple[NewEvent, ...]
    state: ThreadState = ThreadState.RUNNING
    wake_at_us: int | None = None
    consumed: tuple[int, ...] = ()


class AppendResult(Struct, frozen=True):
    """Outcome of an append and the thread's head after it."""

    outcome: Outcome
    head: int


class Lease(Struct, frozen=True, kw_only=True):
    """The right to write a thread, as granted; also where its log stood at that moment."""

    thread: str
    holder: UUID
    fence: int
    head: int
    head_hash: bytes
    state: ThreadState
    ttl_s: float
    left_open: bool
    """Whether the holder before had not given it back: it crashed, hangs, or was robbed."""
    now_us: int
    """The database's clock at the grant, microseconds since the epoch."""
    before: str = ""
    """What the holder before called itself, however its time ended; empty in the answer to a repeated call."""


class Busy(Struct, frozen=True):
    """A live worker holds the thread: for how long yet, under which fence, and its name for itself."""

    remaining_s: float
    fence: int
    name: str


class Release(StrEnum):
    """Answer to giving a lease back."""

    RELEASED = "released"
    INBOX_PENDING = "inbox_pending"
    """A message arrived that the holder has not seen; the lease is kept."""
    FENCED = "fenced"


class Message(Struct, frozen=True, kw_only=True):
    """A message from outside to a thread, deduplicated by `(thread, key)`."""

    id: int
    """Grows within a thread in the order of arrival."""
    thread: str
    key: str
    kind: str
    body: bytes
    sent_at: int
    consumed_seq: int | None = None
    """Head of the append that took it; None while it waits."""


class Sent(Struct, frozen=True):
    """Answer to a send: the message now stored under the key, and whether it is the one just sent."""

    fresh: bool
    message: Message


class Admission(Struct, frozen=True, kw_only=True):
    """
    Events of another journal, to be kept here with their ids, hashes and times.

    Args:
        thread: Thread id; made, and sealed, if it is not there and *expected* is 0.
        expected: Seq of the thread's head before them.
        expected_hash: Hash of that head.
        events: At least one, in order; they get the seqs after *expected*, and fence 0.
        state: The thread's state from now on.
    """

    thread: str
    expected: int
    expected_hash: bytes
    events: tuple[Event, ...]
    state: ThreadState


class Admitted(StrEnum):
    """What became of an admission."""

    ADMITTED = "admitted"
    PRESENT = "present"
    """These very events are already there."""
    FORK = "fork"
    """The thread holds other events at these seqs, or ends before them."""
    OPEN = "open"
    """The thread is not sealed and does not hold these events: it has a writer of its own here."""


class Fork(Struct, frozen=True, kw_only=True):
    """
    A thread to be made of the first events of another one, and of some of its own.

    Args:
        thread: Id of the new thread.
        origin: The thread it is made from, which is only read.
        upto: Seq of the last event that both have.
        upto_hash: Its hash.
        events: At least one, in order; they follow after *upto*.
        hashes: Their chain hashes.
        state: The new thread's state.
        messages: What waits in its inbox from the beginning: `(key, kind, body)` each.
    """

    thread: str
    origin: str
    upto: int
    upto_hash: bytes
    events: tuple[NewEvent, ...]
    hashes: tuple[bytes, ...]
    state: ThreadState
    messages: tuple[tuple[str, str, bytes], ...] = ()


class ThreadInfo(Struct, frozen=True, kw_only=True):
    """One thread's row."""

    thread: str
    head: int
    head_hash: bytes
    fence: int
    holder: UUID | None
    lease_remaining_s: float | None
    """By the database's clock; None when nobody holds the thread, not positive when the lease has run out."""
    state: ThreadState
    wake_at_us: int | None
    created_at: int
    updated_at: int
    """When the newest event was recorded; without one, when the thread was made."""
    inbox_waiting: int
    sealed: bool = False
    """Imported and not adopted: nobody can acquire it."""
    holder_name: str = ""
    """What the holder calls itself; see `journal.holder`."""

    @property
    def held(self) -> bool:
        """Whether a worker that may be alive holds the thread: its lease has not run out, and it is not known dead."""
        return (self.lease_remaining_s or 0.0) > 0 and not is_dead(self.holder_name)


class Cursor(Struct, frozen=True, order=True):
    """A place in the cross-thread feed."""

    xid: int = 0
    thread: str = ""
    seq: int = 0


class Page(Struct, frozen=True):
    """Events of the feed after a cursor, the cursor to go on from, and the place of each event."""

    events: tuple[Event, ...]
    cursor: Cursor
    cursors: tuple[Cursor, ...] = ()


class Store(Protocol):
    """
    A log of threads. Blocking, thread-safe; each method is one round trip and one transaction.

    Any method raises `StoreUnavailable` when the server cannot be reached or the answer was lost
    (for `append`, `append_many`, `acquire`, `send`, `release` and `fork`, sending the same call again is safe and
    is the only way to learn the outcome), and `StoreRefused` when the server is unfit.
    """

    @property
    def identity(self) -> str:
        """Which database this is; two stores with one identity hold the same threads."""

    def create(self, thread: str) -> bool:
        """Make *thread* if it is not there; True if it was made now."""

    def info(self, thread: str) -> ThreadInfo:
        """The thread's row. Raises `ThreadNotFound`."""

    def threads(
        self,
        *,
        after: tuple[int, str] | None = None,
        limit: int = 100,
        states: Sequence[ThreadState] | None = None,
        attention: bool = False,
    ) -> list[ThreadInfo]:
        """
        Threads, newest first, one keyset page.

        Args:
            after: `(created_at, thread)` of the last row of the page before.
            limit: Rows at most.
            states: Only these states.
            attention: Only what needs somebody: parked, failed, waiting, or without a live lease and either running
                or with messages that wait; no sealed threads.
        """

    def acquire(
        self, thread: str, *, holder: UUID, ttl_s: float, name: str = "", steal: int | None = None
    ) -> Lease | Busy:
        """
        Take the thread if it is free, expired, or already *holder*'s; the fence grows unless it is.

        Args:
            thread: Thread id.
            holder: Fresh for each attempt to take a thread, the same in its retries.
            ttl_s: How long the lease holds by the database's clock.
            name: The holder's name for itself, shown to whoever finds the thread busy.
            steal: Take it from a live holder too, if it is still the one of this fence.

        Raises:
            ThreadNotFound: Create it first.
            ThreadSealed: It was imported; adopt it first.
        """

    def renew(self, thread: str, *, fence: int, ttl_s: float) -> bool:
        """Renew the lease for *ttl_s* from now; False if the fence is not current."""

    def append(self, append: Append) -> AppendResult:
        """
        Append a batch, or say why not.

        Durable when the outcome is appended or duplicate. Safe to send again unchanged after any failure.
        """

    def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Append batches of different threads with one commit; each has its own outcome, in order."""

    def transact(self, work: Callable[[Any], Append], *, limit_s: float) -> AppendResult:
        """
        Call *work* with a connection in a transaction, and append what it returns in that very transaction.

        The transaction is rolled back if *work* raises (its exception is raised as it is) or if the outcome
        is not appended. After an ambiguous failure ask `recorded`, and never send the append alone.

        Args:
            work: Does what is to be committed with the append that it returns.
            limit_s: How long the transaction may stand still, seconds; then the server ends it.

        Raises:
            StoreRefused: This store is no database.
        """

    def recorded(self, thread: str, seq: int, event: UUID) -> bool:
        """Whether that event is in the log at *seq*, after waiting for a transaction that may yet add it."""

    def release(self, thread: str, *, fence: int, seen: int) -> Release:
        """Give the lease back, unless a message with an id above *seen* waits in the inbox."""

    def read(self, thread: str, *, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Event]:
        """Events with `after < seq <= upto` in seq order, *limit* at most. Empty for an unknown thread."""

    def feed(self, after: Cursor, *, limit: int = 1000) -> Page:
        """Events of all threads after *after*, each once, in seq order within a thread, none ever missed."""

    def send(self, thread: str, *, key: str, kind: str, body: bytes) -> Sent:
        """Put a message into the inbox; of several with one key the first stays. Raises `ThreadNotFound`."""

    def inbox(self, thread: str, *, after: int = 0, consumed: bool = False) -> list[Message]:
        """Messages that wait, in order of arrival; with *consumed* those already taken too."""

    def admit(self, admission: Admission) -> Admitted:
        """
        Keep events of another journal in a sealed thread, or say why not. Safe to send again unchanged.

        Raises:
            Corrupt: A hash does not follow from the event before; nothing was written.
            StoreRefused: Only the owner of the schema may do this.
        """

    def fork(self, fork: Fork) -> bool:
        """
        Make a thread of another one's first events and some of its own, all at once; its fence is 1.

        False if there is another thread of that id already, True if it is the one asked for.

        Raises:
            Corrupt: The origin does not hold the event that is to be the last common one.
        """

    def adopt(self, thread: str) -> bool:
        """Let a sealed thread be acquired; False if it was not sealed. Raises `ThreadNotFound`."""

    def close(self) -> None:
        """Close connections; calls under way may fail with `StoreUnavailable`."""
