"""A process that takes up a thread it held before knows which of its calls still run: only those are left alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import refold
from fault_proxy import FaultProxy
from refold import Agent, Journal, Program, Run, ScriptedModel, StoreUnavailable, ToolContext, program, tool
from refold.journal.store import Lease
from refold.replay.live import Limits
from refold.replay.under_way import UnderWay, acts

LIMITS = Limits(leave_grace_s=0.05, poll_s=0.02)


@pytest.fixture
def journal(proxy: FaultProxy, database: str) -> Iterator[Journal]:
    """A journal on a server that can be cut off, and that gives up soon."""
    with Journal.open(proxy.dsn(database), hold_s=0.1, patience_s=0.1, lease_ttl_s=60.0) as made:
        yield made


class Gate:
    """A tool's first attempt waits here; `entered` tells that it does."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = threading.Event()
        self.attempts: list[int] = []
        self._loop = asyncio.get_running_loop()

    def enter(self, context: ToolContext) -> bool:
        self.attempts.append(context.attempt)
        self._loop.call_soon_threadsafe(self.entered.set)
        return context.attempt == 1


def paying(gate: Gate) -> Program:
    """A run of one async tool, whose first attempt comes to no end by itself."""

    @tool(idempotent=True, timeout_s=600)
    async def wire(context: ToolContext) -> str:
        """Wire money."""
        if gate.enter(context):
            await asyncio.Event().wait()
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    return pays


def until_over(journal: Journal) -> None:
    """Wait until nothing of the first worker's call runs."""
    give_up_s = time.monotonic() + 20
    while acts(journal.identity, "t", 1, "r1/1"):
        assert time.monotonic() < give_up_s
        time.sleep(0.002)


async def lose(run: Any, gate: Gate, proxy: FaultProxy) -> None:
    """Let a run be left in an outage that lasts longer than anybody is patient."""
    task = asyncio.create_task(run)
    await gate.entered.wait()
    proxy.refuse()
    task.cancel()
    with contextlib.suppress(StoreUnavailable, asyncio.CancelledError):
        await task
    proxy.accept()


async def test_after_an_outage_a_tool_that_was_stopped_is_not_held_back(
    journal: Journal, proxy: FaultProxy
) -> None:
    gate = Gate()
    pays = paying(gate)
    options: Any = {"journal": journal, "thread": "t", "limits": LIMITS}
    await lose(refold.run(pays, **options), gate, proxy)
    async with asyncio.timeout(20):
        result = await refold.resume(pays, **options, wait=False)

    assert (result.output, gate.attempts) == ("wired", [1, 2])


async def test_after_an_outage_a_tool_that_still_runs_in_its_thread_is_held_back_until_it_ends(
    journal: Journal, proxy: FaultProxy
) -> None:
    gate = Gate()

    @tool(idempotent=True, timeout_s=600)
    def wire(context: ToolContext) -> str:
        """Wire money."""
        if gate.enter(context):
            gate.open.wait(60)
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    options: Any = {"journal": journal, "thread": "t", "limits": LIMITS}
    await lose(refold.run(pays, **options), gate, proxy)
    held = await refold.resume(pays, **options, wait=False)
    attempts = list(gate.attempts)
    gate.open.set()
    await asyncio.to_thread(until_over, journal)
    result = await refold.resume(pays, **options, wait=False)

    assert (held.status, attempts) == ("waiting", [1])
    assert result.status == "finished"


def test_a_thread_that_outlives_its_event_loop_is_held_back(
    journal: Journal,
) -> None:
    """Nobody hears of its end on a loop that is gone; that it runs is known all the same."""
    entered, leave = threading.Event(), threading.Event()
    attempts: list[int] = []

    @tool(idempotent=True, timeout_s=600)
    def wire(context: ToolContext) -> str:
        """Wire money."""
        attempts.append(context.attempt)
        entered.set()
        if context.attempt == 1:
            leave.wait(60)
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    options: Any = {"journal": journal, "thread": "t", "limits": LIMITS}

    async def left() -> None:
        task = asyncio.create_task(refold.run(pays, **options))
        await asyncio.to_thread(entered.wait, 20)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(left())
    held = asyncio.run(refold.resume(pays, **options, wait=False))
    assert (held.status, attempts) == ("waiting", [1])
    leave.set()
    until_over(journal)
    result = asyncio.run(refold.resume(pays, **options, wait=False))

    assert result.status == "finished"


async def test_the_calls_of_a_run_that_this_process_still_drives_are_held_back(journal: Journal) -> None:
    """It is robbed by its own process: what it has not begun yet it may begin until it learns of that."""
    gate = Gate()
    pays = paying(gate)
    options: Any = {"journal": journal, "thread": "t", "limits": LIMITS}
    first = asyncio.create_task(refold.run(pays, **options))
    await gate.entered.wait()
    robbing = await refold.resume(pays, **options, steal=True, wait=False)
    first.cancel()
    with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
        await first
    after = await refold.resume(pays, **options, wait=False)

    assert (robbing.status, after.output, gate.attempts) == ("waiting", "wired", [1, 2])


async def test_the_calls_of_a_process_are_known_to_it_though_another_has_held_the_thread_since(
    journal: Journal,
) -> None:
    gate = Gate()
    pays = paying(gate)
    options: Any = {"journal": journal, "thread": "t", "limits": LIMITS}
    first = asyncio.create_task(refold.run(pays, **options))
    await gate.entered.wait()
    stranger = journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=60, name="elsewhere", steal=1)
    assert isinstance(stranger, Lease)
    journal.store.release("t", fence=stranger.fence, seen=0)
    first.cancel()
    with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
        await first
    result = await refold.resume(pays, **options, wait=False)

    assert (result.output, gate.attempts) == ("wired", [1, 2])


async def test_a_model_call_that_was_given_up_here_is_not_held_back(journal: Journal) -> None:
    asked = asyncio.Event()

    async def respond(request: Any) -> str:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return "done"

    agent = Agent(
        "shop",
        model=ScriptedModel(respond),
        params={"tools": [{"type": "code_execution_20250522", "name": "code_execution"}]},
        in_doubt="retry",
        limits=LIMITS,
    )
    task = asyncio.create_task(agent.run("hi", journal=journal, thread="t"))
    await asked.wait()
    fence = journal.info("t").fence
    robber = await asyncio.to_thread(journal.acquire, "t", steal=True)
    await asyncio.to_thread(robber.release)
    task.cancel()
    with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
        await task
    result = await agent.resume(journal=journal, thread="t", wait=False)

    assert not acts(journal.identity, "t", fence, "r1/1")
    assert result.output == "done"


def test_what_runs_is_counted_until_its_last_carrier_has_ended() -> None:
    place = ("journal", "t", 1, "r1/1")
    task, thread = UnderWay(place), UnderWay(place)

    task.over()
    task.over()
    assert acts(*place)
    thread.over()
    assert not acts(*place)
    with UnderWay(("journal", "t", 1, "")):
        assert acts(*place)
        assert not acts("journal", "t", 2, "r1/1")
