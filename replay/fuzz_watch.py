"""Notices a program that reads a clock, draws chance or goes by the order of a set, even where no history shows it."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import os
import random
import sys
import time
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import PurePath
from typing import Any

_CLOCKS: dict[Any, str] = {
    getattr(time, name): f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime")
}
_DATES = {"now", "utcnow", "today"}
_ENTROPY = getattr(os, "urandom")  # noqa: B009 - it is watched, not drawn from
_STREAM = vars(random)["_inst"]
_LENDERS = frozenset({"random", "secrets", "uuid"})
"""Modules that draw for whoever calls them."""
_SET_ITERATOR: type[Any] = type(iter(set()))
_OTHERS = frozenset({"site-packages", "dist-packages"})


class Watch:
    """
    What the code of a program takes from outside of its run.

    Clocks that only measure (`monotonic`, `perf_counter`) are fine, and so is what the standard library and installed
    packages do for themselves, as loggers.
    """

    def __init__(self) -> None:
        self.noticed: dict[str, None] = {}
        """What was called and where, in the order it came."""
        self._away = False

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """While this is entered, what this thread calls is noticed; not if somebody profiles it already."""
        if sys.getprofile() is not None:
            yield
            return
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)

    def away(self, act: Callable[[], Any]) -> Any:
        """Perform a call: what tools, steps and models do is their own affair."""
        self._away = True
        try:
            return act()
        finally:
            self._away = False

    def waiting(self, coroutines: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """The program waits for a reply, perhaps within a loop over a set: its order is another in another process."""
        for waiting in coroutines:
            inner: Any = waiting
            while isinstance(inner, types.CoroutineType):
                frame = inner.cr_frame
                if (
                    frame is not None
                    and _is_program(frame)
                    and any(map(_has_no_order, gc.get_referents(inner)))
                ):
                    self._notice("the order of a set", frame)
                inner = inner.cr_await

    def _notice(self, what: str, caller: types.FrameType) -> None:
        file = PurePath(caller.f_code.co_filename).name
        self.noticed[f"{what} in {caller.f_code.co_name}, {file}:{caller.f_lineno}"] = None

    def _look(self, frame: types.FrameType, event: str, called: Any) -> None:
        if event != "c_call" or self._away:
            return
        name = _source(called)
        caller: types.FrameType | None = frame
        while name and caller is not None and caller.f_globals.get("__name__") in _LENDERS:
            name = f"{caller.f_globals['__name__']}.{caller.f_code.co_name}"
            caller = caller.f_back
        if name and caller is not None and _is_program(caller):
            self._notice(name, caller)


def _has_no_order(held: Any) -> bool:
    """Whether it is a loop over a set of more than numbers, whose hashes alone are the same in every process."""
    return type(held) is _SET_ITERATOR and any(
        len(looped) > 1 and not all(isinstance(each, int | float) for each in looped)
        for looped in gc.get_referents(held)
    )


def _source(called: Any) -> str:
    """What is read or drawn by calling *called*; empty if nothing is."""
    owner = getattr(called, "__self__", None)
    if owner is _STREAM:
        return f"random.{called.__name__}"
    if isinstance(owner, type) and issubclass(owner, dt.date) and called.__name__ in _DATES:
        return f"{owner.__name__}.{called.__name__}"
    if called is _ENTROPY:
        return "os.urandom"
    return _CLOCKS.get(called, "") if isinstance(owner, types.ModuleType) else ""


def _is_program(caller: types.FrameType) -> bool:
    module = str(caller.f_globals.get("__name__", "")).partition(".")[0]
    return (
        module != "refold"
        and module not in sys.stdlib_module_names
        and not _OTHERS & set(PurePath(caller.f_code.co_filename).parts)
    )
