"""Calls what a caller wants to be told by: whatever that does, and however long it takes, harms no run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

HOOK_TIMEOUT_S = 30.0
"""How long a caller of a run waits for its hook."""

_log = logging.getLogger("refold.replay")


async def tell(hook: Callable[[Any], Any], told: Any, *, timeout_s: float = HOOK_TIMEOUT_S) -> None:
    """
    Call *hook*, sync or async, and wait until it is done; what it raises is only logged.

    A sync one runs in a thread of its own, so that it holds up no other run.

    Raises:
        asyncio.CancelledError: The caller was cancelled; never because the hook was.
    """
    task = asyncio.create_task(_quietly(hook, told))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            _log.warning("%r was not done within %g s; it is waited for no longer", hook, timeout_s)
    finally:
        task.cancel()


async def _quietly(hook: Callable[[Any], Any], told: Any) -> None:
    try:
        answer = hook(told) if inspect.iscoroutinefunction(hook) else await _in_thread(hook, told)
        if inspect.isawaitable(answer):
            await answer
    except BaseException:  # noqa: BLE001 - an exit or a cancellation of its own too
        _log.warning("%r failed, which changes nothing for the run", hook, exc_info=True)


async def _in_thread(hook: Callable[[Any], Any], told: Any) -> Any:
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    waiter: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(answer: Any, error: BaseException | None) -> None:
        if not waiter.done():
            waiter.set_result((answer, error))

    def work() -> None:
        answer, error = None, None
        try:
            answer = context.run(hook, told)
        except BaseException as raised:  # noqa: BLE001 - see above
            error = raised
        # A loop that is closed by now waits for nobody.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, answer, error)

    threading.Thread(target=work, name="refold hook", daemon=True).start()
    answer, error = await waiter
    if error is not None:
        raise error
    return answer
