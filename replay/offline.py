"""Replays many threads, of a journal or of files, in parallel processes. No effect is performed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct

from ..journal.envelope import Event
from ..journal.errors import Corrupt, RefoldError, UsageError
from ..journal.export import all_threads, read_file
from ..journal.journal import Journal
from ..journal.reading import read_events
from .errors import ForeignAwait, UnknownEvent
from .program import Program
from .report import Replayed, replay_events

CHUNK_MAX = 64
AHEAD = 4

OpenJournal = Callable[[], Journal]
LoadProgram = Callable[[], Program]


class Source(Struct, frozen=True):
    """
    Something to replay: a thread of the journal, or a file.

    Args:
        name: Thread id, or path of the file.
        file: Whether it is a file.
        offset: Where in the file the one thread meant begins; None for all of the file.
        line: How many lines stand before it.
    """

    name: str
    file: bool = False
    offset: int | None = None
    line: int = 0


def sources_of_file(path: str | os.PathLike[str]) -> Iterator[Source]:
    """
    One source for each thread of a file, so that they can be replayed in parallel; a compressed file is one.

    Raises:
        UsageError: The file cannot be read.
    """
    name = os.fspath(path)
    try:
        if name.endswith(".gz"):
            with Path(path).open("rb"):
                yield Source(name, file=True)
            return
        with Path(path).open("rb") as lines:
            offset = found = 0
            for number, line in enumerate(lines):
                if line.startswith(b'{"refold_thread":'):
                    found += 1
                    yield Source(name, file=True, offset=offset, line=number)
                offset += len(line)
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror or error}") from error
    if not found:
        yield Source(name, file=True)


def sources_of_journal(journal: Journal) -> Iterator[Source]:
    """Every thread of a journal, newest first."""
    return (Source(info.thread) for info in all_threads(journal))


def replay_sources(
    sources: Iterable[Source],
    load: LoadProgram,
    *,
    journal: OpenJournal | None = None,
    jobs: int = 1,
    own: bool = False,
) -> Iterator[Replayed]:
    """
    Replay threads against a program; what came of each, in the order of the sources.

    A thread that cannot be read is told like one that diverged, and the rest goes on.

    Args:
        sources: What to replay.
        load: Gives the program; called in each process, so it and what it refers to can be pickled.
        journal: Opens the journal, in each process; not needed for files.
        jobs: How many processes; 1 replays in this one.
        own: Pass over threads in which no run is of this program.

    Raises:
        UsageError: A source cannot be read at all, or *load* fails.
    """
    if jobs <= 1:
        work = _Work(load, journal, own)
        try:
            for source in sources:
                yield from work.replay(source)
        finally:
            work.close()
        return
    # Here first: what fails in another process is hard to tell.
    load()
    # Spawned: a fork would copy threads' locks and open connections.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin, (load, journal, own)) as pool:
        yield from _spread(pool, sources, jobs)


def _spread(pool: ProcessPoolExecutor, sources: Iterable[Source], jobs: int) -> Iterator[Replayed]:
    """Hand out a few chunks ahead of what is taken, small ones first, so that the first results come soon."""
    left = iter(sources)
    size = 1
    under_way: list[Future[list[Replayed]]] = []
    while True:
        while len(under_way) < jobs * AHEAD and (chunk := list(itertools.islice(left, size))):
            under_way.append(pool.submit(_do, chunk))
            size = min(CHUNK_MAX, size * 2)
        if not under_way:
            return
        yield from under_way.pop(0).result()


class _Work:
    """The replays of one process."""

    def __init__(self, load: LoadProgram, journal: OpenJournal | None, own: bool) -> None:
        self._program = load()
        self._open = journal
        self._own = own
        self._journal: Journal | None = None

    def replay(self, source: Source) -> Iterator[Replayed]:
        """Replay one source."""
        if source.file:
            yield from self._file(source)
            return
        if self._journal is None:
            if self._open is None:
                raise UsageError(f"thread {source.name!r} needs a journal to be read from")
            self._journal = self._open()
        head = self._journal.info(source.name).head
        yield self._events(source.name, read_events(self._journal, source.name, upto=head))

    def _file(self, source: Source) -> Iterator[Replayed]:
        thread = ""
        try:
            for filed in read_file(source.name, offset=source.offset, line=source.line):
                thread = filed.header.thread
                yield self._events(thread, filed.events)
                if source.offset is not None:
                    return
        except Corrupt as error:
            yield self._unreadable(error.thread or thread or source.name, error)

    def _events(self, thread: str, events: Iterable[Event]) -> Replayed:
        try:
            return replay_events(self._program, thread, list(events), own=self._own)
        except (Corrupt, UnknownEvent, ForeignAwait) as error:
            return self._unreadable(thread, error)

    def _unreadable(self, thread: str, error: RefoldError) -> Replayed:
        seq = getattr(error, "seq", 0)
        return Replayed(
            thread=thread, program=self._program.name, events=0, matched=False, error=str(error), seq=seq
        )

    def close(self) -> None:
        """Give the journal back."""
        if self._journal is not None:
            self._journal.close()


_mine: list[_Work] = []
"""What this process of a pool works with."""


def _begin(load: LoadProgram, journal: OpenJournal | None, own: bool) -> None:
    _mine.append(_Work(load, journal, own))


def _do(sources: Sequence[Source]) -> list[Replayed]:
    return [found for source in sources for found in _mine[0].replay(source)]
