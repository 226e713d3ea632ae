"""Histories at random, beyond what can be gone through: Hypothesis draws them, and shortens one that is broken."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from refold.replay.odometer import Dice
from refold.replay.simulation import EVERYWHERE, FAULTS, MESSAGES, TURNS
from sim.explore import Found, Tally, play, quiet_run
from sim.scenarios import ALL

KINDS = sorted(
    {fault for special in FAULTS.values() for fault in special} | {*EVERYWHERE, *MESSAGES, *TURNS} - {"twin"}
)
"""A second loop with one lease is left to the exhaustive levels: what it does is not promised."""


def play_at_random(examples: int, derandomize: bool = False, shorten: bool = True) -> Tally:
    """So many histories of several threads and many faults; the smallest that breaks a promise is in the tally."""
    tally = Tally()
    for scenario in ALL.values():
        quiet_run(scenario)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=derandomize,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shorten else [Phase.generate],
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
    def explore(name: str, seed: int, threads: int, faults: int, rate: float, chosen: set[str]) -> None:
        begun = time.process_time()
        dice = Dice(seed, rate=rate, faults=faults, kinds=frozenset(chosen))
        world, broken = play(ALL[name], dice, threads=threads)
        tally.histories += threads
        tally.seconds += time.process_time() - begun
        tally.marks.update(world.marks)
        if broken:
            tally.found[:] = [Found(name, dice.taken, broken, threads)]
        assert not broken

    try:
        explore()
    except AssertionError:
        assert tally.found
    return tally
