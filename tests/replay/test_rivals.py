"""Calls that a worker may still be at are left alone, however many workers have come and gone since."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid

import refold
from refold import Journal, Run, program, tool


def name_of_a_dead_process() -> str:
    child = subprocess.run(
        [sys.executable, "-c", "from refold.journal.holder import describe; print(describe())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return child.stdout.strip()


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
        dead, fence = name_of_a_dead_process(), journal.info("t").fence
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=dead, steal=fence)
        async with asyncio.timeout(10):
            third = await refold.resume(pays, journal=journal, thread="t", wait=False)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first

    assert (third.status, attempts) == ("waiting", [1])


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
        row.holder_name = name_of_a_dead_process()
        async with asyncio.timeout(10):
            second = await refold.resume(pays, journal=journal, thread="t", wait=False)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first

    assert (second.output, attempts) == ("wired", [1, 2])
