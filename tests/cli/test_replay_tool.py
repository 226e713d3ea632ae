"""`replay`, `fork`, `diff`, `export`, `import` and `verify`, as a person gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_kit import Refold, documents, kinds
from refold.journal.journal import Journal

AGENT = ("--agent", "recorded_agents:agent")
OTHER = ("--agent", "recorded_agents:other")


@pytest.fixture
def recorded(refold: Refold) -> Refold:
    for thread in ("a", "b"):
        assert refold("run", "recorded_agents:agent", f"Note {thread}", "--thread", thread).exit_code == 0
    return refold


def test_export_import_verify_and_replay_as_one_would(recorded: Refold, journal: Journal) -> None:
    exported = recorded("export", "a", "b", "--to", "both.jsonl.gz", "--json")
    assert [each["events"] for each in documents(exported)] == [50, 50]

    taken = recorded("import", "both.jsonl.gz")
    assert taken.stdout.splitlines() == ["a: 0 of 50 events added, open", "b: 0 of 50 events added, open"]
    assert recorded("export", "a", "--to", "a.jsonl").exit_code == 0
    copied = recorded("import", "a.jsonl", "--as", "copy")
    assert copied.stdout == "copy: 50 of 50 events added, sealed\n"
    assert journal.info("copy").head_hash == journal.info("a").head_hash
    assert "sealed" in recorded("threads").stdout
    assert recorded("show", "copy", "--last", "1").exit_code == 0

    verified = recorded("verify", "--all", "--json")
    assert [(each["thread"], each["sound"]) for each in documents(verified)] == [
        ("copy", True),
        ("b", True),
        ("a", True),
    ]
    refused = recorded("resume", "copy", *AGENT)
    assert (refused.exit_code, "is sealed" in refused.stderr) == (2, True)
    assert recorded("replay", "copy", *AGENT).exit_code == 0
    assert recorded("import", "a.jsonl", "--as", "copy", "--adopt").stdout.endswith("open\n")
    assert recorded("resume", "copy", *AGENT).exit_code == 0


def test_a_flipped_byte_is_found_by_import_verify_and_replay(recorded: Refold) -> None:
    recorded("export", "a", "--to", "a.jsonl")
    file = Path("a.jsonl")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    line = data[: len(data) // 2].count(b"\n") + 1

    for command in (("import", "a.jsonl", "--as", "x"), ("verify", "a.jsonl"), ("replay", "a.jsonl", *AGENT)):
        result = recorded(*command)
        assert result.exit_code == 1
        assert f"line {line}" in result.output
    assert recorded("show", "x").exit_code == 2


def test_replays_of_many_threads_end_with_a_summary(recorded: Refold) -> None:
    recorded("export", "a", "b", "--to", "both.jsonl")

    fine = recorded("replay", "a", "both.jsonl", *AGENT, "--jobs", "2")
    assert (fine.exit_code, fine.stdout) == (0, "")
    assert "3 threads, 150 events: 3 match, 0 diverged" in fine.stderr

    changed = recorded("replay", "both.jsonl", *OTHER)
    assert changed.exit_code == 1
    assert [line.split()[:4] for line in changed.stdout.splitlines()] == [
        ["thread", "verdict", "events", "seq"],
        ["a", "diverged", "50", "3"],
        ["b", "diverged", "50", "3"],
    ]
    assert "2 threads, 100 events: 0 match, 2 diverged" in changed.stderr
    told = documents(recorded("replay", "--all", *OTHER, "--json"))
    assert [(each["thread"], each["kind"], each["changed"]) for each in told] == [
        ("b", "request", ["instructions"]),
        ("a", "request", ["instructions"]),
    ]


def test_files_are_replayed_and_verified_without_a_database(recorded: Refold) -> None:
    recorded("export", "a", "--to", "a.jsonl")
    nowhere = ("--dsn", "host=127.0.0.1 port=1 dbname=x")
    assert recorded("replay", "a.jsonl", *AGENT, *nowhere).exit_code == 0
    assert recorded("verify", "a.jsonl", *nowhere).exit_code == 0
    assert recorded("replay", "a", *AGENT, *nowhere).exit_code == 3


def test_a_divergence_of_one_thread_is_told_in_full(recorded: Refold) -> None:
    result = recorded("replay", "a", *OTHER)

    assert result.exit_code == 1
    for words in (
        "diverged at seq 3, r1/1 (request)",
        'message 1 (system).content: "You keep notes." became "You keep short notes."',
        "changed in the definition: instructions",
    ):
        assert words in result.stderr


def test_a_fork_is_resumed_and_compared(recorded: Refold, journal: Journal) -> None:
    before = journal.info("a")
    forked = recorded("fork", "a", "--at", "20")
    assert forked.stdout.splitlines()[0] == "a~20: forked from a at seq 20"
    assert recorded("resume", "a~20", *AGENT).exit_code == 0
    assert recorded("diff", "a", "a~20").stdout == "a and a~20: nothing differs\n"

    seq = kinds(journal, "a").index("tool_returned") + 1
    edited = recorded("fork", "a", "--replace", f'{seq}={{"order": 9}}', "--as", "edited", "--json")
    assert documents(edited)[0]["replaced"] == seq
    found = recorded("diff", "a", "edited")
    assert found.exit_code == 1
    assert "tool_returned.result" in found.stdout
    (event,) = documents(recorded("show", "edited", "--from", str(seq + 1), "--to", str(seq + 1), "--json"))
    assert event["body"]["result"] == {"order": 9}
    assert journal.info("a").head_hash == before.head_hash


def test_the_state_of_two_moments_is_compared(recorded: Refold) -> None:
    told = recorded("diff", "a", "--at", "2", "--to", "5").stdout

    assert told.startswith("a at seq 2 and at seq 5: they differ\n")
    assert "model_responded" in told
    assert "message 2 (assistant): is new" in told
    assert documents(recorded("diff", "a", "--at", "5", "--to", "5", "--json"))[0]["same"] is True


@pytest.mark.parametrize(
    "command, words",
    [
        ("replay --agent recorded_agents:agent", "say which threads"),
        ("replay a --all --agent recorded_agents:agent", "say which threads"),
        ("replay none.jsonl --agent recorded_agents:agent", "cannot read"),
        ("verify", "say which threads"),
        ("verify none.jsonl", "cannot read"),
        ("import none.jsonl", "cannot read"),
        ("fork a --replace 3", "SEQ=JSON"),
        ("fork a --at 99", "seq 1 to 50"),
        ("fork nope", "no thread"),
        ("diff a", "say a second thread"),
        ("diff a b --at 3", "say a second thread"),
        ("diff a --at 99", "seq 1 to 50"),
        ("export nope --to x.jsonl", "no thread"),
        ("export --to x.jsonl", "say which threads"),
        ("export a --all --to x.jsonl", "say which threads"),
        ("replay a --agent recorded_agents:agent --stand-in note=1", "go with --live"),
        ("replay a --agent recorded_agents:agent --live --cost nan", "dollars from 0 on"),
        ("replay a b --agent recorded_agents:agent --live", "--live takes one thread"),
        (
            "replay a --agent recorded_agents:agent --live --stand-in note",
            "NAME=JSON or NAME=module:attribute",
        ),
        ("replay a --agent recorded_agents:agent --live --stand-in note=x", "is no JSON text"),
        ("replay a --agent recorded_agents:other --live --stand-in nope=1", "has no tool 'nope'"),
        (
            "replay a --agent recorded_agents:agent --live --stand-in note=recorded_agents:nope",
            "has no 'nope'",
        ),
        (
            "replay a --agent recorded_agents:agent --live --stand-in note=recorded_agents:socket",
            "is a module, no function",
        ),
    ],
)
def test_wrong_use_is_one_line(recorded: Refold, command: str, words: str) -> None:
    result = recorded(*command.split())

    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_what_if_is_told_and_its_thread_kept(recorded: Refold, journal: Journal) -> None:
    result = recorded("replay", "a", *OTHER, "--live", "--calls", "3")

    assert result.exit_code == 0
    assert result.stdout.startswith("a: another future from seq 3 on, in the new thread a~2\n")
    assert "status: finished  ->  failed" in result.stdout
    assert "3 model calls were made" in result.stdout
    assert journal.info("a~2").state == "failed"
    assert recorded("replay", "a", "b", *OTHER, "--live").exit_code == 2


@pytest.mark.parametrize(
    "stand_in, output",
    [
        ('refund="as if"', '["price of 17","as if"]'),
        ("refund=bots:pretend", '["price of 17","would refund 17"]'),
    ],
)
def test_what_if_takes_programs_and_what_stands_in_for_their_tools(
    refold: Refold, tmp_path: Path, stand_in: str, output: str
) -> None:
    assert refold("run", "bots:payer", "17", "--thread", "t").exit_code == 0
    (tmp_path / "effects").unlink()
    trial = ("replay", "t", "--agent", "bots:lister", "--live", "--json")

    refused = documents(refold(*trial))[0]
    assert (refused["refused"], refused["after"]["status"]) == (['ask_price(["17"])'], "failed")
    assert not (tmp_path / "effects").exists()
    done = documents(refold(*trial, "--allow", "ask_price", "--stand-in", stand_in))[0]
    assert (done["after"]["output"], done["refused"]) == (output, [])
    assert (tmp_path / "effects").read_text() == "asked 17\n"


def test_a_whole_journal_leaves_and_comes_back(recorded: Refold, empty_pg_dsn: str, tmp_path: Path) -> None:
    one = recorded("export", "--all", "--to", "all.jsonl.gz", "--json")
    assert [each["thread"] for each in documents(one)] == ["a", "b"]
    assert recorded("export", "--all", "--to", "backup/").exit_code == 0
    assert sorted(each.name for each in (tmp_path / "backup").iterdir()) == ["a.jsonl", "b.jsonl"]
    (tmp_path / "partly" / "a.jsonl").mkdir(parents=True)
    partly = recorded("export", "--all", "--to", "partly")
    assert (partly.exit_code, partly.stdout.splitlines()[0].split(":")[0]) == (1, "b")
    assert partly.stderr == "thread 'a' was left out: cannot write 'partly/a.jsonl': it is no file\n"
    elsewhere = ("--dsn", empty_pg_dsn)
    nothing = recorded("export", "--all", "--to", "none.jsonl", *elsewhere)
    assert (nothing.exit_code, "no threads yet" in nothing.stderr) == (2, True)

    taken = recorded("import", "backup", "all.jsonl.gz", *elsewhere)

    assert taken.stdout.splitlines() == [
        "a: 50 of 50 events added, sealed",
        "b: 50 of 50 events added, sealed",
        "a: 0 of 50 events added, sealed",
        "b: 0 of 50 events added, sealed",
    ]
    assert recorded("verify", "--all", *elsewhere).exit_code == 0
