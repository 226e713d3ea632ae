"""
The ground truth: what tools and models really did, in a file outside the journal.

A line is one entry. Lines are appended whole (one write with O_APPEND), so a process killed at any moment leaves
either the line or nothing; an entry that stands for an effect is also synced.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

ENTERED, ACTED, ASKED = "entered", "acted", "asked"


class Ledger:
    """The file, for writers and readers. Thread-safe: tools and reconcilers run in threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._lock = threading.Lock()
        self._read = 0
        self._entries: list[dict[str, Any]] = []

    def note(self, what: str, *, durable: bool = False, **entry: Any) -> None:
        """Append one entry."""
        with self._lock:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        line = json.dumps({"what": what, "pid": os.getpid(), **entry}) + "\n"
        written = os.write(self._file, line.encode())
        assert written == len(line)
        if durable:
            os.fsync(self._file)

    def entries(self) -> list[dict[str, Any]]:
        """All entries so far, in order."""
        with self._lock:
            if self.path.exists():
                with self.path.open("rb") as file:
                    file.seek(self._read)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._read += len(whole)
                self._entries += [json.loads(line) for line in whole.splitlines()]
            return list(self._entries)

    def acted(self, thread: str, call: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """The executions of a call, or of one attempt of it, that had their effect."""
        return [
            each
            for each in self.entries()
            if each["what"] == ACTED
            and (each["thread"], each["call"]) == (thread, call)
            and attempt in (None, each["attempt"])
        ]
