"""What a thread's events add up to, for people: its runs, its open calls, and the conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..journal import codec
from ..journal.errors import UsageError
from ..journal.journal import Journal, check_journal
from ..journal.reading import read_events
from ..replay import events as ev
from ..replay.runner import RunResult
from ..replay.status import OpenCall, RunState, ThreadStatus
from ..replay.text import beginning, counted, moment, one_line, visible
from ..replay.timeline import standing
from ..replay.usage import Totals
from .conversation import Conversation

MESSAGE_CHARACTERS = 2000


class Overview(Struct, frozen=True, kw_only=True):
    """
    A thread as of one of its events.

    Args:
        thread: Thread id.
        state: Its state now, whatever `seq` is.
        standing: Who holds it now, in words.
        head: Seq of its newest event.
        seq: The event up to which it was folded.
        runs: Its runs, with their open calls and sums.
        passed_over: Events that this refold does not know.
        conversation: The messages that a next request would carry, as they are.
    """

    thread: str
    state: str
    standing: str
    head: int
    seq: int
    runs: list[RunState]
    passed_over: list[str]
    conversation: list[Raw]

    def record(self) -> Overview:
        """For a JSON document."""
        return self

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"{visible(self.thread)}: {self.state}, seq {self.seq} of {self.head}, {self.standing}"
        for run in self.runs:
            yield from _run_lines(run)
        for problem in self.passed_over:
            yield f"passed over: {visible(problem)}"
        for raw in self.conversation:
            yield from _message_lines(msgspec.json.decode(raw))


def overview(journal: Journal, thread: str, *, at: int | None = None) -> Overview:
    """
    Fold a thread, up to event *at* if it is given.

    Raises:
        ThreadNotFound: No such thread.
        UsageError: It has no event *at* yet.
        Corrupt: A body is not what its kind promises.
    """
    check_journal(journal)
    info = journal.info(thread)
    upto = info.head if at is None else at
    if upto > info.head:
        raise UsageError(f"thread {thread!r} has {info.head} events; there is no state at seq {at} yet")
    status, told, unread = ThreadStatus(thread), Conversation(), []
    for event in read_events(journal, thread, upto=upto, page=1000):
        if ev.is_known(event):
            body = ev.decode_event(event)
            status.apply(event.seq, body)
            told.apply(body)
        else:
            unread.append(f"seq {event.seq}, kind {event.kind!r}, version {event.version}")
    return Overview(
        thread=thread,
        state=info.state.value,
        standing=standing(info),
        head=info.head,
        seq=upto,
        runs=status.runs,
        passed_over=unread,
        conversation=[Raw(item.raw) for item in told.items()],
    )


def result_record(result: RunResult) -> dict[str, Any]:
    """How a run stands, for a JSON document."""
    return {
        "thread": result.thread,
        "run": result.run_id,
        "status": result.status,
        "output": Raw(codec.encode(result.output, what="the run's output")),
        "reason": result.reason,
        "pending": result.pending,
        "usage": result.usage,
    }


def result_lines(result: RunResult) -> Iterator[str]:
    """How a run that did not finish, or did, stands; its output apart."""
    used = result.usage
    yield (
        f"run {result.run_id} of thread {visible(result.thread)} is {_stands(result)} "
        f"({_responses(used)}, {_tokens(used)})"
    )
    for call in result.pending:
        cut_off = ": had not come to its end when it was left" if call.status == "started" else ""
        yield f"  {call_line(call)}{cut_off}"
    if result.status in ("released", "running"):
        yield "  the same command goes on with it, and so does 'refold resume'"


def output_text(value: Any) -> str:
    """What a program returned, safe to print: a text as it is, everything else as JSON."""
    text = value if isinstance(value, str) else codec.encode(value, what="the run's output").decode()
    return visible(text, lines=True)


def call_line(call: OpenCall) -> str:
    """An open call, on one line."""
    attempt = f", attempt {call.attempt}" if call.attempt else ""
    due = f", due {moment(call.due)}" if call.due is not None else ""
    args = "" if bytes(call.args) == ev.NULL else one_line(beginning(call.args))
    return f"{visible(call.call)}  {call.status}{attempt}{due}  {visible(call.name)}({args})"


def _run_lines(run: RunState) -> Iterator[str]:
    used = run.usage
    cost = f", ${used.cost_micro / 1e6:.4f}" if used.cost_micro else ""
    yield ""
    yield f"run {run.run} of {visible(run.program)}: {_stands(run)}"
    tenures = counted(run.tenures, "tenure", "tenures")
    calls = counted(run.tools, "tool call", "tool calls")
    yield (
        f"  seq {run.first_seq} to {run.last_seq}, {tenures}, {_responses(used)}, {calls}, {_tokens(used)}{cost}"
    )
    for call in run.open.values():
        yield f"  {call_line(call)}"


def _stands(run: RunState | RunResult) -> str:
    """Its status, and why if that says more."""
    return f"{run.status}: {one_line(run.reason)}" if run.reason not in ("", run.status) else run.status


def _responses(used: Totals) -> str:
    unusable = counted(used.unusable, "unusable answer", "unusable answers")
    more = f" and {unusable}" if used.unusable else ""
    return f"{counted(used.responses, 'response', 'responses')}{more}"


def _tokens(used: Totals) -> str:
    answers = used.responses + used.unusable
    if used.unknown_usage == answers:
        return "tokens unknown"
    unknown = counted(used.unknown_usage, "answer", "answers")
    more = f" and {unknown} unknown" if used.unknown_usage else ""
    return f"{used.input_tokens}+{used.output_tokens} tokens{more}"


def _message_lines(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") or f"[{part.get('type')}]" for part in content if isinstance(part, dict)]
        content = " ".join(str(part) for part in parts)
    answers = f" {message['tool_call_id']}" if "tool_call_id" in message else ""
    yield ""
    yield f"{visible(str(message.get('role')))}{visible(answers)}:"
    if content:
        for line in str(content)[:MESSAGE_CHARACTERS].split("\n"):
            yield f"  {visible(line)}"
    if len(str(content or "")) > MESSAGE_CHARACTERS:
        yield "  … (--json shows all of it)"
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = one_line(str(function.get("arguments")), 400)
        yield f"  -> {one_line(str(function.get('name')))}({arguments})  {visible(str(call.get('id')))}"
