"""Where faults strike: what chooses them in a trial, what each means, and each place in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..journal.errors import UsageError
from .odometer import Moot, Placed, Placement

FAULTS = {
    "crash": "the process dies",
    "lost": "the store acts, and its answer is lost",
    "drop": "a call of the store is lost before it arrives",
    "pause": "the process stands still past its lease, another takes over, and then it goes on",
    "rival": "another worker takes the thread from it, as 'refold resume --steal' does",
    "interrupt": "the caller goes away, or SIGTERM comes",
    "late": "what was about to happen comes a little later",
}
"""Faults that can be tried, and what each stands for."""

_PLACES = {
    "acquire": "before its request for the thread was made",
    "acquire.answer": "when it had the thread, before it knew",
    "read": "before it had read the log",
    "append": "before this append was durable",
    "append.answer": "when this append was durable, before it knew",
    "release": "before it gave the thread back",
    "release.answer": "when it had given the thread back, before it knew",
    "model": "before {call} was asked",
    "tool": "before {call} began",
    "step": "before {call} began",
    "reconcile": "before the reconciler of {call} was asked",
    "outcome": "when {call} had been performed, before its outcome was handed over",
    "verdict": "when the reconciler of {call} had answered, before its answer was handed over",
    "alarm": "before it was woken by a time",
    "poll": "before it looked into the inbox",
    "deliver": "before it took what lay in the inbox",
    "leave": "before it left",
}


_AT_STAKE = ("outcome", "append.answer", "append")
"""Kinds of places that every run with calls comes by, and where most depends on what happens."""
MOST = [("crash", "append"), ("crash", "append.answer")]
"""What tells most of all."""
_ONLY_AT = {"lost": "append.answer", "drop": "append"}

Drawn = tuple[int, str] | tuple[int, str, str]


class Struck(Struct, frozen=True, kw_only=True):
    """A fault that has happened, and the length of the log then."""

    place: str
    fault: str
    head: int

    def describe(self, calls: Mapping[str, str]) -> str:
        """
        In words.

        Args:
            calls: What each call is, by path.
        """
        worker, kind, path = _parts(self.place)
        when = _PLACES[kind].format(call=calls.get(path, f"the call at {path}"))
        return f"{FAULTS[self.fault]}: worker {worker[1:]}, {when}"


class Course(Placed):
    """
    The history with exactly these faults, which remembers all places it comes by.

    Args:
        faults: The placements.
    """

    def __init__(self, faults: Sequence[Placement]) -> None:
        super().__init__(faults)
        self.calm = False
        self.places: list[tuple[str, Sequence[str]]] = []
        """Every place with its options."""
        self.struck: list[Struck] = []
        self.head: Callable[[], int] = int
        """Asked for the length of the log whenever a fault strikes."""

    def pick(self, options: Sequence[str], place: str, moot: Moot | None = None) -> str:
        """The fault placed here."""
        self.places.append((place, options))
        chosen = self.choose(options, place)
        if chosen != options[0]:
            self.struck.append(Struck(place=place, fault=chosen, head=self.head()))
        return chosen

    def choose(self, options: Sequence[str], place: str) -> str:
        """What happens at a place."""
        chosen = super().pick(options, place)
        # It is to be shown every place, also when all faults have struck.
        self.calm = False
        return chosen


class Scheduled(Course):
    """A history in which faults come one after another, each after so many places."""

    def __init__(self, faults: Sequence[Drawn]) -> None:
        super().__init__(())
        self._left = list(faults)
        self._passed = 0

    def choose(self, options: Sequence[str], place: str) -> str:
        """The next fault once its turn has come, at the first place where it can happen."""
        if not self._left:
            return options[0]
        gap, fault, *kind = self._left[0]
        if kind and kind[0] != _parts(place)[1]:
            return options[0]
        if self._passed < gap or fault not in options:
            self._passed += 1
            return options[0]
        del self._left[0]
        self._passed = 0
        self.taken.append((place, fault))
        return fault


class Schedule(Struct, frozen=True):
    """
    Faults that come one after another, wherever the run is by then.

    Args:
        faults: (how many places to pass, which fault), in order, or (how many places, which fault, "outcome") to count
            only the places of one kind, as they are named in `w1.outcome 2`.
    """

    faults: tuple[Drawn, ...] = ()

    def __repr__(self) -> str:
        return f"Schedule({self.faults!r})"


def _parts(place: str) -> tuple[str, str, str]:
    """Worker, kind and path of a place."""
    worker, _, rest = place.partition(".")
    kind, _, path = rest.partition("#")[0].partition(" ")
    return worker, kind, path


def at_stake_of(faults: Sequence[str]) -> list[tuple[str, str]]:
    """Each fault with the kinds of places where it can happen and most depends on it."""
    return [(fault, kind) for kind in _AT_STAKE for fault in faults if _ONLY_AT.get(fault, kind) == kind]


def known_faults(faults: Any) -> tuple[str, ...]:
    """
    The names of faults, checked.

    Raises:
        UsageError: One is unknown.
    """
    names = (faults,) if isinstance(faults, str) else tuple(faults)
    for name in names:
        if name not in FAULTS:
            raise UsageError(f"there is no fault {name!r}; the faults are: {', '.join(FAULTS)}")
    if not names:
        raise UsageError(f"name at least one fault of: {', '.join(FAULTS)}")
    return names
