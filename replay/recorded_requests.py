"""Rebuilds what a model was asked from the log, where a request is stored against the one before it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw, Struct

from ..journal import codec
from . import events as ev
from .requests import PRIOR, Item, Messages, NewItem, Params, Prior, RequestDelta
from .response import Response

Tell = Callable[[ev.EventBody, str], bytes]
"""
How a program tells events to its model: canonical bytes of the message that tells a run's input or the outcome
of a call, from the event and the id that the provider knows the call by.
"""

_OUTCOMES = (ev.ToolReturned, ev.ToolFailed, ev.ToolResolved, ev.ApprovalGiven)


class Unrebuildable(Exception):
    """The log refers to something that it does not hold, or that this program cannot tell; says what."""


class RecordedRequest(Struct, frozen=True):
    """
    A request as it was asked when it was recorded.

    Args:
        messages: Canonical bytes of each message.
        params: Canonical bytes of the parameters.
        exact: Whether it has the recorded fingerprint; if not, a message is told differently today.
    """

    messages: list[bytes]
    params: bytes
    exact: bool

    def plain(self) -> tuple[dict[str, Any], list[Any]]:
        """Parameters and messages, decoded."""
        return codec.decode(self.params), [codec.decode(raw) for raw in self.messages]


class Rebuilder:
    """
    Rebuilds requests of one run.

    Args:
        bodies: The thread's events from seq 1 on.
        first_seq: Seq of the run's start.
        prior: What the run inherited from the events before.
        tell: How its program tells inputs and outcomes; None for programs that send plain messages only.
    """

    def __init__(
        self, bodies: Sequence[ev.EventBody], first_seq: int, prior: Prior, tell: Tell | None
    ) -> None:
        self._bodies = bodies
        self._first = first_seq
        self._prior = prior
        self._tell = tell
        self._asked: dict[str, list[int]] = {}
        self._responses: dict[str, ev.ModelResponded] = {}
        self._outcomes: dict[str, list[tuple[int, ev.EventBody]]] = {}
        self._inputs: dict[str, ev.RunStarted] = {}
        for seq, body in enumerate(bodies, 1):
            if isinstance(body, ev.ModelResponded | ev.ModelFailed):
                self._asked.setdefault(body.call, []).append(seq)
            if isinstance(body, ev.ModelResponded):
                self._responses[body.call] = body
            elif isinstance(body, _OUTCOMES):
                self._outcomes.setdefault(body.call, []).append((seq, body))
            elif isinstance(body, ev.RunStarted):
                self._inputs[body.run] = body

    def at(self, seq: int) -> RecordedRequest:
        """
        The request of the model event at *seq*.

        Raises:
            Unrebuildable: Something it refers to is not there.
        """
        body = self._bodies[seq - 1]
        if not isinstance(body, ev.Asked):
            raise Unrebuildable(f"seq {seq} is no model event but {ev.kind_of(body)!r}")
        steps: list[tuple[int, RequestDelta]] = [(seq, body.request)]
        while steps[-1][1].base not in (None, PRIOR):
            steps.append(self._before(*steps[-1]))
        items, params = self._root(steps[-1][1])
        for at, delta in reversed(steps):
            items = self._apply(at, delta, items)
            params = bytes(delta.params) or params
        if not params:
            raise Unrebuildable(f"the request at seq {seq} has no parameters")
        return RecordedRequest(items, params, _fingerprint(items, params) == body.fingerprint)

    def _before(self, seq: int, delta: RequestDelta) -> tuple[int, RequestDelta]:
        base = delta.base
        earlier = [at for at in self._asked.get(base or "", ()) if at < seq]
        if not earlier:
            raise Unrebuildable(f"the request at seq {seq} builds on {base!r}, which was not asked before")
        body = self._bodies[earlier[-1] - 1]
        assert isinstance(body, ev.ModelResponded | ev.ModelFailed)
        return earlier[-1], body.request

    def _root(self, delta: RequestDelta) -> tuple[list[bytes], bytes]:
        if delta.base is None:
            return [], b""
        items = [item.raw for item in (self._prior.preamble + self._prior.messages).items()]
        digest = self._prior.params_digest
        for body in reversed(self._bodies[: self._first - 1]):
            if isinstance(body, ev.ModelResponded) and body.request.params:
                params = bytes(body.request.params)
                return items, params if hashlib.sha256(params).digest() == digest else b""
        return items, b""

    def _apply(self, seq: int, delta: RequestDelta, base: list[bytes]) -> list[bytes]:
        items: list[bytes] = []
        for part in delta.parts:
            if isinstance(part, NewItem):
                items.append(self._item(seq, part))
                continue
            low, high = part
            if not 0 <= low <= high <= len(base):
                raise Unrebuildable(f"the request at seq {seq} takes items {low} to {high} of {len(base)}")
            items += base[low:high]
        return items

    def _item(self, seq: int, item: NewItem) -> bytes:
        if item.message:
            return bytes(item.message)
        if item.reply is not None:
            reply = self._responses.get(item.reply)
            if reply is None:
                raise Unrebuildable(f"seq {seq} refers to the reply of {item.reply!r}, which is not there")
            return Response(reply.call, reply.response, reply.usage).raw
        source: ev.EventBody | None
        if item.input is not None:
            source = self._inputs.get(item.input)
        else:
            told = [body for at, body in self._outcomes.get(item.result or "", ()) if at < seq]
            # An approval that was given, a failed attempt and "it did not happen" come before the outcome told.
            source = next((body for body in reversed(told) if _is_final(body)), None)
        if source is None:
            raise Unrebuildable(
                f"seq {seq} refers to {item.result or item.input!r}, whose event is not there"
            )
        if self._tell is None:
            raise Unrebuildable(f"this program does not say how it tells {ev.kind_of(source)!r} to a model")
        return self._tell(source, item.id or "")


def _is_final(body: ev.EventBody) -> bool:
    match body:
        case ev.ToolFailed():
            return body.final
        case ev.ApprovalGiven():
            return not body.approved
        case ev.ToolResolved():
            return body.outcome != "did_not_happen"
        case _:
            return True


def _fingerprint(items: list[bytes], params: bytes) -> str:
    messages = Messages()
    for raw in items:
        messages.add_item(Item(raw))
    return messages.request(Params(codec.decode(Raw(params)))).fingerprint
