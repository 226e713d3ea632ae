"""
What of a thread's calls runs in this process, whether or not anybody waits for it.

A process that takes up a thread it held before knows of each call whether anything of it still acts: what does not
is over, though no outcome of it was recorded.
"""

from __future__ import annotations

import contextvars
import os
import threading
from types import TracebackType
from typing import Self

Place = tuple[str, str, int, str]
"""Journal, thread, fence and call id; an empty call id is the tenure itself, which may begin calls."""

DRIVEN_MAX = 4096

_counts: dict[Place, int] = {}
_driven: dict[Place, None] = {}
"""The newest tenures of this process: whatever they have begun and is not counted any more is over."""
_lock = threading.Lock()
_here: contextvars.ContextVar[Place | None] = contextvars.ContextVar("refold_under_way", default=None)


class UnderWay:
    """Something that runs for *place*, from its making until `over`, or the end of its block."""

    def __init__(self, place: Place) -> None:
        self._place: Place | None = place
        with _lock:
            _counts[place] = _counts.get(place, 0) + 1

    def over(self) -> None:
        """It has come to its end; called again it does nothing."""
        place, self._place = self._place, None
        if place is None:
            return
        with _lock:
            left = _counts.get(place, 0) - 1
            if left > 0:
                _counts[place] = left
            else:
                _counts.pop(place, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over()


def drive(journal: str, thread: str, fence: int) -> UnderWay:
    """A tenure of this process, which may begin calls."""
    place = (journal, thread, fence, "")
    with _lock:
        _driven[place] = None
        if len(_driven) > DRIVEN_MAX:
            del _driven[next(iter(_driven))]
    return UnderWay(place)


def driven_here(journal: str, thread: str, fence: int) -> bool:
    """Whether this process remembers that it was the holder of *fence*."""
    return (journal, thread, fence, "") in _driven


def begin(place: Place) -> UnderWay:
    """What the current context runs from here on."""
    _here.set(place)
    return UnderWay(place)


def carry_on() -> UnderWay | None:
    """One more carrier of what the current context runs: a thread, which outlives a cancelled task."""
    place = _here.get()
    return None if place is None else UnderWay(place)


def acts(journal: str, thread: str, fence: int, call: str) -> bool:
    """Whether *call*, as the holder of *fence* began it, runs in this process or may yet begin there."""
    return (journal, thread, fence, call) in _counts or (journal, thread, fence, "") in _counts


def _forget() -> None:
    """A forked process has none of the threads, and was no holder."""
    global _lock  # noqa: PLW0603 - another thread may have held it at the fork
    _lock = threading.Lock()
    _counts.clear()
    _driven.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
