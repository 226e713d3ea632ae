"""refold: the refund is left as tools are by default, the mails are declared repeatable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import world
from refold import Agent, Divergence, Journal, ThreadBusy, tool
from refold.replay.ports import ModelReply


class Model:
    """Answers by the number of replies it finds in the request."""

    name = "fake"

    def __init__(self, outside: world.World) -> None:
        self._outside = outside

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        answer = self._outside.model(sum(m["role"] == "assistant" for m in request["messages"]))
        message: dict[str, Any] = {"role": "assistant", "content": answer["text"]}
        if answer["calls"]:
            message["tool_calls"] = [_call(each) for each in answer["calls"]]
        return ModelReply(message=message, finish_reason="stop")


def run(job: dict[str, Any]) -> dict[str, Any]:
    outside = world.World(job)

    @tool
    def refund(order: int, amount: int) -> str:
        """Pay money back."""
        return outside.refund(order, amount)

    @tool(idempotent=True)
    def notify(party: str) -> str:
        """Write to a party."""
        return outside.notify(party)

    agent = Agent("support", model=Model(outside), tools=[refund, notify], instructions=job["prompt"])
    with Journal.open(job["dsn"]) as journal:
        try:
            result = agent.run_sync("go", journal=journal, thread=job["thread"], key="go", wait=False)
        except (ThreadBusy, Divergence) as refusal:
            return {"status": "refused", "says": f"{type(refusal).__name__}: {refusal}"}
    return {"status": result.status, "says": str(result.output or result.reason)}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = world.json.dumps(call["args"])
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


if __name__ == "__main__":
    world.serve(run)
