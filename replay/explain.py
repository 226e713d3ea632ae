"""Says what exactly differs where a program and its log part. Done only once they have: matching stays cheap."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Raw

from ..journal import codec
from ..journal.errors import UnsupportedValue
from . import events as ev
from .commands import ModelCall, Sleep, StepCall, ToolCall, WaitFor
from .differences import Difference, of_requests, of_values
from .divergence import Divergence, DivergenceKind
from .interpreter import Interpreter
from .program import Program
from .recorded_requests import Rebuilder, Unrebuildable
from .status import RunState

_ENDS = (ev.RunFinished, ev.RunFailed, ev.RunCancelled)
_KINDS: tuple[tuple[type | tuple[type, ...], type], ...] = (
    ((ev.ModelStarted, ev.ModelResponded, ev.ModelFailed, ev.ToolInDoubt, ev.ToolResolved), ModelCall),
    ((ev.StepRecorded, ev.StepFailed), StepCall),
    ((ev.TimerSet,), Sleep),
    ((ev.WaitStarted, ev.SignalReceived), WaitFor),
    (
        (
            ev.ToolStarted,
            ev.ToolReturned,
            ev.ToolFailed,
            ev.ToolInDoubt,
            ev.ToolResolved,
            ev.ApprovalRequested,
            ev.ApprovalGiven,
        ),
        ToolCall,
    ),
)


def explain(
    found: Divergence,
    program: Program,
    bodies: Sequence[ev.EventBody],
    run: RunState,
    interpreter: Interpreter,
) -> Divergence:
    """The same divergence with its kind, its path, the differences, and what changed in the definition."""
    body = found.body
    if body is None:
        return found
    kind = _kind(found, body, interpreter)
    return Divergence(
        thread=found.thread,
        seq=found.seq,
        recorded=found.recorded,
        asked=found.asked,
        shape=found.shape,
        kind=kind,
        path=getattr(body, "call", "") or run.run,
        differences=_differences(kind, found, program, bodies, run, interpreter),
        changed=changed_parts(recorded_definition(bodies[: found.seq - 1], run.run), program.definition),
        body=body,
        command=found.command,
    )


def recorded_definition(bodies: Sequence[ev.EventBody], run: str) -> dict[str, str]:
    """The definition that the newest tenure of a run was recorded with."""
    for body in reversed(bodies):
        if isinstance(body, ev.RunStarted | ev.RunResumed) and body.run == run and body.definition:
            return body.definition
    return {}


def changed_parts(recorded: dict[str, str], asked: dict[str, str]) -> list[str]:
    """The parts of a definition that differ, in words."""
    if not recorded:
        return []
    words = []
    for name in sorted(recorded.keys() | asked.keys()):
        if name not in asked:
            words.append(f"{name} is gone")
        elif name not in recorded:
            words.append(f"{name} is new")
        elif recorded[name] != asked[name]:
            words.append(name)
    return words


def _kind(found: Divergence, body: ev.EventBody, interpreter: Interpreter) -> DivergenceKind:
    if not found.shape:
        return "request"
    if interpreter.ended is not None or (
        interpreter.machine.done is not None and not isinstance(body, _ENDS)
    ):
        return "ended"
    if isinstance(body, ev.RunFinished):
        done = interpreter.machine.done
        return "output" if done is not None and done.error is None else "command"
    if isinstance(body, ev.RunStarted):
        return "name"
    command = found.command
    if command is None or not any(isinstance(body, kinds) and type(command) is one for kinds, one in _KINDS):
        return "order" if isinstance(body, ev.TimerFired) and command is not None else "command"
    if _name(body) not in ("", _name_of(command)):
        return "name"
    args = getattr(body, "args", None)
    if args is not None and isinstance(command, ToolCall | StepCall) and bytes(args) != command.args:
        return "arguments"
    return "outcome" if found.asked.startswith("a result of another type") else "order"


def _name(body: ev.EventBody) -> str:
    match body:
        case ev.ToolStarted() | ev.ApprovalRequested():
            return body.tool
        case ev.StepRecorded() | ev.StepFailed() | ev.WaitStarted() | ev.SignalReceived():
            return body.name
        case _:
            return ""


def _name_of(command: object) -> str:
    match command:
        case ToolCall():
            return command.tool.name
        case StepCall() | WaitFor():
            return command.name
        case _:
            return ""


def _differences(
    kind: DivergenceKind,
    found: Divergence,
    program: Program,
    bodies: Sequence[ev.EventBody],
    run: RunState,
    interpreter: Interpreter,
) -> list[Difference]:
    command, body = found.command, found.body
    if kind == "arguments" and isinstance(command, ToolCall | StepCall):
        assert isinstance(body, ev.ToolStarted | ev.ApprovalRequested | ev.StepRecorded | ev.StepFailed)
        return of_values("arguments", codec.decode(body.args), codec.decode(command.args))
    if kind == "output" and isinstance(body, ev.RunFinished):
        assert interpreter.machine.done is not None
        made = codec.normalise(interpreter.machine.done.value, what="the run's output")
        return of_values("output", codec.decode(body.output), made)
    if kind == "request" and isinstance(command, ModelCall):
        return _of_request(found.seq, command, program, bodies, run)
    return []


def _of_request(
    seq: int, command: ModelCall, program: Program, bodies: Sequence[ev.EventBody], run: RunState
) -> list[Difference]:
    prior = program.prior(bodies[: run.first_seq - 1])
    rebuilder = Rebuilder(bodies[:seq], run.first_seq, prior, program.tell)
    try:
        recorded = rebuilder.at(seq)
    except (Unrebuildable, UnsupportedValue) as error:
        return [Difference("request", f"what was asked cannot be shown: {error}")]
    asked = command.request
    messages = [codec.decode(item.raw) for item in asked.messages().items()]
    found = of_requests(recorded.plain(), (codec.decode(asked.params.raw), messages))
    if not found:
        digest = hashlib.sha256(Raw(recorded.params)).hexdigest()[:8]
        return [
            Difference(
                "request", f"no message or parameter differs (parameters {digest}); it was recorded otherwise"
            )
        ]
    return found
