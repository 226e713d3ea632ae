"""Model calls in which the provider runs tools of its own: started on the record, and in doubt after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import refold
from died import died_at
from refold import (
    Agent,
    Divergence,
    Journal,
    ModelError,
    Run,
    RunFailed,
    ScriptedModel,
    Usage,
    UsageError,
    answers,
    program,
    read_stats,
    tool,
)
from refold.agent.scripted import call, failing, say
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.live import Limits
from refold.replay.provider_tools import acting
from refold.replay.recording import Policy
from refold.replay.runner import read_all

CODE = {"type": "code_execution_20250522", "name": "code_execution"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
QUICK = Policy(backoff_s=0.0)


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.memory() as made:
        yield made


@tool(read_only=True)
def find(order: int) -> int:
    """Find an order."""
    return 30


def agent(*turns: Any, tools: Any = (CODE,), **options: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(list(turns) or [say(None, call("find", order=7)), "done"])
    made = Agent("shop", model=model, tools=[find], params={"tools": list(tools)}, policy=QUICK, **options)
    return made, model


def kinds(journal: Journal) -> list[str]:
    return [event.kind for event in read_all(journal, "t")]


def seq_of(journal: Journal, kind: str, number: int = 1) -> int:
    return [event.seq for event in read_all(journal, "t") if event.kind == kind][number - 1]


def left_in_doubt(journal: Journal, made: Agent, turn: int = 1) -> Any:
    """The journal as it is when the worker died in that model call."""
    made.run_sync("hi", journal=journal, thread="t")
    return died_at(journal, "t", seq_of(journal, "model_started", turn))


# Which calls


@pytest.mark.parametrize(
    "params, found",
    [
        ({}, []),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, []),
        ({"tools": [SEARCH, {"type": "web_search_preview"}, {"type": "file_search"}]}, []),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": {}}]}, []),
        ({"tools": [{"googleSearch": {}}, {"url_context": {}}]}, []),
        ({"web_search_options": {}}, []),
        ({"tools": [CODE]}, ["code_execution_20250522"]),
        ({"tools": [SEARCH, {"type": "code_interpreter"}]}, ["code_interpreter"]),
        ({"tools": [{"codeExecution": {}}]}, ["codeExecution"]),
        ({"tools": [{"type": "mcp", "server_url": "https://example.org"}]}, ["mcp"]),
        ({"mcp_servers": [{"url": "https://example.org"}]}, ["mcp_servers"]),
        ({"tools": [{"type": "something_new"}]}, ["something_new"]),
        ({"tools": "none", "mcp_servers": []}, []),
        ({"tools": [None, 7]}, []),
    ],
)
def test_whatever_a_provider_runs_and_is_not_known_to_be_harmless_may_act(
    params: dict[str, Any], found: list[str]
) -> None:
    assert acting(params) == found


def test_tools_of_the_provider_and_of_the_agent_go_out_together() -> None:
    made, model = agent("done")
    with Journal.memory() as journal:
        made.run_sync("hi", journal=journal, thread="t")

    theirs, ours = model.requests[0]["tools"]
    assert (theirs, ours["function"]["name"]) == (CODE, "find")


def test_only_calls_that_may_act_are_started_on_the_record(journal: Journal) -> None:
    agent()[0].run_sync("hi", journal=journal, thread="t")
    assert kinds(journal) == [
        *("thread_created", "run_started", "model_started", "model_responded"),
        *("tool_started", "tool_returned", "model_started", "model_responded", "run_finished"),
    ]
    with Journal.memory() as other:
        agent(tools=[SEARCH])[0].run_sync("hi", journal=other, thread="t")
        assert "model_started" not in kinds(other)


async def test_the_start_is_durable_before_the_model_is_asked(journal: Journal) -> None:
    def respond(request: Any) -> str:
        assert kinds(journal)[-1] == "model_started"
        return "done"

    made = Agent("shop", model=ScriptedModel(respond), params={"tools": [CODE]})
    assert (await made.run("hi", journal=journal, thread="t")).output == "done"


# In doubt


@pytest.mark.parametrize("turn", [1, 2])
def test_a_call_in_doubt_parks_the_run_and_nothing_is_asked(journal: Journal, turn: int) -> None:
    made, model = agent()
    with left_in_doubt(journal, made, turn) as left:
        asked = model.count
        for _ in range(2):
            result = made.run_sync("hi", journal=left, thread="t", wait=False)
        assert model.count == asked

        assert result.status == "parked"
        assert result.reason.startswith("the outcome of a model call is unknown")
        assert [each.status for each in result.pending] == ["in doubt"]
        assert kinds(left)[-2:] == ["run_resumed", "run_parked"]


def test_a_call_that_did_not_happen_is_asked_again(journal: Journal) -> None:
    made, model = agent()
    with left_in_doubt(journal, made) as left:
        parked = made.run_sync("hi", journal=left, thread="t", wait=False)
        answers.resolve(left, "t", parked.pending[0].call, did_not_happen=True)
        result = made.resume_sync(journal=left, thread="t")

        assert result.output == "done"
        assert model.count == 4
        assert kinds(left).count("model_started") == 3
        assert result.usage.responses == 2
        rebuild.replay(made.program, "t", read_all(left, "t"))


def test_a_call_that_failed_is_a_failure_of_the_model_and_the_next_model_is_asked(journal: Journal) -> None:
    @program
    async def careful(run: Run) -> str:
        try:
            await run.model(messages=[{"role": "user", "content": "hi"}], model="m", tools=[CODE])
        except ModelError as error:
            return error.message
        return "answered"

    client = ScriptedModel(["yes"])
    refold.run_sync(careful, journal=journal, thread="t", models=client)
    with died_at(journal, "t", seq_of(journal, "model_started")) as left:
        refold.run_sync(careful, journal=left, thread="t", models=client, wait=False)
        answers.resolve(left, "t", "r1/1", failed="the sandbox was lost", effect="unknown")
        result = refold.resume_sync(careful, journal=left, thread="t", models=client)
        rebuild.replay(careful, "t", read_all(left, "t"))

    assert result.output == "the sandbox was lost"
    assert client.count == 1


def test_nobody_can_say_what_a_model_has_answered(journal: Journal) -> None:
    made, _ = agent()
    with left_in_doubt(journal, made) as left:
        with pytest.raises(UsageError, match="model call"):
            answers.resolve(left, "t", "r1/1", result=b'"yes"')
        assert left.inbox("t") == []


def test_with_retry_it_is_asked_again(journal: Journal) -> None:
    made, model = agent(in_doubt="retry")
    with left_in_doubt(journal, made) as left:
        assert made.run_sync("hi", journal=left, thread="t").output == "done"
        assert kinds(left).count("model_started") == 3
        rebuild.replay(made.program, "t", read_all(left, "t"))
    assert model.count == 4


def test_an_unknown_policy_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="'park' or 'retry'"):
        agent(in_doubt="tell_model")


def test_a_request_that_has_changed_since_its_start_is_a_divergence_that_shows_it(journal: Journal) -> None:
    made, _ = agent()
    with left_in_doubt(journal, made) as left:
        other = agent(tools=[CODE, SEARCH])[0]
        with pytest.raises(Divergence, match="web_search") as caught:
            other.run_sync("hi", journal=left, thread="t")

    assert not caught.value.shape


# Failures


@pytest.mark.parametrize("kind", ["timeout", "connection", "malformed"])
def test_a_call_that_broke_off_is_in_doubt_and_not_asked_again(journal: Journal, kind: Any) -> None:
    made, model = agent(failing(ModelError("gone", kind=kind), then="done"))

    result = made.run_sync("hi", journal=journal, thread="t", wait=False)

    assert (result.status, model.count) == ("parked", 1)
    assert kinds(journal)[-2:] == ["tool_in_doubt", "run_parked"]
    answers.resolve(journal, "t", "r1/1", did_not_happen=True)
    assert made.resume_sync(journal=journal, thread="t").output == "done"
    rebuild.replay(made.program, "t", read_all(journal, "t"))


def test_a_call_that_the_provider_refused_is_retried_like_any_other(journal: Journal) -> None:
    errors = (ModelError("busy", kind="rate_limit"), ModelError("busy", kind="overloaded", status=503))
    made, model = agent(failing(*errors, then="done"))

    assert made.run_sync("hi", journal=journal, thread="t").output == "done"

    assert model.count == 3
    assert kinds(journal).count("model_started") == 3
    rebuild.replay(made.program, "t", read_all(journal, "t"))


def test_a_call_that_is_refused_for_good_ends_the_run(journal: Journal) -> None:
    made, _ = agent(ModelError("no", kind="auth"))

    with pytest.raises(RunFailed, match="no"):
        made.run_sync("hi", journal=journal, thread="t")


async def test_a_caller_that_goes_away_leaves_the_call_in_doubt(journal: Journal) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def respond(request: Any) -> str:
        asked.set()
        await never.wait()
        return "never"

    limits = Limits(leave_grace_s=0.05)
    made = Agent("shop", model=ScriptedModel(respond), params={"tools": [CODE]}, limits=limits)
    task = asyncio.create_task(made.run("hi", journal=journal, thread="t"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert kinds(journal)[-2:] == ["run_released", "tool_in_doubt"]
    assert (await made.run("hi", journal=journal, thread="t", wait=False)).status == "parked"


async def test_a_cancelled_run_waits_for_the_response_and_keeps_it(journal: Journal) -> None:
    asked, go, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def observe(seq: int, body: Any) -> None:
        if isinstance(body, ev.CancelRequested):
            cancelled.set()

    async def respond(request: Any) -> str:
        asked.set()
        await go.wait()
        return "done"

    limits = Limits(poll_s=0.01)
    made = Agent("shop", model=ScriptedModel(respond), params={"tools": [CODE]}, limits=limits)
    task = asyncio.create_task(made.run("hi", journal=journal, thread="t", observe=observe))
    await asked.wait()
    answers.cancel(journal, "t")
    await cancelled.wait()
    go.set()

    assert (await task).status == "cancelled"
    assert kinds(journal)[-3:] == ["cancel_requested", "model_responded", "run_cancelled"]


async def test_a_viewer_is_told_of_the_doubt_and_of_what_became_of_it(journal: Journal) -> None:
    made, _ = agent(failing(ModelError("gone", kind="connection"), then="done"))

    async def told() -> list[str]:
        return [
            type(event).__name__
            async for event in made.stream("hi", journal=journal, thread="t", key="k", wait=False)
        ]

    assert await told() == ["ToolInDoubt", "RunEnded"]
    answers.resolve(journal, "t", "r1/1", did_not_happen=True)
    assert await told() == ["ToolInDoubt", "TextDelta", "ModelResponded", "RunEnded"]


async def test_what_an_attempt_in_doubt_has_used_counts(journal: Journal) -> None:
    used = Usage(input_tokens=10, cost_micro=7)
    lost = ModelError("cut", kind="connection", usage=used)
    made, _ = agent(
        failing(lost, then=say("done", usage=Usage(input_tokens=1, output_tokens=1, cost_micro=1)))
    )

    parked = await made.run("hi", journal=journal, thread="t", wait=False)
    answers.resolve(journal, "t", "r1/1", did_not_happen=True)
    result = await made.resume(journal=journal, thread="t")

    assert parked.status == "parked"
    assert (parked.usage.unusable, parked.usage.cost_micro) == (1, 7)
    assert (result.usage.input_tokens, result.usage.cost_micro, result.usage.unknown_usage) == (11, 8, 1)
    ((_, tally),) = read_stats(journal, by=["model"]).rows
    assert (tally.calls, tally.input_tokens, tally.cost_micro) == (1, 11, 8)
    rebuild.replay(made.program, "t", read_all(journal, "t"))


async def test_a_program_sees_what_its_run_has_used_the_same_on_replay(journal: Journal) -> None:
    lost = ModelError("half", kind="malformed", usage=Usage(input_tokens=5, output_tokens=2, cost_micro=3))
    model = ScriptedModel([failing(lost, then=say("one", usage=Usage(input_tokens=1, output_tokens=1)))])

    @program
    async def frugal(run: Run, value: str) -> list[int]:
        await run.model(messages=[{"role": "user", "content": value}], model="m")
        used = run.usage
        return [used.responses, used.unusable, used.input_tokens, used.cost_micro, used.unknown_cost]

    result = await refold.run(frugal, "hi", journal=journal, thread="t", models=model, policy=QUICK)

    assert result.output == [1, 1, 6, 3, 1]
    rebuild.replay(frugal, "t", read_all(journal, "t"))
