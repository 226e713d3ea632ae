"""The tests are tested: every guard that is taken out must be missed by a promise, and by the right one."""

from __future__ import annotations

import time

import pytest
from fuzz_report import record
from refold.replay.odometer import Placed
from refold.replay.simulation import CACHE_FAULTS
from sim.explore import exhaust, is_of_cache, play, quiet_run
from sim.mutants import MUTANTS, Mutant
from sim.scenarios import ALL

CACHE = {fault for kind in CACHE_FAULTS.values() for fault in kind}


@pytest.fixture(scope="module", autouse=True)
def quiet_runs_come_from_the_sound_engine():
    for scenario in ALL.values():
        quiet_run(scenario)


def caught(mutant: Mutant) -> tuple[set[str], int]:
    """Promises found broken by the first hunt that finds any, and how many histories it took."""
    histories = 0
    seen: set[str] = set()
    with mutant.at_large():
        for scenario, where, *kinds in mutant.hunts:
            if isinstance(where, dict):
                _, broken = play(scenario, Placed(where), cached=any(map(is_of_cache, where)))
                histories += 1
            else:
                only = kinds[0].split()
                cached = bool(CACHE & set(only))
                tally = exhaust(scenario, where, only=only, wanted=mutant.caught_by, stop_at=1, cached=cached)
                histories += tally.histories
                broken = tally.found[-1].broken if tally.found else []
            seen |= {promise for promise, _ in broken}
            if seen & mutant.caught_by:
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
