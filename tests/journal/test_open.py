"""Opening a journal, and leaving it: clear one-line errors, no secret in any, and nothing lost at exit."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from appends import event
from conftest import PostgresServer
from refold.journal.envelope import NewEvent
from refold.journal.errors import StoreError, StoreRefused, StoreUnavailable, UsageError
from refold.journal.journal import Journal
from refold.journal.postgres import PostgresStore
from refold.journal.store import ThreadState

SECRET = "hunter2"


@pytest.mark.parametrize(
    "dsn",
    [
        f"nonsense {SECRET}",
        f"host=x password={SECRET} port",
        f"password={SECRET} {SECRET}=1",
        f"postgresql://me:{SECRET}@host:notaport/db",
        f"postgres://me:{SECRET}/x@host/db",
        f"postgres://me:x@{SECRET}@host/db",
        f"postgresql+psycopg://me:{SECRET}@host/db",
        f"mysql://me:{SECRET}@host/db",
        "postgresql://[::1",
    ],
)
def test_a_malformed_dsn_is_one_line_that_shows_the_form_and_no_secret(dsn: str) -> None:
    with pytest.raises(UsageError) as caught:
        Journal.open(dsn)

    text = str(caught.value)
    assert "postgresql://user:password@host" in text
    assert SECRET not in text
    assert "\n" not in text
    assert SECRET not in repr(caught.value.__cause__)


def test_an_unreachable_server_is_one_line_that_names_it_and_no_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(StoreUnavailable) as caught:
        Journal.open(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db")

    text = str(caught.value)
    assert f"127.0.0.1, port {port}" in text
    assert SECRET not in text
    assert "\n" not in text
    assert not caught.value.ambiguous


@pytest.mark.parametrize("change", [{"dbname": "nowhere"}, {"user": "nobody_i_know"}])
def test_a_missing_database_or_role_is_one_line(pg_dsn: str, change: dict[str, str]) -> None:
    with pytest.raises(StoreError) as caught:
        Journal.open(psycopg.conninfo.make_conninfo(pg_dsn, **change))

    assert "does not exist" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_dsn_comes_from_the_environment(pg_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_DSN", pg_dsn)
    with Journal.open() as from_environment, Journal.open(pg_dsn) as given:
        assert from_environment.identity == given.identity


def test_without_a_dsn_the_embedded_server_is_used(refold_home: Path) -> None:
    with Journal.open() as journal:
        journal.create("a")
    with Journal.open() as journal:
        assert journal.info("a").head == 0


def test_a_server_that_turned_read_only_is_unavailable_and_not_broken(
    postgres_server: PostgresServer, pg_dsn: str
) -> None:
    """A standby after a failover: appends wait for the primary."""
    store = PostgresStore.open(
        psycopg.conninfo.make_conninfo(pg_dsn, options="-c default_transaction_read_only=on")
    )
    with pytest.raises(StoreUnavailable) as caught:
        store.create("a")
    assert not caught.value.ambiguous
    store.close()


def test_a_dropped_schema_is_refused_with_the_remedy(pg_dsn: str) -> None:
    store = PostgresStore.open(pg_dsn)
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("drop schema refold cascade")
    with pytest.raises(StoreRefused, match="missing"):
        store.create("a")
    store.close()


def test_a_closed_store_says_so(pg_dsn: str) -> None:
    store = PostgresStore.open(pg_dsn)
    store.create("a")
    store.close()
    store.close()
    for call in (lambda: store.info("a"), lambda: store.renew("a", fence=1, ttl_s=1)):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()


_APPEND_AND_LEAVE = """
import sys, uuid
from refold.journal.journal import Journal
from refold.journal.envelope import NewEvent
from refold.journal.store import ThreadState

def main():
    journal = Journal.open(sys.argv[1])
    for number in range(20):
        tenure = journal.acquire(f"t{number}")
        tenure.append([NewEvent(uuid.uuid4(), "k", 1, b"last words")], state=ThreadState.RUNNING)

main()
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_appends_in_flight_at_exit_are_recorded(pg_dsn: str, ending: str) -> None:
    """Nobody waits for them, the journal is not closed and even out of reach when the program ends."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _APPEND_AND_LEAVE + ending, pg_dsn],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1}[ending], done.stderr
    assert "Warning" not in done.stderr
    with Journal.open(pg_dsn) as journal:
        assert [journal.info(f"t{number}").head for number in range(20)] == [1] * 20


_FORK = """
import os, signal, sys, threading, uuid, warnings
warnings.simplefilter("ignore")
from refold.journal.journal import Journal
from refold.journal.errors import UsageError
from refold.journal.envelope import NewEvent
from refold.journal.store import ThreadState
journal = Journal.open(sys.argv[1])
tenure = journal.acquire("a")
tenure.append([NewEvent(uuid.uuid4(), "k", 1, b"")], state=ThreadState.RUNNING).result(30)
locked, forked = threading.Event(), threading.Event()

def be_at_work():
    with journal._writer._changed, journal.leases._lock, journal.store._lines._changed:
        locked.set()
        forked.wait(30)

threading.Thread(target=be_at_work).start()
locked.wait(30)
if os.fork() == 0:
    signal.alarm(20)
    refused = 0
    for call in (lambda: journal.info("a"),
                 lambda: tenure.append([NewEvent(uuid.uuid4(), "k", 1, b"")], state=ThreadState.RUNNING)):
        try:
            call()
        except UsageError as error:
            refused += "before a fork" in str(error)
    journal.close()
    sys.exit(refused)
forked.set()
_, status = os.wait()
tenure.append([NewEvent(uuid.uuid4(), "k", 1, b"")], state=ThreadState.RUNNING).result(30)
journal.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_journal_is_not_used_across_a_fork(pg_dsn: str) -> None:
    """
    Two processes on one connection would read each other's answers. Nor does the child, when it ends, wait for what
    threads of its parent were about.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORK, pg_dsn], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.strip() == "2", done.stderr


def test_a_transaction_that_is_lost_is_not_tried_again_once_the_journal_is_closed(pg_dsn: str) -> None:
    journal = Journal.open(pg_dsn)
    tenure = journal.acquire("a")

    def make(connection: Any) -> NewEvent:
        journal.close()
        connection.execute("select pg_terminate_backend(pg_backend_pid())")
        raise AssertionError("not reached")

    def check() -> None:
        assert not journal._closed, "tried again"

    with pytest.raises(StoreUnavailable, match="a transaction was lost"):
        tenure.transact(make, limit_s=30, check=check)


def test_two_journals_of_one_database_see_each_other(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as first, Journal.open(pg_dsn, prepare=False) as second:
        first.acquire("a").append([event(b"x")], state=ThreadState.RUNNING).result(30)

        assert second.read("a")[0].body == b"x"
        assert first.identity == second.identity
