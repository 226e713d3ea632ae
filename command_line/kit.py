"""What every command takes, and what becomes of its errors."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..journal.errors import RefoldError
from ..replay.text import visible
from .printing import hush, note

if TYPE_CHECKING:
    from ..journal.journal import Journal

F = TypeVar("F", bound=Callable[..., Any])

SIGNALLED = 128
"""What shells add to the number of the signal that ended a command."""
UNREAD = SIGNALLED + 13
"""The exit code of a command that ends because nobody reads on, as if by SIGPIPE, which not every system has."""
NOWHERE = logging.NullHandler()


class Settings:
    """What every command takes."""

    def __init__(self) -> None:
        self.dsn: str | None = None
        self.json = False
        self.debug = False

    def journal(self) -> Journal:
        """The journal that the command works on."""
        from ..journal.journal import Journal

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
        made = click.command(function.__name__.rstrip("_"))(common(click.pass_obj(function)))
        text = inspect.cleandoc(made.help or "")
        made.help = f"{text}\n\n\b\nExample:\n" + "\n".join(f"  refold {each}" for each in examples)
        return made

    return make
