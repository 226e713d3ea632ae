"""Keeps code that is replayed from reaching out: a replay that opens a connection is none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import RunError

_REFUSED = frozenset(
    {
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
    }
)


class NetworkRefused(RunError):
    """A program reached out while it was replayed: that belongs into run.step(...) or a tool."""


class _Here(threading.local):
    strict = False


_here = _Here()
_lock = threading.Lock()
_hooks: list[Any] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in _REFUSED and _here.strict:
        raise NetworkRefused(
            f"the program called {event} while it was replayed; outside work belongs into run.step(...) or a tool"
        )


@contextmanager
def no_network() -> Iterator[None]:
    """While this thread is inside, connections and processes that Python code would open raise `NetworkRefused`."""
    with _lock:
        # An audit hook cannot be taken away again; outside of here it does nothing.
        if not _hooks:
            sys.addaudithook(_hook)
            _hooks.append(_hook)
    before, _here.strict = _here.strict, True
    try:
        yield
    finally:
        _here.strict = before
