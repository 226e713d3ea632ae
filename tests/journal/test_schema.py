"""`schema.sql` on a real server: set-up, rights, immutability, and the plans of its queries."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from appends import Pen, event
from conftest import PostgresServer
from psycopg import sql
from refold.journal.errors import RefoldError, StoreRefused
from refold.journal.install import SCHEMA_VERSION, check_server, schema_sql
from refold.journal.journal import Journal
from refold.journal.postgres import PostgresStore, set_up
from refold.journal.store import Cursor, Outcome, ThreadState
from set_up_worker import open_journals


def test_six_processes_set_an_empty_database_up_at_once(empty_pg_dsn: str) -> None:
    """H25, thirty rounds."""
    rounds, workers = 30, 6
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=open_journals, args=(number == 0, rounds, barrier, empty_pg_dsn, answers))
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    got = [answers.get(timeout=60) for _ in range(rounds * workers)]
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * workers
    assert len(set(got)) == rounds
    assert all(got.count(identity) == workers for identity in set(got))


def test_setting_up_twice_changes_nothing(empty_pg_dsn: str) -> None:
    first = PostgresStore.open(empty_pg_dsn)
    first.create("a")
    second = PostgresStore.open(empty_pg_dsn)

    assert first.identity == second.identity
    assert not second.create("a")
    first.close()
    second.close()


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_setting_up_takes_part_in_a_transaction_of_the_callers(
    empty_pg_dsn: str, level: psycopg.IsolationLevel
) -> None:
    """H25: set-up inside a caller's transaction; it commits and rolls back with it."""
    with psycopg.connect(empty_pg_dsn) as connection:
        connection.isolation_level = level
        set_up(connection)
        connection.rollback()
    with pytest.raises(StoreRefused, match="no refold schema"):
        PostgresStore.open(empty_pg_dsn, install=False)
    with psycopg.connect(empty_pg_dsn) as connection:
        connection.isolation_level = level
        set_up(connection)
    PostgresStore.open(empty_pg_dsn, install=False).close()


def test_two_databases_are_two_identities(new_pg_dsn: Callable[[], str]) -> None:
    """Copies of one template share what is stored in them, and are different journals all the same."""
    stores = [PostgresStore.open(new_pg_dsn()) for _ in range(2)]

    assert len({store.identity for store in stores}) == 2
    for store in stores:
        store.close()


@pytest.fixture
def role(postgres_server: PostgresServer) -> Iterator[str]:
    """A login without any rights."""
    name = f"somebody_{uuid.uuid4().hex[:8]}"
    with postgres_server.admin() as admin:
        admin.execute(sql.SQL("create role {} login nocreaterole nosuperuser").format(sql.Identifier(name)))
    yield name
    with postgres_server.admin() as admin:
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def as_role(dsn: str, role: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, user=role)


@pytest.fixture
def role_dsn(postgres_server: PostgresServer, role: str) -> Iterator[Callable[..., str]]:
    """Makes a fresh database and answers how the role connects to it."""
    names: list[str] = []

    def make(*, empty: bool, owned: bool = False, script: str = "") -> str:
        names.append(postgres_server.create_database(empty=empty, owner=role if owned else None))
        if script:
            with postgres_server.admin(names[-1]) as admin:
                admin.execute(script.replace("{role}", role))
        return as_role(postgres_server.dsn(names[-1]), role)

    yield make
    for name in names:
        postgres_server.drop_database(name)


def test_an_owner_who_may_not_make_roles_can_set_up_and_use_the_journal(role_dsn: Callable[..., str]) -> None:
    with Journal.open(role_dsn(empty=True, owned=True)) as journal:
        tenure = journal.acquire("a")
        assert tenure.append([event()], state=ThreadState.RUNNING).result(20).head == 1


def test_a_schema_made_for_a_role_is_enough_to_set_up(role_dsn: Callable[..., str]) -> None:
    dsn = role_dsn(empty=True, script="create schema refold authorization {role}")
    with Journal.open(dsn) as journal:
        assert journal.create("a")


def test_a_role_that_may_create_nothing_is_told_what_to_do(role_dsn: Callable[..., str], role: str) -> None:
    with pytest.raises(StoreRefused) as caught:
        PostgresStore.open(role_dsn(empty=True))

    assert "may not create it" in str(caught.value)
    assert f"select refold.allow('{role}')" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_role_without_rights_on_an_installed_schema_is_told_what_to_do(
    role_dsn: Callable[..., str], role: str
) -> None:
    with pytest.raises(StoreRefused, match=r"select refold\.allow\('" + role):
        PostgresStore.open(role_dsn(empty=False))


@pytest.mark.parametrize("script", ["grant refold_app to {role}", "select refold.allow('{role}')"])
def test_a_role_that_may_create_nothing_uses_the_schema_it_finds(
    role_dsn: Callable[..., str], script: str
) -> None:
    """H25: a role that may not create tables but finds them present. Every call of a store works for it."""
    dsn = role_dsn(empty=False, script=script)
    store = PostgresStore.open(dsn)
    pen = Pen(store, "a")
    pen.write()
    message = store.send("a", key="k", kind="signal", body=b"").message
    pen.write(event(), event(), consumed=(message.id,))
    append = pen.next()
    assert store.append_many([append])[0].outcome is Outcome.APPENDED
    assert store.append(append).outcome is Outcome.DUPLICATE
    assert store.renew("a", fence=pen.fence, ttl_s=1)
    assert len(store.read("a")) == len(store.feed(Cursor()).events) == 4
    assert store.threads(attention=True) == []
    assert len(store.inbox("a", consumed=True)) == 1
    assert store.info("a").head == 4
    assert store.release("a", fence=pen.fence, seen=0) == "released"
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "insert into refold.events select * from refold.events",
        "update refold.events set body = ''",
        "delete from refold.events",
        "truncate refold.events",
        "update refold.threads set head = 0",
        "delete from refold.threads",
        "insert into refold.threads (thread) values ('b')",
        "update refold.inbox set body = ''",
        "delete from refold.inbox",
        "update refold.meta set schema_version = 9",
        "create table refold.mine ()",
        "select refold.adopt_server()",
        "select refold.allow(current_user::name)",
        "select refold.classify('a', 1, 1, '')",
        "create or replace function refold.now() returns timestamptz language sql return timestamptz 'epoch'",
        "alter table refold.events disable trigger all",
    ],
)
def test_the_applications_role_only_reads_and_calls(role_dsn: Callable[..., str], statement: str) -> None:
    dsn = role_dsn(empty=False, script="select refold.allow('{role}')")
    store = PostgresStore.open(dsn)
    Pen(store, "a").write()
    store.close()
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_a_reader_reads_and_writes_nothing(role_dsn: Callable[..., str]) -> None:
    dsn = role_dsn(empty=False, script="select refold.allow('{role}', true); select refold.create('a')")
    store = PostgresStore.open(dsn)

    assert store.info("a").head == 0
    assert store.read("a") == []
    assert [row.thread for row in store.threads()] == ["a"]
    with pytest.raises(StoreRefused, match="rights are missing"):
        store.create("b")
    with pytest.raises(StoreRefused, match="rights are missing"):
        store.acquire("a", holder=uuid.uuid4(), ttl_s=1)
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "update refold.events set body = ''",
        "delete from refold.events",
        "truncate refold.events",
        "delete from refold.threads",
        "truncate refold.threads",
        "delete from refold.inbox",
        "truncate refold.inbox",
        "update refold.inbox set body = 'x' where id = 2",
        "update refold.inbox set consumed_seq = null where id = 1",
        "update refold.inbox set consumed_seq = 9 where id = 1",
        "update refold.inbox set consumed_seq = 1, key = 'other' where id = 2",
        "insert into refold.meta (schema_version, system_identifier) values (1, 1)",
        "delete from refold.meta",
        "truncate refold.meta",
    ],
)
def test_even_the_owner_does_not_change_the_log_by_accident(pg_dsn: str, statement: str) -> None:
    store = PostgresStore.open(pg_dsn)
    pen = Pen(store, "a")
    messages = [store.send("a", key=f"k{number}", kind="signal", body=b"").message for number in range(2)]
    pen.write(consumed=(messages[0].id,))
    store.close()
    with psycopg.connect(pg_dsn) as owner:
        with pytest.raises(psycopg.Error) as caught:
            owner.execute(statement)
        assert caught.value.sqlstate == "RF001"


def test_a_newer_schema_is_refused(pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("update refold.meta set schema_version = %s", [SCHEMA_VERSION + 1])
    with pytest.raises(StoreRefused, match="upgrade refold"):
        PostgresStore.open(pg_dsn)


def test_a_schema_of_an_earlier_build_is_refused_with_what_to_do(pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("update refold.meta set schema_version = %s", [SCHEMA_VERSION - 1])
    with pytest.raises(StoreRefused, match="export its threads with the refold that set it up"):
        PostgresStore.open(pg_dsn)


def test_an_old_server_is_refused() -> None:
    class Answer:
        def fetchone(self) -> tuple[object, ...]:
            return (130011, "13.11", "on", "on", "UTF8", "read committed", "db", "me", 1)

    class OldServer:
        def execute(self, query: str) -> Answer:
            return Answer()

    with pytest.raises(StoreRefused, match=r"needs PostgreSQL 14 or newer; this server is 13\.11"):
        check_server(OldServer(), unsafe=True)


def test_a_server_that_can_lose_commits_is_refused_unless_told_otherwise(pg_dsn: str) -> None:
    lossy = psycopg.conninfo.make_conninfo(pg_dsn, options="-c synchronous_commit=off")
    with pytest.raises(StoreRefused, match="synchronous_commit = off"):
        PostgresStore.open(lossy)
    store = PostgresStore.open(lossy, unsafe=True)
    Pen(store, "a").write()
    store.close()


def test_fsync_off_is_refused(postgres_server: PostgresServer, pg_dsn: str) -> None:
    with postgres_server.admin() as admin:
        for statement in ("alter system set fsync = off", "select pg_reload_conf()"):
            admin.execute(statement)
        try:
            while admin.execute("show fsync").fetchone() != ("off",):
                pass
            with pytest.raises(StoreRefused, match="fsync = off"):
                PostgresStore.open(pg_dsn)
        finally:
            for statement in ("alter system reset fsync", "select pg_reload_conf()"):
                admin.execute(statement)
            while admin.execute("show fsync").fetchone() != ("on",):
                pass


def test_a_database_in_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    with postgres_server.admin() as admin:
        admin.execute("create database latin encoding 'LATIN1' template template0")
    with pytest.raises(StoreRefused, match="UTF8"):
        PostgresStore.open(postgres_server.dsn("latin"))
    postgres_server.drop_database("latin")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_default_isolation_does_not_matter(postgres_server: PostgresServer, level: str) -> None:
    name = postgres_server.create_database()
    with postgres_server.admin() as admin:
        admin.execute(f"alter database {name} set default_transaction_isolation = '{level}'")
    for prepare in (True, False):
        with Journal.open(postgres_server.dsn(name), prepare=prepare) as journal:
            tenures = [journal.acquire(f"{prepare}{number}") for number in range(8)]
            for _ in range(10):
                for future in [tenure.append([event()], state=ThreadState.RUNNING) for tenure in tenures]:
                    assert future.result(20).outcome is Outcome.APPENDED
    postgres_server.drop_database(name)


def test_an_append_in_an_older_transaction_than_the_head_is_refused(pg_dsn: str) -> None:
    """Its event would stand before the head in the feed, although it comes after it in the thread."""
    store = PostgresStore.open(pg_dsn)
    pen = Pen(store, "a")
    call = "select refold.append(%s, %s, %s, %s, 30, 'running', null, %s, 'k', 1::int2, %s, '')"
    with psycopg.connect(pg_dsn) as connection:
        connection.execute("select pg_current_xact_id()")
        pen.write()
        append = pen.next()
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(
                call, (pen.thread, 1, pen.head_hash, pen.fence, append.events[0].id, append.hashes[0])
            )
        assert caught.value.sqlstate == "RF002"
    pen.write()
    store.close()


def test_the_feed_waits_for_transactions_still_open(pg_dsn: str) -> None:
    store = PostgresStore.open(pg_dsn)
    early, late = Pen(store, "early"), Pen(store, "late")
    append = early.next()
    call = "select refold.append(%s, 0, %s, %s, 30, 'running', null, %s, 'k', 1::int2, %s, '')"
    with psycopg.connect(pg_dsn) as connection:
        connection.execute(
            call, ("early", append.expected_hash, early.fence, append.events[0].id, append.hashes[0])
        )
        late.write()
        assert store.feed(Cursor()).events == ()
        connection.commit()

    assert [each.thread for each in store.feed(Cursor()).events] == ["early", "late"]
    store.close()


@pytest.mark.parametrize("server", ["another", "an older copy of the same"])
def test_a_database_restored_on_another_server_keeps_its_feed_in_order(pg_dsn: str, server: str) -> None:
    """Transaction ids start anew there, or from below; the feed and appends go on above the stored ones."""
    store = PostgresStore.open(pg_dsn)
    pen = Pen(store, "a")
    pen.write()
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        # As if written on a server that had counted far beyond this one.
        owner.execute("set session_replication_role = replica")
        owner.execute("update refold.events set xid = xid + 1000000000")
        owner.execute("update refold.threads set head_xid = head_xid + 1000000000")
        if server == "another":
            owner.execute("update refold.meta set system_identifier = 1")
    with pytest.raises(StoreRefused, match="refold doctor"):
        pen.write()
    store.close()

    moved = PostgresStore.open(pg_dsn)
    pen.store = moved
    pen.write()
    pen.write(event(), event())

    first = moved.feed(Cursor(), limit=1)
    rest = moved.feed(first.cursor)
    assert [each.seq for each in (*first.events, *rest.events)] == [1, 2, 3, 4]
    moved.close()


def test_only_the_owner_carries_a_moved_database_over(role_dsn: Callable[..., str]) -> None:
    dsn = role_dsn(
        empty=False, script="select refold.allow('{role}'); update refold.meta set system_identifier = 1"
    )
    with pytest.raises(StoreRefused, match=r"select refold\.adopt_server\(\)"):
        PostgresStore.open(dsn)


def test_the_view_for_people_shows_bodies_and_survives_those_that_are_no_json(pg_dsn: str) -> None:
    """H01: NUL in a body does not break a query."""
    store = PostgresStore.open(pg_dsn)
    Pen(store, "a").write(
        event(b'{"text":"ok\\u0000tail"}'), event(b"\xff\xfe"), event(b"not json"), event(b"")
    )
    store.close()
    with psycopg.connect(pg_dsn) as connection:
        rows = connection.execute("select seq, bytes, body from refold.log order by seq").fetchall()

    assert rows == [(1, 23, {"text": "ok\0tail"}), (2, 2, None), (3, 8, None), (4, 0, None)]


def test_appends_update_the_thread_within_its_page(pg_dsn: str) -> None:
    """No index is touched: a thread's row costs the same after the millionth append."""
    store = PostgresStore.open(pg_dsn)
    for number in range(20):
        pen = Pen(store, f"t{number}")
        for _ in range(20):
            pen.write()
    store.close()
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        row = connection.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'threads'"
        ).fetchone()

    # Acquiring, twenty appends; the first append changes the state, which is indexed.
    assert row is not None
    assert row[0] == 20 * 21
    assert row[1] >= 20 * 20 - 20


@pytest.fixture(scope="module")
def crowded(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A database with many threads and events, filled by its owner."""
    name = postgres_server.create_database()
    with psycopg.connect(postgres_server.dsn(name), autocommit=True) as connection:
        connection.execute(
            """
            insert into refold.threads (thread, created_at, head, state)
            select 't' || n, timestamptz 'epoch' + n * interval '1 s', 20,
                   (array['finished', 'finished', 'finished', 'running', 'parked'])[1 + n % 5]
              from generate_series(1, 5000) n;
            insert into refold.events (thread, seq, id, kind, fence, version, xid, recorded_at, hash, body)
            select 't' || n, s, gen_random_uuid(), 'k', 1, 1, n, now(), sha256(''), ''
              from generate_series(1, 2000) n, generate_series(1, 20) s;
            insert into refold.inbox (thread, id, key, kind, body, sent_at, consumed_seq)
            select 't1', n, 'k' || n, 'signal', '', now(), n from generate_series(1, 5000) n;
            """
        )
        connection.execute("analyze")
        yield connection
    postgres_server.drop_database(name)


def plan(connection: psycopg.Connection[Any], query: str) -> str:
    return "\n".join(
        row[0] for row in connection.execute(f"explain (analyze, buffers off, timing off) {query}")
    )


@pytest.mark.parametrize(
    "query,index",
    [
        ("select * from refold.read('t7', 5, null, 10)", "events_pkey"),
        ("select * from refold.feed(1500, 't1500', 7, 100)", "events_by_xid"),
        ("select * from refold.standing where thread = 't9'", "threads_pkey"),
        ("select * from refold.messages('t1', 0, false)", "inbox_waiting"),
        (
            "select t.thread from refold.threads t where t.thread = 't9' and t.head = 20 for no key update",
            "threads_pkey",
        ),
        ("select from refold.events e where e.thread = 't7' and e.seq = 3 and e.hash = ''", "events_pkey"),
    ],
)
def test_each_query_walks_an_index_and_stops(
    crowded: psycopg.Connection[Any], query: str, index: str
) -> None:
    text = plan(crowded, query)

    assert index in text
    assert "Seq Scan" not in text
    removed = [int(line.rsplit(":", 1)[1]) for line in text.splitlines() if "Rows Removed" in line]
    assert sum(removed) <= 20


def test_a_page_of_threads_by_state_reads_no_more_than_it_shows(crowded: psycopg.Connection[Any]) -> None:
    """The function's own statements, seen through the statistics of the table."""
    scans = "select seq_scan, idx_tup_fetch from pg_stat_user_tables where relname = 'threads'"

    def counted() -> tuple[int, int]:
        crowded.execute("select pg_stat_force_next_flush()")
        row = crowded.execute(scans).fetchone()
        assert row is not None
        return row

    before = counted()
    for arguments in (
        "null, '', 20, array['parked'], false",
        "2000000000, '', 20, array['parked', 'running'], false",
        "null, '', 20, array['parked', 'running', 'failed', 'waiting'], true",
        f"null, '', 20, array{[each.value for each in ThreadState]}, false",
    ):
        rows = crowded.execute(f"select count(*) from refold.list({arguments})").fetchone()
        assert rows == (20,)
    after = counted()

    assert after[0] == before[0]
    assert after[1] - before[1] < 500


def test_a_shared_append_finds_its_threads_by_key_however_many_there_are(
    crowded: psycopg.Connection[Any],
) -> None:
    """The function's own statement: planned once, for good, so it must not go by how large the table was then."""
    counts = "select seq_scan, seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relname = 'threads'"

    def counted() -> tuple[int, ...]:
        crowded.execute("select pg_stat_force_next_flush()")
        row = crowded.execute(counts).fetchone()
        assert row is not None
        return row

    names = sorted(f"t{number}" for number in range(4001, 4065))
    crowded.execute(
        "select refold.acquire(t, gen_random_uuid(), '', 30, null) from unnest(%s::text[]) t", [names]
    )
    heads = "20::int8, sha256('refold log 1'), 1::int8, 30::float8, 'idle'::text, null::int8, 1"
    events = "gen_random_uuid(), 'k'::text, 1::int2, sha256(''), ''::bytea"
    each = ", ".join(f"array_fill({value}, array[64])" for value in f"{heads}, {events}".split(", "))
    many = f"select refold.append_many(%s::text[], {each}, '{{}}', '{{}}')"
    before = counted()
    row = crowded.execute(many, [names]).fetchone()
    after = counted()

    assert row == (["appended"] * 64,)
    assert after[:2] == before[:2]
    assert after[2] - before[2] <= 3 * 64


def test_the_schema_is_read_from_the_package() -> None:
    assert schema_sql().startswith("-- refold:")


def test_a_refusal_of_the_server_is_one_line(pg_dsn: str) -> None:
    store = PostgresStore.open(pg_dsn)
    pen = Pen(store, "a")
    with pytest.raises(RefoldError) as caught:
        store.append(pen.next(wake_at_us=2**63 - 1))
    assert "\n" not in str(caught.value)
    assert "22008" in str(caught.value)
    assert store.append(pen.next()).outcome is Outcome.APPENDED
    store.close()
