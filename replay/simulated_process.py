"""A simulated process: its steps, what goes wrong at them, and its calls of the store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

from ..journal.sources import Sources
from ..journal.store import AppendResult
from .inbox import Content
from .simulated_log import Log
from .simulation import (
    EVERYWHERE,
    INLINE,
    LATE_US,
    LATENCY_US,
    MESSAGES,
    OK,
    PLACES,
    TTL_US,
    TURNS,
    Scenario,
    Simulation,
)

Left = Literal["done", "busy", "idle", "released", "error", "crash"]
"""How a worker went; `crash` also for one that stands still, which nobody can tell from the outside."""

SKEW_US = 7_200_000_000
_SENT = frozenset({*MESSAGES, "input"})


class Owner(Protocol):
    """Whoever starts workers on a thread and looks after it."""

    name: str
    scenario: Scenario
    world: Simulation
    log: Log

    def left(self, worker: Any, how: Left) -> None:
        """A worker is gone."""

    def known_since(self, name: str, fence: int) -> int:
        """What `journal.holder` tells of the worker of that name: whether it is dead, and who was before it."""

    def rival(self, *, steal: bool) -> None:
        """Send another worker at once."""

    def twin(self, worker: Any) -> None:
        """Start a second loop with the lease of *worker*."""

    def supersede(self) -> None:
        """Send another worker at once, with an input for which it gives up the run there is."""

    def message(self, kind: str) -> None:
        """Send one of `MESSAGES`, or an input, if there is anything to say."""

    def has_message(self, kind: str) -> bool:
        """Whether `message` would send anything."""

    def post(self, key: str, content: Content) -> bool:
        """Put a message into the thread's inbox; live workers will find it. False if one of that key was there."""


class Clocks(Sources):
    """A worker's clocks and ids: the wall clock may be off, the monotonic one goes on while it stands still."""

    def __init__(self, world: Simulation, number: int, skew_us: int) -> None:
        self._world = world
        self._skew_us = skew_us
        self._ids = number << 64
        self.stopped_s: float | None = None
        """Where the monotonic clock is held, for what is gone through again as of an earlier moment."""

    def now_us(self) -> int:
        """Wall clock."""
        return self._world.now_us + self._skew_us

    def monotonic_s(self) -> float:
        """Monotonic clock."""
        return self._world.now_us / 1e6 if self.stopped_s is None else self.stopped_s

    def new_id(self) -> uuid.UUID:
        """The next id of this worker."""
        self._ids += 1
        return _uuid(self._ids)


@lru_cache(20_000)
def _uuid(number: int) -> uuid.UUID:
    # Every history draws the same ones.
    return uuid.UUID(int=number)


class Process:
    """
    What can crash, freeze and be robbed.

    Args:
        owner: Whose thread it has come for.
        number: Which worker of the history.
    """

    def __init__(self, owner: Owner, number: int) -> None:
        self.owner = owner
        self.world = owner.world
        self.number = number
        self.name = f"w{number}"
        self.alive = True
        self.gone = False
        """It has left the thread: what it began may still come to an end, nothing else of it happens."""
        self.paused = False
        self._counts: dict[str, int] = {}
        self._aside: list[Callable[[], object]] = []
        self._held: list[Callable[[], object]] = []
        self._options = options(owner.scenario.faults, turns=owner.scenario.turn is not None)
        skew = self.world.chooser.pick(self._options["clock"], f"{self.name}.clock")
        skew_us = {OK: 0, "ahead": SKEW_US, "behind": -SKEW_US}[skew]
        self.clocks = Clocks(self.world, number, skew_us)

    def do(self, kind: str, what: str, latency_us: int, step: Callable[[str], object]) -> None:
        """Have a step happen, unless something goes wrong there; *step* is told what else does."""
        # Names of places are for the chooser, who may be through with this history.
        place = "" if self.world.chooser.calm else self._place(what)
        self.world.after(latency_us, partial(self._due, kind, place, step))

    def _due(self, kind: str, place: str, step: Callable[[str], object]) -> None:
        if self.paused:
            self._held.append(partial(self._due, kind, place, step))
            return
        if not self.alive:
            return
        if self._aside:
            self._do_aside()
        if self.gone and kind not in ("outcome", "post"):
            return
        chooser = self.world.chooser
        fault = OK if chooser.calm else chooser.pick(self._options[kind], place, self._moot)
        if fault == OK:
            step(OK)
        else:
            self._go_wrong(fault, place, step)

    def strikes(self, kind: str) -> str:
        """What goes wrong at something that takes no time of its own."""
        place = self._place(kind)
        fault = self.world.chooser.pick(self._options[kind], place)
        if fault != OK:
            self.world.note(self.name, f"!! {fault} at {place}")
            self.world.marks[f"fault: {fault}"] += 1
        return fault

    def aside(self, action: Callable[[], object]) -> None:
        """Have *action* happen just before whatever this process does next; nothing else changes by it."""
        self._aside.append(action)

    def later(self, delay_us: int, action: Callable[[], object]) -> None:
        """Have *action* happen if this process lives then; when it stands still, as soon as it goes on."""
        self.world.after(delay_us, partial(self._act, action))

    def _act(self, action: Callable[[], object]) -> None:
        if self.paused:
            self._held.append(action)
        elif self.alive:
            if self._aside:
                self._do_aside()
            action()

    @property
    def at_work(self) -> bool:
        """Whether it looks after the thread now."""
        return self.alive and not self.paused and not self.gone

    def die(self) -> None:
        """The process is gone: nothing of it happens any more."""
        self.alive = False
        self.world.note(self.name, "is dead")
        self.owner.left(self, "crash")

    def interrupt(self) -> None:
        """The caller goes away, or SIGTERM comes."""

    def woken(self) -> None:
        """The process goes on after it stood still."""

    def call(
        self,
        kind: str,
        perform: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        sent: Callable[[], object],
    ) -> None:
        """One call of the store, sent again until an answer comes; *sent* is told each time it goes out."""
        self.do(kind, kind, LATENCY_US["store"], partial(self._arrive, kind, perform, then, sent))

    def _arrive(
        self,
        kind: str,
        perform: Callable[[], Any],
        then: Callable[[Any], None],
        sent: Callable[[], object],
        fault: str,
    ) -> None:
        sent()
        if fault == "ghost":
            self.world.after(TTL_US + 20_000, partial(self._orphan, perform))
            self.die()
        elif fault in ("drop", "zombie", "straggler"):
            if fault != "drop":
                self.world.after(1_000 if fault == "zombie" else LATE_US, partial(self._orphan, perform))
            self.call(kind, perform, then, sent=sent)
        else:
            answered = partial(self._answered, kind, perform, then, sent, perform())
            self.do("answer", f"{kind}.answer", LATENCY_US["store"], answered)

    def _answered(
        self,
        kind: str,
        perform: Callable[[], Any],
        then: Callable[[Any], None],
        sent: Callable[[], object],
        result: Any,
        fault: str,
    ) -> None:
        if fault == "lost":
            self.call(kind, perform, then, sent=sent)
        else:
            then(result)

    def _place(self, what: str) -> str:
        count = self._counts[what] = self._counts.get(what, 0) + 1
        return f"{self.name}.{what}" if count == 1 else f"{self.name}.{what}#{count}"

    def _do_aside(self) -> None:
        waiting, self._aside = self._aside, []
        for action in waiting:
            action()

    def _orphan(self, perform: Callable[[], Any]) -> None:
        result = perform()
        if isinstance(result, AppendResult):
            self.world.marks[f"orphan {result.outcome.value}"] += 1
            self.world.note(self.name, f"an append thought lost arrives: {result.outcome.value}")

    def _go_wrong(self, fault: str, place: str, step: Callable[[str], object]) -> None:
        self.world.note(self.name, f"!! {fault} at {place}")
        self.world.marks[f"fault: {fault}"] += 1
        match fault:
            case "crash":
                self.die()
            case "pause":
                self._stand_still(TTL_US + 40_000, step)
            case "freeze":
                self._stand_still(4 * TTL_US, step)
            case "late":
                self.later(LATE_US, lambda: step(OK))
            case "rival":
                self.owner.rival(steal=True)
                self.later(LATE_US, lambda: step(OK))
            case "jump":
                self.world.jump_us += 2 * TTL_US
                self.owner.rival(steal=False)
                self.later(7_000, lambda: step(OK))
            case "twin":
                self.owner.twin(self)
                self.later(7_000, lambda: step(OK))
            case "interrupt":
                self.interrupt()
                self.later(0, lambda: step(OK))
            case "supersede":
                self.owner.supersede()
                self.later(LATE_US, lambda: step(OK))
            case "cancel" | "early" | "stale" | "input":
                self.owner.message(fault)
                step(OK)
            case _:
                step(fault)

    def _moot(self, fault: str) -> bool:
        return fault in _SENT and not self.owner.has_message(fault)

    def _stand_still(self, pause_us: int, step: Callable[[str], object]) -> None:
        self.paused = True
        self._held.append(lambda: step(OK))
        self.owner.left(self, "crash")

        def wake() -> None:
            self.paused = False
            self.world.note(self.name, "wakes")
            self.woken()
            held, self._held = self._held, []
            for action in held:
                self.later(0, action)

        self.world.after(pause_us, wake)


_options: dict[tuple[frozenset[str] | None, bool], dict[str, tuple[str, ...]]] = {}


def options(faults: frozenset[str] | None, *, turns: bool = False) -> dict[str, tuple[str, ...]]:
    """What can happen at each kind of place when only *faults* are tried; with *turns*, more inputs too."""
    known = _options.get((faults, turns))
    if known is None:
        everywhere = (*EVERYWHERE, *MESSAGES, *(TURNS if turns else ()))
        known = _options[faults, turns] = {
            kind: (
                OK,
                *(
                    fault
                    for fault in (special if kind in INLINE else (*special, *everywhere))
                    if faults is None or fault in faults
                ),
            )
            for kind, special in PLACES.items()
        }
    return known
