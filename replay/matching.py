"""Finds the pending call that a message from outside is for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..journal import codec
from ..journal.errors import UnsupportedValue
from ..journal.store import Message
from . import events as ev
from .alarms import Alarms
from .commands import Call, Command, ModelCall, Phase, ToolCall, WaitFor
from .events import Failure
from .holds import Holds
from .inbox import (
    CANCEL,
    INPUT,
    Approval,
    Cancel,
    Resolution,
    Signal,
    by_weight,
    decode_message,
    resolution_event,
)
from .interpreter import Interpreter
from .ports import InDoubt
from .text import one_line

WHY_SHOWN = 200


class Match(Struct, frozen=True):
    """The event that takes a message into the log; None for one that nobody can take any more."""

    event: ev.EventBody | None
    message: int = 0
    """Inbox id."""


class Mailbox:
    """
    The messages that a session knows of and has not taken.

    Attributes:
        seen: Newest inbox id known.
        waiting: In the order of arrival.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.waiting: list[Message] = []

    def remember(self, messages: Iterable[Message]) -> None:
        """Add what is new."""
        for message in messages:
            if message.id > self.seen:
                self.seen = message.id
                self.waiting.append(message)

    @property
    def inputs_wait(self) -> bool:
        """Whether inputs for further runs have come."""
        return any(message.kind == INPUT for message in self.waiting)

    def cancellation(
        self, interpreter: Interpreter, holds: Holds, *, at: int
    ) -> tuple[ev.CancelRequested, int] | None:
        """A wish to end the run, and its inbox id; other messages are left alone."""
        for message in self.waiting:
            found = match(message, interpreter, holds, at=at) if message.kind == CANCEL else None
            if found is not None and isinstance(found.event, ev.CancelRequested):
                return found.event, message.id
        return None

    def take(self, interpreter: Interpreter, holds: Holds, *, at: int) -> Match | None:
        """The first message that something can be done with now, taken out; None if there is none."""
        for message in by_weight(self.waiting):
            found = match(message, interpreter, holds, at=at)
            if found is not None:
                self.waiting.remove(message)
                return Match(found.event, message.id)
        return None


def match(message: Message, interpreter: Interpreter, holds: Holds, *, at: int) -> Match | None:
    """What to do with a message now; None leaves it in the inbox for later."""
    content = decode_message(message)
    match content:
        case Cancel():
            if content.run != interpreter.run_id:
                return Match(None)
            reason, by = content.reason, content.by
            return Match(ev.CancelRequested(at=at, run=interpreter.run_id, reason=reason, by=by))
        case Signal():
            return _signal(content, interpreter, at)
        case Approval():
            call = interpreter.named(content.call)
            if call is None or call.phase is not Phase.ASKING:
                return _not_now(content.call, call, interpreter)
            given = content.approved
            return Match(
                ev.ApprovalGiven(at=at, call=call.id, approved=given, by=content.by, note=content.note)
            )
        case Resolution():
            # Only while exactly this attempt is in doubt: an answer about another attempt says nothing of it.
            call = interpreter.named(content.call)
            if call is None or call.attempt != content.attempt or call.phase is not Phase.DOUBT:
                return _not_now(content.call, call, interpreter)
            if content.outcome == "did_not_happen" and not content.forced and holds.until(call) is not None:
                # It may yet happen: running it again now could make it two.
                return None
            return Match(resolution_event(_fitting(content, call), at))
        case _:
            return None


def has_news(interpreter: Interpreter, messages: Iterable[Message], holds: Holds, alarms: Alarms) -> bool:
    """Whether going on with a run can move anything; if not, nothing is to be written."""
    now = alarms.now_us()
    if alarms.overdue():
        return True
    if interpreter.machine.done is not None or interpreter.cancelling or interpreter.new_patches:
        return True
    if not _rests(interpreter, holds):
        return True
    if any(_ready(call, now, holds) for call in interpreter.pending.values()):
        return True
    return any((found := match(m, interpreter, holds, at=now)) and found.event is not None for m in messages)


def _rests(interpreter: Interpreter, holds: Holds) -> bool:
    """Whether the log says that the run waits or is parked, and that is still all there is to say."""
    match interpreter.last:
        case ev.RunParked():
            return not interpreter.last.poisoned
        case ev.RunReleased(reason="waiting"):
            calls = interpreter.pending.values()
            return not any(c.phase is Phase.DOUBT and holds.until(c) is None for c in calls)
        case _:
            return False


def soonest(interpreter: Interpreter, holds: Holds, *, after: int = -1) -> int | None:
    """
    When a clock will next move the run, microseconds since the epoch; None if none will.

    What was due by *after* and is still pending is under way, or is not to begin any more: no clock will move it.
    """
    times: list[int] = []
    holding: list[int] = []
    for call in interpreter.pending.values():
        if call.phase is Phase.WAITING and call.due is not None:
            times.append(call.due)
        elif call.phase is Phase.BACKOFF and call.retry_at is not None:
            times.append(call.retry_at)
        elif call.phase is Phase.DOUBT and (until := holds.until(call)) is not None:
            holding.append(until)
    return min([*holding, *(time for time in times if time > after)], default=None)


def unsettled(interpreter: Interpreter, holds: Holds) -> list[Call]:
    """Calls that only somebody outside can settle."""
    calls = interpreter.pending.values()
    return [call for call in calls if call.phase is Phase.DOUBT and holds.until(call) is None]


def resting(
    interpreter: Interpreter, holds: Holds, looked_up: dict[str, str], *, at: int, due: int | None
) -> ev.RunParked | ev.RunReleased:
    """The event of a run in which nothing is done any more, until somebody settles a doubt, or something comes."""
    run, doubts = interpreter.run_id, unsettled(interpreter, holds)
    if doubts:
        reason = doubt_reason(doubts, looked_up)
        return ev.RunParked(at=at, run=run, reason=reason, calls=[call.id for call in doubts])
    return ev.RunReleased(at=at, run=run, reason="waiting", wake_at=due)


def policy_of(command: Command) -> InDoubt:
    """What a resume does with a call in doubt."""
    if isinstance(command, ToolCall):
        return command.tool.in_doubt
    return (isinstance(command, ModelCall) and command.in_doubt) or "retry"


def doubt_reason(doubts: list[Call], whys: Mapping[str, str]) -> str:
    """
    Why a run is parked, and what to do.

    Args:
        doubts: The calls in doubt.
        whys: What their reconcilers said, by path.
    """
    names = ", ".join(
        c.command.tool.name if isinstance(c.command, ToolCall) else "a model call" for c in doubts
    )
    said = "; ".join(one_line(str(whys[c.path]), WHY_SHOWN) for c in doubts if whys.get(c.path))
    because = f" ({said})" if said else ""
    return f"the outcome of {names} is unknown{because}; say what happened with 'refold resolve'"


def _fitting(content: Resolution, call: Call) -> Resolution:
    """A result that is not of the tool's declared type is known to have happened, and cannot be handed on."""
    command = call.command
    if content.outcome != "returned" or not isinstance(command, ToolCall):
        # What a model has answered cannot be said by others: `answers` refuses it.
        return content
    try:
        command.tool.restore(codec.decode(content.result))
    except UnsupportedValue as misfit:
        error = Failure("UnsupportedValue", codec.clean_text(str(misfit)))
        call_id, attempt, by = content.call, content.attempt, content.by
        return Resolution(call_id, attempt, "failed", error=error, effect="done", by=by)
    return content


def _signal(content: Signal, interpreter: Interpreter, at: int) -> Match | None:
    for call in interpreter.pending.values():
        command = call.command
        if isinstance(command, WaitFor) and call.phase is Phase.WAITING and command.name == content.name:
            name, value = content.name, content.value
            return Match(ev.SignalReceived(at=at, call=call.id, name=name, value=value, by=content.by))
    return None


def _not_now(call_id: str, call: Call | None, interpreter: Interpreter) -> Match | None:
    """An answer that nobody can take any more is taken out of the way; one that may yet be taken stays."""
    if call is not None or not call_id.startswith(f"{interpreter.run_id}/"):
        return None
    return Match(None)


def _ready(call: Call, now: int, holds: Holds) -> bool:
    match call.phase:
        case Phase.DOUBT:
            return policy_of(call.command) != "park" and holds.until(call) is None
        case Phase.ASKING:
            return False
        case Phase.WAITING:
            return call.due is not None and call.due <= now
        case Phase.BACKOFF:
            return (call.retry_at or 0) <= now
        case _:
            return True
