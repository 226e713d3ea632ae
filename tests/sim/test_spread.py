"""What is spread over processes is what one process would have played, no history more or less."""

from __future__ import annotations

import pytest
from msgspec import structs
from refold.replay.odometer import Odometer
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import Simulation
from sim.explore import exhaust, play
from sim.scenarios import ALL, TOLD, TURNS
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


class Everything(Odometer):
    """Also what changes nothing."""

    def pick(self, options, place, moot=None):
        return super().pick(options, place)


def played(odometer, scenario):
    """What each placement led to, and those of which a fault changed nothing, by what the thread itself says."""
    found, moot = {}, set()
    message = Lane.message

    def told(lane, kind):
        before = (lane.world.now_us, lane._turned, len(lane.world.store.inbox(lane.name, consumed=True)))
        message(lane, kind)
        after = (lane.world.now_us, lane._turned, len(lane.world.store.inbox(lane.name, consumed=True)))
        if before == after:
            moot.add(tuple(odometer.taken))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "message", told)
        while odometer.turn():
            world = Simulation(odometer)
            lane = Lane(world, scenario, "t1")
            world.run()
            found[tuple(odometer.taken)] = (lane.events, world.ledger)
            lane.close()
    return found, moot


def test_a_history_left_out_is_one_that_is_played_without_the_fault_that_changes_nothing():
    """What is sent when there is nothing to say is the only difference."""
    all_of_them, moot = played(Everything(1), TOLD)
    chosen, _ = played(Odometer(1), TOLD)

    assert chosen == {faults: what for faults, what in all_of_them.items() if faults not in moot}
    assert {str(all_of_them[faults]) for faults in moot} == {str(chosen[()])}
    assert len(moot) > 20


@pytest.mark.parametrize("scenario, only", [(TOLD, "crash stale early cancel"), (TURNS, "input early")])
def test_of_pairs_of_faults_none_is_left_out_that_changes_anything(scenario, only):
    """A pair is moot if one of the two is: the second alone, or the first whatever comes after it."""
    scenario = structs.replace(scenario, faults=frozenset(only.split()))
    all_of_them, moot = played(Everything(2), scenario)
    chosen, none = played(Odometer(2), scenario)
    first = {faults for faults in moot if len(faults) == 1}
    changing = {faults for faults in all_of_them if faults not in moot and faults[:1] not in first}

    assert chosen == {faults: all_of_them[faults] for faults in changing}
    assert (none, len(moot) > len(changing) / 10) == (set(), True)
