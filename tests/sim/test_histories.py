"""Every placement of few faults, then many at random: whatever goes wrong, every promise is kept."""

from __future__ import annotations

from collections import Counter

import pytest
from refold.replay.odometer import Placed
from sim.at_random import play_at_random
from sim.explore import MARKS, Tally, exhaust, play, screen
from sim.mutants import MUTANTS
from sim.scenarios import ALL

pytestmark = pytest.mark.fuzz

_marks: Counter[str] = Counter()
_parts: set[str] = set()


def judge(tally, part, capsys, marks=()):
    said = tally.report(part, marks)
    _marks.update(tally.marks)
    _parts.add(part.partition(":")[0])
    with capsys.disabled():
        print(f"\n{said}")
    for found in tally.found[:1]:
        pytest.fail(screen(ALL[found.scenario], found))


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


def test_many_faults_at_random_break_no_promise(long, processes, capsys):
    """Several threads in one store, more faults, other kinds of them in each history."""
    tally = Tally()
    for part in (
        processes.each(play_at_random, [(800,)] * 15) if long else [play_at_random(250, derandomize=True)]
    ):
        tally.add(part)
    judge(tally, "many faults at random", capsys)


def test_a_history_drawn_at_random_that_breaks_a_promise_is_shown_and_can_be_played_again():
    """With its threads, its faults and the promise, on one screen."""
    (mutant,) = (each for each in MUTANTS if each.name == "a doubt is forgotten when a tenure ends")
    with mutant.at_large():
        (found,) = play_at_random(20, derandomize=True, shorten=False).found
        _, broken = play(ALL[found.scenario], Placed(found.faults), threads=found.threads)
        shown = screen(ALL[found.scenario], found)

    assert mutant.caught_by & {promise for promise, _ in found.broken}
    assert broken == found.broken
    assert f"BROKEN {broken[0][0]}" in shown
    assert f"({found.scenario!r}, {dict(found.faults)!r})" in shown


def test_every_rare_path_was_taken():
    """A level that misses one has tested less than it says."""
    if len(_parts) < 2:
        pytest.skip("the levels above have not been played in this session")
    assert not [mark for mark in sorted(MARKS) if not _marks[mark]]
