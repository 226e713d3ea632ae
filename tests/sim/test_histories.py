"""Every placement of few faults, then many at random: whatever goes wrong, every promise is kept."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refold.replay.odometer import Dice
from refold.replay.simulation import EVERYWHERE, FAULTS, MESSAGES, TURNS
from sim.explore import MARKS, Found, Tally, exhaust, play, quiet_run, screen
from sim.scenarios import ALL

pytestmark = pytest.mark.fuzz

KINDS = sorted(
    {fault for special in FAULTS.values() for fault in special} | {*EVERYWHERE, *MESSAGES, *TURNS} - {"twin"}
)
"""A second loop with one lease is left to the exhaustive levels: what it does is not promised."""


_marks: Counter[str] = Counter()
_parts: set[str] = set()


def judge(tally, part, capsys, marks=()):
    said = tally.report(part, marks)
    _marks.update(tally.marks)
    _parts.add(part.partition(":")[0])
    with capsys.disabled():
        print(f"\n{said}")
    assert not tally.found, screen(ALL[tally.found[0].scenario], tally.found[0])


@pytest.mark.parametrize("name", ALL)
def test_any_one_fault_breaks_no_promise(name, capsys):
    """Each fault of the table, at each place where it can happen, in each scenario."""
    judge(exhaust(ALL[name], 1), f"one fault: {name}", capsys)


@pytest.mark.parametrize("name", ["errand", "agent"])
def test_any_two_crashes_break_no_promise(name, capsys):
    """The second may strike the recovery from the first."""
    judge(exhaust(ALL[name], 2, only=["crash"]), f"two crashes: {name}", capsys, MARKS)


@pytest.mark.parametrize("name", ALL)
def test_any_two_faults_break_no_promise(name, long, processes, capsys):
    """The full table in pairs: long."""
    if not long:
        pytest.skip("tens of thousands of histories: make fuzz")
    judge(processes.exhaust(name, 2), f"two faults: {name}", capsys, MARKS)


def test_any_three_crashes_and_lost_calls_break_no_promise(long, processes, capsys):
    if not long:
        pytest.skip("hundreds of thousands of histories: make fuzz")
    for name in ("told", "fickle"):
        tally = processes.exhaust(name, 3, only=("crash", "lost"))
        judge(tally, f"three faults of crash, lost: {name}", capsys)


def test_many_faults_at_random_break_no_promise(long, capsys):
    """Several threads in one store, more faults, other kinds of them in each history."""
    tally = Tally()
    for scenario in ALL.values():
        quiet_run(scenario)

    @settings(
        max_examples=12_000 if long else 250,
        deadline=None,
        derandomize=not long,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        name=st.sampled_from(sorted(ALL)),
        seed=st.integers(0, 1 << 32),
        threads=st.integers(1, 3),
        faults=st.integers(3, 8),
        rate=st.sampled_from([0.02, 0.06, 0.2]),
        chosen=st.sets(st.sampled_from(KINDS), min_size=1),
    )
    def explore(name, seed, threads, faults, rate, chosen):
        begun = time.process_time()
        dice = Dice(seed, rate=rate, faults=faults, kinds=frozenset(chosen))
        world, broken = play(ALL[name], dice, threads=threads)
        tally.histories += threads
        tally.seconds += time.process_time() - begun
        tally.marks.update(world.marks)
        if broken:
            tally.found[:] = [Found(name, dice.taken, broken)]
        assert not broken, screen(ALL[name], tally.found[0], threads=threads)

    try:
        explore()
    finally:
        said = tally.report("many faults at random")
        with capsys.disabled():
            print(f"\n{said}")


def test_every_rare_path_was_taken():
    """A level that misses one has tested less than it says."""
    if len(_parts) < 2:
        pytest.skip("the levels above have not been played in this session")
    assert not [mark for mark in sorted(MARKS) if not _marks[mark]]
