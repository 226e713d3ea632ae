"""Appending and reading: what every store promises of a thread's log."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from appends import Pen, event, verify
from refold.journal.envelope import GENESIS, NewEvent
from refold.journal.errors import LimitExceeded, ThreadNotFound, UsageError
from refold.journal.store import Outcome, Store, ThreadState
from store_worlds import World


def test_a_new_thread_is_idle_and_starts_from_the_genesis_hash(store: Store) -> None:
    assert store.create("a")

    info = store.info("a")

    assert (info.head, info.head_hash, info.state) == (0, GENESIS, ThreadState.IDLE)
    assert (info.fence, info.holder, info.lease_remaining_s, info.wake_at_us) == (0, None, None, None)
    assert info.inbox_waiting == 0
    assert info.created_at == info.updated_at


def test_creating_twice_makes_one_thread(store: Store) -> None:
    assert store.create("a")
    assert not store.create("a")


@pytest.mark.parametrize("thread", ["", "x" * 201, "é" * 101, "a\0b", "\ud800"])
def test_a_thread_id_over_the_limit_is_refused(store: Store, thread: str) -> None:
    with pytest.raises(LimitExceeded):
        store.create(thread)


@pytest.mark.parametrize("thread", ["x" * 200, "é" * 100, " ", "a'b\"c;--", "日本/\x1b[2J%s", "\\"])
def test_any_other_string_can_name_a_thread(store: Store, thread: str) -> None:
    pen = Pen(store, thread)
    pen.write()

    assert store.info(thread).thread == thread
    assert store.read(thread)[0].thread == thread
    assert [row.thread for row in store.threads()] == [thread]


def test_an_unknown_thread_is_not_found_and_has_no_events(store: Store) -> None:
    with pytest.raises(ThreadNotFound):
        store.info("nowhere")

    assert store.read("nowhere") == []
    assert store.inbox("nowhere") == []


def test_an_event_comes_back_exactly_as_it_went_in(store: Store) -> None:
    pen = Pen(store, "a")
    bodies = [b"", b"\x00\xff\xfe", b'{"a":"\\u0000","b":1e2,"a":1}', "é\u2028".encode(), b"x" * 100_000]
    sent = [event(body, kind=f"kind_{number}", version=number) for number, body in enumerate(bodies, 1)]
    pen.write(sent[0])
    pen.write(*sent[1:])

    got = store.read("a")

    verify(got)
    assert [(each.id, each.kind, each.version, each.body) for each in got] == [
        (each.id, each.kind, each.version, each.body) for each in sent
    ]
    assert {each.fence for each in got} == {pen.fence}
    assert store.info("a").head_hash == got[-1].hash
    assert all(type(each.body) is bytes and type(each.hash) is bytes for each in got)


def test_an_append_sets_head_state_and_wake_time(store: Store) -> None:
    pen = Pen(store, "a")

    assert pen.write(state=ThreadState.WAITING, wake_at_us=1_234_567_890_123_457).head == 1
    info = store.info("a")
    assert (info.head, info.state, info.wake_at_us) == (1, ThreadState.WAITING, 1_234_567_890_123_457)

    assert pen.write(event(), event(), event()).head == 4
    info = store.info("a")
    assert (info.head, info.state, info.wake_at_us) == (4, ThreadState.RUNNING, None)


def test_the_same_append_sent_again_is_a_duplicate_and_stored_once(store: Store) -> None:
    """H24: the answer was lost; a retry is no conflict with one's own success."""
    pen = Pen(store, "a")
    for count in (1, 3):
        append = pen.next([event() for _ in range(count)])
        assert store.append(append).outcome is Outcome.APPENDED
        pen.done(append)

        again = store.append(append)

        assert (again.outcome, again.head) == (Outcome.DUPLICATE, pen.head)
    verify(store.read("a"))
    assert len(store.read("a")) == 4


def test_a_duplicate_is_recognised_when_the_log_has_gone_on(store: Store) -> None:
    pen = Pen(store, "a")
    first = pen.next()
    store.append(first)
    pen.done(first)
    pen.write(event(), event())

    assert store.append(first).outcome is Outcome.DUPLICATE


def test_another_event_at_the_same_place_is_a_conflict(store: Store) -> None:
    pen = Pen(store, "a")
    lost = pen.next()
    pen.write()

    for append in (lost, pen.next(expected=0, expected_hash=GENESIS)):
        result = store.append(append)
        assert (result.outcome, result.head) == (Outcome.CONFLICT, 1)
    assert len(store.read("a")) == 1


def test_equal_ids_with_another_body_are_a_conflict(store: Store) -> None:
    pen = Pen(store, "a")
    first = event(b"1")
    forged = pen.next([NewEvent(first.id, first.kind, first.version, b"2")])
    pen.write(first)

    assert store.append(forged).outcome is Outcome.CONFLICT


def test_a_batch_that_shares_only_its_first_event_is_a_conflict(store: Store) -> None:
    pen = Pen(store, "a")
    first = event()
    longer = pen.next([first, event()])
    pen.write(first)

    assert store.append(longer).outcome is Outcome.CONFLICT


def test_an_append_beyond_the_head_says_where_the_head_is(store: Store) -> None:
    """A failover that lost commits shows as a head below what the holder knows."""
    pen = Pen(store, "a")
    pen.write()
    pen.head = 7

    result = store.append(pen.next())

    assert (result.outcome, result.head) == (Outcome.CONFLICT, 1)


def test_the_append_compares_the_whole_history_and_not_only_its_length(store: Store) -> None:
    pen = Pen(store, "a")
    pen.write()

    result = store.append(pen.next(expected_hash=hashlib.sha256(b"another past").digest()))

    assert (result.outcome, result.head) == (Outcome.CONFLICT, 1)


def test_an_append_to_a_thread_that_is_not_there_is_missing(store: Store) -> None:
    pen = Pen(store, "a")

    result = store.append(pen.next(thread="nowhere"))

    assert (result.outcome, result.head) == (Outcome.MISSING, 0)
    assert store.append(pen.next([event(), event()], thread="nowhere")).outcome is Outcome.MISSING


def test_reads_are_bounded_on_both_sides_and_in_seq_order(store: Store) -> None:
    """H27: fifty events of one append share their time; order is the seq."""
    pen = Pen(store, "a")
    pen.write(*[event() for _ in range(50)])

    assert [each.seq for each in store.read("a")] == list(range(1, 51))
    assert [each.seq for each in store.read("a", after=10, upto=13)] == [11, 12, 13]
    assert [each.seq for each in store.read("a", after=45, limit=3)] == [46, 47, 48]
    assert [each.seq for each in store.read("a", after=49, upto=99)] == [50]
    assert store.read("a", after=50) == []
    assert store.read("a", upto=0) == []
    assert store.read("a", limit=0) == []


def test_recorded_times_are_the_databases_clock(world: World) -> None:
    pen = Pen(world.store, "a", ttl_s=10_000)
    pen.write()
    world.advance(100)
    pen.write()

    first, second = world.store.read("a")

    assert 100 <= (second.recorded_at - first.recorded_at) / 1e6 < 130
    assert world.store.info("a").updated_at == second.recorded_at


def test_many_threads_are_appended_in_one_call_each_with_its_own_outcome(store: Store) -> None:
    pens = {name: Pen(store, name) for name in ("c", "a", "é", "b", "d")}
    taken = pens["b"].next()
    Pen(store, "b", steal=True)
    conflicting = pens["d"].next()
    pens["d"].write()
    appends = [
        pens["c"].next([event(b"c1"), event(b"c2")]),
        pens["a"].next([event(b"a1")]),
        pens["é"].next([event(b"e1"), event(b"e2"), event(b"e3")]),
        taken,
        conflicting,
        pens["a"].next(thread="nowhere"),
    ]

    results = store.append_many(appends)

    assert [(result.outcome, result.head) for result in results] == [
        (Outcome.APPENDED, 2),
        (Outcome.APPENDED, 1),
        (Outcome.APPENDED, 3),
        (Outcome.FENCED, 0),
        (Outcome.CONFLICT, 1),
        (Outcome.MISSING, 0),
    ]
    assert [each.body for each in store.read("c")] == [b"c1", b"c2"]
    assert [each.body for each in store.read("é")] == [b"e1", b"e2", b"e3"]
    assert store.read("b") == []
    for thread in pens:
        verify(store.read(thread))
    assert [result.outcome for result in store.append_many(appends[:3])] == [Outcome.DUPLICATE] * 3


def test_a_group_may_be_empty_and_may_not_name_a_thread_twice(store: Store) -> None:
    pen = Pen(store, "a")

    assert store.append_many([]) == []
    with pytest.raises(UsageError):
        store.append_many([pen.next(), pen.next()])
    assert store.read("a") == []


def test_an_append_keeps_every_field_of_its_ids(store: Store) -> None:
    pen = Pen(store, "a")
    pen.write(NewEvent(uuid.UUID(int=0), "k", 32767, b""))

    assert store.read("a")[0].id == uuid.UUID(int=0)
    assert store.read("a")[0].version == 32767
