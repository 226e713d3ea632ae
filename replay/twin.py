"""Copies of plain records."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def twin(record: T) -> T:
    """A second object with the same fields; `copy.copy` takes many times as long for one with slots."""
    made = object.__new__(type(record))
    for name in record.__slots__:  # type: ignore[attr-defined]
        setattr(made, name, getattr(record, name))
    return made
