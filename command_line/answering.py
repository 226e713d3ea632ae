"""Commands that answer a thread: what became of a call, whether it may run, signals, inputs, cancelling."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..journal.errors import UsageError
from .kit import Settings, command
from .printing import put

if TYPE_CHECKING:
    from ..journal.journal import Journal
    from ..replay.answers import Given

F = TypeVar("F", bound=Callable[..., Any])


def answering(function: F) -> F:
    """The parameters of every answer to a thread."""

    def me() -> str:
        try:
            return getpass.getuser()
        except (OSError, KeyError):
            return ""

    by = click.option("--by", default=me, metavar="NAME", help="Who says so; by default your user name.")
    return click.argument("thread")(by(function))


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
    from ..replay import answers

    value = None if result is None else answers.from_json(result, "--result")
    give(settings, lambda to: answers.resolve(to, thread, call, result=value, **options))


@command('approve order-17 r1/4.1.1 --note "checked with the bank"')
@answering
@click.argument("call")
@click.option("--note", default="", help="Kept in the log.")
def approve(settings: Settings, thread: str, call: str, **options: str) -> None:
    """Allow CALL of THREAD, which waits for approval, to run. Of several answers the first counts."""
    from ..replay import answers

    give(settings, lambda to: answers.approve(to, thread, call, approved=True, **options))


@command('deny order-17 r1/4.1.1 --note "over the limit"')
@answering
@click.argument("call")
@click.option("--note", default="", help="What the model is told.")
def deny(settings: Settings, thread: str, call: str, **options: str) -> None:
    """Refuse CALL of THREAD, which waits for approval; the model is told. Of several answers the first counts."""
    from ..replay import answers

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
    from ..journal import codec
    from ..replay import answers

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
    from ..replay import answers

    give(settings, lambda to: answers.cancel(to, thread, reason=reason, by=by))


def give(settings: Settings, answer: Callable[[Journal], Given]) -> None:
    """Answer a thread and tell what happens next."""
    with settings.journal() as journal:
        given = answer(journal)
    put(settings, given)
