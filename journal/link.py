"""A cache that may be away, full, slow or wrong, made harmless: no call raises, and none waits for it twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from .breaker import Breaker
from .hot import CacheFailed
from .sources import Sources

T = TypeVar("T")


class Heard(Protocol):
    """A channel that is listened to."""

    def next(self, timeout_s: float) -> bytes | None:
        """The next message; None if none has come for *timeout_s*. Raises `CacheFailed`."""

    def close(self) -> None:
        """Stop; from any thread."""


class Cache(Protocol):
    """What holds hot state and passes hints on; any method raises `CacheFailed`. `RedisServer` is one."""

    @property
    def where(self) -> str:
        """What it is and where, without secrets."""

    def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values under *keys*, None where there is none."""

    def keep(self, items: Sequence[tuple[str, bytes]], *, ttl_s: float) -> None:
        """Store values for a time; it may forget any of them sooner."""

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Tell whoever listens on the channels now."""

    def ping(self) -> None:
        """See that it answers."""

    def listen(self, channel: str) -> Heard:
        """Hear what is published from now on."""

    def close(self) -> None:
        """End all calls under way."""


class Link:
    """
    A cache behind two breakers: one for a server that is away, one for a server that refuses to write.

    While the first is open nothing is asked by anybody but `probe`, so that a server which accepts and does not
    answer costs each call under way one time-out, and later calls nothing.
    """

    def __init__(self, cache: Cache, sources: Sources) -> None:
        self._cache = cache
        self.reach = Breaker(
            cache.where,
            "going on without it: resuming and waking are slower, nothing else is",
            sources,
        )
        self.writing = Breaker(
            f"{cache.where}: keeping hot state",
            "new hot state is not kept: resuming is slower, nothing else is",
            sources,
        )
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the server has become unreachable; whoever probes is to be woken."""

    def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values under *keys*; None for all of them when the cache is of no use now."""
        nothing: list[bytes | None] = [None] * len(keys)
        return self._try(lambda: self._cache.fetch(keys), nothing) if keys else nothing

    def keep(self, items: Sequence[tuple[str, bytes]], *, ttl_s: float) -> bool:
        """Store values, if that is possible; whether it was."""
        if self.writing.wait_s():
            return False

        def keep() -> bool:
            try:
                self._cache.keep(items, ttl_s=ttl_s)
            except CacheFailed as error:
                if not error.refused:
                    raise
                self.writing.failed(error)
                return False
            self.writing.worked()
            return True

        return self._try(keep, False)

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Pass hints on, if that is possible."""
        self._try(lambda: self._cache.publish(messages), None)

    def listen(self, channel: str) -> Heard | None:
        """Hear a channel; None when that is not possible now."""
        return self._try(lambda: self._cache.listen(channel), None)

    def probe(self) -> None:
        """See whether a server that was away is back, once its time has come."""
        if self.reach.wait_s() == 0.0:
            try:
                self._cache.ping()
            except CacheFailed as error:
                self.reach.failed(error)
            else:
                self.reach.worked()

    def failed(self, error: CacheFailed) -> None:
        """A subscription broke."""
        self.reach.failed(error)
        self.on_failure()

    def close(self) -> None:
        """End all calls under way."""
        self._cache.close()

    def _try(self, call: Callable[[], T], otherwise: T) -> T:
        if not self.reach.closed:
            return otherwise
        try:
            return call()
        except CacheFailed as error:
            self.failed(error)
            return otherwise
