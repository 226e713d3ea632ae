"""
Model requests: conversations that grow, their fingerprints, and the form in which they are stored.

A request is never stored whole. `RequestDelta` says how it is made from the request before it:
ranges of that one's items, references to replies and results that are events already, and items that are new.
A fingerprint is by value and costs what is new: item digests are combined as a polynomial modulo a prime,
so any window of a conversation is hashed from two prefix sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, overload

import msgspec
from msgspec import Raw, Struct, field

from ..journal import codec
from ..journal.errors import UnsupportedValue
from .provider_tools import acting

_PRIME = (1 << 255) - 19
_number = int.from_bytes
_BASE = int.from_bytes(sha256(b"refold request 1").digest()) % _PRIME

VOLATILE = frozenset(
    {
        "api_key",
        "api_base",
        "base_url",
        "headers",
        "extra_headers",
        "timeout",
        "metadata",
        "user",
        "callbacks",
        "client",
    }
)
"""Parameters left out of the fingerprint and of the log: they do not change what is asked, or are secret."""

PRIOR = "prior"
"""The base of a run's first requests: what it inherits from the thread's earlier runs."""

ABSENT = Raw(b"")
"""Stands for no value where a field holds raw JSON; it is left out of what is stored."""


class NewItem(Struct, frozen=True, omit_defaults=True, gc=False):
    """One item that the request before did not have: a literal message, or a reference to an event."""

    message: Raw = ABSENT
    reply: str | None = None
    """Call id of the model call whose assistant message this is."""
    result: str | None = None
    """Call id of the tool call whose outcome this message tells."""
    id: str | None = None
    """The tool call id that the provider knows the result by."""
    input: str | None = None
    """Id of the run whose input this user message is."""


Parts = list[tuple[int, int] | NewItem]

_decode_parts = msgspec.json.Decoder(Parts).decode


class RequestDelta(Struct, frozen=True, omit_defaults=True, gc=False):
    """
    A request against the one before it on its branch.

    Args:
        base: Call id of that request; "prior" for the last preamble and the conversation of the earlier runs; or None.
        encoded_parts: In order, ranges `[from, to)` of the base's items, and new items. Replay has no need of them.
        params: The parameters, when they differ from the base's.
    """

    base: str | None = None
    encoded_parts: Raw = field(default=ABSENT, name="parts")
    params: Raw = ABSENT

    @classmethod
    def of(cls, base: str | None, parts: Parts, params: Raw = ABSENT) -> RequestDelta:
        """The delta of these parts."""
        return cls(base, Raw(codec.canonical(parts)) if parts else ABSENT, params)

    @property
    def parts(self) -> Parts:
        """
        Decoded, as often as they are looked at.

        Raises:
            UnsupportedValue: They are not what is recorded of a request.
        """
        try:
            return _decode_parts(self.encoded_parts) if self.encoded_parts else []
        except msgspec.DecodeError as error:
            raise UnsupportedValue(f"the parts of a recorded request are damaged: {error}") from None


class Item(Struct, frozen=True, gc=False):
    """One message of a conversation: its canonical bytes, and the event it comes from if there is one."""

    raw: bytes
    reply: str | None = None
    result: str | None = None
    id: str | None = None
    input: str | None = None

    def stored(self) -> NewItem:
        """How this item is written into the log."""
        if self.reply is None and self.result is None and self.input is None:
            return NewItem(message=Raw(self.raw))
        return NewItem(reply=self.reply, result=self.result, id=self.id, input=self.input)


class _Segment:
    """An append-only run of items with prefix sums of their hash polynomial."""

    __slots__ = ("items", "sizes", "sums")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.sums: list[int] = [0]
        self.sizes: list[int] = [0]
        """Bytes of all items before each."""

    def add(self, item: Item) -> None:
        raw, sums, sizes = item.raw, self.sums, self.sizes
        self.items.append(item)
        sizes.append(sizes[-1] + len(raw))
        sums.append((sums[-1] * _BASE + _number(sha256(raw).digest())) % _PRIME)

    def hash(self, low: int, high: int) -> int:
        return (self.sums[high] - self.sums[low] * _power(high - low)) % _PRIME


_powers: list[int] = [1]


def _power(n: int) -> int:
    while len(_powers) <= n:
        _powers.append(_powers[-1] * _BASE % _PRIME)
    return _powers[n]


_Range = tuple[_Segment, int, int]


class Messages(Sequence[dict[str, Any]]):
    """
    A conversation: an append-only sequence of messages, cheap to copy, to cut and to fingerprint.

    Messages are held as canonical bytes and decoded when looked at, so that a request of thousands of messages
    costs nothing until somebody reads it.
    """

    __slots__ = ("_fixed", "_own", "_size")

    def __init__(self, messages: Iterable[Mapping[str, Any]] = ()) -> None:
        self._fixed: tuple[_Range, ...] = ()
        """What it began with."""
        self._own: _Segment | None = None
        """What was added to it, nothing of which is ever taken back; nobody else adds to this segment."""
        self._size = 0
        for message in messages:
            self.add(message)

    def add(self, message: Mapping[str, Any]) -> None:
        """Append a literal message (a chat-completions dict)."""
        self.add_item(Item(codec.encode(message, what="a model message")))

    def add_item(self, item: Item) -> None:
        """Append an item that may refer to an event."""
        own = self._own
        if own is None:
            own = self._own = _Segment()
        own.add(item)
        self._size += 1

    def copy(self) -> Messages:
        """The same conversation, to be continued apart."""
        return _conversation(self.ranges, self._size)

    def items(self) -> Iterator[Item]:
        """The items in order."""
        for segment, low, high in self.ranges:
            yield from segment.items[low:high]

    @property
    def ranges(self) -> tuple[_Range, ...]:
        """The pieces this conversation is made of; a value, unchanged by later additions."""
        own = self._own
        return self._fixed if own is None else (*self._fixed, (own, 0, len(own.items)))

    def request(self, params: Params) -> Request:
        """Ask a model with this conversation, as it is now."""
        return Request(self.ranges, self._size, params)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Messages:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._size)
            if step != 1:
                raise ValueError("a conversation can be cut, not reordered: slice it with step 1")
            return self._cut(start, max(start, stop))
        position = index + self._size if index < 0 else index
        if not 0 <= position < self._size:
            raise IndexError("message index out of range")
        for segment, low, high in self.ranges:
            if position < high - low:
                return codec.decode(segment.items[low + position].raw)  # type: ignore[no-any-return]
            position -= high - low
        raise AssertionError("ranges do not add up to the size")

    def _cut(self, start: int, stop: int) -> Messages:
        kept: list[_Range] = []
        offset = 0
        for segment, low, high in self.ranges:
            first, last = max(start - offset, 0), min(stop - offset, high - low)
            if first < last:
                kept.append((segment, low + first, low + last))
            offset += high - low
        return _conversation(tuple(kept), max(stop - start, 0))

    def __add__(self, more: Messages | Iterable[Mapping[str, Any]]) -> Messages:
        """A new conversation: this one, then *more*."""
        if isinstance(more, Messages):
            return _conversation(self.ranges + more.ranges, self._size + more._size)
        other = self.copy()
        for message in more:
            other.add(message)
        return other

    def __repr__(self) -> str:
        return f"Messages({self._size} messages)"


def _conversation(ranges: tuple[_Range, ...], size: int) -> Messages:
    messages = Messages()
    messages._fixed, messages._size = ranges, size
    return messages


class Params:
    """Parameters of a request (model, tools, temperature ...), encoded once."""

    __slots__ = ("acting", "digest", "raw", "secret", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = {k: v for k, v in values.items() if k not in VOLATILE and v is not None}
        self.secret = {k: v for k, v in values.items() if k in VOLATILE}
        self.raw = codec.encode(self.values, what="model parameters")
        self.digest = sha256(self.raw).digest()
        self.acting = bool(acting(self.values))
        """Whether the provider runs tools inside the call that may act."""


class Request(Struct, eq=False):
    """A request as asked by a program: frozen at the moment of asking."""

    ranges: tuple[_Range, ...]
    size: int
    """How many messages it has."""
    params: Params
    _fingerprint: str = ""

    @property
    def fingerprint(self) -> str:
        """Digest of parameters and messages by value; 32 hex digits."""
        if not self._fingerprint:
            total = 0
            for segment, low, high in self.ranges:
                part = segment.hash(low, high) if low else segment.sums[high]
                total = (total * _power(high - low) + part) % _PRIME if total else part
            seed = self.params.digest + (total << 64 | self.size).to_bytes(40)
            self._fingerprint = sha256(seed).hexdigest()[:32]
        return self._fingerprint

    @property
    def bytes(self) -> int:
        """How large it is in all, parameters included."""
        size = len(self.params.raw)
        for segment, low, high in self.ranges:
            size += segment.sizes[high] - segment.sizes[low]
        return size

    def messages(self) -> Messages:
        """The conversation asked with, decoded as it is read."""
        return _conversation(self.ranges, self.size)

    def delta(self, base: Base | None) -> RequestDelta:
        """This request against *base*, in the form that is stored."""
        parts: Parts = []
        for segment, low, high in self.ranges:
            position = low
            while position < high:
                found = base.find(segment, position) if base else None
                if found is None:
                    parts.append(segment.items[position].stored())
                    position += 1
                    continue
                at, length = found
                length = min(length, high - position)
                last = parts[-1] if parts else None
                if isinstance(last, tuple) and last[1] == at:
                    parts[-1] = (last[0], at + length)
                else:
                    parts.append((at, at + length))
                position += length
        same = base is not None and base.params_digest == self.params.digest
        return RequestDelta.of(base.call if base else None, parts, ABSENT if same else Raw(self.params.raw))


class Base(Struct, frozen=True, eq=False):
    """What the next request on a branch is stored against."""

    call: str
    ranges: tuple[_Range, ...]
    params_digest: bytes | None

    def find(self, segment: _Segment, position: int) -> tuple[int, int] | None:
        """Where the item stands among the base's items, and how many follow it there; None if it does not."""
        offset = 0
        for own, low, high in self.ranges:
            if own is segment and low <= position < high:
                return offset + position - low, high - position
            offset += high - low
        return None


class Prior(Struct, frozen=True):
    """
    What a run inherits from the thread's earlier runs.

    Args:
        messages: Their conversation.
        preamble: The instructions last asked with, which a run may ask with again.
        params_digest: Digest of the parameters last asked with.
    """

    messages: Messages
    preamble: Messages
    params_digest: bytes | None = None

    def base(self) -> Base:
        """The first request of the run is stored against this."""
        return Base(PRIOR, self.preamble.ranges + self.messages.ranges, self.params_digest)


class Interner:
    """Turns plain message lists into conversations that share what they have in common."""

    def __init__(self) -> None:
        self._segment = _Segment()
        self._index: dict[bytes, int] = {}
        self.replies: list[tuple[bytes, str]] = []
        """Messages of models and the calls they came by, so that a list holding one refers to the event."""

    def _learn(self) -> None:
        for raw, call in self.replies:
            if raw not in self._index:
                self._index[raw] = len(self._segment.items)
                self._segment.add(Item(raw, reply=call))
        self.replies.clear()

    def messages(self, plain: Iterable[Mapping[str, Any]]) -> Messages:
        """The conversation of a plain list."""
        self._learn()
        ranges: list[_Range] = []
        for message in plain:
            raw = codec.encode(message, what="a model message")
            position = self._index.get(raw)
            if position is None:
                position = self._index[raw] = len(self._segment.items)
                self._segment.add(Item(raw))
            if ranges and ranges[-1][2] == position:
                ranges[-1] = (self._segment, ranges[-1][1], position + 1)
            else:
                ranges.append((self._segment, position, position + 1))
        return _conversation(tuple(ranges), sum(high - low for _, low, high in ranges))
