"""Calls that a worker may still be at are left alone, however many workers have come and gone since."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from typing import Any

import psycopg
import pytest
import refold
from died import dead_holder, died_at
from refold import Agent, Journal, Run, ScriptedModel, StoreUnavailable, program, tool
from refold.journal.memory import MemoryStore
from refold.journal.sources import Sources
from refold.journal.store import Append, AppendResult, Outcome
from refold.replay import answers, rebuild
from refold.replay.holds import LATE_S
from refold.replay.live import Limits
from refold.replay.recording import Policy


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell where a holder lives, as if each were on a machine of its own."""
    monkeypatch.setattr("refold.journal.journal.describe_holder", lambda row=None: "")


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
        return "wired"

    @program
    async def pays(run: Run) -> str:
        return await run.tool(wire)

    with Journal.memory() as journal:
        await refold.run(pays, journal=journal, thread="t")
        started = next(event.seq for event in journal.read("t") if event.kind == "tool_started")
        with died_at(journal, "t", started) as left:
            second = await refold.resume(pays, journal=left, thread="t", wait=False)

    assert (second.output, attempts) == ("wired", [1, 2])


@pytest.mark.parametrize("in_doubt", ["park", "retry"])
async def test_a_model_call_that_may_act_is_held_back_while_a_rival_may_be_at_it(
    strangers: None, in_doubt: Any
) -> None:
    asked = asyncio.Event()
    requests: list[Any] = []

    async def respond(request: Any) -> str:
        requests.append(request)
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return "done"

    agent = Agent(
        "shop",
        model=ScriptedModel(respond),
        params={"tools": [{"type": "code_execution_20250522", "name": "code_execution"}]},
        in_doubt=in_doubt,
        policy=Policy(hold_wait_s=0.0),
        limits=Limits(model_timeout_s=0.2),
    )
    with Journal.memory() as journal:
        options: Any = {"journal": journal, "thread": "t"}
        first = asyncio.create_task(agent.run("hi", **options))
        await asked.wait()
        held = await agent.resume(**options, steal=True, wait=False)
        given = answers.resolve(journal, "t", "r1/1", did_not_happen=True)
        told = " ".join(given.lines())
        before = len(requests)
        async with asyncio.timeout(20):
            last = await agent.resume(**options)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first
        recorded = journal.read("t")

    started = [event for event in recorded if event.kind == "model_started"]
    assert (held.status, before, last.output) == ("waiting", 1, "done")
    assert "time-out is over" in told
    assert started[1].recorded_at - started[0].recorded_at >= 1_200_000


async def test_a_transaction_of_a_deposed_worker_cannot_commit_and_its_call_is_run_at_once(
    pg_dsn: str,
) -> None:
    """No hold: the transaction decides; here the deposed worker is in the middle of its own."""
    entered, leave = threading.Event(), threading.Event()
    attempts: list[int] = []

    @tool(transactional=True, timeout_s=600)
    def book(context: refold.ToolContext) -> int:
        """Book."""
        attempts.append(context.attempt)
        context.connection.execute("insert into public.booked (attempt) values (%s)", (context.attempt,))
        if context.attempt == 1:
            entered.set()
            leave.wait(30)
        return context.attempt

    @program
    async def books(run: Run) -> int:
        return await run.tool(book)

    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("create table public.booked (attempt int)")
        with Journal.open(pg_dsn) as journal:
            first = asyncio.create_task(refold.run(books, journal=journal, thread="t"))
            await asyncio.to_thread(entered.wait, 20)
            async with asyncio.timeout(20):
                second = await refold.resume(books, journal=journal, thread="t", steal=True, wait=False)
            leave.set()
            with pytest.raises(refold.LeaseLost):
                await first
        booked = connection.execute("select attempt from public.booked").fetchall()

    assert (second.output, attempts, booked) == (2, [1, 2], [(2,)])


class Skewed(Sources):
    """A wall clock that is set otherwise, and a monotonic clock that can be moved on."""

    def __init__(self, off_us: int = 0) -> None:
        self.off_us = off_us
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + self.off_us

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.mark.parametrize("first_off, second_off", [(-1, 1), (1, -1)])
async def test_a_hold_is_as_long_as_it_is_whatever_the_clocks_of_the_two_machines_say(
    pg_dsn: str, strangers: None, first_off: int, second_off: int
) -> None:
    entered = asyncio.Event()
    attempts: list[int] = []

    @tool(idempotent=True, timeout_s=0.5)
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

    day_us = 86_400_000_000
    with (
        Journal.open(pg_dsn, sources=Skewed(first_off * day_us)) as one,
        Journal.open(pg_dsn, sources=Skewed(second_off * day_us)) as other,
    ):
        other.threads()
        first = asyncio.create_task(refold.run(pays, journal=one, thread="t"))
        await entered.wait()
        policy = Policy(hold_wait_s=0.0)
        held = await refold.resume(pays, journal=other, thread="t", policy=policy, steal=True, wait=False)
        attempts_then = list(attempts)
        async with asyncio.timeout(20):
            last = await refold.resume(pays, journal=other, thread="t", policy=policy)
        first.cancel()
        with contextlib.suppress(refold.LeaseLost, asyncio.CancelledError):
            await first
        starts = [event.recorded_at for event in other.read("t") if event.kind == "tool_started"]

    assert (held.status, attempts_then, last.output) == ("waiting", [1], "wired")
    assert starts[1] - starts[0] >= 1_500_000


async def test_a_call_whose_start_was_acknowledged_late_is_not_begun_but_started_again() -> None:
    """A rival counts its time from the recorded start: begun long after, it would run beside the rival's attempt."""
    sources = Skewed()
    attempts: list[int] = []

    class Late(MemoryStore):
        def append(self, append: Append) -> AppendResult:
            if any(event.kind == "tool_started" for event in append.events) and not sources.ahead_s:
                # The store was away, and answers when most of the tool's time has passed.
                sources.ahead_s = 6.0
            return super().append(append)

    @tool(timeout_s=10)
    async def wire(context: refold.ToolContext) -> int:
        """Wire money."""
        attempts.append(context.attempt)
        return context.attempt

    @program
    async def pays(run: Run) -> int:
        return await run.tool(wire)

    with Journal(Late(sources), sources=sources) as journal:
        result = await refold.run(pays, journal=journal, thread="t")
        kinds = [event.kind for event in journal.read("t")]
        rebuild.replay(pays, "t", journal.read("t"))

    assert (result.output, attempts) == (2, [2])
    assert kinds[-5:] == ["tool_started", "tool_resolved", "tool_started", "tool_returned", "run_finished"]


async def test_a_call_that_begins_a_little_late_ends_before_a_rival_may_begin() -> None:
    sources = Skewed()
    left: list[float] = []

    class Late(MemoryStore):
        def append(self, append: Append) -> AppendResult:
            if any(event.kind == "tool_started" for event in append.events):
                sources.ahead_s += 4.0
            return super().append(append)

    @tool(timeout_s=10)
    async def wire(context: refold.ToolContext) -> None:
        """Wire money."""
        left.append(context.deadline_s)

    @program
    async def pays(run: Run) -> None:
        await run.tool(wire)

    with Journal(Late(sources), sources=sources) as journal:
        await refold.run(pays, journal=journal, thread="t")

    assert 6.5 < left[0] <= 10 - (4 - LATE_S)


async def test_a_store_that_goes_away_just_before_a_call_makes_no_failure_of_it() -> None:
    """The lease has run out and cannot be renewed: the call was never begun, and that is what is recorded."""
    sources = Skewed()
    attempts: list[int] = []
    away = [True]

    class Away(MemoryStore):
        def append(self, append: Append) -> AppendResult:
            result = super().append(append)
            if any(event.kind == "tool_started" for event in append.events):
                # A duplicate does not say when the lease was renewed.
                return AppendResult(Outcome.DUPLICATE, result.head)
            return result

        def renew(self, thread: str, *, fence: int, ttl_s: float) -> bool:
            if away:
                if threading.current_thread().name != "refold-renewer":
                    away.pop()
                raise StoreUnavailable("the server is away")
            return super().renew(thread, fence=fence, ttl_s=ttl_s)

    @tool(timeout_s=1e6)
    async def wire(context: refold.ToolContext) -> int:
        """Wire money."""
        attempts.append(context.attempt)
        return context.attempt

    @program
    async def pays(run: Run) -> int:
        await run.step(stand_still, read_only=True)
        return await run.tool(wire)

    def stand_still() -> None:
        sources.ahead_s += 3600

    with Journal(Away(sources), sources=sources, patience_s=0.0) as journal:
        result = await refold.run(pays, journal=journal, thread="t")

    assert (result.output, attempts) == (2, [2])
