"""The journal as its users hold it: one store, one writer, one renewer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from .envelope import Event, check_thread_id
from .errors import StoreUnavailable, ThreadBusy, ThreadNotFound, UsageError
from .holder import describe as describe_holder
from .holder import is_dead
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
    Lease,
    Message,
    Page,
    Release,
    Sent,
    Store,
    ThreadInfo,
    ThreadState,
)
from .tenure import Tenure
from .transaction import see_through
from .writer import Writer

HOLD_S = 600.0
LEASE_TTL_S = 30.0
PATIENCE_S = 15.0

T = TypeVar("T")


class Journal:
    """
    A log of threads, shared by every run of a process. Thread-safe; it knows no event loop.

    Every call but `append` is tried again for `patience_s` while the store is away, then raises
    `StoreUnavailable`; all of them are safe to repeat.

    Args:
        store: Where the threads live; closed with the journal.
        hold_s: How long an append whose fate is unknown is held and sent again, seconds.
        lease_ttl_s: How long a lease lasts without renewal, seconds.
        patience_s: How long other calls are tried again, seconds.
        sources: Clock and randomness.
    """

    def __init__(
        self,
        store: Store,
        *,
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
        self._closed = False

    @classmethod
    def open(
        cls,
        dsn: str | None = None,
        *,
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
            unsafe: Accept a server with `fsync` or `synchronous_commit` off, which can lose what it acknowledged.
            prepare: Use prepared statements, unless a pooler is seen to stand between; off, nothing needs a session.
            install: Set the schema up if it is missing.
            hold_s: How long an append whose fate is unknown is held and sent again, seconds.
            lease_ttl_s: How long a lease lasts without renewal, seconds.
            patience_s: How long other calls are tried again, seconds.
            sources: Clock and randomness.

        Raises:
            UsageError: The connection string is malformed.
            StoreUnavailable: The server cannot be reached.
            StoreRefused: The server is too old or unsafe, or schema or rights are missing.
            MissingExtra: No connection string, and the embedded Postgres is not installed.
        """
        from .postgres import PostgresStore

        dsn = dsn or os.environ.get("REFOLD_DSN")
        if not dsn:
            from . import embedded

            dsn = embedded.start()
        store = PostgresStore.open(dsn, unsafe=unsafe, prepare=prepare, install=install)
        return cls(store, hold_s=hold_s, lease_ttl_s=lease_ttl_s, patience_s=patience_s, sources=sources)

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
        import asyncio

        # Shielded: a cancelled caller must not leave the connections open; the flush goes on in its thread.
        await asyncio.shield(asyncio.to_thread(self.close))

    @property
    def identity(self) -> str:
        """Which database this is; two journals with one identity hold the same threads."""
        return self.store.identity

    def create(self, thread: str) -> bool:
        """Make *thread* if it is not there; True if it was made now."""
        return self._patiently(lambda: self.store.create(thread))

    def acquire(self, thread: str, *, steal: bool = False, create: bool = True) -> Tenure:
        """
        Take the right to write *thread*.

        Args:
            thread: Thread id.
            steal: Take it from a live holder too, which then stops at its next append. From a holder that
                provably died on this machine it is taken at once in any case.
            create: Make the thread if it is not there.

        Raises:
            ThreadBusy: A live worker holds it.
            ThreadNotFound: It is not there and *create* is off.
            ThreadSealed: It was imported and nobody has adopted it.
        """
        check_thread_id(thread)
        # One holder id for all the retries: an acquire whose answer was lost finds itself the holder.
        holder = self.sources.new_id()
        granted_s = 0.0
        buried = 0

        def ask(robbed: int | None) -> Lease | Busy:
            nonlocal granted_s
            granted_s = self.sources.monotonic_s()
            return self.store.acquire(
                thread, holder=holder, ttl_s=self.lease_ttl_s, name=describe_holder(), steal=robbed
            )

        def take() -> Tenure:
            nonlocal buried
            try:
                lease = ask(None)
            except ThreadNotFound:
                if not create:
                    raise
                self.store.create(thread)
                lease = ask(None)
            if isinstance(lease, Busy) and is_dead(lease.name):
                # Kept for the retries: the answer to the taking itself may be lost.
                buried = lease.fence
            if isinstance(lease, Busy) and (buried == lease.fence or steal):
                lease = ask(lease.fence)
            if isinstance(lease, Busy):
                raise ThreadBusy(thread, remaining_s=lease.remaining_s)
            return Tenure(
                lease,
                granted_s=granted_s,
                writer=self._writer,
                release=self._release,
                transact=self._transact,
                sources=self.sources,
                rival=lease.fence > 1 and lease.fence != buried + 1,
            )

        tenure = self._patiently(take)
        self._renewer.watch(tenure)
        return tenure

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
            attention: Only what needs somebody: parked, failed, waiting, or running without a live lease.
        """
        return self._patiently(
            lambda: self.store.threads(after=after, limit=limit, states=states, attention=attention)
        )

    def read(self, thread: str, *, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Event]:
        """Events with `after < seq <= upto` in seq order, *limit* at most. Empty for an unknown thread."""
        return self._patiently(lambda: self.store.read(thread, after=after, upto=upto, limit=limit))

    def feed(self, after: Cursor | None = None, *, limit: int = 1000) -> Page:
        """Events of all threads after *after*, each once, in seq order within a thread, none ever missed."""
        return self._patiently(lambda: self.store.feed(after or Cursor(), limit=limit))

    def send(self, thread: str, *, key: str, kind: str, body: bytes) -> Sent:
        """Put a message into the inbox; of several with one key the first stays. Raises `ThreadNotFound`."""
        return self._patiently(lambda: self.store.send(thread, key=key, kind=kind, body=body))

    def inbox(self, thread: str, *, after: int = 0, consumed: bool = False) -> list[Message]:
        """Messages that wait, in order of arrival; with *consumed* those already taken too."""
        return self._patiently(lambda: self.store.inbox(thread, after=after, consumed=consumed))

    def admit(self, admission: Admission) -> Admitted:
        """Keep events of another journal in a sealed thread, or say why not; `journal.export` imports files."""
        return self._patiently(lambda: self.store.admit(admission))

    def adopt(self, thread: str) -> bool:
        """
        Let an imported thread be resumed here; False if it was not sealed.

        Make sure first that it does not go on where it came from: two journals would both act on it.

        Raises:
            ThreadNotFound: No such thread.
        """
        return self._patiently(lambda: self.store.adopt(thread))

    def close(self) -> None:
        """See every append already taken through, then close; leases still held run out by themselves."""
        if self._closed:
            return
        self._closed = True
        # The renewer goes last: an append held through an outage must not lose its lease meanwhile.
        self._writer.close()
        self._renewer.close()
        self.store.close()

    def _transact(self, work: Callable[[Any], Append]) -> tuple[Append, AppendResult]:
        return see_through(self.store, self.sources, work, hold_s=self._hold_s)

    def _release(self, thread: str, fence: int, seen: int) -> Release:
        return self._patiently(lambda: self.store.release(thread, fence=fence, seen=seen))

    def _patiently(self, call: Callable[[], T]) -> T:
        give_up_s: float | None = None
        pause_s = 0.0
        while True:
            try:
                return call()
            except StoreUnavailable:
                now_s = self.sources.monotonic_s()
                if give_up_s is None:
                    give_up_s = now_s + self._patience_s
                if self._closed or now_s >= give_up_s:
                    raise
            # The commonest failure is a connection that died while idle: the first retry does not wait.
            time.sleep(pause_s)
            pause_s = min(1.0, max(0.05, pause_s * 2))
