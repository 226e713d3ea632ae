"""
The live driver without the waiting: one tenure of one run as a state machine.

Inputs are method calls (an effect completed, an append was acknowledged, a message arrived, a clock reached its alarm);
what is to be done goes to the `Host`. It performs nothing and reads no clock of its own, so the asyncio host,
the crash simulator and a test drive the very same code.

The write-ahead rule lives here: an effect is performed only when the events that led to it are durable.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Raw, Struct

from ..journal import codec
from ..journal.envelope import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, EVENT_BYTES_MAX, NewEvent
from ..journal.errors import LimitExceeded, RefoldError, UnsupportedValue
from ..journal.store import Message, ThreadState
from . import events as ev
from .commands import Call, ModelCall, Phase, Sleep, StepCall, ToolCall, WaitFor
from .errors import ForeignAwait, ModelError, ToolError
from .inbox import CANCEL, Approval, Cancel, Resolution, Signal, decode_message, resolution_event
from .interpreter import Interpreter
from .outcomes import DidNotHappen, Happened, Reconciled, ToolRaised
from .ports import ModelReply
from .response import encode_reply

RESULT_BYTES_MAX = EVENT_BYTES_MAX - 1024 * 1024
"""Largest recorded value: an event less room for what surrounds it."""

Status = Literal["finished", "failed", "cancelled", "parked", "waiting", "released"]


class Policy(Struct, frozen=True, kw_only=True):
    """
    How a run treats failures and time.

    Args:
        model_attempts: How often a model call is tried in all when the failure is of a kind that trying again can mend.
        backoff_s: Pause after the first failed attempt; doubles with each.
        backoff_max_s: Longest pause.
        hold_wait_s: A run that waits for a timer due sooner keeps its lease.
    """

    model_attempts: int = 5
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    hold_wait_s: float = 5.0


class Completion(Struct, frozen=True):
    """What came of performing a call: a value, or an error; `timed_out` when it was given up, outcome unknown."""

    value: Any = None
    error: BaseException | None = None
    latency_us: int = 0
    timed_out: bool = False


class End(Struct, frozen=True, kw_only=True):
    """How a tenure ended."""

    status: Status
    wake_at: int | None = None


class Host(Protocol):
    """What a session asks of its surroundings; every method returns at once."""

    def now_us(self) -> int:
        """Wall clock in microseconds."""

    def new_id(self) -> uuid.UUID:
        """A fresh event id."""

    def append(
        self,
        events: Sequence[NewEvent],
        *,
        state: ThreadState,
        wake_at_us: int | None,
        consumed: Sequence[int],
    ) -> None:
        """Append; answered by `Session.acked` when durable. Never called again before that."""

    def perform(self, call: Call, attempt: int) -> None:
        """Begin an effect; answered by `Session.completed`."""

    def reconcile(self, call: Call, attempt: int) -> None:
        """Ask the outside world about a call in doubt; answered by `Session.reconciled`."""

    def abandon(self, call: Call) -> None:
        """Ask an effect under way to stop."""

    def alarm(self, at_us: int) -> None:
        """Call `Session.alarm` when the wall clock reaches *at_us*."""


def idempotency_key(uid: str, call_id: str) -> str:
    """The key of a call: a UUID made from the thread's uid and the call id, so the same in every attempt."""
    digest = hashlib.sha256(f"refold key 1/{uid}/{call_id}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


class Session:
    """
    One tenure of one run.

    Args:
        interpreter: The run, with the log applied so far.
        host: Performs what is asked.
        head: Seq of the thread's head, all of it durable.
        last_at: `at` of the newest event.
        policy: Failures and time.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        host: Host,
        *,
        head: int,
        last_at: int = 0,
        policy: Policy | None = None,
    ) -> None:
        self.interpreter = interpreter
        self.end: End | None = None
        self.error: BaseException | None = None
        self.observe: Callable[[int, ev.EventBody], None] | None = None
        """Told of each event as it is made, before it is durable."""
        self.seen = 0
        """Newest inbox id that this session knows of."""
        self._host = host
        self._policy = policy or Policy()
        self._head = self._durable = head
        self._last_at = last_at
        self._base = head
        self._out: list[NewEvent] = []
        self._consumed: list[int] = []
        self._flying = 0
        self._gated: list[tuple[int, Call]] = []
        self._performing: dict[str, int] = {}
        self._messages: list[Message] = []
        self._refused: list[Call] = []
        self._unmatched = False
        """Something has begun to wait since the messages at hand were last looked through."""
        self._last: ev.EventBody | None = None
        self._halted: BaseException | None = None
        self._stopping: str | None = None
        self._grace_until: int | None = None

    # Inputs

    def start(
        self, started: ev.RunStarted, *, before: Iterable[ev.EventBody] = (), consumed: Iterable[int] = ()
    ) -> None:
        """
        Begin a new run.

        Args:
            started: Its first event.
            before: Events of the thread or its earlier runs that go into the same append.
            consumed: Inbox ids that *before* takes.
        """
        self._consumed.extend(consumed)
        for body in before:
            self._put(body)
        self._base = self._head + 1
        self._emit(started)
        self._go_on()

    def resume(
        self, messages: Sequence[Message] = (), *, accepted: ev.DivergenceAccepted | None = None
    ) -> None:
        """Go on with a run whose log has been applied; without news nothing is written."""
        self.interpreter.tenure_over()
        self._remember(messages)
        if accepted is not None:
            self._put(accepted)
        elif not self._has_news():
            self._finish_idle(write=False)
            return
        program = self.interpreter.program
        tenure = self.interpreter.tenures + 1
        self._base = self._head + 1
        self._emit(
            ev.RunResumed(
                at=self._at(),
                run=self.interpreter.run_id,
                tenure=tenure,
                digest=program.digest,
                definition=program.definition,
            )
        )
        for call in self._pending():
            if call.phase is Phase.BACKOFF and (call.retry_at or 0) > self._at():
                self._host.alarm(call.retry_at or 0)
            else:
                self._begin(call)
        self._fill()
        self._match_messages()
        for call in self._pending():
            if call.phase is Phase.DOUBT:
                self._settle_doubt(call)
        self._go_on()

    def acked(self, count: int) -> None:
        """The append under way is durable: *count* events."""
        self._durable += count
        self._flying = 0
        if self._halted is None and self.error is None:
            self._open_gates()
        self._go_on()

    def failed(self, error: BaseException) -> None:
        """The append under way cannot be made; nothing more may be written."""
        self._flying = 0
        self._out.clear()
        self.error = error

    def completed(self, path: str, attempt: int, completion: Completion) -> bool:
        """An effect is over; False if nobody waits for this attempt any more and nothing was recorded."""
        call = self.interpreter.pending.get(path)
        if self.error is not None or call is None or self._performing.get(path) != attempt:
            return False
        del self._performing[path]
        if self._halted is not None:
            self._record_unstepped(call, completion)
        else:
            self._outcome(call, completion)
        self._fill()
        self._go_on()
        return True

    def reconciled(self, path: str, attempt: int, verdict: Reconciled) -> None:
        """The outside world has said what it knows of an attempt in doubt."""
        call = self.interpreter.pending.get(path)
        if self.error is not None or call is None or self._performing.get(path) != attempt:
            return
        del self._performing[path]
        if call.phase is Phase.DOUBT and self._halted is None:
            self._resolve(call, verdict)
        self._go_on()

    def deliver(self, messages: Sequence[Message]) -> None:
        """Messages have arrived in the inbox."""
        self._remember(messages)
        if self._halted is None and self.error is None and self.end is None:
            self._match_messages()
            self._go_on()

    def alarm(self) -> None:
        """The wall clock has reached an alarm, or may have."""
        if self._halted is not None or self.error is not None or self.end is not None:
            return
        now = self._at()
        if self._grace_until is not None and now >= self._grace_until:
            self._give_up()
        for call in self._pending():
            if call.phase is Phase.WAITING and call.due is not None and call.due <= now:
                self._emit(ev.TimerFired(at=now, call=call.id))
            elif (
                call.phase is Phase.BACKOFF
                and (call.retry_at or 0) <= now
                and call.path not in self._performing
            ):
                self._begin(call)
        self._go_on()

    def stop(self, reason: str, *, grace_s: float = 0.0) -> None:
        """Leave in good order: begin nothing, give what runs *grace_s*, record it, then release."""
        if self._stopping is not None or self.end is not None or self.error is not None:
            return
        self._stopping = reason
        if self.interpreter.ended is None and self._halted is None:
            self._emit(ev.RunReleased(at=self._at(), run=self.interpreter.run_id, reason=reason))
        self._drop_gated()
        self._set_grace(grace_s)
        self._go_on()

    def cancel(self, reason: str, *, by: str = "", grace_s: float = 5.0, consumed: int | None = None) -> None:
        """End the run for good: begin nothing, record what returns within *grace_s*, doubt the rest."""
        if self.interpreter.cancelling or self.interpreter.ended is not None:
            return
        body = ev.CancelRequested(at=self._at(), run=self.interpreter.run_id, reason=reason, by=by)
        self._emit(body, consumed=consumed)
        self._drop_gated()
        for path in list(self._performing):
            call = self.interpreter.pending[path]
            if not isinstance(call.command, ToolCall):
                del self._performing[path]
                self._host.abandon(call)
        self._set_grace(grace_s)

    def leaving(self) -> bool:
        """Whether what runs had better stop: the worker leaves, lost its lease, or the run is cancelled."""
        return self.error is not None or self._idle_by_order()

    # Beginning

    def _begin(self, call: Call) -> None:
        if self._idle_by_order():
            return
        command = call.command
        match command:
            case ModelCall():
                self._gate(self._base, call)
            case StepCall():
                self._gate(self._base if command.read_only else self._head, call)
            case Sleep() if call.phase is Phase.ASKED:
                self._emit(
                    ev.TimerSet(at=self._last_at, call=call.id, due=self._last_at + command.duration_us)
                )
            case WaitFor() if call.phase is Phase.ASKED:
                due = None if command.timeout_us is None else self._last_at + command.timeout_us
                self._emit(ev.WaitStarted(at=self._last_at, call=call.id, name=command.name, due=due))
                self._unmatched = True
            case ToolCall() if call.phase is Phase.HELD:
                tool = command.tool.name
                self._emit(
                    ev.ApprovalRequested(at=self._last_at, call=call.id, tool=tool, args=Raw(command.args))
                )
                self._unmatched = True
            case ToolCall() if call.phase is Phase.REFUSED:
                self._refused.append(call)
            case ToolCall() if call.phase is Phase.BACKOFF:
                self._start_tool(call, command)
            case _:
                pass

    def _fill(self) -> None:
        """Start tools while there are free slots."""
        while not self._idle_by_order() and (call := self.interpreter.next_tool()) is not None:
            assert isinstance(call.command, ToolCall)
            self._start_tool(call, call.command)

    def _start_tool(self, call: Call, command: ToolCall) -> None:
        key = call.key or idempotency_key(self.interpreter.uid, call.id)
        started = ev.ToolStarted(
            at=self._last_at,
            call=call.id,
            tool=command.tool.name,
            args=Raw(command.args),
            key=key,
            attempt=call.attempt + 1,
        )
        self._emit(started)
        self._gate(self._head, call)

    def _gate(self, seq: int, call: Call) -> None:
        # A tool's attempt is its recorded start; a model call's is one after its recorded failures.
        self._performing[call.path] = call.attempt + (0 if isinstance(call.command, ToolCall) else 1)
        self._gated.append((seq, call))
        self._open_gates()

    def _open_gates(self) -> None:
        if self._idle_by_order():
            return
        ready = [call for seq, call in self._gated if seq <= self._durable]
        if ready:
            self._gated = [(seq, call) for seq, call in self._gated if seq > self._durable]
            for call in ready:
                self._host.perform(call, self._performing[call.path])

    def _drop_gated(self) -> None:
        """What was only about to begin will not; a tool whose start is on its way did not happen."""
        gated, self._gated = self._gated, []
        for _, call in gated:
            del self._performing[call.path]
            if isinstance(call.command, ToolCall):
                self._emit(
                    ev.ToolResolved(
                        at=self._at(),
                        call=call.id,
                        attempt=call.attempt,
                        outcome="did_not_happen",
                        by="worker",
                    )
                )

    def _idle_by_order(self) -> bool:
        return self._stopping is not None or self._halted is not None or self.interpreter.cancelling

    # Outcomes

    def _outcome(self, call: Call, completion: Completion) -> None:
        at = self._at()
        match call.command:
            case ModelCall():
                self._emit(self._model_outcome(at, call, call.command, completion))
            case StepCall():
                self._emit(_step_outcome(at, call, call.command, completion))
            case ToolCall():
                self._emit(self._tool_outcome(at, call, call.command, completion))
                if call.phase is Phase.DOUBT:
                    self._settle_doubt(call)
        if call.phase is Phase.BACKOFF and call.retry_at is not None:
            self._host.alarm(call.retry_at)

    def _model_outcome(self, at: int, call: Call, command: ModelCall, done: Completion) -> ev.EventBody:
        attempt = call.attempt + 1
        request = command.request
        delta = request.delta(call.branch.base)
        error = done.error
        if error is None:
            reply: ModelReply = done.value
            try:
                response = encode_reply(reply)
                codec.check_size(response, what="a model response", limit=RESULT_BYTES_MAX)
            except (UnsupportedValue, LimitExceeded) as refused:
                error = ModelError(str(refused), kind="malformed", error_type=type(refused).__name__)
            else:
                return ev.ModelResponded(
                    at=at,
                    call=call.id,
                    fingerprint=request.fingerprint,
                    request=delta,
                    response=Raw(response),
                    usage=reply.usage,
                    attempt=attempt,
                    latency_us=done.latency_us,
                )
        failure = _failure(error)
        again = isinstance(error, ModelError) and error.retryable and attempt < self._policy.model_attempts
        wait = failure.retry_after_s if failure.retry_after_s is not None else None
        return ev.ModelFailed(
            at=at,
            call=call.id,
            fingerprint=request.fingerprint,
            request=delta,
            error=failure,
            attempt=attempt,
            final=not again,
            retry_at=self._retry_at(at, attempt, wait) if again else None,
            latency_us=done.latency_us,
        )

    def _tool_outcome(self, at: int, call: Call, command: ToolCall, done: Completion) -> ev.EventBody:
        tool = command.tool
        what = f"result of tool {tool.name!r}"
        error, effect = done.error, "none"
        if done.timed_out and not tool.repeatable:
            why = str(error) if error is not None else "it timed out"
            return ev.ToolInDoubt(at=at, call=call.id, attempt=call.attempt, why=why)
        if error is None:
            try:
                result = codec.encode(done.value, what=what)
                codec.check_size(result, what=what, limit=RESULT_BYTES_MAX)
                tool.restore(codec.decode(result))
            except (UnsupportedValue, LimitExceeded) as refused:
                error, effect = refused, "done"
            else:
                return ev.ToolReturned(
                    at=at, call=call.id, result=Raw(result), attempt=call.attempt, latency_us=done.latency_us
                )
        elif isinstance(error, ToolError):
            effect = error.effect
        elif not tool.repeatable:
            effect = "unknown"
        again = effect != "done" and tool.repeatable and call.attempt <= tool.retries
        return ev.ToolFailed(
            at=at,
            call=call.id,
            error=_failure(error),
            effect=effect,  # type: ignore[arg-type]
            attempt=call.attempt,
            final=not again,
            retry_at=self._retry_at(at, call.attempt) if again else None,
            latency_us=done.latency_us,
        )

    def _retry_at(self, at: int, attempt: int, wanted_s: float | None = None) -> int:
        pause = min(self._policy.backoff_s * 2.0 ** (attempt - 1), self._policy.backoff_max_s)
        # Jitter made from the call, so that the same run retries at the same times.
        spread = hashlib.sha256(f"{self.interpreter.uid}/{self._head}/{attempt}".encode()).digest()[0] / 255
        pause *= 0.75 + 0.5 * spread
        return at + round(max(pause, wanted_s or 0.0) * 1e6)

    def _refuse(self, call: Call) -> None:
        if self._idle_by_order() or not isinstance(call.command, ToolCall):
            return
        error = ev.Failure("BadCall", call.command.refused or "")
        self._emit(ev.ToolFailed(at=self._last_at, call=call.id, error=error, effect="none", attempt=0))

    def _settle_doubt(self, call: Call) -> None:
        """Apply the tool's policy to a call that is in doubt."""
        command = call.command
        if not isinstance(command, ToolCall) or self._idle_by_order():
            return
        policy = command.tool.in_doubt
        if policy == "retry":
            self._start_tool(call, command)
        elif policy == "reconcile" and call.path not in self._performing:
            self._performing[call.path] = call.attempt
            self._host.reconcile(call, call.attempt)
        elif policy == "tell_model":
            text = "The call was interrupted; it may or may not have happened."
            self._emit(
                ev.ToolFailed(
                    at=self._at(),
                    call=call.id,
                    error=ev.Failure("OutcomeUnknown", text),
                    effect="unknown",
                    attempt=call.attempt,
                )
            )

    def _resolve(self, call: Call, verdict: Reconciled) -> None:
        """Record a reconciler's answer; `Unknown` leaves the doubt to a person."""
        at, attempt = self._at(), call.attempt
        if isinstance(verdict, DidNotHappen):
            self._emit(
                ev.ToolResolved(
                    at=at, call=call.id, attempt=attempt, outcome="did_not_happen", by="reconciler"
                )
            )
        elif isinstance(verdict, Happened):
            assert isinstance(call.command, ToolCall)
            what = f"result of the reconciler of tool {call.command.tool.name!r}"
            error: ev.Failure | None = None
            result = b"null"
            try:
                result = codec.encode(verdict.value, what=what)
                codec.check_size(result, what=what, limit=RESULT_BYTES_MAX)
            except (UnsupportedValue, LimitExceeded) as refused:
                error, result = _failure(refused), b"null"
            self._emit(
                ev.ToolResolved(
                    at=at,
                    call=call.id,
                    attempt=attempt,
                    outcome="returned" if error is None else "failed",
                    result=Raw(result),
                    error=error,
                    effect="none" if error is None else "done",
                    by="reconciler",
                )
            )

    def _record_unstepped(self, call: Call, completion: Completion) -> None:
        """After a halt the program cannot be stepped; what a tool has returned is recorded all the same."""
        if isinstance(call.command, ToolCall):
            self._put(self._tool_outcome(self._at(), call, call.command, completion))

    # Messages

    def _remember(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.id > self.seen:
                self.seen = message.id
                self._messages.append(message)

    def _match_messages(self) -> None:
        waiting, self._messages = self._messages, []
        for position, message in enumerate(waiting):
            if self.interpreter.ended is not None or self._idle_by_order():
                self._messages.extend(waiting[position:])
                return
            taken = self._take(message)
            if not taken:
                self._messages.append(message)

    def _take(self, message: Message) -> bool:
        content = decode_message(message)
        match content:
            case Cancel():
                if content.run is None or content.run == self.interpreter.run_id:
                    self.cancel(content.reason, by=content.by, consumed=message.id)
                else:
                    self._consumed.append(message.id)
                return True
            case Signal():
                for call in self._pending():
                    command = call.command
                    if (
                        isinstance(command, WaitFor)
                        and call.phase is Phase.WAITING
                        and command.name == content.name
                    ):
                        value, name = content.value, content.name
                        body = ev.SignalReceived(
                            at=self._at(), call=call.id, name=name, value=value, by=content.by
                        )
                        self._emit(body, consumed=message.id)
                        return True
                return False
            case Approval():
                return self._take_approval(message, content)
            case Resolution():
                return self._take_resolution(message, content)
            case _:
                return False

    def _take_approval(self, message: Message, content: Approval) -> bool:
        call = self._named(content.call)
        if call is None or call.phase is not Phase.ASKING:
            return self._stale(message, content.call, call)
        body = ev.ApprovalGiven(
            at=self._at(), call=call.id, approved=content.approved, by=content.by, note=content.note
        )
        self._emit(body, consumed=message.id)
        return True

    def _take_resolution(self, message: Message, content: Resolution) -> bool:
        call = self._named(content.call)
        if call is None or call.attempt != content.attempt or call.phase is not Phase.DOUBT:
            return self._stale(message, content.call, call)
        self._emit(resolution_event(content, self._at()), consumed=message.id)
        return True

    def _stale(self, message: Message, call_id: str, call: Call | None) -> bool:
        """An answer nobody can take any more is taken out of the way; one that may yet be taken stays."""
        if call is not None or not call_id.startswith(f"{self.interpreter.run_id}/"):
            return False
        self._consumed.append(message.id)
        return True

    def _named(self, call_id: str) -> Call | None:
        prefix = f"{self.interpreter.run_id}/"
        return self.interpreter.pending.get(call_id[len(prefix) :]) if call_id.startswith(prefix) else None

    # Writing

    def _emit(self, body: ev.EventBody, *, consumed: int | None = None) -> None:
        """Make *body* an event, apply it as replay would, and begin what follows from it."""
        data = ev.encode_body(body)
        decoded = ev.decode_bytes(data)
        try:
            calls = self.interpreter.apply(self._head + 1, decoded)
        except ForeignAwait as error:
            self._put(decoded, data, consumed)
            self._halt(error)
            return
        except RefoldError as error:
            self._halt(error)
            return
        self._put(decoded, data, consumed)
        for patch in self._new_patches():
            self._emit(ev.Patched(at=self._last_at, run=self.interpreter.run_id, id=patch))
        for call in calls:
            self._begin(call)
        self._fill()
        self._finish_program()

    def _put(self, body: ev.EventBody, data: bytes | None = None, consumed: int | None = None) -> None:
        if data is None:
            data = ev.encode_body(body)
        kind = ev.kind_of(body)
        self._out.append(NewEvent(self._host.new_id(), kind, ev.VERSIONS[kind], data))
        self._head += 1
        self._last_at = body.at
        self._last = body
        if self.observe is not None:
            self.observe(self._head, body)
        if consumed is not None:
            self._consumed.append(consumed)

    def _new_patches(self) -> list[str]:
        patches, self.interpreter.new_patches = self.interpreter.new_patches, []
        return patches

    def _finish_program(self) -> None:
        interpreter = self.interpreter
        done = interpreter.machine.done
        if (
            done is None
            or interpreter.ended is not None
            or self._halted is not None
            or interpreter.cancelling
        ):
            return
        run, at = interpreter.run_id, self._last_at
        if done.error is None:
            try:
                output = codec.encode(done.value, what="the run's output")
                codec.check_size(output, what="the run's output", limit=RESULT_BYTES_MAX)
            except (UnsupportedValue, LimitExceeded) as error:
                self._emit(ev.RunFailed(at=at, run=run, error=_failure(error)))
            else:
                self._emit(ev.RunFinished(at=at, run=run, output=Raw(output)))
        else:
            self._emit(ev.RunFailed(at=at, run=run, error=_failure(done.error)))

    def _halt(self, error: BaseException) -> None:
        self._halted = error
        self._gated.clear()
        run = self.interpreter.run_id
        self._put(ev.RunReleased(at=self._last_at, run=run, reason=f"stopped by {type(error).__name__}"))

    def _flush(self) -> None:
        if self._flying or not self._out or self.error is not None:
            return
        count = size = 0
        for event in self._out:
            size += len(event.body)
            if count and (size > BATCH_BYTES_MAX or count >= BATCH_EVENTS_MAX):
                break
            count += 1
        batch, self._out = self._out[:count], self._out[count:]
        consumed, self._consumed = (self._consumed, []) if not self._out else ([], self._consumed)
        self._flying = count
        state, wake_at = self._state() if not self._out else (ThreadState.RUNNING, None)
        self._host.append(batch, state=state, wake_at_us=wake_at, consumed=consumed)

    def _state(self) -> tuple[ThreadState, int | None]:
        match self._last:
            case ev.RunFinished():
                return ThreadState.FINISHED, None
            case ev.RunFailed():
                return ThreadState.FAILED, None
            case ev.RunCancelled():
                return ThreadState.CANCELLED, None
            case ev.RunParked():
                return ThreadState.PARKED, None
            case ev.RunReleased():
                return ThreadState.WAITING, self._last.wake_at
            case _:
                return (ThreadState.RUNNING if self._stopping is None else ThreadState.WAITING), None

    # Ending

    def _go_on(self) -> None:
        if self.end is not None or self.error is not None:
            return
        while self._unmatched or self._refused:
            refused, self._refused = self._refused, []
            for call in refused:
                self._refuse(call)
            if self._unmatched:
                self._unmatched = False
                self._match_messages()
        self._flush()
        if self._performing or self._flying or self._out:
            return
        if self._halted is not None:
            self.error = self._halted
        elif self.interpreter.ended is not None:
            self._finish_ended(self.interpreter.ended)
        elif self.interpreter.cancelling:
            self._give_up()
            self._flush()
        elif self._stopping is not None:
            self.end = End(status="released")
        else:
            self._rest()

    def _finish_ended(self, body: ev.EventBody) -> None:
        match body:
            case ev.RunFinished():
                self.end = End(status="finished")
            case ev.RunFailed():
                self.end = End(status="failed")
            case _:
                self.end = End(status="cancelled")

    def _rest(self) -> None:
        """Nothing is being done: wait for a clock that will strike soon, or leave."""
        soonest = self._soonest()
        left = isinstance(self._last, ev.RunReleased | ev.RunParked)
        if not left and soonest is not None and soonest <= self._at() + round(self._policy.hold_wait_s * 1e6):
            self._host.alarm(soonest)
            return
        self._finish_idle(write=True)

    def _finish_idle(self, *, write: bool) -> None:
        doubts = [call for call in self._pending() if call.phase is Phase.DOUBT]
        run = self.interpreter.run_id
        if doubts:
            if write and self.interpreter.parked is None:
                calls = [call.id for call in doubts]
                self._emit(ev.RunParked(at=self._at(), run=run, reason=_doubt_reason(doubts), calls=calls))
                self._flush()
                return
            self.end = End(status="parked")
            return
        wake_at = self._soonest()
        if write and not isinstance(self._last, ev.RunReleased):
            self._emit(ev.RunReleased(at=self._at(), run=run, reason="waiting", wake_at=wake_at))
            self._flush()
            return
        self.end = End(status="waiting", wake_at=wake_at)

    def _give_up(self) -> None:
        """Grace is over: what still runs is in doubt, and a cancelled run ends."""
        self._grace_until = None
        at = self._at()
        for path in list(self._performing):
            call = self.interpreter.pending[path]
            del self._performing[path]
            self._host.abandon(call)
            if call.phase is Phase.STARTED:
                why = "it was still running when its worker left"
                self._emit(ev.ToolInDoubt(at=at, call=call.id, attempt=call.attempt, why=why))
        if self.interpreter.cancelling and self.interpreter.ended is None:
            self._emit(ev.RunCancelled(at=at, run=self.interpreter.run_id, reason="cancelled"))

    def _set_grace(self, grace_s: float) -> None:
        if self._performing:
            self._grace_until = self._at() + round(grace_s * 1e6)
            self._host.alarm(self._grace_until)

    def _has_news(self) -> bool:
        interpreter = self.interpreter
        if interpreter.machine.done is not None or interpreter.cancelling or interpreter.new_patches:
            return True
        now = self._at()
        answers: set[str] = set()
        signals: set[str] = set()
        for message in self._messages:
            content = decode_message(message)
            if isinstance(content, Approval | Resolution):
                answers.add(content.call)
            elif isinstance(content, Signal):
                signals.add(content.name)
            elif message.kind == CANCEL:
                return True
        return any(_newsworthy(call, now, answers, signals) for call in self._pending())

    def _soonest(self) -> int | None:
        dues = [c.due for c in self._pending() if c.phase is Phase.WAITING and c.due is not None]
        dues += [c.retry_at for c in self._pending() if c.phase is Phase.BACKOFF and c.retry_at is not None]
        return min(dues, default=None)

    def _pending(self) -> list[Call]:
        return list(self.interpreter.pending.values())

    def _at(self) -> int:
        return max(self._last_at, self._host.now_us())


def _newsworthy(call: Call, now: int, answers: set[str], signals: set[str]) -> bool:
    """Whether resuming can move this call."""
    command = call.command
    match call.phase:
        case Phase.DOUBT:
            return call.id in answers or (isinstance(command, ToolCall) and command.tool.in_doubt != "park")
        case Phase.ASKING:
            return call.id in answers
        case Phase.WAITING:
            due = call.due is not None and call.due <= now
            return due or (isinstance(command, WaitFor) and command.name in signals)
        case Phase.BACKOFF:
            return (call.retry_at or 0) <= now
        case _:
            return True


def _doubt_reason(doubts: list[Call]) -> str:
    names = ", ".join(c.command.tool.name for c in doubts if isinstance(c.command, ToolCall))
    return f"the outcome of {names} is unknown; say what happened with 'refold resolve'"


def _step_outcome(at: int, call: Call, command: StepCall, done: Completion) -> ev.EventBody:
    error = done.error
    args = Raw(command.args)
    if error is None:
        what = f"result of step {command.name!r}"
        try:
            result = codec.encode(done.value, what=what)
            codec.check_size(result, what=what, limit=RESULT_BYTES_MAX)
        except (UnsupportedValue, LimitExceeded) as refused:
            error = refused
        else:
            return ev.StepRecorded(
                at=at,
                call=call.id,
                name=command.name,
                args=args,
                result=Raw(result),
                latency_us=done.latency_us,
            )
    return ev.StepFailed(
        at=at, call=call.id, name=command.name, args=args, error=_failure(error), latency_us=done.latency_us
    )


def _failure(error: BaseException | None) -> ev.Failure:
    if isinstance(error, ModelError):
        return ev.Failure(
            error.error_type,
            error.message,
            kind=error.kind,
            status=error.status,
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, ToolError):
        return ev.Failure(error.error_type, error.message)
    if isinstance(error, ToolRaised):
        error = error.original
    if error is None:
        return ev.Failure("Error", "unknown")
    info = codec.describe_error(error)
    return ev.Failure(info.type, info.message)


def late_resolution(call: Call, attempt: int, completion: Completion) -> Resolution | None:
    """What the outcome of a tool that was given up tells whoever holds the thread now; None if it tells nothing."""
    if not isinstance(call.command, ToolCall):
        return None
    tool, error = call.command.tool, completion.error
    if error is None:
        try:
            result = codec.encode(completion.value, what=f"result of tool {tool.name!r}")
            codec.check_size(result, what=f"result of tool {tool.name!r}", limit=RESULT_BYTES_MAX)
            return Resolution(call.id, attempt, "returned", Raw(result), by="worker")
        except (UnsupportedValue, LimitExceeded) as refused:
            return Resolution(call.id, attempt, "failed", error=_failure(refused), effect="done", by="worker")
    if not isinstance(error, ToolError) or error.effect == "unknown":
        return None
    return Resolution(call.id, attempt, "failed", error=_failure(error), effect=error.effect, by="worker")
