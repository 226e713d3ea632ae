"""One attempt at a call, as one task of the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ..journal import codec
from ..journal.errors import MissingExtra, StoreError
from ..journal.sources import Sources
from .commands import Call, ModelCall, StepCall, ToolCall
from .errors import ModelError
from .outcomes import ToolRaised
from .ports import ToolContext
from .recording import Completion
from .timers import Timers
from .under_way import UnderWay

contained: contextvars.ContextVar[bool] = contextvars.ContextVar("refold_contained", default=False)
"""Whether the current task was made for what it runs, and whatever that cancels or raises stays in it."""


class NotBegun(Exception):
    """An attempt did not begin, and must not any more."""


class Surroundings(Protocol):
    """What attempts act with, and whom they tell what they came to."""

    sources: Sources

    def watch(self, path: str, deadline_s: float | None) -> None:
        """A call is to be over by *deadline_s*, or is over."""

    def free(self, call: Call) -> bool:
        """Whether this worker may act for *call* right now; if it is not, ask `allowed`."""

    async def allowed(self, call: Call) -> None:
        """Return when this worker may act for *call*; never, if it may not. Raises `NotBegun` if it is too late."""

    def under_way(self, call: Call) -> UnderWay:
        """What tells this process that the call is being made."""

    def timeout_of(self, call: Call) -> float:
        """Seconds an attempt may take."""

    def left_s(self, call: Call) -> float:
        """Seconds an attempt that is begun now may take."""

    def context(self, call: Call, attempt: int, left_s: float, beat: Callable[[], None]) -> ToolContext:
        """What a tool is told of its call."""

    async def ask_model(self, call_id: str, command: ModelCall) -> Any:
        """The model's reply."""

    async def overtime(self, call: Call, attempt: int, task: asyncio.Task[Any], what: str) -> Completion:
        """What a tool that took too long comes to."""

    async def let_go(self, call: Call, attempt: int, task: asyncio.Task[Any]) -> None:
        """Stop a tool whose outcome nobody waits for."""

    def hand_over(self, call: Call, attempt: int, completion: Completion, started_s: float) -> None:
        """The attempt has come to its end."""

    def leaving(self) -> bool:
        """Whether the run is being left."""


class Attempt:
    """
    One attempt at a model call, a step or a tool, within its time; it ends by handing over its completion.

    Whatever its work raises, exits with or cancels is its outcome and nobody else's.

    Args:
        surroundings: What it acts with.
        call: What is attempted.
        number: Of the attempt.
        loop: Where.
        context: Variables that its work sees.
        timers: Tell it when its time is over.
        over: Called when nothing is left to be done, with what broke the attempt itself, if anything did.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        call: Call,
        number: int,
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        timers: Timers,
        over: Callable[[Attempt, BaseException | None], None],
    ) -> None:
        self._surroundings = surroundings
        self._call = call
        self._number = number
        self._over = over
        self._started_s = self._beat_s = surroundings.sources.monotonic_s()
        self._deadline_s = self._started_s + surroundings.left_s(call)
        self._timers = timers
        self._begun = self._expired = self._dropped = False
        self._closer: asyncio.Task[None] | None = None
        surroundings.watch(call.path, self._deadline_s)
        self._loop = loop
        self._task = task_of(loop, self._run(), context)
        self._task.add_done_callback(self._task_over)

    def cancel(self) -> None:
        """Nobody waits for it any more: stop it; a sync tool runs on, and what it comes to is passed on."""
        if self._closer is not None:
            self._closer.cancel()
        elif self._begun and isinstance(self._call.command, ToolCall) and not self._task.done():
            self._close(self._surroundings.let_go(self._call, self._number, self._task))
        else:
            self._dropped = True
            self._task.cancel()

    async def _run(self) -> Any:
        surroundings, call = self._surroundings, self._call
        try:
            completion = Completion(value=await self._work())
        except BaseException as error:  # an exit or a cancellation of its own making too
            if not self._stepped():
                raise GeneratorExit from None
            if self._no_outcome(error):
                raise
            stopped = isinstance(error, asyncio.CancelledError) and not self._expired
            if stopped and (self._closer is not None or await self._from_outside()):
                raise
            completion = self._failure(error)
        finally:
            self._timers.drop(self)
            if self._closer is None:
                surroundings.watch(call.path, None)
        if self._closer is None:
            surroundings.hand_over(call, self._number, completion, self._started_s)
            # Told here and now, not by the loop in its next round.
            self._task.remove_done_callback(self._task_over)
            self._over(self, None)
            return None
        if completion.error is not None:
            raise completion.error
        return completion.value

    async def _work(self) -> Any:
        surroundings, command = self._surroundings, self._call.command
        if not surroundings.free(self._call):
            await surroundings.allowed(self._call)
        self._begun = True
        self._beat_s = surroundings.sources.monotonic_s()
        self._timers.add(self, self._beat_s)
        if isinstance(command, ToolCall):
            left_s = self._deadline_s - self._beat_s
            context = surroundings.context(self._call, self._number, left_s, self._beat)
            contained.set(True)
            with surroundings.under_way(self._call):
                return await command.tool.call(codec.decode(command.args), context)
        if isinstance(command, ModelCall):
            if command.in_doubt is None:
                return await surroundings.ask_model(self._call.id, command)
            with surroundings.under_way(self._call):
                return await surroundings.ask_model(self._call.id, command)
        assert isinstance(command, StepCall)
        return await _run_step(command)

    def _stepped(self) -> bool:
        """Whether the loop runs this task, rather than somebody clearing away what a closed loop left."""
        return asyncio._get_running_loop() is self._loop and asyncio.current_task() is self._task

    def _no_outcome(self, error: BaseException) -> bool:
        """Whether the run stops as it is, to go on when a part is installed or the store is back."""
        if isinstance(error, MissingExtra):
            return not isinstance(self._call.command, ToolCall)
        return isinstance(error, StoreError) and not self._begun

    def _failure(self, error: BaseException) -> Completion:
        if isinstance(error, NotBegun):
            return Completion(begun=False)
        if self._expired and isinstance(error, asyncio.CancelledError | TimeoutError):
            return Completion(error=self._overdue(), timed_out=True)
        if isinstance(error, Exception):
            return Completion(error=error)
        return Completion(error=ToolRaised(error))

    def _overdue(self) -> Exception:
        text = f"no answer within {self._surroundings.timeout_of(self._call):g} s"
        if isinstance(self._call.command, ModelCall):
            return ModelError(text, kind="timeout", error_type="Timeout")
        return TimeoutError(text)

    async def _from_outside(self) -> bool:
        """Whether a cancellation was not the work's own."""
        if not self._dropped:
            # The whole loop may be going down: then the run itself hears of it in this round.
            self._task.uncancel()
            await asyncio.sleep(0)
        return self._dropped or self._surroundings.leaving()

    # Time

    def _beat(self) -> None:
        self._beat_s = self._surroundings.sources.monotonic_s()

    def until_s(self) -> float:
        """When its time is over, or its idle time, if it gives no sign of life until then."""
        command = self._call.command
        idle_s = command.tool.idle_timeout_s if isinstance(command, ToolCall) else None
        return self._deadline_s if idle_s is None else min(self._deadline_s, self._beat_s + idle_s)

    def strike(self) -> None:
        """Its time is over."""
        if self._task.done() or self._closer is not None:
            return
        if isinstance(self._call.command, ToolCall):
            self._close(self._give_up("no heartbeat" if self.until_s() < self._deadline_s else "no answer"))
        else:
            self._expired = True
            self._task.cancel()

    async def _give_up(self, what: str) -> None:
        surroundings = self._surroundings
        completion = await surroundings.overtime(self._call, self._number, self._task, what)
        surroundings.hand_over(self._call, self._number, completion, self._started_s)

    def _close(self, end: Coroutine[Any, Any, None]) -> None:
        """Let *end* see to what becomes of the task."""

        async def close() -> None:
            try:
                await end
            finally:
                self._surroundings.watch(self._call.path, None)

        self._closer = task_of(self._loop, close())
        self._closer.add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[Any]) -> None:
        if task is (self._closer or self._task):
            self._over(self, None if task.cancelled() else task.exception())


def task_of(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """A task that begins in the loop's next round, even where the loop's own tasks begin at once."""
    return asyncio.Task(work, loop=loop, context=context)


async def _run_step(command: StepCall) -> Any:
    args, kwargs = codec.decode(command.args)
    if inspect.iscoroutinefunction(command.function):
        return await command.function(*args, **kwargs)

    def call() -> tuple[Any, BaseException | None]:
        # Neither a StopIteration nor an exit may pass through the thread's future.
        try:
            return command.function(*args, **kwargs), None
        except BaseException as error:  # noqa: BLE001 - as above
            return None, error

    result, error = await asyncio.to_thread(call)
    if error is not None:
        raise (
            error
            if isinstance(error, Exception) and not isinstance(error, StopIteration)
            else ToolRaised(error)
        )
    return await result if inspect.isawaitable(result) else result
