"""Postgres stopped as by a crash of its machine, every few seconds, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import fuzz_report
import psycopg
import pytest
from chaos.nursery import Nursery
from chaos.supervisor import Fleet, Operator, Verdict, names
from conftest import PostgresServer
from refold import Journal
from refold.journal.postgres import PostgresStore

THREADS = 8
MARKS = {"server stopped while workers wrote", "own append recognised"}


def crash(server: PostgresServer, luck: random.Random) -> None:
    """Stop it without a checkpoint, and start it again a moment later."""
    server.stop(immediately=True)
    time.sleep(luck.uniform(0.0, 0.5))
    server.start()


def one_batch(
    nursery: Nursery,
    server: PostgresServer,
    database: str,
    folder: Path,
    luck: random.Random,
    *,
    until_s: float,
    turns: int,
    kill: bool,
) -> Fleet:
    """Eight threads, two workers; the server goes away again and again until all have finished."""
    dsn = server.dsn(database)
    fleet = Fleet(nursery, folder, dsn, names(folder.name, THREADS), turns=turns, patience_s=20.0)
    try:
        with Journal.open(dsn, patience_s=0.0) as journal:
            operate = Operator(journal, fleet)
            while time.monotonic() < until_s and not fleet.watch(luck.uniform(0.5, 2.5), operate):
                if kill and luck.random() < 0.3:
                    fleet.kill(luck.choice(fleet.pids))
                    fleet.start()
                crash(server, luck)
                fleet.crashes += 1
            fleet.end(operate)
    finally:
        fleet.close()
    return fleet


@pytest.mark.fuzz
def test_nothing_acknowledged_is_lost_when_the_server_crashes_again_and_again(
    nursery: Nursery,
    postgres_server: PostgresServer,
    tmp_path: Path,
    long: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """H22: eight threads under load; the server is stopped with -m immediate every few seconds."""
    seed = random.SystemRandom().randrange(2**32)
    luck = random.Random(seed)
    database = postgres_server.create_database()
    verdict = Verdict("Postgres crashes")
    until_s = time.monotonic() + (120 if long else 12)
    while time.monotonic() < until_s:
        folder = tmp_path / f"crash-{verdict.rounds}"
        fleet = one_batch(
            nursery,
            postgres_server,
            database,
            folder,
            luck,
            until_s=until_s,
            turns=400 if long else 120,
            kill=long,
        )
        with Journal.open(postgres_server.dsn(database)) as journal:
            verdict.judge(journal, fleet)
        verdict.rounds += 1
        assert not verdict.violations, f"seed {seed}\n{verdict.failure()}"
    postgres_server.drop_database(database)

    with capsys.disabled():
        print(f"\n{verdict.summary()}")
    fuzz_report.record(
        "system",
        "Postgres crashes",
        histories=verdict.histories,
        seconds=verdict.seconds,
        violations=verdict.violations,
        marks=MARKS,
        marks_hit=verdict.marks,
        rounds=verdict.rounds,
        ledger=dict(verdict.ledger),
    )
    assert verdict.ledger["server crashes"] >= (20 if long else 2)
    assert not long or verdict.marks >= MARKS


@pytest.fixture
def forgetful_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A database whose commits are acknowledged before they are durable."""
    name = postgres_server.create_database()
    with postgres_server.admin() as admin:
        admin.execute(f"alter database {name} set synchronous_commit = off")
        # Nothing is to be written behind our back until the crash.
        admin.execute("alter system set wal_writer_delay = '10s'")
        admin.execute("alter system set wal_writer_flush_after = '1GB'")
        admin.execute("select pg_reload_conf()")
    yield postgres_server.dsn(name)
    postgres_server.start()
    with postgres_server.admin() as admin:
        admin.execute("alter system reset wal_writer_delay")
        admin.execute("alter system reset wal_writer_flush_after")
        admin.execute("select pg_reload_conf()")
    postgres_server.drop_database(name)


def test_a_server_that_forgets_what_it_acknowledged_is_noticed(
    nursery: Nursery, postgres_server: PostgresServer, forgetful_dsn: str, tmp_path: Path
) -> None:
    """The canary: with synchronous_commit off the very same rig must go red, by the oracle for lost writes."""
    for attempt in range(5):
        fleet = Fleet(
            nursery,
            tmp_path / f"canary-{attempt}",
            forgetful_dsn,
            names(f"canary-{attempt}", 4),
            turns=400,
            unsafe=True,
        )
        fleet.reports.wait_for("ready")
        fleet.watch(0.7)
        # The workers end with the server: what they were told is noted, and nobody writes it a second time.
        postgres_server.stop(immediately=True)
        fleet.close()
        postgres_server.start()
        verdict = Verdict("canary")
        store = PostgresStore.open(forgetful_dsn, unsafe=True)
        with Journal(store) as journal:
            verdict.judge(journal, fleet)
        if found := [each for each in verdict.violations if "acknowledged_is_there" in each]:
            fuzz_report.record(
                "system",
                "canary: synchronous_commit off",
                histories=verdict.histories,
                seconds=verdict.seconds,
                mutants_caught=["synchronous_commit off"],
                found=found[:4],
            )
            return
    pytest.fail("lost writes went unnoticed five times")


def test_a_server_that_forgets_is_refused_unless_asked_for(forgetful_dsn: str) -> None:
    from refold.journal.errors import StoreRefused

    with pytest.raises(StoreRefused, match="synchronous_commit"):
        PostgresStore.open(forgetful_dsn)
    with psycopg.connect(forgetful_dsn) as connection:
        assert connection.execute("show synchronous_commit").fetchone() == ("off",)
