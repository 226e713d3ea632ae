"""
What the golden threads were recorded with: agents and programs that between them leave every kind of event.

The files beside this one are never written anew; a later version of the log adds files of its own.
`python tests/golden/record.py` writes those that are missing.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

from refold import Agent, ModelError, Run, ScriptedModel, StepError, ToolError, program, tool
from refold.agent.scripted import call, failing, raw_call, say
from refold.replay.program import Program

# Only recording fails: a replay calls none of these.
_failures = itertools.count()


@tool(read_only=True)
def lookup(order: int) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "lines": ["tea", "Käse", "牛乳"], "total": 12.5}


@tool(idempotent=True, retries=1)
def flaky(order: int) -> str:
    """Fail the first time."""
    if next(_failures) == 0:
        raise ToolError("not yet")
    return f"done {order}"


@tool
def break_off(order: int) -> str:
    """Raise what asserts nothing about the effect."""
    raise ValueError(f"broke off at {order}")


@tool(approval=True)
def erase(name: str) -> str:
    """Erase something."""
    return f"erased {name}"


@tool(timeout_s=0.05)
def refund(order: int) -> str:
    """Refund an order."""
    raise AssertionError("its outcome is resolved by hand")


SCRIPT = [
    [call("lookup", order=1), call("flaky", order=1), raw_call("lookup", "{not json"), call("nothing", a=1)],
    failing(ModelError("slow down", kind="rate_limit"), then=[call("break_off", order=2)]),
    [call("erase", name="old"), call("erase", name="new")],
    "First done.",
    [call("refund", order=9)],
    say("Second done."),
    "Third done.",
]


def clerk_with(model: ScriptedModel) -> Agent:
    """The clerk, answered by this script."""
    return Agent(
        "clerk",
        model=model,
        tools=[lookup, flaky, break_off, erase, refund],
        instructions="You are a clerk.\nYou speak plainly.",
        params={"temperature": 0},
    )


AGAIN = [
    [call("lookup", order=1)],
    "Something else.",
    [call("lookup", order=2), call("lookup", order=1)],
    "Looked up.",
]

clerk = clerk_with(ScriptedModel(SCRIPT))


def fetch(page: int) -> dict[str, int]:
    if page == 404:
        raise LookupError("no such page")
    return {"page": page}


@program
async def errand(run: Run, topic: str) -> dict[str, Any]:
    """Everything a program can ask for."""
    pages = await run.gather(run.step(fetch, 1), run.step(fetch, 2, read_only=True), run.tool(lookup, 3))
    try:
        await run.step(fetch, 404)
    except StepError as error:
        pages.append(error.error_type)
    reply = await run.model(messages=[{"role": "user", "content": topic}], model="scripted")
    await run.sleep(0.001)
    if run.patched("second-look"):
        pages.append(await run.step(fetch, 5))
    word = await run.wait_for("word")
    late = await run.wait_for("never", timeout=timedelta(milliseconds=1))
    return {"pages": pages, "reply": reply.text, "word": word, "late": late, "dice": run.random.randint(1, 6)}


@program
async def doomed(run: Run) -> None:
    """Raise."""
    await run.step(fetch, 1)
    raise RuntimeError("as it must")


@program
async def patient(run: Run) -> Any:
    """Wait until it is cancelled."""
    return await run.wait_for("nobody")


@program
async def renamed(run: Run, topic: str) -> str:
    """Ask twice, the second time with what was asked before it was changed."""
    first = await run.model(messages=[{"role": "user", "content": f"{topic}?"}], model="scripted")
    await run.wait_for("go")
    return first.text


acting = Agent(
    "acting",
    model=ScriptedModel([say(None, call("lookup", order=1)), "Computed."]),
    tools=[lookup],
    params={"tools": [{"type": "code_interpreter"}]},
)
"""Its provider runs code within the model call."""


PROGRAMS: dict[str, Program] = {
    "clerk": clerk.program,
    "clerk-forked": clerk.program,
    "superseded": clerk.program,
    "held": clerk.program,
    "errand": errand,
    "doomed": doomed,
    "patient": patient,
    "accepted": renamed,
    "acting": acting.program,
}
"""Which program each file is replayed against."""
