"""Shared fixtures: one PostgreSQL from the wheel for a test session, and a fresh database for each use."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from fault_proxy import FaultProxy
from refold.journal import embedded
from servers import Databases, GivenServer

# Outlives a test session that is killed, as the server does: at the end of its input it stops the server.
_WARDEN = """
import shutil, signal, sys
from pathlib import Path
from refold.journal import embedded
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.stdin.read()
home = Path(sys.argv[1])
embedded.stop(home, immediately=True)
shutil.rmtree(home)
"""


@contextmanager
def warded_home(prefix: str) -> Iterator[Path]:
    """A fresh folder for an embedded server; both go when the block ends, or when this process does."""
    home = Path(tempfile.mkdtemp(prefix=prefix))
    warden = subprocess.Popen(
        [sys.executable, "-c", _WARDEN, str(home)], stdin=subprocess.PIPE, start_new_session=True
    )
    assert warden.stdin is not None
    try:
        yield home
    finally:
        warden.stdin.close()
        assert warden.wait(60) == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refold")
    group.addoption("--long", action="store_true", help="run the fuzz levels in their long form")
    group.addoption("--refold-dsn", help="use this server, as its superuser, and start none")
    group.addoption("--refold-redis-server", help="run this program where a Redis is needed, not the wheel's")
    group.addoption(
        "--refold-pooler-dsn", help="reach the stores of the conformance suite through this pooler"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What two folders hold starts real processes, and breaks them."""
    here = Path(__file__).parent
    for item in items:
        if {here / "chaos", here / "system"} & set(item.path.parents):
            item.add_marker(pytest.mark.system)


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether a fuzz level is to take its time (`make fuzz`)."""
    return bool(request.config.getoption("--long"))


class PostgresServer(Databases):
    """A real server of the test session's own, reached through a socket."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.start()
        super().__init__("test")

    def start(self) -> None:
        """Start it, or do nothing when it runs."""
        self._base = embedded.start(self.home).replace("dbname=postgres", "").strip()

    def stop(self, *, immediately: bool = False) -> None:
        """Stop it; immediately as a crash of the machine would."""
        embedded.stop(self.home, immediately=immediately)

    def dsn(self, database: str = "postgres") -> str:
        """How to connect to *database*."""
        return f"{self._base} dbname={database}"

    @property
    def socket(self) -> str:
        """Path of the socket, for proxies."""
        return f"{psycopg.conninfo.conninfo_to_dict(self._base)['host']}/.s.PGSQL.5432"


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | GivenServer]:
    """One real PostgreSQL for the session."""
    if given := request.config.getoption("--refold-dsn"):
        server = GivenServer(given)
        yield server
        server.close()
        return
    with warded_home("refold-tests-") as home:
        yield PostgresServer(home)


@pytest.fixture
def pg_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database with the schema in it."""
    name = postgres_server.create_database()
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of such a database, for those who do not go to the server straight."""
    name = postgres_server.create_database()
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    """A way to the server on which things go wrong."""
    made = FaultProxy(postgres_server.socket)
    yield made
    made.close()


@pytest.fixture
def empty_pg_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database without the schema."""
    name = postgres_server.create_database(empty=True)
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture
def new_pg_dsn(postgres_server: PostgresServer) -> Iterator[Callable[[], str]]:
    """Makes fresh databases with the schema in them, for tests that need several."""
    names: list[str] = []

    def make() -> str:
        names.append(postgres_server.create_database())
        return postgres_server.dsn(names[-1])

    yield make
    for name in names:
        postgres_server.drop_database(name)


@pytest.fixture
def refold_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh `$REFOLD_HOME`; the embedded server that was started in it is stopped afterwards."""
    with warded_home("refold-home-") as home:
        monkeypatch.setenv("REFOLD_HOME", str(home))
        monkeypatch.delenv("REFOLD_DSN", raising=False)
        yield home
