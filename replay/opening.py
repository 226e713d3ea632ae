"""
Opens a session on a thread that has been read: the run it is about, begun or taken up where its log ends.

Pure, so that the asyncio runner and the simulator take up a run by the very same code.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from msgspec import Raw, Struct

from ..journal.errors import UsageError
from ..journal.store import Message
from . import events as ev
from .commands import Command, ModelCall, ToolCall
from .holds import LATE_S, Holds
from .host import Host
from .inbox import Input, Resolution, by_weight, decode_message, resolution_event
from .interpreter import Interpreter
from .program import Program
from .rebuild import Thread, interpret
from .recording import Policy
from .session import Session
from .status import RunState, ThreadStatus


class Opened(Struct):
    """A session that has not begun; `thread.status` is to be told of the events it makes."""

    session: Session
    begin: Callable[[], None]


def begin_run(
    program: Program,
    thread: Thread,
    value: bytes,
    *,
    key: str | None,
    messages: list[Message],
    taken: int | None = None,
    host: Host,
    policy: Policy,
    new_uid: Callable[[], uuid.UUID],
    deadline_s: float | None = None,
) -> Opened:
    """
    A new run on *thread*; an unfinished one is superseded.

    Args:
        program: What to run.
        thread: The thread as it has been read.
        value: Canonical bytes of the input.
        key: Names the run.
        messages: The thread's inbox.
        taken: Inbox id of the input, if it came through there.
        host: Performs what the session asks.
        policy: Failures and time.
        new_uid: Draws the uid of a thread that has no event yet.
        deadline_s: How long the run may take in all, seconds.
    """
    status = thread.status
    at = max(status.last_at, host.wall_us())
    before: list[ev.EventBody] = []
    if not thread.bodies:
        before.append(ev.ThreadCreated(at=at, uid=new_uid().hex))
    if status.unfinished is not None:
        before += _superseded(status.unfinished, at)
    resolved, consumed = _late_resolutions(status, messages, at)
    before += resolved
    after = status.copy()
    for seq, body in enumerate(before, thread.head + 1):
        after.apply(seq, body)
    run_id = f"r{len(status.runs) + 1}"
    interpreter = Interpreter(
        program,
        thread=thread.name,
        uid=after.uid,
        run_id=run_id,
        prior=program.prior([*thread.bodies, *before]),
        doubted=after.doubted,
    )
    due = None if deadline_s is None else host.now_us() + round(deadline_s * 1e6)
    started = ev.RunStarted(
        at=at,
        run=run_id,
        program=program.name,
        digest=program.digest,
        input=Raw(value),
        key=key,
        definition=program.definition,
        concurrency=program.concurrency,
        due=due,
    )
    session = Session(interpreter, host, head=thread.head, last_at=at, policy=policy, deadline_us=due)
    if taken is not None:
        consumed.append(taken)
    left = [message for message in messages if message.id not in consumed]
    return Opened(session, lambda: session.start(started, before=before, consumed=consumed, messages=left))


class WaitingInput(Struct, frozen=True):
    """An input in the inbox."""

    id: int
    input: Raw
    key: str | None


def first_input(messages: list[Message]) -> WaitingInput | None:
    """The input that has waited longest."""
    for message in messages:
        content = decode_message(message)
        if isinstance(content, Input):
            return WaitingInput(message.id, content.input, content.key)
    return None


def take_up_run(
    program: Program,
    thread: Thread,
    run: RunState,
    *,
    messages: list[Message],
    host: Host,
    policy: Policy,
    over: Callable[[int, str], bool],
    model_timeout_s: float,
    accept: bool = False,
    release: bool = False,
) -> Opened:
    """
    Go on with an unfinished *run* of *thread*.

    Args:
        program: What recorded the run, or a later version of it.
        thread: The thread as it has been read.
        run: The run.
        messages: The thread's inbox.
        host: Performs what the session asks.
        policy: Failures and time.
        over: Whether nothing can be at this call (fence of its start, call id) any more. What a worker that may be
            alive may be at is left alone until its time is over.
        model_timeout_s: How long a model call may take.
        accept: Accept changed requests between the recorded definition and the program's, and record that.
        release: Go on with a run that was parked for killing its workers.

    Raises:
        UsageError: The run belongs to another program.
        Divergence: The program no longer fits the run's log.
    """
    if run.program != program.name:
        raise UsageError(
            f"thread {thread.name!r}: run {run.run!r} belongs to program {run.program!r}, "
            f"not to {program.name!r}; resume it with the agent or program of that name"
        )
    pair = (run.digest, program.digest) if accept else None
    interpreter = interpret(program, thread, run, accept=pair)
    last_at = thread.status.last_at
    session = Session(
        interpreter, host, head=thread.head, last_at=last_at, policy=policy, deadline_us=run.due
    )
    lost = run.lost_tenures
    if run.poisoned and not release:
        return Opened(session, lambda: session.rest(messages))
    if lost >= policy.idle_tenures_max and not release:
        reason = (
            f"its last {lost} workers died without recording any outcome; find out why, "
            "then let it go on with 'refold resume --release'"
        )
        return Opened(session, lambda: session.park(reason))
    session.holds = Holds(host, _holds(thread, run, interpreter, over, model_timeout_s))
    accepted: ev.DivergenceAccepted | None = None
    if pair is not None and pair[0] != pair[1] and pair not in run.accepted:
        accepted = ev.DivergenceAccepted(
            at=thread.status.last_at, run=run.run, recorded=run.digest, asked=program.digest
        )
    return Opened(session, lambda: session.resume(messages, accepted=accepted))


def _holds(
    thread: Thread,
    run: RunState,
    interpreter: Interpreter,
    over: Callable[[int, str], bool],
    model_timeout_s: float,
) -> dict[str, int]:
    """Until when, by the database's clock, a worker that is still alive may be at the calls it has started."""
    holds: dict[str, int] = {}
    for call in interpreter.pending.values():
        recorded, timeout_s = run.open.get(call.id), _may_take_s(call.command, model_timeout_s)
        if recorded is None or not call.attempt or timeout_s is None:
            continue
        begun = recorded.at_large or recorded.status == "started"
        # Imported events carry no fence: whoever adopted the thread knows that it goes on nowhere else.
        if begun and (fence := thread.fences[recorded.seq - 1]) and not over(fence, call.id):
            started_us = thread.recorded_at[recorded.seq - 1]
            holds[call.path] = started_us + round((timeout_s + LATE_S) * 1e6)
    return holds


def _may_take_s(command: Command, model_timeout_s: float) -> float | None:
    """How long a call that acts may do so after its start; None if it does no harm beside another attempt."""
    match command:
        case ToolCall(tool=tool) if not tool.read_only and not tool.transactional:
            # The transaction of a worker without the lease cannot commit.
            return tool.timeout_s
        case ModelCall() if command.in_doubt is not None:
            return model_timeout_s
        case _:
            return None


def _late_resolutions(
    status: ThreadStatus, messages: list[Message], at: int
) -> tuple[list[ev.EventBody], list[int]]:
    """The first word on each call of earlier runs since, its own worker's first; the conversation tells the model."""
    resolved: list[ev.EventBody] = []
    consumed: list[int] = []
    told: set[str] = set()
    for message in by_weight(messages):
        content = decode_message(message)
        if not isinstance(content, Resolution):
            continue
        call = status.open_call(content.call)
        consumed.append(message.id)
        # What waits for its next attempt has the outcome of the last one on record.
        settled = call is None or call.attempt != content.attempt or call.status == "retries"
        if not settled and content.call not in told:
            told.add(content.call)
            resolved.append(resolution_event(content, at))
    return resolved, consumed


def _superseded(run: RunState, at: int) -> list[ev.EventBody]:
    """Close an unfinished run: what is open has an unknown outcome, and the run is cancelled."""
    closing: list[ev.EventBody] = [
        ev.ToolInDoubt(at=at, call=call.call, attempt=call.attempt, why="its run was superseded")
        for call in run.open.values()
        if call.status == "started"
    ]
    closing.append(ev.RunCancelled(at=at, run=run.run, reason="superseded"))
    return closing
