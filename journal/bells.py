"""
Wakes what waits for news of a thread. A bell says only that it is worth looking; the store says what there is.

Bells of one journal ring each other directly, those of other processes through a cache if there is one. A lost or
needless ring costs nothing but time: whoever waits also looks by itself, every so often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from .backlog import Backlog
from .chunks import channel
from .hot import CacheFailed
from .link import Link

Topic = Literal["inbox", "log"]
Ring = Callable[[], None]

_WAITING_MAX = 10_000
_SILENCE_S = 5.0
_AGAIN_S = 0.25


class Bells:
    """
    The bells of one journal. Thread-safe.

    Args:
        identity: Which database; its threads' names are what bells are rung by.
        link: The cache that carries rings between processes.
    """

    def __init__(self, identity: str, link: Link | None = None) -> None:
        self._identity = identity
        self._link = link
        self._lock = threading.Lock()
        self._hung: dict[tuple[Topic, str | None], list[Ring]] = {}
        self._ears: dict[Topic, _Ear] = {}
        self._closed = False
        self._post: Backlog[tuple[Topic, str], None] | None = None
        if link is not None:
            self._post = Backlog(
                "refold-bells", self._publish, most=_WAITING_MAX, batch=500, tick_s=link.reach.wait_s
            )
            link.on_failure = self._post.nudge

    @contextmanager
    def hung(self, topic: Topic, thread: str | None, ring: Ring) -> Iterator[None]:
        """
        Call *ring*, from any thread, whenever there may be news.

        Args:
            topic: Messages in the inbox, or events in the log.
            thread: Of which thread; None: of any.
            ring: Quick, and it does not raise.
        """
        place = (topic, thread)
        with self._lock:
            self._hung.setdefault(place, []).append(ring)
            if self._link is not None and topic not in self._ears and not self._closed:
                self._ears[topic] = _Ear(self, self._link, topic, channel(self._identity, topic))
        try:
            yield
        finally:
            with self._lock:
                self._hung[place].remove(ring)
                if not self._hung[place]:
                    del self._hung[place]

    def ring(self, topic: Topic, thread: str) -> None:
        """There may be news of *thread*: tell all who wait here and elsewhere. Never blocks."""
        self.heard(topic, thread)
        if self._post is not None:
            self._post.put((topic, thread), None)

    def heard(self, topic: Topic, thread: str) -> None:
        """There may be news of *thread*: tell all who wait here."""
        if self._hung:
            with self._lock:
                rings = [*self._hung.get((topic, thread), ()), *self._hung.get((topic, None), ())]
            for ring in rings:
                ring()

    def heard_nothing(self, topic: Topic) -> None:
        """News may have been missed: tell all who wait here."""
        with self._lock:
            rings = [ring for (about, _), each in self._hung.items() if about == topic for ring in each]
        for ring in rings:
            ring()

    def flush(self, flush_s: float) -> None:
        """Pass on what waits, within *flush_s*, and nothing more."""
        with self._lock:
            self._closed = True
            ears = list(self._ears.values())
        for ear in ears:
            ear.stop()
        if self._post is not None:
            self._post.close(flush_s=flush_s)

    def close(self) -> None:
        """See the listening end, once the link is closed."""
        for ear in self._ears.values():
            ear.join()

    def _publish(self, batch: dict[tuple[Topic, str], None]) -> None:
        assert self._link is not None
        if batch:
            self._link.publish([(channel(self._identity, topic), thread.encode()) for topic, thread in batch])
        self._link.probe()


class _Ear:
    """Listens to one channel in a thread of its own."""

    def __init__(self, bells: Bells, link: Link, topic: Topic, name: str) -> None:
        self._bells = bells
        self._link = link
        self._topic: Topic = topic
        self._name = name
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refold-ear", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Listen no more; a wait under way is ended by closing the link."""
        self._closing.set()

    def join(self) -> None:
        """See it end."""
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            heard = self._link.listen(self._name)
            if heard is None:
                self._closing.wait(_AGAIN_S)
                continue
            try:
                # What came before the subscription has rung nobody.
                self._bells.heard_nothing(self._topic)
                while not self._closing.is_set():
                    payload = heard.next(_SILENCE_S)
                    if payload is not None:
                        self._bells.heard(self._topic, payload.decode("utf-8", "replace"))
            except CacheFailed as error:
                if not self._closing.is_set():
                    self._link.failed(error)
            finally:
                heard.close()
