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

from msgspec import Struct

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


@functools.cache
def _own_start(pid: int) -> str | None:
    return _started(pid)


class Row(Struct, frozen=True):
    """
    An unbroken row of a thread's holders, by their fences, none of whom can act unknown to us.

    They provably died, or were this very process, which knows what it does.
    """

    first: int
    last: int

    def before(self, fence: int) -> int:
        """The first fence of the row if it reaches up to the holder just before *fence*, else 0."""
        return self.first if self.last == fence - 1 else 0


def describe(row: Row | None = None) -> str:
    """
    This process, for others to look for; empty where it could not be found again.

    Args:
        row: What it knows of the holders before, for whoever takes the thread from it: a holder that dies before it
            has written anything would otherwise take that along.
    """
    place, started = _place(), _own_start(os.getpid())
    if not (place and started):
        return ""
    return f"{place}/{os.getpid()}/{started}" + (f"/{row.first}-{row.last}" if row else "")


def is_dead(holder: str) -> bool:
    """Whether the process that *holder* describes provably no longer runs."""
    place = _place()
    if place is None or not holder.startswith(f"{place}/"):
        return False
    pid, _, rest = holder[len(place) + 1 :].partition("/")
    return pid.isdigit() and _started(int(pid)) != rest.partition("/")[0]


def row_of(holder: str, fence: int) -> Row | None:
    """The row that ends with *holder*, who had *fence*; None if it may be alive elsewhere."""
    here = describe()
    if not (is_dead(holder) or (here and f"{holder}/".startswith(f"{here}/"))):
        return None
    first, _, last = "".join(holder[len(f"{_place()}/") :].split("/")[2:3]).partition("-")
    return Row(int(first) if first and last == str(fence - 1) else fence, fence)
