"""What a program is to the engine: a function, a name, and a digest of its definition."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from .events import EventBody
from .requests import Messages, Prior
from .run import Run

P = ParamSpec("P")
T = TypeVar("T")

CONCURRENCY_DEFAULT = 8


def digest_text(text: str) -> str:
    """A short digest of a part of a definition."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Program:
    """
    A deterministic `async def` and what the log knows it by.

    Args:
        function: Takes a Run and the input.
        name: Name in the log; a thread is resumed only by the program of that name.
        definition: A digest for each part of the definition, for telling what changed.
        concurrency: How many tools of one run may be running at once.
        fold_prior: What a run inherits from the events of the thread's earlier runs.
        tell: How it tells inputs and outcomes to its model, for showing what was asked.
    """

    def __init__(
        self,
        function: Callable[[Run, Any], Coroutine[Any, Any, Any]],
        *,
        name: str,
        definition: Mapping[str, str],
        concurrency: int = CONCURRENCY_DEFAULT,
        fold_prior: Callable[[Sequence[EventBody]], Prior] | None = None,
        tell: Callable[[EventBody, str], bytes] | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {concurrency}")
        self.function = function
        self.name = name
        self.definition = dict(sorted(definition.items()))
        self.digest = digest_text("\n".join(f"{k}={v}" for k, v in self.definition.items()))
        self.concurrency = concurrency
        self.tell = tell
        self._fold_prior = fold_prior

    def prior(self, bodies: Sequence[EventBody]) -> Prior:
        """What a run inherits from *bodies*, the thread's log before it."""
        if self._fold_prior is None or not bodies:
            return Prior(Messages(), Messages())
        return self._fold_prior(bodies)

    def __repr__(self) -> str:
        return f"Program({self.name!r}, definition {self.digest})"


def program(function: Callable[Concatenate[Run, P], Coroutine[Any, Any, T]]) -> Program:
    """
    Make an `async def name(run, input)` a program that can be run, resumed and replayed.

    It must be deterministic: it awaits only commands of its run, and takes time and randomness from it.

    Raises:
        TypeError: It is not a coroutine function of two parameters.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"a program is an 'async def', {function!r} is not")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not 1 <= len(positional) <= 2 or len(positional) != len(parameters):
        raise TypeError(
            f"a program takes its run and one input; {function.__qualname__} takes {len(parameters)} parameters"
        )
    takes_input = len(positional) == 2
    inner: Any = function

    def call(run: Run, value: Any) -> Any:
        return inner(run, value) if takes_input else inner(run)

    return Program(call, name=function.__name__, definition={"code": digest_text(_source(function))})


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return function.__code__.co_code.hex() + repr(function.__code__.co_names)
