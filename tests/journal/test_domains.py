"""What the columns of the log and of its threads refuse, whoever writes."""

from __future__ import annotations

import psycopg
import pytest
from refold.journal.postgres import PostgresStore

_INSERT = (
    "insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body) "
    "values ('t', {seq}, gen_random_uuid(), {kind}, {version}, 1, 1, now(), {hash}, {body})"
)
_SOUND = {
    "seq": "1",
    "kind": "'step_recorded'",
    "version": "1::int2",
    "hash": "sha256('')",
    "body": r"'\x7b7d'::bytea",
}


@pytest.mark.parametrize(
    "column, value",
    [
        ("seq", "0"),
        ("kind", "''"),
        ("kind", "repeat('k', 65)"),
        ("version", "0::int2"),
        ("hash", r"'\x00'::bytea"),
        ("body", "convert_to(repeat('x', 16777217), 'UTF8')"),
    ],
)
def test_an_event_that_cannot_be_is_refused_even_to_the_owner(pg_dsn: str, column: str, value: str) -> None:
    PostgresStore.open(pg_dsn).close()
    with psycopg.connect(pg_dsn) as connection:
        with pytest.raises(psycopg.errors.CheckViolation), connection.transaction():
            connection.execute(_INSERT.format(**{**_SOUND, column: value}))
        connection.execute(_INSERT.format(**_SOUND))
        connection.rollback()


@pytest.mark.parametrize(
    "column, value", [("thread", "''"), ("thread", "repeat('t', 201)"), ("head", "-1"), ("state", "'odd'")]
)
def test_a_thread_that_cannot_be_is_refused_even_to_the_owner(pg_dsn: str, column: str, value: str) -> None:
    PostgresStore.open(pg_dsn).close()
    sound = {"thread": "'t'", "head": "0", "state": "'idle'"}
    insert = "insert into refold.threads (thread, head, state) values ({thread}, {head}, {state})"
    with psycopg.connect(pg_dsn) as connection:
        with pytest.raises(psycopg.errors.CheckViolation), connection.transaction():
            connection.execute(insert.format(**{**sound, column: value}))
        connection.execute(insert.format(**sound))
        connection.rollback()
