"""Plays histories and judges them; prints one screen for one that breaks a promise."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from fuzz_report import record
from msgspec import Struct, field, structs
from refold.journal import chunks, hot_state
from refold.journal.envelope import Event
from refold.replay.collecting import seldom_collected
from refold.replay.odometer import Chooser, Odometer, Placed, Placement
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import CACHE_FAULTS, Scenario, Simulation
from sim import export_oracle, replay_oracles, told
from sim.history import History
from sim.oracles import log_is_that_without_redis, violations
from sim.scenarios import ENDINGS, STEADY_NAMES

MARKS = frozenset(
    {
        "appended",
        "duplicate",
        "fenced",
        "conflict",
        "busy",
        "orphan appended",
        "orphan duplicate",
        "orphan fenced",
        "release inbox_pending",
        "release fenced",
        "lease lost",
        "lease checked before a call",
        "late outcome",
        "crash of a recovery",
        "doubt told by people",
        "doubt told by a reconciler",
        "doubt told by a late worker",
        "doubt run again",
        "doubt about a model",
        "deadline passed",
        "exported",
        "never begun, said so",
        "superseded",
        "commit found",
        "commit not found",
        "transaction run again",
        "transaction called off",
        "run after run",
    }
)
"""Rare paths; each must be taken, else less was tested than is said."""


class Found(Struct):
    """A history that breaks promises."""

    scenario: str
    faults: list[Placement]
    broken: list[tuple[str, str]]
    threads: int = 1


class Tally(Struct):
    """What a level has seen."""

    histories: int = 0
    seconds: float = 0.0
    """Of processor time: the rate is that of one core, whatever else the machine does."""
    marks: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.histories / self.seconds if self.seconds else 0.0

    def add(self, other: Tally) -> None:
        """Count *other* in."""
        self.histories += other.histories
        self.seconds += other.seconds
        self.marks.update(other.marks)
        self.found += other.found

    def report(self, part: str, marks: Iterable[str] = ()) -> str:
        """Hand in what was seen; one line for people."""
        seen = [mark for mark, times in self.marks.items() if times]
        broken = [
            f"{f.scenario} {f.faults}: {promise}: {wrong}" for f in self.found for promise, wrong in f.broken
        ]
        record(
            "sim",
            part,
            histories=self.histories,
            seconds=self.seconds,
            violations=broken,
            marks=marks,
            marks_hit=seen,
        )
        return f"{part}: {self.histories} histories, {self.rate:.0f}/s, {len(self.found)} break a promise"


_quiet: dict[tuple[str, str], dict[str, Any]] = {}


def quiet_run(scenario: Scenario, thread: str = "t1") -> dict[str, Any]:
    """What the undisturbed run of a thread means."""
    key = (scenario.name, thread)
    if key not in _quiet:
        world = Simulation(Placed())
        lane = Lane(world, scenario, thread)
        world.run()
        meaning = History(world, lane, []).told.meaning
        # A scenario that does not get to its end would keep every promise.
        assert lane.done, key
        last = f"r{1 + len(scenario.inputs)}"
        assert f"{last} {ENDINGS.get(scenario.name, 'output')}" in meaning, (key, meaning)
        _quiet[key] = meaning
    return _quiet[key]


@contextmanager
def small_chunks() -> Iterator[None]:
    """Threads of a simulation are shorter than a chunk of hot state is; and its warnings are of no interest."""
    size = chunks.CHUNK_EVENTS
    chunks.CHUNK_EVENTS = hot_state.CHUNK_EVENTS = 4
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        chunks.CHUNK_EVENTS = hot_state.CHUNK_EVENTS = size
        logging.disable(logging.NOTSET)


_plain: dict[tuple[str, tuple[Placement, ...]], list[list[Event]]] = {}


def logs_without_cache(
    scenario: Scenario, threads: int, faults: Sequence[Placement]
) -> tuple[tuple[Placement, ...], list[list[Event]]]:
    """Those of *faults* that are not the cache's, and what the logs are when they alone strike and there is none."""
    others = tuple((place, fault) for place, fault in faults if not is_of_cache(place))
    key = (f"{scenario.name} {threads}", others)
    if key not in _plain:
        if len(_plain) > 1000:
            _plain.clear()
        world = Simulation(Placed(others))
        lanes = [Lane(world, scenario, f"t{number}") for number in range(1, threads + 1)]
        world.run()
        _plain[key] = [lane.events for lane in lanes]
    return others, _plain[key]


def forget() -> None:
    """Judge anew what has been judged: the engine is another one."""
    _plain.clear()
    told.forget()
    replay_oracles.forget()
    export_oracle.forget()


def is_of_cache(place: str) -> bool:
    """Whether the cache is called there."""
    return place.partition(".")[2].partition("#")[0] in CACHE_FAULTS


def play(
    scenario: Scenario,
    chooser: Chooser,
    *,
    threads: int = 1,
    trace: bool = False,
    cached: bool = False,
) -> tuple[Simulation, list[tuple[str, str]]]:
    """One history of one or more threads in one store, and the promises it breaks."""
    steady = scenario.name in STEADY_NAMES
    world = Simulation(chooser, trace=trace, cached=cached)
    with small_chunks() if cached else nullcontext():
        lanes = [Lane(world, scenario, f"t{number}") for number in range(1, threads + 1)]
        world.run()
    broken: list[tuple[str, str]] = []
    for lane in lanes:
        quiet = quiet_run(scenario, lane.name) if steady else None
        played = History(world, lane, faults_of(lane, chooser.taken), quiet)
        broken += violations(played)
        _mark(world, played)
    if cached:
        others, plain = logs_without_cache(scenario, threads, chooser.taken)
        for lane, events in zip(lanes, plain, strict=True):
            broken += log_is_that_without_redis(lane.events, events, others)
    if broken:
        # Played again it must be found broken again.
        forget()
    for lane in lanes:
        lane.close()
    return world, broken


def _mark(world: Simulation, history: History) -> None:
    world.marks.update(history.told.marks)
    if any(
        fault in ("crash", "ghost") and not place.startswith("w1.") for place, fault in world.chooser.taken
    ):
        world.marks["crash of a recovery"] += 1


def exhaust(
    scenario: Scenario,
    faults: int,
    *,
    only: Iterable[str] | None = None,
    stop_at: int = 3,
    seconds_max: float = 1e9,
    wanted: frozenset[str] | None = None,
    cached: bool = False,
    part: tuple[int, int] = (0, 1),
) -> Tally:
    """
    Every placement of at most *faults* faults of the kinds *only*.

    Args:
        scenario: What is played.
        faults: How many faults at most.
        only: Kinds of faults; all by default.
        stop_at: Stop when so many histories have been found that break a promise.
        seconds_max: Stop after so much processor time.
        wanted: Count only histories that break one of these promises.
        cached: Whether there is a cache of hot state.
        part: (number, of how many): a part of them, by their first fault.
    """
    quiet_run(scenario)
    if only is not None:
        scenario = structs.replace(scenario, faults=frozenset(only))
    tally = Tally()
    begun = time.process_time()
    odometer = Odometer(faults, part=part)
    with seldom_collected():
        while odometer.turn():
            world, broken = play(scenario, odometer, cached=cached)
            if not odometer.counts:
                continue
            tally.histories += 1
            tally.marks.update(world.marks)
            if broken and (wanted is None or any(promise in wanted for promise, _ in broken)):
                tally.found.append(Found(scenario.name, list(odometer.taken), broken))
                if len(tally.found) >= stop_at:
                    break
            # Reading the processor's clock is not free everywhere.
            if tally.histories % 100 == 0 and time.process_time() - begun > seconds_max:
                break
    tally.seconds = time.process_time() - begun
    return tally


def faults_of(lane: Lane, faults: list[Placement]) -> list[Placement]:
    """Those that struck this thread: its workers, its people, or the clock of the database."""
    workers = {worker.name for worker in lane.workers}
    return [
        (place, fault)
        for place, fault in faults
        if fault == "jump" or place.partition(".")[0] in workers or place.startswith("people.")
    ]


def screen(scenario: Scenario, found: Found, *, cached: bool = False) -> str:
    """What a person needs of a failing history: choices, timeline, ledger, promise, and how to play it again."""
    world, broken = play(scenario, Placed(found.faults), threads=found.threads, trace=True, cached=cached)
    timeline = world.timeline or []
    columns = {who: number * 12 for number, who in enumerate(sorted({who for _, who, _ in timeline}))}
    lines = [f"scenario {found.scenario}, faults {found.faults}"]
    lines += [f"{at / 1000:>11.1f} ms  {' ' * columns[who]}{who}: {what}" for at, who, what in timeline]
    lines.append("ledger:")
    lines += [
        f"  {d.kind} {d.name} {d.thread} {d.call} attempt {d.attempt} by {d.worker} at head {d.head}"
        f"{'' if d.happened else ' (nothing happened)'}"
        for d in world.ledger
    ]
    lines += [f"BROKEN {promise}: {wrong}" for promise, wrong in broken or found.broken]
    lines.append(f"again, in tests/sim/test_regressions.py: ({found.scenario!r}, {dict(found.faults)!r})")
    return "\n".join(lines)
