"""Verification names the thread and the seq of the first fault, whatever it is, and finds none in sound threads."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
import refold
from died import died_at
from msgspec import Raw
from refold import Agent, Journal, Run, ScriptedModel, program, tool
from refold.agent.scripted import call
from refold.journal import export
from refold.journal.envelope import NewEvent
from refold.journal.errors import ThreadNotFound
from refold.journal.store import ThreadState
from refold.replay import events as ev
from refold.replay.runner import read_all
from refold.replay.verification import verify, verify_export


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


agent = Agent(
    "payer",
    model=ScriptedModel([[call("pay", amount=3), call("none"), call("pay", amount="x")], "Paid."]),
    tools=[pay],
)


def fetch(page: int) -> str:
    if page > 1:
        raise LookupError("no such page")
    return "page"


@program
async def errand(run: Run) -> Any:
    await run.gather(run.step(fetch, 1), run.sleep(0), run.tool(pay, 2))
    if run.patched("new"):
        await run.sleep(0)
    return await run.wait_for("go", timeout=0)


async def record(journal: Journal) -> None:
    await agent.run("Pay 3", journal=journal, thread="agent")
    await refold.run(errand, journal=journal, thread="errand")


@tool(idempotent=True)
def notify(text: str) -> str:
    """Repeatable: a worker that takes the run up runs it again, and no event says why."""
    return "sent"


def test_a_call_that_another_worker_ran_again_is_no_fault() -> None:
    model = ScriptedModel([call("notify", text="soon"), "Told."])
    teller = Agent(
        "teller",
        model=model,
        tools=[notify],
        params={"tools": [{"type": "code_execution"}]},
        in_doubt="retry",
    )
    with Journal.memory() as journal:
        teller.run_sync("Tell them", journal=journal, thread="t")
        starts = [e.seq for e in read_all(journal, "t") if e.kind in ("model_started", "tool_started")]
        for seq in starts:
            with died_at(journal, "t", seq) as left:
                teller.run_sync("Tell them", journal=left, thread="t")
                (verdict,) = verify(left, ["t"])

                assert verdict.sound, verdict
    assert len(starts) == 3


async def test_sound_threads_and_files_have_no_fault(journal: Journal, tmp_path: Path) -> None:
    await record(journal)

    verdicts = list(verify(journal))

    assert [each.found.thread for each in verdicts] == ["errand", "agent"]
    assert all(each.sound for each in verdicts), [line for each in verdicts for line in each.lines()]
    assert [each.found.events for each in verdicts] == [
        journal.info(name).head for name in ("errand", "agent")
    ]
    export.export_file(journal, ["agent", "errand"], tmp_path / "all.jsonl.gz")
    assert [each.record() for each in verify_export(tmp_path / "all.jsonl.gz")] == [
        each.record() for each in reversed(verdicts)
    ]
    with pytest.raises(ThreadNotFound):
        list(verify(journal, ["nope"]))


@pytest.mark.parametrize(
    "change, seq, words",
    [
        ("delete from refold.events where seq = 4", 4, "the log has seq 5 where 4 is due"),
        ("delete from refold.events where seq >= 6", 6, "the log ends before it"),
        ("update refold.events set body = body || '\\x20' where seq = 3", 3, "its hash does not follow"),
        ("update refold.events set kind = 'odd' where seq = 5", 5, "its hash does not follow"),
        ("update refold.events set hash = sha256('x') where seq = 5", 5, "its hash does not follow"),
        ("update refold.events set fence = 9 where seq = 4", 4, "fence 9, the thread's newest is 1"),
        (
            "update refold.events set fence = 0 where seq = 4",
            4,
            "fence 0 after fence 1: a deposed holder wrote",
        ),
        ("update refold.threads set head_hash = sha256('x')", 0, "the thread's row says"),
        ("update refold.threads set head = head - 1", 8, "the thread's row says"),
    ],
)
async def test_what_somebody_changed_in_the_database_is_found(
    pg_dsn: str, change: str, seq: int, words: str
) -> None:
    with Journal.open(pg_dsn) as journal:
        await agent.run("Pay 3", journal=journal, thread="t")
        head = journal.info("t").head
        with psycopg.connect(pg_dsn, autocommit=True) as owner:
            owner.execute("set session_replication_role = replica")
            owner.execute(change.encode())

        (verdict,) = verify(journal, ["t"])

    assert not verdict.sound
    assert verdict.found.seq == (seq or head)
    assert words in verdict.found.fault
    assert f"t: FAULT at seq {verdict.found.seq}: " in next(verdict.lines())


RUN = ev.RunStarted(at=2, run="r1", program="p", digest="d", input=Raw(b"1"))
CREATED = ev.ThreadCreated(at=1, uid="u")


def started(call: str = "r1/1", attempt: int = 1, key: str = "k", at: int = 3) -> ev.ToolStarted:
    return ev.ToolStarted(at=at, call=call, tool="pay", args=Raw(b"{}"), key=key, attempt=attempt)


def returned(call: str = "r1/1", attempt: int = 1) -> ev.ToolReturned:
    return ev.ToolReturned(at=3, call=call, result=Raw(b"1"), attempt=attempt)


@pytest.mark.parametrize(
    "bodies, words",
    [
        ([RUN], "begins with thread_created"),
        ([CREATED, CREATED], "begins with thread_created"),
        ([CREATED, RUN, started(at=1)], "before the event before it"),
        ([CREATED, RUN, RUN], "while run 'r1' has not ended"),
        ([CREATED, RUN, ev.RunFinished(at=2, run="r1", output=Raw(b"1")), RUN], "a second time"),
        ([CREATED, RUN, ev.RunFinished(at=3, run="r2", output=Raw(b"1"))], "run 'r2', which is not going on"),
        ([CREATED, RUN, returned()], "tool_returned of attempt 1 of 'r1/1', which is not under way"),
        ([CREATED, RUN, started(), returned(attempt=2)], "attempt 2"),
        ([CREATED, RUN, started(), returned(), returned()], "has its outcome already"),
        ([CREATED, RUN, started(), started(attempt=2)], "has no outcome"),
        ([CREATED, RUN, started(attempt=2)], "starts after attempt 0"),
        ([CREATED, RUN, started(), started("r1/2")], "idempotency key of 'r1/2' was used for 'r1/1'"),
        ([CREATED, started()], "belongs to no run"),
        ([CREATED, RUN, ev.TimerFired(at=3, call="r1/1")], "without timer_set or wait_started"),
        ([CREATED, RUN, ev.ApprovalGiven(at=3, call="r1/1", approved=True)], "without approval_requested"),
        ([CREATED, RUN, ev.RunCancelled(at=3, run="r1"), started()], "whose run is not going on"),
    ],
)
def test_events_that_do_not_belong_together_are_found(
    memory: Journal, bodies: list[ev.EventBody], words: str
) -> None:
    """A chain can be whole and its events make no sense: a bug of a writer, not damage."""
    tenure = memory.acquire("t")
    kinds = [ev.kind_of(body) for body in bodies]
    events = [
        NewEvent(uuid.uuid4(), kind, 1, ev.encode_body(body))
        for kind, body in zip(kinds, bodies, strict=True)
    ]
    tenure.append(events, state=ThreadState.RUNNING).result()
    tenure.release()

    (verdict,) = verify(memory)

    assert verdict.found.seq == len(bodies)
    assert words in verdict.found.fault


def test_a_body_that_is_not_what_its_kind_promises_is_found(memory: Journal) -> None:
    tenure = memory.acquire("t")
    bad = NewEvent(uuid.uuid4(), "run_started", 1, b'{"kind":"run_started"}')
    good = NewEvent(uuid.uuid4(), "thread_created", 1, ev.encode_body(CREATED))
    tenure.append([good, bad], state=ThreadState.RUNNING).result()
    tenure.release()

    (verdict,) = verify(memory)
    assert (verdict.found.seq, "cannot be decoded" in verdict.found.fault) == (2, True)


def test_events_of_a_newer_refold_are_no_fault_and_are_counted(memory: Journal) -> None:
    tenure = memory.acquire("t")
    good = NewEvent(uuid.uuid4(), "thread_created", 1, ev.encode_body(CREATED))
    new = NewEvent(uuid.uuid4(), "dreamt", 1, b"{}")
    after = NewEvent(uuid.uuid4(), "tool_returned", 1, ev.encode_body(returned()))
    tenure.append([good, new, after], state=ThreadState.RUNNING).result()
    tenure.release()

    (verdict,) = verify(memory)
    assert (verdict.sound, verdict.passed_over) == (True, 1)


async def test_a_damaged_file_is_told_up_to_the_first_fault(memory: Journal, tmp_path: Path) -> None:
    await record(memory)
    file = tmp_path / "all.jsonl"
    export.export_file(memory, ["agent", "errand"], file)
    lines = file.read_bytes().splitlines(keepends=True)
    first = memory.info("agent").head + 2
    lines[first + 3] = lines[first + 3].replace(b'"at"', b'"At"', 1)
    file.write_bytes(b"".join(lines))

    good, bad = verify_export(file)

    assert good.sound
    assert (bad.found.thread, bad.found.seq) == ("errand", 3)
    assert f"line {first + 4}" in bad.found.fault
