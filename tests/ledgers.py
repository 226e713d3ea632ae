"""A table that transactional tools write to, beside a journal in the same database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from refold import Journal


@contextmanager
def journal_with_ledger(dsn: str) -> Iterator[Journal]:
    """An open journal, and a table `ledger` of amounts."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table ledger (amount int)")
    with Journal.open(dsn) as made:
        yield made


def ledger(dsn: str) -> list[int]:
    """The amounts that are committed, in ascending order."""
    with psycopg.connect(dsn) as connection:
        return sorted(row[0] for row in connection.execute("select amount from ledger"))
