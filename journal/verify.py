"""Checks that a log is whole: seqs dense from 1, the hash chain, the head, the fences. Bodies are opaque here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from .envelope import GENESIS, Event, chain
from .errors import Corrupt
from .export import all_threads, read_file
from .journal import Journal, check_journal
from .reading import read_events
from .store import ThreadInfo

Look = Callable[[Event], str | None]
"""A further check of each event in order; says what is wrong with it."""


class Verified(Struct, frozen=True, kw_only=True):
    """
    What a verification of one thread found.

    Args:
        thread: Thread id.
        events: How many events were found in order.
        head_hash: Chain hash of the last of them, in hex.
        seq: Where the first fault is; 0 if there is none.
        fault: What it is; empty if there is none.
    """

    thread: str
    events: int
    head_hash: str
    seq: int = 0
    fault: str = ""

    @property
    def sound(self) -> bool:
        """Whether no fault was found."""
        return not self.fault


def check_events(
    thread: str,
    events: Iterable[Event],
    *,
    head: int,
    head_hash: bytes,
    fence: int | None = None,
    look: Look | None = None,
) -> Verified:
    """
    Check a whole log, event by event, up to its first fault.

    Args:
        thread: Thread id.
        events: From seq 1 on.
        head: The seq that it must end with.
        head_hash: The hash that it must end with.
        fence: The newest tenure; no event is of a later one.
        look: A further check.
    """
    count, previous, written_by = 0, GENESIS, 0

    def found(seq: int, fault: str) -> Verified:
        return Verified(thread=thread, events=count, head_hash=previous.hex(), seq=seq, fault=fault)

    try:
        for event in events:
            seq = count + 1
            if event.seq != seq:
                return found(seq, f"the log has seq {event.seq} where {seq} is due")
            if seq > head:
                return found(seq, f"the head is {head}, the log goes on after it")
            if chain(previous, seq, event) != event.hash:
                return found(
                    seq, "its hash does not follow from the event before: it or that one was changed"
                )
            if event.fence < written_by:
                return found(seq, f"fence {event.fence} after fence {written_by}: a deposed holder wrote")
            if fence is not None and event.fence > fence:
                return found(seq, f"fence {event.fence}, the thread's newest is {fence}")
            if look is not None and (fault := look(event)) is not None:
                return found(seq, fault)
            count, previous, written_by = seq, event.hash, event.fence
    except Corrupt as error:
        return found(error.seq, str(error).partition(": ")[2])
    if count != head:
        return found(count + 1, f"the head is {head}, the log ends before it")
    if previous != head_hash:
        return found(head, f"its hash is {previous.hex()[:12]}, the thread's row says {head_hash.hex()[:12]}")
    return found(0, "")


def verify_thread(journal: Journal, thread: str, *, look: Look | None = None) -> Verified:
    """
    Check a thread as long as it is now; safe while it is written.

    Raises:
        ThreadNotFound: No such thread.
    """
    check_journal(journal)
    return _verify(journal, journal.info(thread), look)


def verify_all(journal: Journal, *, new_look: Callable[[str], Look] | None = None) -> Iterator[Verified]:
    """Check every thread of a journal, newest first; *new_look* makes the further check of each."""
    check_journal(journal)
    for info in all_threads(journal):
        yield _verify(journal, info, new_look(info.thread) if new_look else None)


def verify_file(path: Any, *, new_look: Callable[[str], Look] | None = None) -> Iterator[Verified]:
    """
    Check the threads of an export, up to the first that is damaged: what follows it cannot be trusted.

    Raises:
        UsageError: The file cannot be read or is no export.
    """
    reading = ""
    try:
        for filed in read_file(path):
            header = filed.header
            reading = header.thread
            verified = check_events(
                reading,
                filed.events,
                head=header.head,
                head_hash=bytes.fromhex(header.head_hash),
                look=new_look(reading) if new_look else None,
            )
            yield verified
            if not verified.sound:
                return
    except Corrupt as error:
        yield Verified(
            thread=error.thread or reading,
            events=0,
            head_hash="",
            seq=error.seq,
            fault=str(error).partition(": ")[2],
        )


def _verify(journal: Journal, info: ThreadInfo, look: Look | None) -> Verified:
    found = check_events(
        info.thread,
        read_events(journal, info.thread, upto=info.head),
        head=info.head,
        head_hash=info.head_hash,
        fence=info.fence,
        look=look,
    )
    if found.sound and journal.read(info.thread, after=info.head, limit=1):
        # Written meanwhile, or past what the row knows: asked in this order, a new head comes first.
        now = journal.info(info.thread)
        if now.head == info.head:
            return Verified(
                thread=info.thread,
                events=found.events,
                head_hash=found.head_hash,
                seq=info.head + 1,
                fault=f"the head is {info.head}, the log goes on after it",
            )
    return found
