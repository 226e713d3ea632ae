"""Runs an agent in a process of its own: until it ends, or the process is asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from ..journal.journal import Journal
from ..replay import events as ev
from ..replay.runner import Runner, RunResult
from .loading import Runnable, runner_of

GRACE_S = 10.0
_AFTER_GRACE_S = 5.0


Go = Callable[[Runner], Coroutine[Any, Any, RunResult]]


class _Watch:
    """Told of each event as it is made; knows whether the run stands still."""

    def __init__(self, tell: Callable[[int, ev.EventBody], None] | None) -> None:
        self._tell = tell
        self.resting = True

    def __call__(self, seq: int, body: ev.EventBody) -> None:
        self.resting = isinstance(body, ev.RunReleased | ev.RunParked)
        if self._tell is not None:
            self._tell(seq, body)


def serve(
    runnable: Runnable,
    journal: Journal,
    thread: str,
    go: Go,
    tell: Callable[[int, ev.EventBody], None] | None = None,
) -> RunResult | None:
    """
    Run an agent or program on a thread; on SIGTERM and Ctrl-C it leaves in good order, on a second one at once.

    Args:
        runnable: What to run.
        journal: Where the thread lives.
        thread: Thread id.
        go: From a runner, the coroutine of its `run` or `resume`.
        tell: Told of each event (seq, body) as it is made.

    Returns:
        None if the process was asked to leave while nothing was under way.
    """
    watch = _Watch(tell)
    return asyncio.run(_serve(runner_of(runnable, journal, thread, observe=watch), go, watch))


async def _serve(runner: Runner, go: Go, watch: _Watch) -> RunResult | None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(go(runner))
    asked = 0

    def leave(name: str) -> None:
        nonlocal asked
        asked += 1
        runner.stop(name, grace_s=GRACE_S)
        # A run that only waits for the outside holds nothing that would have to be given back.
        if asked > 1 or watch.resting:
            task.cancel()
        else:
            loop.call_later(GRACE_S + _AFTER_GRACE_S, task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, leave, number.name)
    try:
        return await task
    except asyncio.CancelledError:
        if not asked:
            raise
        return None
