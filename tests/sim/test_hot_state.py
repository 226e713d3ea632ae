"""Oracle 17: whatever the cache of hot state does, the log is byte for byte the one of the same history without it."""

from __future__ import annotations

import pytest
from refold.replay.simulation import CACHE_FAULTS
from sim.explore import Tally, exhaust, screen
from sim.scenarios import ALL, FICKLE

pytestmark = pytest.mark.fuzz

FAULTS = frozenset(fault for kind in CACHE_FAULTS.values() for fault in kind)
MARKS = {"hot state found", *(f"fault: {fault}" for fault in FAULTS)}
STEADY_MODELS = [scenario for scenario in ALL.values() if scenario is not FICKLE]
"""A model that answers otherwise each time makes two logs of one history."""


def judge(tally: Tally, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = tally.report(part, MARKS)
    with capsys.disabled():
        print(f"\n{said}")
    if tally.found:
        found = tally.found[0]
        pytest.fail(screen(ALL[found.scenario], found, cached=True))


def test_no_fault_of_the_cache_changes_a_byte_of_any_log(capsys):
    tally = Tally()
    for scenario in STEADY_MODELS:
        tally.add(exhaust(scenario, 1, only=FAULTS, cached=True))

    judge(tally, "one fault of the cache", capsys)
    assert not {mark for mark in MARKS if not tally.marks[mark]}


@pytest.mark.parametrize("scenario", STEADY_MODELS, ids=lambda scenario: scenario.name)
def test_no_fault_of_the_cache_beside_a_crash_changes_a_byte(scenario, long, processes, capsys):
    """Or beside another of its own: what one worker keeps wrongly the next one reads."""
    if not long:
        pytest.skip("tens of thousands of histories: make fuzz")

    tally = processes.exhaust(scenario.name, 2, only=FAULTS | {"crash", "rival"}, cached=True)
    judge(tally, f"two faults of the cache, crash, rival: {scenario.name}", capsys)
