"""Whole runs while connections break, answers are lost, the server goes away, or the caller does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import refold
from appends import verify
from conftest import PostgresServer
from fault_proxy import FaultProxy
from refold import Agent, DidNotHappen, Happened, Journal, Run, ScriptedModel, ToolContext, program, tool
from refold.agent.scripted import call
from refold.journal.errors import StoreUnavailable
from refold.replay import effects, rebuild
from refold.replay.live import Limits
from refold.replay.recording import Policy
from refold.replay.runner import read_all

SOON_S = 20.0


def kinds(journal: Journal, thread: str = "t") -> list[str]:
    return [event.kind for event in read_all(journal, thread)]


def check(made: refold.Program, journal: Journal, thread: str = "t") -> None:
    events = read_all(journal, thread)
    verify(events)
    rebuild.replay(made, thread, events)


class Effects:
    """What was done outside, and what is to happen in the middle of it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None


def make_agent(effects: Effects) -> tuple[Agent, ScriptedModel]:
    """An agent with a parallel pair and a single call, none of them repeatable."""

    @tool
    def act(name: str, context: ToolContext) -> str:
        """Act."""
        effects.done.append(name)
        if name == "b":
            effects.meanwhile()
        return f"did {name}"

    model = ScriptedModel([[call("act", name="a"), call("act", name="b")], call("act", name="c"), "done"])
    return Agent("whole", model=model, tools=[act]), model


def terminate_all(postgres_server: PostgresServer, database: str) -> None:
    with postgres_server.admin() as admin:
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])


async def test_backends_terminated_while_a_tool_runs_cost_a_reconnection(
    postgres_server: PostgresServer, database: str
) -> None:
    """H22 (a), (b): cut during a tool, and again while the model is being waited for."""
    effects = Effects()
    agent, model = make_agent(effects)
    effects.meanwhile = lambda: terminate_all(postgres_server, database)
    respond = model.respond

    async def cut_and_respond(request: Any) -> Any:
        await asyncio.to_thread(terminate_all, postgres_server, database)
        return await respond(request)

    model.respond = cut_and_respond  # type: ignore[method-assign, assignment]
    with Journal.open(postgres_server.dsn(database)) as journal:
        result = await agent.run("go", journal=journal, thread="t")

        assert result.output == "done"
        assert (sorted(effects.done), model.count) == (["a", "b", "c"], 3)
        check(agent.program, journal)


async def test_a_backend_terminated_during_the_append_of_a_result_costs_a_retry(
    postgres_server: PostgresServer, database: str
) -> None:
    """H22 (c): the result is held and appended after reconnecting, the tool is not run again."""
    effects = Effects()
    agent, model = make_agent(effects)
    blocker = psycopg.connect(postgres_server.dsn(database))

    def terminate_the_waiting() -> None:
        with postgres_server.admin() as admin:
            while not admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = %s and wait_event_type = 'Lock'",
                [database],
            ).fetchall():
                pass
        blocker.rollback()

    terminator = threading.Thread(target=terminate_the_waiting)

    def meanwhile() -> None:
        blocker.execute("select from refold.threads where thread = 't' for update")
        terminator.start()

    effects.meanwhile = meanwhile
    with Journal.open(postgres_server.dsn(database)) as journal:
        result = await agent.run("go", journal=journal, thread="t")

        assert result.output == "done"
        assert (sorted(effects.done), model.count) == (["a", "b", "c"], 3)
        check(agent.program, journal)
    terminator.join(SOON_S)
    blocker.close()


async def test_a_server_that_is_away_while_results_come_in_costs_time_only(
    postgres_server: PostgresServer, database: str
) -> None:
    """H22: the results are held, appended when it is back, and the process goes on to other runs."""
    effects = Effects()
    agent, model = make_agent(effects)
    back = threading.Timer(1.5, postgres_server.start)

    def meanwhile() -> None:
        postgres_server.stop(immediately=True)
        back.start()

    effects.meanwhile = meanwhile
    with Journal.open(postgres_server.dsn(database)) as journal:
        result = await agent.run("go", journal=journal, thread="t")

        assert result.output == "done"
        assert (sorted(effects.done), model.count) == (["a", "b", "c"], 3)
        check(agent.program, journal)
        effects.meanwhile = lambda: None
        assert (await agent.run("again", journal=journal, thread="t2")).output == "done"
    back.join(SOON_S)


async def test_a_server_that_stays_away_ends_the_run_with_a_clear_error_and_nothing_is_run_again(
    proxy: FaultProxy, database: str, postgres_server: PostgresServer
) -> None:
    """H22: a bounded wait, then an error; later the calls are in doubt and wait for a person."""
    effects = Effects()
    agent, _ = make_agent(effects)
    effects.meanwhile = proxy.refuse
    with Journal.open(proxy.dsn(database), hold_s=0.3, patience_s=0.1) as journal:
        with pytest.raises(StoreUnavailable):
            await agent.run("go", journal=journal, thread="t")
        proxy.accept()
        effects.meanwhile = lambda: None
        assert (await agent.run("other", journal=journal, thread="other")).output == "done"

        effects.done.clear()
        parked = await agent.resume(journal=journal, thread="t", steal=True, wait=False)
        assert parked.status in ("parked", "waiting")
        assert effects.done == []


class Busy:
    """A tool in a thread of its own that the test lets go, and the program that calls it."""

    def __init__(self, **flags: Any) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.acted: list[int] = []

        @tool(timeout_s=flags.pop("timeout_s", 60.0), **flags)
        def busy(context: ToolContext) -> str:
            """Be busy."""
            if context.attempt == 1:
                self.entered.set()
                assert self.leave.wait(SOON_S)
            self.acted.append(context.attempt)
            return f"acted in attempt {context.attempt}"

        @program
        async def runs(run: Run) -> Any:
            return await run.tool(busy)

        self.program = runs


@contextlib.contextmanager
def locked(dsn: str, thread: str = "t") -> Iterator[None]:
    """While nobody can write the thread."""
    with psycopg.connect(dsn) as connection:
        connection.execute("select from refold.threads where thread = %s for update", [thread])
        yield
        connection.rollback()


async def test_a_cancelled_caller_loses_no_result_that_came_within_the_grace(pg_dsn: str) -> None:
    """H12: the caller is cancelled while a tool is busy; the tool returns, and that is recorded."""
    made = Busy()
    with Journal.open(pg_dsn) as journal:
        task = asyncio.create_task(refold.run(made.program, journal=journal, thread="t"))
        await asyncio.to_thread(made.entered.wait, SOON_S)
        task.cancel()
        await asyncio.sleep(0)
        made.leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert "tool_returned" in kinds(journal)
        assert journal.info("t").holder is None
        result = await refold.resume(made.program, journal=journal, thread="t")
        assert result.output == "acted in attempt 1"
        assert made.acted == [1]
        check(made.program, journal)


async def test_a_tool_that_outlives_its_cancelled_caller_cannot_write_and_is_not_run_again(
    pg_dsn: str,
) -> None:
    """H12: it finishes later; the log stays as it is, the inbox learns of it, and a resume takes it from there."""
    made = Busy()
    with Journal.open(pg_dsn) as journal, Journal.open(pg_dsn) as other:
        task = asyncio.create_task(
            refold.run(made.program, journal=journal, thread="t", limits=Limits(leave_grace_s=0.05))
        )
        await asyncio.to_thread(made.entered.wait, SOON_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert kinds(other)[-2:] == ["run_released", "tool_in_doubt"]
        head = other.info("t").head
        resumed = await refold.resume(made.program, journal=other, thread="t", wait=False)
        assert resumed.status in ("parked", "waiting")

        made.leave.set()
        while not other.inbox("t"):  # noqa: ASYNC110 - the journal knows no event loop
            await asyncio.sleep(0.005)
        assert "tool_returned" not in kinds(other)
        assert other.info("t").head >= head
        result = await refold.resume(made.program, journal=other, thread="t")

        assert result.output == "acted in attempt 1"
        assert made.acted == [1]
        check(made.program, other)


@pytest.mark.parametrize("hold_wait_s", [0.0, 5.0])
@pytest.mark.parametrize("policy", ["retry", "reconcile"])
@pytest.mark.parametrize("between", [0, 2])
async def test_a_tool_that_outlives_its_cancelled_caller_is_left_alone_until_its_time_is_over(
    pg_dsn: str, policy: str, hold_wait_s: float, between: int
) -> None:
    """No reconciler is asked and nothing is run again before start plus time-out: the tool may yet act."""
    asked: list[int] = []

    def look_up() -> Any:
        asked.append(len(made.acted))
        return DidNotHappen()

    flags: dict[str, Any] = {"idempotent": True} if policy == "retry" else {"in_doubt": look_up}
    made = Busy(timeout_s=1.5, **flags)
    with Journal.open(pg_dsn) as journal, Journal.open(pg_dsn) as other:
        task = asyncio.create_task(
            refold.run(made.program, journal=journal, thread="t", limits=Limits(leave_grace_s=0.05))
        )
        await asyncio.to_thread(made.entered.wait, SOON_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(between):
            looked = await refold.resume(
                made.program, journal=other, thread="t", wait=False, policy=Policy(hold_wait_s=0.0)
            )
            assert looked.status == "waiting"
        resumed = asyncio.create_task(
            refold.resume(
                made.program,
                journal=other,
                thread="t",
                policy=Policy(hold_wait_s=hold_wait_s),
                limits=Limits(poll_s=0.01),
            )
        )
        await asyncio.sleep(0.3)
        assert (made.acted, asked) == ([], [])
        made.leave.set()

        assert (await resumed).output == "acted in attempt 1"
        assert (made.acted, asked) == ([1], [])
        check(made.program, other)


@pytest.mark.parametrize("hold_wait_s", [0.0, 5.0])
async def test_a_call_left_alone_for_its_time_is_taken_up_when_that_is_over(
    pg_dsn: str, hold_wait_s: float
) -> None:
    """The tool never ends and nobody says anything: the clock moves the run on, whether it holds a lease or not."""
    made = Busy(timeout_s=1.0, idempotent=True)
    with Journal.open(pg_dsn) as journal, Journal.open(pg_dsn) as other:
        task = asyncio.create_task(
            refold.run(made.program, journal=journal, thread="t", limits=Limits(leave_grace_s=0.05))
        )
        await asyncio.to_thread(made.entered.wait, SOON_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # As in another process: nothing is known there of what runs here.
        effects._alive.clear()

        result = await refold.resume(
            made.program,
            journal=other,
            thread="t",
            policy=Policy(hold_wait_s=hold_wait_s),
            limits=Limits(poll_s=60.0),
        )

        assert result.output == "acted in attempt 2"
        made.leave.set()
        check(made.program, other)


async def test_no_reconciler_is_asked_while_the_tool_that_timed_out_still_runs_in_this_process(
    pg_dsn: str,
) -> None:
    """Its time is over and it may act yet: asked too soon, the outside world would say that nothing happened."""
    asked: list[list[int]] = []

    def look_up() -> Any:
        asked.append(list(made.acted))
        return Happened("as the world says") if made.acted else DidNotHappen()

    made = Busy(timeout_s=0.2, in_doubt=look_up)
    with Journal.open(pg_dsn) as journal:
        task = asyncio.create_task(refold.run(made.program, journal=journal, thread="t"))
        while "tool_in_doubt" not in kinds(journal):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert asked == []
        made.leave.set()

        assert (await task).output in ("as the world says", "acted in attempt 1")
        assert made.acted == [1]
        check(made.program, journal)


def test_a_result_is_recorded_even_if_the_event_loop_is_gone_when_its_append_comes_through(
    pg_dsn: str,
) -> None:
    """H10: the loop is closed while the append is on its way; it belongs to the journal, not to the caller."""
    made = Busy()
    with Journal.open(pg_dsn, lease_ttl_s=1.0) as journal:
        loop = asyncio.new_event_loop()
        task = loop.create_task(refold.run(made.program, journal=journal, thread="t"))
        loop.run_until_complete(loop.run_in_executor(None, made.entered.wait, SOON_S))
        with locked(pg_dsn):
            made.leave.set()
            with psycopg.connect(pg_dsn, autocommit=True) as look:
                while not look.execute(
                    "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                ).fetchall():
                    loop.run_until_complete(asyncio.sleep(0.005))
            # Not cancelled, not waited for: closed under its tasks.
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            for each in (task, *asyncio.all_tasks(loop)):
                each._log_destroy_pending = False
        del task, each
        gc.collect()

        # The journal goes on, the run is left as by a crash: its lease runs out, and somebody takes it up.
        until_s = time.monotonic() + SOON_S
        while True:
            try:
                result = asyncio.run(refold.resume(made.program, journal=journal, thread="t"))
                break
            except refold.ThreadBusy:
                assert time.monotonic() < until_s, "the lease of a run whose loop is gone is renewed for ever"
                time.sleep(0.1)
        assert result.output == "acted in attempt 1"
        assert made.acted == [1]
        assert kinds(journal).count("tool_returned") == 1
        check(made.program, journal)
