from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from refold.journal.store import Store
from store_worlds import MemoryWorld, PostgresWorld, World


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: World
    if request.param == "memory":
        made = MemoryWorld()
    else:
        dsn = request.getfixturevalue("pg_dsn")
        pooler = request.config.getoption("--refold-pooler-dsn")
        through = make_conninfo(pooler, dbname=conninfo_to_dict(dsn)["dbname"]) if pooler else None
        made = PostgresWorld(dsn, through=through)
    yield made
    made.store.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store
