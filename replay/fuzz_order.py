"""Branches that share their work: which of them took which part of it is a matter of order, and no difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .simulation import Deed


def renaming(quiet: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, str]:
    """
    For each call of a history the one of the uninterrupted run that asked for the same and got the same.

    Args:
        quiet: What was asked and got in the uninterrupted run, by call id.
        told: The same of the history.

    Returns:
        Call ids by call id; empty if the calls are not the same ones, or bear the same names already.
    """
    if quiet == told:
        return {}
    named, other = _by_content(quiet), _by_content(told)
    if {content: len(calls) for content, calls in named.items()} != {
        content: len(calls) for content, calls in other.items()
    }:
        return {}
    return {
        call: name
        for content, calls in other.items()
        for call, name in zip(calls, named[content], strict=True)
    }


def renamed_calls(told: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What was asked and got, under other call ids."""
    return {_under(what, names): content for what, content in told.items()}


def renamed_keys(
    world: Any, quiet: Mapping[str, Deed], acted: Mapping[str, Deed], names: Mapping[str, str]
) -> Any:
    """A world in which each idempotency key is that of the call's new name."""
    keys = {
        deed.key: quiet[names[call]].key
        for call, deed in acted.items()
        if deed.key and names.get(call) in quiet
    }
    return _with_keys(world, keys)


def _by_content(told: Mapping[str, Any]) -> dict[str, list[str]]:
    contents: dict[str, dict[str, Any]] = {}
    for what, content in told.items():
        call, _, verb = what.partition(" ")
        contents.setdefault(call, {})[verb] = content
    found: dict[str, list[str]] = {}
    for call, content in contents.items():
        found.setdefault(json.dumps(content, sort_keys=True), []).append(call)
    return found


def _under(what: str, names: Mapping[str, str]) -> str:
    call, _, verb = what.partition(" ")
    return f"{names[call]} {verb}"


def _with_keys(value: Any, keys: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return keys.get(value, value)
    if isinstance(value, dict):
        return {keys.get(key, key): _with_keys(each, keys) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_keys(each, keys) for each in value]
    return value
