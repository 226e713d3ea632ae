"""Many threads in one store, whatever happens to them in whatever order: every promise is kept, and all end."""

from __future__ import annotations

from collections import Counter

import pytest
from fuzz_report import record
from refold.replay.odometer import Placed
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import Simulation
from sim.history import History
from sim.mutants import MUTANTS
from sim.oracles import violations
from sim.scenarios import ALL
from sim.world import Played, play_worlds

pytestmark = pytest.mark.fuzz


def test_whatever_happens_to_many_threads_every_promise_is_kept_and_all_come_to_an_end(
    long, processes, capsys
):
    broken: list[str] = []
    played: list[Played] = []
    try:
        played = (
            processes.each(play_worlds, [(100, 60)] * 15) if long else [play_worlds(30, 30, derandomize=True)]
        )
    except AssertionError as error:
        broken.append(str(error))
        raise
    finally:
        histories = sum(each.histories for each in played)
        record(
            "sim",
            "many threads",
            histories=histories,
            seconds=sum(each.seconds for each in played),
            violations=broken,
            marks_hit=sum((each.marks for each in played), start=Counter()),
        )
        with capsys.disabled():
            print(f"\nmany threads: {histories} histories, {len(broken)} break a promise")
    assert histories > len(ALL)


def test_a_run_that_waits_is_ended_at_its_deadline_though_nobody_is_there_to_answer():
    simulation = Simulation(Placed())
    lane = Lane(simulation, ALL["hurry"])
    lane.away = True
    simulation.run()

    assert lane.done
    assert not violations(History(simulation, lane, []))


@pytest.mark.parametrize(
    "name", ["a doubt is forgotten when a tenure ends", "an acknowledged append is lost"]
)
def test_the_world_notices_a_missing_guard(name):
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    with mutant.at_large(), pytest.raises(AssertionError):
        play_worlds(30, 30, derandomize=True, shorten=False)
