"""One run with injected ids and clock, in three tenures; what it leaves in the log depends on nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

import refold
from refold import Journal, Run, program, tool
from refold.journal.hot_state import Counts
from refold.journal.sources import Sources
from refold.replay import answers
from refold.replay.runner import read_all

CALLS = 70
THREAD = "story"
Row = tuple[int, UUID, str, int, int, bytes, bytes]


class Scripted(Sources):
    """Ids that count, a wall clock that stands, and no time on the loop; the other threads have the real one."""

    def __init__(self) -> None:
        self._drawn = 0
        self._lock = threading.Lock()
        self._loop_s = time.monotonic()

    def now_us(self) -> int:
        return 1_800_000_000_000_000

    def monotonic_s(self) -> float:
        on_loop = threading.current_thread() is threading.main_thread()
        return self._loop_s if on_loop else time.monotonic()

    def new_id(self) -> UUID:
        with self._lock:
            self._drawn += 1
            return UUID(int=self._drawn, version=4)


@tool(read_only=True)
async def look(place: int) -> str:
    """Look somewhere."""
    return f"{place}: {'stones and water, ' * 20}"


@program
async def journey(run: Run, name: str) -> str:
    """Look around in three places, each after somebody says go."""
    for stage in range(3):
        for step in range(CALLS):
            await run.tool(look, stage * CALLS + step)
        if stage < 2:
            await run.wait_for(f"go {stage}")
    return f"{name} has seen it all"


async def tell(
    dsn: str,
    redis_url: str | None,
    *,
    between: Callable[[int], None] = lambda stage: None,
    thread: str = THREAD,
    name: str = "Ada",
    sources: Sources | None = None,
) -> tuple[list[Row], list[Counts]]:
    """
    The log of the whole run and what became of hot state in each tenure.

    *between* is called before the second and third tenure, and with 2 before the log is read.
    """
    sources = sources or Scripted()
    counts: list[Counts] = []
    for stage in range(3):
        with Journal.open(dsn, redis_url=redis_url, sources=sources) as journal:
            if stage:
                between(stage - 1)
                answers.signal(journal, thread, f"go {stage - 1}", None, by="test")
                result = await refold.resume(journey, journal=journal, thread=thread, wait=False)
            else:
                result = await refold.run(journey, name, journal=journal, thread=thread, wait=False)
            assert result.status == ("waiting" if stage < 2 else "finished"), result
            if journal.hot_counts is not None:
                counts.append(journal.hot_counts)
    between(2)
    with Journal.open(dsn, sources=sources) as journal:
        return rows_of(journal, thread), counts


def rows_of(journal: Journal, thread: str) -> list[Row]:
    """A log without what the database's clock decides."""
    return [(e.seq, e.id, e.kind, e.version, e.fence, e.hash, e.body) for e in read_all(journal, thread)]
