from __future__ import annotations

import hashlib
import zlib
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from refold.journal import chunks
from refold.journal.envelope import Event

DATABASE = "a database"


def log(thread: str = "t", count: int = 2 * chunks.CHUNK_EVENTS, body: bytes = b'{"at":1}') -> list[Event]:
    return [
        Event(thread, seq, UUID(int=seq), "kind", 1, 3, 1_000_000 + seq, bytes([seq % 256]) * 32, body)
        for seq in range(1, count + 1)
    ]


FIRST = log()[: chunks.CHUNK_EVENTS]
VALUE = chunks.encode(DATABASE, 0, FIRST)
assert VALUE is not None


def test_a_chunk_comes_back_as_it_was_recorded() -> None:
    assert chunks.decode(VALUE, DATABASE, "t", 0) == FIRST


@given(st.data())
def test_a_value_that_was_changed_anywhere_or_cut_is_a_miss(data: st.DataObject) -> None:
    assert VALUE is not None
    place = data.draw(st.integers(0, len(VALUE) - 1))
    flipped = bytes([VALUE[place] ^ data.draw(st.integers(1, 255))])

    assert chunks.decode(VALUE[:place] + flipped + VALUE[place + 1 :], DATABASE, "t", 0) is None
    assert chunks.decode(VALUE[:place], DATABASE, "t", 0) is None
    assert chunks.decode(VALUE + flipped, DATABASE, "t", 0) is None


@given(st.binary())
def test_a_value_that_is_anything_else_is_a_miss(value: bytes) -> None:
    assert chunks.decode(value, DATABASE, "t", 0) is None


def test_a_chunk_of_another_database_thread_or_place_is_a_miss() -> None:
    assert chunks.decode(VALUE, "another database", "t", 0) is None
    assert chunks.decode(VALUE, DATABASE, "another thread", 0) is None
    assert chunks.decode(VALUE, DATABASE, "t", 1) is None
    assert chunks.decode(None, DATABASE, "t", 0) is None


def test_a_value_of_another_format_is_a_miss(monkeypatch) -> None:
    monkeypatch.setattr(chunks, "FORMAT", chunks.FORMAT + 1)

    assert chunks.decode(VALUE, DATABASE, "t", 0) is None


def test_events_that_are_not_a_whole_chunk_or_too_large_are_not_kept() -> None:
    assert chunks.encode(DATABASE, 0, FIRST[:-1]) is None
    assert chunks.encode(DATABASE, 1, FIRST) is None
    large = log(body=bytes(chunks.CHUNK_BYTES_MAX // chunks.CHUNK_EVENTS + 1))[: chunks.CHUNK_EVENTS]
    assert chunks.encode(DATABASE, 0, large) is None


def test_a_value_that_would_inflate_without_end_is_a_miss() -> None:
    whole = bytes(5 * chunks.CHUNK_BYTES_MAX)
    bomb = hashlib.sha256(whole).digest()[:16] + zlib.compress(whole, 9)

    assert chunks.decode(bomb, DATABASE, "t", 0) is None


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 2000), st.integers(0, 2000))
def test_keys_of_different_chunks_differ_and_those_of_a_thread_share_one_hash_tag(
    one: str, other: str, first: int, second: int
) -> None:
    try:
        keys = [chunks.chunk_key(DATABASE, *each) for each in ((one, first), (other, second), (one, second))]
    except UnicodeEncodeError:
        return
    tags = [key[key.index("{") + 1 : key.index("}")] for key in keys]

    assert (keys[0] == keys[1]) is ((one, first) == (other, second))
    assert tags[0] == tags[2]
    assert (tags[0] == tags[1]) is (one == other)


@given(st.integers(0, 5000), st.integers(0, 300))
def test_every_chunk_is_completed_by_exactly_one_append(before: int, count: int) -> None:
    whole = [*chunks.completed(0, before), *chunks.completed(before, before + count)]

    assert whole == list(range((before + count) // chunks.CHUNK_EVENTS))
