"""
Reads a stream of litellm: what arrives is assembled here, and only what the provider itself said counts.

litellm says "stop" of a stream that was cut, reckons the tokens of one whose usage it was not told,
and passes over fields that it does not know. So finish reason, usage and fields are taken from the pieces
as they come in, before it deals with them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..replay.errors import ModelError
from ..replay.ports import Delta, Usage
from .assembly import Assembly
from .model_replies import read_usage
from .unicode_text import join_pairs

Show = Callable[[Delta], None]

_TOP = ("id", "model", "created", "system_fingerprint", "service_tier", "citations")


class StreamReading:
    """
    One streamed response.

    Args:
        stream: litellm's stream, not yet read.
        show: Told of each piece worth showing.
    """

    def __init__(self, stream: Any, show: Show) -> None:
        self._stream = stream
        self._show = show
        self._assembly = Assembly()
        self._top: dict[str, Any] = {}
        self._usage: Any = None
        self._finish_reason: str | None = None
        """In litellm's words."""
        self._finished = False
        """Whether the provider said why it ended."""
        self._said_by_lines = False
        self._raw_deltas = False
        self._cost_usd: Any = None
        self._began = False

    async def read(self) -> tuple[dict[str, Any], Any]:
        """
        Read to the end; the response in the form of one that was not streamed, and what it cost in dollars.

        Raises:
            ModelError: It ended without saying why: it was cut (kind "connection"); `used` tells what it cost.
            Exception: Whatever litellm raises.
        """
        await self._watch()
        try:
            async for chunk in self._stream:
                self._take(chunk)
        finally:
            await self._stream.aclose()
        if not self._finished or self._finish_reason is None:
            raise ModelError(
                "the stream ended before the model had finished", kind="connection", error_type="StreamCut"
            )
        choice = {
            "index": 0,
            "finish_reason": self._finish_reason,
            "message": join_pairs(self._assembly.message()),
        }
        cost_usd = self._cost_usd if self._usage is not None else None
        return {**self._top, "choices": [choice], "usage": self._usage}, cost_usd

    def used(self) -> Usage | None:
        """What has been used, as far as the provider has said; None if nothing came in."""
        if not self._began:
            return None
        usage = read_usage(self._usage, self._cost_usd)
        if self._finished:
            return usage
        # Of what it would make the provider has said, at most, how much there was so far.
        return Usage(input_tokens=usage.input_tokens, cached_tokens=usage.cached_tokens)

    async def _watch(self) -> None:
        """Stand between the provider's pieces and litellm."""
        stream = self._stream
        if getattr(stream, "completion_stream", None) is None:
            await stream.fetch_stream()
        inner = stream.completion_stream
        if "gemini" in type(inner).__module__ and hasattr(inner, "streaming_response"):
            # Its reader says "stop" of every piece; only the lines themselves tell.
            self._said_by_lines = True
            inner.streaming_response = self._lines(inner.streaming_response)
        if hasattr(inner, "__aiter__"):
            stream.completion_stream = self._pieces(inner)

    async def _lines(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        async for line in lines:
            self._finished = self._finished or _says_finish(line)
            yield line

    async def _pieces(self, pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for piece in pieces:
                self._note(piece)
                yield piece
        finally:
            # litellm closes what it was given: pass it on, or the connection stays open.
            close = getattr(pieces, "aclose", None) or getattr(pieces, "close", None)
            if close is not None:
                await close()

    def _note(self, piece: Any) -> None:
        self._began = True
        self._raw_deltas = hasattr(piece, "choices")
        if isinstance(piece, dict):
            self._end(piece.get("finish_reason") if piece.get("is_finished") else None)
            self._usage = _plain(piece.get("usage")) or self._usage
            return
        if not self._raw_deltas:
            return
        self._usage = _plain(getattr(piece, "usage", None)) or self._usage
        for name in _TOP:
            value = getattr(piece, name, None)
            if value is not None and name not in self._top:
                self._top[name] = _plain(value)
        choice = piece.choices[0] if piece.choices else None
        if choice is None or choice.index not in (0, None):
            return
        delta = _plain(choice.delta)
        for shown in self._assembly.add(delta if isinstance(delta, dict) else {}):
            self._show(shown)
        if not self._said_by_lines:
            self._end(choice.finish_reason)

    def _end(self, finish_reason: Any) -> None:
        if finish_reason:
            self._finished = True

    def _take(self, chunk: Any) -> None:
        """What litellm makes of the pieces: why it ended in its own words, and for odd providers the text."""
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            self._cost_usd = getattr(usage, "cost", None)
        choice = chunk.choices[0] if chunk.choices else None
        if choice is None:
            return
        if choice.finish_reason:
            self._finish_reason = str(choice.finish_reason)
        if not self._raw_deltas:
            delta = _plain(choice.delta)
            for shown in self._assembly.add(delta if isinstance(delta, dict) else {}):
                self._show(shown)


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump()


def _says_finish(line: str) -> bool:
    """Whether a line of Gemini's stream holds a finish reason."""
    data = line.strip().removeprefix("data:").strip()
    if '"finishReason"' not in data:
        return False
    try:
        found = json.loads(data)
    except ValueError:
        # Its JSON may be spread over several lines.
        return True
    candidates = found.get("candidates") if isinstance(found, dict) else None
    return any(isinstance(each, dict) and each.get("finishReason") for each in candidates or ())
