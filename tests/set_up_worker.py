"""One of several processes that set a journal up at the same moment."""

from __future__ import annotations

from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import psycopg
from refold.journal.postgres import PostgresStore


def open_journals(first: bool, rounds: int, barrier: Barrier, dsn: str, answers: Queue[str]) -> None:
    """In each round empty the database (the first process does) and open a journal in it with the others."""
    for _ in range(rounds):
        barrier.wait(60)
        if first:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("drop schema if exists refold cascade")
        barrier.wait(60)
        try:
            store = PostgresStore.open(dsn)
            store.create("a")
            store.close()
        except BaseException as error:
            answers.put(repr(error))
            barrier.abort()
            raise
        answers.put(store.identity)
