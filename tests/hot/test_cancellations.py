"""A slow Redis whose callers are cancelled at random: no answer ever reaches another thread's caller."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

import pytest
import refold
from redis_server import RedisProcess, SlowProxy
from refold import Journal, Run, program, tool
from refold.journal.hot import RedisServer
from refold.journal.postgres import PostgresStore
from refold.replay import answers

THREADS = [f"t{number}" for number in range(6)]
CALLS = 130
TRIES = 4


@tool(read_only=True)
async def look(name: str, place: int) -> str:
    """Look somewhere."""
    return f"{name} at {place}"


@program
async def sees(run: Run, name: str) -> list[str]:
    """Look around, wait, and tell what was seen."""
    seen = [await run.tool(look, name, place) for place in range(CALLS)]
    await run.wait_for("go")
    return seen


class Watched(RedisServer):
    """Holds each answer against what is kept under the key asked for."""

    truth: dict[str, bytes]

    def watch(self, truth: dict[str, bytes]) -> None:
        self.truth = truth
        self.right = 0
        self.wrong: list[str] = []

    def fetch(self, keys: Sequence[str], *, budget_s: float = 1.0) -> list[bytes | None]:
        values = super().fetch(keys, budget_s=budget_s)
        for key, value in zip(keys, values, strict=True):
            if value == self.truth.get(key):
                self.right += 1
            else:
                self.wrong.append(key)
        return values


@pytest.mark.slow
async def test_callers_cancelled_at_random_get_no_value_of_another_thread_from_a_slow_redis(
    pg_dsn: str, redis_process: RedisProcess
) -> None:
    with Journal.open(pg_dsn, redis_url=redis_process.url) as journal:
        for thread in THREADS:
            await refold.run(sees, thread, journal=journal, thread=thread, wait=False)
    kept = redis_process.keys()
    with redis_process.client() as client:
        truth = {key.decode(): client.get(key) for key in kept}
    assert len(truth) == 2 * len(THREADS)
    proxy = SlowProxy(redis_process.port, 0.2)
    cache = Watched.open(proxy.url)
    assert isinstance(cache, Watched)
    cache.watch(truth)
    cancelled = 0

    async def torment(thread: str, seed: int) -> None:
        nonlocal cancelled
        draw = random.Random(seed)
        for _ in range(TRIES):
            resuming = asyncio.create_task(refold.resume(sees, journal=journal, thread=thread, wait=False))
            await asyncio.wait([resuming], timeout=draw.uniform(0.0, 0.5))
            resuming.cancel()
            # The next one waits for what this one was being granted and gives back.
            with contextlib.suppress(asyncio.CancelledError):
                assert (await resuming).status == "waiting"
            cancelled += resuming.cancelled()

    with Journal(PostgresStore.open(pg_dsn), cache=cache) as journal:
        await asyncio.gather(*(torment(thread, seed) for seed, thread in enumerate(THREADS)))
        for thread in THREADS:
            answers.signal(journal, thread, "go", None, by="test")
            result = await refold.resume(sees, journal=journal, thread=thread)
            assert result.output == [f"{thread} at {place}" for place in range(CALLS)]
        assert journal.hot_counts is not None
        assert journal.hot_counts.disbelieved == 0
    proxy.close()

    assert cache.wrong == []
    print(f"{cancelled} resumptions cancelled, {cache.right} answers, each the caller's own")
    assert cancelled > 0
    assert cache.right > 0
