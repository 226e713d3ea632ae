"""What a session asks of its surroundings: the asyncio host, the simulator and tests each give their own."""

from __future__ import annotations

import uuid
from typing import Protocol

from ..journal.store import Batch
from .commands import Call


class Host(Protocol):
    """What a session asks of its surroundings; every method returns at once."""

    def wall_us(self) -> int:
        """The writer's own wall clock, microseconds: for people, and for `run.now()`."""

    def now_us(self) -> int:
        """The database's clock as the host knows it, microseconds; within a tenure it goes on steadily."""

    def new_id(self) -> uuid.UUID:
        """A fresh event id."""

    def append(self, batch: Batch) -> None:
        """Append; answered by `Session.acked` when durable. Never called again before that."""

    def append_next(self, batch: Batch, *, after: int) -> bool:
        """
        Append as soon as the append under way, which ends at seq *after*, is durable; instead of what was given before.

        Returns:
            Whether that will be done; else that append has landed, and `Session.acked` is about to be called.
        """

    def perform(self, call: Call, attempt: int) -> None:
        """Begin an effect; answered by `Session.completed`."""

    def transact(self, call: Call, attempt: int) -> None:
        """
        Run a transactional tool, its outcome appended in the tool's own transaction.

        Answered by `Session.committed` with that event, or by `Session.completed` when nothing happened: as never begun
        if it was abandoned.
        """

    def reconcile(self, call: Call, attempt: int) -> None:
        """Ask the outside world about a call in doubt; answered by `Session.reconciled`."""

    def abandon(self, call: Call) -> None:
        """Ask an effect under way to stop; a transactional tool is rolled back, and answered all the same."""

    def alarm(self, at_us: int) -> None:
        """Call `Session.alarm` when the clock reaches *at_us*."""
