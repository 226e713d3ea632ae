"""The tool-calling loop: the one program that agents are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Raw, Struct

from ..journal import codec
from ..replay.errors import ModelError, ToolError
from ..replay.ports import InDoubt, ToolSpec
from ..replay.requests import Item, Messages, Params
from ..replay.response import Response
from ..replay.run import Run
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
    conversation = run.prior.messages.copy()
    conversation.add_item(user_item(value, run.run_id))
    # The limits it began with, whatever they are by now: what is recorded must not depend on a later one.
    spent, misfits = Spent(spec.name, Budget.of_run(run.definition)), 0
    max_steps = int(run.definition.get("max_steps", spec.max_steps))
    for _ in range(max_steps):
        spent.check(run.usage)
        history = spec.history(conversation) if spec.history else conversation
        messages = preamble + history
        try:
            response: Response = await run.model(messages=messages, params=models[0], in_doubt=spec.in_doubt)
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
        answers = await run.gather(*[_answer(spec, run, call) for call in reply.calls])
        for call, (call_id, content) in zip(reply.calls, answers, strict=True):
            conversation.add_item(result_item(call.id, call_id, content))
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
        spent.check(run.usage)
        try:
            response: Response = await run.model(messages=messages, params=models[0], in_doubt=spec.in_doubt)
        except ModelError as another:
            error = another
        else:
            return response
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


async def _answer(spec: LoopSpec, run: Run, call: CallRequest) -> tuple[str, bytes]:
    """Call one tool; its call id, and what the model reads of its outcome."""
    known_tool = spec.tools.get(call.name)
    tool: ToolSpec = known_tool or _Missing(call.name)
    # As asked, even if refused now: a version that had this tool may have called it, and its record must match.
    arguments = call.arguments
    refused: str | None = None
    if known_tool is None:
        known = ", ".join(sorted(spec.tools)) or "none"
        refused = f"there is no tool named {call.name!r}; the tools are: {known}"
    if isinstance(arguments, BadArguments):
        refused = refused or arguments.message
        arguments = {}
    elif known_tool is not None:
        refused = known_tool.misfit(arguments)
    ask = run.recorded_tool(tool, arguments, refused=refused)
    try:
        result: Raw = await ask
    except ToolError as error:
        return ask.call_id, error_content(error)
    return ask.call_id, result_content(result)
