"""The command line in this process and in others, on a real Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Refold, Scribe
from click.testing import CliRunner, Result
from refold.cli import cli
from refold.journal.journal import Journal

TESTS = Path(__file__).parent.parent
COMMAND = [sys.executable, "-P", "-c", "from refold.cli import main; main()"]


@pytest.fixture
def refold(pg_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refold:
    """Run a command in this process, in an empty folder with `bots` to be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_DSN", pg_dsn)

    def run(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, args, catch_exceptions=False, input=input)

    return run


@pytest.fixture
def process(pg_dsn: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in a process of its own, in the same folder."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "REFOLD_DSN": pg_dsn, "PYTHONPATH": str(TESTS)}
        made = subprocess.Popen(
            [*COMMAND, *args],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(made)
        return made

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.fixture
def journal(pg_dsn: str) -> Iterator[Journal]:
    """The journal that the commands work on."""
    with Journal.open(pg_dsn) as made:
        yield made


@pytest.fixture
def scribe(journal: Journal) -> Scribe:
    """Writes into it."""
    return Scribe(journal)
