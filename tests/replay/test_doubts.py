"""What may have happened is not begun anew without a yes: as long as it is in doubt, and no longer than that."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import refold
from golden import corpus
from left_running import leave_running, sending_from_now_on
from msgspec import Raw
from refold import Journal, Run, ToolContext, ToolError, answers, program, tool
from refold.journal import export
from refold.replay import rebuild
from refold.replay.fork import fork
from refold.replay.inbox import Resolution, encode_message
from refold.replay.interpreter import Interpreter
from refold.replay.recording import Policy
from refold.replay.runner import read_all

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.memory() as memory:
        yield memory


@tool(timeout_s=0.02)
async def pay(to: str, context: ToolContext) -> str:
    """Pay: the first of two breaks off, the second gives no answer."""
    if context.call.endswith(".1.1"):
        raise ConnectionError("reset")
    await asyncio.Event().wait()
    return "never"


async def tried(run: Run) -> str:
    try:
        return str(await run.tool(pay, "kim"))
    except ToolError as error:
        return error.effect


@program
async def twice(run: Run) -> list[str]:
    return await run.gather(tried(run), tried(run))


@program
async def once(run: Run) -> str:
    return str(await run.tool(pay, "kim"))


def waiting(result: Any) -> list[tuple[str, str]]:
    return [(each.call, each.status) for each in result.pending]


@pytest.mark.parametrize(
    "said", [{"failed": "the bank refused"}, {"result": b'"paid"'}], ids=["failed", "paid"]
)
async def test_what_becomes_known_of_one_call_settles_no_doubt_about_another_like_it(
    journal: Journal, said: dict[str, Any]
) -> None:
    parked = await refold.run(twice, journal=journal, thread="t")
    assert waiting(parked) == [("r1/1.2.1", "in doubt")]
    answers.resolve(journal, "t", "r1/1.2.1", **said)
    done = await refold.resume(twice, journal=journal, thread="t")
    assert done.output == ["unknown", "none" if "failed" in said else "paid"]

    third = await refold.run(once, journal=journal, thread="t", wait=False)

    assert waiting(third) == [("r2/1", "waits for approval")]


async def test_of_two_doubts_that_a_cancelled_run_left_a_resolution_settles_its_own_alone(
    journal: Journal,
) -> None:
    @program
    async def both(run: Run) -> list[Any]:
        return await run.gather(run.sleep(0), *(run.tool(pay, "kim") for _ in range(2)))

    parked = await refold.run(both, journal=journal, thread="t")
    one, two = [call for call, status in waiting(parked) if status == "in doubt"]
    answers.cancel(journal, "t")
    await refold.resume(both, journal=journal, thread="t")

    answers.resolve(journal, "t", one, did_not_happen=True)
    held = await refold.run(once, journal=journal, thread="t", wait=False)
    answers.cancel(journal, "t")
    await refold.resume(once, journal=journal, thread="t")
    answers.resolve(journal, "t", two, result=b'"paid"')
    free = await refold.run(once, journal=journal, thread="t", wait=False)

    assert waiting(held) == [("r2/1", "waits for approval")]
    assert waiting(free) == [("r3/1", "in doubt")], "it has begun"


async def test_a_word_on_another_attempt_settles_no_doubt_that_a_cancelled_run_left(journal: Journal) -> None:
    @program
    async def late(run: Run) -> list[Any]:
        return await run.gather(run.sleep(0), *(run.tool(pay, "kim") for _ in range(2)))

    parked = await refold.run(late, journal=journal, thread="t")
    (one, _), *_ = [each for each in waiting(parked) if each[1] == "in doubt"]
    answers.cancel(journal, "t")
    await refold.resume(late, journal=journal, thread="t")
    kind, body = encode_message(Resolution(one, 7, "returned", Raw(b'"paid"')))
    journal.send("t", key="by hand", kind=kind, body=body)
    await refold.run(once, journal=journal, thread="t", wait=False)

    assert "tool_resolved" not in [event.kind for event in read_all(journal, "t")]
    assert journal.inbox("t") == []


async def test_an_unknown_effect_that_a_fork_takes_from_its_origin_holds_an_identical_call(
    journal: Journal,
) -> None:
    @program
    async def one(run: Run) -> list[str]:
        return await run.gather(tried(run))

    await refold.run(one, journal=journal, thread="t")
    started = next(each.seq for each in journal.read("t") if each.kind == "tool_started")
    assert fork(journal, "t", at=started, name="f").outcomes == ["r1/1.1.1"]
    assert (await refold.resume(one, journal=journal, thread="f")).output == ["unknown"]

    again = await refold.run(once, journal=journal, thread="f", wait=False)

    assert waiting(again) == [("r2/1", "waits for approval")]


@pytest.mark.parametrize("end", ["cancelled", "superseded"])
@pytest.mark.parametrize(
    "flags", [{"read_only": True}, {"idempotent": True}, {"in_doubt": "retry"}, {}], ids=str
)
async def test_only_what_must_not_be_repeated_waits_for_a_person_after_its_run_has_ended_under_it(
    journal: Journal, flags: dict[str, Any], end: str
) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @tool(**flags)
    async def weather(city: str) -> str:
        """Weather."""
        if begun.is_set():
            return "sunny"
        begun.set()
        await never.wait()
        return "never"

    @program
    async def asks(run: Run, number: int) -> str:
        return str(await run.tool(weather, "Paris"))

    quick = Policy(cancel_grace_s=0.01)
    task = asyncio.create_task(refold.run(asks, 1, journal=journal, thread="t", policy=quick))
    await begun.wait()
    if end == "cancelled":
        answers.cancel(journal, "t")
        assert (await task).status == "cancelled"
    else:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    result = await refold.run(asks, 2, journal=journal, thread="t", supersede=True, wait=False)

    if flags:
        assert (result.status, result.output) == ("finished", "sunny")
    else:
        assert waiting(result) == [("r2/1", "waits for approval")]
    rebuild.replay(asks, "t", read_all(journal, "t"))


async def test_a_thread_that_asked_a_person_about_a_call_that_only_reads_goes_on_when_it_is_answered(
    journal: Journal,
) -> None:
    """An earlier build asked; what it has recorded is waited for and matches from every prefix."""
    export.import_file(journal, GOLDEN / "held.jsonl", name="t", adopt=True)
    agent = corpus.clerk_with(corpus.ScriptedModel(corpus.AGAIN))

    (held,) = (await agent.resume(journal=journal, thread="t", wait=False)).pending
    assert (held.name, held.status) == ("lookup", "waits for approval")
    answers.approve(journal, "t", held.call, approved=True)
    assert (await agent.resume(journal=journal, thread="t", wait=False)).output == "Looked up."

    events = read_all(journal, "t")
    for end in range(1, len(events) + 1):
        rebuild.replay(agent.program, "t", events[:end])


async def test_a_thread_in_which_a_call_like_a_doubtful_one_began_without_a_yes_still_replays(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier build had forgotten the doubt."""

    @tool
    def burn() -> None:
        """Burn."""
        raise ValueError("half done")

    @program
    async def burns(run: Run, number: int) -> str:
        try:
            await run.gather(run.tool(burn), run.sleep(0))
        except ToolError as error:
            return error.effect
        return "done"

    await refold.run(burns, 1, journal=journal, thread="t")
    with monkeypatch.context() as forgetful:
        forgetful.setattr(Interpreter, "_held", lambda self, command: False)
        assert (await refold.run(burns, 2, journal=journal, thread="t", wait=False)).output == "unknown"

    events = read_all(journal, "t")
    for end in range(1, len(events) + 1):
        rebuild.replay(burns, "t", events[:end])
    assert waiting(await refold.run(burns, 3, journal=journal, thread="t", wait=False)) == [
        ("r3/1.1.1", "waits for approval")
    ]


async def test_what_somebody_said_too_soon_keeps_out_no_result_of_the_call_itself(journal: Journal) -> None:
    """That it did not happen was true when it was said; the tool that was left running acted after that."""
    entered, leave = threading.Event(), threading.Event()
    acted: list[int] = []

    @tool(timeout_s=60.0)
    def ship(context: ToolContext) -> str:
        """Ship, in its own time."""
        entered.set()
        leave.wait(10)
        acted.append(context.attempt)
        return "shipped"

    @program
    async def ships(run: Run) -> str:
        return str(await run.tool(ship))

    await leave_running(ships, journal, entered)
    assert answers.resolve(journal, "t", "r1/1", did_not_happen=True).later

    offered = sending_from_now_on(journal)
    leave.set()
    assert await asyncio.to_thread(offered.wait, 10)
    with pytest.raises(refold.NotPending, match="already answered"):
        answers.resolve(journal, "t", "r1/1", did_not_happen=True, force=True)
    result = await refold.resume(ships, journal=journal, thread="t")

    assert (result.output, acted) == ("shipped", [1])
    rebuild.replay(ships, "t", read_all(journal, "t"))
