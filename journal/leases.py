"""Leases on their way back: they go it whether or not anybody waits, and the journal takes none of them before."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from .sources import Sources
from .store import Message, Release
from .tenure import Tenure

THREADS_MAX = 8
"""As many as may have a connection at once."""

_log = logging.getLogger("refold.journal")


class GivingBack:
    """
    A lease on its way back.

    Attributes:
        tenure: Whose it is.
        answer: What it came to; None if the lease runs out by itself. Never cancelled, never an error.
        begun_s: Since when, by the monotonic clock.
    """

    def __init__(self, tenure: Tenure, begun_s: float) -> None:
        self.tenure = tenure
        self.begun_s = begun_s
        self.answer: Future[Release | None] = Future()
        self.answer.set_running_or_notify_cancel()
        self.seen = 0
        self.anyhow = False
        """Whether nobody waits who could see to a message that came meanwhile."""


class Leases:
    """
    Sees each lease that is given back through, in threads of its own.

    An append under way lands first. What goes wrong is logged, and the lease runs out by itself.

    Args:
        inbox: Messages of a thread that wait.
        sources: Their monotonic clock.

    Attributes:
        closed: Whether nobody waits for any of them any more.
        left_behind: Fences, by thread, of those that could not be given back.
    """

    def __init__(self, inbox: Callable[[str], list[Message]], sources: Sources) -> None:
        self._inbox = inbox
        self._sources = sources
        self._lock = threading.Lock()
        self._givings: dict[Tenure, GivingBack] = {}
        self._under_way: dict[str, list[Future[Release | None]]] = {}
        """What a thread's next holder in this process waits for."""
        self._takers: dict[Future[Release | None], int] = {}
        """Which of our threads sees to one that is on its way to somebody who has gone."""
        self._queue: deque[GivingBack] = deque()
        self._threads: set[threading.Thread] = set()
        self.closed = False
        self.left_behind: dict[str, int] = {}

    def give_back(self, tenure: Tenure, seen: int | None = None) -> GivingBack:
        """
        Send the lease of *tenure* on its way back; where it is under way already, that one goes on.

        Args:
            tenure: Nothing is appended by it any more but what is under way.
            seen: Newest message that the caller knows; `inbox_pending`, and the tenure goes on, if there is a newer
                one and the caller has not said `leave`. By default, messages are for the next holder.
        """
        with self._lock:
            giving = self._givings.get(tenure)
            begun = giving is None
            if giving is None:
                giving = GivingBack(tenure, self._sources.monotonic_s())
                self._givings[tenure] = giving
                self._under_way.setdefault(tenure.thread, []).append(giving.answer)
            if seen is None:
                giving.anyhow = True
            else:
                giving.seen = seen
        if begun:
            tenure.when_landed(partial(self._send_off, giving))
        return giving

    def leave(self, giving: GivingBack) -> Release | None:
        """Wait no more: messages are for the next holder from now on. What it has come to, if it has."""
        with self._lock:
            giving.anyhow = True
            return giving.answer.result() if giving.answer.done() else None

    def expect(self, thread: str, back: Future[Release | None], taker: int) -> None:
        """
        A lease of *thread* may be on its way to somebody who has gone; it is back when *back* is done.

        It is being taken by the thread of the process *taker*, which must not wait for itself.
        """
        with self._lock:
            self._takers[back] = taker
            self._under_way.setdefault(thread, []).append(back)
        back.add_done_callback(lambda _: self._arrived(thread, back))

    def wait_for(self, thread: str, limit_s: float) -> None:
        """Wait, no longer than *limit_s*, for the leases of *thread* that are on their way now."""
        with self._lock:
            me = threading.get_ident()
            under_way = [each for each in self._under_way.get(thread, ()) if self._takers.get(each) != me]
        if under_way:
            wait(under_way, limit_s)

    def close(self, limit_s: float) -> None:
        """Wait, no longer than *limit_s*, for all that are on their way; the others run out by themselves."""
        with self._lock:
            under_way = [each for answers in self._under_way.values() for each in answers]
        wait(under_way, limit_s)
        with self._lock:
            self.closed = True
            late, self._queue = self._queue, deque()
        for giving in late:
            self._run_out(giving, "the journal is closed")

    def join(self, limit_s: float) -> None:
        """Wait, no longer than *limit_s*, for the threads to end."""
        until_s = self._sources.monotonic_s() + limit_s
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for each in threads:
            each.join(max(0.0, until_s - self._sources.monotonic_s()))

    def _send_off(self, giving: GivingBack) -> None:
        # A daemon: an outage at the end of the process must not look like a hang.
        thread = threading.Thread(target=self._work, name="refold-leases", daemon=True)
        with self._lock:
            closed = self.closed
            if not closed:
                self._queue.append(giving)
                if len(self._threads) >= THREADS_MAX:
                    return
                self._threads.add(thread)
        if closed:
            self._run_out(giving, "the journal is closed")
            return
        try:
            thread.start()
        except RuntimeError:
            # There are no more threads, as at the end of the process.
            with self._lock:
                self._threads.discard(thread)
            self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                giving = self._queue.popleft()
            try:
                self._see_through(giving)
            except Exception as error:  # noqa: BLE001  to give it back is a courtesy: it runs out by itself
                self._run_out(giving, error)

    def _see_through(self, giving: GivingBack) -> None:
        tenure = giving.tenure
        answer = tenure.release(giving.seen)
        while not self._settled(giving, answer):
            newest = max((message.id for message in self._inbox(tenure.thread)), default=giving.seen)
            answer = tenure.release(newest)

    def _settled(self, giving: GivingBack, answer: Release | None) -> bool:
        with self._lock:
            if answer is Release.INBOX_PENDING and giving.anyhow:
                return False
            self._givings.pop(giving.tenure, None)
            # Within the lock: whoever stops waiting either has the answer or is not asked for more.
            giving.answer.set_result(answer)
        self._arrived(giving.tenure.thread, giving.answer)
        return True

    def _run_out(self, giving: GivingBack, why: object) -> None:
        tenure = giving.tenure
        tenure.abandon()
        self.left_behind[tenure.thread] = tenure.fence
        _log.warning(
            "the lease of thread %r could not be given back and runs out by itself: %s", tenure.thread, why
        )
        self._settled(giving, None)

    def _arrived(self, thread: str, back: Future[Release | None]) -> None:
        with self._lock:
            self._takers.pop(back, None)
            answers = self._under_way.get(thread, [])
            if back in answers:
                answers.remove(back)
            if not answers:
                self._under_way.pop(thread, None)
