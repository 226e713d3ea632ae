"""Threads to files and back, byte for byte: at the memory of a few events, whatever a thread's length."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote

from msgspec import Struct

from .envelope import BATCH_BYTES_MAX, GENESIS, Event
from .errors import Corrupt, ThreadNotFound, ThreadsDiffer, UsageError
from .journal import Journal, check_journal
from .packed import is_sealed, packing
from .reading import read_events
from .store import Admission, Admitted, ThreadInfo, ThreadState
from .thread_file import FORMAT, FiledThread, Header, read_threads, write_thread

THREADS_PAGE = 500
BATCH_EVENTS = 500
NAME_BYTES_MAX = 200


class Exported(Struct, frozen=True):
    """A thread that was written to a file; or one that was left out, with its `fault`."""

    thread: str
    events: int
    head_hash: str
    fault: str = ""


class Imported(Struct, frozen=True):
    """
    A thread of a file, now in the journal.

    Args:
        thread: Its id there.
        events: How many events the file has of it.
        added: How many of them this import has added.
        sealed: Whether it is still to be adopted before anybody can resume it.
    """

    thread: str
    events: int
    added: int
    sealed: bool


def export_thread(journal: Journal, thread: str, out: BinaryIO) -> Exported:
    """
    Write *thread*, as long as it is now, to a binary stream. The same thread always gives the same bytes.

    Messages that wait in its inbox are no part of its log and stay behind.

    Raises:
        ThreadNotFound: No such thread.
        Corrupt: The log does not hold together; what was written is of no use.
    """
    check_journal(journal)
    info = journal.info(thread)
    header = Header(FORMAT, thread, info.head, info.head_hash.hex(), info.state)
    count = write_thread(header, read_events(journal, thread, upto=info.head), out)
    return Exported(thread, count, header.head_hash)


def export_file(journal: Journal, threads: Iterable[str], path: str | os.PathLike[str]) -> list[Exported]:
    """
    Write threads to one file, which appears whole or not at all; compressed if its name ends in `.gz`.

    Raises:
        ThreadNotFound, Corrupt: As for `export_thread`.
        UsageError: The file cannot be written, or is a device, a pipe or a folder, which it would take the place of.
    """
    check_journal(journal)
    if refused := _no_file(path):
        raise UsageError(refused)
    # A link stays one: what it leads to is replaced.
    whole = Path(os.path.realpath(path))
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    try:
        with part.open("w+b") as plain:
            exported = _export_all(journal, threads, plain, compress=os.fspath(path).endswith(".gz"))
            plain.flush()
            os.fsync(plain.fileno())
        part.replace(whole)
    except OSError as error:
        raise UsageError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return exported


def export_folder(
    journal: Journal, threads: Iterable[str], folder: str | os.PathLike[str]
) -> Iterator[Exported]:
    """
    Write threads to a folder, each to a file of its own; `file_name` names it, and what it held before is replaced.

    A thread that does not hold together, or whose file would take the place of a folder or a device, is told of, and
    the rest goes on.

    Raises:
        ThreadNotFound: As for `export_thread`.
        UsageError: The folder or a file cannot be written.
    """
    check_journal(journal)
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {os.fspath(folder)!r}: {error.strerror or error}"
        ) from error
    # Some file systems take two names that differ in case for one.
    taken: set[str] = set()
    for thread in threads:
        name = file_name(thread)
        if name.lower() in taken:
            name = file_name(thread, distinct=True)
        taken.add(name.lower())
        if refused := _no_file(place / name):
            yield Exported(thread, 0, "", f"thread {thread!r} was left out: {refused}")
            continue
        try:
            yield from export_file(journal, [thread], place / name)
        except Corrupt as error:
            yield Exported(thread, 0, "", str(error))


def _no_file(path: str | os.PathLike[str]) -> str:
    """Why a file cannot be written there, whatever it would hold; empty if it can."""
    there = Path(os.path.realpath(path))
    if os.fspath(path) and (there.is_file() or not there.exists()):
        return ""
    return f"cannot write {os.fspath(path)!r}: it is no file"


def file_name(thread: str, *, distinct: bool = False) -> str:
    """
    A name for a thread's file that every file system takes: letters, digits, `_.~-`, everything else as `%XX`.

    Args:
        thread: Thread id.
        distinct: With a part of the id's digest, as very long names have it in any case.
    """
    name = re.sub("^[-.]", lambda match: f"%{ord(match.group()):02X}", quote(thread, safe=""))
    if distinct or len(name) > NAME_BYTES_MAX:
        name = f"{name[:NAME_BYTES_MAX]}-{hashlib.sha256(thread.encode()).hexdigest()[:12]}"
    return f"{name}.jsonl"


def all_threads(journal: Journal) -> Iterator[ThreadInfo]:
    """The rows of all threads, newest first, read as they are taken."""
    after: tuple[int, str] | None = None
    while page := journal.threads(after=after, limit=THREADS_PAGE):
        yield from page
        after = (page[-1].created_at, page[-1].thread)


def _export_all(
    journal: Journal, threads: Iterable[str], plain: BinaryIO, *, compress: bool
) -> list[Exported]:
    if not compress:
        return [export_thread(journal, thread, plain) for thread in threads]
    with packing(plain) as packed:
        return [export_thread(journal, thread, packed) for thread in threads]


def read_file(
    path: str | os.PathLike[str], *, offset: int | None = None, line: int = 0
) -> Iterator[FiledThread]:
    """
    The threads of a file, each with its events, checked as they are read.

    Args:
        path: The file; decompressed if its name ends in `.gz`.
        offset: Begin at this byte, where a thread's header stands; not in compressed files.
        line: How many lines stand before it, for messages.

    Raises:
        Corrupt: The file is not what was written; names thread, seq and line.
        UsageError: It cannot be read, is no export, or of a newer format.
    """
    name, thread = os.fspath(path), ""
    with _opened(path) as lines:
        if offset:
            lines.seek(offset)
        for filed in read_threads(lines, name=name, line=line):
            thread = filed.header.thread
            yield filed
    # Last, since a line that does not hold says where the damage is.
    if name.endswith(".gz") and not is_sealed(path):
        raise Corrupt(
            thread,
            0,
            f"{name}: each line holds, but the compressed file was changed or cut off since it was written. If another "
            "program compressed it, decompress it and use the file without '.gz'",
        )


def import_file(
    journal: Journal, path: str | os.PathLike[str], *, name: str | None = None, adopt: bool = False
) -> list[Imported]:
    """`import_files` of one file."""
    return list(import_files(journal, [path], name=name, adopt=adopt))


def import_files(
    journal: Journal,
    paths: Sequence[str | os.PathLike[str]],
    *,
    name: str | None = None,
    adopt: bool = False,
) -> Iterator[Imported]:
    """
    Take the threads of files into the journal, with their ids, hashes and times; sealed unless *adopt*.

    All files are checked before anything is written. Importing a file again changes nothing; one that holds more of
    a thread adds what is new.

    Args:
        journal: Where to.
        paths: Files written by `export_file`, decompressed if their names end in `.gz`, or folders of such files.
        name: Keep the thread under another id, if there is one only.
        adopt: Let the threads be resumed here: they must not go on where they came from.

    Raises:
        Corrupt: A file is not what was written.
        ThreadsDiffer: A thread of that id is here and is another, or has gone on in its own way.
        UsageError: A file cannot be read, is no export, or *name* is given for several threads.
        StoreRefused: Only the owner of the schema may import.
    """
    check_journal(journal)
    files = [file for path in paths for file in _files(path)]
    count = sum(1 for file in files for _ in read_file(file))
    if name is not None and count > 1:
        where = f"{os.fspath(files[0])!r} holds" if len(files) == 1 else f"{len(files)} files hold"
        raise UsageError(f"{where} {count} threads; another name can be given to one only")
    for file in files:
        for filed in read_file(file):
            yield _Taking(journal, file, filed, filed.header.thread if name is None else name).take(
                adopt=adopt
            )


def _files(path: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    place = Path(path)
    if not place.is_dir():
        return [path]
    found = sorted(each for each in place.iterdir() if each.name.endswith((".jsonl", ".jsonl.gz")))
    if not found:
        raise UsageError(f"folder {os.fspath(path)!r} holds no exported file (.jsonl or .jsonl.gz)")
    return [*found]


class _Taking:
    """One thread of a file on its way into a journal."""

    def __init__(
        self, journal: Journal, path: str | os.PathLike[str], filed: FiledThread, thread: str
    ) -> None:
        self._journal = journal
        self._path = path
        self._filed = filed
        self._thread = thread
        self._added = 0

    def take(self, *, adopt: bool) -> Imported:
        """Add what is new."""
        journal, thread, last = self._journal, self._thread, self._filed.header.head
        head, head_hash = 0, GENESIS
        try:
            info = journal.info(thread)
            head, head_hash = info.head, info.head_hash
        except ThreadNotFound:
            if not last:
                journal.create(thread)
        if last > head:
            self._add(head, head_hash)
        elif last:
            (event,) = journal.read(thread, after=last - 1, upto=last, limit=1)
            if event.hash.hex() != self._filed.header.head_hash:
                raise self._parted()
        if adopt:
            journal.adopt(thread)
        return Imported(thread, last, self._added, journal.info(thread).sealed)

    def _add(self, head: int, head_hash: bytes) -> None:
        batch: list[Event] = []
        size = 0
        for event in self._filed.events:
            if event.seq <= head:
                if event.seq == head and event.hash != head_hash:
                    raise self._parted()
                continue
            if batch and (len(batch) >= BATCH_EVENTS or size + len(event.body) > BATCH_BYTES_MAX // 4):
                head_hash = self._admit(batch, head_hash, ThreadState.IDLE)
                batch, size = [], 0
            batch.append(event)
            size += len(event.body)
        self._admit(batch, head_hash, self._filed.header.state)

    def _admit(self, batch: list[Event], before: bytes, state: ThreadState) -> bytes:
        expected = batch[0].seq - 1
        admission = Admission(
            thread=self._thread, expected=expected, expected_hash=before, events=tuple(batch), state=state
        )
        match self._journal.admit(admission):
            case Admitted.OPEN:
                raise ThreadsDiffer(
                    self._thread,
                    expected + 1,
                    f"the thread has a writer of its own here and ends at seq {expected}; "
                    "import it under another name ('--as')",
                )
            case Admitted.FORK:
                return self._admit_rest(batch, state)
            case Admitted.ADMITTED:
                self._added += len(batch)
        return batch[-1].hash

    def _admit_rest(self, batch: list[Event], state: ThreadState) -> bytes:
        """Add those events of *batch* that another import has not added meanwhile."""
        seq = min(self._journal.info(self._thread).head, batch[-1].seq)
        known = seq - batch[0].seq + 1
        if known < 1:
            raise self._parted()
        (here,) = self._journal.read(self._thread, after=seq - 1, upto=seq, limit=1)
        if here.hash != batch[known - 1].hash:
            raise self._parted()
        rest = batch[known:]
        return self._admit(rest, here.hash, state) if rest else here.hash

    def _parted(self) -> ThreadsDiffer:
        return ThreadsDiffer(
            self._thread,
            self._first_difference(),
            "the thread here holds another event: they are different threads, or each went on by itself; "
            "import it under another name ('--as')",
        )

    def _first_difference(self) -> int:
        file = read_file(self._path)
        filed = next(each for each in file if each.header == self._filed.header)
        seq = 0
        for here, there in zip(read_events(self._journal, self._thread), filed.events, strict=False):
            seq = here.seq
            if here.hash != there.hash:
                return seq
        return seq + 1


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    name = os.fspath(path)
    try:
        plain = Path(path).open("rb")  # noqa: SIM115 - closed below, where its errors mean something else
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror or error}") from error
    with plain:
        if not name.endswith(".gz"):
            yield plain
            return
        with gzip.open(plain, "rb") as packed:
            yield cast("BinaryIO", packed)
