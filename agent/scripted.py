"""`ScriptedModel`: a model that answers from a script, for tests and demos; no key, no network."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..replay.errors import ModelError
from ..replay.ports import ModelReply, Usage


class ScriptedCall(Struct, frozen=True):
    """
    One tool call of a scripted reply.

    Args:
        tool: Name of the tool.
        arguments: As the provider would send them: JSON text as a rule; anything else to play a provider's faults.
        id: The provider's id; by default made of the turn and the position, so that it is the same in every process.
    """

    tool: str
    arguments: Any = "{}"
    id: str | None = None


class Say(Struct, frozen=True):
    """A reply of text, and tool calls beside it."""

    text: str | None
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage = Usage()


class Held(Struct, frozen=True, eq=False):
    """A reply that waits for an event first."""

    event: asyncio.Event
    then: Scripted


class Failing(Struct, frozen=True, eq=False):
    """Errors, one for each time the turn is asked in this process, then a reply."""

    errors: tuple[BaseException, ...]
    then: Scripted


Scripted = str | ScriptedCall | Sequence[ScriptedCall] | Say | Held | Failing | ModelReply | BaseException
"""What a script can hold for a turn; an exception is raised each time the turn is asked."""

Respond = Callable[[Mapping[str, Any]], Scripted | Awaitable[Scripted]]


def say(text: str | None, *calls: ScriptedCall, usage: Usage | None = None) -> Say:
    """A reply of *text*, with tool calls beside it if there are any."""
    return Say(text, calls, usage or Usage())


def call(tool: str, /, **arguments: Any) -> ScriptedCall:
    """A tool call with these arguments. Alone it is a whole reply, and so is a list of them."""
    return ScriptedCall(tool, json.dumps(arguments, ensure_ascii=False))


def raw_call(tool: str, arguments: Any, *, id: str | None = None) -> ScriptedCall:
    """A tool call with arguments exactly as given, sound or not, and the provider's id of one's choice."""
    return ScriptedCall(tool, arguments, id)


def held(event: asyncio.Event, then: Scripted) -> Held:
    """A reply that comes only once *event* is set."""
    return Held(event, then)


def failing(*errors: BaseException, then: Scripted) -> Failing:
    """The *errors* one after another, each time the turn is asked in this process, and then the reply."""
    return Failing(errors, then)


class ScriptedModel:
    """
    A model client that answers from a script.

    A list is read by the content of the request: the reply at index n answers a conversation with n assistant
    messages. So a new process goes on where the old one died, and asking again gives the same answer.
    A thread with several runs is one conversation, and its script one list.

    Args:
        script: Replies by turn, or a function (sync or async) from the request to a reply.
        keep_requests: Whether to keep what was asked; long benchmarks do without.
    """

    def __init__(self, script: Sequence[Scripted] | Respond, *, keep_requests: bool = True) -> None:
        self._script: Respond | tuple[Scripted, ...] = script if callable(script) else tuple(script)
        self._keep = keep_requests
        self._requests: list[dict[str, Any]] = []
        self._failures: dict[int, int] = {}
        self.count = 0
        """How often this model was asked, in this process."""

    def again(self) -> ScriptedModel:
        """A model with the same script, of the same class, that has not been asked anything, and keeps no requests."""
        fresh = copy.copy(self)
        fresh._keep, fresh._requests, fresh._failures, fresh.count = False, [], {}, 0
        return fresh

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every request in the order asked, as plain values."""
        return [{**request, "messages": list(request["messages"])} for request in self._requests]

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        """
        The scripted reply to *request*.

        Raises:
            ModelError: The script says so, or has no reply for this turn (kind "bad_request").
        """
        self.count += 1
        messages = request.get("messages", ())
        turn = sum(1 for message in messages if message.get("role") == "assistant")
        if self._keep:
            asked = {name: copy.deepcopy(value) for name, value in request.items() if name != "messages"}
            self._requests.append({**asked, "messages": messages[:]})
        if callable(self._script):
            answer = self._script(request)
            reply = await answer if inspect.isawaitable(answer) else answer
        elif turn < len(self._script):
            reply = self._script[turn]
        else:
            raise ModelError(
                f"the script has {len(self._script)} replies and this conversation asks for reply {turn + 1}",
                kind="bad_request",
                error_type="ScriptEnded",
            )
        return await self._perform(reply, turn, request)

    async def _perform(self, reply: Scripted, turn: int, request: Mapping[str, Any]) -> ModelReply:
        while isinstance(reply, Held | Failing):
            if isinstance(reply, Held):
                await reply.event.wait()
                reply = reply.then
                continue
            failures = self._failures.get(turn, 0)
            if failures < len(reply.errors):
                self._failures[turn] = failures + 1
                raise reply.errors[failures]
            reply = reply.then
        if isinstance(reply, BaseException):
            raise reply
        return reply if isinstance(reply, ModelReply) else _reply(reply, turn, request.get("model"))

    def __repr__(self) -> str:
        script = "a function" if callable(self._script) else f"{len(self._script)} replies"
        return f"ScriptedModel({script}, asked {self.count} times)"


def _reply(scripted: Any, turn: int, model: Any) -> ModelReply:
    if isinstance(scripted, str):
        scripted = Say(scripted)
    elif isinstance(scripted, ScriptedCall):
        scripted = Say(None, (scripted,))
    elif isinstance(scripted, Sequence):
        scripted = Say(None, tuple(scripted))
    if not isinstance(scripted, Say) or not all(isinstance(each, ScriptedCall) for each in scripted.calls):
        raise TypeError(
            f"a script holds text, say(...), call(...), lists of calls, ModelReply or exceptions, not {scripted!r}"
        )
    message: dict[str, Any] = {"role": "assistant", "content": scripted.text}
    if scripted.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{turn}_{position}" if each.id is None else each.id,
                "type": "function",
                "function": {"name": each.tool, "arguments": each.arguments},
            }
            for position, each in enumerate(scripted.calls)
        ]
    return ModelReply(
        message=message,
        finish_reason="tool_calls" if scripted.calls else "stop",
        model=model if isinstance(model, str) else None,
        usage=scripted.usage,
    )
