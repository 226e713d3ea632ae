"""Puts a streamed response together, piece by piece. Pure; what cannot be told apart for certain is kept apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..replay.ports import Delta
from .arguments import BadArguments, parse_arguments
from .unicode_text import sendable

_MESSAGE = frozenset(
    {
        "annotations",
        "audio",
        "content",
        "function_call",
        "images",
        "provider_specific_fields",
        "reasoning_content",
        "reasoning_items",
        "refusal",
        "role",
        "thinking_blocks",
        "tool_calls",
    }
)
"""What a message may hold as its own; the rest is the provider's, as in a response that is not streamed."""


class Assembly:
    """
    A message in the making.

    A fragment of a tool call belongs to the call last begun at its index, unless it says otherwise: another id,
    or a name for a call whose arguments are whole. Two calls are never glued into one.
    """

    def __init__(self) -> None:
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: list[dict[str, Any]] = []
        self._at: dict[Any, int] = {}
        """Position of the call last begun at an index."""

    def add(self, delta: Mapping[str, Any]) -> list[Delta]:
        """Add a piece as the provider sent it; what of it is worth showing at once."""
        shown: list[Delta] = []
        for name, value in delta.items():
            if value is None or name in ("role", "function_call"):
                continue
            if name == "tool_calls":
                shown += [self._call(fragment) for fragment in value if isinstance(fragment, Mapping)]
            elif name in _MESSAGE:
                self._message[name] = _joined(name, self._message.get(name), value)
            else:
                own = self._message.setdefault("provider_specific_fields", {})
                own[name] = _joined(name, own.get(name), value)
        content, thought = delta.get("content"), delta.get("reasoning_content")
        if isinstance(thought, str) and thought:
            shown.append(Delta(thought=sendable(thought)))
        for part in _parts(content) if isinstance(content, str | list) else ():
            if _is_text(part):
                shown.append(Delta(text=sendable(part["text"])))
        return shown

    def message(self) -> dict[str, Any]:
        """The message as far as it has come, in the form of one that was not streamed."""
        message = dict(self._message)
        blocks = message.get("thinking_blocks")
        if isinstance(blocks, list):
            message["thinking_blocks"] = _without_index(blocks)
        own = message.get("provider_specific_fields")
        if isinstance(own, dict) and isinstance(own.get("thinking_blocks"), list):
            message["provider_specific_fields"] = {
                **own,
                "thinking_blocks": _without_index(own["thinking_blocks"]),
            }
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    def _call(self, fragment: Mapping[str, Any]) -> Delta:
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, arguments = function.get("name") or "", function.get("arguments")
        position = self._place(fragment, name)
        call = self._calls[position]
        for key, value in fragment.items():
            if key not in ("index", "function", "id") and value is not None:
                call[key] = value if key == "type" else _joined(key, call.get(key), value)
        if fragment.get("id"):
            call["id"] = fragment["id"]
        own = call["function"]
        own["name"] = own["name"] or name
        if isinstance(arguments, Mapping):
            own["arguments"] = dict(arguments)
        elif arguments:
            earlier = own["arguments"]
            own["arguments"] = f"{earlier if isinstance(earlier, str) else ''}{arguments}"
        return Delta(position=position, name=name, arguments=arguments if isinstance(arguments, str) else "")

    def _place(self, fragment: Mapping[str, Any], name: str) -> int:
        index, identity = fragment.get("index"), fragment.get("id")
        if index is None and not identity and self._calls and not name:
            return len(self._calls) - 1
        found = self._at.get(index if index is not None else ("id", identity))
        if found is not None and not self._begins(self._calls[found], identity, name):
            return found
        self._calls.append({"id": identity, "type": "function", "function": {"name": "", "arguments": ""}})
        self._at[index if index is not None else ("id", identity)] = len(self._calls) - 1
        return len(self._calls) - 1

    @staticmethod
    def _begins(call: Mapping[str, Any], identity: Any, name: str) -> bool:
        """Whether a fragment at the index of *call* is the first of another one."""
        if identity and call["id"] and identity != call["id"]:
            return True
        arguments = call["function"]["arguments"]
        whole = bool(arguments) and not isinstance(parse_arguments(arguments), BadArguments)
        return bool(name) and whole and identity != (call["id"] or object())


def _joined(name: str, earlier: Any, value: Any) -> Any:
    """Two pieces of one field: text and lists grow, objects are laid over each other, the last of the rest holds."""
    if earlier is None:
        return _placed([], value) if name == "thinking_blocks" and isinstance(value, list) else value
    if isinstance(earlier, str) and isinstance(value, str):
        return value if name in ("id", "type") else earlier + value
    if name == "content" and isinstance(earlier, str | list) and isinstance(value, str | list):
        return _parts_joined([*_parts(earlier), *_parts(value)])
    if isinstance(earlier, list) and isinstance(value, list):
        return _placed(earlier, value) if name == "thinking_blocks" else earlier + value
    if isinstance(earlier, dict) and isinstance(value, dict):
        joined = dict(earlier)
        for key, part in value.items():
            joined[key] = _joined(key, joined.get(key), part) if part is not None else joined.get(key)
        return joined
    return value


def _parts(content: str | list[Any]) -> list[Any]:
    """Content in parts; some providers send parts and text in one stream."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _parts_joined(parts: list[Any]) -> list[Any]:
    """*parts* with pieces of one text in one part."""
    joined: list[Any] = []
    for part in parts:
        if joined and _is_text(part) and _is_text(joined[-1]):
            joined[-1] = {**part, "text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return joined


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _placed(blocks: list[Any], pieces: Iterable[Any]) -> list[Any]:
    """Thinking blocks with more pieces of them: each belongs to the block of its index, or else to the last one."""
    blocks = list(blocks)
    for piece in pieces:
        last = blocks[-1] if blocks else None
        same = (
            isinstance(piece, dict)
            and isinstance(last, dict)
            and piece.get("type") == last.get("type")
            and piece.get("index") == last.get("index")
            and ("index" in piece or not last.get("signature"))
        )
        if not same:
            blocks.append(piece)
            continue
        assert isinstance(last, dict)
        grown = {**last, **{key: part for key, part in piece.items() if part is not None}}
        for key in ("thinking", "data"):
            if key in last and key in piece:
                grown[key] = (last[key] or "") + (piece[key] or "")
        blocks[-1] = grown
    return blocks


def _without_index(blocks: list[Any]) -> list[Any]:
    return [
        {key: part for key, part in block.items() if key != "index"} if isinstance(block, dict) else block
        for block in blocks
    ]
