"""Threads of sync tools are reused, are never waited for, and do not cross a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from refold.agent import workers
from refold.agent.workers import Workers


def run(pool: Workers, name: str = "x") -> tuple[int, str]:
    """Where some work was done; that thread is free again when this returns."""
    seen: list[tuple[int, str]] = []
    done = threading.Event()

    def work() -> Callable[[], Any]:
        seen.append((threading.get_ident(), threading.current_thread().name))
        return done.set

    pool.start(work, name=name)
    assert done.wait(10)
    return seen[0]


def until_idle(pool: Workers, count: int) -> None:
    while len(pool._idle) != count:
        threading.Event().wait(0.001)


def test_an_idle_thread_is_used_again_under_the_new_name() -> None:
    pool = Workers()

    first = run(pool, "one")
    second = run(pool, "two")

    assert first == (second[0], "one")
    assert second[1] == "two"


def test_work_begins_at_once_however_many_threads_are_busy() -> None:
    pool, release = Workers(), threading.Event()
    begun = [threading.Event() for _ in range(50)]

    def hang(event: threading.Event) -> Callable[[], Any]:
        event.set()
        release.wait(10)
        return lambda: None

    for event in begun:
        pool.start(lambda event=event: hang(event), name="x")  # type: ignore[misc]

    assert all(event.wait(10) for event in begun)
    release.set()
    until_idle(pool, 50)


def test_an_idle_thread_ends_after_a_while() -> None:
    pool = Workers()
    before, workers.IDLE_S = workers.IDLE_S, 0.0
    try:
        ident, _ = run(pool)
        until_idle(pool, 0)
    finally:
        workers.IDLE_S = before

    for thread in threading.enumerate():
        if thread.ident == ident:
            thread.join(10)
    assert run(pool)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    pool = Workers()
    run(pool)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(pool)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
