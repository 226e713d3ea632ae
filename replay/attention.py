"""Why a thread needs somebody, and what that person can do: told from its row and its last few events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ..journal.envelope import Event
from ..journal.errors import Corrupt
from ..journal.journal import Journal, check_journal
from ..journal.store import Message, ThreadInfo, ThreadState
from . import events as ev
from .errors import UnknownEvent
from .inbox import Approval, Content, Input, Resolution, Signal, decode_message
from .text import counted, moment, quoted, visible
from .timeline import standing

LAST_EVENTS = 20
"""How many of a thread's last events tell what it stopped for."""
PAGE = 1000
"""How many events are read at once to find what began longer ago."""

_AT_REST = (ThreadState.IDLE, ThreadState.FINISHED, ThreadState.FAILED, ThreadState.CANCELLED)
_STARTS = ("model_started", "tool_started")
_TENURE = (ev.RunStarted, ev.RunResumed, ev.RunReleased)


class Attention(Struct, frozen=True):
    """Why a thread stands still and what helps; raw text."""

    reason: str
    remedy: str


def explain(
    info: ThreadInfo, last: Sequence[Event], messages: Sequence[Message] = (), models: Collection[str] = ()
) -> Attention:
    """
    Why the thread of *info* needs somebody; no reason if it does not.

    Args:
        info: Its row.
        last: Its newest events, up to `LAST_EVENTS` of them.
        messages: What waits in its inbox.
        models: Which of the calls that it is parked for are a model's: nobody else can say what a model has answered.
    """
    try:
        bodies = [ev.decode_event(event) for event in last]
        mail = [decode_message(message) for message in messages]
    except (UnknownEvent, Corrupt) as error:
        return Attention(str(error), _command("show", info, options=["--last", str(LAST_EVENTS)]))
    resume = _command("resume", info, options=["--agent", "MODULE:ATTRIBUTE"])
    match info.state:
        case ThreadState.PARKED:
            return _parked(info, bodies, resume, models, _answers(mail))
        case ThreadState.WAITING:
            return _waiting(info, bodies, resume, _answers(mail))
        case _ if info.state in _AT_REST and (inputs := sum(isinstance(each, Input) for each in mail)):
            one = "input has come since and waits to become a run"
            many = "inputs have come since and wait to become runs"
            return Attention(counted(inputs, one, many), resume)
        case ThreadState.FAILED:
            failed = next((b for b in reversed(bodies) if isinstance(b, ev.RunFailed)), None)
            why = f"{failed.error.type}: {failed.error.message}" if failed else "its run failed"
            return Attention(why, "start another run; " + _command("show", info))
        case ThreadState.RUNNING if not info.held:
            return Attention("its worker is gone and the run unfinished", resume)
        case _:
            return Attention("", "")


class Seen(Struct, frozen=True):
    """A thread's row, and what it needs if that was looked at."""

    info: ThreadInfo
    why: Attention | None = None

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        row: dict[str, Any] = {name: getattr(self.info, name) for name in self.info.__struct_fields__}
        row["head_hash"] = self.info.head_hash.hex()
        return row if self.why is None else {**row, "reason": self.why.reason, "remedy": self.why.remedy}

    def cells(self) -> list[str]:
        """The row for a table: thread, state, seq, time, standing."""
        info = self.info
        return [
            visible(info.thread),
            info.state.value,
            str(info.head),
            moment(info.updated_at),
            standing(info),
        ]

    def lines(self) -> Iterator[str]:
        """All of it for a terminal."""
        yield "  ".join(self.cells())
        if self.why is not None:
            yield f"    {visible(self.why.reason)}"
            yield f"    {visible(self.why.remedy)}"


def read_page(
    journal: Journal,
    *,
    after: str | None = None,
    limit: int = 100,
    states: Sequence[ThreadState] = (),
    attention: bool = False,
) -> list[Seen]:
    """
    Threads, newest first, one page.

    Args:
        journal: Where they live.
        after: The last thread of the page before.
        limit: Rows at most.
        states: Only these, if any are named.
        attention: Only what needs somebody, with what the last events of each say of it.

    Raises:
        ThreadNotFound: There is no thread *after*.
    """
    check_journal(journal)
    place = None if after is None else (journal.info(after).created_at, after)
    found: list[Seen] = []
    while True:
        page = journal.threads(after=place, limit=limit, states=list(states) or None, attention=attention)
        if not attention:
            return [Seen(info) for info in page]
        seen = (Seen(info, _look(journal, info)) for info in page)
        # A message that nobody can use any more needs nobody.
        found += [each for each in seen if each.why is not None and each.why.reason]
        if len(found) >= limit or len(page) < limit:
            return found[:limit]
        place = page[-1].created_at, page[-1].thread


def _look(journal: Journal, info: ThreadInfo) -> Attention:
    after = max(0, info.head - LAST_EVENTS)
    last = journal.read(info.thread, after=after, upto=info.head, limit=LAST_EVENTS)
    messages = journal.inbox(info.thread) if info.inbox_waiting else ()
    models = _model_calls(journal, info, last) if info.state is ThreadState.PARKED else ()
    return explain(info, last, messages, models)


def _model_calls(journal: Journal, info: ThreadInfo, last: Sequence[Event]) -> set[str]:
    """Which of the calls that a thread is parked for are a model's, as their starts say, however long ago."""
    known = [ev.decode_event(event) for event in last if ev.is_known(event)]
    parked = next((body for body in reversed(known) if isinstance(body, ev.RunParked)), None)
    wanted = set(parked.calls) if parked is not None else set()
    found: set[str] = set()
    events = last
    while wanted and events:
        starts = [ev.decode_event(event) for event in events if event.kind in _STARTS and ev.is_known(event)]
        found |= {body.call for body in starts if isinstance(body, ev.ModelStarted) and body.call in wanted}
        wanted -= {body.call for body in starts if isinstance(body, ev.ModelStarted | ev.ToolStarted)}
        end = events[0].seq - 1
        events = journal.read(info.thread, after=max(0, end - PAGE), upto=end, limit=PAGE)
    return found


def _answers(mail: Sequence[Content | None]) -> list[Content | None]:
    """What an unfinished run may take; an input is for the run after it."""
    return [content for content in mail if not isinstance(content, Input)]


def _answered(answers: Sequence[Content | None]) -> set[str]:
    """The calls, and the names of signals, about which nobody need say anything more."""
    calls = {content.call for content in answers if isinstance(content, Approval | Resolution)}
    return calls | {content.name for content in answers if isinstance(content, Signal)}


def _attention(
    answers: Sequence[Content | None], needs: Sequence[tuple[str, str]], resume: str, otherwise: Attention
) -> Attention:
    """What has come and what is needed besides: an answer about one call hides no other."""
    one, many = "message has come and waits to be taken", "messages have come and wait to be taken"
    come = [(counted(len(answers), one, many), resume)] if answers else []
    told = [*come, *needs]
    if not told:
        return otherwise
    remedies = dict.fromkeys(remedy for _, remedy in told if remedy)
    return Attention("; ".join(reason for reason, _ in told if reason), "; ".join(remedies))


def _parked(
    info: ThreadInfo,
    bodies: Sequence[ev.EventBody],
    resume: str,
    models: Collection[str],
    answers: Sequence[Content | None],
) -> Attention:
    parked = next((body for body in reversed(bodies) if isinstance(body, ev.RunParked)), None)
    needs = []
    if parked is not None:
        how = "--did-not-happen | --failed TEXT"
        calls = [call for call in parked.calls if call not in _answered(answers)]
        ways = [
            f"{_command('resolve', info, call)} ({how if call in models else f'--result JSON | {how}'})"
            for call in calls
        ]
        if parked.poisoned:
            resume = f"{resume} --release"
        if ways or not parked.calls:
            needs = [(parked.reason, "; ".join(ways) or resume)]
    return _attention(answers, needs, resume, Attention("parked", _command("state", info)))


def _waiting(
    info: ThreadInfo, bodies: Sequence[ev.EventBody], resume: str, answers: Sequence[Content | None]
) -> Attention:
    # Outcomes may follow: what ran then had some time to come to its end.
    tenure = next((b for b in reversed(bodies) if isinstance(b, _TENURE)), None)
    otherwise = Attention("waiting", _command("state", info))
    if isinstance(tenure, ev.RunReleased) and tenure.reason != "waiting":
        left = [(f"its worker left in good order: {tenure.reason}", resume)]
        return _attention(answers, left, resume, otherwise)
    open_calls: dict[str, ev.EventBody] = {}
    for body in bodies:
        call = getattr(body, "call", "")
        open_calls.pop(call, None)
        if isinstance(body, ev.ApprovalRequested | ev.WaitStarted | ev.TimerSet):
            open_calls[call] = body
    needs: list[tuple[str, str]] = []
    answered = _answered(answers)
    for call, body in open_calls.items():
        match body:
            case ev.ApprovalRequested() if call not in answered:
                needs.append((f"{call} ({body.tool}) waits for approval", _command("approve", info, call)))
            case ev.WaitStarted() if body.name not in answered:
                send = _command("send", info, options=["--signal", body.name])
                needs.append((f"{call} waits for the signal {body.name!r}", send))
            case ev.TimerSet():
                needs.append((f"{call} sleeps", ""))
    if info.wake_at_us is not None:
        needs.append(("", f"{resume} when its time has come"))
    return _attention(answers, needs, resume, otherwise)


def _command(name: str, info: ThreadInfo, *rest: str, options: Sequence[str] = ()) -> str:
    if info.thread.startswith("-"):
        words = ["refold", name, *options, "--", info.thread, *rest]
    else:
        words = ["refold", name, info.thread, *rest, *options]
    return " ".join(quoted(word) for word in words)
