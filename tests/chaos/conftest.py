"""Everything in this folder runs real processes on a real server, and breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.nursery import Nursery
from chaos.stage import Stage
from refold import Journal


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts workers that have imported everything already."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def staged(nursery: Nursery, pg_dsn: str, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Sets a stage for a program."""
    stages: list[Stage] = []

    def make(program: str, **order: Any) -> Stage:
        folder = tmp_path / f"stage-{len(stages)}"
        folder.mkdir()
        stages.append(Stage(nursery, folder, pg_dsn, program, **order))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture
def journal(pg_dsn: str) -> Iterator[Journal]:
    """The test's own look at the database."""
    with Journal.open(pg_dsn) as made:
        yield made
