"""Programs that are put through simulated histories, and the worlds they live in. Deterministic, every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw, Struct
from refold import ModelReply, Run, StepError, ToolError, program
from refold.replay.inbox import Approval, Content, Signal
from refold.replay.ports import InDoubt, Usage
from refold.replay.simulation import Scenario
from refold.replay.status import OpenCall


class SimTool(Struct, frozen=True, eq=False, kw_only=True):
    """A tool as the engine sees it; the simulator keeps the ledger of what it does."""

    name: str
    act: Callable[..., Any]
    repeatable: bool = False
    read_only: bool = False
    in_doubt: InDoubt = "park"
    timeout_s: float = 5.0
    idle_timeout_s: float | None = None
    retries: int = 0
    approval: bool = False
    stoppable: bool = False
    look_up: Callable[..., Any] | None = None

    def needs_approval(self, args: Mapping[str, Any]) -> bool:
        return self.approval

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        assert not args
        return kwargs

    def restore(self, value: Any) -> Any:
        return value

    async def call(self, args: Mapping[str, Any], context: Any) -> Any:
        return self.act(**args)

    async def reconcile(self, args: Mapping[str, Any], context: Any) -> Any:
        assert self.look_up is not None
        return self.look_up(context, **args)


pay = SimTool(name="pay", act=lambda amount: {"paid": amount})
look = SimTool(name="look", act=lambda key: {"saw": key}, repeatable=True, in_doubt="retry", retries=1)
ship = SimTool(name="ship", act=lambda to: {"shipped": to})


def fetch(what: str) -> dict[str, str]:
    return {"fetched": what}


class Answers:
    """A model that answers from what it is asked; `fickle` ones say something else each time they are asked."""

    name = "simulated"

    def __init__(self, answer: Callable[[list[dict[str, Any]], int], dict[str, Any]]) -> None:
        self._answer = answer
        self._asked = 0

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        self._asked += 1
        message = self._answer(list(request["messages"]), self._asked)
        return ModelReply({"role": "assistant", **message}, finish_reason="stop", usage=Usage(10, 5))


async def tried(run: Run, tool: SimTool, **args: Any) -> Any:
    try:
        return await run.tool(tool, **args)
    except ToolError as error:
        return f"{error.error_type}, effect {error.effect}"


@program
async def errand(run: Run, order: str) -> Any:
    plan = await run.model(messages=[{"role": "user", "content": order}], model="m")
    both = await run.gather(tried(run, pay, amount=3), tried(run, look, key=plan.text))
    await run.sleep(1)
    try:
        page = await run.step(fetch, plan.text)
    except StepError as error:
        page = error.error_type
    sent = await tried(run, ship, to=plan.text)
    word = await run.wait_for("go")
    return [*both, page, sent, word, str(run.now() is not None), run.random.random()]


def go(call: OpenCall) -> Content | None:
    """People say the word that a run waits for, and allow what must be allowed."""
    if call.status == "waits for approval":
        return Approval(call.call, approved=True, by="people")
    if call.status == "waits for a signal":
        return Signal("go", Raw(b'"now"'), by="people")
    return None


ERRAND = Scenario(
    name="errand",
    program=errand,
    value="tea",
    models=Answers(lambda messages, asked: {"content": f"plan for {messages[-1]['content']}"}),
    reply=go,
)
