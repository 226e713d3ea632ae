"""Programs on a journal in memory: what is promised of a run, without a database and without a model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
import refold
from refold import Journal, Messages, ModelError, ModelReply, Run, ToolContext, ToolError, program, tool
from refold.replay import rebuild
from refold.replay.runner import read_all
from refold.replay.status import ThreadStatus


def kinds(journal: Journal, thread: str) -> list[str]:
    return [event.kind for event in read_all(journal, thread)]


def check(made: refold.Program, journal: Journal, thread: str) -> None:
    """The recorded thread replays strictly."""
    rebuild.replay(made, thread, read_all(journal, thread))


class Echo:
    """Answers with the number of messages it was sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def respond(self, request: Any) -> ModelReply:
        self.requests.append({**request, "messages": list(request["messages"])})
        return ModelReply(
            {"role": "assistant", "content": f"{len(request['messages'])} messages"}, finish_reason="stop"
        )


@tool
def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


@tool(read_only=True)
async def look(key: str) -> str:
    """Look."""
    return key.upper()


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


async def test_a_program_gets_replies_and_its_log_replays(journal: Journal) -> None:
    @program
    async def both(run: Run, name: str) -> list[Any]:
        reply = await run.model(messages=[{"role": "user", "content": name}], model="m")
        results = await run.gather(run.tool(pay, 3), run.tool(look, key="x"))
        return [reply.text, *results]

    result = await refold.run(both, "hi", journal=journal, thread="t", models=Echo())

    assert result.status == "finished"
    assert result.output == ["1 messages", {"paid": 3}, "X"]
    assert kinds(journal, "t") == [
        "thread_created",
        "run_started",
        "model_responded",
        "tool_started",
        "tool_started",
        "tool_returned",
        "tool_returned",
        "run_finished",
    ]
    check(both, journal, "t")


async def test_a_loop_whose_tasks_begin_at_once_runs_programs_as_any_other(journal: Journal) -> None:
    @program
    async def both(run: Run, name: str) -> list[Any]:
        reply = await run.model(messages=[{"role": "user", "content": name}], model="m")
        results = await run.gather(run.tool(pay, 3), run.tool(look, key="x"))
        return [reply.text, *results]

    # Python 3.11 has none.
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
    result = await refold.run(both, "hi", journal=journal, thread="t", models=Echo())

    assert result.output == ["1 messages", {"paid": 3}, "X"]
    check(both, journal, "t")


async def test_an_exception_of_an_unsafe_tool_leaves_its_effect_unknown_and_holds_an_identical_call(
    journal: Journal,
) -> None:
    @tool
    def burn() -> None:
        """Burn."""
        raise ValueError("half done")

    @program
    async def twice(run: Run) -> str:
        try:
            await run.tool(burn)
        except ToolError as error:
            first = f"{error.error_type}/{error.effect}"
        await run.tool(burn)
        return first

    result = await refold.run(twice, journal=journal, thread="t", wait=False)

    assert result.status == "waiting"
    assert [call.status for call in result.pending] == ["waits for approval"]


async def test_a_tool_error_asserts_that_nothing_happened(journal: Journal) -> None:
    @tool
    def refuse() -> None:
        """Refuse."""
        raise ToolError("no such order")

    @program
    async def ask(run: Run) -> list[str]:
        try:
            await run.tool(refuse)
        except ToolError as error:
            return [error.message, error.effect]
        return []

    result = await refold.run(ask, journal=journal, thread="t")

    assert result.output == ["no such order", "none"]
    check(ask, journal, "t")


async def test_a_foreign_await_stops_the_run_without_failing_it(journal: Journal) -> None:
    @program
    async def naps(run: Run) -> None:
        await run.tool(look, key="x")
        with contextlib.suppress(Exception):
            await asyncio.sleep(0)

    with pytest.raises(refold.ForeignAwait, match=r"run\.step"):
        await refold.run(naps, journal=journal, thread="t")

    assert "run_failed" not in kinds(journal, "t")
    assert "tool_returned" in kinds(journal, "t")


async def test_the_same_input_returns_to_an_unfinished_run_and_another_is_refused(journal: Journal) -> None:
    gate = {"broken": True}

    @program
    async def fragile(run: Run, value: int) -> int:
        got = await run.tool(look, key="k")
        if gate["broken"]:
            await asyncio.sleep(0)
        return value + len(got)

    with pytest.raises(refold.ForeignAwait):
        await refold.run(fragile, 1, journal=journal, thread="t")
    gate["broken"] = False
    with pytest.raises(refold.RunUnfinished):
        await refold.run(fragile, 2, journal=journal, thread="t")
    result = await refold.run(fragile, 1, journal=journal, thread="t")

    assert result.output == 2
    assert kinds(journal, "t").count("tool_returned") == 1


async def test_a_key_returns_its_finished_run(journal: Journal) -> None:
    count = {"n": 0}

    @tool
    def bump() -> int:
        """Bump."""
        count["n"] += 1
        return count["n"]

    @program
    async def once(run: Run, value: str) -> int:
        return await run.tool(bump)

    first = await refold.run(once, "a", journal=journal, thread="t", key="k")
    again = await refold.run(once, "a", journal=journal, thread="t", key="k")
    other = await refold.run(once, "a", journal=journal, thread="t")

    assert (first.output, again.output, other.output) == (1, 1, 2)


async def test_a_failed_run_raises_and_its_failure_replays(journal: Journal) -> None:
    @program
    async def fails(run: Run) -> None:
        await run.tool(look, key="x")
        raise KeyError("nothing there")

    with pytest.raises(refold.RunFailed, match="KeyError"):
        await refold.run(fails, journal=journal, thread="t")

    check(fails, journal, "t")


async def test_a_retryable_model_failure_is_recorded_and_asked_again(journal: Journal) -> None:
    class Flaky(Echo):
        async def respond(self, request: Any) -> ModelReply:
            if len(self.requests) < 2:
                self.requests.append({})
                raise ModelError("slow down", kind="rate_limit", retry_after_s=0.0)
            return await super().respond(request)

    @program
    async def ask(run: Run) -> str:
        return (await run.model(messages=[{"role": "user", "content": "x"}], model="m")).text

    from refold.replay.recording import Policy

    result = await refold.run(
        ask, journal=journal, thread="t", models=Flaky(), policy=Policy(backoff_s=0.001)
    )

    assert result.output == "1 messages"
    assert kinds(journal, "t").count("model_failed") == 2
    check(ask, journal, "t")


async def test_time_randomness_and_ids_are_the_same_on_replay(journal: Journal) -> None:
    seen: list[list[str]] = []

    @program
    async def draws(run: Run) -> str:
        first = [str(run.now()), str(run.random.random()), str(run.uuid())]
        await run.tool(look, key="x")
        first += [str(run.now()), str(run.random.random())]
        seen.append(first)
        return first[2]

    await refold.run(draws, journal=journal, thread="t")
    check(draws, journal, "t")

    assert seen[0] == seen[1]


async def test_no_two_runs_draw_the_same_whatever_thread_they_are_of(journal: Journal) -> None:
    @program
    async def draws(run: Run, number: int) -> list[str]:
        return [str(run.random.random()), str(run.uuid())]

    drawn: list[str] = []
    for thread, number in (("t", 1), ("t", 2), ("u", 1)):
        drawn += (await refold.run(draws, number, journal=journal, thread=thread)).output

    assert len(set(drawn)) == 6


async def test_steps_record_results_and_failures(journal: Journal) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    @program
    async def sums(run: Run) -> list[Any]:
        good = await run.step(divide, 6, 3)
        try:
            await run.step(divide, 1, b=0)
        except refold.StepError as error:
            return [good, error.error_type]
        return []

    result = await refold.run(sums, journal=journal, thread="t")

    assert result.output == [2.0, "ZeroDivisionError"]
    check(sums, journal, "t")


async def test_sleeps_and_signals(journal: Journal) -> None:
    @program
    async def waits(run: Run) -> Any:
        await run.sleep(0.001)
        nothing = await run.wait_for("never", timeout=0.001)
        return [nothing, await run.wait_for("go")]

    from msgspec import Raw
    from refold.journal.codec import encode
    from refold.replay.inbox import Signal, encode_message

    parked = await refold.run(waits, journal=journal, thread="t", wait=False)
    assert parked.status == "waiting"
    kind, body = encode_message(Signal("go", Raw(encode({"a": 1}))))
    journal.send("t", key="s1", kind=kind, body=body)
    result = await refold.resume(waits, journal=journal, thread="t")

    assert result.output == [None, {"a": 1}]
    check(waits, journal, "t")


async def test_resuming_without_news_writes_nothing(journal: Journal) -> None:
    @program
    async def waits(run: Run) -> Any:
        return await run.wait_for("go")

    await refold.run(waits, journal=journal, thread="t", wait=False)
    before = journal.info("t").head
    again = await refold.resume(waits, journal=journal, thread="t", wait=False)

    assert again.status == "waiting"
    assert journal.info("t").head == before


async def test_a_cancelled_caller_loses_no_finished_result(journal: Journal) -> None:
    entered, leave = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        """Slow."""
        entered.set()
        leave.wait(10)
        return "done"

    @program
    async def runs(run: Run) -> str:
        return await run.tool(slow)

    task = asyncio.create_task(refold.run(runs, journal=journal, thread="t"))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert "tool_returned" in kinds(journal, "t")
    result = await refold.resume(runs, journal=journal, thread="t")
    assert result.output == "done"
    check(runs, journal, "t")


async def test_requests_are_stored_as_what_is_new(journal: Journal) -> None:
    @program
    async def chat(run: Run) -> int:
        conversation = Messages([{"role": "user", "content": "x" * 500}])
        for _ in range(20):
            reply = await run.model(messages=conversation, model="m")
            conversation.add(reply.message)
            conversation.add({"role": "user", "content": "more"})
        return len(conversation)

    await refold.run(chat, journal=journal, thread="t", models=Echo())
    sizes = [len(e.body) for e in read_all(journal, "t") if e.kind == "model_responded"]

    assert max(sizes[1:]) - min(sizes[1:]) < 20
    check(chat, journal, "t")


async def test_a_tool_may_ask_for_its_context(journal: Journal) -> None:
    @tool(idempotent=True)
    def keyed(context: ToolContext) -> list[Any]:
        """Keyed."""
        return [context.idempotency_key, context.attempt, context.deps]

    @program
    async def runs(run: Run) -> Any:
        return [await run.tool(keyed), await run.tool(keyed)]

    result = await refold.run(runs, journal=journal, thread="t", deps="d")

    (key, attempt, deps), (other, _, _) = result.output
    assert key != other
    assert (attempt, deps) == (1, "d")


async def test_a_doubt_of_an_earlier_run_holds_an_identical_call_after_a_restart_too(
    journal: Journal,
) -> None:
    @tool
    def burn() -> None:
        """Burn."""
        raise ValueError("half done")

    @program
    async def once(run: Run, number: int) -> None:
        with contextlib.suppress(ToolError):
            await run.tool(burn)

    assert (await refold.run(once, 1, journal=journal, thread="t")).status == "finished"
    held = await refold.run(once, 2, journal=journal, thread="t", wait=False)
    again = await refold.resume(once, journal=journal, thread="t", wait=False)

    for result in (held, again):
        assert [(call.call, call.status) for call in result.pending] == [("r2/1", "waits for approval")]
    check(once, journal, "t")


async def test_an_event_is_folded_once_however_many_runs_are_replayed(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    @program
    async def short(run: Run, number: int) -> int:
        return number

    for number in range(20):
        await refold.run(short, number, journal=journal, thread="t")
    folded: list[int] = []
    apply = ThreadStatus.apply

    def counted(status: ThreadStatus, seq: int, body: Any) -> None:
        folded.append(seq)
        apply(status, seq, body)

    monkeypatch.setattr(ThreadStatus, "apply", counted)
    check(short, journal, "t")

    assert folded == [event.seq for event in read_all(journal, "t")]
