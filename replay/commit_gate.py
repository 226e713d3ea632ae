"""Decides between a transaction's commit and what calls it off: whichever comes first keeps the other out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


class CommitGate:
    """
    What every try of one transactional call passes on its way to the commit.

    Safe from any thread: the tool runs in one of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._entered = False
        self._why: Exception | None = None

    @property
    def closed(self) -> bool:
        """Whether it was shut, and no commit is on its way."""
        return self._why is not None and not self._entered

    def check(self) -> None:
        """Raise what it was shut with, if it was."""
        if self._why is not None:
            raise self._why

    def begin(self, cancel: Callable[[], None]) -> None:
        """Begin a try, on a connection of its own whose statement *cancel* cancels; any before came to nothing."""
        with self._lock:
            self._entered = False
            self.check()
            self._cancel = cancel

    def enter(self) -> None:
        """On the way to the commit."""
        with self._lock:
            self.check()
            self._cancel = None
            self._entered = True

    def shut(self, why: Exception) -> bool:
        """
        No commit from here on; the statement under way is cancelled.

        Args:
            why: What whoever is still on the way is told.

        Returns:
            False if a commit is on its way: it is to be waited for. None follows it if it comes to nothing.
        """
        with self._lock:
            self._why = self._why or why
            cancel, self._cancel = self._cancel, None
            if cancel is not None:
                # A server that stands still would hold up whoever asks it.
                threading.Thread(target=_quietly, args=(cancel,), name="refold cancel", daemon=True).start()
            return not self._entered


def _quietly(cancel: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        cancel()
