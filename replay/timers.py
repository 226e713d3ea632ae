"""One timer of an event loop for many who wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol


class Strikes(Protocol):
    """Waits for a time that may move on meanwhile."""

    def until_s(self) -> float:
        """When it wants to be struck, seconds of the monotonic clock."""

    def strike(self) -> None:
        """Its time has come."""


class Timers:
    """
    Strikes each that waits once when its time has come.

    Most are dropped long before, so the loop's timer is set anew only for a time sooner than it stands on.

    Args:
        loop: Whose timer.
        monotonic_s: The clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_s: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic_s = monotonic_s
        self._waiting: set[Strikes] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._stands_on_s = math.inf

    def add(self, each: Strikes, now_s: float) -> None:
        """Strike *each* when its time has come; it is *now_s* now."""
        self._waiting.add(each)
        self._set(each.until_s(), now_s)

    def drop(self, each: Strikes) -> None:
        """Do not strike it any more."""
        self._waiting.discard(each)

    def close(self) -> None:
        """Strike nobody any more."""
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _set(self, until_s: float, now_s: float) -> None:
        if until_s >= self._stands_on_s:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._stands_on_s = until_s
        self._handle = self._loop.call_later(max(0.0, until_s - now_s), self._ring)

    def _ring(self) -> None:
        self._handle, self._stands_on_s = None, math.inf
        now_s = self._monotonic_s()
        for each in list(self._waiting):
            if now_s < (until_s := each.until_s()):
                self._set(until_s, now_s)
            else:
                self._waiting.discard(each)
                each.strike()
