"""Everything in this folder starts processes and kills them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher import Launcher


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts processes that need not import litellm first."""
    launcher = Launcher()
    yield launcher
    launcher.close()
