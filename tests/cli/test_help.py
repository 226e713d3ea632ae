"""What the command line says of itself, and what it costs to ask."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner
from refold.cli import cli

COMMANDS = (
    *("demo", "init", "doctor", "run", "resume", "replay", "fork"),
    *("threads", "show", "tail", "state", "stats", "diff", "resolve", "approve", "deny", "send", "cancel"),
    *("export", "import", "verify"),
)


COMMAND_MODULES = ("answering", "files", "kit", "looking", "printing", "replaying", "runs", "set_up")


def test_the_commands_are_these_in_this_order() -> None:
    assert tuple(cli.commands) == COMMANDS


HEAVY = {
    "litellm",
    "redis",
    "psycopg",
    "hypothesis",
    "pydantic",
    "msgspec",
    "rich",
    "asyncio",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_the_common_options(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])

    assert result.exit_code == 0
    assert f"Example:\n    refold {name}" in result.output
    for option in ("--dsn", "--json", "--debug"):
        assert option in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command_is_explained(name: str) -> None:
    for parameter in cli.commands[name].params:
        if parameter.param_type_name == "option" and parameter.name not in ("limit", "help"):
            assert getattr(parameter, "help", None), f"{name} --{parameter.name}"


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from refold.cli import cli\n"
        "assert CliRunner().invoke(cli, ['run', '--help']).exit_code == 0\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert not HEAVY & loaded
    # Of its own rooms only what names and shows things.
    assert {name for name in loaded if name.startswith("refold.")} == {
        *("refold.cli", "refold.command_line", *(f"refold.command_line.{name}" for name in COMMAND_MODULES)),
        *("refold.journal", "refold.journal.errors", "refold.journal.thread_state"),
        *("refold.replay", "refold.replay.errors", "refold.replay.text"),
    }


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("refold, version ")
