"""Agents on a journal in memory: the loop, its conversation, and what survives between runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import refold
from msgspec import Raw
from refold import Agent, Journal, ModelReply, Run, ScriptedModel, Usage, tool
from refold.agent.conversation import conversation
from refold.agent.scripted import call, raw_call, say
from refold.agent.signature import TOOL_NAME
from refold.replay import rebuild
from refold.replay.inbox import Approval, Resolution, approval_key, encode_message, resolution_key
from refold.replay.runner import read_all


@tool(read_only=True)
def lookup(order: int) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "total": 12}


refunds: list[int] = []


@tool
def refund(order: int, amount: int) -> str:
    """Refund an order."""
    refunds.append(order)
    return f"refunded {amount} for {order}"


@pytest.fixture
def journal() -> Any:
    refunds.clear()
    with Journal.memory() as made:
        yield made


def check(agent: Agent, journal: Journal, thread: str) -> list[str]:
    """The thread replays strictly and every prefix of it is a conversation providers accept; its kinds."""
    events = read_all(journal, thread)
    rebuild.replay(agent.program, thread, events)
    for end in range(len(events) + 1):
        assert_valid(conversation(events[:end]))
    return [event.kind for event in events]


def assert_valid(messages: list[dict[str, Any]]) -> None:
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls
        assert message.get("tool_calls") or message.get("content") is not None
        assert message.get("tool_calls") != []
        open_calls = [c["id"] for c in message.get("tool_calls") or []]
        assert all(TOOL_NAME.fullmatch(c["function"]["name"]) for c in message.get("tool_calls") or [])
        assert len(set(open_calls)) == len(open_calls)
    assert not open_calls


async def test_the_loop_calls_tools_until_the_model_wants_none(journal: Journal) -> None:
    model = ScriptedModel([call("lookup", order=7), [call("refund", order=7, amount=12)], "All done."])
    agent = Agent("support", model=model, tools=[lookup, refund], instructions="Be kind.")

    result = await agent.run("refund 7", journal=journal, thread="t")

    assert result.output == "All done."
    assert refunds == [7]
    check(agent, journal, "t")


async def test_calls_with_one_id_are_two_calls_with_two_results(journal: Journal) -> None:
    calls = [raw_call("refund", f'{{"order": {n}, "amount": 1}}', id="call_1") for n in (1, 2)]
    model = ScriptedModel([calls, "ok"])
    agent = Agent("support", model=model, tools=[refund])

    await agent.run("go", journal=journal, thread="t")

    assert sorted(refunds) == [1, 2]
    sent = list(model.requests[-1]["messages"])
    answers = {m["tool_call_id"]: m["content"] for m in sent if m["role"] == "tool"}
    assert len(answers) == 2
    assert [answers[c["id"]] for c in sent[1]["tool_calls"]] == ["refunded 1 for 1", "refunded 1 for 2"]
    check(agent, journal, "t")


@pytest.mark.parametrize("arguments", ["[]", "{", '{"a":1}{"a":2}', '{"order": "x"}', 5])
async def test_arguments_that_do_not_fit_are_a_recorded_answer_to_the_model(
    journal: Journal, arguments: Any
) -> None:
    model = ScriptedModel([[raw_call("refund", arguments), call("lookup", order=1)], "sorry"])
    agent = Agent("support", model=model, tools=[refund, lookup])

    await agent.run("go", journal=journal, thread="t")

    assert refunds == []
    assert "Error" in next(m["content"] for m in model.requests[-1]["messages"] if m["role"] == "tool")
    assert "tool_failed" in check(agent, journal, "t")


async def test_an_unknown_tool_is_a_recorded_answer_to_the_model(journal: Journal) -> None:
    model = ScriptedModel([call("nonsense"), "sorry"])
    agent = Agent("support", model=model, tools=[refund])

    await agent.run("go", journal=journal, thread="t")

    assert "no tool named 'nonsense'" in list(model.requests[-1]["messages"])[-1]["content"]
    check(agent, journal, "t")


@pytest.mark.parametrize(
    "name, told",
    [
        ("functions.refund", "functions_refund"),
        ("\N{CJK UNIFIED IDEOGRAPH-641C}\ud83d", "__"),
        ("refund" * 20, ("refund" * 20)[:64]),
        ("", "unnamed"),
    ],
)
async def test_the_name_of_a_made_up_tool_goes_back_in_a_form_that_providers_take(
    journal: Journal, name: str, told: str
) -> None:
    model = ScriptedModel([[raw_call(name, "{}"), call("lookup", order=1)], "sorry"])
    agent = Agent("support", model=model, tools=[lookup])

    assert (await agent.run("go", journal=journal, thread="t")).output == "sorry"

    _, asked, refused, found = model.requests[-1]["messages"]
    assert [each["function"]["name"] for each in asked["tool_calls"]] == [told, "lookup"]
    assert "there is no tool named" in refused["content"]
    assert "12" in found["content"]
    check(agent, journal, "t")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": None, "refusal": "no"},
    ],
)
async def test_an_answer_without_anything_does_not_end_the_conversation(
    journal: Journal, message: dict[str, Any]
) -> None:
    model = ScriptedModel([ModelReply(message), "ok"])
    agent = Agent("support", model=model)

    assert (await agent.run("one", journal=journal, thread="t")).output == ""
    assert (await agent.run("two", journal=journal, thread="t")).output == "ok"

    kept = {name: part for name, part in message.items() if name != "tool_calls"}
    assert model.requests[-1]["messages"][1] == {**kept, "content": ""}
    check(agent, journal, "t")


@pytest.mark.parametrize(
    "value, content",
    [
        ([{"type": "text", "text": "hi"}], [{"type": "text", "text": "hi"}]),
        ([1, 2], "[1,2]"),
        ([], "[]"),
        ([{"order": 7}], '[{"order":7}]'),
        ({"order": 7}, '{"order":7}'),
        (None, "null"),
    ],
)
async def test_an_input_that_is_neither_text_nor_content_parts_goes_out_as_json_text(
    journal: Journal, value: Any, content: Any
) -> None:
    model = ScriptedModel(["ok", "again"])
    agent = Agent("support", model=model)
    await agent.run(value, journal=journal, thread="t")
    await agent.run("and then?", journal=journal, thread="t")

    assert [request["messages"][0]["content"] for request in model.requests] == [content, content]
    check(agent, journal, "t")


async def test_parts_of_an_answer_that_are_no_text_are_passed_over(journal: Journal) -> None:
    parts = [{"type": "thinking", "text": {"value": "hm"}}, {"type": "text", "text": "yes"}, "?"]
    model = ScriptedModel([ModelReply({"role": "assistant", "content": parts})])

    assert (await Agent("a", model=model).run("go", journal=journal, thread="t")).output == "yes"


async def test_a_later_run_sees_the_conversation_and_stores_only_what_is_new(journal: Journal) -> None:
    model = ScriptedModel(lambda request: say(f"answer {len(request['messages'])}"))
    agent = Agent("support", model=model, tools=[lookup], instructions="Be kind. " * 50)
    for turn in range(12):
        await agent.run(f"question {turn}", journal=journal, thread="t")

    last = [m["content"] for m in model.requests[-1]["messages"]]
    assert last[1:3] == ["question 0", "answer 2"]
    assert len(last) == 24
    sizes = [len(e.body) for e in read_all(journal, "t") if e.kind == "model_responded"]
    assert max(sizes[1:]) - min(sizes[1:]) < 20
    check(agent, journal, "t")


async def test_superseding_closes_what_is_open_and_a_later_resolution_reaches_the_model(
    journal: Journal,
) -> None:
    """H11: a call left open never poisons a later request."""

    @tool(timeout_s=0.01)
    async def wire(amount: int) -> str:
        """Wire money."""
        refunds.append(amount)
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([call("wire", amount=5), "as you wish", "good to know"])
    agent = Agent("support", model=model, tools=[wire])
    parked = await agent.run("wire 5", journal=journal, thread="t")
    assert parked.status == "parked"
    with pytest.raises(refold.RunUnfinished):
        await agent.run("never mind", journal=journal, thread="t")
    assert (
        await agent.run("never mind", journal=journal, thread="t", supersede=True)
    ).output == "as you wish"
    assert "interrupted" in list(model.requests[-1]["messages"])[2]["content"]

    (doubt,) = parked.pending
    kind, body = encode_message(Resolution(doubt.call, doubt.attempt, "returned", Raw(b'"wired"'), by="ann"))
    journal.send("t", key=resolution_key(doubt.call, doubt.attempt), kind=kind, body=body)
    await agent.run("it went through", journal=journal, thread="t")

    assert any("now known] wired" in str(m["content"]) for m in model.requests[-1]["messages"])
    assert refunds == [5]
    check(agent, journal, "t")


async def test_of_a_call_that_nobody_allowed_the_next_run_is_told_that_it_was_not_made(
    journal: Journal,
) -> None:
    """It had not begun: the model need not fear that it may have happened."""

    @tool(approval=True)
    async def wire(amount: int) -> str:
        """Wire money."""
        refunds.append(amount)
        return "wired"

    model = ScriptedModel([call("wire", amount=5), "as you wish"])
    agent = Agent("support", model=model, tools=[wire])
    waiting = await agent.run("wire 5", journal=journal, thread="t", wait=False)
    assert waiting.status == "waiting"
    await agent.run("never mind", journal=journal, thread="t", supersede=True)

    told = list(model.requests[-1]["messages"])[2]["content"]
    assert told == "The call was not made; nothing of it happened."
    assert refunds == []
    check(agent, journal, "t")


async def test_of_a_cancelled_run_only_what_had_begun_is_pending(journal: Journal) -> None:
    """Nobody can approve a call of a run that is over."""

    @tool(timeout_s=0.01)
    async def wire(amount: int) -> str:
        """Wire money."""
        await asyncio.Event().wait()
        return "never"

    @tool(approval=True)
    def publish(order: int) -> str:
        """Publish an order."""
        return "published"

    model = ScriptedModel([[call("wire", amount=5), call("publish", order=7)]])
    agent = Agent("support", model=model, tools=[wire, publish])
    before = await agent.run("go", journal=journal, thread="t", wait=False)
    assert {each.name for each in before.pending} == {"wire", "publish"}

    refold.answers.cancel(journal, "t")
    after = await agent.resume(journal=journal, thread="t")

    assert after.status == "cancelled"
    assert [(each.name, each.status) for each in after.pending] == [("wire", "in doubt")]
    refold.answers.resolve(journal, "t", after.pending[0].call, result=b'"wired"')
    with pytest.raises(refold.NotPending, match="has ended"):
        refold.answers.approve(
            journal, "t", next(each.call for each in before.pending if each.name == "publish")
        )


def test_an_error_of_a_blocking_call_is_told_without_another_one_before_it(journal: Journal) -> None:
    """A traceback that begins with "no running event loop" is read as the cause."""
    agent = Agent("support", model=ScriptedModel([]), tools=[])

    with pytest.raises(refold.RunFailed) as failed:
        agent.run_sync("go", journal=journal, thread="t")

    assert failed.value.__context__ is None


async def test_the_step_limit_ends_a_run_cleanly(journal: Journal) -> None:
    model = ScriptedModel(lambda request: call("lookup", order=len(request["messages"])))
    agent = Agent("support", model=model, tools=[lookup], max_steps=3)

    with pytest.raises(refold.RunFailed, match="3 times"):
        await agent.run("go", journal=journal, thread="t")

    assert check(agent, journal, "t")[-1] == "run_failed"
    follow = Agent("support", model=ScriptedModel(lambda r: say("ok")), tools=[lookup])
    assert (await follow.run("and now?", journal=journal, thread="t")).output == "ok"


async def test_a_run_keeps_the_limits_it_began_with(journal: Journal) -> None:
    @tool(approval=True)
    def publish(order: int) -> str:
        """Publish an order."""
        return "published"

    def agent(**limits: Any) -> Agent:
        usage = Usage(input_tokens=10, output_tokens=10)
        model = ScriptedModel(
            [
                say(None, call("lookup", order=1), usage=usage),
                say(None, call("publish", order=1), usage=usage),
                "done",
            ]
        )
        return Agent("support", model=model, tools=[lookup, publish], **limits)

    def approve() -> None:
        kind, body = encode_message(Approval("r1/4.1.1", approved=True))
        journal.send("t", key=approval_key("r1/4.1.1"), kind=kind, body=body)

    began = agent(max_steps=3)
    waiting = await began.run("go", journal=journal, thread="t", wait=False)
    assert [each.call for each in waiting.pending] == ["r1/4.1.1"]
    later = agent(max_steps=1, max_tokens=1)
    rebuild.replay(later.program, "t", read_all(journal, "t"))
    approve()
    result = await later.resume(journal=journal, thread="t")

    assert result.output == "done"
    for each in (began, later):
        rebuild.replay(each.program, "t", read_all(journal, "t"))


async def test_instructions_may_be_a_function_of_the_run(journal: Journal) -> None:
    model = ScriptedModel(["hello"])
    agent = Agent("support", model=model, instructions=lambda run: f"Today is {run.now():%Y}.")

    await agent.run("hi", journal=journal, thread="t")

    assert model.requests[0]["messages"][0]["content"].startswith("Today is 20")
    check(agent, journal, "t")


async def test_history_may_trim_what_is_sent(journal: Journal) -> None:
    model = ScriptedModel(lambda request: say(str(len(request["messages"]))))
    agent = Agent("support", model=model, history=lambda messages: messages[-3:])
    for turn in range(5):
        result = await agent.run(f"q{turn}", journal=journal, thread="t")

    assert result.output == "3"
    check(agent, journal, "t")


async def test_a_changed_prompt_diverges_and_can_be_accepted(journal: Journal) -> None:
    gate = {"shut": True}

    @tool
    def sometimes() -> str:
        """Sometimes."""
        return "x"

    def instructions(run: Run) -> str:
        return "old" if gate["shut"] else "new"

    model = ScriptedModel([call("sometimes"), "end"])
    agent = Agent("support", model=model, tools=[sometimes], instructions=instructions)
    await agent.run("go", journal=journal, thread="t")
    gate["shut"] = False

    with pytest.raises(refold.Divergence, match="seq 3") as caught:
        rebuild.replay(agent.program, "t", read_all(journal, "t"))
    assert not caught.value.shape


async def test_a_denied_call_is_told_to_the_model(journal: Journal) -> None:
    @tool(approval=True)
    def drop() -> str:
        """Drop."""
        refunds.append(1)
        return "dropped"

    def reply(request: Any) -> Any:
        messages = request["messages"]
        return call("drop") if len(messages) == 1 else say(messages[-1]["content"])

    model = ScriptedModel(reply)
    agent = Agent("support", model=model, tools=[drop])
    waiting = await agent.run("go", journal=journal, thread="t", wait=False)
    (pending,) = waiting.pending
    assert pending.status == "waits for approval"
    kind, body = encode_message(Approval(pending.call, approved=False, by="ann", note="no"))
    journal.send("t", key=approval_key(pending.call), kind=kind, body=body)
    result = await agent.resume(journal=journal, thread="t")

    assert "denied by ann: no" in result.output
    assert refunds == []
    check(agent, journal, "t")
