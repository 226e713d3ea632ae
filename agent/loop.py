"""The tool-calling loop: the one program that agents are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from ..journal import codec
from ..replay.errors import ModelError, ToolError
from ..replay.ports import InDoubt
from ..replay.requests import Item, Messages, Params
from ..replay.response import Response
from ..replay.run import Ask, Run
from .arguments import BadArguments
from .budget import Budget, Spent
from .conversation import CallRequest, error_content, read_reply, result_content, result_item, user_item
from .output import BadOutput, Output
from .tools import Tool


class LoopSpec(Struct, frozen=True, kw_only=True):
    """
    What the loop needs to know of its agent.

    `params` holds the parameters for each of its models, in the order in which they are asked.
    """

    name: str
    params: tuple[Mapping[str, Any], ...]
    tools: Mapping[str, Tool[..., Any]]
    instructions: str | Callable[[Run], str] | None
    history: Callable[[Messages], Messages] | None
    max_steps: int
    budget: Budget = Budget()
    output: Output | None = None
    output_retries: int = 0
    in_doubt: Literal["park", "retry"] = "park"


async def run_loop(spec: LoopSpec, run: Run, value: Any) -> Any:
    """Ask the model, call the tools it wants, tell it the results, until it wants none."""
    models = [Params(each) for each in spec.params]
    preamble = _preamble(spec, run)
    # Where nothing is cut out of it, the conversation begins with the preamble and only grows.
    conversation = run.prior.messages.copy() if spec.history else preamble + run.prior.messages
    conversation.add_item(user_item(value, run.run_id))
    # The limits it began with, whatever they are by now: what is recorded must not depend on a later one.
    spent, misfits = Spent(spec.name, Budget.of_run(run.definition)), 0
    again, max_steps = spent.again(run), int(run.definition.get("max_steps", spec.max_steps))
    for _ in range(max_steps):
        spent.check(run)
        messages = preamble + spec.history(conversation) if spec.history else conversation
        try:
            response: Response = await run.model(
                messages=messages, params=models[0], in_doubt=spec.in_doubt, again=again
            )
        except ModelError as error:
            response = await _fall_back(spec, run, messages, models, error, spent)
        spent.add(response)
        reply = read_reply(response)
        conversation.add_item(reply.item)
        if not reply.calls:
            if spec.output is None:
                return response.text
            try:
                return spec.output.read(response.text)
            except ValueError as error:
                misfits += 1
                if misfits > spec.output_retries:
                    raise BadOutput(
                        f"agent {spec.name!r} gave no {spec.output.name} in {misfits} answers; of the last one: {error}"
                    ) from None
                conversation.add(misfit(spec.output.name, str(error)))
                continue
        asked = [_ask(spec, run, call) for call in reply.calls]
        outcomes = await run.gather(*asked)
        for call, ask, outcome in zip(reply.calls, asked, outcomes, strict=True):
            content = error_content(outcome) if isinstance(outcome, ToolError) else result_content(outcome)
            conversation.add_item(result_item(call.id, ask.call_id, content))
    raise StepLimit(f"agent {spec.name!r} asked the model {max_steps} times without coming to an end")


def misfit(name: str, why: str) -> dict[str, Any]:
    """The message that tells a model that its answer is not of the type asked for."""
    text = f"This is not the {name} that was asked for: {why}. Answer again, with nothing but the JSON."
    return {"role": "user", "content": text}


async def _fall_back(
    spec: LoopSpec, run: Run, messages: Messages, models: list[Params], error: ModelError, spent: Spent
) -> Response:
    """The response of the next model that gives one; the first, which has failed for good, is asked no more."""
    while len(models) > 1:
        del models[0]
        spent.check(run)
        try:
            response: Response = await run.model(
                messages=messages, params=models[0], in_doubt=spec.in_doubt, again=spent.again(run)
            )
        except ModelError as another:
            error = another
        else:
            return response
    spent.check(run)
    raise error


class _Missing:
    """Stands for a tool that the model made up, or that this version of the agent no longer has."""

    read_only = False
    transactional = False
    repeatable = False
    stoppable = True
    in_doubt: InDoubt = "park"
    timeout_s = 60.0
    idle_timeout_s = None
    retries = 0

    def __init__(self, name: str) -> None:
        self.name = name

    may_need_approval = False

    def needs_approval(self, args: Mapping[str, Any]) -> bool:
        return False

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def restore(self, value: Any) -> Any:
        return value

    async def call(self, args: Mapping[str, Any], context: Any) -> Any:
        # Reached only when somebody says of a call of an earlier version that it did not happen.
        raise ToolError(f"there is no tool named {self.name!r} any more")

    def call_now(self, args: Mapping[str, Any], context: Any) -> Any:
        raise AssertionError(f"tool {self.name!r} does not exist")

    async def reconcile(self, args: Mapping[str, Any], context: Any) -> Any:
        raise AssertionError(f"tool {self.name!r} does not exist")


class StepLimit(Exception):
    """The loop asked the model as often as it may."""


def _preamble(spec: LoopSpec, run: Run) -> Messages:
    text = spec.instructions(run) if callable(spec.instructions) else spec.instructions
    if text is None:
        return Messages()
    raw = codec.encode({"role": "system", "content": text}, what="instructions")
    earlier = run.prior.preamble
    if [item.raw for item in earlier.items()] == [raw]:
        return earlier
    preamble = Messages()
    preamble.add_item(Item(raw))
    return preamble


def _ask(spec: LoopSpec, run: Run, call: CallRequest) -> Ask:
    """What calls one tool."""
    arguments = call.arguments
    tool = spec.tools.get(call.name)
    if tool is None:
        # As asked, even if refused now: a version that had this tool may have called it, and its record must match.
        known = ", ".join(sorted(spec.tools)) or "none"
        refused = f"there is no tool named {call.name!r}; the tools are: {known}"
        given = {} if isinstance(arguments, BadArguments) else arguments
        return run.recorded_tool(_Missing(call.name), given, refused=refused)
    if isinstance(arguments, BadArguments):
        return run.recorded_tool(tool, {}, refused=arguments.message)
    return run.recorded_tool(tool, arguments, refused=tool.misfit(arguments))
