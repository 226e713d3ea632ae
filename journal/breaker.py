"""A circuit breaker: what has failed is left alone for a while, and each change is told once."""

from __future__ import annotations

import logging
import threading

from .sources import Sources

_log = logging.getLogger("refold.journal")


class Breaker:
    """
    Whether something that may fail is to be used now. Thread-safe.

    Args:
        what: Named in the warnings, which are one for each change.
        without: What the failure costs, and what does not depend on it.
        sources: Its monotonic clock.
        pause_min_s: How long the first failure keeps it off; each further one twice as long.
        pause_max_s: The longest pause.
    """

    def __init__(
        self,
        what: str,
        without: str,
        sources: Sources,
        *,
        pause_min_s: float = 1.0,
        pause_max_s: float = 30.0,
    ) -> None:
        self._what = what
        self._without = without
        self._sources = sources
        self._pause_min_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._again_s: float | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing is wrong, as far as is known."""
        return self._again_s is None

    def wait_s(self) -> float | None:
        """How long it is still to be left alone; None when nothing is wrong, 0 when it may be tried again."""
        with self._lock:
            return None if self._again_s is None else max(0.0, self._again_s - self._sources.monotonic_s())

    def failed(self, why: object) -> None:
        """It failed: leave it alone for a while."""
        with self._lock:
            fresh = self._again_s is None
            now_s = self._sources.monotonic_s()
            # Many may have been under way when it failed; together they are one failure.
            if not fresh and self._again_s is not None and now_s < self._again_s:
                return
            self._pause_s = self._pause_min_s if fresh else min(self._pause_max_s, self._pause_s * 2)
            self._again_s = now_s + self._pause_s
        if fresh:
            _log.warning("%s failed: %s; %s", self._what, why, self._without)

    def worked(self) -> None:
        """It did what it was asked to."""
        with self._lock:
            if self._again_s is None:
                return
            self._again_s = None
        _log.warning("%s works again", self._what)
