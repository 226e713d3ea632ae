"""What providers send and get, through litellm's own HTTP path: OpenAI, Anthropic and Gemini on this machine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from died import died_at
from refold import Agent, Journal, tool
from refold.agent.litellm_client import LitellmClient
from refold.journal import codec
from refold.replay.ports import ModelReply
from refold.replay.response import encode_reply
from refold.replay.runner import read_all
from wires import WIRES, Wire, text_of

USER = {"role": "user", "content": "hello"}

wires = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])


@tool(read_only=True)
def find(order: int) -> dict[str, int]:
    """Find an order."""
    return {"order": order, "paid": 30}


def agent_on(wire: Wire, server: Any) -> Agent:
    request = wire.request(server)
    return Agent("shop", model=request.pop("model"), params=request, tools=[find], instructions="Be brief.")


@wires
async def test_a_recorded_response_gives_the_same_bytes_when_it_is_rebuilt_and_recorded(wire: Wire) -> None:
    with wire.serve(wire.asking) as server:
        reply = await LitellmClient().respond({**wire.request(server), "messages": [USER]})

    recorded = encode_reply(reply)
    rebuilt = msgspec.convert(codec.decode(recorded), ModelReply)

    assert encode_reply(rebuilt) == recorded


@wires
async def test_text_calls_and_what_was_used_are_read_alike_from_every_provider(wire: Wire) -> None:
    with wire.serve(wire.asking) as server:
        reply = await LitellmClient().respond({**wire.request(server), "messages": [USER]})

    calls = reply.message["tool_calls"]
    assert reply.message["content"] == "I will look."
    assert [codec.decode(call["function"]["arguments"].encode()) for call in calls] == [
        {"order": 7},
        {"order": 8},
    ]
    assert reply.finish_reason == "tool_calls"
    assert reply.message["reasoning_content"] == "Two orders."
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (100, 20, 60)
    assert reply.usage.cost_micro is not None


@wires
async def test_what_only_this_provider_knows_goes_out_with_the_next_request(wire: Wire) -> None:
    """H09."""
    with wire.serve(wire.asking, {"text": "Both are paid."}) as server, Journal.memory() as journal:
        await agent_on(wire, server).run("orders 7 and 8", journal=journal, thread="t")
        told = text_of(server.bodies[1])

    signatures = {
        "openai": ['"s1"', '"z"', "Two orders."],
        "anthropic": ['"s1"', '"b2s="'],
        "gemini": ["c2ln"],
    }
    for signature in signatures[wire.name]:
        assert signature in told


@wires
async def test_after_a_crash_anywhere_every_request_equals_the_uninterrupted_one_byte_for_byte(
    wire: Wire,
) -> None:
    """H09: what litellm makes up (call ids, times) is taken from the log too."""
    replies = [wire.asking, {"calls": [{"name": "find", "arguments": {"order": 9}}]}, {"text": "All paid."}]
    with wire.serve(*replies) as server, Journal.memory() as journal:
        agent = agent_on(wire, server)
        await agent.run("orders 7 and 8", journal=journal, thread="t")
        whole = list(server.bodies)
        events = read_all(journal, "t")
        assert len(whole) == len(replies)

        for seq in range(2, len(events)):
            server.bodies.clear()
            with died_at(journal, "t", seq) as left:
                result = await agent.run("orders 7 and 8", journal=left, thread="t")
            asked = sum(event.kind == "model_responded" for event in events[:seq])
            assert result.output == "All paid."
            # Gemini's answers have no call ids: those that a later response gets are made up anew.
            made_up = wire.name == "gemini" and asked < 2
            assert server.bodies[:1] == whole[asked : asked + 1]
            assert made_up or server.bodies == whole[asked:]
