"""A journal's connections to a real server: none that has gone stale is kept, and the journal never starves itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import refold
from appends import check_whole, event
from conftest import PostgresServer
from psycopg import sql
from psycopg.conninfo import make_conninfo
from refold import Journal, Run, StoreUnavailable, ToolContext, program, tool
from refold.journal.lines import Lines
from refold.journal.postgres import PostgresStore
from refold.journal.store import Append, Outcome, ThreadState

RUNNING = ThreadState.RUNNING
SOON_S = 20.0


def until(true: Callable[[], bool], admin: psycopg.Connection[tuple[object, ...]]) -> None:
    for _ in range(20_000):
        if true():
            return
        admin.execute("select pg_sleep(0.001)")
    raise AssertionError("it did not come to pass")


def read_only(admin: psycopg.Connection[tuple[object, ...]], database: str, setting: str) -> None:
    """What new sessions of the database are told; those there are end, if it takes no writes any more."""
    admin.execute(
        sql.SQL("alter database {} set default_transaction_read_only = {}").format(
            sql.Identifier(database), sql.Literal(setting)
        )
    )
    if setting == "on":
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])


def test_an_append_held_while_the_database_was_read_only_is_made_when_it_is_writable_again(
    postgres_server: PostgresServer, database: str
) -> None:
    """A session goes by what it was told when it began: those made meanwhile are of no use afterwards."""
    with Journal.open(postgres_server.dsn(database)) as journal, postgres_server.admin() as admin:
        tenure = journal.acquire("t")
        tenure.append([event()], state=RUNNING).result(SOON_S)
        read_only(admin, database, "on")
        held = tenure.append([event(b"held")], state=RUNNING)
        until(lambda: journal._writer._outage >= 3, admin)
        read_only(admin, database, "off")

        assert held.result(SOON_S).outcome is Outcome.APPENDED
        check_whole(journal, "t", 2)


def test_calls_refused_while_the_database_was_read_only_leave_no_connection_behind(
    postgres_server: PostgresServer, database: str
) -> None:
    store = PostgresStore.open(postgres_server.dsn(database))
    with postgres_server.admin() as admin:
        read_only(admin, database, "on")
        lines = [store._lines.take(urgent=True) for _ in range(3)]
        for line in lines:
            store._lines.give_back(line)
        with pytest.raises(StoreUnavailable):
            store.create("t")
        read_only(admin, database, "off")

        assert store.create("t")
    store.close()


def test_a_transaction_in_a_session_that_may_only_read_is_not_begun(pg_dsn: str) -> None:
    """As on a standby: what the work would meet there says nothing of the work."""
    store = PostgresStore.open(make_conninfo(pg_dsn, options="-c default_transaction_read_only=on"))

    def work(connection: object) -> Append:
        raise AssertionError("not to be called")

    with pytest.raises(StoreUnavailable) as caught:
        store.transact(work, limit_s=10.0)
    assert not caught.value.ambiguous
    store.close()


@pytest.fixture
def scarce_dsn(
    postgres_server: PostgresServer, database: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The database as a role that gets so many connections and no more."""
    role = f"{database}_scarce"
    with postgres_server.admin(database) as admin:
        admin.execute(
            sql.SQL("create role {} login connection limit {}").format(
                sql.Identifier(role), sql.Literal(request.param)
            )
        )
        admin.execute(sql.SQL("grant refold_app to {}").format(sql.Identifier(role)))
        admin.execute("create table public.ledger (amount int)")
        admin.execute("grant select, insert on public.ledger to public")
    yield make_conninfo(postgres_server.dsn(database), user=role)
    with postgres_server.admin(database) as admin:
        admin.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.mark.parametrize("scarce_dsn", [2, 8], indirect=True)
def test_a_crowd_of_readers_leaves_a_connection_to_the_writer(
    scarce_dsn: str, postgres_server: PostgresServer, database: str
) -> None:
    with (
        Journal.open(scarce_dsn, hold_s=5.0) as journal,
        ThreadPoolExecutor(16) as readers,
        postgres_server.admin() as admin,
    ):
        tenure = journal.acquire("t")
        # As after an outage: nobody has a connection yet.
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
        assert all(readers.map(lambda _: journal.threads(), range(100)))

        assert tenure.append([event()], state=RUNNING).result(SOON_S).head == 1
        reading = [readers.submit(journal.threads) for _ in range(200)]
        for head in range(2, 10):
            assert tenure.append([event()], state=RUNNING).result(SOON_S).head == head
        assert all(each.result(SOON_S) for each in reading)
        assert journal.renew(tenure)


@tool
async def look(amount: int) -> int:
    """Look."""
    return amount


@tool(transactional=True)
def book(amount: int, context: ToolContext) -> int:
    """Book."""
    context.connection.execute("insert into public.ledger (amount) values (%s)", (amount,))
    return amount


@program
async def looks_and_books(run: Run, amounts: list[int]) -> list[int]:
    return await run.gather(*(run.tool(look, amount) for amount in amounts), run.tool(book, 7))


@pytest.mark.parametrize("scarce_dsn", [2], indirect=True)
async def test_two_connections_are_enough_for_runs_on_an_event_loop(scarce_dsn: str) -> None:
    with Journal.open(scarce_dsn, hold_s=SOON_S) as journal:
        results = await asyncio.gather(
            *(refold.run(looks_and_books, [1, 2, 3], journal=journal, thread=f"t{n}") for n in range(4))
        )

    assert [result.output for result in results] == [[1, 2, 3, 7]] * 4


def test_connections_that_a_crowd_made_are_closed_when_nobody_has_wanted_them_for_a_while(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore.open(postgres_server.dsn(database))
    for line in [store._lines.take(urgent=False) for _ in range(6)]:
        store._lines.give_back(line)

    def count() -> int:
        found = admin.execute("select count(*) from pg_stat_activity where datname = %s", [database])
        return int(str((found.fetchone() or ())[0]))

    with postgres_server.admin() as admin:
        until(lambda: count() == 6, admin)
        store.create("a")
        assert count() == 6
        monkeypatch.setattr("refold.journal.lines.IDLE_S", -1.0)
        store.create("b")
        until(lambda: count() == 1, admin)
    store.close()


class _Seat:
    """The only connection there is room for."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_next_connection_that_comes_back_goes_to_who_writes_before_who_reads() -> None:
    made: list[_Seat] = []

    def connect() -> _Seat:
        if made:
            raise StoreUnavailable("too many connections")
        made.append(_Seat())
        return made[0]

    lines = Lines(connect)
    seat = lines.take(urgent=False)
    order: list[str] = []
    waits = {"reads": threading.Event(), "writes": threading.Event()}

    def take(name: str) -> None:
        waits[name].set()
        line = lines.take(urgent=name == "writes")
        order.append(name)
        lines.give_back(line)

    threads = [threading.Thread(target=take, args=(name,)) for name in waits]
    for thread, waiting in zip(threads, waits.values(), strict=True):
        thread.start()
        assert waiting.wait(SOON_S)
    while not lines._urgent_waiting:
        assert threads[1].is_alive()
    lines.give_back(seat)
    for thread in threads:
        thread.join(SOON_S)

    assert order == ["writes", "reads"]
    assert len(made) == 1


def test_who_waits_for_a_connection_is_told_when_the_journal_closes() -> None:
    seats = [_Seat()]

    def connect() -> _Seat:
        if not seats:
            raise StoreUnavailable("too many connections")
        return seats.pop()

    lines = Lines(connect)
    seat = lines.take(urgent=False)
    told: list[str] = []

    def take() -> None:
        try:
            lines.take(urgent=True)
        except StoreUnavailable as error:
            told.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    while not lines._urgent_waiting:
        assert thread.is_alive()
    lines.close()
    thread.join(SOON_S)
    lines.give_back(seat)

    assert "closed" in told[0]
    assert seat.closed


def test_while_the_server_is_away_nobody_waits_for_what_others_try_in_vain() -> None:
    together = threading.Barrier(4)
    tries: list[int] = []

    def connect() -> _Seat:
        tries.append(1)
        together.wait(SOON_S)
        raise StoreUnavailable("connection refused")

    lines = Lines(connect)
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(lines.take, urgent=number % 2 == 0) for number in range(4)]

    assert all(isinstance(call.exception(), StoreUnavailable) for call in calls)
    assert len(tries) == 4
