"""
What people and other programs say to a thread: sent into its inbox once it is known that somebody can take it.

Of several answers to one question the first stays: the same answer again is fine, another one is refused.
The answer enters the log when the thread's holder takes it, at the next run or resume if nobody holds it now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgspec import Raw, Struct, structs

from ..journal import codec
from ..journal.errors import UnsupportedValue, UsageError
from ..journal.journal import Journal, check_journal
from ..journal.limits import check_name
from ..journal.reading import read_events
from ..journal.store import Message, ThreadInfo
from . import events as ev
from .door import NAME_BYTES_MAX, RESULT_BYTES_MAX
from .errors import Effect, NotPending
from .inbox import (
    CANCEL,
    INPUT,
    SIGNAL,
    Approval,
    Cancel,
    Content,
    Input,
    Resolution,
    Signal,
    approval_key,
    decode_message,
    encode_message,
    resolution_key,
)
from .status import OpenCall, ThreadStatus, fold
from .text import beginning, one_line, visible


class Given(Struct, frozen=True, kw_only=True):
    """
    An answer that now lies in a thread's inbox, or has been taken from it.

    Args:
        thread: Thread id.
        content: What it says.
        fresh: Whether it was put there by this call; False if the same answer had been given before.
        taken: Whether the thread's log holds it already.
        held: Whether a worker holds the thread now and will take it by itself.
        later: Whether it is taken only when a worker that may still be alive can no longer be at the call.
    """

    thread: str
    content: Content
    fresh: bool
    taken: bool
    held: bool
    later: bool = False

    def record(self) -> Given:
        """For a JSON document."""
        return self

    def lines(self) -> Iterator[str]:
        """What became of it and what happens next, for a terminal."""
        content = self.content
        about = f" for {visible(content.call)}" if isinstance(content, Approval | Resolution) else ""
        said = visible(_words(content))
        first = "" if self.fresh else "already "
        if self.taken:
            yield f"{first}recorded{about}: {said}"
        elif self.held:
            yield f"{first}sent{about}: {said}; the worker that holds the thread takes it"
        else:
            # A process that waits for people holds no lease, so nothing tells whether there is one.
            waits = "" if isinstance(content, Resolution) else "a process that waits for it, or "
            yield f"{first}sent{about}: {said}; {waits}the next 'refold resume' or run of the thread takes it"
        if self.later and not self.taken:
            yield (
                "its worker may still be alive and at it: this is taken when the call's time-out is over; "
                "with --force at once, if you know that nobody is at it"
            )


def from_json(text: str, what: str) -> bytes:
    """
    Canonical bytes of the value that a JSON text stands for.

    Raises:
        UsageError: It is no JSON text; *what* names it.
    """

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        hint = json.dumps(text[:40])
        raise UsageError(f"{what} is no JSON text ({error}); a text goes in quotes: '{hint}'") from None
    return codec.encode(value, what=what)


def resolve(
    journal: Journal,
    thread: str,
    call: str,
    *,
    result: bytes | None = None,
    did_not_happen: bool = False,
    failed: str | None = None,
    effect: Effect | None = None,
    attempt: int | None = None,
    force: bool = False,
    by: str = "",
) -> Given:
    """
    Say what became of a tool call in doubt: one of *result*, *did_not_happen* and *failed*.

    Args:
        journal: Where the thread lives.
        thread: Thread id.
        call: Call id, `run/path`; its run may have been superseded.
        result: It happened, and these are the canonical bytes of its result.
        did_not_happen: It did not happen; it will be run again. While a worker that may still be alive may be at the
            call, which is until its time-out is over, this is not taken.
        failed: It failed, and this is why; the model reads it.
        effect: What a failed call did outside; "none" by default.
        attempt: Which attempt is meant; by default the one in doubt.
        force: Take at once that it did not happen: whoever says so knows that nobody is at it any more.
        by: Who says so.

    Raises:
        UsageError: None or several of the three were said, or *result* is no JSON text as bytes.
        ThreadNotFound: No such thread.
        NotPending: The call is not in doubt, another attempt of it is, or it was answered differently.
    """
    if [result is not None, did_not_happen, failed is not None].count(True) != 1:
        raise UsageError("say one of three: its result, that it did not happen, or how it failed")
    if effect is not None and failed is None:
        raise UsageError("an effect is said of a call that failed")
    if force and not did_not_happen:
        raise UsageError(
            "only that a call did not happen can be forced; a result or a failure is taken in any case"
        )
    info, status = _look(journal, thread)
    found = status.open_call(call)
    if result is not None:
        _check_tool(found)
    if attempt is None:
        attempt = found.attempt if found is not None else _attempt_resolved(journal, thread, call)
    content = Resolution(
        call=call,
        attempt=attempt,
        outcome="did_not_happen" if did_not_happen else "returned" if failed is None else "failed",
        result=_value(result, "result"),
        error=None if failed is None else ev.Failure("ToolError", codec.clean_text(failed)),
        effect=effect or "none",
        by=codec.clean_text(by),
        forced=force,
    )
    why = _no_doubt(info, found, call, attempt)
    key, late = resolution_key(call, attempt, forced=force), resolution_key(call, attempt, late=True)
    if (known := _message(journal, thread, late)) is not None:
        # Its own worker has said what became of it.
        return _given(info, known, content, fresh=False)
    given = _answer(journal, info, status, key, content, call, why)
    at_large = found is not None and (found.at_large or found.status == "started")
    return structs.replace(given, later=did_not_happen and at_large and not force)


def approve(
    journal: Journal, thread: str, call: str, *, approved: bool = True, note: str = "", by: str = ""
) -> Given:
    """
    Allow or deny a call that waits for approval.

    Args:
        journal: Where the thread lives.
        thread: Thread id.
        call: Call id, `run/path`.
        approved: Whether it may run.
        note: For a denial, what the model is told.
        by: Who decides.

    Raises:
        ThreadNotFound: No such thread.
        NotPending: The call does not wait for approval, or was decided differently.
    """
    info, status = _look(journal, thread)
    content = Approval(call=call, approved=approved, by=codec.clean_text(by), note=codec.clean_text(note))
    found = status.open_call(call)
    run = status.run(call.partition("/")[0])
    why = None
    if found is not None and found.status != "waits for approval":
        why = f"call {call!r} ({found.name}) does not wait for approval, it is {found.status}"
    elif run is not None and run.ended:
        why = f"the run of call {call!r} has ended"
    elif found is None:
        why = f"call {call!r} is not open"
    return _answer(journal, info, status, approval_key(call), content, call, why)


def signal(
    journal: Journal,
    thread: str,
    name: str,
    value: bytes | None = None,
    *,
    key: str | None = None,
    by: str = "",
) -> Given:
    """
    Send a signal to the thread's unfinished run; it stays until a `wait_for` of this name takes it.

    Args:
        journal: Where the thread lives.
        thread: Thread id.
        name: Name of the signal.
        value: Canonical bytes of its value; null by default.
        key: Of several signals with one key the first counts.
        by: Who sends it.

    Raises:
        ThreadNotFound: No such thread.
        NotPending: The thread has no unfinished run.
        UsageError: *value* is no JSON text as bytes.
    """
    check_name("the name of a signal", name, NAME_BYTES_MAX)
    info, status = _look(journal, thread)
    if status.unfinished is None:
        raise NotPending(f"thread {thread!r} has no unfinished run that could take the signal {name!r}")
    content = Signal(name=name, value=_value(value, "value"), by=codec.clean_text(by))
    return _send(journal, info, f"{SIGNAL}/{_unique(journal, key)}", content)


def submit(journal: Journal, thread: str, value: bytes, *, key: str | None = None, by: str = "") -> Given:
    """
    Queue an input that becomes the thread's next run.

    Args:
        journal: Where the thread lives.
        thread: Thread id.
        value: Canonical bytes of the input.
        key: Names the run, as `run(key=...)` does.
        by: Who sends it.

    Raises:
        ThreadNotFound: No such thread.
        UsageError: *value* is no JSON text as bytes.
    """
    check_journal(journal)
    info = journal.info(thread)
    message_key = f"{INPUT}/{_unique(journal, key)}"
    return _send(
        journal, info, message_key, Input(input=_value(value, "value"), key=key, by=codec.clean_text(by))
    )


def cancel(journal: Journal, thread: str, *, reason: str = "", by: str = "") -> Given:
    """
    Ask the thread's unfinished run to end for good.

    Raises:
        ThreadNotFound: No such thread.
        NotPending: It has no unfinished run.
    """
    info, status = _look(journal, thread)
    run = status.unfinished
    if run is None:
        raise NotPending(f"thread {thread!r} has no unfinished run to cancel")
    content = Cancel(run=run.run, reason=codec.clean_text(reason), by=codec.clean_text(by))
    return _send(journal, info, f"{CANCEL}/{run.run}", content)


def _check_tool(found: OpenCall | None) -> None:
    """Raise `UsageError` if the call to be given a result is a model's."""
    if found is not None and not found.name and found.status in ("started", "in doubt"):
        raise UsageError(
            f"call {found.call!r} is a model call, and what a model has answered nobody else can say: "
            "let it be asked again (it did not happen), or say how it failed"
        )


def _value(data: bytes | None, name: str) -> Raw:
    """*data* as a message carries it; anything else would make the thread's inbox unreadable."""
    if data is None:
        return ev.NULL
    if not isinstance(data, bytes):
        kind = type(data).__name__
        raise UsageError(
            f"{name} is given as JSON text in bytes, not as {kind}: answers.from_json(text, {name!r})"
        )
    try:
        return Raw(codec.encode(codec.decode(data), what=name))
    except (UnsupportedValue, RecursionError):
        raise UsageError(f"{name} is no JSON text: {data[:40]!r}") from None


def _look(journal: Journal, thread: str) -> tuple[ThreadInfo, ThreadStatus]:
    check_journal(journal)
    info = journal.info(thread)
    return info, fold(thread, read_events(journal, thread, upto=info.head, page=1000))


def _no_doubt(info: ThreadInfo, found: OpenCall | None, call: str, attempt: int) -> str | None:
    """Why nothing can be said about this attempt; None if it can."""
    if found is None:
        return f"call {call!r} is not open"
    name = f"call {call!r} ({found.name})"
    if found.status == "waits for approval":
        return f"{name} waits for approval: 'refold approve' or 'refold deny' answers it"
    # A start without an outcome whose worker is gone is in doubt, whether or not the log says so yet.
    if found.status == "started" and info.held:
        return (
            f"{name} is being run right now by a live worker; wait, or take it with 'refold resume --steal'"
        )
    if found.status not in ("in doubt", "started"):
        return f"{name} is not in doubt, it {found.status}"
    if attempt != found.attempt:
        return f"{name} is in doubt in attempt {found.attempt}, not {attempt}"
    return None


def _answer(
    journal: Journal,
    info: ThreadInfo,
    status: ThreadStatus,
    key: str,
    content: Content,
    call: str,
    why: str | None,
) -> Given:
    if why is None:
        return _send(journal, info, key, content)
    # Not waiting any more, perhaps because this very answer was taken: saying it twice is no mistake.
    if (earlier := _message(journal, info.thread, key)) is not None:
        return _given(info, earlier, content, fresh=False)
    raise NotPending(f"thread {info.thread!r}: {why}; nothing was written. {_open_calls(status, call)}")


def _message(journal: Journal, thread: str, key: str) -> Message | None:
    """The message of that key, taken or not."""
    return next((each for each in journal.inbox(thread, consumed=True) if each.key == key), None)


def _attempt_resolved(journal: Journal, thread: str, call: str) -> int:
    """The attempt of a call that is no longer open which was resolved last; 0 if none was."""
    contents = (decode_message(message) for message in journal.inbox(thread, consumed=True))
    attempts = [each.attempt for each in contents if isinstance(each, Resolution) and each.call == call]
    return max(attempts, default=0)


def _open_calls(status: ThreadStatus, call: str) -> str:
    named = status.run(call.partition("/")[0])
    shown = [named] if named is not None else status.runs
    calls = [f"{c.call} ({c.name or 'model'}: {c.status})" for run in shown for c in run.open.values()]
    return f"Open calls: {', '.join(calls[:20])}" if calls else "The thread has no open call"


def _send(journal: Journal, info: ThreadInfo, key: str, content: Content) -> Given:
    kind, body = encode_message(content)
    codec.check_size(body, what=f"the {kind} for thread {info.thread!r}", limit=RESULT_BYTES_MAX)
    sent = journal.send(info.thread, key=key, kind=kind, body=body)
    return _given(info, sent.message, content, fresh=sent.fresh)


def _given(info: ThreadInfo, message: Message, content: Content, *, fresh: bool) -> Given:
    stored = decode_message(message)
    if stored is None or _says(stored) != _says(content):
        told = "" if stored is None else f" ({_words(stored)})"
        raise NotPending(
            f"thread {info.thread!r}: already answered{told}; of several answers the first counts, "
            "and this one was not written"
        )
    return Given(
        thread=info.thread,
        content=stored,
        fresh=fresh,
        taken=message.consumed_seq is not None,
        held=info.held,
    )


def _says(content: Content) -> tuple[object, ...]:
    """What an answer means, whoever gives it and in whichever words."""
    match content:
        case Approval():
            return (content.call, content.approved)
        case Resolution():
            message = content.error.message if content.error else ""
            return (
                content.call,
                content.attempt,
                content.outcome,
                bytes(content.result),
                message,
                content.effect,
            )
        case Signal():
            return (content.name, bytes(content.value))
        case Input():
            return (bytes(content.input), content.key)
        case Cancel():
            return (content.run,)


def _words(content: Content) -> str:
    text = ""
    match content:
        case Approval():
            text = "approved" if content.approved else "denied"
        case Resolution(outcome="returned"):
            text = f"returned {one_line(beginning(content.result))}"
        case Resolution(outcome="failed"):
            text = f"failed: {content.error.message if content.error else ''} (effect {content.effect})"
        case Resolution():
            text = "did not happen"
        case Signal():
            text = f"signal {content.name!r}"
        case Input():
            text = f"input {one_line(beginning(content.input))}"
        case Cancel():
            text = f"cancel {content.run}"
    return f"{text}, by {content.by}" if content.by else text


def _unique(journal: Journal, key: str | None) -> str:
    if key is None:
        return journal.sources.new_id().hex
    return check_name("a key, if one is given,", key, NAME_BYTES_MAX)
