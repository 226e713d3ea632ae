"""Clocks that are set while a run waits: it neither oversleeps nor wakes early, and its log goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import refold
from refold import Journal, ModelError, ModelReply, Run, program
from refold.journal.sources import Sources
from refold.replay import events as ev
from refold.replay.live import Limits
from refold.replay.recording import Policy

HOUR_US = 3_600_000_000
SLEEP_S = 0.05


class Set(Sources):
    """A wall clock, the memory store's too, that somebody sets."""

    def __init__(self) -> None:
        self.off_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.off_us


@pytest.fixture
def sources() -> Set:
    return Set()


@pytest.fixture
def journal(sources: Set) -> Any:
    with Journal.memory(sources=sources) as made:
        yield made


def at_first(kind: type, act: Callable[[], None]) -> Callable[[int, ev.EventBody], None]:
    """An observer that acts once, when it sees an event of that kind."""
    left = [act]

    def observe(seq: int, body: ev.EventBody) -> None:
        if isinstance(body, kind) and left:
            left.pop()()

    return observe


@program
async def naps(run: Run) -> None:
    await run.sleep(SLEEP_S)


@pytest.mark.parametrize("hold_wait_s", [5.0, 0.0])
@pytest.mark.parametrize("kind", [ev.TimerSet, ev.RunReleased])
async def test_a_clock_set_back_an_hour_does_not_lengthen_a_sleep_in_process(
    journal: Journal, sources: Set, kind: type, hold_wait_s: float
) -> None:
    def set_back() -> None:
        sources.off_us -= HOUR_US

    began_s = time.monotonic()
    async with asyncio.timeout(20):
        await refold.run(
            naps,
            journal=journal,
            thread="t",
            policy=Policy(hold_wait_s=hold_wait_s),
            limits=Limits(poll_s=0.01),
            observe=at_first(kind, set_back),
        )

    assert time.monotonic() - began_s >= SLEEP_S


async def test_a_sleep_after_events_from_the_future_is_as_long_as_it_says(
    journal: Journal, sources: Set
) -> None:
    @program
    async def quick(run: Run) -> None: ...

    sources.off_us = HOUR_US
    await refold.run(quick, journal=journal, thread="t")
    sources.off_us = 0

    began_s = time.monotonic()
    async with asyncio.timeout(20):
        await refold.run(naps, journal=journal, thread="t", policy=Policy(hold_wait_s=0.0))

    assert time.monotonic() - began_s >= SLEEP_S


async def test_a_retry_after_events_from_the_future_comes_in_time(journal: Journal, sources: Set) -> None:
    class Overloaded:
        asked = 0

        async def respond(self, request: Any) -> ModelReply:
            self.asked += 1
            if self.asked == 1:
                sources.off_us -= HOUR_US
                raise ModelError("busy", kind="overloaded")
            return ModelReply({"role": "assistant", "content": "hello"})

    @program
    async def asks(run: Run) -> str:
        await run.sleep(0)
        return (await run.model(messages=[{"role": "user", "content": "x"}], model="m")).text

    async with asyncio.timeout(20):
        result = await refold.run(
            asks,
            journal=journal,
            thread="t",
            models=Overloaded(),
            policy=Policy(backoff_s=0.01, hold_wait_s=0.0),
        )

    assert result.output == "hello"
