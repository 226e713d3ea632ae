"""`refold tail` in a process of its own, and what `refold doctor` says of Redis and of the feed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
from cli_kit import Scribe
from click.testing import CliRunner
from fault_proxy import FaultProxy
from msgspec import Raw
from psycopg.conninfo import conninfo_to_dict
from redis_server import RedisProcess
from refold import Journal
from refold.cli import cli
from refold.journal import checkup
from refold.journal.envelope import Event
from refold.journal.errors import StoreUnavailable
from refold.journal.postgres import PostgresStore
from refold.replay import events as ev

COMMAND = [sys.executable, "-c", "from refold.cli import main; main()"]


@contextmanager
def following(*words: str, redis: str = "") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "tail", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"REFOLD_REDIS_URL": redis},
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def step(number: int) -> ev.StepRecorded:
    return ev.StepRecorded(at=7, call=f"r1/{number}", name="look\x1b[2J", args=Raw(b"{}"), result=Raw(b"1"))


def ask(*words: str) -> list[dict[str, str]]:
    result = CliRunner().invoke(cli, [*words, "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_tail_shows_what_is_there_and_what_comes_and_goes_on_where_it_is_told(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        scribe = Scribe(journal)
        scribe.write("t", step(1), step(2))
        with following("t", "--dsn", pg_dsn) as process:
            shown = lines(process, 2)
            scribe.write("t", step(3))
            shown += lines(process, 1)
        with following("t", "--from", "3", "--json", "--dsn", pg_dsn) as process:
            (last,) = lines(process, 1)

    assert [line.split()[0] for line in shown] == ["1", "2", "3"]
    assert "\x1b" not in "".join(shown)
    document = json.loads(last)
    assert (document["thread"], document["seq"], document["cursor"]) == ("t", 3, "3")


def test_tail_of_all_threads_goes_on_after_any_cursor_it_has_told(
    pg_dsn: str, redis_process: RedisProcess
) -> None:
    with Journal.open(pg_dsn, redis_url=redis_process.url) as journal:
        scribe = Scribe(journal)
        for thread in ("a.b", "c"):
            scribe.write(thread, step(1), step(2))
        with following("--all", "--json", "--dsn", pg_dsn, redis=redis_process.url) as process:
            documents = [json.loads(line) for line in lines(process, 4)]
            scribe.write("a.b", step(3))
            documents += [json.loads(line) for line in lines(process, 1)]
        with following("--all", "--from", documents[1]["cursor"], "--dsn", pg_dsn) as process:
            rest = lines(process, 3)

    places = [(each["thread"], each["seq"]) for each in documents]
    assert places == [("a.b", 1), ("a.b", 2), ("c", 1), ("c", 2), ("a.b", 3)]
    assert [line.split()[:2] for line in rest] == [["c", "1"], ["c", "2"], ["a.b", "3"]]


def test_tail_ends_when_nobody_reads_on_though_no_event_comes(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        Scribe(journal).write("t", step(1))
        with following("t", "--dsn", pg_dsn) as process:
            lines(process, 1)
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(20) == 0


def test_a_command_that_nobody_reads_is_no_finding_and_no_error(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        Scribe(journal).write("t", step(1))
    unread, end = os.pipe()
    os.close(unread)
    process = subprocess.run(
        [*COMMAND, "show", "t", "--dsn", pg_dsn], check=False, stdout=end, stderr=subprocess.PIPE, timeout=60
    )
    os.close(end)

    assert (process.returncode, process.stderr) == (141, b"")


def test_tail_from_beyond_the_head_says_where_the_thread_ends(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        scribe = Scribe(journal)
        scribe.write("t", step(1), step(2))
        process = subprocess.Popen(
            [*COMMAND, "tail", "t", "--from", "4", "--dsn", pg_dsn],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = process.stderr.readline()
        scribe.write("t", step(3), step(4))
        (shown,) = lines(process, 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)

    assert said == "thread 't' ends at seq 2 so far\n"
    assert shown.split()[0] == "4"


def test_an_interrupted_tail_does_not_wait_for_a_store_that_is_away(pg_dsn: str, postgres_server) -> None:
    proxy = FaultProxy(postgres_server.socket)
    with Journal.open(pg_dsn) as journal:
        Scribe(journal).write("t", step(1))
    with following("t", "--dsn", proxy.dsn(conninfo_to_dict(pg_dsn)["dbname"])) as process:
        lines(process, 1)
        proxy.refuse()
    proxy.close()


def test_a_tail_that_lost_its_store_says_where_to_go_on(pg_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.open(pg_dsn) as journal:
        Scribe(journal).write("t", step(1), step(2))
    read = Journal.read

    def once(self: Journal, thread: str, *, after: int, limit: int) -> list[Event]:
        if after:
            raise StoreUnavailable("it is away")
        return read(self, thread, after=after, limit=limit)

    monkeypatch.setattr(Journal, "read", once)
    result = CliRunner().invoke(cli, ["tail", "t", "--dsn", pg_dsn])

    assert result.exit_code == 3
    assert result.stderr == "go on with --from 3\nrefold: it is away\n"


def test_tail_of_all_threads_says_what_holds_events_back(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("refold.command_line.looking.note", hear)
    monkeypatch.setattr("refold.command_line.looking.LOOKS_UNTIL_FEED", 1)
    monkeypatch.setattr(checkup, "HELD_BACK_S", -1.0)
    with psycopg.connect(pg_dsn, application_name="a slow report") as writer:
        writer.execute("create table held (n int)")
        result = CliRunner().invoke(cli, ["tail", "--all", "--dsn", pg_dsn])

    assert result.exit_code == 0
    assert len(said) == 1
    assert "a slow report" in said[0]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["t", "--all"],
        ["t", "--from", "0"],
        ["t", "--from", "x"],
        ["--all", "--from", "3"],
        ["--all", "--from", "1.x.t"],
        ["nowhere"],
    ],
)
def test_tail_refuses_what_makes_no_sense(words: Sequence[str], pg_dsn: str) -> None:
    result = CliRunner().invoke(cli, ["tail", *words, "--dsn", pg_dsn])

    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_doctor_says_how_redis_is(
    pg_dsn: str, redis_process: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_REDIS_URL", redis_process.url)
    with redis_process.client() as client:
        client.set("a", "1")
        client.get("a")
    found = {check["name"]: check for check in ask("doctor", "--dsn", pg_dsn)}

    assert found["redis"]["grade"] == "ok"
    assert found["redis"]["found"].startswith(("valkey ", "redis "))
    assert "ms (median" in found["redis round trip"]["found"]
    assert "hits" in found["redis hits"]["found"]
    assert found["redis memory"]["grade"] == "ok"
    assert found["pooler"]["found"] == "none is seen"
    assert found["feed"]["grade"] == "ok"


def test_doctor_warns_of_a_redis_that_is_away_full_for_good_or_not_installed(
    pg_dsn: str, own_redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_REDIS_URL", own_redis.url)
    with own_redis.client() as client:
        client.config_set("maxmemory", "10mb")
    found = {check["name"]: check for check in ask("doctor", "--dsn", pg_dsn)}
    assert found["redis memory"]["grade"] == "warn"
    own_redis.kill()

    found = {check["name"]: check for check in ask("doctor", "--dsn", pg_dsn)}
    assert found["redis"]["grade"] == "warn"
    assert "go on without it" in found["redis"]["remedy"]
    assert found["server"]["grade"] == "ok"

    monkeypatch.setitem(sys.modules, "redis", None)
    result = CliRunner().invoke(cli, ["doctor", "--dsn", pg_dsn])
    assert result.exit_code == 3
    assert "refold[redis]" in result.stdout

    monkeypatch.setenv("REFOLD_REDIS_URL", "")
    found = {check["name"]: check for check in ask("doctor", "--dsn", pg_dsn)}
    assert found["redis"]["grade"] == "ok"


def test_doctor_names_the_transaction_that_holds_the_feed_back(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "HELD_BACK_S", -1.0)
    store = PostgresStore.open(pg_dsn)
    with psycopg.connect(pg_dsn, application_name="a slow report") as writer:
        writer.execute("create table held (n int)")
        (check,) = [each for each in checkup.check_store(store) if each.name == "feed"]
        store.close()

    assert check.grade == "warn"
    assert "a slow report" in check.found
