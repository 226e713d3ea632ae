"""The command line: puts the commands of `command_line/` together, in the order one needs them in."""

from __future__ import annotations

import click

from . import __version__
from .command_line import answering, files, looking, replaying, runs, set_up
from .command_line.kit import Commands, common


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


for each in (
    *(set_up.demo, set_up.init, set_up.doctor),
    *(runs.run, runs.resume, replaying.replay, replaying.fork),
    *(looking.threads, looking.show, looking.tail, looking.state, looking.stats, looking.diff),
    *(answering.resolve, answering.approve, answering.deny, answering.send, answering.cancel),
    *(files.export, files.import_, files.verify),
):
    cli.add_command(each)

main = cli
"""Entry point of the console script."""
