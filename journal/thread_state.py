"""Where threads stand. Apart from what stores promise, so that a command line can name the states and load nothing."""

from __future__ import annotations

from enum import StrEnum


class ThreadState(StrEnum):
    """Where a thread stands; set by each append, so that listing threads reads no event."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    PARKED = "parked"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
