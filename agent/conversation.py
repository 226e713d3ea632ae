"""
The conversation of a thread: how events become messages that any provider accepts.

Each tool call of an assistant message is answered by exactly one tool message, from any prefix of the log.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ..journal import codec
from ..journal.envelope import Event
from ..replay import events as ev
from ..replay.door import is_unicode
from ..replay.errors import Effect, ToolError
from ..replay.requests import Item, Messages, NewItem, Parts, Prior
from ..replay.response import Response
from .arguments import BadArguments, parse_arguments
from .signature import TOOL_NAME, TOOL_NAME_CHARACTERS_MAX

INTERRUPTED = codec.canonical(
    "The call was interrupted; it may or may not have happened. Do not repeat it without checking."
)
NOT_MADE = codec.canonical("The call was not made; nothing of it happened.")

_QUOTE, _BACKSLASH = b'"\\'
_NULL = bytes(ev.NULL)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class CallRequest(Struct, frozen=True, gc=False):
    """One tool call as a model asked for it; `id` is what the provider is answered by, unique in its message."""

    id: str
    name: str
    arguments: dict[str, Any] | BadArguments


class Reply(Struct, frozen=True):
    """An assistant message, ready to be sent back, and the calls it asks for."""

    item: Item
    calls: tuple[CallRequest, ...]


def read_reply(response: Response) -> Reply:
    """
    The message and the calls of a response.

    What would poison the next request is mended, always in the same way: missing or repeated call ids are
    replaced, arguments that are no JSON object become `{}` (the call itself is answered with what was wrong),
    made-up names of tools get the form that providers take, and a message without anything gets an empty text.
    """
    sound = _sound_calls(response)
    if sound is not None:
        return Reply(Item(response.raw, reply=response.call), sound)
    message = response.message
    raw_calls = message.get("tool_calls")
    if not isinstance(raw_calls, list) or not raw_calls:
        return Reply(_without_calls(response), ())
    calls: list[CallRequest] = []
    mended: list[dict[str, Any]] = []
    seen: set[str] = set()
    for position, raw in enumerate(raw_calls):
        call, repaired = _read_call(raw, position, response.call, seen)
        seen.add(call.id)
        calls.append(call)
        mended.append(repaired)
    if mended == raw_calls:
        return Reply(Item(response.raw, reply=response.call), tuple(calls))
    data = codec.encode({**message, "tool_calls": mended}, what="a model message")
    return Reply(Item(data), tuple(calls))


def _without_calls(response: Response) -> Item:
    """The message of a response that asks for no calls: providers take back neither an empty list nor nothing."""
    kept = {name: part for name, part in response.message.items() if name != "tool_calls"}
    if kept.get("content") is None and not kept.get("function_call"):
        kept["content"] = ""
    if kept == response.message:
        return Item(response.raw, reply=response.call)
    return Item(codec.encode(kept, what="a model message"))


class _Function(Struct, gc=False):
    name: str
    arguments: str


class _ToolCall(Struct, gc=False):
    id: str
    type: str
    function: _Function


class _Calls(Struct, gc=False):
    tool_calls: list[_ToolCall] | UnsetType | None = UNSET


class _Content(Struct, gc=False):
    content: Raw = ev.NULL


_read_calls = msgspec.json.Decoder(_Calls).decode
_read_content = msgspec.json.Decoder(_Content).decode
_is_tool_name = functools.lru_cache(256)(TOOL_NAME.fullmatch)


def _sound_calls(response: Response) -> tuple[CallRequest, ...] | None:
    """The calls of a message in which there is nothing to mend, read without the rest of it; else None."""
    if codec.may_have_tags(response.raw):
        return None
    try:
        asked = _read_calls(response.raw).tool_calls
    except msgspec.DecodeError:
        return None
    if not asked:
        return () if asked is UNSET and bytes(_read_content(response.raw).content) != _NULL else None
    calls: list[CallRequest] = []
    for each in asked:
        name, text = each.function.name, each.function.arguments
        arguments = parse_arguments(text)
        if type(arguments) is not dict or not each.id or not _is_tool_name(name):
            return None
        # No arguments at all may be blank text, which no provider takes back.
        if not arguments and "{" not in text:
            return None
        calls.append(CallRequest(each.id, name, arguments))
    if len(calls) > 1 and len({call.id for call in calls}) != len(calls):
        return None
    return tuple(calls)


def _read_call(raw: Any, position: int, call_id: str, seen: set[str]) -> tuple[CallRequest, dict[str, Any]]:
    source = raw if isinstance(raw, dict) else {}
    function = source.get("function")
    function = function if isinstance(function, dict) else {}
    name = function.get("name")
    name = name if isinstance(name, str) and name else "unnamed"
    told = name if _is_tool_name(name) else _NOT_IN_NAMES.sub("_", name)[:TOOL_NAME_CHARACTERS_MAX]
    given = source.get("id")
    unique = given if isinstance(given, str) and given and given not in seen and is_unicode(given) else None
    identity = unique or f"call_{call_id.replace('/', '_').replace('.', '_')}_{position + 1}"
    arguments = parse_arguments(function.get("arguments"))
    text = function.get("arguments")
    sound = (
        isinstance(text, str) and text.strip() not in ("", "null") and not isinstance(arguments, BadArguments)
    )
    if sound and unique and told == function.get("name") and source.get("type") is not None:
        return CallRequest(unique, name, arguments), source
    if not sound:
        plain = {} if isinstance(arguments, BadArguments) else arguments
        text = codec.encode(plain, what="arguments").decode()
    mended = {**source, "id": identity, "function": {**function, "name": told, "arguments": text}}
    mended.setdefault("type", "function")
    if mended["type"] is None:
        mended["type"] = "function"
    return CallRequest(identity, name, arguments), mended


def user_item(value: Any, run_id: str) -> Item:
    """The user message of a run's input: a text, content parts, or the JSON text of anything else."""
    plain = isinstance(value, str) or _is_parts(value)
    content = value if plain else codec.encode(value, what="the run's input").decode()
    return Item(codec.encode({"role": "user", "content": content}, what="the run's input"), input=run_id)


def _is_parts(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in value)


def result_item(request_id: str, call_id: str, content: bytes) -> Item:
    """The tool message that answers a call; *content* is what the model reads, as canonical JSON of a text."""
    raw = b'{"content":%b,"role":"tool","tool_call_id":%b}' % (content, codec.canonical(request_id))
    return Item(raw, result=call_id, id=request_id)


def result_content(result: Raw) -> bytes:
    """What a model reads of a tool's result: text as it is, everything else as JSON."""
    data = bytes(result)
    is_text = data[0] == _QUOTE
    # Text without escapes is canonical as it stands; a file that was imported may hold others.
    if is_text and _BACKSLASH not in data:
        return data
    return codec.encode(codec.decode(data) if is_text else data.decode(), what="a tool message")


def failure_content(message: str, effect: Effect) -> bytes:
    """What a model reads of a failed call."""
    text = f"Error: {message}" if message else "Error: the tool failed."
    if effect == "unknown":
        text += "\nThe call may have happened all the same. Do not repeat it without checking."
    if effect == "done":
        text += "\nThe call did happen; only its result could not be kept. Do not repeat it."
    return codec.encode(text, what="a tool message")


def error_content(error: ToolError) -> bytes:
    """What a model reads of a failed call that the program caught."""
    return failure_content(error.message, error.effect)


def outcome_content(body: ev.EventBody) -> bytes | None:
    """What a model reads of an event about a call; None if the event is not the call's outcome."""
    match body:
        case ev.ToolReturned() | ev.ToolResolved(outcome="returned"):
            return result_content(body.result)
        case ev.ToolFailed() if body.final:
            return failure_content(body.error.message, body.effect)
        case ev.ToolResolved(outcome="failed"):
            return failure_content(body.error.message if body.error else "", body.effect)
        case ev.ApprovalGiven() if not body.approved:
            return failure_content(denied_text(body.by, body.note), "none")
        case _:
            return None


def tell(body: ev.EventBody, request_id: str) -> bytes:
    """Canonical bytes of the message that tells a run's input or the outcome of a call to the model."""
    if isinstance(body, ev.RunStarted):
        return user_item(codec.decode(body.input), body.run).raw
    return result_item(request_id, getattr(body, "call", ""), outcome_content(body) or INTERRUPTED).raw


class _Slot(Struct):
    """Room for the answer to one call."""

    id: str
    call: str
    content: bytes = NOT_MADE
    closed: bool = False


class Conversation(Struct):
    """
    The conversation of a thread as its events tell it, folded one by one.

    Attributes:
        preamble: The instructions last asked with.
        params_digest: Digest of the parameters last asked with.
    """

    entries: list[Item | _Slot] = field(default_factory=list)
    slots: dict[str, _Slot] = field(default_factory=dict)
    preamble: Messages = field(default_factory=Messages)
    params_digest: bytes | None = None
    told: set[str] = field(default_factory=set)
    """Calls that a later run's requests have told as interrupted."""
    answered: str | None = None
    """The run whose newest reply asked for no calls."""

    def apply(self, body: ev.EventBody) -> None:
        """Fold one event."""
        handler = _HANDLERS.get(type(body))
        if handler is not None:
            handler(self, body)

    def items(self) -> Iterator[Item]:
        """The messages: every call is answered, the order fixed by the calls."""
        for entry in self.entries:
            yield entry if isinstance(entry, Item) else result_item(entry.id, entry.call, entry.content)

    def _run_started(self, body: ev.RunStarted) -> None:
        self.told.update(call for call, slot in self.slots.items() if slot.content is INTERRUPTED)
        self.entries.append(user_item(codec.decode(body.input), body.run))

    def _model_responded(self, body: ev.ModelResponded) -> None:
        if body.request.params:
            self.params_digest = hashlib.sha256(body.request.params).digest()
        if body.request.base in (None, "prior"):
            first = next(iter(body.request.parts), None)
            if isinstance(first, NewItem):
                self.preamble = _system(first)
        # A reply that asked for nothing ends a run; one that is followed by another was sent back, with a note.
        if self.answered == body.call.rpartition("/")[0] and (note := _note(body.request.parts)):
            self.entries.append(note)
        reply = read_reply(Response(body.call, body.response, body.usage))
        self.answered = None if reply.calls else body.call.rpartition("/")[0]
        self.entries.append(reply.item)
        run, _, path = body.call.rpartition("/")
        for position, call in enumerate(reply.calls, 1):
            slot = _Slot(call.id, call_path(run, path, position))
            self.slots[slot.call] = slot
            self.entries.append(slot)

    def _started(self, body: ev.ToolStarted) -> None:
        self._leave_open(body.call, INTERRUPTED)

    def _ended(self, body: ev.ToolReturned | ev.ToolFailed | ev.ApprovalGiven) -> None:
        content = outcome_content(body)
        if content is not None:
            self._close(body.call, content)

    def _resolved(self, body: ev.ToolResolved) -> None:
        content = outcome_content(body)
        if content is None:
            content = failure_content("the call was interrupted and did not happen.", "none")
            if body.call not in self.told:
                self._leave_open(body.call, NOT_MADE)
                return
        if body.call in self.told:
            interrupted = self.slots[body.call].id
            note = f"[The outcome of the interrupted tool call {interrupted} is now known] {codec.decode(content)}"
            data = codec.encode({"role": "user", "content": note}, what="a note")
            self.entries.append(Item(data))
        else:
            self._close(body.call, content)

    def _leave_open(self, call: str, content: bytes) -> None:
        """What is to be said if nothing more becomes known of a call."""
        slot = self.slots.get(call)
        if slot is not None and not slot.closed:
            slot.content = content

    def _close(self, call: str, content: bytes) -> None:
        slot = self.slots.get(call)
        if slot is not None and not slot.closed:
            slot.content, slot.closed = content, True


_HANDLERS: dict[type, Callable[[Conversation, Any], None]] = {
    ev.RunStarted: Conversation._run_started,
    ev.ModelResponded: Conversation._model_responded,
    ev.ToolStarted: Conversation._started,
    ev.ToolResolved: Conversation._resolved,
    ev.ToolReturned: Conversation._ended,
    ev.ToolFailed: Conversation._ended,
    ev.ApprovalGiven: Conversation._ended,
}


def call_path(run: str, path: str, position: int) -> str:
    """Call id of the *position*-th call of the reply at *path*: the loop gathers them as its next command."""
    return f"{run}/{int(path) + 1}.{position}.1" if path.isdigit() else f"{run}/{path}.{position}"


def denied_text(by: str, note: str) -> str:
    """What a denied call is answered with."""
    return f"The call was denied{' by ' + by if by else ''}{': ' + note if note else ''}."


def _system(first: NewItem) -> Messages:
    messages = Messages()
    if first.message and codec.decode(first.message).get("role") in ("system", "developer"):
        messages.add_item(Item(bytes(first.message)))
    return messages


def _note(parts: Parts) -> Item | None:
    """The literal message of a user that a request ends with, if it does."""
    last = parts[-1] if parts else None
    if not isinstance(last, NewItem) or not last.message:
        return None
    return Item(bytes(last.message)) if codec.decode(last.message).get("role") == "user" else None


def fold_prior(bodies: Iterable[ev.EventBody]) -> Prior:
    """What a run inherits from the thread's log before it."""
    told, messages = Conversation(), Messages()
    for body in bodies:
        told.apply(body)
    for item in told.items():
        messages.add_item(item)
    return Prior(messages, told.preamble, told.params_digest)


def conversation(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The messages of a thread after *events*, any prefix of its log, valid for providers; for viewing."""
    return list(fold_prior(ev.known_bodies(events)).messages)
