"""An event loop in a thread of its own, for a library that keeps connections open on the loop it is used from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CLOSE_S = 2.0


class OwnLoop:
    """
    Runs coroutines on one loop in a daemon thread, whichever loop asks; started on first use.

    Args:
        name: Name of the thread.
        wind_up: Called on the loop before it is closed.
    """

    def __init__(self, name: str, wind_up: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._wind_up = wind_up
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread, int] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await *work* on the own loop; cancelling this cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop()))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait in the calling thread for *work* on the own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop()).result()

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child has the loop and not its thread.
            if self._running is None or self._running[2] != os.getpid():
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
                self._running = loop, thread, os.getpid()
                thread.start()
            return self._running[0]

    def close(self) -> None:
        """Cancel what runs, wind up, and end the thread; takes seconds at most, and the process ends all the same."""
        if self._running is None or self._running[2] != os.getpid():
            return
        loop, thread, _ = self._running
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)
        if not thread.is_alive():
            loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._wind_up()
        # Transports close one pass of the loop after they are told to.
        for _ in range(3):
            await asyncio.sleep(0)
