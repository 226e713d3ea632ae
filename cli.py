"""The command line: reads arguments, calls the library, prints. Whatever it shows is made safe for a terminal."""

from __future__ import annotations

import contextlib
import functools
import getpass
import inspect
import itertools
import logging
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from . import __version__
from .journal.errors import RefoldError, StoreUnavailable, UsageError
from .journal.thread_state import ThreadState
from .replay.errors import RunFailed
from .replay.text import columns, quoted, visible, visible_json

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .journal.journal import Journal
    from .journal.postgres import PostgresStore
    from .replay.answers import Given
    from .replay.stats import Aspect
    from .replay.timeline import Row

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

EVENTS_SHOWN = 200
THREADS_SHOWN = 50
THREADS_FOLLOWED = 1000
COST_MAX = 1e9
SIGNALLED = 128
"""What shells add to the number of the signal that ended a command."""
NOWHERE = logging.NullHandler()
LOOK_S = 0.5
LOOKS_UNTIL_FEED = 20
UNREAD = SIGNALLED + 13
"""The exit code of a command that ends because nobody reads on, as if by SIGPIPE, which not every system has."""


class Shown(Protocol):
    """What the rooms give for showing."""

    def record(self) -> Any:
        """A value for a JSON document."""

    def lines(self) -> Iterable[str]:
        """Safe lines for a terminal."""


class Settings:
    """What every command takes."""

    def __init__(self) -> None:
        self.dsn: str | None = None
        self.json = False
        self.debug = False

    def journal(self) -> Journal:
        """The journal that the command works on."""
        from .journal.journal import Journal

        # Each attempt to connect would be told as well as what became of them.
        logging.getLogger("psycopg.pool").addHandler(NOWHERE)
        return Journal.open(self.dsn)


class Commands(click.Group):
    """Every error is one line on stderr and an exit code; commands are listed as they are defined."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command named."""
        caught: Exception
        try:
            return super().invoke(ctx)
        except RefoldError as error:
            caught, text = error, visible(str(error), lines=error.of_lines)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            note("interrupted")
            raise click.exceptions.Exit(SIGNALLED + signal.SIGINT) from None
        except BrokenPipeError:
            hush()
            raise click.exceptions.Exit(UNREAD) from None
        except Exception as error:  # noqa: BLE001 - a person reads one line, whatever it is
            caught, text = (
                error,
                visible(f"{type(error).__name__}: {error} (unexpected; --debug shows where)"),
            )
        if ctx.ensure_object(Settings).debug:
            import traceback

            click.echo(visible("".join(traceback.format_exception(caught)), lines=True), err=True, nl=False)
        click.echo(f"refold: {text}", err=True)
        raise click.exceptions.Exit(getattr(caught, "exit_code", 1))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their definition, which is the order one needs them in."""
        return list(self.commands)


def common(function: F) -> F:
    """The options of every command; before or after the command's name they say the same."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        settings = ctx.find_root().ensure_object(Settings)
        if value:
            setattr(settings, str(param.name), value)

    def option(name: str, text: str, *, flag: bool = True) -> Callable[[F], F]:
        return click.option(name, help=text, is_flag=flag, expose_value=False, callback=keep)

    function = option("--debug", "Show the traceback of an error.")(function)
    function = option("--json", "Print JSON: exact, one document a line.")(function)
    return option("--dsn", "Postgres to use; by default $REFOLD_DSN, else an embedded one.", flag=False)(
        function
    )


def command(*examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command with the common options; its help ends with *examples*."""

    def make(function: Callable[..., None]) -> click.Command:
        made = cli.command(function.__name__.rstrip("_"))(common(click.pass_obj(function)))
        text = inspect.cleandoc(made.help or "")
        made.help = f"{text}\n\n\b\nExample:\n" + "\n".join(f"  refold {each}" for each in examples)
        return made

    return make


def answering(function: F) -> F:
    """The parameters of every answer to a thread."""

    def me() -> str:
        try:
            return getpass.getuser()
        except (OSError, KeyError):
            return ""

    by = click.option("--by", default=me, metavar="NAME", help="Who says so; by default your user name.")
    return click.argument("thread")(by(function))


of_agent = click.option("--agent", required=True, metavar="MODULE:ATTRIBUTE", help="The agent of the thread.")
no_wait = click.option("--no-wait", is_flag=True, help="Return instead of waiting for people and times.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="refold")
@common
def cli() -> None:
    """
    Runs agents on a journal: every model response, tool start and result is an event in Postgres.

    Exit codes: 0 fine, 1 found something (a divergence, a corrupt log, a failed run), 2 wrong use,
    3 store unavailable, 130 and 143 left unfinished on Ctrl-C and SIGTERM, 141 nobody read on.

    \b
    Example:
      refold demo
      refold run examples.support:agent "Refund order 17" --thread order-17
      refold show order-17
    """


# Set-up


@command("demo", "demo --model openai/gpt-4o-mini")
@click.option("--model", metavar="NAME", help="Ask this litellm model instead of a script.")
@click.option("--keep", is_flag=True, help="Keep the demo's folder and its Postgres.")
def demo(settings: Settings, model: str | None, keep: bool) -> None:
    """
    Kill an agent twice with SIGKILL, resume it, and prove that nothing was done twice.

    Needs no key, no server and no network: a refund agent runs in a worker process on an embedded Postgres.
    """
    from .agent.demo import run_demo
    from .replay.timeline import Timeline

    proof = run_demo(model=model, keep=keep, tell=note)
    if settings.json:
        put_json(proof.record())
    else:
        timeline = Timeline()
        put_rows([timeline.row(event) for event in proof.events])
        put_lines(proof.lines())
    if not proof.holds:
        raise RefoldError("the proof does not hold")


@command("init", "init --dsn postgresql://me@db.example.org/agents")
def init(settings: Settings) -> None:
    """Set the schema up, or see that it is there. Without a connection string the embedded Postgres is started."""
    from .journal import checkup

    with settings.journal() as journal:
        target = checkup.describe(journal, embedded=checkup.embedded_dsn(settings.dsn))
    put(settings, target)


@command("doctor")
def doctor(settings: Settings) -> None:
    """
    Check this machine, the server and the schema, before 'refold init' too; nothing is set up.

    Exit code 3 if the journal cannot be used, or set up.
    """
    from .journal import checkup
    from .journal.redis_checkup import check_redis

    checks = checkup.check_surroundings()
    checks += checkup.check_journal(settings.dsn)
    checks += check_redis()
    for check in checks:
        put(settings, check)
    if any(check.grade == "fail" for check in checks):
        click.get_current_context().exit(3)


# Runs


@command('run examples.support:agent "Refund order 17" --thread order-17')
@click.argument("agent")
@click.argument("value", metavar="INPUT")
@click.option("--thread", required=True, help="Thread to run on; made if it is not there.")
@click.option("--key", help="Names the run: the same key resumes or returns that run.")
@click.option("--supersede", is_flag=True, help="Give up an unfinished run with another input.")
@click.option(
    "--deadline", "deadline_s", type=float, metavar="SECONDS", help="Cancel a run that takes longer in all."
)
@no_wait
def run(settings: Settings, agent: str, value: str, thread: str, no_wait: bool, **options: Any) -> None:
    """
    Run AGENT (module:attribute) on INPUT, or go on with the run that this very command began.

    Simply give the command again after a crash: nothing recorded is asked for or done again. INPUT "-" reads
    stdin. Ctrl-C and SIGTERM leave in good order: nothing new begins, running tools get some seconds to come to their
    end, and what is left is told. A second one leaves at once.

    A run that waits, is parked or was cancelled is exit code 0 too; --json says which it is.
    """
    text = sys.stdin.read() if value == "-" else value
    perform(settings, agent, thread, lambda runner: runner.run(text, wait=not no_wait, **options))


@command("resume order-17 --agent examples.support:agent")
@click.argument("thread")
@of_agent
@click.option("--steal", is_flag=True, help="Take the thread from a worker that hangs.")
@click.option("--accept-divergence", is_flag=True, help="Accept changed requests, and record that.")
@click.option("--release", is_flag=True, help="Go on with a run that has killed its workers again and again.")
@no_wait
def resume(
    settings: Settings, thread: str, agent: str, no_wait: bool, accept_divergence: bool, **options: Any
) -> None:
    """Go on with THREAD's unfinished run; a run that has ended is only reported."""
    options["on_divergence"] = "accept" if accept_divergence else "stop"
    perform(settings, agent, thread, lambda runner: runner.resume(wait=not no_wait, **options))


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
    from .agent.loading import load, program_of
    from .replay.report import replay_thread

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
    from .journal import codec
    from .replay import answers
    from .replay.fork import fork as fork_thread

    edit: tuple[int, Any] | None = None
    if replace is not None:
        seq, equals, value = replace.partition("=")
        if not equals or not seq.strip().isdecimal():
            raise UsageError(f"--replace takes SEQ=JSON, as in 12='{{\"total\": 30}}', not {replace!r}")
        edit = int(seq), codec.decode(answers.from_json(value, "--replace"))
    with settings.journal() as journal:
        made = fork_thread(journal, thread, at=at, name=name, replace=edit)
    put(settings, made)


# Looking


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
    from .replay.attention import read_page

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
    from .replay.timeline import Timeline, body_text, line, record, stream

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
        for event in stream(journal, thread, after=begin, upto=end):
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

    from .journal.postgres import PostgresStore
    from .journal.store import Cursor
    from .journal.tail import Tail, cursor_text, read_cursor, read_seq
    from .replay.timeline import Timeline, line, record

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

    from .journal.checkup import check_feed

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
    from .agent.overview import overview

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

    Each response counts once, however often its run was resumed or replayed, and what a fork copied counts where it
    came from. "+ ?" stands for responses whose tokens or cost nobody knows; days are UTC, costs as the provider's
    prices were known when the response came.
    """
    from .replay.stats import read_stats

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
    from .agent.comparison import compare_states, compare_threads

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


# Answers


@command(
    "resolve order-17 r1/4.1.1 --result '{\"refunded\": true}'",
    "resolve order-17 r1/4.1.1 --did-not-happen",
    'resolve order-17 r1/4.1.1 --failed "the bank refused" --effect none',
)
@answering
@click.argument("call")
@click.option("--result", metavar="JSON", help="It happened, and this is its result.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen; it will be run again.")
@click.option("--failed", metavar="TEXT", help="It failed; the model reads why.")
@click.option("--effect", type=click.Choice(["none", "unknown", "done"]), help="What a failed call did.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt; by default the one in doubt.")
@click.option(
    "--force", is_flag=True, help="With --did-not-happen: nobody can be at it any more, run it now."
)
def resolve(settings: Settings, thread: str, call: str, result: str | None, **options: Any) -> None:
    """Say what became of CALL (an id such as r1/4.1.1, see 'refold state'), a tool call of THREAD in doubt."""
    from .replay import answers

    value = None if result is None else answers.from_json(result, "--result")
    give(settings, lambda to: answers.resolve(to, thread, call, result=value, **options))


@command('approve order-17 r1/4.1.1 --note "checked with the bank"')
@answering
@click.argument("call")
@click.option("--note", default="", help="Kept in the log.")
def approve(settings: Settings, thread: str, call: str, **options: str) -> None:
    """Allow CALL of THREAD, which waits for approval, to run. Of several answers the first counts."""
    from .replay import answers

    give(settings, lambda to: answers.approve(to, thread, call, approved=True, **options))


@command('deny order-17 r1/4.1.1 --note "over the limit"')
@answering
@click.argument("call")
@click.option("--note", default="", help="What the model is told.")
def deny(settings: Settings, thread: str, call: str, **options: str) -> None:
    """Refuse CALL of THREAD, which waits for approval; the model is told. Of several answers the first counts."""
    from .replay import answers

    give(settings, lambda to: answers.approve(to, thread, call, approved=False, **options))


@command(
    "send order-17 --signal paid --value '{\"amount\": 30}'",
    'send order-17 --input "And where is my parcel?" --key mail-8231',
)
@answering
@click.option("--signal", metavar="NAME", help="Send this signal to the unfinished run.")
@click.option("--value", metavar="JSON", help="The signal's value; null by default.")
@click.option("--input", "text", metavar="TEXT", help="Queue this input as the thread's next run.")
@click.option("--key", help="Of several messages with one key the first counts; names an input's run.")
def send(settings: Settings, thread: str, text: str | None, **options: Any) -> None:
    """Send a signal or an input to THREAD."""
    from .journal import codec
    from .replay import answers

    signal, value, by, key = (options[name] for name in ("signal", "value", "by", "key"))
    if (signal is None) == (text is None):
        raise UsageError("say one of --signal NAME and --input TEXT")
    if value is not None and signal is None:
        raise UsageError("--value goes with --signal")
    if text is not None:
        encoded = codec.encode(text, what="--input")
        give(settings, lambda to: answers.submit(to, thread, encoded, key=key, by=by))
    else:
        sent = None if value is None else answers.from_json(value, "--value")
        give(settings, lambda to: answers.signal(to, thread, signal, sent, key=key, by=by))


@command('cancel order-17 --reason "customer changed their mind"')
@answering
@click.option("--reason", default="", help="Kept in the log.")
def cancel(settings: Settings, thread: str, reason: str, by: str) -> None:
    """End THREAD's unfinished run for good: nothing new begins, calls that do not return soon are in doubt."""
    from .replay import answers

    give(settings, lambda to: answers.cancel(to, thread, reason=reason, by=by))


# Files


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
    hold together is told of, with exit code 1, and the others are written.
    """
    from .journal.export import all_threads, export_file, export_folder

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
    from .journal.export import import_files

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
    from .replay import verification

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


# Doing and printing


def is_file(name: str) -> bool:
    """Whether a name stands for an exported file."""
    return name.endswith((".jsonl", ".jsonl.gz"))


def replay_many(settings: Settings, threads: Sequence[str], agent: str, jobs: int) -> None:
    """Replay files and threads, all of the agent's if none are named; a row for each that does not match."""
    from .agent.loading import load_program
    from .journal.sources import SYSTEM
    from .replay.offline import Source, replay_sources, sources_of_file, sources_of_journal
    from .replay.report import HEADINGS, Tally

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
    from .agent.agent import run_blocking
    from .agent.loading import load, load_stand_in
    from .agent.what_if import what_if

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
    from .journal.journal import Journal

    return Journal.open(dsn)


def progress(results: Iterable[T], total: int) -> Iterator[T]:
    """*results* as they come, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(results, "replaying", total=total, console=Console(stderr=True), transient=True)


def perform(settings: Settings, agent: str, thread: str, go: Callable[[Any], Any]) -> None:
    """Run or resume, telling on stderr what happens; the output goes to stdout."""
    from .agent import overview
    from .agent.loading import load
    from .agent.serve import serve
    from .replay.timeline import Timeline, line

    timeline = Timeline()

    def tell(seq: int, body: Any) -> None:
        # A closed stderr must not stop a run.
        with contextlib.suppress(OSError):
            note(line(timeline.row_of(seq, body)))

    runnable = load(agent)
    # What tools print must not come between our own output.
    try:
        with contextlib.redirect_stdout(sys.stderr), settings.journal() as journal:
            served = serve(runnable, journal, thread, go, None if settings.json else tell)
    except RunFailed as error:
        if settings.json:
            put_json(
                {"thread": thread, "status": "failed", "error_type": error.error_type, "error": str(error)}
            )
        raise
    result = served.result
    if result is None:
        note(f"left before anything was begun on thread {quoted(thread)}")
    elif settings.json:
        put_json(overview.result_record(result))
    else:
        for told in overview.result_lines(result):
            note(told)
        if result.status == "finished":
            click.echo(overview.output_text(result.output))
    if served.asked is not None and (result is None or result.status not in ("finished", "cancelled")):
        click.get_current_context().exit(SIGNALLED + served.asked)


def give(settings: Settings, answer: Callable[[Journal], Given]) -> None:
    """Answer a thread and tell what happens next."""
    with settings.journal() as journal:
        given = answer(journal)
    put(settings, given)


def put(settings: Settings, shown: Shown) -> None:
    """A JSON document, or lines."""
    if settings.json:
        put_json(shown.record())
    else:
        put_lines(shown.lines())


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
    from .replay.timeline import HEADINGS, cells

    if rows:
        put_table(HEADINGS, [cells(row) for row in rows], right=("seq", "took", "size"))


def put_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Columns of safe text; only a terminal cuts the last one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    head, *lines = columns(headings, rows, right=right, width=width)
    click.secho(head, bold=True)
    put_lines(lines)


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


def note(text: str) -> None:
    """A line beside the output."""
    click.echo(visible(text), err=True)


main = cli
"""Entry point of the console script."""
