"""One holder's time with a thread: what the engine may rely on, whatever the store beneath."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from appends import event, verify
from refold.journal.envelope import BATCH_EVENTS_MAX, EVENT_BYTES_MAX, GENESIS, NewEvent
from refold.journal.errors import (
    Corrupt,
    LeaseLost,
    LimitExceeded,
    LogRewound,
    RefoldError,
    StoreUnavailable,
    ThreadBusy,
    ThreadNotFound,
    UsageError,
)
from refold.journal.journal import Journal
from refold.journal.memory import MemoryStore
from refold.journal.sources import Sources
from refold.journal.store import Append, AppendResult, Outcome, Release, ThreadState

RUNNING = ThreadState.RUNNING
SOON_S = 20.0


class GatedStore(MemoryStore):
    """A memory store whose appends wait at a gate, and which counts what passes."""

    def __init__(self, sources: Sources | None = None) -> None:
        super().__init__(sources or Sources())
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.renewals = threading.Semaphore(0)
        self.singles = 0
        self.groups: list[int] = []
        self.failures: list[Exception] = []

    def append(self, append: Append) -> AppendResult:
        self.arrived.release()
        assert self.gate.wait(SOON_S)
        self.singles += 1
        if self.failures:
            raise self.failures.pop(0)
        return super().append(append)

    def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        self.groups.append(len(appends))
        if self.failures:
            raise self.failures.pop(0)
        return super().append_many(appends)

    def renew(self, thread: str, *, fence: int, ttl_s: float) -> bool:
        kept = super().renew(thread, fence=fence, ttl_s=ttl_s)
        self.renewals.release()
        return kept


class MovedClock(Sources):
    """Sources whose monotonic clock is moved by hand."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.memory() as made:
        yield made


@pytest.fixture(params=["memory", "postgres"])
def either(request: pytest.FixtureRequest) -> Iterator[Journal]:
    """A journal on each kind of store."""
    memory = request.param == "memory"
    with Journal.memory() if memory else Journal.open(request.getfixturevalue("pg_dsn")) as made:
        yield made


def test_a_tenure_appends_one_chained_batch_after_another(either: Journal) -> None:
    tenure = either.acquire("a")
    assert (tenure.head, tenure.head_hash, tenure.state) == (0, GENESIS, ThreadState.IDLE)

    first = tenure.append([event(b"1")], state=RUNNING).result(SOON_S)
    second = tenure.append([event(b"2"), event(b"3")], state=ThreadState.WAITING, wake_at_us=7).result(SOON_S)

    assert (first.outcome, first.head, second.head) == (Outcome.APPENDED, 1, 3)
    events = either.read("a")
    verify(events)
    assert [each.body for each in events] == [b"1", b"2", b"3"]
    assert (tenure.head, tenure.head_hash, tenure.state) == (3, events[-1].hash, ThreadState.WAITING)
    assert either.info("a").wake_at_us == 7


def test_a_later_tenure_goes_on_where_the_earlier_one_stopped(either: Journal) -> None:
    first = either.acquire("a")
    first.append([event()], state=RUNNING).result(SOON_S)
    assert first.release() is Release.RELEASED

    second = either.acquire("a")
    assert (second.fence, second.head, second.head_hash) == (2, 1, first.head_hash)
    second.append([event()], state=RUNNING).result(SOON_S)
    verify(either.read("a"))


def test_a_held_thread_is_busy_for_others_and_can_be_stolen(either: Journal) -> None:
    """H14, in one process: the second holder is refused, or the first one is."""
    first = either.acquire("a")
    with pytest.raises(ThreadBusy) as caught:
        either.acquire("a")
    assert 0 < caught.value.remaining_s <= 30

    lost = threading.Event()
    first.on_lost(lost.set)
    second = either.acquire("a", steal=True)
    refused = first.append([event()], state=RUNNING)

    assert isinstance(refused.exception(SOON_S), LeaseLost)
    assert lost.is_set()
    assert first.lost
    assert first.remaining_s() == 0
    assert first.release() is Release.FENCED
    second.append([event()], state=RUNNING).result(SOON_S)
    assert len(either.read("a")) == 1


def test_acquire_makes_the_thread_unless_told_not_to(either: Journal) -> None:
    with pytest.raises(ThreadNotFound):
        either.acquire("a", create=False)
    either.acquire("a")
    assert either.info("a").head == 0


def test_a_lost_tenure_fails_at_once_and_tells_only_once(journal: Journal) -> None:
    tenure = journal.acquire("a")
    calls: list[int] = []
    tenure.on_lost(lambda: calls.append(1))
    journal.acquire("a", steal=True)
    for _ in range(3):
        assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), LeaseLost)
    tenure.mark_lost()

    assert calls == [1]
    late = threading.Event()
    tenure.on_lost(late.set)
    assert late.is_set()


def test_a_raising_callback_of_a_lost_tenure_loses_no_future(journal: Journal) -> None:
    tenure = journal.acquire("a")
    tenure.on_lost(lambda: 1 / 0)
    journal.acquire("a", steal=True)

    assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), LeaseLost)
    journal.acquire("b").append([event()], state=RUNNING).result(SOON_S)


def test_one_append_is_in_flight_at_a_time() -> None:
    store = GatedStore()
    with Journal(store) as journal:
        tenure = journal.acquire("a")
        store.gate.clear()
        first = tenure.append([event()], state=RUNNING)
        with pytest.raises(AssertionError, match="in flight"):
            tenure.append([event()], state=RUNNING)
        store.gate.set()
        first.result(SOON_S)
        tenure.append([event()], state=RUNNING).result(SOON_S)


def test_a_transaction_given_up_before_it_began_is_in_the_way_of_no_append() -> None:
    class GivenUp(Exception):
        pass

    def check() -> None:
        raise GivenUp

    store = GatedStore()
    with Journal(store) as journal:
        tenure = journal.acquire("a")
        store.gate.clear()
        under_way = tenure.append([event()], state=RUNNING)
        with pytest.raises(GivenUp):
            tenure.transact(lambda connection: event(), limit_s=1.0, check=check)
        store.gate.set()
        under_way.result(SOON_S)


def test_a_transaction_given_up_as_it_begins_leaves_its_place_to_others(pg_dsn: str) -> None:
    class GivenUp(Exception):
        pass

    with Journal.open(pg_dsn) as journal, ThreadPoolExecutor(1) as pool:
        tenure = journal.acquire("a")
        begun, over = threading.Event(), threading.Event()
        giving_up = threading.Thread(target=tenure.forgo_transaction)

        def check() -> None:
            if giving_up.ident is None:
                giving_up.start()
                giving_up.join(0.1)

        def make(connection: object) -> NewEvent:
            begun.set()
            assert over.wait(SOON_S)
            raise GivenUp

        transaction = pool.submit(tenure.transact, make, limit_s=SOON_S, check=check)
        assert begun.wait(SOON_S)
        giving_up.join(SOON_S)
        try:
            tenure.append([event()], state=RUNNING).result(SOON_S)
        finally:
            over.set()
        with pytest.raises(GivenUp):
            transaction.result(SOON_S)


def test_an_append_cannot_be_cancelled() -> None:
    """Cancelling the caller never cancels an append and never loses a finished result."""
    store = GatedStore()
    with Journal(store) as journal:
        store.gate.clear()
        tenure = journal.acquire("a")
        future = tenure.append([event()], state=RUNNING)
        assert not future.cancel()
        store.gate.set()

        assert future.result(SOON_S).outcome is Outcome.APPENDED


def test_appends_outlive_the_event_loop_they_were_made_in() -> None:
    store = GatedStore()
    with Journal(store) as journal:
        store.gate.clear()
        tenure = journal.acquire("a")

        async def begin() -> None:
            waiting = asyncio.wrap_future(tenure.append([event()], state=RUNNING))
            waiting.cancel()

        asyncio.run(begin())
        store.gate.set()
    assert len(store._threads["a"].events) == 1


def test_closing_sees_pending_appends_through_and_takes_no_more() -> None:
    store = GatedStore()
    journal = Journal(store)
    tenure, other = journal.acquire("a"), journal.acquire("b")
    store.gate.clear()
    future = tenure.append([event()], state=RUNNING)
    closing = threading.Thread(target=journal.close)
    closing.start()
    store.gate.set()
    closing.join(SOON_S)

    assert future.result(0).outcome is Outcome.APPENDED
    with pytest.raises(UsageError, match="closed"):
        other.append([event()], state=RUNNING)
    with pytest.raises(StoreUnavailable, match="closed"):
        journal.info("a")
    journal.close()


def test_what_waits_while_the_writer_is_busy_shares_one_call() -> None:
    store = GatedStore()
    with Journal(store) as journal:
        tenures = [journal.acquire(f"t{number}") for number in range(65)]
        store.gate.clear()
        futures = [tenures[0].append([event()], state=RUNNING)]
        assert store.arrived.acquire(timeout=SOON_S)
        futures += [tenure.append([event()], state=RUNNING) for tenure in tenures[1:]]
        store.gate.set()

        assert {future.result(SOON_S).outcome for future in futures} == {Outcome.APPENDED}
        assert store.groups == [64]


@pytest.mark.parametrize(
    "failure", [StoreUnavailable("away", ambiguous=True), StoreUnavailable("busy", contended=True)]
)
def test_an_append_that_failed_for_a_while_is_sent_again(failure: StoreUnavailable) -> None:
    store = GatedStore()
    with Journal(store) as journal:
        tenure = journal.acquire("a")
        store.failures = [failure, failure]

        assert tenure.append([event()], state=RUNNING).result(SOON_S).outcome is Outcome.APPENDED
        assert store.singles == 3


def test_one_append_that_is_refused_for_good_takes_none_of_its_group_down() -> None:
    class Choosy(GatedStore):
        def append(self, append: Append) -> AppendResult:
            if append.thread == "bad":
                raise RefoldError("no")
            return super().append(append)

        def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
            self.groups.append(len(appends))
            raise RefoldError("one of these, no")

    store = Choosy()
    with Journal(store) as journal:
        first, *others = (journal.acquire(name) for name in ("first", "a", "bad", "b"))
        store.gate.clear()
        first.append([event()], state=RUNNING)
        assert store.arrived.acquire(timeout=SOON_S)
        futures = {tenure.thread: tenure.append([event()], state=RUNNING) for tenure in others}
        store.gate.set()

        assert isinstance(futures["bad"].exception(SOON_S), RefoldError)
        assert {futures[name].result(SOON_S).outcome for name in ("a", "b")} == {Outcome.APPENDED}
        assert store.groups == [3]


def test_a_bug_beneath_an_append_reaches_its_caller_and_ends_the_tenure() -> None:
    store = GatedStore()
    with Journal(store) as journal:
        tenure, other = journal.acquire("a"), journal.acquire("b")
        store.failures = [ZeroDivisionError()]

        assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), ZeroDivisionError)
        assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), ZeroDivisionError)
        other.append([event()], state=RUNNING).result(SOON_S)


def test_a_callback_may_append_from_the_writers_thread(journal: Journal) -> None:
    tenure = journal.acquire("a")
    done = threading.Event()

    def go_on(_: object) -> None:
        if tenure.head == 5:
            done.set()
        else:
            tenure.append([event()], state=RUNNING).add_done_callback(go_on)

    tenure.append([event()], state=RUNNING).add_done_callback(go_on)

    assert done.wait(SOON_S)
    assert journal.info("a").head == 5


def test_release_waits_for_the_append_in_flight_and_meets_the_inbox(either: Journal) -> None:
    tenure = either.acquire("a")
    message = either.send("a", key="k", kind="signal", body=b"").message
    tenure.append([event()], state=RUNNING)

    assert tenure.release(seen=0) is Release.INBOX_PENDING
    assert not tenure.ended
    tenure.append([event()], state=RUNNING, consumed=[message.id]).result(SOON_S)
    assert tenure.release(seen=0) is Release.RELEASED
    assert tenure.release(seen=0) is Release.RELEASED
    with pytest.raises(UsageError, match="given back"):
        tenure.append([event()], state=RUNNING)


def test_a_message_taken_twice_is_refused_and_nothing_is_written(either: Journal) -> None:
    tenure = either.acquire("a")
    message = either.send("a", key="k", kind="signal", body=b"").message
    tenure.append([event()], state=RUNNING, consumed=[message.id]).result(SOON_S)

    wrong = tenure.append([event()], state=RUNNING, consumed=[message.id]).exception(SOON_S)

    assert isinstance(wrong, RefoldError)
    assert "already taken" in str(wrong)
    assert either.info("a").head == 1


@pytest.mark.parametrize(
    "batch",
    [
        [NewEvent(event().id, "k" * 65, 1, b"")],
        [NewEvent(event().id, "", 1, b"")],
        [NewEvent(event().id, "a\0", 1, b"")],
        [NewEvent(event().id, "k", 0, b"")],
        [NewEvent(event().id, "k", 32768, b"")],
        [event(bytes(EVENT_BYTES_MAX + 1))],
        [event()] * (BATCH_EVENTS_MAX + 1),
        [event(bytes(EVENT_BYTES_MAX))] * 5,
    ],
    ids=lambda batch: f"{len(batch)}-{batch[0].kind[:3]!r}-{batch[0].version}-{len(batch[0].body)}",
)
def test_what_is_over_a_limit_is_refused_at_the_door(journal: Journal, batch: list[NewEvent]) -> None:
    """H28."""
    tenure = journal.acquire("a")
    with pytest.raises(LimitExceeded):
        tenure.append(batch, state=RUNNING)

    assert tenure.append([event()], state=RUNNING).result(SOON_S).head == 1


def test_the_largest_event_and_the_largest_batch_fit(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        tenure = journal.acquire("a")
        tenure.append([event(bytes(EVENT_BYTES_MAX))], state=RUNNING).result(SOON_S)
        tenure.append([event(b"x" * 60_000)] * BATCH_EVENTS_MAX, state=RUNNING).result(SOON_S)

        assert len(journal.read("a", limit=1)[0].body) == EVENT_BYTES_MAX
        assert journal.info("a").head == 1 + BATCH_EVENTS_MAX


def test_a_log_that_lost_what_it_acknowledged_is_rewound_and_not_in_conflict(pg_dsn: str) -> None:
    """After a failover to a standby that was behind."""
    with Journal.open(pg_dsn) as journal:
        tenure = journal.acquire("a")
        for _ in range(3):
            tenure.append([event()], state=RUNNING).result(SOON_S)
        second = journal.read("a")[1]
        with psycopg.connect(pg_dsn, autocommit=True) as owner:
            owner.execute("set session_replication_role = replica")
            owner.execute("delete from refold.events where seq = 3")
            owner.execute("update refold.threads set head = 2, head_hash = %s", [second.hash])

        rewound = tenure.append([event()], state=RUNNING).exception(SOON_S)

        assert isinstance(rewound, LogRewound)
        assert (rewound.expected, rewound.found) == (3, 2)
        assert tenure.append([event()], state=RUNNING).exception(SOON_S) is rewound


def test_a_head_of_another_history_is_corruption(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        tenure = journal.acquire("a")
        tenure.append([event()], state=RUNNING).result(SOON_S)
        with psycopg.connect(pg_dsn, autocommit=True) as owner:
            owner.execute("update refold.threads set head_hash = sha256('another')")

        assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), Corrupt)


def test_the_remaining_time_counts_from_before_the_lease_was_granted() -> None:
    clock = MovedClock()

    class SlowStore(MemoryStore):
        def acquire(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            clock.at_s += 4
            return super().acquire(*args, **kwargs)  # type: ignore[arg-type]

    with Journal(SlowStore(), lease_ttl_s=30, sources=clock) as journal:
        tenure = journal.acquire("a")
        assert tenure.remaining_s() == 26
        clock.at_s += 10
        assert tenure.remaining_s() == 16
        tenure.append([event()], state=RUNNING).result(SOON_S)
        assert tenure.remaining_s() == 30
        clock.at_s += 31
        assert tenure.remaining_s() < 0


def test_a_lease_is_renewed_while_its_holder_computes() -> None:
    """H15: a long call outlives the lease; nothing of the caller's may be needed to keep it."""
    store = GatedStore()
    with Journal(store, lease_ttl_s=0.4) as journal:
        tenure = journal.acquire("a")
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            sum(range(1000))

        assert tenure.remaining_s() > 0
        with pytest.raises(ThreadBusy):
            journal.acquire("a")
    assert store.renewals.acquire(blocking=False)


def until_free(journal: Journal, thread: str) -> None:
    """Wait until *thread* can be taken, and take it."""
    give_up = time.monotonic() + SOON_S
    while time.monotonic() < give_up:
        try:
            journal.acquire(thread)
        except ThreadBusy:
            continue
        return
    raise AssertionError(f"{thread} stayed busy")


def test_an_overdue_holder_is_not_kept_alive() -> None:
    """A hung worker is replaced: renewal stops at the time its engine has set."""
    store = GatedStore()
    with Journal(store, lease_ttl_s=0.2) as journal:
        tenure = journal.acquire("a")
        assert store.renewals.acquire(timeout=SOON_S)
        tenure.overdue_after(time.monotonic())
        until_free(journal, "a")

        assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), LeaseLost)


def test_an_overdue_time_that_is_moved_on_lets_renewal_go_on() -> None:
    store = GatedStore()
    with Journal(store, lease_ttl_s=0.4) as journal:
        tenure = journal.acquire("a")
        tenure.overdue_after(time.monotonic())
        tenure.overdue_after(None)
        for _ in range(4):
            assert store.renewals.acquire(timeout=SOON_S)

        assert not tenure.lost


def test_the_renewer_finds_a_stolen_lease_and_tells() -> None:
    with Journal(MemoryStore(), lease_ttl_s=0.2) as journal, Journal(journal.store, lease_ttl_s=30) as thief:
        tenure = journal.acquire("a")
        lost = threading.Event()
        tenure.on_lost(lost.set)
        thief.acquire("a", steal=True)

        assert lost.wait(SOON_S)
        assert tenure.lost


def test_an_abandoned_lease_runs_out() -> None:
    with Journal(MemoryStore(), lease_ttl_s=0.2) as journal:
        journal.acquire("a").abandon()
        until_free(journal, "a")


def test_a_renewal_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(GatedStore):
        broken = 2

        def renew(self, thread: str, *, fence: int, ttl_s: float) -> bool:
            if self.broken:
                self.broken -= 1
                raise StoreUnavailable("away") if self.broken else ZeroDivisionError
            return super().renew(thread, fence=fence, ttl_s=ttl_s)

    store = Flaky()
    with caplog.at_level(logging.INFO), Journal(store, lease_ttl_s=0.6) as journal:
        tenure = journal.acquire("a")
        assert store.renewals.acquire(timeout=SOON_S)
        assert not tenure.lost


@pytest.mark.parametrize("parts", [{"hold_s": -1}, {"lease_ttl_s": 0}, {"lease_ttl_s": float("nan")}])
def test_impossible_times_are_refused(parts: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Journal(MemoryStore(), **parts)  # type: ignore[arg-type]


def test_the_journal_is_an_async_context_manager_too() -> None:
    async def use() -> Journal:
        async with Journal.memory() as journal:
            tenure = journal.acquire("a")
            await asyncio.wrap_future(tenure.append([event()], state=RUNNING))
        return journal

    journal = asyncio.run(use())
    with pytest.raises(StoreUnavailable):
        journal.info("a")


def test_short_calls_are_patient_and_then_clear() -> None:
    clock = MovedClock()

    class Away(MemoryStore):
        calls = 0

        def info(self, thread: str) -> object:  # type: ignore[override]
            self.calls += 1
            clock.at_s += 6
            raise StoreUnavailable("away")

    store = Away()
    with Journal(store, patience_s=15, sources=clock) as journal:
        with pytest.raises(StoreUnavailable, match="away"):
            journal.info("a")
        assert store.calls == 4
