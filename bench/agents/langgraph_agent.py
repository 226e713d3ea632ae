"""LangGraph with the Postgres saver, durability "sync", its own ToolNode."""

from __future__ import annotations

from typing import Any

import world
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode


def run(job: dict[str, Any]) -> dict[str, Any]:
    outside = world.World(job)

    def model(state: MessagesState) -> dict[str, Any]:
        answer = outside.model(sum(isinstance(m, AIMessage) for m in state["messages"]))
        return {"messages": [AIMessage(answer["text"], tool_calls=answer["calls"])]}

    def refund(order: int, amount: int) -> str:
        """Pay money back."""
        return outside.refund(order, amount)

    def notify(party: str) -> str:
        """Write to a party."""
        return outside.notify(party)

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([refund, notify]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda s: "tools" if s["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    with PostgresSaver.from_conn_string(job["dsn"]) as saver:
        saver.setup()
        built = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": job["thread"]}}
        begun = bool(built.get_state(config).values)
        start = None if begun else {"messages": [HumanMessage(job["prompt"])]}
        out = built.invoke(start, config, durability="sync")
    return {"status": "finished", "says": out["messages"][-1].text}


if __name__ == "__main__":
    world.serve(run)
