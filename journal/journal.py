"""The journal as its users hold it: one store, one writer, one renewer, and a cache that may be missing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from .bells import Bells
from .envelope import Event, check_thread_id
from .errors import StoreUnavailable, ThreadBusy, ThreadNotFound, UsageError
from .holder import Row, is_dead, row_of
from .holder import describe as describe_holder
from .hot_state import Counts, HotState, fold_history
from .leases import Leases
from .link import Cache, Link
from .memory import MemoryStore
from .renewer import Renewer
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
    Page,
    Release,
    Sent,
    Store,
    ThreadInfo,
    ThreadState,
)
from .tail import POLL_S, Tail
from .tenure import Tenure
from .transaction import Check, Work, see_through
from .writer import Writer

HOLD_S = 600.0
LEASE_TTL_S = 30.0
PATIENCE_S = 15.0
FLUSH_S = 1.0
CLOSE_S = 5.0
HISTORY_PAGE = 2000
ROWS_MAX = 4096

T = TypeVar("T")


class Journal:
    """
    A log of threads, shared by every run of a process. Thread-safe, and of use without an event loop; one that is
    given carries its own appends.

    Every call but `append` is tried again for `patience_s` while the store is away, then raises
    `StoreUnavailable`; all of them are safe to repeat.

    Args:
        store: Where the threads live; closed with the journal.
        cache: Holds hot state and carries rings between processes; closed with the journal.
        hold_s: How long an append whose fate is unknown is held and sent again, seconds.
        lease_ttl_s: How long a lease lasts without renewal, seconds.
        patience_s: How long other calls are tried again, seconds.
        sources: Clock and randomness.
    """

    def __init__(
        self,
        store: Store,
        *,
        cache: Cache | None = None,
        hold_s: float = HOLD_S,
        lease_ttl_s: float = LEASE_TTL_S,
        patience_s: float = PATIENCE_S,
        sources: Sources = SYSTEM,
    ) -> None:
        if not (hold_s >= 0 and lease_ttl_s > 0 and patience_s >= 0):
            raise UsageError(
                f"hold_s={hold_s} and patience_s={patience_s} must not be negative, "
                f"lease_ttl_s={lease_ttl_s} must be positive"
            )
        self.store = store
        self.lease_ttl_s = lease_ttl_s
        self.sources = sources
        self._hold_s = hold_s
        self._patience_s = patience_s
        self._writer = Writer(store, sources, hold_s=hold_s)
        self._renewer = Renewer(store, sources)
        self._link = None if cache is None else Link(cache, sources)
        self._hot = None if self._link is None else HotState(self._link, store)
        self._bells = Bells(store.identity, self._link)
        self.leases = Leases(self.inbox, sources)
        self._closed = False
        self._rows: dict[str, Row] = {}
        """What it knows of the holders of the threads it took last, to be told on with its name."""

    @classmethod
    def open(
        cls,
        dsn: str | None = None,
        *,
        redis_url: str | None = None,
        unsafe: bool = False,
        prepare: bool = True,
        install: bool = True,
        hold_s: float = HOLD_S,
        lease_ttl_s: float = LEASE_TTL_S,
        patience_s: float = PATIENCE_S,
        sources: Sources = SYSTEM,
    ) -> Journal:
        """
        Open the journal in a Postgres database, setting its schema up if it is not there.

        Args:
            dsn: Connection string or URL; by default `$REFOLD_DSN`, else an embedded Postgres under
                `$REFOLD_HOME` or the platform's data folder.
            redis_url: A Redis that makes resuming and waking faster, and nothing else; by default
                `$REFOLD_REDIS_URL`, else none.
            unsafe: Accept a server with `fsync` or `synchronous_commit` off, which can lose what it acknowledged.
            prepare: Use prepared statements, unless a pooler is seen to stand between; off, nothing needs a session.
            install: Set the schema up if it is missing.
            hold_s: How long an append whose fate is unknown is held and sent again, seconds.
            lease_ttl_s: How long a lease lasts without renewal, seconds.
            patience_s: How long other calls are tried again, seconds.
            sources: Clock and randomness.

        Raises:
            UsageError: The connection string or the URL is malformed.
            StoreUnavailable: The server cannot be reached.
            StoreRefused: The server is too old or unsafe, or schema or rights are missing.
            MissingExtra: No connection string, and the embedded Postgres is not installed; or a Redis, and
                redis-py is not.
        """
        from .hot import RedisServer
        from .postgres import PostgresStore

        redis_url = redis_url or os.environ.get("REFOLD_REDIS_URL")
        cache = RedisServer.open(redis_url) if redis_url else None
        dsn = dsn or os.environ.get("REFOLD_DSN")
        if not dsn:
            from . import embedded

            dsn = embedded.start()
        store = PostgresStore.open(dsn, unsafe=unsafe, prepare=prepare, install=install)
        return cls(
            store,
            cache=cache,
            hold_s=hold_s,
            lease_ttl_s=lease_ttl_s,
            patience_s=patience_s,
            sources=sources,
        )

    @classmethod
    def memory(
        cls, *, hold_s: float = HOLD_S, lease_ttl_s: float = LEASE_TTL_S, sources: Sources = SYSTEM
    ) -> Journal:
        """A journal in memory, gone with the process: for tests and throw-away runs."""
        return cls(MemoryStore(sources), hold_s=hold_s, lease_ttl_s=lease_ttl_s, sources=sources)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded: a cancelled caller must not leave the connections open; the flush goes on in its thread.
        await asyncio.shield(asyncio.to_thread(self.close))

    @property
    def identity(self) -> str:
        """Which database this is; two journals with one identity hold the same threads."""
        return self.store.identity

    @property
    def hot_counts(self) -> Counts | None:
        """What became of looking for hot state so far; None without a cache."""
        return None if self._hot is None else self._hot.counts

    def create(self, thread: str) -> bool:
        """Make *thread* if it is not there; True if it was made now."""
        return self._patiently(lambda: self.store.create(thread))

    def acquire(self, thread: str, *, steal: bool = False, create: bool = True) -> Tenure:
        """
        Take the right to write *thread*, after what this journal is still giving back of it.

        Args:
            thread: Thread id.
            steal: Take it from a live holder too, which then stops at its next append. From a holder that
                provably died on this machine, and from a tenure of this journal's own that could not be given
                back, it is taken at once in any case.
            create: Make the thread if it is not there.

        Raises:
            ThreadBusy: A live worker holds it.
            ThreadNotFound: It is not there and *create* is off.
            ThreadSealed: It was imported and nobody has adopted it.
        """
        check_thread_id(thread)
        self.leases.wait_for(thread, self._patience_s)
        # One holder id for all the retries: an acquire whose answer was lost finds itself the holder.
        holder = self.sources.new_id()
        granted_s = 0.0
        row = self._rows.get(thread)

        def ask(robbed: int | None = None) -> Lease | Busy:
            nonlocal granted_s
            granted_s = self.sources.monotonic_s()
            return self.store.acquire(
                thread, holder=holder, ttl_s=self.lease_ttl_s, name=describe_holder(row), steal=robbed
            )

        def take() -> Tenure:
            nonlocal row
            told = row
            try:
                lease = ask()
            except ThreadNotFound:
                if not create:
                    raise
                self.store.create(thread)
                lease = ask()
            if isinstance(lease, Busy):
                # What is learnt is kept for the retries: the answer to the taking itself may be lost.
                told = row = row_of(lease.name, lease.fence) or row
                if steal or lease.fence == self.leases.left_behind.get(thread) or is_dead(lease.name):
                    lease = ask(lease.fence)
            if isinstance(lease, Lease):
                row = row_of(lease.before, lease.fence - 1) or row
                if lease.left_open and row != told:
                    # Only the answer told who was there before, and whoever comes next is to learn it too.
                    lease = ask()
            if isinstance(lease, Busy):
                raise ThreadBusy(thread, remaining_s=lease.remaining_s)
            self.leases.left_behind.pop(thread, None)
            return Tenure(
                lease,
                granted_s=granted_s,
                writer=self._writer,
                release=self._release,
                transact=self._transact,
                committed=self._committed,
                sources=self.sources,
                known_since=row.before(lease.fence) if row else 0,
            )

        tenure = self._patiently(take)
        self._remember(thread, Row(tenure.known_since or tenure.fence, tenure.fence))
        self._renewer.watch(tenure)
        return tenure

    def renew(self, tenure: Tenure) -> bool:
        """Renew the lease of *tenure* now; False, and the tenure is lost, when somebody else has the thread."""
        sent_s = 0.0

        def ask() -> bool:
            nonlocal sent_s
            sent_s = self.sources.monotonic_s()
            return self.store.renew(tenure.thread, fence=tenure.fence, ttl_s=tenure.ttl_s)

        if self._patiently(ask):
            tenure.renewed(sent_s)
            return True
        tenure.mark_lost()
        return False

    def info(self, thread: str) -> ThreadInfo:
        """The thread's row. Raises `ThreadNotFound`."""
        return self._patiently(lambda: self.store.info(thread))

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
                or with messages that wait.
        """
        return self._patiently(
            lambda: self.store.threads(after=after, limit=limit, states=states, attention=attention)
        )

    def read(self, thread: str, *, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Event]:
        """Events with `after < seq <= upto` in seq order, *limit* at most. Empty for an unknown thread."""
        return self._patiently(lambda: self.store.read(thread, after=after, upto=upto, limit=limit))

    def fold_history(self, tenure: Tenure, fold: Callable[[list[Event]], T]) -> T:
        """
        What *fold* makes of the whole log of the thread that *tenure* holds, up to its head.

        It is read from hot state where that can be believed, and from the store elsewhere.

        Args:
            tenure: Tells the head and its hash.
            fold: Checks the hash chain from seq 1 on, and raises if it does not hold; may be called twice.

        Raises:
            Corrupt: The log does not lead to the thread's head.
            Exception: What *fold* raised over the log.
        """

        def read(thread: str, after: int, upto: int) -> list[Event]:
            return self.read(thread, after=after, upto=upto, limit=HISTORY_PAGE)

        return fold_history(read, self._hot, tenure.thread, tenure.head, tenure.head_hash, fold)

    def tail(
        self, thread: str | None = None, *, after: int | Cursor | None = None, poll_s: float = POLL_S
    ) -> Tail:
        """
        Follow *thread*, or all threads: what is there, then what comes, each event once and in order.

        New events are seen at once when this journal wrote them or a Redis carries the news, else within *poll_s*.
        Events of all threads come once every older transaction of the server that writes has ended.

        Args:
            thread: Thread id; None follows all.
            after: Where to go on: a seq, or for all threads a cursor; by default from the beginning.
            poll_s: How often to look without being told, seconds.
        """
        if thread is not None:
            check_thread_id(thread)
        return Tail(self, self._bells, self.sources, thread=thread, after=after, poll_s=poll_s)

    def bell(self, thread: str, ring: Callable[[], None]) -> AbstractContextManager[None]:
        """
        Call *ring*, from any thread, whenever a message may have come for *thread*: at once when this journal sent it
        or a Redis carries the news, else not at all; so look by yourself too, every so often.
        """
        return self._bells.hung("inbox", thread, ring)

    def feed(self, after: Cursor | None = None, *, limit: int = 1000) -> Page:
        """Events of all threads after *after*, each once, in seq order within a thread, none ever missed."""
        return self._patiently(lambda: self.store.feed(after or Cursor(), limit=limit))

    def send(self, thread: str, *, key: str, kind: str, body: bytes) -> Sent:
        """Put a message into the inbox; of several with one key the first stays. Raises `ThreadNotFound`."""
        sent = self._patiently(lambda: self.store.send(thread, key=key, kind=kind, body=body))
        self._bells.ring("inbox", thread)
        return sent

    def inbox(self, thread: str, *, after: int = 0, consumed: bool = False) -> list[Message]:
        """Messages that wait, in order of arrival; with *consumed* those already taken too."""
        return self._patiently(lambda: self.store.inbox(thread, after=after, consumed=consumed))

    def admit(self, admission: Admission) -> Admitted:
        """Keep events of another journal in a sealed thread, or say why not; `journal.export` imports files."""
        lost = False

        def admit() -> Admitted:
            nonlocal lost
            try:
                return self.store.admit(admission)
            except StoreUnavailable:
                lost = True
                raise

        admitted = self._patiently(admit)
        self._bells.ring("log", admission.thread)
        # Of an answer that was lost, that they are there now is as good as any.
        return Admitted.ADMITTED if lost and admitted is Admitted.PRESENT else admitted

    def fork(self, fork: Fork) -> bool:
        """
        Make a thread of another one's first events and some of its own, whole or not at all; `replay.fork` edits and
        checks. False if there is another thread of that id.

        Raises:
            Corrupt: The origin is not what *fork* says of it.
        """
        made = self._patiently(lambda: self.store.fork(fork))
        self._bells.ring("log", fork.thread)
        return made

    def adopt(self, thread: str) -> bool:
        """
        Let an imported thread be resumed here; False if it was not sealed.

        Make sure first that it does not go on where it came from: two journals would both act on it.

        Raises:
            ThreadNotFound: No such thread.
        """
        return self._patiently(lambda: self.store.adopt(thread))

    def close(self) -> None:
        """See appends already taken through, and leases on their way back for 5 s; the others run out by themselves."""
        if self._closed or self._writer.inherited:
            return
        self._closed = True
        # The renewer goes last: an append held through an outage must not lose its lease meanwhile.
        self._writer.close()
        self.leases.close(CLOSE_S)
        self._renewer.close()
        self._bells.flush(FLUSH_S)
        if self._hot is not None:
            self._hot.close(flush_s=FLUSH_S)
        if self._link is not None:
            self._link.close()
        self._bells.close()
        self.store.close()
        self.leases.join(FLUSH_S)

    def _remember(self, thread: str, row: Row) -> None:
        self._rows.pop(thread, None)
        self._rows[thread] = row
        if len(self._rows) > ROWS_MAX:
            del self._rows[next(iter(self._rows))]

    def _committed(self, append: Append) -> None:
        self._bells.ring("log", append.thread)
        if self._hot is not None:
            head = append.expected + len(append.events)
            self._hot.committed(append.thread, append.expected, head)

    def _transact(self, work: Work, limit_s: float, check: Check) -> tuple[Append, AppendResult]:
        return see_through(
            self.store,
            self.sources,
            work,
            hold_s=self._hold_s,
            limit_s=limit_s,
            check=check,
            over=lambda: self._closed,
        )

    def _release(self, thread: str, fence: int, seen: int) -> Release:
        try:
            ask = partial(self.store.release, thread, fence=fence, seen=seen)
            return self._patiently(ask, over=lambda: self.leases.closed)
        except StoreUnavailable:
            self.leases.left_behind[thread] = fence
            raise

    def _patiently(self, call: Callable[[], T], over: Callable[[], bool] | None = None) -> T:
        give_up_s: float | None = None
        pause_s = 0.0
        while True:
            try:
                return call()
            except StoreUnavailable:
                now_s = self.sources.monotonic_s()
                if give_up_s is None:
                    give_up_s = now_s + self._patience_s
                if (over() if over else self._closed) or now_s >= give_up_s:
                    raise
            # The commonest failure is a connection that died while idle: the first retry does not wait.
            time.sleep(pause_s)
            pause_s = min(1.0, max(0.05, pause_s * 2))


def check_journal(journal: Any) -> None:
    """
    Where a journal is handed in, before anything is done with it.

    Raises:
        UsageError: It is something else, which it might have been opened from.
    """
    if not isinstance(journal, Journal):
        # By its type alone: a connection string may hold a password.
        raise UsageError(
            "journal is an open Journal, as Journal.open(dsn) or Journal.memory() gives it, "
            f"not a {type(journal).__name__}"
        )
