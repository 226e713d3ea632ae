"""What differs between two plain values or two requests, told so that a person can act on it. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

SHORT = 80
DIFF_LINES_MAX = 40
DIFFERENCES_MAX = 12

_MISSING = object()


class Difference(Struct, frozen=True):
    """
    One place where two things differ.

    Args:
        where: Which parameter, message, tool or argument.
        what: What happened to it, on one line.
        diff: A unified diff, for long text; empty otherwise.
    """

    where: str
    what: str
    diff: list[str] = []

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.where}: {self.what}"
        for line in self.diff:
            yield f"    {line}"

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        return {"where": self.where, "what": self.what, "diff": self.diff}


def of_values(where: str, recorded: Any, asked: Any) -> list[Difference]:
    """Where two plain JSON values differ, by the path to each place; the first few of them."""
    return _limited(list(_of_values(where, recorded, asked)))


def of_requests(
    recorded: tuple[Mapping[str, Any], Sequence[Any]], asked: tuple[Mapping[str, Any], Sequence[Any]]
) -> list[Difference]:
    """Where two requests (parameters, messages) differ: parameters first, then tools, then messages."""
    found: list[Difference] = []
    for name in sorted(recorded[0].keys() | asked[0].keys()):
        old, new = recorded[0].get(name, _MISSING), asked[0].get(name, _MISSING)
        if old == new:
            continue
        if name == "tools" and all(each is _MISSING or isinstance(each, list) for each in (old, new)):
            found += _of_tools(recorded[0].get(name, []), asked[0].get(name, []))
        else:
            found += _of_values(f"parameter {name!r}", old, new)
    return _limited(found + list(_of_messages(recorded[1], asked[1])))


def _of_values(where: str, old: Any, new: Any) -> Iterator[Difference]:
    if old is new or (type(old) is type(new) and old == new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _of_values(f"{where}.{name}", old.get(name, _MISSING), new.get(name, _MISSING))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _of_values(f"{where}[{place}]", left, right)
    elif old is _MISSING:
        yield Difference(where, f"added, {_short(new)}")
    elif new is _MISSING:
        yield Difference(where, f"removed, was {_short(old)}")
    elif isinstance(old, type(new)) and _is_long(_text(old) + _text(new)):
        yield Difference(where, "changed", _unified(_text(old), _text(new)))
    else:
        yield Difference(where, f"{_short(old)} became {_short(new)}")


def _of_tools(old: Sequence[Any], new: Sequence[Any]) -> Iterator[Difference]:
    before, after = _by_name(old), _by_name(new)
    for name, schema in before.items():
        if name not in after:
            yield Difference(f"tool {name!r}", "is no longer offered")
        elif schema != after[name]:
            yield Difference(
                f"tool {name!r}",
                _of_schema(schema, after[name]),
                _unified(_pretty(schema), _pretty(after[name])),
            )
    for name in after:
        if name not in before:
            yield Difference(f"tool {name!r}", "is new")
    kept, there = [n for n in before if n in after], [n for n in after if n in before]
    if kept != there:
        yield Difference("parameter 'tools'", f"another order: {', '.join(kept)} became {', '.join(there)}")


def _of_schema(old: Any, new: Any) -> str:
    """The commonest changes of a schema in words."""
    before, after = _parameters(old), _parameters(new)
    words = [f"parameter {name!r} is new" for name in after[0] if name not in before[0]]
    words += [f"parameter {name!r} is gone" for name in before[0] if name not in after[0]]
    words += [f"{name!r} is required now" for name in after[1] if name not in before[1]]
    words += [f"{name!r} is no longer required" for name in before[1] if name not in after[1]]
    return f"its schema changed ({', '.join(words)})" if words else "its schema changed"


def _parameters(schema: Any) -> tuple[list[str], list[str]]:
    function = schema.get("function") if isinstance(schema, dict) else None
    parameters = function.get("parameters") if isinstance(function, dict) else None
    if not isinstance(parameters, dict):
        return [], []
    return list(parameters.get("properties") or ()), list(parameters.get("required") or ())


def _by_name(tools: Sequence[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for place, schema in enumerate(tools):
        plain = schema if isinstance(schema, dict) else {}
        function = plain.get("function")
        # A tool that the provider runs has a name beside its type, or none.
        name = (function if isinstance(function, dict) else plain).get("name") or plain.get("type")
        named[name if isinstance(name, str) else f"#{place}"] = schema
    return named


def _of_messages(old: Sequence[Any], new: Sequence[Any]) -> Iterator[Difference]:
    left, right = [_pretty(message) for message in old], [_pretty(message) for message in new]
    # Equal beginnings are cut off first: conversations are long and differ late or at one place.
    start = next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    matcher = difflib.SequenceMatcher(None, left[start:], right[start:], autojunk=False)
    for tag, low, high, other_low, other_high in matcher.get_opcodes():
        if tag == "equal":
            continue
        pairs = min(high - low, other_high - other_low)
        for offset in range(pairs):
            at, there = start + low + offset, start + other_low + offset
            yield from _of_message(at, old[at], there, new[there])
        for at in range(start + low + pairs, start + high):
            yield Difference(_place(at, old[at]), f"is no longer sent: {_short(_said(old[at]))}")
        for there in range(start + other_low + pairs, start + other_high):
            yield Difference(_place(there, new[there]), f"is new: {_short(_said(new[there]))}")


def _of_message(at: int, old: Any, there: int, new: Any) -> Iterator[Difference]:
    where = _place(at, old) if at == there else f"{_place(at, old)}, now {_place(there, new)}"
    if isinstance(old, dict) and isinstance(new, dict) and old.get("role") == new.get("role"):
        yield from _of_values(where, old, new)
    else:
        yield Difference(where, f"{_short(old)} became {_short(new)}")


def _place(at: int, message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    return f"message {at + 1} ({role})" if isinstance(role, str) else f"message {at + 1}"


def _said(message: Any) -> Any:
    return (message.get("content") or message) if isinstance(message, dict) else message


def _limited(found: list[Difference]) -> list[Difference]:
    if len(found) <= DIFFERENCES_MAX:
        return found
    return [*found[:DIFFERENCES_MAX], Difference("and", f"{len(found) - DIFFERENCES_MAX} more places differ")]


def _unified(old: str, new: str) -> list[str]:
    lines = list(
        difflib.unified_diff(old.splitlines(), new.splitlines(), "recorded", "asked", lineterm="", n=2)
    )
    if len(lines) > DIFF_LINES_MAX:
        lines = [*lines[:DIFF_LINES_MAX], f"... {len(lines) - DIFF_LINES_MAX} more lines"]
    return lines


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, default=repr)


def _is_long(text: str) -> bool:
    return len(text) > 2 * SHORT or "\n" in text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _pretty(value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."
