"""Appends on a real server whose connections break: each event is there exactly once, whatever was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from appends import Pen, check_whole, event, verify
from conftest import PostgresServer
from fault_proxy import Cut, FaultProxy
from refold.journal import postgres
from refold.journal.envelope import NewEvent, chain
from refold.journal.errors import RefoldError, StoreUnavailable, ThreadBusy
from refold.journal.journal import Journal
from refold.journal.postgres import PostgresStore
from refold.journal.statements import APPEND, append_params
from refold.journal.store import AppendResult, Fork, Outcome, Release, ThreadState
from refold.journal.tenure import Tenure

RUNNING = ThreadState.RUNNING
SOON_S = 30.0


@pytest.fixture
def journal(proxy: FaultProxy, database: str) -> Iterator[Journal]:
    with Journal.open(proxy.dsn(database)) as made:
        yield made


def write(tenure: Tenure, count: int = 1, **parts: Any) -> AppendResult:
    return tenure.append([event() for _ in range(count)], state=RUNNING, **parts).result(SOON_S)


@pytest.fixture
def row_lock(
    postgres_server: PostgresServer, database: str
) -> Iterator[Callable[[str], psycopg.Connection[Any]]]:
    """Another session that holds a thread's row, until its connection is rolled back."""
    connections: list[psycopg.Connection[Any]] = []

    def lock(thread: str) -> psycopg.Connection[Any]:
        connection = psycopg.connect(postgres_server.dsn(database))
        connections.append(connection)
        connection.execute("select from refold.threads where thread = %s for update", [thread])
        return connection

    yield lock
    for connection in connections:
        connection.close()


def wait_for_waiter(postgres_server: PostgresServer, database: str) -> int:
    """The process id of a backend that waits for a lock in *database*."""
    with postgres_server.admin(database) as admin:
        for _ in range(20_000):
            row = admin.execute(
                "select pid from pg_stat_activity where datname = %s and wait_event_type = 'Lock'", [database]
            ).fetchone()
            if row is not None:
                return int(str(row[0]))
    raise AssertionError("no backend waits for a lock")


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("count", [1, 3])
def test_an_append_whose_answer_was_lost_is_there_once(
    journal: Journal, proxy: FaultProxy, cut: Cut, count: int
) -> None:
    """H24: the answer to COMMIT is lost, or the message never arrived; one's own success is no conflict."""
    tenure = journal.acquire("the-thread")
    write(tenure, count)
    message = journal.send("the-thread", key="k", kind="signal", body=b"").message
    proxy.arm(cut, "the-thread")

    result = write(tenure, count, consumed=[message.id])

    assert proxy.cut.is_set()
    allowed = {Outcome.APPENDED} if cut is Cut.BEFORE else {Outcome.DUPLICATE}
    assert result.outcome in (allowed if cut is not Cut.DURING else {Outcome.APPENDED, Outcome.DUPLICATE})
    assert result.head == tenure.head == 2 * count
    write(tenure, count)
    check_whole(journal, "the-thread", 3 * count)
    assert [each.consumed_seq for each in journal.inbox("the-thread", consumed=True)] == [2 * count]


@pytest.mark.parametrize("cut", list(Cut))
def test_a_group_whose_answer_was_lost_is_there_once(
    journal: Journal,
    proxy: FaultProxy,
    postgres_server: PostgresServer,
    database: str,
    row_lock: Callable[[str], psycopg.Connection[Any]],
    cut: Cut,
) -> None:
    blocker = journal.acquire("blocker")
    tenures = [journal.acquire(f"member-{number}") for number in range(20)]
    for tenure in (blocker, *tenures):
        write(tenure)
    # While the writer waits for this row, the others gather behind it.
    holder = row_lock("blocker")
    first = blocker.append([event()], state=RUNNING)
    wait_for_waiter(postgres_server, database)
    proxy.arm(cut, "member-7")
    futures = [tenure.append([event(), event()], state=RUNNING) for tenure in tenures]
    holder.rollback()

    results = [future.result(SOON_S) for future in futures]

    assert proxy.cut.is_set()
    assert first.result(SOON_S).outcome is Outcome.APPENDED
    assert {result.head for result in results} == {3}
    for tenure in tenures:
        write(tenure)
        check_whole(journal, tenure.thread, 4)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("appends", [True, False])
def test_a_group_that_waited_for_a_row_goes_by_what_it_then_finds(
    postgres_server: PostgresServer, database: str, ends: str, appends: bool
) -> None:
    """The other transaction makes the very append of the group, or renews the lease."""
    dsn = postgres_server.dsn(database)
    store = PostgresStore.open(dsn)
    pens = [Pen(store, thread) for thread in ("a", "b", "c")]
    group = [pens[0].next(), pens[1].next([event(), event()]), pens[2].next()]
    results: list[AppendResult] = []
    with psycopg.connect(dsn) as other:
        if appends:
            other.execute(APPEND, append_params(group[2]))
        else:
            other.execute("select refold.renew('c', %s, 9)", [pens[2].fence])
        sender = threading.Thread(target=lambda: results.extend(store.append_many(group)))
        sender.start()
        wait_for_waiter(postgres_server, database)
        getattr(other, ends)()
    sender.join(SOON_S)

    last = Outcome.DUPLICATE if appends and ends == "commit" else Outcome.APPENDED
    assert [(each.outcome, each.head) for each in results] == [
        (Outcome.APPENDED, 1),
        (Outcome.APPENDED, 2),
        (last, 1),
    ]
    for pen in pens:
        verify(store.read(pen.thread))
    store.close()


def test_a_zombies_append_and_its_retry_make_one_event(
    journal: Journal,
    proxy: FaultProxy,
    postgres_server: PostgresServer,
    database: str,
    row_lock: Callable[[str], psycopg.Connection[Any]],
) -> None:
    """The client is cut off while the backend waits for the row; backend and retry then race for it."""
    tenure = journal.acquire("a")
    for _ in range(5):
        write(tenure)
        holder = row_lock("a")
        proxy.arm(Cut.DURING, "thing_happened")
        future = tenure.append([event()], state=RUNNING)
        assert proxy.cut.wait(SOON_S)
        wait_for_waiter(postgres_server, database)
        holder.rollback()

        assert future.result(SOON_S).head == tenure.head
    check_whole(journal, "a", 10)


def test_a_backend_terminated_during_an_append_costs_a_retry(
    journal: Journal,
    postgres_server: PostgresServer,
    database: str,
    row_lock: Callable[[str], psycopg.Connection[Any]],
) -> None:
    """H22 (c)."""
    tenure = journal.acquire("a")
    write(tenure)
    holder = row_lock("a")
    future = tenure.append([event()], state=RUNNING)
    pid = wait_for_waiter(postgres_server, database)
    with postgres_server.admin() as admin:
        admin.execute("select pg_terminate_backend(%s)", [pid])
    holder.rollback()

    assert future.result(SOON_S).outcome is Outcome.APPENDED
    check_whole(journal, "a", 2)


def test_connections_cut_while_idle_are_replaced(
    journal: Journal, postgres_server: PostgresServer, database: str
) -> None:
    """H22 (a, b): the connection idles during a long model call and is cut by server or pooler."""
    tenure = journal.acquire("a")
    write(tenure)
    for _ in range(2):
        with postgres_server.admin() as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database]
            )

        assert write(tenure).outcome is Outcome.APPENDED
        assert journal.info("a").head == tenure.head
    check_whole(journal, "a", 3)


def test_a_locked_row_holds_up_its_own_thread_and_no_other(
    journal: Journal, row_lock: Callable[[str], psycopg.Connection[Any]]
) -> None:
    stuck, free = journal.acquire("stuck"), journal.acquire("free")
    write(stuck)
    holder = row_lock("stuck")
    waiting = stuck.append([event()], state=RUNNING)
    for _ in range(3):
        write(free)
    assert not waiting.done()
    holder.rollback()

    assert waiting.result(SOON_S).head == 2
    check_whole(journal, "free", 3)


def test_an_append_made_while_the_server_is_away_is_held_until_it_is_back(
    journal: Journal, postgres_server: PostgresServer
) -> None:
    """H22: the server stops as in a crash and comes back; the finished result is not lost and not repeated."""
    tenure = journal.acquire("a")
    for _ in range(10):
        write(tenure)
    postgres_server.stop(immediately=True)
    try:
        future = tenure.append([event(b"held")], state=RUNNING)
        with pytest.raises(TimeoutError):
            future.result(0.3)
    finally:
        postgres_server.start()

    assert future.result(SOON_S).head == 11
    check_whole(journal, "a", 11)
    assert journal.read("a")[-1].body == b"held"
    assert tenure.release() is Release.RELEASED


def test_after_hold_s_the_append_fails_and_the_tenure_with_it(proxy: FaultProxy, database: str) -> None:
    with Journal.open(proxy.dsn(database), hold_s=0.2) as journal:
        tenure = journal.acquire("a")
        write(tenure)
        proxy.refuse()

        future = tenure.append([event()], state=RUNNING)

        assert isinstance(future.exception(SOON_S), StoreUnavailable)
        assert isinstance(tenure.append([event()], state=RUNNING).exception(0), StoreUnavailable)
        proxy.accept()
        # Other threads go on, and the lease runs out by itself.
        write(journal.acquire("b"))
        check_whole(journal, "a", 1)


def test_a_server_that_hangs_is_given_up_and_asked_over_another_connection(
    journal: Journal, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover from a primary that stands still with all its sockets open, where no TCP time-out helps."""
    tenure = journal.acquire("a")
    write(tenure)
    monkeypatch.setattr(postgres, "ANSWER_S", 0.2)

    proxy.mute()
    assert write(tenure).outcome is Outcome.APPENDED
    proxy.mute()
    assert journal.info("a").head == 2
    proxy.mute()
    assert journal.renew(tenure)
    check_whole(journal, "a", 2)


def test_a_transaction_on_a_server_that_hangs_is_made_over_another_connection(
    journal: Journal, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenure = journal.acquire("a")
    monkeypatch.setattr(postgres, "ANSWER_S", 0.2)
    steps = iter(["hang before the work", "hang after the work"])

    def make(connection: Any) -> NewEvent:
        step = next(steps, "work")
        if step != "work":
            proxy.mute()
        if step != "hang after the work":
            connection.execute("select 1")
        return event(step.encode())

    assert tenure.transact(make, limit_s=0.1).body == b"work"
    check_whole(journal, "a", 1)


def test_a_lease_that_could_not_be_given_back_is_taken_again_at_once_by_the_same_journal(
    proxy: FaultProxy, database: str
) -> None:
    with (
        Journal.open(proxy.dsn(database), hold_s=0.2, patience_s=0.1) as journal,
        Journal.open(proxy.dsn(database)) as stranger,
    ):
        tenure = journal.acquire("a")
        write(tenure)
        proxy.refuse()
        assert isinstance(tenure.append([event()], state=RUNNING).exception(SOON_S), StoreUnavailable)
        assert not tenure.renewable(0.0)
        with pytest.raises(StoreUnavailable):
            tenure.release()
        proxy.accept()

        with pytest.raises(ThreadBusy):
            stranger.acquire("a")
        again = journal.acquire("a")

        assert again.fence == tenure.fence + 1
        write(again)
        check_whole(journal, "a", 2)
        with pytest.raises(ThreadBusy):
            journal.acquire("a")


@pytest.mark.parametrize("cut", list(Cut))
def test_acquire_send_and_release_survive_a_lost_answer(
    journal: Journal, proxy: FaultProxy, cut: Cut
) -> None:
    journal.create("a")
    proxy.arm(cut, "a")
    tenure = journal.acquire("a")
    assert tenure.fence == 1
    proxy.arm(cut, "the-key")
    sent = journal.send("a", key="the-key", kind="signal", body=b"1")
    proxy.arm(cut, "release")
    assert tenure.release(seen=sent.message.id) is Release.RELEASED

    assert [message.key for message in journal.inbox("a")] == ["the-key"]
    assert journal.info("a").holder is None


@pytest.mark.parametrize("cut", list(Cut))
def test_a_fork_whose_answer_was_lost_is_there_once(journal: Journal, proxy: FaultProxy, cut: Cut) -> None:
    tenure = journal.acquire("a")
    write(tenure, 3)
    own = event(kind="forked_here")
    digest = chain(tenure.head_hash, 4, own)
    proxy.arm(cut, "forked_here")

    assert journal.fork(
        Fork(
            thread="b",
            origin="a",
            upto=3,
            upto_hash=tenure.head_hash,
            events=(own,),
            hashes=(digest,),
            state=RUNNING,
            messages=(("k", "signal", b"1"),),
        )
    )
    check_whole(journal, "b", 4)
    assert [message.key for message in journal.inbox("b")] == ["k"]


def test_one_bad_append_does_not_take_its_group_down(
    journal: Journal,
    postgres_server: PostgresServer,
    database: str,
    row_lock: Callable[[str], psycopg.Connection[Any]],
) -> None:
    blocker, good, bad = (journal.acquire(name) for name in ("blocker", "good", "bad"))
    write(blocker)
    holder = row_lock("blocker")
    first = blocker.append([event()], state=RUNNING)
    wait_for_waiter(postgres_server, database)
    # A time PostgreSQL cannot hold: refused by the server, with the whole call.
    wrong = bad.append([event()], state=RUNNING, wake_at_us=2**63 - 1)
    right = good.append([event()], state=RUNNING)
    holder.rollback()

    assert right.result(SOON_S).outcome is Outcome.APPENDED
    assert first.result(SOON_S).outcome is Outcome.APPENDED
    assert isinstance(wrong.exception(SOON_S), RefoldError)
    assert journal.read("bad") == []


def test_many_threads_of_one_process_append_at_once(journal: Journal) -> None:
    tenures = [journal.acquire(f"t{number}") for number in range(16)]

    def work(tenure: Tenure) -> None:
        for _ in range(20):
            write(tenure)

    threads = [threading.Thread(target=work, args=(tenure,)) for tenure in tenures]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for tenure in tenures:
        check_whole(journal, tenure.thread, 20)
