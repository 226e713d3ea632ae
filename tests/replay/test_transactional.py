"""Transactional tools: what they write and what the log says of them commit together, whatever breaks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import refold
from appends import event
from fault_proxy import Cut, FaultProxy
from ledgers import journal_with_ledger, ledger
from refold import Journal, LeaseLost, Run, ToolContext, ToolDefinitionError, ToolError, program, tool
from refold.journal import statements
from refold.journal.store import Append, AppendResult
from refold.replay import rebuild
from refold.replay.effects import Limits
from refold.replay.runner import read_all


@tool(transactional=True)
def book(amount: int, context: ToolContext) -> int:
    """Book an amount."""
    context.connection.execute("insert into ledger (amount) values (%s)", (amount,))
    if amount < 0:
        raise ValueError("negative")
    return amount


@tool(read_only=True)
async def look(key: str) -> str:
    """Look."""
    return key


@program
async def books(run: Run, amounts: list[int]) -> list[Any]:
    async def one(amount: int) -> Any:
        try:
            return await run.tool(book, amount)
        except ToolError as error:
            return [error.error_type, error.effect]

    return await run.gather(*(one(amount) for amount in amounts), run.tool(look, "x"))


@pytest.fixture
def journal(pg_dsn: str) -> Iterator[Journal]:
    with journal_with_ledger(pg_dsn) as made:
        yield made


async def test_effect_and_result_commit_together_and_a_failure_leaves_neither(
    journal: Journal, pg_dsn: str
) -> None:
    result = await refold.run(books, [1, 2, -3], journal=journal, thread="t")

    assert result.output == [1, 2, ["ValueError", "none"], "x"]
    assert ledger(pg_dsn) == [1, 2]
    rebuild.replay(books, "t", read_all(journal, "t"))


async def test_what_one_transaction_leads_to_is_recorded_before_the_next_one_begins(journal: Journal) -> None:
    @tool
    async def note(amount: int) -> int:
        """Note an amount."""
        return amount

    @program
    async def notes(run: Run) -> list[int]:
        async def one(amount: int) -> int:
            return await run.tool(note, await run.tool(book, amount))

        return await run.gather(one(1), one(2))

    result = await refold.run(notes, journal=journal, thread="t")

    assert result.output == [1, 2]
    rebuild.replay(notes, "t", read_all(journal, "t"))


async def test_what_returned_beside_a_transaction_survives_a_caller_who_goes_away(journal: Journal) -> None:
    returned, go = asyncio.Event(), threading.Event()
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> int:
        """Pay."""
        paid.append(amount)
        returned.set()
        return amount

    @tool(transactional=True)
    def hang(context: ToolContext) -> int:
        """Take long."""
        go.wait(30)
        return 0

    @program
    async def both(run: Run) -> list[int]:
        return await run.gather(run.tool(pay, 3), run.tool(hang))

    caller = asyncio.create_task(
        refold.run(both, journal=journal, thread="t", limits=Limits(leave_grace_s=0.05))
    )
    await asyncio.wait_for(returned.wait(), 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go.set()

    result = await refold.resume(both, journal=journal, thread="t")

    assert (result.output, paid) == ([3, 0], [3])
    rebuild.replay(both, "t", read_all(journal, "t"))


@pytest.mark.parametrize("cut", list(Cut))
async def test_a_commit_without_an_answer_is_one_effect_and_one_result(
    pg_dsn: str, postgres_server: Any, cut: Cut
) -> None:
    """H24: the answer of the COMMIT is lost, or the COMMIT itself."""
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("create table ledger (amount int)")
        database = connection.info.dbname
    proxy = FaultProxy(postgres_server.socket)

    @tool(transactional=True)
    def breaks(context: ToolContext) -> str:
        """Breaks."""
        context.connection.execute("insert into ledger (amount) values (7)")
        if not proxy.cut.is_set():
            proxy.arm(cut, "COMMIT")
        return "booked"

    @program
    async def runs(run: Run) -> str:
        return await run.tool(breaks)

    with Journal.open(proxy.dsn(database)) as journal:
        result = await refold.run(runs, journal=journal, thread="t")
        assert proxy.cut.is_set()
        events = read_all(journal, "t")
    assert result.output == "booked"
    assert ledger(pg_dsn) == [7]
    assert [event.kind for event in events].count("tool_returned") == 1
    rebuild.replay(runs, "t", events)


async def test_a_transaction_whose_connection_breaks_inside_the_tool_is_run_again(
    journal: Journal, pg_dsn: str
) -> None:
    tries: list[int] = []

    @tool(transactional=True)
    def breaks(context: ToolContext) -> str:
        """Loses its connection, the first time as it is, the second time behind an error of its own."""
        tries.append(1)
        context.connection.execute("insert into ledger (amount) values (5)")
        if len(tries) == 1:
            context.connection.execute("select pg_terminate_backend(pg_backend_pid())")
        if len(tries) == 2:
            try:
                context.connection.execute("select pg_terminate_backend(pg_backend_pid())")
            except psycopg.Error:
                raise ToolError("the database is away") from None
        return "booked"

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(breaks)

    result = await refold.run(runs, journal=journal, thread="t")

    assert (result.output, len(tries)) == ("booked", 3)
    assert ledger(pg_dsn) == [5]
    assert [event.kind for event in read_all(journal, "t")].count("tool_started") == 1


async def test_a_transaction_that_loses_a_deadlock_is_run_again(journal: Journal, pg_dsn: str) -> None:
    tries: list[int] = []

    @tool(transactional=True)
    def loses(context: ToolContext) -> str:
        """Is given up by the server once, for the sake of another transaction."""
        tries.append(1)
        context.connection.execute("insert into ledger (amount) values (6)")
        if len(tries) == 1:
            context.connection.execute(
                "do $$ begin raise exception 'deadlock' using errcode = '40P01'; end $$"
            )
        return "booked"

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(loses)

    assert (await refold.run(runs, journal=journal, thread="t")).output == "booked"
    assert ledger(pg_dsn) == [6]


async def test_a_lost_transaction_is_not_run_again_after_its_time(journal: Journal, pg_dsn: str) -> None:
    tries: list[int] = []

    @tool(transactional=True, timeout_s=0.1)
    def breaks(context: ToolContext) -> str:
        """Loses its connection when its time is over."""
        tries.append(1)
        time.sleep(0.2)
        context.connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return "never"

    @program
    async def runs(run: Run) -> Any:
        try:
            return await run.tool(breaks)
        except ToolError as error:
            return [error.effect, error.message]

    result = await refold.run(runs, journal=journal, thread="t")

    assert (result.output[0], len(tries)) == ("none", 1)
    assert "0.1 s" in result.output[1]


async def test_a_transactional_tool_that_takes_too_long_is_rolled_back(journal: Journal, pg_dsn: str) -> None:
    @tool(transactional=True, timeout_s=0.1)
    def sleeps(context: ToolContext) -> str:
        """Sleeps."""
        context.connection.execute("insert into ledger (amount) values (9)")
        context.connection.execute("select pg_sleep(20)")
        return "never"

    @program
    async def runs(run: Run) -> Any:
        try:
            return await run.tool(sleeps)
        except ToolError as error:
            return [error.effect, error.message]

    began = time.monotonic()
    result = await refold.run(runs, journal=journal, thread="t")

    assert result.output[0] == "none"
    assert "0.1 s" in result.output[1]
    assert ledger(pg_dsn) == []
    assert time.monotonic() - began < 15


async def test_siblings_that_finish_meanwhile_are_recorded_after_it(journal: Journal, pg_dsn: str) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(transactional=True)
    def slow(context: ToolContext) -> str:
        """Slow."""
        loop.call_soon_threadsafe(inside.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        context.connection.execute("insert into ledger (amount) values (1)")
        return "slow"

    @tool(read_only=True)
    async def quick() -> str:
        """Quick."""
        await inside.wait()
        loop.call_later(0.01, go.set)
        return "quick"

    @program
    async def runs(run: Run) -> Any:
        return await run.gather(run.tool(quick), run.tool(slow))

    result = await refold.run(runs, journal=journal, thread="t")

    assert result.output == ["quick", "slow"]
    assert ledger(pg_dsn) == [1]
    rebuild.replay(runs, "t", read_all(journal, "t"))


async def test_a_journal_in_memory_says_that_it_has_no_transactions() -> None:
    with Journal.memory() as journal, pytest.raises(refold.StoreRefused, match="PostgreSQL"):
        await refold.run(books, [1], journal=journal, thread="t")


def test_a_transactional_tool_is_a_sync_function_with_a_context() -> None:
    async def unfit(context: ToolContext) -> None: ...

    def blind() -> None: ...

    for function in (unfit, blind):
        with pytest.raises(ToolDefinitionError, match="transactional"):
            tool(transactional=True)(function)


async def test_a_transactional_tool_that_is_tried_again_waits_for_its_new_start(
    journal: Journal, pg_dsn: str
) -> None:
    """Nothing else is on its way then; begun at once, its result would come before its start in the log."""
    tries: list[int] = []

    @tool(transactional=True, retries=1)
    def moody(context: ToolContext) -> str:
        """Moody."""
        tries.append(context.attempt)
        context.connection.execute("insert into ledger (amount) values (%s)", (context.attempt,))
        if context.attempt == 1:
            raise ToolError("not yet")
        return "done"

    @program
    async def runs(run: Run) -> str:
        return await run.tool(moody)

    result = await refold.run(runs, journal=journal, thread="t")

    events = read_all(journal, "t")
    assert result.output == "done"
    assert (tries, ledger(pg_dsn)) == ([1, 2], [2])
    assert [event.kind for event in events].count("tool_started") == 2
    rebuild.replay(runs, "t", events)


async def test_a_transaction_that_stands_still_does_not_keep_its_locks_from_whoever_took_the_thread_over(
    journal: Journal, pg_dsn: str
) -> None:
    """A worker frozen in the middle of it, or gone with its machine: to the server it is idle, and nothing more."""
    entered, leave = threading.Event(), threading.Event()

    @tool(transactional=True, timeout_s=1.0, retries=3)
    def count(context: ToolContext) -> int:
        """Count."""
        context.connection.execute("update counter set amount = amount + 1")
        if not entered.is_set():
            entered.set()
            leave.wait(30)
        return context.attempt

    @program
    async def counts(run: Run) -> int:
        return await run.tool(count)

    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("create table counter as select 0 as amount")
        first = asyncio.create_task(refold.run(counts, journal=journal, thread="t"))
        await asyncio.to_thread(entered.wait, 20)
        async with asyncio.timeout(20):
            result = await refold.resume(counts, journal=journal, thread="t", steal=True)
        leave.set()
        with pytest.raises(refold.LeaseLost):
            await first
        counted = connection.execute("select amount from counter").fetchone()

    assert (result.status, counted) == ("finished", (1,))


def test_a_worker_that_stands_still_just_before_its_commit_does_not_keep_the_thread(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.journal.lent_transaction.COMMIT_WITHIN_MS", 200)
    appended, leave = threading.Event(), threading.Event()
    append_result = statements.append_result

    def stand_still(answer: str, append: Append) -> AppendResult:
        appended.set()
        leave.wait(30)
        return append_result(answer, append)

    with Journal.open(pg_dsn) as frozen, Journal.open(pg_dsn) as other:
        held = frozen.acquire("t")
        monkeypatch.setattr(statements, "append_result", stand_still)
        fates: list[BaseException] = []

        def transact() -> None:
            try:
                held.transact(lambda connection: event(), limit_s=30.0)
            except LeaseLost as error:
                fates.append(error)

        thread = threading.Thread(target=transact)
        thread.start()
        assert appended.wait(20)
        taken = other.acquire("t", steal=True)
        leave.set()
        thread.join(20)

        assert (taken.head, len(fates)) == (0, 1)
