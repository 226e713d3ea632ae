"""The report of the crash-fuzz levels has for each level what one looks for, and loses nothing of its parts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fuzz_report
import pytest
from fuzz_report import record

TESTS = Path(__file__).parent
KEYS = {
    "histories",
    "histories_per_s",
    "violations",
    "mutants_caught",
    "mutants_missed",
    "marks_hit",
    "marks_missed",
    "parts",
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "out" / "fuzz.json"
    monkeypatch.setattr(fuzz_report, "REPORT", path)
    return path


def test_each_level_says_what_was_played_what_broke_and_what_was_missed(report: Path) -> None:
    for level in ("sim", "store", "system"):
        record(level, "one", histories=300, seconds=2.0, marks=["rare", "rarer"], marks_hit=["rare"])
        record(level, "two", histories=100, seconds=2.0, violations=["it broke"], mutants_missed=["a guard"])

    told = json.loads(report.read_text())

    assert told.keys() == {"sim", "store", "system"}
    for level in told.values():
        assert level.keys() == KEYS
        assert (level["histories"], level["histories_per_s"]) == (400, 100.0)
        assert level["violations"] == ["two: it broke"]
        assert (level["marks_hit"], level["marks_missed"]) == (["rare"], ["rarer"])
        assert (level["mutants_caught"], level["mutants_missed"]) == ([], ["a guard"])


def test_a_part_takes_the_place_of_what_it_found_before_and_makes_up_for_what_another_missed(
    report: Path,
) -> None:
    record("sim", "one", histories=3, seconds=1.0, marks=["rare"], mutants_missed=["a guard"])
    record("sim", "two", histories=1, seconds=1.0, marks_hit=["rare"], mutants_caught=["a guard"])
    level = record("sim", "one", histories=5, seconds=2.0, marks=["rare"])

    assert (level["histories"], level["histories_per_s"]) == (6, 2.0)
    assert level["marks_missed"] == level["mutants_missed"] == []


def test_make_fuzz_runs_every_test_that_hands_in_a_report_and_all_levels_do() -> None:
    levels: set[str] = set()
    for path in TESTS.glob("*/test_*.py"):
        text = path.read_text()
        handed_in = set(re.findall(r'\brecord\(\s*"(\w+)"', text))
        if "tally.report(" in text:
            handed_in.add("sim")
        levels |= handed_in
        assert not handed_in or "pytest.mark.fuzz" in text, f"{path}: make fuzz leaves it out"

    assert levels == {"sim", "store", "system"}
