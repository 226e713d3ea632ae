"""Values without parts: how each is written as plain JSON, and read back exactly."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from math import isfinite, isnan
from pathlib import PurePath
from typing import Any
from uuid import UUID

INT_PLAIN_MAX = 10**600
"""Integers from here on are written in hex: Python may refuse to read decimals of more than 640 digits."""


class Refused(Exception):
    """This very value has no exact text; the message says why."""


def write_text(value: str) -> Any:
    """JSON text, or a tag if UTF-8 cannot say it (lone surrogates)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"~str": value.encode("unicode_escape").decode("ascii")}
    return value


def _int(value: int) -> Any:
    value = int.__int__(value)
    return value if -INT_PLAIN_MAX < value < INT_PLAIN_MAX else {"~int": hex(value)}


def _float(value: float) -> Any:
    value = float.__float__(value)
    return value if isfinite(value) else {"~float": "nan" if isnan(value) else repr(value)}


def _bytes(value: bytes | bytearray | memoryview) -> Any:
    return {"~bytes": base64.b64encode(memoryview(value).tobytes()).decode("ascii")}


def _check_zone(value: datetime | time) -> None:
    if value.tzinfo is None:
        return
    offset = value.utcoffset()
    if offset is None:
        raise Refused("its zone gives no offset (a time of day needs a date for that); use an aware datetime")
    if timedelta(0) < abs(offset) < timedelta(seconds=1):
        # Python writes such an offset and reads UTC
        raise Refused("its zone is less than a second from UTC; use UTC")


def _datetime(value: datetime) -> Any:
    _check_zone(value)
    text = datetime.isoformat(value)
    if type(value) is not datetime:
        back = datetime.fromisoformat(text).replace(tzinfo=None)
        if not back == value.replace(tzinfo=None, fold=0):
            raise Refused("it holds more than a datetime can (nanoseconds?); make it a datetime or text")
    # fold only matters where no offset was written
    return {"~datetime": [text, 1] if value.fold and value.tzinfo is None else text}


def _time(value: time) -> Any:
    _check_zone(value)
    text = time.isoformat(value)
    return {"~time": [text, 1] if value.fold and value.tzinfo is None else text}


def _date(value: date) -> Any:
    return {"~date": date.isoformat(value)}


def _timedelta(value: timedelta) -> Any:
    return {"~timedelta": [value.days, value.seconds, value.microseconds]}


def _decimal(value: Decimal) -> Any:
    # the context decides the case of the exponent
    return {"~decimal": Decimal.__str__(value).replace("e", "E")}


def _uuid(value: UUID) -> Any:
    return {"~uuid": UUID.__str__(value)}


def _complex(value: complex) -> Any:
    return {"~complex": [_float(value.real), _float(value.imag)]}


def _fraction(value: Fraction) -> Any:
    return {"~fraction": [_int(value.numerator), _int(value.denominator)]}


def _range(value: range) -> Any:
    return {"~range": [_int(value.start), _int(value.stop), _int(value.step)]}


def _text_of(value: Any) -> Any:
    return write_text(str(value))


def _base_text(value: str) -> Any:
    return write_text(str.__str__(value))


_WRITE: dict[type, Callable[[Any], Any]] = {
    int: _int,
    float: _float,
    str: _base_text,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    datetime: _datetime,
    date: _date,
    time: _time,
    timedelta: _timedelta,
    Decimal: _decimal,
    UUID: _uuid,
    complex: _complex,
    Fraction: _fraction,
    range: _range,
    PurePath: _text_of,
}
"""A subclass follows the first rule of a base, so datetime stands before date."""

_AS_TEXT = (
    (
        "ipaddress",
        ("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network", "IPv4Interface", "IPv6Interface"),
    ),
    ("pydantic.networks", ("_BaseUrl", "_BaseMultiHostUrl")),
    ("pydantic_core", ("Url", "MultiHostUrl")),
)


def text_types() -> tuple[type, ...]:
    """Types of modules that happen to be loaded whose values are recorded as their text."""
    found = (getattr(sys.modules.get(module), name, None) for module, names in _AS_TEXT for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


def leaf_rule(kind: type) -> Callable[[Any], Any] | None:
    """How a value of *kind* is written, or None if it is no leaf."""
    rule = _WRITE.get(kind)
    if rule is not None:
        return rule
    for base, rule in _WRITE.items():
        if issubclass(kind, base):
            return rule
    return _text_of if issubclass(kind, text_types()) else None


def _read_folded(kind: type[datetime | time], payload: Any) -> Any:
    if isinstance(payload, list):
        text, fold = payload
        return kind.fromisoformat(text).replace(fold=fold)
    return kind.fromisoformat(payload)


_READ: dict[str, Callable[[Any], Any]] = {
    "~str": lambda payload: payload.encode("ascii").decode("unicode_escape"),
    "~int": lambda payload: int(payload, 16),
    # each a new object: members of a set stay as many as they were
    "~float": float,
    "~bytes": lambda payload: base64.b64decode(payload, validate=True),
    "~datetime": lambda payload: _read_folded(datetime, payload),
    "~date": date.fromisoformat,
    "~time": lambda payload: _read_folded(time, payload),
    "~timedelta": lambda payload: timedelta(*payload),
    "~decimal": Decimal,
    "~uuid": UUID,
    "~complex": lambda payload: complex(*payload),
    "~fraction": lambda payload: Fraction(*payload),
    "~range": lambda payload: range(*payload),
}


def read_leaf(tag: str, payload: Any) -> Any:
    """The value that a tag stands for. Raises `KeyError` for an unknown tag."""
    return _READ[tag](payload)
