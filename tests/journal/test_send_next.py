"""What is to go out next goes out the moment the append before it has landed, and in that order it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from appends import event, verify
from refold.journal.errors import LeaseLost, LimitExceeded, UsageError
from refold.journal.journal import Journal
from refold.journal.limits import EVENT_BYTES_MAX
from refold.journal.memory import MemoryStore
from refold.journal.sources import SYSTEM
from refold.journal.store import Append, AppendResult, Batch, Outcome, ThreadState
from refold.journal.tenure import Tenure

SOON_S = 20.0

Outcomes = SimpleQueue[tuple[str, AppendResult | BaseException]]


class HeldStore(MemoryStore):
    """Takes each append when it is let, and calls *before* then."""

    def __init__(self) -> None:
        super().__init__(SYSTEM)
        self.let = threading.Semaphore(0)
        self.arrived: SimpleQueue[list[str]] = SimpleQueue()
        self.before: Callable[[], Any] = list

    def append(self, append: Append) -> AppendResult:
        self.arrived.put([each.body.decode() for each in append.events])
        assert self.let.acquire(timeout=SOON_S)
        self.before()
        return super().append(append)


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
def told() -> Outcomes:
    return SimpleQueue()


@pytest.fixture
def tenure(store: HeldStore) -> Any:
    with Journal(store) as journal:
        yield journal.acquire("a")


def tell(told: Outcomes, name: str) -> Callable[[AppendResult | BaseException], None]:
    return lambda outcome: told.put((name, outcome))


def begin(tenure: Tenure, told: Outcomes, store: HeldStore) -> None:
    """The append of seq 1 is under way."""
    tenure.send(Batch((event(b"1"),)), told=tell(told, "first"))
    assert store.arrived.get(timeout=SOON_S) == ["1"]


def test_what_is_next_follows_the_append_before_it_and_both_are_told_in_order(
    store: HeldStore, tenure: Tenure, told: Outcomes
) -> None:
    begin(tenure, told, store)
    second, third = event(b"2"), event(b"3")
    assert tenure.send_next(Batch((second,)), after=1, told=tell(told, "replaced"))
    assert tenure.send_next(Batch((second, third), ThreadState.WAITING), after=1, told=tell(told, "second"))
    store.let.release(2)

    assert store.arrived.get(timeout=SOON_S) == ["2", "3"]
    assert told.get(timeout=SOON_S) == ("first", AppendResult(Outcome.APPENDED, 1))
    assert told.get(timeout=SOON_S) == ("second", AppendResult(Outcome.APPENDED, 3))
    assert (tenure.head, tenure.state) == (3, ThreadState.WAITING)
    verify(list(store.read("a", after=0, upto=3, limit=10)))


def test_nothing_is_next_after_an_append_that_is_not_under_way(
    store: HeldStore, tenure: Tenure, told: Outcomes
) -> None:
    assert not tenure.send_next(Batch((event(),)), after=0, told=tell(told, "none flies"))
    begin(tenure, told, store)
    assert not tenure.send_next(Batch((event(),)), after=2, told=tell(told, "another flies"))
    store.let.release()
    assert told.get(timeout=SOON_S)[0] == "first"
    assert not tenure.send_next(Batch((event(),)), after=1, told=tell(told, "landed"))

    assert told.empty()
    assert store.info("a").head == 1


def test_when_the_append_before_it_fails_what_was_next_is_never_sent(
    store: HeldStore, tenure: Tenure, told: Outcomes
) -> None:
    begin(tenure, told, store)
    store.before = lambda: store.acquire("a", holder=SYSTEM.new_id(), ttl_s=30.0, steal=tenure.fence)
    assert tenure.send_next(Batch((event(b"2"),)), after=1, told=tell(told, "second"))
    store.let.release(2)

    name, outcome = told.get(timeout=SOON_S)
    assert (name, type(outcome)) == ("first", LeaseLost)
    tenure.release()
    assert told.empty()
    assert store.arrived.empty()


@pytest.mark.parametrize("end", [Tenure.abandon, Tenure.mark_lost])
def test_a_tenure_that_has_ended_meanwhile_says_so_instead_of_sending_what_was_next(
    store: HeldStore, tenure: Tenure, told: Outcomes, end: Callable[[Tenure], None]
) -> None:
    begin(tenure, told, store)
    assert tenure.send_next(Batch((event(b"2"),)), after=1, told=tell(told, "second"))
    end(tenure)
    store.let.release(2)

    assert told.get(timeout=SOON_S) == ("first", AppendResult(Outcome.APPENDED, 1))
    name, outcome = told.get(timeout=SOON_S)
    assert (name, isinstance(outcome, LeaseLost | UsageError)) == ("second", True)
    assert store.arrived.empty()


def test_a_release_waits_for_what_is_next_too(store: HeldStore, tenure: Tenure, told: Outcomes) -> None:
    begin(tenure, told, store)
    assert tenure.send_next(Batch((event(b"2"),)), after=1, told=tell(told, "second"))
    released = threading.Thread(target=tenure.release)
    released.start()
    store.let.release(2)
    released.join(SOON_S)

    assert (store.info("a").head, tenure.ended) == (2, True)


def test_what_no_append_takes_is_refused_at_once(store: HeldStore, tenure: Tenure, told: Outcomes) -> None:
    begin(tenure, told, store)
    large = event(bytes(EVENT_BYTES_MAX + 1))
    with pytest.raises(LimitExceeded, match="seq 2"):
        tenure.send_next(Batch((large,)), after=1, told=tell(told, "large"))
    store.let.release()

    assert told.get(timeout=SOON_S)[0] == "first"


def test_closing_the_journal_sees_through_what_was_next_and_what_follows_from_it(
    store: HeldStore, told: Outcomes
) -> None:
    """As what a tool has returned while the append before was under way, and that the run is left."""
    journal = Journal(store)
    tenure = journal.acquire("a")

    def leave(outcome: AppendResult | BaseException) -> None:
        told.put(("second", outcome))
        tenure.send(Batch((event(b"3"),)), told=tell(told, "third"))

    begin(tenure, told, store)
    assert tenure.send_next(Batch((event(b"2"),)), after=1, told=leave)
    closing = threading.Thread(target=journal.close)
    closing.start()
    while not journal._writer._closing:
        pass
    store.let.release(3)
    closing.join(SOON_S)

    assert [told.get(timeout=SOON_S) for _ in range(3)] == [
        (name, AppendResult(Outcome.APPENDED, seq))
        for seq, name in enumerate(("first", "second", "third"), 1)
    ]
    with pytest.raises(UsageError, match="closed"):
        tenure.send(Batch((event(b"4"),)), told=tell(told, "late"))


def test_on_an_event_loop_the_next_append_is_sent_before_anybody_is_told_of_the_one_before(
    pg_dsn: str,
) -> None:
    with Journal.open(pg_dsn) as journal:
        tenure = journal.acquire("t")

        async def go() -> list[int]:
            loop = asyncio.get_running_loop()
            calls: list[int] = []
            done = asyncio.Event()

            def count(outcome: AppendResult | BaseException) -> None:
                assert isinstance(outcome, AppendResult)
                (lane,) = journal._writer._loops.values()
                calls.append(lane.calls)
                if outcome.head == 2:
                    done.set()

            tenure.send(Batch((event(b"1"),)), told=count, loop=loop)
            assert tenure.send_next(Batch((event(b"2"),)), after=1, told=count)
            await asyncio.wait_for(done.wait(), SOON_S)
            return calls

        assert asyncio.run(go()) == [2, 2]
        verify(journal.read("t"))
