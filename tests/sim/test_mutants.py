"""The tests are tested: every guard that is taken out must be missed by a promise, and by the right one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import combinations

import pytest
from fuzz_report import record
from refold.replay.odometer import Placed
from refold.replay.simulation import CACHE_FAULTS
from sim.explore import exhaust, is_of_cache, play, quiet_run
from sim.mutant import Hunt, Mutant
from sim.mutants import MUTANTS
from sim.scenarios import ALL

CACHE = {fault for kind in CACHE_FAULTS.values() for fault in kind}


@pytest.fixture(scope="module", autouse=True)
def quiet_runs_come_from_the_sound_engine():
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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_guard_is_noticed(mutant):
    begun = time.process_time()
    seen, histories = caught(mutant)
    by = sorted(seen & mutant.caught_by)
    record(
        "sim",
        f"mutant: {mutant.name}",
        histories=histories,
        seconds=time.process_time() - begun,
        mutants_caught=[mutant.name] if by else [],
        mutants_missed=[] if by else [mutant.name],
        caught_by=by,
    )

    assert by, f"{histories} histories have not noticed that {mutant.name}; noticed instead: {sorted(seen)}"


def test_two_missing_guards_do_not_hide_each_other(long, capsys):
    """Every pair (`make fuzz`), or every eightieth: some promise that one of the two breaks is still found broken."""
    pairs = list(combinations(MUTANTS, 2))[:: 1 if long else 80]
    begun = time.process_time()
    histories = 0
    caught_by: dict[str, list[str]] = {}
    missed: list[str] = []
    for first, second in pairs:
        seen, played = caught(first, second)
        histories += played
        name = f"{first.name} + {second.name}"
        if by := sorted(seen & (first.caught_by | second.caught_by)):
            caught_by[name] = by
        else:
            missed.append(f"{name}; noticed instead: {sorted(seen)}")
    record(
        "sim",
        "pairs of mutants",
        histories=histories,
        seconds=time.process_time() - begun,
        mutants_caught=caught_by,
        mutants_missed=missed,
        caught_by=caught_by,
    )
    with capsys.disabled():
        print(f"\npairs of mutants: {len(pairs)}, {len(missed)} missed, {histories} histories")

    assert not missed
