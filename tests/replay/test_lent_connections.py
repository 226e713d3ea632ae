"""Whatever a transactional tool does with its connection, the outcome is honest, and it meets nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import refold
from ledgers import journal_with_ledger, ledger
from refold import Journal, Run, ToolContext, ToolError, program, tool
from refold.replay import rebuild
from refold.replay.runner import read_all


@pytest.fixture
def journal(pg_dsn: str) -> Iterator[Journal]:
    with journal_with_ledger(pg_dsn) as made:
        yield made


@tool(transactional=True)
def does(statements: list[str], context: ToolContext) -> str:
    """Book 1, and do more on its connection."""
    context.connection.execute("insert into ledger (amount) values (1)")
    for statement in statements:
        context.connection.execute(statement)
    return "done"


@tool(transactional=True)
def shows(settings: list[str], context: ToolContext) -> list[Any]:
    """What the connection says of itself."""
    rows = [
        context.connection.execute("select current_setting(%s, true)", [each]).fetchone() for each in settings
    ]
    return [row[0] for row in rows]


def of_tool(reached: Any, *args: Any) -> Any:
    @program
    async def runs(run: Run) -> Any:
        try:
            return await run.tool(reached, *args)
        except ToolError as error:
            return [error.error_type, error.effect]

    return runs


async def test_what_a_tool_sets_on_its_connection_meets_nobody_else(journal: Journal) -> None:
    """Neither another thread's tool (row-level security goes by such settings) nor the writer."""
    settings = {
        "app.tenant": None,
        "synchronous_commit": "on",
        "default_transaction_read_only": "off",
        "role": "none",
    }
    sets = [
        "set app.tenant = 'acme'",
        "set synchronous_commit = off",
        "set default_transaction_read_only = on",
        "create temp table cart (item text)",
        "prepare mine as select 1",
        "select pg_advisory_lock(7)",
        "listen mine",
    ]
    for number in range(3):
        done = await refold.run(of_tool(does, sets), journal=journal, thread=f"acme {number}")
        assert done.output == "done"
        shown = await refold.run(of_tool(shows, list(settings)), journal=journal, thread=f"other {number}")
        assert shown.output == list(settings.values())
    for line, _ in journal.store._lines._idle:  # type: ignore[attr-defined]
        assert line.execute("show synchronous_commit").fetchone() == ("on",)


async def test_a_tool_may_have_rows_and_values_read_as_it_likes(journal: Journal) -> None:
    @tool(transactional=True)
    def reads(context: ToolContext) -> list[Any]:
        """Read as dictionaries, and times as times."""
        connection = context.connection
        connection.row_factory = psycopg.rows.dict_row
        connection.cursor_factory = psycopg.ClientCursor
        row = connection.execute("select 1 as a").fetchone()
        with psycopg.Cursor(connection) as cursor:
            cursor.execute("select timestamptz '2026-01-01 00:00Z'", binary=True)
            return [row, (cursor.fetchone() or {})["timestamptz"].year]

    for thread in ("a", "b"):
        result = await refold.run(of_tool(reads), journal=journal, thread=thread)
        assert result.output == [{"a": 1}, 2026]


_DENYING = """
create function deny() returns trigger language plpgsql
  as $$ begin raise exception 'no' using errcode = '42501'; end $$;
create constraint trigger deny after insert on ledger deferrable initially deferred
  for each row execute function deny();
insert into ledger (amount) values (2)
"""


@pytest.mark.parametrize(
    "statement",
    [
        "set role pg_monitor",
        "set transaction read only",
        _DENYING,
    ],
)
async def test_a_tool_after_which_nothing_can_be_appended_has_failed_and_done_nothing(
    journal: Journal, pg_dsn: str, statement: str
) -> None:
    """Not the store has: the thread goes on."""
    runs = of_tool(does, [statement])

    result = await refold.run(runs, journal=journal, thread="t")

    assert result.output == ["refold.journal.errors.TransactionSpoilt", "none"]
    assert ledger(pg_dsn) == []
    assert (await refold.run(of_tool(does, []), journal=journal, thread="t")).output == "done"
    rebuild.replay(runs, "t", read_all(journal, "t")[:6])


def _catch(connection: Any) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("select 1 / 0")


def _close(connection: Any) -> None:
    connection.close()


def _stream(connection: Any) -> Any:
    rows = connection.cursor().stream("select generate_series(1, 100000)")
    next(rows)
    return rows


def _copy(connection: Any) -> Any:
    copy = connection.cursor().copy("copy ledger (amount) from stdin")
    copy.__enter__().write_row((1,))
    return copy


def _pipeline(connection: Any) -> Any:
    pipeline = connection.pipeline()
    pipeline.__enter__()
    return pipeline


def _pipeline_of_the_driver(connection: Any) -> Any:
    return connection.pgconn.enter_pipeline_mode()


UNFINISHED = [_stream, _copy, _pipeline, _pipeline_of_the_driver]


@pytest.mark.parametrize("deed", [_catch, _close, *UNFINISHED])
async def test_a_tool_that_leaves_no_usable_transaction_has_failed_and_done_nothing(
    journal: Journal, pg_dsn: str, deed: Any
) -> None:
    kept: list[Any] = []

    @tool(transactional=True)
    def misuses(context: ToolContext) -> str:
        """Book, and misuse the connection."""
        context.connection.execute("insert into ledger (amount) values (1)")
        kept.append(deed(context.connection))
        return "done"

    result = await refold.run(of_tool(misuses), journal=journal, thread="t")

    assert result.output == ["refold.journal.errors.TransactionSpoilt", "none"]
    assert ledger(pg_dsn) == []
    assert len(kept) == 1


@pytest.mark.parametrize("deed", UNFINISHED)
async def test_a_tool_that_raises_in_the_middle_of_a_statement_has_failed_and_done_nothing(
    journal: Journal, pg_dsn: str, deed: Any
) -> None:
    kept: list[Any] = []

    @tool(transactional=True)
    def gives_up(context: ToolContext) -> str:
        """Book, and give up halfway."""
        context.connection.execute("insert into ledger (amount) values (1)")
        kept.append(deed(context.connection))
        raise ValueError("halfway")

    result = await refold.run(of_tool(gives_up), journal=journal, thread="t")

    assert result.output == ["ValueError", "none"]
    assert ledger(pg_dsn) == []
    assert len(kept) == 1


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("statements", [["commit"], ["commit", "begin"], ["commit and chain"]])
async def test_a_tool_that_commits_by_itself_is_noticed_and_not_run_again(
    journal: Journal, pg_dsn: str, statements: list[str], raises: bool
) -> None:
    """What it did may be there already: it must not count as undone, nor as committed with its record."""

    @tool(transactional=True, retries=2)
    def commits(context: ToolContext) -> str:
        """Book, and commit."""
        context.connection.execute("insert into ledger (amount) values (1)")
        for statement in statements:
            context.connection.execute(statement)
        context.connection.execute("select 1")
        if raises:
            raise ValueError("and then")
        return "done"

    runs = of_tool(commits)
    result = await refold.run(runs, journal=journal, thread="t")

    events = read_all(journal, "t")
    assert result.output == ["refold.journal.errors.TransactionEnded", "unknown"]
    assert ledger(pg_dsn) == [1]
    assert [event.kind for event in events].count("tool_started") == 1
    rebuild.replay(runs, "t", events)


async def test_a_savepoint_keeps_what_a_tool_has_done_when_a_part_of_it_fails(
    journal: Journal, pg_dsn: str
) -> None:
    @tool(transactional=True)
    def tries(context: ToolContext) -> str:
        """Book, and try what fails."""
        connection = context.connection
        connection.execute("insert into ledger (amount) values (1)")
        try:
            with connection.transaction():
                connection.execute("insert into ledger (amount) values (2)")
                connection.execute("select 1 / 0")
        except psycopg.errors.DivisionByZero:
            return "the first only"
        return "both"

    assert (await refold.run(of_tool(tries), journal=journal, thread="t")).output == "the first only"
    assert ledger(pg_dsn) == [1]
