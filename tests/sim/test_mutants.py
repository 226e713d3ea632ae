"""The tests are tested: every guard that is taken out must be missed by a promise, and by the right one."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from fuzz_report import record
from sim.hunting import ask_the_sound_engine, caught, caught_pair
from sim.mutants import MUTANTS

pytestmark = pytest.mark.fuzz


@pytest.fixture(scope="module", autouse=True)
def quiet_runs_come_from_the_sound_engine():
    ask_the_sound_engine()


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


def test_two_missing_guards_do_not_hide_each_other(long, processes, capsys):
    """Every pair (`make fuzz`), or every ninetieth: some promise that one of the two breaks is still found broken."""
    pairs = list(combinations(range(len(MUTANTS)), 2))[:: 1 if long else 90]
    found = processes.each(caught_pair, pairs) if long else [caught_pair(*pair) for pair in pairs]
    caught_by: dict[str, list[str]] = {}
    missed: list[str] = []
    for (first, second), (seen, _, _) in zip(pairs, found, strict=True):
        one, other = MUTANTS[first], MUTANTS[second]
        name = f"{one.name} + {other.name}"
        if by := sorted(seen & (one.caught_by | other.caught_by)):
            caught_by[name] = by
        else:
            missed.append(f"{name}; noticed instead: {sorted(seen)}")
    histories = sum(played for _, played, _ in found)
    record(
        "sim",
        "pairs of mutants",
        histories=histories,
        seconds=sum(seconds for _, _, seconds in found),
        mutants_caught=caught_by,
        mutants_missed=missed,
        caught_by=caught_by,
    )
    with capsys.disabled():
        print(f"\npairs of mutants: {len(pairs)}, {len(missed)} missed, {histories} histories")

    assert not missed
