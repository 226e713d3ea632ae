"""What has come to a session while a transaction was under way: it waits for its end, and orders to stop come first."""

from __future__ import annotations

from collections.abc import Callable

Step = Callable[[], object]


class Aside:
    """
    Inputs of a session that are not taken yet.

    Attributes:
        ordered: Whether an order to stop is among them: from then on nothing begins, and what runs had better stop.
    """

    def __init__(self) -> None:
        self.ordered = False
        self._orders: list[Step] = []
        self._steps: list[Step] = []

    def put(self, step: Step) -> None:
        """Take it later."""
        if step not in self._steps:
            self._steps.append(step)

    def order(self, step: Step) -> None:
        """Take this order to stop later, before all that is none: what they lead to must not begin."""
        self.ordered = True
        if step not in self._orders:
            self._orders.append(step)

    def take(self) -> list[Step]:
        """What waited, in the order in which it is to be taken now."""
        if not (self._orders or self._steps):
            return []
        waited, self.ordered = [*self._orders, *self._steps], False
        self._orders.clear()
        self._steps.clear()
        return waited
