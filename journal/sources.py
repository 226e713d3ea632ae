"""The one place that reads a clock or draws randomness; tests and simulators pass another `Sources`."""

from __future__ import annotations

import os
import time
import uuid

_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


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
        return uuid.UUID(bytes=os.urandom(16), version=4)


SYSTEM = Sources()
