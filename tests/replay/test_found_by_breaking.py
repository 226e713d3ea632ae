"""What somebody who tried to break refold did break, each held by a test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import refold
from msgspec import Raw
from refold import Agent, Journal, ModelReply, Run, ScriptedModel, UsageError, answers, program, tool
from refold.agent.scripted import raw_call, say
from refold.replay.inbox import Cancel, Input, Signal, encode_message
from refold.replay.live import Limits, LiveHost
from refold.replay.recording import Policy


def send(journal: Journal, content: Any, key: str) -> None:
    kind, body = encode_message(content)
    journal.send("t", key=key, kind=kind, body=body)


async def test_a_message_to_a_poisoned_run_does_not_make_a_resume_spin_and_a_cancel_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dies(Exception):
        pass

    @tool(read_only=True)
    def eats() -> str:
        """Eat."""
        return "fed"

    @program
    async def runs(run: Run) -> str:
        return await run.tool(eats)

    def perform(self: LiveHost, call: Any, attempt: int) -> None:
        raise Dies

    with Journal.memory() as journal:
        with monkeypatch.context() as deadly:
            deadly.setattr(LiveHost, "perform", perform)
            for _ in range(5):
                with pytest.raises(Dies):
                    await refold.run(runs, journal=journal, thread="t", policy=Policy())
            assert (await refold.run(runs, journal=journal, thread="t")).status == "parked"
        send(journal, Input(Raw(b"1")), "i")
        async with asyncio.timeout(10):
            assert (await refold.resume(runs, journal=journal, thread="t")).status == "parked"
        send(journal, Cancel("r1", reason="enough"), "c")
        async with asyncio.timeout(10):
            result = await refold.resume(runs, journal=journal, thread="t")

    assert result.status in ("cancelled", "finished")


async def test_two_callers_that_wait_for_one_run_both_get_its_result() -> None:
    @program
    async def waits(run: Run) -> Any:
        return await run.wait_for("go")

    with Journal.memory() as journal:
        limits = Limits(poll_s=0.01)
        both = [
            asyncio.create_task(refold.run(waits, journal=journal, thread="t", key="k", limits=limits))
            for _ in range(1)
        ]
        while not journal.store.read("t") or journal.info("t").state != "waiting":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        both.append(
            asyncio.create_task(refold.run(waits, journal=journal, thread="t", key="k", limits=limits))
        )
        await asyncio.sleep(0.05)
        send(journal, Signal("go", Raw(b"7")), "s")
        async with asyncio.timeout(10):
            results = await asyncio.gather(*both)

    assert [result.output for result in results] == [7, 7]


@pytest.mark.parametrize("raised", [StopIteration("empty"), SystemExit(3), KeyboardInterrupt()])
async def test_whatever_a_step_raises_is_its_recorded_failure(raised: BaseException) -> None:
    def sync_step() -> None:
        raise raised

    async def async_step() -> None:
        raise raised if not isinstance(raised, StopIteration) else ValueError

    @program
    async def runs(run: Run) -> list[str]:
        failures = []
        for step in (sync_step, async_step):
            try:
                await run.step(step)
            except refold.StepError as error:
                failures.append(error.error_type)
        return failures

    with Journal.memory() as journal:
        async with asyncio.timeout(10):
            result = await refold.run(runs, journal=journal, thread="t")

    assert result.output[0] == type(raised).__name__
    assert len(result.output) == 2


async def test_a_step_that_cancels_its_own_task_has_failed_and_one_that_hangs_times_out() -> None:
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    async def hangs() -> None:
        await asyncio.Event().wait()

    @program
    async def runs(run: Run) -> list[str]:
        failures = []
        for step in (cancels, hangs):
            try:
                await run.step(step)
            except refold.StepError as error:
                failures.append(error.error_type)
        return failures

    with Journal.memory() as journal:
        async with asyncio.timeout(10):
            result = await refold.run(runs, journal=journal, thread="t", limits=Limits(step_timeout_s=0.05))

    assert result.output == ["asyncio.exceptions.CancelledError", "TimeoutError"]


async def test_a_call_id_that_is_no_text_is_replaced() -> None:
    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("a", model=ScriptedModel([[raw_call("look", "{}", id="\ud800")], "done"]), tools=[look])

    with Journal.memory() as journal:
        assert (await agent.run("go", journal=journal, thread="t")).output == "done"


async def test_a_response_too_large_to_record_is_paid_for_once() -> None:
    class Huge:
        asked = 0

        async def respond(self, request: Any) -> ModelReply:
            self.asked += 1
            return ModelReply({"role": "assistant", "content": "x" * (17 * 1024 * 1024)})

    model = Huge()
    with Journal.memory() as journal, pytest.raises(refold.RunFailed):
        await Agent("a", model=model).run("go", journal=journal, thread="t")

    assert model.asked == 1


@pytest.mark.parametrize("given", ["paid", b"paid", b"", b"{", b"\xff", 7])
def test_an_answer_that_is_no_json_is_refused_before_it_makes_the_inbox_unreadable(given: object) -> None:
    with Journal.memory() as journal:
        Agent("a", model=ScriptedModel([say("x")])).run_sync("hi", journal=journal, thread="t")

        with pytest.raises(UsageError, match="JSON text"):
            answers.submit(journal, "t", given)  # type: ignore[arg-type]

        assert journal.inbox("t") == []


async def test_of_two_words_on_a_call_of_a_cancelled_run_only_the_first_is_recorded() -> None:
    @tool(timeout_s=0.01)
    async def hangs() -> str:
        """Never return."""
        await asyncio.Event().wait()
        return "never"

    @program
    async def asks(run: Run) -> str:
        return await run.tool(hangs)

    @program
    async def rests(run: Run) -> str:
        return "rested"

    with Journal.memory() as journal:
        assert (await refold.run(asks, journal=journal, thread="t", wait=False)).status == "parked"
        answers.cancel(journal, "t")
        assert (await refold.resume(asks, journal=journal, thread="t")).status == "cancelled"
        answers.resolve(journal, "t", "r1/1", did_not_happen=True, force=True)
        answers.resolve(journal, "t", "r1/1", result=b'"ok"')
        await refold.run(rests, journal=journal, thread="t")
        told = [event.body for event in journal.read("t") if event.kind == "tool_resolved"]
        waiting = journal.info("t").inbox_waiting

    assert len(told) == 1 and b"did_not_happen" in told[0]
    assert waiting == 0
