"""No more tools of a run run at once than it has slots, those that are tried again included."""

from __future__ import annotations

import msgspec
from refold import Run, program
from refold.replay.odometer import Placed
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import Scenario, Simulation
from sim.scenarios import tried, wobble
from sim.tools import look


@program
async def crowd(run: Run, value: None) -> list[object]:
    return await run.gather(tried(run, wobble, what="luck"), tried(run, look, key="a"))


crowd.concurrency = 1
CROWD = Scenario(name="crowd", program=crowd, latency_us={"look": 3_900_000})


def test_a_tool_that_failed_is_tried_again_only_when_a_slot_is_free():
    simulation = Simulation(Placed())
    lane = Lane(simulation, CROWD)
    simulation.run()

    bodies = [msgspec.json.decode(event.body) for event in lane.events]
    told = [(body["kind"], body["call"]) for body in bodies if body["kind"].startswith("tool_")]
    first, other = "r1/1.1.1", "r1/1.2.1"
    assert told == [
        ("tool_started", first),
        ("tool_failed", first),
        ("tool_started", other),
        ("tool_returned", other),
        ("tool_started", first),
        ("tool_failed", first),
        ("tool_started", first),
        ("tool_failed", first),
    ]
