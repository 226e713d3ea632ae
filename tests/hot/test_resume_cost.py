"""What hot state saves: bytes read from Postgres and time, resuming a thread with 5,000 earlier events."""

from __future__ import annotations

import statistics
import time

import pytest
import refold
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from redis_server import RedisProcess, SlowProxy
from refold import Journal, Run, program, tool

EVENTS = 5000
AT_ONCE = 50
TIMES = 5


@tool(read_only=True)
async def page(number: int) -> str:
    """Read a page."""
    return f"page {number}: {'all work and no play ' * 20}"


@program
async def reads(run: Run, first: int) -> None:
    """Read many pages."""
    for start in range(first, first + EVENTS // 4, AT_ONCE):
        await run.gather(*(run.tool(page, number) for number in range(start, start + AT_ONCE)))


@program
async def waits(run: Run, name: str) -> None:
    """Wait for a signal that does not come."""
    await run.wait_for(name)


@pytest.mark.slow
async def test_resuming_after_five_thousand_events_reads_little_from_postgres_with_hot_state(
    pg_dsn: str, postgres_server, redis_process: RedisProcess
) -> None:
    with Journal.open(pg_dsn, redis_url=redis_process.url) as journal:
        for first in (0, EVENTS):
            await refold.run(reads, first, journal=journal, thread="t")
        await refold.run(waits, "never", journal=journal, thread="t", wait=False)
        assert journal.info("t").head > EVENTS
    proxy = SlowProxy(postgres_server.socket)
    through = make_conninfo(
        "",
        host="127.0.0.1",
        port=proxy.port,
        user="refold",
        dbname=str(conninfo_to_dict(pg_dsn)["dbname"]),
        sslmode="disable",
        gssencmode="disable",
    )
    read_bytes: dict[bool, int] = {}
    took_s: dict[bool, float] = {}
    for hot in (False, True):
        spans = []
        # Bytes are counted on the way through a proxy, which takes time of its own: the clock is for the others.
        for dsn in (through, *[pg_dsn] * TIMES):
            with Journal.open(dsn, redis_url=redis_process.url if hot else None) as journal:
                journal.info("t")
                before, begun_s = proxy.answered_bytes, time.perf_counter()
                result = await refold.resume(waits, journal=journal, thread="t", wait=False)
                spans.append(time.perf_counter() - begun_s)
                assert result.status == "waiting"
                if dsn == through:
                    read_bytes[hot] = proxy.answered_bytes - before
                if journal.hot_counts is not None:
                    assert (journal.hot_counts.misses, journal.hot_counts.disbelieved) == (0, 0)
        took_s[hot] = statistics.median(spans[1:])
    proxy.close()
    print(
        f"resume after {EVENTS} events: {read_bytes[False]:,} bytes from Postgres and {took_s[False] * 1e3:.0f} ms "
        f"without hot state, {read_bytes[True]:,} bytes and {took_s[True] * 1e3:.0f} ms with it: "
        f"{read_bytes[False] / read_bytes[True]:.0f} times fewer bytes, {took_s[False] / took_s[True]:.2f} times faster"
    )

    assert read_bytes[True] < read_bytes[False] / 10
