"""
Text of events, made safe to show: control characters become visible escapes, so that what a tool returned
can neither clear a screen, nor forge a line, nor turn the reading direction.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msgspec import Raw

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # turn the reading direction
    "\u200b\u2060-\u2064\ufeff\ufff9-\ufffb"  # cannot be seen
    "\u2028\u2029"  # end a line
    "\ud800-\udfff"  # half a character
    "\U000e0000-\U000e007f"  # cannot be seen, and some readers obey them
    "]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, lines: bool = False) -> str:
    """*text* with everything that would act on a terminal as a visible escape; with *lines*, newlines stay."""

    def escape(match: re.Match[str]) -> str:
        character = match.group()
        if lines and character == "\n":
            return character
        return _SHORT.get(character) or _escaped(ord(character))

    return _UNSAFE.sub(escape, text)


def visible_json(data: bytes) -> str:
    """
    A JSON document as one line that means exactly the same and acts on no terminal.

    Raises:
        ValueError: *data* is no JSON document.
    """
    import msgspec

    try:
        msgspec.json.decode(data)
        text = msgspec.json.format(data, indent=-1).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no JSON document: {error}") from None
    # Outside of its strings a compact document holds none of these characters.
    return _UNSAFE.sub(lambda match: json.dumps(match.group())[1:-1], text)


def beginning(raw: Raw, limit: int = 160) -> str:
    """The beginning of recorded JSON, however large it is; raw text."""
    return bytes(memoryview(raw)[: 4 * limit + 4]).decode("utf-8", "ignore")


def one_line(text: str, limit: int = 160) -> str:
    """The beginning of *text*, visible and on one line."""
    shown = visible(text[: limit + 1])
    return shown if len(text) <= limit else f"{shown[:limit]}…"


def _escaped(code: int, byte_max: int = 0xFF) -> str:
    if code <= byte_max:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted(word: str) -> str:
    """*word* as bash reads it, visible even if it holds control characters."""
    if visible(word) == word:
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _UNSAFE.sub(lambda match: _escaped(ord(match.group()), byte_max=0x7F), plain) + "'"


def columns(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    width: int | None = None,
) -> list[str]:
    """
    Lines of safe text in columns, the headings first.

    Args:
        headings: One for each column.
        rows: Cells in the order of the headings.
        right: Headings of columns that are flush right.
        width: Cut the last column so that lines have this many cells, if that leaves it any; None: cut nothing.
    """
    from rich.cells import cell_len, chop_cells

    table = [headings, *rows]
    last = len(headings) - 1
    wide = [max(cell_len(row[place]) for row in table) for place in range(last)]
    room = None if width is None else width - sum(wide) - 2 * last
    lines = []
    for row in table:
        line = []
        for place, space in enumerate(wide):
            fill = " " * (space - cell_len(row[place]))
            line.append(fill + row[place] if headings[place] in right else row[place] + fill)
        end = row[last]
        if room is not None and room > 1 and cell_len(end) > room:
            end = f"{chop_cells(end, room - 1)[0]}…"
        lines.append("  ".join([*line, end]).rstrip())
    return lines


def moment(at_us: int) -> str:
    """Microseconds since the epoch as `2026-03-01 12:30:05.250`, in UTC."""
    try:
        return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (OverflowError, OSError, ValueError):
        return str(at_us)


def counted(count: int, one: str, many: str) -> str:
    """How many of something: `counted(2, "tenure", "tenures")` is "2 tenures"."""
    return f"{count} {one if count == 1 else many}"


def duration(us: int | None) -> str:
    """How long, in the unit that fits; empty for None."""
    if us is None:
        return ""
    if us < 1000:
        return f"{us} us"
    if us < 1_000_000:
        return f"{us / 1e3:.3g} ms"
    return f"{us / 1e6:.1f} s"


def size(count: int) -> str:
    """How many bytes, in the unit that fits."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"
