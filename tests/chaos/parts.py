"""
Small programs whose every move a test decides, and the processes that play them.

A tool's first attempt reports that it has been entered and then waits at its gate; later ones go straight through.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import refold
from chaos.ledger import ACTED, ENTERED
from chaos.worker import Here, Reporter, open_journal
from refold import Run, ToolContext, ToolError, program, tool
from refold.journal.errors import RefoldError, ThreadBusy
from refold.replay import answers
from refold.replay.live import Limits

TOOL_S = 1.5
"""How long a tool of the pair may take, and so how long a rival leaves it alone."""
SPIN_S = 3.0
LEASE_S = 0.6


class Place:
    """The folder of this process's test, for gates and reports."""

    folder: Path
    report: Reporter


def _enter(name: str, context: ToolContext) -> dict[str, Any]:
    where = {
        "tool": name,
        "thread": context.thread,
        "call": context.call,
        "attempt": context.attempt,
        "key": context.idempotency_key,
        "fence": Here.fences.get(context.thread, 0),
    }
    Here.ledger.note(ENTERED, **where)
    Place.report("entered", tool=name, call=context.call, attempt=context.attempt)
    return where


def _act(where: Mapping[str, Any]) -> str:
    value = f"{where['tool']} {os.urandom(6).hex()}"
    Here.ledger.note(ACTED, durable=True, value=value, at_us=time.time_ns() // 1000, **where)
    return value


def _through_the_gate(name: str, context: ToolContext) -> str:
    where = _enter(name, context)
    if context.attempt == 1:
        # Opening a FIFO for reading waits until somebody opens it for writing.
        (Place.folder / f"gate-{name}").read_bytes()
    return _act(where)


@tool(idempotent=True, timeout_s=TOOL_S)
def upsert(context: ToolContext) -> str:
    """Put."""
    return _through_the_gate("upsert", context)


@tool(timeout_s=TOOL_S)
def wire(context: ToolContext) -> str:
    """Wire."""
    return _through_the_gate("wire", context)


@program
async def pair(run: Run) -> Any:
    return await run.gather(run.tool(upsert), run.tool(wire))


def _spin(context: ToolContext) -> str:
    where = _enter("book", context)
    until_s, turns = time.monotonic() + SPIN_S, 0
    while time.monotonic() < until_s:
        turns += sum(number * number for number in range(2000)) % 7
    return _act(where)


@tool(name="book")
def spin(context: ToolContext) -> str:
    """Compute in a thread of its own."""
    return _spin(context)


@tool(name="book")
async def spin_on_the_loop(context: ToolContext) -> str:
    """Compute where everything else of the run is to happen too."""
    return _spin(context)


@program
async def spins(run: Run) -> Any:
    return await run.tool(spin)


@program
async def spins_on_the_loop(run: Run) -> Any:
    return await run.tool(spin_on_the_loop)


@tool(read_only=True)
def look(context: ToolContext) -> str:
    """Kill the process, until the file `healed` is there."""
    where = _enter("look", context)
    if not (Place.folder / "healed").exists():
        os._exit(1)
    return _act(where)


@program
async def dies(run: Run) -> Any:
    return await run.tool(look)


@tool(approval=True)
def mail(name: str, context: ToolContext) -> str:
    """Mail, if somebody allows it."""
    return _act(_enter("mail", context))


@program
async def asks(run: Run) -> Any:
    return await run.gather(_told(run, "a"), _told(run, "b"))


async def _told(run: Run, name: str) -> Any:
    try:
        return await run.tool(mail, name)
    except ToolError as error:
        return error.error_type


PROGRAMS = {each.name: each for each in (pair, spins, spins_on_the_loop, dies, asks)}


def perform(order: Mapping[str, Any]) -> None:
    """Run a program on a thread until it is not busy any more; report what came of it."""
    Place.folder = Path(order["folder"])
    report = Place.report = Reporter(order["folder"])
    journal = open_journal(order)
    made = PROGRAMS[order["program"]]
    report("ready")

    async def go() -> None:
        while True:
            try:
                named: Any = {"journal": journal, "thread": order["thread"], "limits": Limits(poll_s=0.02)}
                if order.get("steal"):
                    result = await refold.resume(made, wait=False, steal=True, **named)
                else:
                    result = await refold.run(made, key="k", wait=order.get("wait", False), **named)
            except ThreadBusy:
                report("busy")
                await asyncio.sleep(0.02)
            except RefoldError as error:
                report(type(error).__name__)
                break
            else:
                report(result.status, output=result.output, reason=result.reason[:200])
                break
        # As in a process that serves other threads too: the loop goes on.
        await asyncio.sleep(order.get("linger_s", 0.0))

    asyncio.run(go())
    journal.close()


def decide(order: Mapping[str, Any]) -> None:
    """Answer about one call, at the same moment as others who wait at the barrier."""
    report = Reporter(order["folder"])
    journal = open_journal(order)
    with open(order["barrier"]) as barrier:  # noqa: PTH123
        report("waiting")
        fcntl.flock(barrier, fcntl.LOCK_SH)
        try:
            given = answers.approve(
                journal, order["thread"], order["call"], approved=order["approved"], by=str(os.getpid())
            )
        except RefoldError as error:
            report("answered", fresh=False, refused=type(error).__name__, why=str(error)[:300])
        else:
            report("answered", fresh=given.fresh, refused=None)
    journal.close()


def release(order: Mapping[str, Any]) -> None:
    """Let a poisoned run go on."""
    Place.folder = Path(order["folder"])
    report = Place.report = Reporter(order["folder"])
    journal = open_journal(order)
    result = asyncio.run(
        refold.resume(PROGRAMS[order["program"]], journal=journal, thread=order["thread"], release=True)
    )
    report(result.status, output=result.output)
    journal.close()
