"""Notices a program that goes by what is not of its run, or acts by itself, even where no history shows it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import dis
import gc
import io
import os
import random
import sys
import time
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import PurePath
from typing import Any, TypeVar

from .fuzz_contents import is_own_code, is_unordered
from .overhearing import REACHES_OUT, overhearing
from .run import Run

T = TypeVar("T")

_CLOCKS: dict[Any, tuple[str, int]] = {
    getattr(time, name): (f"time.{name}", enough)
    for name, enough in {
        "time": 9,
        "time_ns": 9,
        "sleep": 9,
        "localtime": 9,
        "ctime": 9,
        "gmtime": 1,
        "asctime": 1,
        "strftime": 2,
    }.items()
}
"""Each with the number of arguments that makes it a calculation."""
_DATES = {"now", "utcnow", "today"}
_OTHERS = {getattr(os, name): f"os.{name}" for name in ("urandom", "getpid")}
_STREAM = vars(random)["_inst"]
_LENDERS = frozenset({"random", "secrets", "uuid"})
"""Modules that draw for whoever calls them."""
_ENVIRONMENT = type(os.environ).__getitem__.__code__
_COMMANDS = frozenset(
    function.__code__ for function in (Run.model, Run.tool, Run.step, Run.sleep, Run.wait_for)
)
_SET_ITERATOR: type[Any] = type(iter(set()))

_CHANGES = REACHES_OUT | {
    "os.fork",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "sqlite3.connect",
}
_THREADS = frozenset({"start_new_thread", "start_joinable_thread"})
_LOOP = asyncio.BaseEventLoop.run_until_complete.__code__
_WRITES = os.O_WRONLY | os.O_RDWR
_SENDS = frozenset({"write", "writelines", "send", "sendall", "execute", "executemany", "executescript"})
_CHANNELS = frozenset({"_io", "_socket", "socket", "sqlite3"})
_IMPORTS = frozenset({"importlib", "_frozen_importlib", "_frozen_importlib_external"})
_NOT_ITS_DOING = frozenset({"refold", "logging", *_IMPORTS})


class Watch:
    """
    What the code of a program takes from outside of its run, and what it does there by itself.

    Clocks that only measure (`monotonic`, `perf_counter`) are fine, and so is what the standard library and installed
    packages look up for themselves, what loggers write, and what is printed.
    """

    def __init__(self) -> None:
        self.taken: dict[str, None] = {}
        """What it went by and where, in the order it came."""
        self.done: dict[str, None] = {}
        """What it did and where."""
        self._away = False
        self._seeded: list[random.Random] = []
        """Streams of the run and of its program, the same each time."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """While this is entered, what this thread calls is noticed; not if somebody profiles it already."""
        if sys.getprofile() is not None:
            yield
            return
        with overhearing(self._overhear):
            sys.setprofile(self._look)
            try:
                yield
            finally:
                sys.setprofile(None)

    def away(self, act: Callable[[], T]) -> T:
        """What tools, steps, models and the test itself do is their own affair."""
        before, self._away = self._away, True
        try:
            return act()
        finally:
            self._away = before

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
                    self._take("the order of a set", frame)
                inner = inner.cr_await

    def _take(self, what: str, caller: types.FrameType) -> None:
        if not _is_imported(caller):
            self.taken[_told(what, caller)] = None

    def _overhear(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python before what audit events tell of."""
        if not self._away and (what := _change(event, args)):
            self._do(what, sys._getframe(2))

    def _do(self, what: str, caller: types.FrameType | None) -> None:
        """What installed packages do they do for whoever calls them."""
        while caller is not None and _root(caller) not in _NOT_ITS_DOING:
            if _is_program(caller):
                if not _is_imported(caller):
                    self.done[_told(what, caller)] = None
                return
            caller = caller.f_back

    def _look(self, frame: types.FrameType, event: str, called: Any) -> None:
        if self._away:
            return
        if event == "call":
            self._look_at_call(frame)
        if event != "c_call":
            return
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if name in _SENDS and _is_channel(owner):
            self._do(f"{type(owner).__name__}.{name}", frame)
            return
        if name in _THREADS:
            self._do("a new thread", frame)
            return
        what = self._source(frame, called, owner, name)
        caller: types.FrameType | None = frame
        while what and caller is not None and caller.f_globals.get("__name__") in _LENDERS:
            what = f"{caller.f_globals['__name__']}.{caller.f_code.co_name}"
            caller = caller.f_back
        if what and caller is not None and _is_program(caller):
            self._take(what, caller)

    def _look_at_call(self, frame: types.FrameType) -> None:
        """A variable of the environment that is read, a command made in a loop over a set, or an event loop."""
        caller = frame.f_back
        if frame.f_code is _LOOP:
            self._do("an event loop", caller)
        elif frame.f_code is _ENVIRONMENT:
            while caller is not None and caller.f_globals.get("__name__") in ("os", "collections.abc"):
                caller = caller.f_back
            if caller is not None and _is_program(caller):
                self._take("os.environ", caller)
        elif frame.f_code in _COMMANDS:
            while caller is not None and _is_program(caller):
                if caller.f_code.co_name.startswith("<") and _has_no_order(caller.f_locals.get(".0")):
                    self._take("the order of a set", caller)
                caller = caller.f_back

    def _source(self, frame: types.FrameType, called: Any, owner: Any, name: str) -> str:
        """What is read or drawn by calling *called*; empty if nothing is."""
        if owner is _STREAM:
            return f"random.{name}"
        if isinstance(owner, random.Random):
            return self._drawn(frame, owner, name)
        if isinstance(owner, type) and issubclass(owner, dt.date) and name in _DATES:
            return f"{owner.__name__}.{name}"
        if isinstance(owner, set) and name == "pop" and is_unordered(owner):
            return "the order of a set"
        if not isinstance(owner, types.ModuleType):
            return ""
        clock, enough = _CLOCKS.get(called, ("", 0))
        if clock:
            return clock if _given(frame) < enough else ""
        return _OTHERS.get(called, "")

    def _drawn(self, frame: types.FrameType, stream: random.Random, name: str) -> str:
        """A stream that was not seeded in this run goes on from wherever it is."""
        if name == "setstate" or (name == "seed" and frame.f_locals.get("a") is not None):
            self._seeded.append(stream)
        elif name != "seed" and not any(each is stream for each in self._seeded):
            return f"Random.{name}"
        return ""


def _told(what: str, caller: types.FrameType) -> str:
    return f"{what} in {caller.f_code.co_name}, {PurePath(caller.f_code.co_filename).name}:{caller.f_lineno}"


def _change(event: str, args: tuple[Any, ...]) -> str:
    """What an audit event says that is done; empty if it is none of these."""
    if event in _CHANGES:
        return event
    if event == "open":
        path, mode, flags = args
        if (set(mode) & set("wax+")) if isinstance(mode, str) else (flags & _WRITES):
            return f"open({PurePath(os.fsdecode(path)).name!r}) for writing" if _is_path(path) else ""
    return ""


def _is_path(path: Any) -> bool:
    return isinstance(path, str | bytes | os.PathLike)


def _is_channel(owner: Any) -> bool:
    """A file, socket or database that is open; what is printed is nobody's concern."""
    return (
        type(owner).__module__ in _CHANNELS
        and not isinstance(owner, io.StringIO | io.BytesIO)
        and owner not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    )


def _given(frame: types.FrameType) -> int:
    """How many arguments are handed to what *frame* is calling; 0 if the code does not say."""
    code, at = frame.f_code.co_code, frame.f_lasti
    named = dis.opname[code[at]]
    return code[at + 1] if named.startswith("CALL") and named != "CALL_FUNCTION_EX" else 0


def _has_no_order(held: Any) -> bool:
    """Whether it is a loop over a set of more than numbers, whose hashes alone are the same in every process."""
    return type(held) is _SET_ITERATOR and any(map(is_unordered, gc.get_referents(held)))


def _is_imported(caller: types.FrameType | None) -> bool:
    """Whether it is the code of a module that the program imports, which happens once in each process."""
    while caller is not None and _root(caller) != "refold":
        if _root(caller) in _IMPORTS:
            return True
        caller = caller.f_back
    return False


def _root(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_program(caller: types.FrameType) -> bool:
    return is_own_code(str(caller.f_globals.get("__name__", "")), caller.f_code.co_filename)
