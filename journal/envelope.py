"""The envelope of an event, and the hash chain over envelopes. Bodies are opaque bytes here."""

from __future__ import annotations

import struct
from hashlib import sha256
from uuid import UUID

from msgspec import Struct

from .errors import LimitExceeded

THREAD_ID_BYTES_MAX = 200
KIND_BYTES_MAX = 64
KEY_BYTES_MAX = 512
EVENT_BYTES_MAX = 16 * 1024 * 1024
BATCH_BYTES_MAX = 64 * 1024 * 1024
BATCH_EVENTS_MAX = 1000

GENESIS = sha256(b"refold log 1").digest()
"""Head hash of a thread without events."""

_HEADER = struct.Struct(">32sq16shH")


class NewEvent(Struct, frozen=True, gc=False):
    """An event not yet in the log: its id is drawn once and kept through every retry."""

    id: UUID
    kind: str
    version: int
    body: bytes


class Event(Struct, frozen=True, gc=False):
    """A recorded event, exactly as it is stored."""

    thread: str
    seq: int
    id: UUID
    kind: str
    version: int
    fence: int
    recorded_at: int
    """Database clock at the append, microseconds since the epoch; for people."""
    hash: bytes
    body: bytes


def chain(previous: bytes, seq: int, event: NewEvent | Event) -> bytes:
    """
    The hash of *event* at *seq* after the event whose hash is *previous*.

    Covers everything but the thread id (so that a fork keeps its prefix), the fence and the clock.
    The body enters as its own digest, so that a body can be erased and the chain still verified.
    """
    kind = event.kind.encode()
    # `UUID.bytes` is the same, by a property and a keyword more.
    head = _HEADER.pack(previous, seq, event.id.int.to_bytes(16), event.version, len(kind))
    return sha256(head + kind + sha256(event.body).digest()).digest()


def check_thread_id(thread: str) -> str:
    """Return *thread* if it can name a thread, else raise `LimitExceeded` saying why."""
    if not isinstance(thread, str):
        raise LimitExceeded(f"a thread id is a string, not {type(thread).__name__}")
    try:
        size = len(thread.encode())
    except UnicodeEncodeError:
        raise LimitExceeded(f"thread id {thread!r} is not valid Unicode") from None
    if not 1 <= size <= THREAD_ID_BYTES_MAX or "\0" in thread:
        raise LimitExceeded(
            f"a thread id is 1 to {THREAD_ID_BYTES_MAX} bytes of UTF-8 without NUL; "
            f"this one has {size}: {thread[:40]!r}"
        )
    return thread
