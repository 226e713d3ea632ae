"""Checks that the events of a thread belong together: starts and outcomes, runs and ends. Needs no program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from ..journal.envelope import Event
from ..journal.errors import Corrupt
from . import events as ev
from .errors import UnknownEvent


class _Call(Struct):
    attempt: int = 0
    opened: str = ""
    """Kind of what it waits with: a start, an approval, a timer or a wait; empty when it waits for nothing."""
    done: bool = False
    key: str = ""
    tenure: int = 0
    """In which tenure it was started last."""


class Pairing(Struct):
    """
    Follows one thread, event by event.

    Args:
        thread: Thread id.
        passed_over: Events that this refold does not know; after one, only the envelope can be checked.
    """

    thread: str
    passed_over: int = 0
    run: str = ""
    """The run that has not ended."""
    runs: set[str] = field(default_factory=set)
    calls: dict[str, _Call] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    at: int = 0
    tenures: int = 0
    """Of all runs so far; a call that an earlier one left in doubt may be started again."""

    def look(self, event: Event) -> str | None:
        """What is wrong with the next event; None if nothing is."""
        try:
            body = ev.decode_event(event)
        except UnknownEvent:
            self.passed_over += 1
            return None
        except Corrupt as error:
            return str(error).partition(": ")[2]
        fault = self._apply(event.seq, body)
        # After an event that cannot be read nobody knows what was open.
        return None if self.passed_over else fault

    def _apply(self, seq: int, body: ev.EventBody) -> str | None:
        if (seq == 1) != isinstance(body, ev.ThreadCreated):
            return "a thread begins with thread_created, once"
        if body.at < self.at:
            return f"its time {body.at} is before the event before it ({self.at})"
        self.at = body.at
        if isinstance(body, ev.RunStarted):
            return self._started(body)
        run: str | None = getattr(body, "run", None)
        if run is not None:
            return self._of_run(body, run)
        call: str | None = getattr(body, "call", None)
        return None if call is None else self._of_call(body, call)

    def _started(self, body: ev.RunStarted) -> str | None:
        if self.run:
            return f"run {body.run!r} starts while run {self.run!r} has not ended"
        if body.run in self.runs:
            return f"run {body.run!r} starts a second time"
        self.run = body.run
        self.runs.add(body.run)
        self.tenures += 1
        return None

    def _of_run(self, body: ev.EventBody, run: str) -> str | None:
        if run != self.run:
            return f"{ev.kind_of(body)} of run {run!r}, which is not going on"
        if isinstance(body, ev.RUN_ENDS):
            self.run = ""
        elif isinstance(body, ev.RunResumed):
            self.tenures += 1
        return None

    def _of_call(self, body: ev.EventBody, call_id: str) -> str | None:
        run = call_id.partition("/")[0]
        if run not in self.runs:
            return f"call {call_id!r} belongs to no run that has started"
        if run != self.run and not isinstance(body, ev.ToolResolved):
            return f"{ev.kind_of(body)} of {call_id!r}, whose run is not going on"
        call = self.calls.setdefault(call_id, _Call())
        if call.done and run == self.run:
            return f"{ev.kind_of(body)} of {call_id!r}, which has its outcome already"
        return _RULES[type(body)](self, call, body)

    def _model(self, call: _Call, body: ev.ModelResponded | ev.ModelFailed) -> str | None:
        call.opened = ""
        call.done = isinstance(body, ev.ModelResponded) or body.final
        return None

    def _model_started(self, call: _Call, body: ev.ModelStarted) -> str | None:
        if call.opened == "model_started" and call.tenure == self.tenures:
            return f"{body.call!r} starts again while attempt {call.attempt} has no outcome"
        call.attempt, call.opened, call.tenure = body.attempt, "model_started", self.tenures
        return None

    def _step(self, call: _Call, body: Any) -> str | None:
        call.done = True
        return None

    def _tool_started(self, call: _Call, body: ev.ToolStarted) -> str | None:
        if body.attempt != call.attempt + 1:
            return f"attempt {body.attempt} of {body.call!r} starts after attempt {call.attempt}"
        if call.opened == "tool_started" and call.tenure == self.tenures:
            return f"{body.call!r} starts again while attempt {call.attempt} has no outcome"
        if call.key and body.key != call.key:
            return f"{body.call!r} changes its idempotency key"
        if self.keys.setdefault(body.key, body.call) != body.call:
            return f"the idempotency key of {body.call!r} was used for {self.keys[body.key]!r}"
        call.key, call.attempt, call.opened, call.tenure = (
            body.key,
            body.attempt,
            "tool_started",
            self.tenures,
        )
        return None

    def _tool_outcome(
        self, call: _Call, body: ev.ToolReturned | ev.ToolFailed | ev.ToolInDoubt
    ) -> str | None:
        refused = isinstance(body, ev.ToolFailed) and body.attempt == 0 and not call.attempt
        if not refused and (call.opened not in _STARTS or call.attempt != body.attempt):
            return f"{ev.kind_of(body)} of attempt {body.attempt} of {body.call!r}, which is not under way"
        if isinstance(body, ev.ToolInDoubt):
            return None
        call.opened = ""
        call.done = isinstance(body, ev.ToolReturned) or body.final
        return None

    def _tool_resolved(self, call: _Call, body: ev.ToolResolved) -> str | None:
        if call.opened not in _STARTS or call.attempt != body.attempt:
            return f"{body.call!r} is resolved for attempt {body.attempt}, which is not under way"
        call.opened = ""
        call.done = body.outcome != "did_not_happen"
        return None

    def _opens(self, call: _Call, body: Any) -> str | None:
        if call.opened:
            return f"{ev.kind_of(body)} of {body.call!r}, which waits already"
        call.opened = ev.kind_of(body)
        return None

    def _closes(self, call: _Call, body: Any) -> str | None:
        expected = _OPENED_BY[type(body)]
        if call.opened not in expected:
            return f"{ev.kind_of(body)} of {body.call!r} without {' or '.join(expected)} before it"
        call.opened = ""
        # An approved call goes on to start.
        call.done = not (isinstance(body, ev.ApprovalGiven) and body.approved)
        return None


_STARTS = ("tool_started", "model_started")
_OPENED_BY: dict[type, tuple[str, ...]] = {
    ev.TimerFired: ("timer_set", "wait_started"),
    ev.SignalReceived: ("wait_started",),
    ev.ApprovalGiven: ("approval_requested",),
}
_RULES: dict[type, Callable[[Pairing, _Call, Any], str | None]] = {
    ev.ModelStarted: Pairing._model_started,
    ev.ModelResponded: Pairing._model,
    ev.ModelFailed: Pairing._model,
    ev.StepRecorded: Pairing._step,
    ev.StepFailed: Pairing._step,
    ev.ToolStarted: Pairing._tool_started,
    ev.ToolReturned: Pairing._tool_outcome,
    ev.ToolFailed: Pairing._tool_outcome,
    ev.ToolInDoubt: Pairing._tool_outcome,
    ev.ToolResolved: Pairing._tool_resolved,
    ev.TimerSet: Pairing._opens,
    ev.WaitStarted: Pairing._opens,
    ev.ApprovalRequested: Pairing._opens,
    ev.TimerFired: Pairing._closes,
    ev.SignalReceived: Pairing._closes,
    ev.ApprovalGiven: Pairing._closes,
}
