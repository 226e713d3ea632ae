"""Commands that replay a thread, try another version on it, or branch it off."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..journal.errors import UsageError
from .files import is_file
from .kit import Settings, command
from .printing import note, progress, put, put_json, put_table
from .runs import of_agent

if TYPE_CHECKING:
    from ..journal.journal import Journal

COST_MAX = 1e9


@command(
    "replay order-17 --agent examples.support:agent",
    "replay tests/threads/*.jsonl --agent examples.support:agent --jobs 4",
    "replay --all --agent examples.support:agent",
    "replay order-17 --agent support_next:agent --live --calls 5",
    "replay order-17 --agent support_next:agent --live --stand-in 'refund=\"refunded 30\"'",
)
@click.argument("threads", nargs=-1)
@of_agent
@click.option("--all", "every", is_flag=True, help="Every thread of the journal that has a run of the agent.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes to use.")
@click.option("--live", is_flag=True, help="Where it differs, fork THREAD and go on live, within a budget.")
@click.option(
    "--calls", type=click.IntRange(0), default=20, show_default=True, help="Model calls at most, with --live."
)
@click.option("--cost", type=float, metavar="DOLLARS", help="Stop asking once this is spent, with --live.")
@click.option(
    "--allow", multiple=True, metavar="NAME", help="Let --live call this tool or step with effects."
)
@click.option(
    "--stand-in",
    "stand_ins",
    multiple=True,
    metavar="NAME=JSON|NAME=MODULE:FUNCTION",
    help="With --live: a result, or a function to call, instead of this tool or step.",
)
def replay(
    settings: Settings, threads: Sequence[str], agent: str, every: bool, jobs: int, live: bool, **trial: Any
) -> None:
    """
    Replay THREADS against the agent, offline: no model, no tool, no network. Exit code 1 if they differ.

    A name that ends in .jsonl or .jsonl.gz is an exported file, whose threads are replayed; files alone need no
    database.

    With --live it tells what another version of the agent or program would have made of THREAD: answered from the log
    while it matches, then live in a new thread, where tools and steps that are not read-only are refused unless they
    are allowed or something stands in for them.
    """
    from ..agent.loading import load, program_of
    from ..replay.report import replay_thread

    if every == bool(threads):
        raise UsageError("say which threads or files to replay, or --all")
    if not live and (trial["cost"] is not None or trial["allow"] or trial["stand_ins"]):
        raise UsageError("--cost, --allow and --stand-in go with --live; without it nothing is called")
    if live:
        try_out(settings, threads, agent, **trial)
        return
    if len(threads) != 1 or is_file(threads[0]):
        replay_many(settings, threads, agent, jobs)
        return
    program = program_of(load(agent))
    with contextlib.redirect_stdout(sys.stderr), settings.journal() as journal:
        found = replay_thread(journal, threads[0], program)
    put(settings, found)
    if found.divergence is not None:
        raise found.divergence


@command(
    "fork order-17 --at 12",
    "fork order-17 --replace '12={\"total\": 30}' --as order-17-cheaper",
)
@click.argument("thread")
@click.option(
    "--at", type=click.IntRange(1), metavar="SEQ", help="The last event both have; by default the newest."
)
@click.option("--as", "name", metavar="NEW", help="Id of the new thread; by default made of THREAD and SEQ.")
@click.option("--replace", metavar="SEQ=JSON", help="Another result, model answer, signal or input at SEQ.")
def fork(settings: Settings, thread: str, at: int | None, name: str | None, replace: str | None) -> None:
    """
    Branch THREAD off after an event, into a new thread with a future of its own. THREAD stays as it is.

    'refold resume' goes on with the new thread; with another version of the agent it takes --accept-divergence.
    """
    from ..journal import codec
    from ..replay import answers
    from ..replay.fork import fork as fork_thread

    edit: tuple[int, Any] | None = None
    if replace is not None:
        seq, equals, value = replace.partition("=")
        if not equals or not seq.strip().isdecimal():
            raise UsageError(f"--replace takes SEQ=JSON, as in 12='{{\"total\": 30}}', not {replace!r}")
        edit = int(seq), codec.decode(answers.from_json(value, "--replace"))
    with settings.journal() as journal:
        made = fork_thread(journal, thread, at=at, name=name, replace=edit)
    put(settings, made)


def replay_many(settings: Settings, threads: Sequence[str], agent: str, jobs: int) -> None:
    """Replay files and threads, all of the agent's if none are named; a row for each that does not match."""
    from ..agent.loading import load_program
    from ..journal.sources import SYSTEM
    from ..replay.offline import Source, replay_sources, sources_of_file, sources_of_journal
    from ..replay.report import HEADINGS, Tally

    sources = [
        source for name in threads for source in (sources_of_file(name) if is_file(name) else [Source(name)])
    ]
    if not threads:
        with settings.journal() as journal:
            sources = list(sources_of_journal(journal))
    tally, began_s, rows = Tally(), SYSTEM.monotonic_s(), []
    loaded = functools.partial(load_program, agent)
    opened = functools.partial(open_journal, settings.dsn)
    with contextlib.redirect_stdout(sys.stderr):
        results = replay_sources(sources, loaded, journal=opened, jobs=jobs, own=not threads)
        for found in progress(results, len(sources)):
            tally.add(found)
            if not found.skipped and (settings.json or not found.matched):
                rows.append(found)
    if settings.json:
        for found in rows:
            put_json(found.record())
    elif rows:
        put_table(HEADINGS, [found.cells() for found in rows], right=("events", "seq"))
    took_s = SYSTEM.monotonic_s() - began_s
    note(f"{tally.line()} ({tally.events / took_s if took_s else 0:.0f} events/s)")
    if not tally.sound:
        click.get_current_context().exit(1)


def try_out(
    settings: Settings,
    threads: Sequence[str],
    name: str,
    calls: int,
    cost: float | None,
    allow: Sequence[str],
    stand_ins: Sequence[str],
) -> None:
    """Tell what another agent or program would have made of a thread."""
    from ..agent.agent import run_blocking
    from ..agent.loading import load, load_stand_in
    from ..agent.what_if import what_if

    if len(threads) != 1 or is_file(threads[0]):
        raise UsageError("--live takes one thread of the journal")
    if cost is not None and not 0 <= cost < COST_MAX:
        raise UsageError(f"--cost is a number of dollars from 0 on, not {cost}")
    runnable = load(name)
    trial = functools.partial(
        what_if,
        calls_max=calls,
        cost_max_micro=None if cost is None else round(cost * 1e6),
        allow=allow,
        stand_ins=dict(map(load_stand_in, stand_ins)),
    )
    with contextlib.redirect_stdout(sys.stderr), settings.journal() as journal:
        found = run_blocking(trial(runnable, journal, threads[0]))
    put(settings, found)


def open_journal(dsn: str | None) -> Journal:
    """A journal for a process of its own."""
    from ..journal.journal import Journal

    return Journal.open(dsn)
