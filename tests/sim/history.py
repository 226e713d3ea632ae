"""One history of one thread, read for the checks, sharing no code with the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from refold.journal.store import AppendResult, Outcome
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import Deed, Simulation
from sim.told import told_by

T = TypeVar("T")

ALTERING = frozenset({"refuses", "fails", "raises", "cancel", "input", "supersede"})
"""Faults after which a run rightly comes to another outcome."""

ROBBERY = frozenset({"rival", "jump", "supersede"})
"""Faults after which a worker cannot know by its own clock that it no longer holds the thread."""

HELD = frozenset({"burn"})
"""Tools whose calls a person must allow."""

REPEATABLE = frozenset({"look", "brew", "wobble", "enter", "blob"})
"""Tools whose calls may run twice."""

RETRIES = {"look": 1, "enter": 1, "blob": 1, "wobble": 2}
"""How often a tool that has failed may be tried again; another one not at all."""


class History:
    """One finished history of one thread, indexed for the checks."""

    def __init__(
        self,
        world: Simulation,
        lane: Lane,
        faults: list[tuple[str, str]],
        quiet: dict[str, Any] | None = None,
    ) -> None:
        self.quiet = quiet
        self.world = world
        self.lane = lane
        self.kinds = {fault for _, fault in faults}
        self.events = lane.events
        self.told = told_by(self.events)
        self.bodies = self.told.bodies
        self.ledger = [deed for deed in world.ledger if deed.thread == lane.name]
        self.sent = [sent for sent in world.sent if sent.append.thread == lane.name]
        self.acknowledged = [sent for sent in self.sent if sent.answered is not None and taken(sent.answered)]
        self.granted = [grant for grant in world.granted if grant.thread == lane.name]
        # A second loop with one lease cannot come about by itself; it is played to see that the log bears it.
        # When the clock that decides on leases leaps, a live worker is robbed and no hold tells how long it acts.
        deposed = any(deed.kind == "tool" and not deed.current for deed in self.ledger)
        self.unpromised = "twin" in self.kinds or ("jump" in self.kinds and deposed)


def of_the_log(check: Callable[[History], Iterable[T]]) -> Callable[[History], Iterable[T]]:
    """A check that looks at nothing but what a log says: it judges each log once."""
    name = check.__name__

    @wraps(check)
    def judge(history: History) -> Iterable[T]:
        found = history.told.found.get(name)
        if found is None:
            found = history.told.found[name] = list(check(history))
        return found

    return judge


def taken(result: AppendResult) -> bool:
    """Whether an append is in the log by this answer."""
    return result.outcome is Outcome.APPENDED or result.outcome is Outcome.DUPLICATE


def tell(deed: Deed) -> str:
    return f"{deed.kind} {deed.name} ({deed.call}, attempt {deed.attempt})"


def acts(deed: Deed) -> bool:
    """Whether it is a call whose start must be on the record: of a tool, or of a model whose provider may act."""
    return deed.kind == "tool" or deed.name == "acting model"
