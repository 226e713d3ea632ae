"""Workers killed with SIGKILL at random moments, again and again, while others compete for their threads."""

from __future__ import annotations

import random
from pathlib import Path

import fuzz_report
import pytest
from chaos.nursery import Nursery
from chaos.supervisor import Fleet, Operator, Verdict, names, pick
from refold import Journal

THREADS = 4
KILLS_MAX = 4
MARKS_SOON = {"taken over", "died inside a tool", "parked", "response in flight asked again"}
MARKS = MARKS_SOON | {
    "repeated with one key",
    "idempotent effect repeated",
    "model told of a doubt",
    "died in its recovery",
    "operator said returned",
    "operator said did_not_happen",
    "reconciler said returned",
    "reconciler said did_not_happen",
}


def one_round(nursery: Nursery, journal: Journal, dsn: str, folder: Path, luck: random.Random) -> Fleet:
    """Two workers, four threads, one to four kills at random moments; then everything comes to its end."""
    fleet = Fleet(nursery, folder, dsn, names(folder.name, THREADS))
    operate = Operator(journal, fleet)
    try:
        for _ in range(luck.randint(1, KILLS_MAX)):
            if fleet.watch(luck.uniform(0.0, 0.15), operate):
                break
            for pid in pick(luck, fleet.pids):
                fleet.kill(pid)
                fleet.start()
        fleet.end(operate)
    finally:
        fleet.close()
    return fleet


@pytest.mark.fuzz
def test_no_promise_breaks_when_workers_are_killed_at_random_moments(
    nursery: Nursery, pg_dsn: str, tmp_path: Path, long: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """H10, H13, H14: 4 threads with parallel and sequential tools of every policy, two workers, an operator."""
    seed = random.SystemRandom().randrange(2**32)
    luck = random.Random(seed)
    verdict = Verdict("kill -9")
    with Journal.open(pg_dsn) as journal:
        while verdict.rounds < (200 if long else 20):
            folder = tmp_path / f"round-{verdict.rounds}"
            verdict.judge(journal, one_round(nursery, journal, pg_dsn, folder, luck))
            verdict.rounds += 1
            assert not verdict.violations, f"seed {seed}\n{verdict.failure()}"

    with capsys.disabled():
        print(f"\n{verdict.summary()}")
    expected = MARKS if long else MARKS_SOON
    fuzz_report.record(
        "system",
        "kill -9",
        histories=verdict.histories,
        seconds=verdict.seconds,
        violations=verdict.violations,
        marks=expected,
        marks_hit=verdict.marks,
        rounds=verdict.rounds,
        ledger=dict(verdict.ledger),
    )
    assert expected <= verdict.marks
