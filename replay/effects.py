"""Performs calls on the event loop: models, steps and tools, each within its time, each ending in one completion."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from ..journal import codec
from ..journal.envelope import NewEvent
from ..journal.errors import LeaseLost, RefoldError, StoreError
from ..journal.journal import Journal
from ..journal.tenure import Tenure
from .attempt import NotBegun
from .commands import Call, ModelCall, Phase, ToolCall
from .commit_gate import CommitGate
from .door import check_times, checked_reply
from .errors import ModelError
from .events import decode_bytes
from .holds import LATE_S
from .inbox import Resolution, encode_message, resolution_key
from .outcomes import Reconciled, ToolRaised, Unknown
from .ports import Delta, MakeContext, ModelClient, StreamingClient, ToolContext
from .recording import Completion, late_resolution, rolled_back, unrecorded_resolution
from .under_way import UnderWay, begin

STOP_GRACE_S = 1.0
"""How long an async tool gets to come to its end after it was cancelled."""

ENDED_LATE_S = 0.5
"""How much longer than its time a transaction may stand still before the server ends it."""

CANCEL_WITHIN_S = 5.0
"""How long a server is asked to cancel a statement; psycopg's `cancel`, which has no limit, stops all threads."""

EARLIER_POLL_S = 0.05
"""How often a call that waits for its earlier attempt looks after it, and whether it may still begin."""

_alive: dict[tuple[str, str, str], asyncio.Task[Any]] = {}
"""Tools that were given up and still run in this process, by journal, thread and call."""

EventOf = Callable[[Completion], NewEvent]
"""Makes the event that records a completion."""

_log = logging.getLogger("refold.replay")


class Limits(Struct, frozen=True, kw_only=True):
    """
    Times a live run keeps to.

    Args:
        model_timeout_s: Total time one attempt at a model call may take.
        step_timeout_s: Total time a step may take.
        poll_s: How often the inbox is looked into.
        leave_grace_s: How long running tools get when the caller goes away.
        grace_s: How much longer than its time-out a call may take before its worker counts as hung.

    Raises:
        UsageError: One is no time that a run could keep to.
    """

    model_timeout_s: float = 600.0
    step_timeout_s: float = 600.0
    poll_s: float = 0.5
    leave_grace_s: float = 2.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        check_times(self, "model_timeout_s", "step_timeout_s", "poll_s", "leave_grace_s", "grace_s")


class World(Struct, frozen=True, kw_only=True):
    """
    What a live run acts with.

    Args:
        models: The model client.
        make_context: How tool contexts are made.
        deps: What tools are given.
        limits: Times kept to.
        show: Told of the pieces of each response while it comes in, by call id, if the client can stream.
        settled: Told up to which seq the events that were made are durable; from any of our threads.
    """

    models: ModelClient | None = None
    make_context: MakeContext
    deps: Any = None
    limits: Limits = Limits()
    show: Callable[[str, Delta], None] | None = None
    settled: Callable[[int], None] | None = None


class Effects:
    """
    The calls under way of one session.

    Args:
        journal: Its clocks, and its inbox for outcomes that come too late for the log.
        tenure: Checked before each tool; told until when its worker may take.
        world: What to act with.
        complete: Takes a completion on the loop; False if nobody waits for it any more.
        leaving: Whether running tools had better stop.
        left_s: Seconds until the run's deadline.
    """

    def __init__(
        self,
        journal: Journal,
        tenure: Tenure,
        world: World,
        *,
        complete: Callable[[Call, int, Completion], bool],
        leaving: Callable[[], bool],
        left_s: Callable[[], float],
    ) -> None:
        self._journal = journal
        self.sources = journal.sources
        self._tenure = tenure
        self._world = world
        self._complete = complete
        self.leaving = leaving
        self._left_s = left_s
        self._deadlines: dict[str, float] = {}
        self._transactions: dict[str, asyncio.Future[None]] = {}
        """Those under way, by path: done when they are not to commit any more."""
        self._timed_out: set[tuple[str, int]] = set()

    async def transact(self, call: Call, attempt: int, event_of: EventOf) -> NewEvent | None:
        """
        Run a transactional tool in a thread, its outcome appended in its own transaction.

        Returns:
            The event that is in the log now; None when nothing happened and the failure was handed over.

        Raises:
            LeaseLost, StoreUnavailable: The transaction could not be seen through.
        """
        command = call.command
        assert isinstance(command, ToolCall)
        tool, gate = command.tool, CommitGate()

        def check() -> None:
            gate.check()
            if self._called_off():
                raise NotBegun

        def make(connection: Any) -> NewEvent:
            gate.begin(partial(connection.cancel_safe, timeout=CANCEL_WITHIN_S))
            check()
            context = self.context(call, attempt, tool.timeout_s, _nothing, connection)
            try:
                value = tool.call_now(codec.decode(command.args), context)
            except StoreError as error:
                raise ToolRaised(error) from error
            event = event_of(Completion(value=value))
            gate.enter()
            return event

        started_s = self.sources.monotonic_s()
        self.watch(call.path, started_s + tool.timeout_s)
        try:
            await self._alone(call)
            self.watch(call.path, self.sources.monotonic_s() + tool.timeout_s)
            limit_s = tool.timeout_s + ENDED_LATE_S
            work = asyncio.ensure_future(
                asyncio.to_thread(self._tenure.transact, make, limit_s=limit_s, check=check)
            )
            # Nobody may be left who asks what it came to.
            work.add_done_callback(lambda work: work.cancelled() or work.exception())
            await self._committed_or_called_off(call, work, gate, tool.timeout_s)
            return work.result()
        except NotBegun:
            self.hand_over(call, attempt, Completion(begun=False), started_s)
            return None
        except (LeaseLost, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raised, its transaction was rolled back
            late = f"no result within {tool.timeout_s:g} s: " if gate.closed else ""
            self.hand_over(call, attempt, Completion(error=rolled_back(error, late)), started_s)
            return None
        finally:
            self.watch(call.path, None)

    def roll_back(self, call: Call) -> None:
        """A transactional tool has had its time to come to its end: it commits no more, and was never begun."""
        called_off = self._transactions.get(call.path)
        if called_off is not None and not called_off.done():
            called_off.set_result(None)

    async def _committed_or_called_off(
        self, call: Call, work: asyncio.Task[NewEvent], gate: CommitGate, timeout_s: float
    ) -> None:
        """Return when *work* is done. Raises `NotBegun` once it is called off and will never commit."""
        called_off = self._transactions[call.path] = asyncio.get_running_loop().create_future()
        first = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait({work, called_off}, timeout=timeout_s, return_when=first)
            if not work.done() and not called_off.done():
                gate.shut(TimeoutError("the transaction was rolled back"))
                # The log's place is free, and its locks are, when it has ended.
                await asyncio.wait({work, called_off}, return_when=first)
            if not work.done() and gate.shut(NotBegun()):
                raise NotBegun
            await asyncio.wait({work})
        finally:
            del self._transactions[call.path]
            if not work.done() and gate.shut(NotBegun()):
                self._tenure.forgo_transaction()
            self._outlives(call, work)

    async def reconcile(self, call: Call, timeout_s: float) -> Reconciled:
        """Ask the tool's reconciler about a call in doubt."""
        command = call.command
        assert isinstance(command, ToolCall)
        self.watch(call.path, self.sources.monotonic_s() + timeout_s)
        try:
            await self._alone(call)
            context = self.context(call, call.attempt, timeout_s, _nothing)
            async with asyncio.timeout(timeout_s):
                verdict: Reconciled = await command.tool.reconcile(codec.decode(command.args), context)
                return verdict
        except NotBegun:
            return Unknown("its worker was leaving")
        except TimeoutError:
            return Unknown(
                f"the reconciler of tool {command.tool.name!r} gave no answer within {timeout_s:g} s"
            )
        finally:
            self.watch(call.path, None)

    # Attempts

    def free(self, call: Call) -> bool:
        """Whether this worker may act for *call* right now."""
        late = call.phase is Phase.STARTED and self._too_late(call)
        return not (_alive or late or self._called_off()) and self._tenure.remaining_s() > 0

    async def allowed(self, call: Call) -> None:
        """Return when this worker may act for *call*; never, if it may not. Raises `NotBegun` if it is too late."""
        if isinstance(call.command, ToolCall):
            await self._alone(call)
        started = call.phase is Phase.STARTED
        try:
            await self._still_ours()
        except StoreError as error:
            if started:
                raise NotBegun from error
            raise
        if self._called_off() or (started and self._too_late(call)):
            raise NotBegun

    def _called_off(self) -> bool:
        """Whether nothing may begin any more: the run is being left, or its time is over."""
        return self.leaving() or self._left_s() <= 0

    def under_way(self, call: Call) -> UnderWay:
        """What tells this process that the call is being made."""
        return begin((self._journal.identity, self._tenure.thread, self._tenure.fence, call.id))

    async def ask_model(self, call_id: str, command: ModelCall) -> Any:
        """The model's reply, complete."""
        models = self._world.models
        if models is None:
            raise ModelError("this run was started without a model client", kind="bad_request")
        params, show = command.request.params, self._world.show
        request = {**params.values, **params.secret, "messages": command.request.messages()}
        if show is None or not isinstance(models, StreamingClient):
            reply = await models.respond(request)
        else:
            reply = await models.stream(request, partial(show, call_id))
        return checked_reply(reply, models)

    async def overtime(self, call: Call, attempt: int, task: asyncio.Task[Any], what: str) -> Completion:
        """Stop a tool that took too long, and say what it came to."""
        command = call.command
        assert isinstance(command, ToolCall)
        tool = command.tool
        await self.let_go(call, attempt, task)
        if task.done() and not task.cancelled() and task.exception() is None:
            return _completion_of(task)
        limit_s = tool.idle_timeout_s if what == "no heartbeat" else tool.timeout_s
        return Completion(error=TimeoutError(f"{what} within {limit_s:g} s"), timed_out=True)

    async def let_go(self, call: Call, attempt: int, task: asyncio.Task[Any]) -> None:
        """Stop an async tool; leave a sync one running, and pass on what it comes to."""
        command = call.command
        assert isinstance(command, ToolCall)
        if command.tool.stoppable:
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_GRACE_S)
        if not task.done():
            self._outlives(call, task)
            task.add_done_callback(lambda done: self._late(call, attempt, done))

    def _outlives(self, call: Call, task: asyncio.Task[Any]) -> None:
        """Let no other attempt begin beside *task*, for which nobody waits any more, while it goes on."""
        if not task.done():
            _alive[self._place(call)] = task
            task.add_done_callback(lambda done: _alive.pop(self._place(call), None))

    def _place(self, call: Call) -> tuple[str, str, str]:
        return self._journal.identity, self._tenure.thread, call.id

    def _late(self, call: Call, attempt: int, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self.send_late(call, attempt, _completion_of(task))

    def send_late(self, call: Call, attempt: int, completion: Completion) -> None:
        """What a tool came to after its call was given up goes into the inbox: whoever holds the thread decides."""
        resolution = late_resolution(call, attempt, completion)
        if resolution is not None:
            self._send(resolution)

    def pass_on(self, events: Sequence[NewEvent]) -> None:
        """Outcomes that this worker may not record any more go into the inbox too; a time-out is none."""
        for event in events:
            resolution = unrecorded_resolution(decode_bytes(event.body))
            if resolution is not None and (resolution.call, resolution.attempt) not in self._timed_out:
                self._send(resolution)

    def _send(self, resolution: Resolution) -> None:
        kind, body = encode_message(resolution)
        key = resolution_key(resolution.call, resolution.attempt, late=True)
        journal, thread = self._journal, self._tenure.thread

        def send() -> None:
            try:
                journal.send(thread, key=key, kind=kind, body=body)
            except RefoldError as error:
                _log.warning(
                    "the late outcome of %s in thread %r could not be passed on: %s",
                    resolution.call,
                    thread,
                    error,
                )

        try:
            asyncio.get_running_loop().run_in_executor(None, send)
        except RuntimeError:
            # The loop is gone.
            threading.Thread(target=send, name="refold late outcome", daemon=True).start()

    async def _alone(self, call: Call) -> None:
        """
        Never two attempts of one call at once: one that was given up may still act.

        Raises `NotBegun` if nothing may begin any more meanwhile.
        """
        while (earlier := _alive.get(self._place(call))) is not None:
            if self._called_off():
                raise NotBegun
            loop = earlier.get_loop()
            if loop is asyncio.get_running_loop():
                await asyncio.wait({earlier}, timeout=EARLIER_POLL_S)
            elif loop.is_closed():
                # Nobody will ever hear of it: left to its time-out, as a tool of another process is.
                return
            else:
                await asyncio.sleep(EARLIER_POLL_S)

    async def _still_ours(self) -> None:
        """The lease may have run out while this process stood still: nothing is called then but by its holder."""
        if self._tenure.remaining_s() > 0:
            return
        if await asyncio.to_thread(self._journal.renew, self._tenure):
            return
        # This call must not run and its outcome must not be recorded: stay until cancelled.
        await asyncio.Event().wait()

    def context(
        self, call: Call, attempt: int, left_s: float, beat: Callable[[], None], connection: Any = None
    ) -> ToolContext:
        """What a tool is told of its call."""
        return self._world.make_context(
            idempotency_key=call.key or "",
            attempt=attempt,
            thread=self._tenure.thread,
            call=call.id,
            deps=self._world.deps,
            deadline_s=min(left_s, self._left_s()),
            heartbeat=beat,
            cancelled=self.leaving,
            connection=connection,
        )

    # Both

    def hand_over(self, call: Call, attempt: int, completion: Completion, started_s: float) -> None:
        """An attempt has come to its end."""
        timed = Completion(
            value=completion.value,
            error=completion.error,
            latency_us=round((self.sources.monotonic_s() - started_s) * 1e6),
            timed_out=completion.timed_out,
            begun=completion.begun,
        )
        if completion.timed_out:
            self._timed_out.add((call.id, attempt))
        if not self._complete(call, attempt, timed) and not completion.timed_out:
            self.send_late(call, attempt, timed)

    def timeout_of(self, call: Call) -> float:
        """Seconds an attempt may take."""
        command = call.command
        if isinstance(command, ToolCall):
            return command.tool.timeout_s
        limits = self._world.limits
        return limits.model_timeout_s if isinstance(command, ModelCall) else limits.step_timeout_s

    def left_s(self, call: Call) -> float:
        """Seconds an attempt that is begun now may take."""
        late_s = self._late_s(call) - LATE_S if call.phase is Phase.STARTED else 0.0
        return self.timeout_of(call) - max(0.0, late_s)

    def _too_late(self, call: Call) -> bool:
        """Whether a call whose start is recorded must not begin: a rival leaves it alone for its time and no longer."""
        return self._late_s(call) > max(LATE_S, self.timeout_of(call) / 2)

    def _late_s(self, call: Call) -> float:
        return (self._tenure.now_us() - call.asked_us) / 1e6

    def watch(self, path: str, deadline_s: float | None) -> None:
        """Renewal goes on while every call is within its time and a grace."""
        if deadline_s is None:
            self._deadlines.pop(path, None)
        else:
            self._deadlines[path] = deadline_s + self._world.limits.grace_s
        self._tenure.overdue_after(min(self._deadlines.values()) if self._deadlines else None)


def _nothing() -> None:
    """Whoever asks or is told by this has no idle time."""


def _completion_of(task: asyncio.Task[Any]) -> Completion:
    if task.cancelled():
        return Completion(error=asyncio.CancelledError("the tool cancelled itself"))
    error = task.exception()
    return Completion(error=error) if error is not None else Completion(value=task.result())
