"""What the commands print with. Whatever is shown is made safe for a terminal, and goes on stdout or beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from ..replay.text import columns, visible, visible_json

if TYPE_CHECKING:
    from ..replay.timeline import Row
    from .kit import Settings

T = TypeVar("T")

_PIECE = 500
"""Lines that are printed at once."""


class Shown(Protocol):
    """What the rooms give for showing."""

    def record(self) -> Any:
        """A value for a JSON document."""

    def lines(self) -> Iterable[str]:
        """Safe lines for a terminal."""


def put(settings: Settings, shown: Shown) -> None:
    """A JSON document, or lines."""
    if settings.json:
        put_json(shown.record())
    else:
        lines = map(visible, shown.lines())
        # Each echo is a call of the system: a long view would take longer to print than to make.
        while piece := list(itertools.islice(lines, _PIECE)):
            click.echo("\n".join(piece))


def put_json(value: Any) -> None:
    """One JSON document on one line."""
    from msgspec.json import encode

    click.echo(visible_json(encode(value)))


def put_lines(lines: Iterable[str]) -> None:
    """Lines, each of which stays one: safe already as a rule, and made so where a room forgot."""
    for each in lines:
        click.echo(visible(each))


def put_rows(rows: Sequence[Row]) -> None:
    """A piece of a timeline."""
    from ..replay.timeline import HEADINGS, cells

    if rows:
        put_table(HEADINGS, [cells(row) for row in rows], right=("seq", "took", "size"))


def put_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Columns of safe text; only a terminal cuts the last one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    head, *lines = columns(headings, rows, right=right, width=width)
    click.secho(head, bold=True)
    put_lines(lines)


def note(text: str) -> None:
    """A line beside the output."""
    click.echo(visible(text), err=True)


def progress(results: Iterable[T], total: int) -> Iterator[T]:
    """*results* as they come, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(results, "replaying", total=total, console=Console(stderr=True), transient=True)


def unread() -> bool:
    """Whether whoever read our output has gone; a terminal or a file is never left."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return any(flags & select.POLLERR for _, flags in watch.poll(0))
    return False


def hush() -> None:
    """Nobody reads on: what Python still has to print at its end goes nowhere, without complaint."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
