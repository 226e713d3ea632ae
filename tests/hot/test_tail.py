"""A tail shows each event once and in order, from any place, across restarts, with Redis or without."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis_server import RedisProcess
from refold import Journal
from refold.journal.envelope import Event, NewEvent
from refold.journal.errors import UsageError
from refold.journal.sources import SYSTEM
from refold.journal.store import Cursor, ThreadState
from refold.replay.runner import read_all


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Iterator[Journal]:
    opened = (
        Journal.memory() if request.param == "memory" else Journal.open(request.getfixturevalue("pg_dsn"))
    )
    with opened as made:
        yield made


def write(journal: Journal, thread: str, *counts: int) -> None:
    """One append for each count."""
    tenure = journal.acquire(thread)
    for count in counts:
        batch = [NewEvent(SYSTEM.new_id(), "noted", 1, b'{"at":1}') for _ in range(count)]
        tenure.append(batch, state=ThreadState.RUNNING).result(10)
    tenure.release()


def places(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.thread, event.seq) for event in events]


def test_a_tail_catches_up_and_then_follows(journal: Journal) -> None:
    write(journal, "t", 3, 2)
    with journal.tail("t") as tail:
        assert places(tail.take(5)) == [("t", seq) for seq in range(1, 6)]
        assert tail.take(0) == []
        write(journal, "t", 1, 1)
        assert [next(tail).seq, next(tail).seq] == [6, 7]
        assert tail.cursor == 7


def test_a_tail_goes_on_after_any_seq(journal: Journal) -> None:
    write(journal, "t", 9)
    for after in range(10):
        with journal.tail("t", after=after) as tail:
            assert [event.seq for event in tail.take(0)] == list(range(after + 1, 10))


def test_a_tail_of_all_goes_on_after_any_event_it_has_shown(journal: Journal) -> None:
    for thread in ("a", "b"):
        write(journal, thread, 3, 1, 2)
    write(journal, "a", 4)
    with journal.tail() as tail:
        cursors: list[Cursor] = [tail.cursor]  # type: ignore[list-item]
        events = []
        for _ in range(16):
            events.append(next(tail))
            cursors.append(tail.cursor)  # type: ignore[arg-type]
        assert tail.take(0) == []
    assert sorted(places(events)) == [("a", seq) for seq in range(1, 11)] + [
        ("b", seq) for seq in range(1, 7)
    ]
    for shown, cursor in enumerate(cursors):
        with journal.tail(after=cursor) as tail:
            assert tail.take(0) == events[shown:]


def test_a_thread_that_is_not_there_yet_can_be_followed(journal: Journal) -> None:
    with journal.tail("later") as tail:
        assert tail.take(0) == []
        write(journal, "later", 1)
        assert places(tail.take(5)) == [("later", 1)]


def test_closing_a_tail_lets_whoever_waits_go(journal: Journal) -> None:
    tail = journal.tail("t", poll_s=60)
    ended = threading.Event()

    def follow() -> None:
        assert list(tail) == []
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    tail.close()

    assert ended.wait(5)


def test_what_this_journal_writes_is_seen_at_once(journal: Journal) -> None:
    """Without Redis, and with a polling interval that nobody would wait for."""
    with journal.tail("t", poll_s=60) as tail:
        assert tail.take(0.5) == []
        writing = threading.Thread(target=write, args=(journal, "t", 1))
        writing.start()
        assert places(tail.take(20)) == [("t", 1)]
        writing.join(20)


def test_a_place_of_the_wrong_sort_is_refused(journal: Journal) -> None:
    for wrong in (
        lambda: journal.tail("t", after=Cursor()),
        lambda: journal.tail(after=3),
        lambda: journal.tail(poll_s=0),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_an_event_of_another_process_is_seen_within_the_polling_interval_and_at_once_with_redis(
    pg_dsn: str, redis_process: RedisProcess
) -> None:
    for url, poll_s in ((None, 0.2), (redis_process.url, 60.0)):
        with Journal.open(pg_dsn, redis_url=url) as here, Journal.open(pg_dsn, redis_url=url) as there:
            thread = f"with {url}"
            with here.tail(thread, poll_s=poll_s) as tail:
                # Long enough for the tail to have come to its longest pause, and for the subscription.
                assert tail.take(1.0) == []
                write(there, thread, 1)
                assert places(tail.take(20)) == [(thread, 1)]


class Reader:
    """Follows all threads, or each of them, and is given up and begun anew at random moments."""

    def __init__(self, open_journal: Callable[[], Journal], seed: int) -> None:
        self._open = open_journal
        self._random = random.Random(seed)
        self.seen: list[tuple[str, int]] = []
        self.late_s: dict[tuple[str, int], tuple[float, float]] = {}
        """When each event was seen, and since when the tail that saw it was looking."""
        self.restarts = 0
        self.over = threading.Event()

    def run(self, total: int) -> None:
        cursor: Cursor | None = None
        while len(self.seen) < total and not self.over.is_set():
            lives = self._random.randrange(1, 300)
            with self._open() as journal, journal.tail(after=cursor) as tail:
                since_s = 0.0
                while lives > 0 and len(self.seen) < total and not self.over.is_set():
                    for event in tail.take(1.0, limit=self._random.randrange(1, 50)):
                        place, now_s = (event.thread, event.seq), time.monotonic()
                        self.seen.append(place)
                        self.late_s.setdefault(place, (now_s, since_s or now_s))
                        lives -= 1
                    since_s = since_s or time.monotonic()
                    assert isinstance(tail.cursor, Cursor)
                    cursor = tail.cursor
            self.restarts += 1


@pytest.mark.parametrize("redis", [True, False], ids=["redis", "polling"])
def test_two_readers_that_restart_at_random_see_each_event_of_twenty_threads_once_and_in_order(
    pg_dsn: str, redis_process: RedisProcess, redis: bool
) -> None:
    threads, appends = 20, 30
    url = redis_process.url if redis else None
    written_s: dict[tuple[str, int], float] = {}
    readers = [Reader(lambda: Journal.open(pg_dsn, redis_url=url), seed) for seed in (1, 2)]
    total = threads * appends * 2
    following = [threading.Thread(target=reader.run, args=(total,)) for reader in readers]
    with Journal.open(pg_dsn, redis_url=url) as journal:

        def work(name: str) -> None:
            tenure = journal.acquire(name)
            for _ in range(appends):
                batch = [NewEvent(SYSTEM.new_id(), "noted", 1, b'{"at":1}') for _ in range(2)]
                head = tenure.append(batch, state=ThreadState.RUNNING).result(20).head
                now_s = time.monotonic()
                written_s[name, head], written_s[name, head - 1] = now_s, now_s
            tenure.release()

        working = [threading.Thread(target=work, args=(f"t{number:02}",)) for number in range(threads)]
        for each in following + working:
            each.start()
        for each in working:
            each.join(60)
        for each in following:
            each.join(30)
        for reader in readers:
            reader.over.set()
        truth = {f"t{number:02}": len(read_all(journal, f"t{number:02}")) for number in range(threads)}

    assert set(truth.values()) == {appends * 2}
    for reader in readers:
        by_thread: dict[str, list[int]] = defaultdict(list)
        for thread, seq in reader.seen:
            by_thread[thread].append(seq)
        assert by_thread == {thread: list(range(1, head + 1)) for thread, head in truth.items()}
        assert reader.restarts > 3
        # What came while a reader was away, or catching up, says nothing of how it is woken.
        late_ms = [
            max(0.0, seen_s - at_s) * 1000
            for place, at_s in written_s.items()
            for seen_s, since_s in [reader.late_s[place]]
            if at_s > since_s
        ]
        print(f"{'redis' if redis else 'polling'}: {reader.restarts} restarts, {len(late_ms)} events", end="")
        print(
            f" while it looked, p50 {statistics.median(late_ms):.1f} ms after the commit" if late_ms else ""
        )


class Looks:
    """How often a journal has looked for events."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._changed = threading.Condition()
        feed = journal.store.feed

        def counted(*args: Any, **named: Any) -> Any:
            page = feed(*args, **named)
            with self._changed:
                self._count += 1
                self._changed.notify_all()
            return page

        monkeypatch.setattr(journal.store, "feed", counted)

    def go_by(self, more: int) -> None:
        """Return when it has looked so often again."""
        with self._changed:
            wanted = self._count + more
            assert self._changed.wait_for(lambda: self._count >= wanted, 30)


def test_a_quiet_tail_is_woken_through_redis_sooner_than_it_would_look_by_itself(
    pg_dsn: str, redis_process: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both follow the same events, each of which comes when the one that polls has found nothing for some time."""
    rounds, url = 12, redis_process.url
    late_s: dict[str, list[float]] = {"redis": [], "polling": []}
    seen = {name: threading.Semaphore(0) for name in late_s}
    at_s: dict[str, float] = {}
    over = threading.Event()

    def follow(name: str, journal: Journal) -> None:
        with journal.tail() as tail:
            while not over.is_set():
                for _ in tail.take(0.2):
                    at_s[name] = time.monotonic()
                    seen[name].release()

    with (
        Journal.open(pg_dsn, redis_url=url) as writing,
        Journal.open(pg_dsn, redis_url=url) as rung,
        Journal.open(pg_dsn) as polling,
    ):
        looks = Looks(polling, monkeypatch)
        following = [
            threading.Thread(target=follow, args=("redis", rung)),
            threading.Thread(target=follow, args=("polling", polling)),
        ]
        for each in following:
            each.start()
        tenure = writing.acquire("t")
        for _ in range(rounds):
            looks.go_by(6)
            note = NewEvent(SYSTEM.new_id(), "noted", 1, b'{"at":1}')
            tenure.append([note], state=ThreadState.RUNNING).result(20)
            committed_s = time.monotonic()
            for name, late in late_s.items():
                assert seen[name].acquire(timeout=30)
                late.append(max(0.0, at_s[name] - committed_s))
        tenure.release()
        over.set()
        for each in following:
            each.join(30)

    redis_ms, polling_ms = (statistics.median(late_s[name]) * 1000 for name in ("redis", "polling"))
    print(f"a quiet tail: redis p50 {redis_ms:.1f} ms, polling p50 {polling_ms:.1f} ms after the commit")
    assert redis_ms < polling_ms
