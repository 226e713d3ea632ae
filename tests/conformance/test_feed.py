"""The feed across threads: every event once, in seq order within a thread, none missed."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

from appends import Pen, event
from refold.journal.envelope import Event
from refold.journal.store import Cursor, Store
from store_worlds import World


def drain(store: Store, cursor: Cursor, limit: int = 7) -> tuple[list[Event], Cursor]:
    """Everything after *cursor* in small pages, and where to go on."""
    got: list[Event] = []
    while (page := store.feed(cursor, limit=limit)).events:
        assert len(page.events) <= limit
        got += page.events
        cursor = page.cursor
    assert page.cursor == cursor
    return got, cursor


def test_the_feed_brings_every_event_once_and_goes_on_from_its_cursor(store: Store) -> None:
    pens = [Pen(store, name) for name in ("b", "a", "c")]
    pens[0].write(event(), event())
    pens[1].write()
    store.append_many([pen.next([event()] * 3) for pen in pens[1:]])

    first, cursor = drain(store, Cursor(), limit=2)
    assert sorted((each.thread, each.seq) for each in first) == [
        ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("c", 1), ("c", 2), ("c", 3),
    ]  # fmt: skip
    assert all(each == store.read(each.thread)[each.seq - 1] for each in first)

    pens[0].write()
    second, _ = drain(store, cursor)
    assert [(each.thread, each.seq) for each in second] == [("b", 3)]


def test_an_empty_feed_keeps_the_cursor(store: Store) -> None:
    cursor = Cursor(5, "x", 2)

    assert store.feed(cursor).cursor == cursor
    assert store.feed(Cursor()).events == ()


def test_a_reader_beside_concurrent_writers_misses_nothing_and_sees_nothing_twice(world: World) -> None:
    store = world.store
    writers, rounds = 6, 40

    def write(number: int) -> None:
        chance = random.Random(number)
        pens = [Pen(store, f"{number}-{each}") for each in range(3)]
        for _ in range(rounds):
            if chance.random() < 0.3:
                appends = [pen.next([event()] * chance.randint(1, 3)) for pen in pens]
                store.append_many(appends)
                for pen, append in zip(pens, appends, strict=True):
                    pen.done(append)
            else:
                chance.choice(pens).write(*[event()] * chance.randint(1, 3))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    seen: dict[str, list[int]] = defaultdict(list)
    cursor = Cursor()
    while any(thread.is_alive() for thread in threads):
        got, cursor = drain(store, cursor)
        for each in got:
            seen[each.thread].append(each.seq)
    for thread in threads:
        thread.join()
    got, cursor = drain(store, cursor)
    for each in got:
        seen[each.thread].append(each.seq)

    assert len(seen) == writers * 3
    for thread_id, seqs in seen.items():
        assert seqs == list(range(1, store.info(thread_id).head + 1))
