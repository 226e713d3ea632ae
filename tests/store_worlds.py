"""What the conformance suite needs of a store: the store, and a hand on its clock."""

from __future__ import annotations

from typing import Protocol

import psycopg
from refold.journal.memory import MemoryStore
from refold.journal.postgres import PostgresStore
from refold.journal.sources import Sources
from refold.journal.store import Store


class World(Protocol):
    """A store and the clock that decides about its leases."""

    store: Store

    def advance(self, seconds: float) -> None:
        """Move that clock forward."""


class ShiftedClock(Sources):
    """The system's sources with a wall clock that can be moved."""

    def __init__(self) -> None:
        self.shift_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.shift_us


class MemoryWorld:
    """The memory store on a clock of ours."""

    def __init__(self) -> None:
        self.clock = ShiftedClock()
        self.store = MemoryStore(self.clock)

    def advance(self, seconds: float) -> None:
        self.clock.shift_us += int(seconds * 1e6)


class PostgresWorld:
    """The Postgres store, perhaps reached through a pooler, with the database's clock replaced by its owner."""

    def __init__(self, dsn: str, *, through: str | None = None) -> None:
        self.dsn = dsn
        self.shift_s = 0.0
        self.store = PostgresStore.open(through or dsn)

    def advance(self, seconds: float) -> None:
        self.shift_s += seconds
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "create or replace function refold.now() returns timestamptz language sql volatile "
                f"parallel safe return clock_timestamp() + interval '{self.shift_s} seconds'"
            )
