"""What an offline replay of a thread found, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from ..journal.envelope import Event
from ..journal.journal import Journal, check_journal
from ..journal.reading import read_events
from . import events as ev
from .divergence import Divergence
from .no_network import no_network
from .program import Program
from .rebuild import replay
from .text import one_line, visible

HEADINGS = ("thread", "verdict", "events", "seq", "what")


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
        error: Why the thread could not be replayed at all; empty if it could.
        seq: Where that is.
        skipped: Whether it is of another program only, and was passed over.
    """

    thread: str
    program: str
    events: int
    matched: bool
    runs: list[dict[str, Any]] = []
    divergence: Divergence | None = None
    error: str = ""
    seq: int = 0
    skipped: bool = False

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        record = {name: getattr(self, name) for name in ("thread", "program", "events", "matched", "runs")}
        if self.divergence is not None:
            return {**record, **self.divergence.record()}
        return {**record, "error": self.error, "seq": self.seq} if self.error else record

    def lines(self) -> Iterator[str]:
        """For a terminal; the divergence apart."""
        if self.matched:
            yield f"{visible(self.thread)}: all {self.events} events match {visible(self.program)}; nothing was called"
        for run in self.runs:
            yield "  {run}: {status}, seq {first} to {last}".format(**run)

    def cells(self) -> list[str]:
        """The row for a table with these `HEADINGS`."""
        found = self.divergence
        if found is not None:
            first = next(found.differences[0].lines()) if found.differences else f"asked {found.asked}"
            return [visible(self.thread), "diverged", str(self.events), str(found.seq), one_line(first)]
        if self.error:
            return [visible(self.thread), "unreadable", str(self.events), str(self.seq), one_line(self.error)]
        return [visible(self.thread), "skipped" if self.skipped else "matches", str(self.events), "", ""]


def replay_thread(journal: Journal, thread: str, program: Program) -> Replayed:
    """
    Replay *thread* against *program*, offline.

    Raises:
        ThreadNotFound: No such thread.
        Corrupt: The log contradicts itself.
        UnknownEvent: An event this refold cannot apply.
    """
    check_journal(journal)
    events = list(read_events(journal, thread, upto=journal.info(thread).head, page=1000))
    return replay_events(program, thread, events)


def replay_events(program: Program, thread: str, events: list[Event], *, own: bool = False) -> Replayed:
    """
    Replay a thread's *events* against *program*; no network can be reached meanwhile.

    Args:
        program: What recorded them, or a later version of it.
        thread: Thread id.
        events: All of the thread's events.
        own: Pass over threads in which no run is of this program.

    Raises:
        Corrupt: The log contradicts itself.
        UnknownEvent: An event this refold cannot apply.
        ForeignAwait: The program awaits something that is not a command of its run.
    """
    if own and not any(_starts(event, program) for event in events):
        return Replayed(thread=thread, program=program.name, events=len(events), matched=False, skipped=True)
    try:
        with no_network():
            status = replay(program, thread, events)
    except Divergence as error:
        return Replayed(
            thread=thread, program=program.name, events=len(events), matched=False, divergence=error
        )
    runs = [
        {"run": run.run, "status": run.status, "first": run.first_seq, "last": run.last_seq}
        for run in status.runs
    ]
    return Replayed(thread=thread, program=program.name, events=len(events), matched=True, runs=runs)


def _starts(event: Event, program: Program) -> bool:
    if event.kind != "run_started" or not ev.is_known(event):
        return False
    body = ev.decode_event(event)
    return isinstance(body, ev.RunStarted) and body.program == program.name


class Tally(Struct):
    """Counts over many replayed threads."""

    threads: int = 0
    events: int = 0
    matched: int = 0
    diverged: int = 0
    unreadable: int = 0
    skipped: int = 0

    def add(self, found: Replayed) -> None:
        """Count one."""
        self.threads += 1
        if found.skipped:
            self.skipped += 1
            return
        self.events += found.events
        self.matched += found.matched
        self.diverged += found.divergence is not None
        self.unreadable += bool(found.error)

    @property
    def sound(self) -> bool:
        """Whether every thread that was replayed matches."""
        return not self.diverged and not self.unreadable

    def line(self) -> str:
        """All of it on one line."""
        parts = [
            f"{self.threads} threads, {self.events} events: {self.matched} match",
            f"{self.diverged} diverged",
        ]
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        if self.skipped:
            parts.append(f"{self.skipped} of other programs")
        return ", ".join(parts)
