"""Messages from outside: each enters the log once, and none is left behind."""

from __future__ import annotations

import pytest
from appends import Pen, event
from refold.journal.errors import LimitExceeded, ThreadNotFound
from refold.journal.store import Outcome, Release, Store
from store_worlds import World


def send(store: Store, key: str, thread: str = "a") -> int:
    sent = store.send(thread, key=key, kind="signal", body=key.encode())
    assert sent.fresh
    return sent.message.id


def test_messages_wait_in_the_order_of_arrival(store: Store) -> None:
    store.create("a")
    sent = [
        store.send("a", key=f"k{9 - number}", kind="signal", body=b"\x00\xff").message for number in range(5)
    ]

    assert store.inbox("a") == sent
    assert [message.key for message in sent] == ["k9", "k8", "k7", "k6", "k5"]
    assert [message.id for message in sent] == sorted({message.id for message in sent})
    assert store.inbox("a", after=sent[1].id) == sent[2:]
    assert store.info("a").inbox_waiting == 5
    assert sent[0].body == b"\x00\xff"
    assert sent[0].consumed_seq is None


def test_of_several_messages_with_one_key_the_first_stays(store: Store) -> None:
    store.create("a")
    first = store.send("a", key="k", kind="approval", body=b"yes")
    second = store.send("a", key="k", kind="approval", body=b"no")

    assert first.fresh
    assert not second.fresh
    assert second.message == first.message
    assert store.inbox("a") == [first.message]


def test_keys_of_different_threads_do_not_meet(store: Store) -> None:
    store.create("a")
    store.create("b")

    assert store.send("a", key="k", kind="signal", body=b"1").fresh
    assert store.send("b", key="k", kind="signal", body=b"2").fresh


def test_nothing_can_be_sent_to_a_thread_that_is_not_there(store: Store) -> None:
    with pytest.raises(ThreadNotFound):
        store.send("nowhere", key="k", kind="signal", body=b"")


@pytest.mark.parametrize("key", ["", "k" * 513, "a\0b"])
def test_a_key_over_the_limit_is_refused(store: Store, key: str) -> None:
    store.create("a")
    with pytest.raises(LimitExceeded):
        store.send("a", key=key, kind="signal", body=b"")
    assert store.inbox("a") == []


def test_an_append_takes_messages_in_its_own_transaction(store: Store) -> None:
    pen = Pen(store, "a")
    ids = [send(store, key) for key in ("k1", "k2", "k3")]

    pen.write(event(), event(), consumed=(ids[0], ids[2]))

    assert [message.key for message in store.inbox("a")] == ["k2"]
    assert [message.consumed_seq for message in store.inbox("a", consumed=True)] == [2, None, 2]
    assert store.info("a").inbox_waiting == 1


def test_a_message_that_was_taken_keeps_its_key(store: Store) -> None:
    pen = Pen(store, "a")
    pen.write(consumed=(send(store, "k"),))

    again = store.send("a", key="k", kind="signal", body=b"other")

    assert not again.fresh
    assert again.message.consumed_seq == 1
    assert store.inbox("a") == []


def test_an_append_that_takes_messages_can_be_sent_again(store: Store) -> None:
    pen = Pen(store, "a")
    append = pen.next(consumed=(send(store, "k"),))

    assert store.append(append).outcome is Outcome.APPENDED
    assert store.append(append).outcome is Outcome.DUPLICATE
    assert len(store.read("a")) == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_a_message_is_taken_once_or_the_append_writes_nothing(store: Store, grouped: bool) -> None:
    pen = Pen(store, "a")
    first, second = send(store, "k1"), send(store, "k2")
    pen.write(consumed=(first,))

    for consumed in ((first,), (second, first), (99,)):
        append = pen.next([event(), event()], consumed=consumed)
        result = store.append_many([append])[0] if grouped else store.append(append)
        assert (result.outcome, result.head) == (Outcome.CONFLICT, 1)
    assert len(store.read("a")) == 1
    assert [message.key for message in store.inbox("a")] == ["k2"]


def test_a_group_takes_the_messages_of_each_of_its_threads(store: Store) -> None:
    pens = [Pen(store, name) for name in ("b", "a", "c")]
    ids = [send(store, "k", pen.thread) for pen in pens[:2]]

    results = store.append_many(
        [
            pens[0].next(consumed=(ids[0],)),
            pens[1].next([event(), event()], consumed=(ids[1],)),
            pens[2].next(),
        ]
    )

    assert [result.outcome for result in results] == [Outcome.APPENDED] * 3
    assert [message.consumed_seq for message in store.inbox("b", consumed=True)] == [1]
    assert [message.consumed_seq for message in store.inbox("a", consumed=True)] == [2]


def test_a_fenced_append_takes_no_message(store: Store) -> None:
    old = Pen(store, "a")
    message = send(store, "k")
    Pen(store, "a", steal=True)

    assert store.append(old.next(consumed=(message,))).outcome is Outcome.FENCED
    assert len(store.inbox("a")) == 1


def test_release_keeps_the_lease_when_something_waits_that_was_not_seen(world: World) -> None:
    store = world.store
    pen = Pen(store, "a")
    seen = send(store, "k1")
    unseen = send(store, "k2")

    assert store.release("a", fence=pen.fence, seen=seen) is Release.INBOX_PENDING
    pen.write()
    assert store.release("a", fence=pen.fence, seen=unseen) is Release.RELEASED


def test_a_message_that_was_taken_does_not_hold_a_release_up(store: Store) -> None:
    pen = Pen(store, "a")
    pen.write(consumed=(send(store, "k"),))

    assert store.release("a", fence=pen.fence, seen=0) is Release.RELEASED
