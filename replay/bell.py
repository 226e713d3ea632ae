"""Waits on an event loop for a message that may have come to a thread."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from ..journal.journal import Journal


class Bell:
    """Hangs while it is entered. A ring before a wait ends that wait at once, so none is lost between two looks."""

    def __init__(self, journal: Journal, thread: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._hung = journal.bell(thread, self._ring)

    def __enter__(self) -> Self:
        self._hung.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hung.__exit__(kind, error, trace)

    async def wait(self, timeout_s: float) -> None:
        """Wait for a ring, *timeout_s* at most."""
        with contextlib.suppress(TimeoutError):
            # Not wait_for, which before Python 3.12 makes a task, and leaves its alarm for some rounds when cancelled.
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        self._rung.clear()

    def _ring(self) -> None:
        # A loop that was closed meanwhile has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._rung.set)
