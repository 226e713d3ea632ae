"""Clocks that a test moves."""

from __future__ import annotations

from refold.journal.sources import Sources


class Moved(Sources):
    """Clocks that can be moved ahead together."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.ahead_s * 1e6)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s
