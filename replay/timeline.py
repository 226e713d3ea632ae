"""A thread's events as rows for people: each event by itself, so that any page of a thread can be shown."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..journal.envelope import Event
from ..journal.errors import Corrupt
from ..journal.store import ThreadInfo
from . import events as ev
from .errors import UnknownEvent
from .ports import Usage
from .text import beginning, counted, duration, moment, one_line, size, visible, visible_json

SUMMARY_CHARACTERS = 160


class Row(Struct, frozen=True, kw_only=True):
    """
    One event for people.

    Args:
        seq: Its place in the thread.
        at: Its writer's clock, or the database's when the body does not tell; microseconds since the epoch.
        kind: Its kind.
        call: The call it is about; empty for events of a run or a thread.
        name: Tool, step, signal or model, as far as the page tells.
        duration_us: How long the effect took; None where nothing was performed.
        size: Bytes of its body.
        summary: What it says, raw text of at most `SUMMARY_CHARACTERS`, safe to show.
        problem: Why it cannot be read by this refold; empty if it can.
    """

    seq: int
    at: int
    kind: str
    call: str = ""
    name: str = ""
    duration_us: int | None = None
    size: int = 0
    summary: str = ""
    problem: str = ""


class Timeline:
    """Makes rows; remembers the names of calls that it has seen begin."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def row(self, event: Event) -> Row:
        """The row of a recorded event; an unknown or broken one gets a row that says so."""
        try:
            body = ev.decode_event(event)
        except UnknownEvent as error:
            known = ev.VERSIONS.get(error.kind)
            problem = (
                "unknown kind" if known is None else f"version {error.version}, known up to {known}"
            ) + "; written by a newer refold?"
            return self._unread(event, problem)
        except Corrupt as error:
            return self._unread(event, str(error).partition(": ")[2])
        return self.row_of(event.seq, body, size=len(event.body))

    def row_of(self, seq: int, body: ev.EventBody, *, size: int = 0) -> Row:
        """The row of a decoded body."""
        call: str = getattr(body, "call", "")
        name = _own_name(body)
        if name and call and not isinstance(body, ev.ModelResponded | ev.ModelFailed):
            self._names[call] = name
        latency: int | None = getattr(body, "latency_us", None)
        return Row(
            seq=seq,
            at=body.at,
            kind=ev.kind_of(body),
            call=call,
            name=name or self._names.get(call, ""),
            duration_us=latency,
            size=size,
            summary=one_line(summary(body), SUMMARY_CHARACTERS),
        )

    def _unread(self, event: Event, problem: str) -> Row:
        text = event.body[:SUMMARY_CHARACTERS].decode("utf-8", "backslashreplace")
        return Row(
            seq=event.seq,
            at=event.recorded_at,
            kind=event.kind,
            size=len(event.body),
            summary=one_line(text, SUMMARY_CHARACTERS),
            problem=one_line(problem),
        )


def record(event: Event) -> dict[str, Any]:
    """An event whole, for a JSON document: its body as it is, or in base64 if that is no JSON."""
    whole: dict[str, Any] = {
        "thread": event.thread,
        "seq": event.seq,
        "id": str(event.id),
        "kind": event.kind,
        "version": event.version,
        "fence": event.fence,
        "recorded_at": event.recorded_at,
        "hash": event.hash.hex(),
        "size": len(event.body),
    }
    try:
        msgspec.json.decode(event.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {**whole, "body": None, "body_base64": base64.b64encode(event.body).decode()}
    return {**whole, "body": Raw(event.body)}


def summary(body: ev.EventBody) -> str:
    """What an event says beyond its kind, call and name; raw text."""
    match body:
        case ev.ToolStarted() | ev.ApprovalRequested() | ev.StepRecorded() | ev.StepFailed():
            return _of_call(body)
        case ev.ToolReturned() | ev.ToolFailed() | ev.ToolInDoubt() | ev.ToolResolved():
            return _of_outcome(body)
        case ev.ModelStarted():
            return f"{_attempt(body)}the provider may act within it"
        case ev.ModelResponded():
            return _of_response(body)
        case ev.ModelFailed():
            more = "" if body.final else "; another attempt follows"
            return _attempt(body) + _tokens(body.usage) + _failure(body.error) + more
        case ev.ApprovalGiven():
            return f"{'approved' if body.approved else 'denied'}{_by(body.by)}{_because(body.note)}"
        case ev.SignalReceived():
            return beginning(body.value) + _by(body.by)
        case ev.DivergenceAccepted():
            return f"{body.run}: requests of {body.asked} accepted for {body.recorded}{_by(body.by)}"
        case ev.Patched():
            return f"{body.run}: patch {body.id} is in force"
        case ev.ThreadForked():
            edited = "" if body.replaced is None else f", event {body.replaced} edited"
            return f"from {body.origin} at seq {body.origin_seq}{edited}"
        case _:
            return _of_run(body)


def _of_run(body: ev.EventBody) -> str:
    match body:
        case ev.RunStarted():
            return f"{body.run} of {body.program}: {beginning(body.input)}"
        case ev.RunResumed():
            return f"{body.run}, tenure {body.tenure}"
        case ev.CancelRequested():
            return f"{body.run}{_because(body.reason)}{_by(body.by)}"
        case ev.RunFinished():
            return f"{body.run}: {beginning(body.output)}"
        case ev.RunFailed():
            return f"{body.run}: {_failure(body.error)}"
        case ev.RunCancelled() | ev.RunParked() | ev.RunReleased():
            return f"{body.run}{_because(body.reason)}"
        case _:
            return ""


def _of_call(body: ev.ToolStarted | ev.ApprovalRequested | ev.StepRecorded | ev.StepFailed) -> str:
    match body:
        case ev.ToolStarted():
            return _attempt(body) + beginning(body.args)
        case ev.ApprovalRequested():
            return beginning(body.args) + _because(body.why)
        case ev.StepRecorded():
            return beginning(body.result)
        case ev.StepFailed():
            return _failure(body.error)


def _of_outcome(body: ev.ToolReturned | ev.ToolFailed | ev.ToolInDoubt | ev.ToolResolved) -> str:
    match body:
        case ev.ToolReturned():
            return beginning(body.result)
        case ev.ToolFailed():
            more = "" if body.final else "; another attempt follows"
            return f"{_attempt(body)}{_failure(body.error)} (effect {body.effect}){more}"
        case ev.ToolInDoubt():
            return f"attempt {body.attempt}: {body.why}"
        case ev.ToolResolved(outcome="returned"):
            return f"attempt {body.attempt} returned {beginning(body.result)}{_by(body.by)}"
        case ev.ToolResolved(outcome="failed"):
            why = _failure(body.error) if body.error else "no reason given"
            return f"attempt {body.attempt} failed: {why} (effect {body.effect}){_by(body.by)}"
        case ev.ToolResolved():
            return f"attempt {body.attempt} did not happen{_by(body.by)}"


def _of_response(body: ev.ModelResponded) -> str:
    response = _plain(body.response)
    message = response.get("message")
    message = message if isinstance(message, dict) else {}
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    said = [content] if isinstance(content, str) and content else []
    asked = message.get("tool_calls")
    for call in asked if isinstance(asked, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            said.append(f"{function.get('name')}({function.get('arguments')})")
    return _attempt(body) + _tokens(body.usage) + " ".join(said)


def _tokens(usage: Usage | None) -> str:
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return ""
    return f"[{usage.input_tokens or 0}+{usage.output_tokens or 0} tokens] "


def _own_name(body: ev.EventBody) -> str:
    match body:
        case ev.ToolStarted() | ev.ApprovalRequested():
            return body.tool
        case ev.StepRecorded() | ev.StepFailed() | ev.WaitStarted() | ev.SignalReceived():
            return body.name
        case ev.ModelResponded():
            model = _plain(body.response).get("model")
            if model is None and body.request.params is not None:
                model = _plain(body.request.params).get("model")
            return model if isinstance(model, str) else ""
        case _:
            return ""


def _plain(raw: Raw) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _attempt(body: Any) -> str:
    return f"attempt {body.attempt}: " if body.attempt > 1 else ""


def _failure(error: ev.Failure) -> str:
    return f"{error.type}: {error.message}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _by(who: str) -> str:
    return f", by {who}" if who else ""


def body_text(event: Event) -> str:
    """An event's body on one line, exact if it is JSON, safe to show."""
    try:
        return visible_json(event.body)
    except ValueError:
        return visible(event.body.decode("utf-8", "backslashreplace"))


HEADINGS = ("seq", "time (UTC)", "kind", "call", "name", "took", "size", "what")


def cells(row: Row) -> list[str]:
    """A row as text for a table with these `HEADINGS`, safe to show."""
    what = f"[{row.problem}] {row.summary}" if row.problem else row.summary
    return [
        str(row.seq),
        moment(row.at),
        visible(row.kind),
        visible(row.call),
        visible(row.name),
        duration(row.duration_us),
        size(row.size),
        what,
    ]


def line(row: Row) -> str:
    """A row as one line, safe to show."""
    seq, at, kind, call, name, took, _, what = cells(row)
    return "  ".join(filter(None, (f"{seq:>5}", at[11:], kind, call, name, took, what)))


def standing(info: ThreadInfo) -> str:
    """Who holds a thread and what waits for it, in words."""
    waits = f", {counted(info.inbox_waiting, 'message waits', 'messages wait')}" if info.inbox_waiting else ""
    left_s = info.lease_remaining_s
    if info.sealed:
        return f"sealed{waits}"
    if left_s is None:
        return f"free{waits}"
    return f"held ({left_s:.0f} s left){waits}" if left_s > 0 else f"its worker is gone{waits}"
