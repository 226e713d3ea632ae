"""Halves of surrogate pairs in texts: some providers and file systems give them, and UTF-8 cannot say them."""

from __future__ import annotations

from typing import Any

from ..replay.door import is_unicode


def join_pairs(value: Any) -> Any:
    """A copy of a plain value in which every text is one, with halves that belong together joined; others stay."""
    return _mended(value, "surrogatepass")


def sendable(value: Any) -> Any:
    """A copy of a plain value that can be sent: halves that belong together joined, others replaced by U+FFFD."""
    return _mended(value, "replace")


def _mended(value: Any, others: str) -> Any:
    if isinstance(value, str):
        return (
            value if is_unicode(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", others)
        )
    if isinstance(value, dict):
        return {_mended(name, others): _mended(part, others) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(part, others) for part in value]
    return value
