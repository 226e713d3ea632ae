"""Calls that a worker may still be at are left alone, however many workers have come and gone since."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest
import refold
from died import dead_holder
from refold import Journal, Run, program, tool
from refold.replay import answers
from refold.replay.recording import Policy


async def test_the_call_of_a_frozen_worker_is_held_back_though_the_worker_after_it_has_died() -> None:
    entered = asyncio.Event()
    attempts: list[int] = []

    @tool(idempotent=True, timeout_s=600)
    async def wire(context: refold.ToolContext) -> str:
        """Wire money."""
        attempts.append(context.attempt)
        entered.set()
        await asyncio.Event().wait()
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    with Journal.memory() as journal:
        first = asyncio.create_task(refold.run(pays, journal=journal, thread="t"))
        await entered.wait()
        # A second worker takes over, and dies before it has appended anything.
        dead, fence = dead_holder(), journal.info("t").fence
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=dead, steal=fence)
        async with asyncio.timeout(10):
            third = await refold.resume(pays, journal=journal, thread="t", wait=False)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first

    assert (third.status, attempts) == ("waiting", [1])


@pytest.mark.parametrize("force", [False, True])
async def test_that_a_call_did_not_happen_is_believed_only_when_nobody_can_be_at_it_any_more(
    force: bool,
) -> None:
    entered = asyncio.Event()
    attempts: list[int] = []

    @tool(timeout_s=1.0)
    async def wire(context: refold.ToolContext) -> str:
        """Wire money."""
        attempts.append(context.attempt)
        entered.set()
        if context.attempt == 1:
            await asyncio.Event().wait()
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    with Journal.memory() as journal:
        first = asyncio.create_task(refold.run(pays, journal=journal, thread="t"))
        await entered.wait()
        options: Any = {"journal": journal, "thread": "t", "policy": Policy(hold_wait_s=0.0)}
        held = await refold.resume(pays, steal=True, wait=False, **options)
        given = answers.resolve(journal, "t", "r1/1", did_not_happen=True, force=force)
        told = " ".join(given.lines())
        at_once = await refold.resume(pays, wait=False, **options)
        async with asyncio.timeout(20):
            last = await refold.resume(pays, **options)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first
        recorded_at = {event.kind: event.recorded_at for event in journal.read("t")}
        started = next(event for event in journal.read("t") if event.kind == "tool_started")

    assert held.status == "waiting"
    assert ("time-out is over" in told) is not force
    assert at_once.status == ("finished" if force else "waiting")
    assert (last.output, attempts) == ("wired", [1, 2])
    assert (recorded_at["tool_resolved"] - started.recorded_at >= 1_000_000) is not force


def test_only_that_a_call_did_not_happen_can_be_forced() -> None:
    with Journal.memory() as journal, pytest.raises(refold.UsageError, match="forced"):
        answers.resolve(journal, "t", "r1/1", result=b"1", force=True)


async def test_the_call_of_a_worker_that_died_is_taken_up_at_once() -> None:
    attempts: list[int] = []

    @tool(idempotent=True, timeout_s=600)
    async def wire(context: refold.ToolContext) -> str:
        """Wire money."""
        attempts.append(context.attempt)
        if context.attempt == 1:
            await asyncio.Event().wait()
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    with Journal.memory() as journal:
        first = asyncio.create_task(refold.run(pays, journal=journal, thread="t"))
        while not attempts:  # noqa: ASYNC110 - the tool is entered
            await asyncio.sleep(0.001)
        row = journal.store._threads["t"]  # type: ignore[attr-defined]
        row.holder_name = dead_holder()
        async with asyncio.timeout(10):
            second = await refold.resume(pays, journal=journal, thread="t", wait=False)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first

    assert (second.output, attempts) == ("wired", [1, 2])
