"""The databases of a test session's server, and a server that is there already in the place of one of its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from refold.journal.postgres import set_up


class Databases:
    """
    The databases of a server, reached as its superuser: each a copy of one with the schema in it.

    Args:
        prefix: What their names begin with; the fixtures that make them drop them.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._template = f"{prefix}_template"
        with self.admin() as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(self._template)))
        with self.admin(self._template) as connection:
            set_up(connection)

    def dsn(self, database: str = "postgres") -> str:
        """How to connect to *database*."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server, or do nothing when it runs."""
        raise NotImplementedError

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """An autocommit connection as the superuser."""
        return psycopg.connect(self.dsn(database), autocommit=True)

    def create_database(self, *, empty: bool = False, owner: str | None = None) -> str:
        """The name of a new database, with the schema in it unless it is to be *empty*."""
        name = f"{self._prefix}_{next(self._numbers)}"
        query = sql.SQL("create database {} template {}").format(
            sql.Identifier(name), sql.Identifier("template1" if empty else self._template)
        )
        if owner is not None:
            query += sql.SQL(" owner {}").format(sql.Identifier(owner))
        with self.admin() as connection:
            connection.execute(query)
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self.start()
        with self.admin() as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )


class GivenServer(Databases):
    """
    A server reached as its superuser at *dsn*; it is neither started nor stopped.

    Its databases get names of this process's own.
    """

    def __init__(self, dsn: str) -> None:
        self._base = dsn
        super().__init__(f"refold_test_{os.getpid()}")

    def close(self) -> None:
        """Leave the server as it was found."""
        self.drop_database(self._template)

    @property
    def home(self) -> Path:
        """Whose it is we cannot know."""
        pytest.skip("needs a server of its own")

    def dsn(self, database: str = "postgres") -> str:
        """How to connect to *database*."""
        return make_conninfo(self._base, dbname=database)

    def start(self) -> None:
        """It runs."""

    def stop(self, *, immediately: bool = False) -> None:
        """Not ours to stop."""
        pytest.skip("needs a server that it may stop")

    @property
    def socket(self) -> str:
        """Path of the socket, for proxies."""
        given = conninfo_to_dict(self._base)
        folder = str(given.get("host") or "")
        if not folder.startswith("/"):
            pytest.skip("needs a server with a socket of its own")
        return f"{folder}/.s.PGSQL.{given.get('port') or 5432}"
