"""`resolve`, `approve`, `deny`, `send` and `cancel`: answers reach exactly what they are meant for, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_kit import Refold, Scribe, documents, kinds
from msgspec import Raw
from refold.journal.journal import Journal
from refold.journal.store import ThreadState
from refold.replay import events as ev

CALL = "r1/2.1.1"


def started(run: str = "r1") -> ev.RunStarted:
    return ev.RunStarted(at=1, run=run, program="p", digest="d", input=Raw(b'"hi"'))


@pytest.fixture
def in_doubt(scribe: Scribe) -> str:
    """A thread parked on the second attempt of a call."""
    scribe.write(
        "t",
        ev.ThreadCreated(at=1, uid="u"),
        started(),
        ev.ToolStarted(at=1, call=CALL, tool="pay", args=Raw(b"{}"), key="k"),
        ev.RunResumed(at=1, run="r1", tenure=2, digest="d"),
        ev.ToolResolved(at=1, call=CALL, attempt=1, outcome="did_not_happen"),
        ev.ToolStarted(at=1, call=CALL, tool="pay", args=Raw(b"{}"), key="k", attempt=2),
        ev.RunResumed(at=1, run="r1", tenure=3, digest="d"),
        ev.RunParked(at=1, run="r1", reason="unknown", calls=[CALL]),
        state=ThreadState.PARKED,
    )
    return "t"


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--result", '{"b":1,"a":"ü"}'], {"outcome": "returned", "result": {"a": "ü", "b": 1}}),
        (["--result", "null"], {"outcome": "returned", "result": None}),
        (["--did-not-happen"], {"outcome": "did_not_happen"}),
        (
            ["--failed", "no\nmoney"],
            {"outcome": "failed", "error": {"type": "ToolError", "message": "no\nmoney"}},
        ),
        (
            ["--failed", "", "--effect", "unknown"],
            {"outcome": "failed", "error": {"type": "ToolError", "message": ""}, "effect": "unknown"},
        ),
    ],
)
def test_a_resolution_names_the_attempt_in_doubt(
    refold: Refold, journal: Journal, in_doubt: str, options: list[str], expected: dict[str, object]
) -> None:
    result = refold("resolve", in_doubt, CALL, *options, "--by", "kim")

    assert result.exit_code == 0, result.output
    assert "the next 'refold resume' or run of the thread takes it" in result.stdout
    (message,) = journal.inbox(in_doubt)
    assert message.key == f"resolution/{CALL}/2"
    assert json.loads(message.body) == {"call": CALL, "attempt": 2, "by": "kim", **expected}


def test_the_same_resolution_again_is_fine_and_another_one_is_refused(
    refold: Refold, journal: Journal, in_doubt: str
) -> None:
    assert refold("resolve", in_doubt, CALL, "--result", '"paid"', "--by", "kim").exit_code == 0

    again = refold("resolve", in_doubt, CALL, "--result", '"paid"', "--by", "sam")
    other = refold("resolve", in_doubt, CALL, "--did-not-happen")

    assert again.exit_code == 0
    assert again.stdout.startswith('already sent for r1/2.1.1: returned "paid", by kim')
    assert other.exit_code == 2
    assert 'already answered (returned "paid", by kim)' in other.stderr
    assert len(journal.inbox(in_doubt)) == 1


@pytest.mark.parametrize(
    "call, options, words",
    [
        (CALL, ["--attempt", "1"], "is in doubt in attempt 2, not 1"),
        (CALL, ["--attempt", "3"], "is in doubt in attempt 2, not 3"),
        ("r1/9", [], f"call 'r1/9' is not open; nothing was written. Open calls: {CALL} (pay: in doubt)"),
        ("r7/1", [], "call 'r7/1' is not open"),
        ("", [], "call '' is not open"),
        ("half \ud800", [], "is not open"),
    ],
)
def test_a_call_that_is_not_in_doubt_is_not_resolved(
    refold: Refold, journal: Journal, in_doubt: str, call: str, options: list[str], words: str
) -> None:
    result = refold("resolve", in_doubt, call, "--did-not-happen", *options)

    assert result.exit_code == 2
    assert words in result.stderr
    assert journal.inbox(in_doubt, consumed=True) == []


def test_a_call_that_a_live_worker_is_running_is_not_resolved(
    refold: Refold, journal: Journal, scribe: Scribe
) -> None:
    scribe.write("t", started(), ev.ToolStarted(at=1, call="r1/1", tool="pay", args=Raw(b"{}"), key="k"))
    tenure = journal.acquire("t")

    held = refold("resolve", "t", "r1/1", "--did-not-happen")
    tenure.release()
    free = refold("resolve", "t", "r1/1", "--did-not-happen")

    assert held.exit_code == 2
    assert "is being run right now by a live worker" in held.stderr
    assert free.exit_code == 0
    assert [message.key for message in journal.inbox("t")] == ["resolution/r1/1/1"]


def test_a_call_of_a_superseded_run_can_be_resolved(refold: Refold, journal: Journal, scribe: Scribe) -> None:
    scribe.write(
        "t",
        started(),
        ev.ToolStarted(at=1, call="r1/1", tool="pay", args=Raw(b"{}"), key="k"),
        ev.RunCancelled(at=1, run="r1", reason="superseded"),
        started("r2"),
        ev.RunFinished(at=1, run="r2", output=Raw(b"1")),
        state=ThreadState.FINISHED,
    )

    assert refold("resolve", "t", "r1/1", "--result", "1").exit_code == 0
    assert [message.key for message in journal.inbox("t")] == ["resolution/r1/1/1"]


def test_a_worker_that_holds_the_thread_is_said_to_take_the_answer(
    refold: Refold, journal: Journal, in_doubt: str
) -> None:
    journal.acquire(in_doubt)

    assert (
        "the worker that holds the thread takes it"
        in refold("resolve", in_doubt, CALL, "--did-not-happen").stdout
    )


def test_approvals_answer_the_call_they_name_in_any_order(
    refold: Refold, journal: Journal, tmp_path: Path
) -> None:
    """H21: two pending approvals, answered in reverse order, with a resume between the two answers."""
    assert refold("run", "bots:careful", "go", "--thread", "t", "--no-wait").exit_code == 0

    assert refold("approve", "t", "r1/2.2.1", "--by", "kim").exit_code == 0
    half = documents(refold("resume", "t", "--agent", "bots:careful", "--no-wait", "--json"))[0]
    assert half["status"] == "waiting"
    assert [call["call"] for call in half["pending"]] == ["r1/2.1.1"]
    assert (tmp_path / "effects").read_text() == "mail kim\n"

    assert refold("deny", "t", "r1/2.1.1", "--note", "never main").exit_code == 0
    done = refold("resume", "t", "--agent", "bots:careful", "--no-wait")
    assert done.stdout == "All answered.\n"
    assert (tmp_path / "effects").read_text() == "mail kim\n"
    conversation = documents(refold("state", "t", "--json"))[0]["conversation"]
    told = [message["content"] for message in conversation if message["role"] == "tool"]
    assert "denied" in told[0]
    assert "never main" in told[0]
    assert told[1] == "sent to kim"
    assert kinds(journal, "t").count("approval_given") == 2


def test_of_several_answers_to_an_approval_the_first_counts(refold: Refold, journal: Journal) -> None:
    assert refold("run", "bots:careful", "go", "--thread", "t", "--no-wait").exit_code == 0

    assert refold("approve", "t", CALL, "--by", "kim", "--note", "fine").exit_code == 0
    assert refold("approve", "t", CALL, "--by", "sam").exit_code == 0
    denied = refold("deny", "t", CALL)
    assert denied.exit_code == 2
    assert "already answered (approved, by kim)" in denied.stderr

    assert refold("resume", "t", "--agent", "bots:careful", "--no-wait").exit_code == 0
    late = refold("approve", "t", CALL)
    assert late.exit_code == 0
    assert late.stdout.startswith(f"already recorded for {CALL}: approved, by kim")
    assert refold("deny", "t", CALL).exit_code == 2
    assert kinds(journal, "t").count("approval_given") == 1


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_an_answer_that_nothing_waits_for_is_refused(
    refold: Refold, journal: Journal, in_doubt: str, scribe: Scribe, command: str
) -> None:
    scribe.write(
        "ended",
        started(),
        ev.ApprovalRequested(at=1, call="r1/1", tool="pay", args=Raw(b"{}")),
        ev.RunCancelled(at=1, run="r1", reason="superseded"),
        state=ThreadState.CANCELLED,
    )

    for thread, call, words in (
        (in_doubt, CALL, "does not wait for approval, it is in doubt"),
        (in_doubt, "r1/77", "is not open"),
        ("ended", "r1/1", "has ended"),
    ):
        result = refold(command, thread, call)
        assert result.exit_code == 2
        assert words in result.stderr
        assert journal.inbox(thread, consumed=True) == []


def test_a_signal_reaches_the_run_that_waits_for_it(refold: Refold) -> None:
    assert refold("run", "bots:waiter", "go", "--thread", "t", "--no-wait").exit_code == 0

    sent = refold("send", "t", "--signal", "go", "--value", '{"b":[1,2.5],"a":null}', "--key", "once")
    again = refold("send", "t", "--signal", "go", "--value", '{"a":null,"b":[1,2.5]}', "--key", "once")
    other = refold("send", "t", "--signal", "go", "--value", "3", "--key", "once")
    done = documents(refold("resume", "t", "--agent", "bots:waiter", "--json"))[0]

    assert (sent.exit_code, again.exit_code, other.exit_code) == (0, 0, 2)
    assert done["status"] == "finished"
    assert done["output"] == {"a": None, "b": [1, 2.5]}
    late = refold("send", "t", "--signal", "go")
    assert late.exit_code == 2
    assert "no unfinished run" in late.stderr


def test_an_input_is_queued_once_for_each_key(refold: Refold, journal: Journal) -> None:
    assert refold("run", "bots:payer", "17", "--thread", "t").exit_code == 0

    for _ in range(2):
        assert refold("send", "t", "--input", "18", "--key", "mail-1").exit_code == 0
    assert refold("send", "t", "--input", "19", "--key", "mail-1").exit_code == 2
    assert refold("send", "t", "--input", "20").exit_code == 0
    assert refold("send", "t", "--input", "20").exit_code == 0

    bodies = [json.loads(message.body) for message in journal.inbox("t")]
    assert [(body["input"], body.get("key")) for body in bodies] == [
        ("18", "mail-1"),
        ("20", None),
        ("20", None),
    ]


def test_a_cancelled_run_ends_at_the_next_resume(refold: Refold, journal: Journal) -> None:
    assert refold("run", "bots:waiter", "go", "--thread", "t", "--no-wait").exit_code == 0

    assert refold("cancel", "t", "--reason", "changed my mind").exit_code == 0
    assert refold("cancel", "t").exit_code == 0
    done = documents(refold("resume", "t", "--agent", "bots:waiter", "--json"))[0]

    assert done["status"] == "cancelled"
    assert kinds(journal, "t")[-2:] == ["cancel_requested", "run_cancelled"]
    assert refold("cancel", "t").exit_code == 2


def test_answers_are_told_in_json(refold: Refold, in_doubt: str) -> None:
    told = documents(refold("resolve", in_doubt, CALL, "--did-not-happen", "--by", "kim", "--json"))[0]

    assert told == {
        "thread": "t",
        "content": {"call": CALL, "attempt": 2, "outcome": "did_not_happen", "by": "kim"},
        "fresh": True,
        "taken": False,
        "held": False,
        "later": False,
    }
