"""The documentation is run as it stands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from launcher import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts the processes of the tutorial; its model is scripted."""
    launcher = Launcher(litellm=False)
    yield launcher
    launcher.close()
