"""`show`, `state`, `threads` and `replay`: what a person sees of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_kit import Refold, Scribe, documents, raw_event
from msgspec import Raw
from refold.journal.envelope import Event
from refold.journal.journal import Journal
from refold.journal.store import ThreadState
from refold.replay import answers
from refold.replay import events as ev
from refold.replay.requests import RequestDelta
from refold.replay.timeline import Timeline, summary


def started(run: str = "r1", at: int = 1) -> ev.RunStarted:
    return ev.RunStarted(at=at, run=run, program="p", digest="d", input=Raw(b'"hi"'))


def thread_with_calls(scribe: Scribe, thread: str, count: int) -> None:
    """A thread whose events all bear one time."""
    scribe.write(thread, ev.ThreadCreated(at=7, uid="u"), started(at=7))
    for first in range(0, count, 500):
        pieces: list[ev.EventBody] = []
        for number in range(first, min(first + 500, count)):
            args = Raw(f'{{"n":{number}}}'.encode())
            pieces.append(
                ev.StepRecorded(at=7, call=f"r1/{number}", name="step", args=args, result=Raw(b"1"))
            )
        scribe.write(thread, *pieces)


def seqs(text: str) -> list[int]:
    return [int(line.split()[0]) for line in text.splitlines()[1:]]


def test_events_of_one_moment_are_shown_in_the_order_of_their_seq(refold: Refold, scribe: Scribe) -> None:
    """H27: fifty events in one append share one time."""
    thread_with_calls(scribe, "t", 50)

    assert seqs(refold("show", "t").stdout) == list(range(1, 53))
    assert [event["seq"] for event in documents(refold("show", "t", "--json"))] == list(range(1, 53))


@pytest.mark.parametrize(
    "options, expected",
    [
        ([], range(103, 303)),
        (["--last", "3"], range(300, 303)),
        (["--last", "3", "--to", "10"], range(8, 11)),
        (["--from", "5", "--to", "7"], range(5, 8)),
        (["--from", "301"], range(301, 303)),
        (["--from", "1"], range(1, 303)),
        (["--from", "400"], range(0)),
    ],
)
def test_show_gives_the_newest_events_or_the_range_asked_for(
    refold: Refold, scribe: Scribe, options: list[str], expected: Sequence[int]
) -> None:
    thread_with_calls(scribe, "t", 300)

    result = refold("show", "t", *options)

    assert result.exit_code == 0
    heads = [line for line in result.stdout.splitlines() if not line.startswith("seq") and "kind" not in line]
    assert [int(line.split()[0]) for line in heads] == list(expected)


def test_show_reads_only_its_page(refold: Refold, scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    """H29: showing the end of a long thread neither folds nor loads it."""
    thread_with_calls(scribe, "t", 3000)
    read: list[int] = []
    original = Journal.read

    def counting(self: Journal, thread: str, **options: object) -> list[Event]:
        events = original(self, thread, **options)  # type: ignore[arg-type]
        read.append(len(events))
        return events

    monkeypatch.setattr(Journal, "read", counting)

    assert refold("show", "t", "--last", "20").exit_code == 0
    assert sum(read) == 20
    read.clear()
    assert refold("threads", "--attention").exit_code == 0
    assert sum(read) <= 20
    read.clear()
    assert refold("threads").exit_code == 0
    assert read == []


def test_a_row_tells_time_kind_call_name_duration_size_and_what(refold: Refold, scribe: Scribe) -> None:
    at = 1_772_368_205_250_000
    scribe.write(
        "t",
        ev.ToolStarted(
            at=at, call="r1/2.1.1", tool="refund", args=Raw(b'{"order":"17"}'), key="k", attempt=2
        ),
        ev.ToolReturned(at=at, call="r1/2.1.1", result=Raw(b'{"refunded":true}'), latency_us=12_345),
    )

    lines = refold("show", "t").stdout.splitlines()

    assert lines[0].split() == ["seq", "time", "(UTC)", "kind", "call", "name", "took", "size", "what"]
    first, second = (line.split() for line in lines[1:])
    assert first[:6] == ["1", "2026-03-01", "12:30:05.250", "tool_started", "r1/2.1.1", "refund"]
    assert lines[1].endswith('attempt 2: {"order":"17"}')
    assert second[5:8] == ["refund", "12.3", "ms"]
    assert lines[2].endswith('{"refunded":true}')


def test_full_shows_bodies_exactly(refold: Refold, scribe: Scribe, journal: Journal) -> None:
    thread_with_calls(scribe, "t", 2)

    lines = refold("show", "t", "--full").stdout.splitlines()

    assert [line.strip() for line in lines[1::2]] == [event.body.decode() for event in journal.read("t")]


def test_every_kind_has_a_row_that_says_something() -> None:
    failure = ev.Failure("ValueError", "no")
    call = {"at": 1, "call": "r1/1"}
    run = {"at": 1, "run": "r1"}
    bodies = [
        ev.ThreadForked(at=1, uid="u", origin="o", origin_seq=3, origin_hash="h", replaced=3),
        started(),
        ev.RunResumed(**run, tenure=2, digest="d"),
        ev.ModelResponded(
            **call,
            fingerprint="f",
            request=ev.RequestDelta(params=Raw(b'{"model":"m"}')),
            response=Raw(
                b'{"message":{"content":"hello","tool_calls":[{"function":{"name":"t","arguments":"{}"}}]}}'
            ),
            usage=ev.Usage(input_tokens=3, output_tokens=4),
        ),
        ev.ModelStarted(**call, fingerprint="f", request=ev.RequestDelta()),
        ev.ModelFailed(**call, fingerprint="f", request=ev.RequestDelta(), error=failure, final=False),
        ev.ToolStarted(**call, tool="t", args=Raw(b"{}"), key="k"),
        ev.ToolReturned(**call, result=Raw(b"1")),
        ev.ToolFailed(**call, error=failure, effect="unknown"),
        ev.ToolInDoubt(**call, attempt=1, why="lost"),
        ev.ToolResolved(**call, attempt=1, outcome="returned", result=Raw(b"1"), by="kim"),
        ev.ToolResolved(**call, attempt=1, outcome="failed", error=failure, effect="done"),
        ev.ToolResolved(**call, attempt=1, outcome="did_not_happen"),
        ev.StepRecorded(**call, name="s", args=Raw(b"[]"), result=Raw(b"2")),
        ev.StepFailed(**call, name="s", args=Raw(b"[]"), error=failure),
        ev.ApprovalRequested(**call, tool="t", args=Raw(b"{}")),
        ev.ApprovalGiven(**call, approved=False, by="kim", note="no"),
        ev.SignalReceived(**call, name="go", value=Raw(b"3")),
        ev.Patched(**run, id="x"),
        ev.DivergenceAccepted(**run, recorded="a", asked="b"),
        ev.CancelRequested(**run, reason="why"),
        ev.RunFinished(**run, output=Raw(b"4")),
        ev.RunFailed(**run, error=failure),
        ev.RunCancelled(**run, reason="superseded"),
        ev.RunParked(**run, reason="lost", calls=["r1/1"]),
        ev.RunReleased(**run, reason="SIGTERM"),
    ]
    silent = {ev.ThreadCreated, ev.TimerSet, ev.TimerFired, ev.WaitStarted}

    assert {type(body) for body in bodies} | silent == set(ev.EventBody.__args__)
    for body in bodies:
        assert summary(body), body
        assert Timeline().row_of(1, body).kind == ev.kind_of(body)
    assert Timeline().row_of(1, bodies[3]).name == "m"
    assert summary(bodies[3]) == "[3+4 tokens] hello t({})"


def test_an_event_of_an_unknown_kind_can_be_shown_and_listed_and_stops_a_resume(
    refold: Refold, journal: Journal, scribe: Scribe
) -> None:
    assert refold("run", "bots:payer", "17", "--thread", "t").exit_code == 0
    scribe.write("t", raw_event("mind_read", b'{"kind":"mind_read","at":1,"thought":"tea"}', 3))
    scribe.write("t", raw_event("run_finished", b'{"kind":"run_finished","of":"tomorrow"}', 2))
    head = journal.info("t").head

    shown = refold("show", "t")
    assert shown.exit_code == 0
    assert '[unknown kind; written by a newer refold?] {"kind":"mind_read"' in shown.stdout
    assert "[version 2, known up to 1; written by a newer refold?]" in shown.stdout
    assert documents(refold("show", "t", "--json"))[-2]["body"]["thought"] == "tea"
    assert refold("threads").exit_code == 0
    assert refold("threads", "--attention").exit_code == 0
    state = refold("state", "t")
    assert state.exit_code == 0
    assert f"passed over: seq {head - 1}, kind 'mind_read', version 3" in state.stdout

    for command in (
        ["resume", "t", "--agent", "bots:payer"],
        ["replay", "t", "--agent", "bots:payer"],
        ["run", "bots:payer", "18", "--thread", "t"],
    ):
        refused = refold(*command)
        assert refused.exit_code == 1
        assert f"seq {head - 1}: kind 'mind_read' is unknown" in refused.stderr
    assert journal.info("t").head == head


def test_a_body_that_cannot_be_decoded_is_shown_as_such(refold: Refold, scribe: Scribe) -> None:
    scribe.write(
        "t",
        ev.ThreadCreated(at=1, uid="u"),
        raw_event("tool_returned", b"\xff\x00{"),
        raw_event("run_parked", b"{}"),
    )

    shown = refold("show", "t")
    assert shown.exit_code == 0
    assert r"cannot be decoded" in shown.stdout
    assert r"\xff\x00{" in shown.stdout
    assert refold("threads", "--attention").exit_code == 0

    broken = refold("state", "t")
    assert broken.exit_code == 1
    assert "corrupt at seq 2" in broken.stderr
    assert refold("state", "t", "--at", "1").exit_code == 0


def test_state_tells_runs_open_calls_usage_and_the_conversation(refold: Refold) -> None:
    assert refold("run", "bots:careful", "go on", "--thread", "t", "--no-wait").exit_code == 0

    text = refold("state", "t").stdout
    data = documents(refold("state", "t", "--json"))[0]

    assert "run r1 of careful: waiting" in text
    assert 'r1/2.1.1  waits for approval  delete_db({"name":"main"})' in text
    assert 'r1/2.2.1  waits for approval  send_mail({"to":"kim"})' in text
    assert "user:\n  go on" in text
    assert data["runs"][0]["open"]["r1/2.2.1"]["name"] == "send_mail"
    assert [message["role"] for message in data["conversation"]] == ["user", "assistant", "tool", "tool"]


def test_state_as_of_an_event_knows_nothing_of_later_ones(refold: Refold, journal: Journal) -> None:
    assert refold("run", "bots:agent", "hi", "--thread", "t").exit_code == 0
    begun = next(event.seq for event in journal.read("t") if event.kind == "tool_started")

    data = documents(refold("state", "t", "--at", str(begun), "--json"))[0]

    assert data["seq"] == begun
    assert data["head"] == journal.info("t").head
    assert data["runs"][0]["status"] == "running"
    assert list(data["runs"][0]["open"]) == ["r1/2.1.1"]


@pytest.mark.parametrize(
    "command, words",
    [
        ("state t --at 999", "has 7 events; there is no state at seq 999 yet"),
        ("state t --at 8", "has 7 events"),
        ("state t --at 0", "0 is not in the range"),
        ("show t --from 5 --to 4", "--from 5 is after --to 4"),
        ("show t --last 3 --from 2", "exclude each other"),
        ("show t --last 0", "0 is not in the range"),
        ("diff t --at 3 --to 8", "seq 1 to 7"),
    ],
)
def test_a_seq_that_is_not_there_is_said_to_be_not_there(refold: Refold, command: str, words: str) -> None:
    assert refold("run", "bots:agent", "hi", "--thread", "t").exit_code == 0

    result = refold(*command.split())

    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert refold("show", "t", "--from", "6", "--to", "99").stderr == ""
    assert refold("show", "t", "--from", "8").stderr == "t has 7 events, and no seq 8 yet\n"


def test_threads_are_listed_newest_first_in_pages(refold: Refold, scribe: Scribe) -> None:
    for name in "abcde":
        scribe.write(name, ev.ThreadCreated(at=1, uid=name), state=ThreadState.FINISHED)
    scribe.write("e", started(), state=ThreadState.FAILED)

    first = documents(refold("threads", "--json", "--limit", "2"))
    second = documents(refold("threads", "--json", "--limit", "2", "--after", first[-1]["thread"]))
    failed = documents(refold("threads", "--json", "--state", "failed"))
    hint = refold("threads", "--limit", "2").stderr

    assert [row["thread"] for row in first + second] == ["e", "d", "c", "b"]
    assert [row["thread"] for row in failed] == ["e"]
    assert "--after d" in hint
    assert "no such threads" in refold("threads", "--state", "parked").stderr


def test_attention_tells_why_and_what_to_do(refold: Refold, scribe: Scribe, journal: Journal) -> None:
    call = Raw(b"{}")
    scribe.write("fine", ev.ThreadCreated(at=1, uid="u"), state=ThreadState.FINISHED)
    scribe.write("gone", started(), state=ThreadState.RUNNING)
    scribe.write(
        "failed",
        started(),
        ev.RunFailed(at=1, run="r1", error=ev.Failure("ValueError", "no")),
        state=ThreadState.FAILED,
    )
    scribe.write(
        "parked thread",
        started(),
        ev.ToolStarted(at=1, call="r1/1", tool="pay", args=call, key="k"),
        ev.RunParked(at=1, run="r1", reason="the outcome of pay is unknown", calls=["r1/1"]),
        state=ThreadState.PARKED,
    )
    scribe.write(
        "-waits",
        started(),
        ev.ApprovalRequested(at=1, call="r1/1.1", tool="pay", args=call),
        ev.WaitStarted(at=1, call="r1/2.1", name="it's"),
        ev.RunReleased(at=1, run="r1", reason="waiting"),
        state=ThreadState.WAITING,
    )
    scribe.write(
        "left", started(), ev.RunReleased(at=1, run="r1", reason="SIGTERM"), state=ThreadState.WAITING
    )
    scribe.write(
        "left later",
        started(),
        ev.ToolStarted(at=1, call="r1/1", tool="pay", args=call, key="k"),
        ev.RunReleased(at=1, run="r1", reason="SIGINT"),
        ev.ToolReturned(at=1, call="r1/1", attempt=1, result=call),
        state=ThreadState.WAITING,
    )
    for name in ("asked again", "left a signal"):
        scribe.write(name, started(), ev.RunFinished(at=1, run="r1", output=call), state=ThreadState.FINISHED)
    answers.submit(journal, "asked again", b'"more"')
    journal.send("left a signal", key="k", kind="signal", body=b'{"name":"late"}')

    text = refold("threads", "--attention").stdout
    rows = {row["thread"]: row for row in documents(refold("threads", "--attention", "--json"))}

    assert "fine" not in rows
    assert rows["gone"]["reason"] == "its worker is gone and the run unfinished"
    assert rows["gone"]["remedy"] == "refold resume gone --agent MODULE:ATTRIBUTE"
    assert rows["failed"]["reason"] == "ValueError: no"
    assert rows["parked thread"]["remedy"].startswith("refold resolve 'parked thread' r1/1 (--result JSON")
    assert rows["-waits"]["reason"] == 'r1/1.1 (pay) waits for approval; r1/2.1 waits for the signal "it\'s"'
    assert "refold approve -- -waits r1/1.1" in rows["-waits"]["remedy"]
    assert "refold send --signal 'it'\"'\"'s' -- -waits" in rows["-waits"]["remedy"]
    assert rows["left"]["reason"] == "its worker left in good order: SIGTERM"
    assert rows["left later"]["reason"] == "its worker left in good order: SIGINT"
    assert rows["asked again"]["reason"] == "1 input has come since and waits to become a run"
    assert rows["asked again"]["remedy"] == "refold resume 'asked again' --agent MODULE:ATTRIBUTE"
    assert "left a signal" not in rows
    assert len(documents(refold("threads", "--attention", "--json", "--limit", "3"))) == 3
    assert "the outcome of pay is unknown" in text
    assert refold("approve", "--by", "kim", "--", "-waits", "r1/1.1").exit_code == 0
    assert refold("send", "--signal", "it's", "--", "-waits").exit_code == 0
    rows = {row["thread"]: row for row in documents(refold("threads", "--attention", "--json"))}
    assert rows["-waits"]["reason"] == "2 messages have come and wait to be taken"


def test_what_has_come_for_a_thread_hides_nothing_that_it_still_needs(
    refold: Refold, scribe: Scribe, journal: Journal
) -> None:
    """An input is for the next run, and an answer is about one call: a resume by itself would help neither thread."""
    none = Raw(b"{}")
    for name in ("queued", "mixed"):
        scribe.write(
            name,
            started(),
            ev.ApprovalRequested(at=1, call="r1/1.1", tool="pay", args=none),
            ev.ApprovalRequested(at=1, call="r1/1.2", tool="ship", args=none),
            ev.RunReleased(at=1, run="r1", reason="waiting"),
            state=ThreadState.WAITING,
        )
    scribe.write(
        "parked",
        started(),
        ev.ToolStarted(at=1, call="r1/1", tool="pay", args=none, key="k"),
        ev.ToolStarted(at=1, call="r1/2", tool="pay", args=none, key="l"),
        ev.RunParked(at=1, run="r1", reason="the outcome of pay, pay is unknown", calls=["r1/1", "r1/2"]),
        state=ThreadState.PARKED,
    )
    scribe.write(
        "poisoned",
        started(),
        ev.RunParked(at=1, run="r1", reason="its last 5 workers died", poisoned=True),
        state=ThreadState.PARKED,
    )
    for name in ("queued", "parked", "poisoned"):
        answers.submit(journal, name, b'"more"')
    answers.approve(journal, "mixed", "r1/1.1")
    answers.resolve(journal, "parked", "r1/1", failed="no")

    rows = {row["thread"]: row for row in documents(refold("threads", "--attention", "--json"))}

    assert rows["queued"]["reason"] == "r1/1.1 (pay) waits for approval; r1/1.2 (ship) waits for approval"
    assert rows["queued"]["remedy"] == "refold approve queued r1/1.1; refold approve queued r1/1.2"
    come = "1 message has come and waits to be taken; "
    assert rows["mixed"]["reason"] == f"{come}r1/1.2 (ship) waits for approval"
    resume = "refold resume mixed --agent MODULE:ATTRIBUTE"
    assert rows["mixed"]["remedy"] == f"{resume}; refold approve mixed r1/1.2"
    assert rows["parked"]["reason"] == f"{come}the outcome of pay, pay is unknown"
    assert "refold resolve parked r1/2 (" in rows["parked"]["remedy"]
    assert "refold resolve parked r1/1 (" not in rows["parked"]["remedy"]
    assert rows["poisoned"]["remedy"] == "refold resume poisoned --agent MODULE:ATTRIBUTE --release"


def test_a_parked_model_call_is_told_what_can_be_said_of_it_and_that_is_taken(
    refold: Refold, scribe: Scribe
) -> None:
    """Nobody can say what a model has answered; that it was a model's call is told by an event long before."""
    asked = ev.ModelStarted(at=1, call="r1/1", fingerprint="f", request=RequestDelta())
    scribe.write("t", ev.ThreadCreated(at=1, uid="u"), started(), asked)
    steps = [
        ev.StepRecorded(at=1, call=f"r1/2.{n}", name="step", args=Raw(b"{}"), result=Raw(b"1"))
        for n in range(30)
    ]
    scribe.write("t", *steps, ev.ToolStarted(at=1, call="r1/3", tool="pay", args=Raw(b"{}"), key="k"))
    scribe.write(
        "t",
        ev.RunParked(
            at=1, run="r1", reason="the outcome of a model call, pay is unknown", calls=["r1/1", "r1/3"]
        ),
        state=ThreadState.PARKED,
    )

    (row,) = documents(refold("threads", "--attention", "--json"))
    model, tool = row["remedy"].split("; ")

    assert model == "refold resolve t r1/1 (--did-not-happen | --failed TEXT)"
    assert tool == "refold resolve t r1/3 (--result JSON | --did-not-happen | --failed TEXT)"
    assert refold("resolve", "t", "r1/1", "--result", "1").exit_code == 2
    assert refold("resolve", "t", "r1/1", "--did-not-happen").exit_code == 0


def test_a_thread_replays_offline_with_exit_code_0(refold: Refold, tmp_path: Path) -> None:
    assert refold("run", "bots:agent", "hi", "--thread", "t").exit_code == 0
    assert (tmp_path / "effects").read_text() == "17\n"

    result = refold("replay", "t", "--agent", "bots:agent")
    data = documents(refold("replay", "t", "--agent", "bots:agent", "--json"))[0]

    assert result.exit_code == 0
    assert "t: all 7 events match bot; nothing was called" in result.stdout
    assert data["matched"]
    assert data["runs"] == [{"run": "r1", "status": "finished", "first": 2, "last": 7}]
    assert (tmp_path / "effects").read_text() == "17\n"


def test_a_changed_argument_is_told_as_recorded_against_asked_with_exit_code_1(
    refold: Refold, journal: Journal
) -> None:
    assert refold("run", "bots:payer", "17", "--thread", "t").exit_code == 0
    begun = next(event.seq for event in journal.read("t") if event.kind == "tool_started")

    result = refold("replay", "t", "--agent", "bots:overpayer")
    data = documents(refold("replay", "t", "--agent", "bots:overpayer", "--json"))[0]

    assert result.exit_code == 1
    assert f"diverged at seq {begun}" in result.stderr
    assert 'recorded: tool_started refund({"order":"17"})' in result.stderr
    assert 'asked:    tool refund({"order":"170"})' in result.stderr
    assert (data["matched"], data["seq"], data["shape"]) == (False, begun, True)


def test_a_log_that_was_tampered_with_is_corrupt_with_exit_code_1(
    refold: Refold, journal: Journal, pg_dsn: str
) -> None:
    import psycopg

    assert refold("run", "bots:payer", "17", "--thread", "t").exit_code == 0
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("alter table refold.events disable trigger user")
        connection.execute(
            "update refold.events set body = replace(convert_from(body, 'UTF8'), '17', '71')::bytea where seq = 4"
        )

    result = refold("replay", "t", "--agent", "bots:payer")

    assert result.exit_code == 1
    assert "corrupt at seq" in result.stderr


def test_replaying_another_agent_s_thread_says_whose_it_is(refold: Refold) -> None:
    assert refold("run", "bots:payer", "17", "--thread", "t").exit_code == 0

    result = refold("replay", "t", "--agent", "bots:agent")

    assert result.exit_code == 1
    assert "'payer'" in result.stderr
    assert "'bot'" in result.stderr
