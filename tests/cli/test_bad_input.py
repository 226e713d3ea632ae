"""Bad input gets one clear line, the right exit code, and leaves nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_kit import Refold, Scribe
from click.testing import CliRunner, Result
from refold.cli import cli
from refold.journal.journal import Journal
from refold.replay import events as ev

LONG = "x" * 201


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    said = [line for line in lines if line != "a greeting from the module"]
    assert len(said) == 1, result.stderr
    assert said[0].startswith("refold: ")
    for word in words:
        assert word in said[0]


@pytest.mark.parametrize(
    "dsn",
    ["not a dsn", "postgresql://user:pa@ss@host/db", "host='unclosed", "http://example.org/", "port=many"],
)
def test_a_malformed_connection_string_is_wrong_use_and_is_not_repeated(dsn: str) -> None:
    result = CliRunner().invoke(cli, ["threads", "--dsn", dsn])

    assert result.exit_code in (2, 3)
    assert "Traceback" not in result.output
    assert "pa@ss" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1
    if dsn != "port=many":
        refused(result, 2, "malformed connection string", "postgresql://")


@pytest.mark.parametrize("command", ["threads", "init", "show t", "state t", "cancel t"])
def test_an_unreachable_server_is_told_with_exit_code_3(command: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--dsn", "host=127.0.0.1 port=1 dbname=x"])

    refused(result, 3, "cannot connect to PostgreSQL at 127.0.0.1, port 1", "REFOLD_DSN")


def test_doctor_tells_an_unreachable_server_among_the_rest() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--dsn", "host=127.0.0.1 port=1 dbname=x"])

    assert result.exit_code == 3
    assert "fail server" in result.stdout
    assert "ok   python" in result.stdout
    assert result.stderr == ""


def test_doctor_sets_nothing_up(empty_pg_dsn: str) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--dsn", empty_pg_dsn])

    assert result.exit_code == 0
    assert "-> 'refold init' sets it up" in result.stdout
    assert "ok   fsync" in result.stdout
    assert "ok   round trip" in result.stdout
    assert "has no refold schema" in CliRunner().invoke(cli, ["doctor", "--dsn", empty_pg_dsn]).stdout
    assert CliRunner().invoke(cli, ["init", "--dsn", empty_pg_dsn]).exit_code == 0
    assert CliRunner().invoke(cli, ["doctor", "--dsn", empty_pg_dsn]).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        "show nope",
        "state nope",
        "replay nope --agent bots:agent",
        "resume nope --agent bots:agent",
        "resolve nope r1/2 --did-not-happen",
        "approve nope r1/2",
        "deny nope r1/2",
        "send nope --signal go",
        "send nope --input hi",
        "cancel nope",
        "threads --after nope",
    ],
)
def test_an_unknown_thread_is_wrong_use(refold: Refold, journal: Journal, command: str) -> None:
    refused(refold(*command.split()), 2, "no thread 'nope'", "refold threads")
    assert journal.threads() == []


@pytest.mark.parametrize("thread", ["", LONG, "ü" * 101, "a\0b", "half \ud800"])
@pytest.mark.parametrize(
    "command",
    [["show"], ["state"], ["run", "bots:agent", "hi", "--thread"], ["cancel"], ["threads", "--after"]],
)
def test_a_thread_id_that_cannot_be_one_is_wrong_use(
    refold: Refold, journal: Journal, command: list[str], thread: str
) -> None:
    refused(refold(*command, thread), 2, "thread id")
    assert journal.threads() == []


@pytest.mark.parametrize(
    "name, words",
    [
        ("nothing", "module:attribute"),
        (":agent", "module:attribute"),
        ("bots:", "module:attribute"),
        (".bots:agent", "module:attribute"),
        ("no_such_module:agent", "no module 'no_such_module'"),
        ("bots.inner:agent", "no module 'bots.inner'"),
        ("bots:nobody", "it offers: agent,"),
        ("bots:number", "an int, neither an Agent nor a program"),
        ("broken:agent", "ZeroDivisionError: division by zero"),
        ("unfinished:agent", "(unfinished.py, line 1); --debug"),
        ("lacking:agent", "No module named 'no_such_dependency'"),
        ("leaving:agent", "SystemExit: 3"),
        ("odd:agent", "tool 'pay'"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["run", "AGENT", "hi", "--thread", "t"],
        ["resume", "t", "--agent", "AGENT"],
        ["replay", "t", "--agent", "AGENT"],
    ],
)
def test_an_agent_that_cannot_be_had_is_wrong_use(
    refold: Refold, journal: Journal, tmp_path: Path, command: list[str], name: str, words: str
) -> None:
    (tmp_path / "broken.py").write_text("agent = 1 / 0\n")
    (tmp_path / "unfinished.py").write_text("agent = (\n")
    (tmp_path / "lacking.py").write_text("import no_such_dependency\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "odd.py").write_text(
        "import socket\nfrom refold import tool\n@tool\ndef pay(to: socket.socket) -> str:\n    'Pay.'\n    return ''\n"
    )

    refused(refold(*[name if word == "AGENT" else word for word in command]), 2, words)
    assert journal.threads() == []


def test_debug_shows_the_traceback_of_an_import_that_fails(refold: Refold, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("agent = 1 / 0\n")

    result = refold("run", "broken:agent", "hi", "--thread", "t", "--debug")

    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    "command, words",
    [
        (["resolve", "t", "r1/2"], "say one of three"),
        (["resolve", "t", "r1/2", "--did-not-happen", "--failed", "x"], "say one of three"),
        (
            ["resolve", "t", "r1/2", "--result", "1", "--effect", "none"],
            "an effect is said of a call that failed",
        ),
        (["resolve", "t", "r1/2", "--result", "yes"], '''a text goes in quotes: '"yes"''' + "'"),
        (["resolve", "t", "r1/2", "--result", "NaN"], "is no JSON"),
        (["send", "t"], "say one of"),
        (["send", "t", "--signal", "a", "--input", "b"], "say one of"),
        (["send", "t", "--input", "b", "--value", "1"], "--value goes with --signal"),
        (["send", "t", "--signal", "a", "--value", "{"], "--value is no JSON text"),
        (["send", "t", "--input", "b", "--key", ""], "a key, if one is given, is"),
        (["show", "t", "--last", "3", "--from", "1"], "exclude each other"),
        (["run", "bots:agent", "hi", "--thread", "t", "--key", ""], "a run's key is"),
        (["resume", "t", "--agent", "bots:agent"], "no run to resume"),
        (["cancel", "t"], "no unfinished run to cancel"),
        (["send", "t", "--signal", "a"], "no unfinished run"),
    ],
)
def test_arguments_that_make_no_sense_are_wrong_use(
    refold: Refold, scribe: Scribe, journal: Journal, command: list[str], words: str
) -> None:
    scribe.write("t", ev.ThreadCreated(at=1, uid="u"))

    refused(refold(*command), 2, words)
    assert journal.info("t").head == 1
    assert journal.inbox("t", consumed=True) == []


@pytest.mark.parametrize(
    "command",
    [["show"], ["threads", "--state", "sleepy"], ["threads", "--limit", "0"], ["run"], ["nonsense"]],
)
def test_arguments_that_cannot_be_read_are_wrong_use(refold: Refold, command: list[str]) -> None:
    result = refold(*command)

    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_missing_rights_are_told_with_the_statement_that_grants_them(
    refold: Refold, pg_dsn: str, journal: Journal
) -> None:
    import psycopg

    role = f"lowly_{journal.sources.new_id().hex[:12]}"
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} login")
        try:
            lowly = pg_dsn.replace("user=refold", f"user={role}")
            refused(refold("threads", "--dsn", lowly), 3, f"select refold.allow('{role}')")
            doctor = refold("doctor", "--dsn", lowly)
            assert doctor.exit_code == 3
            connection.execute("select refold.allow(%s, true)", [role])
            assert refold("threads", "--dsn", lowly).exit_code == 0
            doctor = refold("doctor", "--dsn", lowly)
            assert doctor.exit_code == 3
            assert "may not call: acquire, adopt, append" in doctor.stdout
        finally:
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")
