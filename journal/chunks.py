"""
Hot state as bytes: pieces of a thread's log, each under a key of its own, each checked when it is read back.

A chunk holds `CHUNK_EVENTS` events, always the same ones: number 0 holds seq 1 to 128, number 1 seq 129 to 256.
What is in the log never changes, so a chunk is right for good, or wrong from the start. A value is believed as
far as it is whole and says that it belongs to this database, thread and place; whether its events are the log's
is decided by the hash chain, up to the head hash that the store has just told.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Struct

from .envelope import Event

CHUNK_EVENTS = 128
CHUNK_BYTES_MAX = 4 * 1024 * 1024
"""A chunk that is larger before compression is not kept."""
CHUNKS_MAX = 1024
"""Chunks of one thread; what comes after seq 131,072 is not kept."""
FORMAT = 1

_DIGEST_BYTES = 16


class _Row(Struct, frozen=True, array_like=True, gc=False):
    id: UUID
    kind: str
    version: int
    fence: int
    recorded_at: int
    hash: bytes
    body: bytes


class _Content(Struct, frozen=True, array_like=True):
    format: int
    identity: str
    thread: str
    number: int
    rows: list[_Row]


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(_Content)


def chunk_key(identity: str, thread: str, number: int) -> str:
    """
    Where a chunk is kept; all keys of a thread share the hash tag in braces, so a cluster keeps them together.

    Args:
        identity: Which database.
        thread: Thread id.
        number: Which chunk.
    """
    return f"refold:hot:{FORMAT}:{{{_short(identity)}.{quote(thread, safe='')}}}:{number}"


def channel(identity: str, topic: str) -> str:
    """Where *topic* of a database is published; the payload names the thread."""
    return f"refold:{topic}:{FORMAT}:{_short(identity)}"


def span(number: int) -> tuple[int, int]:
    """A chunk's events: those with `after < seq <= upto`."""
    return number * CHUNK_EVENTS, (number + 1) * CHUNK_EVENTS


def completed(before: int, head: int) -> range:
    """Numbers of the chunks that are complete at *head* and were not at *before*."""
    return range(before // CHUNK_EVENTS, min(head // CHUNK_EVENTS, CHUNKS_MAX))


def encode(identity: str, number: int, events: Sequence[Event]) -> bytes | None:
    """The value of a chunk; None if its events are not all there or too large."""
    after, _ = span(number)
    if [event.seq for event in events] != list(range(after + 1, after + CHUNK_EVENTS + 1)):
        return None
    if sum(len(event.body) for event in events) > CHUNK_BYTES_MAX:
        return None
    rows = [
        _Row(each.id, each.kind, each.version, each.fence, each.recorded_at, each.hash, each.body)
        for each in events
    ]
    whole = _encoder.encode(_Content(FORMAT, identity, events[0].thread, number, rows))
    # The chain covers neither the fence nor the time of a record; this covers them against accidents.
    return _digest(whole) + zlib.compress(whole, 1)


def decode(value: bytes | None, identity: str, thread: str, number: int) -> list[Event] | None:
    """The events of a chunk; None for whatever is not, whole and exactly, that chunk of that thread."""
    if value is None or len(value) <= _DIGEST_BYTES:
        return None
    try:
        inflate = zlib.decompressobj()
        whole = inflate.decompress(value[_DIGEST_BYTES:], 2 * CHUNK_BYTES_MAX)
        if not inflate.eof or inflate.unused_data or _digest(whole) != value[:_DIGEST_BYTES]:
            return None
        content = _decoder.decode(whole)
        ours = (content.format, content.identity, content.thread, content.number)
        if ours != (FORMAT, identity, thread, number) or len(content.rows) != CHUNK_EVENTS:
            return None
        after, _ = span(number)
        return [
            Event(
                thread,
                seq,
                row.id,
                row.kind,
                row.version,
                row.fence,
                row.recorded_at,
                row.hash,
                row.body,
            )
            for seq, row in enumerate(content.rows, after + 1)
        ]
    except (zlib.error, msgspec.MsgspecError, ValueError):
        return None


def _digest(whole: bytes) -> bytes:
    return hashlib.sha256(whole).digest()[:_DIGEST_BYTES]


def _short(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
