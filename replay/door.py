"""What is checked before anything is done: a call whose record could not be kept is never begun."""

from __future__ import annotations

from typing import Any

from ..journal import codec
from ..journal.envelope import EVENT_BYTES_MAX
from ..journal.errors import UsageError
from .commands import Call, ModelCall, StepCall, ToolCall
from .errors import ModelError
from .ports import ModelReply
from .requests import RequestDelta

NAME_BYTES_MAX = 200
"""Longest key of a run, name of a signal, id of a patch."""

RESULT_BYTES_MAX = EVENT_BYTES_MAX - 1024 * 1024
"""Largest recorded value: an event less room for what surrounds it."""

SECONDS_MAX = 1e10
"""Longest time that a run can be given."""

_SPARE = EVENT_BYTES_MAX - RESULT_BYTES_MAX - 128 * 1024
"""Whatever stands beside it in its event, a value of this size still fits in."""


def check_deadline(deadline_s: Any) -> None:
    """Raise `UsageError` unless this is a time that a run can be given."""
    number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
    if not (number and 0 < deadline_s < SECONDS_MAX):
        raise UsageError(f"a deadline is a number of seconds over 0, not {deadline_s!r}")


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
    if isinstance(reply, ModelReply) and isinstance(reply.message, dict):
        return reply
    given = (
        f"a reply whose message is {reply.message!r:.80}"
        if isinstance(reply, ModelReply)
        else f"{reply!r:.80}"
    )
    raise ModelError(
        f"the model client {type(models).__name__} gave {given}; it must return a ModelReply whose message is a dict",
        kind="bad_request",
        error_type="BadReply",
    )


def check_result(result: bytes, args: bytes, *, what: str) -> None:
    """Raise `LimitExceeded` if the *result* of a step does not fit into one event with its arguments."""
    if len(result) > _SPARE:
        codec.check_size(
            result, what=f"{what} beside its arguments", limit=RESULT_BYTES_MAX + _SPARE - len(args)
        )
