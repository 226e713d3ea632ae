"""Plays histories and judges them; prints one screen for one that breaks a promise."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field, structs
from refold.replay.odometer import Chooser, Odometer, Placed, Placement
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import Scenario, Simulation
from sim.oracles import History, meaning, violations
from sim.scenarios import STEADY_NAMES as STEADY


class Found(Struct):
    """A history that breaks promises."""

    scenario: str
    faults: list[Placement]
    broken: list[tuple[str, str]]


class Tally(Struct):
    """What a level has seen."""

    histories: int = 0
    seconds: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.histories / self.seconds if self.seconds else 0.0


_quiet: dict[str, dict[str, Any]] = {}


def quiet_run(scenario: Scenario) -> dict[str, Any]:
    """What the undisturbed run means."""
    if scenario.name not in _quiet:
        world = Simulation(Placed())
        lane = Lane(world, scenario)
        world.run()
        assert lane.done, scenario.name
        _quiet[scenario.name] = meaning(History(world, lane, []).bodies)
    return _quiet[scenario.name]


def play(
    scenario: Scenario, chooser: Chooser, *, trace: bool = False
) -> tuple[Simulation, list[tuple[str, str]]]:
    """One history, and the promises it breaks."""
    quiet = quiet_run(scenario) if scenario.name in STEADY else None
    world = Simulation(chooser, trace=trace)
    lane = Lane(world, scenario)
    world.run()
    return world, violations(History(world, lane, chooser.taken, quiet))


def exhaust(
    scenario: Scenario,
    faults: int,
    *,
    only: Iterable[str] | None = None,
    stop_at: int = 3,
    seconds_max: float = 1e9,
    tally: Tally | None = None,
) -> Tally:
    """Every placement of at most *faults* faults (of the kinds *only*), until *stop_at* of them break a promise."""
    if only is not None:
        scenario = structs.replace(scenario, faults=frozenset(only))
    quiet_run(scenario)
    tally = tally or Tally()
    begun = time.process_time()
    odometer = Odometer(faults)
    while odometer.turn():
        world, broken = play(scenario, odometer)
        tally.histories += 1
        tally.marks.update(world.marks)
        if broken:
            tally.found.append(Found(scenario.name, list(odometer.taken), broken))
            if len(tally.found) >= stop_at:
                break
        if time.process_time() - begun > seconds_max:
            break
    tally.seconds += time.process_time() - begun
    return tally


def screen(scenario: Scenario, found: Found) -> str:
    """What a person needs of a failing history: choices, timeline, ledger, promise, and how to play it again."""
    world, broken = play(scenario, Placed(found.faults), trace=True)
    workers = sorted({who for _, who, _ in world.timeline or ()})
    lines = [f"scenario {found.scenario}, faults {found.faults}"]
    lines += [
        f"{at / 1000:>11.1f} ms  {'            ' * workers.index(who)}{who}: {what}"
        for at, who, what in world.timeline or ()
    ]
    lines.append("ledger:")
    lines += [
        f"  {d.kind} {d.name} {d.call} attempt {d.attempt} by {d.worker} at head {d.head}"
        f"{'' if d.happened else ' (nothing happened)'}"
        for d in world.ledger
    ]
    lines += [f"BROKEN {promise}: {wrong}" for promise, wrong in broken or found.broken]
    lines.append(f"again: replay_history({found.scenario!r}, {found.faults!r})")
    return "\n".join(lines)
