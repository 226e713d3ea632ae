"""Workers that stand still past their lease, and workers that only seem to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from chaos.parts import LEASE_S
from chaos.stage import Stage
from refold import Journal
from refold.journal.store import Message

Staged = Callable[..., Stage]


@pytest.mark.parametrize("fate", ["frozen", "robbed"])
def test_a_deposed_worker_writes_nothing_and_passes_the_results_of_its_tools_on(
    staged: Staged, journal: Journal, fate: str
) -> None:
    """H15: frozen past its lease, or robbed of it; it is refused, and what its tools did is not lost."""
    # A robbed worker learns of it at its next append, a frozen one may learn of it at its next renewal.
    stage = staged("pair", lease_ttl_s=LEASE_S if fate == "frozen" else 60.0)
    stage.gates("upsert", "wire")
    old = stage.start(linger_s=20.0)
    stage.hear("entered", old)
    stage.hear("entered", old)
    if fate == "frozen":
        os.kill(old, signal.SIGSTOP)

    new = stage.start(steal=fate == "robbed")
    assert "wire" in stage.hear("parked", new)["reason"]
    stage.wait(new)
    taken_over = stage.history(journal)
    assert [(entry["tool"], entry["attempt"]) for entry in taken_over.acted] == [("upsert", 2)]

    os.kill(old, signal.SIGCONT)
    for gate in ("upsert", "wire"):
        stage.open_gate(gate)
    stage.hear("LeaseLost", old)
    messages = wait_for_messages(journal, stage.thread, 2)
    assert {message.kind for message in messages} == {"resolution"}
    assert stage.history(journal).events == taken_over.events

    last = stage.start()
    finished = stage.hear("finished", last)
    history = stage.judge(journal)
    by_attempt = {(entry["tool"], entry["attempt"]): entry["value"] for entry in history.acted}
    assert by_attempt.keys() == {("upsert", 1), ("upsert", 2), ("wire", 1)}
    assert finished["output"] == [by_attempt["upsert", 2], by_attempt["wire", 1]]
    assert [body["by"] for _, body in history.of("tool_resolved")] == ["worker"]


def test_what_a_robbed_workers_tools_return_reaches_the_new_holder(staged: Staged, journal: Journal) -> None:
    """The first it hears of the robbery is that the append of a result is refused; the result is not lost."""
    stage = staged("pair", lease_ttl_s=60.0)
    stage.gates("upsert", "wire")
    old = stage.start(linger_s=20.0)
    stage.hear("entered", old)
    stage.hear("entered", old)
    new = stage.start(steal=True)
    while journal.info(stage.thread).fence < 2:
        time.sleep(0.005)

    for gate in ("upsert", "wire"):
        stage.open_gate(gate)
    stage.hear("LeaseLost", old)
    finished = stage.hear("finished", new)

    history = stage.judge(journal)
    assert sorted(entry["tool"] for entry in history.acted) == ["upsert", "wire"]
    assert sorted(finished["output"]) == sorted(entry["value"] for entry in history.acted)
    assert [body["by"] for _, body in history.of("tool_resolved")] == ["worker", "worker"]


def wait_for_messages(journal: Journal, thread: str, count: int) -> list[Message]:
    until_s = time.monotonic() + 10
    while len(messages := journal.inbox(thread)) < count and time.monotonic() < until_s:
        time.sleep(0.005)
    return messages


@pytest.mark.parametrize("program", ["spins", "spins_on_the_loop"])
def test_a_tool_five_leases_long_that_never_yields_is_run_once(
    staged: Staged, journal: Journal, program: str
) -> None:
    """H15: pure-Python CPU work; the lease is renewed by a thread of its own, a polling rival is refused."""
    stage = staged(program, lease_ttl_s=LEASE_S)
    worker = stage.start()
    stage.hear("entered", worker)
    rival = stage.start()
    finished = stage.hear("finished", worker)
    stage.hear("finished", rival)

    assert stage.reports.counts["busy"] > 10
    history = stage.judge(journal)
    assert [entry["value"] for entry in history.acted] == [finished["output"]]
    assert {event.fence for event in history.events} == {1}


def test_a_run_that_kills_its_workers_is_parked_and_goes_on_when_released(
    staged: Staged, journal: Journal
) -> None:
    """H13: the tool takes its process down; a supervisor that starts another each time does not do so for ever."""
    stage = staged("dies")
    for died in range(5):
        worker = stage.start()
        assert stage.wait(worker) == 1, f"worker {died}"
    parked = stage.start()
    assert "5 workers died" in stage.hear("parked", parked)["reason"]
    stage.wait(parked)
    head = journal.info(stage.thread).head
    again = stage.start()
    stage.hear("parked", again)
    assert journal.info(stage.thread).head == head
    assert [entry["what"] for entry in stage.ledger.entries()] == ["entered"] * 5

    (stage.folder / "healed").touch()
    last = stage.start("release")
    stage.hear("finished", last)
    stage.judge(journal)
