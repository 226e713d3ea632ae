from __future__ import annotations

from collections.abc import Iterator

import pytest
from refold.journal.store import Store
from store_worlds import MemoryWorld, PostgresWorld, World


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = MemoryWorld() if request.param == "memory" else PostgresWorld(request.getfixturevalue("pg_dsn"))
    yield made
    made.store.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store
