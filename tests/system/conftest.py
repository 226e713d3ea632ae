"""Everything in this folder starts processes and kills them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from launcher import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts processes that need not import litellm first."""
    launcher = Launcher()
    yield launcher
    launcher.close()
