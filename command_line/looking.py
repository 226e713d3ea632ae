"""Commands that show what is in the journal."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..journal.errors import RefoldError, StoreUnavailable, UsageError
from ..journal.thread_state import ThreadState
from ..replay.text import quoted, visible
from .kit import Settings, command
from .printing import hush, note, put, put_json, put_lines, put_rows, put_table, unread

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..journal.postgres import PostgresStore
    from ..replay.stats import Aspect
    from ..replay.timeline import Row

EVENTS_SHOWN = 200
THREADS_SHOWN = 50
THREADS_FOLLOWED = 1000
LOOK_S = 0.5
LOOKS_UNTIL_FEED = 20


@command("threads", "threads --attention", "threads --state failed --limit 20 --after order-17")
@click.option("--attention", is_flag=True, help="Only what needs somebody: why, and what to do.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice([s.value for s in ThreadState]), help="Only these."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=THREADS_SHOWN, show_default=True)
@click.option("--after", metavar="THREAD", help="Go on after this thread, the last of the page before.")
def threads(
    settings: Settings, attention: bool, states: Sequence[str], limit: int, after: str | None
) -> None:
    """List threads, newest first."""
    from ..replay.attention import read_page

    with settings.journal() as journal:
        wanted = [ThreadState(name) for name in states]
        page = read_page(journal, after=after, limit=limit, states=wanted, attention=attention)
    if attention or settings.json:
        for seen in page:
            put(settings, seen)
    elif page:
        put_table(("thread", "state", "seq", "written (UTC)", "standing"), [seen.cells() for seen in page])
    if not page:
        note("no such threads" if attention or states or after else "no threads yet")
    elif len(page) == limit:
        note(f"there may be more: --after {quoted(page[-1].info.thread)}")


@command("show order-17", "show order-17 --from 40 --to 60 --full", "show order-17 --last 1 --json")
@click.argument("thread")
@click.option("--from", "first", type=click.IntRange(1), help="First seq.")
@click.option("--to", "last", type=click.IntRange(1), help="Last seq.")
@click.option("--last", "count", type=click.IntRange(1), help=f"Newest events; {EVENTS_SHOWN} by default.")
@click.option("--full", is_flag=True, help="Show the bodies of events too.")
def show(
    settings: Settings, thread: str, first: int | None, last: int | None, count: int | None, full: bool
) -> None:
    """Show THREAD's events in order. Events that this refold does not know are shown as such."""
    from ..journal.reading import read_events
    from ..replay.timeline import Timeline, body_text, line, record

    if count is not None and first is not None:
        raise UsageError("--last and --from exclude each other")
    if first is not None and last is not None and first > last:
        raise UsageError(f"--from {first} is after --to {last}")
    timeline = Timeline()
    rows: list[Row] = []
    with settings.journal() as journal:
        head = journal.info(thread).head
        end = head if last is None else min(last, head)
        begin = first - 1 if first is not None else max(0, end - (count or EVENTS_SHOWN))
        if first is not None and first > head:
            note(f"{quoted(thread)} has {head} events, and no seq {first} yet")
        for event in read_events(journal, thread, after=begin, upto=end):
            if settings.json:
                put_json(record(event))
                continue
            if full:
                put_lines([line(timeline.row(event)), f"       {body_text(event)}"])
                continue
            rows.append(timeline.row(event))
            if len(rows) == EVENTS_SHOWN:
                put_rows(rows)
                rows.clear()
    put_rows(rows)
    if begin and first is None and not settings.json:
        note(f"{begin} earlier events: --last N or --from SEQ shows more")


@command("tail order-17", "tail order-17 --from 40 --json", "tail --all --json --from 7812.3.order-17")
@click.argument("thread", required=False)
@click.option("--all", "whole", is_flag=True, help="All threads instead of one.")
@click.option(
    "--from",
    "start",
    metavar="SEQ|CURSOR",
    help="First seq; with --all go on after this cursor, as --json tells it.",
)
def tail(settings: Settings, thread: str | None, whole: bool, start: str | None) -> None:
    """
    Follow THREAD, or all: the events that are there, then those that come, each once and in order.

    It ends with Ctrl-C, and when nobody reads its output any more, both with exit code 0.

    New events show within half a second, and at once with a Redis. Those of all threads come when every older
    transaction of the server that writes has ended.
    """
    from concurrent.futures import ThreadPoolExecutor

    from ..journal.postgres import PostgresStore
    from ..journal.store import Cursor
    from ..journal.tail import Tail, cursor_text, read_cursor, read_seq
    from ..replay.timeline import Timeline, line, record

    if (thread is None) is not whole:
        raise UsageError("say one of THREAD and --all")
    after: int | Cursor
    if whole:
        after = Cursor() if start is None else read_cursor(start)
    else:
        after = 0 if start is None else read_seq(start) - 1
    timelines: dict[str, Timeline] = {}

    def follow(following: Tail) -> None:
        for event in following:
            if settings.json:
                put_json({**record(event), "cursor": cursor_text(following.cursor)})
                continue
            # Of a thread that has not been heard of for long, only the names of open calls are forgotten.
            if len(timelines) > THREADS_FOLLOWED:
                timelines.clear()
            told = line(timelines.setdefault(event.thread, Timeline()).row(event))
            put_lines([f"{visible(event.thread)}  {told}" if whole else told])

    # In a thread of its own, so that Ctrl-C cannot fall into the midst of a query; it ends when the journal closes.
    with ThreadPoolExecutor(1) as beside, settings.journal() as journal:
        if isinstance(after, int) and (head := journal.info(str(thread)).head) < after:
            note(f"thread {thread!r} ends at seq {head} so far")
        with journal.tail(thread, after=after) as following:
            shown = beside.submit(follow, following)
            store = journal.store
            with contextlib.suppress(KeyboardInterrupt):
                stay(shown, store if whole and isinstance(store, PostgresStore) else None)
            following.close()
            try:
                shown.result(LOOK_S)
            except TimeoutError:
                return
            except BrokenPipeError:
                hush()
            except StoreUnavailable:
                place = following.cursor
                note(f"go on with --from {cursor_text(place + 1 if isinstance(place, int) else place)}")
                raise


def stay(shown: Future[None], feed: PostgresStore | None) -> None:
    """Until *shown* ends or nobody reads on; says meanwhile what holds *feed* back."""
    from concurrent.futures import wait

    from ..journal.checkup import check_feed

    told = False
    for look in itertools.count(1):
        if wait([shown], LOOK_S).done or unread():
            return
        if feed is not None and look % LOOKS_UNTIL_FEED == 0:
            with contextlib.suppress(RefoldError):
                check = check_feed(feed)
                if check.grade != "ok" and not told:
                    note(f"events are {check.found}: {check.remedy}")
                told = check.grade != "ok"


@command("state order-17", "state order-17 --at 12")
@click.argument("thread")
@click.option("--at", type=click.IntRange(1), metavar="SEQ", help="As of this event; by default the newest.")
def state(settings: Settings, thread: str, at: int | None) -> None:
    """Show what THREAD's events add up to: runs, open calls with their ids, usage, and the conversation."""
    from ..agent.overview import overview

    with settings.journal() as journal:
        view = overview(journal, thread, at=at)
    put(settings, view)


@command("stats", "stats --by model --by day --json", "stats order-17")
@click.argument("thread", required=False)
@click.option(
    "--by",
    "aspects",
    multiple=True,
    type=click.Choice(["agent", "model", "tool", "day"]),
    help="Tell these apart and sum up the rest; by default agent, model and tool.",
)
def stats(settings: Settings, thread: str | None, aspects: Sequence[Aspect]) -> None:
    """
    Sum up what all threads used, or THREAD: tokens, cost, failures, retries, and how long calls took.

    Each response counts once, however often its run was resumed or replayed: what a fork copied counts where it came
    from, and a thread that is here under a second name counts only what it has added. "+ ?" stands for responses whose
    tokens or cost nobody knows; days are UTC, costs as the provider's prices were known when the response came.
    """
    from ..replay.stats import read_stats

    with settings.journal() as journal:
        by = tuple(dict.fromkeys(aspects)) or ("agent", "model", "tool")
        report = read_stats(journal, by=by, thread=thread)
    put(settings, report)


@command("diff order-17 --at 12 --to 20", "diff order-17 order-17~12")
@click.argument("thread")
@click.argument("other", required=False)
@click.option("--at", type=click.IntRange(0), metavar="SEQ", help="Compare the state as of this event ...")
@click.option(
    "--to", type=click.IntRange(0), metavar="SEQ", help="... with that of this one; by default the newest."
)
def diff(settings: Settings, thread: str, other: str | None, at: int | None, to: int | None) -> None:
    """
    Show what events changed of THREAD's state, or where THREAD and OTHER first differ (exit code 1 if they do).

    Of two threads what was asked, done and answered is compared; times, keys and workers are not.
    """
    from ..agent.comparison import compare_states, compare_threads

    if (other is None) == (at is None):
        raise UsageError("say a second thread, or --at SEQ (and --to SEQ)")
    if other is not None and to is not None:
        raise UsageError("--to goes with --at")
    with settings.journal() as journal:
        if other is not None:
            found = compare_threads(journal, thread, other)
        else:
            assert at is not None
            found = compare_states(journal, thread, at, journal.info(thread).head if to is None else to)
    put(settings, found)
    if other is not None and not found.same:
        click.get_current_context().exit(1)
