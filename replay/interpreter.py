"""
Folds events over a program: the one `apply(event)` that serves live and replay alike.

A recorded event is used only if kind, path, name and arguments (or fingerprint) match what the program asks;
replies are delivered one at a time in log order, the program running to quiescence after each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from msgspec import Raw

from ..journal import codec
from ..journal.errors import UnsupportedValue
from . import events as ev
from .commands import Call, Command, ModelCall, Phase, Sleep, StepCall, ToolCall, WaitFor, shorten
from .divergence import Divergence, describe_body
from .errors import ModelError, StepError, ToolError
from .machine import Machine
from .program import Program
from .requests import Base, Prior
from .response import Response

C = TypeVar("C", ModelCall, ToolCall, StepCall, Sleep, WaitFor)

_STARTED = Phase.STARTED
"""Looked up once: an enum looks for its members anew each time."""


class Interpreter:
    """
    One run of a program, as far as its events have been applied.

    Args:
        program: What is run.
        thread: Thread id.
        uid: The thread's uid; seeds randomness.
        run_id: Id of the run.
        prior: What earlier runs of the thread left.
        accepted: Pairs (recorded digest, asked digest) between which changed requests are accepted.
        patches: Ids that the run's log says were answered true.
        doubted: (tool, argument bytes) of calls of earlier runs whose effect is unknown.
    """

    def __init__(
        self,
        program: Program,
        *,
        thread: str,
        uid: str,
        run_id: str,
        prior: Prior,
        accepted: frozenset[tuple[str, str]] = frozenset(),
        patches: frozenset[str] = frozenset(),
        doubted: frozenset[tuple[str, bytes]] = frozenset(),
    ) -> None:
        self.program = program
        self.thread = thread
        self.run_id = run_id
        self.uid = uid
        self.seq = 0
        self.recorded_to = 0
        """Seq of the last event that was recorded before this interpreter came; 0 for a new run."""
        self.digest = program.digest
        self.tenures = 0
        self.ended: ev.EventBody | None = None
        self.last: ev.EventBody | None = None
        """The event applied last."""
        self.cancelling = ""
        self.new_patches: list[str] = []
        self._leaving = False
        self._prefix = f"{run_id}/"
        self._accepted = accepted
        self._patches = patches
        self._answers: dict[str, bool] = {}
        self.doubted = set(doubted)
        self._unstarted: dict[str, Call] = {}
        self._running: set[str] = set()
        self.machine = Machine(
            program.function,
            thread=thread,
            run_id=run_id,
            seed=f"{uid}/{run_id}",
            prior=prior,
            patched=self._patched,
        )

    @property
    def pending(self) -> dict[str, Call]:
        """Calls asked and not yet answered, by id, in the order of asking."""
        return self.machine.pending

    def apply(self, seq: int, body: ev.EventBody) -> list[Call]:
        """
        Apply one event; the calls that are to be begun because of it.

        Raises:
            Divergence: The event does not fit what the program asks.
            ForeignAwait: The program awaited something that is not a command; the event itself is fine.
        """
        self.seq = seq
        if self.ended is not None:
            self._diverge(body, "nothing: its run has ended")
        self.last = body
        handler = _HANDLERS.get(type(body))
        return [] if handler is None else handler(self, body)

    def named(self, call_id: str) -> Call | None:
        """The pending call of that id."""
        return self.machine.pending.get(call_id)

    def at(self, path: str) -> Call | None:
        """The pending call at that path."""
        return self.machine.pending.get(self._prefix + path)

    def next_tool(self, again: Call | None = None) -> Call | None:
        """The tool call to start now, if a slot is free: the first one asked, or else *again*."""
        if (self._unstarted or again) and len(self._running) < self.program.concurrency:
            return next(iter(self._unstarted.values()), again)
        return None

    def tenure_over(self) -> None:
        """The tenure that wrote the log so far is over: whatever it left started is in doubt."""
        for call_id in self._running:
            self.pending[call_id].phase = Phase.DOUBT
        self._running.clear()

    def resumption(self, *, at: int, rival: bool) -> ev.RunResumed:
        """The event of the next tenure; *rival*: the worker before may still be alive."""
        program = self.program
        return ev.RunResumed(
            at=at,
            run=self.run_id,
            tenure=self.tenures + 1,
            digest=program.digest,
            definition=program.definition,
            rival=rival,
        )

    # Lifecycle

    def _run_started(self, body: ev.RunStarted) -> list[Call]:
        if body.program != self.program.name:
            self._diverge(body, f"program {self.program.name!r}")
        self.digest = body.digest
        self.machine.run.definition = body.definition
        self.tenures = 1
        return self._take(self.machine.start(codec.decode(body.input), body.at))

    def _run_resumed(self, body: ev.RunResumed) -> list[Call]:
        self.tenure_over()
        self.digest = body.digest
        self.tenures = body.tenure
        self._leaving = False
        return []

    def _run_left(self, body: ev.RunReleased | ev.RunParked) -> list[Call]:
        self._leaving = True
        return []

    def _run_finished(self, body: ev.RunFinished) -> list[Call]:
        done = self.machine.done
        if done is None or done.error is not None:
            self._diverge(body, self._wants())
        output = codec.encode(done.value, what="the run's output")
        if output != bytes(body.output):
            self._diverge(body, f"to finish with {shorten(output.decode())}")
        self.ended = body
        return []

    def _run_failed(self, body: ev.RunFailed) -> list[Call]:
        if self.machine.done is None:
            self._diverge(body, self._wants())
        self.ended = body
        return []

    def _run_cancelled(self, body: ev.RunCancelled) -> list[Call]:
        self.ended = body
        return []

    def _cancel_requested(self, body: ev.CancelRequested) -> list[Call]:
        self.cancelling = body.reason or "cancelled"
        return []

    def _thread_forked(self, body: ev.ThreadForked) -> list[Call]:
        self.uid = body.uid
        self.machine.reseed(f"{body.uid}/{self.run_id}")
        return []

    def _patch_recorded(self, body: ev.Patched) -> list[Call]:
        if not self._answers.get(body.id):
            self._diverge(body, f"no run.patched({body.id!r})")
        return []

    def _patched(self, patch: str) -> bool:
        answer = self._answers.get(patch)
        if answer is None:
            answer = self._answers[patch] = patch in self._patches or self.seq >= self.recorded_to
            if answer and patch not in self._patches:
                self.new_patches.append(patch)
        return answer

    # Models and steps

    def _model_started(self, body: ev.ModelStarted) -> list[Call]:
        call, command = self._matching(body, ModelCall)
        self._base(body, call, command)
        if body.attempt != call.attempt + 1 or call.id in self._running:
            self._diverge(body, f"attempt {call.attempt + 1} of this call, which is {call.phase.value}")
        call.attempt = body.attempt
        call.phase = Phase.STARTED
        self._running.add(call.id)
        return []

    def _model_responded(self, body: ev.ModelResponded) -> list[Call]:
        call, command = self._matching(body, ModelCall)
        call.branch.base = self._base(body, call, command)
        response = Response(call.id, body.response, body.usage)
        self.machine.answers.append(body.usage)
        self.machine.interner.replies.append((response.raw, call.id))
        return self._reply(body, call, response)

    def _model_failed(self, body: ev.ModelFailed) -> list[Call]:
        call, command = self._matching(body, ModelCall)
        call.branch.base = self._base(body, call, command)
        call.attempt = body.attempt
        self._running.discard(call.id)
        self.machine.used.add_unusable(body.usage)
        if not body.final:
            call.phase, call.retry_at = Phase.BACKOFF, body.retry_at
            return []
        return self._reply(body, call, None, body.error.of_model(body.usage))

    def _base(self, body: ev.Asked, call: Call, command: ModelCall) -> Base | None:
        """What the next request is stored against: this one, if it is the recorded one."""
        request = command.request
        if request.fingerprint != body.fingerprint:
            self._check_accepted(body, command)
            return None
        return Base(call.id, request.ranges, request.params.digest)

    def _check_accepted(self, body: ev.Asked, command: ModelCall) -> None:
        """Raise the divergence of a changed request, unless it has been accepted."""
        if (self.digest, self.program.digest) in self._accepted:
            return
        request = command.request
        raise Divergence(
            thread=self.thread,
            seq=self.seq,
            recorded=f"{ev.kind_of(body)} at {body.call} for request {body.fingerprint}",
            asked=f"another request there, {request.fingerprint} ({request.size} messages)",
            shape=False,
            body=body,
            command=command,
        )

    def _step_recorded(self, body: ev.StepRecorded) -> list[Call]:
        call = self._step(body)
        return self._reply(body, call, codec.decode(body.result))

    def _step_failed(self, body: ev.StepFailed) -> list[Call]:
        call = self._step(body)
        return self._reply(body, call, None, StepError(body.error.message, error_type=body.error.type))

    def _step(self, body: ev.StepRecorded | ev.StepFailed) -> Call:
        call, command = self._matching(body, StepCall)
        if command.name != body.name or command.args != bytes(body.args):
            self._diverge(body, call.describe())
        return call

    # Tools

    def _tool_started(self, body: ev.ToolStarted) -> list[Call]:
        call, command = self._matching(body, ToolCall)
        if command.tool.name != body.tool or command.args != bytes(body.args):
            self._diverge(body, call.describe())
        if body.attempt != call.attempt + 1 or call.id in self._running:
            self._diverge(body, f"attempt {call.attempt + 1} of this call, which is {call.phase.value}")
        call.attempt = body.attempt
        call.key = body.key
        call.phase = _STARTED
        self._unstarted.pop(call.id, None)
        self._running.add(call.id)
        return []

    def _tool_returned(self, body: ev.ToolReturned) -> list[Call]:
        call, command = self._matching(body, ToolCall)
        if call.phase is not _STARTED or call.attempt != body.attempt:
            self._diverge(body, f"this call in attempt {call.attempt}, {call.phase.value}")
        result = body.result if command.raw else self._restored(body, command, body.result)
        return self._reply(body, call, result)

    def _tool_failed(self, body: ev.ToolFailed) -> list[Call]:
        call, command = self._matching(body, ToolCall)
        self._check_attempt(body, call, (Phase.STARTED, Phase.DOUBT, Phase.REFUSED))
        if not body.final:
            self._running.discard(call.id)
            call.phase, call.retry_at, call.failures = Phase.BACKOFF, body.retry_at, call.failures + 1
            return []
        return self._fail(body, call, command, body.error, body.effect)

    def _tool_in_doubt(self, body: ev.ToolInDoubt) -> list[Call]:
        call = self._one_of(body, ToolCall, ModelCall)
        self._check_attempt(body, call, (Phase.STARTED, Phase.DOUBT))
        self.machine.used.add_unusable(body.usage)
        self._running.discard(call.id)
        call.phase = Phase.DOUBT
        return []

    def _tool_resolved(self, body: ev.ToolResolved) -> list[Call]:
        if not body.call.startswith(self._prefix):
            # A call of an earlier run: the conversation of the thread tells it, not this program's commands.
            return []
        # A worker that leaves before a durable start was acted on says so itself.
        phases = (Phase.DOUBT, Phase.STARTED) if body.outcome == "did_not_happen" else (Phase.DOUBT,)
        call = self._one_of(body, ToolCall, ModelCall)
        self._check_attempt(body, call, phases)
        if body.outcome == "did_not_happen":
            return self._begin_again(call)
        error, command = body.error or ev.Failure("ToolError", ""), call.command
        if not isinstance(command, ToolCall):
            return self._reply(body, call, None, ModelError(error.message, error_type=error.type))
        if body.outcome == "returned":
            result = body.result if command.raw else self._restored(body, command, body.result)
            return self._reply(body, call, result)
        return self._fail(body, call, command, error, body.effect)

    def _approval_requested(self, body: ev.ApprovalRequested) -> list[Call]:
        call, command = self._matching(body, ToolCall)
        if command.tool.name != body.tool or command.args != bytes(body.args):
            self._diverge(body, call.describe())
        self._unstarted.pop(call.id, None)
        call.phase = Phase.ASKING
        return []

    def _approval_given(self, body: ev.ApprovalGiven) -> list[Call]:
        call, command = self._matching(body, ToolCall)
        if call.phase is not Phase.ASKING:
            self._diverge(body, f"no approval of this call, which is {call.phase.value}")
        if body.approved:
            self.doubted.discard((command.tool.name, command.args))
            return self._begin_again(call)
        by = f" by {body.by}" if body.by else ""
        text = f"The call was denied{by}{': ' + body.note if body.note else ''}."
        return self._fail(body, call, command, ev.Failure("ToolDenied", text), "none")

    def _begin_again(self, call: Call) -> list[Call]:
        call.phase = Phase.ASKED
        self._running.discard(call.id)
        if isinstance(call.command, ToolCall):
            self._unstarted[call.id] = call
        return [call]

    def _restored(self, body: ev.EventBody, command: ToolCall, result: Raw) -> Any:
        try:
            return command.tool.restore(codec.decode(result))
        except UnsupportedValue as error:
            self._diverge(body, f"a result of another type: {error}")

    def _fail(self, body: Any, call: Call, command: ToolCall, error: ev.Failure, effect: Any) -> list[Call]:
        if effect == "unknown":
            self.doubted.add((command.tool.name, command.args))
        failed = ToolError(error.message, error_type=error.type, effect=effect)
        return self._reply(body, call, failed) if command.raw else self._reply(body, call, None, failed)

    def _check_attempt(self, body: Any, call: Call, phases: tuple[Phase, ...]) -> None:
        """The call must be in one of these phases of exactly the attempt that *body* names."""
        if call.phase not in phases or call.attempt != body.attempt:
            self._diverge(body, f"this call in attempt {call.attempt}, {call.phase.value}")

    # Time and signals

    def _timer_set(self, body: ev.TimerSet) -> list[Call]:
        call, _ = self._matching(body, Sleep)
        call.phase, call.due = Phase.WAITING, body.due
        return []

    def _timer_fired(self, body: ev.TimerFired) -> list[Call]:
        call = self._one_of(body, Sleep, WaitFor)
        if call.phase is not Phase.WAITING:
            self._diverge(body, self._wants())
        return self._reply(body, call, None)

    def _wait_started(self, body: ev.WaitStarted) -> list[Call]:
        call, command = self._matching(body, WaitFor)
        if command.name != body.name:
            self._diverge(body, call.describe())
        call.phase, call.due = Phase.WAITING, body.due
        return []

    def _signal_received(self, body: ev.SignalReceived) -> list[Call]:
        call, command = self._matching(body, WaitFor)
        if command.name != body.name or call.phase is not Phase.WAITING:
            self._diverge(body, call.describe())
        return self._reply(body, call, codec.decode(body.value))

    # Matching

    def _matching(self, body: Any, kind: type[C]) -> tuple[Call, C]:
        """The pending call that *body* is about, and its command, which must be of this kind."""
        call = self.machine.pending.get(body.call)
        if call is None or type(call.command) is not kind:
            self._misplaced(body)
        return call, call.command

    def _one_of(self, body: Any, *kinds: type[Command]) -> Call:
        """As `_matching`, where commands of several kinds will do."""
        call = self.machine.pending.get(body.call)
        if call is None or type(call.command) not in kinds:
            self._misplaced(body)
        return call

    def _misplaced(self, body: Any) -> NoReturn:
        own = body.call.startswith(self._prefix)
        self._diverge(body, self._wants(body.call) if own else f"calls of run {self.run_id!r}")

    def _reply(self, body: Any, call: Call, value: Any, error: Exception | None = None) -> list[Call]:
        if self._unstarted and not self._leaving and not self.cancelling:
            self._check_started(body)
        self._running.discard(call.id)
        return self._take(self.machine.reply(call, value, error, body.at))

    def _check_started(self, body: ev.EventBody) -> None:
        """Live begins every tool it can before the next reply; one that has no start here was not asked then."""
        if len(self._running) < self.program.concurrency:
            first = next(iter(self._unstarted.values()))
            self._diverge(
                body, f"{first.describe()} at {first.id} before it, which the log does not start here"
            )

    def _take(self, asked: list[Call]) -> list[Call]:
        for call in asked:
            command = call.command
            if type(command) is ToolCall:
                if command.refused is not None:
                    call.phase = Phase.REFUSED
                elif (command.tool.may_need_approval or self.doubted) and self._held(command):
                    call.phase = Phase.HELD
                else:
                    self._unstarted[call.id] = call
        return asked

    def _held(self, command: ToolCall) -> bool:
        tool, args = command.tool, command.args
        # Recorded requests are followed without asking here: older logs hold some of repeatable tools too.
        doubted = not tool.repeatable and (tool.name, args) in self.doubted
        return doubted or (tool.may_need_approval and tool.needs_approval(codec.decode(args)))

    def _wants(self, call_id: str | None = None) -> str:
        done = self.machine.done
        if done is not None:
            how = f"raised {type(done.error).__name__}: {done.error}" if done.error else "returned"
            return f"nothing more: the program has {how}"
        if call_id in self.pending:
            return f"{self.pending[call_id].describe()} at {call_id}"
        return "; ".join(f"{c.describe()} at {c.id}" for c in self.pending.values()) or "nothing"

    def _diverge(self, body: ev.EventBody, asked: str) -> NoReturn:
        call = self.named(getattr(body, "call", ""))
        raise Divergence(
            thread=self.thread,
            seq=self.seq,
            recorded=describe_body(body),
            asked=asked,
            body=body,
            command=call.command if call else None,
        )


_HANDLERS: dict[type, Callable[[Any, Any], list[Call]]] = {
    ev.RunStarted: Interpreter._run_started,
    ev.RunResumed: Interpreter._run_resumed,
    ev.RunReleased: Interpreter._run_left,
    ev.RunParked: Interpreter._run_left,
    ev.RunFinished: Interpreter._run_finished,
    ev.RunFailed: Interpreter._run_failed,
    ev.RunCancelled: Interpreter._run_cancelled,
    ev.CancelRequested: Interpreter._cancel_requested,
    ev.ThreadForked: Interpreter._thread_forked,
    ev.Patched: Interpreter._patch_recorded,
    ev.ModelStarted: Interpreter._model_started,
    ev.ModelResponded: Interpreter._model_responded,
    ev.ModelFailed: Interpreter._model_failed,
    ev.StepRecorded: Interpreter._step_recorded,
    ev.StepFailed: Interpreter._step_failed,
    ev.ToolStarted: Interpreter._tool_started,
    ev.ToolReturned: Interpreter._tool_returned,
    ev.ToolFailed: Interpreter._tool_failed,
    ev.ToolInDoubt: Interpreter._tool_in_doubt,
    ev.ToolResolved: Interpreter._tool_resolved,
    ev.ApprovalRequested: Interpreter._approval_requested,
    ev.ApprovalGiven: Interpreter._approval_given,
    ev.TimerSet: Interpreter._timer_set,
    ev.TimerFired: Interpreter._timer_fired,
    ev.WaitStarted: Interpreter._wait_started,
    ev.SignalReceived: Interpreter._signal_received,
}
