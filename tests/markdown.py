"""Fenced blocks of the documentation, so that tests can run them word for word."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of *language* in a page: the line where each begins, and its text."""
    text = page.read_text()
    found = re.finditer(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]
