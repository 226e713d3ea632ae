"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
from markdown import ROOT
from refold.cli import cli
from refold.replay import events

AGAIN = "it is out of date; run: python docs/generate.py"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


def test_the_command_line_is_described_as_it_is(made: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == made["cli_page"](), AGAIN


def test_the_kinds_are_described_as_they_are(made: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "log-format.md").read_text()

    assert page == made["log_page"](page), AGAIN
    for kind, version in events.VERSIONS.items():
        assert f"\n### {kind}\n" in page
        assert version == 1, "the page says that all kinds have version 1"


def test_help_is_set_without_leftover_indentation() -> None:
    for name, command in cli.commands.items():
        text, _, _ = (command.help or "").partition("\b")
        assert not re.search(r"^[ \t]+\S", text, re.MULTILINE), f"refold {name} --help is indented"


def test_what_the_code_says_to_type_exists() -> None:
    """A remedy that names a command or an option that is not there helps nobody."""
    said = set()
    for room in ("journal", "replay", "agent"):
        for module in (ROOT / room).glob("*.py"):
            said |= set(re.findall(r"'refold ([a-z]+)((?: --[a-z-]+)*)'", module.read_text()))

    for name, options in said:
        known = {option for parameter in cli.commands[name].params for option in parameter.opts}
        assert set(options.split()) <= known, f"refold {name}{options}"
    assert ("resume", " --release") in said
