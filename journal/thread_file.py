"""
The form in which threads leave a journal: lines of JSON, each of which proves itself and all before it.

A thread is a header, one line for each event and a trailer; a file holds one thread after another.
`docs/export-format.md` has the fields. Only bytes and the chain are known here, no event's body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from .envelope import EVENT_BYTES_MAX, GENESIS, Event, chain, check_thread_id
from .errors import Corrupt, LimitExceeded, UsageError
from .store import ThreadState

FORMAT = 1
LINE_BYTES_MAX = 2 * EVENT_BYTES_MAX + 4096

_ABSENT = Raw(b"")
_CHECK_HEX = 16
_SUFFIX_BYTES = len(',"check":""}\n') + _CHECK_HEX
_ENDINGS = frozenset(b'}]"0123456789el')
"""Last bytes of JSON values; a body that ends otherwise (in a space, say) is not embedded."""


class Header(Struct, frozen=True):
    """
    What a thread was when it was written to a file.

    Args:
        refold_thread: Version of the format.
        thread: Thread id.
        head: Seq of its newest event.
        head_hash: Chain hash of that event, in hex.
        state: The thread's state.
    """

    refold_thread: int
    thread: str
    head: int
    head_hash: str
    state: ThreadState


class _Line(Struct, frozen=True, omit_defaults=True):
    seq: int
    id: UUID
    kind: str
    version: int
    fence: int
    recorded_at: int
    hash: str
    body: Raw = _ABSENT
    body_base64: str | None = None


class _Trailer(Struct, frozen=True):
    end: str
    events: int
    head_hash: str


class FiledThread(Struct):
    """
    A thread in a file. Its events are checked as they are read; take them all before the next thread.

    Args:
        header: What the file says of it.
        events: Its events in order; raises `Corrupt` at the first that does not fit.
    """

    header: Header
    events: Iterator[Event]


_encode = msgspec.json.Encoder().encode
_read_header = msgspec.json.Decoder(Header).decode
_read_line = msgspec.json.Decoder(_Line).decode
_read_trailer = msgspec.json.Decoder(_Trailer).decode


class _Checks:
    """The running digest of a thread's lines."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"refold thread file")

    def suffix(self, content: bytes) -> bytes:
        """What a line ends with, after its content without the closing brace."""
        self._digest.update(content)
        return b',"check":"' + self._digest.copy().hexdigest()[:_CHECK_HEX].encode() + b'"}\n'


def write_thread(header: Header, events: Iterable[Event], out: BinaryIO) -> int:
    """
    Write a thread as it streams by, and return how many events it has.

    Raises:
        Corrupt: The events are not the chain that the header speaks of; what was written is of no use.
    """
    checks = _Checks()

    def put(value: Any) -> None:
        content = _encode(value)[:-1]
        out.write(content + checks.suffix(content))

    put(header)
    previous, seq = GENESIS, 0
    for seq, event in enumerate(events, 1):
        previous = _follow(header.thread, previous, seq, event)
        put(_line_of(event))
    if (seq, previous.hex()) != (header.head, header.head_hash):
        raise Corrupt(
            header.thread, seq, f"the log ends here, the head is {header.head} ({header.head_hash[:12]})"
        )
    put(_Trailer(header.thread, seq, header.head_hash))
    return seq


def read_threads(lines: BinaryIO, *, name: str, line: int = 0) -> Iterator[FiledThread]:
    """
    The threads of a file, one after another, at the memory of one event.

    Args:
        lines: The file, decompressed.
        name: The file's name, for messages.
        line: How many of its lines were passed over.

    Raises:
        Corrupt: A line is not what was written; names the thread, the seq and the line.
        UsageError: The file is no export, or of a newer format.
    """
    reader = _Reader(lines, name, line)
    while (header := reader.header()) is not None:
        events = reader.events(header)
        yield FiledThread(header, events)
        for _ in events:
            # Whoever did not want them all still has them checked.
            pass


class _Reader:
    def __init__(self, lines: BinaryIO, name: str, line: int) -> None:
        self._lines = lines
        self._name = name
        self._number = line
        self._checks = _Checks()
        self._thread = ""
        self._seq = 0

    def header(self) -> Header | None:
        """The next thread's header; None at the end of the file."""
        self._checks = _Checks()
        self._thread, self._seq = "", 0
        first = self._number == 0
        line = self._line()
        if not line:
            if first:
                raise UsageError(f"{self._name} is empty; it is no export")
            return None
        if first and not line.startswith(b'{"refold_thread":') and b',"check":"' not in line[-_SUFFIX_BYTES:]:
            raise UsageError(f"{self._name} is no export of refold: its first line is no thread's header")
        header: Header = self._decoded(_read_header, line)
        if header.refold_thread != FORMAT:
            raise UsageError(
                f"{self._name} has format {header.refold_thread}, this refold reads format {FORMAT}; upgrade refold"
            )
        try:
            self._thread = check_thread_id(header.thread)
        except LimitExceeded as error:
            raise self._corrupt(str(error)) from None
        return header

    def events(self, header: Header) -> Iterator[Event]:
        """The header's events, then its trailer checked."""
        previous = GENESIS
        for seq in range(1, header.head + 1):
            self._seq = seq
            line = self._line()
            if not line:
                raise self._corrupt(f"the file ends before seq {seq} of {header.head}")
            event = self._event(self._decoded(_read_line, line))
            try:
                previous = _follow(header.thread, previous, seq, event)
            except Corrupt as error:
                raise self._corrupt(str(error).partition(": ")[2]) from None
            yield event
        line = self._line()
        if not line:
            raise self._corrupt("the file ends before the thread's last line")
        trailer = self._decoded(_read_trailer, line)
        if (
            trailer != _Trailer(header.thread, header.head, header.head_hash)
            or previous.hex() != header.head_hash
        ):
            raise self._corrupt("the thread's last line does not fit its header and events")

    def _event(self, line: _Line) -> Event:
        try:
            body = (
                bytes(line.body)
                if line.body_base64 is None
                else base64.b64decode(line.body_base64, validate=True)
            )
            digest = bytes.fromhex(line.hash)
        except (ValueError, binascii.Error) as error:
            raise self._corrupt(f"undecodable: {error}") from None
        return Event(
            self._thread,
            line.seq,
            line.id,
            line.kind,
            line.version,
            line.fence,
            line.recorded_at,
            digest,
            body,
        )

    def _line(self) -> bytes:
        try:
            line = self._lines.readline(LINE_BYTES_MAX)
        except (OSError, EOFError, zlib.error) as error:
            self._number += 1
            raise self._corrupt(f"cannot be decompressed: {error}") from None
        if line:
            self._number += 1
        return line

    def _decoded(self, decode: Any, line: bytes) -> Any:
        content, suffix = line[:-_SUFFIX_BYTES], line[-_SUFFIX_BYTES:]
        if suffix != self._checks.suffix(content):
            raise self._corrupt("the line was changed since it was written, or cut off")
        try:
            return decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._corrupt(f"undecodable: {error}") from None

    def _corrupt(self, why: str) -> Corrupt:
        return Corrupt(self._thread, self._seq, f"{self._name}, line {self._number}: {why}")


def _follow(thread: str, previous: bytes, seq: int, event: Event) -> bytes:
    if event.seq != seq:
        raise Corrupt(thread, seq, f"the log has seq {event.seq} where {seq} is due")
    digest = chain(previous, seq, event)
    if digest != event.hash:
        raise Corrupt(
            thread, seq, "its hash does not follow from the event before: it or that one was changed"
        )
    return digest


def _line_of(event: Event) -> _Line:
    body, text = Raw(event.body), None
    if not _embeds(event.body):
        body, text = _ABSENT, base64.b64encode(event.body).decode()
    return _Line(
        event.seq,
        event.id,
        event.kind,
        event.version,
        event.fence,
        event.recorded_at,
        event.hash.hex(),
        body,
        text,
    )


def _embeds(body: bytes) -> bool:
    """Whether the body can stand in a line as the JSON that it is, and come out of it byte for byte."""
    if not body or body[0] in b" \t\r\n" or body[-1] not in _ENDINGS or b"\n" in body or b"\r" in body:
        return False
    try:
        msgspec.json.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
