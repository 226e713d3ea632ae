"""
Who holds a lease, told so that another process of the same machine can see whether it is still there.

A worker killed with SIGKILL leaves its lease behind. A process that can prove that the holder is dead
(same boot, same process namespace, no such process any more) need not wait for the lease to run out.
Anything less than proof counts as alive.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_PROC = Path("/proc")


@functools.cache
def _place() -> str | None:
    """This boot of this machine and this process namespace; None where that cannot be told."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return None
    return f"{boot}/{namespace}"


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since boot; None if there is no such process, or only its remains."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def describe(buried_since: int = 0) -> str:
    """
    This process, for `is_dead` to look for; empty where it could not be found again.

    Args:
        buried_since: What `buried_since` is to tell whoever takes the thread from this holder.
    """
    place, started = _place(), _started(os.getpid())
    if not (place and started):
        return ""
    return f"{place}/{os.getpid()}/{started}" + (f"/{buried_since}" if buried_since else "")


def is_dead(holder: str) -> bool:
    """Whether the process that *holder* describes provably no longer runs."""
    place = _place()
    if place is None or not holder.startswith(f"{place}/"):
        return False
    pid, _, rest = holder[len(place) + 1 :].partition("/")
    return pid.isdigit() and _started(int(pid)) != rest.partition("/")[0]


def buried_since(holder: str) -> int:
    """
    The first fence from which on every holder before this one was known to be dead; 0 if the one before was not.

    A holder that dies before it has written anything would otherwise take with it what it knew of those before.
    """
    place = _place()
    if place is None or not holder.startswith(f"{place}/"):
        return 0
    since = holder[len(place) + 1 :].split("/")[2:]
    return int(since[0]) if since and since[0].isdigit() else 0
