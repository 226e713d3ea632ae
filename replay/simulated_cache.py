"""A simulated Redis behind the real hot-state code: what it holds, and every way in which it may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import structs

from ..journal import chunks
from ..journal.envelope import GENESIS, Event, chain
from ..journal.hot import CacheFailed
from ..journal.hot_state import Chunks, HotState
from ..journal.link import Heard, Link
from .simulated_process import Process
from .simulation import LATE_US

HOUR_US = 3_600_000_000


def hot_state(process: Process) -> HotState | None:
    """The hot state of one process, each with a connection of its own; None in a history without a cache."""
    world = process.world
    if world.cache is None:
        return None
    link = Link(SimulatedCache(process, world.cache), process.clocks)
    return HotState(link, world.store, later=lambda work: _Aside(process, work))


class _Aside:
    """Keeps chunks when the process next does something, and so never changes when anything happens."""

    def __init__(self, process: Process, work: Callable[[Chunks], None]) -> None:
        self._process = process
        self._work = work

    def put(self, key: tuple[str, int], value: list[Event] | None, *, size: int = 0) -> None:
        """Keep a chunk soon; a process that dies before does not."""
        self._process.aside(lambda: self._do({key: value}))

    def close(self, *, flush_s: float) -> None:
        """Nothing is left to be done."""

    def _do(self, batch: Chunks) -> None:
        try:
            self._work(batch)
        except Exception as error:  # noqa: BLE001 - nothing may come of a cache
            self._process.world.flaws.append(f"keeping hot state raised {type(error).__name__}: {error}")


class SimulatedCache:
    """
    One process's connection to the cache that all share.

    Args:
        process: Whose.
        held: Keys and values.
    """

    where = "simulated Redis"

    def __init__(self, process: Process, held: dict[str, bytes]) -> None:
        self._process = process
        self._held = held

    def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values under *keys*, or what a fault makes of them."""
        fault = self._process.strikes("fetch")
        values = [self._held.get(key) for key in keys]
        self._process.world.marks["hot state found"] += any(value is not None for value in values)
        match fault:
            case "away":
                raise CacheFailed("no answer in time")
            case "flushed":
                return [None for _ in keys]
            case "partial":
                return [value if place % 2 else None for place, value in enumerate(values)]
            case "cut":
                return [value and value[:-3] for value in values]
            case "flipped":
                return [value and value[:20] + bytes([value[20] ^ 1]) + value[21:] for value in values]
            case "garbage":
                return [b"something else altogether" for _ in keys]
            case "foreign" | "namesake" | "shifted" | "restored" | "newer":
                return self._of_another(fault, len(keys))
            case _:
                return values

    def keep(self, items: Sequence[tuple[str, bytes]], *, ttl_s: float) -> None:
        """Store values; a simulated history is shorter than any *ttl_s*."""
        match self._process.strikes("keep"):
            case "away":
                raise CacheFailed("no answer in time")
            case "full":
                raise CacheFailed("OOM command not allowed", refused=True)
            case "forgets":
                pass
            case "delays":
                self._process.world.after(LATE_US, lambda: self._held.update(items))
            case _:
                self._held.update(items)

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Nobody listens in a simulation: workers poll."""

    def ping(self) -> None:
        """It answers again as soon as it is asked."""

    def listen(self, channel: str) -> Heard:
        """Nobody listens in a simulation: workers poll."""
        raise CacheFailed("not simulated")

    def close(self) -> None:
        """Nothing is under way."""

    def _of_another(self, fault: str, count: int) -> list[bytes | None]:
        """Whole and sound chunks that are not the ones asked for."""
        store, thread = self._process.world.store, self._process.owner.name
        events = store.read(thread, limit=1_000_000)
        size = chunks.CHUNK_EVENTS
        if fault in ("restored", "newer"):
            events = _rewritten(events, 1 if fault == "restored" else count * size)
        identity = "another database" if fault == "foreign" else store.identity
        values: list[bytes | None] = []
        for place in range(count):
            number = (place + 1) % count if fault == "shifted" else place
            chunk = events[number * size : (number + 1) * size]
            if fault == "namesake":
                chunk = [structs.replace(event, thread="another thread") for event in chunk]
            values.append(chunks.encode(identity, number, chunk))
        return values


def _rewritten(events: list[Event], first: int) -> list[Event]:
    """A log of the same shape that is another from seq *first* on, with a chain that holds."""
    other = events[: first - 1]
    previous = other[-1].hash if other else GENESIS
    for event in events[first - 1 :]:
        changed = structs.replace(event, body=_otherwise(event.body))
        previous = chain(previous, event.seq, changed)
        other.append(structs.replace(changed, hash=previous))
    return other


def _otherwise(body: bytes) -> bytes:
    told = msgspec.json.decode(body)
    told["at"] += HOUR_US
    if "result" in told:
        told["result"] = "that of another history"
    return msgspec.json.encode(told)
