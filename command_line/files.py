"""Commands that write threads to files, take them in, and check them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import click

from ..journal.errors import UsageError
from ..replay.text import visible
from .kit import Settings, command
from .printing import note, put, put_json, put_lines


@command(
    "export order-17 --to order-17.jsonl",
    "export order-17 order-18 --to threads.jsonl.gz",
    "export --all --to backup/",
)
@click.argument("threads", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every thread of the journal, oldest first.")
@click.option(
    "--to",
    "path",
    required=True,
    metavar="FILE|FOLDER/",
    help="Compressed if its name ends in .gz; a folder gets a file for each thread.",
)
def export(settings: Settings, threads: Sequence[str], every: bool, path: str) -> None:
    """
    Write THREADS to a file, byte for byte; see docs/export-format.md. The same threads give the same file.

    To a folder (it is there, or its name ends in "/") each thread is written to a file of its own; one that does not
    hold together, or whose file cannot be written there, is told of, with exit code 1, and the others are written.
    """
    from ..journal.export import all_threads, export_file, export_folder

    if every == bool(threads):
        raise UsageError("say which threads to export, or --all")
    into = export_folder if path.endswith("/") or (path and Path(path).is_dir()) else export_file
    sound = True
    with settings.journal() as journal:
        named = [info.thread for info in all_threads(journal)][::-1] if every else dict.fromkeys(threads)
        if not named:
            raise UsageError("there are no threads yet; nothing was written")
        for each in into(journal, named, path):
            sound = sound and not each.fault
            if settings.json:
                put_json(each)
            elif each.fault:
                note(each.fault)
            else:
                put_lines([f"{visible(each.thread)}: {each.events} events, head hash {each.head_hash[:16]}"])
    if not sound:
        click.get_current_context().exit(1)


@command(
    "import order-17.jsonl",
    "import order-17.jsonl --as copy-of-17",
    "import order-17.jsonl --adopt",
    "import backup/",
)
@click.argument("files", nargs=-1, required=True)
@click.option("--as", "name", metavar="NEW", help="Keep the thread under this id, if there is one only.")
@click.option("--adopt", is_flag=True, help="Let it be resumed here: it must not go on where it came from.")
def import_(settings: Settings, files: Sequence[str], name: str | None, adopt: bool) -> None:
    """
    Take the threads of exported FILES, or folders of them, in, with their ids and hashes.

    All files are checked first; importing again adds only what is new. An imported thread is sealed: it can be shown,
    replayed and forked, and resumed once it is adopted. Only the owner of the database schema can import.
    """
    from ..journal.export import import_files

    with settings.journal() as journal:
        for each in import_files(journal, files, name=name, adopt=adopt):
            if settings.json:
                put_json(each)
            else:
                standing = "sealed" if each.sealed else "open"
                put_lines([f"{visible(each.thread)}: {each.added} of {each.events} events added, {standing}"])


@command("verify order-17", "verify --all", "verify threads.jsonl.gz")
@click.argument("threads", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every thread of the journal.")
def verify(settings: Settings, threads: Sequence[str], every: bool) -> None:
    """
    Check that THREADS are whole: seqs, hash chain, head, fences, bodies, and what belongs together.

    A name that ends in .jsonl or .jsonl.gz is an exported file. Exit code 1, with thread and seq of the first fault
    of each, if there is one.
    """
    from ..replay import verification

    if every == bool(threads):
        raise UsageError("say which threads or files to verify, or --all")
    sound, count = True, 0
    with contextlib.ExitStack() as stack:
        verdicts = [verification.verify_export(each) for each in threads if is_file(each)]
        named = [each for each in threads if not is_file(each)]
        if named or every:
            verdicts.append(verification.verify(stack.enter_context(settings.journal()), named))
        for verdict in itertools.chain(*verdicts):
            put(settings, verdict)
            sound, count = sound and verdict.sound, count + 1
    if count != 1:
        note(f"{count} threads verified")
    if not sound:
        click.get_current_context().exit(1)


def is_file(name: str) -> bool:
    """Whether a name stands for an exported file."""
    return name.endswith((".jsonl", ".jsonl.gz"))
