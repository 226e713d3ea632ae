"""A run that waits in a process is woken by what it waits for: at once with Redis, else when it next looks."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import refold
from redis_server import RedisProcess
from refold import Journal, Run, program, tool
from refold.journal.sources import SYSTEM
from refold.replay import answers
from refold.replay import events as ev
from refold.replay.live import Limits

WAITS_ONLY_S = 60.0
"""A polling interval that would fail the test."""


@tool(approval=True)
async def publish(page: str) -> str:
    """Publish."""
    return f"published {page}"


@program
async def asks(run: Run, page: str) -> Any:
    """Publish with an approval."""
    return await run.tool(publish, page)


@program
async def hears(run: Run, name: str) -> Any:
    """Wait for a signal."""
    return await run.wait_for(name)


@program
async def hears_while_busy(run: Run, name: str) -> Any:
    """Wait for a signal while a tool runs: the run keeps its lease meanwhile."""
    return await run.gather(run.tool(hold, name), run.wait_for(name))


@program
async def sleeps(run: Run, name: str) -> float:
    """Sleep for a moment."""
    await run.sleep(timedelta(seconds=0.3))
    return 1.0


held: dict[str, tuple[asyncio.Event, asyncio.Event]] = {}
"""Told when the tool runs, and letting it go, by thread."""


@tool(read_only=True)
async def hold(name: str) -> str:
    """Run until the test lets it go."""
    runs, go = held[name]
    runs.set()
    await go.wait()
    return name


class Watch:
    """Told of a run's events: when it began to wait, and when what it waited for was recorded."""

    def __init__(self, *news: type) -> None:
        self._news = news
        self._loop = asyncio.get_running_loop()
        self.waits = asyncio.Event()
        self.woken_us = 0
        self.due_us = 0

    def __call__(self, seq: int, body: ev.EventBody) -> None:
        if isinstance(body, ev.TimerSet):
            self.due_us = body.due
        if isinstance(body, ev.RunReleased):
            self._loop.call_soon_threadsafe(self.waits.set)
        if isinstance(body, self._news):
            self.woken_us = SYSTEM.now_us()


async def woken_after_ms(
    made: refold.Program,
    news: type,
    here: Journal,
    thread: str,
    answer: Callable[[], object],
    *,
    poll_s: float = WAITS_ONLY_S,
) -> float:
    """Wait in this process for what *answer* gives from another journal: milliseconds from there to its record."""
    watch = Watch(news)
    limits = Limits(poll_s=poll_s)
    going = asyncio.create_task(
        refold.run(made, thread, journal=here, thread=thread, limits=limits, observe=watch)
    )
    await asyncio.wait_for((held[thread][0] if thread in held else watch.waits).wait(), 20)
    sent_us = SYSTEM.now_us()
    await asyncio.to_thread(answer)
    while not watch.woken_us:
        done, _ = await asyncio.wait([going], timeout=0.02)
        if done and not watch.woken_us:
            await going
            raise AssertionError("it ended without the news")
    if thread in held:
        held[thread][1].set()
    await asyncio.wait_for(going, 20)
    return (watch.woken_us - sent_us) / 1000


def report(what: str, took_ms: list[float]) -> None:
    print(f"{what}: median {statistics.median(took_ms):.1f} ms, most {max(took_ms):.1f} ms")


@pytest.mark.parametrize("sort", ["approval", "signal", "signal while busy"])
async def test_an_answer_from_another_process_wakes_a_run_at_once_with_redis(
    pg_dsn: str, redis_process: RedisProcess, sort: str
) -> None:
    """The polling interval is a minute, so nothing but the ring can have woken it."""
    took_ms = []
    with (
        Journal.open(pg_dsn, redis_url=redis_process.url) as here,
        Journal.open(pg_dsn, redis_url=redis_process.url) as there,
    ):
        for number in range(7):
            thread = f"{sort} {number}"

            def answer(thread: str = thread) -> None:
                if sort == "approval":
                    answers.approve(there, thread, "r1/1", approved=True, by="kim")
                else:
                    answers.signal(there, thread, thread, b"7", by="kim")

            if sort == "signal while busy":
                held[thread] = (asyncio.Event(), asyncio.Event())
            made = {"approval": asks, "signal": hears, "signal while busy": hears_while_busy}[sort]
            news = ev.ApprovalGiven if sort == "approval" else ev.SignalReceived
            took_ms.append(await woken_after_ms(made, news, here, thread, answer))
    report(sort, took_ms)

    assert max(took_ms) < WAITS_ONLY_S * 1000 / 4


async def test_without_redis_an_answer_from_another_process_is_found_by_polling(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as here, Journal.open(pg_dsn) as there:
        took_ms = [
            await woken_after_ms(
                hears,
                ev.SignalReceived,
                here,
                f"t{number}",
                lambda name=f"t{number}": answers.signal(there, name, name, b"7", by="kim"),
                poll_s=0.2,
            )
            for number in range(3)
        ]
    report("polling every 200 ms", took_ms)


async def test_an_answer_given_through_the_same_journal_wakes_a_run_at_once_without_redis(
    pg_dsn: str,
) -> None:
    with Journal.open(pg_dsn) as here:
        took_ms = [
            await woken_after_ms(
                hears,
                ev.SignalReceived,
                here,
                f"t{number}",
                lambda name=f"t{number}": answers.signal(here, name, name, b"7", by="kim"),
            )
            for number in range(3)
        ]
    report("the same journal", took_ms)


async def test_a_timer_wakes_a_run_when_it_is_due_with_redis_and_without(
    pg_dsn: str, redis_process: RedisProcess
) -> None:
    late_ms = []
    for url in (redis_process.url, None):
        with Journal.open(pg_dsn, redis_url=url) as journal:
            watch = Watch(ev.TimerFired)
            limits = Limits(poll_s=WAITS_ONLY_S)
            thread = f"with {url}"
            await refold.run(sleeps, "t", journal=journal, thread=thread, limits=limits, observe=watch)
            late_ms.append((watch.woken_us - watch.due_us) / 1000)
    report("a timer", late_ms)

    assert all(0 <= late < WAITS_ONLY_S * 1000 / 4 for late in late_ms)


async def test_a_run_is_woken_again_when_redis_has_come_back(pg_dsn: str, own_redis: RedisProcess) -> None:
    """Meanwhile it looks by itself; afterwards, with an interval of a minute, the ring must have woken it."""
    with (
        Journal.open(pg_dsn, redis_url=own_redis.url) as here,
        Journal.open(pg_dsn, redis_url=own_redis.url) as there,
    ):

        def answer(name: str) -> Callable[[], object]:
            return lambda: answers.signal(there, name, name, b"7", by="kim")

        await woken_after_ms(hears, ev.SignalReceived, here, "before", answer("before"))
        own_redis.kill()
        await woken_after_ms(hears, ev.SignalReceived, here, "without", answer("without"), poll_s=0.1)
        own_redis.start()
        # The ring on subscribing wakes it, whenever the subscription is made anew.
        took_ms = await woken_after_ms(hears, ev.SignalReceived, here, "after", answer("after"))
    report("after an outage", [took_ms])
