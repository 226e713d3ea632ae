"""An order to stop (a cancel, a deadline, a caller who goes away) reaches what is about to begin, and transactions."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import refold
from fault_proxy import FaultProxy
from ledgers import journal_with_ledger, ledger
from moved import Moved
from refold import Journal, Run, ToolContext, ToolError, program, tool
from refold.agent.programs import runner
from refold.journal.envelope import NewEvent
from refold.journal.store import ThreadState
from refold.replay import answers, rebuild
from refold.replay.branch import Branch
from refold.replay.commands import Call, ToolCall
from refold.replay.events import EventBody, ToolStarted
from refold.replay.live import Limits
from refold.replay.recording import Completion, Policy, late_resolution
from refold.replay.runner import read_all

CANCEL_REQUEST = (80877102).to_bytes(4, "big")
ORDERS = ["cancel", "deadline", "caller left"]
NEVER_S = 3600.0


@pytest.fixture
def memory() -> Iterator[Journal]:
    with Journal.memory() as made:
        yield made


@pytest.fixture
def journal(pg_dsn: str) -> Iterator[Journal]:
    with journal_with_ledger(pg_dsn) as made:
        yield made


def kinds(journal: Journal) -> list[str]:
    return [event.kind for event in read_all(journal, "t")]


class Ordered:
    """A run that gets an order to stop: `now` gives it, and `status` is how the run then left."""

    def __init__(self, journal: Journal, order: str, caller: asyncio.Task[Any]) -> None:
        self._journal = journal
        self._order = order
        self._caller = caller

    async def now(self) -> None:
        if self._order == "cancel":
            await asyncio.to_thread(answers.cancel, self._journal, "t")
        elif self._order == "caller left":
            self._caller.cancel()

    async def left(self) -> str:
        async with asyncio.timeout(20):
            try:
                result = await self._caller
            except asyncio.CancelledError:
                return self._journal.info("t").state.value
        return str(result.status)

    @property
    def expected(self) -> str:
        return "waiting" if self._order == "caller left" else "cancelled"

    @property
    def ending(self) -> list[str]:
        return ["run_released"] if self._order == "caller left" else ["cancel_requested", "run_cancelled"]


@asynccontextmanager
async def ordered(
    program: Any, journal: Journal, order: str, *, grace_s: float, **options: Any
) -> AsyncIterator[Ordered]:
    caller = asyncio.create_task(
        refold.run(
            program,
            journal=journal,
            thread="t",
            deadline_s=0.5 if order == "deadline" else None,
            policy=Policy(cancel_grace_s=grace_s, backoff_s=0.001),
            limits=Limits(leave_grace_s=grace_s, poll_s=0.02),
            **options,
        )
    )
    try:
        yield Ordered(journal, order, caller)
    finally:
        caller.cancel()
        await asyncio.wait({caller})


async def entered(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 20)


def until_cancelled(context: ToolContext) -> bool:
    return any(context.cancelled or threading.Event().wait(0.01) for _ in range(1000))


@pytest.mark.parametrize("order", ORDERS)
async def test_a_tool_is_told_of_an_order_to_stop_inside_its_transaction_and_its_result_counts(
    journal: Journal, pg_dsn: str, order: str
) -> None:
    inside, told, begun = threading.Event(), [], []

    @tool(transactional=True)
    def put(amount: int, context: ToolContext) -> int:
        """Put."""
        begun.append(amount)
        inside.set()
        told.append(until_cancelled(context))
        context.connection.execute("insert into ledger values (%s)", (amount,))
        return amount

    @program
    async def puts(run: Run) -> None:
        await run.tool(put, 1)
        await run.tool(put, 2)

    async with ordered(puts, journal, order, grace_s=20) as run:
        await entered(inside)
        await run.now()
        left = await run.left()

    assert (left, told, begun) == (run.expected, [True], [1])
    assert ledger(pg_dsn) == [1]
    assert kinds(journal)[2:] == ["tool_started", "tool_returned", *run.ending]
    rebuild.replay(puts, "t", read_all(journal, "t"))


@pytest.mark.parametrize("order", ORDERS)
async def test_a_transaction_that_outlives_its_grace_is_rolled_back_and_recorded_as_never_begun(
    journal: Journal, pg_dsn: str, order: str
) -> None:
    """Its thread cannot be stopped: it is not waited for, and no other attempt begins beside it."""
    inside, go, over, beside = threading.Event(), threading.Event(), threading.Event(), []

    @tool(transactional=True)
    def put(amount: int, context: ToolContext) -> int:
        """Put."""
        beside.append(inside.is_set() and not over.is_set())
        context.connection.execute("insert into ledger values (%s)", (amount,))
        inside.set()
        go.wait(30)
        over.set()
        return amount

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        await asyncio.to_thread(inside.wait, 20)
        return "seen"

    @program
    async def puts(run: Run) -> list[Any]:
        return await run.gather(run.tool(look), run.tool(put, 1))

    async with ordered(puts, journal, order, grace_s=0.2) as run:
        await entered(inside)
        await run.now()
        left = await run.left()
        assert not over.is_set()
    events = read_all(journal, "t")
    resolved = [event.body for event in events if event.kind == "tool_resolved"]
    again = asyncio.create_task(refold.resume(puts, journal=journal, thread="t", wait=False))
    asyncio.get_running_loop().call_later(0.1, go.set)
    result = await again

    assert left == run.expected
    assert len(resolved) == 1
    assert b'"did_not_happen"' in resolved[0]
    assert [event.kind for event in events].count("tool_returned") == 1
    if order == "caller left":
        assert result.output == ["seen", 1]
    assert ledger(pg_dsn) == ([1] if order == "caller left" else [])
    assert not any(beside)
    rebuild.replay(puts, "t", read_all(journal, "t"))


async def test_callers_who_do_not_wait_for_a_slow_transaction_do_not_make_it_a_killer_of_its_workers(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    go, tries = threading.Event(), []

    @tool(transactional=True)
    def slow(context: ToolContext) -> int:
        """Slow."""
        tries.append(context.attempt)
        go.wait(30)
        raise ToolError("the shop is closed")

    @program
    async def runs(run: Run) -> str:
        try:
            return str(await run.tool(slow))
        except ToolError as error:
            return str(error)

    limits = Limits(leave_grace_s=0.01)
    caplog.set_level(logging.ERROR, logger="asyncio")
    for _ in range(Policy().idle_tenures_max + 2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await refold.run(runs, journal=journal, thread="t", limits=limits)
    given_up = kinds(journal)
    go.set()
    result = await refold.run(runs, journal=journal, thread="t")
    gc.collect()

    assert given_up[-1] == "run_released"
    assert "run_parked" not in given_up
    assert (result.status, result.output) == ("finished", "the shop is closed")
    assert len(tries) == 2
    assert not caplog.records
    rebuild.replay(runs, "t", read_all(journal, "t"))


async def test_what_a_transactional_tool_raised_within_the_grace_is_its_outcome(journal: Journal) -> None:
    inside = threading.Event()

    @tool(transactional=True)
    def closed(context: ToolContext) -> None:
        """Closed."""
        inside.set()
        until_cancelled(context)
        raise ToolError("the shop is closed")

    @program
    async def runs(run: Run) -> str:
        try:
            return str(await run.tool(closed))
        except ToolError as error:
            return await run.wait_for(str(error))

    async with ordered(runs, journal, "caller left", grace_s=20) as run:
        await entered(inside)
        await run.now()
        await run.left()

    assert kinds(journal)[2:] == ["tool_started", "tool_failed", "run_released"]


@pytest.mark.parametrize("order", ORDERS)
async def test_a_transaction_that_is_lost_is_not_run_again_after_an_order_to_stop(
    journal: Journal, pg_dsn: str, order: str
) -> None:
    inside, tries = threading.Event(), []

    @tool(transactional=True)
    def breaks(context: ToolContext) -> str:
        """Loses its connection once it is to stop."""
        tries.append(1)
        context.connection.execute("insert into ledger values (7)")
        inside.set()
        until_cancelled(context)
        context.connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return "never"

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(breaks)

    async with ordered(runs, journal, order, grace_s=20) as run:
        await entered(inside)
        await run.now()
        left = await run.left()

    assert (left, len(tries), ledger(pg_dsn)) == (run.expected, 1, [])
    assert kinds(journal)[2:] == ["tool_started", "tool_resolved", *run.ending]


async def test_a_commit_that_was_sent_before_the_grace_was_over_is_seen_through(
    journal: Journal, pg_dsn: str
) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute(
            "create or replace function slowly() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(1.2); return null; end $$"
        )
        connection.execute(
            "create constraint trigger slowly after insert on ledger deferrable initially deferred "
            "for each row execute function slowly()"
        )
    returns = threading.Event()

    @tool(transactional=True)
    def put(context: ToolContext) -> int:
        """Put."""
        context.connection.execute("insert into ledger values (3)")
        returns.set()
        return 3

    @program
    async def runs(run: Run) -> int:
        got: int = await run.tool(put)
        await run.wait_for("go")
        return got

    async with ordered(runs, journal, "caller left", grace_s=0.05) as run:
        await entered(returns)
        await run.now()
        left = await run.left()

    assert (left, ledger(pg_dsn)) == ("waiting", [3])
    assert kinds(journal)[2:] == ["tool_started", "tool_returned", "run_released"]


class Mute(FaultProxy):
    """Takes a request to cancel a statement and does not answer it, as a server that stands still."""

    def __init__(self, path: str) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()
        super().__init__(path)

    def _serve(self, client: socket.socket) -> None:
        if client.recv(8, socket.MSG_PEEK)[4:] == CANCEL_REQUEST:
            with client:
                self.asked.set()
                self.let_go.wait(30)
        else:
            super()._serve(client)


async def test_a_server_that_does_not_answer_when_a_statement_is_cancelled_holds_up_nobody(
    pg_dsn: str, postgres_server: Any
) -> None:
    proxy, inside = Mute(postgres_server.socket), threading.Event()

    @tool(transactional=True)
    def sleeps(context: ToolContext) -> None:
        """Sleeps."""
        inside.set()
        context.connection.execute("select pg_sleep(8)")

    @program
    async def runs(run: Run) -> None:
        await run.tool(sleeps)

    with psycopg.connect(pg_dsn) as connection:
        database = connection.info.dbname
    with Journal.open(proxy.dsn(database)) as journal:
        async with ordered(runs, journal, "caller left", grace_s=0.05) as run:
            await entered(inside)
            await run.now()
            left = await run.left()
        await entered(proxy.asked)
        assert not proxy.let_go.is_set()
        events = kinds(journal)
        proxy.let_go.set()
        proxy.close()

    assert left == "waiting"
    assert events[-2:] == ["tool_resolved", "run_released"]


async def test_a_commit_that_fails_by_itself_says_why_also_when_its_time_was_over(
    journal: Journal, pg_dsn: str
) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute(
            "create or replace function refuse() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(0.6); raise exception 'no such account'; end $$"
        )
        connection.execute(
            "create constraint trigger refuse after insert on ledger deferrable initially deferred "
            "for each row execute function refuse()"
        )

    @tool(transactional=True, timeout_s=0.3)
    def put(context: ToolContext) -> None:
        """Put."""
        context.connection.execute("insert into ledger values (3)")

    @program
    async def runs(run: Run) -> str:
        try:
            return str(await run.tool(put))
        except ToolError as error:
            return error.message

    result = await refold.run(runs, journal=journal, thread="t")

    assert "no such account" in result.output
    assert "0.3 s" not in result.output


async def test_an_outcome_beside_a_transaction_is_recorded_after_the_order_that_came_before_it(
    journal: Journal,
) -> None:
    """What the transaction led to did not begin: a log that showed it as begun by then would not replay."""
    inside, ordered_now = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(transactional=True)
    def put(context: ToolContext) -> int:
        """Put."""
        loop.call_soon_threadsafe(inside.set)
        until_cancelled(context)
        return 1

    @tool
    async def pay() -> int:
        """Pay."""
        await ordered_now.wait()
        return 2

    @program
    async def runs(run: Run) -> list[int]:
        async def twice() -> int:
            return await run.tool(put) + await run.tool(pay)

        return await run.gather(run.tool(pay), twice())

    async with ordered(runs, journal, "caller left", grace_s=20) as run:
        await inside.wait()
        await run.now()
        loop.call_soon(ordered_now.set)
        await run.left()

    assert kinds(journal)[4:] == ["tool_returned", "run_released", "tool_returned"]
    rebuild.replay(runs, "t", read_all(journal, "t"))
    result = await refold.resume(runs, journal=journal, thread="t")
    assert result.output == [2, 3]


@pytest.mark.parametrize("order", ORDERS)
async def test_an_attempt_that_waits_for_an_earlier_one_does_not_begin_after_an_order_to_stop(
    memory: Journal, order: str
) -> None:
    go, waits, begun = threading.Event(), asyncio.Event(), []

    @tool(idempotent=True, timeout_s=0.05, retries=1)
    def slow(context: ToolContext) -> int:
        """Slow."""
        begun.append(context.attempt)
        go.wait(30)
        return context.attempt

    @program
    async def runs(run: Run) -> int:
        return int(await run.tool(slow))

    def observe(seq: int, body: EventBody) -> None:
        if isinstance(body, ToolStarted) and body.attempt == 2:
            waits.set()

    async with ordered(runs, memory, order, grace_s=20, observe=observe) as run:
        async with asyncio.timeout(20):
            await waits.wait()
        await run.now()
        left = await run.left()
        go.set()

    assert (left, begun) == (run.expected, [1])
    assert kinds(memory)[4:] == ["tool_started", run.ending[0], "tool_resolved", *run.ending[1:]]


async def test_of_an_attempt_that_did_not_begin_the_next_holder_is_not_told_that_it_returned() -> None:
    """It may have waited beside a transaction when its worker lost the thread."""

    @tool
    async def pay() -> int:
        """Pay."""
        return 1

    call = Call("1", "r1/1", ToolCall(pay, b"{}"), Branch(None, "", None, 0, None))

    assert late_resolution(call, 1, Completion(begun=False)) is None
    assert late_resolution(call, 1, Completion(value=1)) is not None


def leaving_at_once(journal: Journal, program: Any, seq: int) -> Any:
    """Runs *program*, and orders it to stop as soon as *seq* is durable: what follows is on its way, no more."""

    def settled(durable: int) -> None:
        if durable >= seq and not made._stopped:
            made.stop("SIGTERM", grace_s=20)

    made = runner(program, journal, "t")
    world = made._world
    made._world = type(world)(
        make_context=world.make_context, models=world.models, limits=world.limits, settled=settled
    )
    return made.run(None)


async def test_what_is_on_its_way_when_the_order_comes_does_not_begin(memory: Journal) -> None:
    begun: list[str] = []

    @tool
    async def pay() -> None:
        """Pay."""
        begun.append("pay")

    async def fetch() -> None:
        begun.append("fetch")

    @program
    async def both(run: Run) -> None:
        await run.gather(run.tool(pay), run.step(fetch))

    result = await leaving_at_once(memory, both, 3)

    assert (result.status, begun) == ("released", [])
    assert kinds(memory)[2:] == ["tool_started", "run_released", "tool_resolved"]
    await refold.resume(both, journal=memory, thread="t")
    assert sorted(begun) == ["fetch", "pay"]
    rebuild.replay(both, "t", read_all(memory, "t"))


async def test_what_has_become_durable_only_when_the_time_is_over_does_not_begin() -> None:
    """A loop that was blocked hears of the append before it hears the alarm."""
    sources, begun = Moved(), []

    @tool
    async def pay() -> None:
        """Pay."""
        begun.append(1)

    @program
    async def pays(run: Run) -> None:
        await run.tool(pay)

    def observe(seq: int, body: EventBody) -> None:
        if isinstance(body, ToolStarted):
            sources.ahead_s += 9

    with Journal.memory(sources=sources) as journal:
        result = await refold.run(pays, journal=journal, thread="t", deadline_s=8, observe=observe)

        assert (result.status, begun) == ("cancelled", [])
        assert kinds(journal)[2:] == ["tool_started", "cancel_requested", "tool_resolved", "run_cancelled"]


@pytest.mark.parametrize("resumed", [True, False], ids=["resume", "run"])
async def test_a_run_whose_log_implies_its_output_finishes_though_its_deadline_has_passed(
    resumed: bool,
) -> None:
    """It was cut off between its last outcome and its end."""
    sources = Moved()

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    @program
    async def pays(run: Run) -> str:
        return str(await run.tool(pay))

    with Journal.memory(sources=sources) as journal:
        await refold.run(pays, journal=journal, thread="whole", deadline_s=NEVER_S)
        whole = [NewEvent(each.id, each.kind, each.version, each.body) for each in read_all(journal, "whole")]
        assert [each.kind for each in whole[-2:]] == ["tool_returned", "run_finished"]
        cut = journal.acquire("t")
        cut.append(whole[:-1], state=ThreadState.RUNNING).result(20)
        cut.release()
        sources.ahead_s += 2 * NEVER_S
        go_on: Callable[[], Any] = (
            (lambda: refold.resume(pays, journal=journal, thread="t"))
            if resumed
            else (lambda: refold.run(pays, journal=journal, thread="t"))
        )
        result = await go_on()

        assert (result.status, result.output) == ("finished", "paid")
        assert "cancel_requested" not in kinds(journal)
