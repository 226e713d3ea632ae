"""Threads worth keeping: made by real runs, in memory and on Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from refold.journal.journal import Journal


@pytest.fixture
def memory() -> Iterator[Journal]:
    with Journal.memory() as journal:
        yield journal


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Iterator[Journal]:
    """A journal on either store."""
    in_memory = request.param == "memory"
    with Journal.memory() if in_memory else Journal.open(request.getfixturevalue("pg_dsn")) as made:
        yield made


@pytest.fixture
def new_journal(request: pytest.FixtureRequest) -> Iterator[Callable[[], Journal]]:
    """Makes journals on fresh databases."""
    make = request.getfixturevalue("new_pg_dsn")
    opened: list[Journal] = []

    def new() -> Journal:
        opened.append(Journal.open(make()))
        return opened[-1]

    yield new
    for each in opened:
        each.close()
