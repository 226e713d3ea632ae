"""Programs that exit, are interrupted, or look for an event loop: the run has an end or a way on, the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import refold
from refold import Journal, Run, program, tool
from refold.replay import rebuild
from refold.replay.recording import Policy
from refold.replay.runner import read_all


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


def kinds(journal: Journal) -> list[str]:
    return [event.kind for event in read_all(journal, "t")]


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


class Odd(BaseException):
    """No Exception, and no exit either."""


@pytest.mark.parametrize("leaving", [SystemExit(3), GeneratorExit(), Odd("odd")])
async def test_a_program_that_exits_has_failed_and_its_log_replays(
    journal: Journal, leaving: BaseException
) -> None:
    @program
    async def exits(run: Run) -> None:
        await run.tool(look)
        raise leaving

    with pytest.raises(refold.RunFailed, match=type(leaving).__name__):
        await refold.run(exits, journal=journal, thread="t")

    assert kinds(journal)[-1] == "run_failed"
    rebuild.replay(exits, "t", read_all(journal, "t"))


def test_an_interrupt_in_a_program_records_what_runs_and_releases_the_run() -> None:
    entered = asyncio.Event()
    pressed = [True]

    @tool
    async def slow() -> str:
        """Takes until the interrupt has come."""
        entered.set()
        await asyncio.sleep(0.02)
        return "done"

    async def until_entered() -> None:
        await entered.wait()

    @program
    async def interrupted(run: Run) -> Any:
        async def stops() -> None:
            await run.step(until_entered)
            if pressed.pop():
                raise KeyboardInterrupt

        return (await run.gather(run.tool(slow), stops()))[0]

    with Journal.memory() as journal:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(refold.run(interrupted, journal=journal, thread="t"))
        left = kinds(journal)
        assert not journal.info("t").held
        pressed.append(False)
        result = asyncio.run(refold.run(interrupted, journal=journal, thread="t"))

    assert left[-2:] == ["run_released", "tool_returned"]
    assert result.output == "done"


def test_an_interrupt_waits_for_a_tool_no_longer_than_the_grace() -> None:
    entered = asyncio.Event()

    @tool
    async def hangs() -> None:
        """Hangs."""
        entered.set()
        await asyncio.Event().wait()

    async def until_entered() -> None:
        await entered.wait()

    @program
    async def interrupted(run: Run) -> Any:
        async def stops() -> None:
            await run.step(until_entered)
            raise KeyboardInterrupt

        return await run.gather(run.tool(hangs), stops())

    with Journal.memory() as journal:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(
                refold.run(interrupted, journal=journal, thread="t", policy=Policy(cancel_grace_s=0.01))
            )

        assert kinds(journal)[-1] == "tool_in_doubt"


@pytest.mark.parametrize(
    "wait",
    [
        lambda: asyncio.sleep(0.1),
        lambda: asyncio.Event().wait(),
        lambda: asyncio.Queue().get(),
        lambda: asyncio.open_connection("localhost", 1),
    ],
)
async def test_what_needs_an_event_loop_leaves_the_run_unfinished_and_says_what_to_use(
    journal: Journal, wait: Callable[[], Any]
) -> None:
    @program
    async def waits(run: Run) -> None:
        await run.tool(look)
        await wait()

    with pytest.raises(refold.ForeignAwait, match=r"run\.step"):
        await refold.run(waits, journal=journal, thread="t")

    assert kinds(journal)[-1] == "run_released"


@pytest.mark.parametrize("raised", [ValueError("in finally"), SystemExit(1), Odd("odd")])
async def test_what_a_dropped_program_raises_changes_nothing(journal: Journal, raised: BaseException) -> None:
    closed: list[str] = []

    @program
    async def waits(run: Run) -> Any:
        async def branch(name: str) -> Any:
            try:
                return await run.wait_for(name)
            finally:
                closed.append(name)
                raise raised

        return await run.gather(branch("a"), branch("b"))

    result = await refold.run(waits, journal=journal, thread="t", wait=False)

    assert result.status == "waiting"
    assert sorted(closed) == ["a", "b"]
