"""The page on crashes shows what a failing test prints, word for word."""

from __future__ import annotations

import sys
import types

import pytest
from markdown import ROOT, blocks
from refold.replay.fuzz import FAULTS

PAGE = ROOT / "docs" / "test-your-agents-crashes.md"


def test_the_screen_on_the_page_is_the_one_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("page_on_crashes")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, text in blocks(PAGE, "python")[:4]:
        exec(compile("\n" * (line - 1) + text, str(PAGE), "exec"), module.__dict__)

    ((_, screen),) = blocks(PAGE, "text")
    assert screen == f"{module.__dict__['effect'].value}\n"


def test_every_fault_is_in_the_table() -> None:
    page = PAGE.read_text()

    assert all(f"| `{fault}` | {meaning} |" in page for fault, meaning in FAULTS.items())
