"""The asyncio host of a session: performs effects on the caller's loop, appends through the journal's writer."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from msgspec import Struct

from ..journal import codec
from ..journal.envelope import NewEvent
from ..journal.errors import LeaseLost, RefoldError
from ..journal.journal import Journal
from ..journal.sources import Sources
from ..journal.store import AppendResult, ThreadState
from ..journal.tenure import Tenure
from .commands import Call, ModelCall, StepCall, ToolCall
from .errors import ModelError
from .ports import MakeContext, ModelClient
from .session import Completion, Session


class Limits(Struct, frozen=True, kw_only=True):
    """
    Times a live run keeps to.

    Args:
        model_timeout_s: Total time one attempt at a model call may take.
        step_timeout_s: Total time a step may take.
        poll_s: How often the inbox is looked into.
        leave_grace_s: How long running tools get when the caller goes away.
        grace_s: How much longer than its time-out a call may take before its worker counts as hung.
    """

    model_timeout_s: float = 600.0
    step_timeout_s: float = 600.0
    poll_s: float = 0.5
    leave_grace_s: float = 2.0
    grace_s: float = 30.0


class World(Struct, frozen=True, kw_only=True):
    """What a live run acts with: a model client, how tool contexts are made, what tools are given, its times."""

    models: ModelClient | None = None
    make_context: MakeContext
    deps: Any = None
    limits: Limits = Limits()


class LiveHost:
    """
    Performs what a session asks for.

    All inputs of the session go through one lock, so that an append acknowledged after the loop is gone
    still finds its session: what a tool returned is recorded even then.
    """

    def __init__(self, journal: Journal, tenure: Tenure, world: World) -> None:
        self.session: Session | None = None
        self._journal = journal
        self._tenure = tenure
        self._world = world
        self._sources: Sources = journal.sources
        self._loop = asyncio.get_running_loop()
        self._lock = threading.RLock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished = asyncio.Event()
        self._detached = False
        self._deadlines: dict[str, float] = {}

    # What the session asks

    def now_us(self) -> int:
        """Wall clock in microseconds."""
        return self._sources.now_us()

    def new_id(self) -> uuid.UUID:
        """A fresh event id."""
        return self._sources.new_id()

    def append(
        self,
        events: Sequence[NewEvent],
        *,
        state: ThreadState,
        wake_at_us: int | None,
        consumed: Sequence[int],
    ) -> None:
        """Hand a batch to the journal's writer."""
        future = self._tenure.append(events, state=state, wake_at_us=wake_at_us, consumed=consumed)
        count = len(events)
        future.add_done_callback(lambda done: self._post(lambda: self._appended(done, count)))

    def perform(self, call: Call, attempt: int) -> None:
        """Begin an effect as a task of the loop."""
        task = self._loop.create_task(self._perform(call, attempt), context=contextvars.copy_context())
        self._tasks[call.path] = task
        task.add_done_callback(lambda _: self._tasks.pop(call.path, None))

    def abandon(self, call: Call) -> None:
        """Cancel an effect's task."""
        task = self._tasks.get(call.path)
        if task is not None and not self._detached:
            task.cancel()

    def alarm(self, at_us: int) -> None:
        """Call the session when the wall clock gets there."""
        if self._detached:
            return
        delay_s = max(0.0, (at_us - self.now_us()) / 1e6)
        self._loop.call_later(delay_s, self._enter, lambda: self._live().alarm())

    # Running

    async def drive(self, session: Session, begin: Callable[[], None]) -> None:
        """
        Run *session* from *begin* to its end or error; both are then on the session.

        When the caller is cancelled nothing new begins, running tools get a short grace, and what has
        finished is recorded; then the cancellation goes on.
        """
        self.session = session
        poller = self._loop.create_task(self._poll())
        self._tenure.on_lost(lambda: self._post(self._lost))
        try:
            self._enter(begin)
            await self._finished.wait()
        except asyncio.CancelledError:
            self._enter(
                lambda: self._live().stop("the caller went away", grace_s=self._world.limits.leave_grace_s)
            )
            try:
                async with asyncio.timeout(self._world.limits.leave_grace_s + 1):
                    await self._finished.wait()
            except TimeoutError:
                pass
            raise
        finally:
            poller.cancel()
            with self._lock:
                self._detached = True
            for task in list(self._tasks.values()):
                task.cancel()

    def stop(self, reason: str, grace_s: float) -> None:
        """Leave in good order, as on SIGTERM."""
        self._enter(lambda: self._live().stop(reason, grace_s=grace_s))

    def _live(self) -> Session:
        assert self.session is not None
        return self.session

    def _enter(self, step: Callable[[], Any]) -> None:
        with self._lock:
            session = self._live()
            try:
                step()
            except BaseException as error:
                # A broken step leaves the session as a crash would: the log is the truth.
                session.failed(error)
                if not isinstance(error, Exception):
                    raise
            if (session.end is not None or session.error is not None) and not self._detached:
                self._finished.set()

    def _post(self, step: Callable[[], Any]) -> None:
        with self._lock:
            if not self._detached:
                self._loop.call_soon_threadsafe(self._enter, step)
                return
        self._enter(step)

    def _appended(self, done: Future[AppendResult], count: int) -> None:
        error = done.exception()
        if error is None:
            self._live().acked(count)
        else:
            self._live().failed(error)

    def _lost(self) -> None:
        session = self._live()
        if session.end is None and session.error is None:
            session.failed(LeaseLost(self._tenure.thread, fence=self._tenure.fence))

    async def _poll(self) -> None:
        thread, limits = self._tenure.thread, self._world.limits
        while True:
            await asyncio.sleep(limits.poll_s)
            session = self._live()
            try:
                messages = await asyncio.to_thread(self._journal.inbox, thread, after=session.seen)
            except RefoldError:
                # The append will say what is wrong with the store; messages can wait.
                continue
            if messages:
                self._enter(lambda found=messages: session.deliver(found))  # type: ignore[misc]

    # Effects

    async def _perform(self, call: Call, attempt: int) -> None:
        started_s = self._sources.monotonic_s()
        timeout_s = self._timeout_of(call)
        self._watch(call.path, started_s + timeout_s)
        value: Any = None
        error: BaseException | None = None
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s) as limit:
                value = await self._effect(call, attempt, started_s + timeout_s)
        except TimeoutError as late:
            timed_out = limit.expired()
            error = _overdue(call, timeout_s) if timed_out else late
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._watch(call.path, None)
                raise
            error = cancelled
        except Exception as raised:
            error = raised
        latency_us = round((self._sources.monotonic_s() - started_s) * 1e6)
        self._watch(call.path, None)
        completion = Completion(value=value, error=error, latency_us=latency_us, timed_out=timed_out)
        self._enter(lambda: self._live().completed(call.path, attempt, completion))

    def _effect(self, call: Call, attempt: int, deadline_s: float) -> Coroutine[Any, Any, Any]:
        command = call.command
        match command:
            case ModelCall():
                if self._world.models is None:
                    raise ModelError("this run was started without a model client", kind="bad_request")
                params = command.request.params
                request = {**params.values, **params.secret, "messages": command.request.messages()}
                return self._world.models.respond(request)
            case StepCall():
                return _run_step(command)
            case ToolCall():
                return self._run_tool(call, command, attempt, deadline_s)
            case _:
                raise AssertionError(f"{call!r} is not performed")

    async def _run_tool(self, call: Call, command: ToolCall, attempt: int, deadline_s: float) -> Any:
        if self._tenure.remaining_s() <= 0:
            await self._renew()
        context = self._world.make_context(
            idempotency_key=call.key or "",
            attempt=attempt,
            thread=self._tenure.thread,
            call=call.id,
            deps=self._world.deps,
            deadline_s=deadline_s - self._sources.monotonic_s(),
        )
        return await command.tool.call(codec.decode(command.args), context)

    async def _renew(self) -> None:
        """The lease may have run out while this process stood still: the tool runs only if it is still ours."""
        sent_s = self._sources.monotonic_s()
        renew = self._journal.store.renew
        held = await asyncio.to_thread(
            renew, self._tenure.thread, fence=self._tenure.fence, ttl_s=self._tenure.ttl_s
        )
        if held:
            self._tenure.renewed(sent_s)
        else:
            self._tenure.mark_lost()
            # This tool must not run and its outcome must not be recorded: wait to be cancelled.
            await asyncio.Event().wait()

    def _timeout_of(self, call: Call) -> float:
        command = call.command
        if isinstance(command, ToolCall):
            return command.tool.timeout_s
        limits = self._world.limits
        return limits.model_timeout_s if isinstance(command, ModelCall) else limits.step_timeout_s

    def _watch(self, path: str, deadline_s: float | None) -> None:
        """Renewal goes on while every call is within its time and a grace."""
        if deadline_s is None:
            self._deadlines.pop(path, None)
        else:
            self._deadlines[path] = deadline_s + self._world.limits.grace_s
        self._tenure.overdue_after(min(self._deadlines.values(), default=None))


def _overdue(call: Call, timeout_s: float) -> Exception:
    text = f"no answer within {timeout_s:g} s"
    if isinstance(call.command, ModelCall):
        return ModelError(text, kind="timeout", error_type="Timeout")
    return TimeoutError(text)


async def _run_step(command: StepCall) -> Any:
    args, kwargs = codec.decode(command.args)
    if inspect.iscoroutinefunction(command.function):
        return await command.function(*args, **kwargs)
    result = await asyncio.to_thread(command.function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result
