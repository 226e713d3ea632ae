"""Threads of another journal: kept byte for byte, sealed until adopted, never mixed with others."""

from __future__ import annotations

import uuid

import pytest
from appends import Pen, event, verify
from msgspec import structs
from refold.journal.envelope import GENESIS
from refold.journal.errors import Corrupt, LimitExceeded, ThreadNotFound, ThreadSealed
from refold.journal.memory import MemoryStore
from refold.journal.store import Admission, Admitted, Cursor, Event, Lease, Store, ThreadState


@pytest.fixture
def foreign() -> list[Event]:
    """Five events of another journal."""
    pen = Pen(MemoryStore(), "a")
    pen.write(*(event() for _ in range(5)))
    return pen.store.read("a")


def admission(events: list[Event], *, first: int = 1, state: ThreadState = ThreadState.FINISHED) -> Admission:
    before = events[first - 2].hash if first > 1 else GENESIS
    return Admission(
        thread="a", expected=first - 1, expected_hash=before, events=tuple(events[first - 1 :]), state=state
    )


def test_admitted_events_keep_ids_hashes_times_and_bytes(store: Store, foreign: list[Event]) -> None:
    assert store.admit(admission(foreign)) is Admitted.ADMITTED

    kept = store.read("a")
    verify(kept)
    assert kept == [structs.replace(each, fence=0) for each in foreign]
    info = store.info("a")
    assert (info.head, info.head_hash, info.state, info.sealed) == (
        5,
        foreign[-1].hash,
        ThreadState.FINISHED,
        True,
    )
    assert [each.seq for each in store.feed(Cursor()).events] == [1, 2, 3, 4, 5]


def test_the_same_admission_again_changes_nothing(store: Store, foreign: list[Event]) -> None:
    store.admit(admission(foreign))
    before = store.info("a")

    assert store.admit(admission(foreign)) is Admitted.PRESENT
    assert store.admit(admission(foreign[:3])) is Admitted.PRESENT
    assert store.info("a").head == before.head


def test_a_longer_copy_goes_on_where_the_shorter_ended(store: Store, foreign: list[Event]) -> None:
    store.admit(admission(foreign[:2], state=ThreadState.PARKED))
    assert store.info("a").state is ThreadState.PARKED

    assert store.admit(admission(foreign, first=3)) is Admitted.ADMITTED
    verify(store.read("a"))
    assert store.info("a").head_hash == foreign[-1].hash


def test_other_events_under_the_same_name_are_a_fork(store: Store, foreign: list[Event]) -> None:
    other = Pen(MemoryStore(), "a")
    other.write(*(event() for _ in range(6)))
    store.admit(admission(foreign))

    assert store.admit(admission(other.store.read("a"))) is Admitted.FORK
    assert store.admit(admission(other.store.read("a"), first=6)) is Admitted.FORK
    assert store.admit(admission(foreign[:4], first=3)) is Admitted.PRESENT
    assert [each.hash for each in store.read("a")] == [each.hash for each in foreign]


def test_events_beyond_the_head_are_refused(store: Store, foreign: list[Event]) -> None:
    assert store.admit(admission(foreign, first=3)) is Admitted.FORK
    with pytest.raises(ThreadNotFound):
        store.info("a")


def test_a_thread_with_a_writer_here_takes_no_events_in(store: Store, foreign: list[Event]) -> None:
    store.create("a")

    assert store.admit(admission(foreign)) is Admitted.OPEN
    assert store.read("a") == []


@pytest.mark.parametrize("place", range(5))
def test_a_broken_chain_is_refused_whole(store: Store, foreign: list[Event], place: int) -> None:
    foreign[place] = structs.replace(foreign[place], body=foreign[place].body + b" ")

    with pytest.raises(Corrupt) as found:
        store.admit(admission(foreign))

    assert (found.value.thread, found.value.seq) == ("a", place + 1)
    assert store.read("a") == []


def test_nobody_acquires_a_sealed_thread_until_it_is_adopted(store: Store, foreign: list[Event]) -> None:
    store.admit(admission(foreign, state=ThreadState.RUNNING))

    with pytest.raises(ThreadSealed, match="adopt"):
        store.acquire("a", holder=uuid.uuid4(), ttl_s=30)
    assert store.threads(attention=True) == []

    assert store.adopt("a")
    assert not store.adopt("a")
    assert [info.thread for info in store.threads(attention=True)] == ["a"]
    lease = store.acquire("a", holder=uuid.uuid4(), ttl_s=30)
    assert isinstance(lease, Lease)
    assert (lease.fence, lease.head, lease.left_open) == (1, 5, False)
    store.release("a", fence=1, seen=0)
    pen = Pen(store, "a")
    pen.write(event())
    verify(store.read("a"))
    assert store.admit(admission(foreign)) is Admitted.PRESENT


def test_a_thread_that_is_not_there_cannot_be_adopted(store: Store) -> None:
    with pytest.raises(ThreadNotFound):
        store.adopt("a")


def test_limits_hold_for_admitted_events_too(store: Store, foreign: list[Event]) -> None:
    foreign[0] = structs.replace(foreign[0], kind="k" * 65)
    with pytest.raises(LimitExceeded):
        store.admit(admission(foreign))
