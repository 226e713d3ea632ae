"""Doubt, time, cancelling, waiting inputs and poisoned runs: a thread always has a reason and a way out."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
import refold
from msgspec import Raw
from refold import DidNotHappen, Happened, Journal, Run, ToolContext, ToolError, Unknown, program, tool
from refold.journal.codec import encode
from refold.replay import rebuild
from refold.replay.inbox import (
    Approval,
    Cancel,
    Input,
    Resolution,
    approval_key,
    encode_message,
    resolution_key,
)
from refold.replay.recording import Policy
from refold.replay.runner import read_all


def kinds(journal: Journal, thread: str = "t") -> list[str]:
    return [event.kind for event in read_all(journal, thread)]


def check(made: refold.Program, journal: Journal, thread: str = "t") -> None:
    rebuild.replay(made, thread, read_all(journal, thread))


def send(journal: Journal, content: Any, key: str, thread: str = "t") -> None:
    kind, body = encode_message(content)
    journal.send(thread, key=key, kind=kind, body=body)


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


def hanging(**flags: Any) -> Any:
    effects: list[str] = []

    @tool(timeout_s=0.2, **flags)
    async def wire(amount: int, context: ToolContext) -> str:
        """Wire money."""
        effects.append(context.idempotency_key)
        if len(effects) > 1:
            return "wired at last"
        await asyncio.Event().wait()
        return "never"

    @program
    async def pays(run: Run) -> Any:
        try:
            return await run.tool(wire, 5)
        except ToolError as error:
            return [error.error_type, error.effect]

    return pays, effects


async def test_a_timed_out_unsafe_call_parks_and_a_resolution_finishes_it(journal: Journal) -> None:
    pays, effects = hanging()

    parked = await refold.run(pays, journal=journal, thread="t")
    (doubt,) = parked.pending
    assert (parked.status, doubt.status, doubt.attempt) == ("parked", "in doubt", 1)
    send(
        journal,
        Resolution(doubt.call, 1, "returned", Raw(b'"seen in the bank"')),
        resolution_key(doubt.call, 1),
    )
    result = await refold.resume(pays, journal=journal, thread="t")

    assert result.output == "seen in the bank"
    assert len(effects) == 1
    check(pays, journal)


async def test_a_resolution_that_is_not_of_the_tools_type_is_a_failure_that_did_happen(
    journal: Journal,
) -> None:
    @tool(timeout_s=0.01)
    async def counts() -> int:
        """Counts."""
        await asyncio.Event().wait()
        return 1

    @program
    async def runs(run: Run) -> Any:
        try:
            return await run.tool(counts)
        except ToolError as error:
            return [error.error_type, error.effect]

    parked = await refold.run(runs, journal=journal, thread="t")
    (doubt,) = parked.pending
    send(journal, Resolution(doubt.call, 1, "returned", Raw(b'"many"')), resolution_key(doubt.call, 1))
    result = await refold.resume(runs, journal=journal, thread="t")

    assert result.output == ["UnsupportedValue", "done"]
    check(runs, journal)


async def test_a_resolution_of_another_attempt_resolves_nothing(journal: Journal) -> None:
    pays, effects = hanging()
    parked = await refold.run(pays, journal=journal, thread="t")
    (doubt,) = parked.pending

    send(journal, Resolution(doubt.call, 2, "did_not_happen"), resolution_key(doubt.call, 2))
    again = await refold.resume(pays, journal=journal, thread="t")
    assert again.status == "parked"
    send(journal, Resolution(doubt.call, 1, "did_not_happen"), resolution_key(doubt.call, 1))
    result = await refold.resume(pays, journal=journal, thread="t")

    assert result.output == "wired at last"
    assert effects[0] == effects[1]
    check(pays, journal)


async def test_a_doubt_can_be_told_to_the_program(journal: Journal) -> None:
    pays, _ = hanging(in_doubt="tell_model")

    result = await refold.run(pays, journal=journal, thread="t")

    assert result.output == ["OutcomeUnknown", "unknown"]
    check(pays, journal)


async def test_a_repeatable_call_is_retried_with_the_same_key(journal: Journal) -> None:
    pays, effects = hanging(idempotent=True, retries=1)

    result = await refold.run(pays, journal=journal, thread="t", policy=Policy(backoff_s=0.001))

    assert result.output == "wired at last"
    assert effects[0] == effects[1]
    check(pays, journal)


@pytest.mark.parametrize(
    "answer, expected",
    [(Happened("in the ledger"), "in the ledger"), (DidNotHappen(), "wired at last"), (Unknown(), None)],
)
async def test_a_reconciler_settles_a_doubt(journal: Journal, answer: Any, expected: Any) -> None:
    pays, effects = hanging(in_doubt=lambda amount: answer)

    result = await refold.run(pays, journal=journal, thread="t")

    assert result.output == expected
    assert result.status == ("finished" if expected else "parked")
    assert len(effects) == (2 if expected == "wired at last" else 1)
    check(pays, journal)


async def test_a_person_reads_why_a_reconciler_does_not_know(journal: Journal) -> None:
    pays, _ = hanging(in_doubt=lambda amount: Unknown("the bank has not decided yet"))

    await refold.run(pays, journal=journal, thread="t")

    parked = [json.loads(event.body) for event in read_all(journal, "t") if event.kind == "run_parked"]
    assert parked[-1]["reason"] == (
        "the outcome of wire is unknown (the bank has not decided yet); say what happened with 'refold resolve'"
    )


async def test_a_silent_tool_that_beats_is_given_up_at_its_idle_time_out(journal: Journal) -> None:
    beats: list[int] = []

    @tool(timeout_s=60, idle_timeout_s=0.05)
    async def digs(context: ToolContext) -> str:
        """Digs."""
        for _ in range(5):
            await asyncio.sleep(0.02)
            context.heartbeat()
            beats.append(1)
        await asyncio.Event().wait()
        return ""

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(digs)

    result = await refold.run(runs, journal=journal, thread="t")

    assert result.status == "parked"
    assert len(beats) == 5


async def test_a_sync_tool_that_finishes_after_its_time_out_tells_the_inbox_and_not_the_log(
    journal: Journal,
) -> None:
    leave, left = threading.Event(), threading.Event()

    @tool(timeout_s=0.2)
    def slow() -> str:
        """Slow."""
        leave.wait(10)
        left.set()
        return "late"

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(slow)

    parked = await refold.run(runs, journal=journal, thread="t")
    assert parked.status == "parked"
    leave.set()
    while not journal.inbox("t"):  # noqa: ASYNC110 - the journal knows no event loop
        await asyncio.sleep(0.001)
    assert "tool_returned" not in kinds(journal)
    result = await refold.resume(runs, journal=journal, thread="t")

    assert result.output == "late"
    check(runs, journal)


async def test_a_cancel_ends_the_run_that_it_names_and_no_later_one(journal: Journal) -> None:
    @program
    async def runs(run: Run, value: str) -> str:
        await run.sleep(0.01)
        return value

    await refold.run(runs, "first", journal=journal, thread="t")
    send(journal, Cancel("r1", reason="too late"), "c1")
    result = await refold.run(runs, "second", journal=journal, thread="t")

    assert (result.status, result.output) == ("finished", "second")
    assert journal.inbox("t") == []
    check(runs, journal)


async def test_cancelling_records_what_returns_and_doubts_the_rest(journal: Journal) -> None:
    entered = asyncio.Event()

    @tool
    async def hangs() -> str:
        """Hangs."""
        entered.set()
        await asyncio.Event().wait()
        return ""

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(hangs)

    from refold.replay.live import Limits

    task = asyncio.create_task(
        refold.run(
            runs, journal=journal, thread="t", policy=Policy(cancel_grace_s=0.01), limits=Limits(poll_s=0.005)
        )
    )
    await entered.wait()
    send(journal, Cancel("r1", reason="enough"), "c1")
    result = await task

    assert result.status == "cancelled"
    assert kinds(journal)[-3:] == ["cancel_requested", "tool_in_doubt", "run_cancelled"]
    check(runs, journal)


async def test_answers_go_to_the_call_they_name(journal: Journal) -> None:
    """H21: two calls wait for approval; the second is answered first."""
    done: list[str] = []

    @tool(approval=True)
    def act(name: str) -> str:
        """Act."""
        done.append(name)
        return name

    @program
    async def runs(run: Run) -> Any:
        return await run.gather(run.tool(act, "a"), run.tool(act, "b"))

    waiting = await refold.run(runs, journal=journal, thread="t", wait=False)
    first, second = (call.call for call in waiting.pending)
    send(journal, Approval(second, approved=True), approval_key(second))
    waiting = await refold.resume(runs, journal=journal, thread="t", wait=False)
    assert (done, [call.call for call in waiting.pending]) == (["b"], [first])
    send(journal, Approval(first, approved=True), approval_key(first))
    send(journal, Approval(first, approved=False), approval_key(first))
    result = await refold.resume(runs, journal=journal, thread="t")

    assert result.output == ["a", "b"]
    assert done == ["b", "a"]
    check(runs, journal)


async def test_an_input_sent_to_a_busy_thread_becomes_its_next_run(journal: Journal) -> None:
    entered, leave = threading.Event(), threading.Event()

    @tool
    def waits() -> None:
        """Wait."""
        entered.set()
        leave.wait(10)

    @program
    async def runs(run: Run, value: str) -> str:
        if value == "first":
            await run.tool(waits)
        return value

    task = asyncio.create_task(refold.run(runs, "first", journal=journal, thread="t"))
    await asyncio.to_thread(entered.wait, 10)
    with pytest.raises(refold.ThreadBusy):
        await refold.run(runs, "second", journal=journal, thread="t")
    send(journal, Input(Raw(encode("second"))), "i1")
    send(journal, Input(Raw(encode("third"))), "i2")
    leave.set()
    result = await task

    assert result.output == "first"
    assert kinds(journal).count("run_finished") == 3
    assert journal.inbox("t") == []
    check(runs, journal)


async def test_a_run_that_kills_its_workers_is_parked_until_it_is_released(journal: Journal) -> None:
    """H13: resuming in a loop does not go on for ever."""

    class Dies(Exception):
        pass

    deadly = {"on": True}

    @tool(read_only=True)
    def eats() -> str:
        """Eats memory."""
        return "fed"

    @program
    async def runs(run: Run) -> str:
        return await run.tool(eats)

    # A worker that dies: the tenure is abandoned right after the start of the tool is durable.
    from refold.replay.live import LiveHost

    class DeadlyHost(LiveHost):
        def perform(self, call: Any, attempt: int) -> None:
            if deadly["on"]:
                raise Dies
            super().perform(call, attempt)

    import refold.replay.runner as runner

    original, runner.LiveHost = runner.LiveHost, DeadlyHost  # type: ignore[misc]
    try:
        statuses: list[str] = []
        for _ in range(8):
            try:
                statuses.append((await refold.run(runs, journal=journal, thread="t")).status)
            except Dies as error:
                statuses.append(type(error).__name__)
    finally:
        runner.LiveHost = original  # type: ignore[misc]
    assert statuses == ["Dies"] * 5 + ["parked"] * 3
    before = journal.info("t").head
    assert (await refold.resume(runs, journal=journal, thread="t")).status == "parked"
    assert journal.info("t").head == before
    result = await refold.resume(runs, journal=journal, thread="t", release=True)

    assert result.output == "fed"
    check(runs, journal)
