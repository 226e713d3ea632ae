"""Plays levels over all cores: each part in a process of its own, what they have seen merged."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from sim.explore import Tally, exhaust
from sim.scenarios import ALL

PARTS = 8
"""Of a level, for each process: what is left when the others have come to their end is little."""

T = TypeVar("T")


def cores() -> int:
    """How many processes can work at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exhaust_part(scenario: str, faults: int, part: tuple[int, int], options: dict[str, Any]) -> Tally:
    """As `explore.exhaust`, of one part."""
    return exhaust(ALL[scenario], faults, part=part, **options)


class Processes:
    """
    Processes that work on parts of levels; they start with the first one.

    Args:
        count: How many; one for each core by default.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or cores()
        # Spawned: a process that is forked shares locks with threads that it does not have.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.count, mp_context=context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def each(self, work: Callable[..., T], given: Iterable[tuple[Any, ...]]) -> list[T]:
        """What comes of *work*, a function of a module, for each of *given*; in that order."""
        futures: list[Future[T]] = [self._pool.submit(partial(work, *arguments)) for arguments in given]
        return [future.result() for future in futures]

    def exhaust(self, scenario: str, faults: int, **options: Any) -> Tally:
        """As `explore.exhaust`, of the scenario of that name; the rate is that of one core all the same."""
        tally, parts = Tally(), PARTS * self.count
        given = [(scenario, faults, (number, parts), options) for number in range(parts)]
        for part in self.each(exhaust_part, given):
            tally.add(part)
        return tally
