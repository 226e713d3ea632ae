"""Agents whose threads are recorded and replayed; named by other processes as `recorded_agents:...`."""

from __future__ import annotations

import socket
from typing import Any

from refold import Agent, Run, ScriptedModel, program, tool
from refold.agent.scripted import call
from refold.replay.program import Program


@tool(read_only=True)
def lookup(order: int) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "lines": ["tea", "milk"], "total": order * 3}


@tool
def note(text: str) -> str:
    """Keep a note."""
    return f"noted {text}"


def turns() -> list[Any]:
    """Replies that make a thread of 50 events."""
    pair = [call("lookup", order=1), call("note", text="one")]
    return [pair, *[call("lookup", order=n) for n in range(12)], pair, "All done."]


agent = Agent("clerk", model=ScriptedModel(turns()), tools=[lookup, note], instructions="You keep notes.")
other = Agent(
    "clerk", model=ScriptedModel(turns()), tools=[lookup, note], instructions="You keep short notes."
)
stranger = Agent("stranger", model=ScriptedModel(["Hello."]))


def load() -> Program:
    return agent.program


def load_other() -> Program:
    return other.program


@program
async def caller(run: Run, port: int) -> str:
    """Reach out in the program itself, as no program should."""
    await run.sleep(0)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"


def load_caller() -> Program:
    return caller
