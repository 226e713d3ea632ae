"""Commands that begin a run or go on with it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import click

from ..replay.errors import RunFailed
from ..replay.text import quoted
from .kit import SIGNALLED, Settings, command
from .printing import note, put_json

of_agent = click.option("--agent", required=True, metavar="MODULE:ATTRIBUTE", help="The agent of the thread.")
no_wait = click.option("--no-wait", is_flag=True, help="Return instead of waiting for people and times.")


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


def perform(settings: Settings, agent: str, thread: str, go: Callable[[Any], Any]) -> None:
    """Run or resume, telling on stderr what happens; the output goes to stdout."""
    from ..agent import overview
    from ..agent.loading import load
    from ..agent.serve import serve
    from ..replay.timeline import Timeline, line

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
