"""The writer thread: every append of a process goes through it, and none depends on who asked for it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from typing import Protocol

from .errors import StoreUnavailable, UsageError
from .lane import Lane, settle
from .sources import Sources
from .store import Append, Store
from .submission import Settle, Submission, take_group

_log = logging.getLogger("refold.journal")

_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0

_WATCH_S = 0.1
"""How often the writer looks whether event loops still read the answers they wait for."""

_QUIET_TICKS = 20


class Submits(Protocol):
    """Takes appends and sees them through."""

    def submit(self, append: Append, settle: Settle, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """
        Send *append* until its fate is known; then call *settle* once.

        Args:
            append: What to append.
            settle: Called on another thread, or on *loop* between its other work.
            loop: The caller's running loop, if it may carry the append itself.
        """


def _backoff_s(failures: int) -> float:
    # The commonest failure is a connection that died while idle: the first retry does not wait.
    if failures <= 1:
        return 0.0
    return min(_BACKOFF_MAX_S, _BACKOFF_MIN_S * 2.0 ** min(failures - 2, 16))


class Writer:
    """
    Sends appends from a thread of its own, or lets a caller's event loop carry them while it runs.

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
        self._queue: list[Submission] = []
        self._busy = 0
        self._pause_until_s = 0.0
        self._outage = 0
        self._closing = False
        self._lanes: dict[bool, threading.Thread] = {}
        self._loops: dict[asyncio.AbstractEventLoop, Lane] = {}
        self._watching = False
        self._quiet_ticks = 0
        self._calls_seen = 0
        self._pid = os.getpid()

    def submit(self, append: Append, settle: Settle, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Take *append*; *settle* is called once, from the writer thread or *loop*. Raises `UsageError` when closed."""
        if self.inherited:
            # Threads do not survive a fork: nobody would ever send it.
            raise UsageError("this journal was opened before a fork; open another one in the child process")
        submission = Submission(append, settle, self._sources.monotonic_s() + self._hold_s)
        if loop is not None and self._carry(submission, loop):
            return
        with self._changed:
            # What follows from an append that is seen through is seen through with it.
            if self._closing and threading.current_thread() not in self._lanes.values():
                raise UsageError(f"the journal is closed; nothing was appended to thread {append.thread!r}")
            self._queue.append(submission)
            self._wake()

    def _wake(self) -> None:
        if self._lanes:
            self._changed.notify_all()
        else:
            atexit.register(self.close)
            self._open_lane(alone=False)

    # Event loops

    def _carry(self, submission: Submission, loop: asyncio.AbstractEventLoop) -> bool:
        lane = self._loops.get(loop) or self._lane_of(loop)
        if lane is None or not lane.submit(submission):
            return False
        if not self._watching:
            with self._changed:
                self._watching = True
                self._quiet_ticks = 0
                self._wake()
        return True

    def _lane_of(self, loop: asyncio.AbstractEventLoop) -> Lane | None:
        take_wire = getattr(self._store, "take_wire", None)
        with self._changed:
            if self._closing or take_wire is None:
                return None
            self._look_after(self._sources.monotonic_s())
            self._loops[loop] = lane = Lane(
                loop, take_wire=take_wire, hand_back=self._take_back, sources=self._sources
            )
            return lane

    def _take_back(self, submissions: list[Submission]) -> None:
        """Send what an event loop could not see through."""
        with self._changed:
            self._queue[:0] = submissions
            self._wake()

    def _look_after(self, now_s: float) -> None:
        """Take over from loops that do not run any more."""
        for loop, lane in list(self._loops.items()):
            if lane.abandoned(now_s):
                del self._loops[loop]
                if held := lane.end():
                    self._take_back(held)

    def _watch(self, now_s: float) -> None:
        """Look after the loops, and stop watching when nothing has moved for a while."""
        calls = sum(lane.calls for lane in self._loops.values())
        self._quiet_ticks = 0 if calls != self._calls_seen else self._quiet_ticks + 1
        self._calls_seen = calls
        # Cleared first: a call sent after the look at them sets it again.
        self._watching = False
        self._look_after(now_s)
        moving = any(lane.under_way for lane in self._loops.values())
        if moving or self._quiet_ticks < _QUIET_TICKS:
            self._watching = True

    @property
    def inherited(self) -> bool:
        """Whether it is another process's, from which this one was forked: whose locks may be held for ever here."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """Take no more appends, see those already taken through and what follows from them, stop the thread."""
        if self.inherited:
            return
        with self._changed:
            self._closing = True
            for lane in self._loops.values():
                if taken := lane.end():
                    self._take_back(taken)
            self._loops.clear()
            self._changed.notify_all()
            held = (len(self._queue) + self._busy) if self._outage else 0
        if held:
            _log.warning("closing waits for %d appends that the store has not taken yet", held)
        # The second lane is opened by the first, so it is looked for when the first has ended.
        for alone in (False, True):
            thread = self._lanes.get(alone)
            if thread is not None and thread is not threading.current_thread():
                thread.join()
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

    def _take(self, alone: bool) -> list[Submission]:
        """Wait for work of this lane; what can go out in one call now. Empty when closed and all is done."""
        with self._changed:
            while True:
                now_s = self._sources.monotonic_s()
                if self._watching and not alone:
                    self._watch(now_s)
                mine = [each for each in self._queue if each.alone is alone]
                if mine and now_s >= self._pause_until_s and (group := take_group(mine[:], now_s)):
                    taken = set(map(id, group))
                    self._queue = [each for each in self._queue if id(each) not in taken]
                    self._busy += 1
                    return group
                if self._closing and not self._queue and not self._busy:
                    return []
                due_s = max(self._pause_until_s, min((each.due_s for each in mine), default=0.0))
                pause_s = max(0.001, due_s - now_s) if mine else None
                if self._watching and not alone:
                    pause_s = _WATCH_S if pause_s is None else min(pause_s, _WATCH_S)
                self._changed.wait(pause_s)

    def _send(self, group: list[Submission]) -> None:
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
                settle(group[0], error, sent_s)
            else:
                # One bad append must not take its neighbours down: each goes alone.
                for each in group:
                    self._send([each])
        else:
            self._outage = 0
            for each, result in zip(group, results, strict=True):
                settle(each, result, sent_s)

    def _again(self, group: list[Submission], error: StoreUnavailable) -> None:
        now_s = self._sources.monotonic_s()
        kept: list[Submission] = []
        for each in group:
            if now_s >= each.give_up_s:
                settle(each, error, now_s)
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
