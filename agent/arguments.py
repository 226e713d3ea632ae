"""The arguments of a model's tool call, as providers really send them."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from ..journal import codec
from ..journal.errors import UnsupportedValue


class BadArguments(Struct, frozen=True):
    """Arguments that are no arguments; *message* tells the model what was wrong. The tool is not called."""

    message: str


class _NotJson(ValueError):
    pass


def parse_arguments(raw: Any) -> dict[str, Any] | BadArguments:
    """
    The named arguments of a tool call, or what was wrong with them.

    Nothing, blank text and `null` mean no arguments; an object or the text of exactly one JSON object is taken.
    Anything else is never repaired: a guess could execute something the model did not ask for.

    Args:
        raw: The `arguments` of a tool call: text as a rule, also None or a dict from some providers.
    """
    if type(raw) is str and (flat := _flat(raw)) is not None:
        return flat
    if raw is None:
        return {}
    if isinstance(raw, dict):
        return _checked(raw)
    if isinstance(raw, bytes | bytearray):
        try:
            raw = raw.decode()
        except UnicodeDecodeError:
            return _bad("they are not valid UTF-8")
    if not isinstance(raw, str):
        return _bad(f"they are {_kind(raw)}")
    text = raw.strip()
    if text in ("", "null"):
        return {}
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        return _bad(_syntax(text, error))
    except _NotJson as error:
        return _bad(str(error))
    except RecursionError:
        return _bad("they are nested too deeply")
    except ValueError as error:
        return _bad(f"a number is too long ({error})")
    return _checked(value) if isinstance(value, dict) else _bad(f"they are {_kind(value)}")


def _flat(text: str) -> dict[str, Any] | None:
    """The arguments of the commonest texts, quickly: no nesting, no fractions, no escapes; None for all others."""
    if "\\" in text:
        return None
    try:
        value = _decode_flat(text)
    except ValueError:
        return None
    # A name that occurs twice is the only thing that this decoder lets pass: its quotes are in the text alone.
    quotes = 2 * len(value)
    for item in value.values():
        if type(item) is str:
            quotes += 2
    return value if quotes == text.count('"') else None


def _bad(why: str) -> BadArguments:
    return BadArguments(
        f"The arguments must be the text of one JSON object, but {why}. The tool was not called."
    )


def _checked(value: dict[Any, Any]) -> dict[str, Any] | BadArguments:
    if not all(isinstance(key, str) for key in value):
        return _bad("a name in them is not text")
    try:
        _encode(value).encode()
        codec.encode(value)
    except UnicodeEncodeError:
        return _bad("a text in them holds half of a surrogate pair, which is not valid Unicode")
    except (RecursionError, UnsupportedValue):
        return _bad("they are nested too deeply")
    except (TypeError, ValueError) as error:
        return _bad(f"they hold something that is not JSON ({error})")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _NotJson(f"the name {twice!r} occurs twice in one object")
    return result


def _constant(name: str) -> NoReturn:
    raise _NotJson(f"they hold {name}, which is not JSON")


# Made once: the module's own functions make a new one for each call that is out of the ordinary.
_decode_flat = msgspec.json.Decoder(dict[str, str | int | bool | None]).decode
_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        what = "a second JSON value" if text[error.pos] in '{["' else "other text"
        return f"{what} follows the first one at character {error.pos + 1}"
    cut = error.pos >= len(text) or error.msg.startswith("Unterminated string")
    cause = "they end too early, as if they had been cut off" if cut else "they are not valid JSON"
    return f"{cause} ({error.msg} at character {error.pos + 1})"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
    return f"of type {type(value).__name__}"
