"""Keeps code that is replayed from reaching out: a replay that opens a connection is none."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from .errors import RunError
from .overhearing import REACHES_OUT, overhearing


class NetworkRefused(RunError):
    """A program reached out while it was replayed: that belongs into run.step(...) or a tool."""


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in REACHES_OUT:
        raise NetworkRefused(
            f"the program called {event} while it was replayed; outside work belongs into run.step(...) or a tool"
        )


def no_network() -> AbstractContextManager[None]:
    """While this thread is inside, connections and processes that Python code would open raise `NetworkRefused`."""
    return overhearing(_refuse)
