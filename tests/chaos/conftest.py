"""Everything in this folder runs real processes on a real server, and breaks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.nursery import Nursery


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts workers that have imported everything already."""
    made = Nursery()
    yield made
    made.close()
