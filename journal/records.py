"""Classes with named fields: which fields they declare, and how an object is built from their values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from typing import Any

from msgspec import Struct

from .error_info import clean_text, type_name
from .values import Path, is_pydantic, path_text


class Mismatch(Exception):
    """A value does not fit the type; the message names the path."""

    @classmethod
    def at(cls, path: Path, expected: str, found: Any) -> Mismatch:
        """What was expected at *path*, and the type that was found."""
        return cls(f"{path_text(path)}: expected {expected}, found {type_name(type(found))}")


def field_types(kind: Any, args: tuple[Any, ...]) -> dict[str, Any] | None:
    """
    Names and types of the fields of *kind* as they are recorded; None if it has none.

    A pydantic model restores its own parts: its fields are `Any` here.
    """
    if is_pydantic(kind):
        root = getattr(kind, "__pydantic_root_model__", False)
        return None if root else dict.fromkeys(kind.model_fields, Any)
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if not (
        named_tuple or issubclass(kind, Struct) or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)
    ):
        return None
    hints = _recorded_hints(kind)
    parameters = getattr(kind, "__parameters__", ())
    if args and len(args) == len(parameters):
        known = dict(zip(parameters, args, strict=True))
        return {name: _filled(hint, known) for name, hint in hints.items()}
    return hints


@functools.lru_cache(maxsize=2048)
def _recorded_hints(kind: Any) -> dict[str, Any]:
    hints = _hints(kind)
    if issubclass(kind, Struct):
        config = kind.__struct_config__
        tag = {} if config.tag is None else {config.tag_field: typing.Literal[config.tag]}
        return tag | {name: hints.get(name, Any) for name in kind.__struct_fields__}
    if issubclass(kind, tuple):
        return {name: hints.get(name, Any) for name in kind._fields}
    if dataclasses.is_dataclass(kind):
        return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(kind)}
    return hints


@functools.lru_cache(maxsize=2048)
def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception as error:  # noqa: BLE001  annotations are evaluated and may raise anything
        raise Mismatch(
            f"the annotations of {type_name(kind)} cannot be resolved ({error}); "
            "define what they name at the top of its module"
        ) from None


def _filled(hint: Any, known: dict[Any, Any]) -> Any:
    if hint in known:
        return known[hint]
    open_ = getattr(hint, "__parameters__", ())
    if not open_ or isinstance(hint, type):
        return hint
    return hint[tuple(known.get(parameter, Any) for parameter in open_)]


def build_record(hint: Any, kind: type, parts: dict[str, Any], path: Path) -> Any:
    """
    An object of *kind* whose fields are *parts*; defaults fill in what is missing.

    Raises:
        Mismatch: A field is missing or unknown, or the class refused the values.
    """
    try:
        if is_pydantic(kind):
            return validated(kind, parts)
        if typing.is_typeddict(kind):
            return _build_typed_dict(kind, parts, path)
        if issubclass(kind, Struct):
            tag_field = kind.__struct_config__.tag_field
            parts = {name: item for name, item in parts.items() if name != tag_field}
            _check_names(kind, parts, kind.__struct_fields__, path)
            return kind(**parts)
        if dataclasses.is_dataclass(kind):
            return _build_dataclass(kind, parts, path)
        return kind(**parts)
    except Mismatch:
        raise
    except Exception as error:  # noqa: BLE001  constructors are the user's and raise what they like
        why = one_line(error)
        raise Mismatch(f"{path_text(path)}: {type_name(kind)} refused its fields: {why}") from None


def _build_dataclass(kind: Any, parts: dict[str, Any], path: Path) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    _check_names(kind, parts, fields.keys(), path)
    if _has_plain_init(kind):
        made = kind(**{name: item for name, item in parts.items() if fields[name].init})
    else:
        made = object.__new__(kind)
        _fill_defaults(made, fields, parts, path)
    for name, item in parts.items():
        # what was recorded wins over what __post_init__ makes of it, in frozen classes too
        object.__setattr__(made, name, item)
    return made


@functools.lru_cache(maxsize=2048)
def _has_plain_init(kind: Any) -> bool:
    """Whether the constructor takes the fields and nothing else."""
    return inspect.signature(kind).parameters.keys() == {f.name for f in dataclasses.fields(kind) if f.init}


def _fill_defaults(made: Any, fields: dict[str, Any], parts: dict[str, Any], path: Path) -> None:
    for name, field in fields.items():
        if name in parts:
            continue
        if field.default_factory is not dataclasses.MISSING:
            object.__setattr__(made, name, field.default_factory())
        elif field.default is dataclasses.MISSING and field.init:
            raise Mismatch(f"{path_text(path)}: {type_name(type(made))} misses its field {name!r}")


def _build_typed_dict(kind: Any, parts: dict[str, Any], path: Path) -> Any:
    _check_names(kind, parts, _hints(kind).keys(), path)
    missing = sorted(kind.__required_keys__ - parts.keys())
    if missing:
        raise Mismatch(f"{path_text(path)}: {type_name(kind)} misses its key {missing[0]!r}")
    return parts


def _check_names(kind: type, parts: dict[str, Any], known: Any, path: Path) -> None:
    for name in parts:
        if name not in known:
            raise Mismatch(f"{path_text(path)}: {type_name(kind)} has no field {name!r}")


def validated(kind: Any, value: Any) -> Any:
    """A pydantic model from its value, by field names (2.11 and newer; older versions know only aliases)."""
    try:
        return kind.model_validate(value, by_name=True, by_alias=False)
    except TypeError:
        return kind.model_validate(value)


def one_line(error: Exception) -> str:
    """What a constructor's or validator's error says, on one short line."""
    return clean_text(" ".join(str(error).split()), limit=300)
