"""
The bodies of events: one frozen struct for each kind of fact a run can leave behind.

A body is stored once as canonical JSON and never encoded again.
Kinds are names chosen by hand; a kind's version grows when an old refold could not read it;
new fields have defaults. `at` is the writer's clock in microseconds: for people and for `run.now()`,
never compared by code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from ..journal.codec import canonical
from ..journal.envelope import Event
from ..journal.errors import Corrupt
from .errors import Effect, ModelError, UnknownEvent
from .ports import Usage
from .requests import RequestDelta

NULL = Raw(b"null")


class Failure(Struct, frozen=True, omit_defaults=True, gc=False):
    """An error as data: enough to tell a program or a person, nothing that would import a class."""

    type: str
    message: str
    kind: str | None = None
    status: int | None = None
    retry_after_s: float | None = None

    def of_model(self, usage: Usage | None) -> ModelError:
        """As a program sees the failure of a model call."""
        kind: Any = self.kind or "other"
        return ModelError(
            self.message,
            kind=kind,
            error_type=self.type,
            status=self.status,
            retry_after_s=self.retry_after_s,
            usage=usage,
        )


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="kind"):
    """What every event says: when its writer's clock stood where."""

    at: int


class ThreadCreated(Body, frozen=True, kw_only=True, tag="thread_created"):
    """First event of a thread. `uid` makes idempotency keys and randomness unique beyond the thread's name."""

    uid: str


class ThreadForked(Body, frozen=True, kw_only=True, tag="thread_forked"):
    """The events before this one were copied from *origin* up to *origin_seq*; `replaced` was then edited."""

    uid: str
    origin: str
    origin_seq: int
    origin_hash: str
    replaced: int | None = None


class RunStarted(Body, frozen=True, kw_only=True, tag="run_started"):
    """
    A run began with this input; `definition` holds a digest for each part of the program's definition.

    At `due` its time is over, by the database's clock: it is cancelled then.
    """

    run: str
    program: str
    digest: str
    input: Raw
    key: str | None = None
    definition: dict[str, str] = {}
    concurrency: int = 0
    due: int | None = None


class RunResumed(Body, frozen=True, kw_only=True, tag="run_resumed"):
    """
    Another tenure took the run up; `tenure` counts from 1 for the one that started it.

    With `rival` the worker before may still be alive, and at the calls that it had started.
    """

    run: str
    tenure: int
    digest: str
    definition: dict[str, str] = {}
    rival: bool = False


class ModelStarted(Body, frozen=True, kw_only=True, tag="model_started"):
    """
    Written, and durable, before a model is asked that may act: the provider runs tools of its own inside the call.

    Such a call is in doubt when no outcome of it is recorded.
    """

    call: str
    fingerprint: str
    request: RequestDelta
    attempt: int = 1


class ModelResponded(Body, frozen=True, kw_only=True, tag="model_responded"):
    """A complete model response. It is never asked for again."""

    call: str
    fingerprint: str
    request: RequestDelta
    response: Raw
    usage: Usage = Usage()
    attempt: int = 1
    latency_us: int = 0


class ModelFailed(Body, frozen=True, kw_only=True, tag="model_failed"):
    """
    An attempt at a model call failed; unless `final`, another follows (not before `retry_at`).

    With `usage` an answer came, whole or in part, that could not be used.
    """

    call: str
    fingerprint: str
    request: RequestDelta
    error: Failure
    attempt: int = 1
    final: bool = True
    retry_at: int | None = None
    latency_us: int = 0
    usage: Usage | None = None


class ToolStarted(Body, frozen=True, kw_only=True, tag="tool_started"):
    """Written, and durable, before the tool is called."""

    call: str
    tool: str
    args: Raw
    key: str
    attempt: int = 1


class ToolReturned(Body, frozen=True, kw_only=True, tag="tool_returned"):
    """The tool's result. It never runs again for this call."""

    call: str
    result: Raw
    attempt: int = 1
    latency_us: int = 0


class ToolFailed(Body, frozen=True, kw_only=True, tag="tool_failed"):
    """The tool failed, and what is known of its effect; unless `final`, another attempt follows."""

    call: str
    error: Failure
    effect: Effect
    attempt: int = 1
    final: bool = True
    retry_at: int | None = None
    latency_us: int = 0


class ToolInDoubt(Body, frozen=True, kw_only=True, tag="tool_in_doubt"):
    """The call (of a tool, or of a model that may act) may or may not have happened, and `why` nobody here knows."""

    call: str
    attempt: int
    why: str
    usage: Usage | None = None


class ToolResolved(Body, frozen=True, kw_only=True, tag="tool_resolved"):
    """Somebody said what became of exactly this attempt."""

    call: str
    attempt: int
    outcome: Literal["returned", "failed", "did_not_happen"]
    result: Raw = NULL
    error: Failure | None = None
    effect: Effect = "none"
    by: str = ""


class StepRecorded(Body, frozen=True, kw_only=True, tag="step_recorded"):
    """A step's result."""

    call: str
    name: str
    args: Raw
    result: Raw
    attempt: int = 1
    latency_us: int = 0


class StepFailed(Body, frozen=True, kw_only=True, tag="step_failed"):
    """A step's failure, as the program sees it."""

    call: str
    name: str
    args: Raw
    error: Failure
    attempt: int = 1
    latency_us: int = 0


class TimerSet(Body, frozen=True, kw_only=True, tag="timer_set"):
    """A sleep began and ends at `due`."""

    call: str
    due: int


class TimerFired(Body, frozen=True, kw_only=True, tag="timer_fired"):
    """A sleep ended, or a wait timed out."""

    call: str


class ApprovalRequested(Body, frozen=True, kw_only=True, tag="approval_requested"):
    """The call waits for a person."""

    call: str
    tool: str
    args: Raw
    why: str = ""


class ApprovalGiven(Body, frozen=True, kw_only=True, tag="approval_given"):
    """A person allowed or denied the call."""

    call: str
    approved: bool
    by: str = ""
    note: str = ""


class WaitStarted(Body, frozen=True, kw_only=True, tag="wait_started"):
    """The program waits for a signal of this name, until `due` if there is one."""

    call: str
    name: str
    due: int | None = None


class SignalReceived(Body, frozen=True, kw_only=True, tag="signal_received"):
    """The signal a wait was for."""

    call: str
    name: str
    value: Raw
    by: str = ""


class Patched(Body, frozen=True, kw_only=True, tag="patched"):
    """`run.patched(id)` answered true, for the whole run."""

    run: str
    id: str


class DivergenceAccepted(Body, frozen=True, kw_only=True, tag="divergence_accepted"):
    """Requests changed between these two definitions are accepted from here back to the run's start."""

    run: str
    recorded: str
    asked: str
    by: str = ""


class CancelRequested(Body, frozen=True, kw_only=True, tag="cancel_requested"):
    """Somebody wants the run to stop; nothing new begins."""

    run: str
    reason: str = ""
    by: str = ""


class RunFinished(Body, frozen=True, kw_only=True, tag="run_finished"):
    """The program returned."""

    run: str
    output: Raw


class RunFailed(Body, frozen=True, kw_only=True, tag="run_failed"):
    """The program raised."""

    run: str
    error: Failure


class RunCancelled(Body, frozen=True, kw_only=True, tag="run_cancelled"):
    """The run was stopped for good."""

    run: str
    reason: str = ""


class RunParked(Body, frozen=True, kw_only=True, tag="run_parked"):
    """
    The run stopped until somebody decides; `calls` are what they must decide about.

    A poisoned run has killed its workers again and again: it goes on only when somebody releases it.
    """

    run: str
    reason: str
    calls: list[str] = []
    poisoned: bool = False


class RunReleased(Body, frozen=True, kw_only=True, tag="run_released"):
    """The worker left in good order; the run goes on when somebody resumes it."""

    run: str
    reason: str
    wake_at: int | None = None


EventBody = (
    ThreadCreated
    | ThreadForked
    | RunStarted
    | RunResumed
    | ModelStarted
    | ModelResponded
    | ModelFailed
    | ToolStarted
    | ToolReturned
    | ToolFailed
    | ToolInDoubt
    | ToolResolved
    | StepRecorded
    | StepFailed
    | TimerSet
    | TimerFired
    | ApprovalRequested
    | ApprovalGiven
    | WaitStarted
    | SignalReceived
    | Patched
    | DivergenceAccepted
    | CancelRequested
    | RunFinished
    | RunFailed
    | RunCancelled
    | RunParked
    | RunReleased
)

Asked = ModelStarted | ModelResponded | ModelFailed
"""What says of a model call what was asked."""

VERSIONS: dict[str, int] = {cls.__struct_config__.tag: 1 for cls in EventBody.__args__}
"""Newest version of each kind that this refold reads and the one it writes."""

RUN_ENDS = (RunFinished, RunFailed, RunCancelled)

OF_CALLS = frozenset(cls for cls in EventBody.__args__ if "call" in cls.__struct_fields__)
"""Bodies about one call of a run."""

_decode = msgspec.json.Decoder(EventBody).decode


_KINDS: dict[type, str] = {cls: str(cls.__struct_config__.tag) for cls in EventBody.__args__}


def kind_of(body: EventBody) -> str:
    """The kind name of a body."""
    return _KINDS[type(body)]


def encode_body(body: EventBody) -> bytes:
    """Canonical bytes of a body."""
    return canonical(body)


def decode_bytes(data: bytes) -> EventBody:
    """The body held in *data*, which this process has just encoded."""
    return _decode(data)


def is_known(event: Event) -> bool:
    """Whether this refold knows the event's kind and version."""
    return event.version <= VERSIONS.get(event.kind, 0)


def known_bodies(events: Iterable[Event]) -> Iterator[EventBody]:
    """The bodies of those events that this refold knows, for viewing."""
    return (decode_event(event) for event in events if is_known(event))


def decode_event(event: Event) -> EventBody:
    """
    The body of a recorded event.

    Raises:
        UnknownEvent: Its kind is unknown or its version newer than this refold knows.
        Corrupt: Its bytes are not what its kind promises.
    """
    kind = event.kind
    known = VERSIONS.get(kind)
    if known is None or event.version > known:
        raise UnknownEvent(event.thread, event.seq, kind, event.version, known)
    try:
        body = _decode(event.body)
    except msgspec.DecodeError as error:
        raise Corrupt(event.thread, event.seq, f"the body of {kind!r} cannot be decoded: {error}") from None
    if _KINDS[type(body)] != kind:
        raise Corrupt(event.thread, event.seq, f"the envelope says {kind!r}, the body {kind_of(body)!r}")
    return body
