"""
H26: the same run with Redis well, killed, flushed, full, frozen, restored, foreign or halved writes the same log.

Ids and clock are injected, so that logs can be compared byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from hot.story import THREAD, Row, tell
from redis_server import RedisProcess, SlowProxy
from refold import Journal
from refold.journal import chunks
from refold.replay.runner import read_all

Make = Callable[[], str]


@pytest.fixture(scope="module")
def expected(postgres_server) -> list[Row]:
    """The log of the run without Redis."""
    name = postgres_server.create_database()
    rows, counts = asyncio.run(tell(postgres_server.dsn(name), None))
    postgres_server.drop_database(name)
    assert counts == []
    assert len(rows) > 3 * chunks.CHUNK_EVENTS
    return rows


@pytest.fixture
def full(request: pytest.FixtureRequest, redis_program: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(redis_program, maxmemory="2mb", **{"maxmemory-policy": request.param})
    yield server
    server.close()


def fill(server: RedisProcess) -> None:
    """Until it takes no more, or throws out what it has."""
    with server.client() as client:
        for size in (16_384, 1024, 64):
            for place in range(400):
                try:
                    client.set(f"filler:{size}:{place}", bytes(size))
                except redis.ResponseError:
                    break
        if server.config["maxmemory-policy"] == "noeviction":
            # What closing this very connection frees would have room for a chunk.
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)


async def test_with_a_redis_that_is_well_hot_state_is_used_and_the_log_is_the_same(
    pg_dsn: str, redis_process: RedisProcess, expected: list[Row]
) -> None:
    rows, counts = await tell(pg_dsn, redis_process.url)

    assert rows == expected
    assert [(each.hits, each.misses) for each in counts] == [(0, 0), (1, 0), (2, 0)]
    assert sum(each.disbelieved for each in counts) == 0


async def test_a_redis_that_is_killed_in_the_midst_of_a_run_changes_nothing(
    pg_dsn: str, own_redis: RedisProcess, expected: list[Row], caplog: pytest.LogCaptureFixture
) -> None:
    def between(stage: int) -> None:
        own_redis.kill()

    rows, _ = await tell(pg_dsn, own_redis.url, between=between)

    assert rows == expected
    # One warning for each of the two journals that lost it.
    warned = [record for record in caplog.records if "going on without it" in record.message]
    assert 1 <= len(warned) <= 2
    assert all(record.levelno == logging.WARNING for record in warned)


async def test_a_redis_that_dies_and_comes_back_again_and_again_meanwhile_changes_nothing(
    pg_dsn: str, own_redis: RedisProcess, expected: list[Row]
) -> None:
    over = asyncio.Event()
    deaths = 0

    def die() -> None:
        own_redis.kill()
        own_redis.start()

    async def haunt() -> None:
        nonlocal deaths
        while not over.is_set():
            await asyncio.to_thread(die)
            deaths += 1

    haunting = asyncio.create_task(haunt())
    rows, _ = await tell(pg_dsn, own_redis.url)
    over.set()
    await haunting

    assert rows == expected
    assert deaths > 0


async def test_a_redis_that_was_never_there_changes_nothing(
    pg_dsn: str, own_redis: RedisProcess, expected: list[Row]
) -> None:
    own_redis.kill()

    rows, _ = await tell(pg_dsn, own_redis.url)

    assert rows == expected


async def test_flushing_between_and_during_tenures_changes_nothing(
    pg_dsn: str, redis_process: RedisProcess, expected: list[Row]
) -> None:
    over = asyncio.Event()

    async def flush() -> None:
        while not over.is_set():
            await asyncio.to_thread(redis_process.flush)
            await asyncio.sleep(0)

    flushing = asyncio.create_task(flush())
    rows, _ = await tell(pg_dsn, redis_process.url, between=lambda _: redis_process.flush())
    over.set()
    await flushing

    assert rows == expected


@pytest.mark.parametrize("full", ["noeviction", "allkeys-lru"], indirect=True)
async def test_a_full_redis_that_refuses_or_forgets_changes_nothing(
    pg_dsn: str, full: RedisProcess, expected: list[Row], caplog: pytest.LogCaptureFixture
) -> None:
    fill(full)

    rows, counts = await tell(pg_dsn, full.url, between=lambda _: fill(full))

    assert rows == expected
    if full.config["maxmemory-policy"] == "noeviction":
        assert sum(each.kept for each in counts) == 0
        assert any("new hot state is not kept" in record.message for record in caplog.records)
        assert not any("going on without it" in record.message for record in caplog.records)


async def test_a_frozen_redis_costs_each_journal_one_time_out_and_changes_nothing(
    pg_dsn: str, own_redis: RedisProcess, expected: list[Row]
) -> None:
    took: list[float] = []

    def between(stage: int) -> None:
        if stage == 0:
            own_redis.freeze()
        took.append(time.monotonic())

    try:
        rows, _ = await tell(pg_dsn, own_redis.url, between=between)
    finally:
        own_redis.thaw()

    assert rows == expected
    # The second tenure: one time-out of half a second in all, and the third of another journal.
    print(f"a tenure with a frozen Redis: {took[1] - took[0]:.2f} s")
    assert took[1] - took[0] < 30


async def test_a_redis_restored_from_an_older_dump_changes_nothing(
    pg_dsn: str, own_redis: RedisProcess, expected: list[Row]
) -> None:
    dumps: list[bytes] = []

    def between(stage: int) -> None:
        # Taken after the first tenure, put back before the third.
        dumps.append(own_redis.dump())
        if stage == 1:
            own_redis.restore(dumps[0])

    rows, counts = await tell(pg_dsn, own_redis.url, between=between)

    assert rows == expected
    assert (counts[2].hits, counts[2].misses, counts[2].disbelieved) == (1, 1, 0)


async def test_the_redis_of_another_database_is_never_believed(
    new_pg_dsn: Make, redis_process: RedisProcess, expected: list[Row]
) -> None:
    """The other database has a thread of the same name, and somebody renames its keys to ours."""
    ours, theirs = new_pg_dsn(), new_pg_dsn()
    await tell(theirs, redis_process.url, name="Bob")
    with Journal.open(ours) as mine, Journal.open(theirs) as other:
        renamed = [chunks.chunk_key(each.identity, THREAD, 0) for each in (other, mine)]
    with redis_process.client() as client:
        client.copy(*renamed)

    def between(stage: int) -> None:
        with redis_process.client() as client:
            client.copy(*renamed, replace=True)

    rows, counts = await tell(ours, redis_process.url, between=between)

    assert rows == expected
    assert [each.hits for each in counts] == [0, 0, 1]


async def test_a_database_restored_from_a_backup_does_not_believe_what_came_after_it(
    new_pg_dsn: Make, redis_process: RedisProcess, expected: list[Row]
) -> None:
    """Same identity, same thread, another history: every chunk is whole and in its place, and the chain alone tells."""
    ours, theirs = new_pg_dsn(), new_pg_dsn()
    await tell(theirs, None, name="Bob")
    with Journal.open(ours) as mine, Journal.open(theirs) as other:
        identity, history = mine.identity, read_all(other, THREAD)

    def between(stage: int) -> None:
        with redis_process.client() as client:
            for number in chunks.completed(0, len(history)):
                after, upto = chunks.span(number)
                value = chunks.encode(identity, number, history[after:upto])
                client.set(chunks.chunk_key(identity, THREAD, number), value)

    rows, counts = await tell(ours, redis_process.url, between=between)

    assert rows == expected
    assert [each.disbelieved for each in counts] == [0, 1, 1]


async def test_with_half_of_the_keys_gone_only_what_is_missing_is_read(
    pg_dsn: str, redis_process: RedisProcess, expected: list[Row]
) -> None:
    def between(stage: int) -> None:
        with redis_process.client() as client:
            for key in redis_process.keys()[::2]:
                client.delete(key)

    rows, counts = await tell(pg_dsn, redis_process.url, between=between)

    assert rows == expected
    assert [(each.hits, each.misses) for each in counts] == [(0, 0), (0, 1), (1, 1)]


async def test_values_cut_short_or_of_another_kind_are_misses(
    pg_dsn: str, redis_process: RedisProcess, expected: list[Row]
) -> None:
    def between(stage: int) -> None:
        keys = redis_process.keys()
        with redis_process.client() as client:
            for place, key in enumerate(keys):
                if place % 2:
                    client.delete(key)
                    client.lpush(key, "no chunk")
                else:
                    client.set(key, client.get(key)[:-7])

    rows, counts = await tell(pg_dsn, redis_process.url, between=between)

    assert rows == expected
    assert [each.hits for each in counts] == [0, 0, 0]


@pytest.mark.parametrize("delay_s", [0.2])
async def test_a_slow_redis_whose_connections_break_at_random_is_never_believed_wrongly(
    pg_dsn: str, redis_process: RedisProcess, expected: list[Row], delay_s: float
) -> None:
    proxy = SlowProxy(redis_process.port, delay_s)
    try:
        rows, _ = await tell(pg_dsn, proxy.url, between=lambda _: proxy.cut())
    finally:
        proxy.close()

    assert rows == expected
