"""The renewer thread: keeps the leases of a process alive, whatever its other threads are busy with."""

from __future__ import annotations

import logging
import threading

from .errors import StoreError
from .sources import Sources
from .store import Store
from .tenure import Tenure

_log = logging.getLogger("refold.journal")


class Renewer:
    """
    Renews the lease of each watched tenure when a third of it has passed since the last renewal or append.

    Args:
        store: Its `renew` is called from the renewer's own thread.
        sources: Its monotonic clock says when.
    """

    def __init__(self, store: Store, sources: Sources) -> None:
        self._store = store
        self._sources = sources
        self._changed = threading.Condition()
        self._tenures: set[Tenure] = set()
        self._retry_s: dict[Tenure, float] = {}
        self._closing = False
        self._thread: threading.Thread | None = None

    def watch(self, tenure: Tenure) -> None:
        """Keep the lease of *tenure* alive until it ends or is overdue."""
        with self._changed:
            self._tenures.add(tenure)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="refold-renewer", daemon=True)
                self._thread.start()
            else:
                self._changed.notify_all()

    def close(self) -> None:
        """Renew no more and stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closing:
                    return
                due, wait_s = self._due()
                if not due:
                    self._changed.wait(wait_s)
                    continue
            for tenure in due:
                self._renew(tenure)

    def _due(self) -> tuple[list[Tenure], float | None]:
        now_s = self._sources.monotonic_s()
        self._tenures = {tenure for tenure in self._tenures if not tenure.ended}
        self._retry_s = {tenure: at for tenure, at in self._retry_s.items() if tenure in self._tenures}
        due: list[Tenure] = []
        wait_s: float | None = None
        for tenure in self._tenures:
            left_s = max(tenure.due_s(), self._retry_s.get(tenure, 0.0)) - now_s
            if not tenure.renewable(now_s):
                # Overdue now, perhaps not later: `overdue_after` may be moved on.
                left_s = max(left_s, tenure.ttl_s / 10)
            elif left_s <= tenure.ttl_s / 50:
                due.append(tenure)
                continue
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        return due, wait_s

    def _renew(self, tenure: Tenure) -> None:
        sent_s = self._sources.monotonic_s()
        if not tenure.renewable(sent_s) or self._closing:
            return
        try:
            kept = self._store.renew(tenure.thread, fence=tenure.fence, ttl_s=tenure.ttl_s)
        except StoreError as error:
            self._retry_s[tenure] = sent_s + min(1.0, tenure.ttl_s / 10)
            _log.info("renewing the lease of thread %r failed, trying again: %s", tenure.thread, error)
            return
        except Exception:  # noqa: BLE001  the other leases must go on being renewed
            self._retry_s[tenure] = sent_s + tenure.ttl_s / 10
            _log.exception("renewing the lease of thread %r failed", tenure.thread)
            return
        if kept:
            tenure.renewed(sent_s)
            return
        try:
            tenure.refused()
        except Exception:  # noqa: BLE001  the callback is the engine's, the thread is ours
            _log.exception("the callback of the lost tenure of thread %r failed", tenure.thread)
