"""What is checked before anything is done: a call whose record could not be kept is never begun."""

from __future__ import annotations

from typing import Any

from ..journal import codec
from ..journal.envelope import EVENT_BYTES_MAX
from ..journal.errors import UsageError
from .commands import Call, ModelCall, StepCall, ToolCall
from .errors import ModelError
from .ports import ModelReply, Usage, is_usage
from .requests import RequestDelta

NAME_BYTES_MAX = 200
"""Longest key of a run, name of a signal, id of a patch."""

RESULT_BYTES_MAX = EVENT_BYTES_MAX - 1024 * 1024
"""Largest recorded value: an event less room for what surrounds it."""

SECONDS_MAX = 1e10
"""Longest time that a run can be given."""

_SPARE = EVENT_BYTES_MAX - RESULT_BYTES_MAX - 128 * 1024
"""Whatever stands beside it in its event, a value of this size still fits in."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_deadline(deadline_s: Any) -> None:
    """Raise `UsageError` unless this is a time that a run can be given."""
    if not (_is_number(deadline_s) and 0 < deadline_s < SECONDS_MAX):
        raise UsageError(f"a deadline is a number of seconds over 0, not {deadline_s!r}")


def check_times(settings: Any, *names: str) -> None:
    """Raise `UsageError` unless the settings of these names are times that a run can keep to."""
    for name in names:
        value = getattr(settings, name)
        if not (_is_number(value) and 0 <= value < SECONDS_MAX):
            raise UsageError(f"{name} is a number of seconds from 0 on, not {value!r}")


def check_counts(settings: Any, *names: str) -> None:
    """Raise `UsageError` unless the settings of these names are numbers of at least 1."""
    for name in names:
        value = getattr(settings, name)
        if type(value) is not int or value < 1:
            raise UsageError(f"{name} is a number of at least 1, not {value!r}")


def check_call(call: Call) -> None:
    """Raise `LimitExceeded` if what is asked is too large for the event that has to record it."""
    command = call.command
    match command:
        case ModelCall():
            # Only what the request before on this branch did not have is recorded.
            data, what = (
                codec.canonical(command.request.delta(call.branch.base)),
                "what is new in a model request",
            )
        case ToolCall():
            data, what = command.args, f"the arguments of tool {command.tool.name!r}"
        case StepCall():
            data, what = command.args, f"the arguments of step {command.name!r}"
        case _:
            return
    codec.check_size(data, what=f"{what} at {call.id}", limit=RESULT_BYTES_MAX)


def check_response(response: bytes, beside: RequestDelta) -> None:
    """Raise `LimitExceeded` if *response* does not fit into one event with what is new in its request."""
    what = "a model response"
    codec.check_size(response, what=what, limit=RESULT_BYTES_MAX)
    if len(response) > _SPARE:
        limit = RESULT_BYTES_MAX + _SPARE - len(codec.canonical(beside))
        codec.check_size(response, what=f"{what} beside what is new in its request", limit=limit)


def checked_reply(reply: object, models: object) -> ModelReply:
    """Return what a model client gave if it is a reply; else raise the `ModelError` that says what it is."""
    usage = None
    if isinstance(reply, ModelReply):
        fault = _fault(reply)
        if fault is None:
            return reply
        name, form = fault
        given = f"a reply whose {name} is {getattr(reply, name)!r:.80}, not {form}"
        usage = reply.usage if is_usage(reply.usage) else Usage()
    else:
        given = f"{reply!r:.80}, not a ModelReply"
    raise ModelError(
        f"the model client {type(models).__name__} gave {given}",
        kind="bad_request",
        error_type="BadReply",
        usage=usage,
    )


def _fault(reply: Any) -> tuple[str, str] | None:
    """A part of *reply* that does not fit into the event that has to record it, and what it must be."""
    if not isinstance(reply.message, dict):
        return "message", "a dict"
    for name in ("finish_reason", "id", "model"):
        value = getattr(reply, name)
        if value is not None and not is_unicode(value):
            return name, "a text or None"
    if not is_usage(reply.usage):
        return "usage", "a Usage of whole numbers or None"
    return None if isinstance(reply.extra, dict) else ("extra", "a dict")


def is_unicode(text: object) -> bool:
    """Whether this is a text without halves of surrogate pairs, which UTF-8 cannot say."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_result(result: bytes, args: bytes, *, what: str) -> None:
    """Raise `LimitExceeded` if the *result* of a step does not fit into one event with its arguments."""
    if len(result) > _SPARE:
        codec.check_size(
            result, what=f"{what} beside its arguments", limit=RESULT_BYTES_MAX + _SPARE - len(args)
        )
