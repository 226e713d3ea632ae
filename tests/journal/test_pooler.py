"""Behind PgBouncer in transaction mode: nothing relies on the session."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from appends import event, verify
from conftest import PostgresServer
from refold.journal.account import server_account
from refold.journal.journal import Journal
from refold.journal.store import Cursor, Outcome, Release, ThreadState

_PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(_PGBOUNCER is None, reason="PgBouncer is not installed")


@pytest.fixture
def pooled_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh empty database behind a pool of two connections."""
    assert _PGBOUNCER is not None
    name = postgres_server.create_database(empty=True)
    account = server_account(postgres_server.home / "postgres-18")
    folder = Path(tempfile.mkdtemp(prefix="refold-pooler-"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={Path(postgres_server.socket).parent} user=refold\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\n"
    )
    folder.chmod(0o755)
    process = subprocess.Popen(
        [_PGBOUNCER, str(folder / "pgbouncer.ini")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if b"process up" in line:
            break
    drained = threading.Thread(target=process.stderr.read)
    drained.start()
    yield f"host=127.0.0.1 port={port} dbname={name} user=refold sslmode=disable"
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    drained.join(20)
    process.stderr.close()
    postgres_server.drop_database(name)
    shutil.rmtree(folder)


@pytest.mark.parametrize("prepare", [False, True])
def test_ten_threads_share_two_pooled_connections(pooled_dsn: str, prepare: bool) -> None:
    """H23: pool size two, ten threads. A pooler is seen, and then nothing is prepared even if it was asked for."""
    failures: list[BaseException] = []

    def work(journal: Journal, number: int) -> None:
        try:
            tenure = journal.acquire(f"t{number}")
            for _ in range(20):
                sent = journal.send(tenure.thread, key=f"k{tenure.head}", kind="signal", body=b"").message
                result = tenure.append([event(), event()], state=ThreadState.RUNNING, consumed=[sent.id])
                assert result.result(30).outcome is Outcome.APPENDED
                result = tenure.append([event()], state=ThreadState.RUNNING)
                assert result.result(30).outcome is Outcome.APPENDED
            assert tenure.release(seen=99) is Release.RELEASED
        except BaseException as error:  # noqa: BLE001  reported below
            failures.append(error)

    # Ten journals are ten clients of the pooler, each with a writer of its own.
    journals = [Journal.open(pooled_dsn, prepare=prepare) for _ in range(10)]
    threads = [
        threading.Thread(target=work, args=(journal, number)) for number, journal in enumerate(journals)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    for number in range(10):
        events = journals[0].read(f"t{number}")
        verify(events)
        assert len(events) == 60
    assert len(journals[0].feed(Cursor()).events) == 600
    assert len(journals[0].threads(attention=True, states=list(ThreadState))) == 10
    for journal in journals:
        journal.close()


def test_no_setting_leaks_into_other_clients_sessions(pooled_dsn: str) -> None:
    settings = "select name, setting from pg_settings where source = 'session' and name <> 'client_encoding'"
    with Journal.open(pooled_dsn, prepare=False) as journal:
        journal.acquire("a").append([event()], state=ThreadState.RUNNING).result(30)
        with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as other:
            names = {name for name, _ in other.execute(settings).fetchall()}

    assert not {name for name in names if name not in ("application_name", "DateStyle", "TimeZone")}
