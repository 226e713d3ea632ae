"""Looks for mutants: the histories that must notice that a guard, or two of them, are missing."""

from __future__ import annotations

import time
from contextlib import ExitStack

from refold.replay.odometer import Placed
from refold.replay.simulation import CACHE_FAULTS
from sim.explore import exhaust, is_of_cache, play, quiet_run
from sim.mutant import Hunt, Mutant
from sim.mutants import MUTANTS
from sim.scenarios import ALL

CACHE = {fault for kind in CACHE_FAULTS.values() for fault in kind}


def ask_the_sound_engine() -> None:
    """What undisturbed runs mean is known before any guard is taken out."""
    for scenario in ALL.values():
        quiet_run(scenario)


def hunt(where: Hunt, wanted: frozenset[str]) -> tuple[set[str], int]:
    """Promises found broken at one place where mutants are looked for, and how many histories it took."""
    scenario, faults, *kinds = where
    if isinstance(faults, dict):
        _, broken = play(scenario, Placed(faults), cached=any(map(is_of_cache, faults)))
        return {promise for promise, _ in broken}, 1
    only = kinds[0].split()
    tally = exhaust(scenario, faults, only=only, wanted=wanted, stop_at=1, cached=bool(CACHE & set(only)))
    broken = tally.found[-1].broken if tally.found else []
    return {promise for promise, _ in broken}, tally.histories


def caught(*mutants: Mutant) -> tuple[set[str], int]:
    """Promises found broken by the first hunt that finds one that these mutants break, and the histories it took."""
    wanted = frozenset().union(*(mutant.caught_by for mutant in mutants))
    histories = 0
    seen: set[str] = set()
    with ExitStack() as stack:
        for mutant in mutants:
            stack.enter_context(mutant.at_large())
        for where in (where for mutant in mutants for where in mutant.hunts):
            broken, played = hunt(where, wanted)
            seen |= broken
            histories += played
            if seen & wanted:
                break
    return seen, histories


def caught_pair(first: int, second: int) -> tuple[set[str], int, float]:
    """As `caught`, of two mutants by their places in the list, and how much processor time it took."""
    begun = time.process_time()
    ask_the_sound_engine()
    seen, histories = caught(MUTANTS[first], MUTANTS[second])
    return seen, histories, time.process_time() - begun
