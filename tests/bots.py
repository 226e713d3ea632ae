"""Agents and programs that the tests of the command line name as `bots:...`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from refold import Agent, Run, ScriptedModel, program, tool
from refold.agent.scripted import call, say

# Modules of users print; it must not end up in our output.
print("a greeting from the module")

HOSTILE = "\x1b[2J\x1b[1A\rforged\a\x9b31m\u202eevil\x7f [bold]x[/bold]"


@tool
def refund(order: str) -> str:
    """Refund an order."""
    print("a line from the tool")
    with Path("effects").open("a") as effects:
        effects.write(f"{order}\n")
    if Path("die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return f"refunded {order}"


@tool(approval=True)
def delete_db(name: str) -> str:
    """Delete a database."""
    return f"deleted {name}"


@tool(approval=True)
def send_mail(to: str) -> str:
    """Send a mail."""
    with Path("effects").open("a") as effects:
        effects.write(f"mail {to}\n")
    return f"sent to {to}"


@tool(read_only=True)
def hostile() -> str:
    """Return what drives terminals."""
    return HOSTILE


agent = Agent("bot", model=ScriptedModel([call("refund", order="17"), say("It is\ndone.")]), tools=[refund])
changed = Agent("bot", model=ScriptedModel([call("refund", order="18"), say("It is\ndone.")]), tools=[refund])
careful = Agent(
    "careful",
    model=ScriptedModel(
        [[call("delete_db", name="main"), call("send_mail", to="kim")], say("All answered.")]
    ),
    tools=[delete_db, send_mail],
)
attacked = Agent("attacked", model=ScriptedModel([call("hostile"), say(HOSTILE)]), tools=[hostile])


@program
async def waiter(run: Run, name: str) -> Any:
    """Wait for a signal of this name."""
    return await run.wait_for(name)


@program
async def payer(run: Run, order: str) -> Any:
    """Refund an order."""
    return await run.tool(refund, order)


@program
async def overpayer(run: Run, order: str) -> Any:
    """`payer` after its code was changed."""
    return await run.tool(refund, f"{order}0")


overpayer.name = "payer"


@program
async def lister(run: Run, order: str) -> Any:
    """`payer` after it had learnt to ask first."""
    listed = await run.step(ask_price, order)
    return [listed, await run.tool(refund, order)]


lister.name = "payer"


def ask_price(order: str) -> str:
    with Path("effects").open("a") as effects:
        effects.write(f"asked {order}\n")
    return f"price of {order}"


def pretend(order: str) -> str:
    """Stands in for `refund`."""
    return f"would refund {order}"


@program
async def failing(run: Run, text: str) -> Any:
    """Raise."""
    raise ValueError(text)


number = 3


@tool
def wait_here() -> str:
    """Say that it has begun, then wait to be let go."""
    Path("begun").write_text("begun")
    return Path("go").read_text()


slow = Agent("slow", model=ScriptedModel([call("wait_here"), say("Done slowly.")]), tools=[wait_here])
reworded = Agent(
    "careful",
    model=ScriptedModel(
        [[call("delete_db", name="main"), call("send_mail", to="kim")], say("All answered.")]
    ),
    tools=[delete_db, send_mail],
    instructions="Be quick.",
)
