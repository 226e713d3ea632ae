"""A run that was given a time is cancelled when it is over: recorded, across waits, crashes and resumes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import refold
from moved import Moved
from refold import Agent, Journal, Run, ScriptedModel, ToolContext, program, tool
from refold.replay import rebuild
from refold.replay.fork import fork
from refold.replay.live import Limits
from refold.replay.recording import Policy
from refold.replay.runner import read_all

FAST = Policy(cancel_grace_s=0.01, hold_wait_s=0.0)
REASON = "its deadline has passed"


@pytest.fixture
def sources() -> Moved:
    return Moved()


@pytest.fixture
def journal(sources: Moved) -> Any:
    with Journal.memory(sources=sources) as made:
        yield made


def kinds(journal: Journal, thread: str = "t") -> list[str]:
    return [event.kind for event in read_all(journal, thread)]


@program
async def waits(run: Run) -> Any:
    return await run.wait_for("go")


async def test_what_still_runs_at_the_deadline_gets_its_one_outcome_and_the_run_is_cancelled(
    journal: Journal,
) -> None:
    told: list[float] = []

    @tool
    async def hangs(context: ToolContext) -> None:
        """Hangs."""
        told.append(context.deadline_s)
        await asyncio.Event().wait()

    @tool
    async def ends(context: ToolContext) -> str:
        """Comes to an end when it is asked to."""
        while not context.cancelled:  # noqa: ASYNC110 - what a tool does that is asked to stop
            await asyncio.sleep(0.001)
        return "ended"

    @program
    async def runs(run: Run) -> Any:
        return await run.gather(run.tool(hangs), run.tool(ends), run.sleep(100))

    policy = Policy(cancel_grace_s=0.2)
    result = await refold.run(runs, journal=journal, thread="t", deadline_s=0.05, policy=policy)

    assert (result.status, result.reason, result.output) == ("cancelled", REASON, None)
    assert kinds(journal)[-4:] == ["cancel_requested", "tool_returned", "tool_in_doubt", "run_cancelled"]
    assert 0 < told[0] <= 0.05
    rebuild.replay(runs, "t", read_all(journal, "t"))


async def test_a_run_that_waits_in_this_process_is_cancelled_at_its_deadline(journal: Journal) -> None:
    async with asyncio.timeout(20):
        result = await refold.run(
            waits, journal=journal, thread="t", deadline_s=0.05, policy=FAST, limits=Limits(poll_s=60)
        )

    assert (result.status, result.reason) == ("cancelled", REASON)
    rebuild.replay(waits, "t", read_all(journal, "t"))


async def test_a_deadline_holds_across_resumes_and_wakes_the_thread(journal: Journal, sources: Moved) -> None:
    options: Any = {"journal": journal, "thread": "t", "policy": FAST, "wait": False}
    waiting = await refold.run(waits, deadline_s=3600, **options)
    due = journal.info("t").wake_at_us
    assert waiting.status == "waiting"
    assert due is not None
    sources.ahead_s += 3000
    assert (await refold.resume(waits, **options)).status == "waiting"
    # The same call goes on with the run; the deadline that it began with stays.
    assert (await refold.run(waits, deadline_s=7200, **options)).status == "waiting"
    head = journal.info("t").head
    sources.ahead_s += 601
    result = await refold.resume(waits, **options)

    assert (result.status, result.reason) == ("cancelled", REASON)
    assert kinds(journal)[head:] == ["run_resumed", "cancel_requested", "run_cancelled"]
    assert sources.now_us() > due
    rebuild.replay(waits, "t", read_all(journal, "t"))


async def test_a_parked_run_whose_time_is_over_is_cancelled_and_begins_nothing(
    journal: Journal, sources: Moved
) -> None:
    begun: list[int] = []

    @tool(timeout_s=0.01)
    async def hangs() -> None:
        """Hangs."""
        begun.append(1)
        await asyncio.Event().wait()

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(hangs)

    options: Any = {"journal": journal, "thread": "t", "policy": FAST, "wait": False}
    assert (await refold.run(runs, deadline_s=3600, **options)).status == "parked"
    sources.ahead_s += 3601
    result = await refold.resume(runs, **options)

    assert (result.status, len(begun)) == ("cancelled", 1)


async def test_a_run_that_ends_in_time_is_not_touched_and_leaves_no_alarm_behind(journal: Journal) -> None:
    @program
    async def quick(run: Run) -> str:
        for _ in range(3):
            await run.sleep(0.001)
        await run.gather(run.wait_for("never", timeout=0.002), run.sleep(0.001))
        return "done"

    result = await refold.run(quick, journal=journal, thread="t", deadline_s=3600)
    waiting = await refold.run(waits, journal=journal, thread="u", deadline_s=3600, wait=False, policy=FAST)
    loop: Any = asyncio.get_running_loop()

    assert (result.output, waiting.status) == ("done", "waiting")
    assert "cancel_requested" not in kinds(journal)
    await asyncio.sleep(0)  # what was cancelled at the end is let go of in the loop's next round
    assert [handle for handle in loop._scheduled if not handle.cancelled()] == []


async def test_a_stream_keeps_the_deadline_too(journal: Journal) -> None:
    @tool(approval=True)
    def publish() -> None:
        """Publish."""

    agent = Agent(
        "a", model=ScriptedModel([refold.agent.scripted.call("publish")]), tools=[publish], policy=FAST
    )
    async with asyncio.timeout(20):
        *_, last = [event async for event in agent.stream("hi", journal=journal, thread="t", deadline_s=0.05)]

    assert isinstance(last, refold.RunEnded)
    assert (last.result.status, last.result.reason) == ("cancelled", REASON)


async def test_a_fork_of_a_run_is_not_bound_by_its_deadline(journal: Journal, sources: Moved) -> None:
    options: Any = {"journal": journal, "policy": FAST, "wait": False}
    await refold.run(waits, thread="t", deadline_s=3600, **options)
    sources.ahead_s += 3601
    made = fork(journal, "t")

    assert (await refold.resume(waits, thread=made.thread, **options)).status == "waiting"


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), "60", True])
async def test_a_deadline_that_is_no_time_is_refused_before_anything_is_written(
    journal: Journal, deadline_s: Any
) -> None:
    with pytest.raises(refold.UsageError, match="seconds over 0"):
        await refold.run(waits, journal=journal, thread="t", deadline_s=deadline_s)

    assert journal.threads() == []
