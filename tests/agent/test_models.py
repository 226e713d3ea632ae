"""Retries, fallbacks, budgets and typed answers, over HTTP: what is asked, recorded and given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from died import died_at
from openai_server import OpenAIServer, Reply
from refold import Agent, Journal, RunFailed, ScriptedModel, UsageError, read_stats, tool
from refold.agent import streaming
from refold.agent.output import read_output
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.recording import Policy
from refold.replay.runner import read_all
from wires import ANTHROPIC, GEMINI, KEY, WIRES, Wire

QUICK = Policy(backoff_s=0.0, model_attempts=3)
FIRST, SECOND = "openai/gpt-4o-mini", "openai/gpt-4.1-mini"

wires = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])


@tool(read_only=True)
def find(order: int) -> dict[str, int]:
    """Find an order."""
    return {"order": order, "paid": 30}


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


def agent_on(server: OpenAIServer, **options: Any) -> Agent:
    parts = {"model": FIRST, "tools": [find], "policy": QUICK, "instructions": "Be brief.", **options}
    return Agent("shop", params={"api_base": server.base_url, "api_key": KEY}, **parts)


def failed(status: int, message: str = "no", **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message}})
    return {"status": status, "raw": body, "headers": {"Content-Type": "application/json", **headers}}


def bodies(journal: Journal, thread: str = "t") -> list[ev.EventBody]:
    return [ev.decode_event(event) for event in read_all(journal, thread)]


def check(agent: Agent, journal: Journal, thread: str = "t") -> None:
    rebuild.replay(agent.program, thread, read_all(journal, thread))


# Retries


async def test_each_attempt_is_one_request_and_one_event_and_waits_as_long_as_it_is_told(
    journal: Journal,
) -> None:
    replies = [failed(429, **{"retry-after-ms": "40"}), failed(503), {"text": "ok"}]
    with OpenAIServer({"replies": [{"attempts": replies}]}) as server:
        agent = agent_on(server)
        result = await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 3, "litellm retries nothing by itself"
        assert server.bodies[0] == server.bodies[1] == server.bodies[2]

    first, second = [body for body in bodies(journal) if isinstance(body, ev.ModelFailed)]
    assert (first.error.kind, first.error.status, first.error.retry_after_s) == ("rate_limit", 429, 0.04)
    assert first.retry_at is not None
    # The times that something is due at are the database's, `at` is the writer's: here both are one clock, read twice.
    assert first.retry_at - first.at >= 39_000
    assert second.at >= first.retry_at
    assert (second.error.kind, second.attempt, second.final) == ("overloaded", 2, False)
    assert result.output == "ok"
    assert result.usage.responses == 1
    check(agent, journal)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_asking_again_cannot_mend_is_asked_once(journal: Journal, status: int) -> None:
    with OpenAIServer({"replies": [failed(status)]}) as server:
        agent = agent_on(server)
        with pytest.raises(RunFailed):
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 1

    (body,) = [body for body in bodies(journal) if isinstance(body, ev.ModelFailed)]
    assert body.final
    check(agent, journal)


@wires
async def test_no_provider_is_asked_twice_by_litellm_itself(journal: Journal, wire: Wire) -> None:
    with wire.serve(failed(503)) as server:
        params = wire.request(server)
        agent = Agent("shop", model=params.pop("model"), params=params, policy=Policy(model_attempts=1))
        with pytest.raises(RunFailed):
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 1


# Fallbacks


def by_model(**scripts: list[Reply]) -> Callable[[dict[str, Any]], Reply]:
    """A script for each model, by turn."""

    def answer(body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return scripts[body["model"].replace("-", "_").replace(".", "_")][turn]

    return answer


FINDING: Reply = {"calls": [{"name": "find", "arguments": {"order": 7}}]}


async def test_the_next_model_is_asked_when_one_has_failed_for_good_and_the_run_stays_with_it(
    journal: Journal,
) -> None:
    script = by_model(gpt_4o_mini=[failed(503)] * 2, gpt_4_1_mini=[FINDING, {"text": "paid"}])
    with OpenAIServer(script) as server:
        agent = agent_on(server, model=[FIRST, SECOND])
        result = await agent.run("hi", journal=journal, thread="t")
        asked = [body["model"] for body in server.requests]

    assert asked == ["gpt-4o-mini"] * 3 + ["gpt-4.1-mini"] * 2
    kinds = [event.kind for event in read_all(journal, "t") if event.kind.startswith("model")]
    assert kinds == ["model_failed"] * 3 + ["model_responded"] * 2
    assert result.output == "paid"
    check(agent, journal)


@pytest.mark.parametrize("pause", ["90000", "900000000000", "1e300"])
async def test_who_asks_for_a_pause_without_end_has_failed_for_good(journal: Journal, pause: str) -> None:
    script = by_model(gpt_4o_mini=[failed(429, **{"retry-after": pause})], gpt_4_1_mini=[{"text": "paid"}])
    with OpenAIServer(script) as server:
        agent = agent_on(server, model=[FIRST, SECOND])
        result = await agent.run("hi", journal=journal, thread="t")
        asked = [body["model"] for body in server.requests]

    (refused,) = [body for body in bodies(journal) if isinstance(body, ev.ModelFailed)]
    assert refused.final
    assert refused.error.retry_after_s == float(pause)
    assert asked == ["gpt-4o-mini", "gpt-4.1-mini"]
    assert result.output == "paid"
    check(agent, journal)


async def test_a_run_with_fallbacks_goes_on_the_same_way_after_a_crash_anywhere(journal: Journal) -> None:
    script = by_model(gpt_4o_mini=[FINDING, failed(401)], gpt_4_1_mini=[FINDING, {"text": "paid"}])
    with OpenAIServer(script) as server:
        agent = agent_on(server, model=[FIRST, SECOND])
        await agent.run("hi", journal=journal, thread="t")
        whole, events = list(server.bodies), read_all(journal, "t")
        for seq in range(2, len(events)):
            server.bodies.clear()
            with died_at(journal, "t", seq) as left:
                result = await agent.run("hi", journal=left, thread="t")
            done = sum(event.kind in ("model_responded", "model_failed") for event in events[:seq])
            assert server.bodies == whole[done:]
            assert result.output == "paid"

        server.script = by_model(gpt_4o_mini=[{}, {}, {"text": "again"}])
        assert (await agent.run("more", journal=journal, thread="t")).output == "again"
        assert server.requests[-1]["messages"][0]["role"] == "system"
    check(agent, journal)


async def test_when_every_model_has_failed_the_last_error_ends_the_run(journal: Journal) -> None:
    script = by_model(gpt_4o_mini=[failed(401)], gpt_4_1_mini=[failed(400, "the second says no")])
    with OpenAIServer(script) as server:
        agent = agent_on(server, model=[FIRST, SECOND])
        with pytest.raises(RunFailed, match="the second says no"):
            await agent.run("hi", journal=journal, thread="t")
    check(agent, journal)


@pytest.mark.parametrize("model", [[], [FIRST, FIRST], [FIRST, ""], [FIRST, 3]])
def test_a_list_of_models_holds_different_names(model: Any) -> None:
    with pytest.raises(UsageError, match="model"):
        Agent("shop", model=model)


# Budgets


async def test_a_run_that_has_used_what_it_may_ends_with_everything_recorded(journal: Journal) -> None:
    replies = [FINDING, FINDING, {"text": "never asked for"}]
    with OpenAIServer({"replies": replies}) as server:
        agent = agent_on(server, max_tokens=25)
        with pytest.raises(RunFailed, match="has used 30 tokens in this run, max_tokens is 25") as caught:
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 2
        assert caught.value.error_type.endswith("BudgetSpent")
        check(agent, journal)

        # Each run has its own, and the thread can be gone on with.
        server.script = {"replies": [{}, {}, {"text": "fine"}]}
        assert (await agent.run("go on", journal=journal, thread="t")).output == "fine"
    kinds = [event.kind for event in read_all(journal, "t")]
    assert kinds.count("tool_returned") == 2


async def test_a_limit_on_cost_is_kept_in_dollars(journal: Journal) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 1, "total_tokens": 1_000_001}
    with OpenAIServer({"replies": [{**FINDING, "response": {"usage": usage}}]}) as server:
        agent = agent_on(server, max_cost=0.1)
        with pytest.raises(RunFailed, match=r"has spent \$0\.15.* max_cost is \$0\.100000"):
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "options, reply, why",
    [
        ({"max_tokens": 100}, {"response": {"usage": None}}, "how many tokens"),
        ({"max_cost": 1.0}, {"response": {"model": "nobody-knows"}}, "what it cost"),
    ],
    ids=["tokens", "cost"],
)
async def test_a_limit_that_cannot_be_kept_ends_the_run_and_says_so(
    journal: Journal, options: dict[str, Any], reply: Reply, why: str
) -> None:
    with OpenAIServer({"replies": [{**FINDING, **reply}]}) as server:
        agent = agent_on(server, model="openai/a-model-of-nobody", **options)
        with pytest.raises(RunFailed, match=why):
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 1


async def test_a_budget_counts_each_response_once_across_crashes(journal: Journal) -> None:
    replies = [FINDING, FINDING, {"text": "paid"}]
    with OpenAIServer({"replies": replies}) as server:
        agent = agent_on(server, max_tokens=31)
        result = await agent.run("hi", journal=journal, thread="t")
        events = read_all(journal, "t")
        for seq in range(2, len(events)):
            with died_at(journal, "t", seq) as left:
                again = await agent.run("hi", journal=left, thread="t")
            assert (again.output, again.usage) == ("paid", result.usage)
    assert (result.usage.input_tokens, result.usage.output_tokens) == (30, 15)


HALF: Reply = {"calls": [{"name": "find", "arguments": '{"order":'}], "finish_reason": "length"}


async def test_an_answer_that_cannot_be_used_is_paid_for_once_across_crashes(journal: Journal) -> None:
    replies = [{"attempts": [HALF, FINDING]}, {"text": "paid"}]
    with OpenAIServer({"replies": replies}) as server:
        agent = agent_on(server, max_tokens=1000)
        result = await agent.run("hi", journal=journal, thread="t", key="k")
        events = read_all(journal, "t")
        for seq in range(next(e.seq for e in events if e.kind == "model_failed"), len(events)):
            with died_at(journal, "t", seq) as left:
                again = await agent.run("hi", journal=left, thread="t", key="k")
                (_, tally) = read_stats(left, by=["model"]).rows[0]
            assert (again.output, again.usage) == ("paid", result.usage)
            assert (tally.input_tokens, tally.output_tokens, tally.retries) == (30, 15, 1)
            assert tally.cost_micro == result.usage.cost_micro
        streamed = [e async for e in agent.stream("hi", journal=journal, thread="t", key="k")]
        check(agent, journal)

    (body,) = [body for body in bodies(journal) if isinstance(body, ev.ModelFailed)]
    assert body.usage is not None
    assert (body.usage.input_tokens, body.usage.output_tokens) == (10, 5)
    assert body.usage.cost_micro is not None
    used = result.usage
    assert (used.responses, used.unusable, used.input_tokens, used.output_tokens) == (2, 1, 30, 15)
    assert used.cost_micro == 3 * body.usage.cost_micro > 0
    assert (used.unknown_usage, used.unknown_cost) == (0, 0)
    assert [e.usage for e in streamed if isinstance(e, streaming.ModelFailed)] == [body.usage]
    assert rebuild.replay(agent.program, "t", events).runs[0].usage == used


@pytest.mark.parametrize("limit", [{"max_tokens": 25}, {"max_cost": 0.000008}], ids=["tokens", "cost"])
async def test_answers_that_cannot_be_used_count_against_a_budget(
    journal: Journal, limit: dict[str, Any]
) -> None:
    with OpenAIServer({"replies": [{"attempts": [HALF, FINDING]}, {"text": "never asked for"}]}) as server:
        agent = agent_on(server, **limit)
        with pytest.raises(RunFailed, match="in this run, max_"):
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 2
    check(agent, journal)


@pytest.mark.parametrize("limit", [{"max_tokens": 20}, {"max_cost": 0.000008}], ids=["tokens", "cost"])
async def test_a_spent_budget_ends_the_attempts_of_one_request_too(
    journal: Journal, limit: dict[str, Any]
) -> None:
    with OpenAIServer({"replies": [HALF]}) as server:
        agent = agent_on(server, **limit)
        with pytest.raises(RunFailed, match="in this run, max_") as caught:
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 2, "the policy allows three"
        assert caught.value.error_type.endswith("BudgetSpent")
        events = read_all(journal, "t")
        seq = next(event.seq for event in events if event.kind == "model_failed")
        with died_at(journal, "t", seq) as left, pytest.raises(RunFailed, match="in this run, max_"):
            await agent.run("hi", journal=left, thread="t")
        assert len(server.requests) == 3
    check(agent, journal)


async def test_the_next_model_is_not_asked_when_the_first_has_used_up_the_budget_in_vain(
    journal: Journal,
) -> None:
    script = by_model(gpt_4o_mini=[HALF], gpt_4_1_mini=[{"text": "never asked for"}])
    with OpenAIServer(script) as server:
        agent = agent_on(server, model=[FIRST, SECOND], max_tokens=45)
        with pytest.raises(RunFailed, match="has used 45 tokens"):
            await agent.run("hi", journal=journal, thread="t")
        assert len(server.requests) == 3
    check(agent, journal)


async def test_what_an_unusable_answer_cost_is_unknown_where_nobody_says_and_ends_no_run(
    journal: Journal,
) -> None:
    silent = {**HALF, "response": {"usage": None}}
    with OpenAIServer({"replies": [{"attempts": [silent, {"text": "ok"}]}]}) as server:
        agent = agent_on(server, max_tokens=100)
        result = await agent.run("hi", journal=journal, thread="t")

    assert (result.output, result.usage.unusable, result.usage.unknown_usage) == ("ok", 1, 1)
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10, 5)


async def test_where_no_answer_came_nothing_was_used(journal: Journal) -> None:
    with OpenAIServer({"replies": [{"attempts": [failed(429), {"text": "ok"}]}]}) as server:
        result = await agent_on(server).run("hi", journal=journal, thread="t")

    assert (result.usage.responses, result.usage.unusable, result.usage.unknown_usage) == (1, 0, 0)


@pytest.mark.parametrize(
    "options", [{"max_cost": 0}, {"max_cost": "1"}, {"max_tokens": 0}, {"max_tokens": 1.5}]
)
def test_a_limit_is_a_number_over_zero(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="max_"):
        Agent("shop", model=FIRST, **options)


# Typed answers


class Bill(msgspec.Struct):
    order: int
    paid: list[int] = []


@dataclass
class BillData:
    order: int
    paid: list[int] = field(default_factory=list)


class BillModel(pydantic.BaseModel):
    order: int
    paid: list[int] = []


class BillDict(TypedDict):
    order: int
    paid: list[int]


VALUES = [
    (Bill, Bill(7, [30])),
    (BillData, BillData(7, [30])),
    (BillModel, BillModel(order=7, paid=[30])),
    (BillDict, {"order": 7, "paid": [30]}),
]
kinds = pytest.mark.parametrize("kind, value", VALUES, ids=[kind.__name__ for kind, _ in VALUES])


@kinds
async def test_an_answer_has_its_type_live_on_resume_and_for_a_finished_run(
    journal: Journal, kind: Any, value: Any
) -> None:
    with OpenAIServer({"replies": [FINDING, {"text": '{"order": 7, "paid": [30]}'}]}) as server:
        agent = agent_on(server, output=kind)
        live = await agent.run("the bill", journal=journal, thread="t", key="k")
        asked = server.requests[0]["response_format"]
        again = await agent.run("the bill", journal=journal, thread="t", key="k")
        resumed = await agent.resume(journal=journal, thread="t")
        streamed = [e async for e in agent.stream("the bill", journal=journal, thread="t", key="k")]
        with died_at(journal, "t", 5) as left:
            after = await agent.run("the bill", journal=left, thread="t", key="k")

    for result in (live, again, resumed, after, streamed[-1].result):  # type: ignore[attr-defined]
        assert result.output == value
        assert type(result.output) is type(value)
    schema = asked["json_schema"]["schema"]
    assert asked["type"] == "json_schema"
    assert schema["properties"]["order"] == {"type": "integer"} | schema["properties"]["order"]
    assert asked["json_schema"].get("strict", False) is (kind is BillDict), "only where nothing is optional"
    check(agent, journal)


async def test_an_answer_that_does_not_fit_goes_back_to_the_model_a_few_times(journal: Journal) -> None:
    misfits: list[Reply] = [{"text": "It is 30."}, {"text": '{"order": "seven"}'}]
    with OpenAIServer(
        {"replies": [*misfits, {"text": '```json\n{"order": 7}\n```'}, {"text": '{"order": 8}'}]}
    ) as s:
        agent = agent_on(s, output=Bill)
        result = await agent.run("the bill", journal=journal, thread="t")
        told = [message["content"] for message in s.requests[-1]["messages"] if message["role"] == "user"]
        later = await agent.run("the next", journal=journal, thread="t")

        roles = [message["role"] for message in s.requests[-1]["messages"]]

    assert roles == ["system", *["user", "assistant"] * 3, "user"]
    assert result.output == Bill(7)
    assert later.output == Bill(8)
    assert "it is no JSON" in told[1]
    assert "Expected `int`, got `str` - at `$.order`" in told[2]
    check(agent, journal)


async def test_a_model_that_never_gives_the_type_ends_the_run(journal: Journal) -> None:
    with OpenAIServer({"replies": [{"text": "no"}] * 9}) as server:
        agent = agent_on(server, output=Bill, output_retries=1)
        with pytest.raises(RunFailed, match="gave no Bill in 2 answers") as caught:
            await agent.run("the bill", journal=journal, thread="t")
        assert len(server.requests) == 2
    assert caught.value.error_type.endswith("BadOutput")
    check(agent, journal)


@pytest.mark.parametrize("wire", [ANTHROPIC, GEMINI], ids=["anthropic", "gemini"])
async def test_other_providers_are_told_of_the_type_in_their_own_way(journal: Journal, wire: Wire) -> None:
    with wire.serve({"text": '{"order": 7, "paid": [30]}'}) as server:
        params = wire.request(server)
        agent = Agent("shop", model=params.pop("model"), params=params, output=BillDict)
        result = await agent.run("the bill", journal=journal, thread="t")
        assert '"paid"' in server.bodies[0].decode()

    assert result.output == {"order": 7, "paid": [30]}


@pytest.mark.parametrize("kind", [int, list[int], dict[str, int], complex])
def test_a_type_that_is_no_object_is_refused_before_anything_runs(kind: Any) -> None:
    with pytest.raises(UsageError, match="output="):
        Agent("shop", model=ScriptedModel([]), output=kind)


class Tree(msgspec.Struct):
    name: str
    under: list[Tree] = []


def test_a_type_may_hold_itself() -> None:
    schema = read_output(Tree).schema

    assert schema["type"] == "object"
    assert "Tree" in schema["$defs"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"model": 7},
        {"model": None},
        {"model": {"a"}},
        {"max_cost": 1e-9},
        {"max_steps": "3"},
        {"max_steps": True},
        {"output_retries": -1},
        {"output_retries": 1.5},
        {"params": [1]},
        {"params": {"model": "b"}},
        {"params": {"messages": []}},
        {"params": {"stream": True}},
        {"params": {"tools": "abc"}},
        {"params": {"fallbacks": ["openai/b"]}},
    ],
    ids=str,
)
def test_a_part_that_cannot_be_one_is_told_when_the_agent_is_made(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))

    with pytest.raises(UsageError, match=rf"{name}|^params|tools among params"):
        Agent("a", **{"model": "m", **wrong})
