"""Tells what Python code in this thread does outside of it, by Python's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Ear = Callable[[str, tuple[Any, ...]], None]

REACHES_OUT = frozenset(
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
"""Audit events of connections and processes."""


class _Here(threading.local):
    ear: Ear | None = None


_here = _Here()
_lock = threading.Lock()
_hooks: list[Any] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _here.ear is not None:
        _here.ear(event, args)


@contextmanager
def overhearing(ear: Ear) -> Iterator[None]:
    """While this thread is inside, *ear* is told of each event before it happens; what it raises prevents it."""
    with _lock:
        # An audit hook cannot be taken away again; outside of here it does nothing.
        if not _hooks:
            sys.addaudithook(_hook)
            _hooks.append(_hook)
    before, _here.ear = _here.ear, ear
    try:
        yield
    finally:
        _here.ear = before
