"""Commands and gathers: when they are asked, how often, and under which paths."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import refold
from died import died_at
from refold import Journal, Run, program
from refold.replay import rebuild
from refold.replay.events import StepFailed, StepRecorded, decode_event
from refold.replay.runner import read_all


async def number(n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is below zero")
    return n


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.memory() as made:
        yield made


def steps(journal: Journal, thread: str) -> list[tuple[str, bytes]]:
    """Path and arguments of each recorded step, in log order."""
    bodies = [decode_event(event) for event in read_all(journal, thread)]
    found = [body for body in bodies if isinstance(body, StepRecorded | StepFailed)]
    return sorted((body.call.partition("/")[2], bytes(body.args)) for body in found)


async def recorded(made: refold.Program, journal: Journal, thread: str) -> Any:
    """What a program returns live; its log replays."""
    result = await refold.run(made, journal=journal, thread=thread)
    rebuild.replay(made, thread, read_all(journal, thread))
    return result.output


async def test_a_command_that_is_awaited_again_raises_and_takes_no_path(journal: Journal) -> None:
    @program
    async def twice(run: Run) -> list[Any]:
        ask = run.step(number, 1)
        first = await ask
        try:
            await ask
        except RuntimeError as error:
            return [first, str(error), await run.step(number, 2)]
        return []

    first, why, second = await recorded(twice, journal, "t")

    assert (first, second) == (1, 2) and "awaited once" in why
    assert [path for path, _ in steps(journal, "t")] == ["1", "2"]


async def test_a_command_that_is_gathered_twice_fails_in_the_second_branch_alone(journal: Journal) -> None:
    @program
    async def twice(run: Run) -> str:
        ask = run.step(number, 1)
        try:
            await run.gather(ask, ask, run.step(number, 3))
        except RuntimeError as error:
            return str(error)
        return ""

    assert "awaited once" in await recorded(twice, journal, "t")
    assert [path for path, _ in steps(journal, "t")] == ["1.1.1", "1.3.1"]


async def test_a_bare_command_in_a_gather_is_recorded_as_in_a_coroutine_of_its_own(journal: Journal) -> None:
    async def wrapped(run: Run, n: int) -> Any:
        return await run.step(number, n)

    @program
    async def bare(run: Run) -> list[Any]:
        return await run.gather(run.step(number, 1), wrapped(run, 2), run.step(number, 3))

    @program
    async def whole(run: Run) -> list[Any]:
        return await run.gather(wrapped(run, 1), run.step(number, 2), wrapped(run, 3))

    assert await recorded(bare, journal, "bare") == await recorded(whole, journal, "whole") == [1, 2, 3]
    assert steps(journal, "bare") == steps(journal, "whole")


async def test_a_gather_waits_for_all_and_raises_the_error_of_the_lowest_path(journal: Journal) -> None:
    """Whichever comes first in time."""

    @program
    async def failing(run: Run) -> str:
        async def later() -> int:
            await run.sleep(0.01)
            return await run.step(number, -2)

        try:
            await run.gather(run.step(number, 1), later(), run.step(number, -3))
        except refold.StepError as error:
            return str(error)
        return ""

    assert "-2 is below zero" in await recorded(failing, journal, "t")
    assert len(steps(journal, "t")) == 3


async def test_a_command_that_was_made_and_never_awaited_is_told_at_the_end(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    @program
    async def forgetful(run: Run) -> str:
        run.step(number, 7)
        return "done"

    with caplog.at_level(logging.WARNING, "refold.replay"):
        assert await recorded(forgetful, journal, "t") == "done"

    assert "never awaited" in caplog.text and "number" in caplog.text


async def test_a_patch_changes_no_more_of_a_run_than_its_log_has_not_said_yet(journal: Journal) -> None:
    @program
    async def counts(run: Run) -> list[int]:
        return [await run.step(number, 1), await run.step(number, 2)]

    async def patched(run: Run) -> list[int]:
        counted = [await run.step(number, 0)] if run.patched("from zero") else []
        counted.append(await run.step(number, 1))
        if run.patched("by halves"):
            counted.append(await run.step(number, 15))
        return [*counted, await run.step(number, 2)]

    patched.__name__ = patched.__qualname__ = counts.name
    after = program(patched)
    assert await recorded(counts, journal, "old") == [1, 2]
    rebuild.replay(after, "old", read_all(journal, "old"))
    assert await recorded(after, journal, "new") == [0, 1, 15, 2]
    first = next(event.seq for event in read_all(journal, "old") if event.kind == "step_recorded")
    with died_at(journal, "old", first) as left:
        assert (await refold.resume(after, journal=left, thread="old")).output == [1, 15, 2]
        rebuild.replay(after, "old", read_all(left, "old"))
