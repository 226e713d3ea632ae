"""What a program gets for a model call."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..journal import codec
from .ports import ModelReply, Usage


class _Recorded(Struct, frozen=True, omit_defaults=True, gc=False):
    """The stored form of a reply."""

    message: Raw
    finish_reason: str | None = None
    id: str | None = None
    model: str | None = None
    extra: Raw = Raw(b"{}")


_decode = msgspec.json.Decoder(_Recorded).decode


def encode_reply(reply: ModelReply) -> bytes:
    """The stored form of a reply; usage is stored beside it."""
    what = "a model response"
    return codec.canonical(
        _Recorded(
            message=Raw(codec.encode(reply.message, what=what)),
            finish_reason=reply.finish_reason,
            id=reply.id,
            model=reply.model,
            extra=Raw(codec.encode(reply.extra, what=what)),
        )
    )


class Response:
    """
    A recorded model response: the same object live and on replay.

    Attributes:
        call: Call id of the model call.
        raw: Canonical bytes of the assistant message.
        usage: Tokens and cost, as far as they are known.
        finish_reason: Why the model stopped.
        model: The model that answered.
    """

    __slots__ = ("_message", "_recorded", "call", "raw", "usage")

    def __init__(self, call: str, recorded: Raw, usage: Usage) -> None:
        self._recorded = _decode(recorded)
        self._message: dict[str, Any] | None = None
        self.call = call
        self.raw = bytes(self._recorded.message)
        self.usage = usage

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message as a chat-completions dict, with every field the provider sent."""
        if self._message is None:
            self._message = codec.decode(self.raw)
        return self._message

    @property
    def text(self) -> str:
        """The message's text; empty when there is none."""
        content = self.message.get("content")
        if isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, dict))
            return "".join(text for text in texts if isinstance(text, str))
        return content if isinstance(content, str) else ""

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped."""
        return self._recorded.finish_reason

    @property
    def model(self) -> str | None:
        """The model that answered."""
        return self._recorded.model

    @property
    def extra(self) -> dict[str, Any]:
        """Other fields of the response."""
        return codec.decode(self._recorded.extra)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Response({self.call}, {self.text[:60]!r})"
