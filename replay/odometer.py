"""
Chooses what goes wrong in a simulated history: every placement of a few faults, a given one, or a random one.

A simulation asks `pick` at each place where something can go wrong; the first option is always that nothing does.
What was picked besides is a short list of (place, option): it is printed, and it replays the history.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Placement = tuple[str, str]
"""Where, and what."""

Moot = Callable[[str], bool]
"""Whether an option would change nothing here and now: a history with it is the one without it."""


class Chooser(Protocol):
    """Decides at each place what happens there."""

    taken: list[Placement]
    """What was picked besides first options, in order."""
    calm: bool
    """Whether nothing goes wrong any more in this history: nobody need ask."""

    def pick(self, options: Sequence[str], place: str, moot: Moot | None = None) -> str:
        """One of *options*; the first means that nothing goes wrong at *place*. *moot* is told of each other one."""


class Odometer:
    """
    Every placement of at most *faults* faults that all change something, one history after another.

    Call `turn` before each history; it answers False when all have been had. A history is found by counting up
    the last choice that can still grow, so the simulation must be deterministic.

    Args:
        faults: How many choices of a history may differ from the first option.
        part: (number, of how many): only the histories whose first fault is one of every so many. Together the parts
            are the whole, each history in one of them.

    Attributes:
        counts: Whether this history belongs to the part; the one without a fault must be played to find the others.
    """

    def __init__(self, faults: int, *, part: tuple[int, int] = (0, 1)) -> None:
        self._faults = faults
        self._part, self._parts = part
        self._firsts = 0
        self.counts = self._part == 0
        self._wheel: list[tuple[int, Sequence[str], Sequence[str], str]] = []
        """For each place: which of the options that are not moot it is, these, all of them, and where it is."""
        self._position = 0
        self._spent = 0
        self._begun = False
        self.calm = faults == 0
        self.taken: list[Placement] = []

    def turn(self) -> bool:
        """Go to the next history; False when there is none."""
        if self._begun:
            self.counts = True
            while self._count_up():
                if self._is_ours():
                    break
            else:
                return False
        self._begun = True
        self._position = 0
        self._spent = 0
        self.calm = self._faults == 0
        self.taken = []
        return True

    def _count_up(self) -> bool:
        while self._wheel and self._wheel[-1][0] + 1 == len(self._wheel[-1][1]):
            self._wheel.pop()
        if not self._wheel:
            return False
        value, grown, options, place = self._wheel[-1]
        self._wheel[-1] = (value + 1, grown, options, place)
        return True

    def _is_ours(self) -> bool:
        if self._parts == 1 or any(value for value, *_ in self._wheel[:-1]):
            return True
        # Another first fault: what begins with one of another part is passed over whole.
        self._firsts += 1
        return self._firsts % self._parts == self._part

    def pick(self, options: Sequence[str], place: str, moot: Moot | None = None) -> str:
        """The choice of this history at its next place."""
        # When the faults are spent nothing is recorded: nothing there can grow.
        if self.calm or len(options) == 1:
            return options[0]
        position = self._position
        self._position = position + 1
        if position == len(self._wheel):
            # Asked once for all the histories that come by here: what is moot is never begun.
            grown = options if moot is None else [o for o in options if o == options[0] or not moot(o)]
            self._wheel.append((0, grown, options, place))
            return options[0]
        value, grown, known, where = self._wheel[position]
        assert (where, known) == (place, options), f"not deterministic: {place} where {where} was"
        if value:
            self._spent += 1
            self.calm = self._spent == self._faults
            self.taken.append((place, grown[value]))
        return grown[value]


class Placed:
    """
    The history with exactly these faults.

    Args:
        faults: The options to pick by place; elsewhere nothing goes wrong.
    """

    def __init__(self, faults: Mapping[str, str] | Sequence[Placement] = ()) -> None:
        self.unused = dict(faults)
        """Placements whose place has not been reached, or which were no option there."""
        self.taken: list[Placement] = []
        self.calm = not self.unused

    def pick(self, options: Sequence[str], place: str, moot: Moot | None = None) -> str:
        """The fault placed here, if it is an option."""
        wanted = self.unused.get(place)
        if wanted is None or wanted not in options:
            return options[0]
        del self.unused[place]
        self.calm = not self.unused
        self.taken.append((place, wanted))
        return wanted


class Dice:
    """
    A random history.

    Args:
        seed: Makes it repeatable.
        rate: How likely something goes wrong at each place.
        faults: How many faults at most.
        kinds: Faults this history is given to; all by default.
    """

    def __init__(self, seed: int, *, rate: float, faults: int, kinds: frozenset[str] | None = None) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._left = faults
        self._kinds = kinds
        self.taken: list[Placement] = []
        self.calm = not faults

    def pick(self, options: Sequence[str], place: str, moot: Moot | None = None) -> str:
        """Mostly the first option."""
        if not self._left or self._random.random() >= self._rate:
            return options[0]
        faults = [o for o in options[1:] if self._kinds is None or o in self._kinds]
        if not faults:
            return options[0]
        self._left -= 1
        self.calm = not self._left
        chosen = self._random.choice(faults)
        self.taken.append((place, chosen))
        return chosen
