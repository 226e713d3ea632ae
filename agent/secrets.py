"""Keeps keys out of what is recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

REDACTED = "[redacted]"
SECRET_CHARACTERS_MIN = 6

_SECRET_NAME = re.compile(r"(key|token|secret|password|credential|authorization)s?$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(API_KEY|_TOKEN|SECRET|PASSWORD|ACCESS_KEY)$")
_LOOKS_SECRET = re.compile(r"(Bearer\s+|\b)(sk-[\w*-]{6,}|(?<=Bearer )[\w.~+/*-]{6,}=*)")


class Scrubber:
    """
    Takes known secrets out of text and plain values.

    Known are parameters named like secrets, every header sent, and the environment's keys and tokens.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        found = {*_secrets_of(parameters), *_secrets_of_environment()}
        # The longest first, so that a secret within another leaves no rest.
        self._secrets = sorted((s for s in found if len(s) >= SECRET_CHARACTERS_MIN), key=len, reverse=True)

    def text(self, text: str) -> str:
        """*text* without known secrets, nor anything that looks like a key."""
        return _LOOKS_SECRET.sub(REDACTED, self._known(text))

    def value(self, value: Any) -> Any:
        """A plain value without known secrets in any of its texts."""
        if isinstance(value, str):
            return self._known(value)
        if isinstance(value, dict):
            return {self._known(name): self.value(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.value(part) for part in value]
        return value

    def _known(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text


def _secrets_of(parameters: Mapping[str, Any]) -> Iterator[str]:
    for name, value in parameters.items():
        if isinstance(value, str) and _SECRET_NAME.search(name):
            yield value
        elif isinstance(value, Mapping) and name.endswith("headers"):
            yield from _texts(value.values())


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
            yield value.removeprefix("Bearer ")


def _secrets_of_environment() -> Iterator[str]:
    return (value for name, value in os.environ.items() if value and _SECRET_VARIABLE.search(name))
