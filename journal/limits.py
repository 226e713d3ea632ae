"""What is checked at the door, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

from .envelope import (
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    EVENT_BYTES_MAX,
    KEY_BYTES_MAX,
    KIND_BYTES_MAX,
    Event,
    NewEvent,
)
from .errors import LimitExceeded, UsageError

VERSION_MAX = 32767


def check_name(what: str, text: str, bytes_max: int) -> str:
    """Return *text* if it can name something, else raise `LimitExceeded` saying why *what* cannot be so."""
    if not isinstance(text, str):
        raise LimitExceeded(f"{what} is a text, not {type(text).__name__}: {text!r:.40}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise LimitExceeded(f"{what} is valid Unicode; this one is not: {text[:40]!r}") from None
    if not 1 <= size <= bytes_max or "\0" in text:
        raise LimitExceeded(
            f"{what} is 1 to {bytes_max} bytes of UTF-8 without NUL; this one has {size}: {text[:40]!r}"
        )
    return text


def _check_body(where: str, body: bytes) -> None:
    if len(body) > EVENT_BYTES_MAX:
        raise LimitExceeded(
            f"{where} has {len(body)} bytes, the limit is {EVENT_BYTES_MAX}; "
            "keep large data outside the journal and record a reference to it"
        )


def check_batch(thread: str, expected: int, events: Sequence[NewEvent]) -> None:
    """Raise `LimitExceeded` unless *events* can follow seq *expected* of *thread* in one append."""
    if not events:
        raise UsageError(f"an append to thread {thread!r} needs at least one event")
    if len(events) > BATCH_EVENTS_MAX:
        raise LimitExceeded(
            f"an append to thread {thread!r} has {len(events)} events, the limit is {BATCH_EVENTS_MAX}; "
            "append them in several batches"
        )
    total = 0
    for seq, event in enumerate(events, expected + 1):
        size = len(event.body)
        if size > EVENT_BYTES_MAX:
            _check_body(f"event {event.kind!r} at seq {seq} of thread {thread!r}", event.body)
        if not event.kind.isascii() or not 1 <= len(event.kind) <= KIND_BYTES_MAX or "\0" in event.kind:
            check_name("an event kind", event.kind, KIND_BYTES_MAX)
        if not 0 < event.version <= VERSION_MAX:
            raise LimitExceeded(f"an event version is 1 to {VERSION_MAX}; {event.kind!r} has {event.version}")
        total += size
    if total > BATCH_BYTES_MAX:
        raise LimitExceeded(
            f"an append to thread {thread!r} has {total} bytes, the limit is {BATCH_BYTES_MAX}; "
            "append it in several batches"
        )


def check_events(thread: str, events: Sequence[Event]) -> None:
    """Raise `LimitExceeded` unless recorded *events* can be kept in *thread*, all at once."""
    first = events[0].seq - 1 if events else 0
    check_batch(thread, first, [NewEvent(each.id, each.kind, each.version, each.body) for each in events])


def check_message(thread: str, key: str, kind: str, body: bytes) -> None:
    """Raise `LimitExceeded` unless the message can be put into the inbox of *thread*."""
    check_name("a message key", key, KEY_BYTES_MAX)
    check_name("a message kind", kind, KIND_BYTES_MAX)
    _check_body(f"the message {key!r} to thread {thread!r}", body)
