"""LangGraph with the Postgres saver; job: dsn, turns, threads, durability ("sync", "async" or null)."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import work
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turn: int


def build(turns: int, saver: Any) -> Any:
    def model(state: State) -> dict[str, Any]:
        turn = state["turn"]
        calls = [{"name": "look", "args": {"n": turn}, "id": work.call_id(turn)}] if turn < turns else []
        return {"messages": [AIMessage(work.text(turn), tool_calls=calls)], "turn": turn + 1}

    def tool(state: State) -> dict[str, Any]:
        call = state["messages"][-1].tool_calls[0]
        return {"messages": [ToolMessage(work.result(call["args"]["n"]), tool_call_id=call["id"])]}

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tool" if state["turn"] <= turns else END)
    graph.add_edge("tool", "model")
    return graph.compile(checkpointer=saver)


def run(job: work.Job) -> dict[str, Any]:
    turns, threads, durability = job["turns"], job["threads"], job["durability"]
    start = {"messages": [HumanMessage("go")], "turn": 0}

    def one(graph: Any, config: dict[str, Any]) -> None:
        options = {} if durability is None else {"durability": durability}
        graph.invoke(start, {"recursion_limit": 2 * turns + 10, **config}, **options)

    if durability is None:
        return {"seconds": work.timed(lambda: one(build(turns, None), {}))}
    kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(job["dsn"], min_size=1, max_size=max(threads, 2), kwargs=kwargs) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        graph = build(turns, saver)
        configs = [{"configurable": {"thread_id": str(uuid.uuid4())}} for _ in range(threads)]
        with ThreadPoolExecutor(threads) as workers:
            seconds = work.timed(lambda: list(workers.map(lambda config: one(graph, config), configs)))
        resume = work.timed(lambda: graph.get_state(configs[0]))
    return {"seconds": seconds, "resume_s": resume}


if __name__ == "__main__":
    work.serve({"run": run})
