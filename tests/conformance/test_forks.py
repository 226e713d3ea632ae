"""Forks in a store: another thread's first events under a new id, with their inbox, whole or not at all."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from appends import Pen, event, verify
from msgspec import structs
from refold.journal.envelope import chain
from refold.journal.errors import Corrupt, LimitExceeded
from refold.journal.store import Cursor, Event, Fork, Lease, Store, ThreadState

COUNT = 1500
"""More than one append takes."""


@pytest.fixture
def origin(store: Store) -> list[Event]:
    """A thread of many events."""
    pen = Pen(store, "origin")
    for _ in range(COUNT // 500):
        pen.write(*(event() for _ in range(500)))
    return store.read("origin", limit=COUNT)


def fork_of(whole: list[Event], at: int, **changes: Any) -> Fork:
    last = whole[at - 1]
    own = (event(), event())
    first = chain(last.hash, at + 1, own[0])
    parts: dict[str, Any] = {
        "thread": "fork",
        "origin": "origin",
        "upto": at,
        "upto_hash": last.hash,
        "events": own,
        "hashes": (first, chain(first, at + 2, own[1])),
        "state": ThreadState.PARKED,
        "messages": (("k1", "note", b"{}"), ("k2", "note", b"[]")),
    }
    return Fork(**(parts | changes))


@pytest.mark.parametrize("upto", [1, 1001, COUNT])
def test_a_fork_has_the_common_events_byte_for_byte_and_its_own_after_them(
    store: Store, origin: list[Event], upto: int
) -> None:
    before = store.info("origin")
    made = fork_of(origin, upto)

    assert store.fork(made)

    kept = store.read("fork", limit=COUNT + 2)
    verify(kept)
    assert [structs.replace(each, thread="origin") for each in kept[:upto]] == origin[:upto]
    assert [each.id for each in kept[upto:]] == [each.id for each in made.events]
    info = store.info("fork")
    assert (info.head, info.head_hash, info.state) == (upto + 2, made.hashes[-1], ThreadState.PARKED)
    assert (info.fence, info.holder, info.sealed) == (1, None, False)
    assert [(each.id, each.key, each.kind, each.body) for each in store.inbox("fork")] == [
        (1, "k1", "note", b"{}"),
        (2, "k2", "note", b"[]"),
    ]
    after = store.info("origin")
    assert (after.head_hash, after.fence, after.updated_at) == (
        before.head_hash,
        before.fence,
        before.updated_at,
    )
    told = store.feed(Cursor(), limit=2 * COUNT + 2).events
    assert [each.seq for each in told if each.thread == "fork"] == list(range(1, upto + 3))


def test_a_fork_is_held_and_written_like_any_thread(store: Store, origin: list[Event]) -> None:
    store.fork(fork_of(origin, 7))

    lease = store.acquire("fork", holder=uuid.uuid4(), ttl_s=30)
    assert isinstance(lease, Lease)
    assert (lease.fence, lease.head, lease.left_open) == (2, 9, False)
    store.release("fork", fence=2, seen=2)
    Pen(store, "fork").write(event())
    verify(store.read("fork"))


def test_the_same_fork_sent_again_is_there_already_even_if_it_went_on(
    store: Store, origin: list[Event]
) -> None:
    made = fork_of(origin, 7)
    store.fork(made)
    Pen(store, "fork").write(event())

    assert store.fork(made)
    assert store.info("fork").head == 10
    assert len(store.inbox("fork")) == 2


def test_a_name_that_is_taken_is_refused_and_its_thread_is_as_it_was(
    store: Store, origin: list[Event]
) -> None:
    Pen(store, "fork").write(event())
    before = store.read("fork")

    assert not store.fork(fork_of(origin, 7))
    assert store.read("fork") == before
    assert store.inbox("fork") == []
    assert not store.fork(fork_of(origin, 7, thread="origin"))
    assert store.info("origin").head == COUNT


def test_of_many_forks_to_one_name_at_once_one_is_made(store: Store, origin: list[Event]) -> None:
    made: list[bool] = []
    start = threading.Barrier(4)

    def work(upto: int) -> None:
        start.wait(30)
        made.append(store.fork(fork_of(origin, upto)))

    workers = [threading.Thread(target=work, args=[upto]) for upto in (3, 500, 1001, COUNT)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)

    assert sorted(made) == [False, False, False, True]
    kept = store.read("fork", limit=COUNT + 2)
    verify(kept)
    assert (store.info("fork").head, store.info("fork").head_hash) == (len(kept), kept[-1].hash)


def test_an_origin_that_is_not_what_was_read_is_not_forked(store: Store, origin: list[Event]) -> None:
    for wrong in (
        {"origin": "nobody"},
        {"upto": COUNT + 1},
        {"upto_hash": bytes(32)},
        {"upto": 8},
    ):
        with pytest.raises(Corrupt):
            store.fork(fork_of(origin, 7, **wrong))
    assert [info.thread for info in store.threads()] == ["origin"]


def test_limits_hold_for_what_a_fork_adds(store: Store, origin: list[Event]) -> None:
    for wrong in (
        {"thread": "x" * 201},
        {"events": (event(kind="k" * 65), event())},
        {"messages": (("k" * 513, "note", b""),)},
    ):
        with pytest.raises(LimitExceeded):
            store.fork(fork_of(origin, 7, **wrong))
    assert [info.thread for info in store.threads()] == ["origin"]
