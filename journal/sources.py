"""The one place that reads a clock or draws randomness; tests and simulators pass another `Sources`."""

from __future__ import annotations

import os
import time
import uuid

_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)

_ID_BITS, _ID_FIXED = ~(0xF000 << 64 | 0xC000 << 48), 4 << 76 | 0x8000 << 48
"""A random id of version 4: the bits that are drawn, and those that say so."""

_DRAWN_AT_ONCE = 256

_drawn: list[int] = []
"""Random numbers for ids, drawn many at once: each draw may lose the processor to another thread."""

if hasattr(os, "register_at_fork"):
    # A child must not give the ids of its parent.
    os.register_at_fork(after_in_child=_drawn.clear)


def _draw() -> int:
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            drawn = os.urandom(16 * _DRAWN_AT_ONCE)
            _drawn.extend([int.from_bytes(drawn[at : at + 16]) for at in range(0, len(drawn), 16)])


class Sources:
    """Wall clock, monotonic clock and random ids of this process."""

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch; for people, never compared for order or safety."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Monotonic clock in seconds; it goes on while the machine sleeps, as a lease does."""
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    def new_id(self) -> uuid.UUID:
        """A fresh random id."""
        # By its number: half the time of giving bytes and a version.
        return uuid.UUID(int=_draw() & _ID_BITS | _ID_FIXED)


SYSTEM = Sources()
