"""Lines of control inside a program: the program itself, and the branches of its gathers."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from .requests import Base


class Group(Struct, eq=False):
    """
    A gather that waits for its branches.

    Attributes:
        left: How many of them have not ended.
        failed: Index of the lowest branch that has failed, and `error` what it raised.
    """

    parent: Branch
    left: int
    results: list[Any]
    failed: int
    error: BaseException | None = None


class Branch(Struct, eq=False):
    """
    One line of control: the program itself, or a branch of a gather.

    Attributes:
        coroutine: What is stepped; None for a branch that is one bare command.
        base: What it last asked a model.
        asked: How many commands it has asked for.
    """

    coroutine: Coroutine[Any, Any, Any] | None
    path: str
    group: Group | None
    index: int
    base: Base | None
    asked: int = 0
    stream: random.Random | None = None

    def next_path(self) -> str:
        """The path of the next thing this branch asks for."""
        self.asked = asked = self.asked + 1
        return f"{self.path}.{asked}" if self.path else str(asked)
