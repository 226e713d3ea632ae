"""Turns what came of performing a call into the event that records it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import Raw, Struct

from ..journal import codec
from ..journal.errors import LimitExceeded, TransactionEnded, UnsupportedValue
from . import events as ev
from .commands import Call, ModelCall, Phase, Sleep, StepCall, ToolCall, WaitFor
from .door import RESULT_BYTES_MAX, check_counts, check_response, check_result, check_times
from .errors import Effect, ModelError, ToolError
from .inbox import Resolution
from .machine import Done
from .outcomes import DidNotHappen, Happened, Reconciled, ToolRaised
from .ports import ModelReply, Usage
from .response import encode_reply

_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}


DOUBLINGS_MAX = 64
"""How often a pause doubles; by then the shortest is longer than any that may be."""

Clock = Callable[[], int]
"""The database's clock, microseconds; looked at only where it is needed."""


class Policy(Struct, frozen=True, kw_only=True):
    """
    How a run treats failures and time.

    Args:
        model_attempts: How often a model call is tried in all when the failure is of a kind that trying again can mend.
        backoff_s: Pause after the first failed attempt; doubles with each.
        backoff_max_s: Longest pause.
        retry_after_max_s: A provider that asks for a longer pause has failed for good.
        hold_wait_s: A run that waits for a timer due sooner keeps its lease.
        cancel_grace_s: How long tools of a cancelled run get to come to an end.
        idle_tenures_max: So many tenures in a row that end without a release and without recording any outcome
            park the run: it kills its workers.

    Raises:
        UsageError: One is no number, or none that a run could keep to.
    """

    model_attempts: int = 5
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    retry_after_max_s: float = 86_400.0
    hold_wait_s: float = 5.0
    cancel_grace_s: float = 5.0
    idle_tenures_max: int = 5

    def __post_init__(self) -> None:
        check_counts(self, "model_attempts", "idle_tenures_max")
        check_times(self, "backoff_s", "backoff_max_s", "retry_after_max_s", "hold_wait_s", "cancel_grace_s")


class Completion(Struct, frozen=True):
    """
    What came of performing a call: a value, or an error.

    `timed_out` when it was given up, outcome unknown; not `begun` when nothing was done.
    """

    value: Any = None
    error: BaseException | None = None
    latency_us: int = 0
    timed_out: bool = False
    begun: bool = True


def beginning(call: Call, *, at: int, now_us: int) -> ev.EventBody | None:
    """
    The event that records that a call waits: for a clock, a signal or a person; None for other calls.

    What it waits for is due by the database's clock; `at` is the writer's, never goes back and may be ahead.
    """
    command = call.command
    match command:
        case Sleep() if call.phase is Phase.ASKED:
            return ev.TimerSet(at=at, call=call.id, due=now_us + command.duration_us)
        case WaitFor() if call.phase is Phase.ASKED:
            due = None if command.timeout_us is None else now_us + command.timeout_us
            return ev.WaitStarted(at=at, call=call.id, name=command.name, due=due)
        case ToolCall() if call.phase is Phase.HELD:
            return ev.ApprovalRequested(at=at, call=call.id, tool=command.tool.name, args=Raw(command.args))
        case _:
            return None


def start(call: Call, *, at: int, uid: str) -> ev.ToolStarted | ev.ModelStarted:
    """The event that must be durable before the next attempt of a call that may act."""
    command = call.command
    if isinstance(command, ModelCall):
        request = command.request
        return ev.ModelStarted(
            at=at,
            call=call.id,
            fingerprint=request.fingerprint,
            request=request.delta(call.branch.base),
            attempt=call.attempt + 1,
        )
    assert isinstance(command, ToolCall)
    return ev.ToolStarted(
        at=at,
        call=call.id,
        tool=command.tool.name,
        args=Raw(command.args),
        key=call.key or idempotency_key(uid, call.id),
        attempt=call.attempt + 1,
    )


def idempotency_key(uid: str, call_id: str) -> str:
    """The key of a call: a UUID made from the thread's uid and the call id, so the same in every attempt."""
    text = hashlib.sha256(f"refold key 1/{uid}/{call_id}".encode()).hexdigest()
    # Version 5; of the digit after it, the two highest bits say that it is one of RFC 4122.
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


def outcome(call: Call, done: Completion, *, at: int, clock: Clock, policy: Policy) -> ev.EventBody:
    """The event that records what came of a call."""
    if not done.begun:
        return unbegun(call, at=at)
    match call.command:
        case ModelCall():
            return _model_outcome(call, call.command, done, at, clock, policy)
        case StepCall():
            return _step_outcome(call, call.command, done, at)
        case ToolCall():
            return _tool_outcome(call, call.command, done, at, clock, policy)
        case _:
            raise AssertionError(f"{call!r} is not performed")


def committed_outcome(call: Call, done: Completion, *, at: int, policy: Policy) -> ev.ToolReturned:
    """
    The event that a transactional tool's own transaction records.

    Raises:
        ToolError: The result cannot be recorded; the transaction is to be rolled back.
    """
    body = outcome(call, done, at=at, clock=lambda: at, policy=policy)
    if isinstance(body, ev.ToolReturned):
        return body
    assert isinstance(body, ev.ToolFailed)
    raise ToolError(body.error.message, error_type=body.error.type)


def told(call: Call, *, at: int) -> ev.ToolFailed:
    """The event that tells the program of a doubt, by the tool's own policy."""
    error = ev.Failure("OutcomeUnknown", "The call was interrupted; it may or may not have happened.")
    return ev.ToolFailed(at=at, call=call.id, error=error, effect="unknown", attempt=call.attempt)


def unbegun(call: Call, *, at: int) -> ev.ToolResolved:
    """The event of a tool whose start is recorded and that its worker did not begin."""
    return ev.ToolResolved(at=at, call=call.id, attempt=call.attempt, outcome="did_not_happen", by="worker")


def refusal(call: Call, *, at: int) -> ev.ToolFailed:
    """The event of a call that cannot even begin."""
    assert isinstance(call.command, ToolCall)
    error = ev.Failure("BadCall", codec.clean_text(call.command.refused or ""))
    return ev.ToolFailed(at=at, call=call.id, error=error, effect="none", attempt=0)


def run_outcome(done: Done, run: str, *, at: int) -> ev.RunFinished | ev.RunFailed:
    """The event that records how a program ended."""
    if done.error is not None:
        return ev.RunFailed(at=at, run=run, error=failure(done.error))
    try:
        output = recordable(done.value, what="the run's output")
    except (UnsupportedValue, LimitExceeded) as refused:
        return ev.RunFailed(at=at, run=run, error=failure(refused))
    return ev.RunFinished(at=at, run=run, output=Raw(output))


def verdict_event(call: Call, verdict: Reconciled, *, at: int) -> ev.ToolResolved | None:
    """The event that records a reconciler's answer; None when it cannot tell."""
    attempt = call.attempt
    if isinstance(verdict, DidNotHappen):
        return ev.ToolResolved(
            at=at, call=call.id, attempt=attempt, outcome="did_not_happen", by="reconciler"
        )
    if not isinstance(verdict, Happened):
        return None
    try:
        result = recordable(verdict.value, what=f"answer of the reconciler of {call.describe()}")
    except (UnsupportedValue, LimitExceeded) as refused:
        return ev.ToolResolved(
            at=at,
            call=call.id,
            attempt=attempt,
            outcome="failed",
            error=failure(refused),
            effect="done",
            by="reconciler",
        )
    return ev.ToolResolved(
        at=at, call=call.id, attempt=attempt, outcome="returned", result=Raw(result), by="reconciler"
    )


def late_resolution(call: Call, attempt: int, completion: Completion) -> Resolution | None:
    """What the outcome of a tool that was given up tells whoever holds the thread now; None if it tells nothing."""
    if not isinstance(call.command, ToolCall) or not completion.begun:
        return None
    error = completion.error
    if error is None:
        try:
            result = recordable(completion.value, what=f"result of tool {call.command.tool.name!r}")
        except (UnsupportedValue, LimitExceeded) as refused:
            return Resolution(call.id, attempt, "failed", error=failure(refused), effect="done", by="worker")
        return Resolution(call.id, attempt, "returned", Raw(result), by="worker")
    if not isinstance(error, ToolError) or error.effect == "unknown":
        return None
    return Resolution(call.id, attempt, "failed", error=failure(error), effect=error.effect, by="worker")


def unrecorded_resolution(body: ev.EventBody) -> Resolution | None:
    """What an outcome that its worker may not record any more tells the new holder; None if it tells nothing."""
    match body:
        case ev.ToolReturned():
            return Resolution(body.call, body.attempt, "returned", body.result, by="worker")
        case ev.ToolFailed(final=True) if body.effect != "unknown" and body.attempt:
            return Resolution(
                body.call, body.attempt, "failed", error=body.error, effect=body.effect, by="worker"
            )
        case _:
            return None


def failure(error: BaseException) -> ev.Failure:
    """An error as data."""
    clean = codec.clean_text
    if isinstance(error, ModelError):
        return ev.Failure(
            clean(error.error_type),
            clean(error.message),
            kind=error.kind,
            status=error.status,
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, ToolError):
        return ev.Failure(clean(error.error_type), clean(error.message))
    if isinstance(error, ToolRaised):
        error = error.original
    info = codec.describe_error(error)
    return ev.Failure(info.type, info.message)


def rolled_back(error: Exception, late: str = "") -> ToolError:
    """The failure of a call whose transaction was not committed: no effect, unless the tool had ended it itself."""
    if isinstance(error, ToolError):
        return error
    info = codec.describe_error(error.original if isinstance(error, ToolRaised) else error)
    effect: Effect = "unknown" if isinstance(error, TransactionEnded) else "none"
    return ToolError(late + info.message, error_type=info.type, effect=effect)


def recordable(value: Any, *, what: str) -> bytes:
    """
    Canonical bytes of a value that fits into an event.

    Raises:
        UnsupportedValue: It cannot be recorded.
        LimitExceeded: It is too large.
    """
    data = codec.encode(value, what=what)
    codec.check_size(data, what=what, limit=RESULT_BYTES_MAX)
    return data


def _model_outcome(
    call: Call, command: ModelCall, done: Completion, at: int, clock: Clock, policy: Policy
) -> ev.EventBody:
    started = call.phase is Phase.STARTED
    attempt = call.attempt if started else call.attempt + 1
    request = command.request
    delta = request.delta(call.branch.base)
    error = done.error
    if error is None:
        reply: ModelReply = done.value
        try:
            response = encode_reply(reply)
            check_response(response, delta)
        except (UnsupportedValue, LimitExceeded) as refused:
            error = ModelError(
                str(refused), kind="bad_request", error_type=type(refused).__name__, usage=reply.usage
            )
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
    usage = error.usage if isinstance(error, ModelError) else None
    failed = failure(error)
    if started and command.in_doubt == "park" and not _refused(error):
        return ev.ToolInDoubt(at=at, call=call.id, attempt=attempt, why=failed.message, usage=usage)
    again = (
        isinstance(error, ModelError)
        and error.retryable
        and attempt < policy.model_attempts
        and (failed.retry_after_s or 0.0) <= policy.retry_after_max_s
        and (command.again is None or command.again(usage or Usage()))
    )
    return ev.ModelFailed(
        at=at,
        call=call.id,
        fingerprint=request.fingerprint,
        request=delta,
        error=failed,
        attempt=attempt,
        final=not again,
        retry_at=_retry_at(call, clock(), attempt, policy, failed.retry_after_s) if again else None,
        latency_us=done.latency_us,
        usage=usage,
    )


def _refused(error: BaseException) -> bool:
    """Whether the provider has said that it did nothing, or has come to an end and only says no."""
    if not isinstance(error, ModelError):
        return False
    return error.kind not in ("timeout", "connection", "malformed") and (
        error.kind != "overloaded" or error.status in (503, 529)
    )


def _step_outcome(call: Call, command: StepCall, done: Completion, at: int) -> ev.EventBody:
    error = done.error
    args = Raw(command.args)
    if error is None:
        what = f"result of step {command.name!r}"
        try:
            result = recordable(done.value, what=what)
            check_result(result, command.args, what=what)
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
        at=at, call=call.id, name=command.name, args=args, error=failure(error), latency_us=done.latency_us
    )


def _tool_outcome(
    call: Call, command: ToolCall, done: Completion, at: int, clock: Clock, policy: Policy
) -> ev.EventBody:
    tool = command.tool
    what = f"result of tool {tool.name!r}"
    error = done.error
    effect: Effect = "none"
    if done.timed_out and not tool.repeatable:
        why = str(error) if error is not None else "it timed out"
        return ev.ToolInDoubt(at=at, call=call.id, attempt=call.attempt, why=why)
    if error is None:
        try:
            result = recordable(done.value, what=what)
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
    # A transactional tool is repeatable because nothing of a failed attempt stays.
    stays = effect == "done" or (effect == "unknown" and tool.transactional)
    again = not stays and tool.repeatable and call.failures < tool.retries
    return ev.ToolFailed(
        at=at,
        call=call.id,
        error=failure(error),
        effect=effect,
        attempt=call.attempt,
        final=not again,
        retry_at=_retry_at(call, clock(), call.attempt, policy) if again else None,
        latency_us=done.latency_us,
    )


def _retry_at(call: Call, now_us: int, attempt: int, policy: Policy, wanted_s: float | None = None) -> int:
    pause_s = min(policy.backoff_s * 2.0 ** min(attempt - 1, DOUBLINGS_MAX), policy.backoff_max_s)
    # Jitter made from the call, so that the same run retries at the same times.
    spread = hashlib.sha256(f"{call.id}/{now_us}/{attempt}".encode()).digest()[0] / 255
    return now_us + round(max(pause_s * (0.75 + 0.5 * spread), wanted_s or 0.0) * 1e6)
