"""
Give a decoded value its declared type back: dataclasses, structs, models, enums and what holds them.

The type comes from the running code's annotations, never from the log.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, TypeVar
from uuid import UUID

from .error_info import type_name
from .errors import UnsupportedValue
from .leaves import text_types
from .records import Mismatch, build_record, field_types, one_line, validated
from .values import Path, Recorder, decode_plain, encode_plain, is_pydantic, path_text, untag

_ANYTHING = (Any, object, inspect.Parameter.empty)
_WRAPPERS = (
    typing.Annotated,
    typing.Required,
    typing.NotRequired,
    typing.Final,
    typing.ClassVar,
    getattr(typing, "ReadOnly", typing.Final),  # Python 3.13
)
_FROM_TEXT: dict[type, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
    Fraction: Fraction,
}
_LEAVES = frozenset({bool, int, float, complex, str, bytes, datetime, date, time, UUID, Decimal, Fraction})
_BASES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    list,
    tuple,
    set,
    frozenset,
    dict,
    datetime,
    date,
    time,
    UUID,
    Decimal,
)


def restore(value: Any, type_: Any, *, what: str) -> Any:
    """
    *value*, as `decode` gave it, with its declared type.

    Plain values stay what they are; `Any` and a missing annotation (`inspect.Parameter.empty`) change nothing.
    ISO text is taken for a date, time, UUID or number, so that a person can supply a value as JSON.
    Constructors and validators of the type run, live and on replay alike: they must be pure.

    Args:
        value: A decoded value; it may be taken over.
        type_: The resolved annotation.
        what: What the value is, for the message of a mismatch.

    Raises:
        UnsupportedValue: The value does not fit; names *what*, the path, and what was expected and found.
    """
    try:
        return _restore(value, type_, None)
    except Mismatch as mismatch:
        raise UnsupportedValue(f"{what} does not fit its declared type: {mismatch}") from None


def _restore(value: Any, hint: Any, path: Path) -> Any:
    if type(value) is hint and hint in _LEAVES:
        return value
    if any(hint is anything for anything in _ANYTHING):
        return value
    if hint is None or hint is type(None):
        if value is not None:
            raise Mismatch.at(path, "None", value)
        return None
    inner = _unwrapped(hint)
    if inner is not hint:
        return _restore(value, inner, path)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(value, args, path)
    if origin is typing.Literal:
        return _literal(value, args, path)
    kind = origin or hint
    if not isinstance(kind, type):
        if isinstance(hint, str):
            raise Mismatch(f"the annotation {hint!r} is text that was not resolved")
        return value
    return _class(value, kind, args, hint, path)


def _unwrapped(hint: Any) -> Any:
    """What an alias, a NewType, a type variable or an annotation's wrapper stands for."""
    if isinstance(hint, TypeVar):
        return Any if hint.__bound__ is None else hint.__bound__
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    alias = typing.get_origin(hint) or hint
    if type(alias).__name__ == "TypeAliasType":
        inner = alias.__value__
        return inner[typing.get_args(hint)] if typing.get_args(hint) else inner
    if alias in _WRAPPERS:
        return typing.get_args(hint)[0] if typing.get_args(hint) else Any
    return hint


def _class(value: Any, kind: type, args: tuple[Any, ...], hint: Any, path: Path) -> Any:
    if issubclass(kind, Enum):
        return _enum(value, kind, path)
    fields = field_types(kind, args)
    if fields is not None and isinstance(value, dict):
        parts = {key: _restore(item, fields.get(key, Any), (path, (key,))) for key, item in value.items()}
        return build_record(hint, kind, parts, path)
    if fields is None and not _fits(value, kind):
        value = _converted(value, kind, path)
    if not typing.is_typeddict(kind) and _fits(value, kind):
        return _contents(value, args, path) if args else value
    if issubclass(kind, BaseException) and isinstance(value, dict):
        # an error is data here; there is nothing to rebuild it from
        return value
    raise Mismatch.at(path, _name(hint), value)


def _fits(value: Any, kind: type) -> bool:
    if kind is float and type(value) is int:
        # as type checkers see it; the value stays an int
        return True
    try:
        return isinstance(value, kind)
    except TypeError:
        # a protocol that cannot be checked at run time promises nothing we could hold it to
        return True


def _contents(value: Any, args: tuple[Any, ...], path: Path) -> Any:
    """Restore what is inside a container of the right kind."""
    if isinstance(value, dict):
        key_hint, item_hint = args if len(args) == 2 else (args[0], int)
        pairs = {
            _restore(key, key_hint, (path, "{key}")): _restore(item, item_hint, (path, (key,)))
            for key, item in value.items()
        }
        return _same_kind(value, pairs)
    if isinstance(value, tuple) and not (len(args) == 2 and args[1] is Ellipsis):
        if len(args) != len(value):
            raise Mismatch(f"{path_text(path)}: expected a tuple of {len(args)}, found one of {len(value)}")
        return tuple(
            _restore(item, hint, (path, at)) for at, (item, hint) in enumerate(zip(value, args, strict=True))
        )
    if isinstance(value, (AbstractSet, deque, list, tuple)):
        step = "{member}" if isinstance(value, AbstractSet) else None
        items = (_restore(item, args[0], (path, step or at)) for at, item in enumerate(value))
        return _same_kind(value, items)
    return value


def _same_kind(old: Any, items: Iterable[Any]) -> Any:
    return defaultdict(None, items) if type(old) is defaultdict else type(old)(items)


def _converted(value: Any, kind: Any, path: Path) -> Any:
    """Undo what recording did to a value of *kind*, or leave it."""
    try:
        if kind is complex and type(value) in (int, float):
            return complex(value)
        if isinstance(value, str):
            read = _FROM_TEXT.get(kind)
            if read is not None:
                return read(value)
            if issubclass(kind, (PurePath, *text_types())):
                return kind(value)
        if kind is Decimal and type(value) is int:
            return Decimal(value)
        if kind in (bytearray, memoryview) and isinstance(value, bytes):
            return kind(value)
        if kind in (tuple, set, frozenset, deque) and type(value) is list:
            return kind(value)
        if kind is types.MappingProxyType and isinstance(value, dict):
            return types.MappingProxyType(value)
        if kind is defaultdict and isinstance(value, dict):
            return defaultdict(None, value)
        if is_pydantic(kind):
            return validated(kind, value)
        return _rebased(value, kind)
    except Exception as error:  # noqa: BLE001  constructors are the user's and raise what they like
        raise Mismatch(f"{path_text(path)}: {type_name(kind)} refused it: {one_line(error)}") from None


def _rebased(value: Any, kind: Any) -> Any:
    """A value of a built-in type as the subclass *kind* of that type."""
    if type(value) not in _BASES or not issubclass(kind, type(value)):
        return value
    if isinstance(value, (datetime, date, time)):
        return kind.fromisoformat(value.isoformat())
    return kind(str(value)) if isinstance(value, UUID) else kind(value)


def _enum(value: Any, kind: type[Enum], path: Path) -> Enum:
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except (ValueError, TypeError, KeyError):
        pass
    for member in kind:
        # a member's value may itself have been recorded as something plainer
        if _plain_twin(member.value) == value:
            return member
    raise Mismatch.at(path, f"a value of {type_name(kind)}", value)


def _plain_twin(value: Any) -> Any:
    return untag(decode_plain(encode_plain(Recorder("a value").tree(value))))


def _literal(value: Any, args: tuple[Any, ...], path: Path) -> Any:
    for arg in args:
        plain = arg.value if isinstance(arg, Enum) else arg
        if type(plain) is type(value) and plain == value:
            return arg
    raise Mismatch.at(path, "one of " + ", ".join(map(repr, args))[:200], value)


def _union(value: Any, arms: tuple[Any, ...], path: Path) -> Any:
    """The arm that fits best; two that fit equally well and differ are refused, never guessed."""
    if value is None and type(None) in arms:
        return None
    ranked = sorted(
        ((_rank(value, arm), at, arm) for at, arm in enumerate(arms)), key=lambda entry: entry[:2]
    )
    fits: list[tuple[int, Any, Any]] = []
    problems: list[Mismatch] = []
    for rank, _, arm in ranked:
        if fits and rank > fits[0][0]:
            break
        try:
            fits.append((rank, arm, _restore(value, arm, path)))
        except Mismatch as mismatch:
            problems.append(mismatch)
    if not fits:
        if len(problems) == 1 or (problems and len([arm for arm in arms if arm is not type(None)]) == 1):
            raise problems[0]
        raise Mismatch.at(path, " or ".join(map(_name, arms)), value)
    _, arm, best = fits[0]
    for _, other, rival in fits[1:]:
        if type(rival) is not type(best) or rival != best:
            raise Mismatch(
                f"{path_text(path)}: it fits {_name(arm)} and {_name(other)} alike; "
                "give them a field of different Literal types that tells them apart"
            )
    return best


def _rank(value: Any, arm: Any) -> int:
    """How closely *arm* describes *value*: 0 is exactly, 4 is anything."""
    while (inner := _unwrapped(arm)) is not arm:
        arm = inner
    kind = typing.get_origin(arm) or arm
    if kind is typing.Literal:
        return 0
    if any(kind is anything for anything in _ANYTHING) or not isinstance(kind, type):
        return 4
    if isinstance(value, dict):
        fields = field_types(kind, ())
        if fields is not None:
            return 0 if fields.keys() == value.keys() else 2
        return 1 if issubclass(kind, Mapping) else 3
    if type(value) is kind:
        return 0
    return 1 if isinstance(value, kind) else 2


def _name(hint: Any) -> str:
    return type_name(hint) if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
