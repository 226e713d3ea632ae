"""The asyncio host of a session: performs effects on the caller's loop, appends through the journal's writer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ..journal.envelope import NewEvent
from ..journal.errors import LeaseLost, RefoldError
from ..journal.journal import Journal
from ..journal.store import AppendResult, Batch
from ..journal.tenure import Tenure
from . import under_way
from .attempt import Attempt, task_of
from .bell import Bell
from .commands import Call, ToolCall
from .effects import Effects, Limits, World
from .events import VERSIONS, decode_bytes, encode_body, kind_of
from .recording import Completion
from .session import Session
from .timers import Timers

__all__ = ["Limits", "LiveHost", "World"]


class LiveHost:
    """
    Performs what a session asks for.

    All inputs of the session go through one lock, so that an append acknowledged after the loop is gone
    still finds its session: what a tool returned is recorded even then.
    """

    def __init__(self, journal: Journal, tenure: Tenure, world: World) -> None:
        self._journal = journal
        self._tenure = tenure
        self._limits = world.limits
        self._settled = world.settled
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._inside = False
        self._session: Session | None = None
        self._effects = Effects(
            journal, tenure, world, complete=self._completed, leaving=self._leaving, left_s=self._left_s
        )
        self._context = contextvars.copy_context()
        self._timers = Timers(self._loop, journal.sources.monotonic_s)
        self._running: dict[str, Attempt | asyncio.Task[None]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._finished = asyncio.Event()
        self._detached = False
        self._alone = ""
        """Path of the transactional tool under way."""
        self._beside: list[tuple[Call, int, Completion]] = []
        """Outcomes that wait for its end to be recorded."""

    # What the session asks

    def wall_us(self) -> int:
        """This process's wall clock, microseconds."""
        return self._journal.sources.now_us()

    def now_us(self) -> int:
        """The database's clock, as its tenure knows it, microseconds."""
        return self._tenure.now_us()

    def new_id(self) -> uuid.UUID:
        """A fresh event id."""
        return self._journal.sources.new_id()

    def append(self, batch: Batch) -> None:
        """Hand a batch to the journal's writer."""
        here = threading.get_ident() == self._thread and not self._loop.is_closed()
        told = partial(self._told, len(batch.events))
        self._tenure.send(batch, loop=self._loop if here else None, told=told)

    def append_next(self, batch: Batch, *, after: int) -> bool:
        """Let the tenure hand a batch to the journal's writer when the one before is durable."""
        return self._tenure.send_next(batch, after=after, told=partial(self._told, len(batch.events)))

    def perform(self, call: Call, attempt: int) -> None:
        """Begin an effect as a task of the loop; nothing begins when nobody drives the session any more."""
        if self._detached:
            return
        self._running[call.path] = Attempt(
            self._effects,
            call,
            attempt,
            loop=self._loop,
            context=self._context.copy(),
            timers=self._timers,
            over=partial(self._over, call.path),
        )

    def transact(self, call: Call, attempt: int) -> None:
        """Run a transactional tool, as a task of the loop that waits for its thread."""

        def event_of(completion: Completion) -> NewEvent:
            body = self._live().committed_outcome(call, completion)
            kind = kind_of(body)
            return NewEvent(self.new_id(), kind, VERSIONS[kind], encode_body(body))

        async def run() -> None:
            event = await self._effects.transact(call, attempt, event_of)
            if event is not None:
                body = decode_bytes(event.body)
                self._alone_no_more()
                self._enter(self._live().committed, call.path, attempt, body)

        self._alone = call.path
        self._spawn(call, run())

    def reconcile(self, call: Call, attempt: int) -> None:
        """Ask a tool's reconciler, as a task of the loop."""

        async def ask() -> None:
            assert isinstance(call.command, ToolCall)
            verdict = await self._effects.reconcile(call, call.command.tool.timeout_s)
            self._enter(self._live().reconciled, call.path, attempt, verdict)

        self._spawn(call, ask())

    def abandon(self, call: Call) -> None:
        """Cancel an effect's task; a transaction is rolled back, and says so."""
        running = self._running.get(call.path)
        if call.path == self._alone:
            self._effects.roll_back(call)
        elif running is not None and not self._detached:
            running.cancel()

    def alarm(self, at_us: int) -> None:
        """Call the session when the clock gets there."""
        if self._detached:
            return
        delay_s = max(0.0, (at_us - self.now_us()) / 1e6)
        if self._alarm is not None:
            # A session that has been woken asks again for whatever is due later.
            self._alarm.cancel()
        self._alarm = self._loop.call_later(delay_s, self._enter, self._live().alarm)

    # Running

    async def drive(self, session: Session, begin: Callable[[], None]) -> None:
        """
        Run *session* from *begin* to its end or error; both are then on the session.

        When the caller is cancelled nothing new begins, running tools get a short grace, and what has
        finished is recorded; then the cancellation goes on.
        """
        self._session = session
        with under_way.drive(self._journal.identity, self._tenure.thread, self._tenure.fence):
            await self._drive(begin)

    async def _drive(self, begin: Callable[[], None]) -> None:
        poller = self._loop.create_task(self._poll())
        self._tenure.on_lost(lambda: self._post(self._lost))
        try:
            self._enter(begin)
            await self._finished.wait()
        except asyncio.CancelledError:
            self.stop("the caller went away", self._limits.leave_grace_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.leave_grace_s + 1):
                    await self._finished.wait()
            if self._alone:
                # A COMMIT is on its way: its answer is waited for, also to give the lease back.
                await self._finished.wait()
            raise
        finally:
            with self._lock:
                self._detached = True
                # Nobody waits for the transaction any more: whoever takes the run up finds them in the inbox.
                for call, attempt, completion in self._beside:
                    self._effects.send_late(call, attempt, completion)
            if not self._loop.is_closed():
                poller.cancel()
                self._timers.close()
                if self._alarm is not None:
                    self._alarm.cancel()
                for running in list(self._running.values()):
                    running.cancel()

    def stop(self, reason: str, grace_s: float) -> None:
        """Leave in good order, as on SIGTERM."""
        self._enter(partial(self._live().stop, reason, grace_s=grace_s))

    def _live(self) -> Session:
        assert self._session is not None
        return self._session

    def _leaving(self) -> bool:
        return self._live().leaving()

    def _left_s(self) -> float:
        return self._live().alarms.left_s()

    def _spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        task = task_of(self._loop, work, self._context.copy())
        self._running[call.path] = task
        task.add_done_callback(
            lambda task: self._over(call.path, task, None if task.cancelled() else task.exception())
        )

    def _over(self, path: str, running: Attempt | asyncio.Task[None], error: BaseException | None) -> None:
        if self._running.get(path) is running:
            del self._running[path]
        if error is not None:
            self._enter(self._live().failed, error)

    def _enter(self, step: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            session = self._live()
            result: Any = None
            outer, self._inside = self._inside, True
            try:
                result = step(*args)
            except BaseException as error:
                # A broken step leaves the session as a crash would: the log is the truth.
                session.failed(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self._inside = outer
            if self._settled is not None:
                self._settled(session._outbox.durable)
            if (session.end is not None or session.error is not None) and not self._detached:
                self._finished.set()
            return result

    def _post(self, step: Callable[..., Any], *args: Any) -> None:
        if threading.get_ident() == self._thread and not self._inside:
            self._enter(step, *args)
            return
        with self._lock:
            if not self._detached:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._enter, step, *args)
                    return
                # The loop was closed under the run: what was made is recorded, the lease runs out by itself.
                self._detached = True
                self._tenure.overdue_after(0.0)
                self._enter(self._live().stop, "its event loop was closed")
        self._enter(step, *args)

    def _completed(self, call: Call, attempt: int, completion: Completion) -> bool:
        if call.path == self._alone:
            self._alone_no_more()
        elif self._alone and self._detached:
            return False
        waits = bool(self._alone)
        taken = bool(self._enter(self._live().completed, call.path, attempt, completion))
        if taken and waits:
            self._beside.append((call, attempt, completion))
        return taken

    def _alone_no_more(self) -> None:
        self._alone = ""
        self._beside.clear()

    def _told(self, count: int, outcome: AppendResult | BaseException) -> None:
        self._post(self._appended, count, outcome)

    def _appended(self, count: int, outcome: AppendResult | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._failed(outcome)
        else:
            self._live().acked(count)

    def _failed(self, error: BaseException) -> None:
        unrecorded = self._live().failed(error)
        if isinstance(error, LeaseLost):
            self._effects.pass_on(unrecorded)

    def _lost(self) -> None:
        session = self._live()
        if session.end is None and session.error is None:
            self._failed(LeaseLost(self._tenure.thread, fence=self._tenure.fence))

    async def _poll(self) -> None:
        with Bell(self._journal, self._tenure.thread) as bell:
            while True:
                await bell.wait(self._limits.poll_s)
                seen = self._live().mail.seen
                try:
                    messages = await asyncio.to_thread(self._journal.inbox, self._tenure.thread, after=seen)
                except RefoldError:
                    # The append will say what is wrong with the store; messages can wait.
                    continue
                if messages:
                    self._enter(self._live().deliver, messages)
