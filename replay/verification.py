"""Verifies threads and files whole: the log by its hashes, and its events by what belongs together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ..journal.journal import Journal, check_journal
from ..journal.verify import Verified, verify_all, verify_file, verify_thread
from .pairing import Pairing
from .text import visible


class Verification(Struct, frozen=True):
    """A thread's verdict, for people and scripts; `passed_over` events are of kinds this refold does not know."""

    found: Verified
    passed_over: int = 0

    @property
    def sound(self) -> bool:
        """Whether no fault was found."""
        return self.found.sound

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        found = self.found
        return {
            "thread": found.thread,
            "sound": found.sound,
            "events": found.events,
            "head_hash": found.head_hash,
            "seq": found.seq,
            "fault": found.fault,
            "passed_over": self.passed_over,
        }

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        found, name = self.found, visible(self.found.thread)
        more = f", {self.passed_over} of kinds unknown here" if self.passed_over else ""
        if found.sound:
            yield f"{name}: sound, {found.events} events{more}, head hash {found.head_hash[:16]}"
        else:
            yield f"{name}: FAULT at seq {found.seq}: {visible(found.fault)}"


def verify(journal: Journal, threads: Sequence[str] = ()) -> Iterator[Verification]:
    """
    Verify some threads of a journal, or all of them, newest first.

    Raises:
        ThreadNotFound: One of those named is not there.
    """
    check_journal(journal)
    pairings: dict[str, Pairing] = {}

    def new_look(thread: str) -> Any:
        pairings[thread] = Pairing(thread)
        return pairings[thread].look

    found = (
        (verify_thread(journal, each, look=new_look(each)) for each in threads)
        if threads
        else verify_all(journal, new_look=new_look)
    )
    for verified in found:
        yield Verification(verified, pairings.pop(verified.thread).passed_over)


def verify_export(path: str | os.PathLike[str]) -> Iterator[Verification]:
    """
    Verify the threads of a file, up to the first that is damaged.

    Raises:
        UsageError: The file cannot be read or is no export.
    """
    pairing = Pairing("")

    def new_look(thread: str) -> Any:
        nonlocal pairing
        pairing = Pairing(thread)
        return pairing.look

    for verified in verify_file(path, new_look=new_look):
        yield Verification(verified, pairing.passed_over)
