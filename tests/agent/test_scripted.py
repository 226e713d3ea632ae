"""A scripted model answers by the conversation, so a new process goes on where the old one died."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from refold.agent.arguments import BadArguments, parse_arguments
from refold.agent.scripted import Scripted, ScriptedModel, call, failing, held, raw_call, say
from refold.journal import codec
from refold.replay.errors import ModelError
from refold.replay.ports import ModelClient, ModelReply, Usage
from refold.replay.requests import Messages
from refold.replay.response import encode_reply

SCRIPT: list[Scripted] = [
    call("refund", order=1),
    [call("a"), call("b", x="é")],
    say("done", usage=Usage(output_tokens=3)),
]


def conversation(turns: int, **parameters: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": str(turn)})
        messages.append({"role": "user", "content": "go on"})
    return {"model": "scripted", "messages": messages, **parameters}


async def test_the_reply_is_chosen_by_the_conversation_in_any_order_and_any_process() -> None:
    one, other = ScriptedModel(SCRIPT), ScriptedModel(SCRIPT)

    forward = [await one.respond(conversation(turn)) for turn in (0, 1, 2)]
    backward = [await other.respond(conversation(turn)) for turn in (2, 1, 1, 0)]

    assert forward == [backward[3], backward[2], backward[0]]
    assert backward[1] == backward[2]
    assert (one.count, other.count) == (3, 4)


async def test_replies_are_messages_as_a_provider_sends_them() -> None:
    model: ModelClient = ScriptedModel(SCRIPT)

    single = await model.respond(conversation(0))
    several = await model.respond(conversation(1))
    text = await model.respond(conversation(2))

    assert single.message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_0_0",
                "type": "function",
                "function": {"name": "refund", "arguments": '{"order": 1}'},
            }
        ],
    }
    assert (single.finish_reason, single.model) == ("tool_calls", "scripted")
    calls = several.message["tool_calls"]
    assert [each["id"] for each in calls] == ["call_1_0", "call_1_1"]
    assert json.loads(calls[1]["function"]["arguments"]) == {"x": "é"}
    assert text.message == {"role": "assistant", "content": "done"}
    assert (text.finish_reason, text.usage) == ("stop", Usage(output_tokens=3))


async def test_a_providers_faults_can_be_played() -> None:
    model = ScriptedModel([[raw_call("f", '{"a":1}{"a":2}', id="x"), raw_call("f", None, id="x")]])

    calls = (await model.respond(conversation(0))).message["tool_calls"]

    assert [each["id"] for each in calls] == ["x", "x"]
    assert isinstance(parse_arguments(calls[0]["function"]["arguments"]), BadArguments)
    assert parse_arguments(calls[1]["function"]["arguments"]) == {}


async def test_errors_are_raised_as_often_as_they_are_scripted() -> None:
    overloaded = ModelError("busy", kind="overloaded")
    model = ScriptedModel([failing(overloaded, overloaded, then="fine"), ModelError("no", kind="auth")])

    for _ in range(2):
        with pytest.raises(ModelError, match="busy"):
            await model.respond(conversation(0))
    assert (await model.respond(conversation(0))).message["content"] == "fine"
    for _ in range(2):
        with pytest.raises(ModelError, match="no"):
            await model.respond(conversation(1))


async def test_a_reply_can_be_held_until_an_event() -> None:
    event = asyncio.Event()
    model = ScriptedModel([held(event, "late")])

    asked = asyncio.create_task(model.respond(conversation(0)))
    await asyncio.sleep(0)
    assert model.count == 1
    assert not asked.done()
    event.set()

    assert (await asked).message["content"] == "late"


async def test_a_function_answers_from_the_request_sync_or_async() -> None:
    async def later(request: Any) -> ModelReply:
        return ModelReply({"role": "assistant", "content": str(len(request["messages"]))})

    sync = ScriptedModel(lambda request: say(request["temperature"]))

    assert (await sync.respond(conversation(0, temperature="hot"))).message["content"] == "hot"
    assert (await ScriptedModel(later).respond(conversation(3))).message["content"] == "8"


async def test_the_end_of_the_script_is_an_error_that_trying_again_does_not_mend() -> None:
    with pytest.raises(ModelError, match="3 replies and this conversation asks for reply 4") as caught:
        await ScriptedModel(SCRIPT).respond(conversation(3))

    assert not caught.value.retryable


async def test_requests_are_kept_as_plain_values_unless_told_otherwise() -> None:
    messages = Messages(conversation(0)["messages"])
    model, forgetful = ScriptedModel(SCRIPT), ScriptedModel(SCRIPT, keep_requests=False)
    tools: list[Any] = [{"a": 1}]
    request = {"model": "m", "messages": messages, "tools": tools}

    await model.respond(request)
    await forgetful.respond(request)
    messages.add({"role": "user", "content": "later"})
    tools.append({})

    assert model.requests == [{"model": "m", "messages": conversation(0)["messages"], "tools": [{"a": 1}]}]
    assert forgetful.requests == []


async def test_a_reply_is_recorded_the_same_in_every_process() -> None:
    replies = [await ScriptedModel(SCRIPT).respond(conversation(1)) for _ in range(2)]

    assert encode_reply(replies[0]) == encode_reply(replies[1])
    assert codec.decode(codec.encode(replies[0].message)) == replies[0].message


async def test_a_script_of_something_else_says_so() -> None:
    with pytest.raises(TypeError, match="a script holds text"):
        await ScriptedModel([{"text": "x"}]).respond(conversation(0))  # type: ignore[list-item]
