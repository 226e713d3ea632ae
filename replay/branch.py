"""Lines of control inside a program: the program itself, and the branches of its gathers."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from .requests import Base


class Branch:
    """One line of control: the program itself, or a branch of a gather. `base` is what it last asked a model."""

    __slots__ = ("base", "coroutine", "counter", "group", "index", "path", "stream")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        path: str,
        group: Group | None,
        index: int,
        base: Base | None,
    ) -> None:
        self.coroutine = coroutine
        self.path = path
        self.group = group
        self.index = index
        self.base = base
        self.counter = 0
        self.stream: random.Random | None = None

    def next_path(self) -> str:
        """The path of the next thing this branch asks for."""
        self.counter += 1
        return f"{self.path}.{self.counter}" if self.path else str(self.counter)


class Group:
    """A gather that waits for its branches."""

    __slots__ = ("errors", "left", "parent", "results")

    def __init__(self, parent: Branch, size: int) -> None:
        self.parent = parent
        self.left = size
        self.results: list[Any] = [None] * size
        self.errors: dict[int, BaseException] = {}
        """By the index of the branch."""
