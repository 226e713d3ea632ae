"""
Many threads in one store, whatever happens to them in whatever order; then nothing goes wrong any more, and all end.

Hypothesis chooses what happens and shortens what breaks a promise to a few lines.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct
from refold.journal.envelope import Event
from refold.journal.store import Cursor
from refold.replay.odometer import Moot, Placement
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import CACHE_FAULTS, EVERYWHERE, FAULTS, MESSAGES, TURNS, Simulation
from sim.explore import faults_of, quiet_run, small_chunks
from sim.history import History
from sim.oracles import violations
from sim.scenarios import ALL, STEADY_NAMES

THREADS_MAX = 12
KINDS = sorted(
    {fault for kind in (*FAULTS.values(), *CACHE_FAULTS.values()) for fault in kind}
    | {*EVERYWHERE, *MESSAGES, *TURNS} - {"twin"}
)


class Armed:
    """Faults that strike at the next place that offers them."""

    def __init__(self) -> None:
        self.taken: list[Placement] = []
        self.waiting: list[str] = []
        self.calm = False

    def pick(self, options: Sequence[str], place: str, moot: Moot | None = None) -> str:
        """The first that waits and is an option here."""
        for fault in self.waiting:
            if fault in options:
                self.waiting.remove(fault)
                self.taken.append((place, fault))
                return fault
        return options[0]


class World(RuleBasedStateMachine):
    """What may happen, one thing after another."""

    played: ClassVar[int] = 0
    marks: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.faults = Armed()
        self.simulation = Simulation(self.faults, cached=True)
        self.simulation.steps_max = 100_000
        self.lanes: list[Lane] = []
        self.seen: dict[str, list[Event]] = {}
        self.cursor = Cursor()
        self.fed: list[Event] = []

    @precondition(lambda self: len(self.lanes) < THREADS_MAX)
    @rule(name=st.sampled_from(sorted(ALL)))
    def somebody_starts_a_thread(self, name: str) -> None:
        self.lanes.append(Lane(self.simulation, ALL[name], f"t{len(self.lanes) + 1}"))

    @rule(steps=st.integers(1, 60))
    def time_passes(self, steps: int) -> None:
        with small_chunks():
            self.simulation.run(steps)

    @rule(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    def things_will_go_wrong(self, kinds: list[str]) -> None:
        self.faults.waiting += kinds

    @precondition(lambda self: self.lanes)
    @rule(data=st.data(), kind=st.sampled_from(MESSAGES))
    def somebody_sends_a_message(self, data: st.DataObject, kind: str) -> None:
        lane = data.draw(st.sampled_from(self.lanes))
        self.faults.taken.append((f"{lane.workers[-1].name}.message", kind))
        lane.message(kind)

    @rule()
    def the_machine_dies(self) -> None:
        """All workers at once."""
        for worker in [worker for lane in self.lanes for worker in lane.workers if worker.at_work]:
            self.faults.taken.append((f"{worker.name}.machine", "crash"))
            worker.die()

    @precondition(lambda self: self.lanes)
    @rule(data=st.data(), away=st.booleans())
    def people_come_and_go(self, data: st.DataObject, away: bool) -> None:
        lane = data.draw(st.sampled_from(self.lanes))
        if away:
            self.faults.taken.append((f"{lane.workers[-1].name}.people", "absent"))
        lane.away = away

    @rule(limit=st.integers(1, 20), again=st.booleans())
    def a_reader_follows_all_threads(self, limit: int, again: bool) -> None:
        """One that dies after reading reads the same page again."""
        page = self.simulation.store.feed(self.cursor, limit=limit)
        if again:
            assert self.simulation.store.feed(self.cursor, limit=limit) == page
        self.fed += page.events
        self.cursor = page.cursor

    @invariant()
    def logs_only_grow(self) -> None:
        for lane in self.lanes:
            events, before = lane.events, self.seen.get(lane.name, [])
            assert events[: len(before)] == before
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            self.seen[lane.name] = events

    @invariant()
    def a_thread_that_rests_says_why(self) -> None:
        """Waiting for something that is open, or parked with a reason: there is always a way out."""
        for lane in self.lanes:
            run = lane.status.current
            if run is not None and run.status == "waiting":
                assert run.open, f"{lane.name} waits for nothing"
            if run is not None and run.status == "parked":
                assert run.reason, f"{lane.name} is parked without a reason"

    def teardown(self) -> None:
        """Liveness: nothing goes wrong any more, people answer, and every thread comes to its end."""
        self.faults.waiting.clear()
        for lane in self.lanes:
            lane.away = False
        with small_chunks():
            self.simulation.run()
        self.logs_only_grow()
        broken = []
        for lane in self.lanes:
            quiet = quiet_run(lane.scenario, lane.name) if lane.scenario.name in STEADY_NAMES else None
            mine = faults_of(lane, self.faults.taken)
            broken += violations(History(self.simulation, lane, mine, quiet))
        self.a_reader_follows_all_threads(1_000_000, again=False)
        for lane in self.lanes:
            assert [event for event in self.fed if event.thread == lane.name] == lane.events
        type(self).played += len(self.lanes)
        type(self).marks.update(self.simulation.marks)
        assert not broken, (broken[:5], self.faults.taken)


class Played(Struct):
    """What came of some worlds."""

    histories: int
    seconds: float
    """Of processor time."""
    marks: Counter[str]


def play_worlds(examples: int, steps: int, *, derandomize: bool = False, shorten: bool = True) -> Played:
    """So many worlds, of so many things that happen each. Raises `AssertionError` for a promise that is broken."""
    World.played, World.marks = 0, Counter()
    for scenario in ALL.values():
        quiet_run(scenario)
    begun = time.process_time()
    run_state_machine_as_test(
        World,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            print_blob=False,
            phases=[Phase.generate, Phase.shrink] if shorten else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Played(World.played, time.process_time() - begun, World.marks)
