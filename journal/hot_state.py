"""Hot state of threads: recorded events kept in a cache, so that resuming reads little from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from msgspec import Struct

from .backlog import Backlog
from .chunks import CHUNK_EVENTS, chunk_key, completed, decode, encode, span
from .envelope import GENESIS, Event
from .errors import Corrupt, RefoldError, StoreError
from .link import Link
from .store import Store

TTL_S = 3 * 24 * 3600.0
_WAITING_MAX = 512
_WAITING_BYTES_MAX = 64 * 1024 * 1024

T = TypeVar("T")
Read = Callable[[str, int, int], list[Event]]
"""Reads events from the store: thread, after, upto; a page of them at least, if they are there."""
Chunks = dict[tuple[str, int], list[Event] | None]
"""Chunks to keep, by thread and number; None for one that is to be read first."""


class Later(Protocol):
    """Chunks that are kept when there is time; a `Backlog` is one."""

    def put(self, key: tuple[str, int], value: list[Event] | None, *, size: int = 0) -> None:
        """Keep a chunk some time, if there is room. Never blocks."""

    def close(self, *, flush_s: float) -> None:
        """Take no more; give what waits *flush_s*."""


class Counts(Struct):
    """What became of looking for hot state, in chunks."""

    hits: int = 0
    misses: int = 0
    kept: int = 0
    disbelieved: int = 0
    """Threads whose hot state was thrown away because the log says otherwise."""


class HotState:
    """
    Chunks of threads' logs in a cache. Nothing waits for it but `recall`, and that within the cache's time-outs.

    Args:
        link: The cache.
        store: Where the events are.
        ttl_s: How long a chunk is kept.
        later: Makes what keeps chunks off everybody's path, from the work to be done; a thread of its own by default.
    """

    def __init__(
        self,
        link: Link,
        store: Store,
        *,
        ttl_s: float = TTL_S,
        later: Callable[[Callable[[Chunks], None]], Later] | None = None,
    ) -> None:
        self._link = link
        self._store = store
        self._ttl_s = ttl_s
        self.counts = Counts()
        self._backlog: Later = (later or _thread_of_its_own)(self._work)

    def recall(self, thread: str, head: int) -> dict[int, list[Event]]:
        """The chunks below *head* that the cache holds."""
        numbers = completed(0, head)
        values = self._link.fetch([chunk_key(self._store.identity, thread, number) for number in numbers])
        found: dict[int, list[Event]] = {}
        for number, value in zip(numbers, values, strict=True):
            events = decode(value, self._store.identity, thread, number)
            if events is not None:
                found[number] = events
        self.counts.hits += len(found)
        self.counts.misses += len(numbers) - len(found)
        return found

    def remember(self, thread: str, events: list[Event], known: dict[int, list[Event]]) -> None:
        """Keep the chunks of a whole log that are not *known* to be there."""
        for number in completed(0, len(events)):
            if number not in known:
                after, upto = span(number)
                chunk = events[after:upto]
                self._backlog.put((thread, number), chunk, size=sum(len(each.body) for each in chunk))

    def committed(self, thread: str, before: int, head: int) -> None:
        """The thread has grown: keep what has become complete. Never blocks."""
        for number in completed(before, head):
            self._backlog.put((thread, number), None)

    def close(self, *, flush_s: float) -> None:
        """Give what waits *flush_s* to be kept."""
        self._backlog.close(flush_s=flush_s)

    def _work(self, batch: Chunks) -> None:
        for (thread, number), given in batch.items():
            if not self._link.reach.closed or self._link.writing.wait_s():
                continue
            events = given
            if events is None:
                # An append does not tell when the server recorded it, so the chunk is read back, once.
                try:
                    events = self._store.read(thread, after=span(number)[0], limit=CHUNK_EVENTS)
                except StoreError:
                    continue
            value = encode(self._store.identity, number, events)
            if value is not None and self._link.keep(
                [(chunk_key(self._store.identity, thread, number), value)], ttl_s=self._ttl_s
            ):
                self.counts.kept += 1


def _thread_of_its_own(work: Callable[[Chunks], None]) -> Later:
    return Backlog("refold-hot", work, most=_WAITING_MAX, bytes_most=_WAITING_BYTES_MAX, batch=1)


def fold_history(
    read: Read,
    hot: HotState | None,
    thread: str,
    head: int,
    head_hash: bytes,
    fold: Callable[[list[Event]], T],
) -> T:
    """
    What *fold* makes of the whole log of *thread*, read from hot state where it can be and the store elsewhere.

    Args:
        read: Reads events from the store.
        hot: Hot state, if there is any.
        thread: Thread id.
        head: Seq of its newest event, as the store has just told.
        head_hash: Hash of that event, as the store has just told.
        fold: Checks the hash chain from seq 1 on, and raises if it does not hold.

    Raises:
        Corrupt: The store's own log does not lead to its head.
        Exception: What *fold* raised over the store's own log.
    """
    known = {} if hot is None else hot.recall(thread, head)
    if hot is not None and known:
        try:
            events = list(_patched(read, thread, head, known))
            if len(events) == head and events[-1].hash == head_hash:
                folded = fold(events)
                hot.remember(thread, events, known)
                return folded
        except StoreError:
            raise
        except RefoldError:
            # Whether the log or the cache is wrong, the log alone will tell.
            pass
        hot.counts.disbelieved += 1
    events = list(_range(read, thread, 0, head))
    if len(events) != head:
        raise Corrupt(thread, len(events) + 1, f"the head is {head}, the log ends before it")
    folded = fold(events)
    last = events[-1].hash if events else GENESIS
    if last != head_hash:
        raise Corrupt(thread, head, "its hash is not the one in the thread's row")
    if hot is not None:
        hot.remember(thread, events, {})
    return folded


def _patched(read: Read, thread: str, head: int, known: dict[int, list[Event]]) -> Iterator[Event]:
    """The log up to *head*: chunks that are known, and ranges of the store between them."""
    done = 0
    for number in sorted(known):
        after, upto = span(number)
        yield from _range(read, thread, done, after)
        yield from known[number]
        done = upto
    yield from _range(read, thread, done, head)


def _range(read: Read, thread: str, after: int, upto: int) -> Iterator[Event]:
    while after < upto:
        page = read(thread, after, upto)
        yield from page
        if not page:
            return
        after = page[-1].seq
