"""Holding a thread: one holder at a time, known by its fence, judged by the store's clock alone."""

from __future__ import annotations

import uuid

import pytest
from appends import Pen, event
from refold.journal.errors import ThreadNotFound
from refold.journal.store import Busy, Lease, Outcome, Release, Store, ThreadState
from store_worlds import World


def take(store: Store, thread: str = "a", *, ttl_s: float = 30.0, steal: bool = False) -> Lease | Busy:
    robbed = store.info(thread).fence if steal else None
    return store.acquire(thread, holder=uuid.uuid4(), ttl_s=ttl_s, steal=robbed)


def test_acquire_tells_where_the_log_stands(store: Store) -> None:
    pen = Pen(store, "a")
    pen.write(event(), event(), state=ThreadState.PARKED)
    store.release("a", fence=pen.fence, seen=0)

    lease = take(store)

    assert isinstance(lease, Lease)
    assert (lease.head, lease.head_hash, lease.state) == (2, pen.head_hash, ThreadState.PARKED)
    assert lease.fence == pen.fence + 1
    assert store.info("a").holder == lease.holder


def test_a_thread_that_is_not_there_cannot_be_acquired(store: Store) -> None:
    with pytest.raises(ThreadNotFound):
        take(store)


def test_a_held_thread_is_busy_and_says_for_how_long(store: Store) -> None:
    Pen(store, "a", ttl_s=100)

    busy = take(store)

    assert isinstance(busy, Busy)
    assert 50 < busy.remaining_s <= 100


def test_a_thread_can_be_stolen_only_from_the_holder_one_has_seen(store: Store) -> None:
    store.create("a")
    first = store.acquire("a", holder=uuid.uuid4(), ttl_s=30, name="me")
    assert isinstance(first, Lease)
    busy = take(store)
    assert isinstance(busy, Busy)
    assert (busy.fence, busy.name) == (first.fence, "me")

    second = store.acquire("a", holder=uuid.uuid4(), ttl_s=30, steal=busy.fence)
    third = store.acquire("a", holder=uuid.uuid4(), ttl_s=30, steal=busy.fence)

    assert isinstance(second, Lease)
    assert isinstance(third, Busy)
    assert not first.left_open
    assert second.left_open


@pytest.mark.parametrize("ended", ["stolen", "expired", "released"])
def test_whoever_takes_a_thread_is_told_who_had_it_before_however_that_ended(
    world: World, ended: str
) -> None:
    store = world.store
    store.create("a")
    first = store.acquire("a", holder=uuid.uuid4(), ttl_s=30, name="me")
    assert isinstance(first, Lease)
    assert first.before == ""
    if ended == "expired":
        world.advance(31)
    elif ended == "released":
        store.release("a", fence=first.fence, seen=0)

    holder = uuid.uuid4()
    steal = first.fence if ended == "stolen" else None
    second = store.acquire("a", holder=holder, ttl_s=30, name="you", steal=steal)
    again = store.acquire("a", holder=holder, ttl_s=30, name="you still")

    assert isinstance(second, Lease)
    assert isinstance(again, Lease)
    assert (second.before, again.before) == ("me", "")
    assert store.info("a").holder_name == "you still"


def test_an_acquire_repeated_by_its_holder_keeps_the_fence(store: Store) -> None:
    """H24 for acquire: its answer was lost, and the holder asks again."""
    store.create("a")
    holder = uuid.uuid4()

    first = store.acquire("a", holder=holder, ttl_s=30)
    again = store.acquire("a", holder=holder, ttl_s=30)

    assert isinstance(first, Lease)
    assert isinstance(again, Lease)
    assert (first.fence, first.head, first.head_hash) == (again.fence, again.head, again.head_hash)


def test_a_lease_runs_out_by_the_stores_clock_and_the_next_holder_gets_a_higher_fence(world: World) -> None:
    store = world.store
    old = Pen(store, "a", ttl_s=30)
    assert isinstance(take(store), Busy)

    world.advance(31)
    assert (store.info("a").lease_remaining_s or 0) < 0
    lease = take(store)

    assert isinstance(lease, Lease)
    assert lease.fence == old.fence + 1


def test_a_zombies_append_after_a_takeover_is_fenced(world: World) -> None:
    """H15: a worker that outlived its lease is refused in the statement that would write."""
    zombie = Pen(world.store, "a", ttl_s=30)
    one, several = zombie.next(), zombie.next([event(), event()])
    world.advance(31)
    Pen(world.store, "a")

    for append in (one, several):
        assert world.store.append(append).outcome is Outcome.FENCED
    assert world.store.append_many([one])[0].outcome is Outcome.FENCED
    assert world.store.read("a") == []
    assert not world.store.renew("a", fence=zombie.fence, ttl_s=30)


def test_a_deposed_holder_is_fenced_even_if_its_event_got_in(store: Store) -> None:
    """It must stop, whatever became of its event: the log is somebody else's now."""
    old = Pen(store, "a")
    append = old.next()
    store.append(append)
    Pen(store, "a", steal=True)

    assert store.append(append).outcome is Outcome.FENCED


def test_an_expired_lease_nobody_took_is_still_the_only_writer(world: World) -> None:
    pen = Pen(world.store, "a", ttl_s=30)
    world.advance(1000)

    pen.write()

    assert isinstance(take(world.store), Busy)


def test_a_live_lease_can_be_stolen(store: Store) -> None:
    old = Pen(store, "a")

    lease = take(store, steal=True)

    assert isinstance(lease, Lease)
    assert store.append(old.next()).outcome is Outcome.FENCED


def test_renewing_extends_the_lease_from_now(world: World) -> None:
    pen = Pen(world.store, "a", ttl_s=30)
    for _ in range(3):
        world.advance(20)
        assert world.store.renew("a", fence=pen.fence, ttl_s=30)
    assert isinstance(take(world.store), Busy)

    world.advance(31)
    assert isinstance(take(world.store), Lease)


def test_every_append_renews_the_lease(world: World) -> None:
    pen = Pen(world.store, "a", ttl_s=30)
    for events in ([event()], [event(), event()]):
        world.advance(20)
        pen.write(*events)
    world.advance(20)
    append = pen.next()
    assert world.store.append_many([append])[0].outcome is Outcome.APPENDED
    world.advance(20)

    assert isinstance(take(world.store), Busy)


def test_a_thread_given_back_is_free_at_once(store: Store) -> None:
    pen = Pen(store, "a")

    assert store.release("a", fence=pen.fence, seen=0) is Release.RELEASED
    info = store.info("a")
    assert (info.holder, info.lease_remaining_s) == (None, None)
    assert isinstance(take(store), Lease)


def test_giving_back_twice_is_giving_back_once(store: Store) -> None:
    pen = Pen(store, "a")
    store.release("a", fence=pen.fence, seen=0)
    store.send("a", key="k", kind="signal", body=b"")

    assert store.release("a", fence=pen.fence, seen=0) is Release.RELEASED


def test_a_holder_that_gave_the_thread_back_writes_and_renews_no_more(store: Store) -> None:
    pen = Pen(store, "a")
    store.release("a", fence=pen.fence, seen=0)

    assert store.append(pen.next()).outcome is Outcome.FENCED
    assert store.append(pen.next([event(), event()])).outcome is Outcome.FENCED
    assert not store.renew("a", fence=pen.fence, ttl_s=30)
    assert store.info("a").holder is None


def test_a_deposed_holder_gives_nothing_back(store: Store) -> None:
    old = Pen(store, "a")
    new = Pen(store, "a", steal=True)

    assert store.release("a", fence=old.fence, seen=0) is Release.FENCED
    new.write()


def test_release_and_renew_of_unknown_threads(store: Store) -> None:
    with pytest.raises(ThreadNotFound):
        store.release("nowhere", fence=1, seen=0)
    assert not store.renew("nowhere", fence=1, ttl_s=30)
