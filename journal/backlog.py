"""Work that nobody waits for: a thread of its own, and a bounded queue that forgets before it grows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("refold.journal")


class Backlog(Generic[K, V]):
    """
    Does work in the order it came, off everybody's path. Thread-safe; the thread starts with the first work.

    Args:
        name: Of the thread.
        work: Given what has come since, at once; and nothing, whenever `tick_s` has passed.
        most: Entries that may wait; more are dropped.
        bytes_most: Their sizes together.
        batch: Entries given to *work* at once.
        tick_s: How long to wait for work at most; None: for ever.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[dict[K, V]], None],
        *,
        most: int,
        bytes_most: int | None = None,
        batch: int | None = None,
        tick_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._name = name
        self._work = work
        self._most = most
        self._bytes_most = bytes_most
        self._batch = batch or most
        self._tick_s = tick_s
        self._changed = threading.Condition()
        self._waiting: dict[K, tuple[V, int]] = {}
        self._bytes = 0
        self._busy = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, key: K, value: V, *, size: int = 0) -> None:
        """Add work, unless work of that key waits already or there is no room."""
        with self._changed:
            full = len(self._waiting) >= self._most or (
                self._bytes_most is not None and self._bytes + size > self._bytes_most
            )
            if self._closing or full or key in self._waiting:
                return
            self._waiting[key] = (value, size)
            self._bytes += size
            self._wake()

    def nudge(self) -> None:
        """Look at `tick_s` anew."""
        with self._changed:
            if not self._closing:
                self._wake()

    def close(self, *, flush_s: float) -> None:
        """Take no more work; give what waits *flush_s* to be done."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._busy, flush_s)
            self._waiting.clear()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(flush_s)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            try:
                self._work(batch)
            except Exception:  # noqa: BLE001  nothing depends on this work
                _log.exception("%s failed", self._name)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _take(self) -> dict[K, V] | None:
        with self._changed:
            if not self._waiting and not self._closing:
                self._changed.wait(self._tick_s())
            if self._closing and not self._waiting:
                return None
            batch: dict[K, V] = {}
            for key in list(self._waiting)[: self._batch]:
                batch[key], size = self._waiting.pop(key)
                self._bytes -= size
            self._busy = True
            return batch
