"""Appends carried by an event loop itself, so that no thread has to be woken for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from .sources import Sources
from .store import AppendResult
from .submission import Submission, take_group
from .wire import Wire

BYTES_MAX = 1024 * 1024
"""A larger append is not worth holding the loop up."""

ABANDONED_S = 5.0
"""A loop that leaves an answer unread for so long is busy with something else."""

_log = logging.getLogger("refold.journal")


class Lane:
    """
    One event loop's way to the store: a connection on which it sends and reads between its other work.

    What waits while a call is under way goes out in the next one. Appends are never bound to the loop: on any
    trouble, and whenever the loop ends, they are handed back, to be sent again unchanged by somebody else.

    Args:
        loop: Carries the appends given from its own thread.
        take_wire: A connection that is free right now, None if there is none.
        hand_back: Takes appends whose fate is not known; called without any lock.
        sources: Their monotonic clock.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        take_wire: Callable[[], Wire | None],
        hand_back: Callable[[list[Submission]], None],
        sources: Sources,
    ) -> None:
        self._loop = loop
        self._take_wire = take_wire
        self._hand_back = hand_back
        self._sources = sources
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._queue: list[Submission] = []
        self._flight: list[Submission] = []
        self._sent_s = 0.0
        self._landed: list[tuple[Submission, AppendResult, float]] = []
        """Answered, and whoever submitted them not yet told."""
        self._wire: Wire | None = None
        self._settling = False
        self._ended = False
        self.calls = 0
        """Calls sent so far."""

    def submit(self, submission: Submission) -> bool:
        """Carry an append; False if it is for somebody else to send."""
        if submission.bytes > BYTES_MAX:
            return False
        with self._lock:
            if self._ended or (self._wire is None and not self._connect()):
                return False
            self._queue.append(submission)
            # While others are still to be told what has landed, theirs shall go out with it.
            failed = [] if self._flight or (self._settling and self._landed) else self._depart()
        if failed:
            self._hand_back(failed)
        return True

    @property
    def under_way(self) -> bool:
        """Whether an answer is waited for."""
        return bool(self._flight or self._landed)

    def abandoned(self, now_s: float) -> bool:
        """Whether the loop does not read its answers any more."""
        loop = self._loop
        if loop.is_closed():
            return True
        return self.under_way and (not loop.is_running() or now_s - self._sent_s > ABANDONED_S)

    def end(self) -> list[Submission]:
        """Carry nothing any more; what was not known to be appended. From any thread."""
        with self._lock:
            self._ended = True
            held = self._drop()
            if not self._loop.is_running():
                # Interrupted while it told them; sent again, they are found to be there.
                held = [each for each, _, _ in self._landed] + held
                self._landed = []
            return held

    def _connect(self) -> bool:
        wire = self._take_wire()
        if wire is None:
            return False
        try:
            self._loop.add_reader(wire.fileno, self._readable)
        except NotImplementedError:
            # Not every loop can watch a socket.
            wire.keep()
            self._ended = True
            return False
        self._wire = wire
        return True

    def _depart(self) -> list[Submission]:
        """Send what waits; what has to be handed back when that failed."""
        assert self._wire is not None
        self._sent_s = self._sources.monotonic_s()
        self._flight = take_group(self._queue, self._sent_s)
        self.calls += 1
        try:
            self._wire.send([each.append for each in self._flight])
            self._watch_room(self._wire)
        except Exception:  # noqa: BLE001  whatever it was, sending it again will tell
            return self._drop()
        return []

    def _watch_room(self, wire: Wire) -> None:
        if wire.unsent:
            self._loop.add_writer(wire.fileno, self._writable)

    def _writable(self) -> None:
        with self._lock:
            failed: list[Submission] = []
            wire = self._wire
            if wire is None:
                return
            try:
                wire.flush()
                if not wire.unsent:
                    self._loop.remove_writer(wire.fileno)
            except Exception:  # noqa: BLE001  as above
                failed = self._drop()
        if failed:
            self._hand_back(failed)

    def _readable(self) -> None:
        failed: list[Submission] = []
        with self._lock:
            if self._wire is None:
                return
            try:
                results = self._wire.receive()
                self._watch_room(self._wire)
            except Exception:  # noqa: BLE001  as above
                failed = self._drop()
            else:
                if results is None or not self._flight:
                    return
                self._landed += [
                    (each, result, self._sent_s) for each, result in zip(self._flight, results, strict=True)
                ]
                self._flight = []
                self._settling = True
                if self._queue:
                    failed = self._depart()
        if failed:
            self._hand_back(failed)
        self._settle()

    def _settle(self) -> None:
        """Tell who waited; what they submit meanwhile goes out together."""
        try:
            while self._landed:
                settle(*self._landed.pop(0))
        finally:
            failed: list[Submission] = []
            with self._lock:
                self._settling = False
                if self._landed and not self._loop.is_closed():
                    # Interrupted; if the loop does not go on, its appends are taken over.
                    self._loop.call_soon_threadsafe(self._settle)
                if self._queue and not self._flight and self._wire is not None:
                    failed = self._depart()
            if failed:
                self._hand_back(failed)

    def _drop(self) -> list[Submission]:
        """Let go of the connection; what was sent on it and what waited for it."""
        wire, self._wire = self._wire, None
        held = self._flight + self._queue
        idle = not self._flight
        self._flight, self._queue = [], []
        if wire is None:
            return held
        if self._loop.is_closed():
            (wire.keep if idle else wire.close)()
        elif threading.get_ident() == self._thread:
            self._unwatch(wire)
        else:
            try:
                # Watched until then: a closed descriptor's number would be given to another socket.
                self._loop.call_soon_threadsafe(self._unwatch, wire)
            except RuntimeError:
                wire.close()
        return held

    def _unwatch(self, wire: Wire) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(wire.fileno)
            self._loop.remove_writer(wire.fileno)
        wire.close()


def settle(each: Submission, fate: AppendResult | BaseException, sent_s: float) -> None:
    """Tell whoever submitted an append what has become of it."""
    try:
        each.settle(fate, sent_s)
    except Exception:  # noqa: BLE001  one submitter's mistake must not stop everybody's appends
        _log.exception("settling an append of thread %r failed", each.append.thread)
