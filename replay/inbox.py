"""Messages from outside to a run: what they say, and the keys by which each is taken at most once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from ..journal.codec import canonical
from ..journal.errors import Corrupt
from ..journal.store import Message
from .errors import Effect
from .events import NULL, Failure, ToolResolved

SIGNAL, APPROVAL, RESOLUTION, CANCEL, INPUT = "signal", "approval", "resolution", "cancel", "input"

_LATE = "/late"


class Signal(Struct, frozen=True, omit_defaults=True):
    """A value for a `run.wait_for(name)`."""

    name: str
    value: Raw = NULL
    by: str = ""


class Approval(Struct, frozen=True, omit_defaults=True):
    """A person's answer about one call."""

    call: str
    approved: bool
    by: str = ""
    note: str = ""


class Resolution(Struct, frozen=True, omit_defaults=True):
    """What became of exactly one attempt of a call in doubt."""

    call: str
    attempt: int
    outcome: Literal["returned", "failed", "did_not_happen"]
    result: Raw = NULL
    error: Failure | None = None
    effect: Effect = "none"
    by: str = ""
    forced: bool = False
    """Taken also while a worker that may still be alive may be at the call."""


class Cancel(Struct, frozen=True, omit_defaults=True):
    """A wish to end exactly this run: one that comes when it has ended must not end the next one."""

    run: str
    reason: str = ""
    by: str = ""


class Input(Struct, frozen=True, omit_defaults=True):
    """An input that becomes the thread's next run."""

    input: Raw
    key: str | None = None
    by: str = ""


Content = Signal | Approval | Resolution | Cancel | Input

_TYPES: dict[str, type[Content]] = {
    SIGNAL: Signal,
    APPROVAL: Approval,
    RESOLUTION: Resolution,
    CANCEL: Cancel,
    INPUT: Input,
}
_DECODERS = {kind: msgspec.json.Decoder(cls) for kind, cls in _TYPES.items()}
_KINDS = {cls: kind for kind, cls in _TYPES.items()}


def encode_message(content: Content) -> tuple[str, bytes]:
    """Kind and body to send."""
    return _KINDS[type(content)], canonical(content)


def decode_message(message: Message) -> Content | None:
    """
    What a message says; None for a kind this refold does not know, which is left where it is.

    Raises:
        Corrupt: Its body is not what its kind promises.
    """
    decoder = _DECODERS.get(message.kind)
    if decoder is None:
        return None
    try:
        content: Content = decoder.decode(message.body)
    except msgspec.DecodeError as error:
        raise Corrupt(message.thread, 0, f"inbox message {message.id} ({message.kind}): {error}") from None
    return content


def resolution_event(content: Resolution, at: int) -> ToolResolved:
    """The event that takes a resolution into the log."""
    return ToolResolved(
        at=at,
        call=content.call,
        attempt=content.attempt,
        outcome=content.outcome,
        result=content.result,
        error=content.error,
        effect=content.effect,
        by=content.by,
    )


def approval_key(call: str) -> str:
    """An approval's key is its call id: of several answers the first stays."""
    return f"{APPROVAL}/{call}"


def resolution_key(call: str, attempt: int, *, forced: bool = False, late: bool = False) -> str:
    """
    A resolution's key names the attempt: of several the first stays.

    So it is of several forced ones, and of those of a worker too late for the log: what somebody has said too soon
    keeps neither out.
    """
    return f"{RESOLUTION}/{call}/{attempt}{'/forced' if forced else _LATE if late else ''}"


def by_weight(messages: Iterable[Message]) -> list[Message]:
    """In the order of arrival, but what a call's own worker says of it before what anybody else has said."""
    return sorted(messages, key=lambda each: not (each.kind == RESOLUTION and each.key.endswith(_LATE)))
