"""
The door every value passes through, live and on replay: canonical bytes in, the same value out.

No pickle; nothing read from a log is ever imported or called.
`docs/values.md` has the rule of each type.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from .error_info import ErrorInfo, clean_text, describe_error
from .errors import LimitExceeded, UnsupportedValue
from .leaves import INT_PLAIN_MAX
from .restore import restore
from .values import VALUE_DEPTH_MAX, Recorder, decode_plain, encode_plain, may_have_tags, untag

__all__ = [
    "VALUE_DEPTH_MAX",
    "ErrorInfo",
    "canonical",
    "check_size",
    "clean_text",
    "decode",
    "describe_error",
    "encode",
    "encode_if_plain",
    "may_have_tags",
    "normalise",
    "refuse_size",
    "restore",
]

_INT_PLAIN_MIN = -INT_PLAIN_MAX


def encode(value: Any, *, what: str = "value") -> bytes:
    """
    Canonical JSON bytes of *value*: equal values of equal types give equal bytes, in any process.

    Args:
        value: Anything `docs/values.md` has a rule for.
        what: What the value is, for the refusal's message: "result of tool 'fetch'".

    Raises:
        UnsupportedValue: It cannot be recorded; names *what*, the type and the path to it.
    """
    data = encode_if_plain(value)
    if data is not None:
        return data
    try:
        return encode_plain(Recorder(what).tree(value))
    except (RuntimeError, ValueError) as error:
        raise UnsupportedValue(
            f"{what} cannot be recorded: {error}; give a value that nothing else changes"
        ) from error


def encode_if_plain(value: Any) -> bytes | None:
    """What `encode` gives for a value that is plain JSON as it stands; None for one that needs its rules."""
    try:
        if _is_plain(value, VALUE_DEPTH_MAX):
            data = encode_plain(value)
            if not may_have_tags(data):
                return data
    except (TypeError, UnicodeEncodeError, RuntimeError):
        # keys that are not text, text that is not UTF-8, nesting without end: the rules know
        pass
    return None


def decode(data: bytes | msgspec.Raw) -> Any:
    """
    The value that `encode` wrote.

    Raises:
        UnsupportedValue: The bytes are no recorded value, or one of a newer refold.
    """
    raw = data if type(data) is bytes else bytes(data)
    try:
        tree = decode_plain(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnsupportedValue(f"these bytes are no recorded value: {error}; verify the thread") from None
    return untag(tree) if may_have_tags(raw) else tree


def normalise(value: Any, *, what: str = "value") -> Any:
    """*value* as every reader of the log will see it. Raises as `encode` does."""
    return decode(encode(value, what=what))


def canonical(obj: Any) -> bytes:
    """
    Bytes of one of our own structs, or of plain JSON known to be safe, without a check.

    Keys of dicts are sorted, fields of structs keep their order; a field of type `msgspec.Raw` goes in as it is.
    A float must be finite and a text valid Unicode: use `encode` for what comes from outside.
    """
    return encode_plain(obj)


def check_size(data: bytes, *, what: str, limit: int) -> None:
    """Raise `LimitExceeded` if *data* has more than *limit* bytes."""
    if len(data) > limit:
        refuse_size(len(data), what=what, limit=limit)


def refuse_size(size: int, *, what: str, limit: int) -> NoReturn:
    """Raise the `LimitExceeded` of *what*, which has *size* bytes."""
    raise LimitExceeded(
        f"{what} has {size} bytes, the limit is {limit}; "
        "keep large data outside the journal and record a reference to it"
    )


def _is_plain(value: Any, room: int) -> bool:
    """Whether msgspec writes *value* as it is; keys, surrogates and tags show when it is written."""
    kind = type(value)
    if kind is dict:
        items = value.values()
    elif kind is list:
        items = value
    else:
        return _is_plain([value], room + 1)
    if not room:
        return False
    for item in items:
        kind = type(item)
        if kind is str or item is None or kind is bool:
            continue
        if kind is int:
            if not _INT_PLAIN_MIN < item < INT_PLAIN_MAX:
                return False
        elif kind is float:
            # neither nan nor an infinity
            if item - item != 0.0:
                return False
        elif (kind is not dict and kind is not list) or not _is_plain(item, room - 1):
            return False
    return True
