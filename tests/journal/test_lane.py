"""Appends that an event loop carries itself: none is lost or made twice, whatever becomes of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from appends import check_whole, event
from conftest import PostgresServer
from fault_proxy import Cut, FaultProxy
from refold.journal.journal import Journal
from refold.journal.lane import ABANDONED_S, BYTES_MAX
from refold.journal.sources import Sources
from refold.journal.store import AppendResult, Outcome, ThreadState
from refold.journal.tenure import Tenure

RUNNING = ThreadState.RUNNING
SOON_S = 30.0


@pytest.fixture
def journal(proxy: FaultProxy, database: str) -> Iterator[Journal]:
    with Journal.open(proxy.dsn(database)) as made:
        yield made


class Clock(Sources):
    """The system's, and as much ahead of it as it is told."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def send(tenure: Tenure, count: int = 1, **parts: Any) -> Future[AppendResult]:
    """Append from the running loop."""
    loop = asyncio.get_running_loop()
    return tenure.append([event() for _ in range(count)], state=RUNNING, loop=loop, **parts)


async def write(tenure: Tenure, count: int = 1, **parts: Any) -> AppendResult:
    return await asyncio.wait_for(asyncio.wrap_future(send(tenure, count, **parts)), SOON_S)


def calls(journal: Journal) -> int:
    """How many calls loops have sent for this journal."""
    return sum(lane.calls for lane in journal._writer._loops.values())


def lock_row(postgres_server: PostgresServer, database: str, thread: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(postgres_server.dsn(database))
    connection.execute("select from refold.threads where thread = %s for update", [thread])
    return connection


def told_on(future: Future[AppendResult]) -> list[int]:
    """The id of the thread that told the future's result, once it has."""
    told: list[int] = []
    future.add_done_callback(lambda _: told.append(threading.get_ident()))
    return told


def test_a_running_loop_carries_its_appends_whatever_their_form(journal: Journal) -> None:
    tenure = journal.acquire("t")
    message = journal.send("t", key="k", kind="signal", body=b"").message

    async def go() -> None:
        await write(tenure)
        for count, parts in (
            (1, {}),
            (2, {}),
            (3, {}),
            (1, {"consumed": [message.id]}),
            (1, {"wake_at_us": 7}),
        ):
            future = send(tenure, count, **parts)
            told = told_on(future)
            result = await asyncio.wait_for(asyncio.wrap_future(future), SOON_S)
            assert (result.outcome, result.head) == (Outcome.APPENDED, tenure.head)
            assert told == [threading.get_ident()]
        assert calls(journal) == 6

    asyncio.run(go())
    check_whole(journal, "t", 9)
    assert journal.inbox("t") == []
    assert journal.info("t").wake_at_us == 7


def test_what_waits_in_a_loop_goes_out_in_one_call_each_with_its_own_answer(journal: Journal) -> None:
    names = ["é", "b", "a", "c"]
    tenures = [journal.acquire(name) for name in names]

    async def go() -> None:
        await write(tenures[0])
        await write(tenures[0])
        journal.acquire("a", steal=True)
        before = calls(journal)
        futures = [asyncio.wrap_future(send(each, 2)) for each in tenures]
        fates = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(fate).__name__ for fate in fates] == [
            "AppendResult",
            "AppendResult",
            "LeaseLost",
            "AppendResult",
        ]
        assert calls(journal) == before + 2

    asyncio.run(go())
    assert [journal.info(name).head for name in names] == [4, 2, 0, 2]
    check_whole(journal, "é", 4)


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_append_whose_answer_a_loop_lost_is_there_once(
    journal: Journal, proxy: FaultProxy, cut: Cut, count: int
) -> None:
    tenure = journal.acquire("the-thread")

    async def go() -> None:
        await write(tenure, count)
        await write(tenure, count)
        assert calls(journal) == 2
        proxy.arm(cut, "the-thread")
        result = await write(tenure, count)
        assert proxy.cut.is_set()
        assert result.head == tenure.head == 3 * count
        # And the loop finds another connection.
        await write(tenure, count)
        await write(tenure, count)
        assert calls(journal) > 3

    asyncio.run(go())
    check_whole(journal, "the-thread", 5 * count)


def test_a_connection_that_died_while_idle_costs_no_append(
    journal: Journal, postgres_server: PostgresServer, database: str
) -> None:
    tenure = journal.acquire("t")

    async def go() -> None:
        await write(tenure)
        await write(tenure)
        with postgres_server.admin(database) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        await write(tenure)

    asyncio.run(go())
    check_whole(journal, "t", 3)


def test_an_append_outlives_the_loop_that_sent_it(journal: Journal) -> None:
    """Closing the loop while the answer is awaited takes nothing away: somebody else hears it."""
    tenure = journal.acquire("t")
    futures: list[Future[AppendResult]] = []

    async def go() -> None:
        await write(tenure)
        await write(tenure)
        futures.append(send(tenure))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(go())
    loop.close()
    result = futures[0].result(SOON_S)
    assert (result.outcome in (Outcome.APPENDED, Outcome.DUPLICATE), result.head) == (True, 3)
    assert tenure.append([event()], state=RUNNING).result(SOON_S).head == 4
    check_whole(journal, "t", 4)


def test_an_append_held_up_at_the_server_outlives_its_loop_too(
    journal: Journal, postgres_server: PostgresServer, database: str
) -> None:
    tenure = journal.acquire("t")
    futures: list[Future[AppendResult]] = []

    async def go() -> psycopg.Connection[Any]:
        await write(tenure)
        await write(tenure)
        lock = lock_row(postgres_server, database, "t")
        futures.append(send(tenure))
        return lock

    lock = asyncio.run(go())
    lock.close()
    assert futures[0].result(SOON_S).head == 3
    check_whole(journal, "t", 3)


def test_appends_under_way_in_a_loop_are_recorded_when_the_journal_is_closed_in_it(
    proxy: FaultProxy, database: str
) -> None:
    thread = "t"

    async def go() -> list[Future[AppendResult]]:
        journal = Journal.open(proxy.dsn(database))
        tenures = [journal.acquire(f"{thread}{n}") for n in range(3)]
        await write(tenures[0])
        await write(tenures[0])
        futures = [send(each) for each in tenures]
        # The loop stands still until they are all known to be there.
        journal.close()
        return futures

    futures = asyncio.run(go())
    assert [future.result(0).head for future in futures] == [3, 1, 1]


def test_a_callback_that_is_interrupted_costs_the_others_nothing(journal: Journal) -> None:
    """A second Ctrl-C can strike while the loop tells one of its appends: the next are told all the same."""
    tenures = [journal.acquire(name) for name in "abc"]
    futures: list[Future[AppendResult]] = []

    class Struck(KeyboardInterrupt):
        pass

    async def go() -> None:
        await write(tenures[0])
        await write(tenures[0])
        send(tenures[0])
        futures.extend(send(each) for each in tenures[1:])

        (lane,) = journal._writer._loops.values()
        first = lane._queue[0]
        settle = first.settle

        def struck(fate: AppendResult | BaseException, sent_s: float) -> None:
            settle(fate, sent_s)
            raise Struck

        first.settle = struck
        await asyncio.sleep(SOON_S)

    loop = asyncio.new_event_loop()
    task = loop.create_task(go())
    with pytest.raises(Struck):
        loop.run_until_complete(task)
    assert [future.result(SOON_S).head for future in futures] == [1, 1]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    for name, head in (("a", 3), ("b", 1), ("c", 1)):
        check_whole(journal, name, head)


def test_an_answer_that_a_busy_loop_leaves_unread_is_heard_by_somebody_else(
    proxy: FaultProxy, database: str
) -> None:
    clock = Clock()
    with Journal.open(proxy.dsn(database), sources=clock) as journal:
        tenure = journal.acquire("t")

        async def go() -> AppendResult:
            await write(tenure)
            await write(tenure)
            future = send(tenure)
            clock.ahead_s = ABANDONED_S + 1
            # Nothing of the loop runs while it waits here.
            return future.result(SOON_S)

        assert asyncio.run(go()).head == 3
        check_whole(journal, "t", 3)


def test_a_large_append_does_not_hold_the_loop_up(journal: Journal) -> None:
    tenure = journal.acquire("t")

    async def go() -> None:
        await write(tenure)
        await write(tenure)
        before = calls(journal)
        future = tenure.append(
            [event(body=b"x" * (BYTES_MAX + 1))], state=RUNNING, loop=asyncio.get_running_loop()
        )
        told = told_on(future)
        await asyncio.wrap_future(future)
        assert calls(journal) == before
        assert told != [threading.get_ident()]

    asyncio.run(go())
    check_whole(journal, "t", 3)


@pytest.mark.parametrize("beside", [0, 1])
def test_an_append_larger_than_the_socket_takes_at_once_is_carried_whole(
    journal: Journal, beside: int
) -> None:
    """Also as the first of its form on a connection, when its statement has yet to be prepared."""
    tenure = journal.acquire("t")

    async def go() -> None:
        await write(tenure)
        await write(tenure)
        before = calls(journal)
        batch = [event(body=b"x" * (BYTES_MAX - 2)), *(event() for _ in range(beside))]
        future = tenure.append(batch, state=RUNNING, loop=asyncio.get_running_loop())
        told = told_on(future)
        await asyncio.wait_for(asyncio.wrap_future(future), SOON_S)
        assert calls(journal) == before + 1
        assert told == [threading.get_ident()]

    asyncio.run(go())
    check_whole(journal, "t", 3 + beside)


def test_loops_one_after_another_use_one_connection_in_turn(journal: Journal, database: str) -> None:
    tenure = journal.acquire("t")

    async def go() -> None:
        for _ in range(3):
            await write(tenure)

    asyncio.run(go())
    for _ in range(5):
        asyncio.run(go())
    assert len(journal._writer._loops) <= 2
    assert len(journal.store._lines._idle) <= 2  # type: ignore[attr-defined]
    check_whole(journal, "t", 18)


def test_two_loops_in_two_threads_do_not_wait_for_each_other(
    journal: Journal, postgres_server: PostgresServer, database: str
) -> None:
    tenures = {name: journal.acquire(name) for name in ("held", "free")}
    started, done = threading.Event(), threading.Event()
    waiting: list[Future[AppendResult]] = []

    async def held() -> None:
        await write(tenures["held"])
        await write(tenures["held"])
        with lock_row(postgres_server, database, "held"):
            future = send(tenures["held"])
            waiting.append(future)
            started.set()
            assert await asyncio.to_thread(done.wait, SOON_S)
        await asyncio.wait_for(asyncio.wrap_future(future), SOON_S)

    async def free() -> None:
        for _ in range(3):
            await write(tenures["free"])

    def run(go: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=lambda: asyncio.run(go()))
        thread.start()
        return thread

    first = run(held)
    assert started.wait(SOON_S)
    second = run(free)
    second.join(SOON_S)
    done.set()
    first.join(SOON_S)
    assert not first.is_alive()
    assert waiting[0].result(0).head == 3
    check_whole(journal, "held", 3)
    check_whole(journal, "free", 3)
