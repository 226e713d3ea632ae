"""Whoever wants to know of parked runs is told once for each, and cannot harm a run by what it does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import refold
from refold import Agent, Journal, Run, RunResult, ScriptedModel, UsageError, program, tool
from refold.agent.scripted import call
from refold.agent.serve import serve
from refold.replay import answers, hooks
from refold.replay.recording import Policy

FAST = Policy(hold_wait_s=0.0)


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


@tool(timeout_s=0.01)
async def wire() -> str:
    """Wire money, and never say whether it was done."""
    await asyncio.Event().wait()
    return "never"


@program
async def pays(run: Run) -> Any:
    return await run.tool(wire)


async def test_each_parking_is_told_once_with_what_waits_and_why_when_the_thread_is_free(
    journal: Journal,
) -> None:
    told: list[RunResult] = []
    held: list[bool] = []

    def on_parked(result: RunResult) -> None:
        told.append(result)
        held.append(journal.info("t").held)

    options: Any = {"journal": journal, "thread": "t", "policy": FAST, "on_parked": on_parked}
    await refold.run(pays, **options)
    await refold.resume(pays, **options)
    assert len(told) == 1
    answers.resolve(journal, "t", "r1/1", did_not_happen=True, force=True)
    again = await refold.resume(pays, **options)

    assert [result.status for result in told] == ["parked", "parked"]
    assert [(each.call, each.attempt) for result in told for each in result.pending] == [
        ("r1/1", 1),
        ("r1/1", 2),
    ]
    assert "refold resolve" in told[0].reason
    assert (told[0].thread, told[0].run_id) == ("t", "r1")
    assert held == [False, False]
    assert again == told[1]


async def test_an_async_hook_runs_on_the_callers_loop_and_is_waited_for(journal: Journal) -> None:
    loop, told = asyncio.get_running_loop(), []

    async def on_parked(result: RunResult) -> None:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        told.append(result.status)

    agent = Agent("a", model=ScriptedModel([call("wire")]), tools=[wire], policy=FAST)
    await agent.run("go", journal=journal, thread="t", on_parked=on_parked)
    _ = [event async for event in agent.stream("go", journal=journal, thread="u", on_parked=on_parked)]

    assert told == ["parked", "parked"]


def fails(result: RunResult) -> None:
    raise ValueError("no mail server")


def exits(result: RunResult) -> None:
    raise SystemExit(1)


async def exits_later(result: RunResult) -> None:
    raise SystemExit(1)


async def cancels_itself(result: RunResult) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


@pytest.mark.parametrize("hook", [fails, exits, exits_later, cancels_itself])
async def test_a_hook_that_fails_changes_nothing(
    journal: Journal, hook: Callable[[RunResult], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20):
        result = await refold.run(pays, journal=journal, thread="t", on_parked=hook)

    assert result.status == "parked"
    assert hook.__name__ in caplog.text


async def test_a_hook_that_hangs_is_not_waited_for_for_ever(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks.tell, "__kwdefaults__", {"timeout_s": 0.01})
    leave = threading.Event()

    async with asyncio.timeout(20):
        result = await refold.run(
            pays, journal=journal, thread="t", on_parked=lambda result: leave.wait(20) and None
        )
    leave.set()

    assert result.status == "parked"


@pytest.mark.parametrize("name", ["on_parked", "observe"])
async def test_what_cannot_be_called_is_refused_before_the_thread_is_made(
    journal: Journal, name: str
) -> None:
    hook: Any = {name: "mail@example.org"}

    with pytest.raises(UsageError, match=f"{name} is a function .*, not 'mail@example.org'"):
        await refold.run(pays, journal=journal, thread="t", **hook)

    assert list(journal.threads()) == []


async def test_a_run_that_is_not_parked_tells_nobody(journal: Journal) -> None:
    @program
    async def waits(run: Run) -> Any:
        return await run.wait_for("go")

    told: list[RunResult] = []
    options: Any = {"journal": journal, "thread": "t", "on_parked": told.append}
    await refold.run(waits, wait=False, **options)
    answers.signal(journal, "t", "go")
    await refold.resume(waits, **options)

    assert told == []


def test_a_served_run_tells_of_its_parking_too(journal: Journal) -> None:
    told: list[str] = []

    served = serve(
        pays,
        journal,
        "t",
        lambda runner: runner.run(None),
        on_parked=lambda result: told.append(result.status),
    )

    assert served.result is not None
    assert (served.result.status, told) == ("parked", ["parked"])
