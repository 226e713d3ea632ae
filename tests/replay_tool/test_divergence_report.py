"""A recorded thread against changed agents and programs: which seq, which words, and nothing executed (H16 to H19)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import refold
from refold import Agent, Journal, Run, ScriptedModel, program, tool
from refold.agent.scripted import call, say
from refold.journal.envelope import NewEvent
from refold.journal.store import ThreadState
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.divergence import Divergence
from refold.replay.program import Program
from refold.replay.recorded_requests import Rebuilder
from refold.replay.runner import read_all

SYSTEM = "You refund orders.\nYou look an order up first.\nYou are kind."


@tool(read_only=True)
def lookup(order: int) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "total": 12}


@tool
def refund(order: int, amount: int) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


@tool(name="refund")
def refund_with_reason(order: int, amount: int, reason: str) -> str:
    """Refund an order."""
    raise AssertionError("a replay executes nothing")


@tool
def repay(order: int, amount: int) -> str:
    """Refund an order."""
    raise AssertionError("a replay executes nothing")


class Refusing:
    """A model that fails the test if it is asked."""

    name = "scripted"

    async def respond(self, request: Any) -> Any:
        raise AssertionError("a replay asks no model")


def support(tools: Any = (lookup, refund), **changes: Any) -> Agent:
    parts: dict[str, Any] = {"model": Refusing(), "tools": tools, "instructions": SYSTEM}
    return Agent("support", **(parts | changes))


@pytest.fixture
async def journal() -> Any:
    with Journal.memory() as made:
        script = ScriptedModel([call("lookup", order=7), [call("refund", order=7, amount=12)], "All done."])
        script.name = "scripted"  # type: ignore[attr-defined]
        agent = support(model=script)
        await agent.run("Refund order 7", journal=made, thread="t")
        yield made


def replayed(journal: Journal, made: Program, thread: str = "t") -> Divergence | None:
    try:
        rebuild.replay(made, thread, read_all(journal, thread))
    except Divergence as found:
        return found
    return None


def test_the_same_agent_matches(journal: Journal) -> None:
    assert replayed(journal, support().program) is None


@pytest.mark.parametrize(
    "changed, words",
    [
        pytest.param(
            {"tools": (lookup, repay)},
            [
                "tool 'refund': is no longer offered",
                "tool 'repay': is new",
                "tool:refund is gone; tool:repay is new",
            ],
            id="renamed tool",
        ),
        pytest.param({"tools": (lookup,)}, ["tool 'refund': is no longer offered"], id="removed tool"),
        pytest.param(
            {"tools": (lookup, refund_with_reason)},
            [
                "tool 'refund': its schema changed (parameter 'reason' is new, 'reason' is required now)",
                '+    "reason"',
            ],
            id="added required parameter",
        ),
        pytest.param(
            {"instructions": SYSTEM.replace("kind", "brief")},
            [
                "message 1 (system).content: changed",
                "-You are kind.",
                "+You are brief.",
                "changed in the definition: instructions",
            ],
            id="changed system prompt",
        ),
        pytest.param(
            {"model": "openai/other"},
            ['parameter \'model\': "scripted" became "openai/other"', "changed in the definition: model"],
            id="changed model",
        ),
        pytest.param(
            {"tools": (refund, lookup)},
            ["parameter 'tools': another order: lookup, refund became refund, lookup"],
            id="tool order swapped",
        ),
        pytest.param(
            {"params": {"temperature": 0}}, ["parameter 'temperature': added, 0"], id="added parameter"
        ),
        pytest.param(
            {"history": lambda messages: messages[1:]},
            ['message 2 (user): is no longer sent: "Refund order 7"'],
            id="trimmed history",
        ),
    ],
)
def test_a_changed_request_says_what_changed(
    journal: Journal, changed: dict[str, Any], words: list[str]
) -> None:
    """H17, H19: the first request differs, at the first model event."""
    found = replayed(journal, support(**changed).program)

    assert found is not None
    assert (found.seq, found.path, found.kind, found.shape) == (3, "r1/1", "request", False)
    text = str(found)
    for word in words:
        assert word in text
    assert "thread 't' diverged at seq 3" in text
    assert "on_divergence='accept'" in text


async def test_every_recorded_request_is_rebuilt_to_its_fingerprint(journal: Journal) -> None:
    """Also of later runs, which build on the conversation of earlier ones, and after failures and denials."""
    script = ScriptedModel(
        [*["x"] * 3, [call("lookup", order=1), call("nothing", a=1)], call("lookup", order="b"), "ok"]
    )
    script.name = "scripted"  # type: ignore[attr-defined]
    agent = support(model=script)
    await agent.run({"a": [1, 2]}, journal=journal, thread="t")
    bodies = [ev.decode_event(event) for event in read_all(journal, "t")]
    starts = [seq for seq, body in enumerate(bodies, 1) if isinstance(body, ev.RunStarted)]
    asked = 0
    for seq, body in enumerate(bodies, 1):
        if isinstance(body, ev.ModelResponded):
            first = max(start for start in starts if start < seq)
            rebuilder = Rebuilder(bodies, first, agent.program.prior(bodies[: first - 1]), agent.program.tell)
            assert rebuilder.at(seq).exact
            asked += 1
    assert asked == 6


@program
async def order(run: Run, number: int) -> str:
    await run.step(fetch, number)
    await run.tool(refund, number, amount=12)
    return await run.step(fetch, 2)


def fetch(number: int) -> str:
    return f"page {number}"


def variant(function: Any) -> Program:
    made = program(function)
    made.name = "order"
    return made


@pytest.fixture
async def steps() -> Any:
    with Journal.memory() as made:
        await refold.run(order, 7, journal=made, thread="t")
        yield made


async def other_tool(run: Run, number: int) -> str:
    await run.step(fetch, number)
    await run.tool(repay, number, amount=12)
    return await run.step(fetch, 2)


async def other_arguments(run: Run, number: int) -> str:
    await run.step(fetch, number)
    await run.tool(refund, number, amount=13)
    return await run.step(fetch, 2)


async def swapped(run: Run, number: int) -> str:
    await run.tool(refund, number, amount=12)
    await run.step(fetch, number)
    return await run.step(fetch, 2)


async def one_fewer(run: Run, number: int) -> str:
    await run.step(fetch, number)
    await run.tool(refund, number, amount=12)
    return "page 2"


async def one_more(run: Run, number: int) -> str:
    await run.step(fetch, number)
    await run.tool(refund, number, amount=12)
    await run.step(fetch, 2)
    return await run.step(fetch, 3)


async def other_output(run: Run, number: int) -> str:
    await run.step(fetch, number)
    await run.tool(refund, number, amount=12)
    return (await run.step(fetch, 2)).upper()


@pytest.mark.parametrize(
    "function, seq, kind, path, words",
    [
        (other_tool, 4, "name", "r1/2", ["tool_started refund", "tool repay"]),
        (other_arguments, 4, "arguments", "r1/2", ["arguments.amount: 12 became 13"]),
        (swapped, 3, "command", "r1/1", ["step_recorded", "fetch", "tool refund"]),
        (one_fewer, 6, "ended", "r1/3", ["nothing more: the program has returned"]),
        (one_more, 7, "command", "r1", ["run_finished", "step", "at r1/4"]),
        (other_output, 7, "output", "r1", ['output: "page 2" became "PAGE 2"']),
    ],
)
async def test_another_shape_stops_where_it_begins(
    steps: Journal, function: Any, seq: int, kind: str, path: str, words: list[str]
) -> None:
    """H16: a result is never taken for another call; what is asked instead is told, and nothing is executed."""
    found = replayed(steps, variant(function))

    assert found is not None
    assert (found.seq, found.kind, found.path, found.shape) == (seq, kind, path, True)
    for word in [*words, "changed in the definition: code"]:
        assert word in str(found)
    if seq < 7:  # what follows contradicts no event of a log that ends there
        with pytest.raises(Divergence):
            await refold.resume(variant(function), journal=cut_off(steps, 6), thread="u")


def cut_off(journal: Journal, upto: int) -> Journal:
    """A journal with the beginning of the thread under the name "u"."""
    cut = Journal.memory()
    tenure = cut.acquire("u")
    kept = [NewEvent(each.id, each.kind, each.version, each.body) for each in journal.read("t", upto=upto)]
    tenure.append(kept, state=ThreadState.RUNNING).result()
    tenure.release()
    return cut


async def test_a_resume_says_the_same_and_is_accepted_on_demand(journal: Journal) -> None:
    """H19: the change of a prompt is told at resume too; accepting it is recorded and the run goes on."""
    with cut_off(journal, 5) as cut:
        script = ScriptedModel(["x", [call("refund", order=7, amount=12)], say("Done.")])
        script.name = "scripted"  # type: ignore[attr-defined]
        agent = support(model=script, instructions="Other.")
        with pytest.raises(Divergence, match=r"message 1 \(system\).content") as found:
            await agent.resume(journal=cut, thread="u")
        assert found.value.changed == ("instructions",)
        assert cut.info("u").head == 5
        result = await agent.resume(journal=cut, thread="u", on_divergence="accept")
        assert result.status == "finished"
        assert replayed(cut, agent.program, "u") is None


def test_a_divergence_crosses_processes(journal: Journal) -> None:
    found = replayed(journal, support(instructions="Other.").program)
    assert found is not None
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found)
    assert again.record() == found.record()
