"""A server that is there already, in the place of the one that a test session starts for itself."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from refold.journal.postgres import set_up


class GivenServer:
    """
    A server reached as its superuser at *dsn*; it is neither started nor stopped.

    Databases get names of this process's own, and are dropped by the fixtures that made them.
    """

    def __init__(self, dsn: str) -> None:
        self._base = dsn
        self._prefix = f"refold_test_{os.getpid()}"
        self._numbers = itertools.count(1)
        self._template = f"{self._prefix}_template"
        with self.admin() as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(self._template)))
        with self.admin(self._template) as connection:
            set_up(connection)

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
        with self.admin() as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )
