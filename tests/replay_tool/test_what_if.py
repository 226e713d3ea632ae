"""Another agent on a recorded thread: from the log while it matches, then live, without effects unless allowed."""

from __future__ import annotations

from typing import Any

import pytest
import refold
from refold import Agent, Journal, Run, ScriptedModel, ToolContext, program, tool
from refold.agent.scripted import call, say
from refold.agent.what_if import what_if
from refold.journal.errors import UsageError
from refold.replay import answers, rebuild
from refold.replay.ports import Usage
from refold.replay.program import Program
from refold.replay.runner import read_all

paid: list[int] = []


@tool(read_only=True)
def lookup(order: int) -> int:
    """Look an order up."""
    return order * 2


@tool
def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return f"paid {amount}"


COST = Usage(input_tokens=10, output_tokens=5, cost_micro=400)
OLD = [
    say(None, call("lookup", order=3), usage=COST),
    say("It is 6.", usage=COST),
    say("You are welcome.", usage=COST),
]
NEW = [
    say(None, call("lookup", order=3), usage=COST),
    say(None, call("pay", amount=6), usage=COST),
    say("Paid 6.", usage=COST),
    say("Bye.", usage=COST),
]


def clerk(script: Any, **changes: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(script)
    parts: dict[str, Any] = {"tools": [lookup, pay], "instructions": "You are a clerk."}
    return Agent("clerk", model=model, **(parts | changes)), model


@pytest.fixture
async def journal(memory: Journal) -> Journal:
    paid.clear()
    agent, _ = clerk(OLD)
    await agent.run("Order 3", journal=memory, thread="t")
    await agent.run("Thanks", journal=memory, thread="t")
    return memory


async def test_the_same_agent_changes_nothing_and_calls_nothing(journal: Journal) -> None:
    agent, model = clerk(NEW)
    found = await what_if(agent, journal, "t")

    assert (found.fork, found.seq, model.count) == ("", 0, 0)
    assert next(found.lines()) == "t: all events match; nothing would change, and nothing was called"
    assert len(journal.threads()) == 1


async def test_another_agent_goes_on_live_and_the_difference_is_told(journal: Journal) -> None:
    before = journal.info("t")
    agent, model = clerk(NEW, instructions="You are a clerk who pays.")

    found = await what_if(agent, journal, "t", name="trial")

    assert (found.seq, found.fork, found.live_calls, model.count) == (3, "trial", 4, 4)
    assert found.before is not None
    assert found.after is not None
    assert (found.before.model_calls, found.before.tool_calls, found.before.cost_micro) == (3, 1, 1200)
    assert (found.after.model_calls, found.after.tool_calls, found.after.cost_micro) == (4, 2, 1600)
    assert (found.before.output, found.after.output) == ('"You are welcome."', '"Bye."')
    assert found.refused == ['pay({"amount":6})']
    assert paid == []
    text = "\n".join(found.lines())
    assert 'message 1 (system).content: "You are a clerk." became "You are a clerk who pays."' in text
    assert "cost micro: 1200  ->  1600" in text
    told = [m["content"] for m in model.requests[2]["messages"] if m["role"] == "tool"]
    assert "pay was not called" in told[-1]
    assert journal.info("t").head_hash == before.head_hash
    rebuild.replay(agent.program, "trial", read_all(journal, "trial"))


async def test_what_matches_is_answered_from_the_log(journal: Journal) -> None:
    """The agent trims its history in the second run only: the first run costs no call."""
    agent, model = clerk(
        lambda request: "Short.", history=lambda m: m[-1:] if m[-1]["content"] == "Thanks" else m
    )

    found = await what_if(agent, journal, "t")

    assert found.seq == 9
    assert model.count == found.live_calls == 1


async def test_a_tool_with_effects_is_called_if_it_is_allowed_or_stood_in_for(journal: Journal) -> None:
    agent, _ = clerk(NEW, instructions="Pay.")
    stood = await what_if(agent, journal, "t", stand_ins={"pay": lambda amount: f"would pay {amount}"})
    assert (stood.refused, paid) == ([], [])
    allowed = await what_if(agent, journal, "t", allow=frozenset({"pay"}))
    assert (allowed.refused, paid) == ([], [6])
    with pytest.raises(UsageError, match="has no tool 'nope'"):
        await what_if(agent, journal, "t", allow=frozenset({"nope"}))


@pytest.mark.parametrize("budget", [{"calls_max": 2}, {"cost_max_micro": 500}])
async def test_a_budget_that_is_spent_ends_the_trial(journal: Journal, budget: dict[str, int]) -> None:
    agent, model = clerk(NEW, instructions="Pay.")

    found = await what_if(agent, journal, "t", **budget)  # type: ignore[arg-type]

    assert model.count == found.live_calls == 2
    assert found.after is not None
    assert found.after.status == "failed"
    assert "budget" in found.after.output


async def test_a_thread_of_another_agent_is_refused(journal: Journal) -> None:
    with pytest.raises(UsageError, match="cannot be gone on with"):
        await what_if(Agent("other", model=ScriptedModel([])), journal, "t")
    assert len(journal.threads()) == 1


async def test_an_agent_of_several_models_asks_each_by_its_own_name(journal: Journal) -> None:
    """The sandbox is a guard around the agent, and no other agent."""
    asked: list[str] = []

    class Client:
        async def respond(self, request: Any) -> Any:
            asked.append(request["model"])
            return await ScriptedModel(lambda request: "Short.").respond(request)

    agent = Agent("clerk", model=["one", "two"], tools=[lookup, pay], instructions="Be short.")
    agent._client = Client()
    found = await what_if(agent, journal, "t")

    assert found.live_calls == len(asked) == 2
    assert set(asked) == {"one"}


calls: list[str] = []


@tool(idempotent=True)
async def publish(page: str, context: ToolContext) -> str:
    """Publish."""
    calls.append(f"publish {page}")
    return f"published {page}"


def fetch(page: int) -> str:
    calls.append(f"fetch {page}")
    return f"page {page}"


def file_away(text: str) -> str:
    calls.append(f"file {text}")
    return "filed"


def editor(pages: int) -> Program:
    """A program that fetches, asks, waits, files and publishes; versions differ in how many pages they take."""

    @program
    async def edit(run: Run, topic: str) -> Any:
        found = [await run.step(fetch, page, read_only=True) for page in range(pages)]
        text = (await run.model(messages=[{"role": "user", "content": f"{topic}: {found}"}], model="m")).text
        if not await run.wait_for("ok"):
            return "dropped"
        try:
            filed = await run.step(file_away, text)
        except refold.StepError as error:
            filed = str(error)
        try:
            return [filed, await run.tool(publish, page=text)]
        except refold.ToolError as error:
            return [filed, str(error)]

    return edit


@pytest.fixture
async def edited(memory: Journal) -> Journal:
    """A thread of `editor(1)` that ran to its end."""
    models = ScriptedModel(["Text."])
    await refold.run(editor(1), "tea", journal=memory, thread="p", models=models, wait=False)
    answers.signal(memory, "p", "ok", b"true")
    done = await refold.resume(editor(1), journal=memory, thread="p", models=models, wait=False)
    assert done.output == ["filed", "published Text."]
    calls.clear()
    return memory


async def test_a_program_is_tried_out_without_effects_and_with_the_signals_it_had(edited: Journal) -> None:
    before = edited.info("p")

    found = await what_if(editor(2), edited, "p", models=ScriptedModel(["Longer text."]), name="trial")

    assert calls == ["fetch 1"]
    assert found.refused == ['file_away(["Longer text."])', 'publish({"page":"Longer text."})']
    assert found.after is not None
    assert found.after.status == "finished"
    assert found.after.output.count("was not called: this is a trial") == 2
    assert (found.fork, found.live_calls) == ("trial", 1)
    assert edited.info("p").head_hash == before.head_hash
    rebuild.replay(editor(2), "trial", read_all(edited, "trial"))


async def test_what_a_program_calls_is_allowed_or_stood_in_for_by_name(edited: Journal) -> None:
    async def would_publish(page: str) -> str:
        return f"would publish {page}"

    found = await what_if(
        editor(2),
        edited,
        "p",
        models=ScriptedModel(["New."]),
        allow=["file_away"],
        stand_ins={"publish": would_publish},
    )

    assert (found.refused, calls) == ([], ["fetch 1", "file New."])
    assert found.after is not None
    assert found.after.output == '["filed","would publish New."]'


async def test_a_program_that_changed_nothing_is_called_nowhere(edited: Journal) -> None:
    found = await what_if(editor(1), edited, "p")
    assert (found.fork, calls, len(edited.threads())) == ("", [], 1)
