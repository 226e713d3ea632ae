"""`LitellmClient`: any model that litellm knows. The only module that imports litellm, and only when it is used."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ..journal.errors import MissingExtra, UsageError
from ..replay.errors import ModelError
from ..replay.ports import Delta, ModelReply
from .model_failures import read_failure
from .model_replies import malformed, read_response
from .own_loop import OwnLoop
from .secrets import Scrubber
from .stream_reading import StreamReading
from .unicode_text import sendable

TIMEOUT_S_DEFAULT = 600.0

_FIXED: dict[str, Any] = {"num_retries": 0, "max_retries": 0}
"""Retries are the engine's, which records them."""

_MORE_REQUESTS = ("fallbacks", "context_window_fallback_dict")
"""Parameters that let litellm ask other models in the same call, which no record would tell."""


class LitellmClient:
    """
    Calls models through litellm: one HTTP request for each `respond` or `stream`, nothing retried, nothing printed.

    Keys are taken from *defaults* or from the environment, as litellm does, and never enter a reply or an error.

    Args:
        timeout_s: Total time one request may take, seconds.
        defaults: Parameters for every request that does not set them itself (`api_key`, `api_base`, `temperature` ...).

    Raises:
        UsageError: *timeout_s* is not a finite time.
        MissingExtra: litellm is not installed.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S_DEFAULT, **defaults: Any) -> None:
        if not 0 < timeout_s < math.inf:
            raise UsageError(f"timeout_s is a finite number of seconds over 0, not {timeout_s!r}")
        # Looked for, not loaded: a run must not begin that cannot call its model.
        if importlib.util.find_spec("litellm") is None:
            raise MissingExtra("models", "calling a model by name")
        self._timeout_s = timeout_s
        self._defaults = defaults

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        """
        Ask once.

        Args:
            request: `model`, `messages` and parameters as in chat completions.

        Raises:
            ModelError: The call failed; its kind says whether asking again can help.
            MissingExtra: litellm is not installed.
        """
        parameters = {**self._parameters(request), "stream": False}
        parameters.pop("stream_options", None)
        return await _loop.run(_ask(parameters, Scrubber(parameters)))

    async def stream(self, request: Mapping[str, Any], show: Callable[[Delta], None]) -> ModelReply:
        """
        Ask once, and tell of the response while it comes in.

        Args:
            request: As for `respond`.
            show: Told of each piece, on the caller's event loop, before this returns; a piece is provisional.

        Raises:
            ModelError: The call failed, or the stream ended before the model had finished.
            MissingExtra: litellm is not installed.
        """
        parameters = {**self._parameters(request), "stream": True}
        parameters["stream_options"] = {**(parameters.get("stream_options") or {}), "include_usage": True}
        scrub, caller = Scrubber(parameters), asyncio.get_running_loop()

        def tell(delta: Delta) -> None:
            # A caller whose loop is gone is told nothing more.
            with contextlib.suppress(RuntimeError):
                caller.call_soon_threadsafe(show, delta)

        return await _loop.run(_ask(parameters, scrub, tell))

    def _parameters(self, request: Mapping[str, Any]) -> dict[str, Any]:
        parameters = {**self._defaults, **request, **_FIXED}
        for name in _MORE_REQUESTS:
            if parameters.get(name):
                raise ModelError(
                    f"{name!r} would make litellm ask again by itself; name several models with Agent(model=[...])",
                    kind="bad_request",
                )
        # A copy: litellm edits what it is given.
        parameters["messages"] = sendable(list(request.get("messages", ())))
        parameters["timeout"] = _timeout_s(parameters.get("timeout"), self._timeout_s)
        if not parameters.get("tools"):
            parameters.pop("tools", None)
            parameters.pop("tool_choice", None)
        return parameters

    def __repr__(self) -> str:
        return f"LitellmClient({', '.join(sorted(self._defaults))})"


class _Quiet:
    """
    Ignores warnings raised on litellm's own thread: it and what it imports on the way warn of much, and where
    warnings are errors each would end a call. Filters belong to the whole process, so ours looks at the thread.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self._filter = ("ignore", self, Warning, None, 0)

    def match(self, text: str) -> bool:
        """Asked by `warnings` in the place of a pattern on the warning's text."""
        return threading.get_ident() == self.thread

    def apply(self) -> None:
        """Put the filter in front of all others, from the thread that is to be quiet."""
        self.thread = threading.get_ident()
        filters: Any = warnings.filters
        if not filters or filters[0] is not self._filter:
            filters.insert(0, self._filter)


_quiet = _Quiet()


async def _ask(
    parameters: dict[str, Any], scrub: Scrubber, show: Callable[[Delta], None] | None = None
) -> ModelReply:
    _quiet.apply()
    litellm = load_litellm()
    timeout_s: float = parameters["timeout"]
    reading: StreamReading | None = None
    try:
        async with asyncio.timeout(timeout_s):
            response = await litellm.acompletion(**parameters)
            if show is not None and hasattr(response, "completion_stream"):
                reading = StreamReading(response, show)
                dump, cost_usd = await reading.read()
            else:
                dump, cost_usd = _received(response)
    except TimeoutError:
        failed = ModelError(f"no answer within {timeout_s:g} s", kind="timeout", error_type="Timeout")
        raise _paid(failed, reading) from None
    except Exception as error:  # noqa: BLE001 - whatever litellm raises is the outcome of this call
        raise _paid(read_failure(error, scrub), reading) from None
    finally:
        # Exit handlers run last in, first out, and litellm adds its own as it goes: ours must close connections first.
        atexit.unregister(_loop.close)
        atexit.register(_loop.close)
    return read_response(scrub.value(dump), cost_usd)


def _paid(failed: ModelError, reading: StreamReading | None) -> ModelError:
    """The failure with what its stream, if there was one, had used by then."""
    if reading is not None:
        failed.usage = reading.used() or failed.usage
    return failed


def _received(response: Any) -> tuple[dict[str, Any], Any]:
    """A response that was not streamed as plain values, and what it cost in dollars."""
    dump = getattr(response, "model_dump", None)
    if dump is None:
        raise malformed(f"litellm gave {type(response).__name__}")
    return dump(), getattr(response, "_hidden_params", {}).get("response_cost")


def _timeout_s(asked: Any, limit_s: float) -> float:
    if isinstance(asked, int | float) and not isinstance(asked, bool) and 0 < asked < limit_s:
        return float(asked)
    return limit_s


@functools.cache
def load_litellm() -> Any:
    """
    litellm, imported on first use (it takes seconds), with its telemetry, banners and downloads off.

    Raises:
        MissingExtra: It is not installed.
    """
    # Before the import: the price list that comes with the package, not one from the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        raise MissingExtra("models", "calling a model by name") from None
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


async def _close_clients() -> None:
    if load_litellm.cache_info().currsize:
        await load_litellm().close_litellm_async_clients()


_loop = OwnLoop("refold models", _close_clients)
"""litellm leaves connections open when a loop closes; here later loops use them, and its import blocks none."""
