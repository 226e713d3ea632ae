"""
What the crash-fuzz levels found, merged into `tests/out/fuzz.json`: one key for each level.

Each part of a level (a test) hands in its own numbers; the level's totals are made anew from all its parts.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPORT = Path(__file__).parent / "out" / "fuzz.json"


def record(
    level: str,
    part: str,
    *,
    histories: int,
    seconds: float,
    violations: Iterable[str] = (),
    marks: Iterable[str] = (),
    marks_hit: Iterable[str] = (),
    mutants_caught: Iterable[str] = (),
    mutants_missed: Iterable[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """
    Hand in what one part of a level found, in the place of what it found before.

    Args:
        level: "sim", "store" or "system".
        part: Name of the part, as a rule the test's.
        histories: How many histories were run and checked.
        seconds: How long that took.
        violations: What was wrong, in words.
        marks: Rare paths that the part is to reach.
        marks_hit: Those that it did reach.
        mutants_caught: Mutants that a check noticed.
        mutants_missed: Mutants that none noticed.
        more: Whatever else is worth keeping, as plain values.

    Returns:
        The level's totals.
    """
    hit = set(marks_hit)
    found = {
        "histories": histories,
        "seconds": round(seconds, 2),
        "violations": list(violations),
        "marks_hit": sorted(hit),
        "marks_missed": sorted(set(marks) - hit),
        "mutants_caught": sorted(mutants_caught),
        "mutants_missed": sorted(mutants_missed),
        **more,
    }
    REPORT.parent.mkdir(exist_ok=True)
    with (REPORT.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.exists() else {}
        parts: dict[str, Any] = report.get(level, {}).get("parts", {})
        parts[part] = found
        report[level] = _totals(parts)
        REPORT.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
        level_found: dict[str, Any] = report[level]
    return level_found


def _totals(parts: dict[str, Any]) -> dict[str, Any]:
    def united(name: str) -> set[str]:
        return {each for part in parts.values() for each in part[name]}

    histories = sum(part["histories"] for part in parts.values())
    seconds = sum(part["seconds"] for part in parts.values())
    return {
        "histories": histories,
        "histories_per_s": round(histories / seconds, 2) if seconds else 0.0,
        "violations": [f"{name}: {each}" for name, part in parts.items() for each in part["violations"]],
        "marks_hit": sorted(united("marks_hit")),
        "marks_missed": sorted(united("marks_missed") - united("marks_hit")),
        "mutants_caught": sorted(united("mutants_caught")),
        "mutants_missed": sorted(united("mutants_missed") - united("mutants_caught")),
        "parts": parts,
    }
