"""Giving the lease back stands between nobody and what happened: no result, error or cancellation waits for it long."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import refold
from refold import Agent, Journal, Run, ScriptedModel, ThreadBusy, answers, program, tool
from refold.agent.scripted import say
from refold.agent.streaming import RunEnded
from refold.journal.errors import StoreUnavailable
from refold.journal.memory import MemoryStore
from refold.journal.sources import Sources
from refold.journal.store import Append, AppendResult, Lease, Release
from refold.replay import runner as runner_module
from refold.replay.live import Limits
from refold.replay.runner import read_all

SOON_S = 20.0


class TroubledStore(MemoryStore):
    """A store that can be away, or keep those who give a lease back or take one waiting."""

    def __init__(self) -> None:
        super().__init__(Sources())
        self.away = threading.Event()
        self.no_release = False
        self.let_release = threading.Event()
        self.let_release.set()
        self.asked_release = threading.Event()
        self.answers: list[Release] = []
        self.let_grant = threading.Event()
        self.let_grant.set()
        self.granted = threading.Event()

    def append(self, append: Append) -> AppendResult:
        if self.away.is_set():
            raise StoreUnavailable("away")
        return super().append(append)

    def release(self, thread: str, *, fence: int, seen: int) -> Release:
        self.asked_release.set()
        if self.no_release or self.away.is_set():
            raise StoreUnavailable("away")
        assert self.let_release.wait(SOON_S)
        self.answers.append(super().release(thread, fence=fence, seen=seen))
        return self.answers[-1]

    def acquire(self, *args: Any, **parts: Any) -> Any:
        if self.away.is_set():
            raise StoreUnavailable("away")
        granted = super().acquire(*args, **parts)
        if isinstance(granted, Lease):
            self.granted.set()
            assert self.let_grant.wait(SOON_S)
        return granted


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore()


@pytest.fixture
def journal(store: TroubledStore) -> Iterator[Journal]:
    with Journal(store) as made:
        yield made


@pytest.fixture
def hasty(store: TroubledStore) -> Iterator[Journal]:
    """A journal that soon gives up what the store does not take."""
    with Journal(store, patience_s=0.1) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "GIVE_BACK_WAIT_S", 0.05)


def kinds(journal: Journal) -> list[str]:
    return [event.kind for event in read_all(journal, "t")]


@tool
def pay() -> str:
    """Pay."""
    return "paid"


@tool(approval=True)
def sign() -> str:
    """Sign."""
    return "signed"


@program
async def pays(run: Run) -> Any:
    """Pay once."""
    return await run.tool(pay)


@program
async def waits(run: Run) -> Any:
    """Wait for a word."""
    return await run.wait_for("go")


@program
async def signs(run: Run) -> Any:
    """Have something signed."""
    return await run.tool(sign)


@program
async def fails(run: Run) -> Any:
    """Fail after a payment."""
    await run.tool(pay)
    raise ValueError("wrong")


@program
async def strays(run: Run) -> Any:
    """Await what is no command, after a payment."""
    await run.tool(pay)
    await asyncio.sleep(1)


async def streamed(journal: Journal) -> Any:
    agent = Agent("pays", model=ScriptedModel([say("paid")]))
    return [event async for event in agent.stream("x", journal=journal, thread="t")][-1]


@pytest.mark.parametrize(
    "runs, status",
    [(pays, "finished"), (waits, "waiting"), (signs, "waiting")],
    ids=["ends", "waits", "asks"],
)
async def test_a_result_is_returned_though_its_lease_cannot_be_given_back(
    store: TroubledStore, hasty: Journal, caplog: pytest.LogCaptureFixture, runs: Any, status: str
) -> None:
    store.no_release = True

    with caplog.at_level(logging.WARNING, logger="refold.journal"):
        result = await refold.run(runs, journal=hasty, thread="t", wait=False)

    assert result.status == status
    assert "lease of thread 't'" in caplog.text
    assert hasty.info("t").held


async def test_a_stream_ends_with_its_result_though_the_lease_cannot_be_given_back(
    store: TroubledStore, hasty: Journal
) -> None:
    store.no_release = True

    last = await streamed(hasty)

    assert isinstance(last, RunEnded)
    assert last.result.output == "paid"


@pytest.mark.parametrize("runs, error", [(fails, refold.RunFailed), (strays, refold.ForeignAwait)])
async def test_an_error_is_raised_as_it_is_though_the_lease_cannot_be_given_back(
    store: TroubledStore, hasty: Journal, runs: Any, error: type[Exception]
) -> None:
    store.no_release = True

    with pytest.raises(error):
        await refold.run(runs, journal=hasty, thread="t")


async def test_a_thread_whose_lease_could_not_be_given_back_is_taken_again_at_once_by_the_same_process(
    store: TroubledStore, hasty: Journal
) -> None:
    store.no_release = True
    first = await refold.run(pays, journal=hasty, thread="t", key="k")
    store.no_release = False

    again = await refold.run(pays, journal=hasty, thread="t", key="k")

    assert again.run_id == first.run_id
    assert kinds(hasty).count("tool_started") == 1


@pytest.mark.usefixtures("impatient")
async def test_a_store_that_does_not_answer_a_release_holds_the_result_up_for_a_bounded_time(
    store: TroubledStore, journal: Journal
) -> None:
    store.let_release.clear()
    try:
        result = await asyncio.wait_for(refold.run(pays, journal=journal, thread="t"), SOON_S / 2)
        assert result.output == "paid"
        assert journal.info("t").held
    finally:
        store.let_release.set()

    # Whoever comes next in this process waits for the lease that is on its way.
    assert (await refold.run(pays, "other", journal=journal, thread="t")).status == "finished"
    assert not journal.info("t").held


async def test_run_returns_when_the_lease_is_back_if_the_store_answers(journal: Journal) -> None:
    await refold.run(pays, journal=journal, thread="t")
    assert not journal.info("t").held

    begun = asyncio.Event()

    @tool
    async def hangs() -> None:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()

    @program
    async def hanging(run: Run) -> Any:
        return await run.tool(hangs)

    limits = Limits(leave_grace_s=0.0)
    running = asyncio.create_task(refold.run(hanging, journal=journal, thread="t", limits=limits))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not journal.info("t").held


@pytest.fixture
async def outage(store: TroubledStore) -> AsyncIterator[Callable[[], Any]]:
    """A program with a tool that returns when the store has gone."""

    @tool
    def acts() -> str:
        """Act."""
        store.away.set()
        return "acted"

    @program
    async def acting(run: Run) -> Any:
        first = await run.tool(acts)
        return [first, await run.wait_for("go")]

    yield lambda: acting
    store.away.clear()


@pytest.mark.usefixtures("impatient")
async def test_a_time_out_in_an_outage_ends_the_call_with_a_time_out_and_loses_nothing(
    store: TroubledStore, journal: Journal, outage: Callable[[], Any]
) -> None:
    limits = Limits(leave_grace_s=0.0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await refold.run(outage(), journal=journal, thread="t", limits=limits)
    assert "tool_returned" not in kinds(journal)

    store.away.clear()
    answers.signal(journal, "t", "go", b'"on"', by="test")
    # The lease is on its way back with what was under way, and is waited for.
    result = await refold.resume(outage(), journal=journal, thread="t", limits=limits)

    assert result.output == ["acted", "on"]
    assert kinds(journal).count("tool_started") == kinds(journal).count("tool_returned") == 1


@pytest.mark.usefixtures("impatient")
async def test_a_task_group_that_is_cancelled_in_an_outage_sees_no_failure_of_the_run(
    store: TroubledStore, journal: Journal, outage: Callable[[], Any]
) -> None:
    class Enough(Exception):
        pass

    async def other() -> None:
        await asyncio.to_thread(store.away.wait)
        raise Enough

    async def both() -> None:
        limits = Limits(leave_grace_s=0.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(refold.run(outage(), journal=journal, thread="t", limits=limits))
            group.create_task(other())

    with pytest.raises(ExceptionGroup) as raised:
        await both()

    assert [type(each) for each in raised.value.exceptions] == [Enough]


@pytest.mark.usefixtures("impatient")
async def test_closing_the_journal_sees_the_leases_on_their_way_back_through_and_leaves_no_thread(
    store: TroubledStore, outage: Callable[[], Any]
) -> None:
    before = set(threading.enumerate())
    journal = Journal(store)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await refold.run(outage(), journal=journal, thread="t", limits=Limits(leave_grace_s=0.0))
    store.let_release.clear()
    store.away.clear()
    closing = asyncio.create_task(asyncio.to_thread(journal.close))
    await asyncio.to_thread(store.asked_release.wait, SOON_S)
    assert store.answers == []

    store.let_release.set()
    await closing

    assert store.answers == [Release.RELEASED]
    left = [each.name for each in set(threading.enumerate()) - before if each.name.startswith("refold")]
    assert left == []


async def test_a_caller_cancelled_while_it_takes_the_thread_is_in_nobodys_way(
    store: TroubledStore, journal: Journal
) -> None:
    """The lease was granted, and the answer is on its way to somebody who has gone."""
    journal.create("t")
    store.let_grant.clear()
    gone = asyncio.create_task(refold.run(pays, journal=journal, thread="t"))
    await asyncio.to_thread(store.granted.wait, SOON_S)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone

    next_one = asyncio.create_task(refold.run(pays, journal=journal, thread="t"))
    await asyncio.sleep(0)
    with pytest.raises(ThreadBusy):
        Journal(store).acquire("t")
    store.let_grant.set()

    assert (await next_one).run_id == "r1"


async def test_a_taking_whose_caller_has_gone_before_it_looked_whom_to_wait_for_does_not_wait_for_itself(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, look = threading.Event(), threading.Event()
    acquire, took = Journal.acquire, threading.Event()

    def late(self: Journal, thread: str, **how: Any) -> Any:
        first = not asked.is_set()
        asked.set()
        assert look.wait(SOON_S)
        tenure = acquire(self, thread, **how)
        if first:
            took.set()
        return tenure

    monkeypatch.setattr(Journal, "acquire", late)
    gone = asyncio.create_task(refold.run(pays, journal=journal, thread="t"))
    await asyncio.to_thread(asked.wait, SOON_S)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    look.set()

    # Half of what it would wait for itself.
    assert await asyncio.to_thread(took.wait, 7.0)
    assert (await refold.run(pays, journal=journal, thread="t")).status == "finished"
