"""Fixtures of the simulated levels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sim.spread import Processes


@pytest.fixture(scope="package")
def processes() -> Iterator[Processes]:
    """A process for each core; none is started unless a level is spread over them."""
    with Processes() as made:
        yield made
