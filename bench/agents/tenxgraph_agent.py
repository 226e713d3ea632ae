"""10xGraph with Postgres and the Redis named in the job, its own ToolNode."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import Any

import world
from tenxgraph.core.graph import StateGraph, ToolNode
from tenxgraph.core.state import AgentState, Message
from tenxgraph.core.state.message_block import TextBlock, ToolCallBlock
from tenxgraph.storage.checkpointer import PgCheckpointer
from tenxgraph.utils.constants import END


def build(outside: world.World) -> StateGraph:
    async def refund(order: int, amount: int) -> str:
        """Pay money back."""
        return await asyncio.to_thread(outside.refund, order, amount)

    async def notify(party: str) -> str:
        """Write to a party."""
        return await asyncio.to_thread(outside.notify, party)

    def model(state: AgentState) -> Message:
        answer = outside.model(sum(message.role == "assistant" for message in state.context))
        content: list[Any] = [TextBlock(text=answer["text"])]
        content += [ToolCallBlock(**call) for call in answer["calls"]]
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
            }
            for call in answer["calls"]
        ]
        return Message(
            message_id=str(uuid.uuid4()), role="assistant", content=content, tools_calls=calls or None
        )

    def route(state: AgentState) -> str:
        last = state.context[-1]
        return "TOOL" if last.role == "assistant" and last.tools_calls else END

    built = StateGraph()
    built.add_node("MAIN", model)
    built.add_node("TOOL", ToolNode([refund, notify]))
    built.add_conditional_edges("MAIN", route, {"TOOL": "TOOL", END: END})
    built.add_edge("TOOL", "MAIN")
    built.set_entry_point("MAIN")
    return built


async def go(job: dict[str, Any]) -> dict[str, Any]:
    saver = PgCheckpointer(postgres_dsn=job["dsn"], redis_url=job["redis_url"])
    await saver.asetup()
    app = build(world.World(job)).compile(checkpointer=saver)
    config = {"thread_id": job["thread"], "user_id": "faults", "recursion_limit": 30}
    begun = await saver.aget_state_cache(config) or await saver.aget_state(config)
    messages = [] if begun else [Message.text_message(job["prompt"])]
    out = await app.ainvoke({"messages": messages}, config=config)
    return {"status": "finished", "says": str(out["messages"][-1].content)[:200]}


def run(job: dict[str, Any]) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    return asyncio.run(go(job))


if __name__ == "__main__":
    world.serve(run)
