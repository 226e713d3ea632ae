"""`run`, `resume`, `init`, `doctor` and the demo, in processes of their own where that is what counts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_kit import Refold, documents, kinds
from click.testing import CliRunner
from openai_server import OpenAIServer
from refold.cli import cli
from refold.journal.journal import Journal

COMMAND = [sys.executable, "-P", "-c", "from refold.cli import main; main()"]
Start = Callable[..., "subprocess.Popen[str]"]


def test_a_run_prints_its_output_alone_on_stdout(process: Start) -> None:
    """What a module or a tool prints goes to stderr."""
    run = process("run", "bots:agent", "hi", "--thread", "t")
    out, err = run.communicate(timeout=60)

    assert (run.returncode, out) == (0, "It is\ndone.\n")
    assert "a greeting from the module" in err
    assert "a line from the tool" in err
    assert "tool_returned  r1/2.1.1  refund" in err
    assert "run r1 of thread t is finished" in err


def test_a_run_in_json_is_one_document(process: Start) -> None:
    out, err = process("run", "bots:agent", "hi", "--thread", "t", "--json").communicate(timeout=60)

    done = json.loads(out)
    assert (done["thread"], done["run"], done["status"], done["output"]) == (
        "t",
        "r1",
        "finished",
        "It is\ndone.",
    )
    assert done["usage"]["responses"] == 2
    assert "tool_returned" not in err


def test_the_same_command_again_goes_on_after_a_kill(
    process: Start, refold: Refold, tmp_path: Path, journal: Journal
) -> None:
    """A tool that may not be repeated is in doubt: the run parks, a person decides, the same command goes on."""
    (tmp_path / "die").touch()
    killed = process("run", "bots:agent", "hi", "--thread", "t")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (tmp_path / "die").unlink()

    parked = refold("run", "bots:agent", "hi", "--thread", "t", "--json")
    assert parked.exit_code == 0, parked.output
    assert documents(parked)[0]["status"] == "parked"
    assert documents(parked)[0]["pending"][0]["call"] == "r1/2.1.1"
    assert journal.info("t").state == "parked"
    assert refold("resolve", "t", "r1/2.1.1", "--result", '"refunded 17"').exit_code == 0
    done = refold("run", "bots:agent", "hi", "--thread", "t")

    assert done.stdout == "It is\ndone.\n"
    assert (tmp_path / "effects").read_text() == "17\n"
    assert kinds(journal, "t").count("model_responded") == 2
    assert refold("replay", "t", "--agent", "bots:agent").exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_waiting_run_leaves_at_once_when_it_is_asked_to(
    process: Start, journal: Journal, number: signal.Signals
) -> None:
    waiting = process("run", "bots:waiter", "go", "--thread", "t")
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if "run_released" in line:
            break

    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=30)

    assert waiting.returncode == 128 + number, err
    assert out == ""
    assert "Traceback" not in err
    assert "run r1 of thread t is " in err
    assert "r1/1  waits for a signal" in err
    assert (journal.info("t").state, journal.info("t").holder) == ("waiting", None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_records_what_its_tool_does_before_it_leaves(
    process: Start, refold: Refold, journal: Journal, tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "go")
    running = process("run", "bots:slow", "hi", "--thread", "t")
    (tmp_path / "begun").read_text()
    running.send_signal(number)
    assert running.stderr is not None
    for line in running.stderr:
        if "run_released" in line:
            break
    (tmp_path / "go").write_text("go")
    _, err = running.communicate(timeout=60)

    assert running.returncode == 128 + number, err
    assert f"run r1 of thread t is released: {number.name}" in err
    assert "had not come to its end" not in err
    assert journal.info("t").holder is None
    assert "tool_returned" in kinds(journal, "t")
    done = refold("resume", "t", "--agent", "bots:slow")
    assert done.stdout == "Done slowly.\n"
    assert kinds(journal, "t").count("tool_started") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_twice_leaves_at_once_and_says_what_it_left(
    process: Start, refold: Refold, journal: Journal, tmp_path: Path, number: signal.Signals
) -> None:
    """The tool cannot be stopped and is in doubt from now on: nobody must read that nothing was under way."""
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "go")
    running = process("run", "bots:slow", "hi", "--thread", "t", "--json")
    (tmp_path / "begun").read_text()
    running.send_signal(number)
    for _ in range(2000):
        if kinds(journal, "t")[-1] == "run_released":
            break
    running.send_signal(number)
    out, err = running.communicate(timeout=60)

    assert running.returncode == 128 + number, err
    left = json.loads(out)
    assert (left["run"], left["status"], left["reason"]) == ("r1", "released", number.name)
    assert [(each["call"], each["status"], each["name"]) for each in left["pending"]] == [
        ("r1/2.1.1", "started", "wait_here")
    ]
    assert journal.info("t").holder is None
    (later,) = documents(refold("resume", "t", "--agent", "bots:slow", "--json", "--no-wait"))
    assert [each["status"] for each in later["pending"]] == ["in doubt"]


def test_a_command_that_is_interrupted_has_found_nothing(process: Start, tmp_path: Path) -> None:
    """Exit code 1 would say that a replay differs."""
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    module = "from pathlib import Path\nPath('begun').write_text('x')\nPath('go').read_text()\n"
    (tmp_path / "endless.py").write_text(module)
    replaying = process("replay", "t", "--agent", "endless:agent")
    (tmp_path / "begun").read_text()
    replaying.send_signal(signal.SIGINT)
    _, err = replaying.communicate(timeout=60)

    assert (replaying.returncode, err) == (130, "interrupted\n")


def test_an_unfinished_run_with_another_input_is_refused_and_can_be_superseded(refold: Refold) -> None:
    assert refold("run", "bots:waiter", "go", "--thread", "t", "--no-wait").exit_code == 0

    refused = refold("run", "bots:payer", "17", "--thread", "t")
    taken = refold("run", "bots:payer", "17", "--thread", "t", "--supersede", "--json")

    assert refused.exit_code == 1
    assert "holds the unfinished run 'r1'" in refused.stderr
    assert documents(taken)[0]["output"] == "refunded 17"
    assert "run r1 of waiter: cancelled: superseded" in refold("state", "t").stdout


def test_a_thread_held_by_a_live_worker_is_busy_and_can_be_stolen(refold: Refold, journal: Journal) -> None:
    assert refold("run", "bots:waiter", "go", "--thread", "t", "--no-wait").exit_code == 0
    journal.acquire("t")

    busy = refold("resume", "t", "--agent", "bots:waiter", "--no-wait")
    stolen = refold("resume", "t", "--agent", "bots:waiter", "--no-wait", "--steal")

    assert busy.exit_code == 1
    assert "held by a live worker" in busy.stderr
    assert stolen.exit_code == 0


def test_one_key_is_one_run(refold: Refold, tmp_path: Path) -> None:
    for _ in range(2):
        assert (
            refold("run", "bots:payer", "17", "--thread", "t", "--key", "order-17").stdout == "refunded 17\n"
        )
    assert refold("run", "bots:payer", "18", "--thread", "t", "--key", "order-17").exit_code == 1
    assert (tmp_path / "effects").read_text() == "17\n"


def test_an_input_can_come_from_stdin(refold: Refold) -> None:
    assert refold("run", "bots:payer", "-", "--thread", "t", input="17").stdout == "refunded 17\n"


def test_a_failed_run_has_exit_code_1_and_its_error(refold: Refold) -> None:
    failed = refold("run", "bots:failing", "no", "--thread", "t")
    told = refold("resume", "t", "--agent", "bots:failing", "--json")

    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[-1] == "refold: thread 't': run 'r1' failed: ValueError: no"
    assert told.exit_code == 1
    assert documents(told)[0] == {
        "thread": "t",
        "status": "failed",
        "error_type": "ValueError",
        "error": "thread 't': run 'r1' failed: ValueError: no",
    }


def test_a_failure_that_a_key_keeps_says_so(refold: Refold) -> None:
    """The same command would return the same failure for ever, whatever has been mended since."""
    for _ in range(2):
        failed = refold("run", "bots:failing", "no", "--thread", "t", "--key", "mail-1")
        assert failed.stderr.splitlines()[-1] == (
            "refold: thread 't': run 'r1' failed (key 'mail-1' stays with it; another key begins a new run): "
            "ValueError: no"
        )


def test_another_agent_cannot_resume_a_thread(refold: Refold) -> None:
    assert refold("run", "bots:waiter", "go", "--thread", "t", "--no-wait").exit_code == 0

    result = refold("resume", "t", "--agent", "bots:payer")

    assert result.exit_code == 2
    assert "belongs to program 'waiter'" in result.stderr


def test_a_changed_prompt_stops_a_resume_until_it_is_accepted(refold: Refold, journal: Journal) -> None:
    assert refold("run", "bots:careful", "go", "--thread", "t", "--no-wait").exit_code == 0
    for call in ("r1/2.1.1", "r1/2.2.1"):
        assert refold("deny", "t", call).exit_code == 0
    head = journal.info("t").head

    refused = refold("resume", "t", "--agent", "bots:reworded")
    assert refused.exit_code == 1
    assert "diverged at seq 3" in refused.stderr
    assert journal.info("t").head == head
    accepted = refold("resume", "t", "--agent", "bots:reworded", "--accept-divergence")

    assert accepted.exit_code == 0, accepted.output
    assert accepted.stdout == "All answered.\n"
    assert "divergence_accepted" in kinds(journal, "t")
    assert refold("replay", "t", "--agent", "bots:reworded").exit_code == 0


def test_init_is_safe_to_repeat_and_doctor_finds_nothing_wrong(empty_pg_dsn: str) -> None:
    for _ in range(2):
        result = CliRunner().invoke(cli, ["init", "--dsn", empty_pg_dsn])
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("The journal is ready: PostgreSQL 18")

    doctor = CliRunner().invoke(cli, ["doctor", "--dsn", empty_pg_dsn, "--json"])
    checks = {check["name"]: check for check in documents(doctor)}
    assert doctor.exit_code == 0
    assert {name for name, check in checks.items() if check["grade"] != "ok" and "extra" not in name} == set()
    assert {
        "python",
        "server",
        "fsync",
        "synchronous_commit",
        "writable",
        "schema",
        "rights",
        "round trip",
        "clock",
    } <= set(checks)


def test_doctor_before_init_makes_nothing_and_says_how_to_go_on(refold_home: Path) -> None:
    before = CliRunner().invoke(cli, ["doctor", "--json"])
    found = {check["name"]: check for check in documents(before)}

    assert before.exit_code == 0, before.output
    assert found["server"]["grade"] == "warn"
    assert str(refold_home) in found["server"]["found"]
    assert "'refold init' makes one" in found["server"]["remedy"]
    assert list(refold_home.iterdir()) == []
    assert CliRunner().invoke(cli, ["init"]).exit_code == 0
    after = CliRunner().invoke(cli, ["doctor", "--json"])
    assert after.exit_code == 0
    assert {check["name"]: check["grade"] for check in documents(after)}["schema"] == "ok"


def test_init_does_not_repeat_a_password(pg_dsn: str) -> None:
    result = CliRunner().invoke(cli, ["init", "--dsn", f"{pg_dsn} password=geheim", "--json"])

    assert result.exit_code == 0
    assert "geheim" not in result.output


def test_without_a_connection_string_init_starts_the_embedded_server(refold_home: Path) -> None:
    result = CliRunner().invoke(cli, ["init"])
    told = documents(CliRunner().invoke(cli, ["init", "--json"]))[0]

    assert result.exit_code == 0, result.output
    assert told["embedded"] in result.stdout
    assert CliRunner().invoke(cli, ["threads", "--dsn", told["embedded"]]).exit_code == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another account can be let into: the server of root runs as somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="refold-tests-"))
    yield folder
    shutil.rmtree(folder)


def test_the_demo_proves_what_it_says_and_leaves_nothing_in_the_journal_of_the_user(
    open_folder: Path, refold_home: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    done = subprocess.run(
        [*COMMAND, "demo", "--json"],
        check=False,
        cwd=open_folder,
        env={**environment, "TMPDIR": str(open_folder), "REFOLD_HOME": str(refold_home)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout)
    assert proof["holds"]
    assert all(claim["holds"] for claim in proof["claims"])
    assert done.stderr.count("killed with SIGKILL") == 2
    told = [event["kind"] for event in proof["events"]]
    assert (told.count("run_resumed"), told[-1]) == (2, "run_finished")
    assert list(open_folder.iterdir()) == list(refold_home.iterdir()) == []


@pytest.mark.slow
def test_the_demo_proves_it_with_a_live_model_too(open_folder: Path) -> None:
    """Through litellm and HTTP, to a server that answers as a model would."""
    replies = [
        {"calls": [{"name": "lookup_order", "arguments": {"order": "1017"}}]},
        {"calls": [{"name": "refund", "arguments": {"order": "1017", "cents": 3490}}]},
        {"calls": [{"name": "send_email", "arguments": {"to": "kim", "subject": "s", "text": "t"}}]},
        {"text": "Refunded."},
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    with OpenAIServer({"replies": replies}) as server:
        environment |= {"OPENAI_API_KEY": "sk-0123456789", "TMPDIR": str(open_folder)}
        environment |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_BASE": server.base_url}
        done = subprocess.run(
            [*COMMAND, "demo", "--json", "--model", "openai/gpt-4o-mini"],
            check=False,
            cwd=open_folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
        asked = len(server.requests)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holds"]
    assert asked == 4
