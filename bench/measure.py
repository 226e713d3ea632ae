"""Runs each driver in a process of its own, round after round, and keeps every figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster import Cluster
from venvs import Installed

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 900

Figures = dict[str, list[dict[str, Any]]]


class Bench:
    """The cluster, the peers' interpreters, and what has been measured: by name, one entry a round."""

    def __init__(self, cluster: Cluster, installed: Installed) -> None:
        self.cluster = cluster
        self.installed = installed
        self.figures: Figures = defaultdict(list)
        self.failures: dict[str, str] = {}

    def drive(self, driver: str, name: str, **job: Any) -> dict[str, Any] | None:
        """Run a driver once and keep its figures under *name*; None if it failed, which is kept too."""
        python = Path(sys.executable) if driver == "refold" else self.installed.pythons[driver]
        command = [str(python), str(HERE / "drivers" / f"{driver}_driver.py"), json.dumps(job)]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
            )
            measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            self._failed(name, f"not done within {TIMEOUT_S} s")
            return None
        except (json.JSONDecodeError, IndexError):
            self._failed(name, (done.stderr.strip().splitlines() or ["no output"])[-1])
            return None
        self.figures[name].append(measured)
        print(f"  {name}: {_short(measured)}", file=sys.stderr, flush=True)
        return measured

    def refold(self, task: str, name: str, *, database: str = "refold", **job: Any) -> dict[str, Any] | None:
        """One task of refold's own driver."""
        dsn = self.cluster.dsn.replace("dbname=postgres", f"dbname={database}")
        return self.drive("refold", name, task=task, dsn=dsn, **job)

    def peer(self, driver: str, label: str, turns: int, threads: int, **job: Any) -> None:
        """The loop on a peer, with the WAL and the room that it took; in a fresh database."""
        name = f"{label} n={turns} threads={threads}"
        database = f"bench_{driver}"
        self.cluster.fresh(database)
        url = self.cluster.url(database)
        if driver == "absurd":
            self._absurd_schema(url)
            job["queue"] = "q" + uuid.uuid4().hex[:8]
        self.cluster.checkpoint()
        wal = self.cluster.wal()
        measured = self.drive(driver, name, task="run", dsn=url, turns=turns, threads=threads, **job)
        if measured is not None:
            measured["wal_bytes"] = self.cluster.wal() - wal
            measured["table_bytes"] = self.cluster.size(database)
        self.cluster.drop(database)

    def _absurd_schema(self, url: str) -> None:
        tool = self.installed.pythons["absurd"].parent / "absurdctl"
        path = f"{self.cluster.binaries}{os.pathsep}{os.environ.get('PATH', '')}"
        subprocess.run(
            [str(tool), "init", "--database", url],
            env={**os.environ, "PATH": path},
            capture_output=True,
            check=True,
        )

    def _failed(self, name: str, why: str) -> None:
        self.failures[name] = why
        print(f"  {name}: FAILED: {why}", file=sys.stderr, flush=True)


def rounds(count: int) -> Iterator[int]:
    """Numbers of rounds, told as they begin."""
    for number in range(1, count + 1):
        print(f"round {number} of {count}", file=sys.stderr, flush=True)
        yield number


def _short(measured: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}={value:.4g}" for key, value in measured.items() if isinstance(value, int | float)
    )


def each_of(figures: Figures, name: str, of: Callable[[dict[str, Any]], float]) -> list[float]:
    """A figure of every round."""
    return [of(measured) for measured in figures.get(name, [])]
