"""What is spread over processes is what one process would have played, no history more or less."""

from __future__ import annotations

from refold.replay.odometer import Odometer, Placed
from sim.explore import exhaust, play
from sim.scenarios import ALL, TOLD
from sim.spread import Processes, cores


def placements(odometer: Odometer) -> list[tuple[tuple[str, str], ...]]:
    found = []
    while odometer.turn():
        play(TOLD, odometer)
        if odometer.counts:
            found.append(tuple(odometer.taken))
    return found


def test_parts_by_first_fault_are_together_the_whole_each_history_once():
    whole = placements(Odometer(1))
    parts = [placements(Odometer(1, part=(number, 7))) for number in range(7)]

    assert sorted(whole) == sorted(placement for part in parts for placement in part)
    assert () in parts[0]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_second_fault_stays_with_the_first():
    whole = exhaust(TOLD, 2, only=["crash", "lost"])
    parts = [exhaust(TOLD, 2, only=["crash", "lost"], part=(number, 5)) for number in range(5)]

    assert sum(part.histories for part in parts) == whole.histories


def test_processes_see_what_one_process_sees():
    with Processes(2) as processes:
        spread = processes.exhaust("told", 2, only=["crash"])

    alone = exhaust(ALL["told"], 2, only=["crash"])
    assert (spread.histories, spread.found) == (alone.histories, [])
    # Which logs are exported is told once in each process.
    assert {**spread.marks, "exported": 0} == {**alone.marks, "exported": 0}
    assert spread.seconds > 0
    assert cores() >= 1


def test_a_history_left_out_is_one_that_is_played_without_the_fault_that_changes_nothing():
    """What is sent when there is nothing to say is the only difference."""
    quiet, _ = play(TOLD, Placed())
    odometer, left_out = Odometer(1), 0
    while odometer.turn():
        world, _ = play(TOLD, odometer, distinct=True)
        if world.abandoned:
            left_out += 1
            whole, broken = play(TOLD, Placed(odometer.taken))
            assert whole.store.read("t1") == quiet.store.read("t1")
            assert (whole.ledger, broken) == (quiet.ledger, [])

    assert left_out > 20
