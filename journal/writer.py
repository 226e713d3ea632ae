"""The writer thread: every append of a process goes through it, and none depends on who asked for it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Protocol

from .errors import StoreUnavailable, UsageError
from .sources import Sources
from .store import Append, AppendResult, Store

_log = logging.getLogger("refold.journal")

_GROUP_MAX = 256
_GROUP_BYTES_MAX = 32 * 1024 * 1024
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0

Settle = Callable[[AppendResult | BaseException, float], None]
"""Told the fate of an append, and the monotonic time just before the call that brought it was sent."""


class Submits(Protocol):
    """Takes appends and sees them through."""

    def submit(self, append: Append, settle: Settle) -> None:
        """Send *append* until its fate is known; then call *settle* once, on another thread."""


class _Submission:
    __slots__ = ("alone", "append", "bytes", "due_s", "failures", "give_up_s", "settle")

    def __init__(self, append: Append, settle: Settle, give_up_s: float) -> None:
        self.append = append
        self.settle = settle
        self.give_up_s = give_up_s
        self.bytes = sum(len(event.body) for event in append.events)
        self.due_s = 0.0
        self.alone = False
        self.failures = 0


def _backoff_s(failures: int) -> float:
    # The commonest failure is a connection that died while idle: the first retry does not wait.
    if failures <= 1:
        return 0.0
    return min(_BACKOFF_MAX_S, _BACKOFF_MIN_S * 2.0 ** min(failures - 2, 16))


def _group(queue: list[_Submission], now_s: float) -> list[_Submission]:
    """What of one lane's *queue* can go out in one call; each of the second lane goes by itself."""
    group: list[_Submission] = []
    threads: set[str] = set()
    size = 0
    for each in queue:
        if each.due_s > now_s or each.append.thread in threads:
            continue
        if group and size + each.bytes > _GROUP_BYTES_MAX:
            break
        group.append(each)
        threads.add(each.append.thread)
        size += each.bytes
        if each.alone or len(group) == _GROUP_MAX:
            break
    return group


class Writer:
    """
    Sends appends from a thread of its own.

    What waits when the writer is free goes out in one call with one commit; a lone append goes out at once.
    An append that found its thread's row locked goes on alone in a second thread, so that it holds up no other.
    An append whose answer was lost, or that found the server away, is sent again unchanged until its
    outcome is known or `hold_s` have passed since it was submitted.

    Args:
        store: Where to append.
        sources: Its monotonic clock bounds the retries.
        hold_s: How long an append is held and retried, seconds.
    """

    def __init__(self, store: Store, sources: Sources, *, hold_s: float) -> None:
        self._store = store
        self._sources = sources
        self._hold_s = hold_s
        self._changed = threading.Condition()
        self._queue: list[_Submission] = []
        self._busy = 0
        self._pause_until_s = 0.0
        self._outage = 0
        self._closing = False
        self._lanes: dict[bool, threading.Thread] = {}
        self._pid = os.getpid()

    def submit(self, append: Append, settle: Settle) -> None:
        """Queue *append*; *settle* is called once from the writer thread. Raises `UsageError` when closed."""
        if os.getpid() != self._pid:
            # Threads do not survive a fork: nobody would ever send it.
            raise UsageError("this journal was opened before a fork; open another one in the child process")
        submission = _Submission(append, settle, self._sources.monotonic_s() + self._hold_s)
        with self._changed:
            if self._closing:
                raise UsageError(f"the journal is closed; nothing was appended to thread {append.thread!r}")
            self._queue.append(submission)
            if self._lanes:
                self._changed.notify_all()
            else:
                atexit.register(self.close)
                self._open_lane(alone=False)

    def close(self) -> None:
        """Take no more appends, see those already taken through, stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            held = (len(self._queue) + self._busy) if self._outage else 0
        if held:
            _log.warning("closing waits for %d appends that the store has not taken yet", held)
        # The second lane is opened by the first, so it is looked for when the first has ended.
        for alone in (False, True):
            lane = self._lanes.get(alone)
            if lane is not None and lane is not threading.current_thread():
                lane.join()
        atexit.unregister(self.close)

    def _open_lane(self, *, alone: bool) -> None:
        # A daemon with an exit handler: joined without a word, an outage at exit would look like a hang.
        lane = threading.Thread(target=self._run, args=(alone,), name="refold-writer", daemon=True)
        self._lanes[alone] = lane
        lane.start()

    def _run(self, alone: bool) -> None:
        while group := self._take(alone):
            self._send(group)
            with self._changed:
                self._busy -= 1
                if self._closing:
                    self._changed.notify_all()

    def _take(self, alone: bool) -> list[_Submission]:
        """Wait for work of this lane; what can go out in one call now. Empty when closed and all is done."""
        with self._changed:
            while True:
                now_s = self._sources.monotonic_s()
                mine = [each for each in self._queue if each.alone is alone]
                if mine and now_s >= self._pause_until_s and (group := _group(mine, now_s)):
                    taken = set(map(id, group))
                    self._queue = [each for each in self._queue if id(each) not in taken]
                    self._busy += 1
                    return group
                if self._closing and not self._queue and not self._busy:
                    return []
                due_s = max(self._pause_until_s, min((each.due_s for each in mine), default=0.0))
                self._changed.wait(max(0.001, due_s - now_s) if mine else None)

    def _send(self, group: list[_Submission]) -> None:
        sent_s = self._sources.monotonic_s()
        try:
            if len(group) == 1:
                results = [self._store.append(group[0].append)]
            else:
                results = self._store.append_many([each.append for each in group])
        except StoreUnavailable as error:
            self._again(group, error)
        except BaseException as error:  # noqa: BLE001  each submitter must hear of it, whatever it is
            if len(group) == 1:
                self._settle(group[0], error, sent_s)
            else:
                # One bad append must not take its neighbours down: each goes alone.
                for each in group:
                    self._send([each])
        else:
            self._outage = 0
            for each, result in zip(group, results, strict=True):
                self._settle(each, result, sent_s)

    def _again(self, group: list[_Submission], error: StoreUnavailable) -> None:
        now_s = self._sources.monotonic_s()
        kept: list[_Submission] = []
        for each in group:
            if now_s >= each.give_up_s:
                self._settle(each, error, now_s)
                continue
            each.failures += 1
            if error.contended:
                each.alone = True
                each.due_s = now_s + _backoff_s(each.failures)
            kept.append(each)
        with self._changed:
            self._queue[:0] = kept
            if error.contended:
                if kept and True not in self._lanes:
                    self._open_lane(alone=True)
                self._changed.notify_all()
            else:
                self._outage += 1
                self._pause_until_s = now_s + _backoff_s(self._outage)
        if kept and self._outage in (2, 8):
            _log.warning("%d appends wait for the store, tried again until it answers: %s", len(kept), error)

    def _settle(self, each: _Submission, fate: AppendResult | BaseException, sent_s: float) -> None:
        try:
            each.settle(fate, sent_s)
        except Exception:  # noqa: BLE001  one submitter's mistake must not stop everybody's appends
            _log.exception("settling an append of thread %r failed", each.append.thread)
