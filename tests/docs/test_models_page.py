"""The table of what providers do names tests that are there."""

from __future__ import annotations

import re

from markdown import ROOT


def test_every_row_of_the_table_of_providers_names_a_test() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    table = page[page.index("| provider | litellm |") :]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    suites = "\n".join(suite.read_text() for suite in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)\(", suites))

    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert len(rows) >= 15
    assert all(named)
    assert {name for names in named for name in names} <= known
