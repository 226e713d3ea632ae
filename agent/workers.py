"""Threads for sync tools: as many as there are calls, reused, and never in the way of the process's end."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

IDLE_S = 10.0

Work = Callable[[], Callable[[], None]]
"""What a thread does; what it returns is called once the thread is free for others, and takes no time."""


class Workers:
    """
    Runs each piece of work at once in a daemon thread, one that has become idle if there is one.

    There is no bound and no queue: a tool that hangs cannot keep another from running. How many run at once
    is for whoever starts them. Neither work nor what it returns may raise.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[tuple[Work, str]]] = []
        # The threads of a forked process stay behind.
        os.register_at_fork(after_in_child=self._forget)

    def start(self, work: Work, *, name: str) -> None:
        """
        Run *work* in a thread of that *name*.

        Raises:
            RuntimeError: The system gives no more threads.
        """
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put((work, name))
            return
        threading.Thread(target=self._serve, args=(work, name), daemon=True).start()

    def _serve(self, work: Work, name: str) -> None:
        thread = threading.current_thread()
        inbox: queue.SimpleQueue[tuple[Work, str]] = queue.SimpleQueue()
        while True:
            thread.name = name
            deliver = work()
            with self._lock:
                self._idle.append(inbox)
            deliver()
            del work, deliver
            try:
                work, name = inbox.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                # Somebody took this thread at the last moment.
                work, name = inbox.get()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._idle.clear()
