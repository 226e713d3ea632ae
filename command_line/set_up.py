"""Commands that set a journal up, look at the machine, and prove what is promised."""

from __future__ import annotations

import click

from ..journal.errors import RefoldError
from .kit import Settings, command
from .printing import note, put, put_json, put_lines, put_rows


@command("demo", "demo --model openai/gpt-4o-mini")
@click.option("--model", metavar="NAME", help="Ask this litellm model instead of a script.")
@click.option("--keep", is_flag=True, help="Keep the demo's folder and its Postgres.")
def demo(settings: Settings, model: str | None, keep: bool) -> None:
    """
    Kill an agent twice with SIGKILL, resume it, and prove that nothing was done twice.

    Needs no key, no server and no network: a refund agent runs in a worker process on an embedded Postgres.
    """
    from ..agent.demo import run_demo
    from ..replay.timeline import Timeline

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
    from ..journal import checkup

    with settings.journal() as journal:
        target = checkup.describe(journal, embedded=checkup.embedded_dsn(settings.dsn))
    put(settings, target)


@command("doctor")
def doctor(settings: Settings) -> None:
    """
    Check this machine, the server and the schema, before 'refold init' too; nothing is set up.

    Exit code 3 if the journal cannot be used, or set up.
    """
    from ..journal import checkup
    from ..journal.redis_checkup import check_redis

    checks = checkup.check_surroundings()
    checks += checkup.check_journal(settings.dsn)
    checks += check_redis()
    for check in checks:
        put(settings, check)
    if any(check.grade == "fail" for check in checks):
        click.get_current_context().exit(3)
