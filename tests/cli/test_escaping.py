"""H30: text of events, thread ids and tool names never drives the operator's terminal, and JSON stays exact."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from bots import HOSTILE
from cli_kit import Refold, Scribe, documents, raw_event
from msgspec import Raw
from refold.journal import codec
from refold.journal.journal import Journal
from refold.journal.store import ThreadState
from refold.replay import events as ev
from refold.replay.text import columns, quoted, visible, visible_json

THREAD = "t\x1b[2J\r\a\x9b\u202e\x7f[bold]"
TOOL = "tool\x1b[1A\a"

# What may come out besides text: newlines, and nothing else that a terminal obeys.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def thread(scribe: Scribe) -> str:
    """A thread whose every text is hostile."""
    value = Raw(codec.encode(HOSTILE))
    scribe.write(
        THREAD,
        ev.ThreadCreated(at=1, uid="u"),
        ev.RunStarted(at=1, run="r1", program=HOSTILE, digest="d", input=value),
        ev.ToolStarted(at=1, call="r1/1", tool=TOOL, args=Raw(codec.encode({"a": HOSTILE})), key="k"),
        ev.ToolReturned(at=1, call="r1/1", result=value),
        ev.ToolStarted(at=1, call="r1/2", tool=TOOL, args=Raw(b"{}"), key="k"),
        ev.ToolFailed(at=1, call="r1/2", error=ev.Failure(HOSTILE, HOSTILE), effect="unknown"),
        ev.WaitStarted(at=1, call="r1/3", name=HOSTILE),
        raw_event("kind\x1b[2J", b"\x1b[2J not json \x9b"),
        raw_event("tool_returned", HOSTILE.encode()),
    )
    return THREAD


def commands(thread: str) -> list[list[str]]:
    return [
        ["show", thread],
        ["show", thread, "--full"],
        ["state", thread, "--at", "7"],
        ["threads"],
        ["threads", "--attention"],
    ]


@pytest.mark.parametrize("place", range(5))
def test_what_goes_to_a_pipe_holds_visible_escapes_and_no_colour(
    refold: Refold, thread: str, place: int
) -> None:
    result = refold(*commands(thread)[place])

    assert result.exit_code == 0, result.output
    assert OBEYED.findall(result.output) == []
    assert "\\x1b[2J" in result.stdout
    assert r"\u202e" in result.stdout
    assert "[bold]" in result.stdout


@pytest.mark.parametrize("place", range(5))
def test_what_goes_to_a_terminal_holds_nothing_but_our_own_styles(
    pg_dsn: str, thread: str, place: int, tmp_path: Path
) -> None:
    seen = on_a_terminal(commands(thread)[place], pg_dsn, tmp_path)

    assert OBEYED.findall(STYLE.sub("", seen).replace("\r\n", "\n")) == []
    assert "\\x1b[2J" in seen
    assert {"\x1b[1m", "\x1b[0m"} >= set(STYLE.findall(seen))


@pytest.mark.parametrize("command", [["show"], ["state", "--at", "7"]])
def test_errors_about_a_hostile_thread_are_one_visible_line(refold: Refold, command: list[str]) -> None:
    result = refold(*command, THREAD)

    assert result.exit_code == 2
    assert OBEYED.findall(result.stderr) == []
    assert result.stderr.count("\n") == 1


def test_json_is_exact_and_acts_on_no_terminal(refold: Refold, thread: str) -> None:
    shown = refold("show", thread, "--json")
    events = documents(shown)

    assert OBEYED.findall(shown.stdout) == []
    assert [event["seq"] for event in events] == list(range(1, 10))
    assert events[1]["thread"] == THREAD
    assert events[1]["body"]["input"] == HOSTILE
    assert events[2]["body"]["args"] == {"a": HOSTILE}
    assert events[7]["kind"] == "kind\x1b[2J"
    assert events[7]["body"] is None
    assert documents(refold("threads", "--json"))[0]["thread"] == THREAD
    assert documents(refold("state", thread, "--at", "7", "--json"))[0]["runs"][0]["program"] == HOSTILE


def test_bodies_that_are_no_json_are_whole_in_base64(refold: Refold, thread: str) -> None:
    import base64

    event = documents(refold("show", thread, "--json", "--from", "8", "--to", "8"))[0]

    assert base64.b64decode(event["body_base64"]) == b"\x1b[2J not json \x9b"


def test_the_output_of_a_run_is_visible_and_exact_in_json(refold: Refold) -> None:
    plain = refold("run", "bots:attacked", "hi", "--thread", "t")
    exact = refold("run", "bots:attacked", "hi", "--thread", "t", "--key", "again", "--json")

    assert plain.exit_code == 0, plain.output
    assert OBEYED.findall(plain.output) == []
    assert plain.stdout == visible(HOSTILE) + "\n"
    assert exact.exit_code == 1  # the script has no third reply
    assert documents(exact)[0]["status"] == "failed"
    assert OBEYED.findall(exact.output) == []


def test_an_error_of_a_program_cannot_forge_a_line(refold: Refold) -> None:
    result = refold("run", "bots:failing", "oh\nrefold: all is well\x1b[2J", "--thread", "t")

    assert result.exit_code == 1
    assert OBEYED.findall(result.output) == []
    last = result.stderr.splitlines()[-1]
    assert last.endswith(r"failed: ValueError: oh\nrefold: all is well\x1b[2J")


@pytest.mark.parametrize("width", [None, 40])
def test_columns_never_cut_what_names_something(width: int | None) -> None:
    rows = [["1", "a-very-long-thread-id-of-somebody" * 2, "what " * 40], ["22", "漢字", "short"]]

    lines = columns(("seq", "thread", "what"), rows, right=("seq",), width=width)

    assert rows[0][1] in lines[1]
    assert lines[2].startswith(" 22  漢字")
    assert width is not None or rows[0][2].rstrip() in lines[1]


def test_a_terminal_cuts_only_the_last_column() -> None:
    lines = columns(("id", "what"), [["abc", "x" * 100]], width=20)

    assert lines[1] == f"abc  {'x' * 14}…"


def test_hints_quote_thread_ids_so_that_a_shell_reads_them_back(tmp_path: Path) -> None:
    for word in ("plain", "a b", "a'b", THREAD, "-x'\\n\u2028\U000e0041", "$(touch here)"):
        script = f"printf '%s' {quoted(word)}"
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, env={"LC_ALL": "C.UTF-8"}, cwd=tmp_path, check=True
        )
        assert done.stdout.decode() == word
        assert OBEYED.findall(quoted(word)) == []
    assert list(tmp_path.iterdir()) == []


def test_every_unsafe_character_of_a_json_text_survives_as_an_escape() -> None:
    value = "".join(
        map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2028, 0xFEFF, 0xE0041, 0x1F600, 0xE9])
    )
    for data in (
        json.dumps(value, ensure_ascii=False).encode(),
        json.dumps([{value: value}], ensure_ascii=False).encode(),
    ):
        text = visible_json(data)
        assert OBEYED.findall(text) == []
        assert json.loads(text) == json.loads(data)
    with pytest.raises(ValueError, match="no JSON"):
        visible_json(b"{")


def on_a_terminal(args: list[str], dsn: str, folder: Path) -> str:
    """What a command writes to a pseudo-terminal."""
    import sys

    master, slave = pty.openpty()
    command = [sys.executable, "-P", "-c", "from refold.cli import main; main()", *args]
    environment = {**os.environ, "REFOLD_DSN": dsn, "COLUMNS": "100", "TERM": "xterm-256color"}
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=folder)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert child.wait() == 0, seen
    return seen.decode()


RUN = "r\x1b[2J\x07\u202e"


@pytest.fixture
def forged(scribe: Scribe) -> str:
    """A thread as a hostile file could bring it: ids of runs and calls, authors and reasons drive terminals too."""
    null, call = Raw(b"null"), f"{RUN}/1\x1b[1A"
    scribe.write(
        THREAD,
        ev.ThreadCreated(at=1, uid="u"),
        ev.RunStarted(at=1, run=RUN, program=HOSTILE, digest="d", input=Raw(codec.encode(HOSTILE))),
        ev.ToolStarted(at=1, call=call, tool=TOOL, args=null, key=HOSTILE),
        ev.ToolInDoubt(at=1, call=call, attempt=1, why=HOSTILE),
        ev.ToolResolved(
            at=1,
            call=call,
            attempt=1,
            outcome="failed",
            error=ev.Failure(HOSTILE, HOSTILE),
            by=HOSTILE,
        ),
        ev.ApprovalRequested(at=1, call=f"{call}2", tool=TOOL, args=null),
        ev.ToolStarted(at=1, call=f"{call}3", tool=TOOL, args=null, key="k"),
        ev.RunParked(at=1, run=RUN, reason=HOSTILE, calls=[f"{call}3"]),
        state=ThreadState.PARKED,
    )
    return THREAD


@pytest.mark.parametrize(
    "command",
    [
        ("show", "THREAD", "--full"),
        ("state", "THREAD"),
        ("threads",),
        ("threads", "--attention"),
        ("stats", "THREAD"),
        ("stats",),
        ("fork", "THREAD", "--at", "3"),
        ("fork", "THREAD", "--as", "x\x1b[2J\u202e"),
        ("fork", "THREAD", "--as", "THREAD"),
        ("fork", "THREAD", "--replace", "8=1"),
        ("diff", "THREAD", "--at", "2"),
        ("diff", "THREAD", "--at", "99"),
        ("diff", "THREAD", "THREAD~3"),
        ("export", "THREAD", "--to", "t.jsonl"),
        ("export", "--all", "--to", "folder\x1b[2J/"),
        ("import", "t.jsonl"),
        ("import", "t.jsonl", "--as", "THREAD~"),
        ("verify", "THREAD"),
        ("verify", "t.jsonl"),
        ("replay", "THREAD", "--agent", "bots:agent"),
        ("replay", "t.jsonl", "THREAD", "--agent", "bots:agent"),
        ("replay", "THREAD", "--agent", "bots:agent", "--live"),
        ("resume", "THREAD", "--agent", "bots:agent"),
        ("run", "bots:agent", "hi", "--thread", "THREAD"),
        ("run", "bots:agent", "hi", "--thread", "THREAD", "--debug"),
        ("resolve", "THREAD", "r\x1b[2J/1", "--did-not-happen"),
        ("resolve", "THREAD", f"{RUN}/1\x1b[1A3", "--did-not-happen"),
        ("approve", "THREAD", f"{RUN}/1\x1b[1A2", "--by", HOSTILE, "--note", HOSTILE),
        ("deny", "THREAD", "r1/9\x1b[2J"),
        ("send", "THREAD", "--signal", "s\x1b[2J"),
        ("send", "THREAD", "--input", HOSTILE, "--key", "k\x1b[2J"),
        ("cancel", "THREAD", "--reason", HOSTILE),
    ],
)
def test_no_command_lets_a_foreign_text_reach_the_terminal_as_it_is(
    refold: Refold, journal: Journal, forged: str, command: tuple[str, ...]
) -> None:
    refold("fork", THREAD, "--at", "3")
    refold("export", THREAD, "--to", "t.jsonl")
    words = [word.replace("THREAD", THREAD) for word in command]

    result = refold(*words)

    assert result.output
    assert OBEYED.findall(result.output) == []
    assert result.exit_code in (0, 1, 2)
    assert "unexpected" not in result.output
