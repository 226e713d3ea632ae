"""A PostgreSQL of the benchmark's own, in a temporary folder, with everything that makes it durable switched on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg
from refold.journal import embedded
from refold.journal.embedded import _binaries

# A checkpoint in the middle of a measurement would charge whoever is at work for what others wrote.
_SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h", "max_connections": "200"}
_DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


class Cluster:
    """The server, and a database for each who is measured."""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="refold-bench-"))
        self.dsn = embedded.start(self.folder)
        with self._admin() as admin:
            for name, value in _SETTINGS.items():
                admin.execute(f"alter system set {name} = '{value}'")
        embedded.stop(self.folder)
        self.dsn = embedded.start(self.folder)
        self.host = psycopg.conninfo.conninfo_to_dict(self.dsn)["host"]
        self.binaries = _binaries()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        embedded.stop(self.folder, immediately=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def settings(self) -> dict[str, str]:
        """What of the server's settings decides what a commit means."""
        with self._admin() as admin:
            names = ("server_version", *_DURABLE)
            return {name: str(admin.execute(f"show {name}").fetchone()[0]) for name in names}

    def fresh(self, name: str) -> str:
        """An empty database of that name; its connection string."""
        self.drop(name)
        with self._admin() as admin:
            admin.execute(f'create database "{name}"')
        return self.dsn.replace("dbname=postgres", f"dbname={name}")

    def drop(self, name: str) -> None:
        """Drop a database, if it is there."""
        with self._admin() as admin:
            admin.execute(f'drop database if exists "{name}" with (force)')

    def url(self, name: str) -> str:
        """The database's address in the form that the peers take."""
        return f"postgresql://refold@/{name}?host={quote(str(self.host), safe='')}"

    def wal(self) -> int:
        """Bytes of WAL written so far."""
        with self._admin() as admin:
            return int(admin.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0])

    def checkpoint(self) -> None:
        """Write out what earlier measurements left behind."""
        with self._admin() as admin:
            admin.execute("checkpoint")

    def size(self, name: str) -> int:
        """Bytes of the tables of a database, with their indexes and TOAST."""
        query = (
            "select coalesce(sum(pg_total_relation_size(c.oid)), 0) from pg_class c "
            "join pg_namespace s on s.oid = c.relnamespace "
            "where c.relkind = 'r' and s.nspname not in ('pg_catalog', 'information_schema')"
        )
        with psycopg.connect(self.dsn.replace("dbname=postgres", f"dbname={name}")) as connection:
            return int(connection.execute(query).fetchone()[0])

    def _admin(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)
