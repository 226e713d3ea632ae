"""
Folds a thread's events into what can be said of it without running any program: runs, open calls, waits, usage.

This is what lists, shows and guards a thread: which run is unfinished, what is in doubt, who may answer what.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Raw, Struct

from ..journal.envelope import Event
from . import events as ev
from .errors import Effect
from .twin import twin
from .usage import Totals

RunStatus = Literal["running", "waiting", "parked", "released", "finished", "failed", "cancelled"]
CallStatus = Literal["started", "in doubt", "waits for approval", "waits for a signal", "sleeps", "retries"]


_ENDED = frozenset({"finished", "failed", "cancelled"})


class OpenCall(Struct, gc=False):
    """A call that has something recorded and no outcome yet."""

    call: str
    status: CallStatus
    name: str = ""
    """Name of the tool or of the signal; empty for models and sleeps."""
    args: Raw = ev.NULL
    attempt: int = 0
    key: str = ""
    due: int | None = None
    since: int = 0
    seq: int = 0
    at_large: bool = False
    """Whether a worker that may still be alive may be at this attempt."""


@dataclass(slots=True)
class RunState:
    """One run of a thread."""

    run: str
    program: str
    digest: str
    input: Raw
    key: str | None = None
    started_at: int = 0
    due: int | None = None
    """When its time is over."""
    first_seq: int = 0
    last_seq: int = 0
    status: RunStatus = "running"
    reason: str = ""
    output: Raw | None = None
    error: ev.Failure | None = None
    tenures: int = 1
    idle_tenures: int = 0
    """Tenures in a row, before the newest, that ended without a release and without recording any outcome."""
    progressed: bool = False
    """Whether the newest tenure has recorded an outcome or left in good order."""
    poisoned: bool = False
    """Parked because it kills its workers; it goes on only when somebody releases it."""
    open: dict[str, OpenCall] = field(default_factory=dict)
    usage: Totals = field(default_factory=Totals)
    tools: int = 0
    patches: list[str] = field(default_factory=list)
    accepted: list[tuple[str, str]] = field(default_factory=list)

    def copy(self) -> RunState:
        """An independent copy."""
        copied = twin(self)
        copied.open = {call_id: copy.copy(call) for call_id, call in self.open.items()}
        copied.usage = twin(self.usage)
        copied.patches, copied.accepted = list(self.patches), list(self.accepted)
        return copied

    @property
    def lost_tenures(self) -> int:
        """Tenures in a row, the newest included, that ended without a release and without an outcome."""
        return 0 if self.progressed else self.idle_tenures + 1

    @property
    def ended(self) -> bool:
        """Whether nothing will be added to this run."""
        return self.status in _ENDED


class Start(Struct, frozen=True):
    """What a thread was when a run began."""

    uid: str
    doubted: frozenset[tuple[str, bytes]]


@dataclass(slots=True)
class ThreadStatus:
    """A thread as its events tell it."""

    thread: str
    head: int = 0
    uid: str = ""
    last_at: int = 0
    origin: str | None = None
    runs: list[RunState] = field(default_factory=list)
    doubts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """(tool, argument bytes) of calls that are over and whose effect is unknown, by call id."""
    starts: dict[str, Start] = field(default_factory=dict)
    """By run."""

    @property
    def doubted(self) -> frozenset[tuple[str, bytes]]:
        """(tool, argument bytes) whose effect is unknown: an identical call needs an approval, unless repeatable."""
        return frozenset(self.doubts.values())

    @property
    def current(self) -> RunState | None:
        """The newest run, ended or not."""
        return self.runs[-1] if self.runs else None

    @property
    def unfinished(self) -> RunState | None:
        """The run that has not ended, if there is one."""
        run = self.current
        return run if run is not None and not run.ended else None

    def run(self, run_id: str) -> RunState | None:
        """The run of that id."""
        for run in reversed(self.runs):
            if run.run == run_id:
                return run
        return None

    def open_call(self, call_id: str) -> OpenCall | None:
        """The open call of that id, in whichever run."""
        run = self.run(call_id.partition("/")[0])
        return run.open.get(call_id) if run else None

    def copy(self) -> ThreadStatus:
        """An independent copy."""
        copied = twin(self)
        copied.runs = [run.copy() for run in self.runs]
        copied.doubts = dict(self.doubts)
        copied.starts = dict(self.starts)
        return copied

    def apply(self, seq: int, body: ev.EventBody) -> None:
        """Fold one event."""
        self.head = seq
        self.last_at = body.at
        runs = self.runs
        if runs and (newest := runs[-1]).status not in _ENDED:
            newest.last_seq = seq
        common = _COMMON.get(type(body))
        if common is None:
            self._apply(seq, body)
        elif (run := self._run_of(body)) is not None:
            common(run, seq, body)

    def _apply(self, seq: int, body: Any) -> None:
        match body:
            case ev.ThreadCreated():
                self.uid = body.uid
            case ev.ThreadForked():
                self.uid, self.origin = body.uid, body.origin
                if self.unfinished is not None:
                    # The deadline was the parent's; a fork is made to see how it would go on.
                    self.unfinished.due = None
            case ev.RunStarted():
                self.starts[body.run] = Start(self.uid, self.doubted)
                self.runs.append(
                    RunState(
                        run=body.run,
                        program=body.program,
                        digest=body.digest,
                        input=body.input,
                        key=body.key,
                        started_at=body.at,
                        due=body.due,
                        first_seq=seq,
                        last_seq=seq,
                    )
                )
            case _:
                run = self._run_of(body) if type(body) in ev.OF_CALLS else self.run(body.run)
                if run is not None:
                    _apply(self, run, seq, body)

    def _run_of(self, body: Any) -> RunState | None:
        """The run of the call that *body* is about."""
        run_id, newest = body.call.partition("/")[0], self.runs[-1] if self.runs else None
        return newest if newest is not None and newest.run == run_id else self.run(run_id)


def fold(thread: str, events: Iterable[Event], *, lenient: bool = False) -> ThreadStatus:
    """
    The status of *thread* after *events*.

    Args:
        thread: Thread id.
        events: Its events from seq 1 on.
        lenient: Pass over events of unknown kinds and versions, for viewing.

    Raises:
        UnknownEvent: An event this refold cannot apply, unless *lenient*.
    """
    status = ThreadStatus(thread)
    for event in events:
        status.head = event.seq
        if not lenient or ev.is_known(event):
            status.apply(event.seq, ev.decode_event(event))
    return status


def _model_responded(run: RunState, seq: int, body: ev.ModelResponded) -> None:
    run.progressed = True
    run.usage.add(body.usage)
    run.open.pop(body.call, None)


def _tool_started(run: RunState, seq: int, body: ev.ToolStarted) -> None:
    call = body.call
    run.open[call] = OpenCall(
        call, "started", body.tool, body.args, body.attempt, body.key, None, body.at, seq
    )


def _tool_returned(run: RunState, seq: int, body: ev.ToolReturned) -> None:
    run.progressed = True
    run.tools += 1
    run.open.pop(body.call, None)


def _ended(run: RunState, seq: int, body: Any) -> None:
    run.progressed = True
    run.open.pop(body.call, None)


_COMMON: dict[type, Callable[[RunState, int, Any], None]] = {
    ev.ModelResponded: _model_responded,
    ev.ToolStarted: _tool_started,
    ev.ToolReturned: _tool_returned,
    ev.StepRecorded: _ended,
    ev.StepFailed: _ended,
    ev.TimerFired: _ended,
    ev.SignalReceived: _ended,
}
"""The commonest events of all, which need not be held against every other kind first."""


def _apply(thread: ThreadStatus, run: RunState, seq: int, body: ev.EventBody) -> None:
    calls = run.open
    match body:
        case ev.RunResumed():
            run.idle_tenures, run.progressed = run.lost_tenures, False
            run.status, run.reason, run.poisoned = "running", "", False
            run.tenures, run.digest = body.tenure, body.digest
            for call in calls.values():
                if call.status == "started":
                    call.status, call.at_large = "in doubt", body.rival
        case ev.ModelStarted():
            calls[body.call] = OpenCall(body.call, "started", attempt=body.attempt, since=body.at, seq=seq)
        case ev.ApprovalRequested():
            calls[body.call] = OpenCall(
                body.call, "waits for approval", body.tool, body.args, since=body.at, seq=seq
            )
        case ev.TimerSet():
            calls[body.call] = OpenCall(body.call, "sleeps", due=body.due, since=body.at, seq=seq)
        case ev.WaitStarted():
            calls[body.call] = OpenCall(
                body.call, "waits for a signal", body.name, due=body.due, since=body.at, seq=seq
            )
        case ev.ToolInDoubt():
            run.usage.add_unusable(body.usage)
            if body.call in calls:
                # It was given up, not ended: a tool in a thread runs on; a model call is over, as far as we know.
                calls[body.call].status, calls[body.call].at_large = "in doubt", bool(calls[body.call].name)
        case ev.RunParked():
            run.status, run.reason, run.progressed = "parked", body.reason, True
            run.poisoned = body.poisoned
        case ev.RunReleased():
            run.status = "waiting" if body.reason == "waiting" else "released"
            run.reason, run.progressed = body.reason, True
        case ev.RunFinished():
            run.status, run.output = "finished", body.output
        case ev.RunFailed():
            run.status, run.error, run.reason = "failed", body.error, body.error.message
        case ev.RunCancelled():
            run.status, run.reason = "cancelled", body.reason
            # What had not begun, or is between two attempts, is over with its run: there is no doubt of it.
            run.open = {key: call for key, call in calls.items() if call.status in ("started", "in doubt")}
            for call in run.open.values():
                call.status = "in doubt"
                _told(thread, call, "unknown")
        case ev.Patched():
            run.patches.append(body.id)
        case ev.DivergenceAccepted():
            run.accepted.append((body.recorded, body.asked))
        case _:
            _apply_outcome(thread, run, body)


def _apply_outcome(thread: ThreadStatus, run: RunState, body: Any) -> None:
    if type(body) not in ev.OF_CALLS:
        return
    call_id = body.call
    run.progressed = True
    open_call = run.open.get(call_id)
    match body:
        case ev.ModelFailed() if not body.final:
            run.usage.add_unusable(body.usage)
            run.open[call_id] = OpenCall(
                call_id, "retries", attempt=body.attempt, due=body.retry_at, since=body.at
            )
            return
        case ev.ModelFailed():
            run.usage.add_unusable(body.usage)
        case ev.ToolFailed() if not body.final:
            if open_call is not None:
                open_call.status, open_call.due = "retries", body.retry_at
            return
        case ev.ToolFailed():
            run.tools += 1
            _told(thread, open_call, body.effect)
        case ev.ToolResolved():
            _told(thread, open_call, body.effect)
        case ev.ApprovalGiven() if body.approved and open_call is not None:
            allowed = (open_call.name, bytes(open_call.args))
            thread.doubts = {call: asked for call, asked in thread.doubts.items() if asked != allowed}
    run.open.pop(call_id, None)


def _told(thread: ThreadStatus, call: OpenCall | None, effect: Effect) -> None:
    """What is known of the effect of this call of a tool, and of no other, from its last word on."""
    if call is None or not call.name:
        return
    if effect == "unknown":
        thread.doubts[call.call] = (call.name, bytes(call.args))
    else:
        thread.doubts.pop(call.call, None)
