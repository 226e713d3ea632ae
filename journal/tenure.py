"""One holder's time with a thread: the only way to write its log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec import Struct

from .envelope import NewEvent, chain
from .errors import LeaseLost, StoreRefused, StoreUnavailable, UsageError
from .fates import failure_of
from .limits import check_batch
from .sources import Sources
from .store import Append, AppendResult, Batch, Lease, Outcome, Release, ThreadState
from .transaction import Check, Work
from .writer import Submits

Transact = Callable[[Work, float, Check], tuple[Append, AppendResult]]

Told = Callable[[AppendResult | BaseException], object]
"""Told what an append came to."""


def _nothing() -> None:
    """Nothing speaks against it."""


class _Flight(Struct, frozen=True):
    """An append, and who is told what it came to."""

    append: Append
    told: Told


class Tenure:
    """
    The right to write one thread, from `Journal.acquire` to `release` or its loss.

    Appends are performed by the journal's writer: no cancellation or end of the caller touches them.
    The lease is renewed in the background until `release`, loss, or the time set by `overdue_after`.

    Attributes:
        thread: The thread's id.
        fence: Number of this tenure; grows with each change of holder.
        head: Seq of the newest event known to be durable.
        head_hash: Its chain hash.
        state: The thread's state as last recorded.
        ttl_s: How long each renewal makes the lease last, seconds.
        known_since: First fence of the unbroken row of holders just before this one that provably died, and with
            them their tools, or were this very process; 0 if the one before may be alive elsewhere.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        granted_s: float,
        writer: Submits,
        release: Callable[[str, int, int], Release],
        sources: Sources,
        transact: Transact | None = None,
        committed: Callable[[Append], object] | None = None,
        known_since: int = 0,
    ) -> None:
        self.thread = lease.thread
        self.fence = lease.fence
        self.head = lease.head
        self.head_hash = lease.head_hash
        self.state = lease.state
        self.ttl_s = lease.ttl_s
        self.known_since = known_since
        self._epoch_us = lease.now_us
        self._epoch_s = sources.monotonic_s()
        self._writer = writer
        self._release = release
        self._transact = transact
        self._committed = committed
        self._sources = sources
        self._lock = threading.Lock()
        self._granted_s = granted_s
        self._overdue_s: float | None = None
        self._busy = False
        """Whether an append is under way."""
        self._flight: _Flight | None = None
        """It, unless it is made in a transaction."""
        self._next: _Flight | None = None
        """What goes out as soon as that has landed."""
        self._transaction: object | None = None
        """Stands for the transaction under way."""
        self._landed: list[Callable[[], object]] = []
        """Called when nothing is under way any more."""
        self._ended = False
        self._releasing = False
        self._failure: BaseException | None = None
        self._lost = False
        self._on_lost: Callable[[], None] | None = None

    def __repr__(self) -> str:
        standing = "lost" if self._lost else "ended" if self._ended else f"{self.remaining_s():.1f} s left"
        return f"<Tenure {self.thread!r} fence={self.fence} head={self.head} {standing}>"

    @property
    def lost(self) -> bool:
        """Whether another worker is known to own the thread."""
        return self._lost

    @property
    def ended(self) -> bool:
        """Whether the lease was given back or lost."""
        return self._ended

    def remaining_s(self) -> float:
        """Seconds the lease surely still holds by this process's monotonic clock; not positive when it may not."""
        if self._ended:
            return 0.0
        return self._granted_s + self.ttl_s - self._sources.monotonic_s()

    def now_us(self) -> int:
        """
        The database's clock: as it was at the grant, gone on by this process's monotonic clock, microseconds.

        So it is the same for all workers of a thread, and nobody who sets a clock moves it.
        """
        return self._epoch_us + max(0, round((self._sources.monotonic_s() - self._epoch_s) * 1e6))

    def not_before(self, now_us: int) -> None:
        """Let the clock go on from *now_us*, which this process has seen, if the database's was set back since."""
        self._epoch_us += max(0, now_us - self.now_us())

    def overdue_after(self, deadline_s: float | None) -> None:
        """Renew only until *deadline_s* of the monotonic clock, so that a hung worker is replaced; None: no end."""
        self._overdue_s = deadline_s

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Call *callback* once, from another thread, when the tenure is known to be lost; at once if it is."""
        with self._lock:
            self._on_lost = callback
            lost = self._lost
        if lost:
            self._tell_lost()

    def append(
        self,
        events: Sequence[NewEvent],
        *,
        state: ThreadState,
        wake_at_us: int | None = None,
        consumed: Sequence[int] = (),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Future[AppendResult]:
        """
        Append *events* after the head; at most one append is in flight.

        Args:
            events: In order; they get the seqs after `head`.
            state: The thread's state from now on.
            wake_at_us: When a waiting thread wants to be resumed, microseconds since the epoch.
            consumed: Inbox ids these events take, in the same transaction.
            loop: The caller's running loop, which may then carry the append itself; who gives it must not
                block on the future.

        Returns:
            A future that cannot be cancelled: an `AppendResult` once the events are durable, or
            `LeaseLost`, `LogRewound`, or `StoreUnavailable` when their fate could not be learnt in time.

        Raises:
            LimitExceeded: An event or the batch is too large; nothing was written.
            UsageError: The tenure was given back.
        """
        future: Future[AppendResult] = Future()
        future.set_running_or_notify_cancel()
        batch = Batch(tuple(events), state, wake_at_us, tuple(consumed))
        self.send(batch, loop=loop, told=partial(_resolve, future))
        return future

    def send(self, batch: Batch, *, told: Told, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """
        What `append` does; *told* is called once with what its future would have come to.

        From whichever thread learns it: on *loop* between its other work, or here and now if the tenure is lost.
        """
        check_batch(self.thread, self.head, batch.events)
        append = self._chained(batch, self.head, self.head_hash)
        flight = _Flight(append, told)
        if (failure := self._take_off(flight)) is not None:
            told(failure)
            return
        try:
            self._writer.submit(append, partial(self._settle, flight), loop)
        except BaseException:
            self._land(follow=False)
            self._tell_idle()
            raise

    def send_next(self, batch: Batch, *, after: int, told: Told) -> bool:
        """
        Send *batch* as `send` does, as soon as the append under way is durable, and before it is told so.

        It takes the place of what was given so before. When that append fails, it is forgotten.

        Args:
            batch: Its events get the seqs after *after*.
            after: Seq of the last event of the append under way.
            told: As for `send`, and after that append's.

        Returns:
            False if that one is not under way any more: whatever it came to is about to be told.
        """
        flight = self._flight
        check_batch(self.thread, after, batch.events)
        if flight is None or flight.append.expected + len(flight.append.events) != after:
            return False
        known = None if self._next is None else self._next.append
        append = self._chained(batch, after, flight.append.hashes[-1], known)
        with self._lock:
            if self._flight is not flight:
                return False
            self._next = _Flight(append, told)
            return True

    def transact(
        self, make: Callable[[Any], NewEvent], *, limit_s: float, check: Check = _nothing
    ) -> NewEvent:
        """
        Call *make* with a database connection in a transaction that also appends the event it returns.

        Blocks; nothing else is appended meanwhile. *make* may be called again when a transaction was lost, as is one
        that stands still for *limit_s*: its locks would be in the way of whoever takes the thread over. Before each
        time *check* is called, and what it raises ends it.

        Raises:
            StoreRefused: The journal is no database.
            LeaseLost, LogRewound, StoreUnavailable: As for `append`; nothing of *make* happened, except that
                after `StoreUnavailable` its fate is unknown.
            Exception: What *make* or *check* raised; nothing of it happened.
        """
        mine = object()
        if (failure := self._take_off(None, mine, check)) is not None:
            raise failure
        sent_s = self._sources.monotonic_s()

        def work(connection: Any) -> Append:
            event = make(connection)
            check_batch(self.thread, self.head, (event,))
            return self._chained(Batch((event,)), self.head, self.head_hash)

        try:
            if self._transact is None:
                raise StoreRefused(f"thread {self.thread!r}: this journal has no transactions to share")
            append, result = self._transact(work, limit_s, check)
        except BaseException:
            self._leave_transaction(mine)
            raise
        self._transaction = None
        came_to: list[AppendResult | BaseException] = []
        self._settle(_Flight(append, came_to.append), result, sent_s)
        if isinstance(came_to[0], BaseException):
            raise came_to[0]
        return append.events[0]

    def forgo_transaction(self) -> None:
        """Wait no longer for the transaction under way, which its *make* will not let commit: its place is free."""
        with self._lock:
            mine = self._transaction
        self._leave_transaction(mine)

    def when_landed(self, call: Callable[[], object]) -> None:
        """Call *call* once, when no append is under way: now if none is, else from whichever thread lands it."""
        with self._lock:
            if self._busy:
                self._landed.append(call)
                return
        call()

    def release(self, seen: int = 0) -> Release:
        """
        Give the lease back after the append in flight, unless a message with an id above *seen* waits.

        Returns:
            `released`; `inbox_pending`, and the tenure goes on; or `fenced` when it was lost.

        Raises:
            StoreUnavailable: The store did not answer; the lease runs out by itself, unless this journal takes
                the thread again before.
        """
        landed = threading.Event()
        self.when_landed(landed.set)
        landed.wait()
        if self._lost:
            return Release.FENCED
        if self._ended:
            return Release.RELEASED
        # A renewal that crosses the release finds nobody holding the thread; that is no loss.
        self._releasing = True
        try:
            answer = self._release(self.thread, self.fence, seen)
            if answer is Release.RELEASED:
                self._ended = True
        except StoreUnavailable:
            self.abandon()
            raise
        finally:
            self._releasing = False
        if answer is Release.FENCED:
            self.mark_lost()
        return answer

    def abandon(self) -> None:
        """Stop renewing without giving the lease back, as a crash would; it runs out by itself."""
        self._ended = True

    def renewable(self, now_s: float) -> bool:
        """Whether the lease is to be kept alive at *now_s* of the monotonic clock."""
        if self._ended or self._failure is not None:
            return False
        return self._overdue_s is None or now_s <= self._overdue_s

    def due_s(self) -> float:
        """Monotonic time at which the lease wants to be renewed."""
        return self._granted_s + self.ttl_s / 3

    def renewed(self, sent_s: float) -> None:
        """The lease was renewed by a call sent at *sent_s* of the monotonic clock."""
        self._granted_s = max(self._granted_s, sent_s)

    def refused(self) -> None:
        """A renewal found another fence: the tenure is lost, unless it is being given back."""
        if not self._releasing and not self._ended:
            self.mark_lost()

    def mark_lost(self) -> None:
        """Another worker owns the thread: nothing more is written by this tenure."""
        with self._lock:
            if self._lost:
                return
            self._lost = True
            self._ended = True
            if self._failure is None:
                self._failure = LeaseLost(self.thread, fence=self.fence)
        self._tell_lost()

    def _tell_lost(self) -> None:
        with self._lock:
            callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()

    def _take_off(
        self, flight: _Flight | None, transaction: object | None = None, check: Check = _nothing
    ) -> BaseException | None:
        """From now on an append is under way; why none can be, if so."""
        with self._lock:
            # Whoever gave it up before it began may be appending by now; from here on it is given up by name.
            check()
            if self._failure is not None:
                return self._failure
            if self._ended:
                raise self._given_back()
            assert not self._busy, f"thread {self.thread!r} already has an append in flight"
            self._busy, self._flight, self._transaction = True, flight, transaction
            return None

    def _given_back(self) -> UsageError:
        return UsageError(f"the lease of thread {self.thread!r} was given back; acquire it again to append")

    def _land(self, *, follow: bool) -> _Flight | None:
        """The append under way has landed; the next one, which is under way from here on."""
        with self._lock:
            self._flight, self._next = self._next if follow else None, None
            self._busy = self._flight is not None
            return self._flight

    def _follow(self, flight: _Flight, loop: asyncio.AbstractEventLoop | None) -> BaseException | None:
        """Send the next append; why it cannot be, if so."""
        try:
            if self._ended:
                raise self._failure or self._given_back()
            self._writer.submit(flight.append, partial(self._settle, flight), loop)
        except Exception as error:  # noqa: BLE001  what landed before it is told all the same
            self._land(follow=False)
            return error
        return None

    def _leave_transaction(self, which: object | None) -> None:
        with self._lock:
            if which is None or self._transaction is not which:
                return
            self._transaction = None
        self._land(follow=False)
        self._tell_idle()

    def _tell_idle(self) -> None:
        with self._lock:
            if self._busy:
                return
            waiting, self._landed = self._landed, []
        for call in waiting:
            call()

    def _chained(
        self, batch: Batch, expected: int, expected_hash: bytes, known: Append | None = None
    ) -> Append:
        """The append of *batch* after seq *expected*; what it has in common with *known* is not hashed again."""
        events = batch.events
        hashes: list[bytes] = []
        previous = expected_hash
        if known is not None and known.expected == expected and events[: len(known.events)] == known.events:
            hashes += known.hashes
            previous = hashes[-1]
        for seq, event in enumerate(events[len(hashes) :], expected + len(hashes) + 1):
            previous = chain(previous, seq, event)
            hashes.append(previous)
        return Append(
            thread=self.thread,
            expected=expected,
            expected_hash=expected_hash,
            fence=self.fence,
            events=events,
            hashes=tuple(hashes),
            ttl_s=self.ttl_s,
            state=batch.state,
            wake_at_us=batch.wake_at_us,
            consumed=batch.consumed,
        )

    def _settle(self, flight: _Flight, fate: AppendResult | BaseException, sent_s: float) -> None:
        try:
            self._learn(flight, fate, sent_s)
        finally:
            # Last: whoever was told may have sent what the lease has to stay for.
            if self._landed:
                self._tell_idle()

    def _learn(self, flight: _Flight, fate: AppendResult | BaseException, sent_s: float) -> None:
        append = flight.append
        failure = fate if isinstance(fate, BaseException) else failure_of(append, fate)
        if failure is None and isinstance(fate, AppendResult):
            self.head = append.expected + len(append.events)
            self.head_hash = append.hashes[-1]
            self.state = append.state
            # A duplicate renewed the lease at an earlier, unknown moment: it does not count.
            if fate.outcome is Outcome.APPENDED:
                self.renewed(sent_s)
            self._tell_landed(flight, fate, self._land(follow=True))
            if self._committed is not None:
                # After whoever asked for it has heard.
                self._committed(append)
            return
        assert failure is not None
        with self._lock:
            self._failure = failure
        try:
            if isinstance(failure, LeaseLost):
                self.mark_lost()
        finally:
            self._land(follow=False)
            flight.told(failure)

    def _tell_landed(self, flight: _Flight, result: AppendResult, following: _Flight | None) -> None:
        if following is None:
            flight.told(result)
            return
        # On a loop nobody can hear of the next one before this one is told; another thread might.
        if (loop := asyncio._get_running_loop()) is not None:
            refused = self._follow(following, loop)
            flight.told(result)
        else:
            flight.told(result)
            refused = self._follow(following, None)
        if refused is not None:
            following.told(refused)


def _resolve(future: Future[AppendResult], outcome: AppendResult | BaseException) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
