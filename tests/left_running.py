"""Tools that go on after the caller of their run has left, and what they send then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import refold
from refold import Journal
from refold.replay.live import Limits


async def leave_running(program: Any, journal: Journal, entered: threading.Event) -> None:
    """Run *program* on thread t, and leave it, and its tool at work, when *entered* is set."""
    limits = Limits(leave_grace_s=0.01, poll_s=0.01)
    task = asyncio.create_task(refold.run(program, journal=journal, thread="t", limits=limits))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


def sending_from_now_on(journal: Journal) -> threading.Event:
    """Set when a message has been put into an inbox of *journal*."""
    sent, send = threading.Event(), journal.store.send

    def sending(*args: Any, **options: Any) -> Any:
        answer = send(*args, **options)
        sent.set()
        return answer

    journal.store.send = sending  # type: ignore[method-assign]
    return sent
