"""What went wrong for others, at the level of the library; more cases are named in the suites of each room."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import refold
from died import died_at
from left_running import leave_running, sending_from_now_on
from refold import Agent, Journal, ModelReply, Run, ScriptedModel, ToolContext, ToolError, program, tool
from refold.agent.conversation import conversation
from refold.agent.scripted import call, say
from refold.replay import answers, rebuild
from refold.replay.runner import read_all


class Shop:
    """Three tools, one of each kind, and what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: set[str] = set()

        @tool(read_only=True)
        def find(order: int) -> dict[str, int]:
            """Find an order."""
            self.done.append("find")
            return {"order": order, "paid": 30}

        @tool
        def refund(order: int, amount: int) -> str:
            """Refund an order."""
            self.done.append("refund")
            return f"refunded {amount}"

        @tool(idempotent=True)
        def mail(order: int, context: ToolContext) -> str:
            """Write to the customer."""
            self.done.append("mail")
            self.keys.add(context.idempotency_key)
            return "sent"

        self.tools = [find, refund, mail]


SCRIPT = [call("find", order=7), call("refund", order=7, amount=30), call("mail", order=7), "All done."]


def kinds(journal: Journal, thread: str = "t") -> list[str]:
    return [event.kind for event in read_all(journal, thread)]


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


async def test_a_worker_that_died_at_any_seq_is_taken_up_without_a_second_effect(journal: Journal) -> None:
    """H10: every prefix of the log; committed results are final, an open unsafe call parks, a safe one runs again."""
    shop, model = Shop(), ScriptedModel(SCRIPT)
    await Agent("shop", model=model, tools=shop.tools).run("refund 7", journal=journal, thread="t")
    whole, key = kinds(journal), shop.keys.copy()

    for seq in range(2, len(whole)):
        again, asked = Shop(), ScriptedModel(SCRIPT)
        agent = Agent("shop", model=asked, tools=again.tools)
        with died_at(journal, "t", seq) as left:
            result = await agent.run("refund 7", journal=left, thread="t")
            returned = whole[:seq].count("tool_returned")
            started = whole[:seq].count("tool_started")
            if (started, returned) == (2, 1):
                assert result.status == "parked"
                assert left.info("t").state == "parked"
                (doubt,) = result.pending
                assert (doubt.name, doubt.status) == ("refund", "in doubt")
                head = left.info("t").head
                assert (await agent.resume(journal=left, thread="t")).status == "parked"
                assert left.info("t").head == head
                answers.resolve(left, "t", doubt.call, result=b'"refunded 30"')
                result = await agent.resume(journal=left, thread="t")
                returned = 2

            assert result.output == "All done."
            assert again.done == ["find", "refund", "mail"][returned:]
            assert again.keys <= key
            assert asked.count == len(SCRIPT) - whole[:seq].count("model_responded")
            assert asked.requests == model.requests[-asked.count :] if asked.count else True
            rebuild.replay(agent.program, "t", read_all(left, "t"))


async def test_the_next_request_after_a_resume_keeps_every_field_the_provider_sent(journal: Journal) -> None:
    """H09: signatures and reasoning blocks, on the message and on the call, known to us or not."""
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hmm",
        "thinking_blocks": [{"type": "thinking", "thinking": "hmm", "signature": "s1"}],
        "provider_specific_fields": {"signature": "s2", "zeta": [1, {"a": None}]},
        "never_heard_of": {"x": 1.5},
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "index": 0,
                "function": {"name": "find", "arguments": '{"order": 7}'},
                "provider_specific_fields": {"thought_signature": "s3"},
            }
        ],
    }
    script = [ModelReply(message=message, finish_reason="tool_calls"), "done"]
    shop, model = Shop(), ScriptedModel(script)
    await Agent("shop", model=model, tools=shop.tools).run("go", journal=journal, thread="t")

    asked = ScriptedModel(script)
    with died_at(journal, "t", kinds(journal).index("tool_returned") + 1) as left:
        await Agent("shop", model=asked, tools=shop.tools).resume(journal=left, thread="t")

    assert asked.requests == model.requests[1:]
    assert asked.requests[0]["messages"][1] == message


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_whatever_a_tool_raises_fails_its_own_call_and_nothing_else(
    journal: Journal, raised: type[BaseException]
) -> None:
    """H12: beside a sibling in a gather, live and on replay."""

    @tool(read_only=True)
    async def bad() -> str:
        """Bad."""
        raise raised("by the tool")

    @tool(read_only=True)
    async def good() -> str:
        """Good."""
        await asyncio.sleep(0)
        return "good"

    @program
    async def both(run: Run) -> list[str]:
        async def guarded() -> str:
            try:
                return await run.tool(bad)
            except ToolError as error:
                return error.error_type.rpartition(".")[2]

        return await run.gather(guarded(), run.tool(good))

    result = await refold.run(both, journal=journal, thread="t")

    assert result.output == [raised.__name__, "good"]
    rebuild.replay(both, "t", read_all(journal, "t"))


async def test_a_tool_that_outlives_its_cancelled_run_cannot_write_to_the_log(journal: Journal) -> None:
    """H12: what it comes to is offered to whoever holds the thread next, who records it once."""
    entered, leave = threading.Event(), threading.Event()
    runs: list[int] = []

    @tool
    def slow() -> str:
        """Slow."""
        runs.append(1)
        entered.set()
        leave.wait(10)
        return "done after all"

    @program
    async def waits(run: Run) -> str:
        return await run.tool(slow)

    offered = sending_from_now_on(journal)
    await leave_running(waits, journal, entered)
    head = journal.info("t").head
    leave.set()
    await asyncio.to_thread(offered.wait, 10)

    assert journal.info("t").head == head
    result = await refold.resume(waits, journal=journal, thread="t")
    assert result.output == "done after all"
    assert runs == [1]
    rebuild.replay(waits, "t", read_all(journal, "t"))


async def test_a_resume_while_the_same_process_still_runs_the_thread_is_refused(journal: Journal) -> None:
    """H14: at start-up, for instance; before any model or tool call."""
    entered, leave = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @tool
    async def act() -> str:
        """Act."""
        runs.append(1)
        entered.set()
        await leave.wait()
        return "acted"

    model = ScriptedModel([call("act"), "done"])
    agent = Agent("a", model=model, tools=[act])
    task = asyncio.create_task(agent.run("go", journal=journal, thread="t"))
    await entered.wait()
    asked, head = model.count, journal.info("t").head

    for _ in range(20):
        with pytest.raises(refold.ThreadBusy, match="held by a live worker"):
            await agent.resume(journal=journal, thread="t")
    assert (model.count, journal.info("t").head) == (asked, head)
    leave.set()

    assert (await task).output == "done"
    assert runs == [1]


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def bill(amount: int) -> str:
    """Bill."""
    return f"billed {amount}"


async def ask(run: Run, text: str) -> str:
    return str((await run.model(messages=[{"role": "user", "content": text}], model="m")).text)


async def recorded(run: Run) -> str:
    await ask(run, "one")
    await run.tool(pay, 3)
    return await ask(run, "two")


async def another_tool(run: Run) -> str:
    await ask(run, "one")
    await run.tool(bill, 3)
    return await ask(run, "two")


async def another_argument(run: Run) -> str:
    await ask(run, "one")
    await run.tool(pay, 4)
    return await ask(run, "two")


async def one_model_call_fewer(run: Run) -> str:
    await run.tool(pay, 3)
    return await ask(run, "two")


async def one_model_call_more(run: Run) -> str:
    await ask(run, "one")
    await ask(run, "one and a half")
    await run.tool(pay, 3)
    return await ask(run, "two")


async def ends_early(run: Run) -> str:
    await ask(run, "one")
    await run.tool(pay, 3)
    return "two"


async def another_order(run: Run) -> str:
    await ask(run, "one")
    both = await run.gather(run.tool(pay, 3), run.tool(bill, 3))
    return str(both)


CHANGED = {
    another_tool: (4, "tool_started pay", "tool bill"),
    another_argument: (4, '{"amount":3}', '{"amount":4}'),
    one_model_call_fewer: (3, "model_responded", "tool pay"),
    one_model_call_more: (4, "tool_started", "model"),
    ends_early: (6, "model_responded", "nothing more"),
    another_order: (4, "tool_started pay", "at r1/2.1"),
}


def renamed(function: Callable[..., Any]) -> refold.Program:
    made = program(function)
    made.name = "recorded"
    return made


@pytest.mark.parametrize("changed", CHANGED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("how", ["replay", "resume"])
async def test_a_recorded_event_is_never_taken_for_something_else(
    journal: Journal, changed: Callable[..., Any], how: str
) -> None:
    """H16: kind, name and arguments are compared first; nothing is executed and nothing is written."""
    model = ScriptedModel(lambda request: say("ok"))
    await refold.run(renamed(recorded), journal=journal, thread="t", models=model)
    seq, was, wanted = CHANGED[changed]
    untouched = ScriptedModel(lambda request: AssertionError("it must not be asked"))
    made = renamed(changed)

    async def offline() -> None:
        rebuild.replay(made, "t", read_all(journal, "t"))

    with died_at(journal, "t", len(kinds(journal)) - 1) as left:
        head = left.info("t").head
        with pytest.raises(refold.Divergence) as caught:
            await (
                offline()
                if how == "replay"
                else refold.resume(made, journal=left, thread="t", models=untouched)
            )
        assert left.info("t").head == head
        assert how == "replay" or left.info("t").holder is None

    assert caught.value.seq == seq
    assert caught.value.shape
    assert was in caught.value.recorded
    assert wanted in caught.value.asked
    assert untouched.count == 0


async def test_strict_replay_fails_at_the_first_miss_and_calls_nothing(journal: Journal) -> None:
    """H17: one changed prompt; the model and the tools would fail the test if they were called."""
    shop = Shop()
    agent = Agent("shop", model=ScriptedModel(SCRIPT), tools=shop.tools, instructions="Be kind.")
    await agent.run("refund 7", journal=journal, thread="t")
    did = list(shop.done)
    untouched = ScriptedModel(lambda request: AssertionError("it must not be asked"))
    other = Agent("shop", model=untouched, tools=shop.tools, instructions="Be rude.")

    rebuild.replay(agent.program, "t", read_all(journal, "t"))
    with pytest.raises(refold.Divergence, match="seq 3") as caught:
        rebuild.replay(other.program, "t", read_all(journal, "t"))

    assert not caught.value.shape
    assert untouched.count == 0
    assert shop.done == did


PARALLEL = [[call("fetch", page=page) for page in range(3)], "read"]


def fetcher(order: tuple[int, ...]) -> tuple[Any, list[int]]:
    """A tool whose calls end in this order, and which of them began."""
    turns = [asyncio.Event() for _ in range(len(order) + 1)]
    turns[0].set()
    began: list[int] = []

    @tool(read_only=True)
    async def fetch(page: int) -> str:
        """Fetch a page."""
        began.append(page)
        if page in order:
            place = order.index(page)
            await turns[place].wait()
            turns[place + 1].set()
        return f"page {page}"

    return fetch, began


async def test_the_next_request_is_the_same_for_any_order_in_which_parallel_calls_end(
    journal: Journal,
) -> None:
    """H18: results are bound to their calls, and the folded history to the order of asking."""
    requests, histories = [], []
    for number, order in enumerate(itertools.permutations(range(3))):
        fetch, _ = fetcher(order)
        model = ScriptedModel(PARALLEL)
        await Agent("reader", model=model, tools=[fetch]).run("go", journal=journal, thread=f"t{number}")
        events = read_all(journal, f"t{number}")
        requests.append(model.requests[1])
        histories.append(conversation(events))
        ended = [event.body for event in events if event.kind == "tool_returned"]
        assert [f"page {page}".encode() in body for page, body in zip(order, ended, strict=True)] == [
            True
        ] * 3

    assert all(request == requests[0] for request in requests)
    assert all(history == histories[0] for history in histories)


async def test_after_two_of_three_results_only_the_missing_call_runs(journal: Journal) -> None:
    """H18: whichever two they are."""
    for number, order in enumerate(itertools.permutations(range(3))):
        fetch, _ = fetcher(order)
        model = ScriptedModel(PARALLEL)
        thread = f"t{number}"
        await Agent("reader", model=model, tools=[fetch]).run("go", journal=journal, thread=thread)
        second = [at for at, kind in enumerate(kinds(journal, thread), 1) if kind == "tool_returned"][1]

        fetch, began = fetcher(())
        asked = ScriptedModel(PARALLEL)
        with died_at(journal, thread, second) as left:
            await Agent("reader", model=asked, tools=[fetch]).resume(journal=left, thread=thread)

        assert began == [order[2]]
        assert asked.requests == model.requests[1:]


HASHED = """
import asyncio, json, sys
from refold import Agent, Journal, ScriptedModel, tool
from refold.agent.scripted import call, say
from refold.replay.runner import read_all

@tool(read_only=True)
def tags(page: int) -> dict[str, object]:
    '''Tags of a page.'''
    return {"tags": {"a", "b", "c", "d", "e"}, "page": page, "z": {"y": 1, "x": 2}}

model = ScriptedModel([[call("tags", page=n) for n in range(3)], say("ok")])
agent = Agent("tagger", model=model, tools=[tags])
with Journal.memory() as journal:
    agent.run_sync("go", journal=journal, thread="t")
    returned = sorted(json.loads(e.body)["call"] + str(json.loads(e.body)["result"])
                      for e in read_all(journal, "t") if e.kind == "tool_returned")
print(json.dumps([model.requests, returned]))
"""


def test_the_next_request_is_the_same_under_any_hash_seed() -> None:
    """H18: nothing depends on the order of a set."""
    said = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(said) == 1


async def test_completed_calls_to_a_vanished_tool_still_replay_once_the_change_is_accepted(
    journal: Journal,
) -> None:
    """H19: the change is noticed, named and refused; accepted, the run goes on and nothing runs again."""
    shop, model = Shop(), ScriptedModel(SCRIPT)
    await Agent("shop", model=model, tools=shop.tools).run("refund 7", journal=journal, thread="t")
    after_refund = [at for at, kind in enumerate(kinds(journal), 1) if kind == "tool_returned"][1]

    again = Shop()
    find, _, mail = again.tools
    later = Agent("shop", model=ScriptedModel(SCRIPT), tools=[find, mail])
    with died_at(journal, "t", after_refund) as left:
        with pytest.raises(refold.Divergence, match="seq 3") as caught:
            await later.resume(journal=left, thread="t")
        result = await later.resume(journal=left, thread="t", on_divergence="accept")
        events = read_all(left, "t")

    assert not caught.value.shape
    assert result.output == "All done."
    assert again.done == ["mail"]
    assert "divergence_accepted" in [event.kind for event in events]
    rebuild.replay(later.program, "t", events)


async def test_a_new_required_parameter_does_not_touch_calls_that_are_complete(journal: Journal) -> None:
    """H19."""
    shop, model = Shop(), ScriptedModel(SCRIPT)
    await Agent("shop", model=model, tools=shop.tools).run("refund 7", journal=journal, thread="t")
    after_refund = [at for at, kind in enumerate(kinds(journal), 1) if kind == "tool_returned"][1]

    @tool(name="refund")
    def stricter(order: int, amount: int, currency: str) -> str:
        """Refund an order."""
        raise AssertionError("it must not run")

    again = Shop()
    later = Agent("shop", model=ScriptedModel(SCRIPT), tools=[again.tools[0], stricter, again.tools[2]])
    with died_at(journal, "t", after_refund) as left:
        result = await later.resume(journal=left, thread="t", on_divergence="accept")
        rebuild.replay(later.program, "t", read_all(left, "t"))

    assert result.output == "All done."
    assert again.done == ["mail"]


async def test_a_pending_call_to_a_vanished_tool_is_named_and_has_a_way_out(journal: Journal) -> None:
    """H19: the thread parks and can be looked at; whatever a person answers, the run goes on."""
    shop, model = Shop(), ScriptedModel(SCRIPT)
    await Agent("shop", model=model, tools=shop.tools).run("refund 7", journal=journal, thread="t")
    inside_refund = [at for at, kind in enumerate(kinds(journal), 1) if kind == "tool_started"][1]

    again = Shop()
    find, _, mail = again.tools
    said: list[dict[str, Any]] = [{"did_not_happen": True}, {"result": b'"refunded 30"'}]
    for answer in said:
        asked = ScriptedModel(SCRIPT)
        later = Agent("shop", model=asked, tools=[find, mail])
        with died_at(journal, "t", inside_refund) as left:
            parked = await later.resume(journal=left, thread="t", on_divergence="accept")
            assert parked.status == "parked"
            assert "refund" in parked.reason
            (doubt,) = parked.pending
            answers.resolve(left, "t", doubt.call, **answer)
            result = await later.resume(journal=left, thread="t", on_divergence="accept")
            rebuild.replay(later.program, "t", read_all(left, "t"))

        assert result.output == "All done."
        told = asked.requests[0]["messages"][-1]["content"]
        assert ("no tool named 'refund'" in told) == ("did_not_happen" in answer)
    assert "refund" not in again.done


@pytest.mark.parametrize("part", ["model", "instructions"])
async def test_a_changed_model_or_prompt_is_refused_until_it_is_accepted(journal: Journal, part: str) -> None:
    """H19: and the acceptance covers that change alone."""
    model = ScriptedModel(SCRIPT)
    shop = Shop()

    def agent(version: int) -> Agent:
        changed = {"temperature": version} if part == "model" else {}
        text = f"version {version}" if part == "instructions" else "Be kind."
        return Agent("shop", model=model, tools=shop.tools, params=changed, instructions=text)

    await agent(1).run("refund 7", journal=journal, thread="t")
    with died_at(journal, "t", len(kinds(journal)) - 2) as left:
        with pytest.raises(refold.Divergence):
            await agent(2).resume(journal=left, thread="t")
        result = await agent(2).resume(journal=left, thread="t", on_divergence="accept")
        assert result.output == "All done."
        rebuild.replay(agent(2).program, "t", read_all(left, "t"))
        with pytest.raises(refold.Divergence):
            rebuild.replay(agent(3).program, "t", read_all(left, "t"))


class Awkward(Exception):
    """Cannot be made from its message alone."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


RAISED = {
    "Awkward": Awkward(7, "no\0way"),
    "ExceptionGroup": ExceptionGroup("several", [ValueError("a"), Awkward(1, "b")]),
    "ToolError": ToolError("no such order"),
    "UnicodeDecodeError": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
}


@pytest.mark.parametrize("name", RAISED)
async def test_a_program_that_tells_errors_apart_takes_the_same_branch_on_replay(
    journal: Journal, name: str
) -> None:
    """H20: type name, message and effect come from the record on both paths; no class is imported from the log."""
    seen: list[tuple[str, str, str]] = []

    @tool(read_only=True)
    def fails() -> None:
        """Fails."""
        raise RAISED[name]

    @program
    async def handles(run: Run) -> str:
        try:
            await run.tool(fails)
        except ToolError as error:
            seen.append((error.error_type, error.message, error.effect))
        return await run.tool(pay, len(seen[-1][1]))

    first = await refold.run(handles, journal=journal, thread="t")
    with died_at(journal, "t", kinds(journal).index("tool_failed") + 1) as left:
        second = await refold.resume(handles, journal=left, thread="t")
    rebuild.replay(handles, "t", read_all(journal, "t"))

    assert first.output == second.output
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert seen[0][0].rpartition(".")[2] == name
