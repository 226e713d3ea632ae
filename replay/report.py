"""What an offline replay of a thread found, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from ..journal.journal import Journal
from .divergence import Divergence
from .program import Program
from .rebuild import replay
from .text import visible
from .timeline import stream


class Replayed(Struct, frozen=True, kw_only=True):
    """
    A thread replayed to its end, or to where the program and its log part.

    Args:
        thread: Thread id.
        program: Name of the program.
        events: How many events the thread has.
        matched: Whether all of them fit what the program asks.
        runs: Its runs, if they do.
        divergence: Where they part, if they do not.
    """

    thread: str
    program: str
    events: int
    matched: bool
    runs: list[dict[str, Any]]
    divergence: Divergence | None = None

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        record = {name: getattr(self, name) for name in ("thread", "program", "events", "matched", "runs")}
        found = self.divergence
        if found is None:
            return record
        return {**record, **found.record()}

    def lines(self) -> Iterator[str]:
        """For a terminal; the divergence apart."""
        if self.divergence is None:
            yield f"{visible(self.thread)}: all {self.events} events match {visible(self.program)}; nothing was called"
        for run in self.runs:
            yield "  {run}: {status}, seq {first} to {last}".format(**run)


def replay_thread(journal: Journal, thread: str, program: Program) -> Replayed:
    """
    Replay *thread* against *program*, offline.

    Raises:
        ThreadNotFound: No such thread.
        Corrupt: The log contradicts itself.
        UnknownEvent: An event this refold cannot apply.
    """
    events = list(stream(journal, thread, upto=journal.info(thread).head, page=1000))
    try:
        status = replay(program, thread, events)
    except Divergence as error:
        return Replayed(
            thread=thread, program=program.name, events=len(events), matched=False, runs=[], divergence=error
        )
    runs = [
        {"run": run.run, "status": run.status, "first": run.first_seq, "last": run.last_seq}
        for run in status.runs
    ]
    return Replayed(thread=thread, program=program.name, events=len(events), matched=True, runs=runs)
