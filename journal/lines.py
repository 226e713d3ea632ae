"""The connections of one journal, in one stock for all its calls: none lies idle while another call wants one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from .errors import StoreUnavailable
from .sources import SYSTEM, Sources

WAIT_S = 10.0
"""How long a call waits for a connection of ours that is in use, when no other can be had."""

ANSWER_S = 60.0
"""How long a server may give no sign of life before a call gives it up: one that hangs holds its sockets open."""

IDLE_S = 30.0
"""How long a connection is kept that nobody has used."""


class Line(Protocol):
    """A connection."""

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""

    def close(self) -> None:
        """End it."""


L = TypeVar("L", bound=Line)


class Lines(Generic[L]):
    """
    Lends connections and takes them back. Thread-safe.

    Where no further connection can be made, as on a server that has no room, a call takes the next one that comes
    back, urgent calls first.

    Args:
        connect: Makes a connection that is ready for use. Raises `StoreUnavailable`.
        sources: Its monotonic clock tells which have been idle for long.
    """

    def __init__(self, connect: Callable[[], L], sources: Sources = SYSTEM) -> None:
        self._connect = connect
        self._sources = sources
        self._changed = threading.Condition()
        self._idle: list[tuple[L, float]] = []
        self._lent = 0
        self._urgent_waiting = 0
        self._closed = False

    def take(self, *, urgent: bool) -> L:
        """
        A connection for a short call; `give_back` is to follow, or `part_with`.

        Raises:
            StoreUnavailable: There is none, or the journal is closed.
        """
        give_up_s: float | None = None
        while True:
            with self._changed:
                self._check_open()
                if self._may_take(urgent=urgent):
                    self._lent += 1
                    return self._idle.pop()[0]
            try:
                line = self._connect()
            except StoreUnavailable:
                now_s = self._sources.monotonic_s()
                give_up_s = now_s + WAIT_S if give_up_s is None else give_up_s
                if now_s >= give_up_s or not self._one_came_back(give_up_s - now_s, urgent=urgent):
                    raise
                continue
            with self._changed:
                # Not before: while the server is away, nobody is to wait for what others try in vain.
                self._lent += 1
            return line

    def take_idle(self) -> L | None:
        """A connection for as long as one likes, if one is idle; `put` takes it back."""
        with self._changed:
            return self._idle.pop()[0] if self._idle else None

    def give_back(self, line: L) -> None:
        """The short call is over; a closed connection is forgotten."""
        self.put(line)
        self.part_with()

    def part_with(self) -> None:
        """One that was taken does not come back soon: nobody is to wait for it."""
        with self._changed:
            self._lent -= 1
            self._changed.notify_all()

    def put(self, line: L) -> None:
        """Keep a connection for whoever wants one next."""
        now_s = self._sources.monotonic_s()
        with self._changed:
            if self._closed or line.closed:
                unwanted = [line]
            else:
                # The one used last is lent first, so that the others can grow old.
                old = sum(now_s - since_s > IDLE_S for _, since_s in self._idle)
                unwanted = [each for each, _ in self._idle[:old]]
                self._idle[:old] = []
                self._idle.append((line, now_s))
            self._changed.notify_all()
        for each in unwanted:
            each.close()

    def close_idle(self) -> None:
        """Close what is idle: what one connection has met, those made before it would meet too."""
        with self._changed:
            idle, self._idle = self._idle, []
        for line, _ in idle:
            line.close()

    def close(self) -> None:
        """Lend nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.close_idle()

    def _one_came_back(self, limit_s: float, *, urgent: bool) -> bool:
        """Wait for a connection in use; whether it is worth looking again."""

        def settled() -> bool:
            return self._closed or not self._lent or self._may_take(urgent=urgent)

        with self._changed:
            if not self._lent and not self._idle:
                return False
            self._urgent_waiting += urgent
            try:
                return self._changed.wait_for(settled, limit_s)
            finally:
                self._urgent_waiting -= urgent

    def _may_take(self, *, urgent: bool) -> bool:
        return bool(self._idle) and (urgent or not self._urgent_waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("this journal is closed; open another one")
