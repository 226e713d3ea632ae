"""What a Google-style docstring says about a function and its arguments."""

from __future__ import annotations

import inspect
import re

from msgspec import Struct

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|Returns?|Yields?|Raises"
    r"|Examples?|Notes?|Warnings?|Warns|Attributes|See Also|Todo|References)( \([^)]*\))?:\s*$"
)
_ARGUMENTS = re.compile(
    r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters)\b"
)
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class Described(Struct, frozen=True):
    """The text before the first section, and the text of each argument."""

    text: str = ""
    arguments: dict[str, str] = {}


def describe(docstring: str | None) -> Described:
    """Read *docstring*; what does not look like a section is part of the text."""
    text: list[str] = []
    sections: list[tuple[str, list[str]]] = []
    for line in inspect.cleandoc(docstring).splitlines() if docstring else []:
        if _SECTION.match(line):
            sections.append((line, []))
        else:
            (sections[-1][1] if sections else text).append(line.rstrip())
    arguments: dict[str, str] = {}
    for heading, block in sections:
        if _ARGUMENTS.match(heading):
            arguments.update(_entries(block))
    return Described("\n".join(text).strip(), arguments)


def _entries(block: list[str]) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    indent: int | None = None
    current: list[str] | None = None
    for line in block:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if indent is None:
            indent = depth
        found = _ENTRY.match(line.strip()) if depth <= indent else None
        if found:
            current = entries.setdefault(found[1], [])
            current.append(found[2])
        elif current is not None:
            current.append(line)
    return {name: " ".join(" ".join(lines).split()) for name, lines in entries.items()}
