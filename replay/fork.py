"""Branches a thread: its events up to a seq, byte for byte, and a future of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Raw, Struct, structs

from ..journal import codec
from ..journal.envelope import Event, NewEvent, chain
from ..journal.errors import ThreadNotFound, UsageError
from ..journal.journal import Journal, check_journal
from ..journal.reading import read_events
from ..journal.store import Fork, ThreadState
from . import events as ev
from .inbox import Resolution, encode_message, resolution_key
from .ports import Usage
from .rebuild import Thread, load
from .status import ThreadStatus
from .text import visible

REPLACEABLE = "tool_returned, step_recorded, model_responded, signal_received, approval_given or run_started"


class Forked(Struct, frozen=True, kw_only=True):
    """
    A thread that was branched off.

    Args:
        thread: Id of the new thread.
        origin: Id of the thread it came from, which is as it was.
        seq: The last event that both have.
        replaced: The event that was edited, if one was.
        outcomes: Calls open at that seq that take the outcome they had in the origin.
        unfinished: Id of the run to be resumed; empty if none was going on.
    """

    thread: str
    origin: str
    seq: int
    replaced: int | None
    outcomes: list[str]
    unfinished: str

    def record(self) -> Forked:
        """For a JSON document."""
        return self

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        edited = "" if self.replaced is None else f", event {self.replaced} edited"
        yield f"{visible(self.thread)}: forked from {visible(self.origin)} at seq {self.seq}{edited}"
        for call in self.outcomes:
            yield f"  {call} takes the outcome it had in {visible(self.origin)}"
        if self.unfinished:
            yield f"  run {self.unfinished} is unfinished: resume it"


def fork(
    journal: Journal,
    thread: str,
    *,
    at: int | None = None,
    name: str | None = None,
    replace: tuple[int, Any] | None = None,
) -> Forked:
    """
    Branch *thread* off after event *at*, whole or not at all; the thread itself is only read.

    Calls of the common events keep their idempotency keys, new ones get the fork's. A call open there takes the
    outcome it had in the origin, if it had one, when the fork is resumed; otherwise its tool's policy decides.

    Args:
        journal: Where the thread lives, and the fork will.
        thread: Thread id.
        at: The last event both have; by default the newest, or the one before the replaced.
        name: Id of the fork, which must be new; by default made of the thread's.
        replace: Seq and new value of an event that the fork has instead: a tool's or step's result, a model's
            message (or its text), a signal's value, an approval (true or false), or a run's input.

    Raises:
        ThreadNotFound: No such thread.
        UsageError: There is no such seq, the event cannot be replaced, or *name* is taken.
        Corrupt, UnknownEvent: The thread cannot be read.
    """
    check_journal(journal)
    info = journal.info(thread)
    cut = _cut(info.head, at, replace, thread)
    events = list(read_events(journal, thread, upto=info.head))
    whole, prefix = load(thread, events), load(thread, events[:cut])
    edited = None if replace is None else _edited(whole, *replace)
    target = _free_name(journal, thread, cut) if name is None else name
    outcomes = _outcomes(prefix.status, whole.bodies[cut:]) if cut < info.head else []
    outcomes = [each for each in outcomes if each.call != getattr(edited, "call", None)]
    now_us = max(prefix.status.last_at, journal.sources.now_us())
    forked = ev.ThreadForked(
        at=now_us,
        uid=journal.sources.new_id().hex,
        origin=thread,
        origin_seq=cut,
        origin_hash=events[cut - 1].hash.hex(),
        replaced=None if replace is None else replace[0],
    )
    own: list[ev.EventBody] = [forked]
    if edited is not None:
        own.append(structs.replace(edited, at=now_us))
    status = prefix.status
    for seq, body in enumerate(own, cut + 1):
        status.apply(seq, body)
    _make(journal, target, events[cut - 1], own, outcomes, _state(status))
    unfinished = status.unfinished
    return Forked(
        thread=target,
        origin=thread,
        seq=cut,
        replaced=forked.replaced,
        outcomes=[each.call for each in outcomes],
        unfinished=unfinished.run if unfinished else "",
    )


def _cut(head: int, at: int | None, replace: tuple[int, Any] | None, thread: str) -> int:
    if replace is not None:
        if at is not None and at != replace[0] - 1:
            raise UsageError(f"the fork ends before the event it replaces: at seq {replace[0] - 1}, not {at}")
        at = replace[0] - 1
        if replace[0] > head:
            raise UsageError(f"thread {thread!r} has {head} events; there is no seq {replace[0]} to replace")
    cut = head if at is None else at
    if not 1 <= cut <= head:
        raise UsageError(
            f"thread {thread!r} has {head} events; it can be forked at seq 1 to {head}, not at {cut}"
        )
    return cut


def _edited(whole: Thread, seq: int, value: Any) -> ev.EventBody:
    """The event at *seq* with another value; its call and attempt stay."""
    body = whole.bodies[seq - 1]
    raw = Raw(codec.encode(value, what=f"the replacement of seq {seq}"))
    match body:
        case ev.ToolReturned() | ev.StepRecorded():
            return structs.replace(body, result=raw, latency_us=0)
        case ev.ModelResponded():
            return _answered(body, value, seq)
        case ev.SignalReceived():
            return structs.replace(body, value=raw)
        case ev.ApprovalGiven() if isinstance(value, bool):
            return structs.replace(body, approved=value)
        case ev.RunStarted():
            return structs.replace(body, input=raw)
        case _:
            raise UsageError(
                f"thread {whole.name!r}: seq {seq} is {ev.kind_of(body)!r} and cannot be replaced "
                f"by this value; replace a {REPLACEABLE}"
            )


def _answered(body: ev.ModelResponded, value: Any, seq: int) -> ev.ModelResponded:
    response = codec.decode(body.response)
    if isinstance(value, str):
        message: Any = {"role": "assistant", "content": value}
        response["finish_reason"] = "stop"
    else:
        message = value.get("message", value) if isinstance(value, dict) else None
    if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
        raise UsageError(
            f"seq {seq} is a model's answer: give its text, or an assistant message as an object"
        )
    response["message"] = {"role": "assistant", **message}
    raw = Raw(codec.encode(response, what=f"the replacement of seq {seq}"))
    nothing = Usage(input_tokens=0, output_tokens=0, cost_micro=0)
    return structs.replace(body, response=raw, usage=nothing, latency_us=0)


def _outcomes(status: ThreadStatus, later: list[ev.EventBody]) -> list[Resolution]:
    """What became, in the origin, of the tool calls that are under way at the end of the common events."""
    run = status.unfinished
    if run is None:
        return []
    waiting = {
        call.call: call.attempt for call in run.open.values() if call.status in ("started", "in doubt")
    }
    found: list[Resolution] = []
    for body in later:
        match body:
            case ev.ToolReturned(call=call) if call in waiting:
                found.append(Resolution(call, waiting.pop(call), "returned", result=body.result, by="origin"))
            case ev.ToolFailed(call=call, final=True) if call in waiting:
                attempt = waiting.pop(call)
                found.append(
                    Resolution(call, attempt, "failed", error=body.error, effect=body.effect, by="origin")
                )
            case ev.ToolResolved(call=call) if call in waiting and body.outcome != "did_not_happen":
                attempt = waiting.pop(call)
                found.append(
                    Resolution(
                        call,
                        attempt,
                        body.outcome,
                        result=body.result,
                        error=body.error,
                        effect=body.effect,
                        by="origin",
                    )
                )
    return found


def _make(
    journal: Journal,
    target: str,
    origin: Event,
    own: list[ev.EventBody],
    outcomes: list[Resolution],
    state: ThreadState,
) -> None:
    events: list[NewEvent] = []
    hashes: list[bytes] = []
    previous = origin.hash
    for seq, body in enumerate(own, origin.seq + 1):
        kind = ev.kind_of(body)
        events.append(NewEvent(journal.sources.new_id(), kind, ev.VERSIONS[kind], ev.encode_body(body)))
        previous = chain(previous, seq, events[-1])
        hashes.append(previous)
    messages = ((resolution_key(each.call, each.attempt), *encode_message(each)) for each in outcomes)
    made = journal.fork(
        Fork(
            thread=target,
            origin=origin.thread,
            upto=origin.seq,
            upto_hash=origin.hash,
            events=tuple(events),
            hashes=tuple(hashes),
            state=state,
            messages=tuple(messages),
        )
    )
    if not made:
        raise UsageError(f"there is a thread {target!r} already; give the fork another name")


def _free_name(journal: Journal, thread: str, cut: int) -> str:
    name, number = f"{thread}~{cut}", 1
    while True:
        try:
            journal.info(name)
        except ThreadNotFound:
            return name
        number += 1
        name = f"{thread}~{cut}.{number}"


def _state(status: ThreadStatus) -> ThreadState:
    run = status.current
    if run is None:
        return ThreadState.IDLE
    return {
        "finished": ThreadState.FINISHED,
        "failed": ThreadState.FAILED,
        "cancelled": ThreadState.CANCELLED,
        "parked": ThreadState.PARKED,
        "waiting": ThreadState.WAITING,
    }.get(run.status, ThreadState.RUNNING)
