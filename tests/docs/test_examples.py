"""Every Python block of the documentation runs, page by page, each page from top to bottom."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from markdown import ROOT, blocks

NEEDS = {"mcp.md": "mcp"}
"""Extras without which a page cannot run."""

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "tutorial.md")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_the_examples_of_the_page_run(
    page: Path, tmp_path: Path, pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_DSN", pg_dsn)
    # A module of its own: tools look their annotations up in it.
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, text in blocks(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", text):
            Path(named[1]).write_text(text)
        # Errors then name the line of the page.
        code = compile("\n" * (line - 1) + text, str(page), "exec")
        exec(code, module.__dict__)


def test_links_between_pages_lead_somewhere() -> None:
    broken: list[str] = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            if "://" in target:
                continue
            file = (page.parent / name) if name else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{page.name}: {target}")

    assert broken == []


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
