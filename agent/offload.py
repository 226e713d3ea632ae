"""Calls a user's function so that whatever it does comes back as the outcome of that call and of nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from ..replay.attempt import contained
from ..replay.errors import ToolError
from ..replay.outcomes import ToolRaised
from ..replay.under_way import carry_on
from .workers import Workers

_workers = Workers()


class _Outcome(Struct, frozen=True):
    value: Any = None
    error: BaseException | None = None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling *function* makes a coroutine."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


async def call(function: Callable[..., Any], kwargs: Mapping[str, Any], *, name: str) -> Any:
    """
    Call *function*, sync or async, and return its result.

    A sync function runs in a daemon thread that is its alone, with a copy of the context variables: it cannot starve
    others, and one that hangs does not keep the process alive. Cancelling this call cancels an async function;
    a sync one cannot be stopped and runs on, its result lost: who wants it must wait instead of cancelling.

    Args:
        function: What to call.
        kwargs: Its arguments.
        name: Name of the tool, for the thread's name.

    Raises:
        ToolRaised: It raised what is not an `Exception`, or `StopIteration`.
        ToolError: It raised one, or no thread could be started.
        asyncio.CancelledError: This call was cancelled; never because the function raised it.
        Exception: Whatever else it raised.
    """
    current = asyncio.current_task()
    before = current.cancelling() if current is not None else 0
    # In a task of its own, so that a function that cancels "the current task" reaches only itself.
    if contained.get():
        contained.set(False)
        outcome = await _guarded(function, kwargs, name)
    else:
        outcome = await asyncio.create_task(_guarded(function, kwargs, name), name=f"refold tool {name}")
    error = outcome.error
    if error is None:
        return outcome.value
    if isinstance(error, asyncio.CancelledError) and current is not None and current.cancelling() > before:
        raise error
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        raise ToolRaised(error) from error
    raise error


async def _guarded(function: Callable[..., Any], kwargs: Mapping[str, Any], name: str) -> _Outcome:
    try:
        if is_async(function):
            return _Outcome(await function(**kwargs))
        outcome = await _in_thread(function, kwargs, name)
        if inspect.isawaitable(outcome.value):
            return _Outcome(await outcome.value)
        return outcome
    except BaseException as error:  # noqa: BLE001 - an exit or a cancellation raised by the tool is its outcome
        return _Outcome(error=error)


async def _in_thread(function: Callable[..., Any], kwargs: Mapping[str, Any], name: str) -> _Outcome:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[_Outcome] = loop.create_future()
    context = contextvars.copy_context()
    carried = carry_on()

    def deliver(outcome: _Outcome) -> None:
        if not waiter.done():
            waiter.set_result(outcome)

    def work() -> Callable[[], None]:
        try:
            outcome = _Outcome(context.run(function, **kwargs))
        except BaseException as error:  # noqa: BLE001 - see _guarded
            outcome = _Outcome(error=error)
        finally:
            if carried is not None:
                carried.over()
        return lambda: tell(outcome)

    def tell(outcome: _Outcome) -> None:
        # The loop may be closed by now: then nobody waits for this outcome any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, outcome)

    try:
        _workers.start(work, name=f"refold tool {name}")
    except RuntimeError as error:
        if carried is not None:
            carried.over()
        raise ToolError(
            f"no thread could be started for tool {name!r}: {error}", error_type="ToolNotStarted"
        ) from None
    return await waiter
