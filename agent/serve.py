"""Runs an agent in a process of its own: until it ends, or the process is asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any, cast

from msgspec import Struct, structs

from ..journal.errors import ThreadNotFound
from ..journal.journal import Journal
from ..replay import events as ev
from ..replay.ending import Status
from ..replay.runner import OnParked, Runner, RunResult, read_all
from ..replay.status import fold
from .loading import Runnable, runner_of

GRACE_S = 10.0
_AFTER_GRACE_S = 5.0


Go = Callable[[Runner], Coroutine[Any, Any, RunResult]]


class Served(Struct, frozen=True):
    """
    What came of running in this process.

    Args:
        result: Where the run stands; None if the process was asked to leave before there was one.
        asked: The signal that asked it to leave, if one did.
    """

    result: RunResult | None
    asked: signal.Signals | None = None


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
    on_parked: OnParked | None = None,
) -> Served:
    """
    Run an agent or program on a thread; on SIGTERM and Ctrl-C it leaves in good order, on a second one at once.

    Args:
        runnable: What to run.
        journal: Where the thread lives.
        thread: Thread id.
        go: From a runner, the coroutine of its `run` or `resume`.
        tell: Told of each event (seq, body) as it is made.
        on_parked: Told, with the result, when the run is parked: once for each parking, sync or async.

    Raises:
        RefoldError: As `run` and `resume` do; and when the journal cannot say what was left.
    """
    watch = _Watch(tell)
    runner = runner_of(runnable, journal, thread, observe=watch, on_parked=on_parked)
    served = asyncio.run(_serve(runner, go, watch))
    return served if served.result is not None else structs.replace(served, result=_left(journal, thread))


async def _serve(runner: Runner, go: Go, watch: _Watch) -> Served:
    loop = asyncio.get_running_loop()
    task = loop.create_task(go(runner))
    asked: list[signal.Signals] = []

    def leave(number: signal.Signals) -> None:
        asked.append(number)
        # A run that only waits for the outside holds nothing that would have to be given back.
        at_once = watch.resting or len(asked) > 1
        runner.stop(number.name, grace_s=GRACE_S)
        if at_once:
            task.cancel()
        else:
            loop.call_later(GRACE_S + _AFTER_GRACE_S, task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, leave, number)
    try:
        return Served(await task, asked[0] if asked else None)
    except asyncio.CancelledError:
        if not asked:
            raise
        return Served(None, asked[0])


def _left(journal: Journal, thread: str) -> RunResult | None:
    """How the log says that the run was left."""
    try:
        run = fold(thread, read_all(journal, thread), lenient=True).current
    except ThreadNotFound:
        return None
    if run is None:
        return None
    return RunResult(
        status=cast("Status", run.status),
        output=None,
        pending=tuple(run.open.values()),
        reason=run.reason,
        usage=run.usage,
        thread=thread,
        run_id=run.run,
    )
